//! A worker's part of the data plane: its operations under way.
//!
//! Here: sending operations to owners, this node included, and handling their answers. Not here:
//! replies that wait for copies (`replies`), performing operations for others (`owner`), installing
//! records (`backup`), clients (`super`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cluster::Rules;
use cluster::frames::{Answers, AnswersWriter, ExceptionKind, cut};
use cluster::id::{NodeId, Partition, Term};
use cluster::op_stream::{
    NewOp, OpEnd, OpOptions, OpOutcome as PlaneEnding, OpStreams, OwnerContact,
};
use cluster::parked_reply::{ParkedBatch, ParkedReplies};
use slab::Slab;

use super::{Router, RouterContext};
use crate::node::Node;
use crate::node::batch::Recorder;
use crate::node::link_cache::LinkCache;
use crate::node::operation::OpSource;
use crate::node::pending::{OpResult, PendingOp, ReplyKind, ReplyRun};

/// Set in the tokens of parked batches that answer forwarded operations: those of other nodes, or
/// of this worker to its own node.
pub(super) const FORWARDED: u64 = 1 << 63;
/// Collected answers are sent once their texts have this many bytes: the peer refuses a frame
/// beyond `BODY_BYTES_MAX`.
const ANSWERS_BYTES_MAX: usize = 1 << 20;
/// The stream index of operations without a stream.
pub(super) const NO_STREAM: u16 = u16::MAX;

/// The forwarded operations that a parked batch answers: consecutive places of one sending.
#[derive(Debug, Clone, Copy)]
pub(super) struct ForwardedOps {
    pub(super) source: OpSource,
    pub(super) sending: u64,
    pub(super) first: u16,
    pub(super) left: u16,
    /// See [`Answers::records_end`].
    pub(super) records_end: u64,
}

impl ForwardedOps {
    /// The operations of a sending from index `first` on, none of which waits for a copy.
    pub(super) fn new(source: OpSource, sending: u64, first: u16) -> Self {
        Self { source, sending, first, left: 0, records_end: 0 }
    }
}

/// A worker's state in the data plane, once its node has an id.
pub(crate) struct DataPlane {
    pub(super) ops: OpStreams,
    pub(super) parked: ParkedReplies,
    pub(super) recorder: Recorder,
    pub(super) cache: LinkCache,
    pub(super) answers: AnswersWriter,
    pub(super) forwarded_ops: Slab<ForwardedOps>,
    /// Streams with operations that were never sent.
    pub(super) new_in: Vec<u16>,
    /// `Forward` frames to this node itself.
    pub(super) to_self: Vec<u8>,
    /// `Answers` frames to them.
    pub(super) from_self: Vec<u8>,
    /// Memory for frames to a link.
    pub(super) frames: Vec<u8>,
    /// Replies of the batch that is being answered for others.
    pub(super) texts: Vec<u8>,
    /// Operations submitted to this node since the last round.
    pub(super) direct: u64,
    /// Operations submitted to other nodes since the last round.
    pub(super) forwarded: u64,
    me: NodeId,
    /// At the beginning of the round, a stream was over half full.
    pub(super) is_held_back: bool,
}

impl DataPlane {
    fn new(node: &Node, core: u16) -> Self {
        let (me, incarnation) = node.me();
        let rules = Rules::default();
        Self {
            ops: OpStreams::new(me, incarnation, core, OpOptions { rules, ..OpOptions::default() }),
            parked: ParkedReplies::new(rules),
            recorder: Recorder::default(),
            cache: LinkCache::default(),
            answers: AnswersWriter::default(),
            forwarded_ops: Slab::new(),
            new_in: Vec::new(),
            to_self: Vec::new(),
            from_self: Vec::new(),
            frames: Vec::new(),
            texts: Vec::new(),
            direct: 0,
            forwarded: 0,
            me,
            is_held_back: false,
        }
    }

    /// Adds an operation for an owner. Returns false if too many are unanswered.
    pub(super) fn submit(
        &mut self,
        owner: NodeId,
        submitted: &NewOp,
        raw: &[u8],
        now: cluster::replica::NodeTime,
    ) -> bool {
        let stream = self.ops.stream_for(owner);
        let is_taken = self.ops.submit(stream, submitted, raw, now);
        if is_taken {
            *(if owner == self.me { &mut self.direct } else { &mut self.forwarded }) += 1;
            if !self.new_in.contains(&stream) {
                self.new_in.push(stream);
            }
        }
        is_taken
    }

    /// Sends the collected answers, if there are any.
    pub(super) fn send_answers(&mut self, node: &Node, forwarded: ForwardedOps) {
        if self.answers.count() == 0 {
            return;
        }
        match forwarded.source {
            OpSource::Own => {
                self.answers.finish(forwarded.sending, forwarded.first, 0, &mut self.from_self);
            }
            OpSource::Link(index) => {
                self.frames.clear();
                let ForwardedOps { sending, first, records_end, .. } = forwarded;
                self.answers.finish(sending, first, records_end, &mut self.frames);
                let frames = &self.frames;
                if let Some(link) = self.cache.get(node.links(), index)
                    && link.send(|out| out.extend_from_slice(frames))
                {
                    self.cache.touch(index);
                }
            }
        }
    }

