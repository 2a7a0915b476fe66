//! The index of a table's exact keys: the place of a key's text, in lines that can be prefetched.
//!
//! Here: building the index once, and finding a key. Not here: the texts and policies
//! (`overrides`), and which keys are looked up together (`override_batch`).

use std::hash::BuildHasher as _;
use std::sync::LazyLock;

use engine::prefetch;
use hashbrown::DefaultHashBuilder;

use super::huge_table::HugeTable;

/// Entries of a line.
const LINE_ENTRIES: usize = 4;
/// Most entries for each hundred places.
const LOAD_PERCENT_MAX: usize = 60;
/// Most lines that a search reads. An index that would need more gets twice the lines.
pub(super) const SEARCH_LINES_MAX: usize = 32;
/// Most doublings for [`SEARCH_LINES_MAX`]. Only a hash that does not spread needs one.
const DOUBLINGS_MAX: usize = 3;
/// Length of the longest key of the index, in bytes. A longer key is never looked up.
const KEY_BYTES_MAX: usize = u8::MAX as usize;
/// The number of a free place.
const FREE: u32 = u32::MAX;

/// The seed of all indices of the process, so that a client can choose no keys that share a line.
static SEED: LazyLock<DefaultHashBuilder> = LazyLock::new(DefaultHashBuilder::default);

/// The hash of a key for all indices.
#[inline]
pub(super) fn key_hash(key: &[u8]) -> u64 {
    SEED.hash_one(key)
}

/// An exact key: the number of its override, and the places of its text and of its policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExactKey {
    pub(super) number: u32,
    /// The place of the text's first byte.
    pub(super) start: u32,
    /// The place of the policy.
    pub(super) policy: u32,
}

#[derive(Debug, Clone, Copy)]
struct IndexEntry {
    /// Some bits of the hash, and the length of the text.
    tag: u32,
    key: ExactKey,
}

/// A cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct IndexLine([IndexEntry; LINE_ENTRIES]);

const FREE_LINE: IndexLine = {
    let key = ExactKey { number: FREE, start: 0, policy: 0 };
    IndexLine([IndexEntry { tag: 0, key }; LINE_ENTRIES])
};

impl IndexLine {
    /// Whether no place is free. Places are filled from the first one on.
    #[inline]
    fn is_full(&self) -> bool {
        self.0[LINE_ENTRIES - 1].key.number != FREE
    }
}

/// Exact keys by hash. Immutable.
#[derive(Debug, Default)]
pub(super) struct ExactIndex {
    /// A power of two of lines, or none. A key is in the line of its hash, or in the next one that
    /// was not full.
    lines: HugeTable<IndexLine>,
}

/// The first line of a search.
#[derive(Debug, Clone, Copy)]
pub(super) struct LineSearch<'i> {
    line: &'i IndexLine,
    wanted: u32,
}

impl LineSearch<'_> {
    /// Whether the search ends with this line.
    #[inline]
    pub(super) fn is_last(&self) -> bool {
        !self.line.is_full()
    }

    /// Returns the first key of the line that may be the wanted one. A search for it may still find
    /// another one, in this line or in the next.
    #[inline]
    pub(super) fn candidate(&self) -> Option<ExactKey> {
        let entry = self.line.0.iter().find(|entry| entry.tag == self.wanted)?;
        (entry.key.number != FREE).then_some(entry.key)
    }
}

/// The tag of a key of `len` bytes.
#[inline]
fn tag(hash: u64, len: usize) -> u32 {
    // The low bits of the hash choose the line.
    ((hash >> 32) as u32 & !0xff) | len as u32
}

impl ExactIndex {
    /// Builds the index of different keys: their hashes, lengths and places.
    pub(super) fn new(
        keys: &(impl ExactSizeIterator<Item = (u64, usize, ExactKey)> + Clone),
    ) -> Self {
        let places = (keys.len() * 100).div_ceil(LOAD_PERCENT_MAX);
        if places == 0 {
            return Self::default();
        }
        let least = places.div_ceil(LINE_ENTRIES).next_power_of_two();
        let mut index = Self::default();
        for doublings in 0..=DOUBLINGS_MAX {
            let (lines, longest) = fill(least << doublings, keys.clone());
            index.lines = lines;
            if longest <= SEARCH_LINES_MAX {
                break;
            }
        }
        index
    }

