//! Sliding window: the counts of the last slices stand for the attempts of the last window.
//!
//! Here: windows of any number of slices. Not here: the fast path of one slice (`two`).
//!
//! ```text
//!            |<------------------ window ------------------>|
//!      ______|______________________________________________|now
//!     | oldest |  slice  |  slice  |  slice  | newest, begun |
//!       weighted             whole             `elapsed` ago
//! ```
//!
//! The `slices` newest counts are whole, and the oldest is weighted by the part of it still inside
//! the window (`strict`: whole, `flat`: not at all). A slice is `period / slices` nanoseconds,
//! which need not be whole, so all times here are in ticks of `1 / slices` nanosecond: a slice is
//! `period` ticks. Slices begin at multiples of their length on the monotonic clock; a restored or
//! converted state keeps its phase until it is idle.
//!
//! If the clock goes back before the newest slice, time stands still at its beginning.
//!
//! The state: the beginning of the newest slice (8 bytes, and 1 for the odd ticks), then the counts
//! from the newest to the last that is not 0, in at most 8 bytes each: at most `8·slices + 17`
//! bytes.

mod two;

use protocol::{COUNT_MAX, Oldest, Rate};

pub(crate) use self::two::TwoWindows;

use super::count::{CountDecision, StateReader, instant, put_count, put_instant, shifted};
use super::{Attempt, Decision};
use crate::time::Now;

/// Most counters: the slices of the window and the oldest.
const COUNTERS_MAX: usize = 121;
/// Counters of a window of one slice; this capacity is used for no other window.
const COUNTERS_OF_ONE: usize = 2;

/// The parameters of `sliding:`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sliding {
    pub(crate) rate: Rate,
    /// Slices of the window besides the oldest, 1 to 120.
    pub(crate) slices: u8,
    pub(crate) oldest: Oldest,
}

/// The counts of a state, brought up to date.
#[derive(Debug, Clone, Copy)]
struct WindowCounts<const N: usize> {
    /// The beginning of the newest slice in nanoseconds, rounded down.
    start: i64,
    /// The ticks by which the slice began later than `start`.
    start_ticks: u8,
    /// Ticks since the newest slice began, less than a slice.
    elapsed: u64,
    /// Ticks by which the clock is behind the beginning of the newest slice.
    behind: u128,
    /// The counts, newest first.
    counts: [u64; N],
}

impl Sliding {
    /// Decides an attempt, and counts it unless it is a peek.
    pub(crate) fn take(&self, state: &mut Vec<u8>, now: Now, attempt: &Attempt) -> Decision {
        // Most windows have two counters, and initializing more costs more than the rest of the
        // decision.
        match self.slices {
            1 => self.take_of::<COUNTERS_OF_ONE>(state, now, attempt),
            _ => self.take_of::<COUNTERS_MAX>(state, now, attempt),
        }
    }

    fn take_of<const N: usize>(
        &self,
        state: &mut Vec<u8>,
        now: Now,
        attempt: &Attempt,
    ) -> Decision {
        let mut counts: WindowCounts<N> = self.read(state, now);
        let used = self.used_of(&counts);
        let judged = CountDecision::new(self.rate.count, used, attempt);
        let before = attempt.peek.then(|| (used, self.reset(&counts)));
        let used = used + counts.add(judged.charge);
        if judged.charge > 0 && !attempt.peek {
            self.write(state, &counts);
        }
        let retry = judged.retry(attempt, |cost| self.wait(&counts, cost));
        let (used, reset) = before.unwrap_or_else(|| (used, self.reset(&counts)));
        judged.decision(self.rate.count, used, retry, reset, attempt)
    }

    /// Gives units back, the newest first.
    pub(crate) fn refund(&self, state: &mut Vec<u8>, now: Now, units: u64) -> u64 {
        self.refund_of(state, now, units, i64::MAX)
    }

    /// Gives units back that were taken at `taken`, or, where those are too few, before it: older
    /// ones leave the window sooner.
    pub(crate) fn refund_of(&self, state: &mut Vec<u8>, now: Now, units: u64, taken: i64) -> u64 {
        if state.is_empty() {
            return 0;
        }
        let mut counts: WindowCounts<COUNTERS_MAX> = self.read(state, now);
        let used = self.used_of(&counts).min(COUNT_MAX);
        let first = self.age_of(&counts, taken);
        let mut left = units;
        for count in counts.counts.iter_mut().skip(first) {
            let given = left.min(*count);
            *count -= given;
            left -= given;
        }
        self.write(state, &counts);
        used - self.used_of(&counts).min(COUNT_MAX)
    }

