//! A batch of any requests: decoded, locked and executed together. In a cluster, those that
//! `cluster_batch` leaves.
//!
//! Not here: the execution of one request (`session`, `fast`).

mod lookups;

use std::hint::cold_path;

use arrayvec::ArrayVec;
use engine::Engine;
use protocol::{
    Bounds, Command, Decoded, FastRequest, Form, Operation, Request, TakeMany, decode, decode_fast,
};

use self::lookups::{add_overrides, look_up_all};
use super::cluster_batch::answer_served;
use super::refuse::BatchEnd;
use super::samples::pass_samples;
use super::{BATCH_REQUESTS, Pause, Session, SessionContext, end_after, is_large, pause_before};
use crate::commands::context::RequestOutcome;
use crate::commands::fast::{is_fast, may_run_locked};
use crate::commands::items::needs_own_lock;
use crate::commands::lookup::KeyLookup;
use crate::node::serving::Serving;
use crate::shards::ShardBatch;

/// A decoded batch.
struct Batch<'b> {
    input: &'b [u8],
    requests: &'b BatchRequests<'b>,
    /// The hashes of the first keys. A request without a key has the hash of the one before, so
    /// that no further shard is locked.
    hashes: &'b [u64],
    /// The lookups of the first keys; empty if no limit matches and none is recorded.
    lookups: &'b [KeyLookup<'b>],
}

impl Session {
    /// Executes the requests at the front of `input` on a lone server without limits.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as a call it moves the batch")]
    pub(super) fn run_plain_batch(
        &mut self,
        ctx: &mut SessionContext<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Option<Pause>) {
        let shards = ctx.exec.service.shards();
        let (counters, mut is_recorded) = (ctx.exec.counters, false);
        let mut hashes: ArrayVec<u64, BATCH_REQUESTS> = ArrayVec::new();
        let mut requests = BatchRequests::default();
        let bounds = (shards.bounds(), ctx.requests.clamp(1, BATCH_REQUESTS));
        requests.decode((input, self.scanned), bounds, |key| {
            let hash = key.map_or_else(
                || hashes.last().copied().unwrap_or_default(),
                |key| {
                    let hash = shards.hash(key);
                    shards.prefetch_shard(hash);
                    if counters.probe.records(hash) {
                        cold_path();
                        is_recorded = true;
                    }
                    hash
                },
            );
            hashes.push(hash);
        });
        if is_recorded {
            cold_path();
            return self.run_recorded(ctx, input, (&requests, &hashes), out);
        }
        let needs_own_locks = requests.needs_own_locks();
        let mut locked = shards.lock_batch(if needs_own_locks { &[] } else { &hashes });
        if needs_own_locks {
            cold_path();
            if hashes.len() > 1 {
                ctx.exec.prefetch(hashes.iter().copied());
            }
        }
        let batch = Batch { input, requests: &requests, hashes: &hashes, lookups: &[] };
        self.run_decoded::<true>(ctx, &batch, (&mut locked, true), None, out)
    }

