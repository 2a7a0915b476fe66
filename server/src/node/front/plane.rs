//! A worker's part of the data plane: what it has asked of owners, what waits for copies, and how both leave.
//!
//! Here: sending operations to owners, this node among them, and what their answers end; replies that copies are waited for
//! with. Not here: doing operations for others (`owner`), installing records (`backup`), clients (`super`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use bytes::Bytes;
use cluster::frames::{Answers, AnswersWriter, ExceptionKind, cut, sort};
use cluster::id::{NodeId, Partition};
use cluster::op_stream::{Ended, Ending as PlaneEnding, OpOptions, OpStreams, Submitted};
use cluster::parked_reply::{ParkedReplies, Piece, Released};
use cluster::replica::{Opening, Refusal, Route};
use cluster::{LinkIndex, Rules};
use slab::Slab;

use super::{DEADLINE_NS, Front, Lent};
use crate::node::Node;
use crate::node::batch::{LinkCache, Recorder};
use crate::node::delivery::{Ending, Run, Use, Waiter};
use crate::node::operation::Source;

/// Set in tokens of pieces that answer operations of other workers, or of this one to itself.
const ASKED: u64 = 1 << 63;
/// A reply waits so long for a copy that gives no sign of life and is to be removed.
const REMOVAL_NS: u64 = 3_000_000_000;
/// A lane of operations that have none.
pub(super) const NO_LANE: u16 = u16::MAX;

/// The operations of others that a piece answers: consecutive places of one sending.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) source: Source,
    pub(super) sending: u64,
    pub(super) first: u16,
    pub(super) left: u16,
}

/// What a worker has of the data plane once its node has an id.
pub(crate) struct Plane {
    pub(super) ops: OpStreams,
    pub(super) parked: ParkedReplies,
    pub(super) recorder: Recorder,
    pub(super) cache: LinkCache,
    pub(super) answers: AnswersWriter,
    pub(super) asked: Slab<Asked>,
    /// Lanes with operations that were never sent.
    pub(super) new_in: Vec<u16>,
    /// `Forward`s to this node itself.
    pub(super) to_self: Vec<u8>,
    /// `Answers` to them.
    pub(super) from_self: Vec<u8>,
    /// Frames on their way into a link.
    pub(super) frames: Vec<u8>,
    /// Replies of the batch that is being answered for others.
    pub(super) texts: Vec<u8>,
    /// Operations that were submitted for this node since the last round, and for others.
    pub(super) direct: u64,
    pub(super) forwarded: u64,
    me: NodeId,
    /// When the round began a stream was over half full.
    pub(super) is_held_back: bool,
}

