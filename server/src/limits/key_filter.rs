//! A filter in front of a large index: whether a key may be in it, by one word of a small table.
//!
//! Here: a Bloom filter that sets all bits of a key in one word of 64 bits. Not here: the index
//! (`exact_index`). Source: Putze, Sanders and Singler, "Cache-, Hash- and Space-Efficient Bloom
//! Filters", 2007.

use engine::prefetch;

use super::huge_table::HugeTable;

/// Keys for each word, at most. With these and [`KEY_BITS`], below 2 % of other keys pass.
const WORD_KEYS: usize = 4;
/// Bits of a key.
const KEY_BITS: u32 = 4;

/// The bits of the keys of one word.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FilterWord(u64);

/// The keys of an index, as bits. Immutable. Without words every key passes.
#[derive(Debug, Default)]
pub(super) struct KeyFilter {
    /// A power of two, or none.
    words: HugeTable<FilterWord>,
}

/// The bits of a key: four of 64 by its hash, of which some may be the same.
#[inline]
fn bits(hash: u64) -> u64 {
    (0..KEY_BITS).fold(0, |bits, at| bits | 1 << (hash >> (6 * at) & 63))
}

impl FilterWord {
    /// Whether a key with this hash, whose word this is, may be in the index. False: it is not.
    #[inline]
    pub(super) fn may_have(self, hash: u64) -> bool {
        let bits = bits(hash);
        self.0 & bits == bits
    }
}

impl KeyFilter {
    /// Builds the filter of `count` keys with these hashes.
    pub(super) fn new(count: usize, hashes: impl Iterator<Item = u64>) -> Self {
        let count = count.div_ceil(WORD_KEYS).next_power_of_two();
        let mut words = HugeTable::new(count, FilterWord::default());
        for hash in hashes {
            if let Some(word) = words.get_mut(words.place(hash >> 32)) {
                word.0 |= bits(hash);
            }
        }
        Self { words }
    }

    /// Memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.words.bytes()
    }

    /// Returns the word of a hash, which is prefetched; none without words.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) -> Option<&FilterWord> {
        let word = self.words.get(self.words.place(hash >> 32))?;
        prefetch(word);
        Some(word)
    }

    /// Whether the index may have a key with this hash. False: it has none.
    #[inline]
    pub(super) fn may_have(&self, hash: u64) -> bool {
        self.words.get(self.words.place(hash >> 32)).is_none_or(|word| word.may_have(hash))
    }
}

#[cfg(test)]
mod tests {
    use super::super::exact_index::key_hash;
    use super::*;

    #[test]
    fn every_key_passes_and_few_others_do() {
        let hash = |number: u32| key_hash(&number.to_be_bytes());
        // The most keys that 2^16 words may have.
        let count = WORD_KEYS << 16;
        let filter = KeyFilter::new(count, (0..count as u32).map(hash));
        assert_eq!(filter.bytes(), 8 << 16);
        assert!((0..count as u32).all(|number| filter.may_have(hash(number))));
        let others = count as u32..2 * count as u32;
        let passed = others.filter(|number| filter.may_have(hash(*number))).count();
        assert!((1..count / 50).contains(&passed), "{passed} of {count}");
    }

    #[test]
    fn without_words_every_key_passes() {
        assert!(KeyFilter::default().may_have(7));
        assert!(KeyFilter::default().prefetch(7).is_none());
        assert_eq!(KeyFilter::new(0, std::iter::empty()).bytes(), 8);
    }
}
