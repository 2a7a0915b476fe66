//! One copy of a partition: what it holds, who may change it, when a change is answered.
//!
//! Here: the copy on one node as a function of messages and time; `ALGORITHM.md` says why it is
//! right. Not here: what keys and operations are ([`Machine`]), who decides which node holds a copy
//! (`map`), sockets and clocks (`server`).
//!
//! ```text
//!           assigned            complete, in the map            named by the map
//!   none ------------> learner ----------------------> backup ------------------> primary
//!     ^                  | ^                             |  ^                        |
//!     |                  '-' a new term: begin anew      |  '------------------------'
//!     '------------ no longer in the map: wiped ---------'     a newer term is seen
//! ```

mod backup;
mod clock;
mod event;
mod machine;
mod options;
mod primary;
mod results;
mod session;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use bytes::Bytes;

pub use self::event::{
    AckMode, Action, Chunk, Kind, Message, Nak, Now, Op, Outcome, Position, Record, Refusal, Reply,
    Route, SessionId, Stamp, Write,
};
pub use self::machine::{At, Effect, Machine};
#[cfg(feature = "bugs")]
pub use self::options::Bug;
pub use self::options::Options;
pub use self::results::SessionResults;
pub use self::session::{Ending, Send, Session, SessionOptions};

use self::backup::{Backup, Learner};
use self::clock::PartitionClock;
pub use self::clock::PartitionTime;
use self::primary::Primary;
use self::results::Results;
use crate::id::{CopyId, Incarnation, NodeId, Partition, Term};
use crate::map::Entry;
use crate::partition_header::{Opening, PartitionHeader};

/// What one call works with: the time, the keys, and where actions go.
pub struct Turn<'a, M> {
    /// When.
    pub now: Now,
    /// The keys of this copy.
    pub machine: &'a mut M,
    /// What is to be carried out, in this order.
    pub actions: &'a mut Vec<Action>,
}

/// What every copy has, whatever its part is.
struct Core {
    partition: Partition,
    options: Options,
    /// The newest that is known of the map.
    entry: Entry,
    me: CopyId,
    /// The fence: what is of a lower term is refused.
    term: Term,
    /// The last record held.
    last: Position,
    /// The newest records, up to `last`: those that some mandatory copy may lack.
    tail: VecDeque<Record>,
    /// The record before the first of `tail`.
    base: Position,
    /// Everything up to here is held by every mandatory copy, as far as is known here.
    commit: u64,
    results: Results,
    clock: PartitionClock,
    /// When the last heartbeat that the controller answered was sent.
    contact_ns: u64,
    effect: Effect,
}

/// What part a copy plays.
enum Role {
    /// It is not in the map.
    None,
    Learner(Learner),
    Backup(Backup),
    Primary(Primary),
}

/// The place for a copy of one partition on one life of a node.
pub struct Replica {
    node: NodeId,
    incarnation: Incarnation,
    core: Core,
    role: Role,
}

/// What a copy is, for figures and for checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Nothing.
    None,
    /// It is being made.
    Learner,
    /// It follows a primary.
    Backup,
    /// It serves.
    Primary,
}

/// How full a copy's queues are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Records that some copy may lack.
    pub unacked: usize,
    /// Operations held.
    pub held: usize,
    /// Answers that wait for copies.
    pub waiting: usize,
    /// Reads that wait for a round.
    pub reads: usize,
    /// Results kept.
    pub results: usize,
}

impl Core {
    /// Drops what every mandatory copy holds, or all but the newest where nobody says so.
    fn trim(&mut self, up_to: u64) {
        while self.tail.front().is_some_and(|record| record.position.lsn <= up_to) {
            self.base = self.tail.pop_front().expect("it has a front").position;
        }
    }

    /// A record, if it is still kept.
    fn record_at(&self, lsn: u64) -> Option<&Record> {
        let place = lsn.checked_sub(self.base.lsn)?.checked_sub(1)?;
        self.tail.get(usize::try_from(place).ok()?)
    }

    /// The place `lsn` in this history, if it is still known.
    fn position_of(&self, lsn: u64) -> Option<Position> {
        if lsn == self.base.lsn {
            return Some(self.base);
        }
        self.record_at(lsn).map(|record| record.position)
    }

    /// Whether the partition may have been given up.
    fn is_stopped(&self, now: Now) -> bool {
        let silence = now.mono_ns.saturating_sub(self.contact_ns);
        silence > self.options.serves_for_ns()
    }

