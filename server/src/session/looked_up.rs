//! What is found out about a key before it is used: its hash, and the limit it is bound to.
//!
//! Not here: which limits there are (`limits`), batches of keys (`session`).

use protocol::Operation;

use super::Round;
use crate::bound::Bound;
use crate::limits::{Found, InForce};
use crate::shards::Shards;

/// What was found out about a key before it is used.
pub(crate) struct LookedUp<'a> {
    /// Of the key as it is counted.
    pub(crate) hash: u64,
    /// What it is bound to.
    pub(crate) bound: Bound<'a>,
}

impl LookedUp<'_> {
    /// No limit is bound to the key.
    #[inline]
    pub(crate) fn is_unbound(&self) -> bool {
        matches!(self.bound, Ok(None))
    }

    /// The key that is counted; `own` is the key as the client wrote it.
    #[inline]
    pub(crate) fn counted<'k>(&'k self, own: &'k [u8]) -> &'k [u8] {
        self.bound.as_ref().ok().and_then(Option::as_ref).map_or(own, Found::key)
    }

    /// A limit is bound to the key, and nothing else is charged with it.
    pub(crate) fn is_bound_alone(&self) -> bool {
        let found = self.bound.as_ref().ok().and_then(Option::as_ref);
        found.is_some_and(|found| found.companion().is_none() && !found.has_parents())
    }
}

/// Looks a key up and asks for its shard; `counted` holds the key that is counted where a limit makes one.
#[inline]
pub(crate) fn look_up<'a>(
    round: &Round<'a>,
    key: &'a [u8],
    counted: &'a mut Vec<u8>,
) -> LookedUp<'a> {
    look_up_in(round.service.shards(), round.in_force, key, counted)
}

/// As [`look_up`], without a round.
#[inline]
pub(crate) fn look_up_in<'a>(
    shards: &Shards,
    in_force: &'a InForce,
    key: &'a [u8],
    counted: &'a mut Vec<u8>,
) -> LookedUp<'a> {
    let limits = in_force.limits();
    let (counted, bound) = if limits.is_empty() {
        (key, Ok(None))
    } else {
        let bound = limits.find(key, counted);
        (bound.as_ref().ok().and_then(Option::as_ref).map_or(key, Found::key), bound)
    };
    let hash = shards.hash(counted);
    shards.prefetch_shard(hash);
    LookedUp { hash, bound }
}

/// The key that an operation is on, and its hash: `own` is as the client wrote it, `operation` none for
/// a retrieval. To native verbs a companion is a key of its own.
pub(crate) fn counted_key<'k>(
    shards: &Shards,
    own: &'k [u8],
    operation: Option<&Operation<'_>>,
    looked: &LookedUp<'k>,
) -> (&'k [u8], u64) {
    let Ok(Some(found)) = &looked.bound else { return (own, looked.hash) };
    let is_native = matches!(operation, Some(Operation::Native(_)));
    if is_native && found.companion().is_some() {
        return (own, shards.hash(own));
    }
    (found.key(), looked.hash)
}
