//! Operations that a worker does for others, and for itself by the long way.
//!
//! Here: `Forward` frames: runs of common requests on open headers together, everything else one by one. Not here: what an
//! operation does (`batch`, `copies`, `machine`).

use std::sync::Arc;

use arrayvec::ArrayVec;
use bytes::Bytes;
use cluster::frames::{ExceptionKind, Fault, Forward, Request, sort};
use cluster::parked_reply::{Need, ParkedOp};
use cluster::replica::{Now, Refusal};
use cluster::replica_set::LINKS_MAX;
use engine::Engine;
use protocol::{Decoded, Quick, decode, quick};

use super::plane::{Asked, NO_LANE, Plane};
use super::{Front, Lent};
use crate::node::batch::{Name, Ran, Recorder, Touches};
use crate::limits::InForce;
use crate::node::machine::{COUNTED_ELSEWHERE, Sort};
use crate::node::operation::{HeldOp, OpRef, Performed, Source};
use crate::node::serving::Serving;
use crate::quick::may_be_held;
use crate::session::{LookedUp, Round, is_quick};
use crate::shards::{HELD_MAX, Shards};

/// A line that is no request of a client is told with its length in front.
const LENGTH_BYTES: usize = 4;

/// What a frame's requests have in common.
#[derive(Clone, Copy)]
struct Head<'a> {
    source: Source,
    forward: &'a Forward<'a>,
    deadline_ns: u64,
}

/// A common request, while it is done.
struct Common<'a> {
    quick: Quick<'a>,
    /// Where its line ends.
    end: usize,
    hash: u64,
    key: KeyLimit<'a>,
}

/// The limit of a key, if there are any.
enum KeyLimit<'a> {
    /// There are no limits.
    NoLimits,
    LookedUp(LookedUp<'a>),
}

fn key_of<'a>(in_force: &'a InForce, quick: &Quick<'a>, counted: &'a mut Vec<u8>) -> KeyLimit<'a> {
    let limits = in_force.limits();
    if limits.is_empty() {
        return KeyLimit::NoLimits;
    }
    KeyLimit::LookedUp(LookedUp { hash: 0, bound: limits.find(quick.key(), counted) })
}

impl KeyLimit<'_> {
    fn set_hash(&mut self, hash: u64) {
        if let Self::LookedUp(looked) = self {
            looked.hash = hash;
        }
    }

    /// The key that is counted.
    fn counted<'k>(&'k self, quick: &'k Quick<'_>) -> &'k [u8] {
        match self {
            Self::NoLimits => quick.key(),
            Self::LookedUp(looked) => looked.counted(quick.key()),
        }
    }

    /// Whether a request may be done on the open header of its partition: this node counts it under a key of that
    /// partition, as the node in front did.
    fn is_of(
        &self,
        serving: &Serving<'_>,
        shards: &Shards,
        request: &Request,
        quick: &Quick<'_>,
    ) -> bool {
        let is_elsewhere = request.sort & COUNTED_ELSEWHERE != 0;
        match self {
            Self::NoLimits => !is_elsewhere && may_be_held(quick),
            Self::LookedUp(looked) => {
                let counted = looked.counted(quick.key());
                let is_same = counted == quick.key();
                let partition = |key| serving.partition(shards.hash(key));
                is_quick(quick, looked)
                    && is_same != is_elsewhere
                    && (is_same || partition(counted) == request.partition)
            }
        }
    }
}

impl Common<'_> {
    fn touches(&self) -> Touches {
        match &self.key {
            KeyLimit::LookedUp(looked) if !looked.is_unbound() => Touches::Item,
            _ => touches(&self.quick),
        }
    }

    #[inline]
    fn answer(&self, round: &mut Round<'_>, engine: &mut Engine, out: &mut Vec<u8>) -> bool {
        match &self.key {
            KeyLimit::NoLimits => round.answer_unbound(engine, &self.quick, self.hash, out),
            KeyLimit::LookedUp(looked) => round.answer_quickly(engine, &self.quick, looked, out),
        }
    }
}

/// Whether a request is one that a batch on open headers may do.
fn is_plain(request: &Request) -> bool {
    request.sort & sort::AGAIN == 0
        && Sort::of_bits(request.sort).is_some_and(Sort::is_of_client)
}

impl Front {
    /// Does the operations of a `Forward`.
    ///
    /// # Errors
    ///
    /// The frame is broken.
    pub(in crate::node) fn serve_forward(
        &mut self,
        lent: &mut Lent<'_>,
        source: Source,
        body: &[u8],
    ) -> Result<(), Fault> {
        let forward = Forward::decode(body)?;
        let node = Arc::clone(&self.node);
        if node.space().is_none() || !self.begin_plane() {
            return Ok(());
        }
        let mut requests = std::mem::take(&mut self.requests);
        requests.clear();
        requests.extend(forward.requests());
        let served = self.serve_requests(lent, source, &forward, &requests);
        self.requests = requests;
        served
    }

