//! Control frames between nodes; encode stands beside decode.
//!
//! Here: all frames, and their header. Not here: the handshake (`handshake`), the fields of each
//! frame (`control`, `query`, `tunnel`), their meaning (`control`, `server`), operations and
//! records, which data links carry (`frames`), sockets (`server`).
//!
//! ```text
//! length u32 | type u8 | body                 little-endian; `length` counts type and body
//! ```
//!
//! Numbers in bodies are varints of seven bits a byte, low bits first, in their shortest form.
//! Bytes are preceded by their length. There is one way to write a frame: a decoded frame encodes
//! to the same bytes. Only [`Frame::Hello`] may carry additions of later versions.

pub mod control;
pub mod handshake;
pub mod query;
pub mod tunnel;

mod codec;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use crate::id::NodeId;
use codec::{FrameReader, FrameWriter};
use control::ControlCall;
use handshake::{CloseReason, Hello, Proof};
use query::{QUERY_VERSION, QueryFrame};
use tunnel::TunnelFrame;

/// The oldest version of the control link protocol that we speak.
pub const VERSION_MIN: u16 = 1;
/// The newest version that we speak. Version 3 has the frames of version 2, and says that the node
/// knows the limits of feature version 3. For version 4 see [`BEHIND_RECORDS_VERSION`]. Version 5
/// has its frames, and says that the node knows maps of
/// [feature version 5](crate::map::FOURTH_COPY_VERSION). For version 6 see
/// [`LIMIT_STATES_VERSION`].
pub const VERSION_MAX: u16 = 6;
/// The version from which on a node takes answers behind their records
/// (`FrameKind::AnswersBehindRecords` of its data links).
pub const BEHIND_RECORDS_VERSION: u16 = 4;
/// The version from which on a node takes records of limit states (`KeyState::Limit` of its data
/// links).
pub const LIMIT_STATES_VERSION: u16 = 6;

/// Bytes before the body.
const HEADER_BYTES: usize = 5;
/// The longest frame before the peer has authenticated: a hello, with room for later versions.
pub const HELLO_BYTES_MAX: usize = 512;
/// The configured bounds of control frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameBounds {
    /// The longest frame, without the four bytes of its length.
    pub frame_bytes_max: usize,
}

impl Default for FrameBounds {
    fn default() -> Self {
        Self { frame_bytes_max: 4 << 20 }
    }
}

impl FrameBounds {
    /// The bounds for a peer that has not authenticated.
    #[must_use]
    pub fn unauthenticated() -> Self {
        Self { frame_bytes_max: HELLO_BYTES_MAX }
    }
}

/// A frame on a control link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The first frame of each side.
    Hello(Hello),
    /// The second frame of each side.
    Proof(Proof),
    /// The last frame: the reason for closing the link.
    Farewell(CloseReason),
    /// A request from one control plane to another.
    Call(ControlCall),
    /// The answer to a [`Frame::Call`].
    Answer(ControlCall),
    /// Requests a [`Frame::Pong`] with the same number.
    Ping(u64),
    /// Answers a [`Frame::Ping`].
    Pong(u64),
    /// A part of a data link's tunneled connection; only within a [`Frame::Relay`].
    Tunnel(TunnelFrame),
    /// Asks a node for what it has seen; since version 2.
    Query(QueryFrame),
    /// The reply to a [`Frame::Query`]; since version 2.
    QueryReply(QueryFrame),
    /// Carries a frame through a third node, because the link between its sender and its receiver
    /// is broken. The node between forwards the frame unchanged.
    Relay {
        /// The node that sent the frame.
        from: NodeId,
        /// The node that the frame is for.
        to: NodeId,
        /// The frame; never a hello, a proof, a farewell or another relay.
        frame: Box<Frame>,
    },
}

/// The result of decoding the front of a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodedFrame {
    /// A whole frame. Its bytes were removed from the buffer.
    Frame(Frame),
    /// The frame is incomplete: decode again once the buffer holds `needed` bytes.
    Incomplete {
        /// The number of bytes needed.
        needed: usize,
    },
}

/// The bytes are no valid frame, so the link must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum MessageError {
    /// The frame is longer than allowed, or its length is zero.
    #[error("a frame of {0} bytes")]
    Length(usize),
    /// The type is unknown.
    #[error("a frame of unknown type {0}")]
    Type(u8),
    /// A frame ends within a field.
    #[error("a frame is cut short")]
    Short,
    /// Bytes follow the last field.
    #[error("a frame has {0} bytes too many")]
    Long(usize),
    /// A field has an invalid value.
    #[error("{0} out of range")]
    Range(&'static str),
}

const HELLO: u8 = 1;
const PROOF: u8 = 2;
const FAREWELL: u8 = 3;
const CALL: u8 = 7;
const ANSWER: u8 = 8;
const PING: u8 = 10;
const PONG: u8 = 11;
const RELAY: u8 = 12;
const TUNNEL: u8 = 13;
const QUERY: u8 = 14;
const QUERY_REPLY: u8 = 15;

impl Frame {
    /// Whether a node may relay this frame to another one.
    #[must_use]
    pub fn may_be_relayed(&self) -> bool {
        may_be_relayed(self.type_byte())
    }

