//! One client's conversation as a function: bytes in, bytes out.
//!
//! Here: decoding what was read, applying it, encoding the answers, and where a batch stops. Not
//! here: sockets (`connection`), the state all clients share (`service`), retrievals (`retrieve`), the
//! short way of the commonest requests (`fast`).

mod cluster_batch;
mod fast_batch;
mod login;
mod lookup;
mod refuse;
mod retrieve;

use std::hint::cold_path;

use arrayvec::ArrayVec;
use engine::{Engine, Now};
use protocol::{
    Admin, Bounds, CONFIGURED_POLICY, DecodeError, Decoded, FastRequest, Keys, Operation,
    ProtocolError, Request, decode, decode_fast,
};

use crate::connections::ConnectionInfo;
use crate::counters::Counters;
use crate::fast::may_run_locked;
use crate::items::needs_own_lock;
use crate::limits::ActiveLimits;
use crate::node::reply_queue::ReplyQueue;
use crate::node::router::Router;
use crate::node::serving::Serving;
use crate::scratch::Scratch;
use crate::service::Service;
use crate::shards::{BATCH_SHARDS_MAX, ShardBatch};

use self::cluster_batch::answer_served;
pub(crate) use self::lookup::{KeyLookup, counted_key, look_up, look_up_in};
pub(crate) use self::retrieve::Retrieval;

/// With this many bytes of answers waiting, they are written before more is decoded.
pub const REPLY_BYTES_HIGH: usize = 64 << 10;

/// A longer value is a large one: each round answers some, so that others do not wait for many.
pub const LARGE_BYTES: usize = 64 << 10;

/// Why [`Session::run`] came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// All whole requests are answered; the next one needs this many bytes in all.
    Input(usize),
    /// The answers must be written first.
    Replies,
    /// This client has had its share: others first.
    Turn,
    /// Write the answers and hang up.
    Close,
    /// Nothing more is to be done before other nodes answer.
    Peers,
    /// The next request is to be run at this time, in milliseconds on the monotonic clock.
    Delay(u64),
}

/// What a client's conversation remembers between two reads.
#[derive(Debug, Default)]
pub struct Session {
    /// Bytes still to come that are dropped unread.
    skip: usize,
    /// Bytes at the front known to hold no line end.
    pub(crate) scanned: usize,
    /// How far into its keys the retrieval at the front is answered.
    pub(crate) answered: usize,
    /// The first byte has been seen.
    started: bool,
    /// The password was given, or none is asked for.
    pub(crate) authenticated: bool,
    /// The request at the front has waited for the node to have a place in a cluster.
    pub(crate) waited_for_start: bool,
    /// Wrong passwords that were given.
    failures: u32,
    /// Batches left that skip the path of `cluster_batch`.
    general_batches: u8,
    /// What other nodes are asked for it.
    pub(crate) replies: ReplyQueue,
}

/// What a run works with.
pub struct ExecContext<'a> {
    /// The state all clients share.
    pub service: &'a Service,
    /// This worker's figures.
    pub counters: &'a Counters,
    /// The time of the batch.
    pub now: Now,
    /// How many more requests this client may make in its turn.
    pub requests: usize,
    /// This worker's number.
    pub worker: usize,
    /// The limits of the round.
    pub active_limits: &'a ActiveLimits,
    /// Memory of the worker's.
    pub scratch: &'a mut Scratch,
    /// Who the client is, if it has a connection.
    pub(crate) client: Option<&'a ConnectionInfo>,
    /// Bytes of large values that may still be answered before others have their turn.
    pub(crate) large_left: usize,
    /// The key alone is charged, whatever its limit says of parents.
    pub(crate) alone: bool,
    /// The way to other nodes, in a cluster.
    pub(crate) router: Option<&'a mut Router>,
}

