//! The frames of a data link, as bytes.
//!
//! Here: the header of a frame, and the split of a stream of bytes into whole frames. Each kind of
//! frame has a file with its writer and its reader. Not here: the meaning of frames, and which
//! bytes are numbered (`send_stream`, `receive_stream`).
//!
//! All fields have a fixed width and are little-endian. There is one way to write a frame: a
//! decoded frame encodes to the same bytes. A frame is `body length u32 | kind u8 | flags u8, 0 |
//! reserved u16, 0`, then its body.

mod ack;
mod chunk;
mod copies;
mod fields;
mod forward;
mod records;
#[cfg(test)]
mod tests;

pub use self::ack::{KeepAlive, Ping, StreamAck, StreamAckWriter, StreamDone, StreamRefusal};
pub use self::chunk::{Chunk, ChunkReader, ChunkWriter, ExportedResult, StreamResults};
pub use self::copies::{Adopt, Pull, Restart, TermCheck};
pub use self::forward::{
    Answers, AnswersWriter, Exception, ExceptionKind, Forward, ForwardHead, ForwardOp,
    ForwardWriter, op_flags,
};
pub use self::records::{
    KEY_BYTES_MAX, KeyState, LIMIT_BYTES_MAX, Record, RecordResult, RecordsReader, RecordsWriter,
    Section,
};

/// Bytes of a frame before its body.
pub const HEADER_BYTES: usize = 8;
/// The longest body of a frame, in bytes, whatever the receiver's own bound is.
pub const BODY_BYTES_MAX: usize = 64 << 20;

/// The bytes are no valid frame. After any of these errors no length on the link can be trusted, so
/// the link ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The body ends before its fields do.
    #[error("the frame is too short for its fields")]
    Short,
    /// Bytes follow the last field of the body.
    #[error("{0} bytes are left behind the fields of the frame")]
    Long(usize),
    /// The body is longer than the receiver accepts.
    #[error("a frame of {0} bytes is too long")]
    Length(usize),
    /// No frame kind has this number.
    #[error("there is no frame of kind {0}")]
    Kind(u8),
    /// A field has an invalid value.
    #[error("a field is out of range: {0}")]
    Range(&'static str),
    /// The peer acknowledges bytes that were never sent, or lacks bytes that it acknowledged
    /// before.
    #[error("the position does not fit the stream")]
    Position,
}

/// The kinds of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Changes of keys; see [`RecordsWriter`].
    Records = 1,
    /// A new primary asks a copy to follow it.
    Adopt = 2,
    /// A chunk of a copy.
    Chunk = 3,
    /// A learner has to begin anew.
    Restart = 4,
    /// Checks whether a copy still follows the term.
    TermCheck = 5,
    /// A learner requests a chunk.
    Pull = 6,
    /// Operations for the owner of their keys.
    Forward = 16,
    /// The results of operations.
    Answers = 17,
    /// Refusals, then the position up to which the stream was processed.
    Ack = 18,
    /// A sign of life with the sender's clock.
    KeepAlive = 19,
    /// Requests a `Pong` with the same number.
    Ping = 20,
    /// Answers a `Ping`.
    Pong = 21,
    /// The results of operations, behind the records that they depend on; see
    /// [`Answers::records_end`]. From peer version 4 on.
    AnswersBehindRecords = 22,
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
            22 => Self::AnswersBehindRecords,
            other => return Err(FrameError::Kind(other)),
        })
    }
}

/// A whole frame within received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawFrame<'a> {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// The body of the frame.
    pub body: &'a [u8],
}

impl RawFrame<'_> {
    /// The length of the frame in bytes, header included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }
}

/// The first frame of `input`; none while it is incomplete.
///
/// # Errors
///
/// If the header is invalid, or the body is longer than `body_bytes_max`.
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

/// Appends the header of a frame of unknown length. Returns the index of the frame in `out`.
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
