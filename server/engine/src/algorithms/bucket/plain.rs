//! The fast path of a bucket with no option but `debt` and with ticks that fit 64 bits: the common
//! case.
//!
//! Here: the arithmetic in 64 bits. Not here: its definition, and clocks that have gone back
//! (`bucket`).

use std::hint::cold_path;

use protocol::{Algorithm, COUNT_MAX, Policy, Rate};

use crate::algorithms::fast::FastPath;
use crate::algorithms::{Attempt, Decision, Verdict, left};
use crate::time::Now;

/// A bucket with the TAT as its whole state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlainBucket {
    rate: Rate,
    capacity: u64,
    debt: u64,
}

impl FastPath for PlainBucket {
    /// The tick at which the bucket is full.
    type State = u64;

    #[inline]
    fn of(policy: &Policy) -> Option<Self> {
        match policy.algorithm {
            Algorithm::Bucket { rate, capacity, init, debt, warm: None, interval: false }
                if init >= capacity =>
            {
                Some(Self { rate, capacity, debt })
            }
            _ => None,
        }
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a decision is not copied")]
    fn take(self, state: &[u8], now: Now, attempt: &Attempt) -> Option<(Decision, u64)> {
        let Rate { count, period } = self.rate;
        let clock = count.checked_mul(now.mono.0)?;
        let full = self.capacity.checked_mul(period)?;
        let max = full.checked_add(self.debt.checked_mul(period)?)?;
        let cost = attempt.cost.checked_mul(period)?;
        let full_at = match <[u8; 8]>::try_from(state) {
            Ok(full_at) => u64::from_le_bytes(full_at),
            Err(_) if state.is_empty() => clock,
            Err(_) => return None,
        };
        // The ticks missing to a full bucket.
        let before = full_at.saturating_sub(clock);
        let owed_max = COUNT_MAX.saturating_mul(period);
        if before > owed_max {
            cold_path();
            return None;
        }
        let room = |cost: u64| max.checked_sub(cost).map(|room| room.min(full));
        let retry = |missing: u64, cost: u64| {
            room(cost).map(|room| missing.saturating_sub(room).div_ceil(count))
        };

        let mut verdict = Verdict::Allow;
        let (mut granted, mut after) = (attempt.cost, before.wrapping_add(cost));
        if room(cost).is_none_or(|room| before > room) {
            if attempt.wait.is_some_and(|wait| wait > 0) {
                cold_path();
                return None;
            }
            granted = if attempt.part {
                self.capacity.saturating_sub(before.div_ceil(period))
            } else {
                0
            };
            after = before + granted * period;
            verdict = Verdict::Part;
            if granted == 0 {
                verdict = Verdict::Deny;
                if attempt.over {
                    cold_path();
                    after = before.checked_add(cost)?.min(owed_max);
                }
            }
        }
        let reported = if attempt.peek { before } else { after };
        let full_at = clock.checked_add(after)?;
        let used = reported.div_ceil(period);
        let decision = Decision {
            verdict,
            limit: self.capacity,
            remaining: left(self.capacity, used),
            used,
            granted,
            retry: match verdict {
                Verdict::Deny => retry(reported, cost),
                Verdict::Part => retry(after, cost - granted * period),
                _ => Some(0),
            },
            reset: reported.div_ceil(count),
            changed: reported != before,
            counted: verdict == Verdict::Deny && reported != before,
            lease: None,
        };
        Some((decision, full_at))
    }
}
