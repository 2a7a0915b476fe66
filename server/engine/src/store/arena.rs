//! The memory of items: dense arrays of equal slots, one array for each size class in use.
//!
//! Here: allocation. There are no holes: the last item of a class moves into the slot of a removed
//! one, so memory follows the items and a class frees its chunks as it shrinks. A holder of a
//! [`Slot`] must follow such moves, as `store` does. Not here: the meaning of the bytes (`item`).

/// The place of an item: the arena in the top bit, the number of the array in six bits, the
/// position in it below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot(u32);

const POSITION_BITS: u32 = 25;
const ARRAY_BITS: u32 = 6;

impl Slot {
    fn new(array: usize, position: usize) -> Self {
        Self((array as u32) << POSITION_BITS | position as u32)
    }

    /// The number of its array; [`LARGE`] for large items.
    fn array(self) -> usize {
        (self.0 >> POSITION_BITS & ((1 << ARRAY_BITS) - 1)) as usize
    }

    /// Whether the item has an allocation of its own instead of a slot in a chunk.
    pub(crate) fn is_large(self) -> bool {
        self.array() == LARGE
    }

    /// Whether the slot is in the arena of limit states; an arena itself ignores this bit.
    pub(crate) fn is_limit_state(self) -> bool {
        self.0 >> (POSITION_BITS + ARRAY_BITS) != 0
    }

    /// The same place in the arena of limit states.
    pub(crate) fn in_limit_arena(self) -> Self {
        Self(self.0 | 1 << (POSITION_BITS + ARRAY_BITS))
    }

    fn in_item_arena(self) -> Self {
        Self(self.0 & !(1 << (POSITION_BITS + ARRAY_BITS)))
    }

    fn position(self) -> usize {
        (self.0 & ((1 << POSITION_BITS) - 1)) as usize
    }

    pub(crate) fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    pub(crate) fn raw(self) -> u32 {
        self.0
    }
}

/// Bytes of a chunk of slots: a page, which no allocator rounds up.
const CHUNK_BYTES: usize = 4096;
/// Largest slot of a dense array; larger items have an allocation of their own.
const DENSE_BYTES_MAX: usize = 1024;
/// The class of all larger items, and the number of their array.
const LARGE: usize = 45;
/// Marks a class without array.
const UNUSED: u8 = u8::MAX;
/// Most items of a class in one shard.
const POSITIONS_MAX: usize = 1 << POSITION_BITS;

/// The first class whose slots are equal parts of a chunk, from a fifteenth to a quarter.
const PARTS: usize = 33;
const PARTS_MAX: usize = 15;

/// The class of an item. Slot sizes grow in steps of 4 bytes up to 64, of 8 up to 128 and of 16 up
/// to 256; the larger ones are a chunk divided by 15 down to 4.
fn class_of(item_bytes: usize) -> usize {
    match item_bytes {
        ..=64 => item_bytes.div_ceil(4),
        65..=128 => 16 + (item_bytes - 64).div_ceil(8),
        129..=256 => 24 + (item_bytes - 128).div_ceil(16),
        257..=DENSE_BYTES_MAX => PARTS + PARTS_MAX - CHUNK_BYTES / item_bytes,
        _ => LARGE,
    }
}

fn slot_bytes(class: usize) -> usize {
    match class {
        ..=16 => class * 4,
        17..=24 => 64 + (class - 16) * 8,
        25..PARTS => 128 + (class - 24) * 16,
        _ => CHUNK_BYTES / (PARTS + PARTS_MAX - class),
    }
}

/// Bytes that a large item allocates: an allocator has four sizes from a power of two to the next,
/// and the pointer to the item is stored too.
fn large_bytes(item_bytes: usize) -> usize {
    let step = item_bytes.next_power_of_two() / 8;
    item_bytes.next_multiple_of(step) + size_of::<Box<[u8]>>()
}

/// The slots of one dense class, in chunks. It has a cache line of its own, because a lookup reads
/// most of it.
#[repr(align(64))]
struct Array {
    class: usize,
    slot_bytes: usize,
    /// Slots in a chunk.
    chunk_slots: usize,
    /// 2^[`RECIPROCAL_BITS`] divided by the slots in a chunk, rounded up: finding a chunk then
    /// needs a multiplication instead of a division.
    reciprocal: u64,
    chunks: Vec<Box<[u8; CHUNK_BYTES]>>,
    len: usize,
}

