//! Who owns a key, and how its copies stay equal.
//!
//! Pure: no clock, no socket, no task, no randomness. Time and events come in, actions go out.
//!
//! * [`id`]: nodes, incarnations, partitions, copies, terms.
//! * [`placement`]: key → partition → the nodes that should hold it.
//! * [`map`]: who holds what, and the commands that change it; what Raft replicates.
//! * [`message`]: what nodes say to each other on a lane.
//! * [`partition_header`]: the fields of a partition that every batch reads.
//! * [`replica`]: one copy of a partition, and the sessions that send to it.
//! * [`plane`]: the successor of `replica` and `partition_header`: records in streams of links.

pub mod id;
pub mod map;
pub mod message;
pub mod partition_header;
pub mod placement;
pub mod plane;
pub mod replica;

pub use id::{CopyId, Incarnation, NodeId, Partition, Term};
pub use map::{Command, Map};
pub use placement::{Holders, Member, Placement, Scheme};
