//! The policy token: which algorithm limits a key, at which rate, with which options.
//!
//! Here: the types, and their one spelling for the limits file, the native verbs and the flag `P`
//! (`parse` reads it, `print` writes it).
//! Not here: the arithmetic (`engine`), which key has which policy (`server`).
//! Source: the project's protocol design, "The policy token".

mod parse;
mod print;
#[cfg(test)]
mod tests;
mod token;

pub use parse::PolicyError;
pub(crate) use parse::duration_nanos;

/// Largest count, cost, capacity or usage: 2^53 − 1, so that every client language reads it right.
pub const COUNT_MAX: u64 = (1 << 53) - 1;

/// Longest period of a rate that is not a calendar window, in nanoseconds: 366 days.
pub const PERIOD_NANOS_MAX: u64 = 366 * 24 * 3600 * 1_000_000_000;

/// Most slices of a sliding window besides the oldest.
pub const SLICES_MAX: u8 = 120;

/// Most entries of a log. A policy whose log could be full below its count without saying so with
/// `entries=` is none.
pub const LOG_ENTRIES_MAX: u64 = 1 << 16;

/// How long a hold of `concurrency:` lasts in nanoseconds where nothing else is said: a minute.
const HOLD_NANOS: u64 = 60 * 1_000_000_000;

/// How much slower a cold bucket is where nothing else is said; Guava's figure.
const WARM_FACTOR: u32 = 3;

/// How a key is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Policy {
    /// What decides.
    pub algorithm: Algorithm,
    /// Refused attempts count too.
    pub over: bool,
    /// Decide and report, never refuse.
    pub shadow: bool,
}

/// So many units in so long: an exact pair, `1/7s` is not rounded.
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
    /// `unlimited`: everything passes, nothing is kept.
    Unlimited,
    /// `block`: nothing passes, nothing is kept.
    Block,
    /// `bucket:`: a token bucket.
    Bucket {
        /// Refill.
        rate: Rate,
        /// Most tokens held; by default the rate's count.
        capacity: u64,
        /// Tokens of a key never seen; by default the capacity. At most the capacity.
        init: u64,
        /// How far below zero one take may go while nothing is owed.
        debt: u64,
        /// Warm-up, if any.
        warm: Option<Warm>,
        /// Refill in whole periods only.
        interval: bool,
    },
    /// `gcra:`: redis-cell's arithmetic; a bucket of capacity `burst + 1`.
    Gcra {
        /// Count per period.
        rate: Rate,
        /// redis-cell's `max_burst`; by default the rate's count less one.
        burst: u64,
    },
    /// `leaky:`: a leaky bucket; a meter, or with `wait` a queue.
    Leaky {
        /// The leak.
        rate: Rate,
        /// How much it holds; by default the rate's count.
        capacity: u64,
        /// Longest wait in nanoseconds that is answered with a place in the queue.
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
        /// What the oldest slice counts for.
        oldest: Oldest,
    },
    /// `log:`: a sliding log, exact.
    Log {
        /// Units per window.
        rate: Rate,
        /// Most entries kept; by default the rate's count. Those that can be used up, the rate's count at
        /// most, are no more than [`LOG_ENTRIES_MAX`].
        entries: u64,
    },
    /// `concurrency:`: so many holders at once.
    Concurrency {
        /// Most units held at once.
        max: u64,
        /// Nanoseconds after which a hold ends by itself; by default a minute.
        hold: u64,
    },
}

impl Policy {
    /// Whether a caller's `wait=` above 0 means something under this policy: a queue waits, and of
    /// `unlimited` and `block`, which stand in for any policy, none is needed.
    #[must_use]
    pub fn accepts_wait(&self) -> bool {
        matches!(
            self.algorithm,
            Algorithm::Leaky { wait: Some(_), .. } | Algorithm::Unlimited | Algorithm::Block
        )
    }
}

/// Warm-up of a bucket, as Guava's `SmoothWarmingUp` and Sentinel have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Warm {
    /// Nanoseconds to warm up in.
    pub duration: u64,
    /// How much slower a cold bucket is; by default 3. At least 2.
    pub factor: u32,
}

/// A window of `fixed:`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Window {
    /// Opened by the first admitted call; nanoseconds long.
    First(u64),
    /// Aligned to the calendar.
    Calendar {
        /// How long, and so where it begins.
        unit: CalendarUnit,
        /// Seconds east of Greenwich.
        offset: i32,
        /// Where in the window each key's own begins.
        phase: Phase,
    },
}

/// The length of a calendar window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    /// So many nanoseconds, counted from the Unix epoch (weeks from the Monday before it).
    Nanos(u64),
    /// So many months, counted from January 1970.
    Months(u32),
    /// So many years, counted from 1970.
    Years(u32),
}

/// A shift of calendar windows, so that not all keys begin anew at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// So many nanoseconds for all keys; 0 by default.
    Nanos(u64),
    /// `auto`: by the key's hash.
    Auto,
}

/// What the oldest slice of a sliding window counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Oldest {
    /// The part of it still inside the window.
    Weighted,
    /// All of it: `strict`.
    Whole,
    /// Nothing: `flat`.
    Dropped,
}
