//! Calls between control planes: heartbeats, map news, commands, Raft.
//!
//! Here: the frame that carries a call or its answer. Not here: the payload, which is opaque here
//! and belongs to `control`.
//!
//! The frame carries the sender's wall clock. A control link with heartbeats thereby measures the
//! difference between the clocks of its two nodes.

use bytes::Bytes;

use super::MessageError;
use super::codec::{FrameReader, FrameWriter};

/// A call, or the answer to one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlCall {
    /// Chosen by the caller, unique on this link; the answer has the same id.
    pub id: u64,
    /// The sender's wall clock, in nanoseconds since 1970.
    pub wall_ns: u64,
    /// The payload.
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