impl Plane {
    fn new(node: &Node, core: u16) -> Self {
        let (me, incarnation) = node.me();
        let rules = Rules::default();
        Self {
            ops: OpStreams::new(me, incarnation, core, OpOptions { rules, ..OpOptions::default() }),
            parked: ParkedReplies::new(rules),
            recorder: Recorder::default(),
            cache: LinkCache::default(),
            answers: AnswersWriter::default(),
            asked: Slab::new(),
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

    /// Adds an operation for an owner; false: too many are not answered.
    pub(super) fn submit(
        &mut self,
        owner: NodeId,
        submitted: &Submitted,
        raw: &[u8],
        now: cluster::replica::Now,
    ) -> bool {
        let lane = self.ops.lane_for(owner);
        let is_taken = self.ops.submit(lane, submitted, raw, now);
        if is_taken {
            *(if owner == self.me { &mut self.direct } else { &mut self.forwarded }) += 1;
            if !self.new_in.contains(&lane) {
                self.new_in.push(lane);
            }
        }
        is_taken
    }

    /// Says the answers that were collected, if there are any.
    pub(super) fn say_answers(&mut self, node: &Node, asked: Asked) {
        if self.answers.count() == 0 {
            return;
        }
        match asked.source {
            Source::Own => self.answers.finish(asked.sending, asked.first, &mut self.from_self),
            Source::Link(index) => {
                self.frames.clear();
                self.answers.finish(asked.sending, asked.first, &mut self.frames);
                let frames = &self.frames;
                if let Some(link) = self.cache.get(node.links(), index)
                    && link.say(|out| out.extend_from_slice(frames))
                {
                    self.cache.touch(index);
                }
            }
        }
    }

    /// So many operations of others wait in the piece with this token.
    pub(super) fn note_left(&mut self, token: u64, left: usize) {
        if let Some(asked) = self.asked.get_mut((token & !ASKED) as usize) {
            asked.left = left as u16;
        }
    }

    /// Answers a piece of others that has to wait for nothing.
    pub(super) fn answer_at_once(&mut self, node: &Node, token: u64, piece: &Piece) {
        let Some(asked) = self.asked.try_remove((token & !ASKED) as usize) else { return };
        for place in 0..piece.ops().len() {
            self.answers.text(piece.text_of(place));
        }
        self.say_answers(node, asked);
    }

    /// Says that an operation of others is to be sent again, or was not done.
    pub(super) fn say_exception(&mut self, node: &Node, asked: Asked, kind: ExceptionKind) {
        self.answers.exception(asked.first, kind);
        self.say_answers(node, asked);
    }
}

/// What came of an operation to be sent: its reply, or where it has to go.
enum Outcome<'a> {
    Reply(&'a [u8]),
    Again,
}

impl Front {
    /// What the worker has of the data plane; none before the node has a place in a cluster.
    pub(super) fn begin_plane(&mut self) -> bool {
        if self.plane.is_some() {
            return true;
        }
        let Some(space) = self.node.space() else { return false };
        if self.node.me().0 == NodeId::default() {
            return false;
        }
        let partitions = space.copies.len();
        self.plane = Some(Box::new(Plane::new(&self.node, self.core)));
        self.away_until_ns = vec![0; partitions];
        true
    }

    /// Sends what was submitted: to other nodes, and to this one.
    pub(super) fn send_operations(&mut self, lent: &mut Lent<'_>) {
        let node = Arc::clone(&self.node);
        let Some(space) = node.space() else { return };
        let Some(plane) = self.plane.as_deref_mut() else { return };
        let route = |partition: Partition| -> Option<Route> { space.copies.route(partition) };
        let (me, now) = (node.me().0, lent.now);
        while let Some(lane) = plane.new_in.pop() {
            let owner = plane.ops.id(lane).owner;
            if owner == me {
                plane.ops.send_new(lane, now, route, Some(&mut plane.to_self));
                continue;
            }
            let link = node.links().of_worker(owner, self.core).filter(|link| link.is_up());
            plane.frames.clear();
            plane.ops.send_new(lane, now, route, link.as_ref().map(|_| &mut plane.frames));
            if let Some(link) = link.filter(|_| !plane.frames.is_empty()) {
                let frames = &plane.frames;
                link.say(|out| out.extend_from_slice(frames));
                plane.cache.touch(link.index);
            }
        }
        let Plane { ops, cache, to_self, .. } = plane;
        let core = self.core;
        ops.send_again(now, route, |primary, frame| {
            if primary.node == me {
                to_self.extend_from_slice(frame);
                return true;
            }
            node.figures.resent.fetch_add(1, Ordering::Relaxed);
            let Some(link) = node.links().of_worker(primary.node, core) else { return false };
            let is_said = link.say(|out| out.extend_from_slice(frame));
            if is_said {
                cache.touch(link.index);
            }
            is_said
        });
    }

    /// Does what this worker has asked of this node itself, and takes the answers. True: there was something.
    pub(super) fn serve_itself(&mut self, lent: &mut Lent<'_>) -> bool {
        let Some(plane) = self.plane.as_deref_mut() else { return false };
        if plane.to_self.is_empty() && plane.from_self.is_empty() {
            return false;
        }
        let frames = std::mem::take(&mut plane.to_self);
        let mut rest = &frames[..];
        while let Ok(Some(frame)) = cut(rest, usize::MAX) {
            rest = &rest[frame.bytes()..];
            let served = self.serve_forward(lent, Source::Own, frame.body);
            debug_assert!(served.is_ok(), "this node wrote it");
        }
        self.hear_itself(lent);
        if let Some(plane) = self.plane.as_deref_mut()
            && plane.to_self.is_empty()
        {
            plane.to_self = frames;
            plane.to_self.clear();
        }
        true
    }

    /// Takes the answers of this node to its own operations.
    pub(super) fn hear_itself(&mut self, lent: &mut Lent<'_>) {
        let Some(plane) = self.plane.as_deref_mut() else { return };
        if plane.from_self.is_empty() {
            return;
        }
        let frames = std::mem::take(&mut plane.from_self);
        let mut rest = &frames[..];
        while let Ok(Some(frame)) = cut(rest, usize::MAX) {
            rest = &rest[frame.bytes()..];
            if let Ok(answers) = Answers::decode(frame.body) {
                self.hear_answers(lent, &answers);
            }
        }
        if let Some(plane) = self.plane.as_deref_mut()
            && plane.from_self.is_empty()
        {
            plane.from_self = frames;
            plane.from_self.clear();
        }
    }

    /// Answers of an owner.
    pub(super) fn hear_answers(&mut self, lent: &mut Lent<'_>, answers: &Answers<'_>) {
        let Self { plane: Some(plane), waiters, ended_ops, texts, .. } = self else { return };
        plane.ops.hear(answers, lent.now, |ended| note_ended(waiters, ended_ops, texts, ended));
        self.end_operations();
    }

    /// Operations that were tried for too long end.
    pub(super) fn tick_operations(&mut self, lent: &mut Lent<'_>) {
        let (node, core) = (Arc::clone(&self.node), self.core);
        let Self { plane: Some(plane), waiters, ended_ops, texts, .. } = self else { return };
        let progress = |owner: NodeId| {
            if owner == node.me().0 {
                // It works, but what it waits for may be out of reach.
                return if node.ways.is_cut_off() { 0 } else { lent.now.mono_ns };
            }
            node.links().of_worker(owner, core).map_or(0, |link| link.progress_ns())
        };
        plane.ops.tick(lent.now, progress, |ended| note_ended(waiters, ended_ops, texts, ended));
        self.expire_replies(lent);
        self.end_operations();
    }

    /// Releases the replies that copies hold by now. `acked`: read before the inbox was emptied.
    pub(super) fn release_replies(&mut self, lent: &mut Lent<'_>, acked: &[(LinkIndex, u64)]) {
        let Some(plane) = self.plane.as_deref_mut() else { return };
        if plane.parked.is_empty() {
            return;
        }
        let copies = self.node.space().map(|space| &space.copies);
        let is_stopped = copies.is_some_and(|copies| copies.is_stopped(self.contact, lent.now));
        let mut parked = std::mem::take(&mut plane.parked);
        if is_stopped {
            // Others may have answered since for what these replies say.
            parked.drain(|piece, place| self.give_up(piece, place));
        } else {
            for &(link, position) in acked {
                parked.release(link, position, |released| self.released(lent, released));
            }
            parked.release_opened(|released| self.released(lent, released));
        }
        if let Some(plane) = self.plane.as_deref_mut() {
            plane.parked = parked;
        }
        self.end_operations();
    }

    /// Something happened to a partition that replies may wait for.
    pub(super) fn open_replies(&mut self, lent: &mut Lent<'_>, opening: &Opening) {
        let Some(plane) = self.plane.as_deref_mut() else { return };
        let mut parked = std::mem::take(&mut plane.parked);
        parked.open(opening, |released| self.released(lent, released));
        if let Some(plane) = self.plane.as_deref_mut() {
            plane.parked = parked;
        }
        self.end_operations();
    }

    /// The links whose streams replies wait for, and up to where they are acknowledged.
    pub(super) fn read_acked(&mut self) -> ArrayVec<(LinkIndex, u64), 64> {
        let mut acked = ArrayVec::new();
        let node = Arc::clone(&self.node);
        let Some(plane) = self.plane.as_deref_mut() else { return acked };
        plane.cache.refresh(node.links());
        plane.is_held_back = plane.cache.is_any_over_half();
        if plane.parked.is_empty() {
            return acked;
        }
        for index in plane.parked.links().take(acked.capacity()) {
            if let Some(link) = plane.cache.get(node.links(), index) {
                acked.push((index, link.acked.get()));
            }
        }
        acked
    }

    fn released(&mut self, lent: &mut Lent<'_>, released: Released<'_>) {
        match released {
            Released::Whole(piece) if piece.token & ASKED != 0 => self.answer_piece(piece),
            Released::Whole(piece) => {
                self.end_numbers(piece, 0..piece.ops().len());
                self.reply_run(piece.token, 0, piece.ops().len(), piece.text());
            }
            Released::One(piece, place) => {
                self.released_one(lent, piece, place, &Outcome::Reply(piece.text_of(place)));
            }
            Released::Again(piece, place) => {
                self.released_one(lent, piece, place, &Outcome::Again);
            }
        }
    }

    /// Gives up replies that wait for copies whose links make no progress.
    fn expire_replies(&mut self, lent: &Lent<'_>) {
        let node = Arc::clone(&self.node);
        let Some(plane) = self.plane.as_deref_mut() else { return };
        if plane.parked.is_empty() {
            return;
        }
        let mut parked = std::mem::take(&mut plane.parked);
        let now_ns = lent.now.mono_ns;
        // Where most voters are in reach they remove a copy that is not.
        let patience_ns = if node.ways.is_cut_off() { DEADLINE_NS } else { REMOVAL_NS };
        let is_late = |since_ns: u64, link: LinkIndex| {
            let progress_ns = node.links().get(link).map_or(0, |link| link.progress_ns());
            now_ns.saturating_sub(since_ns.max(progress_ns)) >= patience_ns
        };
        parked.expire(is_late, |piece, place| self.give_up(piece, place));
        if let Some(plane) = self.plane.as_deref_mut() {
            plane.parked = parked;
        }
    }

    /// An operation whose reply may not be told any more. Whoever forwarded it hears nothing and asks the next owner.
    fn give_up(&mut self, piece: &Piece, at: usize) {
        let Some(plane) = self.plane.as_deref_mut() else { return };
        if piece.token & ASKED != 0 {
            plane.asked.try_remove((piece.token & !ASKED) as usize);
            return;
        }
        self.end_numbers(piece, at..at + 1);
        let is_read = piece.ops()[at].sort & sort::READ != 0;
        let ending = if is_read {
            PlaneEnding::NotApplied(Refusal::Unreachable)
        } else {
            PlaneEnding::Unknown
        };
        self.end_parked(piece, at, ending);
    }

    fn end_parked(&mut self, piece: &Piece, at: usize, ending: PlaneEnding<'_>) {
        let (token, index) = (piece.token, at as u32);
        let (partition, line) = (piece.ops()[at].partition, piece.line_of(at));
        let ended = Ended { token, index, count: 1, partition, line, ending };
        note_ended(&mut self.waiters, &mut self.ended_ops, &mut self.texts, ended);
    }

    /// The owner's answer to a run of operations of others.
    fn answer_piece(&mut self, piece: &Piece) {
        let node = Arc::clone(&self.node);
        let Some(plane) = self.plane.as_deref_mut() else { return };
        let key = (piece.token & !ASKED) as usize;
        let Some(asked) = plane.asked.try_remove(key) else { return };
        for place in 0..piece.ops().len() {
            plane.answers.text(piece.text_of(place));
        }
        plane.say_answers(&node, asked);
    }

    fn released_one(
        &mut self,
        lent: &mut Lent<'_>,
        piece: &Piece,
        at: usize,
        outcome: &Outcome<'_>,
    ) {
        if piece.token & ASKED != 0 {
            return self.answer_one(piece, at, outcome);
        }
        match outcome {
            Outcome::Reply(text) => {
                self.end_numbers(piece, at..at + 1);
                self.reply_run(piece.token, at, 1, text);
            }
            Outcome::Again => self.ask_again(lent, piece, at),
        }
    }

    fn answer_one(&mut self, piece: &Piece, at: usize, outcome: &Outcome<'_>) {
        let node = Arc::clone(&self.node);
        let Some(plane) = self.plane.as_deref_mut() else { return };
        let key = (piece.token & !ASKED) as usize;
        let Some(asked) = plane.asked.get_mut(key) else { return };
        asked.left = asked.left.saturating_sub(1);
        let one = Asked { first: asked.first + at as u16, ..*asked };
        if asked.left == 0 {
            plane.asked.remove(key);
        }
        match outcome {
            Outcome::Reply(text) => {
                plane.answers.text(text);
                plane.say_answers(&node, one);
            }
            Outcome::Again => {
                let partition = piece.ops()[at].partition;
                let route = node.space().and_then(|space| space.copies.route(partition));
                plane.say_exception(&node, one, ExceptionKind::Deposed(route));
            }
        }
    }

    /// An operation of this worker's own, done here for a client and not told, is asked of the newest owner.
    fn ask_again(&mut self, lent: &mut Lent<'_>, piece: &Piece, at: usize) {
        let node = Arc::clone(&self.node);
        let op = &piece.ops()[at];
        let Some(plane) = self.plane.as_deref_mut() else { return };
        let line = piece.line_of(at);
        let is_asked = if op.lane == NO_LANE {
            let route = node.space().and_then(|space| space.copies.route(op.partition));
            let owner = route.map_or(node.me().0, |route| route.primary.node);
            let (token, index) = (piece.token, at as u32);
            let (partition, sort) = (op.partition, op.sort & !sort::AGAIN);
            let submitted = Submitted { partition, sort, token, index, for_ns: 0 };
            plane.submit(owner, &submitted, line, lent.now)
        } else {
            plane.ops.reopen(op.lane, op.number, line, lent.now)
        };
        if !is_asked {
            self.end_parked(piece, at, PlaneEnding::Unknown);
        }
    }

    fn end_numbers(&mut self, piece: &Piece, places: std::ops::Range<usize>) {
        let Some(plane) = self.plane.as_deref_mut() else { return };
        for op in piece.ops()[places].iter().filter(|op| op.lane != NO_LANE) {
            plane.ops.answered(op.lane, op.number);
        }
    }

    /// Replies to `count` requests of a client, from number `index` of its waiter on.
    fn reply_run(&mut self, token: u64, index: usize, count: usize, text: &[u8]) {
        let (index, count) = (index as u32, count as u32);
        let (partition, ending) = (Partition::default(), PlaneEnding::Done(text));
        let ended = Ended { token, index, count, partition, line: &[], ending };
        note_ended(&mut self.waiters, &mut self.ended_ops, &mut self.texts, ended);
    }

    /// Notes a run of operations of others whose replies wait for copies; its token.
    pub(super) fn wait_for_copies(plane: &mut Plane, asked: Asked) -> u64 {
        plane.asked.insert(asked) as u64 | ASKED
    }

    fn end_operations(&mut self) {
        let mut ended = std::mem::take(&mut self.ended_ops);
        for EndedOp { waiter, index, count, partition, line, ending } in ended.drain(..) {
            if let (Use::Run, EndedText::Text(from, to)) = (&waiter.used, &ending) {
                let (client, place) = (waiter.client, waiter.place + u64::from(index));
                let text = (*from, *to);
                self.runs.push(Run { client, place, count, text });
                continue;
            }
            let ending = match ending {
                EndedText::Text(from, to) => {
                    Ending::Done(Bytes::copy_from_slice(&self.texts[from..to]))
                }
                EndedText::Other(ending) => ending,
            };
            if let Use::Run = waiter.used {
                // A limit may have another answer to it.
                let used = Use::Limited { quiet: false, words: line };
                let place = waiter.place + u64::from(index);
                self.endings.push((Waiter { place, used, partition, ..waiter }, ending));
            } else {
                self.endings.push((waiter, ending));
            }
        }
        self.ended_ops = ended;
    }
}

/// An operation that ended, or a run of them.
pub(super) struct EndedOp {
    waiter: Waiter,
    index: u32,
    count: u32,
    partition: Partition,
    /// What a client wrote, if it is one of a run and was not done.
    line: Bytes,
    ending: EndedText,
}

enum EndedText {
    /// Bytes of the front's texts.
    Text(usize, usize),
    Other(Ending),
}

/// Keeps what ended until it can be looked at.
fn note_ended(
    waiters: &mut Slab<Waiter>,
    all: &mut Vec<EndedOp>,
    texts: &mut Vec<u8>,
    ended: Ended<'_>,
) {
    let Ended { token, index, count, partition, line, ending } = ended;
    let Some(waiter) = waiters.get_mut(token as usize) else { return };
    waiter.left = waiter.left.saturating_sub(count);
    let waiter = if waiter.left == 0 { waiters.remove(token as usize) } else { waiter.part() };
    let ending = match ending {
        PlaneEnding::Done(text) => {
            let from = texts.len();
            texts.extend_from_slice(text);
            EndedText::Text(from, texts.len())
        }
        PlaneEnding::NotApplied(refusal) => EndedText::Other(Ending::NotApplied(refusal)),
        PlaneEnding::Unknown => EndedText::Other(Ending::Unknown),
    };
    let line = match (&waiter.used, &ending) {
        (Use::Run, EndedText::Other(_)) => Bytes::copy_from_slice(line),
        _ => Bytes::new(),
    };
    all.push(EndedOp { waiter, index, count, partition, line, ending });
}