    /// The number of slices that began after the slice of an instant.
    fn age_of<const N: usize>(&self, counts: &WindowCounts<N>, instant: i64) -> usize {
        let slices = i128::from(self.slices_of::<N>());
        let start = i128::from(counts.start) * slices + i128::from(counts.start_ticks);
        let before = start - i128::from(instant) * slices;
        let age = before.max(0).unsigned_abs().div_ceil(u128::from(self.slice_ticks()));
        usize::try_from(age).unwrap_or(usize::MAX)
    }

    /// Moves `units` of the counts that are whole, the oldest first, to now.
    pub(crate) fn recount(&self, state: &mut Vec<u8>, now: Now, units: u64) {
        let mut counts: WindowCounts<COUNTERS_MAX> = self.read(state, now);
        let whole = usize::from(self.slices) + usize::from(self.oldest == Oldest::Whole);
        let mut left = units;
        for count in counts.counts[..whole].iter_mut().rev() {
            let moved = left.min(*count);
            *count -= moved;
            left -= moved;
        }
        counts.add(units - left);
        self.write(state, &counts);
    }

    /// Sets the usage to `used`, at most the limit, as if all of it had been taken now.
    pub(crate) fn set_used(&self, state: &mut Vec<u8>, now: Now, used: u64) {
        let mut counts: WindowCounts<COUNTERS_MAX> = self.read(state, now);
        counts.counts = [0; COUNTERS_MAX];
        counts.add(used.min(self.rate.count));
        self.write(state, &counts);
    }

    /// The weighted count, rounded up.
    pub(crate) fn used(&self, state: &[u8], now: Now) -> u64 {
        self.used_of(&self.read::<COUNTERS_MAX>(state, now)).min(COUNT_MAX)
    }

    /// Nanoseconds for which a unit taken now counts whole: until its slice is the oldest, or with
    /// `strict` until its slice leaves the window.
    pub(crate) fn counted_for(&self, state: &[u8], now: Now) -> u64 {
        let whole = usize::from(self.slices) + usize::from(self.oldest == Oldest::Whole);
        self.until(&self.read::<COUNTERS_MAX>(state, now), whole, 0)
    }

    /// Converts a state written under `old`.
    ///
    /// If the slices differ, the newest slice keeps its beginning, and each older count moves to
    /// the slice that may contain its last attempt: no count leaves the window too early.
    pub(crate) fn adopt(&self, old: &Self, state: &mut Vec<u8>, now: Now) {
        let from: WindowCounts<COUNTERS_MAX> = old.read(state, now);
        if old.is_idle(&from) {
            state.clear();
            return;
        }
        if (self.slices, self.rate.period) == (old.slices, old.rate.period) {
            return;
        }
        // In ticks that fit both slicings: 1 / (old slices · new slices) nanosecond.
        let (old_slices, new_slices) = (u128::from(old.slices), u128::from(self.slices));
        let old_slice = u128::from(old.rate.period) * new_slices;
        let new_slice = u128::from(self.rate.period) * old_slices;
        let skipped = u128::from(from.elapsed) * new_slices / new_slice * new_slice;
        let start = u128::from(from.start_ticks) * new_slices + skipped;
        // A beginning between two of the new ticks is rounded up to the later one: counts only
        // become younger.
        let ticks = start.div_ceil(old_slices);
        let moved = ticks * old_slices - start + skipped;
        let mut to = WindowCounts::<COUNTERS_MAX>::new(
            shifted(from.start, (ticks / new_slices).cast_signed()),
            (ticks % new_slices) as u8,
        );
        for (age, count) in from.counts[..=usize::from(old.slices)].iter().enumerate() {
            let slice = match age {
                0 => 0,
                // The time from the end of this slice to the beginning of the new newest slice.
                _ => (moved + (age as u128 - 1) * old_slice) / new_slice + 1,
            };
            if slice <= u128::from(self.slices) {
                let counter = &mut to.counts[slice as usize];
                *counter = counter.saturating_add(*count).min(COUNT_MAX);
            }
        }
        self.write(state, &to);
    }

