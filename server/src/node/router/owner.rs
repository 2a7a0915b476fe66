//! Operations that a worker performs for other nodes, and for itself on the general path.
//!
//! Here: `Forward` frames, and the requests that are performed one by one. Not here: those that are
//! performed together (`fast_op`), the effect of an operation (`replicas`, `state_machine`).

use std::sync::Arc;

use bytes::Bytes;
use cluster::frames::{ExceptionKind, Forward, ForwardOp, FrameError};
use cluster::parked_reply::{Need, ParkedOp};
use cluster::replica::NodeTime;
use protocol::{Bounds, DecodeError, Decoded, decode, decode_fast};

use super::data_plane::{DataPlane, ForwardedOps, NO_STREAM};
use super::fast_op::FrameRest;
use super::{Router, RouterContext};
use crate::node::Node;
use crate::node::operation::{HeldOp, OpRef, OpSource, Performed};
use crate::node::serving::Serving;
use crate::node::state_machine::OpKind;

/// The bytes of the length in front of a line that is no client's request.
const LENGTH_BYTES: usize = 4;

/// The common fields of a frame's requests.
#[derive(Clone, Copy)]
pub(super) struct ForwardContext<'a> {
    pub(super) source: OpSource,
    pub(super) forward: &'a Forward<'a>,
    deadline_ns: u64,
}

impl Router {
    /// Performs the operations of a `Forward` frame.
    ///
    /// # Errors
    ///
    /// The frame cannot be decoded.
    pub(in crate::node) fn serve_forward(
        &mut self,
        ctx: &mut RouterContext<'_>,
        source: OpSource,
        body: &[u8],
    ) -> Result<(), FrameError> {
        let forward = Forward::decode(body)?;
        let node = Arc::clone(&self.node);
        if node.keyspace().is_none() || !self.begin_plane() {
            return Ok(());
        }
        let mut requests = std::mem::take(&mut self.requests);
        requests.clear();
        requests.extend(forward.requests());
        let served = self.serve_requests(ctx, source, &forward, &requests);
        self.requests = requests;
        if let (Err(_), Some(plane)) = (&served, self.plane.as_deref_mut()) {
            // The link ends, and the next frame's answers must not follow these.
            plane.answers.clear();
        }
        served
    }

    fn serve_requests(
        &mut self,
        ctx: &mut RouterContext<'_>,
        source: OpSource,
        forward: &Forward<'_>,
        requests: &[ForwardOp],
    ) -> Result<(), FrameError> {
        let node = Arc::clone(&self.node);
        let Some(keyspace) = node.keyspace() else { return Ok(()) };
        let log = match keyspace.replicas.logs().log_of(forward.stream) {
            Ok(log) => log,
            Err(reason) => {
                self.refuse_all(forward, source, reason.into());
                return Ok(());
            }
        };
        let is_fresh = {
            let mut log = log.lock();
            log.advance_done(forward.done);
            log.done() <= forward.first
        };
        if source != OpSource::Own {
            keyspace.replicas.metrics.note_received(forward.count() as u64);
        }
        let left_ns = u64::from(forward.left_ms) * 1_000_000;
        let deadline_ns = ctx.now.mono_ns.saturating_add(left_ns);
        let head = ForwardContext { source, forward, deadline_ns };
        let mut rest = FrameRest { head, requests, place: 0, first: 0, records_end: 0 };
        let mut lines = forward.lines;
        let serving = Serving::new(&node, self.contact, ctx.now).filter(|_| is_fresh);
        while rest.place < requests.len() {
            let done = serving
                .as_ref()
                .map_or(0, |serving| self.serve_common(ctx, serving, &mut rest, &mut lines));
            rest.place += done;
            if done == 0 {
                self.serve_one(ctx, &mut rest, &mut lines)?;
                rest.place += 1;
            }
        }
        let Some(plane) = self.plane.as_deref_mut() else { return Ok(()) };
        plane.send_answers(&node, rest.take_answered());
        Ok(())
    }