    /// Records that `left` forwarded operations wait in the parked batch with this token.
    pub(super) fn note_left(&mut self, token: u64, left: usize) {
        if let Some(forwarded) = self.forwarded_ops.get_mut((token & !FORWARDED) as usize) {
            forwarded.left = left as u16;
        }
    }

    /// Answers a batch of forwarded operations that needs nothing.
    pub(super) fn answer_at_once(&mut self, node: &Node, token: u64, batch: &ParkedBatch) {
        let Some(forwarded) = self.forwarded_ops.try_remove((token & !FORWARDED) as usize) else {
            return;
        };
        self.answer_batch(node, forwarded, batch);
    }

    /// Answers the forwarded operations of a batch.
    pub(super) fn answer_batch(
        &mut self,
        node: &Node,
        forwarded: ForwardedOps,
        batch: &ParkedBatch,
    ) {
        let mut next = forwarded;
        for place in 0..batch.ops().len() {
            if self.has_long_answers() {
                self.send_answers(node, next);
                next.first = forwarded.first + place as u16;
            }
            self.answers.text(batch.text_of(place));
        }
        self.send_answers(node, next);
    }

    /// Whether the collected answers are to be sent before another one is added.
    #[inline]
    pub(super) fn has_long_answers(&self) -> bool {
        self.answers.text_bytes() >= ANSWERS_BYTES_MAX
    }

    /// Tells the sender of an operation to send it again, or that it was not performed.
    pub(super) fn send_exception(
        &mut self,
        node: &Node,
        forwarded: ForwardedOps,
        kind: ExceptionKind,
    ) {
        self.answers.exception(forwarded.first, kind);
        self.send_answers(node, forwarded);
    }
}

impl Router {
    /// Creates the worker's data plane if needed. Returns false before the node has a place in a
    /// cluster.
    pub(super) fn begin_plane(&mut self) -> bool {
        if self.plane.is_some() {
            return true;
        }
        if self.node.keyspace().is_none() || self.node.me().0 == NodeId::default() {
            return false;
        }
        self.plane = Some(Box::new(DataPlane::new(&self.node, self.core)));
        true
    }

    /// Sends the submitted operations to other nodes, and to this one.
    pub(super) fn send_operations(&mut self, ctx: &mut RouterContext<'_>) {
        let node = Arc::clone(&self.node);
        let Some(keyspace) = node.keyspace() else { return };
        let Some(plane) = self.plane.as_deref_mut() else { return };
        let route = |partition: Partition| keyspace.replicas.destination(partition);
        let (me, now) = (node.me().0, ctx.now);
        while let Some(stream) = plane.new_in.pop() {
            let owner = plane.ops.id(stream).owner;
            if owner == me {
                plane.ops.send_new(stream, now, route, Some(&mut plane.to_self));
                continue;
            }
            let link = node.links().of_worker(owner, self.core).filter(|link| link.is_up());
            plane.frames.clear();
            plane.ops.send_new(stream, now, route, link.as_ref().map(|_| &mut plane.frames));
            if let Some(link) = link.filter(|_| !plane.frames.is_empty()) {
                let frames = &plane.frames;
                link.send(|out| out.extend_from_slice(frames));
                plane.cache.touch(link.index);
            }
        }
        let DataPlane { ops, cache, to_self, .. } = plane;
        let core = self.core;
        ops.send_again(now, route, |owner, frame| {
            if owner == me {
                to_self.extend_from_slice(frame);
                return true;
            }
            node.metrics.resent.fetch_add(1, Ordering::Relaxed);
            let Some(link) = node.links().of_worker(owner, core) else { return false };
            let is_said = link.send(|out| out.extend_from_slice(frame));
            if is_said {
                cache.touch(link.index);
            }
            is_said
        });
    }

    /// Performs the operations that this worker sent to its own node, and handles the answers.
    /// Returns true if there were any.
    pub(super) fn serve_itself(&mut self, ctx: &mut RouterContext<'_>) -> bool {
        let Some(plane) = self.plane.as_deref_mut() else { return false };
        if plane.to_self.is_empty() && plane.from_self.is_empty() {
            return false;
        }
        let frames = std::mem::take(&mut plane.to_self);
        let mut rest = &frames[..];
        while let Ok(Some(frame)) = cut(rest, usize::MAX) {
            rest = &rest[frame.bytes()..];
            let served = self.serve_forward(ctx, OpSource::Own, frame.body);
            debug_assert!(served.is_ok(), "this node wrote it");
        }
        self.on_own_answers(ctx);
        if let Some(plane) = self.plane.as_deref_mut()
            && plane.to_self.is_empty()
        {
            plane.to_self = frames;
            plane.to_self.clear();
        }
        true
    }

