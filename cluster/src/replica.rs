//! The rare events of one copy of a partition: assignment, copying, following, takeover, handover,
//! refusal.
//!
//! Here: the copy on one node as a function of frames, map entries and time. Batches do operations
//! and records by the header (`partition_header`), whose state this module maintains. Not here: the
//! meaning of keys ([`StateMachine`]), the choice of nodes (`map`).
//!
//! ```text
//!           assigned            complete, in the map            named by the map
//!   none ------------> learner ----------------------> backup ------------------> primary
//!     ^                  | ^                             |  ^                        |
//!     |                  '-' a new term: begin anew      |  '------------------------'
//!     '------------ no longer in the map: wiped ---------'     a newer term is seen
//! ```

mod backup;
mod event;
mod export_cursor;
mod group;
mod options;
mod primary;
mod progress;
mod proposal;

pub use self::event::{
    AckMode, Admission, CallContext, Environment, OpenCause, Opening, ReplicaEvent, StateMachine,
};
pub use self::group::{GROUP_PARTITIONS, ReplicaGroup, ReplicaHost};
pub use self::options::ReplicaOptions;
pub use crate::position::{ApplyPosition, NodeTime, Position};
pub use crate::route::{Destination, Refusal, Route};

use std::sync::Arc;

use self::backup::Learner;
use self::primary::Primary;
use crate::dedup_log::CopyGeneration;
use crate::frames::StreamRefusal;
use crate::id::{CopyId, Partition, Term};
use crate::map::SharedEntry;
use crate::partition_header::{HeaderState, PartitionHeader};
use crate::replica_set::SetIndex;
use crate::rules::Bug;

/// The common state of every copy, whatever its role.
struct Core {
    partition: Partition,
    options: Arc<ReplicaOptions>,
    /// The newest known entry of the map.
    entry: SharedEntry,
    /// This copy. Assignment 0: none was assigned yet.
    me: CopyId,
    /// The term of the record `began` and of those before it. Later records are of the header's
    /// term.
    last_term: Term,
    /// The lsn of the last record when the header's term was first seen.
    began: u64,
    /// The copy that `ahead_ns` refers to: the header's offset is against the monotonic clock of
    /// its node. Assignment 0: the partition's time is not known.
    clock_of: CopyId,
}

enum RoleState<O> {
    /// The map does not assign a copy to this node.
    None,
    Learner(Learner),
    Backup {
        /// Whether the primary of the header's term has the same history. If so, its records are
        /// installed.
        is_adopted: bool,
    },
    Primary(Primary<O>),
}

/// The role of a copy, for metrics and checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// There is no copy.
    None,
    /// The copy is being made.
    Learner,
    /// The copy follows a primary.
    Backup,
    /// The copy serves, or is about to.
    Primary,
}

/// The state of one partition's copy on one incarnation of a node. `O` is a held operation.
pub struct Replica<O> {
    core: Core,
    role: RoleState<O>,
}

impl Core {
    /// The position of the last record held.
    fn last(&self, header: &PartitionHeader) -> Position {
        let lsn = header.lsn();
        let term = if lsn > self.began { header.term() } else { self.last_term };
        Position { term, lsn }
    }

    /// The partition's time now, as far as this copy knows it.
    fn time<N: Environment>(&self, header: &PartitionHeader, node: &N, now: NodeTime) -> u64 {
        let options = &self.options;
        let begins = now.wall_ns.clamp(options.begins_min_ns, options.begins_max_ns);
        match self.clock_of {
            _ if options.rules.lack(Bug::ClockOfNode) => begins,
            of if of.assignment == 0 => begins.max(header.pt_ns()),
            of if (of.node, of.incarnation) == (self.me.node, self.me.incarnation) => {
                header.pt_ns().max(now.mono_ns.wrapping_add(header.ahead_ns()))
            }
            of => match node.peer_time_ns(of) {
                0 => header.pt_ns(),
                time_ns => header.pt_ns().max(time_ns.wrapping_add(header.ahead_ns())),
            },
        }
    }

    /// The copy's generation and term.
    fn copy_generation(&self, header: &PartitionHeader) -> CopyGeneration {
        CopyGeneration {
            partition: self.partition,
            generation: header.generation(),
            term: header.term(),
        }
    }
}

impl<O> Replica<O> {
    /// The route for operations by the newest known entry of the map.
    #[must_use]
    pub fn route(&self) -> Option<Route> {
        self.core.entry.route()
    }

