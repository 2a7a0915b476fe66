//! `StreamAck`: acknowledgements and refusals of a stream; `KeepAlive`, `Ping`, `Pong`: signs of
//! life.

use super::fields::{Fields, put_position, put_stream};
use super::{FrameError, FrameKind, begin, end};
use crate::id::OpStreamId;
use crate::id::{Partition, Term};
use crate::position::Position;

const REFUSED_BYTES: usize = 30;
const DONE_BYTES: usize = 26;

/// A frame of the stream that a copy refused. That frame and all that follow for the partition in
/// that term are not held, until the copy takes an `Adopt` or a first `Chunk`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamRefusal {
    /// The partition.
    pub partition: Partition,
    /// The term of the refused frame.
    pub term: Term,
    /// The newest term that the copy has seen.
    pub copy_term: Term,
    /// The position in the stream where the refused frame ends.
    pub end: u64,
    /// The copy's last record.
    pub last: Position,
}

/// The number up to which an op stream is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamDone {
    /// One of the sender's own op streams.
    pub stream: OpStreamId,
    /// No number below is ever sent again.
    pub done: u64,
}

/// Refusals, then the position up to which the stream was processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamAck<'a> {
    refused: &'a [u8],
    /// Everything before this position is held, or was refused in this ack or an earlier one.
    pub held: u64,
    done: &'a [u8],
}

impl<'a> StreamAck<'a> {
    /// Decodes the body of a frame.
    ///
    /// # Errors
    ///
    /// If the body is malformed.
    pub fn decode(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut fields = Fields(body);
        let refused = fields.u32()? as usize;
        let refused = fields.bytes(refused.checked_mul(REFUSED_BYTES).ok_or(FrameError::Short)?)?;
        let held = fields.u64()?;
        let done = read_done(&mut fields)?;
        fields.end()?;
        let ack = Self { refused, held, done };
        ack.checked_refused().try_for_each(|refused| refused.map(drop))?;
        Ok(ack)
    }

    fn checked_refused(&self) -> impl Iterator<Item = Result<StreamRefusal, FrameError>> + use<'a> {
        let (refused, _) = self.refused.as_chunks::<REFUSED_BYTES>();
        refused.iter().map(|bytes| {
            let mut fields = Fields(bytes);
            Ok(StreamRefusal {
                partition: fields.partition()?,
                term: fields.term()?,
                copy_term: fields.term()?,
                end: fields.u64()?,
                last: fields.position()?,
            })
        })
    }

    /// The refusals. Process them before `held`.
    pub fn refused(&self) -> impl Iterator<Item = StreamRefusal> + use<'a> {
        self.checked_refused().filter_map(Result::ok)
    }

    /// The done numbers of the sender's op streams.
    pub fn done(&self) -> impl Iterator<Item = StreamDone> + use<'a> {
        streams_done(self.done)
    }
}

/// Writes a [`StreamAck`].
#[derive(Debug)]
pub struct StreamAckWriter<'a> {
    out: &'a mut Vec<u8>,
    at: usize,
    count: u32,
}

impl<'a> StreamAckWriter<'a> {
    /// Begins the frame.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        let at = begin(out, FrameKind::Ack);
        out.extend_from_slice(&[0; 4]);
        Self { out, at, count: 0 }
    }

    /// Adds a refusal.
    pub fn refused(&mut self, refused: &StreamRefusal) {
        self.count += 1;
        self.out.extend_from_slice(&refused.partition.0.to_le_bytes());
        self.out.extend_from_slice(&refused.term.0.to_le_bytes());
        self.out.extend_from_slice(&refused.copy_term.0.to_le_bytes());
        self.out.extend_from_slice(&refused.end.to_le_bytes());
        put_position(self.out, refused.last);
    }

    /// Ends the frame.
    pub fn finish(self, held: u64, done: &[StreamDone]) {
        let count = self.at + super::HEADER_BYTES;
        self.out[count..count + 4].copy_from_slice(&self.count.to_le_bytes());
        self.out.extend_from_slice(&held.to_le_bytes());
        put_done(self.out, done);
        end(self.out, self.at);
    }
}

/// Sent once a second on an otherwise idle link. It carries no position; only a [`StreamAck`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive<'a> {
    /// The sender's monotonic clock, in nanoseconds.
    pub time_ns: u64,
    done: &'a [u8],
}

impl<'a> KeepAlive<'a> {
    /// Decodes the body of a frame.
    ///
    /// # Errors
    ///
    /// If the body is malformed.
    pub fn decode(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut fields = Fields(body);
        let keep_alive = Self { time_ns: fields.u64()?, done: read_done(&mut fields)? };
        fields.end()?;
        Ok(keep_alive)
    }

    /// The done numbers of the sender's op streams.
    pub fn done(&self) -> impl Iterator<Item = StreamDone> + use<'a> {
        streams_done(self.done)
    }

    /// Appends the frame.
    pub fn encode(time_ns: u64, done: &[StreamDone], out: &mut Vec<u8>) {
        let at = begin(out, FrameKind::KeepAlive);
        out.extend_from_slice(&time_ns.to_le_bytes());
        put_done(out, done);
        end(out, at);
    }
}

/// The number of a `Ping`, or of the `Pong` that answers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ping(pub u64);

impl Ping {
    /// Decodes the body of a `Ping` or `Pong`.
    ///
    /// # Errors
    ///
    /// If the body is malformed.
    pub fn decode(body: &[u8]) -> Result<Self, FrameError> {
        let mut fields = Fields(body);
        let ping = Self(fields.u64()?);
        fields.end()?;
        Ok(ping)
    }

    /// Appends a `Ping`.
    pub fn encode(self, out: &mut Vec<u8>) {
        self.encode_as(FrameKind::Ping, out);
    }

    /// Appends the `Pong` that answers this `Ping`.
    pub fn encode_answer(self, out: &mut Vec<u8>) {
        self.encode_as(FrameKind::Pong, out);
    }

    fn encode_as(self, kind: FrameKind, out: &mut Vec<u8>) {
        let at = begin(out, kind);
        out.extend_from_slice(&self.0.to_le_bytes());
        end(out, at);
    }
}

fn read_done<'a>(fields: &mut Fields<'a>) -> Result<&'a [u8], FrameError> {
    let count = usize::from(fields.u16()?);
    fields.bytes(count * DONE_BYTES)
}

fn streams_done(done: &[u8]) -> impl Iterator<Item = StreamDone> + use<'_> {
    let (done, _) = done.as_chunks::<DONE_BYTES>();
    done.iter().filter_map(|bytes| {
        let mut fields = Fields(bytes);
        Some(StreamDone { stream: fields.stream().ok()?, done: fields.u64().ok()? })
    })
}

/// Appends the done numbers of at most 65,535 op streams.
fn put_done(out: &mut Vec<u8>, done: &[StreamDone]) {
    let done = &done[..done.len().min(usize::from(u16::MAX))];
    out.extend_from_slice(&(done.len() as u16).to_le_bytes());
    for one in done {
        put_stream(out, one.stream);
        out.extend_from_slice(&one.done.to_le_bytes());
    }
}
