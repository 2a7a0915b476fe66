//! A client's batch that this node performs itself, on open headers.
//!
//! Here: the ids of its operations, their records, and whether its replies wait. Not here: the
//! effect of an operation (`session`, `fast`), records (`batch`), batches of other nodes
//! (`fast_op`).

use std::sync::Arc;

use arrayvec::ArrayVec;
use cluster::LinkIndex;
use cluster::id::Partition;
use cluster::op_stream::NewOp;
use cluster::parked_reply::{NEEDS_MAX, ParkedOp};
use cluster::replica::NodeTime;
use cluster::replica_set::ReplicaSet;
use slab::Slab;

use super::Router;
use super::data_plane::{DataPlane, NO_STREAM};
use crate::node::Node;
use crate::node::batch::{OpId, OpSection, Recorder};
use crate::node::pending::{Client, PendingOp, ReplyKind};
use crate::node::reply_queue::ReplyQueue;
use crate::node::serving::Serving;
use crate::shards::BATCH_SHARDS_MAX;

/// A client's batch on open headers, until its replies are sent or parked.
pub(crate) struct LocalBatch<'f> {
    node: Arc<Node>,
    plane: &'f mut DataPlane,
    pending_ops: &'f mut Slab<PendingOp>,
    client: Client,
    /// The links that its replies may need.
    links: ArrayVec<LinkIndex, NEEDS_MAX>,
    /// The copies of the last operation that changes something, and its stream.
    last: Option<(ReplicaSet, u16)>,
    section: Option<LocalSection>,
    /// The operations, in order.
    ops: ArrayVec<LocalOp, BATCH_SHARDS_MAX>,
}

/// The section of the last operation that has an id.
#[derive(Debug, Clone, Copy)]
struct LocalSection {
    stream: u16,
    first: u64,
    index: u8,
}

#[derive(Debug, Clone, Copy)]
struct LocalOp {
    text_end: usize,
    line_end: usize,
    stream: u16,
    number: u64,
    op_flags: u8,
}

impl Router {
    /// Begins a batch of the current client on open headers. Returns `None` while that is not
    /// possible.
    pub(crate) fn begin_batch(&mut self) -> Option<LocalBatch<'_>> {
        if !self.begin_plane() {
            return None;
        }
        let Self { plane: Some(plane), pending_ops, node, client, .. } = self else { return None };
        plane.recorder.begin();
        Some(LocalBatch {
            node: Arc::clone(node),
            plane,
            pending_ops,
            client: *client,
            links: ArrayVec::new(),
            last: None,
            section: None,
            ops: ArrayVec::new(),
        })
    }
}

