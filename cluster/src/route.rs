//! The destination of an operation, and the reasons for which a node refuses one.
//!
//! Not here: the choice of the primary (`map`), the decision to refuse (`replica`).

use crate::id::{CopyId, NodeId, Term};

/// The destination of a partition's operations.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The term to stamp on the operation.
    pub term: Term,
    /// The primary in that term.
    pub primary: CopyId,
}

impl Route {
    /// The part of the route that a sender needs.
    #[must_use]
    pub fn destination(self) -> Destination {
        Destination { term: self.term, node: self.primary.node }
    }
}

/// A route without the incarnation and the assignment of the primary, in eight bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    /// The term to stamp on the operation.
    pub term: Term,
    /// The node of the primary in that term.
    pub node: NodeId,
}

/// The reason for refusing an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The deadline had passed.
    Expired,
    /// The change of the partition's primary takes too long.
    Moving,
    /// A queue is full.
    Busy,
    /// The node had no contact to the controller for a time after which the partition may have been
    /// given up.
    Stopped,
    /// The op stream is done with the number: this is a late copy of an old sending.
    Stale,
    /// The primary, or a mandatory copy, is unreachable.
    Unreachable,
}
