//! The policy token: which algorithm limits a key, at which rate, with which options.
//!
//! Here: the types, and their one spelling for the limits file, the native verbs and the flag `P`
//! (`parse` reads it, `print` writes it). Not here: the arithmetic (`engine`), which key has which
//! policy (`server`). Source: `docs/reference/policies.md`.

mod ban;
mod hints;
mod list;
mod parse;
mod period;
mod print;
#[cfg(test)]
mod tests;
mod token;
mod zone;

pub use ban::{BAN_REFUSALS_MAX, Ban, BanError};
pub use list::{LIST_BYTES_MAX, LIST_POLICIES_MAX, LISTS_MAX, PolicyList, PolicyListError};
pub use parse::{PolicyError, duration_nanos};
pub use print::duration_text;
pub use zone::{NamedZone, OffsetChange, Zone};

/// Largest count, cost, capacity or usage: 2^53 − 1, the largest integer that every client language
/// represents exactly.
pub const COUNT_MAX: u64 = (1 << 53) - 1;

/// Longest period of a rate that is not a calendar window, in nanoseconds: 366 days.
pub const PERIOD_NANOS_MAX: u64 = 366 * 24 * 3600 * 1_000_000_000;

/// Most slices of a sliding window besides the oldest.
pub const SLICES_MAX: u8 = 120;

/// Most entries of a log. A policy whose count is greater is invalid unless `entries=` bounds its
/// log.
pub const LOG_ENTRIES_MAX: u64 = 1 << 16;

/// Nanoseconds after which a hold of `concurrency:` ends, unless the policy says otherwise: a
/// minute.
const HOLD_NANOS: u64 = 60 * 1_000_000_000;

/// Default factor by which a cold bucket is slower; Guava's figure.
const WARM_FACTOR: u32 = 3;

/// A policy: an algorithm with its parameters, and the options that every algorithm has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Policy {
    /// The algorithm and its parameters.
    pub algorithm: Algorithm,
    /// Whether refused attempts count too.
    pub over: bool,
    /// Whether the policy only decides and reports, and never refuses.
    pub shadow: bool,
}

/// A number of units per period, kept as an exact pair: `1/7s` is not rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Units, 1 to [`COUNT_MAX`].
    pub count: u64,
    /// Nanoseconds, 1 to [`PERIOD_NANOS_MAX`].
    pub period: u64,
}

/// The algorithm and its parameters, all within their bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// `unlimited`: every attempt passes, no state is stored.
    Unlimited,
    /// `block`: no attempt passes, no state is stored.
    Block,
    /// `bucket:`: a token bucket.
    Bucket {
        /// The refill.
        rate: Rate,
        /// Most tokens in the bucket; by default the rate's count.
        capacity: u64,
        /// Tokens of a new key; by default the capacity. At most the capacity.
        init: u64,
        /// The debt in tokens that one take may leave, if there is no debt before it.
        debt: u64,
        /// The warm-up, if any.
        warm: Option<Warm>,
        /// Whether tokens are refilled in whole periods only.
        interval: bool,
    },
    /// `gcra:`: redis-cell's arithmetic; a bucket of capacity `burst + 1`.
    Gcra {
        /// Units per period.
        rate: Rate,
        /// redis-cell's `max_burst`; by default the rate's count less one.
        burst: u64,
    },
    /// `leaky:`: a leaky bucket; a meter, or with `wait` a queue.
    Leaky {
        /// The leak.
        rate: Rate,
        /// Most units in the bucket; by default the rate's count.
        capacity: u64,
        /// Longest wait in nanoseconds for which an attempt gets a place in the queue; `None` for a
        /// meter.
        wait: Option<u64>,
    },
    /// `fixed:`: a fixed window.
    Fixed {
        /// Units per window.
        count: u64,
        /// The window.
        window: Window,
    },
    /// `sliding:`: a weighted sliding count.
    Sliding {
        /// Units per window.
        rate: Rate,
        /// Slices of the window besides the oldest, 1 to 120; 1 is the two-window count.
        slices: u8,
        /// The weight of the oldest slice.
        oldest: Oldest,
    },
    /// `log:`: a sliding log, exact.
    Log {
        /// Units per window.
        rate: Rate,
        /// Most entries in the log; by default the rate's count. At most the rate's count of them
        /// can be in use, and that number is at most [`LOG_ENTRIES_MAX`].
        entries: u64,
    },
    /// `concurrency:`: up to `max` units held at once.
    Concurrency {
        /// Most units held at once.
        max: u64,
        /// Nanoseconds after which a hold ends by itself; by default a minute.
        hold: u64,
    },
    /// Several policies that each count every attempt, or policies with a ban. Only limits have
    /// them.
    Several(PolicyList),
}

impl Policy {
    /// Whether a caller's `wait=` above 0 has a meaning under this policy. It has one for a bucket,
    /// for GCRA and for a queue. `unlimited` and `block` may replace any policy, so they accept it
    /// too, though they need no wait.
    #[must_use]
    pub fn accepts_wait(&self) -> bool {
        match &self.algorithm {
            Algorithm::Bucket { .. }
            | Algorithm::Gcra { .. }
            | Algorithm::Leaky { wait: Some(_), .. }
            | Algorithm::Unlimited
            | Algorithm::Block => true,
            Algorithm::Several(list) => list.policies().iter().any(Self::accepts_wait),
            _ => false,
        }
    }
}

/// The warm-up of a bucket, as in Guava's `SmoothWarmingUp` and Sentinel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Warm {
    /// The duration of the warm-up in nanoseconds.
    pub duration: u64,
    /// The factor by which a cold bucket is slower; by default 3, at least 2.
    pub factor: u32,
}

/// A window of `fixed:`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Window {
    /// A window that the first admitted attempt opens; its length in nanoseconds.
    First(u64),
    /// A window aligned to the calendar.
    Calendar {
        /// The length of the window, which also determines its start.
        unit: CalendarUnit,
        /// The zone whose clock and calendar it follows.
        zone: Zone,
        /// The shift of each key's own window.
        phase: Phase,
    },
}

/// The length of a calendar window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    /// Nanoseconds of the zone's clock, counted from the Unix epoch (weeks from the Monday before
    /// it).
    Nanos(u64),
    /// Months, counted from January 1970.
    Months(u32),
    /// Years, counted from 1970.
    Years(u32),
}

/// A shift of calendar windows, so that not all keys begin a new window at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The same shift in nanoseconds for all keys; 0 by default.
    Nanos(u64),
    /// `auto`: a shift derived from the key's hash.
    Auto,
}

/// The weight of the oldest slice of a sliding window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Oldest {
    /// The fraction of it that is still inside the window.
    Weighted,
    /// The whole slice: `strict`.
    Whole,
    /// No weight: `flat`.
    Dropped,
}
