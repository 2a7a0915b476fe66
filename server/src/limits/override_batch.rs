//! The overrides of keys that are looked up together: the cache misses of all keys overlap.
//!
//! Here: the steps of such a lookup. Not here: the tables (`overrides`, `exact_index`), and the
//! batches (`commands::lookup`, `node::router`).

use arrayvec::ArrayVec;

use super::override_search::OverrideSearch;
use super::{LimitMatch, LimitedKeyError, Limits};

/// Smaller indices of a limit stay in the caches of a processor.
const LARGE_BYTES_MIN: usize = 64 << 10;

/// Up to `N` keys whose overrides are not looked up yet.
#[derive(Debug, Default)]
pub(crate) struct OverrideBatch<'l, const N: usize> {
    /// One for each key; none for a key whose limit has no overrides.
    searches: ArrayVec<Option<OverrideSearch<'l>>, N>,
}

impl Limits {
    /// Whether a limit has so many overrides that the keys of a batch are looked up together.
    pub(super) fn have_large_tables(&self) -> bool {
        let overrides = self.limits.iter().filter_map(|limit| limit.overrides.as_ref());
        overrides.map(|all| all.index_bytes()).any(|bytes| bytes >= LARGE_BYTES_MIN)
    }

    /// Prefetches what looking up the overrides of up to `N` keys reads.
    // Not inlined: without such limits its stack and code must cost nothing.
    #[inline(never)]
    pub(crate) fn prefetch_overrides<const N: usize>(&self, keys: &[&[u8]], scratch: &mut Vec<u8>) {
        let mut batch = OverrideBatch::<N>::default();
        for key in keys.iter().take(N) {
            // The request itself meets the error.
            let _ = batch.find(self, key, scratch);
        }
        batch.prefetch_texts();
    }
}

impl<'l, const N: usize> OverrideBatch<'l, N> {
    /// [`Limits::find`] without the override, whose place in the index it prefetches. At most `N`
    /// keys have one.
    ///
    /// # Errors
    ///
    /// Those of [`Limits::find`].
    #[inline]
    pub(crate) fn find<'k>(
        &mut self,
        limits: &'l Limits,
        key: &'k [u8],
        scratch: &'k mut Vec<u8>,
    ) -> Result<Option<LimitMatch<'k>>, LimitedKeyError>
    where
        'l: 'k,
    {
        let found = limits.find_limit(key, scratch);
        self.note(found.as_ref().ok().and_then(Option::as_ref).and_then(|found| {
            let overrides = limits.limits.get(found.limit.index as usize)?.overrides.as_ref()?;
            Some(OverrideSearch::new(overrides, found.key))
        }));
        found
    }

    /// Passes over a request without a key.
    pub(crate) fn skip(&mut self) {
        self.note(None);
    }

    fn note(&mut self, search: Option<OverrideSearch<'l>>) {
        let has_room = self.searches.try_push(search).is_ok();
        debug_assert!(has_room, "a batch has at most {N} keys");
    }

    /// Prefetches the texts of the keys. Other work before it hides the wait for the indices.
    pub(crate) fn prefetch_texts(&mut self) {
        for search in self.searches.iter_mut().flatten() {
            search.prefetch_text();
        }
    }

    /// Gives the keys, in the order in which they were added, their overrides.
    pub(crate) fn apply<'m, T>(
        &self,
        matches: &mut [T],
        match_of: impl Fn(&mut T) -> Option<&mut LimitMatch<'m>>,
    ) where
        'l: 'm,
    {
        for (found, search) in matches.iter_mut().zip(&self.searches) {
            if let Some(search) = search
                && let Some(found) = match_of(found)
                && let Some((id, policy)) = search.find(found.key)
            {
                (found.overridden, found.policy) = (Some(id), policy);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::OverrideSource;
    use super::super::override_tables::parse_policy;
    use super::*;

    const FILE: &[u8] = b"
        [[limit]]
        name = 'a'
        match = 'a:{x}'
        policy = 'fixed:5/s'
        companions = ['#remaining']
        overrides = [
            { key = 'a:0', policy = 'fixed:6/s' },
            { key = 'a:1*', policy = 'fixed:7/s' },
            { key = 'a:10.0.0.0/8', policy = 'fixed:8/s' },
            { where = { x = '3' }, policy = 'fixed:9/s' },
        ]
        [[limit]]
        name = 'b'
        match = 'b:{x}:{y}'
        key = 'c:{y}'
        policy = 'fixed:5/s'
        [[limit]]
        name = 'd'
        match = 'd:{x}'
        policy = 'fixed:5/s'
    ";

    fn limits(api: &[String], file: &[String]) -> Limits {
        let file_policy = (parse_policy("fixed:21/s").expect("a policy"), None);
        let api_policy = (parse_policy("fixed:22/s").expect("a policy"), None);
        let mut limits = Limits::parse("l.toml", FILE).expect("a good file");
        let of = |rows: &[String], name: &str| -> Vec<String> {
            rows.iter().filter(|row| row.starts_with(name)).cloned().collect()
        };
        for (name, front) in [("a", "a:"), ("b", "c:")] {
            let rows = of(api, front);
            let rows = rows.iter().map(|row| (row.as_str(), api_policy));
            limits.set_overrides(name, OverrideSource::Api, rows);
            let rows = of(file, front);
            let rows = rows.iter().map(|row| (row.as_str(), file_policy));
            limits.set_overrides(name, OverrideSource::File, rows);
        }
        limits
    }

    proptest! {
        #[test]
        fn a_batch_finds_what_single_look_ups_find(
            api in vec("[ac]:[0-4]{1,2}", 0..20),
            file in vec("[ac]:[0-4]{1,2}", 0..200),
            keys in vec("[abd](:10.0.0.1|:[0-4]{0,2}){1,2}(#remaining)?|[ab]:", 0..16),
        ) {
            let limits = limits(&api, &file);
            let mut scratch = vec![Vec::new(); keys.len()];
            let mut batch = OverrideBatch::<16>::default();
            let mut found: Vec<_> = keys
                .iter()
                .zip(&mut scratch)
                .map(|(key, scratch)| batch.find(&limits, key.as_bytes(), scratch))
                .collect();
                batch.prefetch_texts();
            batch.apply(&mut found, |found| found.as_mut().ok()?.as_mut());
            let all: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
            limits.prefetch_overrides::<16>(&all, &mut Vec::new());
            for (key, found) in keys.iter().zip(found) {
                let mut scratch = Vec::new();
                let alone = limits.find(key.as_bytes(), &mut scratch);
                prop_assert_eq!(format!("{found:?}"), format!("{alone:?}"), "{}", key);
            }
        }
    }

    #[test]
    fn ten_thousand_overrides_are_looked_up_together_and_a_hundred_are_not() {
        let rows = |count: u32| (0..count).map(|at| format!("a:{at}")).collect::<Vec<_>>();
        assert!(!limits(&[], &[]).have_large_tables());
        assert!(!limits(&rows(100), &rows(100)).have_large_tables());
        assert!(limits(&rows(10_000), &[]).have_large_tables());
        assert!(limits(&[], &rows(10_000)).have_large_tables());
    }
}
