//! One client's session as a function: bytes in, bytes out.
//!
//! Here: decodes requests, executes them, encodes the replies, and decides where a batch stops. Not
//! here: sockets (`connection`), the state that all clients share (`service`), retrievals
//! (`retrieve`), the fast path (`fast`).

mod cluster_batch;
mod context;
mod dispatch;
mod fast_batch;
mod login;
mod refuse;
mod retrieve;

use std::hint::cold_path;

use arrayvec::ArrayVec;
use engine::Engine;
use protocol::{
    Admin, Bounds, DecodeError, Decoded, FastRequest, Operation, ProtocolError, Request, decode,
    decode_fast,
};

use crate::commands::context::RequestOutcome;
use crate::commands::fast::is_fast;
use crate::commands::items::needs_own_lock;
use crate::commands::lookup::{KeyLookup, look_up};
use crate::commands::multi_key::TakeMany;
use crate::node::reply_queue::ReplyQueue;
use crate::node::serving::Serving;
use crate::shards::{BATCH_SHARDS_MAX, ShardBatch};

use self::cluster_batch::answer_served;
pub(crate) use self::context::ClusterContext;
pub use self::context::SessionContext;
use self::retrieve::Retrieval;

/// With this many bytes of replies waiting, they are written before more is decoded.
pub const REPLY_BYTES_HIGH: usize = 64 << 10;

/// A longer value is a large one. Each round answers only some of these, so that other clients do
/// not wait for many.
pub const LARGE_BYTES: usize = 64 << 10;

/// The reason why [`Session::run`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// All whole requests are answered; the next one needs this many bytes in total.
    Input(usize),
    /// The replies must be written first.
    Replies,
    /// This client has used its share of the round: other clients run first.
    Turn,
    /// Write the replies and close the connection.
    Close,
    /// Do nothing more before other nodes have answered.
    Peers,
    /// Run the next request at this time, in milliseconds on the monotonic clock.
    Delay(u64),
}

/// The state of a client's session between two reads.
#[derive(Debug, Default)]
pub struct Session {
    /// Bytes still to arrive that are dropped unread.
    skip: usize,
    /// Bytes at the front that hold no line end.
    pub(crate) scanned: usize,
    /// The offset in its keys up to which the retrieval at the front is answered.
    pub(crate) answered: usize,
    /// The first byte has arrived.
    started: bool,
    /// The client has logged in, or needs no password.
    pub(crate) authenticated: bool,
    /// The request at the front has already waited for the node to join a cluster.
    pub(crate) waited_for_start: bool,
    /// Wrong passwords so far.
    failures: u32,
    /// Remaining batches that skip `cluster_batch`.
    general_batches: u8,
    /// Replies that wait for other nodes.
    pub(crate) replies: ReplyQueue,
}

impl Session {
    /// Executes the requests in `input` and writes the replies to `out`. Returns the number of
    /// bytes consumed, at most `input.len()`, and the reason for the pause.
    pub fn run(
        &mut self,
        ctx: &mut SessionContext<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Pause) {
        if !self.started && !input.is_empty() {
            self.started = true;
            self.authenticated |= !ctx.exec.service.asks_password();
            // The first byte of the binary protocol, which is not supported: close, as memcached
            // does in its text-only mode.
            if input[0] == 0x80 {
                return (input.len(), Pause::Close);
            }
        }
        let mut done = 0;
        loop {
            let dropped = self.skip.min(input.len() - done);
            self.skip -= dropped;
            done += dropped;
            if done == input.len() {
                self.scanned = 0;
                return (done, Pause::Input(1));
            }
            let (consumed, pause) = self.run_batch(ctx, &input[done..], out);
            let here = consumed.min(input.len() - done);
            done += here;
            self.skip = consumed - here;
            if let Some(pause) = pause {
                return (done, pause);
            }
        }
    }

    /// Decodes the next requests, prefetches the memory that they need, and executes them. The
    /// returned number of bytes may exceed `input`.
    fn run_batch(
        &mut self,
        ctx: &mut SessionContext<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Option<Pause>) {
        let ran = match ctx.cluster {
            None => self.run_fast_batch(ctx, input, out),
            Some(_) => self.run_cluster_batch(ctx, input, out),
        };
        if let Some(ran) = ran {
            return ran;
        }
        let mut keys = std::mem::take(&mut ctx.exec.scratch.keys);
        keys.resize_with(BATCH_REQUESTS, Vec::new);
        let ran = self.run_batch_with(ctx, &mut keys, input, out);
        ctx.exec.scratch.keys = keys;
        ran
    }

