//! A batch of fast-path requests outside a cluster and without limits, which are most batches
//! there.
//!
//! Not here: the execution of each (`fast`), batches with other requests (`general_batch`), which
//! give the same replies.

use std::hint::cold_path;

use arrayvec::ArrayVec;
use protocol::{FastRequest, decode_fast};

use super::samples::sample_fast;
use super::{Pause, Session, SessionContext, end_after, pause_before};
use crate::commands::context::RequestOutcome;
use crate::commands::fast::may_run_locked;
use crate::commands::lookup::KeyLookup;
use crate::shards::BATCH_SHARDS_MAX;

/// With fewer fast-path requests before another one, a batch of their own does not pay.
const FAST_BATCH_MIN: usize = 8;

/// A request of a batch.
pub(super) struct FastBatchEntry<'a> {
    pub(super) fast: FastRequest<'a>,
    /// The end of the request in the input.
    pub(super) end: usize,
}

/// Decodes the fast-path requests at the front of `input` and passes the key of each to `note`.
/// Returns `None` if the general path suits them better.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as a call it moves the batch")]
pub(super) fn read_batch<'a>(
    ctx: &SessionContext<'_>,
    input: &'a [u8],
    may_be_held: impl Fn(&FastRequest<'_>) -> bool,
    mut note: impl FnMut(&'a [u8]),
) -> Option<ArrayVec<FastBatchEntry<'a>, BATCH_SHARDS_MAX>> {
    let bounds = ctx.exec.service.shards().bounds();
    let max = ctx.requests.min(BATCH_SHARDS_MAX);
    let mut batch: ArrayVec<FastBatchEntry<'a>, BATCH_SHARDS_MAX> = ArrayVec::new();
    let mut end = 0;
    while batch.len() < max
        && let Some((fast, consumed)) = decode_fast(&input[end..], bounds)
        && may_be_held(&fast)
    {
        end += consumed;
        note(fast.key());
        batch.push(FastBatchEntry { fast, end });
    }
    let is_worth_it = end == input.len() || batch.len() >= max.min(FAST_BATCH_MIN);
    (is_worth_it && !batch.is_empty()).then_some(batch)
}

impl Session {
    /// Executes the fast-path requests at the front of `input`, with the same replies as
    /// [`Session::run_batch`]. Returns `None` if the general path suits them better.
    pub(super) fn run_fast_batch(
        &mut self,
        ctx: &mut SessionContext<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<(usize, Option<Pause>)> {
        if !self.may_use_fast(ctx) || !ctx.exec.active_limits.limits().is_empty() {
            return None;
        }
        let shards = ctx.exec.service.shards();
        let mut hashes: ArrayVec<u64, BATCH_SHARDS_MAX> = ArrayVec::new();
        let (counters, mut is_recorded) = (ctx.exec.counters, false);
        let batch = read_batch(ctx, input, may_run_locked, |key| {
            let hash = shards.hash(key);
            shards.prefetch_shard(hash);
            hashes.push(hash);
            if counters.probe.records(hash) {
                cold_path();
                is_recorded = true;
            }
        })?;
        if counters.probe.pass(batch.len()) {
            cold_path();
            sample_fast(&ctx.exec, &batch, &hashes, &[]);
        }
        if is_recorded {
            cold_path();
            return Some(self.run_recorded(ctx, &batch, &hashes, input, out));
        }
        Some(self.run_hashed::<false>(ctx, &batch, &hashes, input, out))
    }

    /// [`Session::run_hashed`] for a batch with a key of the recorder's sample.
    #[cold]
    #[inline(never)]
    fn run_recorded(
        &mut self,
        ctx: &mut SessionContext<'_>,
        batch: &[FastBatchEntry<'_>],
        hashes: &[u64],
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Option<Pause>) {
        self.run_hashed::<true>(ctx, batch, hashes, input, out)
    }

    /// Executes a batch. `RECORDS`: it may have keys of the recorder's sample.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as a call it moves the batch")]
    fn run_hashed<const RECORDS: bool>(
        &mut self,
        ctx: &mut SessionContext<'_>,
        batch: &[FastBatchEntry<'_>],
        hashes: &[u64],
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Option<Pause>) {
        let mut locked = ctx.exec.service.shards().lock_batch(hashes);
        let mut done = 0;
        for (position, (FastBatchEntry { fast, end }, hash)) in batch.iter().zip(hashes).enumerate()
        {
            if let Some(pause) = pause_before(ctx, out) {
                cold_path();
                return (done, Some(pause));
            }
            let engine = locked.engine(position, *hash);
            let is_answered = if RECORDS {
                ctx.exec.answer_without_limit(engine, fast, *hash, out)
            } else {
                ctx.exec.answer_plain(engine, fast, *hash, out)
            };
            locked.done(position);
            if !is_answered {
                cold_path();
                // The general path may wait for other locks.
                locked.release();
                let lookup = KeyLookup { hash: *hash, key_limit: Ok(None) };
                let raw_request = &input[done..*end];
                match self.answer(ctx, &fast.request(), raw_request, &lookup, out) {
                    RequestOutcome::Given => {}
                    answer => return end_after(answer, done, *end),
                }
            }
            ctx.requests -= 1;
            self.scanned = 0;
            done = *end;
        }
        (done, None)
    }
}
