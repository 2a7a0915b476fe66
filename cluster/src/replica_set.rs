//! Sets of copies: the links that carry the records of a partition, and those that an answer waits
//! for.

use std::array;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::id::LinkIndex;
use crate::map::IN_SYNC_MAX;

/// The most links of a set. A partition has at most [`IN_SYNC_MAX`] copies, the primary and a
/// learner included.
pub const LINKS_MAX: usize = IN_SYNC_MAX - 1;

/// A row in the table of sets. 0 is the empty set.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetIndex(pub u16);

/// The links that carry records; the mandatory ones come first.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaSet {
    links: [LinkIndex; LINKS_MAX],
    count: u8,
    mandatory: u8,
}

impl ReplicaSet {
    /// A set of links: `mandatory` ones, which an answer waits for, then `others`. Together at most
    /// [`LINKS_MAX`].
    #[must_use]
    pub fn new(mandatory: &[LinkIndex], others: &[LinkIndex]) -> Self {
        let mut set = Self::default();
        for &link in mandatory.iter().chain(others).take(LINKS_MAX) {
            set.links[usize::from(set.count)] = link;
            set.count += 1;
        }
        set.mandatory = mandatory.len().min(LINKS_MAX) as u8;
        set
    }

    /// All links.
    #[must_use]
    #[inline]
    pub fn links(&self) -> &[LinkIndex] {
        &self.links[..usize::from(self.count)]
    }

    /// The links that an answer waits for; their slots are the first ones of [`ReplicaSet::links`].
    #[must_use]
    #[inline]
    pub fn mandatory(&self) -> &[LinkIndex] {
        &self.links[..usize::from(self.mandatory)]
    }

    /// Whether the set has no links.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    fn pack(self) -> u64 {
        let [a, b, c] = self.links.map(|link| u64::from(link.0));
        a | b << 16 | c << 32 | u64::from(self.count) << 48 | u64::from(self.mandatory) << 56
    }

    #[inline]
    fn unpack(packed: u64) -> Self {
        Self {
            links: [0, 16, 32].map(|shift| LinkIndex((packed >> shift) as u16)),
            count: (packed >> 48) as u8,
            mandatory: (packed >> 56) as u8,
        }
    }
}

/// The rows that are made together.
const CHUNK_ROWS: usize = 256;
/// A row is a `u16`.
const ROWS_MAX: usize = 1 << 16;

type RowChunk = OnceLock<Box<[AtomicU64; CHUNK_ROWS]>>;

/// The rows of all sets, readable without a lock. Rows are made when they are needed: partitions
/// with equal sets share one.
#[derive(Debug, Clone)]
pub struct ReplicaSetTable(Arc<[RowChunk; ROWS_MAX / CHUNK_ROWS]>);

impl ReplicaSetTable {
    fn new() -> Self {
        Self(Arc::new([const { OnceLock::new() }; _]))
    }

    /// The set in a row. The caller must hold the shard of a partition that refers to the row by
    /// its header, so that the row is not used for another set.
    #[must_use]
    #[inline]
    pub fn get(&self, index: SetIndex) -> ReplicaSet {
        let chunk = self.0[usize::from(index.0) / CHUNK_ROWS].get();
        chunk.map_or_else(ReplicaSet::default, |chunk| {
            let row = &chunk[usize::from(index.0) % CHUNK_ROWS];
            ReplicaSet::unpack(row.load(Ordering::Acquire))
        })
    }

    fn set(&self, index: SetIndex, set: ReplicaSet) {
        let chunk = self.0[usize::from(index.0) / CHUNK_ROWS]
            .get_or_init(|| Box::new(array::from_fn(|_| AtomicU64::new(0))));
        chunk[usize::from(index.0) % CHUNK_ROWS].store(set.pack(), Ordering::Release);
    }
}

/// Assigns rows to sets, and frees rows that no partition refers to.
#[derive(Debug)]
pub struct ReplicaSets {
    table: ReplicaSetTable,
    rows_max: usize,
    /// The number of partitions that refer to each row; the empty set's row is not counted.
    uses: Vec<u32>,
    rows: BTreeMap<u64, SetIndex>,
    free: Vec<SetIndex>,
}

