//! The copy that serves: when it may, what it holds meanwhile, and what it asks of the controller.
//!
//! Here: takeover, handover and held operations. Not here: the other copies (`peers`).

use std::collections::VecDeque;

use super::Core;
use super::event::{Event, Machine, Outside, Refusal, Route, Turn};
use super::peers::Peer;
use crate::id::CopyId;
use crate::map::command::Change;
use crate::rules::Bug;

/// The primary of one term.
pub(super) struct Primary<O> {
    pub(super) peers: Vec<Peer>,
    /// To whom it hands over: operations are held until that is decided.
    pub(super) transfer_to: Option<CopyId>,
    /// Operations, and until when they are held.
    held: VecDeque<(O, u64)>,
    pub(super) asked: Option<(Change, u64)>,
}

impl<O> Primary<O> {
    /// Takes over: the other in-sync copies are asked to follow.
    pub(super) fn begin<M: Machine, N: Outside>(
        core: &mut Core,
        turn: &mut Turn<'_, M, N, O>,
    ) -> Self {
        let pt_ns = core.time(turn.header, turn.node, turn.now);
        turn.header.set_time(pt_ns, pt_ns.wrapping_sub(turn.now.mono_ns));
        core.clock_of = Some(core.me);
        let mut primary =
            Self { peers: Vec::new(), transfer_to: None, held: VecDeque::new(), asked: None };
        primary.update(core, turn);
        primary
    }

    /// The map has changed, but neither primary nor term.
    pub(super) fn update<M: Machine, N: Outside>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M, N, O>,
    ) {
        self.transfer_to = core.entry.transfer_to.filter(|to| *to != core.me);
        self.meet(core, turn);
        self.advance(core, turn);
    }

    /// Whether batches may do operations.
    pub(super) fn serves(&self, core: &Core) -> bool {
        let rules = core.options.rules;
        let is_free = self.transfer_to.is_none() || rules.lack(Bug::ServeInTransfer);
        let serves_early = rules.lack(Bug::ServesBeforeAdopted);
        is_free && self.mandatory().all(|peer| peer.is_joined() || serves_early)
    }

    pub(super) fn is_busy(&self) -> bool {
        let is_at_rest = |peer: &Peer| peer.in_sync && peer.is_joined();
        !self.held.is_empty() || self.transfer_to.is_some() || !self.peers.iter().all(is_at_rest)
    }

    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    pub(super) fn hold(&mut self, op: O, until_ns: u64) {
        self.held.push_back((op, until_ns));
    }

    /// The partition is served: what was held is done.
    pub(super) fn release_held(&mut self, events: &mut Vec<Event<O>>) {
        events.extend(self.held.drain(..).map(|(op, _)| Event::Perform(op)));
    }

    /// The partition is served elsewhere.
    pub(super) fn refer_held(&mut self, route: Option<Route>, events: &mut Vec<Event<O>>) {
        events.extend(self.held.drain(..).map(|(op, _)| Event::Refer(op, route)));
    }

    /// Time passes.
    pub(super) fn tick<M: Machine, N: Outside>(
        &mut self,
        core: &mut Core,
        turn: &mut Turn<'_, M, N, O>,
    ) {
        let now_ns = turn.now.mono_ns;
        while let Some((op, _)) = self.held.pop_front_if(|(_, until_ns)| *until_ns < now_ns) {
            turn.events.push(Event::Refuse(op, Refusal::Moving));
        }
        self.advance(core, turn);
    }
}
