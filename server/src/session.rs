//! One client's session as a function: bytes in, bytes out.
//!
//! Here: the choice of the batch loop, and the execution of one request. Not here: sockets
//! (`connection`), the state that all clients share (`service`), the loops (`batch`,
//! `cluster_batch`), retrievals (`retrieve`), requests in a cluster (`dispatch`).

mod batch;
mod cluster_batch;
mod context;
mod dispatch;
mod login;
mod refuse;
mod retrieve;
mod samples;

use protocol::{Admin, Operation, Request};

use crate::commands::context::RequestOutcome;
use crate::commands::lookup::KeyLookup;
use crate::node::reply_queue::ReplyQueue;
use crate::shards::BATCH_SHARDS_MAX;

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
        if ctx.cluster.is_some()
            && let Some(ran) = self.run_cluster_batch(ctx, input, out)
        {
            return ran;
        }
        if self.may_use_fast(ctx) && ctx.exec.active_limits.limits().is_empty() {
            return self.run_plain_batch(ctx, input, out);
        }
        let mut keys = std::mem::take(&mut ctx.exec.scratch.keys);
        keys.resize_with(BATCH_REQUESTS, Vec::new);
        let ran = self.run_any_batch(ctx, &mut keys, input, out);
        ctx.exec.scratch.keys = keys;
        ran
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
            Request::TakeMany { many, quiet } => {
                ctx.exec.take_many(*many, *quiet, out);
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
