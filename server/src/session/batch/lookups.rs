//! The lookups of a batch's keys.
//!
//! Not here: the lookup of one key (`commands::lookup`).

use std::hint::cold_path;

use arrayvec::ArrayVec;
use tollgate_limits::OverrideBatch;

use super::{AnyRequest, BatchRequests};
use crate::commands::lookup::{KeyLookup, look_up, look_up_overridden, look_up_together};
use crate::session::{BATCH_REQUESTS, SessionContext};

/// Looks up the first key of each request; `counted` has room for each key that a limit derives.
/// Sets `overrides` if they have to be added to the keys.
#[inline]
pub(super) fn look_up_all<'a>(
    ctx: &SessionContext<'a>,
    batch: &'a BatchRequests<'_>,
    counted: &'a mut [Vec<u8>],
    lookups: &mut ArrayVec<KeyLookup<'a>, BATCH_REQUESTS>,
    overrides: &mut Option<OverrideBatch<'a, BATCH_REQUESTS>>,
) {
    if ctx.cluster.is_some() || ctx.exec.active_limits.has_large_tables() {
        cold_path();
        let keys = batch.iter().map(AnyRequest::first_key);
        if ctx.cluster.is_some() {
            let (shards, limits) = (ctx.exec.service.shards(), ctx.exec.active_limits);
            *lookups = look_up_together(shards, limits, keys, counted);
        } else {
            let overrides = overrides.insert(OverrideBatch::default());
            look_up_overridden(&ctx.exec, keys, counted, lookups, overrides);
        }
        return;
    }
    let mut hash = 0;
    let look_up = |(request, counted): (AnyRequest<'a>, _)| match request.first_key() {
        Some(key) => {
            let lookup = look_up(&ctx.exec, key, counted);
            hash = lookup.hash;
            lookup
        }
        // Keyless requests reuse the previous hash, so no extra shard is locked.
        None => KeyLookup { hash, key_limit: Ok(None) },
    };
    lookups.extend(batch.iter().zip(counted).map(look_up));
}

/// Adds the overrides that [`look_up_all`] has left out. The locks of the shards and the prefetches
/// of the items have hidden the wait for their lines.
#[inline]
pub(super) fn add_overrides<'a>(
    overrides: Option<&OverrideBatch<'a, BATCH_REQUESTS>>,
    lookups: &mut [KeyLookup<'a>],
) {
    if let Some(overrides) = overrides {
        cold_path();
        overrides.apply(lookups, KeyLookup::found_mut);
    }
}