    /// The oldest version of a link that may carry the frame: a peer of an older version would end
    /// the link.
    #[must_use]
    pub fn version_min(&self) -> u16 {
        match self {
            Self::Query(_) | Self::QueryReply(_) => QUERY_VERSION,
            Self::Relay { frame, .. } => frame.version_min(),
            _ => VERSION_MIN,
        }
    }

    fn type_byte(&self) -> u8 {
        match self {
            Self::Hello(_) => HELLO,
            Self::Proof(_) => PROOF,
            Self::Farewell(_) => FAREWELL,
            Self::Call(_) => CALL,
            Self::Answer(_) => ANSWER,
            Self::Ping(_) => PING,
            Self::Pong(_) => PONG,
            Self::Tunnel(_) => TUNNEL,
            Self::Query(_) => QUERY,
            Self::QueryReply(_) => QUERY_REPLY,
            Self::Relay { .. } => RELAY,
        }
    }

    /// Appends the frame to `out`.
    ///
    /// # Errors
    ///
    /// [`MessageError::Length`] or [`MessageError::Range`] if a peer with these bounds would refuse
    /// the frame. Then `out` is unchanged.
    pub fn encode(&self, bounds: FrameBounds, out: &mut BytesMut) -> Result<(), MessageError> {
        let start = out.len();
        out.put_u32_le(0);
        out.put_u8(self.type_byte());
        let mut writer = FrameWriter::new(out);
        self.encode_body(&mut writer);
        let fault = writer.fault();
        let length = out.len() - start - 4;
        let fault =
            fault.or((length > bounds.frame_bytes_max).then_some(MessageError::Length(length)));
        if let Some(fault) = fault {
            out.truncate(start);
            return Err(fault);
        }
        out[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
        Ok(())
    }

    fn encode_body(&self, writer: &mut FrameWriter<'_>) {
        match self {
            Self::Hello(hello) => hello.encode(writer),
            Self::Proof(proof) => proof.encode(writer),
            Self::Farewell(why) => writer.byte(why.byte()),
            Self::Call(call) | Self::Answer(call) => call.encode(writer),
            Self::Ping(number) | Self::Pong(number) => writer.number(*number),
            Self::Tunnel(tunnel) => tunnel.encode(writer),
            Self::Query(query) | Self::QueryReply(query) => query.encode(writer),
            Self::Relay { from, to, frame } => {
                writer.check(frame.may_be_relayed(), "relayed frame");
                writer.number(from.0);
                writer.number(to.0);
                writer.byte(frame.type_byte());
                frame.encode_body(writer);
            }
        }
    }
}

/// Removes and returns the frame at the front of `input`. An incomplete frame stays there.
///
/// # Errors
///
/// A [`MessageError`]: the link must end, because the bytes that follow cannot be trusted.
pub fn decode(input: &mut BytesMut, bounds: FrameBounds) -> Result<DecodedFrame, MessageError> {
    let Some(length) = input.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize) else {
        return Ok(DecodedFrame::Incomplete { needed: HEADER_BYTES });
    };
    if length == 0 || length > bounds.frame_bytes_max {
        return Err(MessageError::Length(length));
    }
    let needed = length + 4;
    if input.len() < needed {
        return Ok(DecodedFrame::Incomplete { needed });
    }
    let mut frame = input.split_to(needed).freeze();
    frame.advance(4);
    let kind = frame.get_u8();
    let mut reader = FrameReader::new(frame);
    let frame = body(kind, &mut reader)?;
    reader.end()?;
    Ok(DecodedFrame::Frame(frame))
}

fn body(kind: u8, reader: &mut FrameReader) -> Result<Frame, MessageError> {
    Ok(match kind {
        HELLO => Frame::Hello(Hello::decode(reader)?),
        PROOF => Frame::Proof(Proof::decode(reader)?),
        FAREWELL => Frame::Farewell(CloseReason::of_byte(reader.byte()?)?),
        CALL => Frame::Call(ControlCall::decode(reader)?),
        ANSWER => Frame::Answer(ControlCall::decode(reader)?),
        PING => Frame::Ping(reader.number()?),
        PONG => Frame::Pong(reader.number()?),
        TUNNEL => Frame::Tunnel(TunnelFrame::decode(reader)?),
        QUERY => Frame::Query(QueryFrame::decode(reader)?),
        QUERY_REPLY => Frame::QueryReply(QueryFrame::decode(reader)?),
        RELAY => {
            let (from, to) = (NodeId(reader.small()?), NodeId(reader.small()?));
            let kind = reader.byte()?;
            if !may_be_relayed(kind) {
                return Err(MessageError::Range("relayed frame"));
            }
            Frame::Relay { from, to, frame: Box::new(body(kind, reader)?) }
        }
        other => return Err(MessageError::Type(other)),
    })
}

/// A frame passes at most one relay, so a relay never contains another relay.
fn may_be_relayed(kind: u8) -> bool {
    !matches!(kind, HELLO | PROOF | FAREWELL | RELAY)
}

/// The bytes of the first frame of `input`, for the handshake: the proof covers the hello frames as
/// they were sent.
#[must_use]
pub fn frame_bytes(input: &[u8]) -> Option<Bytes> {
    let length = u32::from_le_bytes(*input.first_chunk()?) as usize;
    input.get(..length.checked_add(4)?).map(Bytes::copy_from_slice)
}

#[cfg(test)]
mod tests;
