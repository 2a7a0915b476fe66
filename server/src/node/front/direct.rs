//! A client's batch that this node does itself, on open headers.
//!
//! Here: the names of its operations, their records, and whether its replies wait. Not here: what an operation does (`session`,
//! `quick`), records (`batch`), batches of other nodes (`common`).

use std::sync::Arc;

use arrayvec::ArrayVec;
use cluster::LinkIndex;
use cluster::id::Partition;
use cluster::op_stream::Submitted;
use cluster::parked_reply::{NEEDS_MAX, ParkedOp};
use cluster::replica::Now;
use cluster::replica_set::ReplicaSet;
use slab::Slab;

use super::Front;
use super::plane::{NO_LANE, Plane};
use crate::node::Node;
use crate::node::batch::{Name, Recorder};
use crate::node::delivery::{Client, Use, Waiter};
use crate::node::replies::Replies;
use crate::node::serving::Serving;
use crate::shards::HELD_MAX;

/// A batch of a client on open headers, while it is done and until its replies are told or wait.
pub(crate) struct DirectBatch<'f> {
    node: Arc<Node>,
    plane: &'f mut Plane,
    waiters: &'f mut Slab<Waiter>,
    client: Client,
    /// The links that its replies may need.
    links: ArrayVec<LinkIndex, NEEDS_MAX>,
    /// For each operation where its reply ends in the output and its line in the input, its lane and its number.
    ops: ArrayVec<DirectOp, HELD_MAX>,
}

#[derive(Debug, Clone, Copy)]
struct DirectOp {
    text_end: usize,
    line_end: usize,
    lane: u16,
    number: u64,
    sort: u8,
}

impl Front {
    /// Begins a batch of the client whose turn it is, on open headers. Returns `None` while nothing may be done so.
    pub(crate) fn begin_batch(&mut self) -> Option<DirectBatch<'_>> {
        if !self.begin_plane() {
            return None;
        }
        let Self { plane: Some(plane), waiters, node, client, .. } = self else { return None };
        plane.recorder.begin();
        Some(DirectBatch {
            node: Arc::clone(node),
            plane,
            waiters,
            client: *client,
            links: ArrayVec::new(),
            ops: ArrayVec::new(),
        })
    }
}

impl DirectBatch<'_> {
    /// The records of the batch.
    pub(crate) fn recorder(&mut self) -> &mut Recorder {
        &mut self.plane.recorder
    }

    /// The lane of an operation on these copies, [`NO_LANE`] if it needs none; `None` if it may not be done: its reply must have room
    /// in the batch's piece, its record in the streams, and its name in the lane.
    #[inline]
    pub(crate) fn lane_for(&mut self, set: ReplicaSet, is_read: bool) -> Option<u16> {
        let links = &mut self.links;
        let is_in_piece = (set.mandatory().iter())
            .all(|link| links.contains(link) || links.try_push(*link).is_ok());
        if !is_in_piece {
            return None;
        }
        let (false, Some(first)) = (is_read, set.links().first()) else { return Some(NO_LANE) };
        let Plane { cache, ops, .. } = &mut *self.plane;
        if !cache.may_append(self.node.links(), set) {
            return None;
        }
        let lane = ops.lane_for(cache.get(self.node.links(), *first)?.peer);
        ops.has_room(lane, 1).then_some(lane)
    }

    /// A name in this lane for the operation that was just done and has changed something; none if no other copy has to hold it.
    pub(crate) fn name(
        &mut self,
        lane: u16,
        partition: Partition,
        now: Now,
    ) -> Option<(u16, Name)> {
        if lane == NO_LANE {
            return None;
        }
        let ops = &mut self.plane.ops;
        let token = self.waiters.vacant_key() as u64;
        let index = self.ops.len() as u32;
        let submitted = Submitted { partition, sort: 0, token, index, for_ns: 0 };
        let number = ops.number(lane, &submitted, now)?;
        let (first, done) = (number & !0x7fff, ops.done(lane));
        Some((lane, Name { lane: ops.id(lane), first, done, number }))
    }

    /// Notes the operation that was just done: where its reply ends in the output, and its line in the input.
    pub(crate) fn push(
        &mut self,
        (text_end, line_end): (usize, usize),
        name: Option<(u16, Name)>,
        sort: u8,
    ) {
        let lane = name.map_or(NO_LANE, |(lane, _)| lane);
        let number = name.map_or(0, |(_, name)| name.number);
        self.ops.push(DirectOp { text_end, line_end, lane, number, sort });
    }

    /// Appends the records, while the shards are held.
    pub(crate) fn append(&mut self, serving: &Serving<'_>, out: &[u8]) {
        let Some(space) = self.node.space() else { return };
        let Plane { recorder, cache, .. } = &mut *self.plane;
        recorder.finish(serving, (self.node.links(), cache), &space.copies, out);
    }

    /// Tells the replies, which are bytes of `out` from `start` on, or lets them wait. `input` is what the lines are bytes of,
    /// from 0 on.
    pub(crate) fn reply(
        self,
        serving: &Serving<'_>,
        replies: &mut Replies,
        (input, start): (&[u8], usize),
        out: &mut Vec<u8>,
    ) {
        let Self { node, plane, waiters, client, ops, .. } = self;
        let Plane { recorder, cache, ops: streams, parked: pieces, .. } = plane;
        if !recorder.has_copies() {
            replies.say_written(start, out);
            return;
        }
        let links = node.links();
        let rows = recorder.rows().iter().take(ops.len());
        let needs: ArrayVec<_, HELD_MAX> =
            rows.map(|row| Recorder::needs(row, serving, (links, &mut *cache))).collect();
        if needs.iter().all(|needs: &ArrayVec<_, _>| needs.is_empty()) {
            for op in ops.iter().filter(|op| op.lane != NO_LANE) {
                streams.answered(op.lane, op.number);
            }
            replies.say_written(start, out);
            return;
        }
        // One waiter for the batch: the numbers of its operations were given out for it.
        let count = ops.len();
        let place = replies.wait_for(count);
        let waiter = Waiter {
            client,
            place,
            used: Use::Run,
            partition: Partition::default(),
            left: count as u32,
        };
        let token = waiters.insert(waiter) as u64;
        let (mut text_at, mut line_at) = (start, 0);
        let mut piece = pieces.begin(token, serving.now().mono_ns);
        for ((op, row), needs) in ops.iter().zip(recorder.rows()).zip(&needs) {
            let mut parked = ParkedOp::new(serving.partition(row.hash), row.at.term, op.sort);
            (parked.lane, parked.number) = (op.lane, op.number);
            for need in needs {
                parked.needs |= piece.need(*need);
            }
            piece.push(parked, &out[text_at..op.text_end], &input[line_at..op.line_end]);
            (text_at, line_at) = (op.text_end, op.line_end);
        }
        pieces.park(piece);
        out.truncate(start);
    }
}
