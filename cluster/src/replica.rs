//! The rare events of one copy of a partition: that it is made, follows, takes over, hands over, or is refused.
//!
//! Here: the copy on one node as a function of frames, map entries and time. Operations and records do not come here: batches
//! do them by the header (`partition_header`), which this keeps in the right state. Not here: what keys are
//! ([`Machine`]), who decides which node holds a copy (`map`).
//!
//! ```text
//!           assigned            complete, in the map            named by the map
//!   none ------------> learner ----------------------> backup ------------------> primary
//!     ^                  | ^                             |  ^                        |
//!     |                  '-' a new term: begin anew      |  '------------------------'
//!     '------------ no longer in the map: wiped ---------'     a newer term is seen
//! ```

mod event;
mod follow;
mod options;
mod peers;
mod primary;

pub use self::event::{
    AckMode, Admission, At, Cause, Event, Machine, Now, Opening, Outside, Position, Refusal, Route,
    Turn,
};
pub use self::options::Options;

use std::sync::Arc;

use self::follow::Learner;
use self::primary::Primary;
use crate::dedup_log::CopyLife;
use crate::frames::Refused;
use crate::id::{CopyId, Incarnation, NodeId, Partition, Term};
use crate::map::Entry;
use crate::partition_header::{HeaderState, PartitionHeader};
use crate::replica_set::SetIndex;
use crate::rules::Bug;

/// What every copy has, whatever its role is.
struct Core {
    partition: Partition,
    options: Arc<Options>,
    /// The newest that is known of the map.
    entry: Entry,
    me: CopyId,
    /// The record `began` is of this term, and so are none behind it: those are of the header's term.
    last_term: Term,
    /// The last record when the header's term was first seen.
    began: u64,
    /// Whose monotonic clock the header's `ahead_ns` refers to; none: the partition's time is not known.
    clock_of: Option<CopyId>,
}

enum Role<O> {
    /// It is not in the map.
    None,
    Learner(Learner),
    Backup {
        /// The primary of the header's term has the same history: its records are installed.
        is_adopted: bool,
    },
    Primary(Primary<O>),
}

/// What a copy is, for metrics and for checks.
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

/// The time of a partition, in the form in which a copy knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyTime {
    /// The copy has no data yet, and knows no time.
    Unknown,
    /// At a copy that follows: as late as its primary has said, nanoseconds since 1970.
    At(u64),
    /// At the primary: the time less the node's monotonic clock, nanoseconds; wraps.
    Ahead(u64),
}

/// The place for a copy of one partition on one life of a node. `O` is an operation that is held.
pub struct Replica<O> {
    node: NodeId,
    incarnation: Incarnation,
    core: Core,
    role: Role<O>,
}

impl Core {
    /// The last record held.
    fn last(&self, header: &PartitionHeader) -> Position {
        let lsn = header.lsn();
        let term = if lsn > self.began { header.term() } else { self.last_term };
        Position { term, lsn }
    }

    /// The partition's time now, as far as this copy knows it.
    fn time<N: Outside>(&self, header: &PartitionHeader, node: &N, now: Now) -> u64 {
        let options = &self.options;
        let begins = now.wall_ns.clamp(options.begins_min_ns, options.begins_max_ns);
        match self.clock_of {
            _ if options.rules.lack(Bug::ClockOfNode) => begins,
            None => begins.max(header.pt_ns()),
            Some(of) if (of.node, of.incarnation) == (self.me.node, self.me.incarnation) => {
                header.pt_ns().max(now.mono_ns.wrapping_add(header.ahead_ns()))
            }
            Some(of) => match node.peer_time_ns(of) {
                0 => header.pt_ns(),
                time_ns => header.pt_ns().max(time_ns.wrapping_add(header.ahead_ns())),
            },
        }
    }

    /// The life of the copy and the term it is in.
    fn copy_life(&self, header: &PartitionHeader) -> CopyLife {
        CopyLife { partition: self.partition, life: header.life(), term: header.term() }
    }
}

impl<O> Replica<O> {
    /// The place for a copy; there is none yet. All copies of a node share their `options`, of which
    /// `lost_after_ns` is none of theirs.
    #[must_use]
    pub fn new(
        partition: Partition,
        node: NodeId,
        incarnation: Incarnation,
        options: &Arc<Options>,
    ) -> Self {
        let core = Core {
            partition,
            options: Arc::clone(options),
            entry: Entry::default(),
            me: CopyId { node, incarnation, assignment: 0 },
            last_term: Term(0),
            began: 0,
            clock_of: None,
        };
        Self { node, incarnation, core, role: Role::None }
    }

    /// The newest entry of the map that is known here.
    #[must_use]
    pub fn entry(&self) -> &Entry {
        &self.core.entry
    }

