//! One client's conversation as a function: bytes in, bytes out.
//!
//! Here: decoding what was read, applying it, encoding the answers, and where a batch stops. Not
//! here: sockets (`connection`), the state all clients share (`service`), retrievals (`retrieve`), the
//! short way of the commonest requests (`quick`).

mod login;
mod looked_up;
mod refuse;
mod retrieve;
mod served;
mod short;

use std::hint::cold_path;

use arrayvec::ArrayVec;
use engine::{Engine, Now};
use protocol::{
    Admin, BOUND_POLICY, Bounds, Decoded, Keys, Operation, ProtocolError, Quick, Refusal, Request,
    decode, quick,
};

use crate::connections::ConnectionInfo;
use crate::counters::Counters;
use crate::limits::InForce;
use crate::node::front::Front;
use crate::node::replies::Replies;
use crate::node::serving::Serving;
use crate::plain::has_a_way_of_its_own;
use crate::quick::may_be_held;
use crate::scratch::Scratch;
use crate::service::Service;
use crate::shards::{HELD_MAX, Held};

pub(crate) use self::looked_up::{LookedUp, counted_key, look_up, look_up_in};
pub(crate) use self::retrieve::Retrieval;
use self::served::answer_served;

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
    /// Batches left that skip the path of `served`.
    batches_apart: u8,
    /// What other nodes are asked for it.
    pub(crate) replies: Replies,
}

/// What a run works with.
pub struct Round<'a> {
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
    pub in_force: &'a InForce,
    /// Memory of the worker's.
    pub scratch: &'a mut Scratch,
    /// Who the client is, if it has a connection.
    pub(crate) client: Option<&'a ConnectionInfo>,
    /// Bytes of large values that may still be answered before others have their turn.
    pub(crate) large_left: usize,
    /// The key alone is charged, whatever its limit says of parents.
    pub(crate) alone: bool,
    /// The way to other nodes, in a cluster.
    pub(crate) front: Option<&'a mut Front>,
}

impl<'a> Round<'a> {
    /// A round of worker 0, without a bound on its requests, of a server by itself.
    #[must_use]
    pub fn new(
        service: &'a Service,
        counters: &'a Counters,
        now: Now,
        in_force: &'a InForce,
        scratch: &'a mut Scratch,
    ) -> Self {
        let (requests, worker) = (usize::MAX, 0);
        let (client, large_left) = (None, usize::MAX);
        let (alone, front) = (false, None);
        Self {
            service,
            counters,
            now,
            requests,
            worker,
            in_force,
            scratch,
            client,
            large_left,
            alone,
            front,
        }
    }

