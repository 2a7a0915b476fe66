//! Options of operations.

use super::MS;
use crate::rules::Rules;

/// The times after which operations end without an answer, and related bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpOptions {
    /// An operation is given up if its owner's link makes no progress for this time, and the map
    /// will not soon name another owner.
    pub deadline_ns: u64,
    /// An operation is given up if its owner's link makes no progress for this time.
    pub removal_ns: u64,
    /// An operation is given up after this time, even if the link makes progress.
    pub patience_ns: u64,
    /// An operation that was refused by a node that is about to be its owner is sent again after
    /// this time.
    pub retry_ns: u64,
    /// The most requests of a frame.
    pub frame_requests_max: usize,
    /// The rules in force.
    pub rules: Rules,
}

impl Default for OpOptions {
    fn default() -> Self {
        Self {
            deadline_ns: 1000 * MS,
            removal_ns: 3000 * MS,
            patience_ns: 10_000 * MS,
            retry_ns: 10 * MS,
            frame_requests_max: 4096,
            rules: Rules::default(),
        }
    }
}
