//! `Adopt`, `TermCheck`, `Restart`, `Pull`: the frames between copies of a partition beside records
//! and chunks. These frames are part of the stream, so each has a position among the records.

use super::fields::{Fields, put_copy, put_position};
use super::{FrameError, FrameKind, begin, end};
use crate::id::{CopyId, Partition, Term};
use crate::position::Position;

/// From a new primary to an in-sync copy: follow this term if `last` is your last record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adopt {
    /// The partition.
    pub partition: Partition,
    /// The copy that is asked to follow.
    pub to: CopyId,
    /// The primary.
    pub from: CopyId,
    /// The primary's term.
    pub term: Term,
    /// The primary's last record.
    pub last: Position,
    /// The partition's time less the primary's monotonic clock; wraps.
    pub ahead_ns: u64,
    /// The primary's monotonic clock, in nanoseconds.
    pub time_ns: u64,
}

impl Adopt {
    /// Decodes the body of a frame.
    ///
    /// # Errors
    ///
    /// If the body is malformed.
    pub fn decode(body: &[u8]) -> Result<Self, FrameError> {
        let mut fields = Fields(body);
        let adopt = Self {
            partition: fields.partition()?,
            to: fields.copy()?,
            from: fields.copy()?,
            term: fields.term()?,
            last: fields.position()?,
            ahead_ns: fields.u64()?,
            time_ns: fields.u64()?,
        };
        fields.end()?;
        Ok(adopt)
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let at = begin(out, FrameKind::Adopt);
        out.extend_from_slice(&self.partition.0.to_le_bytes());
        put_copy(out, self.to);
        put_copy(out, self.from);
        out.extend_from_slice(&self.term.0.to_le_bytes());
        put_position(out, self.last);
        out.extend_from_slice(&self.ahead_ns.to_le_bytes());
        out.extend_from_slice(&self.time_ns.to_le_bytes());
        end(out, at);
    }
}

/// From a primary to a mandatory copy: refuse this frame if you have seen a newer term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TermCheck {
    /// The partition.
    pub partition: Partition,
    /// The primary's term.
    pub term: Term,
}

impl TermCheck {
    /// Decodes the body of a frame.
    ///
    /// # Errors
    ///
    /// If the body is malformed.
    pub fn decode(body: &[u8]) -> Result<Self, FrameError> {
        let mut fields = Fields(body);
        let check = Self { partition: fields.partition()?, term: fields.term()? };
        fields.end()?;
        Ok(check)
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let at = begin(out, FrameKind::TermCheck);
        out.extend_from_slice(&self.partition.0.to_le_bytes());
        out.extend_from_slice(&self.term.0.to_le_bytes());
        end(out, at);
    }
}

/// From a primary to a learner: the copy of this start cannot be completed, begin anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart {
    /// The partition.
    pub partition: Partition,
    /// The learner.
    pub to: CopyId,
    /// The primary's term.
    pub term: Term,
    /// The number of the start.
    pub start: u32,
}

impl Restart {
    /// Decodes the body of a frame.
    ///
    /// # Errors
    ///
    /// If the body is malformed.
    pub fn decode(body: &[u8]) -> Result<Self, FrameError> {
        let mut fields = Fields(body);
        let restart = Self {
            partition: fields.partition()?,
            to: fields.copy()?,
            term: fields.term()?,
            start: fields.u32()?,
        };
        fields.end()?;
        Ok(restart)
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let at = begin(out, FrameKind::Restart);
        out.extend_from_slice(&self.partition.0.to_le_bytes());
        put_copy(out, self.to);
        out.extend_from_slice(&self.term.0.to_le_bytes());
        out.extend_from_slice(&self.start.to_le_bytes());
        end(out, at);
    }
}

/// From a learner to its primary: requests the next chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pull<'a> {
    /// The partition.
    pub partition: Partition,
    /// The learner.
    pub from: CopyId,
    /// The primary.
    pub to: CopyId,
    /// The term in which the copy is made.
    pub term: Term,
    /// Counts the starts of the copy.
    pub start: u32,
    /// The cursor at which the chunk begins; none for the first chunk.
    pub cursor: Option<&'a [u8]>,
}

impl<'a> Pull<'a> {
    /// Decodes the body of a frame.
    ///
    /// # Errors
    ///
    /// If the body is malformed.
    pub fn decode(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut fields = Fields(body);
        let pull = Self {
            partition: fields.partition()?,
            from: fields.copy()?,
            to: fields.copy()?,
            term: fields.term()?,
            start: fields.u32()?,
            cursor: read_cursor(&mut fields)?,
        };
        fields.end()?;
        Ok(pull)
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let at = begin(out, FrameKind::Pull);
        out.extend_from_slice(&self.partition.0.to_le_bytes());
        put_copy(out, self.from);
        put_copy(out, self.to);
        out.extend_from_slice(&self.term.0.to_le_bytes());
        out.extend_from_slice(&self.start.to_le_bytes());
        put_cursor(out, self.cursor);
        end(out, at);
    }
}

pub(super) fn put_cursor(out: &mut Vec<u8>, cursor: Option<&[u8]>) {
    out.push(u8::from(cursor.is_some()));
    if let Some(cursor) = cursor {
        out.extend_from_slice(&(cursor.len() as u16).to_le_bytes());
        out.extend_from_slice(cursor);
    }
}

pub(super) fn read_cursor<'a>(fields: &mut Fields<'a>) -> Result<Option<&'a [u8]>, FrameError> {
    if !fields.flag()? {
        return Ok(None);
    }
    let length = fields.u16()?;
    fields.bytes(usize::from(length)).map(Some)
}
