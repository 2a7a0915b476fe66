//! Placement of keys, replication of their partitions, and the way of operations to their owners.
//!
//! Pure: no clock, no socket, no task, no randomness. Time, bytes and events come in, bytes and events go out.
//! `ALGORITHM.md` says why each rule is needed.
//!
//! What is agreed:
//!
//! * [`id`]: nodes, incarnations, partitions, copies, terms, lanes, links.
//! * [`placement`]: key → partition → the nodes that should hold it.
//! * [`map`]: who holds what, and the commands that change it; what Raft replicates.
//! * [`message`]: control frames between nodes, and how every connection begins.
//!
//! The data plane: how a change reaches the other copies of its partition, and how an operation reaches the node
//! that owns its key:
//!
//! * [`frames`]: the frames of a link between two nodes.
//! * [`partition_header`]: the fields of a partition that every batch reads and changes.
//! * [`replica_set`]: which links the records of a partition go over.
//! * [`send_stream`], [`receive_stream`]: the numbered bytes of a link, at either end.
//! * [`link`]: a connection that carries both, and its resumption after a loss.
//! * [`dedup_log`]: results that are kept so that nothing is done twice.
//! * [`op_stream`]: operations that other nodes were asked to do.
//! * [`parked_reply`]: replies that wait until other copies hold what they tell.
//! * [`replica`]: the rare events of one copy: takeover, handover, copying, refusal.
//! * [`contact`]: how long a node may serve and read without its controller.

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
pub mod receive_stream;
pub mod replica;
pub mod replica_set;
mod rules;
pub mod send_stream;

pub use id::{CopyId, Incarnation, LinkIndex, NodeId, OpStreamId, Partition, Term};
pub use map::{Map, MapCommand};
pub use placement::{Member, PartitionOwners, Placement, Scheme};
#[cfg(feature = "bugs")]
pub use rules::Bug;
pub use rules::Rules;