    /// A round about one key of a cluster: others are other owners' to charge.
    pub(crate) fn of_key(
        service: &'a Service,
        counters: &'a Counters,
        now: Now,
        in_force: &'a InForce,
        scratch: &'a mut Scratch,
        worker: usize,
    ) -> Self {
        Self { worker, alone: true, ..Self::new(service, counters, now, in_force, scratch) }
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
        round: &mut Round<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Pause) {
        if !self.started && !input.is_empty() {
            self.started = true;
            self.authenticated |= !round.service.asks_password();
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
            let (consumed, pause) = self.run_batch(round, &input[done..], out);
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
        round: &mut Round<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Option<Pause>) {
        let ran = match round.front {
            None => self.run_short(round, input, out),
            Some(_) => self.run_served(round, input, out),
        };
        if let Some(ran) = ran {
            return ran;
        }
        let mut keys = std::mem::take(&mut round.scratch.keys);
        keys.resize_with(BATCH_REQUESTS, Vec::new);
        let ran = self.run_batch_with(round, &mut keys, input, out);
        round.scratch.keys = keys;
        ran
    }

    /// As [`Session::run_batch`], with room for the counted keys of the requests.
    fn run_batch_with(
        &mut self,
        round: &mut Round<'_>,
        keys: &mut [Vec<u8>],
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Option<Pause>) {
        let mut batch: ArrayVec<Decided<'_>, BATCH_REQUESTS> = ArrayVec::new();
        let bounds = round.service.shards().bounds();
        let mut ahead = 0;
        let mut end = None;
        while ahead < input.len() && !batch.is_full() {
            if let Some((quick, consumed)) = quick_apart(&input[ahead..], bounds) {
                batch.push(Decided { asked: Asked::Quick(quick), consumed });
                ahead += consumed;
                continue;
            }
            let scanned = if batch.is_empty() { self.scanned } else { 0 };
            match decode(&input[ahead..], scanned, bounds) {
                Ok(Decoded::Request { request, consumed }) => {
                    batch.push(Decided { asked: Asked::Other(request), consumed });
                    ahead += consumed;
                }
                Ok(Decoded::Incomplete { scanned, needed }) => {
                    end = Some(End::Incomplete { scanned, needed });
                    break;
                }
                Err(refusal) => {
                    end = Some(End::Refused(refusal));
                    break;
                }
            }
        }
        let keys = look_up_all(round, &batch, keys);
        let hashes: ArrayVec<u64, BATCH_REQUESTS> = keys.iter().map(|key| key.hash).collect();
        let mut held = None;
        let mut asked = batch.iter().zip(&keys);
        let serving = if round.front.is_some() && self.replies.is_empty() {
            cold_path();
            self.serving(round)
        } else {
            None
        };
        let may_serve =
            |serving: &Serving<'_>| hashes.first().is_some_and(|hash| serving.may_serve(*hash));
        let may_be_quick = self.may_be_quick(round) || serving.as_ref().is_some_and(may_serve);
        if may_be_quick && asked.any(|(decided, key)| decided.asked.is_quick(key)) {
            held = Some(round.service.shards().hold(&hashes));
        } else if batch.len() > 1 {
            round.prefetch(hashes.iter().copied());
        }
        let mut done = 0;
        for (position, (Decided { asked, consumed }, key)) in batch.iter().zip(&keys).enumerate() {
            if let Some(pause) = pause_before(round, out) {
                return (done, Some(pause));
            }
            let answer = if let Some(held) = &mut held
                && answer_held(round, serving.as_ref(), (held, position), asked, key, out)
            {
                Answer::Given
            } else {
                // It may wait for other locks.
                if let Some(held) = &mut held {
                    held.release();
                }
                let words = &input[done..(done + consumed).min(input.len())];
                let answer = match asked {
                    Asked::Quick(quick) => self.answer(round, &quick.request(), words, key, out),
                    Asked::Other(request) => self.answer(round, request, words, key, out),
                };
                // It may have been `stats detail on`, or wait for other nodes.
                if !self.may_be_quick(round) && (serving.is_none() || !self.replies.is_empty()) {
                    held = None;
                }
                answer
            };
            if !matches!(answer, Answer::Given) {
                return answer.ends_at(done, done + consumed);
            }
            round.requests -= 1;
            self.scanned = 0;
            done += consumed;
        }
        match end {
            None => (done, None),
            Some(End::Incomplete { scanned, needed }) => {
                self.scanned = scanned;
                (done, Some(Pause::Input(needed)))
            }
            Some(End::Refused(refusal)) => {
                if let Some(pause) = pause_before(round, out) {
                    return (done, Some(pause));
                }
                if !self.replies.is_empty() {
                    return (done, Some(Pause::Peers));
                }
                if refusal.error == ProtocolError::Close {
                    return (input.len(), Some(Pause::Close));
                }
                self.refuse(round, &refusal, out);
                round.requests -= 1;
                self.scanned = 0;
                (done + refusal.consumed, refusal.closes.then_some(Pause::Close))
            }
        }
    }

    /// Whether it drops the rest of a value.
    pub(crate) fn drops_input(&self) -> bool {
        self.skip > 0
    }

    /// Whether requests may be answered in the short way (`quick`).
    fn may_be_quick(&self, round: &Round<'_>) -> bool {
        self.authenticated && round.front.is_none() && !round.service.notes_prefixes()
    }

    /// Answers any request; `words` are its bytes, as far as they have come.
    fn answer(
        &mut self,
        round: &mut Round<'_>,
        request: &Request<'_>,
        words: &[u8],
        key: &LookedUp<'_>,
        out: &mut Vec<u8>,
    ) -> Answer {
        if round.large_left == 0
            && let Some(name) = retrieved_key(request)
            && round.must_wait(key.hash, name)
        {
            return Answer::Later;
        }
        if round.front.is_some() {
            return self.take(round, request, words, key, out);
        }
        if !self.authenticated {
            return self.authenticate(round, request, out);
        }
        match request {
            Request::Command { command, form } => {
                round.one_key(command, form, key, out);
                Answer::Given
            }
            Request::Retrieve { keys, with_cas, touch } => {
                let retrieval = Retrieval { keys: *keys, with_cas: *with_cas, touch: *touch };
                self.retrieve(round, retrieval, key, out)
            }
            Request::TakeMany { cost, keys, peek, id, quiet } => {
                let many = TakeMany { cost: *cost, keys: *keys, peek: *peek, id: *id };
                round.take_many(many, *quiet, out);
                Answer::Given
            }
            Request::Admin { admin: Admin::Quit, .. } => Answer::Close,
            Request::Admin { admin, quiet } => round.admin(*admin, *quiet, out),
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
const BATCH_REQUESTS: usize = HELD_MAX;

/// A request of a batch.
struct Decided<'a> {
    asked: Asked<'a>,
    consumed: usize,
}

enum Asked<'a> {
    Quick(Quick<'a>),
    Other(Request<'a>),
}

impl Asked<'_> {
    /// Whether it may be answered while the shard of its key is held.
    #[inline]
    fn is_quick(&self, key: &LookedUp<'_>) -> bool {
        match self {
            Self::Quick(quick) => is_quick(quick, key),
            Self::Other(Request::Command { command, form }) => {
                key.is_unbound() && !has_a_way_of_its_own(command, form)
            }
            Self::Other(_) => false,
        }
    }

    fn first_key(&self) -> Option<&[u8]> {
        match self {
            Self::Quick(quick) => Some(quick.key()),
            Self::Other(Request::Command { command, .. }) => Some(command.key.as_bytes()),
            Self::Other(Request::Retrieve { keys, .. } | Request::TakeMany { keys, .. }) => {
                keys.first()
            }
            Self::Other(Request::Admin { .. }) => None,
        }
    }
}

/// Whether one of the commonest requests may be answered while the shard of its key is held.
#[inline]
pub(crate) fn is_quick(quick: &Quick<'_>, key: &LookedUp<'_>) -> bool {
    let knows_limits = matches!(
        quick,
        Quick::Count { decrement: false, .. } | Quick::Take { policy: BOUND_POLICY, .. }
    );
    (knows_limits && key.is_bound_alone()) || (key.is_unbound() && may_be_held(quick))
}

/// As [`quick`], as a call: it is inlined in `short` alone.
#[inline(never)]
fn quick_apart(input: &[u8], bounds: Bounds) -> Option<(Quick<'_>, usize)> {
    quick(input, bounds)
}

/// Looks the first keys of all requests up; `counted` has room for each key that a limit makes.
#[inline]
fn look_up_all<'a>(
    round: &Round<'a>,
    batch: &'a [Decided<'_>],
    counted: &'a mut [Vec<u8>],
) -> ArrayVec<LookedUp<'a>, BATCH_REQUESTS> {
    if round.front.is_some() && round.in_force.limits().is_empty() {
        return hash_all(round, batch);
    }
    let mut hash = 0;
    let look_up = |(decided, counted): (&'a Decided<'_>, _)| match decided.asked.first_key() {
        Some(key) => {
            let looked = look_up(round, key, counted);
            hash = looked.hash;
            looked
        }
        // As the key before it: no further shard is held for what has none.
        None => LookedUp { hash, bound: Ok(None) },
    };
    batch.iter().zip(counted).map(look_up).collect()
}

