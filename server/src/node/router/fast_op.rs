//! Common requests of a `Forward`, which are done together on open headers.
//!
//! Here: which requests of a frame are such, their records, results and answers. Not here: all other requests (`owner`),
//! what a request does (`fast`).

use std::sync::Arc;

use arrayvec::ArrayVec;
use cluster::frames::{Forward, ForwardOp, op_flags};
use cluster::parked_reply::{Need, ParkedOp};
use cluster::replica_set::LINKS_MAX;
use engine::Engine;
use protocol::{FastRequest, decode_fast};

use super::data_plane::{DataPlane, ForwardedOps};
use super::owner::ForwardContext;
use super::{Router, RouterContext};
use crate::commands::fast::may_run_locked;
use crate::limits::ActiveLimits;
use crate::node::Node;
use crate::node::batch::{BatchOutcome, OpId, Recorder, Touches};
use crate::node::replicas::Replicas;
use crate::node::serving::Serving;
use crate::node::state_machine::{COUNTED_ELSEWHERE, OpKind};
use crate::session::{ExecContext, KeyLookup, is_fast};
use crate::shards::{BATCH_SHARDS_MAX, Shards};

/// What the replies of a batch wait for.
type Needs = ArrayVec<ArrayVec<Need, LINKS_MAX>, BATCH_SHARDS_MAX>;

/// Requests of a frame from a place in it on.
#[derive(Clone, Copy)]
pub(super) struct FrameRest<'a> {
    pub(super) head: ForwardContext<'a>,
    /// All requests of the frame.
    pub(super) requests: &'a [ForwardOp],
    /// Where these begin.
    pub(super) place: usize,
    /// The first place whose answer was not said yet.
    pub(super) first: u16,
}

/// One of the commonest requests, and what was found out about its key.
#[derive(Clone, Copy)]
pub(crate) struct FastOp<'b> {
    pub(crate) fast: &'b FastRequest<'b>,
    /// Of the key as it is counted.
    pub(crate) hash: u64,
    /// What limits say of the key; none where there are no limits at all.
    pub(crate) lookup: Option<&'b KeyLookup<'b>>,
}

impl<'b> FastOp<'b> {
    /// Whether it may be done while shards are held.
    #[inline]
    pub(crate) fn is_fast(self) -> bool {
        match self.lookup {
            None => may_run_locked(self.fast),
            Some(lookup) => is_fast(self.fast, lookup),
        }
    }

    /// The key that it counts under.
    #[inline]
    pub(crate) fn key(self) -> &'b [u8] {
        let own = self.fast.key();
        self.lookup.map_or(own, |lookup| lookup.counted(own))
    }

    /// Whether that is another key than the client wrote.
    pub(crate) fn is_counted_elsewhere(self) -> bool {
        self.key() != self.fast.key()
    }

    /// How much it may change.
    #[inline]
    pub(crate) fn touches(self) -> Touches {
        if self.lookup.is_some_and(|lookup| !lookup.has_no_limit()) {
            return Touches::Item;
        }
        match self.fast {
            FastRequest::Get { .. } => Touches::Nothing,
            FastRequest::Count { .. } => Touches::Count,
            FastRequest::Set { .. } | FastRequest::Take { .. } => Touches::Item,
        }
    }

    /// Does it and appends its reply; false: it has to go the long way.
    #[inline]
    pub(crate) fn answer(
        self,
        ctx: &mut ExecContext<'_>,
        engine: &mut Engine,
        out: &mut Vec<u8>,
    ) -> bool {
        match self.lookup {
            None => ctx.answer_without_limit(engine, self.fast, self.hash, out),
            Some(lookup) => ctx.answer_fast(engine, self.fast, lookup, out),
        }
    }
}

/// A common request of a frame.
struct FrameOp<'a> {
    fast: FastRequest<'a>,
    /// Where its line ends.
    end: usize,
    hash: u64,
    lookup: Option<KeyLookup<'a>>,
}

impl FrameOp<'_> {
    fn common(&self) -> FastOp<'_> {
        FastOp { fast: &self.fast, hash: self.hash, lookup: self.lookup.as_ref() }
    }
}

/// Whether a request is one that a batch on open headers may do.
pub(super) fn is_plain(request: ForwardOp) -> bool {
    request.op_flags & op_flags::AGAIN == 0
        && OpKind::of_bits(request.op_flags).is_some_and(OpKind::is_of_client)
}

