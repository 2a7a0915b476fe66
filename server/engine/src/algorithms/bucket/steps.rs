//! Buckets that are refilled at the ends of whole periods (`interval`).
//!
//! Here: their state, the missing tokens and the instant of the next refill. Not here: decisions
//! (`bucket`).

use super::{Bucket, BucketLevel, tat};
use crate::time::Now;

impl Bucket {
    pub(super) fn shift_steps(&self, state: &mut Vec<u8>, by: i128) {
        let Some((mut missing, next)) = decode_steps(state) else { return };
        let distance = by.unsigned_abs();
        let mut moved = if by < 0 { next.saturating_sub(distance) } else { next + distance };
        if by < 0 && distance > next {
            // Refills before the origin are done.
            let before = distance - next;
            let periods = before.div_ceil(self.rate.period.into());
            let refilled = periods.saturating_mul(self.rate.count.into());
            missing = missing.saturating_sub(refilled.try_into().unwrap_or(u64::MAX));
            moved = periods * u128::from(self.rate.period) - before;
        }
        encode_steps(missing, moved, state);
    }

    /// The missing tokens after the refills up to now, and the instant of the next refill.
    pub(super) fn refilled(&self, missing: u64, next: u128, now: Now) -> (u64, u128) {
        let period = u128::from(self.rate.period);
        let since = u128::from(now.mono.0).checked_sub(next);
        let refills = since.map_or(0, |since| since / period + 1);
        let missing = u128::from(missing).saturating_sub(refills * self.count());
        (missing as u64, next + refills * period)
    }

    pub(super) fn see_steps(&self, missing: u64, next: u128, now: Now) -> BucketLevel {
        let (missing, next) = self.refilled(missing, next, now);
        if missing == 0 {
            // Periods count from the take that finds the bucket full.
            let clock = self.fresh_clock(now);
            return BucketLevel { clock, full_at: clock, stored: 0 };
        }
        let clock = next * self.count();
        BucketLevel { clock, full_at: clock.saturating_add(self.cost(missing)), stored: 0 }
    }
}

/// Bits of the instant of the next refill, which is at most one period after the greatest instant;
/// the missing tokens take the remaining bits.
const NEXT_BITS: u32 = 72;

/// The missing tokens, and the instant of the next refill.
pub(super) fn decode_steps(state: &[u8]) -> Option<(u64, u128)> {
    let both = tat::decode(state)?;
    Some(((both >> NEXT_BITS) as u64, both & ((1 << NEXT_BITS) - 1)))
}

pub(super) fn encode_steps(missing: u64, next: u128, state: &mut Vec<u8>) {
    let next = next.min((1 << NEXT_BITS) - 1);
    tat::encode(u128::from(missing) << NEXT_BITS | next, state);
}
