//! Fast requests of a `Forward` frame, which are performed together on open headers.
//!
//! Here: the fast requests of a frame, their records, results and answers. Not here: all other
//! requests (`owner`), the effect of a request (`fast`).

use std::sync::Arc;

use arrayvec::ArrayVec;
use cluster::LinkIndex;
use cluster::frames::{Forward, ForwardOp, op_flags};
use cluster::parked_reply::{Need, ParkedOp};
use engine::Engine;
use protocol::{FastRequest, decode_fast};
use tollgate_limits::OverrideBatch;

use super::data_plane::{DataPlane, ForwardedOps};
use super::owner::ForwardContext;
use super::{Router, RouterContext};
use crate::commands::context::ExecContext;
use crate::commands::fast::{is_fast, may_run_locked};
use crate::commands::lookup::KeyLookup;
use crate::limits::ActiveLimits;
use crate::node::Node;
use crate::node::batch::{BatchOutcome, OpId, OpSection, Touches};
use crate::node::operation::OpSource;
use crate::node::replicas::Replicas;
use crate::node::serving::Serving;
use crate::node::state_machine::{COUNTED_ELSEWHERE, OpKind};
use crate::shards::{BATCH_SHARDS_MAX, Shards};

/// The requests of a frame from some place on.
#[derive(Clone, Copy)]
pub(super) struct FrameRest<'a> {
    pub(super) head: ForwardContext<'a>,
    /// All requests of the frame.
    pub(super) requests: &'a [ForwardOp],
    /// The place of the first of them.
    pub(super) place: usize,
    /// The first place whose answer was not sent.
    pub(super) first: u16,
    /// The end position of the records that the collected answers follow, or 0; see
    /// `Answers::records_end`.
    pub(super) records_end: u64,
}

/// A fast request with the look-up of its key.
#[derive(Clone, Copy)]
pub(crate) struct FastOp<'b> {
    pub(crate) fast: &'b FastRequest<'b>,
    /// The hash of the counted key.
    pub(crate) hash: u64,
    /// The limits of the key; `None` if no limits are configured.
    pub(crate) lookup: Option<&'b KeyLookup<'b>>,
}

impl<'b> FastOp<'b> {
    /// Whether it may be performed while shards are held.
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

    /// Whether that key differs from the client's.
    pub(crate) fn is_counted_elsewhere(self) -> bool {
        self.key() != self.fast.key()
    }

    /// The largest change it may make.
    #[inline]
    pub(crate) fn touches(self) -> Touches {
        if self.lookup.is_some_and(|lookup| !lookup.has_no_limit()) {
            return Touches::State;
        }
        match self.fast {
            FastRequest::Get { .. } => Touches::Nothing,
            FastRequest::Count { .. } => Touches::Count,
            FastRequest::Set { .. } => Touches::Item,
            FastRequest::Take { .. } => Touches::State,
        }
    }

    /// Performs the request and appends its reply. Returns false if it needs the general path.
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

/// A fast request of a frame.
struct FrameOp<'a> {
    fast: FastRequest<'a>,
    /// The end of its line.
    end: usize,
    hash: u64,
}

/// The fast requests of a frame that are performed together.
#[derive(Default)]
struct FrameBatch<'a> {
    ops: ArrayVec<FrameOp<'a>, BATCH_SHARDS_MAX>,
    /// The lookups of their keys; empty without limits.
    lookups: ArrayVec<KeyLookup<'a>, BATCH_SHARDS_MAX>,
}

impl FrameBatch<'_> {
    fn common(&self, position: usize) -> FastOp<'_> {
        let FrameOp { fast, hash, .. } = &self.ops[position];
        FastOp { fast, hash: *hash, lookup: self.lookups.get(position) }
    }
}

/// Whether a batch on open headers may perform a request of this kind.
pub(super) fn is_plain(request: ForwardOp) -> bool {
    request.op_flags & op_flags::AGAIN == 0
        && OpKind::of_bits(request.op_flags).is_some_and(OpKind::is_of_client)
}

impl FrameRest<'_> {
    fn request(&self, position: usize) -> &ForwardOp {
        &self.requests[self.place + position]
    }

    fn section(&self) -> OpSection {
        let Forward { stream, first, done, .. } = *self.head.forward;
        OpSection { stream, first, done }
    }

    fn number(&self, position: usize) -> u64 {
        self.head.forward.first + (self.place + position) as u64
    }

    /// The operations whose answers were collected and are sent now.
    pub(super) fn take_answered(&mut self) -> ForwardedOps {
        let answered = self.ops_from_first();
        self.records_end = 0;
        answered
    }

    pub(super) fn ops_from_first(&self) -> ForwardedOps {
        ForwardedOps { records_end: self.records_end, ..self.ops_from(self.first) }
    }

    fn ops_from(&self, first: u16) -> ForwardedOps {
        ForwardedOps::new(self.head.source, self.head.forward.sending, first)
    }
}