    /// Where operations go, as far as is known here.
    #[must_use]
    pub fn route(&self) -> Option<Route> {
        self.core.entry.route()
    }

    /// What this copy is.
    #[must_use]
    pub fn part(&self) -> Part {
        match self.role {
            Role::None => Part::None,
            Role::Learner(_) => Part::Learner,
            Role::Backup { .. } => Part::Backup,
            Role::Primary(_) => Part::Primary,
        }
    }

    /// The partition's time now, as far as this copy knows it.
    #[must_use]
    pub fn time<N: Outside>(&self, header: &PartitionHeader, node: &N, now: Now) -> CopyTime {
        match &self.role {
            _ if self.core.options.rules.lack(Bug::SweepByWall) => {
                CopyTime::Ahead(now.wall_ns.wrapping_sub(now.mono_ns))
            }
            Role::None => CopyTime::Unknown,
            Role::Learner(learner) if !learner.follows(header.term()) => CopyTime::Unknown,
            Role::Learner(_) | Role::Backup { .. } => {
                CopyTime::At(self.core.time(header, node, now))
            }
            Role::Primary(_) => CopyTime::Ahead(header.ahead_ns()),
        }
    }

    /// The last record held.
    #[must_use]
    pub fn position(&self, header: &PartitionHeader) -> Position {
        self.core.last(header)
    }

    /// How many operations are held.
    #[must_use]
    pub fn held(&self) -> usize {
        match &self.role {
            Role::Primary(primary) => primary.held(),
            _ => 0,
        }
    }

