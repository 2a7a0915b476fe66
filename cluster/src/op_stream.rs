//! Operations that other nodes were asked to do, or that this node has done itself and not yet answered: their numbers, and
//! what it takes to send them again until they are answered.
//!
//! An operation keeps its lane and its number however often it is sent, so it is done once. Of its sendings only the newest
//! counts: an answer to an older one may tell what an owner saw that was none any more. One [`OpStreams`] for each worker.

mod options;
mod stream;

use std::collections::VecDeque;

pub use self::options::OpOptions;
use self::stream::{OpState, OpStream, Pending, WaitingCounts};
use crate::frames::{
    Answers, ExceptionKind, ForwardHead, ForwardOp, ForwardWriter, StreamDone, op_flags,
};
use crate::id::{CopyId, Incarnation, NodeId, OpStreamId, Partition, Term};
use crate::replica::{NodeTime, Refusal, Route};
use crate::rules::Bug;

/// Most operations of a lane that are not answered.
pub const UNANSWERED_MAX: usize = 65_536;
/// Most bytes of their lines.
pub const LINES_BYTES_MAX: usize = 4 << 20;
/// Most numbers between the first that is not answered and the newest.
pub const NUMBERS_MAX: usize = 131_072;

const MS: u64 = 1_000_000;

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpOutcome<'a> {
    /// It was done once; the reply.
    Done(&'a [u8]),
    /// It was certainly not done.
    NotApplied(Refusal),
    /// It was done once or not at all.
    Unknown,
}

/// Where an ending belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpEnd<'a> {
    /// As it was [submitted](OpStreams::submit).
    pub token: u64,
    /// As it was submitted.
    pub index: u32,
    /// How many operations with this token and following indexes ended so; their replies stand one behind the other.
    pub count: u32,
    /// The partition of the first of them.
    pub partition: Partition,
    /// The line of an operation that was not done, or may not have been; else empty.
    pub line: &'a [u8],
    /// How.
    pub outcome: OpOutcome<'a>,
}

#[derive(Debug, Clone, Copy)]
struct Sending {
    stream: u16,
    count: u16,
    first: u64,
}

/// An operation as it is submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewOp {
    /// The partition of its key.
    pub partition: Partition,
    /// See `frames::sort`; without *again*.
    pub op_flags: u8,
    /// Where its ending belongs: operations of one connection that follow each other have the same token.
    pub token: u64,
    /// Its place within the token's operations.
    pub index: u32,
    /// It is tried for so long, nanoseconds, if that is more than `OpOptions` say.
    pub for_ns: u64,
}

/// All lanes of a worker.
#[derive(Debug)]
pub struct OpStreams {
    node: NodeId,
    incarnation: Incarnation,
    worker: u16,
    streams: Vec<OpStream>,
    /// The newest sendings; the first has number `first_sending`.
    sendings: VecDeque<Sending>,
    first_sending: u64,
    writer: ForwardWriter,
    /// Operations to be sent again: when, lane, number.
    again: Vec<(u64, u16, u64)>,
    waiting: WaitingCounts,
    options: OpOptions,
}

impl OpStreams {
    /// The lanes of a worker of this life of a node.
    #[must_use]
    pub fn new(node: NodeId, incarnation: Incarnation, worker: u16, options: OpOptions) -> Self {
        Self {
            node,
            incarnation,
            worker,
            streams: Vec::new(),
            sendings: VecDeque::new(),
            first_sending: 1,
            writer: ForwardWriter::default(),
            again: Vec::new(),
            waiting: WaitingCounts::default(),
            options,
        }
    }

    /// The lane of operations for an owner.
    pub fn stream_for(&mut self, owner: NodeId) -> u16 {
        let known = self.streams.iter().position(|ops| ops.id.owner == owner);
        let place = known.unwrap_or_else(|| {
            let (node, incarnation, worker) = (self.node, self.incarnation, self.worker);
            self.streams.push(OpStream::new(OpStreamId { node, incarnation, worker, owner }));
            self.streams.len() - 1
        });
        place as u16
    }

    /// The name of a lane.
    #[must_use]
    pub fn id(&self, stream: u16) -> OpStreamId {
        self.streams[usize::from(stream)].id
    }

    /// The first number of a lane that is not answered.
    #[must_use]
    pub fn done(&self, stream: u16) -> u64 {
        self.streams[usize::from(stream)].first
    }

