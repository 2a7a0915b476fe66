//! The index of a table's exact keys, in lines that can be prefetched. An entry of a line contains
//! a short key whole; for a longer key it contains the hash and the place of the text.
//!
//! Here: building the index once, and finding a key. Not here: the texts and policies
//! (`overrides`), and which keys are looked up together (`override_batch`).

use engine::prefetch;

use super::huge_table::HugeTable;

/// Entries of a line.
const LINE_ENTRIES: usize = 2;
/// Most entries for each hundred places.
const LOAD_PERCENT_MAX: usize = 60;
/// Most lines that a search reads. An index that would need more gets twice the lines.
const SEARCH_LINES_MAX: usize = 64;
/// Most doublings for [`SEARCH_LINES_MAX`]. Only a hash that does not spread needs one.
const DOUBLINGS_MAX: usize = 3;
/// Length of the longest key of the index, in bytes. A longer key is never looked up.
const KEY_BYTES_MAX: usize = u8::MAX as usize;
/// Length of the longest key that an entry contains whole, in bytes.
const SHORT_BYTES_MAX: usize = 23;
/// The number of a free place.
const FREE: u32 = u32::MAX;
/// This bit of `policy` in the last entry of a line says that the line had no place for some of its
/// keys.
const OVERFLOWS: u32 = 1 << 31;

/// An exact key: the number of its override, and the place of its policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExactKey {
    pub(super) number: u32,
    pub(super) policy: u32,
}

/// A key as an entry has it. The low byte of the last word is its length.
///
/// Up to [`SHORT_BYTES_MAX`] bytes, different keys have different words. Of a longer key the words
/// are its hash, the place of its text, and the length.
#[derive(Debug, Clone, Copy)]
struct KeyWords([u64; 3]);

impl KeyWords {
    /// No key has these words.
    const FREE: Self = Self([0, 0, u64::MAX]);

    /// The words of a key of at most [`KEY_BYTES_MAX`] bytes.
    #[inline]
    fn new(key: &[u8], hash: u64, start: u32) -> Self {
        let len = key.len() as u64;
        if key.len() > SHORT_BYTES_MAX {
            return Self([hash, start.into(), len]);
        }
        let word = u64::from_le_bytes;
        Self(match (key.first_chunk(), key.last_chunk()) {
            (Some(first), Some(last)) => match key.get(8..16).and_then(<[u8]>::first_chunk) {
                // The last word begins at most at byte 16 of the key.
                Some(second) => [word(*first), word(*second), word(*last) & !0xff | len],
                None => [word(*first), word(*last), len],
            },
            _ => [key.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)), 0, len],
        })
    }
}

/// The search for a key.
#[derive(Debug, Clone, Copy)]
struct WantedKey {
    words: KeyWords,
    /// The bits of the second word that are known.
    second_mask: u64,
}

impl WantedKey {
    #[inline]
    fn new(key: &[u8], hash: u64) -> Self {
        let second_mask = if is_short(key) { u64::MAX } else { 0 };
        Self { words: KeyWords::new(key, hash, 0), second_mask }
    }

    /// Whether the words of an entry are those of the key, as far as they are known.
    #[inline]
    fn is(&self, KeyWords(entry): &KeyWords) -> bool {
        let KeyWords(own) = &self.words;
        let second = (entry[1] ^ own[1]) & self.second_mask;
        (entry[0] ^ own[0]) | second | (entry[2] ^ own[2]) == 0
    }
}

/// Whether an entry contains the key whole.
#[inline]
pub(super) fn is_short(key: &[u8]) -> bool {
    key.len() <= SHORT_BYTES_MAX
}

#[derive(Debug, Clone, Copy)]
struct IndexEntry {
    words: KeyWords,
    key: ExactKey,
}

impl IndexEntry {
    const FREE: Self = Self { words: KeyWords::FREE, key: ExactKey { number: FREE, policy: 0 } };

    fn new(one: IndexedKey<'_>) -> Self {
        Self { words: KeyWords::new(one.text, one.hash, one.start), key: one.key }
    }

    /// The key without the mark of its line.
    #[inline]
    fn key(&self) -> ExactKey {
        ExactKey { policy: self.key.policy & !OVERFLOWS, ..self.key }
    }

