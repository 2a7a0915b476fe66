//! A batch on the general path: any requests, with or without limits, on one node or in a cluster.
//!
//! Not here: batches of fast-path requests (`fast_batch`, `cluster_batch`), which give the same
//! replies, and the execution of one request (`session`).

use std::hint::cold_path;

use arrayvec::ArrayVec;
use engine::Engine;
use protocol::{
    Bounds, Command, DecodeError, Decoded, FastRequest, Form, Operation, ProtocolError, Request,
    TakeMany, decode, decode_fast,
};

use super::cluster_batch::answer_served;
use super::samples::pass_general;
use super::{BATCH_REQUESTS, Pause, Session, SessionContext, end_after, is_large, pause_before};
use crate::commands::context::RequestOutcome;
use crate::commands::fast::is_fast;
use crate::commands::items::needs_own_lock;
use crate::commands::lookup::{KeyLookup, look_up, look_up_overridden, look_up_together};
use crate::limits::OverrideBatch;
use crate::node::serving::Serving;
use crate::shards::ShardBatch;

impl Session {
    /// [`Session::run_batch`] on the general path, with `keys` as room for the counted keys.
    pub(super) fn run_batch_with(
        &mut self,
        ctx: &mut SessionContext<'_>,
        keys: &mut [Vec<u8>],
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Option<Pause>) {
        let mut batch: ArrayVec<BatchRequest<'_>, BATCH_REQUESTS> = ArrayVec::new();
        let bounds = ctx.exec.service.shards().bounds();
        let end = decode_batch(input, self.scanned, bounds, &mut batch);
        let (counted, mut keys, mut overrides) = (keys, ArrayVec::new(), None);
        look_up_all(ctx, &batch, counted, &mut keys, &mut overrides);
        let hashes: ArrayVec<u64, BATCH_REQUESTS> = keys.iter().map(|key| key.hash).collect();
        let (mut locked, mut entries) = (None, batch.iter().zip(&keys));
        let serving = if ctx.cluster.is_some() && self.replies.is_empty() {
            cold_path();
            self.serving(ctx)
        } else {
            None
        };
        let may_serve =
            |serving: &Serving<'_>| hashes.first().is_some_and(|hash| serving.may_serve(*hash));
        let may_be_quick = self.may_use_fast(ctx) || serving.as_ref().is_some_and(may_serve);
        if may_be_quick && entries.any(|(entry, key)| entry.request.is_fast(key)) {
            locked = Some(ctx.exec.service.shards().lock_batch(&hashes));
        } else if batch.len() > 1 {
            ctx.exec.prefetch(hashes.iter().copied());
        }
        add_overrides(overrides.as_ref(), &mut keys);
        let (mut done, mut pause, before) = (0, None, ctx.requests);
        for (position, (BatchRequest { request: decoded, consumed }, key)) in
            batch.iter().zip(&keys).enumerate()
        {
            if let Some(reason) = pause_before(ctx, out) {
                pause = Some((done, Some(reason)));
                break;
            }
            let answer = if let Some(locked) = &mut locked
                && answer_locked(ctx, serving.as_ref(), (locked, position), decoded, key, out)
            {
                RequestOutcome::Given
            } else {
                // The general path may wait for other locks.
                if let Some(locked) = &mut locked {
                    locked.release();
                }
                let raw = &input[done..(done + consumed).min(input.len())];
                let answer = self.answer_any(ctx, decoded, raw, key, out);
                // The request may have been `stats detail on`, or may now wait for other nodes.
                if !self.may_use_fast(ctx) && (serving.is_none() || !self.replies.is_empty()) {
                    locked = None;
                }
                answer
            };
            if !matches!(answer, RequestOutcome::Given) {
                pause = Some(end_after(answer, done, done + consumed));
                break;
            }
            ctx.requests -= 1;
            self.scanned = 0;
            done += consumed;
        }
        pass_general(&ctx.exec, &batch[..before - ctx.requests], &keys);
        match (pause, end) {
            (Some(pause), _) => pause,
            (None, None) => (done, None),
            (None, Some(end)) => self.end_batch(ctx, &end, (done, input.len()), out),
        }
    }

