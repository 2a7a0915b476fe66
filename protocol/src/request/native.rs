//! The requests of a client with the native verbs.
//!
//! Here: one type per verb that has options; all numbers are within their bounds, all durations in
//! nanoseconds. Not here: their spelling (`native`), the meaning of a policy (`policy`): an inline
//! policy stays a token, so that the caller can cache the parsed form. Source:
//! `docs/reference/verbs-native.md`.

use crate::number::strict_u64;
use crate::policy::COUNT_MAX;
use crate::request::{Exptime, Keys};

/// A native verb on one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Native<'a> {
    /// `take`: spend units, or be refused.
    Take(Take<'a>),
    /// `refund`: give units back, 0 to [`COUNT_MAX`].
    Refund(u64),
    /// `settle`: end a hold at its true cost.
    Settle {
        /// The number of the hold.
        lease: u64,
        /// The true cost, 0 to [`COUNT_MAX`]; 0 cancels the hold.
        actual: u64,
    },
    /// `renew`: let a hold last longer.
    Renew {
        /// The number of the hold.
        lease: u64,
        /// The new duration from now on, in nanoseconds; at least 1.
        for_ns: u64,
    },
    /// `lease`: units to spend locally.
    Lease(Lease<'a>),
    /// `incrx`: count within bounds, with a ttl.
    IncrX(IncrX<'a>),
    /// `slide`: count in a sliding window, without a limit.
    Slide(Slide),
}

/// Spend units, or be refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Take<'a> {
    /// The cost in units, 0 to [`COUNT_MAX`].
    pub cost: u64,
    /// The policy to apply.
    pub policy: PolicyArg<'a>,
    /// Whether to decide without taking.
    pub peek: bool,
    /// Whether to take the available units if the whole cost is not available.
    pub part: bool,
    /// The longest wait that the caller accepts, in nanoseconds.
    pub wait: Option<u64>,
    /// Whether the reply shows the cas unique, or the take depends on it.
    pub cas: CasCondition,
    /// The token that identifies a repeat of this request: 1 to
    /// [`ID_BYTES_MAX`](crate::ID_BYTES_MAX) bytes.
    pub id: Option<&'a [u8]>,
    /// The duration in nanoseconds, at least 1, if the take is to be a hold.
    pub hold: Option<u64>,
    /// Whether the cost was spent already, so that it is charged in any case.
    pub debit: bool,
    /// Whether the reply names the limit that decided, and its period.
    pub info: bool,
}

/// Take from each of several keys, or from none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakeMany<'a> {
    /// Units from all keys alike, or from each.
    pub costs: Costs<'a>,
    /// The keys, at most [`TAKE_KEYS_MAX`](crate::TAKE_KEYS_MAX), repeated ones included.
    pub keys: Keys<'a>,
    /// Whether to decide without taking.
    pub peek: bool,
    /// The longest wait that the caller accepts, in nanoseconds.
    pub wait: Option<u64>,
    /// The token that identifies a repeat of this request: 1 to
    /// [`ID_BYTES_MAX`](crate::ID_BYTES_MAX) bytes.
    pub id: Option<&'a [u8]>,
    /// Whether the reply has the figures of each key, and keys without a limit are left out.
    pub each: bool,
    /// Whether the reply names the limit that decided, and its period.
    pub info: bool,
}

/// The costs of a `takem`: one for all keys, or one for each, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs<'a>(&'a [u8]);

impl<'a> Costs<'a> {
    /// Returns the costs in `word`, numbers from 0 to [`COUNT_MAX`] between commas; `None` if it
    /// has another part.
    pub(crate) fn new(word: &'a [u8]) -> Option<Self> {
        let is_cost = |part| strict_u64(part).is_some_and(|cost| cost <= COUNT_MAX);
        word.split(|byte| *byte == b',').all(is_cost).then_some(Self(word))
    }

    /// Returns the number of costs, at least 1.
    pub(crate) fn count(self) -> usize {
        self.0.split(|byte| *byte == b',').count()
    }

