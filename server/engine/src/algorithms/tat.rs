//! The theoretical arrival time (TAT): the one instant that is the whole state of a bucket, of GCRA
//! and of a leaky bucket, in units that need no rounding.
//!
//! Here: ticks, their conversions, and the encoding of a TAT. Not here: decisions (`bucket`,
//! `gcra`, `leaky`).
//!
//! A rate of `count` units in `period` nanoseconds has a clock of its own: it *ticks* `count` times
//! a nanosecond. Any instant is then a whole number of ticks, and so is the cost of a unit,
//! `period` ticks, whereas the emission interval `period ÷ count` need not be whole. The TAT is the
//! tick at which all taken units are paid for:
//!
//! ```text
//!        now            TAT                 now + capacity × period
//! ────────┼──────────────┼──────────────────────┼───────→ ticks
//!         └─── used ─────┴───── remaining ──────┘
//! ```
//!
//! Sizes: a count is below 2^53, a period below 2^55, an instant below 2^64. The ticks of an
//! instant therefore stay below 2^117, those of a capacity below 2^108. Sums saturate, because a
//! state may come from outside, such as a snapshot.

use protocol::{COUNT_MAX, Rate};

use super::wide::mul_div;
use crate::time::Now;

/// The greatest length of an encoded TAT in bytes.
pub(super) const BYTES: usize = 16;

/// An instant in ticks.
pub(super) fn ticks(rate: Rate, now: Now) -> u128 {
    u128::from(rate.count) * u128::from(now.mono.0)
}

/// The cost of `units` in ticks.
pub(super) fn cost(rate: Rate, units: u64) -> u128 {
    u128::from(units) * u128::from(rate.period)
}

/// A span of ticks in nanoseconds, rounded up: a wait of this length suffices, a nanosecond less
/// does not.
pub(super) fn nanos(rate: Rate, ticks: u128) -> u64 {
    div_ceil(ticks, rate.count)
}

/// The greatest debt of a key in ticks: [`COUNT_MAX`] units. Debt beyond it is not counted.
pub(super) fn owed_max(rate: Rate) -> u128 {
    cost(rate, COUNT_MAX)
}

/// The whole units that `ticks` pay for.
pub(super) fn units_within(rate: Rate, ticks: u128) -> u64 {
    match u64::try_from(ticks) {
        Ok(ticks) => ticks / rate.period,
        Err(_) => (ticks / u128::from(rate.period)).try_into().unwrap_or(u64::MAX),
    }
}

/// The units that cost `ticks`, rounded up.
pub(super) fn units_of(rate: Rate, ticks: u128) -> u64 {
    div_ceil(ticks, rate.period)
}

/// Divides, rounding up. Most spans fit 64 bits, in which a division is several times as fast.
fn div_ceil(ticks: u128, divisor: u64) -> u64 {
    match u64::try_from(ticks) {
        Ok(ticks) => ticks.div_ceil(divisor),
        Err(_) => ticks.div_ceil(divisor.into()).try_into().unwrap_or(u64::MAX),
    }
}

/// Returns the current tick of a key that owes at most `max` ticks.
///
/// That is `now`, unless the clock has gone back so far that this TAT could not have been written
/// yet. The key's time then stands still at the first tick at which it could. Ticks that the clock
/// passes a second time refill nothing the second time; until then they count as owed.
pub(super) fn standing(tat: u128, now: u128, max: u128) -> u128 {
    now.max(tat.saturating_sub(max))
}

/// Moves a TAT by `by` nanoseconds. Returns it with the ticks cut off if it would lie before the
/// origin.
pub(super) fn shift(rate: Rate, tat: u128, by: i128) -> (u128, u128) {
    let distance = u128::from(rate.count).saturating_mul(by.unsigned_abs());
    if by < 0 {
        (tat.saturating_sub(distance), distance.saturating_sub(tat))
    } else {
        (tat.saturating_add(distance), 0)
    }
}

/// The cost of the same units at another rate, rounded down and up.
pub(super) fn reprice(ticks: u128, from: Rate, to: Rate) -> (u128, u128) {
    let (down, rest) = mul_div(ticks, to.period.into(), from.period.into());
    (down, down.saturating_add(u128::from(rest > 0)))
}

/// The ticks missing to a full bucket after a change of its rate and of its ticks when full: tokens
/// stay, up to the new capacity, rounded down; debt stays, rounded up.
pub(super) fn missing_after(from: (Rate, u128), missing: u128, to: (Rate, u128)) -> u128 {
    let ((old_rate, old_full), (rate, full)) = (from, to);
    if missing <= old_full {
        full.saturating_sub(reprice(old_full - missing, old_rate, rate).0)
    } else {
        full.saturating_add(reprice(missing - old_full, old_rate, rate).1)
    }
}

/// The TAT of a state; `None` for a new key.
pub(super) fn decode(state: &[u8]) -> Option<u128> {
    match state.try_into() {
        Ok(short) => Some(u64::from_le_bytes(short).into()),
        Err(_) => state.try_into().ok().map(u128::from_le_bytes),
    }
}

/// Encodes a TAT, in eight bytes if it fits.
pub(super) fn encode(tat: u128, state: &mut Vec<u8>) {
    state.clear();
    match u64::try_from(tat) {
        Ok(short) => state.extend_from_slice(&short.to_le_bytes()),
        Err(_) => state.extend_from_slice(&tat.to_le_bytes()),
    }
}