impl FrameRest<'_> {
    fn request(&self, position: usize) -> &ForwardOp {
        &self.requests[self.place + position]
    }

    fn name(&self, position: usize) -> OpId {
        let Forward { stream, first, done, .. } = *self.head.forward;
        OpId { stream, first, done, number: first + (self.place + position) as u64 }
    }

    fn forwarded_ops(&self, first: u16) -> ForwardedOps {
        ForwardedOps {
            source: self.head.source,
            sending: self.head.forward.sending,
            first,
            left: 0,
        }
    }
}

impl Router {
    /// Does as many requests as are common ones on open headers, up to a batch; how many it has done. `lines` begins with the
    /// first one's line.
    pub(super) fn serve_common(
        &mut self,
        router_ctx: &mut RouterContext<'_>,
        serving: &Serving<'_>,
        rest: &mut FrameRest<'_>,
        lines: &mut &[u8],
    ) -> usize {
        let node = Arc::clone(&self.node);
        let (Some(keyspace), Some(plane)) = (node.keyspace(), self.plane.as_deref_mut()) else {
            return 0;
        };
        let mut counted = std::mem::take(&mut router_ctx.scratch.keys);
        counted.resize_with(BATCH_SHARDS_MAX, Vec::new);
        let shards = router_ctx.service.shards();
        let batch = read(shards, router_ctx.active_limits, serving, rest, lines, &mut counted);
        let mut texts = std::mem::take(&mut plane.texts);
        texts.clear();
        let ends = plane.perform(
            router_ctx,
            (&node, &keyspace.replicas),
            serving,
            rest,
            &batch,
            &mut texts,
        );
        let done = ends.len();
        if let Some(last) = done.checked_sub(1) {
            *lines = &lines[batch[last].end..];
            plane.answer_common((&node, router_ctx.now.mono_ns), serving, rest, &ends, &texts);
        }
        drop(batch);
        router_ctx.scratch.keys = counted;
        plane.texts = texts;
        done
    }
}

/// Reads the common requests in front of `lines`, up to a batch.
fn read<'a>(
    shards: &Shards,
    active_limits: &'a ActiveLimits,
    serving: &Serving<'_>,
    rest: &FrameRest<'_>,
    lines: &'a [u8],
    counted: &'a mut [Vec<u8>],
) -> ArrayVec<FrameOp<'a>, BATCH_SHARDS_MAX> {
    let (bounds, limits) = (shards.bounds(), active_limits.limits());
    let mut batch: ArrayVec<FrameOp<'a>, BATCH_SHARDS_MAX> = ArrayVec::new();
    let mut end = 0;
    for (request, counted) in rest.requests[rest.place..].iter().zip(counted) {
        if batch.is_full() || !is_plain(*request) {
            break;
        }
        let Some((fast, bytes)) = decode_fast(&lines[end..], bounds) else { break };
        if OpKind::of_bits(request.op_flags) != Some(OpKind::of_fast(&fast)) {
            break;
        }
        let key_limit = (!limits.is_empty()).then(|| limits.find(fast.key(), counted));
        let mut lookup = key_limit.map(|key_limit| KeyLookup { hash: 0, key_limit });
        let key = lookup.as_ref().map_or(fast.key(), |lookup| lookup.counted(fast.key()));
        let hash = shards.hash_in(request.partition.0, key);
        if let Some(lookup) = &mut lookup {
            lookup.hash = hash;
        }
        let read = FrameOp { fast, end: end + bytes, hash, lookup };
        if !is_counted_alike(read.common(), *request, shards, serving) {
            break;
        }
        end = read.end;
        shards.prefetch_shard(hash);
        serving.prefetch(hash);
        batch.push(read);
    }
    batch
}

/// Whether a request may be done on the open header of its partition: this node counts it under a key of that
/// partition, as the node in front did.
fn is_counted_alike(
    fast_op: FastOp<'_>,
    request: ForwardOp,
    shards: &Shards,
    serving: &Serving<'_>,
) -> bool {
    let is_elsewhere = fast_op.is_counted_elsewhere();
    let is_there = || serving.partition(shards.hash(fast_op.key())) == request.partition;
    fast_op.is_fast()
        && is_elsewhere == (request.op_flags & COUNTED_ELSEWHERE != 0)
        && (!is_elsewhere || is_there())
}