    fn refuse_all(&mut self, forward: &Forward<'_>, source: OpSource, kind: ExceptionKind) {
        let node = Arc::clone(&self.node);
        let Some(plane) = self.plane.as_deref_mut() else { return };
        for place in 0..forward.count() {
            plane.answers.exception(place as u16, kind);
        }
        plane.send_answers(&node, ForwardedOps::new(source, forward.sending, 0));
    }

    /// Performs one request on the general path.
    fn serve_one(
        &mut self,
        ctx: &mut RouterContext<'_>,
        rest: &mut FrameRest<'_>,
        lines: &mut &[u8],
    ) -> Result<(), FrameError> {
        let FrameRest { head, requests, place, .. } = *rest;
        let request = requests[place];
        let node = Arc::clone(&self.node);
        let Some(keyspace) = node.keyspace() else { return Ok(()) };
        let line = take_line(ctx, request, lines)?;
        let op = OpRef {
            worker: self.core,
            source: head.source,
            sending: head.forward.sending,
            place: place as u16,
            stream: head.forward.stream,
            number: head.forward.first + place as u64,
            partition: request.partition,
            term: request.term,
            op_flags: request.op_flags,
            deadline_ns: head.deadline_ns,
            line,
        };
        let Some(plane) = self.plane.as_deref_mut() else { return Ok(()) };
        let mut texts = std::mem::take(&mut plane.texts);
        texts.clear();
        let performed = keyspace.replicas.perform(
            &mut ctx.replica_context(&node, self.contact, &mut self.scratch),
            &op,
            &mut texts,
        );
        let Some(plane) = self.plane.as_deref_mut() else { return Ok(()) };
        match performed {
            Performed::Done { needs, .. } if needs.is_empty() => {
                plane.begin_answers(&node, rest, 0);
                plane.answer(&node, rest, 0, &texts);
            }
            Performed::Done { needs, term } => {
                plane.send_answers(&node, rest.take_answered());
                rest.first = place as u16 + 1;
                plane.park_one(ctx.now, &op, term, &needs, &texts);
            }
            Performed::Held => {
                plane.send_answers(&node, rest.take_answered());
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

    /// Performs an operation that was held.
    pub(super) fn perform_waiting(&mut self, ctx: &mut RouterContext<'_>, op: &HeldOp) {
        let node = Arc::clone(&self.node);
        let Some(keyspace) = node.keyspace() else { return };
        let op = op.as_ref();
        let mut texts = Vec::new();
        let performed = keyspace.replicas.perform(
            &mut ctx.replica_context(&node, self.contact, &mut self.scratch),
            &op,
            &mut texts,
        );
        let Some(plane) = self.plane.as_deref_mut() else { return };
        let forwarded = ForwardedOps::new(op.source, op.sending, op.place);
        match performed {
            Performed::Done { needs, .. } if needs.is_empty() => {
                plane.answers.text(&texts);
                plane.send_answers(&node, forwarded);
            }
            Performed::Done { needs, term } => plane.park_one(ctx.now, &op, term, &needs, &texts),
            Performed::Held => {}
            Performed::Refer(route) => {
                plane.send_exception(&node, forwarded, ExceptionKind::NotOwner(route));
            }
            Performed::Refused(refusal) => {
                plane.send_exception(&node, forwarded, ExceptionKind::Refused(refusal));
            }
        }
    }

    /// Answers an operation that was held and not performed.
    pub(super) fn end_waiting(&mut self, op: &HeldOp, kind: ExceptionKind) {
        let node = Arc::clone(&self.node);
        let Some(plane) = self.plane.as_deref_mut() else { return };
        let forwarded = ForwardedOps::new(op.source, op.sending, op.place);
        plane.send_exception(&node, forwarded, kind);
    }
}

impl DataPlane {
    /// Collects the answer to the request at index `at` of `rest`, and sends those before it if
    /// they are long.
    #[inline]
    pub(super) fn answer(&mut self, node: &Node, rest: &mut FrameRest<'_>, at: usize, text: &[u8]) {
        if self.has_long_answers() {
            self.send_answers(node, rest.ops_from_first());
            rest.first = (rest.place + at) as u16;
        }
        self.answers.text(text);
    }

    /// Parks one reply that waits for copies.
    fn park_one(
        &mut self,
        now: NodeTime,
        op: &OpRef<'_>,
        term: cluster::id::Term,
        needs: &[Need],
        text: &[u8],
    ) {
        let forwarded =
            ForwardedOps { left: 1, ..ForwardedOps::new(op.source, op.sending, op.place) };
        let token = Router::wait_for_copies(self, forwarded);
        let mut batch = self.parked.begin(token, now.mono_ns);
        let mut parked = ParkedOp::new(op.partition, term, op.op_flags);
        for need in needs {
            parked.needs |= batch.need(*need);
        }
        debug_assert_eq!(parked.stream, NO_STREAM, "its lane is another worker's");
        batch.push(parked, text, &[]);
        self.parked.park(batch);
    }
}

/// Removes and returns the line of a request from the front of all lines.
fn take_line<'a>(
    ctx: &RouterContext<'_>,
    request: ForwardOp,
    lines: &mut &'a [u8],
) -> Result<&'a [u8], FrameError> {
    let bytes = if OpKind::of_bits(request.op_flags).is_some_and(OpKind::is_of_client) {
        let bytes = client_line_bytes(lines, ctx.service.shards().bounds());
        bytes.ok_or(FrameError::Range("line"))?
    } else {
        let (length, rest) = lines.split_first_chunk::<LENGTH_BYTES>().ok_or(FrameError::Short)?;
        *lines = rest;
        u32::from_le_bytes(*length) as usize
    };
    let (line, rest) = lines.split_at_checked(bytes).ok_or(FrameError::Short)?;
    *lines = rest;
    Ok(line)
}

/// The length of the client's request at the front of all lines. One that this node cannot read is
/// of a later version: it has its length and is answered with an error, so that the requests beside
/// it are performed.
fn client_line_bytes(lines: &[u8], bounds: Bounds) -> Option<usize> {
    if let Some((_, bytes)) = decode_fast(lines, bounds) {
        return Some(bytes);
    }
    match decode(lines, 0, bounds) {
        Ok(Decoded::Request { consumed, .. })
        | Err(DecodeError { consumed, closes: false, .. }) => Some(consumed),
        Ok(Decoded::Incomplete { .. }) | Err(_) => None,
    }
}

/// A line, with its length in front unless it is a client's request.
pub(super) fn line_of(op_kind: OpKind, raw_request: &[u8]) -> Bytes {
    if op_kind.is_of_client() {
        return Bytes::copy_from_slice(raw_request);
    }
    let mut line = Vec::with_capacity(LENGTH_BYTES + raw_request.len());
    line.extend_from_slice(&(raw_request.len() as u32).to_le_bytes());
    line.extend_from_slice(raw_request);
    line.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_a_later_version_has_its_length() {
        let bounds = Bounds::default();
        for line in [
            "incr k 1\r\n",
            "take k 1 - debit\r\n",
            "take k 1 - sparkle\r\n",
            "sparkle k\r\n",
            "set k 0 0 2 sparkle\r\nab\r\n",
        ] {
            let lines = format!("{line}incr k 1\r\n");
            assert_eq!(client_line_bytes(lines.as_bytes(), bounds), Some(line.len()), "{line}");
        }
        for cut in ["incr k 1", "set k 0 0 9\r\nab\r\n", ""] {
            assert_eq!(client_line_bytes(cut.as_bytes(), bounds), None, "{cut}");
        }
    }
}
