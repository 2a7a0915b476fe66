//! Identifiers: of nodes and their lives, partitions, copies, terms, lanes and links.
//!
//! Here: the small types, and how they print. Not here: who holds what (`map`), or how they travel
//! (`message`).

use std::fmt;

use serde::{Deserialize, Serialize};

/// A node for as long as its data directory lives. Given by the control plane, never used twice.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct NodeId(pub u32);

/// One life of a node, from process start to process end. Greater means later.
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
    /// As an index into a table of all partitions.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The fence of a partition: it grows when, and only when, the primary changes. 0: there never was
/// a primary.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Term(pub u32);

/// One copy of a partition: a node, which life of it, and which of its assignments to this
/// partition. A copy that was wiped and assigned again is another copy, so that what the old one
/// acknowledged says nothing about the new one.
#[derive(
    Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct CopyId {
    /// Where it is.
    pub node: NodeId,
    /// The life of the node that holds it.
    pub incarnation: Incarnation,
    /// Counts the copies that this partition was ever given; from 1.
    pub assignment: u32,
}

/// The operations of one worker of one life of a node for one owner. With a number it names an operation;
/// the operation keeps this name wherever it is sent again, even after another node has become the owner.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpStreamId {
    /// The node that sends. 0 in a section whose records belong to no operation.
    pub node: NodeId,
    /// The life of that node.
    pub incarnation: Incarnation,
    /// The number of the worker in that node.
    pub worker: u16,
    /// The node that was asked first. Of operations that a node does itself: the node of the first link of
    /// the partition's set.
    pub owner: NodeId,
}

/// A row in the node's table of links: one (peer, life of the peer, k). It is used again only when no set names it.
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