/// As [`look_up_all`], where there are no limits: in a cluster keys are cheaper to hash together.
fn hash_all<'a>(
    round: &Round<'a>,
    batch: &'a [Decided<'_>],
) -> ArrayVec<LookedUp<'a>, BATCH_REQUESTS> {
    let shards = round.service.shards();
    let keys: ArrayVec<&[u8], BATCH_REQUESTS> =
        batch.iter().map(|decided| decided.asked.first_key().unwrap_or_default()).collect();
    let mut hashes = [0; BATCH_REQUESTS];
    shards.hash_all(&keys, &mut hashes[..keys.len()]);
    let hashes = hashes.into_iter().take(keys.len());
    let looked = |hash| LookedUp { hash, bound: Ok(None) };
    hashes.inspect(|hash| shards.prefetch_shard(*hash)).map(looked).collect()
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
enum End {
    Incomplete { scanned: usize, needed: usize },
    Refused(Refusal),
}

/// Answers a request while the shard of its key is held; false if it is not answered, because it has to go
/// the long way.
#[inline]
fn answer_held(
    round: &mut Round<'_>,
    serving: Option<&Serving<'_>>,
    (held, position): (&mut Held<'_>, usize),
    asked: &Asked<'_>,
    key: &LookedUp<'_>,
    out: &mut Vec<u8>,
) -> bool {
    if !asked.is_quick(key) {
        return false;
    }
    let engine = held.engine(position, key.hash);
    let is_answered = if let Some(serving) = serving {
        cold_path();
        answer_served(round, serving, engine, asked, key, out)
    } else {
        answer_at(round, engine, asked, key, out)
    };
    held.done(position);
    is_answered
}

/// Answers a request whose shard is held; false if it has to go the long way.
#[inline]
fn answer_at(
    round: &mut Round<'_>,
    engine: &mut Engine,
    asked: &Asked<'_>,
    key: &LookedUp<'_>,
    out: &mut Vec<u8>,
) -> bool {
    match asked {
        Asked::Quick(quick) => round.answer_quickly(engine, quick, key, out),
        Asked::Other(Request::Command { command, form }) => {
            let is_put_off = round.large_left == 0
                && matches!(command.operation, Operation::Get(_))
                && is_large(engine.value_len(key.hash, command.key.as_bytes()));
            !is_put_off && round.command_at(engine, command, form, key.hash, out)
        }
        Asked::Other(_) => false,
    }
}

fn pause_before(round: &Round<'_>, out: &[u8]) -> Option<Pause> {
    if out.len() >= REPLY_BYTES_HIGH {
        return Some(Pause::Replies);
    }
    if round.requests == 0 {
        round.counters.conn_yields.add(1);
        return Some(Pause::Turn);
    }
    None
}

/// What became of one request.
pub(crate) enum Answer {
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

impl Answer {
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