    fn send<M>(&self, turn: &mut Turn<'_, M>, to: CopyId, message: Message) {
        turn.actions.push(Action::Send { to, from: self.me, term: self.term, message });
    }
}

impl Replica {
    /// The place for a copy; there is none yet.
    #[must_use]
    pub fn new(
        partition: Partition,
        node: NodeId,
        incarnation: Incarnation,
        options: Options,
        now: Now,
    ) -> Self {
        let core = Core {
            partition,
            options,
            entry: Entry::default(),
            me: CopyId { node, incarnation, assignment: 0 },
            term: Term::default(),
            last: Position::default(),
            tail: VecDeque::new(),
            base: Position::default(),
            commit: 0,
            results: Results::default(),
            clock: PartitionClock::new(now, &options),
            contact_ns: now.mono_ns,
            effect: Effect::default(),
        };
        Self { node, incarnation, core, role: Role::None }
    }

    /// Which partition.
    #[must_use]
    pub fn partition(&self) -> Partition {
        self.core.partition
    }

    /// The newest entry of the map that is known here.
    #[must_use]
    pub fn entry(&self) -> &Entry {
        &self.core.entry
    }

    /// What part this copy plays.
    #[must_use]
    pub fn part(&self) -> Part {
        match self.role {
            Role::None => Part::None,
            Role::Learner(_) => Part::Learner,
            Role::Backup(_) => Part::Backup,
            Role::Primary(_) => Part::Primary,
        }
    }

    /// The last record held; `header` is this copy's.
    #[must_use]
    pub fn position(&self, header: &PartitionHeader) -> Position {
        header.last().map_or(self.core.last, |At { term, lsn, .. }| Position { term, lsn })
    }

    /// The time of the partition, as far as this copy knows it.
    #[must_use]
    pub fn time(&self, now: Now) -> PartitionTime {
        let clock = &self.core.clock;
        match &self.role {
            _ if self.core.options.has(options::Bug::SweepByWall) => {
                PartitionTime::Ahead(now.wall_ns.wrapping_sub(now.mono_ns))
            }
            Role::None => PartitionTime::Unknown,
            Role::Learner(learner) if !learner.is_begun() => PartitionTime::Unknown,
            Role::Learner(_) | Role::Backup(_) => PartitionTime::Told(clock.last()),
            Role::Primary(_) => PartitionTime::Ahead(clock.ahead_ns()),
        }
    }

    /// The highest term seen.
    #[must_use]
    pub fn term(&self) -> Term {
        self.core.term
    }

    /// The results that came with records; they are equal where copies are.
    #[must_use]
    pub fn results(&self) -> Vec<SessionResults> {
        let mut all = Vec::new();
        self.core.results.export((NodeId(0), 0), usize::MAX, &mut all);
        all
    }

    /// How full the queues are.
    #[must_use]
    pub fn load(&self) -> Load {
        let mut load = match &self.role {
            Role::Primary(primary) => primary.load(),
            _ => Load::default(),
        };
        load.unacked = self.core.tail.len();
        load.results = self.core.results.len();
        load
    }

    /// The controller answered a heartbeat that was sent at `sent_ns` on the monotonic clock.
    pub fn contact(&mut self, sent_ns: u64) {
        self.core.contact_ns = self.core.contact_ns.max(sent_ns);
    }

    /// The setting has changed; see [`Options::lost_after_ns`]. A primary that does not hear of a lower
    /// one serves longer than the controller waits: it is to be lowered while all nodes are in reach.
    pub fn set_lost_after(&mut self, lost_after_ns: Option<u64>) {
        self.core.options.lost_after_ns = lost_after_ns;
    }

    /// Forgets the sessions of nodes that the map has forgotten. Nothing that such a node sent may be
    /// given to a copy any more: a late attempt would be done again. Copies and records that are
    /// under way may bring a session back, so this is to be called now and then.
    pub fn retain_sessions(&mut self, is_known: impl Fn(NodeId) -> bool) {
        if let Role::Primary(primary) = &mut self.role {
            primary.retain_held(&is_known);
        }
        self.core.results.retain(is_known);
    }

