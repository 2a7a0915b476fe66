//! The overrides of keys that are looked up together: the cache misses of all keys overlap.
//!
//! Here: the steps of such a lookup. Not here: the tables (`overrides`, `exact_index`), and the
//! batches (`server`).

use arrayvec::ArrayVec;

use super::exact_index::is_short;
use super::key_hash::key_hash;
use super::override_search::{OverrideSearch, Undecided};
use super::{LimitMatch, Limits};

/// Smaller indices of a limit stay in the caches of a processor.
const LARGE_BYTES_MIN: usize = 64 << 10;

/// Up to `N` keys whose overrides are not looked up yet.
#[derive(Debug, Default)]
pub struct OverrideBatch<'l, const N: usize> {
    /// One for each key; none for a key whose limit has no overrides.
    searches: ArrayVec<Option<OverrideSearch<'l>>, N>,
    /// Whether the text of a key may have to be prefetched.
    has_long_keys: bool,
}

impl Limits {
    /// Whether a limit has so many overrides that the keys of a batch are looked up together.
    #[must_use]
    pub fn have_large_tables(&self) -> bool {
        let overrides = self.limits.iter().filter_map(|limit| limit.overrides.as_ref());
        overrides.map(|all| all.index_bytes()).any(|bytes| bytes >= LARGE_BYTES_MIN)
    }

    /// Prefetches what looking up the overrides of up to `N` keys reads. `hashes` are theirs if the
    /// overrides share the hash of the shards.
    // Not inlined: without such limits its stack and code must cost nothing.
    #[inline(never)]
    pub fn prefetch_overrides<const N: usize>(
        &self,
        keys: &[&[u8]],
        hashes: Option<&[u64]>,
        scratch: &mut Vec<u8>,
    ) {
        let mut long: ArrayVec<(OverrideSearch<'_>, &[u8]), N> = ArrayVec::new();
        for (index, key) in keys.iter().enumerate() {
            // The request itself meets the error.
            let Ok(Some(found)) = self.find_limit(key, scratch) else { continue };
            // Not `found.limit`, which is borrowed as long as the scratch is.
            let Some(limit) = self.limits.get(found.limit.index()) else { continue };
            let Some(overrides) = &limit.overrides else { continue };
            let is_own = limit.key.is_none() && found.companion.is_none();
            let known = hashes.and_then(|hashes| hashes.get(index)).filter(|_| is_own);
            let hash = known.copied().unwrap_or_else(|| key_hash(found.key));
            let search = OverrideSearch::new(overrides, found.key, hash);
            if is_own && !is_short(key) {
                let _ = long.try_push((search, *key));
            }
        }
        for (search, key) in &long {
            search.prefetch_text(key);
        }
    }
}

impl<'l, const N: usize> OverrideBatch<'l, N> {
    /// Adds a key with its limit, if it has one, without the override. Prefetches the line of the
    /// index that may have the override. `hash` is that of the counted key if the overrides share
    /// the hash of the shards. There are at most `N` keys.
    #[inline]
    pub fn add(&mut self, found: Option<&LimitMatch<'l>>, hash: Option<u64>) {
        let search = found.and_then(|found| {
            let overrides = found.limit.overrides.as_ref()?;
            self.has_long_keys |= !is_short(found.key);
            let hash = hash.unwrap_or_else(|| key_hash(found.key));
            Some(OverrideSearch::new(overrides, found.key, hash))
        });
        let has_room = self.searches.try_push(search).is_ok();
        debug_assert!(has_room, "a batch has at most {N} keys");
    }

    /// Prefetches the texts of long keys. Other work before it hides the wait for the indices.
    #[inline]
    pub fn prefetch_texts<T>(&self, keys: &[T], limit_of: impl Fn(&T) -> Option<&LimitMatch<'l>>) {
        if !self.has_long_keys {
            return;
        }
        for (key, search) in keys.iter().zip(&self.searches) {
            if let (Some(search), Some(found)) = (search, limit_of(key)) {
                search.prefetch_text(found.key);
            }
        }
    }

    /// Gives the keys, in the order in which they were added, their overrides.
    #[inline]
    pub fn apply<T>(
        &self,
        keys: &mut [T],
        limit_of: impl Fn(&mut T) -> Option<&mut LimitMatch<'l>>,
    ) {
        const { assert!(N <= u64::BITS as usize, "a bit for each key") };
        let mut undecided = 0_u64;
        for (index, (key, search)) in keys.iter_mut().zip(&self.searches).enumerate() {
            if let Some(search) = search
                && let Some(found) = limit_of(key)
            {
                match search.find_in_line(found.key) {
                    Ok(one) => found.set_override(one),
                    Err(Undecided) => undecided |= 1 << index,
                }
            }
        }
        while undecided != 0 {
            let index = undecided.trailing_zeros() as usize;
            undecided &= undecided - 1;
            if let Some(Some(search)) = self.searches.get(index)
                && let Some(found) = keys.get_mut(index).and_then(&limit_of)
            {
                found.set_override(search.find_behind_line(found.key));
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
            api in vec("[ac]:(0123456789abcdefghijk)?[0-4]{1,2}", 0..20),
            file in vec("[ac]:(0123456789abcdefghijk)?[0-4]{1,2}", 0..200),
            keys in vec(
                "[abd](:10.0.0.1|:(0123456789abcdefghijk)?[0-4]{0,2}){1,2}(#remaining)?|[ab]:",
                0..16,
            ),
            shares_hash in any::<bool>(),
        ) {
            let limits = limits(&api, &file);
            let mut scratch = vec![Vec::new(); keys.len()];
            let mut batch = OverrideBatch::<16>::default();
            let mut found: Vec<_> = keys
                .iter()
                .zip(&mut scratch)
                .map(|(key, scratch)| {
                    let found = limits.find_limit(key.as_bytes(), scratch);
                    let limit = found.as_ref().ok().and_then(Option::as_ref);
                    // As on a lone server, or as in a cluster.
                    let hash = limit.map(|found| key_hash(found.key)).filter(|_| shares_hash);
                    batch.add(limit, hash);
                    found
                })
                .collect();
            batch.prefetch_texts(&found, |found| found.as_ref().ok()?.as_ref());
            batch.apply(&mut found, |found| found.as_mut().ok()?.as_mut());
            let all: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
            let hashes: Vec<u64> = all.iter().map(|key| key_hash(key)).collect();
            let hashes = shares_hash.then_some(&hashes[..]);
            limits.prefetch_overrides::<16>(&all, hashes, &mut Vec::new());
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
