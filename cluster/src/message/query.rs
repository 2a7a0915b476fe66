//! Queries between nodes: what one of them has seen, asked by another.
//!
//! Here: the frame that carries a query or its reply, and its bound. Not here: the topics and their
//! answers, which are opaque here and belong to `server`.

use bytes::Bytes;

use super::MessageError;
use super::codec::{FrameReader, FrameWriter};

/// The longest body of a query and of a reply, in bytes.
pub const QUERY_BYTES_MAX: usize = 64 << 10;

/// The oldest version of a link that may carry these frames.
pub const QUERY_VERSION: u16 = 2;

/// A query, or the reply to one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryFrame {
    /// Chosen by the node that asks, unique on this link; the reply has the same id.
    pub id: u64,
    /// The topic, or the answer; an empty answer means that there is none. At most
    /// [`QUERY_BYTES_MAX`] bytes.
    pub body: Bytes,
}

impl QueryFrame {
    pub(super) fn encode(&self, writer: &mut FrameWriter<'_>) {
        writer.check(self.body.len() <= QUERY_BYTES_MAX, "query");
        writer.number(self.id);
        writer.bytes(&self.body);
    }

    pub(super) fn decode(reader: &mut FrameReader) -> Result<Self, MessageError> {
        let frame = Self { id: reader.number()?, body: reader.bytes()? };
        if frame.body.len() > QUERY_BYTES_MAX {
            return Err(MessageError::Range("query"));
        }
        Ok(frame)
    }
}