/// Large enough that the rounding of the reciprocal never changes the quotient of a position.
const RECIPROCAL_BITS: u32 = 40;

impl Array {
    fn new(class: usize) -> Self {
        let slot_bytes = slot_bytes(class);
        // Class 0 has slots of no bytes and no items.
        let chunk_slots = CHUNK_BYTES / slot_bytes.max(1);
        let reciprocal = (1_u64 << RECIPROCAL_BITS).div_ceil(chunk_slots as u64);
        Self { class, slot_bytes, chunk_slots, reciprocal, chunks: Vec::new(), len: 0 }
    }

    fn is_full(&self) -> bool {
        self.len == self.chunks.len() * self.chunk_slots
    }

    /// The chunk of a position, and the offset of the slot in it.
    #[inline]
    fn place(&self, position: usize) -> (usize, usize) {
        let chunk = ((position as u64 * self.reciprocal) >> RECIPROCAL_BITS) as usize;
        (chunk, (position - chunk * self.chunk_slots) * self.slot_bytes)
    }

    #[inline]
    fn get(&self, position: usize) -> &[u8] {
        let (chunk, at) = self.place(position);
        &self.chunks[chunk][at..at + self.slot_bytes]
    }

    #[inline]
    fn get_mut(&mut self, position: usize) -> &mut [u8] {
        let (chunk, at) = self.place(position);
        &mut self.chunks[chunk][at..at + self.slot_bytes]
    }

    /// Moves the last slot into `position` and drops the last; true if a slot moved.
    fn swap_remove(&mut self, position: usize) -> bool {
        self.len -= 1;
        let moved = position != self.len;
        if moved {
            let (from_chunk, from) = self.place(self.len);
            let (to_chunk, to) = self.place(position);
            if from_chunk == to_chunk {
                self.chunks[to_chunk].copy_within(from..from + self.slot_bytes, to);
            } else {
                let (head, tail) = self.chunks.split_at_mut(from_chunk);
                head[to_chunk][to..to + self.slot_bytes]
                    .copy_from_slice(&tail[0][from..from + self.slot_bytes]);
            }
        }
        if self.len == (self.chunks.len() - 1) * self.chunk_slots {
            self.chunks.pop();
            if self.chunks.len() * 4 < self.chunks.capacity() {
                self.chunks.shrink_to(self.chunks.len() * 2);
            }
        }
        moved
    }
}

/// The items of a shard, all plain or all limit states.
///
/// The order of the fields is their order in memory: the fields that a lookup reads come last
/// ([`Store`](crate::store::Store)).
#[repr(C)]
pub(crate) struct Arena {
    large: Vec<Box<[u8]>>,
    len: usize,
    /// Bytes allocated.
    allocated_bytes: usize,
    /// The number of the array of each class; [`UNUSED`] for a class without array.
    numbers: [u8; LARGE],
    /// The arrays in the order of their creation: the arrays of few sizes lie together.
    arrays: Vec<Array>,
}

impl Arena {
    /// The start of the bytes that a lookup reads.
    pub(crate) const LOOKUP_AT: usize = std::mem::offset_of!(Self, arrays);

    pub(crate) fn new() -> Self {
        Self {
            large: Vec::new(),
            len: 0,
            allocated_bytes: 0,
            numbers: [UNUSED; LARGE],
            arrays: Vec::new(),
        }
    }

    /// Bytes that an item of `item_bytes` would allocate: 0 while a slot is free.
    pub(crate) fn growth(&self, item_bytes: usize) -> usize {
        let Some(number) = self.numbers.get(class_of(item_bytes)) else {
            return large_bytes(item_bytes);
        };
        match self.arrays.get(usize::from(*number)) {
            Some(array) if !array.is_full() => 0,
            _ => CHUNK_BYTES,
        }
    }

    /// Whether an item of `item_bytes` fits `slot` exactly.
    pub(crate) fn same_class(&self, slot: Slot, item_bytes: usize) -> bool {
        match self.arrays.get(slot.array()) {
            Some(array) => array.class == class_of(item_bytes),
            None => self.get(slot).len() == item_bytes,
        }
    }

