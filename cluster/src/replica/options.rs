//! Options of copies.

use crate::rules::Bug;
use crate::rules::Rules;

/// Bounds and times of copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaOptions {
    /// The most operations of a partition that are held while its primary changes.
    pub held_max: usize,
    /// The longest time that an operation is held.
    pub hold_ns: u64,
    /// The approximate size of a chunk.
    pub chunk_bytes: usize,
    /// A learner that gets no first chunk pulls again after this time.
    pub resend_ns: u64,
    /// A primary proposes to remove a mandatory copy that acknowledges nothing for this time.
    pub silent_ns: u64,
    /// A proposal to the controller is repeated after this time.
    pub propose_ns: u64,
    /// For this time after sending a heartbeat that the controller answered, no other node is made
    /// primary, so reads need no term check. 0: each read needs one. The margin below the time
    /// after which the controller declares a node dead must exceed the drift between clocks in that
    /// time.
    pub read_lease_ns: u64,
    /// Operations with `AckMode::Owner` are answered at once while the oldest byte that a copy
    /// lacks is younger than this.
    pub owner_lag_ns: u64,
    /// The controller may give up a partition after this time without contact. A primary stops
    /// serving after four fifths of it. None: never.
    pub lost_after_ns: Option<u64>,
    /// The earliest time that a partition may begin with, in nanoseconds since 1970. A wall clock
    /// before it is not trusted.
    pub begins_min_ns: u64,
    /// The latest time that a partition may begin with.
    pub begins_max_ns: u64,
    /// The rules in force.
    pub rules: Rules,
}

const MS: u64 = 1_000_000;

impl Default for ReplicaOptions {
    fn default() -> Self {
        Self {
            held_max: 1024,
            hold_ns: 250 * MS,
            chunk_bytes: 32 << 10,
            resend_ns: 100 * MS,
            silent_ns: 1500 * MS,
            propose_ns: 200 * MS,
            read_lease_ns: 1400 * MS,
            owner_lag_ns: 10 * MS,
            lost_after_ns: Some(300_000 * MS),
            begins_min_ns: 0,
            begins_max_ns: u64::MAX,
            rules: Rules::default(),
        }
    }
}

impl ReplicaOptions {
    /// The time without contact to the controller during which a primary serves.
    #[must_use]
    pub fn serves_for_ns(&self) -> u64 {
        match self.lost_after_ns {
            Some(lost_ns) if !self.rules.lack(Bug::ServeWhenLost) => lost_ns / 5 * 4,
            _ => u64::MAX,
        }
    }
}
