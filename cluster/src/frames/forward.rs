//! `Forward`: operations for the owner of their keys, as their clients sent them; `Answers`: their results.

use super::fields::{Fields, put_copy, put_stream, term};
use super::{FrameError, FrameKind, begin, end};
use crate::id::OpStreamId;
use crate::id::{CopyId, Partition, Term};
use crate::replica::{Refusal, Route};

/// The bits of [`ForwardOp::op_flags`] that the data plane knows. The others belong to the server.
pub mod op_flags {
    /// The request was sent before, to whomever: it is looked up.
    pub const AGAIN: u8 = 0x80;
    /// It only looks: doing it twice is doing it once.
    pub const READ: u8 = 0x40;
    /// It is answered as soon as its owner has done it; see `AckMode::Owner`.
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
    /// The term in which the receiver is its primary: only in this term it may be done.
    pub term: Term,
    /// See [`op_flags`].
    pub op_flags: u8,
}

/// A run of operations of one lane, with consecutive numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward<'a> {
    /// Counts the `Forward`s of the sending worker, to whomever.
    pub sending: u64,
    /// The lane of the requests.
    pub stream: OpStreamId,
    /// The number of the first request; the others follow.
    pub first: u64,
    /// The lane is done with all numbers below.
    pub done: u64,
    /// The requests are refused once they have waited for so long, in milliseconds.
    pub left_ms: u16,
    /// Requests, encoded.
    requests: &'a [u8],
    /// The requests' lines, one behind the other.
    pub lines: &'a [u8],
}

impl<'a> Forward<'a> {
    /// Reads the body of a frame.
    ///
    /// # Errors
    ///
    /// If it is broken.
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

    /// How many requests there are; at least one.
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

/// Collects the requests for one owner, and writes them as one frame. It keeps its memory.
#[derive(Debug, Default)]
pub struct ForwardWriter {
    requests: Vec<u8>,
    lines: Vec<u8>,
}

/// Where a `Forward` belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForwardHead {
    /// As in [`Forward`].
    pub sending: u64,
    /// As in [`Forward`].
    pub stream: OpStreamId,
    /// As in [`Forward`].
    pub first: u64,
    /// As in [`Forward`].
    pub done: u64,
    /// As in [`Forward`].
    pub left_ms: u16,
}

impl ForwardWriter {
    /// Whether there are no requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// How many requests there are; 65,535 at most.
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

    /// Appends the frame to `out` and forgets its requests.
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

/// A request that was not answered by text; its text has no bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exception {
    /// Its place in the `Forward`.
    pub place: u16,
    /// Why.
    pub kind: ExceptionKind,
}

/// Why a request was not answered by text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExceptionKind {
    /// The receiver is not primary in that term; who is, as far as it knows. This sending was not done.
    NotOwner(Option<Route>),
    /// The receiver is primary no more; who is. The request may have been done: it is to be sent again.
    Deposed(Option<Route>),
    /// This sending was not done and will not be.
    Refused(Refusal),
}

/// Results of requests `first..first + count` of a `Forward`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answers<'a> {
    /// The number of the `Forward`.
    pub sending: u64,
    /// The place of the first request that is answered.
    pub first: u16,
    /// How many are; at least one.
    pub count: u16,
    exceptions: &'a [u8],
    lengths: &'a [u8],
    /// The answers, one behind the other.
    pub text: &'a [u8],
}

impl<'a> Answers<'a> {
    /// Reads the body of a frame.
    ///
    /// # Errors
    ///
    /// If it is broken.
    pub fn decode(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut fields = Fields(body);
        let (sending, first, count) = (fields.u64()?, fields.u16()?, fields.u16()?);
        let exceptions = usize::from(fields.u16()?);
        let exceptions = fields.bytes(exceptions * EXCEPTION_BYTES)?;
        let lengths = fields.bytes(usize::from(count) * 4)?;
        let frame = Self { sending, first, count, exceptions, lengths, text: fields.0 };
        let sum: u64 = frame.lengths().map(u64::from).sum();
        if sum != frame.text.len() as u64 || count == 0 || first.checked_add(count).is_none() {
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

    /// The requests that text does not answer, by ascending place.
    pub fn exceptions(&self) -> impl Iterator<Item = Exception> + use<'a> {
        self.checked_exceptions().filter_map(Result::ok)
    }

    /// Bytes of text of each request.
    pub fn lengths(&self) -> impl Iterator<Item = u32> + use<'a> {
        let (lengths, _) = self.lengths.as_chunks::<4>();
        lengths.iter().map(|&length| u32::from_le_bytes(length))
    }
}

/// Collects answers, and writes them as one frame. It keeps its memory.
#[derive(Debug, Default)]
pub struct AnswersWriter {
    exceptions: Vec<u8>,
    lengths: Vec<u8>,
    text: Vec<u8>,
}

impl AnswersWriter {
    /// How many requests are answered so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lengths.len() / 4
    }

    /// The next request is answered by this text.
    #[inline]
    pub fn text(&mut self, text: &[u8]) {
        self.lengths.extend_from_slice(&(text.len() as u32).to_le_bytes());
        self.text.extend_from_slice(text);
    }

    /// The next request, at `place` of its `Forward`, is not answered by text.
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

    /// Appends the frame to `out` and forgets its answers. `first` is the place of the first one.
    pub fn finish(&mut self, sending: u64, first: u16, out: &mut Vec<u8>) {
        let at = begin(out, FrameKind::Answers);
        out.extend_from_slice(&sending.to_le_bytes());
        out.extend_from_slice(&first.to_le_bytes());
        out.extend_from_slice(&(self.count() as u16).to_le_bytes());
        out.extend_from_slice(&((self.exceptions.len() / EXCEPTION_BYTES) as u16).to_le_bytes());
        out.extend_from_slice(&self.exceptions);
        out.extend_from_slice(&self.lengths);
        out.extend_from_slice(&self.text);
        end(out, at);
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
