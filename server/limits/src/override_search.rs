//! The search for one key's override in steps, so that the cache misses of many searches overlap.
//!
//! Here: the steps. Not here: which searches go together (`override_batch`), the tables
//! (`overrides`).

use protocol::Policy;

use super::exact_index::{ExactKey, IndexLine, LineAnswer, is_short};
use super::override_id::{OverrideId, OverrideSource};
use super::overrides::{OverrideTable, Overrides};

/// The line of a key does not decide about its override.
#[derive(Debug, Clone, Copy)]
pub(super) struct Undecided;

/// A search that has begun. Its steps prefetch what the next one reads of the largest table.
#[derive(Debug, Clone, Copy)]
pub(super) struct OverrideSearch<'o> {
    overrides: &'o Overrides,
    hash: u64,
    /// The first line that a search in the largest table reads.
    line: Option<&'o IndexLine>,
}

impl<'o> OverrideSearch<'o> {
    /// Begins with a counted key: prefetches the line of the index.
    #[inline]
    pub(super) fn new(overrides: &'o Overrides, key: &[u8], hash: u64) -> Self {
        let table = overrides.largest_table();
        let line = table.and_then(|table| table.exact.prefetch_line(key, hash));
        Self { overrides, hash, line }
    }

    /// Prefetches the text of a key that is too long for the line. May be left out.
    #[inline]
    pub(super) fn prefetch_text(&self, key: &[u8]) {
        if !is_short(key)
            && let Some(table) = self.overrides.largest_table()
            && let Some(start) = self.line.and_then(|line| line.candidate(key, self.hash))
        {
            table.prefetch_text(start, key.len());
        }
    }

    /// Returns the override of the key, if its line decides about it. Else prefetches the next
    /// line.
    #[inline]
    pub(super) fn find_in_line(
        &self,
        key: &[u8],
    ) -> Result<Option<(OverrideId, &'o Policy)>, Undecided> {
        let line = self.line.ok_or(Undecided)?;
        let (source, table) = self.overrides.largest_first().ok_or(Undecided)?;
        match line.look_up(key, self.hash, |start| table.stands_at(start, key)) {
            LineAnswer::Found(exact) => Ok(override_of((source, table), exact)),
            LineAnswer::Absent if self.overrides.is_largest_alone() => Ok(None),
            LineAnswer::Absent => Err(Undecided),
            LineAnswer::Unknown => {
                table.exact.prefetch_next(self.hash);
                Err(Undecided)
            }
        }
    }

    /// Returns the override of a key about which its line does not decide.
    #[inline]
    pub(super) fn find_behind_line(&self, key: &[u8]) -> Option<(OverrideId, &'o Policy)> {
        if self.line.is_some_and(IndexLine::overflows)
            && let Some((source, table)) = self.overrides.largest_first()
        {
            let stands_at = |start| table.stands_at(start, key);
            if let Some(exact) = table.exact.find_behind(key, self.hash, stands_at) {
                return override_of((source, table), exact);
            }
            if self.overrides.is_largest_alone() {
                return None;
            }
        }
        self.overrides.find_hashed(key, self.hash)
    }
}

/// Returns the override of an exact key of a table.
#[inline]
fn override_of(
    (source, table): (OverrideSource, &OverrideTable),
    exact: ExactKey,
) -> Option<(OverrideId, &Policy)> {
    let (index, policy) = table.override_of(exact)?;
    Some((OverrideId { source, index }, policy))
}
