//! Executes a `get` of one key or several.
//!
//! Not here: one key of it (`items`, `limited_keys`, `fast`).

use arrayvec::ArrayVec;
use protocol::{Command, Exptime, Get, Key, Keys, Operation};

use super::{BATCH_REQUESTS, REPLY_BYTES_HIGH, Session, SessionContext};
use crate::commands::context::RequestOutcome;
use crate::commands::lookup::{KeyLookup, look_up};

/// A `get` of one key or several.
#[derive(Clone, Copy)]
pub(crate) struct Retrieval<'a> {
    pub(crate) keys: Keys<'a>,
    pub(crate) with_cas: bool,
    pub(crate) touch: Option<Exptime>,
}

impl Session {
    /// Writes each found item, then `END`. A long reply is given in parts. `first` is the lookup of
    /// the first key.
    pub(crate) fn retrieve(
        &mut self,
        ctx: &mut SessionContext<'_>,
        retrieval: Retrieval<'_>,
        first: &KeyLookup<'_>,
        out: &mut Vec<u8>,
    ) -> RequestOutcome {
        if let Some(key) = retrieval.keys.only() {
            self.retrieve_key(ctx, retrieval, key, first, out);
            self.replies.push_end("END\r\n", out);
            return RequestOutcome::Given;
        }
        let mut counted = std::mem::take(&mut ctx.exec.scratch.more_keys);
        counted.resize_with(BATCH_REQUESTS, Vec::new);
        let answer = self.retrieve_with(ctx, &mut counted, retrieval, out);
        ctx.exec.scratch.more_keys = counted;
        answer
    }

    // Not inlined: its batches need much stack, which a request for one key must not pay for.
    #[inline(never)]
    fn retrieve_with(
        &mut self,
        ctx: &mut SessionContext<'_>,
        counted: &mut [Vec<u8>],
        retrieval: Retrieval<'_>,
        out: &mut Vec<u8>,
    ) -> RequestOutcome {
        let start = self.answered;
        let mut last = start;
        let mut keys = retrieval.keys.skip(start).iter();
        loop {
            let group: ArrayVec<(Key<'_>, usize), BATCH_REQUESTS> =
                keys.by_ref().take(BATCH_REQUESTS).collect();
            let lookups: ArrayVec<KeyLookup<'_>, BATCH_REQUESTS> = group
                .iter()
                .zip(counted.iter_mut())
                .map(|((key, _), counted)| look_up(&ctx.exec, key.as_bytes(), counted))
                .collect();
            let hashes: ArrayVec<u64, BATCH_REQUESTS> =
                lookups.iter().map(|key| key.hash).collect();
            let mut locked = None;
            let may_be_quick =
                !retrieval.with_cas && retrieval.touch.is_none() && self.may_use_fast(ctx);
            if may_be_quick && lookups.iter().any(KeyLookup::has_no_limit) {
                locked = Some(ctx.exec.service.shards().lock_batch(&hashes));
            } else if group.len() > 1 {
                ctx.exec.prefetch(hashes.iter().copied());
            }
            for (position, ((key, offset), lookup)) in group.iter().zip(&lookups).enumerate() {
                let is_held_up = self.is_throttled(ctx, out);
                if ctx.large_left == 0
                    && let Some(locked) = &mut locked
                {
                    // `must_wait` locks a shard itself.
                    locked.release();
                }
                let must_wait = ctx.must_wait(lookup.hash, key.as_bytes());
                if is_held_up || must_wait || out.len() >= REPLY_BYTES_HIGH {
                    // Run the same line again from this key on.
                    self.answered = last;
                    let waits = !self.replies.is_empty();
                    return if waits { RequestOutcome::NotYet } else { RequestOutcome::Partly };
                }
                last = start + offset;
                if let Some(locked) = &mut locked
                    && lookup.has_no_limit()
                {
                    let engine = locked.engine(position, lookup.hash);
                    if ctx.exec.get_fast(engine, key.as_bytes(), lookup.hash, out) {
                        locked.done(position);
                        continue;
                    }
                }
                // The general path may wait for other locks.
                if let Some(locked) = &mut locked {
                    locked.release();
                }
                self.retrieve_key(ctx, retrieval, key.clone(), lookup, out);
            }
            if group.len() < BATCH_REQUESTS {
                break;
            }
        }
        self.answered = 0;
        self.replies.push_end("END\r\n", out);
        RequestOutcome::Given
    }

    fn retrieve_key(
        &mut self,
        ctx: &mut SessionContext<'_>,
        Retrieval { with_cas, touch, .. }: Retrieval<'_>,
        key: Key<'_>,
        lookup: &KeyLookup<'_>,
        out: &mut Vec<u8>,
    ) {
        let command = Command { key, operation: Operation::Get(Get { touch, ..Get::default() }) };
        if let Some(mut dispatch) = self.dispatch_in(ctx) {
            dispatch.key(&command, lookup, (with_cas, touch));
        } else {
            ctx.exec.retrieve_one(&command, lookup, with_cas, out);
        }
    }
}
