//! Messages that go through a third node, because the link between their two nodes is cut, or was.
//!
//! Here: which do, and what the node between does with them. Not here: links (`network`).
//!
//! A relay passes a message on as it is. So a message that went through one may come after a later one,
//! or twice, once over each way.

use cluster::replica::{Outcome, Refusal, Reply, SessionId};
use cluster::{NodeId, Partition};

use super::World;
use crate::network::Parcel;
use crate::profile::{CONTROL, Fault, RelayBug};

impl World {
    fn has(&self, bug: RelayBug) -> bool {
        self.profile.fault == Some(Fault::Relay(bug))
    }

    /// The node through which a message goes, if it takes that way.
    pub(super) fn relay(&mut self, from: NodeId, to: NodeId) -> Option<NodeId> {
        if self.profile.relays == 0 || from == to {
            return None;
        }
        // A cut is not noticed at once, nor is its end.
        let chance = if self.network.is_cut((from, to)) { 7500 } else { self.profile.relays };
        if !self.rng.chance(chance, 10_000) {
            return None;
        }
        let is_other = |node: &NodeId| *node != from && *node != to && self.nodes[node].is_up;
        let others: Vec<NodeId> = self.nodes.keys().copied().filter(is_other).collect();
        self.rng.pick(&others)
    }

    /// Passes a message on, over the node's own link.
    pub(super) fn pass_on(
        &mut self,
        at: NodeId,
        (from, to): (NodeId, NodeId),
        partition: Partition,
        mut parcel: Parcel,
    ) {
        let Some(node) = self.nodes.get(&at).filter(|node| node.is_up) else { return };
        if let Parcel::Op { term, session, seq, .. } = &mut parcel {
            if self.has(RelayBug::Renames) {
                let incarnation = node.incarnation;
                *session = SessionId { node: at, incarnation, core: 1 };
            }
            if self.has(RelayBug::Refuses) && self.rng.chance(1, 4) {
                let outcome = Outcome::Refused(Refusal::Unreachable);
                let reply = Reply { term: *term, seq: *seq, outcome };
                let parcel = Parcel::Reply { partition, session: *session, reply };
                self.post_over((at, from), partition, parcel);
            }
        }
        if to == CONTROL || self.nodes.contains_key(&to) {
            self.post_over((at, to), partition, Parcel::Relayed(Box::new(parcel)));
        }
    }

    /// What the receiver makes of a message that was passed on.
    pub(super) fn relayed(&self, mut parcel: Parcel) -> Parcel {
        if self.has(RelayBug::TakenForNew)
            && let Parcel::Op { session, .. } = &mut parcel
        {
            // What has another name is not looked up.
            session.core = 2;
        }
        parcel
    }
}
