//! The lookup of a key before its use: its hash and its limit.
//!
//! Not here: the limits themselves (`server/limits`), batches of keys (`session`).

use arrayvec::ArrayVec;
use protocol::Operation;
use tollgate_limits::{LimitMatch, OverrideBatch};

use crate::commands::context::ExecContext;
use crate::commands::limited_keys::KeyLimit;
use crate::limits::ActiveLimits;
use crate::shards::Shards;

/// The result of a key's lookup.
pub(crate) struct KeyLookup<'a> {
    /// The hash of the counted key.
    pub(crate) hash: u64,
    /// The limit that matches the key.
    pub(crate) key_limit: KeyLimit<'a>,
}

impl<'a> KeyLookup<'a> {
    /// Returns the limit that matches the key, if there is one.
    #[inline]
    pub(crate) fn found(&self) -> Option<&LimitMatch<'a>> {
        self.key_limit.as_ref().ok()?.as_ref()
    }

    /// [`KeyLookup::found`] as a mutable reference.
    #[inline]
    pub(crate) fn found_mut(&mut self) -> Option<&mut LimitMatch<'a>> {
        self.key_limit.as_mut().ok()?.as_mut()
    }

    /// Returns whether no limit matches the key.
    #[inline]
    pub(crate) fn has_no_limit(&self) -> bool {
        matches!(self.key_limit, Ok(None))
    }

    /// Returns the counted key; `own` is the key as the client wrote it.
    #[inline]
    pub(crate) fn counted<'k>(&'k self, own: &'k [u8]) -> &'k [u8] {
        self.found().map_or(own, LimitMatch::key)
    }

    /// Returns whether a limit matches the key that has one policy, no weight, and charges no other
    /// key.
    pub(crate) fn has_limit_alone(&self) -> bool {
        self.found().is_some_and(|found| found.companion().is_none() && found.is_simple())
    }
}

/// Looks up a key and prefetches its shard; `counted` receives the counted key if a limit derives
/// one.
#[inline]
pub(crate) fn look_up<'a>(
    ctx: &ExecContext<'a>,
    key: &'a [u8],
    counted: &'a mut Vec<u8>,
) -> KeyLookup<'a> {
    look_up_in(ctx.service.shards(), ctx.active_limits, key, counted)
}

/// [`look_up`] without an [`ExecContext`].
#[inline]
pub(crate) fn look_up_in<'a>(
    shards: &Shards,
    active_limits: &'a ActiveLimits,
    key: &'a [u8],
    counted: &'a mut Vec<u8>,
) -> KeyLookup<'a> {
    let limits = active_limits.limits();
    let (counted, key_limit) = if limits.is_empty() {
        (key, Ok(None))
    } else {
        let key_limit = limits.find(key, counted);
        (key_limit.as_ref().ok().and_then(Option::as_ref).map_or(key, LimitMatch::key), key_limit)
    };
    let hash = shards.hash(counted);
    shards.prefetch_shard(hash);
    KeyLookup { hash, key_limit }
}

/// [`look_up`] of the keys of a batch on a lone server with very many overrides. Leaves the
/// overrides to [`OverrideBatch::apply`]: other work before it hides the wait for their lines. A
/// request without a key has the hash of the one before.
// Not inlined: without very many overrides its stack and code must cost nothing.
#[inline(never)]
pub(crate) fn look_up_overridden<'a, const N: usize>(
    ctx: &ExecContext<'a>,
    keys: impl Iterator<Item = Option<&'a [u8]>>,
    counted: &'a mut [Vec<u8>],
    lookups: &mut ArrayVec<KeyLookup<'a>, N>,
    overrides: &mut OverrideBatch<'a, N>,
) {
    let (limits, shards) = (ctx.active_limits.limits(), ctx.service.shards());
    let shares_hash = ctx.service.shares_key_hash();
    let mut hash = 0;
    for (key, counted) in keys.zip(counted) {
        let Some(key) = key else {
            overrides.add(None, None);
            lookups.push(KeyLookup { hash, key_limit: Ok(None) });
            continue;
        };
        let mut lookup = KeyLookup { hash, key_limit: limits.find_limit(key, counted) };
        hash = shards.hash(lookup.counted(key));
        lookup.hash = hash;
        shards.prefetch_shard(hash);
        overrides.add(lookup.found(), shares_hash.then_some(hash));
        lookups.push(lookup);
    }
    overrides.prefetch_texts(lookups, KeyLookup::found);
}

/// [`look_up`] of the keys of a batch in one step each, so that cache misses overlap and a cluster
/// computes the MD5 of many keys at once. A request without a key has the hash of the one before.
// Not inlined: without a cluster its stack and code must cost nothing.
#[inline(never)]
pub(crate) fn look_up_together<'a, const N: usize>(
    shards: &Shards,
    active_limits: &'a ActiveLimits,
    keys: impl Iterator<Item = Option<&'a [u8]>>,
    counted: &'a mut [Vec<u8>],
) -> ArrayVec<KeyLookup<'a>, N> {
    let limits = active_limits.limits();
    let mut overrides = OverrideBatch::<N>::default();
    let mut counted_keys: ArrayVec<&[u8], N> = ArrayVec::new();
    let mut lookups: ArrayVec<KeyLookup<'a>, N> = keys
        .zip(counted)
        .map(|(key, counted)| {
            let Some(key) = key else {
                overrides.add(None, None);
                counted_keys.push(counted_keys.last().copied().unwrap_or_default());
                return KeyLookup { hash: 0, key_limit: Ok(None) };
            };
            let lookup = KeyLookup { hash: 0, key_limit: limits.find_limit(key, counted) };
            // The hash of a shard begins with the partition.
            overrides.add(lookup.found(), None);
            counted_keys.push(lookup.found().map_or(key, LimitMatch::key));
            lookup
        })
        .collect();
    let mut hashes = [0; N];
    shards.hash_all(&counted_keys, &mut hashes[..counted_keys.len()]);
    overrides.prefetch_texts(&lookups, KeyLookup::found);
    for (lookup, hash) in lookups.iter_mut().zip(hashes) {
        lookup.hash = hash;
        shards.prefetch_shard(hash);
    }
    overrides.apply(&mut lookups, KeyLookup::found_mut);
    lookups
}

/// Returns the key that an operation applies to, and its hash. `own` is the key as the client wrote
/// it; `operation` is `None` for a retrieval. Native verbs treat a companion as a key of its own.
pub(crate) fn counted_key<'k>(
    shards: &Shards,
    own: &'k [u8],
    operation: Option<&Operation<'_>>,
    lookup: &KeyLookup<'k>,
) -> (&'k [u8], u64) {
    let Ok(Some(found)) = &lookup.key_limit else { return (own, lookup.hash) };
    let is_native = matches!(operation, Some(Operation::Native(_)));
    if is_native && found.companion().is_some() {
        return (own, shards.hash(own));
    }
    (found.key(), lookup.hash)
}