    /// Whether something of this copy is under way, so that it is to be ticked every few tens of milliseconds, and to
    /// be [advanced](Self::advance) when something is acknowledged.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        match &self.role {
            Role::Primary(primary) => primary.is_busy(),
            Role::Learner(learner) => !learner.is_at_rest(),
            Role::None | Role::Backup { .. } => false,
        }
    }

    /// What batches may do.
    fn state(&self, header: &PartitionHeader) -> HeaderState {
        match &self.role {
            Role::Primary(primary) if primary.serves(&self.core) => HeaderState::Serves,
            Role::Primary(_) => HeaderState::Slow,
            Role::Backup { is_adopted: true } => HeaderState::Follows,
            Role::Learner(learner) if learner.follows(header.term()) => HeaderState::Follows,
            Role::None | Role::Backup { .. } | Role::Learner(_) => HeaderState::None,
        }
    }

    /// Releases what is held if the partition is served, and opens the header. Every call ends with it.
    fn finish<M, N>(&mut self, turn: &mut Turn<'_, M, N, O>) {
        let state = self.state(turn.header);
        if state == HeaderState::Serves
            && let Role::Primary(primary) = &mut self.role
        {
            primary.release_held(turn.events);
        }
        turn.header.open(state);
    }

    /// Takes note of the map. An entry that is not newer than the one known is ignored.
    pub fn learn<M: Machine, N: Outside>(&mut self, turn: &mut Turn<'_, M, N, O>, entry: &Entry) {
        if entry.ver > self.core.entry.ver {
            self.core.entry = entry.clone();
            self.become_what_it_says(turn);
        }
        self.finish(turn);
    }

    fn become_what_it_says<M: Machine, N: Outside>(&mut self, turn: &mut Turn<'_, M, N, O>) {
        let entry = &self.core.entry;
        let (term, primary) = (entry.term, entry.primary);
        let me = entry.copy_on(self.node, self.incarnation);
        let is_in_sync = me.is_some_and(|me| entry.in_sync.contains(&me));
        if term > turn.header.term() {
            self.see_term(turn, term);
        }
        let Some(me) = me else {
            self.leave(turn);
            return;
        };
        if matches!(self.role, Role::None) || me != self.core.me {
            self.leave(turn);
            self.core.me = me;
            self.role = Role::Backup { is_adopted: false };
        }
        if term < turn.header.term() {
            // The map is behind what a frame said already; a newer entry is on its way.
            return;
        }
        if primary == Some(me) {
            match &mut self.role {
                Role::Primary(primary) => primary.update(&mut self.core, turn),
                _ => self.role = Role::Primary(Primary::begin(&mut self.core, turn)),
            }
        } else if is_in_sync {
            if let Role::Learner(learner) = &self.role {
                // The map calls it complete, for its primary said so. If its term is over it waits to be adopted.
                self.role = Role::Backup { is_adopted: learner.follows(term) };
            }
        } else if !matches!(&self.role, Role::Learner(learner) if learner.is_of(term)) {
            self.wipe(turn);
            self.role = Role::Learner(Learner::begin(&mut self.core, turn));
        }
    }

    /// Whether an operation of `term` may be done, if the header does not serve it.
    #[must_use]
    pub fn admit(&self, header: &PartitionHeader, term: Term) -> Admission {
        let is_of_term =
            term == header.term() || self.core.options.rules.lack(Bug::AcceptOldAttempts);
        match &self.role {
            Role::Primary(primary) if is_of_term => {
                if primary.serves(&self.core) {
                    Admission::Perform
                } else if primary.held() >= self.core.options.held_max {
                    Admission::Refuse(Refusal::Busy)
                } else {
                    Admission::Hold
                }
            }
            _ => Admission::Refer(self.route()),
        }
    }

    /// Holds an operation that is to be held, until `deadline_ns` on the monotonic clock at most.
    pub fn hold(&mut self, now: Now, op: O, deadline_ns: u64) {
        if let Role::Primary(primary) = &mut self.role {
            primary.hold(op, deadline_ns.min(now.mono_ns + self.core.options.hold_ns));
        }
    }

    /// A copy did not take something of the stream of `link`.
    pub fn refused<M: Machine, N: Outside>(
        &mut self,
        turn: &mut Turn<'_, M, N, O>,
        link: super::LinkIndex,
        refused: &Refused,
    ) {
        if refused.copy_term > turn.header.term() {
            self.see_term(turn, refused.copy_term);
        }
        if let Role::Primary(primary) = &mut self.role {
            primary.refused(&mut self.core, turn, link, refused);
        }
        self.finish(turn);
    }

    /// A learner asks for a piece.
    pub fn pulled<M: Machine, N: Outside>(
        &mut self,
        turn: &mut Turn<'_, M, N, O>,
        pull: &super::frames::Pull<'_>,
    ) {
        if let Role::Primary(primary) = &mut self.role
            && pull.to == self.core.me
            && pull.term == turn.header.term()
        {
            primary.pulled(&mut self.core, turn, pull);
        }
        self.finish(turn);
    }

    /// Something was acknowledged, or a node was connected for the first time: does what follows from it.
    pub fn advance<M: Machine, N: Outside>(&mut self, turn: &mut Turn<'_, M, N, O>) {
        match &mut self.role {
            Role::Primary(primary) => primary.advance(&mut self.core, turn),
            Role::Learner(learner) => learner.retry(&self.core, turn),
            Role::None | Role::Backup { .. } => {}
        }
        self.finish(turn);
    }

    /// Time passes: ends of holds, requests, copies that are silent. Every few tens of milliseconds while it
    /// [is busy](Self::is_busy) or a link of its set is silent.
    pub fn tick<M: Machine, N: Outside>(&mut self, turn: &mut Turn<'_, M, N, O>) {
        match &mut self.role {
            Role::Primary(primary) => primary.tick(&mut self.core, turn),
            Role::Learner(learner) => learner.tick(&mut self.core, turn),
            Role::None | Role::Backup { .. } => {}
        }
        self.finish(turn);
    }

    /// A term that is new here: whatever this copy was in the old one, it is that no more.
    fn see_term<M, N: Outside>(&mut self, turn: &mut Turn<'_, M, N, O>, term: Term) {
        let last = self.core.last(turn.header);
        self.step_down(turn, term);
        self.core.last_term = last.term;
        self.core.began = last.lsn;
        turn.header.set_term(term);
        match &mut self.role {
            role @ Role::Primary(_) => *role = Role::Backup { is_adopted: false },
            Role::Backup { is_adopted } => *is_adopted = false,
            Role::Learner(_) | Role::None => {}
        }
    }

    /// Whoever waits is to ask the new primary.
    fn step_down<M, N: Outside>(&mut self, turn: &mut Turn<'_, M, N, O>, below: Term) {
        if let Role::Primary(primary) = &mut self.role {
            let partition = self.core.partition;
            turn.events.push(Event::Open(Opening { partition, cause: Cause::Deposed { below } }));
            primary.refer_held(self.core.entry.route(), turn.events);
        }
        let set = turn.header.set();
        if set != SetIndex(0) {
            turn.header.set_set(SetIndex(0));
            turn.node.release_set(set);
        }
    }

    fn leave<M: Machine, N: Outside>(&mut self, turn: &mut Turn<'_, M, N, O>) {
        if matches!(self.role, Role::None) {
            return;
        }
        self.step_down(turn, Term(turn.header.term().0 + 1));
        self.wipe(turn);
        self.role = Role::None;
    }

    fn wipe<M: Machine, N: Outside>(&mut self, turn: &mut Turn<'_, M, N, O>) {
        turn.machine.clear();
        turn.header.begin_life();
        turn.header.set_lsn(0);
        turn.header.set_time(0, 0);
        self.core.last_term = Term(0);
        self.core.began = 0;
        self.core.clock_of = None;
    }
}
