//! Who owns a key, and how its copies stay equal.
//!
//! Pure: no clock, no socket, no task, no randomness. Time and events come in, actions go out.
//!
//! * [`id`]: nodes, incarnations, partitions, copies, terms.

pub mod id;

pub use id::{CopyId, Incarnation, NodeId, Partition, Term};
