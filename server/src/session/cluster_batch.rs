//! A batch of fast-path requests in a cluster: executes those whose partition header is open, and
//! forwards the others to the owners of their keys.
//!
//! Not here: all other batches (`batch`), which give the same replies.

use arrayvec::ArrayVec;
use cluster::frames::op_flags;
use engine::Engine;
use protocol::{CONFIGURED_POLICY, FastRequest, decode_fast};

use super::batch::{AnyRequest, answer_with};
use super::samples::sample_fast;
use super::{ClusterContext, Pause, Session, SessionContext, pause_before};
use crate::commands::fast::may_run_locked;
use crate::commands::lookup::{KeyLookup, look_up_together};
use crate::node::batch::BatchOutcome;
use crate::node::router::{FastOp, OwnerRequest, Router, node_now, router_context};
use crate::node::serving::Serving;
use crate::node::state_machine::{COUNTED_ELSEWHERE, OpKind};
use crate::shards::BATCH_SHARDS_MAX;

/// With fewer fast-path requests before another one, a batch of their own does not pay.
const FAST_BATCH_MIN: usize = 8;

/// Batches that skip this path after one that needed the general path.
const GENERAL_BATCHES: u8 = 1;

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
fn read_batch<'a>(
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

/// The number of requests that were executed or forwarded, and why the batch stopped.
#[derive(Default)]
struct BatchProgress {
    count: usize,
    pause: Option<Pause>,
    /// The next request needs the general path.
    needs_general: bool,
}

/// A batch with the hashes and limits of its keys.
struct ClusterBatch<'b> {
    requests: &'b [FastBatchEntry<'b>],
    /// The hashes of the keys in `here`; of the others, the first bits at least.
    hashes: &'b [u64],
    /// The positions of the keys on open headers.
    here: u16,
    /// The limits of the keys; empty if there are no limits at all.
    lookups: &'b [KeyLookup<'b>],
    input: &'b [u8],
}

impl<'b> ClusterBatch<'b> {
    #[inline]
    fn common(&self, position: usize) -> FastOp<'b> {
        let (requests, lookups) = (self.requests, self.lookups);
        let fast = &requests[position].fast;
        FastOp { fast, hash: self.hashes[position], lookup: lookups.get(position) }
    }

    /// Returns whether the header of a request's key was open when the batch was decoded.
    #[inline]
    fn is_here(&self, position: usize) -> bool {
        self.here & 1 << position != 0
    }

    /// Returns the start of a request's line in `input`.
    fn start(&self, position: usize) -> usize {
        position.checked_sub(1).map_or(0, |before| self.requests[before].end)
    }

    /// Returns the operation that the owner of a request's key has to execute.
    fn owner_request(&self, position: usize, serving: &Serving<'_>) -> OwnerRequest<'_> {
        let from = self.start(position);
        let fast_op = self.common(position);
        let elsewhere = if fast_op.is_counted_elsewhere() { COUNTED_ELSEWHERE } else { 0 };
        OwnerRequest {
            partition: serving.partition(fast_op.hash),
            op_flags: op_flags_of(fast_op.fast) | elsewhere,
            line: &self.input[from..self.requests[position].end],
        }
    }
}

/// Returns the operation flags of a request.
fn op_flags_of(fast: &FastRequest<'_>) -> u8 {
    let read = if matches!(fast, FastRequest::Get { .. }) { op_flags::READ } else { 0 };
    OpKind::of_fast(fast) as u8 | read
}

/// [`may_run_locked`], with limits.
fn may_run_limited(fast: &FastRequest<'_>) -> bool {
    may_run_locked(fast) || matches!(fast, FastRequest::Take { policy: CONFIGURED_POLICY, .. })
}