impl ReplicaSets {
    /// A table with room for `rows` sets, at most 65,536. If it is full, [`ReplicaSets::acquire`]
    /// returns none.
    #[must_use]
    pub fn new(rows: usize) -> Self {
        Self {
            table: ReplicaSetTable::new(),
            rows_max: rows.clamp(1, ROWS_MAX),
            uses: vec![0],
            rows: BTreeMap::new(),
            free: Vec::new(),
        }
    }

    /// The rows, for threads that only read them.
    #[must_use]
    pub fn table(&self) -> ReplicaSetTable {
        self.table.clone()
    }

    /// The set in a row.
    #[must_use]
    pub fn get(&self, index: SetIndex) -> ReplicaSet {
        self.table.get(index)
    }

    /// Returns the row of a set, and counts one more partition that refers to it. None if the table
    /// is full.
    pub fn acquire(&mut self, set: ReplicaSet) -> Option<SetIndex> {
        if set.is_empty() {
            return Some(SetIndex(0));
        }
        let packed = set.pack();
        if let Some(&index) = self.rows.get(&packed) {
            self.uses[usize::from(index.0)] += 1;
            return Some(index);
        }
        let index = self.free.pop().or_else(|| {
            let row = self.uses.len();
            (row < self.rows_max).then(|| {
                self.uses.push(0);
                SetIndex(row as u16)
            })
        })?;
        self.table.set(index, set);
        self.uses[usize::from(index.0)] = 1;
        self.rows.insert(packed, index);
        Some(index)
    }

    /// Counts one partition less that refers to the row.
    pub fn release(&mut self, index: SetIndex) {
        if index == SetIndex(0) {
            return;
        }
        let uses = &mut self.uses[usize::from(index.0)];
        *uses = uses.saturating_sub(1);
        if *uses == 0 {
            self.rows.remove(&self.table.get(index).pack());
            self.free.push(index);
        }
    }

    /// The sets that partitions refer to, and their rows.
    pub fn in_use(&self) -> impl Iterator<Item = (SetIndex, ReplicaSet)> {
        self.rows.iter().map(|(&packed, &index)| (index, ReplicaSet::unpack(packed)))
    }

    /// Whether any set contains this link. If none does, the row of the link may be used again.
    #[must_use]
    pub fn names(&self, link: LinkIndex) -> bool {
        self.in_use().any(|(_, set)| set.links().contains(&link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_is_used_again_once_no_partition_refers_to_it() {
        let mut sets = ReplicaSets::new(3);
        let (one, two, three) = (LinkIndex(1), LinkIndex(2), LinkIndex(40_000));
        let first = ReplicaSet::new(&[one], &[two]);
        let second = ReplicaSet::new(&[one, three], &[]);
        let row = sets.acquire(first).expect("there is room");
        assert_eq!(sets.acquire(first), Some(row));
        let other = sets.acquire(second).expect("there is room");
        assert_eq!((sets.get(row), sets.get(other)), (first, second));
        assert_eq!(sets.get(other).mandatory(), [one, three]);
        assert_eq!(sets.get(row).mandatory(), [one]);
        assert_eq!(sets.acquire(ReplicaSet::new(&[two], &[])), None, "the table is full");
        sets.release(row);
        assert!(sets.names(two));
        sets.release(row);
        assert!(!sets.names(two) && sets.names(three));
        assert_eq!(sets.acquire(ReplicaSet::new(&[two], &[])), Some(row));
        assert_eq!(sets.acquire(ReplicaSet::default()), Some(SetIndex(0)));
    }

    #[test]
    fn rows_are_made_when_they_are_needed() {
        let mut sets = ReplicaSets::new(usize::MAX);
        let table = sets.table();
        let made = || table.0.iter().filter(|chunk| chunk.get().is_some()).count();
        assert_eq!((made(), table.get(SetIndex(u16::MAX))), (0, ReplicaSet::default()));
        let set = |number: usize| ReplicaSet::new(&[LinkIndex(number as u16)], &[]);
        for number in 1..ROWS_MAX {
            let row = sets.acquire(set(number)).expect("there is room");
            assert_eq!(row, SetIndex(number as u16), "row 0 is the empty set's");
            assert_eq!(made(), number / CHUNK_ROWS + 1);
        }
        assert_eq!(sets.acquire(ReplicaSet::new(&[], &[LinkIndex(1)])), None);
        assert_eq!(table.get(SetIndex(u16::MAX)), set(ROWS_MAX - 1));
    }
}
