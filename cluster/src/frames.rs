//! The frames of a link, as bytes.
//!
//! Here: the header of a frame, and how whole frames are cut out of a stream of bytes. Each kind of frame has
//! a file with its writer and its reader. Not here: what frames mean, and which bytes are numbered
//! (`send_stream`, `receive_stream`).
//!
//! All fields have a fixed width and are little-endian. There is one way to write a frame: what decodes encodes
//! to the same bytes. A frame is `body length u32 | kind u8 | flags u8, 0 | reserved u16, 0`, then its body.

mod ack;
mod copies;
mod fields;
mod forward;
mod records;
#[cfg(test)]
mod tests;

pub use self::ack::{KeepAlive, Ping, StreamAck, StreamAckWriter, StreamDone, StreamRefusal};
pub use self::copies::{
    Adopt, Chunk, ChunkReader, ChunkWriter, ExportedResult, Pull, Restart, StreamResults, TermCheck,
};
pub use self::forward::{
    Answers, AnswersWriter, Exception, ExceptionKind, Forward, ForwardHead, ForwardOp,
    ForwardWriter, op_flags,
};
pub use self::records::{
    KEY_BYTES_MAX, KeyState, Record, RecordResult, RecordsReader, RecordsWriter, Section,
};

/// Bytes of a frame before its body.
pub const HEADER_BYTES: usize = 8;
/// Longest body of a frame, in bytes, whatever the receiver is set to.
pub const BODY_BYTES_MAX: usize = 64 << 20;

/// Why bytes are no frame. After any of these no length on the link can be trusted, so the link ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The body ends before its fields do.
    #[error("the frame is too short for its fields")]
    Short,
    /// The body goes on behind its fields.
    #[error("{0} bytes are left behind the fields of the frame")]
    Long(usize),
    /// The body is longer than the receiver takes.
    #[error("a frame of {0} bytes is too long")]
    Length(usize),
    /// No frame has this number.
    #[error("there is no frame of kind {0}")]
    Kind(u8),
    /// A field has a value it cannot have.
    #[error("a field is out of range: {0}")]
    Range(&'static str),
    /// The peer says that it holds bytes that were never sent, or lacks bytes it acknowledged.
    #[error("the position does not fit the stream")]
    Position,
}

/// The kinds of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Changes of keys.
    Records = 1,
    /// A new primary asks a copy to follow.
    Adopt = 2,
    /// A piece of a copy.
    Chunk = 3,
    /// A copy is to begin anew.
    Restart = 4,
    /// The question whether a copy still follows.
    TermCheck = 5,
    /// A learner asks for a piece.
    Pull = 6,
    /// Operations for the owner of their keys.
    Forward = 16,
    /// Their results.
    Answers = 17,
    /// Refusals, then the position up to which the stream is held.
    Ack = 18,
    /// A sign of life.
    KeepAlive = 19,
    /// Asks for a `Pong` of the same number.
    Ping = 20,
    /// Answers a `Ping`.
    Pong = 21,
}

impl FrameKind {
    /// Whether frames of this kind are part of the stream: numbered, and sent again after a loss.
    #[must_use]
    pub fn is_numbered(self) -> bool {
        (self as u8) < 16
    }

    fn of(byte: u8) -> Result<Self, FrameError> {
        Ok(match byte {
            1 => Self::Records,
            2 => Self::Adopt,
            3 => Self::Chunk,
            4 => Self::Restart,
            5 => Self::TermCheck,
            6 => Self::Pull,
            16 => Self::Forward,
            17 => Self::Answers,
            18 => Self::Ack,
            19 => Self::KeepAlive,
            20 => Self::Ping,
            21 => Self::Pong,
            other => return Err(FrameError::Kind(other)),
        })
    }
}

/// A whole frame within received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawFrame<'a> {
    /// What it is.
    pub kind: FrameKind,
    /// Its body.
    pub body: &'a [u8],
}

impl RawFrame<'_> {
    /// Bytes with the header.
    #[must_use]
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }
}

/// The first whole frame of `input`; none if it is not complete yet.
///
/// # Errors
///
/// If no frame begins so, or its body is longer than `body_bytes_max`.
pub fn cut(input: &[u8], body_bytes_max: usize) -> Result<Option<RawFrame<'_>>, FrameError> {
    let Some((header, rest)) = input.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let [l0, l1, l2, l3, kind, flags, reserved @ ..] = *header;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if length > body_bytes_max.min(BODY_BYTES_MAX) {
        return Err(FrameError::Length(length));
    }
    if flags != 0 || reserved != [0, 0] {
        return Err(FrameError::Range("reserved field"));
    }
    let kind = FrameKind::of(kind)?;
    Ok(rest.get(..length).map(|body| RawFrame { kind, body }))
}

/// Appends the header of a frame whose length is not known yet; answers where the frame begins.
fn begin(out: &mut Vec<u8>, kind: FrameKind) -> usize {
    let at = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind as u8, 0, 0, 0]);
    at
}

/// Fills in the length of the frame that begins at `at`.
fn end(out: &mut [u8], at: usize) {
    let length = (out.len() - at - HEADER_BYTES) as u32;
    out[at..at + 4].copy_from_slice(&length.to_le_bytes());
}