    /// Allocates a slot for `item_bytes` with arbitrary content; `None` if the class is at its
    /// maximum.
    pub(crate) fn allocate(&mut self, item_bytes: usize) -> Option<Slot> {
        let class = class_of(item_bytes);
        if class == LARGE {
            if self.large.len() == POSITIONS_MAX {
                return None;
            }
            self.large.push(vec![0; item_bytes].into_boxed_slice());
            self.allocated_bytes += large_bytes(item_bytes);
            self.len += 1;
            return Some(Slot::new(LARGE, self.large.len() - 1));
        }
        if self.numbers[class] == UNUSED {
            self.numbers[class] = self.arrays.len() as u8;
            self.arrays.reserve_exact(1);
            self.arrays.push(Array::new(class));
        }
        let index = usize::from(self.numbers[class]);
        let array = &mut self.arrays[index];
        if array.len == POSITIONS_MAX {
            return None;
        }
        if array.is_full() {
            array.chunks.push(Box::new([0; CHUNK_BYTES]));
            self.allocated_bytes += CHUNK_BYTES;
        }
        array.len += 1;
        self.len += 1;
        Some(Slot::new(index, array.len - 1))
    }

    /// Frees a slot; returns the former slot of the item that moved into it, if any.
    pub(crate) fn free(&mut self, slot: Slot) -> Option<Slot> {
        let position = slot.position();
        self.len -= 1;
        if slot.is_large() {
            let gone = self.large.swap_remove(position);
            self.allocated_bytes -= large_bytes(gone.len());
            if self.large.len() * 4 < self.large.capacity() {
                self.large.shrink_to(self.large.len() * 2);
            }
            return (position != self.large.len()).then(|| Slot::new(LARGE, self.large.len()));
        }
        let array = &mut self.arrays[slot.array()];
        let chunks = array.chunks.len();
        let moved = array.swap_remove(position);
        self.allocated_bytes -= (chunks - array.chunks.len()) * CHUNK_BYTES;
        moved.then(|| Slot::new(slot.array(), array.len))
    }

    #[inline]
    pub(crate) fn get(&self, slot: Slot) -> &[u8] {
        match self.arrays.get(slot.array()) {
            Some(array) => array.get(slot.position()),
            None => &self.large[slot.position()],
        }
    }

    /// Like [`Arena::get`], for a slot that may be free or of a dropped array.
    #[inline]
    pub(crate) fn get_if_used(&self, slot: Slot) -> Option<&[u8]> {
        let position = slot.position();
        match self.arrays.get(slot.array()) {
            Some(array) if position < array.len => Some(array.get(position)),
            None if slot.is_large() => self.large.get(position).map(|item| &**item),
            _ => None,
        }
    }

    /// Like [`Arena::get_mut`], for a slot that may be free or of a dropped array.
    #[inline]
    pub(crate) fn get_mut_if_used(&mut self, slot: Slot) -> Option<&mut [u8]> {
        let position = slot.position();
        match self.arrays.get_mut(slot.array()) {
            Some(array) if position < array.len => Some(array.get_mut(position)),
            None if slot.is_large() => self.large.get_mut(position).map(|item| &mut **item),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: Slot) -> &mut [u8] {
        match self.arrays.get_mut(slot.array()) {
            Some(array) => array.get_mut(slot.position()),
            None => &mut self.large[slot.position()],
        }
    }

    /// The number of items.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// All arrays from number `from` on, with the number of items in each.
    fn lens(&self, from: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let arrays = self.arrays.iter().map(|array| array.len).enumerate();
        arrays.skip(from).chain([(LARGE, self.large.len())])
    }

    /// The slot of item number `index`, counted through all arrays; `index` is below
    /// [`Arena::len`].
    pub(crate) fn nth(&self, index: usize) -> Option<Slot> {
        let mut left = index;
        for (array, len) in self.lens(0) {
            if left < len {
                return Some(Slot::new(array, left));
            }
            left -= len;
        }
        None
    }

    /// Bytes allocated.
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.allocated_bytes
    }

    /// The slot at or after `slot` that holds an item; `None` past the last one.
    pub(crate) fn at_or_after(&self, slot: Slot) -> Option<Slot> {
        let slot = slot.in_item_arena();
        let mut position = slot.position();
        for (array, len) in self.lens(slot.array()) {
            if position < len {
                return Some(Slot::new(array, position));
            }
            position = 0;
        }
        None
    }
}

/// The first possible slot.
pub(crate) const FIRST: Slot = Slot(0);

