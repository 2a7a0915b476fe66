//! A connection of a data link through a third node, because there is none between its ends.
//!
//! Here: the frame that carries a piece of it. Not here: what the bytes are (`plane::frames`), when there is one
//! (`server`).
//!
//! ```text
//! node with the lower id          relay          node with the higher id
//! Open                             -->
//!                                  <--           Opened
//! Bytes                            <->           Bytes
//! ```
//!
//! Pieces say where they belong, because a relay may drop one: then the connection ends.

use bytes::Bytes;

use super::MessageError;
use super::codec::{FrameReader, FrameWriter};
use super::handshake::{DATA_LINKS_MAX, DataLinkId};
use crate::id::Incarnation;

/// Something about one connection of a data link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelFrame {
    /// The connection.
    pub id: DataLinkId,
    /// What.
    pub event: TunnelEvent,
}

/// What is said about the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TunnelEvent {
    /// It is to begin.
    Open(TunnelEnd),
    /// It begins.
    Opened(TunnelEnd),
    /// Some of its bytes.
    Bytes {
        /// How many bytes the sender said before.
        at: u64,
        /// How many bytes the sender has taken of the receiver's.
        taken: u64,
        /// The bytes; there may be none.
        bytes: Bytes,
    },
    /// It has ended.
    End,
}

/// One side of the connection: what its hello says on a direct one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunnelEnd {
    /// The life of the node.
    pub incarnation: Incarnation,
    /// Its number of workers.
    pub workers: u16,
}

const OPEN: u8 = 1;
const OPENED: u8 = 2;
const BYTES: u8 = 3;
const END: u8 = 4;

impl TunnelEnd {
    fn encode(self, writer: &mut FrameWriter<'_>) {
        writer.number(self.incarnation.0);
        writer.number(self.workers);
    }

    fn decode(reader: &mut FrameReader) -> Result<Self, MessageError> {
        Ok(Self { incarnation: Incarnation(reader.number()?), workers: reader.small()? })
    }
}

impl TunnelFrame {
    pub(super) fn encode(&self, writer: &mut FrameWriter<'_>) {
        writer.number(self.id.index);
        writer.number(self.id.number);
        match &self.event {
            TunnelEvent::Open(end) => {
                writer.byte(OPEN);
                end.encode(writer);
            }
            TunnelEvent::Opened(end) => {
                writer.byte(OPENED);
                end.encode(writer);
            }
            TunnelEvent::Bytes { at, taken, bytes } => {
                writer.byte(BYTES);
                writer.number(*at);
                writer.number(*taken);
                writer.bytes(bytes);
            }
            TunnelEvent::End => writer.byte(END),
        }
    }

    pub(super) fn decode(reader: &mut FrameReader) -> Result<Self, MessageError> {
        let id = DataLinkId { index: reader.small()?, number: reader.number()? };
        if id.index >= DATA_LINKS_MAX || id.number == 0 {
            return Err(MessageError::Range("data link"));
        }
        let event = match reader.byte()? {
            OPEN => TunnelEvent::Open(TunnelEnd::decode(reader)?),
            OPENED => TunnelEvent::Opened(TunnelEnd::decode(reader)?),
            BYTES => TunnelEvent::Bytes {
                at: reader.number()?,
                taken: reader.number()?,
                bytes: reader.bytes()?,
            },
            END => TunnelEvent::End,
            _ => return Err(MessageError::Range("part of a tunnel")),
        };
        Ok(Self { id, event })
    }
}
