//! What is found out about a key before it is used: its hash, and the limit it is bound to.
//!
//! Not here: which limits there are (`limits`), batches of keys (`session`).

use protocol::Operation;

use super::ExecContext;
use crate::commands::limited_keys::KeyLimit;
use crate::limits::{ActiveLimits, LimitMatch};
use crate::shards::Shards;

/// What was found out about a key before it is used.
pub(crate) struct KeyLookup<'a> {
    /// Of the key as it is counted.
    pub(crate) hash: u64,
    /// What it is bound to.
    pub(crate) key_limit: KeyLimit<'a>,
}

impl KeyLookup<'_> {
    /// No limit is bound to the key.
    #[inline]
    pub(crate) fn has_no_limit(&self) -> bool {
        matches!(self.key_limit, Ok(None))
    }

    /// The key that is counted; `own` is the key as the client wrote it.
    #[inline]
    pub(crate) fn counted<'k>(&'k self, own: &'k [u8]) -> &'k [u8] {
        self.key_limit.as_ref().ok().and_then(Option::as_ref).map_or(own, LimitMatch::key)
    }

    /// A limit is bound to the key, and nothing else is charged with it.
    pub(crate) fn has_limit_alone(&self) -> bool {
        let found = self.key_limit.as_ref().ok().and_then(Option::as_ref);
        found.is_some_and(|found| found.companion().is_none() && !found.has_parents())
    }
}

/// Looks a key up and asks for its shard; `counted` holds the key that is counted where a limit makes one.
#[inline]
pub(crate) fn look_up<'a>(
    ctx: &ExecContext<'a>,
    key: &'a [u8],
    counted: &'a mut Vec<u8>,
) -> KeyLookup<'a> {
    look_up_in(ctx.service.shards(), ctx.active_limits, key, counted)
}

/// As [`look_up`], without a round.
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

/// The key that an operation is on, and its hash: `own` is as the client wrote it, `operation` none for
/// a retrieval. To native verbs a companion is a key of its own.
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
