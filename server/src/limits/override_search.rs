//! The search for one key's override in steps, so that the cache misses of many searches overlap.
//!
//! Here: the steps. Not here: which searches go together (`override_batch`), the tables
//! (`overrides`).

use protocol::Policy;

use super::exact_index::{ExactKey, LineSearch, key_hash};
use super::override_id::OverrideId;
use super::overrides::Overrides;

/// A search that has begun. Its steps prefetch what the next one reads of the largest table; they
/// may be left out.
#[derive(Debug, Clone, Copy)]
pub(super) struct OverrideSearch<'o> {
    overrides: &'o Overrides,
    hash: u64,
    /// Length of the key, in bytes.
    len: usize,
    line: Option<LineSearch<'o>>,
    /// Whether the line shows that the largest table has no such key.
    is_absent: bool,
    /// The first key that may be the wanted one, and its text.
    candidate: Option<(ExactKey, &'o [u8])>,
}

impl<'o> OverrideSearch<'o> {
    /// Begins with a counted key: prefetches the line of the index.
    #[inline]
    pub(super) fn new(overrides: &'o Overrides, key: &[u8]) -> Self {
        let (hash, len) = (key_hash(key), key.len());
        let table = overrides.largest_table();
        let line = table.and_then(|table| table.exact.prefetch_line(hash, len));
        Self { overrides, hash, len, line, is_absent: false, candidate: None }
    }

    /// Prefetches the text of the key.
    #[inline]
    pub(super) fn prefetch_text(&mut self) {
        let Some(line) = self.line else { return };
        let Some(candidate) = line.candidate() else {
            self.is_absent = line.is_last();
            return;
        };
        let table = self.overrides.largest_table();
        let text = table.and_then(|table| table.prefetch_text(candidate, self.len));
        self.candidate = text.map(|text| (candidate, text));
    }

    /// Returns the override of the key.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<(OverrideId, &'o Policy)> {
        let exact = self.candidate.filter(|(_, text)| *text == key).map(|(exact, _)| exact);
        exact.and_then(|exact| self.overrides.first_of_largest(exact)).or_else(|| {
            self.overrides.find_hashed(key, self.hash, |largest| match exact {
                Some(exact) => largest.override_of(exact),
                None if self.is_absent => largest.find_range(key),
                None => largest.find_hashed(key, self.hash),
            })
        })
    }
}
