//! Attempts that take units before they are available, and wait for them.
//!
//! Not here: attempts that pass at once (`bucket`).

use super::{Bucket, BucketLevel};
use crate::algorithms::{Attempt, tat};
use crate::time::Now;

impl Bucket {
    /// Nanoseconds that an attempt which does not pass now waits for its units, if the caller
    /// accepts that. They are taken at once, below zero, so that later attempts wait behind it.
    pub(super) fn wait(&self, now: Now, seen: BucketLevel, attempt: &Attempt) -> Option<u64> {
        let waits = attempt.wait.is_some_and(|wait| wait > 0) && attempt.cost > 0;
        if !waits || self.retry_waiting(now, seen, attempt.cost, attempt) != Some(0) {
            return None;
        }
        self.retry(now, seen, attempt.cost)
    }

    /// Nanoseconds until `units` pass, at once or with the wait that the caller accepts; `None` for
    /// never. Nobody owes more than [`tat::owed_max`].
    pub(super) fn retry_waiting(
        &self,
        now: Now,
        seen: BucketLevel,
        units: u64,
        attempt: &Attempt,
    ) -> Option<u64> {
        let retry = self.retry(now, seen, units)?;
        let wait = attempt.wait.unwrap_or(0);
        // The greatest number may stand for a longer time.
        if wait == 0 || units == 0 || retry == u64::MAX {
            return Some(retry);
        }
        let owed_before = tat::owed_max(self.rate).saturating_sub(self.price(seen, units));
        let bearable = self.nanos_until(now, seen, seen.full_at.saturating_sub(owed_before));
        Some(retry.saturating_sub(wait).max(bearable.min(retry)))
    }
}