    /// Takes note of the map. An entry that is not newer than the one known is ignored.
    pub fn learn<M: Machine>(&mut self, turn: &mut Turn<'_, M>, entry: &Entry) {
        if entry.ver <= self.core.entry.ver {
            return;
        }
        self.core.entry = entry.clone();
        let Some(me) = entry.copy_on(self.node, self.incarnation) else {
            self.leave(turn);
            return;
        };
        if matches!(self.role, Role::None) || me != self.core.me {
            self.leave(turn);
            self.core.me = me;
        }
        if entry.term > self.core.term {
            self.see_term(turn, entry.term);
        }
        if entry.term < self.core.term {
            // The map is behind what a message said already; a newer entry is on its way.
            return;
        }
        if entry.primary == Some(me) {
            match &mut self.role {
                Role::Primary(primary) => primary.update(&mut self.core, turn),
                _ => self.role = Role::Primary(Primary::begin(&mut self.core, turn)),
            }
        } else if entry.in_sync.contains(&me) {
            self.become_backup();
        } else if !matches!(&self.role, Role::Learner(learner) if learner.is_of(entry.term)) {
            self.wipe(turn);
            self.role = Role::Learner(Learner::begin(&mut self.core, turn));
        }
    }

    /// Where the memory lies that operations need, for whoever fetches it ahead of them.
    #[must_use]
    pub fn lines(&self) -> [&u64; 3] {
        [&self.core.commit, &self.core.contact_ns, &self.core.last.lsn]
    }

    /// An operation from a session, this node's own among them.
    pub fn operate<M: Machine>(&mut self, turn: &mut Turn<'_, M>, op: Op) {
        let accepts_old = self.core.options.has(options::Bug::AcceptOldAttempts);
        if let Role::Primary(primary) = &mut self.role
            && (op.term == self.core.term || accepts_old)
        {
            primary.operate(&mut self.core, turn, op);
            return;
        }
        let outcome = Outcome::NotOwner(self.core.entry.route());
        let reply = Reply { term: op.term, seq: op.seq, outcome };
        turn.actions.push(Action::Reply { to: op.session, reply });
    }

    /// An operation of this node's own, if it can be answered before this returns; false: it was not
    /// begun, and goes the way of others. As nobody will ever send it again it has no number, and its
    /// result is not kept. It must not overtake operations of the same session that have one.
    ///
    /// `work` does it, and is told whether there are other copies: then it answers what changed, else
    /// nothing.
    pub fn at_once<M: Machine>(
        &mut self,
        turn: &mut Turn<'_, M>,
        kind: Kind,
        ack: AckMode,
        work: impl FnOnce(&mut M, At, bool) -> Option<Write>,
    ) -> bool {
        match &mut self.role {
            Role::Primary(primary) => primary.at_once(&mut self.core, turn, kind, ack, work),
            _ => false,
        }
    }

    /// Opens the header to batches, if this copy is the only one and nothing of it is under way. Called after
    /// each change of this copy.
    pub fn open(&self, header: &PartitionHeader) {
        let core = &self.core;
        let Role::Primary(primary) = &self.role else { return };
        if primary.is_alone_and_idle(core) || core.options.has(options::Bug::OpenBesideCopies) {
            let last = At { pt_ns: core.clock.last(), term: core.term, lsn: core.last.lsn };
            header.open(Opening { last, ahead_ns: core.clock.ahead_ns() });
        }
    }

    /// Closes the header and takes over what was served from it. Called before anything is done with this
    /// copy. `pass` as in [`PartitionHeader::close`].
    pub fn close(&mut self, header: &PartitionHeader, pass: impl FnOnce()) {
        let Some(At { pt_ns, term, lsn }) = header.close(pass) else { return };
        let core = &mut self.core;
        if core.options.has(options::Bug::CloseWithoutNumber) || lsn == core.last.lsn {
            return;
        }
        core.last = Position { term, lsn };
        core.base = core.last;
        core.commit = lsn;
        core.clock.was_read(pt_ns);
    }

    /// A session says that it is done with everything below `first_unacked`: sent when no operation
    /// that would say so follows.
    pub fn settle<M: Machine>(
        &mut self,
        turn: &mut Turn<'_, M>,
        term: Term,
        session: SessionId,
        first_unacked: u64,
    ) {
        if let Role::Primary(primary) = &mut self.role
            && term == self.core.term
        {
            primary.settle(&mut self.core, turn, session, first_unacked);
        }
    }

    /// The owner of the machine changed a key by itself, at the primary: an eviction. False when this
    /// copy is not primary or too much is unacknowledged; then it must not be changed.
    pub fn change<M: Machine>(
        &mut self,
        turn: &mut Turn<'_, M>,
        key: Bytes,
        state: Option<Bytes>,
    ) -> bool {
        match &mut self.role {
            Role::Primary(primary) => primary.change(&mut self.core, turn, Write { key, state }),
            _ => false,
        }
    }

