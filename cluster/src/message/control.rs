//! What control planes say to each other: heartbeats, news of the map, wishes to change it, Raft.
//!
//! Here: the frame that carries a call and its answer. Not here: what is in them, which is opaque
//! and belongs to `control`.
//!
//! The frame has the sender's wall clock, so that every lane that carries beats also knows how far
//! the clocks of its two nodes are apart.

use bytes::Bytes;

use super::MessageError;
use super::codec::{FrameReader, FrameWriter};

/// A call, or the answer to one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlCall {
    /// Drawn by the caller for this lane; the answer has the same.
    pub id: u64,
    /// The sender's wall clock, in nanoseconds since 1970.
    pub wall_ns: u64,
    /// What is said.
    pub rpc: Bytes,
}

impl ControlCall {
    pub(super) fn encode(&self, writer: &mut FrameWriter<'_>) {
        writer.number(self.id);
        writer.number(self.wall_ns);
        writer.bytes(&self.rpc);
    }

    pub(super) fn decode(reader: &mut FrameReader) -> Result<Self, MessageError> {
        Ok(Self { id: reader.number()?, wall_ns: reader.number()?, rpc: reader.bytes()? })
    }
}