impl<'a> ExecContext<'a> {
    /// A round of worker 0, without a bound on its requests, of a server by itself.
    #[must_use]
    pub fn new(
        service: &'a Service,
        counters: &'a Counters,
        now: Now,
        active_limits: &'a ActiveLimits,
        scratch: &'a mut Scratch,
    ) -> Self {
        let (requests, worker) = (usize::MAX, 0);
        let (client, large_left) = (None, usize::MAX);
        let (alone, router) = (false, None);
        Self {
            service,
            counters,
            now,
            requests,
            worker,
            active_limits,
            scratch,
            client,
            large_left,
            alone,
            router,
        }
    }

    /// A round about one key of a cluster: others are other owners' to charge.
    pub(crate) fn of_key(
        service: &'a Service,
        counters: &'a Counters,
        now: Now,
        active_limits: &'a ActiveLimits,
        scratch: &'a mut Scratch,
        worker: usize,
    ) -> Self {
        Self { worker, alone: true, ..Self::new(service, counters, now, active_limits, scratch) }
    }

    /// Whether the value of a key has to wait until others had their turn: it is large, and large
    /// ones have had theirs. No shard may be held.
    pub(crate) fn must_wait(&self, hash: u64, key: &[u8]) -> bool {
        self.large_left == 0 && is_large(self.service.shards().value_len(hash, key))
    }

    /// Fetches the memory that keys of these hashes need.
    pub(crate) fn prefetch(&self, hashes: impl Iterator<Item = u64> + Clone) {
        self.service.shards().prefetch(hashes);
    }
}

