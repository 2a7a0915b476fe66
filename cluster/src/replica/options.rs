//! What can be set about copies.

use crate::rules::Bug;
use crate::rules::Rules;

/// How copies behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaOptions {
    /// Most operations of a partition that are held while its primary changes.
    pub held_max: usize,
    /// Longest that an operation is held.
    pub hold_ns: u64,
    /// About how large a piece of a copy is.
    pub chunk_bytes: usize,
    /// A learner that gets no first piece asks again after this time.
    pub resend_ns: u64,
    /// A copy that acknowledges nothing for so long is to be removed.
    pub silent_ns: u64,
    /// The controller is asked again after this time.
    pub propose_ns: u64,
    /// For so long after sending a heartbeat that the controller answered, nobody else is made primary: reads need no
    /// round. 0: each needs one. Less than the controller's patience by more than clocks may differ in rate.
    pub read_lease_ns: u64,
    /// Operations with `AckMode::Owner` are answered at once while the oldest byte that a copy lacks is younger.
    pub owner_lag_ns: u64,
    /// After four fifths of it without contact to the controller a primary serves no more, since it may give up the
    /// partition after the whole. None: it never does.
    pub lost_after_ns: Option<u64>,
    /// The earliest time that a partition begins with, in nanoseconds since 1970: a wall clock that is behind it is not
    /// believed.
    pub begins_min_ns: u64,
    /// The latest one, likewise.
    pub begins_max_ns: u64,
    /// Which rules are in force.
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
    /// For so long without contact to the controller a primary serves.
    #[must_use]
    pub fn serves_for_ns(&self) -> u64 {
        match self.lost_after_ns {
            Some(lost_ns) if !self.rules.lack(Bug::ServeWhenLost) => lost_ns / 5 * 4,
            _ => u64::MAX,
        }
    }
}
