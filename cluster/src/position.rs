//! Positions in the history of a partition, and the times that go with them.
//!
//! Not here: creating records (`replica`), the stored positions (`partition_header`).

use crate::id::Term;

/// The clocks of a node, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeTime {
    /// Time since some origin; never goes back. For timers and deadlines.
    pub mono_ns: u64,
    /// Time since 1970, by the node's wall clock; may be wrong, and may jump.
    pub wall_ns: u64,
}

/// A position in the history of a partition. Two copies at the same position hold the same state,
/// because a term has one primary, which numbers its records one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// The term in which the record was made.
    pub term: Term,
    /// Counts the records of the partition, from 1; 0 before the first.
    pub lsn: u64,
}

/// The time and the position at which an operation is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApplyPosition {
    /// The partition's time, in nanoseconds since 1970; the only time that a state may contain.
    pub pt_ns: u64,
    /// The term.
    pub term: Term,
    /// The lsn that a record of the change gets. With the term it makes a number that is never used
    /// twice, so cas uniques and leases are made of both.
    pub lsn: u64,
}