    /// [`Session::run_batch`] on the general path, with `keys` as room for the counted keys.
    fn run_batch_with(
        &mut self,
        ctx: &mut SessionContext<'_>,
        keys: &mut [Vec<u8>],
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Option<Pause>) {
        let mut batch: ArrayVec<BatchRequest<'_>, BATCH_REQUESTS> = ArrayVec::new();
        let bounds = ctx.exec.service.shards().bounds();
        let mut ahead = 0;
        let mut end = None;
        while ahead < input.len() && !batch.is_full() {
            if let Some((fast, consumed)) = decode_fast_outlined(&input[ahead..], bounds) {
                batch.push(BatchRequest { request: AnyRequest::Fast(fast), consumed });
                ahead += consumed;
                continue;
            }
            let scanned = if batch.is_empty() { self.scanned } else { 0 };
            match decode(&input[ahead..], scanned, bounds) {
                Ok(Decoded::Request { request, consumed }) => {
                    batch.push(BatchRequest { request: AnyRequest::General(request), consumed });
                    ahead += consumed;
                }
                Ok(Decoded::Incomplete { scanned, needed }) => {
                    end = Some(BatchEnd::Incomplete { scanned, needed });
                    break;
                }
                Err(refusal) => {
                    end = Some(BatchEnd::Refused(refusal));
                    break;
                }
            }
        }
        let keys = look_up_all(ctx, &batch, keys);
        let hashes: ArrayVec<u64, BATCH_REQUESTS> = keys.iter().map(|key| key.hash).collect();
        let mut locked = None;
        let mut entries = batch.iter().zip(&keys);
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
        let mut done = 0;
        for (position, (BatchRequest { request: decoded, consumed }, key)) in
            batch.iter().zip(&keys).enumerate()
        {
            if let Some(pause) = pause_before(ctx, out) {
                return (done, Some(pause));
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
                let answer = match decoded {
                    AnyRequest::Fast(fast) => self.answer(ctx, &fast.request(), raw, key, out),
                    AnyRequest::General(request) => self.answer(ctx, request, raw, key, out),
                };
                // The request may have been `stats detail on`, or may now wait for other nodes.
                if !self.may_use_fast(ctx) && (serving.is_none() || !self.replies.is_empty()) {
                    locked = None;
                }
                answer
            };
            if !matches!(answer, RequestOutcome::Given) {
                return end_after(answer, done, done + consumed);
            }
            ctx.requests -= 1;
            self.scanned = 0;
            done += consumed;
        }
        match end {
            None => (done, None),
            Some(BatchEnd::Incomplete { scanned, needed }) => {
                self.scanned = scanned;
                (done, Some(Pause::Input(needed)))
            }
            Some(BatchEnd::Refused(refusal)) => {
                if let Some(pause) = pause_before(ctx, out) {
                    return (done, Some(pause));
                }
                if !self.replies.is_empty() {
                    return (done, Some(Pause::Peers));
                }
                if refusal.error == ProtocolError::Close {
                    return (input.len(), Some(Pause::Close));
                }
                self.refuse(ctx, &refusal, out);
                ctx.requests -= 1;
                self.scanned = 0;
                (done + refusal.consumed, refusal.closes.then_some(Pause::Close))
            }
        }
    }

    /// Returns whether the session drops the rest of a value.
    pub(crate) fn drops_input(&self) -> bool {
        self.skip > 0
    }

    /// Returns whether requests may use the fast path (`fast`).
    fn may_use_fast(&self, ctx: &SessionContext<'_>) -> bool {
        self.authenticated && ctx.cluster.is_none() && !ctx.exec.service.notes_prefixes()
    }

    /// Executes any request; `raw` holds its bytes, as far as they have arrived.
    fn answer(
        &mut self,
        ctx: &mut SessionContext<'_>,
        request: &Request<'_>,
        raw: &[u8],
        key: &KeyLookup<'_>,
        out: &mut Vec<u8>,
    ) -> RequestOutcome {
        if ctx.large_left == 0
            && let Some(name) = retrieved_key(request)
            && ctx.must_wait(key.hash, name)
        {
            return RequestOutcome::Later;
        }
        if ctx.cluster.is_some() {
            return self.answer_in_cluster(ctx, request, raw, key, out);
        }
        if !self.authenticated {
            return self.authenticate(&ctx.exec, request, out);
        }
        match request {
            Request::Command { command, form } => {
                ctx.exec.one_key(command, form, key, out);
                RequestOutcome::Given
            }
            Request::Retrieve { keys, with_cas, touch } => {
                let retrieval = Retrieval { keys: *keys, with_cas: *with_cas, touch: *touch };
                self.retrieve(ctx, retrieval, key, out)
            }
            Request::TakeMany { cost, keys, peek, id, quiet } => {
                let many = TakeMany { cost: *cost, keys: *keys, peek: *peek, id: *id };
                ctx.exec.take_many(many, *quiet, out);
                RequestOutcome::Given
            }
            Request::Admin { admin: Admin::Quit, .. } => RequestOutcome::Close,
            Request::Admin { admin, quiet } => ctx.exec.admin(*admin, *quiet, out),
        }
    }
}