    /// What all lanes are done with, for an `Ack` or `KeepAlive`.
    pub fn all_done(&self) -> impl Iterator<Item = StreamDone> + '_ {
        self.streams.iter().map(|ops| StreamDone { stream: ops.id, done: ops.first })
    }

    /// Operations that are not answered.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.streams.iter().map(|ops| ops.unanswered).sum()
    }

    /// Whether operations on a partition were asked of its owner and are not answered. Whoever does another one at once overtakes
    /// them.
    #[must_use]
    #[inline]
    pub fn is_waiting(&self, partition: Partition) -> bool {
        self.waiting.is_any(partition)
    }

    /// Whether a lane can take so many more operations without lines.
    #[must_use]
    #[inline]
    pub fn has_room(&self, stream: u16, count: usize) -> bool {
        !self.streams[usize::from(stream)].is_full(count, 0)
    }

    /// Takes the number of an operation that this node does itself. Its reply is to be parked, and the
    /// number [answered](Self::answered) with it. None: the lane is full.
    #[inline]
    pub fn number(&mut self, stream: u16, submitted: &NewOp, now: NodeTime) -> Option<u64> {
        let ops = &mut self.streams[usize::from(stream)];
        if ops.is_full(1, 0) {
            return None;
        }
        let number = ops.next();
        ops.unanswered += 1;
        ops.pending.push_back(Pending {
            token: submitted.token,
            sending: 0,
            since_ns: now.mono_ns,
            for_ns: submitted.for_ns,
            line_at: 0,
            line_bytes: 0,
            node: self.node,
            term: Term(0),
            index: submitted.index,
            partition: submitted.partition,
            sendings: 1,
            refused: 0,
            op_flags: submitted.op_flags,
            state: OpState::Parked,
        });
        Some(number)
    }

    /// An operation of this node's own was answered, or made no record and waits for nothing.
    #[inline]
    pub fn answered(&mut self, stream: u16, number: u64) {
        let ops = &mut self.streams[usize::from(stream)];
        if let Some(place) = ops.place(number) {
            ops.end(place, &mut self.waiting);
        }
    }

    /// Adds an operation for the lane's owner; `raw` is its line. It is sent by the next [`send_new`](Self::send_new). False: the lane is
    /// full.
    #[inline]
    pub fn submit(&mut self, stream: u16, submitted: &NewOp, raw: &[u8], now: NodeTime) -> bool {
        let ops = &mut self.streams[usize::from(stream)];
        if ops.is_full(1, raw.len()) {
            return false;
        }
        let (line_at, line_bytes) = ops.keep(raw);
        ops.unanswered += 1;
        self.waiting.add(submitted.partition);
        ops.pending.push_back(Pending {
            token: submitted.token,
            sending: 0,
            since_ns: now.mono_ns,
            for_ns: submitted.for_ns,
            line_at,
            line_bytes,
            node: NodeId(0),
            term: Term(0),
            index: submitted.index,
            partition: submitted.partition,
            sendings: 0,
            refused: 0,
            op_flags: submitted.op_flags,
            state: OpState::New,
        });
        true
    }

    /// An operation of an opened piece is to be sent again under its number; false: it is answered already. It is sent by
    /// the next [`send_again`](Self::send_again).
    pub fn reopen(&mut self, stream: u16, number: u64, raw: &[u8], now: NodeTime) -> bool {
        let ops = &mut self.streams[usize::from(stream)];
        let Some(place) = ops.place(number) else { return false };
        if ops.pending[place].state != OpState::Parked {
            return false;
        }
        let (line_at, line_bytes) = ops.keep(raw);
        let pending = &mut ops.pending[place];
        (pending.line_at, pending.line_bytes) = (line_at, line_bytes);
        pending.state = OpState::Waits;
        pending.since_ns = now.mono_ns;
        self.waiting.add(pending.partition);
        self.again.push((now.mono_ns, stream, number));
        true
    }

    /// Sends what was submitted to a lane and never sent: runs whose owner by `route` is the lane's are appended to `out`, if
    /// there is one; all else waits for [`send_again`](Self::send_again).
    pub fn send_new(
        &mut self,
        stream: u16,
        now: NodeTime,
        mut route: impl FnMut(Partition) -> Option<Route>,
        mut out: Option<&mut Vec<u8>>,
    ) {
        let ops = &self.streams[usize::from(stream)];
        let (owner, end) = (ops.id.owner, ops.next());
        let mut number = ops.new_from.max(ops.first);
        let mut run: Option<u64> = None;
        while number < end {
            let ops = &mut self.streams[usize::from(stream)];
            let Some(place) = ops.place(number) else { break };
            let pending = &mut ops.pending[place];
            let is_new = pending.state == OpState::New;
            let target = route(pending.partition).filter(|route| route.primary.node == owner);
            if is_new
                && out.is_some()
                && let Some(route) = target
            {
                let first = *run.get_or_insert(number);
                let sending = self.first_sending + self.sendings.len() as u64;
                mark_sent(pending, route, sending);
                let (from, bytes) = (pending.line_at as usize, pending.line_bytes as usize);
                let request = ForwardOp {
                    partition: pending.partition,
                    term: route.term,
                    op_flags: pending.op_flags,
                };
                self.writer.request(request, &ops.lines[from..from + bytes]);
                if self.writer.count() >= self.options.frame_requests_max {
                    self.finish(stream, first, now, out.as_deref_mut());
                    run = None;
                }
            } else {
                if let Some(first) = run.take() {
                    self.finish(stream, first, now, out.as_deref_mut());
                }
                if is_new {
                    self.streams[usize::from(stream)].pending[place].state = OpState::Waits;
                    self.again.push((now.mono_ns, stream, number));
                }
            }
            number += 1;
        }
        if let Some(first) = run {
            self.finish(stream, first, now, out);
        }
        self.streams[usize::from(stream)].new_from = end;
    }

    /// Ends the frame in the writer.
    fn finish(&mut self, stream: u16, first: u64, _now: NodeTime, out: Option<&mut Vec<u8>>) {
        let ops = &self.streams[usize::from(stream)];
        let sending = self.first_sending + self.sendings.len() as u64;
        let count = self.writer.count() as u16;
        self.sendings.push_back(Sending { stream, count, first });
        let left_ms = u16::try_from(self.options.deadline_ns / MS).unwrap_or(u16::MAX);
        let head = ForwardHead { sending, stream: ops.id, first, done: ops.first, left_ms };
        let mut nowhere = Vec::new();
        self.writer.finish(&head, out.unwrap_or(&mut nowhere));
    }

    /// Sends again what is due: each operation in a frame of its own, by ascending numbers, to the newest route. `emit` is
    /// given the primary and the frame; false: it cannot be reached now, and a new link brings it about again. Without a
    /// route an operation waits.
    pub fn send_again(
        &mut self,
        now: NodeTime,
        mut route: impl FnMut(Partition) -> Option<Route>,
        mut emit: impl FnMut(CopyId, &[u8]) -> bool,
    ) {
        if self.again.is_empty() {
            return;
        }
        let mut due = std::mem::take(&mut self.again);
        due.sort_unstable_by_key(|&(_, stream, number)| (stream, number));
        due.dedup_by_key(|&mut (_, stream, number)| (stream, number));
        let mut frame = Vec::new();
        for (due_ns, stream, number) in due {
            let ops = &mut self.streams[usize::from(stream)];
            let Some(place) = ops.place(number) else { continue };
            let pending = &mut ops.pending[place];
            if pending.state != OpState::Waits {
                continue;
            }
            if due_ns > now.mono_ns {
                self.again.push((due_ns, stream, number));
                continue;
            }
            let Some(route) = route(pending.partition) else {
                self.again.push((now.mono_ns + self.options.retry_ns, stream, number));
                continue;
            };
            let is_first = pending.sendings == 0;
            if !is_first && self.options.rules.lack(Bug::NumberNotKeptOnResend) {
                let (old, next) = (*pending, ops.next());
                ops.pending.push_back(Pending {
                    sendings: 0,
                    refused: 0,
                    op_flags: old.op_flags,
                    ..old
                });
                ops.pending[place].line_bytes = 0;
                ops.unanswered += 1;
                ops.end(place, &mut self.waiting);
                self.again.push((now.mono_ns, stream, next));
                continue;
            }
            let again = if is_first { 0 } else { op_flags::AGAIN };
            let sending = self.first_sending + self.sendings.len() as u64;
            mark_sent(pending, route, sending);
            let op_flags = pending.op_flags | again;
            let request = ForwardOp { partition: pending.partition, term: route.term, op_flags };
            let (from, bytes) = (pending.line_at as usize, pending.line_bytes as usize);
            self.writer.request(request, &ops.lines[from..from + bytes]);
            frame.clear();
            self.finish(stream, number, now, Some(&mut frame));
            if !emit(route.primary, &frame) && is_first {
                // It never left: it is still new to everybody.
                self.unsent(stream, number);
            }
        }
    }

    fn unsent(&mut self, stream: u16, number: u64) {
        let ops = &mut self.streams[usize::from(stream)];
        if let Some(place) = ops.place(number) {
            ops.pending[place].sendings = 0;
        }
    }

    /// A new link to a node: everything that it was asked and has not answered is sent again, by the next
    /// [`send_again`](Self::send_again).
    pub fn link_up(&mut self, node: NodeId, now: NodeTime) {
        self.wait_again(now, |pending| pending.node == node);
    }

    /// The map has changed: what was sent in an older term than `route` says is sent again, by the next
    /// [`send_again`](Self::send_again).
    pub fn routes_changed(
        &mut self,
        now: NodeTime,
        mut route: impl FnMut(Partition) -> Option<Route>,
    ) {
        self.wait_again(now, |pending| {
            route(pending.partition).is_some_and(|route| route.term > pending.term)
        });
    }

    fn wait_again(&mut self, now: NodeTime, mut is_due: impl FnMut(&Pending) -> bool) {
        for (at, ops) in self.streams.iter_mut().enumerate() {
            for (place, pending) in ops.pending.iter_mut().enumerate() {
                if pending.state == OpState::Sent && is_due(pending) {
                    pending.state = OpState::Waits;
                    self.again.push((now.mono_ns, at as u16, ops.first + place as u64));
                }
            }
        }
    }

    /// Answers came. Those to older sendings are dropped; what was not done goes on to the right owner. `each` is told what
    /// ended.
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
        // A run of replies of one token: the first of its operations, how many, and where their text begins.
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

    /// The operation, if it is not answered and this is its newest sending.
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
        // Another owner is known: at once. Else the one that was asked learns of it from the map a moment later.
        let is_known = route.is_some_and(|route| route.term > pending.term);
        let due_ns = now.mono_ns + if is_known { 0 } else { retry_ns };
        pending.state = OpState::Waits;
        self.again.push((due_ns, stream, number));
    }

    /// Drops the oldest sendings that are the newest of none of their operations.
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

    /// Ends what takes too long. `progress_ns` is when the worker's link to a node last made progress: a word or answers. Every
    /// few tens of milliseconds.
    pub fn tick(
        &mut self,
        now: NodeTime,
        progress_ns: impl Fn(NodeId) -> u64,
        mut each: impl FnMut(OpEnd<'_>),
    ) {
        let OpOptions { deadline_ns, patience_ns, .. } = self.options;
        for stream in 0..self.streams.len() {
            let (first, next) = (self.streams[stream].first, self.streams[stream].next());
            for number in first..next {
                let ops = &mut self.streams[stream];
                let Some(place) = ops.place(number) else { continue };
                let pending = ops.pending[place];
                if now.mono_ns.saturating_sub(pending.since_ns) < deadline_ns {
                    // Later ones are younger, but for those of opened pieces.
                    if pending.state != OpState::Over {
                        break;
                    }
                    continue;
                }
                if matches!(pending.state, OpState::Over | OpState::Parked) {
                    continue;
                }
                let is_refused = pending.refused == pending.sendings;
                let progress_ns =
                    if pending.node == NodeId(0) { 0 } else { progress_ns(pending.node) };
                let stands_ns = now.mono_ns.saturating_sub(progress_ns.max(pending.since_ns));
                let age_ns = now.mono_ns.saturating_sub(pending.since_ns);
                if age_ns < pending.for_ns {
                    continue;
                }
                if is_refused || stands_ns >= deadline_ns || age_ns >= patience_ns {
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

fn mark_sent(pending: &mut Pending, route: Route, sending: u64) {
    pending.state = OpState::Sent;
    pending.sending = sending;
    pending.term = route.term;
    pending.node = route.primary.node;
    pending.sendings = pending.sendings.saturating_add(1);
}

#[cfg(test)]
mod tests;