    /// Whether there is no key.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.lines.len() == 0
    }

    /// Memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.lines.bytes()
    }

    /// Returns the first line that the search for a key of `len` bytes reads, which is prefetched.
    /// `None`: there is no such key.
    #[inline]
    pub(super) fn prefetch_line(&self, hash: u64, len: usize) -> Option<LineSearch<'_>> {
        let line = self.lines.get(self.lines.place(hash)).filter(|_| len <= KEY_BYTES_MAX)?;
        prefetch(line);
        Some(LineSearch { line, wanted: tag(hash, len) })
    }

    /// Finds the first key with this hash and length, as far as the index knows them, for which
    /// `is_wanted`.
    #[inline]
    pub(super) fn find(
        &self,
        hash: u64,
        len: usize,
        mut is_wanted: impl FnMut(ExactKey) -> bool,
    ) -> Option<ExactKey> {
        if len > KEY_BYTES_MAX {
            return None;
        }
        let (mut at, wanted) = (self.lines.place(hash), tag(hash, len));
        // Every index has a free place, so the search ends.
        while let Some(line) = self.lines.get(at) {
            for IndexEntry { tag, key } in &line.0 {
                if *tag == wanted && key.number != FREE && is_wanted(*key) {
                    return Some(*key);
                }
            }
            if !line.is_full() {
                return None;
            }
            at = (at + 1) & (self.lines.len() - 1);
        }
        None
    }

    /// All keys, in no order.
    pub(super) fn keys(&self) -> impl Iterator<Item = ExactKey> {
        let entries = self.lines.iter().flat_map(|IndexLine(entries)| entries);
        entries.map(|entry| entry.key).filter(|key| key.number != FREE)
    }
}