impl Router {
    /// Performs the fast requests in front of `lines` on open headers, up to a batch, and returns
    /// their number. `lines` begins with the first request's line.
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
            *lines = &lines[batch.ops[last].end..];
            plane.answer_common((&node, router_ctx.now.mono_ns), serving, rest, &ends, &texts);
        }
        drop(batch);
        router_ctx.scratch.keys = counted;
        plane.texts = texts;
        done
    }
}

/// Reads the fast requests in front of `lines`, up to a batch.
fn read<'a>(
    shards: &Shards,
    active_limits: &'a ActiveLimits,
    serving: &Serving<'_>,
    rest: &FrameRest<'_>,
    lines: &'a [u8],
    counted: &'a mut [Vec<u8>],
) -> FrameBatch<'a> {
    let (bounds, limits) = (shards.bounds(), active_limits.limits());
    let mut batch = FrameBatch::default();
    let mut together =
        active_limits.has_large_tables().then(OverrideBatch::<BATCH_SHARDS_MAX>::default);
    let mut end = 0;
    for (request, counted) in rest.requests[rest.place..].iter().zip(counted) {
        if batch.ops.is_full() || !is_plain(*request) {
            break;
        }
        let Some((fast, bytes)) = decode_fast(&lines[end..], bounds) else { break };
        if OpKind::of_bits(request.op_flags) != Some(OpKind::of_fast(&fast)) {
            break;
        }
        let hash = if limits.is_empty() {
            shards.hash_in(request.partition.0, fast.key())
        } else {
            let key_limit = match &mut together {
                None => limits.find(fast.key(), counted),
                Some(_) => limits.find_limit(fast.key(), counted),
            };
            let mut lookup = KeyLookup { hash: 0, key_limit };
            if let Some(overrides) = &mut together {
                overrides.add(lookup.found(), None);
            }
            let hash = shards.hash_in(request.partition.0, lookup.counted(fast.key()));
            lookup.hash = hash;
            batch.lookups.push(lookup);
            hash
        };
        batch.ops.push(FrameOp { fast, end: end + bytes, hash });
        if !is_counted_alike(batch.common(batch.ops.len() - 1), *request, shards, serving) {
            batch.ops.pop();
            break;
        }
        end += bytes;
        shards.prefetch_shard(hash);
        serving.prefetch(hash);
    }
    if let Some(overrides) = together {
        overrides.prefetch_texts(&batch.lookups, KeyLookup::found);
        overrides.apply(&mut batch.lookups, KeyLookup::found_mut);
    }
    batch
}

/// The end position of the records that the answers of a batch may follow at once; 0 if the answers
/// wait for nothing. `None`, so that they are parked, if some operation has another mandatory copy
/// than the one at the other end of `source`, or if that node is too old for such answers.
fn records_end<'a>(
    source: OpSource,
    needs: &[Need],
    mut mandatory: impl Iterator<Item = &'a [LinkIndex]>,
    takes_answers_behind_records: impl FnOnce(LinkIndex) -> bool,
) -> Option<u64> {
    let Some(end) = needs.iter().map(|need| need.position).max() else { return Some(0) };
    let OpSource::Link(link) = source else { return None };
    (mandatory.all(|links| links == [link]) && takes_answers_behind_records(link)).then_some(end)
}