    /// [`Session::answer`] of a request in either form.
    #[inline]
    fn answer_any(
        &mut self,
        ctx: &mut SessionContext<'_>,
        decoded: &AnyRequest<'_>,
        raw: &[u8],
        key: &KeyLookup<'_>,
        out: &mut Vec<u8>,
    ) -> RequestOutcome {
        match decoded {
            AnyRequest::Fast(fast) => self.answer(ctx, &fast.request(), raw, key, out),
            AnyRequest::General(request) => self.answer(ctx, request, raw, key, out),
        }
    }

    /// Ends a batch of `done` bytes before a request that is not whole, or cannot be decoded.
    #[inline]
    fn end_batch(
        &mut self,
        ctx: &mut SessionContext<'_>,
        end: &BatchEnd,
        (done, input_bytes): (usize, usize),
        out: &mut Vec<u8>,
    ) -> (usize, Option<Pause>) {
        let refusal = match end {
            BatchEnd::Incomplete { scanned, needed } => {
                self.scanned = *scanned;
                return (done, Some(Pause::Input(*needed)));
            }
            BatchEnd::Refused(refusal) => refusal,
        };
        if let Some(pause) = pause_before(ctx, out) {
            return (done, Some(pause));
        }
        if !self.replies.is_empty() {
            return (done, Some(Pause::Peers));
        }
        if refusal.error == ProtocolError::Close {
            return (input_bytes, Some(Pause::Close));
        }
        self.refuse(ctx, refusal, out);
        ctx.requests -= 1;
        self.scanned = 0;
        (done + refusal.consumed, refusal.closes.then_some(Pause::Close))
    }
}

/// A request of a batch.
pub(super) struct BatchRequest<'a> {
    pub(super) request: AnyRequest<'a>,
    consumed: usize,
}

pub(super) enum AnyRequest<'a> {
    Fast(FastRequest<'a>),
    General(Request<'a>),
}

impl AnyRequest<'_> {
    /// Returns whether the request may be executed while the shard of its key is locked.
    #[inline]
    fn is_fast(&self, key: &KeyLookup<'_>) -> bool {
        match self {
            Self::Fast(fast) => is_fast(fast, key),
            Self::General(Request::Command { command, form }) => {
                key.has_no_limit() && !needs_own_lock(command, form)
            }
            Self::General(_) => false,
        }
    }

    fn first_key(&self) -> Option<&[u8]> {
        match self {
            Self::Fast(fast) => Some(fast.key()),
            Self::General(Request::Command { command, .. }) => Some(command.key.as_bytes()),
            Self::General(
                Request::Retrieve { keys, .. }
                | Request::TakeMany { many: TakeMany { keys, .. }, .. },
            ) => keys.first(),
            Self::General(Request::Admin { .. }) => None,
        }
    }
}

/// Decodes requests from the front of `input` until `batch` is full. `scanned` bytes at the front
/// hold no line end. Returns the reason why the batch ends before it is full.
#[inline]
fn decode_batch<'a>(
    input: &'a [u8],
    scanned: usize,
    bounds: Bounds,
    batch: &mut ArrayVec<BatchRequest<'a>, BATCH_REQUESTS>,
) -> Option<BatchEnd> {
    let mut ahead = 0;
    while ahead < input.len() && !batch.is_full() {
        if let Some((fast, consumed)) = decode_fast_outlined(&input[ahead..], bounds) {
            batch.push(BatchRequest { request: AnyRequest::Fast(fast), consumed });
            ahead += consumed;
            continue;
        }
        let scanned = if batch.is_empty() { scanned } else { 0 };
        match decode(&input[ahead..], scanned, bounds) {
            Ok(Decoded::Request { request, consumed }) => {
                batch.push(BatchRequest { request: AnyRequest::General(request), consumed });
                ahead += consumed;
            }
            Ok(Decoded::Incomplete { scanned, needed }) => {
                return Some(BatchEnd::Incomplete { scanned, needed });
            }
            Err(refusal) => return Some(BatchEnd::Refused(refusal)),
        }
    }
    None
}

