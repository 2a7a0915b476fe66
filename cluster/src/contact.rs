//! The time that a node may serve and read without an answer from the controller.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::position::NodeTime;
use crate::replica::ReplicaOptions;
use crate::rules::Bug;

/// When this node sent the last heartbeat that the controller answered. There is one for each node.
///
/// The value is stored after the map news of that answer has reached every header. A batch reads it
/// before it reads headers.
#[derive(Debug, Default)]
pub struct Contact(AtomicU64);

/// One reading of [`Contact`].
///
/// A worker takes one reading at the beginning of each round and uses it to the end: for operations
/// that headers serve, for answers, and for releases. A newer reading may stand for map news that
/// is still in the worker's inbox.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct LastContact(u64);

impl Contact {
    /// Records that the controller answered a heartbeat sent at `sent_ns` on the monotonic clock.
    pub fn record(&self, sent_ns: u64) {
        self.0.fetch_max(sent_ns, Ordering::AcqRel);
    }

    /// Returns the present value.
    #[must_use]
    pub fn last(&self) -> LastContact {
        LastContact(self.0.load(Ordering::Acquire))
    }
}

impl LastContact {
    fn silence_ns(self, now: NodeTime) -> u64 {
        now.mono_ns.saturating_sub(self.0)
    }

    /// Whether the partitions may have been given up. If so, the node does no operation and
    /// releases no parked reply.
    #[must_use]
    pub fn is_stopped(self, now: NodeTime, options: &ReplicaOptions) -> bool {
        self.silence_ns(now) > options.serves_for_ns()
    }

    /// Whether no other node had become primary of this node's partitions at `now`. If so, reads
    /// need no term check.
    #[must_use]
    pub fn has_lease(self, now: NodeTime, options: &ReplicaOptions) -> bool {
        self.silence_ns(now) < options.read_lease_ns || options.rules.lack(Bug::ReadsUnconfirmed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_stops_after_four_fifths_of_the_patience() {
        let options = ReplicaOptions {
            lost_after_ns: Some(1000),
            read_lease_ns: 100,
            ..ReplicaOptions::default()
        };
        let contact = Contact::default();
        contact.record(500);
        contact.record(400);
        let contact = contact.last();
        let at = |mono_ns| NodeTime { mono_ns, wall_ns: 0 };
        assert!(!contact.is_stopped(at(1300), &options) && contact.is_stopped(at(1301), &options));
        assert!(contact.has_lease(at(599), &options) && !contact.has_lease(at(600), &options));
    }
}
