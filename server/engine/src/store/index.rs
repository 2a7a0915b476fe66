//! The index from a hash to the slots that may hold its key: linear hashing over cache lines.
//!
//! Here: lines of twelve one-byte tags, twelve slots and the number of an overflow line. The table
//! grows and shrinks by one line at a time (Litwin, "Linear Hashing", VLDB 1980), so no request
//! waits for a rehash and there is no half-empty doubled table; hashbrown was rejected because it
//! doubles. Not here: keys, which the caller compares (`store`).

use crate::prefetch::prefetch;

/// Slots in a line.
const WAYS: usize = 12;
/// The table grows above this average of items per line, and shrinks below half of it. At 8 of 12
/// about one item in thirty lies in an overflow line.
const ITEMS_PER_LINE: usize = 8;
/// Marks a line without overflow line.
const NONE: u32 = 0;

/// One cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine {
    /// 0 is free; used positions come first.
    tags: [u8; WAYS],
    slots: [u32; WAYS],
    /// The number of the overflow line plus one.
    next: u32,
}

impl CacheLine {
    const EMPTY: Self = Self { tags: [0; WAYS], slots: [0; WAYS], next: NONE };

    fn used(&self) -> usize {
        self.tags.iter().take_while(|tag| **tag != 0).count()
    }

    /// The first slot with this tag. No branch depends on its position in the line, which the
    /// processor cannot predict.
    #[inline]
    fn first(&self, tag: u8) -> Option<u32> {
        let (front, rest) = self.tags.split_first_chunk::<8>()?;
        let rest = rest.first_chunk::<4>()?;
        let place = first_equal(u64::from_le_bytes(*front), tag).or_else(|| {
            // No tag is 0.
            Some(8 + first_equal(u64::from(u32::from_le_bytes(*rest)), tag)?)
        });
        self.slots.get(place?).copied()
    }
}

/// The index of the first byte of `word`, from the lowest, that equals `byte`.
#[inline]
fn first_equal(word: u64, byte: u8) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let other = word ^ (ONES * u64::from(byte));
    // Sets the top bit of each byte that is 0 now. A borrow can set a wrong bit, but only behind
    // such a byte.
    let zeros = other.wrapping_sub(ONES) & !other & (ONES << 7);
    (zeros != 0).then(|| zeros.trailing_zeros() as usize / 8)
}

/// Lines in chunks of one page, so that growth never copies them.
struct CacheLines {
    chunks: Vec<Box<[CacheLine; CHUNK_LINES]>>,
    len: usize,
}

const CHUNK_SHIFT: u32 = 6;
const CHUNK_LINES: usize = 1 << CHUNK_SHIFT;

impl CacheLines {
    fn get(&self, index: usize) -> &CacheLine {
        &self.chunks[index >> CHUNK_SHIFT][index & (CHUNK_LINES - 1)]
    }

    fn get_mut(&mut self, index: usize) -> &mut CacheLine {
        &mut self.chunks[index >> CHUNK_SHIFT][index & (CHUNK_LINES - 1)]
    }

    fn is_full(&self) -> bool {
        self.len == self.chunks.len() * CHUNK_LINES
    }

    fn push(&mut self) -> usize {
        if self.is_full() {
            self.chunks.push(Box::new([CacheLine::EMPTY; CHUNK_LINES]));
        }
        *self.get_mut(self.len) = CacheLine::EMPTY;
        self.len += 1;
        self.len - 1
    }

    fn pop(&mut self) {
        self.len -= 1;
        if self.len == (self.chunks.len() - 1) * CHUNK_LINES {
            self.chunks.pop();
        }
    }
}

/// Slots by hash. Two keys of one hash are two entries; the caller distinguishes them.
///
/// The order of the fields is their order in memory: the fields that a lookup reads come first
/// ([`Store`](crate::store::Store)).
#[repr(C)]
pub(crate) struct Index {
    lines: CacheLines,
    overflow: CacheLines,
    /// Unused overflow lines, linked by `next`.
    free_overflow: u32,
    overflow_used: usize,
    len: usize,
}

/// The position of an entry: valid until the next change of the index.
#[derive(Clone, Copy)]
enum EntryPlace {
    Main(usize),
    Overflow(usize),
}

fn tag_of(hash: u64) -> u8 {
    // The low bits choose the line and the high ones the shard, so the tag comes from between them.
    ((hash >> 40) as u8).max(1)
}

impl Index {
    /// The end of the bytes that a lookup reads.
    pub(crate) const LOOKUP_END: usize = std::mem::offset_of!(Self, overflow);

