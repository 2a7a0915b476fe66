//! Links: the messages they carry, and how they lose, delay and reorder them.

use std::collections::{BTreeMap, BTreeSet};

use cluster::NodeId;

use crate::base::Base;
use crate::rng::Rng;

/// The links between all nodes, and to the controller.
#[derive(Debug, Default)]
pub(crate) struct Network {
    cuts: BTreeSet<(NodeId, NodeId)>,
    /// The arrival of each link's last message.
    last: BTreeMap<(NodeId, NodeId), u64>,
}

const MS: u64 = 1_000_000;

impl Network {
    /// The arrival time of a message; `None`: it is lost.
    pub(crate) fn arrival(
        &mut self,
        rng: &mut Rng,
        base: &Base,
        now_ns: u64,
        link: (NodeId, NodeId),
    ) -> Option<u64> {
        if link.0 == link.1 {
            return Some(now_ns);
        }
        if self.cuts.contains(&link) || rng.chance(base.drop, 10_000) {
            return None;
        }
        let mut delay_ns = rng.between(MS / 5, 2 * MS);
        if rng.chance(base.spike, 10_000) {
            delay_ns = rng.between(2 * MS, 400 * MS);
        }
        let mut at_ns = now_ns + delay_ns;
        if !base.reorders {
            let last = self.last.entry(link).or_default();
            at_ns = at_ns.max(*last + 1);
            *last = at_ns;
        }
        Some(at_ns)
    }

    /// Whether the link is cut.
    pub(crate) fn is_cut(&self, link: (NodeId, NodeId)) -> bool {
        self.cuts.contains(&link)
    }

    /// Cuts the link.
    pub(crate) fn cut(&mut self, link: (NodeId, NodeId)) {
        self.cuts.insert(link);
    }

    /// Mends the link; a new connection replaces the old one, so new messages may overtake old
    /// ones.
    pub(crate) fn mend(&mut self, link: (NodeId, NodeId)) {
        self.cuts.remove(&link);
        self.last.remove(&link);
    }

    /// Ends all faults.
    pub(crate) fn heal(&mut self) {
        self.cuts.clear();
    }
}
