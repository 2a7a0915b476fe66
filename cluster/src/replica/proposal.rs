//! The changes of the map that a primary proposes: copies to add or remove, and its own transfer.
//!
//! Not here: the progress of copies (`progress`), the decision (`map::apply`).

use super::Core;
use super::event::{CallContext, Environment, ReplicaEvent};
use super::primary::Primary;
use super::progress::{PeerProgress, ProgressState, removed};
use crate::map::IN_SYNC_MAX;
use crate::map::command::{MapChange, Transition};
use crate::rules::Bug;

impl<O> Primary<O> {
    /// Proposes the due transition to the controller, and repeats it after `propose_ns`.
    pub(super) fn propose<M, N: Environment>(
        &mut self,
        core: &Core,
        ctx: &mut CallContext<'_, M, N, O>,
    ) {
        if core.options.rules.lack(Bug::DropSilentBackup) {
            self.drop_silent(core, ctx);
        }
        let Some(transition) = self.proposed_transition(core, ctx) else {
            self.proposed = None;
            return;
        };
        let change = MapChange { partition: core.partition, ver: core.entry.ver, transition };
        let now_ns = ctx.now.mono_ns;
        let is_due = self.proposed.is_none_or(|(asked, at_ns)| {
            asked != change || now_ns.saturating_sub(at_ns) >= core.options.propose_ns
        });
        if is_due {
            self.proposed = Some((change, now_ns));
            ctx.events.push(ReplicaEvent::Ask(change));
        }
    }

    /// Runs only if the model leaves out a rule.
    fn drop_silent<M, N: Environment>(&mut self, core: &Core, ctx: &mut CallContext<'_, M, N, O>) {
        for place in 0..self.peers.len() {
            let peer = &self.peers[place];
            if peer.mandatory && silence_ns(peer, ctx) >= core.options.silent_ns {
                let link = peer.link;
                self.peers[place].mandatory = false;
                self.set_changed(core, ctx);
                if let Some(link) = link {
                    removed(core, ctx, link);
                }
            }
        }
    }

    fn proposed_transition<M, N: Environment>(
        &self,
        core: &Core,
        ctx: &CallContext<'_, M, N, O>,
    ) -> Option<Transition> {
        let rules = core.options.rules;
        let is_gone = |peer: &&PeerProgress| {
            let is_slow_learner = !peer.in_sync
                && peer.link.is_some_and(|link| {
                    peer.state == ProgressState::Joined && ctx.node.quarters(link) >= 2
                });
            let is_silent = peer.mandatory && silence_ns(peer, ctx) >= core.options.silent_ns;
            peer.state == ProgressState::Refused || is_slow_learner || is_silent
        };
        let is_ready = |peer: &&PeerProgress| {
            let acked = peer.link.map_or(0, |link| ctx.node.acked(link));
            let is_whole = peer.whole_at().is_some_and(|end| acked >= end);
            let holds_all = acked >= peer.needed() || rules.lack(Bug::LearnerBehind);
            let is_mandatory = peer.mandatory || rules.lack(Bug::LateMandatory);
            !peer.in_sync && peer.is_joined() && is_whole && is_mandatory && holds_all
        };
        let ready = self.peers.iter().find(is_ready).map(|peer| Transition::AddInSync(peer.copy));
        if let Some(peer) = self.peers.iter().find(is_gone) {
            if !peer.in_sync {
                return Some(Transition::DropLearner(peer.copy));
            }
            // A learner that is complete is in sync first: the removal would leave fewer copies.
            let has_room = core.entry.in_sync.len() < IN_SYNC_MAX;
            return ready.filter(|_| has_room).or(Some(Transition::RemoveInSync(peer.copy)));
        }
        if let Some(to) = Self::transfer_to(core) {
            let set = ctx.node.set(ctx.header.set());
            let is_drained = set.mandatory().iter().enumerate().all(|(slot, &link)| {
                ctx.node.acked(link) >= ctx.record_ends.get(core.partition, slot)
            });
            let is_joined = self.mandatory().all(PeerProgress::is_joined);
            let is_in_sync = self.peers.iter().any(|peer| peer.copy == to && peer.in_sync);
            let may = (is_drained && is_joined) || rules.lack(Bug::TransferUndrained);
            return (is_in_sync && may).then_some(Transition::Transfer(to));
        }
        ready
    }
}

/// The time without an acknowledgement from a copy while bytes were outstanding.
fn silence_ns<M, N: Environment, O>(peer: &PeerProgress, ctx: &CallContext<'_, M, N, O>) -> u64 {
    match peer.link {
        Some(link) => ctx.node.silence_ns(link, ctx.now),
        None => ctx.now.mono_ns.saturating_sub(peer.since_ns),
    }
}