    /// Moves the stored instant by `by` nanoseconds.
    pub(crate) fn shift(state: &mut [u8], by: i128) {
        if let Some(start) = state.first_chunk_mut() {
            *start = shifted(i64::from_le_bytes(*start), by).to_le_bytes();
        }
    }

    fn slice_ticks(&self) -> u64 {
        self.rate.period
    }

    /// The number of slices. With capacity for one slice it is a constant, which saves the
    /// multiplications and divisions by it.
    fn slices_of<const N: usize>(&self) -> u8 {
        if N == COUNTERS_OF_ONE { 1 } else { self.slices }
    }

    /// The counts of the state at `now`.
    fn read<const N: usize>(&self, state: &[u8], now: Now) -> WindowCounts<N> {
        let now = instant(now);
        // Filled in place: moving this many counters costs more than the rest.
        let mut counts = WindowCounts::new(0, 0);
        if self.decode(state, &mut counts).is_some() {
            self.advance(&mut counts, now);
            if !self.is_idle(&counts) {
                return counts;
            }
        }
        self.begin(&mut counts, now);
        counts
    }

    /// Sets `counts` to those of an empty state.
    fn begin<const N: usize>(&self, counts: &mut WindowCounts<N>, now: i64) {
        let slices = i128::from(self.slices_of::<N>());
        let now_ticks = i128::from(now) * slices;
        let elapsed = now_ticks.rem_euclid(i128::from(self.slice_ticks()));
        *counts = WindowCounts::new(0, 0);
        counts.set_start(now_ticks - elapsed, slices);
        counts.elapsed = elapsed.unsigned_abs() as u64;
    }

    fn decode<const N: usize>(&self, state: &[u8], counts: &mut WindowCounts<N>) -> Option<()> {
        let mut reader = StateReader(state);
        counts.start = reader.instant()?;
        counts.start_ticks = reader.byte()?;
        for count in &mut counts.counts[..=usize::from(self.slices_of::<N>())] {
            let Some(read) = reader.count() else { break };
            *count = read.min(COUNT_MAX);
        }
        Some(())
    }

    fn write<const N: usize>(&self, state: &mut Vec<u8>, counts: &WindowCounts<N>) {
        state.clear();
        if self.is_idle(counts) {
            return;
        }
        put_instant(state, counts.start);
        state.push(counts.start_ticks);
        let last = counts.counts.iter().rposition(|count| *count > 0).unwrap_or(0);
        for count in &counts.counts[..=last] {
            put_count(state, *count);
        }
    }

    fn advance<const N: usize>(&self, counts: &mut WindowCounts<N>, now: i64) {
        let slices = i128::from(self.slices_of::<N>());
        let slice = i128::from(self.slice_ticks());
        let start = i128::from(counts.start) * slices + i128::from(counts.start_ticks);
        let elapsed = i128::from(now) * slices - start;
        if elapsed < slice {
            counts.elapsed = elapsed.max(0).unsigned_abs() as u64;
            counts.behind = elapsed.min(0).unsigned_abs();
            return;
        }
        let passed = elapsed / slice;
        counts.elapsed = (elapsed % slice).unsigned_abs() as u64;
        counts.set_start(start + passed * slice, slices);
        let counters = &mut counts.counts[..=usize::from(self.slices_of::<N>())];
        let passed = usize::try_from(passed).unwrap_or(usize::MAX).min(counters.len());
        counters.copy_within(..counters.len() - passed, passed);
        counters[..passed].fill(0);
    }