    /// The place of the text of a long key.
    #[inline]
    fn start(&self) -> u32 {
        self.words.0[1] as u32
    }
}

/// A cache line.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(super) struct IndexLine([IndexEntry; LINE_ENTRIES]);

/// The answer of a key's own line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineAnswer {
    Found(ExactKey),
    Absent,
    /// The key may be in a line behind it.
    Unknown,
}

impl IndexLine {
    const FREE: Self = Self([IndexEntry::FREE; LINE_ENTRIES]);

    /// Whether no place is free. Places are filled from the first one on.
    #[inline]
    fn is_full(&self) -> bool {
        self.0[LINE_ENTRIES - 1].key.number != FREE
    }

    /// Whether keys of the line are in a line behind it.
    #[inline]
    pub(super) fn overflows(&self) -> bool {
        self.0[LINE_ENTRIES - 1].key.policy & OVERFLOWS != 0
    }

    /// Puts an entry into a free place. False: there is none.
    fn push(&mut self, entry: IndexEntry) -> bool {
        let free = self.0.iter_mut().find(|entry| entry.key.number == FREE);
        free.map(|free| *free = entry).is_some()
    }

    /// Returns the place of the first text that may be a long key.
    #[inline]
    pub(super) fn candidate(&self, key: &[u8], hash: u64) -> Option<u32> {
        let wanted = WantedKey::new(key, hash);
        self.0.iter().find(|entry| wanted.is(&entry.words)).map(IndexEntry::start)
    }

    /// Looks up a key of at most [`KEY_BYTES_MAX`] bytes whose line this is. `stands_at` tells
    /// whether a long key is the text at a place.
    #[inline]
    pub(super) fn look_up(
        &self,
        key: &[u8],
        hash: u64,
        stands_at: impl Fn(u32) -> bool,
    ) -> LineAnswer {
        match self.find(key, WantedKey::new(key, hash), stands_at) {
            Some(found) => LineAnswer::Found(found),
            None if self.overflows() => LineAnswer::Unknown,
            None => LineAnswer::Absent,
        }
    }

    #[inline]
    fn find(
        &self,
        key: &[u8],
        wanted: WantedKey,
        stands_at: impl Fn(u32) -> bool,
    ) -> Option<ExactKey> {
        let is_key = |entry: &&IndexEntry| {
            wanted.is(&entry.words) && (is_short(key) || stands_at(entry.start()))
        };
        self.0.iter().find(is_key).map(IndexEntry::key)
    }
}

/// Exact keys by hash. Immutable.
#[derive(Debug, Default)]
pub(super) struct ExactIndex {
    /// A key is in the line of its hash, or in the next one that was not full then.
    lines: HugeTable<IndexLine>,
}

/// A key for an index: its text with the place, and its hash.
#[derive(Debug, Clone, Copy)]
pub(super) struct IndexedKey<'t> {
    pub(super) text: &'t [u8],
    pub(super) start: u32,
    pub(super) hash: u64,
    pub(super) key: ExactKey,
}