impl Session {
    /// Executes the fast-path requests at the front of `input`, or forwards them, with the same
    /// replies as [`Session::run_batch`]. Returns `None` if the general path suits them better.
    // Not inlined: outside a cluster its stack and code must cost nothing.
    #[inline(never)]
    pub(super) fn run_cluster_batch(
        &mut self,
        ctx: &mut SessionContext<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<(usize, Option<Pause>)> {
        if self.general_batches > 0 {
            self.general_batches -= 1;
            return None;
        }
        if self.must_wait(ctx.cluster.as_ref()?.router) {
            return None;
        }
        let serving = self.serving(ctx)?;
        let shards = ctx.exec.service.shards();
        if !ctx.exec.active_limits.limits().is_empty() {
            return self.run_limited(ctx, &serving, input, out);
        }
        let mut keys: ArrayVec<&[u8], BATCH_SHARDS_MAX> = ArrayVec::new();
        let requests = read_batch(ctx, input, may_run_locked, |key| keys.push(key))?;
        let mut hashes = [0; BATCH_SHARDS_MAX];
        let hashes = &mut hashes[..keys.len()];
        shards.fronts_all(&keys, hashes);
        for front in hashes.iter() {
            serving.prefetch(*front);
        }
        let mut here = 0;
        for (position, (key, hash)) in keys.iter().zip(hashes.iter_mut()).enumerate() {
            // A forwarded request needs no hash, and no shard of this node.
            if serving.may_serve(*hash) {
                *hash = shards.hash_in(serving.partition(*hash).0, key);
                shards.prefetch_shard(*hash);
                here |= 1 << position;
            }
        }
        let batch = ClusterBatch { requests: &requests, hashes, here, lookups: &[], input };
        self.run_read(ctx, &serving, &batch, out)
    }

    /// [`Session::run_cluster_batch`] with limits.
    fn run_limited(
        &mut self,
        ctx: &mut SessionContext<'_>,
        serving: &Serving<'_>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<(usize, Option<Pause>)> {
        let requests = read_batch(ctx, input, may_run_limited, |_| ())?;
        let (shards, active_limits) = (ctx.exec.service.shards(), ctx.exec.active_limits);
        let mut counted = std::mem::take(&mut ctx.exec.scratch.keys);
        counted.resize_with(BATCH_SHARDS_MAX, Vec::new);
        let keys = requests.iter().map(|request| Some(request.fast.key()));
        let lookups: ArrayVec<KeyLookup<'_>, BATCH_SHARDS_MAX> =
            look_up_together(shards, active_limits, keys, &mut counted);
        let hashes: ArrayVec<u64, BATCH_SHARDS_MAX> =
            lookups.iter().map(|lookup| lookup.hash).collect();
        for hash in &hashes {
            serving.prefetch(*hash);
        }
        let mut here = 0;
        for (position, hash) in hashes.iter().enumerate() {
            here |= u16::from(serving.may_serve(*hash)) << position;
        }
        let (requests, hashes) = (&requests[..], &hashes[..]);
        let batch = ClusterBatch { requests, hashes, here, lookups: &lookups, input };
        let ran = self.run_read(ctx, serving, &batch, out);
        drop(lookups);
        ctx.exec.scratch.keys = counted;
        ran
    }

    fn run_read(
        &mut self,
        ctx: &mut SessionContext<'_>,
        serving: &Serving<'_>,
        batch: &ClusterBatch<'_>,
        out: &mut Vec<u8>,
    ) -> Option<(usize, Option<Pause>)> {
        let cluster = ctx.cluster.take()?;
        let router = &mut *cluster.router;
        let (mut count, mut pause) = (0, None);
        // Own and remote requests alternate within one decoded batch, without decoding it again.
        while count < batch.requests.len() && pause.is_none() && !self.replies.is_full() {
            let stretch = if batch.is_here(count) {
                self.run_here(router, ctx, serving, (batch, count), out)
            } else {
                self.forward_to_owners(router, ctx, serving, (batch, count))
            };
            count += stretch.count;
            pause = stretch.pause;
            if stretch.needs_general {
                self.general_batches = GENERAL_BATCHES;
            }
            if stretch.needs_general || stretch.count == 0 {
                break;
            }
        }
        ctx.cluster = Some(cluster);
        if ctx.exec.counters.probe.pass(count) {
            let done = &batch.requests[..count];
            sample_fast(&ctx.exec, done, batch.lookups);
        }
        if count > 0 {
            self.scanned = 0;
        }
        let done = count.checked_sub(1).map_or(0, |last| batch.requests[last].end);
        (done > 0 || pause.is_some()).then_some((done, pause))
    }

    /// Executes requests from `from` on while their partition headers are open.
    fn run_here(
        &mut self,
        router: &mut Router,
        ctx: &mut SessionContext<'_>,
        serving: &Serving<'_>,
        (batch, from): (&ClusterBatch<'_>, usize),
        out: &mut Vec<u8>,
    ) -> BatchProgress {
        let may_be_done = |position: &usize| {
            let hash = batch.hashes[*position];
            batch.common(*position).is_fast()
                && batch.is_here(*position)
                && !router.is_waiting(serving.partition(hash))
        };
        let max = (from..batch.requests.len()).take_while(may_be_done).count();
        let hashes = &batch.hashes[from..from + max];
        let input_from = batch.start(from);
        let (now, start) = (ctx.exec.now, out.len());
        let Some(mut direct) = router.begin_batch() else { return BatchProgress::default() };
        let mut locked = ctx.exec.service.shards().lock_batch(hashes);
        let (mut done, mut pause) = (0, None);
        for (place, hash) in hashes.iter().enumerate() {
            pause = pause_before(ctx, out);
            if pause.is_some() {
                break;
            }
            let position = from + place;
            let (fast_op, end) =
                (batch.common(position), batch.requests[position].end - input_from);
            let is_read = matches!(fast_op.fast, FastRequest::Get { .. });
            // Read the header only while the shard is locked.
            let Some(engine) = locked.engine_beside(place, *hash) else { break };
            let Some(placed) = serving.next(*hash, is_read) else { break };
            let Some(stream) = direct.stream_for(placed.set, is_read) else { break };
            ctx.exec.now = serving.time(placed.at);
            let key = fast_op.key();
            let ran = direct.recorder().run(
                serving,
                engine,
                (key, *hash),
                (placed, fast_op.touches()),
                out,
                |engine, out| fast_op.answer(&mut ctx.exec, engine, out),
            );
            let op_flags = op_flags_of(fast_op.fast);
            match ran {
                BatchOutcome::Done => direct.push((out.len(), end), None, op_flags),
                BatchOutcome::Changed => {
                    let name = direct.name(stream, serving.partition(*hash), serving.now());
                    direct.record(serving, key, name.map(|(_, name)| name), out);
                    direct.push((out.len(), end), name, op_flags);
                }
                BatchOutcome::ChangedGeneral => {
                    direct.record(serving, key, None, out);
                    break;
                }
                BatchOutcome::General => break,
            }
            done += 1;
            ctx.requests -= 1;
        }
        ctx.exec.now = now;
        direct.append(serving, out);
        drop(locked);
        let input = &batch.input[input_from..];
        direct.reply(serving, &mut self.replies, (input, start), out);
        router.note_served(done as u64);
        let is_apart = done < max && pause.is_none();
        BatchProgress { count: done, pause, needs_general: is_apart }
    }

    /// Forwards requests from `from` on to the owners of their keys.
    fn forward_to_owners(
        &mut self,
        router: &mut Router,
        ctx: &mut SessionContext<'_>,
        serving: &Serving<'_>,
        (batch, from): (&ClusterBatch<'_>, usize),
    ) -> BatchProgress {
        if router.is_full() {
            return BatchProgress::default();
        }
        let now = serving.now();
        let may_rest = router.may_rest(now);
        let mut run: ArrayVec<OwnerRequest<'_>, BATCH_SHARDS_MAX> = ArrayVec::new();
        let mut is_apart = false;
        for (position, hash) in batch.hashes.iter().enumerate().skip(from) {
            // A key whose owner is out of reach takes the general path, which may decide by a limit
            // at once.
            is_apart = !batch.common(position).is_fast()
                || (may_rest && router.is_resting(now, serving.partition(*hash)));
            if is_apart || batch.is_here(position) {
                break;
            }
            run.push(batch.owner_request(position, serving));
        }
        let count = run.len();
        if count > 0 {
            let place = self.replies.reserve_run(count);
            router.submit_run(&router_context(&mut ctx.exec), run.into_iter(), place);
            ctx.requests -= count;
        }
        BatchProgress { count, pause: None, needs_general: is_apart }
    }

    /// Returns the headers to serve requests from; `None` if they may not be used.
    pub(super) fn serving<'a>(&self, ctx: &SessionContext<'a>) -> Option<Serving<'a>> {
        let exec = &ctx.exec;
        let cluster = ctx.cluster.as_ref().filter(|_| self.authenticated)?;
        if exec.service.notes_prefixes() {
            return None;
        }
        let now = node_now(exec.service.clock(), exec.now);
        Serving::new(cluster.node, cluster.router.contact(), now)
    }
}

/// [`answer_with`] in a cluster, for a key whose partition has no other copy. Returns false,
/// without a reply, if the request is not served here.
// Not inlined: outside a cluster its stack and code must cost nothing.
#[inline(never)]
pub(super) fn answer_served(
    ctx: &mut SessionContext<'_>,
    serving: &Serving<'_>,
    engine: &mut Engine,
    decoded: AnyRequest<'_>,
    key: &KeyLookup<'_>,
    out: &mut Vec<u8>,
) -> bool {
    let partition = serving.partition(key.hash);
    if ctx.cluster.as_ref().is_some_and(|cluster| cluster.router.is_waiting(partition)) {
        return false;
    }
    let Some(placed) = serving.next(key.hash, false).filter(|placed| placed.set.is_empty()) else {
        return false;
    };
    let now = std::mem::replace(&mut ctx.exec.now, serving.time(placed.at));
    let is_answered =
        engine.with_unique(placed.unique(), |engine| answer_with(ctx, engine, decoded, key, out));
    ctx.exec.now = now;
    if is_answered {
        serving.header(key.hash).take(placed.at);
    }
    if let Some(ClusterContext { router, .. }) = &mut ctx.cluster {
        router.note_served(u64::from(is_answered));
    }
    is_answered
}
