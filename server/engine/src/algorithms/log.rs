//! Sliding log: every attempt of the last window with its instant, so that the count is exact.
//!
//! Here: the log and its encoding. Not here: the verdict over a count (`count`).
//!
//! An attempt counts for less than a window: at `instant + period` it has expired. Attempts of one
//! instant share an entry. If the clock goes back before the newest entry, time stands still there.
//!
//! The number of entries is at most the policy's `entries`, its count, and [`LOG_ENTRIES_MAX`].
//! With that number the log is full: it decides as if the limit were used up, `Deny` for any cost
//! but 0 and nothing left, until the oldest entry has expired. With `over` a full log drops its
//! oldest entry for a refused attempt. That changes no decision: while the dropped entry would
//! count, the log is full of younger ones.
//!
//! ```text
//! | oldest 8 | newest 8 | units 8 | entries 4 | since previous, units | since previous, units | …
//! ```
//!
//! The state: 28 bytes, and 2 to 18 an entry, about 6 for single attempts milliseconds apart. The
//! first entry's distance from its predecessor is meaningless.

use protocol::{COUNT_MAX, LOG_ENTRIES_MAX, Rate};

use super::count::{CountDecision, StateReader, between, instant, put_count, shifted};
use super::{Attempt, Decision, Verdict};
use crate::time::Now;

const HEADER_BYTES: usize = 28;

/// The parameters of `log:`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) rate: Rate,
    /// Most entries in the log.
    pub(crate) entries: u64,
}

/// The entries of a state that have not expired.
#[derive(Debug, Clone, Copy, Default)]
struct LiveEntries {
    /// The offset of the oldest entry in the state.
    place: usize,
    oldest: i64,
    newest: i64,
    units: u64,
    entries: u32,
}

impl Log {
    /// Decides an attempt, and stores it unless it is a peek.
    pub(crate) fn take(&self, state: &mut Vec<u8>, now: Now, attempt: &Attempt) -> Decision {
        let before = self.read(state, now);
        let at = before.tick(now);
        let judged = CountDecision::new(self.rate.count, self.used_of(&before), attempt);
        let mut after = before;
        // The wait after a granted part depends on the stored part, so a peek stores it in a copy.
        let mut scratch = Vec::new();
        let state = if attempt.peek && judged.verdict == Verdict::Part {
            scratch.clone_from(state);
            &mut scratch
        } else {
            state
        };
        if judged.charge > 0 && (!attempt.peek || judged.verdict == Verdict::Part) {
            self.push(state, &mut after, at, judged.charge);
        }
        let retry = judged.retry(attempt, |cost| self.wait(state, &after, now, cost));
        let shown = if attempt.peek { &before } else { &after };
        judged.decision(
            self.rate.count,
            self.used_of(shown),
            retry,
            self.reset(shown, now),
            attempt,
        )
    }

    /// Gives units back, those of the newest attempts first.
    pub(crate) fn refund(&self, state: &mut Vec<u8>, now: Now, units: u64) -> u64 {
        self.refund_of(state, now, units, i64::MAX)
    }

    /// Gives units back that were taken at `taken`, or, where those are too few, before it: older
    /// ones leave the window sooner.
    pub(crate) fn refund_of(&self, state: &mut Vec<u8>, now: Now, units: u64, taken: i64) -> u64 {
        let mut live = self.read(state, now);
        live.trim(state);
        let mut later = Vec::new();
        while live.newest > taken
            && let Some(entry) = live.pop(state)
        {
            later.push(entry);
        }
        let given = units.min(live.units);
        let mut left = given;
        while left > 0
            && let Some((at, last)) = live.pop(state)
        {
            if last > left {
                live.append(state, at, last - left);
                break;
            }
            left -= last;
        }
        for (at, units) in later.into_iter().rev() {
            live.append(state, at, units);
        }
        live.write(state);
        given
    }

