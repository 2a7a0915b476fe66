//! Placement of keys, replication of partitions, and delivery of operations to their owners.
//!
//! The crate is pure: it has no clock, no socket, no task and no randomness. Time, bytes and events
//! are arguments; bytes and events are results. `ALGORITHM.md` gives the reason for each rule.
//!
//! The agreed state:
//!
//! * [`id`]: nodes, incarnations, partitions, copies, terms, op streams, links.
//! * [`position`], [`route`]: records and times; the destination of an operation.
//! * [`placement`]: key → partition → the nodes that should hold it.
//! * [`map`]: the state that Raft replicates: the holders of each partition, and the commands that
//!   change them.
//! * [`message`]: control frames between nodes, and the handshake of every connection.
//!
//! The data plane carries a change to the other copies of its partition, and an operation to the
//! node that owns its key:
//!
//! * [`frames`]: the frames of a link between two nodes.
//! * [`partition_header`]: the fields of a partition that every batch reads and changes.
//! * [`replica_set`]: the links that carry the records of a partition.
//! * [`send_stream`], [`receive_stream`]: the numbered bytes of a link, at either end.
//! * [`link`]: a connection that carries both streams, and its resumption after a loss.
//! * [`dedup_log`]: results that are kept so that no operation is done twice.
//! * [`op_stream`]: operations that were sent to other nodes.
//! * [`parked_reply`]: replies that wait until other copies hold the changes behind them.
//! * [`replica`]: the rare events of one copy: takeover, handover, copying, refusal.
//! * [`contact`]: the time that a node may serve and read without its controller.

pub mod contact;
pub mod dedup_log;
pub mod frames;
pub mod id;
pub mod link;
pub mod map;
pub mod message;
pub mod op_stream;
pub mod parked_reply;
pub mod partition_header;
pub mod placement;
pub mod position;
pub mod receive_stream;
pub mod record_ends;
pub mod replica;
pub mod replica_set;
pub mod route;
mod rules;
pub mod send_stream;

pub use id::{CopyId, Incarnation, LinkIndex, NodeId, OpStreamId, Partition, Term};
pub use map::{Map, MapCommand};
pub use placement::{Member, PartitionOwners, Placement, Scheme};
#[cfg(feature = "bugs")]
pub use rules::Bug;
pub use rules::Rules;