impl Session {
    /// Answers the requests in `input` into `out`; the first number is how many bytes are done
    /// with, never more than there are.
    pub fn run(
        &mut self,
        ctx: &mut ExecContext<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Pause) {
        if !self.started && !input.is_empty() {
            self.started = true;
            self.authenticated |= !ctx.service.asks_password();
            // The binary protocol's first byte. It is not spoken here: hang up, as memcached does
            // when told to speak text alone.
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

    /// Decodes the next requests, fetches the memory they need, and answers them. The first number
    /// may reach past `input`.
    fn run_batch(
        &mut self,
        ctx: &mut ExecContext<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Option<Pause>) {
        let ran = match ctx.router {
            None => self.run_fast_batch(ctx, input, out),
            Some(_) => self.run_cluster_batch(ctx, input, out),
        };
        if let Some(ran) = ran {
            return ran;
        }
        let mut keys = std::mem::take(&mut ctx.scratch.keys);
        keys.resize_with(BATCH_REQUESTS, Vec::new);
        let ran = self.run_batch_with(ctx, &mut keys, input, out);
        ctx.scratch.keys = keys;
        ran
    }

    /// As [`Session::run_batch`], with room for the counted keys of the requests.
    fn run_batch_with(
        &mut self,
        ctx: &mut ExecContext<'_>,
        keys: &mut [Vec<u8>],
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Option<Pause>) {
        let mut batch: ArrayVec<BatchRequest<'_>, BATCH_REQUESTS> = ArrayVec::new();
        let bounds = ctx.service.shards().bounds();
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
        let mut asked = batch.iter().zip(&keys);
        let serving = if ctx.router.is_some() && self.replies.is_empty() {
            cold_path();
            self.serving(ctx)
        } else {
            None
        };
        let may_serve =
            |serving: &Serving<'_>| hashes.first().is_some_and(|hash| serving.may_serve(*hash));
        let may_be_quick = self.may_use_fast(ctx) || serving.as_ref().is_some_and(may_serve);
        if may_be_quick && asked.any(|(decided, key)| decided.request.is_fast(key)) {
            locked = Some(ctx.service.shards().lock_batch(&hashes));
        } else if batch.len() > 1 {
            ctx.prefetch(hashes.iter().copied());
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
                // It may wait for other locks.
                if let Some(locked) = &mut locked {
                    locked.release();
                }
                let raw = &input[done..(done + consumed).min(input.len())];
                let answer = match decoded {
                    AnyRequest::Fast(fast) => self.answer(ctx, &fast.request(), raw, key, out),
                    AnyRequest::General(request) => self.answer(ctx, request, raw, key, out),
                };
                // It may have been `stats detail on`, or wait for other nodes.
                if !self.may_use_fast(ctx) && (serving.is_none() || !self.replies.is_empty()) {
                    locked = None;
                }
                answer
            };
            if !matches!(answer, RequestOutcome::Given) {
                return answer.ends_at(done, done + consumed);
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

    /// Whether it drops the rest of a value.
    pub(crate) fn drops_input(&self) -> bool {
        self.skip > 0
    }

    /// Whether requests may be answered in the short way (`fast`).
    fn may_use_fast(&self, ctx: &ExecContext<'_>) -> bool {
        self.authenticated && ctx.router.is_none() && !ctx.service.notes_prefixes()
    }

    /// Answers any request; `raw` are its bytes, as far as they have come.
    fn answer(
        &mut self,
        ctx: &mut ExecContext<'_>,
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
        if ctx.router.is_some() {
            return self.dispatch(ctx, request, raw, key, out);
        }
        if !self.authenticated {
            return self.authenticate(ctx, request, out);
        }
        match request {
            Request::Command { command, form } => {
                ctx.one_key(command, form, key, out);
                RequestOutcome::Given
            }
            Request::Retrieve { keys, with_cas, touch } => {
                let retrieval = Retrieval { keys: *keys, with_cas: *with_cas, touch: *touch };
                self.retrieve(ctx, retrieval, key, out)
            }
            Request::TakeMany { cost, keys, peek, id, quiet } => {
                let many = TakeMany { cost: *cost, keys: *keys, peek: *peek, id: *id };
                ctx.take_many(many, *quiet, out);
                RequestOutcome::Given
            }
            Request::Admin { admin: Admin::Quit, .. } => RequestOutcome::Close,
            Request::Admin { admin, quiet } => ctx.admin(*admin, *quiet, out),
        }
    }
}

fn is_large(value_len: Option<usize>) -> bool {
    value_len.is_some_and(|len| len > LARGE_BYTES)
}

/// The key of a request that answers its value; of several keys the first.
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

/// Requests decoded before the first of them is answered. As many cache misses are under way at
/// once as the processor has room for, and the requests still lie in its nearest cache.
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
    /// Whether it may be answered while the shard of its key is held.
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

/// Whether one of the commonest requests may be answered while the shard of its key is held.
#[inline]
pub(crate) fn is_fast(fast: &FastRequest<'_>, key: &KeyLookup<'_>) -> bool {
    let knows_limits = matches!(
        fast,
        FastRequest::Count { decrement: false, .. }
            | FastRequest::Take { policy: CONFIGURED_POLICY, .. }
    );
    (knows_limits && key.has_limit_alone()) || (key.has_no_limit() && may_run_locked(fast))
}

/// [`decode_fast`] as a call: it is inlined in `fast_batch` alone.
#[inline(never)]
fn decode_fast_outlined(input: &[u8], bounds: Bounds) -> Option<(FastRequest<'_>, usize)> {
    decode_fast(input, bounds)
}

/// Looks the first keys of all requests up; `counted` has room for each key that a limit makes.
#[inline]
fn look_up_all<'a>(
    ctx: &ExecContext<'a>,
    batch: &'a [BatchRequest<'_>],
    counted: &'a mut [Vec<u8>],
) -> ArrayVec<KeyLookup<'a>, BATCH_REQUESTS> {
    if ctx.router.is_some() && ctx.active_limits.limits().is_empty() {
        return hash_all(ctx, batch);
    }
    let mut hash = 0;
    let look_up = |(decided, counted): (&'a BatchRequest<'_>, _)| match decided.request.first_key()
    {
        Some(key) => {
            let lookup = look_up(ctx, key, counted);
            hash = lookup.hash;
            lookup
        }
        // As the key before it: no further shard is held for what has none.
        None => KeyLookup { hash, key_limit: Ok(None) },
    };
    batch.iter().zip(counted).map(look_up).collect()
}

/// As [`look_up_all`], where there are no limits: in a cluster keys are cheaper to hash together.
fn hash_all<'a>(
    ctx: &ExecContext<'a>,
    batch: &'a [BatchRequest<'_>],
) -> ArrayVec<KeyLookup<'a>, BATCH_REQUESTS> {
    let shards = ctx.service.shards();
    let keys: ArrayVec<&[u8], BATCH_REQUESTS> =
        batch.iter().map(|decided| decided.request.first_key().unwrap_or_default()).collect();
    let mut hashes = [0; BATCH_REQUESTS];
    shards.hash_all(&keys, &mut hashes[..keys.len()]);
    let hashes = hashes.into_iter().take(keys.len());
    let lookup_of = |hash| KeyLookup { hash, key_limit: Ok(None) };
    hashes.inspect(|hash| shards.prefetch_shard(*hash)).map(lookup_of).collect()
}

