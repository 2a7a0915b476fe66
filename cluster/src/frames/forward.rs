//! `Forward`: operations for the owner of their keys, as their clients sent them; `Answers`: their
//! results.

use super::fields::{Fields, put_copy, put_stream, term};
use super::{FrameError, FrameKind, begin, end};
use crate::id::OpStreamId;
use crate::id::{CopyId, Partition, Term};
use crate::route::{Refusal, Route};

/// The bits of [`ForwardOp::op_flags`] that the data plane reads. The other bits belong to the
/// server.
pub mod op_flags {
    /// The operation was sent before, to any node: it is looked up in the dedup log.
    pub const AGAIN: u8 = 0x80;
    /// The operation only reads: repeating it is harmless.
    pub const READ: u8 = 0x40;
    /// The operation is answered as soon as its owner has done it; see `AckMode::Owner`.
    pub const OWNER: u8 = 0x20;
}

/// Bytes of a request without its line.
const REQUEST_BYTES: usize = 7;
/// Bytes of an exception.
const EXCEPTION_BYTES: usize = 23;

/// One request of a `Forward`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardOp {
    /// The partition of its key.
    pub partition: Partition,
    /// The term in which the receiver is primary. The operation may be done only in this term.
    pub term: Term,
    /// The bits of [`op_flags`].
    pub op_flags: u8,
}

/// A run of operations of one op stream, with consecutive numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward<'a> {
    /// Counts the `Forward`s of the sending worker, to any node.
    pub sending: u64,
    /// The op stream of the requests.
    pub stream: OpStreamId,
    /// The number of the first request; the others follow.
    pub first: u64,
    /// The op stream is done with all numbers below.
    pub done: u64,
    /// The receiver refuses requests that have waited for this time, in milliseconds.
    pub left_ms: u16,
    /// The encoded requests.
    requests: &'a [u8],
    /// The requests' lines, concatenated.
    pub lines: &'a [u8],
}

impl<'a> Forward<'a> {
    /// Decodes the body of a frame.
    ///
    /// # Errors
    ///
    /// If the body is malformed.
    pub fn decode(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut fields = Fields(body);
        let (sending, stream) = (fields.u64()?, fields.stream()?);
        let (first, done, left_ms) = (fields.u64()?, fields.u64()?, fields.u16()?);
        let count = fields.u16()?;
        let requests = fields.bytes(usize::from(count) * REQUEST_BYTES)?;
        let frame = Self { sending, stream, first, done, left_ms, requests, lines: fields.0 };
        if count == 0 || first.checked_add(u64::from(count)).is_none() {
            return Err(FrameError::Range("requests"));
        }
        frame.requests().try_for_each(|request| term(request.term.0).map(drop))?;
        Ok(frame)
    }

    /// The number of requests; at least one.
    #[must_use]
    pub fn count(&self) -> usize {
        self.requests.len() / REQUEST_BYTES
    }

    /// The requests in the order of their numbers.
    pub fn requests(&self) -> impl Iterator<Item = ForwardOp> + use<'a> {
        let (requests, _) = self.requests.as_chunks::<REQUEST_BYTES>();
        requests.iter().map(|&[p0, p1, t0, t1, t2, t3, op_flags]| ForwardOp {
            partition: Partition(u16::from_le_bytes([p0, p1])),
            term: Term(u32::from_le_bytes([t0, t1, t2, t3])),
            op_flags,
        })
    }
}

/// Collects the requests for one owner, and writes them as one frame. The memory is reused.
#[derive(Debug, Default)]
pub struct ForwardWriter {
    requests: Vec<u8>,
    lines: Vec<u8>,
}

/// The fields of a `Forward` that identify it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardHead {
    /// See [`Forward::sending`].
    pub sending: u64,
    /// See [`Forward::stream`].
    pub stream: OpStreamId,
    /// See [`Forward::first`].
    pub first: u64,
    /// See [`Forward::done`].
    pub done: u64,
    /// See [`Forward::left_ms`].
    pub left_ms: u16,
}

impl ForwardWriter {
    /// Whether there are no requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The number of requests; 65,535 at most.
    #[must_use]
    pub fn count(&self) -> usize {
        self.requests.len() / REQUEST_BYTES
    }

    /// Adds a request with its line.
    #[inline]
    pub fn request(&mut self, request: ForwardOp, line: &[u8]) {
        debug_assert!(self.count() < usize::from(u16::MAX), "a frame has 65,535 requests at most");
        let [p0, p1] = request.partition.0.to_le_bytes();
        let [t0, t1, t2, t3] = request.term.0.to_le_bytes();
        self.requests.extend_from_slice(&[p0, p1, t0, t1, t2, t3, request.op_flags]);
        self.lines.extend_from_slice(line);
    }

