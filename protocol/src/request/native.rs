//! What a client can ask with the native verbs.
//!
//! Here: one type per verb that has options; all numbers are within their bounds, all durations in
//! nanoseconds. Not here: how they are spelt (`native`), what a policy means (`policy`): a written
//! policy stays a token, so that whoever applies it can keep what it parsed.
//! Source: the project's protocol design, "Native verbs".

use crate::request::Exptime;

/// A native verb on one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Native<'a> {
    /// `take`: spend units, or be refused.
    Take(Take<'a>),
    /// `refund`: give so many units back, 0 to [`COUNT_MAX`](crate::COUNT_MAX).
    Refund(u64),
    /// `settle`: end a hold at its true cost.
    Settle {
        /// The hold.
        lease: u64,
        /// What it cost after all, 0 to [`COUNT_MAX`](crate::COUNT_MAX); 0 cancels it.
        actual: u64,
    },
    /// `renew`: keep a hold for longer.
    Renew {
        /// The hold.
        lease: u64,
        /// How long from now, in nanoseconds; at least 1.
        for_ns: u64,
    },
    /// `lease`: quota to spend locally.
    Lease(Lease<'a>),
    /// `incrx`: count within bounds, with a ttl.
    IncrX(IncrX<'a>),
    /// `slide`: count in a sliding window, without a limit.
    Slide(Slide),
}

/// Spend units, or be refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Take<'a> {
    /// Units, 0 to [`COUNT_MAX`](crate::COUNT_MAX).
    pub cost: u64,
    /// By which policy.
    pub policy: PolicyArg<'a>,
    /// Look, take nothing.
    pub peek: bool,
    /// Take what there is when the whole cost is not there.
    pub part: bool,
    /// The longest wait the caller accepts, in nanoseconds.
    pub wait: Option<u64>,
    /// Whether the cas unique is shown, or decides.
    pub cas: CasCondition,
    /// What marks a repeat of this request: 1 to [`ID_BYTES_MAX`](crate::ID_BYTES_MAX) bytes.
    pub id: Option<&'a [u8]>,
    /// Make it a hold for so many nanoseconds, at least 1.
    pub hold: Option<u64>,
}

/// Which policy a request means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyArg<'a> {
    /// `-`: the limit bound to the key.
    Configured,
    /// `=name`: the limit of this name, at least one byte.
    Named(&'a [u8]),
    /// A policy token, not parsed: at least one byte.
    Inline(&'a [u8]),
}

/// What a request wants of the cas unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CasCondition {
    /// Nothing.
    #[default]
    None,
    /// `cas`: tell it.
    Show,
    /// `cas=<n>`: only where it is this one, 0 only where there is no state; and tell it.
    Compare(u64),
}

/// Quota to spend locally.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease<'a> {
    /// Who asks: 1 to 250 bytes.
    pub client: &'a [u8],
    /// Units wanted, 0 to [`COUNT_MAX`](crate::COUNT_MAX).
    pub want: u64,
    /// By which policy.
    pub policy: PolicyArg<'a>,
    /// Units of the last grant that were spent; by default 0.
    pub used: u64,
    /// Units of the last grant that are given back; by default 0.
    pub unused: u64,
    /// This client's share among all of them; by default 1, at least 1.
    pub weight: u32,
    /// How long the grant shall hold, in nanoseconds, at least 1.
    pub ttl: Option<u64>,
}

/// Count within bounds, with a ttl. All counts are within ±[`COUNT_MAX`](crate::COUNT_MAX).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IncrX<'a> {
    /// By how much, up or down.
    pub delta: i64,
    /// The ttl as written.
    pub ttl: Ttl,
    /// When the ttl is set.
    pub ttl_mode: TtlMode,
    /// The value that a missing counter starts from; at least 0 unless `signed`.
    pub init: Option<i64>,
    /// The highest value allowed; at least 0 unless `signed`, never below `min`.
    pub max: Option<i64>,
    /// The lowest value allowed; at least 0 unless `signed`.
    pub min: Option<i64>,
    /// Stop at a bound instead of applying nothing.
    pub clamp: bool,
    /// Values below 0 are allowed.
    pub signed: bool,
    /// Whether the cas unique is shown, or decides.
    pub cas: CasCondition,
    /// What marks a repeat of this request: 1 to [`ID_BYTES_MAX`](crate::ID_BYTES_MAX) bytes.
    pub id: Option<&'a [u8]>,
}

/// How long a counter lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ttl {
    /// Seconds by memcached's rule.
    Exptime(Exptime),
    /// So many nanoseconds from now, at least 1.
    Nanos(u64),
}

/// When `incrx` sets the ttl.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TtlMode {
    /// Only where the counter has none.
    #[default]
    Set,
    /// Each time.
    Touch,
    /// Never, unless the counter is new.
    Keep,
}

/// Count in a sliding window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slide {
    /// Units to add, 0 to [`COUNT_MAX`](crate::COUNT_MAX); 0 reads.
    pub units: u64,
    /// The window in nanoseconds, at least 1.
    pub window: u64,
    /// Slices of the window besides the oldest, 1 to 120; by default 1.
    pub slices: u8,
}