    fn serve_requests(
        &mut self,
        lent: &mut Lent<'_>,
        source: Source,
        forward: &Forward<'_>,
        requests: &[Request],
    ) -> Result<(), Fault> {
        let node = Arc::clone(&self.node);
        let Some(space) = node.space() else { return Ok(()) };
        let Some(log) = space.copies.logs().log_of(forward.lane) else {
            self.refuse_all(forward, source, Refusal::Stale);
            return Ok(());
        };
        let is_fresh = {
            let mut log = log.lock();
            log.hear(forward.done);
            log.done() <= forward.first
        };
        if source != Source::Own {
            space.copies.figures.note_received(forward.count() as u64);
        }
        let left_ns = u64::from(forward.left_ms) * 1_000_000;
        let deadline_ns = lent.now.mono_ns.saturating_add(left_ns);
        let head = Head { source, forward, deadline_ns };
        let (mut lines, mut place, mut first) = (forward.lines, 0, 0);
        while place < requests.len() {
            let done = match Serving::new(&node, self.contact, lent.now) {
                Some(serving) if is_fresh && is_plain(&requests[place]) => {
                    self.serve_run(lent, &serving, head, requests, &mut lines, place, &mut first)?
                }
                _ => 0,
            };
            place += done;
            if done > 0 {
                continue;
            }
            self.serve_one(lent, head, &requests[place], &mut lines, place, &mut first)?;
            place += 1;
        }
        let Some(plane) = self.plane.as_deref_mut() else { return Ok(()) };
        plane.say_answers(&node, Asked { source, sending: forward.sending, first, left: 0 });
        Ok(())
    }

    fn refuse_all(&mut self, forward: &Forward<'_>, source: Source, refusal: Refusal) {
        let node = Arc::clone(&self.node);
        let Some(plane) = self.plane.as_deref_mut() else { return };
        for place in 0..forward.count() {
            plane.answers.exception(place as u16, ExceptionKind::Refused(refusal));
        }
        plane.say_answers(
            &node,
            Asked { source, sending: forward.sending, first: 0, left: 0 },
        );
    }

