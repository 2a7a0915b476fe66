//! How long a node may serve, and read, without having heard its controller.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::replica::{NodeTime, ReplicaOptions};
use crate::rules::Bug;

/// When the last heartbeat was sent that the controller answered. One for each node.
///
/// It is stored after the map news of that answer has reached every header, and read before a batch reads headers.
#[derive(Debug, Default)]
pub struct Contact(AtomicU64);

/// A reading of [`Contact`].
///
/// A worker takes one at the beginning of each round and judges by it to the end: what it does by the headers, what it
/// answers, what it releases. A newer reading may stand for news of the map that
/// the worker has not taken out of its inbox yet.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct LastContact(u64);

impl Contact {
    /// The controller answered a heartbeat that was sent at `sent_ns` on the monotonic clock.
    pub fn record(&self, sent_ns: u64) {
        self.0.fetch_max(sent_ns, Ordering::AcqRel);
    }

    /// Reads it.
    #[must_use]
    pub fn last(&self) -> LastContact {
        LastContact(self.0.load(Ordering::Acquire))
    }
}

impl LastContact {
    fn silence_ns(self, now: NodeTime) -> u64 {
        now.mono_ns.saturating_sub(self.0)
    }

    /// The partitions may have been given up: nothing is done, and nothing that waits is answered.
    #[must_use]
    pub fn is_stopped(self, now: NodeTime, options: &ReplicaOptions) -> bool {
        self.silence_ns(now) > options.serves_for_ns()
    }

    /// Nobody else has become primary of what this node served when `now` was read: reads need no round.
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
