//! Common requests of a `Forward`, which are done together on open headers.
//!
//! Here: which requests of a frame are such, their records, results and answers. Not here: all other requests (`owner`),
//! what a request does (`quick`).

use std::sync::Arc;

use arrayvec::ArrayVec;
use cluster::frames::{Forward, Request, sort};
use cluster::parked_reply::{Need, ParkedOp};
use cluster::replica_set::LINKS_MAX;
use engine::Engine;
use protocol::{Quick, quick};

use super::owner::Head;
use super::plane::{Asked, Plane};
use super::{Front, Lent};
use crate::limits::InForce;
use crate::node::Node;
use crate::node::batch::{Name, Ran, Recorder, Touches};
use crate::node::copies::Copies;
use crate::node::machine::{COUNTED_ELSEWHERE, Sort};
use crate::node::serving::Serving;
use crate::quick::may_be_held;
use crate::session::{LookedUp, Round, is_quick};
use crate::shards::{HELD_MAX, Shards};

/// What the replies of a batch wait for.
type Needs = ArrayVec<ArrayVec<Need, LINKS_MAX>, HELD_MAX>;

/// Requests of a frame from a place in it on.
#[derive(Clone, Copy)]
pub(super) struct Rest<'a> {
    pub(super) head: Head<'a>,
    /// All requests of the frame.
    pub(super) requests: &'a [Request],
    /// Where these begin.
    pub(super) place: usize,
    /// The first place whose answer was not said yet.
    pub(super) first: u16,
}

/// One of the commonest requests, and what was found out about its key.
#[derive(Clone, Copy)]
pub(crate) struct Common<'b> {
    pub(crate) quick: &'b Quick<'b>,
    /// Of the key as it is counted.
    pub(crate) hash: u64,
    /// What limits say of the key; none where there are no limits at all.
    pub(crate) looked: Option<&'b LookedUp<'b>>,
}

impl<'b> Common<'b> {
    /// Whether it may be done while shards are held.
    #[inline]
    pub(crate) fn is_quick(self) -> bool {
        match self.looked {
            None => may_be_held(self.quick),
            Some(looked) => is_quick(self.quick, looked),
        }
    }

    /// The key that it counts under.
    #[inline]
    pub(crate) fn key(self) -> &'b [u8] {
        let own = self.quick.key();
        self.looked.map_or(own, |looked| looked.counted(own))
    }

    /// Whether that is another key than the client wrote.
    pub(crate) fn is_elsewhere(self) -> bool {
        self.key() != self.quick.key()
    }

    /// How much it may change.
    #[inline]
    pub(crate) fn touches(self) -> Touches {
        if self.looked.is_some_and(|looked| !looked.is_unbound()) {
            return Touches::Item;
        }
        match self.quick {
            Quick::Get { .. } => Touches::Nothing,
            Quick::Count { .. } => Touches::Count,
            Quick::Set { .. } | Quick::Take { .. } => Touches::Item,
        }
    }

    /// Does it and appends its reply; false: it has to go the long way.
    #[inline]
    pub(crate) fn answer(
        self,
        round: &mut Round<'_>,
        engine: &mut Engine,
        out: &mut Vec<u8>,
    ) -> bool {
        match self.looked {
            None => round.answer_unbound(engine, self.quick, self.hash, out),
            Some(looked) => round.answer_quickly(engine, self.quick, looked, out),
        }
    }
}

/// A common request of a frame.
struct Read<'a> {
    quick: Quick<'a>,
    /// Where its line ends.
    end: usize,
    hash: u64,
    looked: Option<LookedUp<'a>>,
}

impl Read<'_> {
    fn common(&self) -> Common<'_> {
        Common { quick: &self.quick, hash: self.hash, looked: self.looked.as_ref() }
    }
}

/// Whether a request is one that a batch on open headers may do.
pub(super) fn is_plain(request: Request) -> bool {
    request.sort & sort::AGAIN == 0 && Sort::of_bits(request.sort).is_some_and(Sort::is_of_client)
}

impl Rest<'_> {
    fn request(&self, position: usize) -> &Request {
        &self.requests[self.place + position]
    }

    fn name(&self, position: usize) -> Name {
        let Forward { lane, first, done, .. } = *self.head.forward;
        Name { lane, first, done, number: first + (self.place + position) as u64 }
    }

    fn asked(&self, first: u16) -> Asked {
        Asked { source: self.head.source, sending: self.head.forward.sending, first, left: 0 }
    }
}

impl Front {
    /// Does as many requests as are common ones on open headers, up to a batch; how many it has done. `lines` begins with the
    /// first one's line.
    pub(super) fn serve_common(
        &mut self,
        lent: &mut Lent<'_>,
        serving: &Serving<'_>,
        rest: &mut Rest<'_>,
        lines: &mut &[u8],
    ) -> usize {
        let node = Arc::clone(&self.node);
        let (Some(space), Some(plane)) = (node.space(), self.plane.as_deref_mut()) else {
            return 0;
        };
        let mut counted = std::mem::take(&mut lent.scratch.keys);
        counted.resize_with(HELD_MAX, Vec::new);
        let shards = lent.service.shards();
        let batch = read(shards, lent.in_force, serving, rest, lines, &mut counted);
        let mut texts = std::mem::take(&mut plane.texts);
        texts.clear();
        let ends = plane.perform(lent, (&node, &space.copies), serving, rest, &batch, &mut texts);
        let done = ends.len();
        if let Some(last) = done.checked_sub(1) {
            *lines = &lines[batch[last].end..];
            plane.answer_common((&node, lent.now.mono_ns), serving, rest, &ends, &texts);
        }
        drop(batch);
        lent.scratch.keys = counted;
        plane.texts = texts;
        done
    }
}

