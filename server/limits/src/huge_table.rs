//! A large table in huge pages, where the processor finds the address of an entry faster than in
//! small pages.
//!
//! Here: a table of fixed length, in pieces of a size for which the allocator uses huge pages
//! (`.cargo/config.toml`). Not here: what the entries are (`exact_index`).

/// Bytes of a piece, a power of two: a half of the most that the allocator places in huge pages.
pub(super) const PIECE_BYTES: usize = 128 << 10;

/// Entries of a size that is a power of two, each found by its place.
#[derive(Debug)]
pub(super) struct HugeTable<T> {
    /// They have equal lengths, except for a shorter last one.
    pieces: Box<[Box<[T]>]>,
    len: usize,
}

impl<T> Default for HugeTable<T> {
    fn default() -> Self {
        Self { pieces: Box::default(), len: 0 }
    }
}

impl<T: Copy> HugeTable<T> {
    /// Entries of a piece.
    const PIECE_LEN: usize = {
        assert!(size_of::<T>().is_power_of_two(), "a piece has a whole number of entries");
        PIECE_BYTES / size_of::<T>()
    };

    /// A table of `len` entries, which are all `entry`.
    pub(super) fn new(len: usize, entry: T) -> Self {
        let piece_at = |first: usize| vec![entry; (len - first).min(Self::PIECE_LEN)].into();
        Self { pieces: (0..len).step_by(Self::PIECE_LEN).map(piece_at).collect(), len }
    }

    /// The number of entries.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<&T> {
        self.pieces.get(at / Self::PIECE_LEN)?.get(at % Self::PIECE_LEN)
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.pieces.get_mut(at / Self::PIECE_LEN)?.get_mut(at % Self::PIECE_LEN)
    }

    /// The place of an entry for a hash, by the high bits; 0 without entries.
    #[inline]
    pub(super) fn place(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.len as u128) >> u64::BITS) as usize
    }

    /// All entries, in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.pieces.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_has_its_place() {
        for len in [1, 2, 3, 16_383, 16_384, 16_385, 100_000] {
            let mut table = HugeTable::new(len, u64::MAX);
            for at in 0..len {
                *table.get_mut(at).expect("an entry") = at as u64;
            }
            assert!(table.iter().copied().eq(0..len as u64));
            assert_eq!((table.len(), table.bytes()), (len, len * 8));
            assert_eq!(table.get(len), None);
            assert_eq!(table.get_mut(len), None);
            assert_eq!(table.get(table.place(u64::MAX)), Some(&(len as u64 - 1)));
            assert_eq!(table.get(table.place(1 << 63)), Some(&(len as u64 / 2)));
        }
        let none = HugeTable::<u64>::default();
        assert_eq!((none.len(), none.get(none.place(7)), none.iter().count()), (0, None, 0));
    }
}
