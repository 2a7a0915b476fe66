//! Fixed window: a count that restarts at 0 when its window is over.
//!
//! Here: windows and their counts. Not here: the ends of calendar windows (`calendar`).
//!
//! The first attempt that counts opens a window (`align=first`), or the window is the piece of the
//! calendar that contains that attempt. Up to twice the limit can pass around the end of a window,
//! which is inherent to fixed windows.
//!
//! A calendar window lasts until its end on the wall clock. If the clock leaps ahead, the window is
//! over. If the clock goes back to an earlier window, the used units count for that window from
//! then on: a limit used while the clock was ahead must not stay exhausted until that time comes. A
//! window that begins within a second stays open: a small correction of the clock must not grant
//! its units twice.
//!
//! The state has at most 17 bytes: its kind, an instant, the count.

mod calendar;

use protocol::{COUNT_MAX, Window};

use super::count::{CountDecision, StateReader, between, instant, put_count, put_instant, shifted};
use super::{Attempt, Decision};
use crate::time::Now;

const NANOS_PER_MS: u64 = 1_000_000;
/// A clock that goes back by at most this does not leave its window.
const CORRECTION_MS: u64 = 1000;

/// The parameters of `fixed:`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fixed {
    pub(crate) count: u64,
    pub(crate) window: Window,
}

/// The extent of a window, and thus the content of its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WindowSpan {
    /// From this monotonic instant, for the length of the window.
    From(i64),
    /// Until this Unix time in milliseconds.
    To(u64),
    /// The calendar's window around this Unix time in milliseconds. Its end depends on the key's
    /// hash, which the operation that opened it did not have.
    Around(u64),
}

/// A window that is not over.
#[derive(Debug, Clone, Copy)]
struct OpenWindow {
    span: WindowSpan,
    used: u64,
    /// Nanoseconds to the end of the window.
    left: u64,
    /// Whether the state names a window that begins later than now.
    is_moved: bool,
}

impl Fixed {
    /// Decides an attempt, and counts it unless it is a peek.
    pub(crate) fn take(&self, state: &mut Vec<u8>, now: Now, attempt: &Attempt) -> Decision {
        let open = self.open(state, now, Some(attempt.hash));
        let before = open.map_or(0, |open| open.used);
        let judged = CountDecision::new(self.count, before, attempt);
        let used = before.saturating_add(judged.charge).min(COUNT_MAX);
        // If no window is open, use the one that this attempt would open.
        let (span, left) = open.map_or_else(
            || {
                let span = self.span_at(now, Some(attempt.hash));
                (span, self.left(span, now, Some(attempt.hash)).unwrap_or(0))
            },
            |open| (open.span, open.left),
        );
        // Also if nothing is charged: the next window must not mistake the state for a future
        // window.
        let is_moved = open.is_some_and(|open| open.is_moved) && !attempt.peek;
        if is_moved || (judged.charge > 0 && !attempt.peek) {
            write(state, span, used);
        }
        let retry = judged.retry(attempt, |cost| (cost <= self.count).then(|| left_of(used, left)));
        let shown = if attempt.peek { before } else { used };
        let decision = judged.decision(self.count, shown, retry, left_of(shown, left), attempt);
        Decision { changed: decision.changed || is_moved, ..decision }
    }

    /// Gives units back.
    pub(crate) fn refund(&self, state: &mut Vec<u8>, now: Now, units: u64) -> u64 {
        let Some(open) = self.open(state, now, None) else {
            state.clear();
            return 0;
        };
        let given = units.min(open.used);
        write(state, open.span, open.used - given);
        given
    }

    /// Sets the usage to `used`, at most the limit; if no window is open, that of a window opened
    /// now.
    pub(crate) fn set_used(&self, state: &mut Vec<u8>, now: Now, used: u64) {
        let span = match self.open(state, now, None) {
            Some(open) => open.span,
            None => self.span_at(now, None),
        };
        write(state, span, used.min(self.count));
    }

    /// The count of the window.
    pub(crate) fn used(&self, state: &[u8], now: Now) -> u64 {
        self.open(state, now, None).map_or(0, |open| open.used)
    }

    /// The count of the window of a key with this hash.
    pub(crate) fn used_with_hash(&self, state: &[u8], now: Now, hash: u64) -> u64 {
        self.open(state, now, Some(hash)).map_or(0, |open| open.used)
    }

    /// Nanoseconds to the end of the window, or of the window that an attempt would open.
    pub(crate) fn counted_for(&self, state: &[u8], now: Now, hash: u64) -> u64 {
        let span = || self.left(self.span_at(now, Some(hash)), now, Some(hash)).unwrap_or(0);
        self.open(state, now, Some(hash)).map_or_else(span, |open| open.left)
    }

    /// Converts a state written under `old`.
    ///
    /// A window that its first attempt opened keeps its opening, whatever its new length. If one of
    /// the two windows is of the calendar and they differ, the count moves to a window opened now,
    /// since the last attempt may have been just now.
    pub(crate) fn adopt(&self, old: &Self, state: &mut Vec<u8>, now: Now) {
        let Some(open) = old.open(state, now, None) else {
            state.clear();
            return;
        };
        let keeps = matches!((old.window, self.window), (Window::First(_), Window::First(_)));
        if old.window != self.window && !keeps {
            write(state, self.span_at(now, None), open.used);
        }
    }

