//! Operations that were sent to other nodes, or that this node has done itself and not yet
//! answered: their numbers, and the data for sending them again.
//!
//! An operation keeps its op stream and number each time it is sent, so it is done once. Only its
//! newest sending counts: an answer to an older one may come from a node that was no longer the
//! owner. There is one [`OpStreams`] for each worker.

mod ending;
mod options;
mod outcome;
mod resending;
mod stream;

use std::collections::VecDeque;

pub use self::options::OpOptions;
pub use self::outcome::{OpEnd, OpOutcome};
use self::stream::{OpState, OpStream, Pending, Sendings, WaitingCounts};
use crate::frames::{Answers, ExceptionKind, ForwardHead, ForwardOp, ForwardWriter, StreamDone};
use crate::id::{Incarnation, NodeId, OpStreamId, Partition, Term};
use crate::position::NodeTime;
use crate::route::Destination;
use crate::rules::Bug;

/// The most unanswered operations of an op stream.
pub const UNANSWERED_MAX: usize = 65_536;
/// The most bytes of their lines.
pub const LINES_BYTES_MAX: usize = 4 << 20;
/// The most numbers between the first unanswered operation and the newest.
pub const NUMBERS_MAX: usize = 131_072;

const MS: u64 = 1_000_000;

#[derive(Debug, Clone, Copy)]
struct Sending {
    stream: u16,
    count: u16,
    first: u64,
}

/// An operation to submit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewOp {
    /// The partition of its key.
    pub partition: Partition,
    /// Flags of the operation; see `frames::op_flags`. Without `AGAIN`.
    pub op_flags: u8,
    /// The caller's key for the end of the operation. Consecutive operations of one connection have
    /// the same token.
    pub token: u64,
    /// The index of the operation within the token's operations.
    pub index: u32,
    /// The least time to keep trying, in nanoseconds, if it exceeds the times of `OpOptions`. While
    /// it lasts, the operation is sent again every `removal_ns`.
    pub for_ns: u64,
}

/// The contact of a worker with an owner, for [`OpStreams::tick`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnerContact {
    /// When the worker's link to the owner last made progress: an ack or answers.
    pub progress_ns: u64,
    /// If the owner does not answer, a path through another node or another owner is found soon.
    pub is_replaced_soon: bool,
}

/// All op streams of a worker.
#[derive(Debug)]
pub struct OpStreams {
    node: NodeId,
    incarnation: Incarnation,
    worker: u16,
    streams: Vec<OpStream>,
    /// The newest sendings; the first has the number `first_sending`.
    sendings: VecDeque<Sending>,
    first_sending: u64,
    writer: ForwardWriter,
    /// Operations to be sent again: due time, op stream, number.
    again: Vec<(u64, u16, u64)>,
    /// When operations with a longer time to keep trying were last sent again.
    kept_ns: u64,
    waiting: WaitingCounts,
    options: OpOptions,
}