impl DataPlane {
    /// Does a batch, up to the first request that has to go the long way, and records it. The answers are appended to
    /// `texts`; returned is where each of them ends.
    fn perform(
        &mut self,
        router_ctx: &mut RouterContext<'_>,
        (node, copies): (&Node, &Replicas),
        serving: &Serving<'_>,
        rest: &FrameRest<'_>,
        batch: &[FrameOp<'_>],
        texts: &mut Vec<u8>,
    ) -> ArrayVec<u32, BATCH_SHARDS_MAX> {
        let mut ends = ArrayVec::new();
        if batch.is_empty() {
            return ends;
        }
        let hashes: ArrayVec<u64, BATCH_SHARDS_MAX> = batch.iter().map(|read| read.hash).collect();
        let mut locked = router_ctx.service.shards().lock_batch(&hashes);
        let Self { recorder, cache, .. } = self;
        recorder.begin();
        let mut ctx = router_ctx.exec_context();
        for (position, fast_op) in batch.iter().map(FrameOp::common).enumerate() {
            let (term, hash) = (rest.request(position).term, fast_op.hash);
            let is_read = matches!(fast_op.fast, FastRequest::Get { .. });
            // The header is looked at while the shard is held.
            let Some(engine) = locked.engine_beside(position, hash) else { break };
            let placed = serving.next(hash, is_read).filter(|placed| placed.at.term == term);
            let Some(placed) = placed else { break };
            if !is_read && !cache.may_append(node.links(), placed.set) {
                break;
            }
            ctx.now = serving.time(placed.at);
            let (key, how) = (fast_op.key(), (placed, fast_op.touches()));
            let ran = recorder.run(serving, engine, (key, hash), how, texts, |engine, out| {
                fast_op.answer(&mut ctx, engine, out)
            });
            match ran {
                BatchOutcome::Done if is_read => {}
                BatchOutcome::Done => recorder.keep(rest.name(position)),
                BatchOutcome::Changed => {
                    recorder.record(serving, key, Some(rest.name(position)), texts);
                }
                BatchOutcome::ChangedGeneral => {
                    recorder.record(serving, key, None, texts);
                    break;
                }
                BatchOutcome::General => break,
            }
            ends.push(texts.len() as u32);
        }
        recorder.finish(serving, (node.links(), cache), copies, texts);
        ends
    }

    /// Says the answers of a batch, or lets them wait. `ends` tells where each ends in `texts`.
    fn answer_common(
        &mut self,
        (node, now_ns): (&Node, u64),
        serving: &Serving<'_>,
        rest: &mut FrameRest<'_>,
        ends: &[u32],
        texts: &[u8],
    ) {
        let text_of = |at: usize| {
            let from = at.checked_sub(1).map_or(0, |before| ends[before]) as usize;
            &texts[from..ends[at] as usize]
        };
        let Self { recorder, cache, .. } = &mut *self;
        let rows = recorder.rows().iter().take(ends.len());
        let needs: Needs =
            rows.map(|row| Recorder::needs(row, serving, (node.links(), &mut *cache))).collect();
        if needs.iter().all(ArrayVec::is_empty) {
            (0..ends.len()).for_each(|at| self.answers.text(text_of(at)));
            return;
        }
        self.send_answers(node, rest.forwarded_ops(rest.first));
        let mut from = 0;
        while from < ends.len() {
            let token =
                Router::wait_for_copies(self, rest.forwarded_ops((rest.place + from) as u16));
            let mut batch = self.parked.begin(token, now_ns);
            let mut at = from;
            while at < ends.len() && batch.has_room() {
                let row = &self.recorder.rows()[at];
                let partition = serving.partition(row.hash);
                let mut op = ParkedOp::new(partition, row.at.term, rest.request(at).op_flags);
                for need in &needs[at] {
                    op.needs |= batch.need(*need);
                }
                batch.push(op, text_of(at), &[]);
                at += 1;
            }
            self.note_left(token, at - from);
            if batch.needs_nothing() {
                // Only in front of or behind others that need something.
                self.answer_at_once(node, token, &batch);
            } else {
                self.parked.park(batch);
            }
            from = at;
        }
        rest.first = (rest.place + ends.len()) as u16;
    }
}