/// Fills a power of two of lines. Returns them, and the most lines that a search reads.
fn fill(
    count: usize,
    keys: impl Iterator<Item = (u64, usize, ExactKey)>,
) -> (HugeTable<IndexLine>, usize) {
    let mut lines = HugeTable::new(count, FREE_LINE);
    for (hash, len, key) in keys.filter(|(_, len, _)| *len <= KEY_BYTES_MAX) {
        let mut at = lines.place(hash);
        while lines.get(at).is_some_and(IndexLine::is_full) {
            at = (at + 1) & (count - 1);
        }
        let line = lines.get_mut(at).into_iter().flat_map(|IndexLine(entries)| entries);
        if let Some(free) = line.into_iter().find(|entry| entry.key.number == FREE) {
            *free = IndexEntry { tag: tag(hash, len), key };
        }
    }
    // A search reads full lines, and the line behind them. The last run may go on at the front.
    let (mut run, mut longest) = (0, 0);
    for line in lines.iter().chain(lines.iter()) {
        run = if line.is_full() { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    (lines, longest + 1)
}

#[cfg(test)]
mod tests {
    use hashbrown::HashMap;
    use proptest::prelude::*;

    use super::*;

    /// An index of texts, and its twin.
    struct IndexAndTwin {
        index: ExactIndex,
        twin: HashMap<Vec<u8>, u32>,
        texts: Vec<Vec<u8>>,
    }

    impl IndexAndTwin {
        fn new(texts: Vec<Vec<u8>>, hash: impl Fn(&[u8]) -> u64) -> Self {
            let mut twin = HashMap::new();
            let mut different = Vec::new();
            for text in texts {
                let number = different.len() as u32;
                if twin.try_insert(text.clone(), number).is_ok() {
                    different.push(text);
                }
            }
            let rows: Vec<_> = (0..)
                .zip(&different)
                .map(|(number, text)| {
                    let key = ExactKey { number, start: number * 2, policy: number * 3 };
                    (hash(text), text.len(), key)
                })
                .collect();
            let index = ExactIndex::new(&rows.iter().copied());
            Self { index, twin, texts: different }
        }

        fn check(&self, key: &[u8], hash: u64) {
            let mut asked = 0;
            let found = self.index.find(hash, key.len(), |one| {
                asked += 1;
                self.texts[one.number as usize] == key
            });
            assert_eq!(found.map(|key| key.number), self.twin.get(key).copied());
            if let Some(ExactKey { number, start, policy }) = found {
                assert_eq!((start, policy), (number * 2, number * 3));
            }
            assert!(asked <= self.texts.len());
        }
    }

    proptest! {
        #[test]
        fn an_index_finds_what_a_map_finds(
            texts in prop::collection::vec(prop::collection::vec(0_u8..3, 0..6), 0..300),
            others in prop::collection::vec(prop::collection::vec(0_u8..3, 0..6), 0..50),
            // Hashes of few bits: keys share lines and tags.
            bits in 0_u32..=64,
        ) {
            let hash = |key: &[u8]| key_hash(key).checked_shr(64 - bits).unwrap_or(0);
            let both = IndexAndTwin::new(texts, hash);
            for key in both.texts.iter().chain(&others) {
                both.check(key, hash(key));
            }
            prop_assert_eq!(both.index.keys().count(), both.texts.len());
        }
    }

    #[test]
    fn a_million_keys_have_a_short_longest_search() {
        let texts = (0..1_000_000_u32).map(|number| format!("bnd:{number}"));
        let rows: Vec<_> = (0..)
            .zip(texts)
            .map(|(number, text)| {
                let key = ExactKey { number, start: 0, policy: 0 };
                (key_hash(text.as_bytes()), text.len(), key)
            })
            .collect();
        let index = ExactIndex::new(&rows.iter().copied());
        // No doubling was needed.
        assert_eq!(index.lines.bytes(), (1 << 21) * size_of::<IndexEntry>());
        let (lines, longest) = fill(1 << 19, rows.iter().copied());
        assert_eq!(lines.len(), index.lines.len());
        assert!(longest <= SEARCH_LINES_MAX, "{longest}");
        for (hash, len, key) in rows {
            assert_eq!(index.find(hash, len, |one| one == key), Some(key));
        }
    }

    #[test]
    fn the_fullest_index_has_a_short_longest_search() {
        // The most keys that an index of 2^16 places may have.
        let count = (1_usize << 16) * LOAD_PERCENT_MAX / 100;
        let rows: Vec<_> = (0..count as u32)
            .map(|number| {
                let key = ExactKey { number, start: 0, policy: 0 };
                (key_hash(&number.to_be_bytes()), 4, key)
            })
            .collect();
        let (lines, longest) = fill((1 << 16) / LINE_ENTRIES, rows.iter().copied());
        assert!(longest <= SEARCH_LINES_MAX, "{longest}");
        assert_eq!(ExactIndex::new(&rows.iter().copied()).lines.len(), lines.len());
    }

    #[test]
    fn a_hash_that_does_not_spread_ends_the_doubling() {
        let rows = (0..1_000_u32).map(|number| {
            let key = ExactKey { number, start: 0, policy: 0 };
            (7, 4, key)
        });
        let index = ExactIndex::new(&rows);
        assert_eq!(index.lines.len(), 512 << DOUBLINGS_MAX);
        assert!(index.find(7, 4, |one| one.number == 999).is_some());
    }

    #[test]
    fn keys_that_are_too_long_for_any_client_are_left_out() {
        let key = ExactKey { number: 0, start: 0, policy: 0 };
        let index = ExactIndex::new(&[(5, 256, key)].into_iter());
        assert_eq!((index.keys().count(), index.find(5, 256, |_| true)), (0, None));
    }

    #[test]
    fn a_line_is_one_cache_line() {
        assert_eq!((size_of::<IndexLine>(), size_of::<IndexEntry>()), (64, 16));
    }
}