    /// Executes a batch without limits that has a key of the recorder's sample.
    #[cold]
    #[inline(never)]
    fn run_recorded(
        &mut self,
        ctx: &mut SessionContext<'_>,
        input: &[u8],
        (requests, hashes): (&BatchRequests<'_>, &[u64]),
        out: &mut Vec<u8>,
    ) -> (usize, Option<Pause>) {
        let lookups: ArrayVec<KeyLookup<'_>, BATCH_REQUESTS> =
            hashes.iter().map(|hash| KeyLookup { hash: *hash, key_limit: Ok(None) }).collect();
        let mut locked = ctx.exec.service.shards().lock_batch(hashes);
        let batch = Batch { input, requests, hashes, lookups: &lookups };
        self.run_decoded::<false>(ctx, &batch, (&mut locked, true), None, out)
    }

    /// Executes the requests at the front of `input`, with or without limits, on one node or in a
    /// cluster. `counted` is room for the counted keys.
    #[inline(never)]
    pub(super) fn run_any_batch(
        &mut self,
        ctx: &mut SessionContext<'_>,
        counted: &mut [Vec<u8>],
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Option<Pause>) {
        let mut requests = BatchRequests::default();
        let bounds = (ctx.exec.service.shards().bounds(), ctx.requests.clamp(1, BATCH_REQUESTS));
        requests.decode((input, self.scanned), bounds, |_| ());
        let (mut lookups, mut overrides) = (ArrayVec::new(), None);
        look_up_all(ctx, &requests, counted, &mut lookups, &mut overrides);
        let hashes: ArrayVec<u64, BATCH_REQUESTS> = lookups.iter().map(|key| key.hash).collect();
        let serving = if ctx.cluster.is_some() && self.replies.is_empty() {
            cold_path();
            self.serving(ctx)
        } else {
            None
        };
        let may_serve =
            |serving: &Serving<'_>| hashes.first().is_some_and(|hash| serving.may_serve(*hash));
        let may_lock = (self.may_use_fast(ctx) || serving.as_ref().is_some_and(may_serve))
            && requests.iter().zip(&lookups).any(|(request, key)| request.is_fast(key));
        let shards = ctx.exec.service.shards();
        let mut locked = shards.lock_batch(if may_lock { &hashes } else { &[] });
        if !may_lock && requests.len() > 1 {
            ctx.exec.prefetch(hashes.iter().copied());
        }
        add_overrides(overrides.as_ref(), &mut lookups);
        let batch = Batch { input, requests: &requests, hashes: &hashes, lookups: &lookups };
        self.run_decoded::<false>(ctx, &batch, (&mut locked, may_lock), serving.as_ref(), out)
    }

    /// Executes a batch. `PLAIN`: no key has a limit or is recorded, outside a cluster. `may_lock`:
    /// requests may be executed while the shards of the batch are locked.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as a call it moves the batch")]
    fn run_decoded<const PLAIN: bool>(
        &mut self,
        ctx: &mut SessionContext<'_>,
        batch: &Batch<'_>,
        (locked, mut may_lock): (&mut ShardBatch<'_>, bool),
        serving: Option<&Serving<'_>>,
        out: &mut Vec<u8>,
    ) -> (usize, Option<Pause>) {
        let Batch { input, requests, hashes, lookups } = *batch;
        let (mut done, mut stop, before) = (0, None, ctx.requests);
        for (position, (BatchEntry { form, end }, hash)) in
            requests.entries.iter().zip(hashes).enumerate()
        {
            if let Some(pause) = pause_before(ctx, out) {
                cold_path();
                stop = Some((done, Some(pause)));
                break;
            }
            let is_answered = match form {
                EntryForm::Fast(fast) if PLAIN => {
                    let engine = locked.engine(position, *hash);
                    let is_answered = ctx.exec.answer_plain(engine, fast, *hash, out);
                    locked.done(position);
                    is_answered
                }
                EntryForm::General(place) if PLAIN => {
                    let request = &requests.general[*place];
                    answer_general(ctx, (&mut *locked, position), request, *hash, out)
                }
                _ => {
                    let (request, lookup) = (requests.request(position), &lookups[position]);
                    may_lock
                        && answer_locked(ctx, serving, (locked, position), request, lookup, out)
                }
            };
            if !is_answered {
                // The general path may wait for other locks.
                locked.release();
                let raw = &input[done..(*end).min(input.len())];
                let plain = KeyLookup { hash: *hash, key_limit: Ok(None) };
                let lookup = if PLAIN { &plain } else { &lookups[position] };
                let answer = self.answer_any(ctx, requests.request(position), raw, lookup, out);
                if !matches!(answer, RequestOutcome::Given) {
                    stop = Some(end_after(answer, done, *end));
                    break;
                }
            }
            ctx.requests -= 1;
            done = *end;
            // The request may have been `stats detail on`, or may now wait for other nodes.
            if !is_answered && !self.may_use_fast(ctx) {
                if PLAIN {
                    stop = Some((done, None));
                    break;
                }
                may_lock &= serving.is_some() && self.replies.is_empty();
            }
        }
        if done > 0 {
            self.scanned = 0;
        }
        pass_samples(&ctx.exec, (requests, before - ctx.requests), hashes, lookups);
        match (stop, &requests.end) {
            (Some(stop), _) => stop,
            (None, None) => (done, None),
            (None, Some(end)) => self.end_batch(ctx, end, (done, input.len()), out),
        }
    }

    /// [`Session::answer`] of a request in either form.
    #[inline]
    fn answer_any(
        &mut self,
        ctx: &mut SessionContext<'_>,
        decoded: AnyRequest<'_>,
        raw: &[u8],
        key: &KeyLookup<'_>,
        out: &mut Vec<u8>,
    ) -> RequestOutcome {
        match decoded {
            AnyRequest::Fast(fast) => self.answer(ctx, &fast.request(), raw, key, out),
            AnyRequest::General(request) => self.answer(ctx, request, raw, key, out),
        }
    }
}

/// The requests of a batch. An entry holds a fast request itself, which has a few words. For a
/// general request it holds the position in `general`: a general request has about 200 bytes, and
/// would make each entry as long.
#[derive(Default)]
pub(super) struct BatchRequests<'a> {
    entries: ArrayVec<BatchEntry<'a>, BATCH_REQUESTS>,
    general: ArrayVec<Request<'a>, BATCH_REQUESTS>,
    /// The reason why the batch ends before it is full.
    end: Option<BatchEnd>,
}

struct BatchEntry<'a> {
    form: EntryForm<'a>,
    /// The end of the request in the input.
    end: usize,
}