impl LocalBatch<'_> {
    /// The records of the batch.
    pub(crate) fn recorder(&mut self) -> &mut Recorder {
        &mut self.plane.recorder
    }

    /// [`Recorder::record`], of the last operation.
    #[inline]
    pub(crate) fn record(
        &mut self,
        serving: &Serving<'_>,
        key: &[u8],
        name: Option<OpId>,
        out: &[u8],
    ) {
        let DataPlane { recorder, cache, .. } = &mut *self.plane;
        recorder.record(serving, (self.node.links(), cache), key, name, out);
    }

    /// The stream of an operation on these copies, [`NO_STREAM`] if it needs none. `None` if the
    /// operation must not be performed: there must be room for its reply in the parked batch, for
    /// its record in the streams of the copies, and for its id in the op stream.
    #[inline]
    pub(crate) fn stream_for(&mut self, set: ReplicaSet, is_read: bool) -> Option<u16> {
        if let Some((known, stream)) = self.last
            && known == set
            && !is_read
        {
            return self.plane.ops.has_room(stream, 1).then_some(stream);
        }
        let links = &mut self.links;
        let is_in_piece = (set.mandatory().iter())
            .all(|link| links.contains(link) || links.try_push(*link).is_ok());
        if !is_in_piece {
            return None;
        }
        let (false, Some(first)) = (is_read, set.links().first()) else { return Some(NO_STREAM) };
        let DataPlane { cache, ops, .. } = &mut *self.plane;
        if !cache.may_append(self.node.links(), set) {
            return None;
        }
        let stream = ops.stream_for(cache.get(self.node.links(), *first)?.peer);
        self.last = Some((set, stream));
        ops.has_room(stream, 1).then_some(stream)
    }

    /// An id in this stream for the last operation, which has changed something; `None` if no other
    /// copy must hold the change.
    pub(crate) fn name(
        &mut self,
        stream: u16,
        partition: Partition,
        now: NodeTime,
    ) -> Option<(u16, OpId)> {
        if stream == NO_STREAM {
            return None;
        }
        let ops = &mut self.plane.ops;
        let token = self.pending_ops.vacant_key() as u64;
        let index = self.ops.len() as u32;
        let submitted = NewOp { partition, op_flags: 0, token, index, for_ns: 0 };
        let number = ops.number(stream, &submitted, now)?;
        let first = number & !0x7fff;
        let known = self.section.filter(|known| (known.stream, known.first) == (stream, first));
        let section = known.map_or_else(|| self.begin_section(stream, first), |known| known.index);
        Some((stream, OpId { section, number }))
    }

    #[inline(never)]
    fn begin_section(&mut self, stream: u16, first: u64) -> u8 {
        let DataPlane { recorder, ops, .. } = &mut *self.plane;
        let (id, done) = (ops.id(stream), ops.done(stream));
        let index = recorder.section(OpSection { stream: id, first, done });
        self.section = Some(LocalSection { stream, first, index });
        index
    }

    /// Adds the last operation: the end of its reply in the output, and of its line in the input.
    pub(crate) fn push(
        &mut self,
        (text_end, line_end): (usize, usize),
        name: Option<(u16, OpId)>,
        op_flags: u8,
    ) {
        let stream = name.map_or(NO_STREAM, |(stream, _)| stream);
        let number = name.map_or(0, |(_, name)| name.number);
        self.ops.push(LocalOp { text_end, line_end, stream, number, op_flags });
    }

    /// Appends the records, while the shards are held.
    pub(crate) fn append(&mut self, serving: &Serving<'_>, out: &[u8]) {
        let Some(keyspace) = self.node.keyspace() else { return };
        let DataPlane { recorder, cache, .. } = &mut *self.plane;
        recorder.finish(serving, (self.node.links(), cache), &keyspace.replicas, out);
    }

    /// Sends the replies, which are the bytes of `out` from `start` on, or parks them. The lines
    /// are the bytes of `input` from 0 on.
    pub(crate) fn reply(
        self,
        serving: &Serving<'_>,
        replies: &mut ReplyQueue,
        (input, start): (&[u8], usize),
        out: &mut Vec<u8>,
    ) {
        let Self { node, plane, pending_ops, client, ops, .. } = self;
        let DataPlane { recorder, cache, ops: streams, parked: parked_replies, .. } = plane;
        if !recorder.has_copies() {
            replies.push_written(start, out);
            return;
        }
        let links = node.links();
        let needs = recorder.needs(ops.len(), serving, (links, cache));
        if needs.all().is_empty() {
            for op in ops.iter().filter(|op| op.stream != NO_STREAM) {
                streams.answered(op.stream, op.number);
            }
            replies.push_written(start, out);
            return;
        }
        // One pending operation for the batch: the numbers of its operations were taken for its
        // token.
        let count = ops.len();
        let place = replies.reserve_run(count);
        let pending = PendingOp {
            client,
            place,
            reply_kind: ReplyKind::Run,
            partition: Partition::default(),
            left: count as u32,
        };
        let token = pending_ops.insert(pending) as u64;
        let mut batch = parked_replies.begin(token, serving.now().mono_ns);
        let (text_end, line_end) = ops.last().map_or((start, 0), |op| (op.text_end, op.line_end));
        batch.add_texts(&out[start..text_end], &input[..line_end]);
        for (position, (op, row)) in ops.iter().zip(recorder.rows()).enumerate() {
            let mut parked = ParkedOp::new(serving.partition(row.hash), row.at.term, op.op_flags);
            (parked.stream, parked.number) = (op.stream, op.number);
            for need in needs.of(position) {
                parked.needs |= batch.need(*need);
            }
            parked.text_end = (op.text_end - start) as u32;
            parked.line_end = op.line_end as u32;
            batch.add(parked);
        }
        parked_replies.park(batch);
        out.truncate(start);
    }
}
