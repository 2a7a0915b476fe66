//! Limits of a worker's waiting: for owners out of reach, and for a cluster at the start.
//!
//! Not here: which nodes are in reach (`reachability`), the replies given instead (`degraded`).

use bytes::Bytes;
use cluster::id::Partition;
use cluster::replica::{NodeTime, Refusal};

use super::Router;
use crate::node::pending::{Completion, OpResult};

/// An owner that did not answer counts as out of reach for this long.
const AWAY_NS: u64 = 500_000_000;

/// For this long after the start, requests wait for the node's place in a cluster.
const START_NS: u64 = 5_000_000_000;
/// A request waits this long at most.
const START_WAIT_NS: u64 = 1_000_000_000;

impl Router {
    /// Whether the node has just started.
    pub(in crate::node) fn is_starting(&self, now: NodeTime) -> bool {
        self.started_ns.is_none_or(|started_ns| now.mono_ns < started_ns + START_NS)
    }

    /// Lets the current client wait until the node has a place in a cluster, or for
    /// [`START_WAIT_NS`].
    pub(in crate::node) fn wait_for_start(&mut self, now: NodeTime, place: u64) {
        self.starting.push((self.client, place, now.mono_ns + START_WAIT_NS));
    }

    /// Repeats the requests that waited for a place in a cluster, if there is one or they waited
    /// long enough.
    pub(super) fn end_start(&mut self, now: NodeTime) {
        self.started_ns.get_or_insert(now.mono_ns);
        let has_place = self.node.keyspace().is_some();
        for (client, place, _) in
            self.starting.extract_if(.., |(_, _, until_ns)| has_place || *until_ns <= now.mono_ns)
        {
            self.completions.push(Completion::ready(client, place, Bytes::new()));
        }
    }

    /// Whether a partition's primary is on a node out of reach.
    pub(super) fn is_out_of_reach(&self, partition: Partition) -> bool {
        let paths = &self.node.paths;
        let owner = || self.node.keyspace()?.replicas.destination(partition);
        paths.is_any_away() && owner().is_some_and(|owner| paths.is_away(owner.node))
    }

    /// Whether the owner of a partition did not answer a moment ago, so that requests which this
    /// node can decide by itself should not wait for it. After that moment one request tries the
    /// owner again, while the others do not wait.
    pub(in crate::node) fn is_away(&mut self, now: NodeTime, partition: Partition) -> bool {
        let is_resting = self.is_resting(now, partition);
        if !is_resting && let Some(until) = self.away_until_ns.get_mut(&partition) {
            *until = now.mono_ns + AWAY_NS;
            self.last_away_ns = *until;
        }
        is_resting
    }

    /// Whether [`Router::is_resting`] may be true of any partition.
    #[inline]
    pub(crate) fn may_rest(&self, now: NodeTime) -> bool {
        self.node.paths.is_any_away() || self.last_away_ns > now.mono_ns
    }

    /// The result of [`Router::is_away`], without a try.
    pub(crate) fn is_resting(&self, now: NodeTime, partition: Partition) -> bool {
        self.is_out_of_reach(partition)
            || self.away_until_ns.get(&partition).is_some_and(|until| *until > now.mono_ns)
    }

    pub(super) fn note_reach(&mut self, now: NodeTime, partition: Partition, result: &OpResult) {
        match result {
            OpResult::NotApplied(Refusal::Busy) => {}
            OpResult::Done(_) => {
                if !self.away_until_ns.is_empty() {
                    self.away_until_ns.remove(&partition);
                }
            }
            OpResult::NotApplied(_) | OpResult::Unknown => {
                self.last_away_ns = now.mono_ns + AWAY_NS;
                self.away_until_ns.insert(partition, self.last_away_ns);
            }
        }
    }
}
