//! The times by which the items of partitions expire.
//!
//! Here: the clocks that the times come from. Not here: the time by a header and a clock
//! (`PartitionHeader::items_ns`), the sweep and evictions (`engine`).

use std::sync::Arc;

use cluster::Rules;
use cluster::id::{NodeId, Partition};
use cluster::replica::NodeTime;
use engine::{Nanos, Now, PartitionTimes};

use super::Headers;
use super::destinations::Destinations;
use crate::node::links::Links;
use crate::node::state_machine::items_time;

/// The times by the headers of a node.
pub(crate) struct ItemTimes {
    headers: Headers,
    destinations: Destinations,
    links: Arc<Links>,
    rules: Rules,
}

impl ItemTimes {
    pub(super) fn new(
        headers: Headers,
        destinations: Destinations,
        links: Arc<Links>,
        rules: Rules,
    ) -> Self {
        Self { headers, destinations, links, rules }
    }

    fn time_by(
        &self,
        partition: Partition,
        now: Now,
        clock_ns: impl FnOnce(NodeId, u8) -> u64,
    ) -> Nanos {
        let Some(header) = self.headers.get(partition.index()) else { return Nanos(0) };
        let now = NodeTime { mono_ns: now.mono.0, wall_ns: now.unix_ms.saturating_mul(1_000_000) };
        let primary = self.destinations.primary(partition);
        let term = primary.map(|(primary, _)| primary.term);
        let clock_ns = || primary.map_or(0, |(primary, run)| clock_ns(primary.node, run));
        items_time(header.items_ns(now, self.rules, term, clock_ns))
    }
}

impl PartitionTimes for ItemTimes {
    fn time(&self, partition: u64, now: Now) -> Nanos {
        self.time_by(Partition(partition as u16), now, |node, run| {
            self.links.run_time_ns(node, run)
        })
    }

    fn latest(&self, now: Now) -> Nanos {
        // Most partitions have one of a few primaries.
        let mut clocks: Vec<((NodeId, u8), u64)> = Vec::new();
        let mut latest = Nanos(0);
        for index in 0..self.headers.len() {
            let time = self.time_by(Partition(index as u16), now, |node, run| {
                let known = clocks.iter().find(|(primary, _)| *primary == (node, run));
                if let Some((_, clock_ns)) = known {
                    return *clock_ns;
                }
                let clock_ns = self.links.run_time_ns(node, run);
                clocks.push(((node, run), clock_ns));
                clock_ns
            });
            latest = latest.max(time);
        }
        latest
    }
}
