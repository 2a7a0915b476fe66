//! The positions where the last record of each partition ends, in the stream of each link of its
//! set.
//!
//! Here: the table of positions. Not here: the set of a partition (`replica_set`, in its header),
//! streams (`send_stream`).

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;

use crate::id::Partition;
use crate::replica_set::LINKS_MAX;

/// The links of a set beyond the first.
const FURTHER: usize = LINKS_MAX - 1;

/// The positions of one partition on its further links; 0 if there is none.
type FurtherEnds = [AtomicU64; FURTHER];

/// The positions of all partitions of a node. The locks that guard a header guard the positions of
/// its partition too.
///
/// Most sets have one link. The table for the further ones exists while a partition has a position
/// on one: with two copies, while a partition moves.
#[derive(Debug)]
pub struct RecordEnds {
    first: Box<[AtomicU64]>,
    further: ArcSwapOption<Box<[FurtherEnds]>>,
    /// The number of partitions with a position on a further link. Locked while it changes, and
    /// with it the table.
    used: Mutex<usize>,
}

impl RecordEnds {
    /// A table for this many partitions, with no records.
    #[must_use]
    pub fn new(partitions: usize) -> Self {
        Self {
            first: (0..partitions).map(|_| AtomicU64::new(0)).collect(),
            further: ArcSwapOption::empty(),
            used: Mutex::new(0),
        }
    }

    /// The position where the partition's last record ends in the stream of its set's link `slot`;
    /// 0 if there is none.
    #[must_use]
    #[inline]
    pub fn get(&self, partition: Partition, slot: usize) -> u64 {
        match slot {
            0 => self.first[partition.index()].load(Ordering::Relaxed),
            _ => {
                self.further.load().as_ref().map_or(0, |further| {
                    further[partition.index()][slot - 1].load(Ordering::Relaxed)
                })
            }
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
            self.set(partition, slot, position);
        }
    }

    #[inline]
    fn set_further(&self, partition: Partition, slot: usize, position: u64) {
        let further = self.further.load();
        let row = further.as_ref().map(|further| &further[partition.index()]);
        match row.filter(|row| is_used(row)) {
            Some(row) if position > 0 => row[slot - 1].store(position, Ordering::Relaxed),
            None if position == 0 => {}
            _ => self.count_further(partition, slot, position),
        }
    }

    /// Sets a position with which the number of used rows may change.
    #[cold]
    fn count_further(&self, partition: Partition, slot: usize, position: u64) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let further = self.further.load_full().unwrap_or_else(|| {
            let rows = self.first.iter().map(|_| array::from_fn(|_| AtomicU64::new(0)));
            let further = Arc::new(rows.collect());
            self.further.store(Some(Arc::clone(&further)));
            further
        });
        let row = &further[partition.index()];
        let before = is_used(row);
        row[slot - 1].store(position, Ordering::Relaxed);
        *used = *used - usize::from(before) + usize::from(is_used(row));
        if *used == 0 {
            self.further.store(None);
        }
    }

    /// Bytes of the tables.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let further = self.further.load().as_ref().map_or(0, |rows| size_of_val(&***rows));
        size_of_val(&*self.first) + further
    }
}

fn is_used(row: &FurtherEnds) -> bool {
    row.iter().any(|position| position.load(Ordering::Relaxed) > 0)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn further_links_have_a_table_while_there_is_one() {
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
        ends.set_all(two, [12, 0, 0]);
        assert_eq!((all(one), all(two)), ([0; 3], [12, 0, 0]));
        assert_eq!(ends.bytes(), 8 * 1000, "no partition has a further link");
    }

    #[test]
    fn table_that_comes_and_goes_loses_no_position() {
        let ends = RecordEnds::new(4);
        thread::scope(|scope| {
            for partition in (0..4).map(Partition) {
                let ends = &ends;
                scope.spawn(move || {
                    for position in 1..5000 {
                        ends.set_all(partition, [0, position, 0]);
                        ends.set(partition, 2, position + 1);
                        assert_eq!(ends.get(partition, 1), position);
                        assert_eq!(ends.get(partition, 2), position + 1);
                        ends.set_all(partition, [0; LINKS_MAX]);
                    }
                });
            }
        });
        assert_eq!(ends.bytes(), 8 * 4);
    }

    proptest! {
        #[test]
        fn table_exists_while_a_row_is_used(
            steps in proptest::collection::vec((0_u16..3, 0..LINKS_MAX, 0_u64..3), 0..60),
        ) {
            let ends = RecordEnds::new(3);
            let mut twin = [[0; LINKS_MAX]; 3];
            for (partition, slot, position) in steps {
                ends.set(Partition(partition), slot, position);
                twin[usize::from(partition)][slot] = position;
                for (index, row) in twin.iter().enumerate() {
                    let partition = Partition(index as u16);
                    prop_assert_eq!(&array::from_fn(|slot| ends.get(partition, slot)), row);
                }
                let has_further = twin.iter().flat_map(|row| &row[1..]).any(|end| *end > 0);
                let bytes = if has_further { 8 * 3 * LINKS_MAX } else { 8 * 3 };
                prop_assert_eq!(ends.bytes(), bytes);
            }
        }
    }
}