impl ExactIndex {
    /// Builds the index of different keys.
    pub(super) fn new<'t>(keys: &(impl ExactSizeIterator<Item = IndexedKey<'t>> + Clone)) -> Self {
        let places = (keys.len() * 100).div_ceil(LOAD_PERCENT_MAX);
        if places == 0 {
            return Self::default();
        }
        let least = places.div_ceil(LINE_ENTRIES);
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

    /// Returns the first line that the search for a key reads, which is prefetched. `None`: there
    /// is no such key.
    #[inline]
    pub(super) fn prefetch_line(&self, key: &[u8], hash: u64) -> Option<&IndexLine> {
        let line = self.own_line(key, hash)?;
        prefetch(line);
        Some(line)
    }

    /// The first line that the search for a key reads.
    #[inline]
    fn own_line(&self, key: &[u8], hash: u64) -> Option<&IndexLine> {
        self.lines.get(self.lines.place(hash)).filter(|_| key.len() <= KEY_BYTES_MAX)
    }

    /// Finds a key. `stands_at` tells whether a long key is the text at a place.
    #[inline]
    pub(super) fn find(
        &self,
        key: &[u8],
        hash: u64,
        stands_at: impl Fn(u32) -> bool,
    ) -> Option<ExactKey> {
        match self.own_line(key, hash)?.look_up(key, hash, &stands_at) {
            LineAnswer::Found(found) => Some(found),
            LineAnswer::Absent => None,
            LineAnswer::Unknown => self.find_behind(key, hash, stands_at),
        }
    }

    /// Finds a key of at most [`KEY_BYTES_MAX`] bytes behind its own line.
    #[inline]
    pub(super) fn find_behind(
        &self,
        key: &[u8],
        hash: u64,
        stands_at: impl Fn(u32) -> bool,
    ) -> Option<ExactKey> {
        let (mut at, wanted) = (self.lines.place(hash), WantedKey::new(key, hash));
        // Every index has a free place, so the search ends.
        loop {
            at = self.next(at);
            let line = self.lines.get(at)?;
            let found = line.find(key, wanted, &stands_at);
            if found.is_some() || !line.is_full() {
                return found;
            }
        }
    }

    /// Prefetches the line behind that of a key.
    pub(super) fn prefetch_next(&self, hash: u64) {
        if let Some(line) = self.lines.get(self.next(self.lines.place(hash))) {
            prefetch(line);
        }
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        if at + 1 == self.lines.len() { 0 } else { at + 1 }
    }

    /// All keys, in no order.
    pub(super) fn keys(&self) -> impl Iterator<Item = ExactKey> {
        let entries = self.lines.iter().flat_map(|IndexLine(entries)| entries);
        entries.map(IndexEntry::key).filter(|key| key.number != FREE)
    }
}