    /// A message from another copy.
    pub fn receive<M: Machine>(
        &mut self,
        turn: &mut Turn<'_, M>,
        from: CopyId,
        to: CopyId,
        term: Term,
        message: Message,
    ) {
        if to != self.core.me || matches!(self.role, Role::None) {
            // For a copy that was here before: what is said to it says nothing about this one.
            return;
        }
        let accepts_old = self.core.options.has(options::Bug::AcceptOldTerms);
        if term < self.core.term && !accepts_old {
            if matches!(message, Message::Adopt { .. } | Message::Record(_) | Message::Beat { .. })
            {
                self.core.send(turn, from, Message::Nak(Nak::Stale));
            }
            return;
        }
        if term > self.core.term {
            self.see_term(turn, term);
        }
        let core = &mut self.core;
        match (&mut self.role, message) {
            (Role::Primary(primary), Message::Ack { lsn, round, base, complete }) => {
                primary.acked(core, turn, from, primary::Said { lsn, round, base, complete });
            }
            (Role::Primary(primary), Message::Nak(nak)) => primary.refused(core, turn, from, nak),
            (Role::Primary(primary), Message::Pull { base, pull, cursor }) => {
                primary.pulled(core, turn, from, base, pull, cursor.as_deref());
            }
            (Role::Backup(backup), Message::Adopt { position, pt_ns }) => {
                backup.adopt(core, turn, from, term, position, pt_ns);
            }
            (Role::Backup(backup), Message::Record(record)) => {
                backup.record(core, turn, from, term, record);
            }
            (Role::Backup(backup), Message::Beat { lsn, commit, pt_ns, round }) => {
                backup.beat(core, turn, from, lsn, commit, pt_ns, round);
            }
            (Role::Learner(learner), Message::Record(record)) => {
                learner.record(core, turn, from, record);
            }
            (Role::Learner(learner), Message::Chunk(chunk)) => learner.chunk(core, turn, &chunk),
            (Role::Learner(learner), Message::Beat { lsn, pt_ns, round, .. }) => {
                learner.beat(core, turn, from, lsn, pt_ns, round);
            }
            (Role::Learner(learner), Message::Restart { base }) => {
                learner.restart(core, turn, base);
            }
            _ => {}
        }
    }

    /// Whether somebody waits for something here. If not, a tick in every [`Options::beat_ns`] will do.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        match &self.role {
            Role::Primary(primary) => primary.is_busy(&self.core),
            Role::Learner(_) => true,
            Role::None | Role::Backup(_) => false,
        }
    }

    /// Time passes: resends, beats, requests, ends of holds. Every few tens of milliseconds.
    pub fn tick<M: Machine>(&mut self, turn: &mut Turn<'_, M>) {
        match &mut self.role {
            Role::Primary(primary) => primary.tick(&mut self.core, turn),
            Role::Learner(learner) => learner.tick(&mut self.core, turn),
            Role::None | Role::Backup(_) => {}
        }
    }

    /// A term that is new here: whatever this copy was in the old one, it is that no more.
    fn see_term<M: Machine>(&mut self, turn: &mut Turn<'_, M>, term: Term) {
        self.core.term = term;
        if let Role::Primary(primary) = &mut self.role {
            primary.step_down(&self.core, turn);
            self.core.results.drop_unchanged();
            self.role = Role::Backup(Backup::default());
        }
    }

    /// In-sync now: a learner that the map calls so has everything, for its primary said so.
    fn become_backup(&mut self) {
        match &self.role {
            Role::Backup(_) => {}
            Role::Learner(learner) => {
                self.role = Role::Backup(Backup::of_learner(learner, &self.core));
            }
            Role::None | Role::Primary(_) => self.role = Role::Backup(Backup::default()),
        }
    }

    fn leave<M: Machine>(&mut self, turn: &mut Turn<'_, M>) {
        if let Role::Primary(primary) = &mut self.role {
            primary.step_down(&self.core, turn);
        }
        self.wipe(turn);
        self.role = Role::None;
    }

    fn wipe<M: Machine>(&mut self, turn: &mut Turn<'_, M>) {
        turn.machine.clear();
        let core = &mut self.core;
        core.last = Position::default();
        core.base = Position::default();
        core.tail.clear();
        core.commit = 0;
        core.results = Results::default();
        core.clock = PartitionClock::new(turn.now, &core.options);
    }
}
