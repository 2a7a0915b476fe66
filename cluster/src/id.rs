//! Identifiers of nodes, incarnations, partitions, copies, terms, op streams and links.
//!
//! Here: the small types and their `Display`. Not here: the holders of partitions (`map`),
//! encodings (`message`).

use std::fmt;

use serde::{Deserialize, Serialize};

/// A node, from the creation of its data directory to the loss of it. The control plane assigns the
/// id and never uses it twice.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct NodeId(pub u32);

/// One run of a node's process. A greater number is a later run.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Incarnation(pub u64);

/// A fixed range of the key circle.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Partition(pub u16);

impl Partition {
    /// The index into a table of all partitions.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The fence of a partition: the term grows when, and only when, the primary changes. 0 means that
/// there never was a primary.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Term(pub u32);

/// One copy of a partition: a node, its incarnation, and the number of its assignment. A copy that
/// was wiped and assigned again gets another id, so acknowledgements of the old copy do not count
/// for the new one.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct CopyId {
    /// The node that holds the copy.
    pub node: NodeId,
    /// The incarnation of that node.
    pub incarnation: Incarnation,
    /// Counts the copies that this partition was ever assigned, from 1.
    pub assignment: u32,
}

/// The operations of one worker of one incarnation of a node, for one owner. `OpStreamId` and a
/// number identify an operation. The operation keeps this identity when it is sent again, even to
/// another owner.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpStreamId {
    /// The sending node. 0 in a section of records without operations.
    pub node: NodeId,
    /// The incarnation of that node.
    pub incarnation: Incarnation,
    /// The index of the worker in that node.
    pub worker: u16,
    /// The node that the operation was first sent to. For operations that a node does itself: the
    /// node of the first link of the partition's set.
    pub owner: NodeId,
}

/// A row in the node's table of links: one (peer, incarnation of the peer, k). The row is used
/// again only when no set refers to it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkIndex(pub u16);

impl fmt::Display for NodeId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "n{}", self.0)
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "p{}", self.0)
    }
}

impl fmt::Display for CopyId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}#{}", self.node, self.incarnation.0, self.assignment)
    }
}
