//! Between nodes and voters: heartbeats, what is new in the map, wishes to change it.
//!
//! Here: the fields of these frames. Not here: the map (`map`), when to beat and whom to believe
//! dead (`control`). Raft's own messages do not go here either: they are `control`'s.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Fault;
use super::wire::{Reader, Writer};
use crate::id::{Incarnation, NodeId};
use crate::map::{Answer, Command, Refused};

/// Longest command or answer. 256 partitions take some 8 KB, the longest limit 5 KB.
const COMMAND_BYTES_MAX: usize = 64 << 10;

/// A node to every voter, four times a second. Who it is, the lane knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// Comes back with the answer.
    pub round: u64,
    /// The version of the map that the node has; 0: none.
    pub map_ver: u64,
    /// It serves clients.
    pub is_ready: bool,
    /// Operations a second.
    pub load: u32,
    /// Its wall clock, for the offset between the two, in nanoseconds since 1970.
    pub wall_ns: u64,
}

/// The answer to a [`Beat`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// Of the beat.
    pub round: u64,
    /// The voter's wall clock.
    pub wall_ns: u64,
    /// Who leads, as far as it knows.
    pub leader: Option<NodeId>,
    /// What is new in the map.
    pub map: MapNews,
}

/// What brings a node's map up to date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MapNews {
    /// Encoded deltas, in order; none: nothing is new.
    Deltas(Vec<Bytes>),
    /// A piece of the encoded map, which may be longer than a frame.
    Full {
        /// The version of the whole.
        ver: u64,
        /// Bytes of the whole.
        total: u64,
        /// Where the piece belongs.
        offset: u64,
        /// The piece.
        bytes: Bytes,
    },
}

/// A voter to the leader: when it last heard each node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// Node, life, and milliseconds ago.
    pub nodes: Vec<(NodeId, Incarnation, u32)>,
}

/// A command for the map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Comes back with the answer.
    pub id: u64,
    /// The command.
    pub command: Command,
}

/// What became of an [`Ask`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Of the ask.
    pub id: u64,
    /// The outcome.
    pub outcome: AskOutcome,
}

/// What became of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskOutcome {
    /// The map answered, in this version.
    Answered(u64, Result<Answer, Refused>),
    /// Ask that one, if any is known. Nothing was done.
    NotLeader(Option<NodeId>),
    /// It may or may not have been done: look at the map.
    Unknown,
}

impl Beat {
    pub(super) fn encode(self, writer: &mut Writer<'_>) {
        writer.number(self.round);
        writer.number(self.map_ver);
        writer.flag(self.is_ready);
        writer.number(self.load);
        writer.number(self.wall_ns);
    }

    pub(super) fn decode(reader: &mut Reader) -> Result<Self, Fault> {
        Ok(Self {
            round: reader.number()?,
            map_ver: reader.number()?,
            is_ready: reader.flag()?,
            load: reader.small()?,
            wall_ns: reader.number()?,
        })
    }
}

impl News {
    pub(super) fn encode(&self, writer: &mut Writer<'_>) {
        writer.number(self.round);
        writer.number(self.wall_ns);
        writer.option(self.leader, |writer, leader| writer.number(leader.0));
        match &self.map {
            MapNews::Deltas(deltas) => {
                writer.byte(0);
                writer.list(deltas, |writer, delta| writer.bytes(delta));
            }
            MapNews::Full { ver, total, offset, bytes } => {
                writer.byte(1);
                writer.number(*ver);
                writer.number(*total);
                writer.number(*offset);
                writer.bytes(bytes);
            }
        }
    }

    pub(super) fn decode(reader: &mut Reader) -> Result<Self, Fault> {
        Ok(Self {
            round: reader.number()?,
            wall_ns: reader.number()?,
            leader: reader.option(|reader| reader.small().map(NodeId))?,
            map: match reader.byte()? {
                0 => MapNews::Deltas(reader.list(Reader::bytes)?),
                1 => MapNews::Full {
                    ver: reader.number()?,
                    total: reader.number()?,
                    offset: reader.number()?,
                    bytes: reader.bytes()?,
                },
                _ => return Err(Fault::Range("map")),
            },
        })
    }
}

impl Heard {
    pub(super) fn encode(&self, writer: &mut Writer<'_>) {
        writer.list(&self.nodes, |writer, (node, incarnation, ago_ms)| {
            writer.number(node.0);
            writer.number(incarnation.0);
            writer.number(*ago_ms);
        });
    }

    pub(super) fn decode(reader: &mut Reader) -> Result<Self, Fault> {
        let one = |reader: &mut Reader| {
            Ok((NodeId(reader.small()?), Incarnation(reader.number()?), reader.small()?))
        };
        Ok(Self { nodes: reader.list(one)? })
    }
}

impl Ask {
    pub(super) fn encode(&self, writer: &mut Writer<'_>) {
        writer.number(self.id);
        plain(&self.command, writer);
    }

    pub(super) fn decode(reader: &mut Reader) -> Result<Self, Fault> {
        Ok(Self { id: reader.number()?, command: of_plain(reader)? })
    }
}

impl Told {
    pub(super) fn encode(&self, writer: &mut Writer<'_>) {
        writer.number(self.id);
        match &self.outcome {
            AskOutcome::Answered(ver, answer) => {
                writer.byte(0);
                writer.number(*ver);
                plain(answer, writer);
            }
            AskOutcome::NotLeader(leader) => {
                writer.byte(1);
                writer.option(*leader, |writer, leader| writer.number(leader.0));
            }
            AskOutcome::Unknown => writer.byte(2),
        }
    }

    pub(super) fn decode(reader: &mut Reader) -> Result<Self, Fault> {
        let id = reader.number()?;
        let outcome = match reader.byte()? {
            0 => AskOutcome::Answered(reader.number()?, of_plain(reader)?),
            1 => AskOutcome::NotLeader(reader.option(|reader| reader.small().map(NodeId))?),
            2 => AskOutcome::Unknown,
            _ => return Err(Fault::Range("outcome")),
        };
        Ok(Self { id, outcome })
    }
}

/// What also goes into Raft's log is written the same way here.
fn plain(value: &impl Serialize, writer: &mut Writer<'_>) {
    writer.bytes(&postcard::to_allocvec(value).expect("nothing in it can fail to be written"));
}

fn of_plain<T: Serialize + DeserializeOwned>(reader: &mut Reader) -> Result<T, Fault> {
    let bytes = reader.bytes()?;
    if bytes.len() > COMMAND_BYTES_MAX {
        return Err(Fault::Range("command"));
    }
    let value: T = postcard::from_bytes(&bytes).map_err(|_| Fault::Range("command"))?;
    // One way to write it, as with everything else.
    match postcard::to_allocvec(&value) {
        Ok(again) if again == bytes => Ok(value),
        _ => Err(Fault::Range("command")),
    }
}