    /// Does as many requests from `place` on as are common ones on open headers, up to a batch; how many it has done.
    #[expect(clippy::too_many_arguments, reason = "where the frame is")]
    fn serve_run(
        &mut self,
        lent: &mut Lent<'_>,
        serving: &Serving<'_>,
        head: Head<'_>,
        requests: &[Request],
        lines: &mut &[u8],
        place: usize,
        first: &mut u16,
    ) -> Result<usize, Fault> {
        let node = Arc::clone(&self.node);
        let Some(space) = node.space() else { return Ok(0) };
        let service = lent.service;
        let shards = service.shards();
        let bounds = shards.bounds();
        let in_force = lent.in_force;
        let mut counted = std::mem::take(&mut lent.scratch.keys);
        counted.resize_with(HELD_MAX, Vec::new);
        let mut keys = counted.iter_mut();
        let mut batch: ArrayVec<Common<'_>, HELD_MAX> = ArrayVec::new();
        let mut end = 0;
        for request in requests[place..].iter().take(HELD_MAX) {
            if !is_plain(request) {
                break;
            }
            let Some((quick, bytes)) = quick(&lines[end..], bounds) else { break };
            let is_served = Sort::of_bits(request.sort) == Some(Sort::of_quick(&quick))
                && serving.header_of(request.partition).is_some_and(|header| header.term() == request.term);
            let Some(counted) = keys.next().filter(|_| is_served) else { break };
            let mut key = key_of(in_force, &quick, counted);
            if !key.is_of(serving, shards, request, &quick) {
                break;
            }
            end += bytes;
            let hash = shards.hash_in(request.partition.0, key.counted(&quick));
            key.set_hash(hash);
            shards.prefetch_shard(hash);
            serving.prefetch(hash);
            batch.push(Common { quick, end, hash, key });
        }
        if batch.is_empty() {
            drop(batch);
            lent.scratch.keys = counted;
            return Ok(0);
        }
        let hashes: ArrayVec<u64, HELD_MAX> = batch.iter().map(|common| common.hash).collect();
        let mut held = shards.hold(&hashes);
        let Some(plane) = self.plane.as_deref_mut() else { return Ok(0) };
        let mut texts = std::mem::take(&mut plane.texts);
        texts.clear();
        plane.recorder.begin();
        let mut ends: ArrayVec<u32, HELD_MAX> = ArrayVec::new();
        let mut round = lent.round();
        for (position, common) in batch.iter().enumerate() {
            let Common { quick, hash, .. } = common;
            let is_read = matches!(quick, Quick::Get { .. });
            let term = requests[place + position].term;
            let Some(placed) = serving.next(*hash, is_read).filter(|placed| placed.at.term == term) else {
                break;
            };
            if !is_read && !plane.cache.may_append(node.links(), &placed.set) {
                break;
            }
            let Some(engine) = held.engine_beside(position, *hash) else { break };
            round.now = serving.time(placed.at);
            let touches = common.touches();
            let key = common.key.counted(quick);
            let ran = plane.recorder.run(serving, engine, (key, *hash), (placed, touches), &mut texts, |engine, out| {
                common.answer(&mut round, engine, out)
            });
            let number = head.forward.first + (place + position) as u64;
            let name = Name {
                lane: head.forward.lane,
                first: head.forward.first,
                done: head.forward.done,
                number,
            };
            match ran {
                Ran::Done if is_read => {}
                Ran::Done => plane.recorder.keep(name, &texts),
                Ran::Changed => plane.recorder.record(serving, key, Some(name), &texts),
                Ran::ChangedApart => {
                    plane.recorder.record(serving, key, None, &texts);
                    break;
                }
                Ran::Apart => break,
            }
            ends.push(texts.len() as u32);
        }
        drop(round);
        let Plane { recorder, cache, .. } = &mut *plane;
        recorder.finish(serving, (node.links(), cache), &space.copies, &texts);
        drop(held);
        let done = ends.len();
        let asked = |first: u16, left: usize| Asked {
            source: head.source,
            sending: head.forward.sending,
            first,
            left: left as u16,
        };
        let rows = recorder.rows().iter().take(done);
        let needs: ArrayVec<ArrayVec<Need, LINKS_MAX>, HELD_MAX> = rows
            .map(|row| Recorder::needs(row, serving, (node.links(), &mut *cache)))
            .collect();
        let text_of = |at: usize| {
            let from = at.checked_sub(1).map_or(0, |before| ends[before]) as usize;
            &texts[from..ends[at] as usize]
        };
        if needs.iter().all(ArrayVec::is_empty) {
            for at in 0..done {
                plane.answers.text(text_of(at));
            }
        } else {
            plane.say_answers(&node, asked(*first, 0));
            let mut from = 0;
            while from < done {
                let token = Self::wait_for_copies(plane, asked((place + from) as u16, 0));
                let mut piece = plane.parked.begin(token, lent.now.mono_ns);
                let mut at = from;
                while at < done && piece.has_room() {
                    let row = &plane.recorder.rows()[at];
                    let partition = serving.partition(row.hash);
                    let mut op = ParkedOp::new(partition, row.at.term, requests[place + at].sort);
                    for need in &needs[at] {
                        op.needs |= piece.need(*need);
                    }
                    piece.push(op, text_of(at), &[]);
                    at += 1;
                }
                plane.note_left(token, at - from);
                if piece.needs_nothing() {
                    // Only in front of or behind others that need something.
                    plane.answer_at_once(&node, token, &piece);
                } else {
                    plane.parked.park(piece);
                }
                from = at;
            }
            *first = (place + done) as u16;
        }
        let consumed = done.checked_sub(1).map_or(0, |last| batch[last].end);
        drop(batch);
        lent.scratch.keys = counted;
        *lines = &lines[consumed..];
        plane.texts = texts;
        Ok(done)
    }

    /// Does one request by the long way.
    fn serve_one(
        &mut self,
        lent: &mut Lent<'_>,
        head: Head<'_>,
        request: &Request,
        lines: &mut &[u8],
        place: usize,
        first: &mut u16,
    ) -> Result<(), Fault> {
        let node = Arc::clone(&self.node);
        let Some(space) = node.space() else { return Ok(()) };
        let line = take_line(lent, request, lines)?;
        let op = OpRef {
            worker: self.core,
            source: head.source,
            sending: head.forward.sending,
            place: place as u16,
            lane: head.forward.lane,
            number: head.forward.first + place as u64,
            partition: request.partition,
            term: request.term,
            sort: request.sort,
            deadline_ns: head.deadline_ns,
            line,
        };
        let Some(plane) = self.plane.as_deref_mut() else { return Ok(()) };
        let mut texts = std::mem::take(&mut plane.texts);
        texts.clear();
        let performed = space.copies.perform(&mut lent.hands(&node, self.contact, &mut self.work), &op, &mut texts);
        let Some(plane) = self.plane.as_deref_mut() else { return Ok(()) };
        let asked = Asked { source: head.source, sending: head.forward.sending, first: *first, left: 0 };
        match performed {
            Performed::Done { needs, .. } if needs.is_empty() => plane.answers.text(&texts),
            Performed::Done { needs, term } => {
                plane.say_answers(&node, asked);
                *first = place as u16 + 1;
                plane.park_one(lent.now, &op, term, &needs, &texts);
            }
            Performed::Held => {
                plane.say_answers(&node, asked);
                *first = place as u16 + 1;
            }
            Performed::Refer(route) => {
                plane.answers.exception(place as u16, ExceptionKind::NotOwner(route));
            }
            Performed::Refused(refusal) => {
                plane.answers.exception(place as u16, ExceptionKind::Refused(refusal));
            }
        }
        plane.texts = texts;
        Ok(())
    }