    /// Appends the frame to `out` and removes its requests.
    pub fn finish(&mut self, head: &ForwardHead, out: &mut Vec<u8>) {
        let at = begin(out, FrameKind::Forward);
        out.extend_from_slice(&head.sending.to_le_bytes());
        put_stream(out, head.stream);
        out.extend_from_slice(&head.first.to_le_bytes());
        out.extend_from_slice(&head.done.to_le_bytes());
        out.extend_from_slice(&head.left_ms.to_le_bytes());
        out.extend_from_slice(&(self.count() as u16).to_le_bytes());
        out.extend_from_slice(&self.requests);
        out.extend_from_slice(&self.lines);
        end(out, at);
        self.requests.clear();
        self.lines.clear();
    }
}

/// A request that was not answered by text. The length of its text is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exception {
    /// The request's index in the `Forward`.
    pub place: u16,
    /// The reason.
    pub kind: ExceptionKind,
}

/// The reason for not answering by text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExceptionKind {
    /// The receiver is not primary in that term. Carries the route to the primary, if known. This
    /// sending was not done.
    NotOwner(Option<Route>),
    /// The receiver is no longer primary. Carries the route to the new one, if known. The operation
    /// may have been done, so the sender sends it again.
    Deposed(Option<Route>),
    /// This sending was not done and will not be.
    Refused(Refusal),
}

/// The results of requests `first..first + count` of a `Forward`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answers<'a> {
    /// The number of the `Forward`.
    pub sending: u64,
    /// The index of the first answered request.
    pub first: u16,
    /// The number of answered requests; at least one.
    pub count: u16,
    /// The position in the sender's stream where the records of these requests end, if the answers
    /// follow them on the same link; 0 in plain `Answers`. Such an answer counts only if the
    /// receiver has installed them: see `ReceiveStream::has_installed`.
    pub records_end: u64,
    exceptions: &'a [u8],
    lengths: &'a [u8],
    /// The answers, concatenated.
    pub text: &'a [u8],
}

impl<'a> Answers<'a> {
    /// Decodes the body of a frame of `kind`: `Answers` or `AnswersBehindRecords`.
    ///
    /// # Errors
    ///
    /// If the body is malformed.
    pub fn decode(kind: FrameKind, body: &'a [u8]) -> Result<Self, FrameError> {
        let mut fields = Fields(body);
        let is_behind_records = kind == FrameKind::AnswersBehindRecords;
        let records_end = if is_behind_records { fields.u64()? } else { 0 };
        if is_behind_records && records_end == 0 {
            return Err(FrameError::Range("end of records"));
        }
        let (sending, first, count) = (fields.u64()?, fields.u16()?, fields.u16()?);
        let exceptions = usize::from(fields.u16()?);
        let exceptions = fields.bytes(exceptions * EXCEPTION_BYTES)?;
        let lengths = fields.bytes(usize::from(count) * 4)?;
        let text = fields.0;
        let frame = Self { sending, first, count, records_end, exceptions, lengths, text };
        let sum: u64 = frame.lengths().map(u64::from).sum();
        if sum != text.len() as u64 || count == 0 || first.checked_add(count).is_none() {
            return Err(FrameError::Range("answers"));
        }
        let mut from = first;
        for exception in frame.checked_exceptions() {
            let place = exception?.place;
            if !(from..first + count).contains(&place) {
                return Err(FrameError::Range("exceptions"));
            }
            from = place + 1;
        }
        Ok(frame)
    }

    fn checked_exceptions(&self) -> impl Iterator<Item = Result<Exception, FrameError>> + use<'a> {
        let (exceptions, _) = self.exceptions.as_chunks::<EXCEPTION_BYTES>();
        exceptions.iter().map(decode_exception)
    }

    /// The requests that were not answered by text, by ascending index.
    pub fn exceptions(&self) -> impl Iterator<Item = Exception> + use<'a> {
        self.checked_exceptions().filter_map(Result::ok)
    }

    /// The length of each request's text, in bytes.
    pub fn lengths(&self) -> impl Iterator<Item = u32> + use<'a> {
        let (lengths, _) = self.lengths.as_chunks::<4>();
        lengths.iter().map(|&length| u32::from_le_bytes(length))
    }
}

