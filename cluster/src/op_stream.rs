//! Operations that other nodes were asked to do, or that this node has done itself and not yet answered: their numbers, and
//! what it takes to send them again until they are answered.
//!
//! An operation keeps its lane and its number however often it is sent, so it is done once. Of its sendings only the newest
//! counts: an answer to an older one may tell what an owner saw that was none any more. One [`OpStreams`] for each worker.

mod lane;
mod options;

use std::collections::VecDeque;

use self::lane::{OpStream, Pending, State, Waiting};
pub use self::options::OpOptions;
use crate::frames::{Answers, ExceptionKind, ForwardHead, ForwardWriter, LaneDone, Request, sort};
use crate::id::{CopyId, Incarnation, LaneId, NodeId, Partition, Term};
use crate::replica::{Now, Refusal, Route};
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
pub enum Ending<'a> {
    /// It was done once; the reply.
    Done(&'a [u8]),
    /// It was certainly not done.
    NotApplied(Refusal),
    /// It was done once or not at all.
    Unknown,
}

/// Where an ending belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended<'a> {
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
    pub ending: Ending<'a>,
}

#[derive(Debug, Clone, Copy)]
struct Sending {
    lane: u16,
    count: u16,
    first: u64,
}

/// An operation as it is submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submitted {
    /// The partition of its key.
    pub partition: Partition,
    /// See `frames::sort`; without *again*.
    pub sort: u8,
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
    lanes: Vec<OpStream>,
    /// The newest sendings; the first has number `first_sending`.
    sendings: VecDeque<Sending>,
    first_sending: u64,
    writer: ForwardWriter,
    /// Operations to be sent again: when, lane, number.
    again: Vec<(u64, u16, u64)>,
    waiting: Waiting,
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
            lanes: Vec::new(),
            sendings: VecDeque::new(),
            first_sending: 1,
            writer: ForwardWriter::default(),
            again: Vec::new(),
            waiting: Waiting::default(),
            options,
        }
    }

    /// The lane of operations for an owner.
    pub fn lane_for(&mut self, owner: NodeId) -> u16 {
        let known = self.lanes.iter().position(|lane| lane.id.owner == owner);
        let place = known.unwrap_or_else(|| {
            let (node, incarnation, worker) = (self.node, self.incarnation, self.worker);
            self.lanes.push(OpStream::new(LaneId { node, incarnation, worker, owner }));
            self.lanes.len() - 1
        });
        place as u16
    }

    /// The name of a lane.
    #[must_use]
    pub fn id(&self, lane: u16) -> LaneId {
        self.lanes[usize::from(lane)].id
    }

    /// The first number of a lane that is not answered.
    #[must_use]
    pub fn done(&self, lane: u16) -> u64 {
        self.lanes[usize::from(lane)].first
    }

    /// What all lanes are done with, for a `Word` or `Beat`.
    pub fn all_done(&self) -> impl Iterator<Item = LaneDone> + '_ {
        self.lanes.iter().map(|lane| LaneDone { lane: lane.id, done: lane.first })
    }

    /// Operations that are not answered.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.lanes.iter().map(|lane| lane.unanswered).sum()
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
    pub fn has_room(&self, lane: u16, count: usize) -> bool {
        !self.lanes[usize::from(lane)].is_full(count, 0)
    }

    /// Takes the number of an operation that this node does itself. Its reply is to be parked, and the
    /// number [answered](Self::answered) with it. None: the lane is full.
    #[inline]
    pub fn number(&mut self, lane: u16, submitted: &Submitted, now: Now) -> Option<u64> {
        let stream = &mut self.lanes[usize::from(lane)];
        if stream.is_full(1, 0) {
            return None;
        }
        let number = stream.next();
        stream.unanswered += 1;
        stream.pending.push_back(Pending {
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
            sort: submitted.sort,
            state: State::Parked,
        });
        Some(number)
    }

    /// An operation of this node's own was answered, or made no record and waits for nothing.
    #[inline]
    pub fn answered(&mut self, lane: u16, number: u64) {
        let stream = &mut self.lanes[usize::from(lane)];
        if let Some(place) = stream.place(number) {
            stream.end(place, &mut self.waiting);
        }
    }

    /// Adds an operation for the lane's owner; `raw` is its line. It is sent by the next [`send_new`](Self::send_new). False: the lane is
    /// full.
    #[inline]
    pub fn submit(&mut self, lane: u16, submitted: &Submitted, raw: &[u8], now: Now) -> bool {
        let stream = &mut self.lanes[usize::from(lane)];
        if stream.is_full(1, raw.len()) {
            return false;
        }
        let (line_at, line_bytes) = stream.keep(raw);
        stream.unanswered += 1;
        self.waiting.add(submitted.partition);
        stream.pending.push_back(Pending {
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
            sort: submitted.sort,
            state: State::New,
        });
        true
    }

    /// An operation of an opened piece is to be sent again under its number; false: it is answered already. It is sent by
    /// the next [`send_again`](Self::send_again).
    pub fn reopen(&mut self, lane: u16, number: u64, raw: &[u8], now: Now) -> bool {
        let stream = &mut self.lanes[usize::from(lane)];
        let Some(place) = stream.place(number) else { return false };
        if stream.pending[place].state != State::Parked {
            return false;
        }
        let (line_at, line_bytes) = stream.keep(raw);
        let pending = &mut stream.pending[place];
        (pending.line_at, pending.line_bytes) = (line_at, line_bytes);
        pending.state = State::Waits;
        pending.since_ns = now.mono_ns;
        self.waiting.add(pending.partition);
        self.again.push((now.mono_ns, lane, number));
        true
    }

    /// Sends what was submitted to a lane and never sent: runs whose owner by `route` is the lane's are appended to `out`, if
    /// there is one; all else waits for [`send_again`](Self::send_again).
    pub fn send_new(
        &mut self,
        lane: u16,
        now: Now,
        mut route: impl FnMut(Partition) -> Option<Route>,
        mut out: Option<&mut Vec<u8>>,
    ) {
        let stream = &self.lanes[usize::from(lane)];
        let (owner, end) = (stream.id.owner, stream.next());
        let mut number = stream.new_from.max(stream.first);
        let mut run: Option<u64> = None;
        while number < end {
            let stream = &mut self.lanes[usize::from(lane)];
            let Some(place) = stream.place(number) else { break };
            let pending = &mut stream.pending[place];
            let is_new = pending.state == State::New;
            let target = route(pending.partition).filter(|route| route.primary.node == owner);
            if is_new
                && out.is_some()
                && let Some(route) = target
            {
                let first = *run.get_or_insert(number);
                let sending = self.first_sending + self.sendings.len() as u64;
                mark_sent(pending, route, sending);
                let (from, bytes) = (pending.line_at as usize, pending.line_bytes as usize);
                let request =
                    Request { partition: pending.partition, term: route.term, sort: pending.sort };
                self.writer.request(request, &stream.lines[from..from + bytes]);
                if self.writer.count() >= self.options.frame_requests_max {
                    self.finish(lane, first, now, out.as_deref_mut());
                    run = None;
                }
            } else {
                if let Some(first) = run.take() {
                    self.finish(lane, first, now, out.as_deref_mut());
                }
                if is_new {
                    self.lanes[usize::from(lane)].pending[place].state = State::Waits;
                    self.again.push((now.mono_ns, lane, number));
                }
            }
            number += 1;
        }
        if let Some(first) = run {
            self.finish(lane, first, now, out);
        }
        self.lanes[usize::from(lane)].new_from = end;
    }

    /// Ends the frame in the writer.
    fn finish(&mut self, lane: u16, first: u64, _now: Now, out: Option<&mut Vec<u8>>) {
        let stream = &self.lanes[usize::from(lane)];
        let sending = self.first_sending + self.sendings.len() as u64;
        let count = self.writer.count() as u16;
        self.sendings.push_back(Sending { lane, count, first });
        let left_ms = u16::try_from(self.options.deadline_ns / MS).unwrap_or(u16::MAX);
        let head = ForwardHead { sending, lane: stream.id, first, done: stream.first, left_ms };
        let mut nowhere = Vec::new();
        self.writer.finish(&head, out.unwrap_or(&mut nowhere));
    }

    /// Sends again what is due: each operation in a frame of its own, by ascending numbers, to the newest route. `emit` is
    /// given the primary and the frame; false: it cannot be reached now, and a new link brings it about again. Without a
    /// route an operation waits.
    pub fn send_again(
        &mut self,
        now: Now,
        mut route: impl FnMut(Partition) -> Option<Route>,
        mut emit: impl FnMut(CopyId, &[u8]) -> bool,
    ) {
        if self.again.is_empty() {
            return;
        }
        let mut due = std::mem::take(&mut self.again);
        due.sort_unstable_by_key(|&(_, lane, number)| (lane, number));
        due.dedup_by_key(|&mut (_, lane, number)| (lane, number));
        let mut frame = Vec::new();
        for (due_ns, lane, number) in due {
            let stream = &mut self.lanes[usize::from(lane)];
            let Some(place) = stream.place(number) else { continue };
            let pending = &mut stream.pending[place];
            if pending.state != State::Waits {
                continue;
            }
            if due_ns > now.mono_ns {
                self.again.push((due_ns, lane, number));
                continue;
            }
            let Some(route) = route(pending.partition) else {
                self.again.push((now.mono_ns + self.options.retry_ns, lane, number));
                continue;
            };
            let is_first = pending.sendings == 0;
            if !is_first && self.options.rules.lack(Bug::NumberNotKeptOnResend) {
                let (old, next) = (*pending, stream.next());
                stream.pending.push_back(Pending {
                    sendings: 0,
                    refused: 0,
                    sort: old.sort,
                    ..old
                });
                stream.pending[place].line_bytes = 0;
                stream.unanswered += 1;
                stream.end(place, &mut self.waiting);
                self.again.push((now.mono_ns, lane, next));
                continue;
            }
            let again = if is_first { 0 } else { sort::AGAIN };
            let sending = self.first_sending + self.sendings.len() as u64;
            mark_sent(pending, route, sending);
            let sort = pending.sort | again;
            let request = Request { partition: pending.partition, term: route.term, sort };
            let (from, bytes) = (pending.line_at as usize, pending.line_bytes as usize);
            self.writer.request(request, &stream.lines[from..from + bytes]);
            frame.clear();
            self.finish(lane, number, now, Some(&mut frame));
            if !emit(route.primary, &frame) && is_first {
                // It never left: it is still new to everybody.
                self.unsent(lane, number);
            }
        }
    }

    fn unsent(&mut self, lane: u16, number: u64) {
        let stream = &mut self.lanes[usize::from(lane)];
        if let Some(place) = stream.place(number) {
            stream.pending[place].sendings = 0;
        }
    }

    /// A new link to a node: everything that it was asked and has not answered is sent again, by the next
    /// [`send_again`](Self::send_again).
    pub fn link_up(&mut self, node: NodeId, now: Now) {
        self.wait_again(now, |pending| pending.node == node);
    }

    /// The map has changed: what was sent in an older term than `route` says is sent again, by the next
    /// [`send_again`](Self::send_again).
    pub fn routes_changed(&mut self, now: Now, mut route: impl FnMut(Partition) -> Option<Route>) {
        self.wait_again(now, |pending| {
            route(pending.partition).is_some_and(|route| route.term > pending.term)
        });
    }

    fn wait_again(&mut self, now: Now, mut is_due: impl FnMut(&Pending) -> bool) {
        for (at, stream) in self.lanes.iter_mut().enumerate() {
            for (place, pending) in stream.pending.iter_mut().enumerate() {
                if pending.state == State::Sent && is_due(pending) {
                    pending.state = State::Waits;
                    self.again.push((now.mono_ns, at as u16, stream.first + place as u64));
                }
            }
        }
    }

    /// Answers came. Those to older sendings are dropped; what was not done goes on to the right owner. `each` is told what
    /// ended.
    pub fn hear(&mut self, answers: &Answers<'_>, now: Now, mut each: impl FnMut(Ended<'_>)) {
        let place = answers.sending.checked_sub(self.first_sending);
        let place = place.and_then(|place| usize::try_from(place).ok());
        let Some(&sending) = place.and_then(|place| self.sendings.get(place)) else { return };
        if answers.first + answers.count > sending.count {
            return;
        }
        let mut exceptions = answers.exceptions().peekable();
        let mut offset = 0;
        // A run of replies of one token: the first of its operations, how many, and where their text begins.
        let mut run: Option<(Ended<'_>, usize)> = None;
        for (at, length) in answers.lengths().enumerate() {
            let at = answers.first + at as u16;
            let number = sending.first + u64::from(at);
            let text = offset..offset + length as usize;
            offset = text.end;
            let exception = exceptions.next_if(|exception| exception.place == at);
            let pending = self.current(sending.lane, number, answers.sending);
            let is_continued = exception.is_none()
                && pending.zip(run.as_ref()).is_some_and(|(pending, (ended, _))| {
                    pending.token == ended.token && pending.index == ended.index + ended.count
                });
            if !is_continued && let Some((ended, from)) = run.take() {
                each(Ended { ending: Ending::Done(&answers.text[from..text.start]), ..ended });
            }
            let Some(pending) = pending else { continue };
            if let Some(exception) = exception {
                self.except(sending.lane, number, exception.kind, now, &mut each);
                continue;
            }
            self.answered(sending.lane, number);
            if let Some((ended, _)) = &mut run {
                ended.count += 1;
            } else {
                let (token, index) = (pending.token, pending.index);
                let (partition, ending) = (pending.partition, Ending::Done(&[][..]));
                let ended = Ended { token, index, count: 1, partition, line: &[], ending };
                run = Some((ended, text.start));
            }
        }
        if let Some((ended, from)) = run {
            each(Ended { ending: Ending::Done(&answers.text[from..offset]), ..ended });
        }
        self.forget_sendings();
    }

    /// The operation, if it is not answered and this is its newest sending.
    fn current(&self, lane: u16, number: u64, sending: u64) -> Option<Pending> {
        let stream = &self.lanes[usize::from(lane)];
        let pending = stream.pending.get(stream.place(number)?)?;
        let is_newest = pending.sending == sending && pending.state == State::Sent;
        let counts = is_newest
            || (self.options.rules.lack(Bug::AnswerOfAnySending) && pending.state != State::Over);
        counts.then_some(*pending)
    }

    fn except(
        &mut self,
        lane: u16,
        number: u64,
        kind: ExceptionKind,
        now: Now,
        each: &mut impl FnMut(Ended<'_>),
    ) {
        let retry_ns = self.options.retry_ns;
        let stream = &mut self.lanes[usize::from(lane)];
        let Some(place) = stream.place(number) else { return };
        let pending = &mut stream.pending[place];
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
            each(Ended {
                token,
                index,
                count: 1,
                partition: pending.partition,
                line: line_of(&stream.lines, pending),
                ending: Ending::NotApplied(refusal),
            });
            self.answered(lane, number);
            return;
        }
        // Another owner is known: at once. Else the one that was asked learns of it from the map a moment later.
        let is_known = route.is_some_and(|route| route.term > pending.term);
        let due_ns = now.mono_ns + if is_known { 0 } else { retry_ns };
        pending.state = State::Waits;
        self.again.push((due_ns, lane, number));
    }

    /// Drops the oldest sendings that are the newest of none of their operations.
    fn forget_sendings(&mut self) {
        while let Some(sending) = self.sendings.front() {
            let stream = &self.lanes[usize::from(sending.lane)];
            let end = sending.first + u64::from(sending.count);
            let is_newest = (sending.first.max(stream.first)..end).any(|number| {
                let pending = stream.place(number).and_then(|place| stream.pending.get(place));
                pending.is_some_and(|pending| {
                    pending.state != State::Over && pending.sending == self.first_sending
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
        now: Now,
        progress_ns: impl Fn(NodeId) -> u64,
        mut each: impl FnMut(Ended<'_>),
    ) {
        let OpOptions { deadline_ns, patience_ns, .. } = self.options;
        for lane in 0..self.lanes.len() {
            let (first, next) = (self.lanes[lane].first, self.lanes[lane].next());
            for number in first..next {
                let stream = &mut self.lanes[lane];
                let Some(place) = stream.place(number) else { continue };
                let pending = stream.pending[place];
                if now.mono_ns.saturating_sub(pending.since_ns) < deadline_ns {
                    // Later ones are younger, but for those of opened pieces.
                    if pending.state != State::Over {
                        break;
                    }
                    continue;
                }
                if matches!(pending.state, State::Over | State::Parked) {
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
                    let ending = if is_refused {
                        Ending::NotApplied(Refusal::Unreachable)
                    } else {
                        Ending::Unknown
                    };
                    let Pending { token, index, partition, .. } = pending;
                    let raw = line_of(&stream.lines, &pending);
                    each(Ended { token, index, count: 1, partition, line: raw, ending });
                    stream.end(place, &mut self.waiting);
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
    pending.state = State::Sent;
    pending.sending = sending;
    pending.term = route.term;
    pending.node = route.primary.node;
    pending.sendings = pending.sendings.saturating_add(1);
}

#[cfg(test)]
mod tests;
