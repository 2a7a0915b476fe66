//! The end of an operation: its outcome, and which operation ended.

use crate::id::Partition;
use crate::route::Refusal;

/// The outcome of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpOutcome<'a> {
    /// The operation was done once; carries the reply.
    Done(&'a [u8]),
    /// The operation was certainly not done.
    NotApplied(Refusal),
    /// The operation was done once or not at all.
    Unknown,
}

/// The end of one operation, or of several with consecutive indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpEnd<'a> {
    /// The token of the [submitted](super::OpStreams::submit) operation.
    pub token: u64,
    /// The index of the first operation.
    pub index: u32,
    /// The number of operations with this token and consecutive indexes that ended this way; their
    /// replies are concatenated.
    pub count: u32,
    /// The partition of the first operation.
    pub partition: Partition,
    /// The line of an operation that was not done, or may not have been; else empty.
    pub line: &'a [u8],
    /// The outcome.
    pub outcome: OpOutcome<'a>,
}
