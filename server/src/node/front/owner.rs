//! Operations that a worker does for others, and for itself by the long way.
//!
//! Here: `Forward` frames, and the requests that are done one by one. Not here: those that are done together (`common`), what an
//! operation does (`copies`, `machine`).

use std::sync::Arc;

use bytes::Bytes;
use cluster::frames::{ExceptionKind, Fault, Forward, Request};
use cluster::parked_reply::{Need, ParkedOp};
use cluster::replica::{Now, Refusal};
use protocol::{Decoded, decode, quick};

use super::common::Rest;
use super::plane::{Asked, NO_LANE};
use super::{Front, Lent};
use crate::node::machine::Sort;
use crate::node::operation::{HeldOp, OpRef, Performed, Source};
use crate::node::serving::Serving;

/// A line that is no request of a client is told with its length in front.
const LENGTH_BYTES: usize = 4;

/// What a frame's requests have in common.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    pub(super) source: Source,
    pub(super) forward: &'a Forward<'a>,
    deadline_ns: u64,
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
        let mut rest = Rest { head, requests, place: 0, first: 0 };
        let mut lines = forward.lines;
        let serving = Serving::new(&node, self.contact, lent.now).filter(|_| is_fresh);
        while rest.place < requests.len() {
            let done = serving
                .as_ref()
                .map_or(0, |serving| self.serve_common(lent, serving, &mut rest, &mut lines));
            rest.place += done;
            if done == 0 {
                self.serve_one(lent, &mut rest, &mut lines)?;
                rest.place += 1;
            }
        }
        let Some(plane) = self.plane.as_deref_mut() else { return Ok(()) };
        let (sending, first) = (forward.sending, rest.first);
        plane.say_answers(&node, Asked { source, sending, first, left: 0 });
        Ok(())
    }

    fn refuse_all(&mut self, forward: &Forward<'_>, source: Source, refusal: Refusal) {
        let node = Arc::clone(&self.node);
        let Some(plane) = self.plane.as_deref_mut() else { return };
        for place in 0..forward.count() {
            plane.answers.exception(place as u16, ExceptionKind::Refused(refusal));
        }
        plane.say_answers(&node, Asked { source, sending: forward.sending, first: 0, left: 0 });
    }

    /// Does one request by the long way.
    fn serve_one(
        &mut self,
        lent: &mut Lent<'_>,
        rest: &mut Rest<'_>,
        lines: &mut &[u8],
    ) -> Result<(), Fault> {
        let Rest { head, requests, place, .. } = *rest;
        let request = requests[place];
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
        let performed = space.copies.perform(
            &mut lent.hands(&node, self.contact, &mut self.work),
            &op,
            &mut texts,
        );
        let Some(plane) = self.plane.as_deref_mut() else { return Ok(()) };
        let asked = Asked {
            source: head.source,
            sending: head.forward.sending,
            first: rest.first,
            left: 0,
        };
        match performed {
            Performed::Done { needs, .. } if needs.is_empty() => plane.answers.text(&texts),
            Performed::Done { needs, term } => {
                plane.say_answers(&node, asked);
                rest.first = place as u16 + 1;
                plane.park_one(lent.now, &op, term, &needs, &texts);
            }
            Performed::Held => {
                plane.say_answers(&node, asked);
                rest.first = place as u16 + 1;
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
        let performed = space.copies.perform(
            &mut lent.hands(&node, self.contact, &mut self.work),
            &op,
            &mut texts,
        );
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

/// Takes the line of a request from the front of all lines.
fn take_line<'a>(
    lent: &Lent<'_>,
    request: Request,
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
