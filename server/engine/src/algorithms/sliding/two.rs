//! The fast path of a sliding window of one slice, the count over two windows, in 64 bits: most
//! sliding windows have one slice.
//!
//! Here: the arithmetic in 64 bits. Not here: its definition, peeks, and clocks that have gone back
//! (`sliding`).

use std::hint::cold_path;

use protocol::{Algorithm, Oldest, Policy, Rate};

use super::{COUNTERS_OF_ONE, Sliding, WindowCounts};
use crate::algorithms::count::CountDecision;
use crate::algorithms::fast::{Bytes16, FastPath};
use crate::algorithms::{Attempt, Decision};
use crate::time::Now;

/// A sliding window of one slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TwoWindows {
    rate: Rate,
    oldest: Oldest,
}

impl FastPath for TwoWindows {
    type State = Bytes16;

    #[inline]
    fn of(policy: &Policy) -> Option<Self> {
        match policy.algorithm {
            Algorithm::Sliding { rate, slices: 1, oldest } => Some(Self { rate, oldest }),
            _ => None,
        }
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a decision is not copied")]
    fn take(self, state: &[u8], now: Now, attempt: &Attempt) -> Option<(Decision, Bytes16)> {
        if attempt.peek {
            cold_path();
            return None;
        }
        let Rate { count: limit, period: window } = self.rate;
        let now = i64::try_from(now.mono.0).ok()?;
        let (mut start, mut newest, mut oldest) =
            if state.is_empty() { (now, 0, 0) } else { decode(Bytes16::read(state)?)? };
        let mut elapsed = u64::try_from(now.checked_sub(start)?).ok()?;
        if elapsed >= window {
            let is_next = elapsed - window < window;
            (newest, oldest) = (0, if is_next { newest } else { 0 });
            elapsed %= window;
            start = now.checked_sub_unsigned(elapsed)?;
        }
        if newest == 0 && (oldest == 0 || self.oldest == Oldest::Dropped) {
            // An idle window begins where windows of its length begin.
            oldest = 0;
            elapsed = now.unsigned_abs() % window;
            start = now.checked_sub_unsigned(elapsed)?;
        }
        let weighted = match self.oldest {
            Oldest::Whole => oldest,
            Oldest::Dropped => 0,
            Oldest::Weighted if oldest == 0 => 0,
            Oldest::Weighted => oldest.checked_mul(window - elapsed)?.div_ceil(window),
        };
        let used = newest + weighted;
        let judged = CountDecision::new(limit, used, attempt);
        let (used, newest) = (used + judged.charge, newest + judged.charge);
        let retry = judged.retry(attempt, |cost| {
            let Self { rate, oldest: kind } = self;
            let mut counts = WindowCounts::<COUNTERS_OF_ONE>::new(start, 0);
            (counts.elapsed, counts.counts) = (elapsed, [newest, oldest]);
            Sliding { rate, slices: 1, oldest: kind }.wait(&counts, cost)
        });
        // The windows after which no count has an effect, counted from the newest's beginning.
        let windows = match (newest, oldest) {
            (0, 0) => 0,
            (0, _) => 1,
            _ if self.oldest == Oldest::Dropped => 1,
            _ => 2,
        };
        let reset = (windows * window).saturating_sub(elapsed);
        let state = encode(start, newest, oldest)?;
        Some((judged.decision(limit, used, retry, reset, attempt), state))
    }
}

/// Bits of a state before its counts: the beginning of the newest window, and a byte for odd ticks,
/// which are 0 for one slice.
const FRONT_BITS: u32 = 72;

/// The bytes available for the counts.
const COUNT_BYTES_MAX: u32 = (u128::BITS - FRONT_BITS) / 8;

/// Decodes the beginning of the newest window, its count, and that of the window before.
#[inline]
fn decode(state: Bytes16) -> Option<(i64, u64, u64)> {
    let ticks = (state.bits >> 64) as u8;
    let last = state.bits.checked_shr(8 * (state.len as u32 - 1))? as u8;
    if state.len == 8 || ticks != 0 || last >= 0x80 {
        return None;
    }
    let mut counts = (state.bits >> FRONT_BITS) as u64;
    Some(((state.bits as u64).cast_signed(), count(&mut counts), count(&mut counts)))
}

/// Takes a count off the front, seven bits a byte. Past the end all counts are 0.
#[inline]
fn count(counts: &mut u64) -> u64 {
    let (mut count, mut place) = (*counts & 0x7f, 0);
    while *counts & 0x80 != 0 {
        *counts >>= 8;
        place += 7;
        count |= (*counts & 0x7f) << place;
    }
    *counts >>= 8;
    count
}

#[inline]
fn encode(start: i64, newest: u64, oldest: u64) -> Option<Bytes16> {
    let (mut counts, mut len) = (0, 0);
    put_count(newest, &mut counts, &mut len)?;
    if oldest > 0 {
        if len == COUNT_BYTES_MAX {
            return None;
        }
        put_count(oldest, &mut counts, &mut len)?;
    }
    let bits = u128::from(start.cast_unsigned()) | u128::from(counts) << FRONT_BITS;
    Some(Bytes16 { bits, len: (FRONT_BITS / 8 + len) as usize })
}

/// Puts a count behind the `len` bytes of the counts before it.
#[inline]
fn put_count(mut count: u64, counts: &mut u64, len: &mut u32) -> Option<()> {
    loop {
        let more = if count >= 0x80 { 0x80 } else { 0 };
        *counts |= (count & 0x7f | more) << (8 * *len);
        *len += 1;
        if more == 0 {
            return Some(());
        }
        count >>= 7;
        if *len == COUNT_BYTES_MAX {
            cold_path();
            return None;
        }
    }
}