    /// Handles the answers of this node to its own operations.
    pub(super) fn on_own_answers(&mut self, ctx: &mut RouterContext<'_>) {
        let Some(plane) = self.plane.as_deref_mut() else { return };
        if plane.from_self.is_empty() {
            return;
        }
        let frames = std::mem::take(&mut plane.from_self);
        let mut rest = &frames[..];
        while let Ok(Some(frame)) = cut(rest, usize::MAX) {
            rest = &rest[frame.bytes()..];
            if let Ok(answers) = Answers::decode(frame.kind, frame.body) {
                self.on_answers(ctx, &answers, |_, _| true);
            }
        }
        if let Some(plane) = self.plane.as_deref_mut()
            && plane.from_self.is_empty()
        {
            plane.from_self = frames;
            plane.from_self.clear();
        }
    }

    /// Handles an owner's answers. For `counts` see [`OpStreams::on_answers`].
    pub(super) fn on_answers(
        &mut self,
        ctx: &mut RouterContext<'_>,
        answers: &Answers<'_>,
        counts: impl Fn(Partition, Term) -> bool,
    ) {
        let Self { plane: Some(plane), pending_ops, ended_ops, texts, .. } = self else { return };
        plane.ops.on_answers(answers, counts, ctx.now, |ended| {
            note_ended(pending_ops, ended_ops, texts, ended);
        });
        self.end_operations();
    }

    /// Ends the operations whose deadline has passed.
    pub(super) fn tick_operations(&mut self, ctx: &mut RouterContext<'_>) {
        let (node, core) = (Arc::clone(&self.node), self.core);
        let Self { plane: Some(plane), pending_ops, ended_ops, texts, .. } = self else { return };
        let contact = |owner: NodeId| {
            let is_cut_off = node.paths.is_cut_off();
            if owner == node.me().0 {
                // This node itself makes progress, but the copies it waits for may be out of reach.
                let progress_ns = if is_cut_off { 0 } else { ctx.now.mono_ns };
                return OwnerContact { progress_ns, is_replaced_soon: false };
            }
            let link = node.links().of_worker(owner, core);
            let progress_ns = link.map_or(0, |link| link.progress_ns());
            let is_replaced_soon = !is_cut_off && !node.paths.is_away(owner);
            OwnerContact { progress_ns, is_replaced_soon }
        };
        plane.ops.tick(ctx.now, contact, |ended| note_ended(pending_ops, ended_ops, texts, ended));
        self.expire_replies(ctx);
        self.end_operations();
    }

    pub(super) fn end_operations(&mut self) {
        let mut ended = std::mem::take(&mut self.ended_ops);
        for EndedOp { pending, index, count, partition, line, result: ending } in ended.drain(..) {
            if let (ReplyKind::Run, EndedText::Text(from, to)) = (&pending.reply_kind, &ending) {
                let (client, place) = (pending.client, pending.place + u64::from(index));
                let text = (*from, *to);
                self.runs.push(ReplyRun { client, place, count, text });
                continue;
            }
            let result = match ending {
                EndedText::Text(from, to) => {
                    OpResult::Done(Bytes::copy_from_slice(&self.texts[from..to]))
                }
                EndedText::Other(result) => result,
            };
            if let ReplyKind::Run = pending.reply_kind {
                // A limit may have a degraded decision instead.
                let reply_kind = ReplyKind::Limited { quiet: false, raw_request: line };
                let place = pending.place + u64::from(index);
                self.results.push((PendingOp { place, reply_kind, partition, ..pending }, result));
            } else {
                self.results.push((pending, result));
            }
        }
        self.ended_ops = ended;
    }
}

/// An operation that ended, or a run of them.
pub(super) struct EndedOp {
    pending: PendingOp,
    index: u32,
    count: u32,
    partition: Partition,
    /// The client's request, if it is one of a run and was not performed.
    line: Bytes,
    result: EndedText,
}

enum EndedText {
    /// A range of the router's `texts`.
    Text(usize, usize),
    Other(OpResult),
}

/// Keeps an ended operation until `end_operations` handles it.
pub(super) fn note_ended(
    pending_ops: &mut Slab<PendingOp>,
    all: &mut Vec<EndedOp>,
    texts: &mut Vec<u8>,
    ended: OpEnd<'_>,
) {
    let OpEnd { token, index, count, partition, line, outcome: result } = ended;
    let Some(pending) = pending_ops.get_mut(token as usize) else { return };
    pending.left = pending.left.saturating_sub(count);
    let pending =
        if pending.left == 0 { pending_ops.remove(token as usize) } else { pending.for_one() };
    let ending = match result {
        PlaneEnding::Done(text) => {
            let from = texts.len();
            texts.extend_from_slice(text);
            EndedText::Text(from, texts.len())
        }
        PlaneEnding::NotApplied(refusal) => EndedText::Other(OpResult::NotApplied(refusal)),
        PlaneEnding::Unknown => EndedText::Other(OpResult::Unknown),
    };
    let line = match (&pending.reply_kind, &ending) {
        (ReplyKind::Run, EndedText::Other(_)) => Bytes::copy_from_slice(line),
        _ => Bytes::new(),
    };
    all.push(EndedOp { pending, index, count, partition, line, result: ending });
}