/// Collects answers, and writes them as one frame. The memory is reused.
#[derive(Debug, Default)]
pub struct AnswersWriter {
    exceptions: Vec<u8>,
    lengths: Vec<u8>,
    text: Vec<u8>,
}

impl AnswersWriter {
    /// The number of collected answers.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lengths.len() / 4
    }

    /// The bytes of the collected texts.
    #[must_use]
    #[inline]
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// Answers the next request by `text`.
    #[inline]
    pub fn text(&mut self, text: &[u8]) {
        self.lengths.extend_from_slice(&(text.len() as u32).to_le_bytes());
        self.text.extend_from_slice(text);
    }

    /// Answers the next request, at index `place` of its `Forward`, by an exception.
    pub fn exception(&mut self, place: u16, kind: ExceptionKind) {
        self.lengths.extend_from_slice(&[0; 4]);
        let out = &mut self.exceptions;
        out.extend_from_slice(&place.to_le_bytes());
        let (kind, route) = match kind {
            ExceptionKind::NotOwner(None) => (NOT_OWNER, None),
            ExceptionKind::NotOwner(route) => (NOT_OWNER_BUT, route),
            ExceptionKind::Deposed(None) => (DEPOSED, None),
            ExceptionKind::Deposed(route) => (DEPOSED_BY, route),
            ExceptionKind::Refused(refusal) => (refusal_byte(refusal), None),
        };
        let route = route.unwrap_or(Route { term: Term(0), primary: CopyId::default() });
        out.push(kind);
        out.extend_from_slice(&route.term.0.to_le_bytes());
        put_copy(out, route.primary);
    }

    /// Appends the frame to `out` and removes its answers. `first` is the index of the first
    /// answered request; for `records_end` see [`Answers::records_end`].
    pub fn finish(&mut self, sending: u64, first: u16, records_end: u64, out: &mut Vec<u8>) {
        let at = if records_end == 0 {
            begin(out, FrameKind::Answers)
        } else {
            let at = begin(out, FrameKind::AnswersBehindRecords);
            out.extend_from_slice(&records_end.to_le_bytes());
            at
        };
        out.extend_from_slice(&sending.to_le_bytes());
        out.extend_from_slice(&first.to_le_bytes());
        out.extend_from_slice(&(self.count() as u16).to_le_bytes());
        out.extend_from_slice(&((self.exceptions.len() / EXCEPTION_BYTES) as u16).to_le_bytes());
        out.extend_from_slice(&self.exceptions);
        out.extend_from_slice(&self.lengths);
        out.extend_from_slice(&self.text);
        end(out, at);
        self.clear();
    }

    /// Removes the collected answers.
    pub fn clear(&mut self) {
        self.exceptions.clear();
        self.lengths.clear();
        self.text.clear();
    }
}

const NOT_OWNER: u8 = 1;
const NOT_OWNER_BUT: u8 = 2;
const DEPOSED: u8 = 3;
const DEPOSED_BY: u8 = 4;
const FIRST_REFUSAL: u8 = 16;
const REFUSALS: [Refusal; 6] = [
    Refusal::Expired,
    Refusal::Moving,
    Refusal::Busy,
    Refusal::Stopped,
    Refusal::Stale,
    Refusal::Unreachable,
];

fn refusal_byte(refusal: Refusal) -> u8 {
    let place = REFUSALS.iter().position(|known| *known == refusal).unwrap_or(0);
    FIRST_REFUSAL + place as u8
}

fn decode_exception(bytes: &[u8; EXCEPTION_BYTES]) -> Result<Exception, FrameError> {
    let mut fields = Fields(bytes);
    let (place, kind) = (fields.u16()?, fields.u8()?);
    let (term, primary) = (fields.term()?, fields.copy()?);
    let route = Route { term, primary };
    let is_zero = term == Term(0) && primary == CopyId::default();
    let kind = match kind {
        NOT_OWNER if is_zero => ExceptionKind::NotOwner(None),
        NOT_OWNER_BUT => ExceptionKind::NotOwner(Some(route)),
        DEPOSED if is_zero => ExceptionKind::Deposed(None),
        DEPOSED_BY => ExceptionKind::Deposed(Some(route)),
        FIRST_REFUSAL.. if is_zero => {
            let refusal = REFUSALS.get(usize::from(kind - FIRST_REFUSAL));
            ExceptionKind::Refused(*refusal.ok_or(FrameError::Range("refusal"))?)
        }
        _ => return Err(FrameError::Range("exception")),
    };
    Ok(Exception { place, kind })
}
