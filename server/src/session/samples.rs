//! The samples of a client's requests, taken where they arrive.
//!
//! Not here: the choice of requests and the ring (`probe`), samples of decisions (`decisions`).

use std::hint::cold_path;

use protocol::{Keys, Request, TakeMany};

use super::batch::{AnyRequest, BatchRequests};
use super::cluster_batch::FastBatchEntry;
use crate::commands::context::ExecContext;
use crate::commands::lookup::{KeyLookup, look_up};

/// Notes the first `count` requests of a batch. `lookups` are those of the first keys; it is empty
/// without limits.
#[inline]
pub(super) fn pass_samples(
    exec: &ExecContext<'_>,
    (batch, count): (&BatchRequests<'_>, usize),
    hashes: &[u64],
    lookups: &[KeyLookup<'_>],
) {
    if exec.counters.probe.pass(count) {
        cold_path();
        sample_batch(exec, (batch, count), hashes, lookups);
    }
}

/// Takes the samples that are due of a batch.
#[cold]
#[inline(never)]
fn sample_batch(
    exec: &ExecContext<'_>,
    (batch, count): (&BatchRequests<'_>, usize),
    hashes: &[u64],
    lookups: &[KeyLookup<'_>],
) {
    while let Some(due) = exec.counters.probe.next_due(count, exec.now.unix_ms) {
        let (lookup, hash) = (lookups.get(due.position), hashes[due.position]);
        match batch.request(due.position) {
            AnyRequest::Fast(fast) => put_at(exec, fast.key(), lookup, (hash, due.weight)),
            AnyRequest::General(Request::Command { command, .. }) => {
                put_at(exec, command.key.as_bytes(), lookup, (hash, due.weight));
            }
            AnyRequest::General(
                Request::Retrieve { keys, .. }
                | Request::TakeMany { many: TakeMany { keys, .. }, .. },
            ) => {
                sample_key(exec, *keys, due.weight);
            }
            AnyRequest::General(Request::Admin { .. }) => {}
        }
    }
}

/// Takes the samples that are due of a batch of fast requests in a cluster.
#[cold]
#[inline(never)]
pub(super) fn sample_fast(
    exec: &ExecContext<'_>,
    batch: &[FastBatchEntry<'_>],
    lookups: &[KeyLookup<'_>],
) {
    while let Some(due) = exec.counters.probe.next_due(batch.len(), exec.now.unix_ms) {
        let own = batch[due.position].fast.key();
        let lookup = lookups.get(due.position);
        let hash = lookup.map_or_else(|| exec.service.shards().hash(own), |lookup| lookup.hash);
        put_at(exec, own, lookup, (hash, due.weight));
    }
}

/// Takes a key with this hash, which stands for `weight` requests.
fn put_at(
    exec: &ExecContext<'_>,
    own: &[u8],
    lookup: Option<&KeyLookup<'_>>,
    (hash, weight): (u64, u64),
) {
    let plain = KeyLookup { hash, key_limit: Ok(None) };
    put(exec, own, lookup.unwrap_or(&plain), weight);
}

/// Takes one of several keys of a request that stands for `weight`: it stands for all of its keys.
fn sample_key(exec: &ExecContext<'_>, keys: Keys<'_>, weight: u64) {
    let count = keys.iter().count();
    let chosen = exec.counters.probe.choose(count);
    let Some((key, _)) = keys.iter().nth(chosen) else { return };
    // Empty: memory is needed only if the key's limit counts under another key.
    let mut counted = Vec::new();
    let lookup = look_up(exec, key.as_bytes(), &mut counted);
    put(exec, key.as_bytes(), &lookup, weight.saturating_mul(count as u64));
}

fn put(exec: &ExecContext<'_>, own: &[u8], lookup: &KeyLookup<'_>, weight: u64) {
    let found = lookup.key_limit.as_ref().ok().and_then(Option::as_ref);
    let metrics = found.and_then(|found| exec.active_limits.metrics(found.limit().index()));
    let number = metrics.map_or(0, crate::limits::LimitMetrics::number);
    let key = (lookup.hash, lookup.counted(own));
    exec.counters.probe.put_taken(exec.now.unix_ms, key, number, weight);
}