    /// Moves `units`, the oldest first, to now.
    pub(crate) fn recount(&self, state: &mut Vec<u8>, now: Now, units: u64) {
        let mut live = self.read(state, now);
        let units = units.min(live.units);
        if units == 0 {
            return;
        }
        let at = live.tick(now);
        live.trim(state);
        let mut left = units;
        while left > 0 && live.entries > 0 {
            let mut entries = StateReader(&state[HEADER_BYTES..]);
            let since_previous = entries.count().unwrap_or(0);
            let oldest = entries.count().unwrap_or(0);
            if oldest > left {
                let rest = entries.0.to_vec();
                state.truncate(HEADER_BYTES);
                put_count(state, since_previous);
                put_count(state, oldest - left);
                state.extend_from_slice(&rest);
                live.units -= left;
                break;
            }
            left -= oldest;
            live.drop_oldest(state);
        }
        let before = live.units;
        if self.is_full(&live) && live.newest != at {
            // No unit may be lost: the oldest entry moves to now too.
            live.drop_oldest(state);
        }
        let joined = before - live.units;
        self.push(state, &mut live, at, units + joined);
    }

    /// Sets the usage to `used`, at most the limit, as if all of it had been taken now.
    pub(crate) fn set_used(&self, state: &mut Vec<u8>, now: Now, used: u64) {
        let at = self.read(state, now).tick(now);
        state.clear();
        let units = used.min(self.rate.count);
        if units > 0 {
            self.push(state, &mut LiveEntries::default(), at, units);
        }
    }

    /// The count of the last window.
    pub(crate) fn used(&self, state: &[u8], now: Now) -> u64 {
        self.read(state, now).units
    }

    /// Converts a state written under `old`: an entry that has not expired then counts for the new
    /// window's length. A log with more entries than the new maximum is full until enough of them
    /// expire.
    #[expect(clippy::unused_self, reason = "all algorithms are adopted alike")]
    pub(crate) fn adopt(&self, old: &Self, state: &mut Vec<u8>, now: Now) {
        let mut live = old.read(state, now);
        live.trim(state);
        live.write(state);
    }

    /// Moves the stored instants by `by` nanoseconds.
    pub(crate) fn shift(state: &mut [u8], by: i128) {
        let instants = state.chunks_exact_mut(8).take(2);
        for bytes in instants {
            if let Some(bytes) = bytes.first_chunk_mut() {
                *bytes = shifted(i64::from_le_bytes(*bytes), by).to_le_bytes();
            }
        }
    }

    fn entries_max(&self) -> u64 {
        self.entries.min(self.rate.count).clamp(1, LOG_ENTRIES_MAX)
    }

    /// Whether the log has its maximum of entries.
    fn is_full(&self, live: &LiveEntries) -> bool {
        u64::from(live.entries) >= self.entries_max()
    }

    fn used_of(&self, live: &LiveEntries) -> u64 {
        if self.is_full(live) { live.units.max(self.rate.count) } else { live.units }
    }

    /// The entries of the state that have not expired at `now`.
    fn read(&self, state: &[u8], now: Now) -> LiveEntries {
        let Some(mut live) = LiveEntries::decode(state) else { return LiveEntries::default() };
        let at = live.tick(now);
        let mut entries = StateReader(&state[HEADER_BYTES..]);
        let _ = entries.count();
        while live.entries > 0 && between(live.oldest, at) >= self.rate.period {
            let Some(units) = entries.count() else { return LiveEntries::default() };
            live.units = live.units.saturating_sub(units);
            live.entries -= 1;
            live.place = state.len() - entries.0.len();
            if let Some(since_previous) = entries.count() {
                live.oldest = live.oldest.saturating_add_unsigned(since_previous);
            }
        }
        live
    }

    fn push(&self, state: &mut Vec<u8>, live: &mut LiveEntries, at: i64, units: u64) {
        let units = units.min(COUNT_MAX.saturating_sub(live.units));
        live.trim(state);
        if live.entries > 0 && live.newest == at {
            let last = pop_count(state).unwrap_or(0);
            put_count(state, last + units);
        } else {
            if self.is_full(live) {
                live.drop_oldest(state);
            }
            live.append(state, at, units);
            return live.write(state);
        }
        live.units += units;
        live.write(state);
    }

    /// Nanoseconds until `cost` passes; `None` for never.
    fn wait(&self, state: &[u8], live: &LiveEntries, now: Now, cost: u64) -> Option<u64> {
        let room = self.rate.count.checked_sub(cost)?;
        let mut entries = StateReader(state.get(live.place..).unwrap_or_default());
        let (mut units, mut left) = (live.units, u64::from(live.entries));
        let mut at = live.oldest;
        let _ = entries.count();
        while let Some(gone) = entries.count() {
            units = units.saturating_sub(gone);
            left = left.saturating_sub(1);
            if units <= room && (cost == 0 || left < self.entries_max()) {
                break;
            }
            at = at.saturating_add_unsigned(entries.count().unwrap_or(0));
        }
        Some(self.until_expired(at, now))
    }