impl OpStreams {
    /// The op streams of a worker of this node and incarnation.
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
            kept_ns: 0,
            waiting: WaitingCounts::default(),
            options,
        }
    }

    /// The op stream for an owner, created if missing.
    pub fn stream_for(&mut self, owner: NodeId) -> u16 {
        let known = self.streams.iter().position(|ops| ops.id.owner == owner);
        let place = known.unwrap_or_else(|| {
            let (node, incarnation, worker) = (self.node, self.incarnation, self.worker);
            self.streams.push(OpStream::new(OpStreamId { node, incarnation, worker, owner }));
            self.streams.len() - 1
        });
        place as u16
    }

    /// The id of an op stream.
    #[must_use]
    pub fn id(&self, stream: u16) -> OpStreamId {
        self.streams[usize::from(stream)].id
    }

    /// The first unanswered number of an op stream.
    #[must_use]
    pub fn done(&self, stream: u16) -> u64 {
        self.streams[usize::from(stream)].first
    }

    /// The done numbers of all op streams, for an `Ack` or `KeepAlive`.
    pub fn all_done(&self) -> impl Iterator<Item = StreamDone> + '_ {
        self.streams.iter().map(|ops| StreamDone { stream: ops.id, done: ops.first })
    }

    /// The number of unanswered operations.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.streams.iter().map(|ops| ops.unanswered).sum()
    }

    /// Whether operations on a partition were sent to its owner and are not answered. Doing another
    /// one at once would overtake them.
    #[must_use]
    #[inline]
    pub fn is_waiting(&self, partition: Partition) -> bool {
        self.waiting.is_any(partition)
    }

    /// Whether an op stream has room for `count` more operations without lines.
    #[must_use]
    #[inline]
    pub fn has_room(&self, stream: u16, count: usize) -> bool {
        !self.streams[usize::from(stream)].is_full(count, 0)
    }

    /// Takes the number of an operation that this node does itself. The caller parks its reply, and
    /// marks the number [answered](Self::answered) with it. None if the op stream is full.
    #[inline]
    pub fn number(&mut self, stream: u16, submitted: &NewOp, now: NodeTime) -> Option<u64> {
        let ops = &mut self.streams[usize::from(stream)];
        if ops.is_full(1, 0) {
            return None;
        }
        let number = ops.next();
        if ops.new_from == number {
            // No operation before it is new, and it is never sent.
            ops.new_from += 1;
        }
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
            sendings: Sendings::of_this_node(),
            op_flags: submitted.op_flags,
            state: OpState::Parked,
        });
        Some(number)
    }

    /// Marks an operation of this node as answered: its reply was sent, or the operation made no
    /// record and waits for nothing.
    #[inline]
    pub fn answered(&mut self, stream: u16, number: u64) {
        let ops = &mut self.streams[usize::from(stream)];
        if let Some(place) = ops.place(number) {
            ops.end(place, &mut self.waiting);
        }
    }

    /// Adds an operation for the op stream's owner; `raw` is its line. The next
    /// [`send_new`](Self::send_new) sends it. Returns false if the op stream is full.
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
            sendings: Sendings::default(),
            op_flags: submitted.op_flags,
            state: OpState::New,
        });
        true
    }

    /// Sends the operations of an op stream that were submitted and never sent. Runs that `route`
    /// sends to the op stream's owner are appended to `out`, if given; all others wait for
    /// [`send_again`](Self::send_again).
    pub fn send_new(
        &mut self,
        stream: u16,
        now: NodeTime,
        mut route: impl FnMut(Partition) -> Option<Destination>,
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
            if is_new
                && out.is_some()
                && let Some(route) = route(pending.partition)
                && route.node == owner
            {
                let first = *run.get_or_insert(number);
                let sending = self.first_sending + self.sendings.len() as u64;
                pending.mark_sent(route, sending);
                let (from, bytes) = (pending.line_at as usize, pending.line_bytes as usize);
                let request = ForwardOp {
                    partition: pending.partition,
                    term: route.term,
                    op_flags: pending.op_flags,
                };
                self.writer.request(request, &ops.lines[from..from + bytes]);
                if self.writer.count() >= self.options.frame_requests_max {
                    self.finish(stream, first, out.as_deref_mut());
                    run = None;
                }
            } else {
                if let Some(first) = run.take() {
                    self.finish(stream, first, out.as_deref_mut());
                }
                if is_new {
                    self.streams[usize::from(stream)].pending[place].state = OpState::Waits;
                    self.again.push((now.mono_ns, stream, number));
                }
            }
            number += 1;
        }
        if let Some(first) = run {
            self.finish(stream, first, out);
        }
        self.streams[usize::from(stream)].new_from = end;
    }

    /// Finishes the frame in the writer.
    fn finish(&mut self, stream: u16, first: u64, out: Option<&mut Vec<u8>>) {
        let ops = &self.streams[usize::from(stream)];
        let sending = self.first_sending + self.sendings.len() as u64;
        let count = self.writer.count() as u16;
        self.sendings.push_back(Sending { stream, count, first });
        let left_ms = u16::try_from(self.options.deadline_ns / MS).unwrap_or(u16::MAX);
        let head = ForwardHead { sending, stream: ops.id, first, done: ops.first, left_ms };
        let mut nowhere = Vec::new();
        self.writer.finish(&head, out.unwrap_or(&mut nowhere));
    }

    /// Handles answers. Answers to older sendings are dropped; refused operations are sent to the
    /// right owner. If `counts` is false for the partition and the term of an operation, its answer
    /// does not count, and it is sent again: see [`Answers::records_end`]. Calls `each` for the
    /// operations that ended.
    pub fn on_answers(
        &mut self,
        answers: &Answers<'_>,
        counts: impl Fn(Partition, Term) -> bool,
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
            let exception = match (exception, pending) {
                (None, Some(pending)) if !counts(pending.partition, pending.term) => {
                    Some(ExceptionKind::Deposed(None))
                }
                (exception, _) => exception.map(|exception| exception.kind),
            };
            let is_continued = exception.is_none()
                && pending.zip(run.as_ref()).is_some_and(|(pending, (ended, _))| {
                    pending.token == ended.token && pending.index == ended.index + ended.count
                });
            if !is_continued && let Some((ended, from)) = run.take() {
                each(OpEnd { outcome: OpOutcome::Done(&answers.text[from..text.start]), ..ended });
            }
            let Some(pending) = pending else { continue };
            if let Some(exception) = exception {
                self.except(sending.stream, number, exception, now, &mut each);
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

    /// Schedules an operation of an opened batch to be sent again under its number. The next
    /// [`send_again`](Self::send_again) sends it. Returns false if it is answered already.
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
}

#[cfg(test)]
mod tests;