    /// The role of this copy.
    #[must_use]
    pub fn role(&self) -> Role {
        match self.role {
            RoleState::None => Role::None,
            RoleState::Learner(_) => Role::Learner,
            RoleState::Backup { .. } => Role::Backup,
            RoleState::Primary(_) => Role::Primary,
        }
    }

    /// The position of the last record held.
    #[must_use]
    pub fn position(&self, header: &PartitionHeader) -> Position {
        self.core.last(header)
    }

    /// The number of held operations.
    #[must_use]
    pub fn held(&self) -> usize {
        match &self.role {
            RoleState::Primary(primary) => primary.held(),
            _ => 0,
        }
    }

    /// Whether an activity of this copy is under way. If so, call [`Self::tick`] every few tens of
    /// milliseconds, and [`Self::advance`] after each acknowledgement.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        match &self.role {
            RoleState::Primary(primary) => primary.is_busy(&self.core),
            RoleState::Learner(learner) => !learner.is_at_rest(),
            RoleState::None | RoleState::Backup { .. } => false,
        }
    }

    /// The work that batches may do.
    fn state(&self, header: &PartitionHeader) -> HeaderState {
        match &self.role {
            RoleState::Primary(primary) if primary.serves(&self.core) => HeaderState::Serves,
            RoleState::Primary(_) => HeaderState::Slow,
            RoleState::Backup { is_adopted: true } => HeaderState::Follows,
            RoleState::Learner(learner) if learner.follows(header.term()) => HeaderState::Follows,
            RoleState::None | RoleState::Backup { .. } | RoleState::Learner(_) => HeaderState::None,
        }
    }

    /// Releases held operations if the partition is served, and opens the header. Every call ends
    /// with this.
    fn finish<M, N>(&mut self, ctx: &mut CallContext<'_, M, N, O>) {
        let state = self.state(ctx.header);
        if state == HeaderState::Serves
            && let RoleState::Primary(primary) = &mut self.role
        {
            primary.release_held(ctx.events);
        }
        ctx.header.open(state);
    }

    /// Handles an entry of the map. An entry that is not newer than the known one is ignored.
    pub fn learn<M: StateMachine, N: Environment>(
        &mut self,
        ctx: &mut CallContext<'_, M, N, O>,
        entry: &SharedEntry,
    ) {
        if entry.ver > self.core.entry.ver {
            self.core.entry = entry.clone();
            self.follow_entry(ctx);
        }
        self.finish(ctx);
    }

    fn follow_entry<M: StateMachine, N: Environment>(
        &mut self,
        ctx: &mut CallContext<'_, M, N, O>,
    ) {
        let entry = &self.core.entry;
        let (term, primary) = (entry.term, entry.primary);
        let me = entry.copy_on(self.core.me.node, self.core.me.incarnation);
        let is_in_sync = me.is_some_and(|me| entry.in_sync.contains(&me));
        if term > ctx.header.term() {
            self.see_term(ctx, term);
        }
        let Some(me) = me else {
            self.leave(ctx);
            return;
        };
        if matches!(self.role, RoleState::None) || me != self.core.me {
            self.leave(ctx);
            self.core.me = me;
            self.role = RoleState::Backup { is_adopted: false };
        }
        if term < ctx.header.term() {
            // A frame has already reported a newer term than the map's; a newer entry is on its
            // way.
            return;
        }
        if primary == Some(me) {
            match &mut self.role {
                RoleState::Primary(primary) => primary.update(&mut self.core, ctx),
                _ => self.role = RoleState::Primary(Primary::begin(&mut self.core, ctx)),
            }
        } else if is_in_sync {
            if let RoleState::Learner(learner) = &self.role {
                // The primary reported that the copy is complete. If its term is over, the copy
                // waits to be adopted.
                self.role = RoleState::Backup { is_adopted: learner.follows(term) };
            }
        } else if !matches!(&self.role, RoleState::Learner(learner) if learner.is_of(term)) {
            self.wipe(ctx);
            self.role = RoleState::Learner(Learner::begin(&mut self.core, ctx));
        }
    }

    /// Decides on an operation of `term` that the header does not serve.
    #[must_use]
    pub fn admit(&self, header: &PartitionHeader, term: Term) -> Admission {
        let is_of_term =
            term == header.term() || self.core.options.rules.lack(Bug::AcceptOldAttempts);
        match &self.role {
            RoleState::Primary(primary) if is_of_term => {
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

    /// Holds an operation until `deadline_ns` on the monotonic clock, at most for `hold_ns`.
    pub fn hold(&mut self, now: NodeTime, op: O, deadline_ns: u64) {
        if let RoleState::Primary(primary) = &mut self.role {
            primary.hold(op, deadline_ns.min(now.mono_ns + self.core.options.hold_ns));
        }
    }

    /// Handles a copy's refusal of a frame in the stream of `link`.
    pub fn refused<M: StateMachine, N: Environment>(
        &mut self,
        ctx: &mut CallContext<'_, M, N, O>,
        link: super::LinkIndex,
        refused: &StreamRefusal,
    ) {
        if refused.copy_term > ctx.header.term() {
            self.see_term(ctx, refused.copy_term);
        }
        if let RoleState::Primary(primary) = &mut self.role {
            primary.refused(&mut self.core, ctx, link, refused);
        }
        self.finish(ctx);
    }

    /// Handles a learner's request for a chunk.
    pub fn pulled<M: StateMachine, N: Environment>(
        &mut self,
        ctx: &mut CallContext<'_, M, N, O>,
        pull: &super::frames::Pull<'_>,
    ) {
        if let RoleState::Primary(primary) = &mut self.role
            && pull.to == self.core.me
            && pull.term == ctx.header.term()
        {
            primary.pulled(&mut self.core, ctx, pull);
        }
        self.finish(ctx);
    }

    /// Does the steps that an acknowledgement, or the first connection to a node, makes possible.
    pub fn advance<M: StateMachine, N: Environment>(&mut self, ctx: &mut CallContext<'_, M, N, O>) {
        match &mut self.role {
            RoleState::Primary(primary) => primary.advance(&mut self.core, ctx),
            RoleState::Learner(learner) => learner.retry(&self.core, ctx),
            RoleState::None | RoleState::Backup { .. } => {}
        }
        self.finish(ctx);
    }

    /// Handles the passage of time: ends of holds, proposals, silent copies. Called every few tens
    /// of milliseconds while the copy [is busy](Self::is_busy) or a link of its set is silent.
    pub fn tick<M: StateMachine, N: Environment>(&mut self, ctx: &mut CallContext<'_, M, N, O>) {
        match &mut self.role {
            RoleState::Primary(primary) => primary.tick(&mut self.core, ctx),
            RoleState::Learner(learner) => learner.tick(&mut self.core, ctx),
            RoleState::None | RoleState::Backup { .. } => {}
        }
        self.finish(ctx);
    }

    /// Enters a newer term: the copy gives up its role of the older one.
    fn see_term<M, N: Environment>(&mut self, ctx: &mut CallContext<'_, M, N, O>, term: Term) {
        let last = self.core.last(ctx.header);
        self.step_down(ctx, term);
        self.core.last_term = last.term;
        self.core.began = last.lsn;
        ctx.header.set_term(term);
        match &mut self.role {
            role @ RoleState::Primary(_) => *role = RoleState::Backup { is_adopted: false },
            RoleState::Backup { is_adopted } => *is_adopted = false,
            RoleState::Learner(_) | RoleState::None => {}
        }
    }

    /// Refers waiting operations to the new primary, and releases the set.
    fn step_down<M, N: Environment>(&mut self, ctx: &mut CallContext<'_, M, N, O>, below: Term) {
        if let RoleState::Primary(primary) = &mut self.role {
            let partition = self.core.partition;
            ctx.events.push(ReplicaEvent::Open(Opening {
                partition,
                cause: OpenCause::Deposed { below },
            }));
            primary.refer_held(self.core.entry.route(), ctx.events);
        }
        let set = ctx.header.set();
        if set != SetIndex(0) {
            ctx.header.set_set(SetIndex(0));
            ctx.node.release_set(set);
        }
    }

    fn leave<M: StateMachine, N: Environment>(&mut self, ctx: &mut CallContext<'_, M, N, O>) {
        if matches!(self.role, RoleState::None) {
            return;
        }
        self.step_down(ctx, Term(ctx.header.term().0 + 1));
        self.wipe(ctx);
        self.role = RoleState::None;
    }

    fn wipe<M: StateMachine, N: Environment>(&mut self, ctx: &mut CallContext<'_, M, N, O>) {
        ctx.state_machine.clear();
        ctx.header.begin_generation();
        ctx.header.set_lsn(0);
        ctx.header.set_time(0, 0);
        self.core.last_term = Term(0);
        self.core.began = 0;
        self.core.clock_of = CopyId::default();
    }
}
