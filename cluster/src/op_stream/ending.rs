//! The end of operations: by an answer, by a refusal, or because they take too long.
//!
//! Not here: the types of outcomes (`outcome`), sending (`sending`).

use super::outcome::{OpEnd, OpOutcome};
use super::stream::{OpState, Pending};
use super::{OpOptions, OpStreams, OwnerContact};
use crate::frames::{Answers, ExceptionKind};
use crate::id::NodeId;
use crate::position::NodeTime;
use crate::route::Refusal;
use crate::rules::Bug;

impl OpStreams {
    /// Handles answers. Answers to older sendings are dropped; refused operations are sent to the
    /// right owner. Calls `each` for the operations that ended.
    pub fn on_answers(
        &mut self,
        answers: &Answers<'_>,
        now: NodeTime,
        mut each: impl FnMut(OpEnd<'_>),
    ) {
        let place = answers.sending.checked_sub(self.first_sending);
        let place = place.and_then(|place| usize::try_from(place).ok());
        let Some(&sending) = place.and_then(|place| self.sendings.get(place)) else { return };
        if answers.first + answers.count > sending.count {
            return;
        }
        let mut exceptions = answers.exceptions().peekable();
        let mut offset = 0;
        // A run of replies of one token: its end so far, and the offset of its text.
        let mut run: Option<(OpEnd<'_>, usize)> = None;
        for (at, length) in answers.lengths().enumerate() {
            let at = answers.first + at as u16;
            let number = sending.first + u64::from(at);
            let text = offset..offset + length as usize;
            offset = text.end;
            let exception = exceptions.next_if(|exception| exception.place == at);
            let pending = self.current(sending.stream, number, answers.sending);
            let is_continued = exception.is_none()
                && pending.zip(run.as_ref()).is_some_and(|(pending, (ended, _))| {
                    pending.token == ended.token && pending.index == ended.index + ended.count
                });
            if !is_continued && let Some((ended, from)) = run.take() {
                each(OpEnd { outcome: OpOutcome::Done(&answers.text[from..text.start]), ..ended });
            }
            let Some(pending) = pending else { continue };
            if let Some(exception) = exception {
                self.except(sending.stream, number, exception.kind, now, &mut each);
                continue;
            }
            self.answered(sending.stream, number);
            if let Some((ended, _)) = &mut run {
                ended.count += 1;
            } else {
                let (token, index) = (pending.token, pending.index);
                let (partition, outcome) = (pending.partition, OpOutcome::Done(&[][..]));
                let ended = OpEnd { token, index, count: 1, partition, line: &[], outcome };
                run = Some((ended, text.start));
            }
        }
        if let Some((ended, from)) = run {
            each(OpEnd { outcome: OpOutcome::Done(&answers.text[from..offset]), ..ended });
        }
        self.forget_sendings();
    }

    /// The operation, if it is unanswered and `sending` is its newest sending.
    fn current(&self, stream: u16, number: u64, sending: u64) -> Option<Pending> {
        let ops = &self.streams[usize::from(stream)];
        let pending = ops.pending.get(ops.place(number)?)?;
        let is_newest = pending.sending == sending && pending.state == OpState::Sent;
        let counts = is_newest
            || (self.options.rules.lack(Bug::AnswerOfAnySending) && pending.state != OpState::Over);
        counts.then_some(*pending)
    }

    fn except(
        &mut self,
        stream: u16,
        number: u64,
        kind: ExceptionKind,
        now: NodeTime,
        each: &mut impl FnMut(OpEnd<'_>),
    ) {
        let retry_ns = self.options.retry_ns;
        let ops = &mut self.streams[usize::from(stream)];
        let Some(place) = ops.place(number) else { return };
        let pending = &mut ops.pending[place];
        let (is_refused, route, refusal) = match kind {
            ExceptionKind::NotOwner(route) => (true, route, None),
            ExceptionKind::Deposed(route) => (false, route, None),
            ExceptionKind::Refused(refusal) => (true, None, Some(refusal)),
        };
        pending.refused += u16::from(is_refused);
        let (token, index) = (pending.token, pending.index);
        if let Some(refusal) = refusal
            && pending.refused == pending.sendings
        {
            each(OpEnd {
                token,
                index,
                count: 1,
                partition: pending.partition,
                line: line_of(&ops.lines, pending),
                outcome: OpOutcome::NotApplied(refusal),
            });
            self.answered(stream, number);
            return;
        }
        // If another owner is known, send at once. Else wait: the refusing node may get the newer
        // map in a moment.
        let is_known = route.is_some_and(|route| route.term > pending.term);
        let due_ns = now.mono_ns + if is_known { 0 } else { retry_ns };
        pending.state = OpState::Waits;
        self.again.push((due_ns, stream, number));
    }

    /// Drops the oldest sendings that are not the newest of any operation.
    fn forget_sendings(&mut self) {
        while let Some(sending) = self.sendings.front() {
            let ops = &self.streams[usize::from(sending.stream)];
            let end = sending.first + u64::from(sending.count);
            let is_newest = (sending.first.max(ops.first)..end).any(|number| {
                let pending = ops.place(number).and_then(|place| ops.pending.get(place));
                pending.is_some_and(|pending| {
                    pending.state != OpState::Over && pending.sending == self.first_sending
                })
            });
            if is_newest {
                break;
            }
            self.sendings.pop_front();
            self.first_sending += 1;
        }
    }

    /// Ends operations that take too long, and schedules those with more time to be sent again: the
    /// owner gave up an answer that waited for a silent copy. `contact` describes the worker's link
    /// to a node. Called every few tens of milliseconds.
    pub fn tick(
        &mut self,
        now: NodeTime,
        contact: impl Fn(NodeId) -> OwnerContact,
        mut each: impl FnMut(OpEnd<'_>),
    ) {
        let OpOptions { deadline_ns, removal_ns, patience_ns, .. } = self.options;
        let is_again_due = now.mono_ns.saturating_sub(self.kept_ns) >= removal_ns
            && !self.options.rules.lack(Bug::KeptOpNotResent);
        if is_again_due {
            self.kept_ns = now.mono_ns;
        }
        for stream in 0..self.streams.len() {
            let (first, next) = (self.streams[stream].first, self.streams[stream].next());
            for number in first..next {
                let ops = &mut self.streams[stream];
                let Some(place) = ops.place(number) else { continue };
                let pending = ops.pending[place];
                if now.mono_ns.saturating_sub(pending.since_ns) < deadline_ns {
                    // Later operations are younger, except those of opened batches.
                    if pending.state != OpState::Over {
                        break;
                    }
                    continue;
                }
                if matches!(pending.state, OpState::Over | OpState::Parked) {
                    continue;
                }
                let is_refused = pending.refused == pending.sendings;
                let OwnerContact { progress_ns, is_replaced_soon } = match pending.node {
                    NodeId(0) => OwnerContact::default(),
                    node => contact(node),
                };
                let stands_ns = now.mono_ns.saturating_sub(progress_ns.max(pending.since_ns));
                let stands_ns_max = if is_replaced_soon { removal_ns } else { deadline_ns };
                let age_ns = now.mono_ns.saturating_sub(pending.since_ns);
                if age_ns < pending.for_ns {
                    if is_again_due && age_ns >= removal_ns && pending.state == OpState::Sent {
                        ops.pending[place].state = OpState::Waits;
                        self.again.push((now.mono_ns, stream as u16, number));
                    }
                    continue;
                }
                if is_refused || stands_ns >= stands_ns_max || age_ns >= patience_ns {
                    let outcome = if is_refused {
                        OpOutcome::NotApplied(Refusal::Unreachable)
                    } else {
                        OpOutcome::Unknown
                    };
                    let Pending { token, index, partition, .. } = pending;
                    let raw = line_of(&ops.lines, &pending);
                    each(OpEnd { token, index, count: 1, partition, line: raw, outcome });
                    ops.end(place, &mut self.waiting);
                }
            }
        }
        self.forget_sendings();
    }
}

fn line_of<'a>(lines: &'a [u8], pending: &Pending) -> &'a [u8] {
    let from = pending.line_at as usize;
    &lines[from..from + pending.line_bytes as usize]
}