    /// Does an operation that was held.
    pub(super) fn perform_held(&mut self, lent: &mut Lent<'_>, op: &HeldOp) {
        let node = Arc::clone(&self.node);
        let Some(space) = node.space() else { return };
        let op = op.as_ref();
        let mut texts = Vec::new();
        let performed = space.copies.perform(&mut lent.hands(&node, self.contact, &mut self.work), &op, &mut texts);
        let Some(plane) = self.plane.as_deref_mut() else { return };
        let asked = Asked { source: op.source, sending: op.sending, first: op.place, left: 0 };
        match performed {
            Performed::Done { needs, .. } if needs.is_empty() => {
                plane.answers.text(&texts);
                plane.say_answers(&node, asked);
            }
            Performed::Done { needs, term } => plane.park_one(lent.now, &op, term, &needs, &texts),
            Performed::Held => {}
            Performed::Refer(route) => {
                plane.say_exception(&node, asked, ExceptionKind::NotOwner(route));
            }
            Performed::Refused(refusal) => {
                plane.say_exception(&node, asked, ExceptionKind::Refused(refusal));
            }
        }
    }

    /// Says what became of an operation that was held and not done.
    pub(super) fn end_held(&mut self, op: &HeldOp, kind: ExceptionKind) {
        let node = Arc::clone(&self.node);
        let Some(plane) = self.plane.as_deref_mut() else { return };
        let asked = Asked { source: op.source, sending: op.sending, first: op.place, left: 0 };
        plane.say_exception(&node, asked, kind);
    }
}

impl super::plane::Plane {
    /// One reply waits for copies.
    fn park_one(
        &mut self,
        now: Now,
        op: &OpRef<'_>,
        term: cluster::id::Term,
        needs: &[Need],
        text: &[u8],
    ) {
        let asked = Asked { source: op.source, sending: op.sending, first: op.place, left: 1 };
        let token = Front::wait_for_copies(self, asked);
        let mut piece = self.parked.begin(token, now.mono_ns);
        let mut parked = ParkedOp::new(op.partition, term, op.sort);
        for need in needs {
            parked.needs |= piece.need(*need);
        }
        debug_assert_eq!(parked.lane, NO_LANE, "its lane is another worker's");
        piece.push(parked, text, &[]);
        self.parked.park(piece);
    }
}

/// What an operation of this kind may change.
pub(crate) fn touches(quick: &Quick<'_>) -> Touches {
    match quick {
        Quick::Get { .. } => Touches::Nothing,
        Quick::Count { .. } => Touches::Count,
        Quick::Set { .. } | Quick::Take { .. } => Touches::Item,
    }
}

/// Takes the line of a request from the front of all lines.
fn take_line<'a>(
    lent: &Lent<'_>,
    request: &Request,
    lines: &mut &'a [u8],
) -> Result<&'a [u8], Fault> {
    let bytes = if Sort::of_bits(request.sort).is_some_and(Sort::is_of_client) {
        let bounds = lent.service.shards().bounds();
        match quick(lines, bounds) {
            Some((_, bytes)) => bytes,
            None => match decode(lines, 0, bounds) {
                Ok(Decoded::Request { consumed, .. }) => consumed,
                _ => return Err(Fault::Range("line")),
            },
        }
    } else {
        let (length, rest) = lines.split_first_chunk::<LENGTH_BYTES>().ok_or(Fault::Short)?;
        *lines = rest;
        u32::from_le_bytes(*length) as usize
    };
    let (line, rest) = lines.split_at_checked(bytes).ok_or(Fault::Short)?;
    *lines = rest;
    Ok(line)
}

/// A line with its length in front, if it is no request of a client.
pub(super) fn line_of(sort: Sort, words: &[u8]) -> Bytes {
    if sort.is_of_client() {
        return Bytes::copy_from_slice(words);
    }
    let mut line = Vec::with_capacity(LENGTH_BYTES + words.len());
    line.extend_from_slice(&(words.len() as u32).to_le_bytes());
    line.extend_from_slice(words);
    line.into()
}