    pub(crate) fn new() -> Self {
        let mut lines = CacheLines { chunks: Vec::new(), len: 0 };
        lines.push();
        let overflow = CacheLines { chunks: Vec::new(), len: 0 };
        Self { lines, overflow, free_overflow: NONE, overflow_used: 0, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes allocated.
    pub(crate) fn allocated_bytes(&self) -> usize {
        (self.lines.chunks.len() + self.overflow.chunks.len())
            * CHUNK_LINES
            * size_of::<CacheLine>()
    }

    /// Most bytes that one more entry allocates.
    pub(crate) const GROWTH_MAX: usize = 2 * CHUNK_LINES * size_of::<CacheLine>();

    /// Bytes that an entry under `hash` may allocate.
    pub(crate) fn growth(&self, hash: u64) -> usize {
        let mut line = self.lines.get(self.line_of(hash));
        while let Some(next) = line.next.checked_sub(1) {
            line = self.overflow.get(next as usize);
        }
        let extends = line.used() == WAYS && self.free_overflow == NONE;
        let splits = self.len + 1 > self.lines.len * ITEMS_PER_LINE;
        let chunks = usize::from(extends && self.overflow.is_full())
            + usize::from(splits && self.lines.is_full());
        chunks * CHUNK_LINES * size_of::<CacheLine>()
    }

    /// The binary logarithm of the number of lines, rounded down.
    fn level(&self) -> u32 {
        self.lines.len.ilog2()
    }

    fn line_of(&self, hash: u64) -> usize {
        let half = 1 << self.level();
        let wide = hash as usize & (2 * half - 1);
        if wide < self.lines.len { wide } else { wide & (half - 1) }
    }

    /// Appends the slots of the line for hashes of this spread (their bits reversed). Returns the
    /// last spread of the line.
    pub(crate) fn line_at(&self, spread: u64, slots: &mut Vec<u32>) -> u64 {
        let index = self.line_of(spread.reverse_bits());
        let half = 1 << self.level();
        let is_split = index >= half || index + half < self.lines.len;
        let mut line = self.lines.get(index);
        loop {
            slots.extend_from_slice(&line.slots[..line.used()]);
            match line.next {
                NONE => return spread | u64::MAX >> (self.level() + u32::from(is_split)),
                next => line = self.overflow.get(next as usize - 1),
            }
        }
    }

    fn at(&self, place: EntryPlace) -> &CacheLine {
        match place {
            EntryPlace::Main(index) => self.lines.get(index),
            EntryPlace::Overflow(index) => self.overflow.get(index),
        }
    }

    fn at_mut(&mut self, place: EntryPlace) -> &mut CacheLine {
        match place {
            EntryPlace::Main(index) => self.lines.get_mut(index),
            EntryPlace::Overflow(index) => self.overflow.get_mut(index),
        }
    }

    /// The first slot under `hash` for which `is_it` holds.
    pub(crate) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let tag = tag_of(hash);
        let mut line = self.lines.get(self.line_of(hash));
        loop {
            for way in 0..WAYS {
                if line.tags[way] == tag && is_it(line.slots[way]) {
                    return Some(line.slots[way]);
                }
            }
            line = self.overflow.get(line.next.checked_sub(1)? as usize);
        }
    }

    /// The first slot with the tag of `hash` in its first line.
    pub(crate) fn find_first(&self, hash: u64) -> Option<u32> {
        self.lines.get(self.line_of(hash)).first(tag_of(hash))
    }

    /// Prefetches the line behind the first under `hash`; false if there is none.
    pub(crate) fn prefetch_behind(&self, hash: u64) -> bool {
        let next = self.lines.get(self.line_of(hash)).next.checked_sub(1);
        if let Some(next) = next {
            prefetch(self.overflow.get(next as usize));
        }
        next.is_some()
    }

    /// Prefetches the line of `hash`.
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch(self.lines.get(self.line_of(hash)));
    }

    /// Adds `slot` under `hash`. `rehash` returns the hash of a slot's key, for the line that is
    /// split to make room.
    pub(crate) fn insert(&mut self, hash: u64, slot: u32, rehash: impl Fn(u32) -> u64) {
        self.len += 1;
        self.put(self.line_of(hash), tag_of(hash), slot);
        if self.len > self.lines.len * ITEMS_PER_LINE {
            self.grow(rehash);
        }
    }

    fn put(&mut self, line: usize, tag: u8, slot: u32) {
        let mut place = EntryPlace::Main(line);
        loop {
            let line = self.at_mut(place);
            let used = line.used();
            if used < WAYS {
                line.tags[used] = tag;
                line.slots[used] = slot;
                return;
            }
            place = EntryPlace::Overflow(match line.next {
                NONE => self.extend(place),
                next => next as usize - 1,
            });
        }
    }

