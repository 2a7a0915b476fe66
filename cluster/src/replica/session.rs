//! The sending side: gives operations their numbers, and sends them until they are answered.
//!
//! An operation keeps its number however often it is sent, so it is done once. Of its attempts only
//! the newest counts: a reply to one of an older term may tell what a primary saw that was none any
//! more.

use std::collections::VecDeque;

use bytes::Bytes;

use super::event::{AckMode, Kind, Now, Op, Outcome, Refusal, Reply, Route, SessionId};
use crate::id::{CopyId, NodeId, Partition, Term};

/// How a session behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionOptions {
    /// Without an answer for so long, an operation is sent again.
    pub resend_ns: u64,
    /// An operation that was refused by a node that is about to be primary is sent again after this
    /// time: that node learns of it from the map a moment later.
    pub retry_ns: u64,
    /// Most unanswered operations for one partition.
    pub pending_max: usize,
    /// So long after the last answer the primary is told that all are answered.
    pub quiet_ns: u64,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            resend_ns: 200_000_000,
            retry_ns: 10_000_000,
            pending_max: 1024,
            quiet_ns: 1_000_000_000,
        }
    }
}

/// What is to be sent to a primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Send {
    /// An operation.
    Op {
        /// Its partition.
        partition: Partition,
        /// The primary.
        to: CopyId,
        /// The attempt; its deadline is on this node's clock.
        op: Op,
    },
    /// Everything below is answered; see [`super::Replica::settle`].
    Settle {
        /// The partition.
        partition: Partition,
        /// The primary.
        to: CopyId,
        /// Its term.
        term: Term,
        /// The number.
        first_unacked: u64,
    },
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// It was done once; its result.
    Done(Bytes),
    /// It was certainly not done.
    NotApplied(Refusal),
    /// It was done once or not at all.
    Unknown,
}

#[derive(Debug)]
struct Pending {
    token: u64,
    kind: Kind,
    ack: AckMode,
    deadline_ns: u64,
    op: Bytes,
    /// The term of the newest attempt.
    term: Term,
    sent_ns: u64,
    /// How often it was sent, and how many of these attempts are known not to have been applied.
    attempts: u32,
    refused: u32,
}

/// What is under way to one partition.
#[derive(Debug)]
struct Line {
    route: Option<Route>,
    /// The number of the first of `pending`.
    first: u64,
    /// None: answered.
    pending: VecDeque<Option<Pending>>,
    /// What the primary was last told to be answered.
    told: u64,
    ended_ns: u64,
    /// It is among the session's `active`.
    is_active: bool,
    /// It is among the session's `unsettled`.
    is_unsettled: bool,
}

/// The operations of one core of one node that are not answered yet.
pub struct Session {
    id: SessionId,
    options: SessionOptions,
    /// By the partition's number; those beyond were never heard of.
    lines: Vec<Line>,
    /// Those with something unanswered, and some that have nothing any more.
    active: Vec<Partition>,
    /// Those whose primary may have to be told that all is answered, and when, roughly in that order.
    unsettled: VecDeque<(u64, Partition)>,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            route: None,
            first: 1,
            pending: VecDeque::new(),
            told: 0,
            ended_ns: 0,
            is_active: false,
            is_unsettled: false,
        }
    }
}

impl Line {
    fn attempt(&mut self, id: SessionId, now: Now, partition: Partition, seq: u64) -> Option<Send> {
        let route = self.route?;
        let place = usize::try_from(seq.checked_sub(self.first)?).ok()?;
        let pending = self.pending.get_mut(place)?.as_mut()?;
        pending.term = route.term;
        pending.sent_ns = now.mono_ns;
        pending.attempts += 1;
        self.told = self.told.max(self.first);
        let op = Op {
            term: route.term,
            session: id,
            seq,
            first_unacked: self.first,
            kind: pending.kind,
            ack: pending.ack,
            deadline_ns: pending.deadline_ns,
            op: pending.op.clone(),
        };
        Some(Send::Op { partition, to: route.primary, op })
    }

    fn end(&mut self, place: usize, now: Now) -> Option<Pending> {
        let pending = self.pending.get_mut(place)?.take();
        while self.pending.front().is_some_and(Option::is_none) {
            self.pending.pop_front();
            self.first += 1;
        }
        self.ended_ns = now.mono_ns;
        pending
    }

    fn refused(&mut self, seq: u64) {
        let place = seq.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        if let Some(Some(pending)) = place.and_then(|place| self.pending.get_mut(place)) {
            pending.refused += 1;
        }
    }