/// Fills `count` lines. Returns them, and the most lines that a search reads.
fn fill<'t>(
    count: usize,
    keys: impl Iterator<Item = IndexedKey<'t>> + Clone,
) -> (HugeTable<IndexLine>, usize) {
    let mut index = ExactIndex { lines: HugeTable::new(count, IndexLine::FREE) };
    let keys = keys.filter(|one| one.text.len() <= KEY_BYTES_MAX);
    // As many keys as possible in their own lines.
    let push = |one: IndexedKey<'t>| {
        let own = index.lines.place(one.hash);
        index.lines.get_mut(own).is_some_and(|line| line.push(IndexEntry::new(one)))
    };
    let is_placed: Vec<bool> = keys.clone().map(push).collect();
    for (one, _) in keys.zip(is_placed).filter(|(_, is_placed)| !is_placed) {
        let own = index.lines.place(one.hash);
        if let Some(IndexLine([.., last])) = index.lines.get_mut(own) {
            last.key.policy |= OVERFLOWS;
        }
        let mut at = index.next(own);
        while index.lines.get_mut(at).is_some_and(|line| !line.push(IndexEntry::new(one))) {
            at = index.next(at);
        }
    }
    // A search reads full lines, and the line behind them. The last run may go on at the front.
    let (mut run, mut longest) = (0, 0);
    for line in index.lines.iter().chain(index.lines.iter()) {
        run = if line.is_full() { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    (index.lines, longest + 1)
}

#[cfg(test)]
mod tests {
    use hashbrown::HashMap;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::key_hash::key_hash;
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
                    let key = ExactKey { number, policy: number * 3 };
                    IndexedKey { text, start: number, hash: hash(text), key }
                })
                .collect();
            let index = ExactIndex::new(&rows.iter().copied());
            Self { index, twin, texts: different }
        }

        fn check(&self, key: &[u8], hash: u64) {
            let stands_at = |start: u32| {
                assert!(!is_short(key), "the line has all of a short key");
                self.texts[start as usize] == key
            };
            let found = self.index.find(key, hash, stands_at);
            assert_eq!(found.map(|key| key.number), self.twin.get(key).copied(), "{key:?}");
            if let Some(ExactKey { number, policy }) = found {
                assert_eq!(policy, number * 3);
            }
            // The line alone never errs.
            match self.index.prefetch_line(key, hash).map(|line| line.look_up(key, hash, stands_at))
            {
                Some(LineAnswer::Found(one)) => assert_eq!(found, Some(one)),
                Some(LineAnswer::Absent) | None => assert_eq!(found, None),
                Some(LineAnswer::Unknown) => {}
            }
        }
    }

    /// Keys of a few bytes, and of the lengths at which their words change.
    fn keys(most: usize) -> impl Strategy<Value = Vec<Vec<u8>>> {
        let len = prop::sample::select(vec![0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 22, 23, 24, 25, 32]);
        // Most keys of one length differ in one byte or in none.
        let key = (len, 0_u8..40, 0_u8..3).prop_map(|(len, at, byte)| {
            let mut key = vec![b'k'; len];
            if let Some(one) = key.get_mut(usize::from(at)) {
                *one = byte;
            }
            key
        });
        vec(prop_oneof![key, vec(0_u8..3, 0..6)], 0..most)
    }

    proptest! {
        #[test]
        fn an_index_finds_what_a_map_finds(
            texts in keys(300),
            others in keys(100),
            // Hashes of few bits: keys share lines, and long keys their words.
            bits in 0_u32..=64,
        ) {
            let hash = |key: &[u8]| key_hash(key) & u64::MAX.checked_shl(64 - bits).unwrap_or(0);
            let both = IndexAndTwin::new(texts, hash);
            for key in both.texts.iter().chain(&others) {
                both.check(key, hash(key));
            }
            prop_assert_eq!(both.index.keys().count(), both.texts.len());
        }

        #[test]
        fn different_short_keys_have_different_words(
            one in vec(any::<u8>(), 0..=SHORT_BYTES_MAX),
            at in 0..SHORT_BYTES_MAX,
            byte in any::<u8>(),
            len in 0..=SHORT_BYTES_MAX,
        ) {
            let mut other = one.clone();
            other.resize(len, byte);
            if let Some(changed) = other.get_mut(at) {
                *changed = byte;
            }
            let words = |key: &[u8]| KeyWords::new(key, 1, 2);
            let is_equal = WantedKey::new(&one, 3).is(&words(&other));
            prop_assert_eq!(is_equal, one == other);
            prop_assert!(!WantedKey::new(&one, 0).is(&KeyWords::FREE));
            prop_assert!(WantedKey::new(&one, 3).is(&words(&one)));
        }
    }

    fn rows<'t>(texts: impl Iterator<Item = &'t [u8]>) -> Vec<IndexedKey<'t>> {
        (0..)
            .zip(texts)
            .map(|(number, text)| {
                let key = ExactKey { number, policy: 0 };
                IndexedKey { text, start: 0, hash: key_hash(text), key }
            })
            .collect()
    }

    #[test]
    fn a_million_keys_have_a_short_longest_search() {
        let texts: Vec<_> = (0..1_000_000_u32).map(|number| format!("bnd:{number}")).collect();
        let rows = rows(texts.iter().map(String::as_bytes));
        let index = ExactIndex::new(&rows.iter().copied());
        // No doubling was needed.
        assert_eq!(index.bytes(), 833_334 * size_of::<IndexLine>());
        let (_, longest) = fill(833_334, rows.iter().copied());
        assert!(longest <= SEARCH_LINES_MAX, "{longest}");
        for IndexedKey { text, hash, key, .. } in rows {
            assert_eq!(index.find(text, hash, |_| false), Some(key));
        }
    }

    #[test]
    fn a_hash_that_does_not_spread_ends_the_doubling() {
        let texts: Vec<_> = (0..1_000_u32).map(u32::to_le_bytes).collect();
        let rows = rows(texts.iter().map(|text| &text[..]));
        let index = ExactIndex::new(&rows.iter().map(|row| IndexedKey { hash: 7, ..*row }));
        assert_eq!(index.lines.len(), 834 << DOUBLINGS_MAX);
        let last = index.find(&texts[999], 7, |_| false);
        assert_eq!(last.map(|key| key.number), Some(999));
    }

    #[test]
    fn keys_that_are_too_long_for_any_client_are_left_out() {
        let text = [b'k'; 256];
        let index = ExactIndex::new(&rows([&text[..]].into_iter()).into_iter());
        assert_eq!((index.keys().count(), index.find(&text, 5, |_| true)), (0, None));
        assert!(index.prefetch_line(&text, 5).is_none());
    }

    #[test]
    fn a_line_is_one_cache_line() {
        assert_eq!((size_of::<IndexLine>(), size_of::<IndexEntry>()), (64, 32));
    }
}