    /// Returns the cost of all keys, if it is one.
    #[must_use]
    pub fn only(self) -> Option<u64> {
        strict_u64(self.0)
    }

    /// Iterates over the costs of the first key, the second and so on, without an end.
    pub fn iter(self) -> impl Iterator<Item = u64> + 'a {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let comma = rest.iter().position(|byte| *byte == b',');
            let cost = strict_u64(&rest[..comma.unwrap_or(rest.len())]);
            if let Some(comma) = comma {
                rest = &rest[comma + 1..];
            }
            cost
        })
    }

    /// Returns the sum over `keys` keys, at most [`COUNT_MAX`].
    #[must_use]
    pub fn total(self, keys: usize) -> u64 {
        self.iter().take(keys).fold(0, u64::saturating_add).min(COUNT_MAX)
    }
}

/// The policy argument of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyArg<'a> {
    /// `-`: the limit that matches the key.
    Configured,
    /// `=name`: the limit with this name, which has at least one byte.
    Named(&'a [u8]),
    /// An unparsed policy token of at least one byte.
    Inline(&'a [u8]),
}

/// The use of the cas unique in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CasCondition {
    /// No use.
    #[default]
    None,
    /// `cas`: the reply shows it.
    Show,
    /// `cas=<n>`: apply only if it equals `n`, or for 0 only if there is no state; the reply shows
    /// it.
    Compare(u64),
}

impl CasCondition {
    /// Returns whether the request depends on the cas unique.
    #[must_use]
    pub fn compares(self) -> bool {
        matches!(self, Self::Compare(_))
    }
}

/// A request for units to spend locally.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease<'a> {
    /// The name of the client: 1 to 250 bytes.
    pub client: &'a [u8],
    /// Units wanted, 0 to [`COUNT_MAX`].
    pub want: u64,
    /// The policy to apply.
    pub policy: PolicyArg<'a>,
    /// Units of the last grant that were spent; by default 0.
    pub used: u64,
    /// Units of the last grant that are given back; by default 0.
    pub unused: u64,
    /// The weight of this client's share; by default 1, at least 1.
    pub weight: u32,
    /// The requested duration of the grant, in nanoseconds, at least 1.
    pub ttl: Option<u64>,
}

/// Count within bounds, with a ttl. All counts are within ±[`COUNT_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IncrX<'a> {
    /// The amount, positive or negative.
    pub delta: i64,
    /// The ttl as written.
    pub ttl: Ttl,
    /// The condition under which the ttl is set.
    pub ttl_mode: TtlMode,
    /// The value that a missing counter starts from; at least 0 unless `signed`.
    pub init: Option<i64>,
    /// The highest value allowed; at least 0 unless `signed`, never below `min`.
    pub max: Option<i64>,
    /// The lowest value allowed; at least 0 unless `signed`.
    pub min: Option<i64>,
    /// Whether to stop at a bound instead of applying nothing.
    pub clamp: bool,
    /// Whether values below 0 are allowed.
    pub signed: bool,
    /// Whether the reply shows the cas unique, or the count depends on it.
    pub cas: CasCondition,
    /// The token that identifies a repeat of this request: 1 to
    /// [`ID_BYTES_MAX`](crate::ID_BYTES_MAX) bytes.
    pub id: Option<&'a [u8]>,
}

/// The lifetime of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ttl {
    /// Seconds, or an absolute time, by memcached's rule.
    Exptime(Exptime),
    /// Nanoseconds from now, at least 1.
    Nanos(u64),
}

/// The condition under which `incrx` sets the ttl.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TtlMode {
    /// Only if the counter has none.
    #[default]
    Set,
    /// On every call.
    Touch,
    /// Only if the counter is new.
    Keep,
}

/// Count in a sliding window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slide {
    /// Units to add, 0 to [`COUNT_MAX`]; 0 reads.
    pub units: u64,
    /// The window in nanoseconds, at least 1.
    pub window: u64,
    /// Slices of the window besides the oldest, 1 to 120; by default 1.
    pub slices: u8,
}