impl Slot {
    /// The next slot of the same array.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_the_smallest_slot_that_holds_it() {
        for bytes in 1..=DENSE_BYTES_MAX {
            let class = class_of(bytes);
            assert!(slot_bytes(class) >= bytes, "{bytes}");
            assert!(class == 1 || slot_bytes(class - 1) < bytes, "{bytes}");
        }
        assert_eq!(class_of(DENSE_BYTES_MAX + 1), LARGE);
        assert_eq!(slot_bytes(LARGE - 1), DENSE_BYTES_MAX);
        assert_eq!(slot_bytes(PARTS), CHUNK_BYTES / PARTS_MAX);
    }

    #[test]
    fn every_position_is_in_its_chunk() {
        for array in (1..LARGE).map(Array::new) {
            let slots = array.chunk_slots;
            assert!(slots * array.slot_bytes <= CHUNK_BYTES);
            let chunks = [0, 1, 2, 1000, POSITIONS_MAX / slots - 1];
            for (chunk, within) in
                chunks.into_iter().flat_map(|chunk| [(chunk, 0), (chunk, slots - 1)])
            {
                let place = array.place(chunk * slots + within);
                assert_eq!(place, (chunk, within * array.slot_bytes));
            }
        }
    }

    #[test]
    fn a_large_item_is_counted_as_allocators_round_it() {
        let sizes = [
            (1025, 1280),
            (1280, 1280),
            (1281, 1536),
            (2048, 2048),
            (2049, 2560),
            (100_000, 114_688),
        ];
        for (bytes, rounded) in sizes {
            assert_eq!(large_bytes(bytes), rounded + 16);
        }
    }

    #[test]
    fn freeing_leaves_no_hole_and_gives_memory_back() {
        let mut arena = Arena::new();
        let slots: Vec<Slot> = (0..1000).filter_map(|_| arena.allocate(47)).collect();
        for (index, slot) in slots.iter().enumerate() {
            arena.get_mut(*slot)[..8].copy_from_slice(&index.to_le_bytes());
        }
        assert_eq!(arena.allocated_bytes(), 1000_usize.div_ceil(85) * CHUNK_BYTES);
        let moved = arena.free(slots[3]).expect("the last of a thousand moves");
        assert_eq!(moved, slots[999]);
        assert_eq!(arena.get(slots[3])[..8], 999_usize.to_le_bytes());
        for _ in 0..999 {
            let last = arena.at_or_after(FIRST).expect("items are left");
            arena.free(last);
        }
        assert_eq!(arena.allocated_bytes(), 0);
        assert_eq!(arena.at_or_after(FIRST), None);
    }

    #[test]
    fn a_large_item_has_its_exact_bytes() {
        let mut arena = Arena::new();
        let slot = arena.allocate(5000).expect("there is room");
        assert_eq!(arena.get(slot).len(), 5000);
        assert!(arena.same_class(slot, 5000) && !arena.same_class(slot, 4999));
        assert_eq!(arena.free(slot), None);
        assert_eq!(arena.allocated_bytes(), 0);
    }

    #[test]
    fn a_slot_of_an_array_that_is_no_more_holds_nothing() {
        let mut arena = Arena::new();
        let before = arena.allocate(47).expect("there is room");
        arena = Arena::new();
        arena.allocate(5000).expect("there is room");
        assert_eq!(arena.get_if_used(before), None);
        assert_eq!(arena.get_mut_if_used(before), None);
    }

    #[test]
    fn arrays_are_made_for_the_sizes_that_come() {
        let mut arena = Arena::new();
        let sizes = [300, 47, 1000, 5000, 48, 1];
        let slots = sizes.map(|bytes| arena.allocate(bytes).expect("there is room"));
        assert_eq!(arena.arrays.len(), 4);
        for (index, (slot, bytes)) in slots.into_iter().zip(sizes).enumerate() {
            assert!(arena.same_class(slot, bytes) && !arena.same_class(slot, bytes + 100));
            assert_eq!(slot.is_large(), bytes == 5000);
            assert!(arena.get(slot).len() >= bytes);
            assert!(arena.nth(index).is_some_and(|nth| slots.contains(&nth)));
        }
        assert_eq!(arena.nth(sizes.len()), None);
        let mut met = Vec::new();
        let mut next = FIRST;
        while let Some(slot) = arena.at_or_after(next) {
            met.push(slot);
            next = slot.next();
        }
        assert_eq!(met.len(), sizes.len());
        assert!(slots.iter().all(|slot| met.contains(slot)));
    }
}