enum EntryForm<'a> {
    Fast(FastRequest<'a>),
    /// The position in [`BatchRequests::general`].
    General(usize),
}

/// A request of a batch.
#[derive(Clone, Copy)]
pub(super) enum AnyRequest<'r> {
    Fast(&'r FastRequest<'r>),
    General(&'r Request<'r>),
}

impl<'a> BatchRequests<'a> {
    fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns all requests, in order.
    fn iter(&self) -> impl Iterator<Item = AnyRequest<'_>> {
        (0..self.len()).map(|position| self.request(position))
    }

    #[inline]
    pub(super) fn request(&self, position: usize) -> AnyRequest<'_> {
        match &self.entries[position].form {
            EntryForm::Fast(fast) => AnyRequest::Fast(fast),
            EntryForm::General(place) => AnyRequest::General(&self.general[*place]),
        }
    }

    /// Returns whether each request is one that [`AnyRequest::may_run_locked`] refuses.
    #[inline]
    fn needs_own_locks(&self) -> bool {
        self.general.len() == self.len()
            && !self.general.iter().any(|request| AnyRequest::General(request).may_run_locked())
    }

    /// Decodes requests from the front of `input` until there are `max`, and passes the first key
    /// of each to `note`. `scanned` bytes at the front hold no line end.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as a call it moves the batch")]
    fn decode(
        &mut self,
        (input, scanned): (&'a [u8], usize),
        (bounds, max): (Bounds, usize),
        mut note: impl FnMut(Option<&[u8]>),
    ) {
        let mut end = 0;
        while end < input.len() && self.entries.len() < max {
            if let Some((fast, consumed)) = decode_fast(&input[end..], bounds) {
                end += consumed;
                let key = fast.key();
                self.entries.push(BatchEntry { form: EntryForm::Fast(fast), end });
                note(Some(key));
                continue;
            }
            let scanned = if end == 0 { scanned } else { 0 };
            match decode(&input[end..], scanned, bounds) {
                Ok(Decoded::Request { request, consumed }) => {
                    end += consumed;
                    let form = EntryForm::General(self.general.len());
                    self.entries.push(BatchEntry { form, end });
                    self.general.push(request);
                }
                Ok(Decoded::Incomplete { scanned, needed }) => {
                    self.end = Some(BatchEnd::Incomplete { scanned, needed });
                    return;
                }
                Err(refusal) => {
                    self.end = Some(BatchEnd::Refused(refusal));
                    return;
                }
            }
            note(self.general.last().and_then(|request| AnyRequest::General(request).first_key()));
        }
    }
}

impl<'r> AnyRequest<'r> {
    /// Returns whether the request may be executed while the shard of its key is locked.
    #[inline]
    fn is_fast(self, key: &KeyLookup<'_>) -> bool {
        match self {
            Self::Fast(fast) => is_fast(fast, key),
            Self::General(_) => key.has_no_limit() && self.may_run_locked(),
        }
    }

    /// [`AnyRequest::is_fast`] of a key without a limit.
    #[inline]
    fn may_run_locked(self) -> bool {
        match self {
            Self::Fast(fast) => may_run_locked(fast),
            Self::General(Request::Command { command, form }) => !needs_own_lock(command, form),
            Self::General(_) => false,
        }
    }

    fn first_key(self) -> Option<&'r [u8]> {
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

/// Executes a request while the shard of its key is locked. Returns false, without a reply, if the
/// general path is needed.
#[inline]
fn answer_locked(
    ctx: &mut SessionContext<'_>,
    serving: Option<&Serving<'_>>,
    (locked, position): (&mut ShardBatch<'_>, usize),
    decoded: AnyRequest<'_>,
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

/// Executes a general request on a key without a limit while the shard of its key is locked.
/// Returns false, without a reply, if that is not possible.
#[inline(never)]
fn answer_general(
    ctx: &mut SessionContext<'_>,
    (locked, position): (&mut ShardBatch<'_>, usize),
    request: &Request<'_>,
    hash: u64,
    out: &mut Vec<u8>,
) -> bool {
    let Request::Command { command, form } = request else { return false };
    if needs_own_lock(command, form) {
        return false;
    }
    let engine = locked.engine(position, hash);
    let is_answered = answer_command(ctx, engine, (command, form), hash, out);
    locked.done(position);
    is_answered
}

/// Executes a request on its locked shard. Returns false, without a reply, if the general path is
/// needed.
#[inline]
pub(super) fn answer_with(
    ctx: &mut SessionContext<'_>,
    engine: &mut Engine,
    decoded: AnyRequest<'_>,
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