/// [`decode_fast`], not inlined: `fast_batch` alone has it inlined.
#[inline(never)]
fn decode_fast_outlined(input: &[u8], bounds: Bounds) -> Option<(FastRequest<'_>, usize)> {
    decode_fast(input, bounds)
}

/// Looks up the first key of each request; `counted` has room for each key that a limit derives.
/// Sets `overrides` if they have to be added to the keys.
#[inline]
fn look_up_all<'a>(
    ctx: &SessionContext<'a>,
    batch: &'a [BatchRequest<'_>],
    counted: &'a mut [Vec<u8>],
    lookups: &mut ArrayVec<KeyLookup<'a>, BATCH_REQUESTS>,
    overrides: &mut Option<OverrideBatch<'a, BATCH_REQUESTS>>,
) {
    if ctx.cluster.is_some() || ctx.exec.active_limits.has_large_tables() {
        cold_path();
        let keys = batch.iter().map(|entry| entry.request.first_key());
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
    let look_up = |(entry, counted): (&'a BatchRequest<'_>, _)| match entry.request.first_key() {
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
fn add_overrides<'a>(
    overrides: Option<&OverrideBatch<'a, BATCH_REQUESTS>>,
    lookups: &mut [KeyLookup<'a>],
) {
    if let Some(overrides) = overrides {
        cold_path();
        overrides.apply(lookups, KeyLookup::found_mut);
    }
}

/// The reason why a batch ends before it is full.
enum BatchEnd {
    Incomplete { scanned: usize, needed: usize },
    Refused(DecodeError),
}

/// Executes a request while the shard of its key is locked. Returns false, without a reply, if the
/// general path is needed.
#[inline]
fn answer_locked(
    ctx: &mut SessionContext<'_>,
    serving: Option<&Serving<'_>>,
    (locked, position): (&mut ShardBatch<'_>, usize),
    decoded: &AnyRequest<'_>,
    key: &KeyLookup<'_>,
    out: &mut Vec<u8>,
) -> bool {
    if !decoded.is_fast(key) {
        return false;
    }
    let engine = locked.engine(position, key.hash);
    let is_answered = if let Some(serving) = serving {
        cold_path();
        answer_served(ctx, serving, engine, decoded, key, out)
    } else {
        answer_with(ctx, engine, decoded, key, out)
    };
    locked.done(position);
    is_answered
}

/// Executes a request on its locked shard. Returns false, without a reply, if the general path is
/// needed.
#[inline]
pub(super) fn answer_with(
    ctx: &mut SessionContext<'_>,
    engine: &mut Engine,
    decoded: &AnyRequest<'_>,
    key: &KeyLookup<'_>,
    out: &mut Vec<u8>,
) -> bool {
    match decoded {
        AnyRequest::Fast(fast) => ctx.exec.answer_fast(engine, fast, key, out),
        AnyRequest::General(Request::Command { command, form }) => {
            answer_command(ctx, engine, (command, form), key.hash, out)
        }
        AnyRequest::General(_) => false,
    }
}

/// [`answer_with`] for a general command, apart from it because fast requests need no stack for it.
#[inline(never)]
fn answer_command(
    ctx: &mut SessionContext<'_>,
    engine: &mut Engine,
    (command, form): (&Command<'_>, &Form<'_>),
    hash: u64,
    out: &mut Vec<u8>,
) -> bool {
    let is_put_off = ctx.large_left == 0
        && matches!(command.operation, Operation::Get(_))
        && is_large(engine.value_len(hash, command.key.as_bytes()));
    !is_put_off && ctx.exec.command_at(engine, command, form, hash, out)
}