    /// Deadlines and resends.
    fn tick(
        &mut self,
        id: SessionId,
        options: SessionOptions,
        now: Now,
        partition: Partition,
        sends: &mut Vec<Send>,
        endings: &mut Vec<(u64, Ending)>,
    ) {
        for seq in self.first..self.first + self.pending.len() as u64 {
            let Some(place) = seq.checked_sub(self.first) else { continue };
            let place = place as usize;
            let Some(Some(pending)) = self.pending.get(place) else { continue };
            if pending.deadline_ns < now.mono_ns {
                let is_certain = pending.refused >= pending.attempts;
                let ending =
                    if is_certain { Ending::NotApplied(Refusal::Expired) } else { Ending::Unknown };
                if let Some(pending) = self.end(place, now) {
                    endings.push((pending.token, ending));
                }
            } else if now.mono_ns.saturating_sub(pending.sent_ns) >= options.resend_ns {
                sends.extend(self.attempt(id, now, partition, seq));
            }
        }
    }

    /// Whether the primary does not know yet that all is answered.
    fn is_untold(&self) -> bool {
        self.pending.is_empty() && self.told < self.first
    }

    /// Tells the primary that all is answered.
    fn settle(&mut self, partition: Partition) -> Option<Send> {
        let Route { term, primary } = self.route?;
        self.told = self.first;
        Some(Send::Settle { partition, to: primary, term, first_unacked: self.first })
    }

    /// Takes note of a route; whether it is newer.
    fn learn(&mut self, route: Option<Route>) -> bool {
        let is_newer = match (self.route, route) {
            (Some(old), Some(new)) => new.term > old.term,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if is_newer {
            self.route = route;
        }
        is_newer
    }
}

impl Session {
    /// A session without operations. No two may have the same `id`.
    #[must_use]
    pub fn new(id: SessionId, options: SessionOptions) -> Self {
        Self { id, options, lines: Vec::new(), active: Vec::new(), unsettled: VecDeque::new() }
    }

    /// Who sends.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The node has its id: only while nothing was sent, for a number belongs to the one who sent it.
    ///
    /// # Panics
    ///
    /// When something was sent.
    pub fn identify(&mut self, id: SessionId) {
        let sent = self.lines.iter().any(|line| line.route.is_some());
        assert!(!sent || self.id == id, "a session keeps its name");
        self.id = id;
    }

    fn line(&mut self, partition: Partition) -> &mut Line {
        let place = partition.index();
        if place >= self.lines.len() {
            self.lines.resize_with(place + 1, Line::default);
        }
        &mut self.lines[place]
    }

    /// Where operations for a partition go, as far as this session was told.
    #[must_use]
    pub fn route(&self, partition: Partition) -> Option<Route> {
        self.lines.get(partition.index())?.route
    }

    /// Whether operations wait for this partition.
    #[must_use]
    pub fn is_waiting(&self, partition: Partition) -> bool {
        self.lines.get(partition.index()).is_some_and(|line| !line.pending.is_empty())
    }

    /// The partitions that operations wait for.
    pub fn waiting(&self) -> impl Iterator<Item = Partition> + '_ {
        self.active.iter().copied().filter(|partition| self.is_waiting(*partition))
    }

