//! The copy that serves: its conditions for serving, held operations, and proposals to the
//! controller.
//!
//! Here: takeover, handover and held operations. Not here: the other copies (`progress`).

use std::collections::VecDeque;

use super::Core;
use super::event::{CallContext, Environment, ReplicaEvent, StateMachine};
use super::progress::PeerProgress;
use crate::id::CopyId;
use crate::map::command::MapChange;
use crate::route::{Refusal, Route};
use crate::rules::Bug;

/// The primary of one term.
pub(super) struct Primary<O> {
    pub(super) peers: Vec<PeerProgress>,
    /// Operations, and the times until which they are held.
    held: VecDeque<(O, u64)>,
    /// The proposal that stands, and its time.
    pub(super) proposed: Option<(MapChange, u64)>,
}

impl<O> Primary<O> {
    /// A primary with these other copies, and nothing held or proposed.
    pub(super) fn with(peers: Vec<PeerProgress>) -> Self {
        Self { peers, held: VecDeque::new(), proposed: None }
    }

    /// Takes over: asks the other in-sync copies to follow.
    pub(super) fn begin<M: StateMachine, N: Environment>(
        core: &mut Core,
        ctx: &mut CallContext<'_, M, N, O>,
    ) -> Self {
        let pt_ns = core.time(ctx.header, ctx.node, ctx.now);
        ctx.header.set_time(pt_ns, pt_ns.wrapping_sub(ctx.now.mono_ns));
        core.clock_of = core.me;
        let mut primary = Self::with(Vec::new());
        primary.update(core, ctx);
        primary
    }

    /// Handles a new map entry with the same primary and term.
    pub(super) fn update<M: StateMachine, N: Environment>(
        &mut self,
        core: &mut Core,
        ctx: &mut CallContext<'_, M, N, O>,
    ) {
        // Proposals for the former entry are over.
        self.proposed = None;
        self.sync_peers(core, ctx);
        self.advance(core, ctx);
    }

    /// The copy to hand over to. While there is one, operations are held.
    pub(super) fn transfer_to(core: &Core) -> Option<CopyId> {
        core.entry.transfer_to.filter(|to| *to != core.me)
    }

    /// Whether batches may do operations.
    pub(super) fn serves(&self, core: &Core) -> bool {
        let rules = core.options.rules;
        let is_free = Self::transfer_to(core).is_none() || rules.lack(Bug::ServeInTransfer);
        let serves_early = rules.lack(Bug::ServesBeforeAdopted);
        is_free && self.mandatory().all(|peer| peer.is_joined() || serves_early)
    }

    pub(super) fn is_busy(&self, core: &Core) -> bool {
        let is_at_rest = |peer: &PeerProgress| peer.in_sync && peer.is_joined();
        self.held() > 0 || Self::transfer_to(core).is_some() || !self.peers.iter().all(is_at_rest)
    }

    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    pub(super) fn hold(&mut self, op: O, until_ns: u64) {
        self.held.push_back((op, until_ns));
    }

    /// Performs the held operations: the partition is served.
    pub(super) fn release_held(&mut self, events: &mut Vec<ReplicaEvent<O>>) {
        events.extend(self.held.drain(..).map(|(op, _)| ReplicaEvent::Perform(op)));
    }

    /// Refers the held operations: the partition is served elsewhere.
    pub(super) fn refer_held(&mut self, route: Option<Route>, events: &mut Vec<ReplicaEvent<O>>) {
        events.extend(self.held.drain(..).map(|(op, _)| ReplicaEvent::Refer(op, route)));
    }

    /// Refuses held operations whose time is over, and advances.
    pub(super) fn tick<M: StateMachine, N: Environment>(
        &mut self,
        core: &mut Core,
        ctx: &mut CallContext<'_, M, N, O>,
    ) {
        let now_ns = ctx.now.mono_ns;
        while let Some((op, _)) = self.held.pop_front_if(|(_, until_ns)| *until_ns < now_ns) {
            ctx.events.push(ReplicaEvent::Refuse(op, Refusal::Moving));
        }
        self.advance(core, ctx);
    }
}