    /// Appends a new overflow line to `place`.
    fn extend(&mut self, place: EntryPlace) -> usize {
        let index = match self.free_overflow {
            NONE => self.overflow.push(),
            free => {
                let line = self.overflow.get_mut(free as usize - 1);
                self.free_overflow = line.next;
                *line = CacheLine::EMPTY;
                free as usize - 1
            }
        };
        self.overflow_used += 1;
        self.at_mut(place).next = index as u32 + 1;
        index
    }

    /// Changes the entry of `hash` with the slot `from` to the slot `to`.
    pub(crate) fn relocate(&mut self, hash: u64, from: u32, to: u32) {
        let (place, way) = self.locate(hash, from);
        self.at_mut(place).slots[way] = to;
    }

    fn locate(&self, hash: u64, slot: u32) -> (EntryPlace, usize) {
        let tag = tag_of(hash);
        let mut place = EntryPlace::Main(self.line_of(hash));
        loop {
            let line = self.at(place);
            let way = (0..WAYS).find(|way| line.tags[*way] == tag && line.slots[*way] == slot);
            if let Some(way) = way {
                return (place, way);
            }
            assert!(line.next != NONE, "every item is in the index");
            place = EntryPlace::Overflow(line.next as usize - 1);
        }
    }

    /// Removes the entry of `hash` with the slot `slot`.
    pub(crate) fn remove(&mut self, hash: u64, slot: u32) {
        let (hole, way) = self.locate(hash, slot);
        self.len -= 1;
        // The last entry of the chain fills the hole, so that used positions stay first.
        let mut last = hole;
        while self.at(last).next != NONE {
            last = EntryPlace::Overflow(self.at(last).next as usize - 1);
        }
        let end = self.at(last).used() - 1;
        let (tag, moved) = (self.at(last).tags[end], self.at(last).slots[end]);
        let line = self.at_mut(hole);
        line.tags[way] = tag;
        line.slots[way] = moved;
        self.at_mut(last).tags[end] = 0;
        if end == 0
            && let EntryPlace::Overflow(index) = last
        {
            let before = self.before(hash, index);
            self.at_mut(before).next = NONE;
            self.release(index);
        }
        if self.lines.len > 1 && self.len < self.lines.len * ITEMS_PER_LINE / 2 {
            self.shrink();
        }
    }

    /// The line with the overflow line `index`.
    fn before(&self, hash: u64, index: usize) -> EntryPlace {
        let mut place = EntryPlace::Main(self.line_of(hash));
        while self.at(place).next as usize != index + 1 {
            place = EntryPlace::Overflow(self.at(place).next as usize - 1);
        }
        place
    }

    fn release(&mut self, index: usize) {
        self.overflow.get_mut(index).next = self.free_overflow;
        self.free_overflow = index as u32 + 1;
        self.overflow_used -= 1;
        // Free lines are scattered, so their memory is freed only when none is in use.
        if self.overflow_used == 0 {
            self.overflow = CacheLines { chunks: Vec::new(), len: 0 };
            self.free_overflow = NONE;
        }
    }

    /// Removes and returns all entries of a line and its overflow lines.
    fn drain(&mut self, line: usize) -> Vec<(u8, u32)> {
        let mut entries = Vec::with_capacity(2 * WAYS);
        let mut place = EntryPlace::Main(line);
        loop {
            let taken = std::mem::replace(self.at_mut(place), CacheLine::EMPTY);
            let used = taken.used();
            entries.extend(taken.tags.into_iter().zip(taken.slots).take(used));
            if let EntryPlace::Overflow(index) = place {
                self.release(index);
            }
            match taken.next {
                NONE => return entries,
                next => place = EntryPlace::Overflow(next as usize - 1),
            }
        }
    }

    /// Adds a line and moves its entries from the line that it splits.
    fn grow(&mut self, rehash: impl Fn(u32) -> u64) {
        let half = 1 << self.level();
        let new = self.lines.push();
        let old = new - half;
        for (tag, slot) in self.drain(old) {
            let keep = rehash(slot) as usize & half == 0;
            self.put(if keep { old } else { new }, tag, slot);
        }
    }

