//! The search for one key's override in steps, so that the cache misses of many searches overlap.
//!
//! Here: the steps. Not here: which searches go together (`override_batch`), the tables
//! (`overrides`).

use protocol::Policy;

use super::exact_index::{ExactKey, LineSearch, key_hash};
use super::key_filter::FilterWord;
use super::overrides::{OverrideId, Overrides};

/// A search that has begun. Its steps prefetch what the next one reads of the largest table; they
/// may be left out.
#[derive(Debug, Clone, Copy)]
pub(super) struct OverrideSearch<'o> {
    overrides: &'o Overrides,
    hash: u64,
    /// Length of the key, in bytes.
    len: usize,
    /// The word of the filter, if there is one.
    word: Option<&'o FilterWord>,
    /// Whether the largest table may have the key.
    may_have: bool,
    line: Option<LineSearch<'o>>,
    /// The first key that may be the wanted one, and its text.
    candidate: Option<(ExactKey, &'o [u8])>,
}

impl<'o> OverrideSearch<'o> {
    /// Begins with a counted key: prefetches the filter.
    #[inline]
    pub(super) fn new(overrides: &'o Overrides, key: &[u8]) -> Self {
        let hash = key_hash(key);
        let word = overrides.largest_table().and_then(|table| table.exact.prefetch_filter(hash));
        let (may_have, line, candidate) = (true, None, None);
        Self { overrides, hash, len: key.len(), word, may_have, line, candidate }
    }

    /// Prefetches the line of the index.
    #[inline]
    pub(super) fn prefetch_line(&mut self) {
        self.may_have = self.word.is_none_or(|word| word.may_have(self.hash));
        if self.may_have {
            let table = self.overrides.largest_table();
            self.line = table.and_then(|table| table.exact.prefetch_line(self.hash, self.len));
        }
    }

    /// Prefetches the text of the key.
    #[inline]
    pub(super) fn prefetch_text(&mut self) {
        self.candidate = self.line.and_then(|line| {
            let candidate = line.candidate()?;
            let text = self.overrides.largest_table()?.prefetch_text(candidate, self.len)?;
            Some((candidate, text))
        });
    }

    /// Returns the override of the key.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<(OverrideId, &'o Policy)> {
        let exact = self.candidate.filter(|(_, text)| *text == key).map(|(exact, _)| exact);
        exact.and_then(|exact| self.overrides.first_of_largest(exact)).or_else(|| {
            self.overrides.find_hashed(key, self.hash, |largest| match exact {
                Some(exact) => largest.override_of(exact),
                None if self.may_have => largest.find_hashed(key, self.hash),
                None => largest.find_range(key),
            })
        })
    }
}
