//! The positions where the last record of each partition ends, in the stream of each link of its
//! set.
//!
//! Here: the table of positions. Not here: the set of a partition (`replica_set`, in its header),
//! streams (`send_stream`).

use std::array;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::id::Partition;
use crate::replica_set::LINKS_MAX;

/// The links of a set beyond the first.
const FURTHER: usize = LINKS_MAX - 1;

/// The positions of all partitions of a node. The locks that guard a header guard the positions of
/// its partition too.
///
/// Most sets have one link. The table for the further ones is made when a partition has one.
#[derive(Debug)]
pub struct RecordEnds {
    first: Box<[AtomicU64]>,
    further: OnceLock<Box<[[AtomicU64; FURTHER]]>>,
}

impl RecordEnds {
    /// A table for this many partitions, with no records.
    #[must_use]
    pub fn new(partitions: usize) -> Self {
        Self {
            first: (0..partitions).map(|_| AtomicU64::new(0)).collect(),
            further: OnceLock::new(),
        }
    }

    /// The position where the partition's last record ends in the stream of its set's link `slot`;
    /// 0 if there is none.
    #[must_use]
    #[inline]
    pub fn get(&self, partition: Partition, slot: usize) -> u64 {
        match slot {
            0 => self.first[partition.index()].load(Ordering::Relaxed),
            _ => self
                .further
                .get()
                .map_or(0, |further| further[partition.index()][slot - 1].load(Ordering::Relaxed)),
        }
    }

    /// Sets the position where a record of the partition ends in the stream of its set's link
    /// `slot`.
    #[inline]
    pub fn set(&self, partition: Partition, slot: usize, position: u64) {
        match slot {
            0 => self.first[partition.index()].store(position, Ordering::Relaxed),
            _ => self.set_further(partition, slot, position),
        }
    }

    /// Sets the positions of a set that the partition begins to use, slot by slot.
    pub fn set_all(&self, partition: Partition, positions: [u64; LINKS_MAX]) {
        for (slot, position) in positions.into_iter().enumerate() {
            // Without a table the further positions are 0.
            if slot == 0 || position > 0 || self.further.get().is_some() {
                self.set(partition, slot, position);
            }
        }
    }

    fn set_further(&self, partition: Partition, slot: usize, position: u64) {
        let further = self.further.get_or_init(|| {
            self.first.iter().map(|_| array::from_fn(|_| AtomicU64::new(0))).collect()
        });
        further[partition.index()][slot - 1].store(position, Ordering::Relaxed);
    }

    /// Bytes of the tables.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let further = self.further.get().map_or(0, |further| size_of_val(&**further));
        size_of_val(&*self.first) + further
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_links_have_a_table_once_there_is_one() {
        let ends = RecordEnds::new(1000);
        let (one, two) = (Partition(1), Partition(999));
        ends.set(one, 0, 7);
        ends.set_all(two, [8, 0, 0]);
        let all = |partition| [0, 1, 2].map(|slot| ends.get(partition, slot));
        assert_eq!((all(one), all(two), all(Partition(0))), ([7, 0, 0], [8, 0, 0], [0; 3]));
        assert_eq!(ends.bytes(), 8 * 1000, "two copies need no more");
        ends.set_all(one, [9, 0, 10]);
        ends.set(two, 1, 11);
        assert_eq!((all(one), all(two)), ([9, 0, 10], [8, 11, 0]));
        assert_eq!(ends.bytes(), 8 * LINKS_MAX * 1000);
        ends.set_all(one, [0; LINKS_MAX]);
        assert_eq!((all(one), all(two)), ([0; 3], [8, 11, 0]));
    }
}