/// Reads the common requests in front of `lines`, up to a batch.
fn read<'a>(
    shards: &Shards,
    in_force: &'a InForce,
    serving: &Serving<'_>,
    rest: &Rest<'_>,
    lines: &'a [u8],
    counted: &'a mut [Vec<u8>],
) -> ArrayVec<Read<'a>, HELD_MAX> {
    let (bounds, limits) = (shards.bounds(), in_force.limits());
    let mut batch: ArrayVec<Read<'a>, HELD_MAX> = ArrayVec::new();
    let mut end = 0;
    for (request, counted) in rest.requests[rest.place..].iter().zip(counted) {
        if batch.is_full() || !is_plain(*request) {
            break;
        }
        let Some((quick, bytes)) = quick(&lines[end..], bounds) else { break };
        if Sort::of_bits(request.sort) != Some(Sort::of_quick(&quick)) {
            break;
        }
        let bound = (!limits.is_empty()).then(|| limits.find(quick.key(), counted));
        let mut looked = bound.map(|bound| LookedUp { hash: 0, bound });
        let key = looked.as_ref().map_or(quick.key(), |looked| looked.counted(quick.key()));
        let hash = shards.hash_in(request.partition.0, key);
        if let Some(looked) = &mut looked {
            looked.hash = hash;
        }
        let read = Read { quick, end: end + bytes, hash, looked };
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
    common: Common<'_>,
    request: Request,
    shards: &Shards,
    serving: &Serving<'_>,
) -> bool {
    let is_elsewhere = common.is_elsewhere();
    let is_there = || serving.partition(shards.hash(common.key())) == request.partition;
    common.is_quick()
        && is_elsewhere == (request.sort & COUNTED_ELSEWHERE != 0)
        && (!is_elsewhere || is_there())
}

impl Plane {
    /// Does a batch, up to the first request that has to go the long way, and records it. The answers are appended to
    /// `texts`; returned is where each of them ends.
    fn perform(
        &mut self,
        lent: &mut Lent<'_>,
        (node, copies): (&Node, &Copies),
        serving: &Serving<'_>,
        rest: &Rest<'_>,
        batch: &[Read<'_>],
        texts: &mut Vec<u8>,
    ) -> ArrayVec<u32, HELD_MAX> {
        let mut ends = ArrayVec::new();
        if batch.is_empty() {
            return ends;
        }
        let hashes: ArrayVec<u64, HELD_MAX> = batch.iter().map(|read| read.hash).collect();
        let mut held = lent.service.shards().hold(&hashes);
        let Self { recorder, cache, .. } = self;
        recorder.begin();
        let mut round = lent.round();
        for (position, common) in batch.iter().map(Read::common).enumerate() {
            let (term, hash) = (rest.request(position).term, common.hash);
            let is_read = matches!(common.quick, Quick::Get { .. });
            // The header is looked at while the shard is held.
            let Some(engine) = held.engine_beside(position, hash) else { break };
            let placed = serving.next(hash, is_read).filter(|placed| placed.at.term == term);
            let Some(placed) = placed else { break };
            if !is_read && !cache.may_append(node.links(), placed.set) {
                break;
            }
            round.now = serving.time(placed.at);
            let (key, how) = (common.key(), (placed, common.touches()));
            let ran = recorder.run(serving, engine, (key, hash), how, texts, |engine, out| {
                common.answer(&mut round, engine, out)
            });
            match ran {
                Ran::Done if is_read => {}
                Ran::Done => recorder.keep(rest.name(position)),
                Ran::Changed => recorder.record(serving, key, Some(rest.name(position)), texts),
                Ran::ChangedApart => {
                    recorder.record(serving, key, None, texts);
                    break;
                }
                Ran::Apart => break,
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
        rest: &mut Rest<'_>,
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
        self.say_answers(node, rest.asked(rest.first));
        let mut from = 0;
        while from < ends.len() {
            let token = Front::wait_for_copies(self, rest.asked((rest.place + from) as u16));
            let mut piece = self.parked.begin(token, now_ns);
            let mut at = from;
            while at < ends.len() && piece.has_room() {
                let row = &self.recorder.rows()[at];
                let partition = serving.partition(row.hash);
                let mut op = ParkedOp::new(partition, row.at.term, rest.request(at).sort);
                for need in &needs[at] {
                    op.needs |= piece.need(*need);
                }
                piece.push(op, text_of(at), &[]);
                at += 1;
            }
            self.note_left(token, at - from);
            if piece.needs_nothing() {
                // Only in front of or behind others that need something.
                self.answer_at_once(node, token, &piece);
            } else {
                self.parked.park(piece);
            }
            from = at;
        }
        rest.first = (rest.place + ends.len()) as u16;
    }
}
