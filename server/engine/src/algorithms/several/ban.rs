//! The ban of a key: refusals are counted, and enough of them refuse every attempt for a while.
//!
//! Here: the state of a ban. Not here: its parameters (`protocol`), the decision (`several`).
//!
//! ```text
//! empty, or: bans u8 | end u64 | remembered from u64 | a log of refusals (`log`)
//! ```
//!
//! Refusals are counted in a log whose window is the ban's. `bans` is the number of bans that are
//! remembered. They are forgotten when the longest ban has passed since the later of the end of the
//! last ban and the last counted refusal. Attempts during a ban change nothing.

use protocol::{Algorithm, Ban, Policy, Rate};

use crate::algorithms::{self, Attempt};
use crate::time::Now;

/// Bytes before the log.
const HEAD_BYTES: usize = 17;

/// A decoded state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct BanHead {
    /// Bans that are remembered.
    bans: u8,
    /// The instant at which the last ban ends.
    end: u64,
    /// The instant from which the time counts after which bans are forgotten.
    from: u64,
}

/// The log that counts the refusals.
fn log(ban: &Ban) -> Policy {
    let rate = Rate { count: ban.refusals, period: ban.within };
    let algorithm = Algorithm::Log { rate, entries: ban.refusals };
    Policy { algorithm, over: false, shadow: false }
}

impl BanHead {
    /// Reads a state as it is at `now`: bans that are forgotten are left out.
    fn read(ban: &Ban, state: &[u8], now: Now) -> Self {
        let Some([bans, rest @ ..]) = state.first_chunk::<HEAD_BYTES>() else {
            return Self::default();
        };
        let number = |at: usize| rest.get(at..).and_then(|run| run.first_chunk());
        let number = |at| number(at).map_or(0, |run| u64::from_le_bytes(*run));
        let head = Self { bans: *bans, end: number(0), from: number(8) };
        if head.bans == 0 || head.forgotten_at(ban) <= now.mono.0 { Self::default() } else { head }
    }

    fn forgotten_at(&self, ban: &Ban) -> u64 {
        self.from.saturating_add(ban.longest)
    }

    /// Writes the state with this log; an idle one is empty.
    fn write(self, log: &[u8], state: &mut Vec<u8>) {
        state.clear();
        if self.bans == 0 && log.is_empty() {
            return;
        }
        state.push(self.bans);
        state.extend_from_slice(&self.end.to_le_bytes());
        state.extend_from_slice(&self.from.to_le_bytes());
        state.extend_from_slice(log);
    }
}

/// Whether these bytes are the state of a ban.
pub(super) fn is_state(state: &[u8]) -> bool {
    state.is_empty() || state.len() >= HEAD_BYTES
}

fn log_of(state: &[u8]) -> &[u8] {
    state.get(HEAD_BYTES..).unwrap_or_default()
}

/// Nanoseconds until the ban of a key ends; 0 if it has none.
pub(super) fn left(ban: &Ban, state: &[u8], now: Now) -> u64 {
    BanHead::read(ban, state, now).end.saturating_sub(now.mono.0)
}

/// Counts a refusal of a key without a ban. Enough of them begin one.
pub(super) fn refuse(ban: &Ban, state: &mut Vec<u8>, now: Now) {
    let mut head = BanHead::read(ban, state, now);
    let mut log_state = log_of(state).to_vec();
    let one = Attempt { cost: 1, ..Attempt::default() };
    let counted = algorithms::take(&log(ban), &mut log_state, now, &one);
    if counted.used >= ban.refusals {
        head.end = now.mono.0.saturating_add(ban.length(head.bans));
        head.bans = head.bans.saturating_add(1);
        head.from = head.end;
        log_state.clear();
    } else if head.bans > 0 {
        head.from = head.from.max(now.mono.0);
    }
    head.write(&log_state, state);
}

/// Nanoseconds until the state is idle.
pub(super) fn reset(ban: &Ban, state: &[u8], now: Now) -> u64 {
    let head = BanHead::read(ban, state, now);
    let remembered = match head.bans {
        0 => 0,
        _ => head.forgotten_at(ban).saturating_sub(now.mono.0),
    };
    let mut log_state = log_of(state).to_vec();
    if log_state.is_empty() {
        return remembered;
    }
    let peek = Attempt { peek: true, ..Attempt::default() };
    remembered.max(algorithms::take(&log(ban), &mut log_state, now, &peek).reset)
}

/// Removes an idle state.
pub(super) fn tidy(ban: &Ban, state: &mut Vec<u8>, now: Now) {
    if !state.is_empty() && reset(ban, state, now) == 0 {
        state.clear();
    }
}

/// Converts a state for other parameters: a ban lasts as long as it was to.
pub(super) fn adopt(old: &Ban, new: &Ban, state: &mut Vec<u8>, now: Now) {
    let head = BanHead::read(old, state, now);
    let mut log_state = log_of(state).to_vec();
    algorithms::adopt(&log(old), &log(new), &mut log_state, now);
    head.write(&log_state, state);
}

/// Moves every instant by `by` nanoseconds, saturating.
pub(super) fn shift(ban: &Ban, state: &mut Vec<u8>, by: i128) {
    let at_once = Now::at_ms(0);
    let mut head = BanHead::read(ban, state, at_once);
    let moved =
        |at: u64| u64::try_from(i128::from(at).saturating_add(by).max(0)).unwrap_or(u64::MAX);
    (head.end, head.from) = (moved(head.end), moved(head.from));
    let mut log_state = log_of(state).to_vec();
    algorithms::shift(&log(ban), &mut log_state, by);
    head.write(&log_state, state);
}