    /// Removes the last line and moves its entries to the line from which it was split.
    fn shrink(&mut self) {
        let last = self.lines.len - 1;
        let old = last - (1 << last.ilog2());
        for (tag, slot) in self.drain(last) {
            self.put(old, tag, slot);
        }
        self.lines.pop();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// A hash that collides often, so that chains form.
    fn spread(slot: u32) -> u64 {
        u64::from(slot % 97).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    fn found(index: &Index, slot: u32) -> bool {
        index.find(spread(slot), |candidate| candidate == slot) == Some(slot)
    }

    proptest! {
        #[test]
        fn an_index_agrees_with_a_set(steps in prop::collection::vec((0_u32..3000, any::<bool>()), 1..3000)) {
            let mut index = Index::new();
            let mut twin = BTreeSet::new();
            for (slot, wanted) in steps {
                match (wanted, twin.contains(&slot)) {
                    (true, false) => {
                        index.insert(spread(slot), slot, spread);
                        twin.insert(slot);
                    }
                    (false, true) => {
                        index.remove(spread(slot), slot);
                        twin.remove(&slot);
                    }
                    _ => {}
                }
                prop_assert_eq!(index.len(), twin.len());
            }
            for slot in 0..3000 {
                prop_assert_eq!(found(&index, slot), twin.contains(&slot));
            }
        }
    }

    proptest! {
        #[test]
        fn the_first_of_a_tag_is_found(tags in prop::collection::vec(1_u8..6, 0..=WAYS), tag in 1_u8..6) {
            let mut line = CacheLine { slots: std::array::from_fn(|way| 100 + way as u32), ..CacheLine::EMPTY };
            line.tags[..tags.len()].copy_from_slice(&tags);
            let way = tags.iter().position(|other| *other == tag);
            prop_assert_eq!(line.first(tag), way.map(|way| line.slots[way]));
        }
    }

    #[test]
    fn an_entry_is_in_its_first_line_or_behind_it() {
        let hasher = crate::KeyHasher::new([1, 2, 3, 4]);
        let hash = |slot: u32| hasher.hash(&slot.to_le_bytes());
        let mut index = Index::new();
        (0..10_000).for_each(|slot| index.insert(hash(slot), slot, hash));
        let behind = (0..10_000).filter(|slot| index.find_first(hash(*slot)).is_none());
        let behind: Vec<u32> = behind.collect();
        assert!((10..1000).contains(&behind.len()), "{}", behind.len());
        for slot in behind {
            assert!(index.prefetch_behind(hash(slot)));
            assert_eq!(index.find(hash(slot), |other| other == slot), Some(slot));
        }
        assert!(!Index::new().prefetch_behind(7));
    }

    #[test]
    fn by_spread_every_entry_is_met_once() {
        let hasher = crate::KeyHasher::new([1, 2, 3, 4]);
        let hash = |slot: u32| hasher.hash(&slot.to_le_bytes());
        let mut index = Index::new();
        for count in 0..2000 {
            if count % 37 == 0 {
                let (mut met, mut at) = (Vec::new(), 0);
                loop {
                    let before = met.len();
                    let last = index.line_at(at, &mut met);
                    let span = at..=last;
                    assert!(
                        met[before..].iter().all(|slot| span.contains(&hash(*slot).reverse_bits()))
                    );
                    match last.checked_add(1) {
                        Some(next) => at = next,
                        None => break,
                    }
                }
                met.sort_unstable();
                assert!(met.into_iter().eq(0..count));
            }
            index.insert(hash(count), count, hash);
        }
    }

    #[test]
    fn emptied_it_is_as_small_as_new() {
        let hasher = crate::KeyHasher::new([1, 2, 3, 4]);
        let hash = |slot: u32| hasher.hash(&slot.to_le_bytes());
        let mut index = Index::new();
        let fresh = index.allocated_bytes();
        for slot in 0..100_000 {
            let expected = index.allocated_bytes() + index.growth(hash(slot));
            index.insert(hash(slot), slot, hash);
            assert!(index.allocated_bytes() <= expected);
        }
        let full = index.allocated_bytes();
        assert!(full < 100_000 * 11, "{full} bytes for 100,000 items");
        for slot in 0..100_000 {
            assert!(index.find(hash(slot), |candidate| candidate == slot).is_some());
            index.remove(hash(slot), slot);
        }
        assert_eq!(index.len(), 0);
        assert!(index.allocated_bytes() <= fresh + 4096, "{}", index.allocated_bytes());
    }

    #[test]
    fn relocation_changes_one_entry() {
        let mut index = Index::new();
        for slot in 0..500 {
            index.insert(spread(slot), slot, spread);
        }
        index.relocate(spread(7), 7, 7 + 97 * 1000);
        assert!(!found(&index, 7));
        assert!(found(&index, 7 + 97 * 1000));
    }
}