    /// Moves the stored instant by `by` nanoseconds, if it is a monotonic one.
    pub(crate) fn shift(state: &mut Vec<u8>, by: i128) {
        if let Some((WindowSpan::From(opened), used)) = read(state) {
            write(state, WindowSpan::From(shifted(opened, by)), used);
        }
    }

    /// The window of the state, if it is not over.
    fn open(&self, state: &[u8], now: Now, hash: Option<u64>) -> Option<OpenWindow> {
        let (span, used) = read(state)?;
        let span = match span {
            WindowSpan::Around(unix_ms) => self.calendar_span(unix_ms, hash),
            span => span,
        };
        let present = self.present(span, now, hash);
        let left = self.left(present, now, hash)?;
        Some(OpenWindow { span: present, used, left, is_moved: present != span })
    }

    /// Returns `span`, or the window around `now` if `span` begins later by more than a correction
    /// of the clock.
    fn present(&self, span: WindowSpan, now: Now, hash: Option<u64>) -> WindowSpan {
        match span {
            WindowSpan::To(end_ms) => {
                let left_ms = end_ms.saturating_sub(now.unix_ms);
                let shortest_ms = calendar::shortest_ms(&self.window);
                if left_ms <= shortest_ms {
                    return span;
                }
                let soon_ms = now.unix_ms.saturating_add(CORRECTION_MS.min(shortest_ms));
                let end_of = |unix_ms| calendar::end_ms(&self.window, unix_ms, hash);
                match (end_of(soon_ms), end_of(now.unix_ms)) {
                    (Some(soon_end_ms), Some(present_ms)) if soon_end_ms < end_ms => {
                        WindowSpan::To(present_ms)
                    }
                    (None, _) if calendar::latest_end_ms(&self.window, soon_ms) < end_ms => {
                        WindowSpan::Around(now.unix_ms)
                    }
                    _ => span,
                }
            }
            WindowSpan::Around(unix_ms) => WindowSpan::Around(unix_ms.min(now.unix_ms)),
            WindowSpan::From(_) => span,
        }
    }

    /// The window that an attempt opens now.
    fn span_at(&self, now: Now, hash: Option<u64>) -> WindowSpan {
        match self.window {
            Window::First(_) => WindowSpan::From(instant(now)),
            Window::Calendar { .. } => self.calendar_span(now.unix_ms, hash),
        }
    }

    fn calendar_span(&self, unix_ms: u64, hash: Option<u64>) -> WindowSpan {
        match calendar::end_ms(&self.window, unix_ms, hash) {
            Some(end_ms) => WindowSpan::To(end_ms),
            None => WindowSpan::Around(unix_ms),
        }
    }

    /// Nanoseconds to the end of a window; `None` if it is over.
    fn left(&self, span: WindowSpan, now: Now, hash: Option<u64>) -> Option<u64> {
        match (span, self.window) {
            (WindowSpan::From(opened), Window::First(nanos)) => {
                let now = instant(now);
                // A clock behind the opening must reach the opening first.
                let left = nanos.checked_sub(between(opened, now)).filter(|left| *left > 0)?;
                Some(left.saturating_add(between(now, opened)))
            }
            (WindowSpan::To(end_ms), Window::Calendar { .. }) => {
                let left = end_ms.checked_sub(now.unix_ms).filter(|left| *left > 0)?;
                Some(left.saturating_mul(NANOS_PER_MS))
            }
            (WindowSpan::Around(unix_ms), Window::Calendar { .. }) => {
                debug_assert!(hash.is_none(), "a hash tells the end of any window");
                let latest = calendar::latest_end_ms(&self.window, unix_ms);
                self.left(WindowSpan::To(latest), now, hash)
            }
            // A state of the other kind, which was not converted.
            _ => None,
        }
    }
}

/// Nanoseconds to wait for the end of a window; 0 for an empty one.
fn left_of(used: u64, left: u64) -> u64 {
    if used == 0 { 0 } else { left }
}

fn read(state: &[u8]) -> Option<(WindowSpan, u64)> {
    let mut reader = StateReader(state);
    let kind = reader.byte()?;
    let instant = reader.instant()?;
    let span = match kind {
        0 => WindowSpan::From(instant),
        1 => WindowSpan::To(instant.cast_unsigned()),
        _ => WindowSpan::Around(instant.cast_unsigned()),
    };
    Some((span, reader.count()?.min(COUNT_MAX)))
}

fn write(state: &mut Vec<u8>, span: WindowSpan, used: u64) {
    state.clear();
    if used == 0 {
        return;
    }
    let (kind, instant) = match span {
        WindowSpan::From(opened) => (0, opened),
        WindowSpan::To(end_ms) => (1, end_ms.cast_signed()),
        WindowSpan::Around(unix_ms) => (2, unix_ms.cast_signed()),
    };
    state.push(kind);
    put_instant(state, instant);
    put_count(state, used);
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod zone_tests;