/// Whether a request may be performed on the open header of its partition: this node counts it
/// under a key of that partition, as the sending node did.
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
    /// Performs a batch, up to the first request that needs the general path, and records it.
    /// Appends the replies to `texts` and returns their ends.
    fn perform(
        &mut self,
        router_ctx: &mut RouterContext<'_>,
        (node, copies): (&Node, &Replicas),
        serving: &Serving<'_>,
        rest: &FrameRest<'_>,
        batch: &FrameBatch<'_>,
        texts: &mut Vec<u8>,
    ) -> ArrayVec<u32, BATCH_SHARDS_MAX> {
        let mut ends = ArrayVec::new();
        if batch.ops.is_empty() {
            return ends;
        }
        let hashes: ArrayVec<u64, BATCH_SHARDS_MAX> = batch.ops.iter().map(|op| op.hash).collect();
        let mut locked = router_ctx.service.shards().lock_batch(&hashes);
        let Self { recorder, cache, .. } = self;
        recorder.begin();
        let section = recorder.section(rest.section());
        let mut ctx = router_ctx.exec_context();
        for position in 0..batch.ops.len() {
            let fast_op = batch.common(position);
            let (term, hash) = (rest.request(position).term, fast_op.hash);
            let is_read = matches!(fast_op.fast, FastRequest::Get { .. });
            // The header is read while the shard is held.
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
            let name = OpId { section, number: rest.number(position) };
            match ran {
                BatchOutcome::Done if is_read => {}
                BatchOutcome::Done => recorder.keep(name),
                BatchOutcome::Changed => {
                    recorder.record(serving, (node.links(), &mut *cache), key, Some(name), texts);
                }
                BatchOutcome::ChangedGeneral => {
                    recorder.record(serving, (node.links(), &mut *cache), key, None, texts);
                    break;
                }
                BatchOutcome::General => break,
            }
            ends.push(texts.len() as u32);
        }
        recorder.finish(serving, (node.links(), cache), copies, texts);
        ends
    }

    /// Prepares for answers that follow records up to `records_end`, or none if it is 0. Sends the
    /// collected answers if they are of the other kind: the receiver may have refused records of a
    /// partition whose answers follow none.
    pub(super) fn begin_answers(
        &mut self,
        node: &Node,
        rest: &mut FrameRest<'_>,
        records_end: u64,
    ) {
        if (records_end == 0) != (rest.records_end == 0) {
            self.send_answers(node, rest.take_answered());
            rest.first = rest.place as u16;
        }
        rest.records_end = rest.records_end.max(records_end);
    }

    /// Sends the answers of a batch, or parks them. `ends` has the end of each in `texts`.
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
        let needs = recorder.needs(ends.len(), serving, (node.links(), cache));
        let rows = &recorder.rows()[..ends.len()];
        let mandatory = rows.iter().map(|row| row.set.mandatory());
        let takes_answers_behind_records = |index| {
            let link = cache.get(node.links(), index);
            link.is_some_and(|link| link.takes_answers_behind_records())
        };
        let source = rest.head.source;
        if let Some(end) = records_end(source, needs.all(), mandatory, takes_answers_behind_records)
        {
            self.begin_answers(node, rest, end);
            for at in 0..ends.len() {
                self.answer(node, rest, at, text_of(at));
            }
            return;
        }
        self.send_answers(node, rest.take_answered());
        let mut from = 0;
        while from < ends.len() {
            let token = Router::wait_for_copies(self, rest.ops_from((rest.place + from) as u16));
            let mut batch = self.parked.begin(token, now_ns);
            let mut at = from;
            while at < ends.len() && batch.has_room() {
                let row = &self.recorder.rows()[at];
                let partition = serving.partition(row.hash);
                let mut op = ParkedOp::new(partition, row.at.term, rest.request(at).op_flags);
                for need in needs.of(at) {
                    op.needs |= batch.need(*need);
                }
                batch.push(op, text_of(at), &[]);
                at += 1;
            }
            self.note_left(token, at - from);
            if batch.needs_nothing() {
                // Possible only beside other batches of these answers that need something.
                self.answer_at_once(node, token, &batch);
            } else {
                self.parked.park(batch);
            }
            from = at;
        }
        rest.first = (rest.place + ends.len()) as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_follow_records_to_the_only_other_copy() {
        let (one, two) = (LinkIndex(1), LinkIndex(2));
        let end_of = |source, rows: &[(&[LinkIndex], &[u64])], is_new| {
            let needs = rows.iter().flat_map(|(links, positions)| {
                let needs = links.iter().zip(*positions);
                needs.map(|(&link, &position)| Need { link, position })
            });
            let mandatory = rows.iter().map(|(links, _)| *links);
            records_end(source, &needs.collect::<Vec<_>>(), mandatory, |_| is_new)
        };
        let (from_one, to_one, held) = (OpSource::Link(one), [one], [].as_slice());
        let acked: (&[_], _) = (&to_one, held);
        assert_eq!(
            end_of(from_one, &[(&[], held), acked], false),
            Some(0),
            "nothing is waited for"
        );
        assert_eq!(end_of(from_one, &[(&to_one, &[7]), acked, (&to_one, &[5])], true), Some(7));
        assert_eq!(end_of(from_one, &[(&to_one, &[7])], false), None, "the peer is too old");
        assert_eq!(end_of(from_one, &[(&to_one, &[7]), (&[two], &[9])], true), None);
        assert_eq!(end_of(from_one, &[(&to_one, &[7]), (&[two], held)], true), None);
        assert_eq!(end_of(from_one, &[(&to_one, &[7]), (&[], held)], true), None);
        assert_eq!(end_of(from_one, &[(&[one, two], &[7, 9])], true), None);
        assert_eq!(end_of(OpSource::Link(two), &[(&to_one, &[7])], true), None);
        assert_eq!(end_of(OpSource::Own, &[(&to_one, &[7])], true), None);
    }
}