/// A `takem`.
#[derive(Clone, Copy)]
pub(crate) struct TakeMany<'a> {
    pub(crate) cost: u64,
    pub(crate) keys: Keys<'a>,
    pub(crate) peek: bool,
    pub(crate) id: Option<&'a [u8]>,
}

/// What ends a batch besides its being full.
enum BatchEnd {
    Incomplete { scanned: usize, needed: usize },
    Refused(DecodeError),
}

/// Answers a request while the shard of its key is held; false if it is not answered, because it has to go
/// the long way.
#[inline]
fn answer_locked(
    ctx: &mut ExecContext<'_>,
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

/// Answers a request whose shard is held; false if it has to go the long way.
#[inline]
fn answer_with(
    ctx: &mut ExecContext<'_>,
    engine: &mut Engine,
    decoded: &AnyRequest<'_>,
    key: &KeyLookup<'_>,
    out: &mut Vec<u8>,
) -> bool {
    match decoded {
        AnyRequest::Fast(fast) => ctx.answer_fast(engine, fast, key, out),
        AnyRequest::General(Request::Command { command, form }) => {
            let is_put_off = ctx.large_left == 0
                && matches!(command.operation, Operation::Get(_))
                && is_large(engine.value_len(key.hash, command.key.as_bytes()));
            !is_put_off && ctx.command_at(engine, command, form, key.hash, out)
        }
        AnyRequest::General(_) => false,
    }
}

fn pause_before(ctx: &ExecContext<'_>, out: &[u8]) -> Option<Pause> {
    if out.len() >= REPLY_BYTES_HIGH {
        return Some(Pause::Replies);
    }
    if ctx.requests == 0 {
        ctx.counters.conn_yields.add(1);
        return Some(Pause::Turn);
    }
    None
}

/// What became of one request.
pub(crate) enum RequestOutcome {
    Given,
    /// Answered in part: the same request again once the answers are written.
    Partly,
    /// Not before answers that are owed are told: the same request again then.
    NotYet,
    /// Not before others had their turn: the same request again then.
    Later,
    /// Not before this time: the same request again then.
    Delayed(u64),
    Close,
}

impl RequestOutcome {
    /// Where a batch stops that gets this answer to the request from `start` to `end`, and why.
    fn ends_at(self, start: usize, end: usize) -> (usize, Option<Pause>) {
        match self {
            Self::Given => (end, None),
            Self::Partly => (start, Some(Pause::Replies)),
            Self::NotYet => (start, Some(Pause::Peers)),
            Self::Later => (start, Some(Pause::Turn)),
            Self::Delayed(at_ms) => (start, Some(Pause::Delay(at_ms))),
            Self::Close => (end, Some(Pause::Close)),
        }
    }
}
