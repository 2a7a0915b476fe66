//! The destination of operations for each partition, readable without a lock.
//!
//! Not here: the entries of the map that it comes from (`replicas`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cluster::id::{NodeId, Partition, Term};
use cluster::map::TERM_MAX;
use cluster::replica::{Destination, Route};

use crate::node::links::run_of;

/// By partition, in one word: the term in 24 bits, the last 8 bits of the primary's incarnation,
/// its node in 32 bits. 0 for none. They have an allocation of their own, as headers have.
#[derive(Debug, Clone)]
pub(super) struct Destinations(Arc<Box<[AtomicU64]>>);

const _: () = assert!(TERM_MAX >> 24 == 0);

impl Destinations {
    pub(super) fn new(partitions: usize) -> Self {
        Self(Arc::new((0..partitions).map(|_| AtomicU64::default()).collect()))
    }

    /// The destination of operations.
    #[inline]
    pub(super) fn get(&self, partition: Partition) -> Option<Destination> {
        self.primary(partition).map(|(destination, _)| destination)
    }

    /// The destination, and the last bits of its incarnation, as [`run_of`] returns them.
    #[inline]
    pub(super) fn primary(&self, partition: Partition) -> Option<(Destination, u8)> {
        let packed = self.0.get(partition.index())?.load(Ordering::Acquire);
        let destination =
            Destination { term: Term((packed >> 40) as u32), node: NodeId(packed as u32) };
        (packed != 0).then_some((destination, (packed >> 32) as u8))
    }

    pub(super) fn set(&self, partition: Partition, Route { term, primary }: Route) {
        let run = run_of(primary.incarnation);
        let packed = u64::from(term.0) << 40 | u64::from(run) << 32 | u64::from(primary.node.0);
        self.0[partition.index()].store(packed, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use cluster::id::{CopyId, Incarnation};

    use super::*;

    #[test]
    fn destination_keeps_the_last_bits_of_the_incarnation() {
        let all = Destinations::new(2);
        let partition = Partition(1);
        assert_eq!((all.get(partition), all.get(Partition(2))), (None, None));
        assert_eq!(all.primary(partition), None);
        let incarnation = Incarnation(0x1_fe);
        let (term, node) = (Term(TERM_MAX), NodeId(u32::MAX));
        let primary = CopyId { node, incarnation, assignment: 1 };
        all.set(partition, Route { term, primary });
        assert_eq!(all.get(partition), Some(Destination { term, node }));
        assert_eq!(all.primary(partition), Some((Destination { term, node }, 0xfe)));
    }
}