    /// The counts that are whole, and the count of the oldest slice.
    fn split<'a, const N: usize>(&self, counts: &'a WindowCounts<N>) -> (&'a [u64], u64) {
        let slices = usize::from(self.slices_of::<N>());
        (&counts.counts[..slices], counts.counts[slices])
    }

    /// Whether no count has an effect any more.
    fn is_idle<const N: usize>(&self, counts: &WindowCounts<N>) -> bool {
        let (whole, oldest) = self.split(counts);
        whole.iter().all(|count| *count == 0) && (oldest == 0 || self.oldest == Oldest::Dropped)
    }

    /// The usage `ceil(est)`. In whole numbers, `used + n ≤ limit` exactly when `est + n ≤ limit`,
    /// which for one slice is `prev·(W − e) + (cur + n)·W ≤ limit·W`.
    fn used_of<const N: usize>(&self, counts: &WindowCounts<N>) -> u64 {
        let (whole, oldest) = self.split(counts);
        let slice = self.slice_ticks();
        let weighted = match self.oldest {
            Oldest::Whole => oldest,
            Oldest::Dropped => 0,
            // The common case; it saves a division, the costliest step.
            Oldest::Weighted if oldest == 0 => 0,
            Oldest::Weighted => {
                let product = u128::from(oldest) * u128::from(slice - counts.elapsed);
                match u64::try_from(product) {
                    Ok(product) => product.div_ceil(slice),
                    Err(_) => product.div_ceil(u128::from(slice)) as u64,
                }
            }
        };
        whole.iter().sum::<u64>() + weighted
    }

    /// Nanoseconds until `cost` passes; `None` for never.
    fn wait<const N: usize>(&self, counts: &WindowCounts<N>, cost: u64) -> Option<u64> {
        let room = self.rate.count.checked_sub(cost)?;
        let slice = u128::from(self.slice_ticks());
        let slices = usize::from(self.slices_of::<N>());
        let mut whole = counts.counts[..slices].iter().sum::<u64>();
        // For each number of further slices, the point in the newest slice at which `cost` passes.
        for begun in 0..=slices {
            let oldest = counts.counts[slices - begun];
            let from = if begun == 0 { u128::from(counts.elapsed) } else { 0 };
            let into = room.checked_sub(whole).and_then(|room| match self.oldest {
                Oldest::Dropped => Some(0),
                Oldest::Whole => (oldest <= room).then_some(0),
                Oldest::Weighted if oldest == 0 => Some(0),
                Oldest::Weighted => {
                    let inside = u128::from(room) * slice / u128::from(oldest);
                    Some(slice.saturating_sub(inside))
                }
            });
            if let Some(into) = into {
                return Some(self.until(counts, begun, into.max(from)));
            }
            whole -= slices.checked_sub(begun + 1).map_or(0, |last| counts.counts[last]);
        }
        Some(self.until(counts, slices + 1, 0))
    }

    /// Nanoseconds until no count has an effect.
    fn reset<const N: usize>(&self, counts: &WindowCounts<N>) -> u64 {
        if self.is_idle(counts) {
            return 0;
        }
        let slices = usize::from(self.slices_of::<N>());
        let newest = counts.counts.iter().position(|count| *count > 0).unwrap_or(0);
        let leaves_after = match self.oldest {
            Oldest::Dropped => slices,
            Oldest::Weighted | Oldest::Whole => slices + 1,
        };
        self.until(counts, leaves_after - newest, 0)
    }

    /// Nanoseconds until `begun` more slices have begun and the newest is `into` ticks old.
    fn until<const N: usize>(&self, counts: &WindowCounts<N>, begun: usize, into: u128) -> u64 {
        let at = begun as u128 * u128::from(self.slice_ticks()) + into;
        let ticks = at.saturating_sub(u128::from(counts.elapsed)) + counts.behind;
        match u64::try_from(ticks) {
            Ok(ticks) => ticks.div_ceil(u64::from(self.slices_of::<N>())),
            Err(_) => {
                ticks.div_ceil(u128::from(self.slices_of::<N>())).try_into().unwrap_or(u64::MAX)
            }
        }
    }
}

impl<const N: usize> WindowCounts<N> {
    fn new(start: i64, start_ticks: u8) -> Self {
        Self { start, start_ticks, elapsed: 0, behind: 0, counts: [0; N] }
    }

    /// Sets the beginning of the newest slice, in ticks since the origin.
    fn set_start(&mut self, ticks: i128, slices: i128) {
        self.start = ticks.div_euclid(slices) as i64;
        self.start_ticks = ticks.rem_euclid(slices).unsigned_abs() as u8;
    }

    /// Adds units to the newest slice, as many as its count can hold, and returns their number.
    fn add(&mut self, units: u64) -> u64 {
        let added = units.min(COUNT_MAX - self.counts[0]);
        self.counts[0] += added;
        added
    }
}

#[cfg(test)]
mod tests;
