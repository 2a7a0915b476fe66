//! Who owns a key, and how its copies stay equal.
//!
//! Pure: no clock, no socket, no task, no randomness. Time and events come in, actions go out.
//!
//! * [`id`]: nodes, incarnations, partitions, copies, terms.
//! * [`placement`]: key → partition → the nodes that should hold it.
//! * [`map`]: who holds what, and the commands that change it; what Raft replicates.
//! * [`message`]: what nodes say to each other on a lane.
//! * [`plane`]: one copy of a partition, and the links over which records and operations go.

pub mod id;
pub mod map;
pub mod message;
pub mod placement;
pub mod plane;

pub use id::{CopyId, Incarnation, NodeId, Partition, Term};
pub use map::{Command, Map};
pub use placement::{Holders, Member, Placement, Scheme};
