//! Warm-up: a bucket that has been idle is cold, and a unit of a cold bucket costs more.
//!
//! Here: the line of prices. Not here: the bucket that charges them (`bucket`).
//!
//! As in Guava's `SmoothWarmingUp` and Sentinel, idle time stores permits, at most `max` of them.
//! The emission interval is `factor` times the usual one when all permits are stored, and falls in
//! a straight line to the usual one at `threshold`. A take uses up stored permits, and costs the
//! area under the line:
//!
//! ```text
//! interval
//! f·T │              ╱
//!     │           ╱ ░│
//!   T ┼────────╱ ░ ░ │      ░ the surcharge of one stored permit up to all of them
//!     │        │     │
//!     └────────┴─────┴──→ permits stored
//!          threshold max
//! ```
//!
//! With w the duration, R ÷ P the rate and f the factor: `threshold = w·R/P ÷ (f − 1)`, `max =
//! threshold + 2·w·R/P ÷ (1 + f)`; from all stored to none takes `w` for the slope's part. Stored
//! permits are counted in units of `1 ÷ (P·(f² − 1))`. In these units the threshold, the maximum, a
//! permit and the permits stored by one tick (see `tat`) are all whole, so no sequence of calls
//! drifts.
//!
//! Rounding: the surcharge of the permits above the threshold, `x² ÷ (4·w·R·(f² − 1))` ticks, is
//! rounded down, and a take costs the difference of two such values. Taking three units therefore
//! costs exactly as many ticks as taking one unit three times. One take is off by less than a tick,
//! and any run of takes that does not leave the bucket idle in between is off by less than one tick
//! in total.

use protocol::{PERIOD_NANOS_MAX, Rate, Warm};

use super::wide::mul_div;

/// Largest factor in the computation; the parser allows no larger one.
const FACTOR_MAX: u32 = 1_000;

/// The line of a warm-up, in the units of the module doc.
#[derive(Debug, Clone, Copy)]
pub(super) struct WarmupLine {
    /// Permits stored in a cold bucket.
    pub(super) max: u128,
    /// The stored permits up to which a unit has the usual price.
    threshold: u128,
    /// One permit.
    permit: u128,
    /// The permits stored by an idle tick.
    per_tick: u128,
    /// `4·w·R`; with `f² − 1` the divisor of the surcharge.
    flatness: u128,
    /// `f² − 1`.
    spread: u128,
}

impl WarmupLine {
    /// Returns the line of a warm-up; `None` for a duration of 0. The bounds are those of the
    /// parser: larger factors and durations are cut to the largest.
    pub(super) fn new(rate: Rate, warm: Warm) -> Option<Self> {
        let duration = warm.duration.min(PERIOD_NANOS_MAX);
        if duration == 0 {
            return None;
        }
        let factor = u128::from(warm.factor.clamp(2, FACTOR_MAX));
        let units = u128::from(duration) * u128::from(rate.count);
        let spread = factor * factor - 1;
        Some(Self {
            max: units * (3 * factor - 1),
            threshold: units * (factor + 1),
            permit: u128::from(rate.period) * spread,
            per_tick: 3 * factor - 1,
            flatness: 4 * units,
            spread,
        })
    }

    /// The price of `stored` permits beyond the usual price, in ticks.
    pub(super) fn surcharge(&self, stored: u128) -> u128 {
        let above = stored.saturating_sub(self.threshold);
        mul_div(above, above, self.flatness).0 / self.spread
    }

    /// The permits stored after `units` are taken.
    pub(super) fn after_taking(&self, stored: u128, units: u64) -> u128 {
        stored.saturating_sub(self.permit.saturating_mul(units.into()))
    }

    /// The permits stored after `ticks` idle ticks.
    pub(super) fn after_idling(&self, stored: u128, ticks: u128) -> u128 {
        stored.saturating_add(self.per_tick.saturating_mul(ticks)).min(self.max)
    }

    /// Ticks until the bucket is cold.
    pub(super) fn ticks_to_cold(&self, stored: u128) -> u128 {
        self.max.saturating_sub(stored).div_ceil(self.per_tick)
    }

    #[cfg(test)]
    pub(super) fn permit(&self) -> u128 {
        self.permit
    }

    /// Converts `stored` permits of the line `old` to the same fraction of this line's maximum.
    pub(super) fn adopt(&self, old: &Self, stored: u128) -> u128 {
        mul_div(stored, self.max, old.max).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_golden_line_has_threshold_500_and_max_1000() {
        let rate = Rate { count: 100, period: SECOND };
        let line =
            WarmupLine::new(rate, Warm { duration: 10 * SECOND, factor: 3 }).expect("ten seconds");
        assert_eq!(line.threshold / line.permit, 500);
        assert_eq!(line.max / line.permit, 1000);
        assert_eq!((line.threshold % line.permit, line.max % line.permit), (0, 0));
        // From cold to the threshold 500 permits cost 10 s, of which 5 s at the usual price.
        assert_eq!(line.surcharge(line.max), 5 * u128::from(SECOND) * 100);
        assert_eq!(line.surcharge(line.threshold), 0);
        // The first permit costs 30 ms less the slope, 29.98 ms, instead of the usual 10 ms.
        let first = line.surcharge(line.max) - line.surcharge(line.after_taking(line.max, 1));
        assert_eq!(first / 100, 19_980_000);
    }

    #[test]
    fn the_largest_line_does_not_overflow() {
        let rate = Rate { count: protocol::COUNT_MAX, period: PERIOD_NANOS_MAX };
        let line =
            WarmupLine::new(rate, Warm { duration: u64::MAX, factor: u32::MAX }).expect("long");
        assert!(line.surcharge(line.max) < u128::MAX / 1000);
        assert_eq!(line.after_taking(line.max, u64::MAX), 0);
        assert_eq!(line.after_idling(1, u128::MAX), line.max);
    }
}
