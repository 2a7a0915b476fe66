//! A data link's connection through a third node, for two nodes without a connection of their own.
//!
//! Here: the frame that carries a part of it. Not here: the meaning of the bytes (`frames`), the
//! choice of a tunnel (`server`).
//!
//! ```text
//! node with the lower id          relay          node with the higher id
//! Open                             -->
//!                                  <--           Opened
//! Bytes                            <->           Bytes
//! ```
//!
//! Parts carry their offset, because a relay may drop one. A gap ends the connection.

use bytes::Bytes;

use super::MessageError;
use super::codec::{FrameReader, FrameWriter};
use super::handshake::{DATA_LINKS_MAX, DataLinkId};
use crate::id::Incarnation;

/// An event of one tunneled connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelFrame {
    /// The connection's data link.
    pub id: DataLinkId,
    /// The event.
    pub event: TunnelEvent,
}

/// The kinds of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TunnelEvent {
    /// Requests the connection.
    Open(TunnelEnd),
    /// Confirms that the connection is open.
    Opened(TunnelEnd),
    /// Bytes of the connection.
    Bytes {
        /// The number of bytes that the sender sent before.
        at: u64,
        /// The number of bytes that the sender has received from the peer.
        taken: u64,
        /// The bytes; may be empty.
        bytes: Bytes,
    },
    /// The connection has ended.
    End,
}

/// One side of the connection; a direct connection sends the same in its hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunnelEnd {
    /// The incarnation of the node.
    pub incarnation: Incarnation,
    /// The node's number of workers.
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
