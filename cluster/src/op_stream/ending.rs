//! Operations that are refused, or that take too long.
//!
//! Not here: answers (`op_stream`), the types of outcomes (`outcome`), sending again (`resending`).

use super::outcome::{OpEnd, OpOutcome};
use super::stream::{OpState, Pending};
use super::{OpOptions, OpStreams, OwnerContact};
use crate::frames::ExceptionKind;
use crate::id::NodeId;
use crate::position::NodeTime;
use crate::route::Refusal;
use crate::rules::Bug;

impl OpStreams {
    /// Handles the refusal of an operation: sends it to the right owner, or ends it.
    pub(super) fn except(
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
        if is_refused {
            pending.sendings.refuse_newest();
        }
        let (token, index) = (pending.token, pending.index);
        if let Some(refusal) = refusal
            && pending.sendings.are_refused()
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
                let is_refused = pending.sendings.are_refused();
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