    /// Nanoseconds until every entry has expired.
    fn reset(&self, live: &LiveEntries, now: Now) -> u64 {
        if live.entries == 0 { 0 } else { self.until_expired(live.newest, now) }
    }

    fn until_expired(&self, entry: i64, now: Now) -> u64 {
        between(instant(now), entry.saturating_add_unsigned(self.rate.period))
    }
}

impl LiveEntries {
    fn decode(state: &[u8]) -> Option<Self> {
        let mut header = StateReader(state);
        let (oldest, newest) = (header.instant()?, header.instant()?);
        let (units, rest) = header.0.split_first_chunk()?;
        let (entries, _) = rest.split_first_chunk()?;
        Some(Self {
            place: HEADER_BYTES,
            oldest,
            newest,
            units: u64::from_le_bytes(*units).min(COUNT_MAX),
            entries: u32::from_le_bytes(*entries),
        })
    }

    /// The instant of an attempt at `now`.
    fn tick(&self, now: Now) -> i64 {
        if self.entries == 0 { instant(now) } else { instant(now).max(self.newest) }
    }

    /// Removes the bytes of expired entries from the state.
    fn trim(&mut self, state: &mut Vec<u8>) {
        if self.entries == 0 {
            state.clear();
        }
        let end = self.place.clamp(HEADER_BYTES, state.len().max(HEADER_BYTES));
        if state.len() < HEADER_BYTES {
            state.resize(HEADER_BYTES, 0);
        } else {
            state.drain(HEADER_BYTES..end);
        }
        self.place = HEADER_BYTES;
    }

    /// Adds an entry behind the newest to a trimmed state, but not to its header.
    fn append(&mut self, state: &mut Vec<u8>, at: i64, units: u64) {
        if self.entries == 0 {
            (self.oldest, self.newest) = (at, at);
        }
        put_count(state, between(self.newest, at));
        put_count(state, units);
        self.newest = at;
        self.entries += 1;
        self.units = self.units.saturating_add(units);
    }

    /// Removes the newest entry from a trimmed state. Returns its instant and its units.
    fn pop(&mut self, state: &mut Vec<u8>) -> Option<(i64, u64)> {
        self.entries = self.entries.checked_sub(1)?;
        let units = pop_count(state)?;
        let since_previous = pop_count(state)?;
        let at = self.newest;
        self.newest = at.saturating_sub_unsigned(since_previous);
        self.units = self.units.saturating_sub(units);
        Some((at, units))
    }

    /// Removes the oldest entry from a trimmed state.
    fn drop_oldest(&mut self, state: &mut Vec<u8>) {
        let mut entries = StateReader(&state[HEADER_BYTES..]);
        let _ = entries.count();
        self.units = self.units.saturating_sub(entries.count().unwrap_or(0));
        self.entries -= 1;
        self.place = state.len() - entries.0.len();
        let since_previous = entries.count().unwrap_or(0);
        self.oldest = self.oldest.saturating_add_unsigned(since_previous);
        self.trim(state);
    }

    /// Writes the header of a trimmed state.
    fn write(&self, state: &mut Vec<u8>) {
        if self.entries == 0 || state.len() < HEADER_BYTES {
            state.clear();
            return;
        }
        state[..8].copy_from_slice(&self.oldest.to_le_bytes());
        state[8..16].copy_from_slice(&self.newest.to_le_bytes());
        state[16..24].copy_from_slice(&self.units.to_le_bytes());
        state[24..HEADER_BYTES].copy_from_slice(&self.entries.to_le_bytes());
    }
}

/// Removes the last count from a trimmed state. All bytes of a count but its last have the top bit
/// set, so its beginning can be found from the end.
fn pop_count(state: &mut Vec<u8>) -> Option<u64> {
    let last = state.len().checked_sub(1).filter(|last| *last >= HEADER_BYTES)?;
    let start = state[HEADER_BYTES..last]
        .iter()
        .rposition(|byte| *byte < 0x80)
        .map_or(HEADER_BYTES, |before| HEADER_BYTES + before + 1);
    let count = StateReader(&state[start..]).count();
    state.truncate(start);
    count
}

#[cfg(test)]
mod tests;