    /// Whether something is unanswered, or a primary has still to be told that all is answered: then
    /// ticks are wanted.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !self.active.is_empty() || !self.unsettled.is_empty()
    }

    /// What was sent to a node may be lost, for the link to it ended: all of it is sent again, in
    /// order, before anything new.
    pub fn resend(&mut self, now: Now, node: NodeId, sends: &mut Vec<Send>) {
        for partition in &self.active {
            let line = &mut self.lines[partition.index()];
            if line.route.is_some_and(|route| route.primary.node == node) {
                for place in 0..line.pending.len() as u64 {
                    sends.extend(line.attempt(self.id, now, *partition, line.first + place));
                }
            }
        }
    }

    /// How many operations are not answered.
    #[must_use]
    pub fn pending(&self) -> usize {
        let active = self.active.iter().map(|partition| &self.lines[partition.index()]);
        active.map(|line| line.pending.iter().flatten().count()).sum()
    }

    /// Sends an operation; `token` comes back with its ending. False: too many are unanswered, it was
    /// not taken.
    #[expect(clippy::too_many_arguments, reason = "the parts of an operation")]
    pub fn submit(
        &mut self,
        now: Now,
        partition: Partition,
        kind: Kind,
        ack: AckMode,
        deadline_ns: u64,
        op: Bytes,
        token: u64,
        sends: &mut Vec<Send>,
    ) -> bool {
        let (id, pending_max) = (self.id, self.options.pending_max);
        let line = self.line(partition);
        if line.pending.len() >= pending_max {
            return false;
        }
        let seq = line.first + line.pending.len() as u64;
        line.pending.push_back(Some(Pending {
            token,
            kind,
            ack,
            deadline_ns,
            op,
            term: Term::default(),
            sent_ns: now.mono_ns,
            attempts: 0,
            refused: 0,
        }));
        sends.extend(line.attempt(id, now, partition, seq));
        if !std::mem::replace(&mut line.is_active, true) {
            self.active.push(partition);
        }
        true
    }

    /// The partition has a primary; what was sent to an older one is sent again.
    pub fn learn(&mut self, now: Now, partition: Partition, route: Route, sends: &mut Vec<Send>) {
        let id = self.id;
        let line = self.line(partition);
        if line.learn(Some(route)) {
            for place in 0..line.pending.len() as u64 {
                sends.extend(line.attempt(id, now, partition, line.first + place));
            }
        }
    }

    /// A primary, or who was taken for it, has answered.
    pub fn answered(
        &mut self,
        now: Now,
        partition: Partition,
        reply: Reply,
        sends: &mut Vec<Send>,
        endings: &mut Vec<(u64, Ending)>,
    ) {
        let Some(line) = self.lines.get_mut(partition.index()) else { return };
        let (is_newer, current) = match &reply.outcome {
            Outcome::NotOwner(route) | Outcome::Deposed(route) => (line.learn(*route), line.route),
            _ => (false, line.route),
        };
        if is_newer {
            for place in 0..line.pending.len() as u64 {
                let seq = line.first + place;
                let is_it = seq == reply.seq;
                if is_it && matches!(reply.outcome, Outcome::NotOwner(_)) {
                    line.refused(seq);
                }
                sends.extend(line.attempt(self.id, now, partition, seq));
            }
            return;
        }
        let Some(place) = reply.seq.checked_sub(line.first).and_then(|at| usize::try_from(at).ok())
        else {
            return;
        };
        let Some(Some(pending)) = line.pending.get_mut(place) else { return };
        let is_newest = reply.term == pending.term;
        let ending = match reply.outcome {
            Outcome::Done(result) if is_newest => Ending::Done(result),
            Outcome::Done(_) | Outcome::Deposed(_) => return,
            Outcome::NotOwner(_) => {
                pending.refused += 1;
                if is_newest && current.is_some_and(|route| route.term > reply.term) {
                    sends.extend(line.attempt(self.id, now, partition, reply.seq));
                } else if is_newest {
                    let early_ns = self.options.resend_ns.saturating_sub(self.options.retry_ns);
                    pending.sent_ns = now.mono_ns.saturating_sub(early_ns);
                }
                return;
            }
            Outcome::Refused(refusal) => {
                pending.refused += 1;
                if pending.refused < pending.attempts {
                    // An earlier attempt may have been applied, or may be yet: keep asking.
                    return;
                }
                Ending::NotApplied(refusal)
            }
        };
        if let Some(pending) = line.end(place, now) {
            endings.push((pending.token, ending));
        }
    }

    /// Time passes: deadlines and resends. Every few tens of milliseconds.
    pub fn tick(&mut self, now: Now, sends: &mut Vec<Send>, endings: &mut Vec<(u64, Ending)>) {
        let (id, options, lines) = (self.id, self.options, &mut self.lines);
        let unsettled = &mut self.unsettled;
        self.active.retain(|partition| {
            let line = &mut lines[partition.index()];
            line.tick(id, options, now, *partition, sends, endings);
            line.is_active = !line.pending.is_empty();
            if line.is_untold() && !std::mem::replace(&mut line.is_unsettled, true) {
                unsettled.push_back((line.ended_ns + options.quiet_ns, *partition));
            }
            line.is_active
        });
        while let Some((_, partition)) =
            unsettled.pop_front_if(|(due_ns, _)| *due_ns <= now.mono_ns)
        {
            let line = &mut lines[partition.index()];
            let due_ns = line.ended_ns + options.quiet_ns;
            line.is_unsettled = line.is_untold() && due_ns > now.mono_ns;
            if line.is_unsettled {
                unsettled.push_back((due_ns, partition));
            } else if line.is_untold() {
                sends.extend(line.settle(partition));
            }
        }
    }
}