fn is_large(value_len: Option<usize>) -> bool {
    value_len.is_some_and(|len| len > LARGE_BYTES)
}

/// Returns the key of a request whose reply holds its value; the first of several keys.
fn retrieved_key<'a>(request: &'a Request<'_>) -> Option<&'a [u8]> {
    match request {
        Request::Retrieve { keys, .. } => keys.first(),
        Request::Command { command, .. } => match command.operation {
            Operation::Get(_) => Some(command.key.as_bytes()),
            _ => None,
        },
        _ => None,
    }
}

/// Requests decoded before the first of them is executed. As many cache misses overlap as the
/// processor supports, and the requests are still in its first-level cache.
const BATCH_REQUESTS: usize = BATCH_SHARDS_MAX;

/// A request of a batch.
struct BatchRequest<'a> {
    request: AnyRequest<'a>,
    consumed: usize,
}

enum AnyRequest<'a> {
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
            Self::General(Request::Retrieve { keys, .. } | Request::TakeMany { keys, .. }) => {
                keys.first()
            }
            Self::General(Request::Admin { .. }) => None,
        }
    }
}

/// [`decode_fast`], not inlined: `fast_batch` alone has it inlined.
#[inline(never)]
fn decode_fast_outlined(input: &[u8], bounds: Bounds) -> Option<(FastRequest<'_>, usize)> {
    decode_fast(input, bounds)
}

/// Looks up the first key of each request; `counted` has room for each key that a limit derives.
#[inline]
fn look_up_all<'a>(
    ctx: &SessionContext<'a>,
    batch: &'a [BatchRequest<'_>],
    counted: &'a mut [Vec<u8>],
) -> ArrayVec<KeyLookup<'a>, BATCH_REQUESTS> {
    if ctx.cluster.is_some() && ctx.exec.active_limits.limits().is_empty() {
        return hash_all(ctx, batch);
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
    batch.iter().zip(counted).map(look_up).collect()
}

/// [`look_up_all`] without limits: in a cluster, hashing all keys at once is cheaper.
fn hash_all<'a>(
    ctx: &SessionContext<'a>,
    batch: &'a [BatchRequest<'_>],
) -> ArrayVec<KeyLookup<'a>, BATCH_REQUESTS> {
    let shards = ctx.exec.service.shards();
    let keys: ArrayVec<&[u8], BATCH_REQUESTS> =
        batch.iter().map(|entry| entry.request.first_key().unwrap_or_default()).collect();
    let mut hashes = [0; BATCH_REQUESTS];
    shards.hash_all(&keys, &mut hashes[..keys.len()]);
    let hashes = hashes.into_iter().take(keys.len());
    let lookup_of = |hash| KeyLookup { hash, key_limit: Ok(None) };
    hashes.inspect(|hash| shards.prefetch_shard(*hash)).map(lookup_of).collect()
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
fn answer_with(
    ctx: &mut SessionContext<'_>,
    engine: &mut Engine,
    decoded: &AnyRequest<'_>,
    key: &KeyLookup<'_>,
    out: &mut Vec<u8>,
) -> bool {
    match decoded {
        AnyRequest::Fast(fast) => ctx.exec.answer_fast(engine, fast, key, out),
        AnyRequest::General(Request::Command { command, form }) => {
            let is_put_off = ctx.large_left == 0
                && matches!(command.operation, Operation::Get(_))
                && is_large(engine.value_len(key.hash, command.key.as_bytes()));
            !is_put_off && ctx.exec.command_at(engine, command, form, key.hash, out)
        }
        AnyRequest::General(_) => false,
    }
}

fn pause_before(ctx: &SessionContext<'_>, out: &[u8]) -> Option<Pause> {
    if out.len() >= REPLY_BYTES_HIGH {
        return Some(Pause::Replies);
    }
    if ctx.requests == 0 {
        ctx.exec.counters.conn_yields.add(1);
        return Some(Pause::Turn);
    }
    None
}

/// Returns the end of a batch that stops after this outcome of the request at `start..end`, and
/// the pause.
fn end_after(outcome: RequestOutcome, start: usize, end: usize) -> (usize, Option<Pause>) {
    match outcome {
        RequestOutcome::Given => (end, None),
        RequestOutcome::Partly => (start, Some(Pause::Replies)),
        RequestOutcome::NotYet => (start, Some(Pause::Peers)),
        RequestOutcome::Later => (start, Some(Pause::Turn)),
        RequestOutcome::Delayed(at_ms) => (start, Some(Pause::Delay(at_ms))),
        RequestOutcome::Close => (end, Some(Pause::Close)),
    }
}
