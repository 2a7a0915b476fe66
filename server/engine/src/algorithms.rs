//! The limiting algorithms: the attempt, the decision, and the one match over algorithms.
//!
//! Here: the operations that every algorithm has. Each algorithm is a file of `algorithms/`: pure
//! integer arithmetic on a short run of bytes, its state. Not here: where states are stored
//! (`store`), when they are removed, the encoding of a verdict (`protocol`).
//!
//! A new key has an empty state, and an idle state (bucket full, window empty) means the same as an
//! empty one. Idle states can therefore be removed, which bounds memory. The exception is a bucket
//! that does not begin full ([`begins_unfilled`]).

mod bucket;
mod warmup;

mod gcra;
mod leaky;
mod tat;
pub(crate) mod wide;

mod fixed;
mod sliding;

mod log;

mod concurrency;
mod count;

mod several;

mod amounts;
mod fast;

use protocol::{Algorithm, COUNT_MAX, Policy};

pub(crate) use self::amounts::{amounts_of, give_back, used_of_each};
use self::bucket::Bucket;
pub(crate) use self::bucket::PlainBucket;
pub(crate) use self::concurrency::{Concurrency, holders_of, state_of};
pub(crate) use self::count::{instant, shifted};
pub(crate) use self::fast::FastPath;
use self::fixed::Fixed;
use self::gcra::Gcra;
use self::leaky::Leaky;
use self::log::Log;
use self::several::Several;
#[cfg(test)]
pub(crate) use self::several::part_of_several;
pub(crate) use self::several::{
    SeveralDecision, SeveralScratch, counterparts, is_state_of_several, take_several,
};
use self::sliding::Sliding;
pub(crate) use self::sliding::TwoWindows;
use crate::store::state_bytes::StateBytes;
use crate::time::Now;

/// An attempt of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attempt {
    /// The cost in units, 0 to [`protocol::COUNT_MAX`].
    pub cost: u64,
    /// Whether to take the available units if the whole cost is not available.
    pub part: bool,
    /// Whether to decide without changing the state.
    pub peek: bool,
    /// Whether refused attempts count too (the policy's `over`).
    pub over: bool,
    /// The caller's own bound on a wait, in nanoseconds; the shorter of this and the policy's bound
    /// holds.
    pub wait: Option<u64>,
    /// The duration of a hold in nanoseconds, if the caller sets it. Only for `concurrency`.
    pub hold: Option<u64>,
    /// The lease number of the hold. Only for `concurrency`; `None` lets the algorithm number it.
    pub lease: Option<u64>,
    /// The hash of the key, by which `phase=auto` spreads windows over keys.
    pub hash: u64,
}

/// The verdict of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// All of the cost was taken.
    Allow,
    /// Nothing was taken.
    Deny,
    /// All of the cost was taken, and the caller must wait before it continues.
    Wait,
    /// A part of the cost was taken.
    Part,
}

/// The result of an [`Attempt`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// The verdict.
    pub verdict: Verdict,
    /// The limit: capacity, units per window, most holders.
    pub limit: u64,
    /// Units left to take at this instant, rounded down, debt excluded: `limit − used`, negative if
    /// more is used than the limit. At most 0 while a queue is longer than the wait.
    pub remaining: i64,
    /// Usage after the decision (for a peek: the current usage), rounded up: the missing tokens of
    /// a bucket, the weighted count of a window, the level, the holders. Above `limit` only if
    /// there is a debt or `over` counted refused attempts.
    pub used: u64,
    /// Units taken; for a peek, the units that a take would be granted.
    pub granted: u64,
    /// Deny: nanoseconds until the same cost passes if there is no other attempt, `None` for never.
    /// Part: the same for the rest of the cost. Wait: nanoseconds to wait before continuing. Allow:
    /// 0.
    pub retry: Option<u64>,
    /// Nanoseconds until the state is idle if there is no other attempt.
    pub reset: u64,
    /// Whether the state was changed.
    pub changed: bool,
    /// Whether the attempt was refused but counted (`over`): the cost is part of `used`.
    pub counted: bool,
    /// The lease number of a hold (`concurrency`).
    pub lease: Option<u64>,
}

/// Units left of a limit; negative by the units used beyond it.
#[inline]
fn left(limit: u64, used: u64) -> i64 {
    limit.cast_signed().saturating_sub_unsigned(used)
}

impl Decision {
    /// Units left to take; 0 if more is used than the limit.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.remaining.max(0).unsigned_abs()
    }

    /// The decision of a policy without state.
    fn without_state(limit: u64, attempt: &Attempt) -> Self {
        let passes = limit > 0;
        Self {
            verdict: if passes { Verdict::Allow } else { Verdict::Deny },
            limit,
            remaining: limit.cast_signed(),
            used: 0,
            granted: if passes { attempt.cost } else { 0 },
            retry: passes.then_some(0),
            reset: 0,
            changed: false,
            counted: false,
            lease: None,
        }
    }
}

/// The limiter of a policy.
enum Limiter {
    Bucket(Bucket),
    Gcra(Gcra),
    Leaky(Leaky),
    Fixed(Fixed),
    Sliding(Sliding),
    Log(Log),
    Concurrency(Concurrency),
    Several(Several),
}

/// Evaluates the same expression for any limiter.
macro_rules! with {
    ($limiter:expr, $each:ident => $do:expr) => {
        match $limiter {
            Limiter::Bucket($each) => $do,
            Limiter::Gcra($each) => $do,
            Limiter::Leaky($each) => $do,
            Limiter::Fixed($each) => $do,
            Limiter::Sliding($each) => $do,
            Limiter::Log($each) => $do,
            Limiter::Concurrency($each) => $do,
            Limiter::Several($each) => $do,
        }
    };
}

impl Limiter {
    /// The one match over algorithms; `None` if the policy has no state.
    #[inline]
    fn of(policy: &Policy) -> Option<Self> {
        Some(match policy.algorithm {
            Algorithm::Unlimited | Algorithm::Block => return None,
            Algorithm::Bucket { rate, capacity, init, debt, warm, interval } => {
                Self::Bucket(Bucket { rate, capacity, init, debt, warm, interval })
            }
            Algorithm::Gcra { rate, burst } => Self::Gcra(Gcra { rate, burst }),
            Algorithm::Leaky { rate, capacity, wait } => {
                Self::Leaky(Leaky { rate, capacity, wait })
            }
            Algorithm::Fixed { count, window } => Self::Fixed(Fixed { count, window }),
            Algorithm::Sliding { rate, slices, oldest } => {
                Self::Sliding(Sliding { rate, slices, oldest })
            }
            Algorithm::Log { rate, entries } => Self::Log(Log { rate, entries }),
            Algorithm::Concurrency { max, hold } => Self::Concurrency(Concurrency { max, hold }),
            Algorithm::Several(list) => Self::Several(Several::of(list)),
        })
    }

    /// The usage of a window; `None` for other algorithms.
    fn window_used(&self, state: &[u8], now: Now) -> Option<u64> {
        match self {
            Self::Fixed(fixed) => Some(fixed.used(state, now)),
            Self::Sliding(sliding) => Some(sliding.used(state, now)),
            Self::Log(log) => Some(log.used(state, now)),
            Self::Bucket(_)
            | Self::Gcra(_)
            | Self::Leaky(_)
            | Self::Concurrency(_)
            | Self::Several(_) => None,
        }
    }
}

/// The limiter of a `concurrency` policy; `None` for other policies.
pub(crate) fn concurrency(policy: &Policy) -> Option<Concurrency> {
    match Limiter::of(policy)? {
        Limiter::Concurrency(concurrency) => Some(concurrency),
        _ => None,
    }
}

/// Whether the policy, or one of several, is a bucket that does not begin full: once full, its
/// state differs from that of a new key, and must be kept.
#[must_use]
#[inline]
pub fn begins_unfilled(policy: &Policy) -> bool {
    let is_unfilled = |algorithm: &Algorithm| matches!(algorithm, Algorithm::Bucket { capacity, init, .. } if init < capacity);
    match &policy.algorithm {
        Algorithm::Several(list) => list.policies().iter().any(|one| is_unfilled(&one.algorithm)),
        one => is_unfilled(one),
    }
}

/// Decides, and stores the new state unless the attempt is a peek.
pub fn take(policy: &Policy, state: &mut Vec<u8>, now: Now, attempt: &Attempt) -> Decision {
    if let Some(decision) = take_fast::<PlainBucket>(policy, state, now, attempt) {
        return decision;
    }
    if let Some(decision) = take_fast::<TwoWindows>(policy, state, now, attempt) {
        return decision;
    }
    take_general(policy, state, now, attempt)
}

#[inline]
fn take_fast<W: FastPath>(
    policy: &Policy,
    state: &mut Vec<u8>,
    now: Now,
    attempt: &Attempt,
) -> Option<Decision> {
    let (decision, after) = W::of(policy)?.take(state, now, attempt)?;
    if decision.changed {
        state.resize(after.len(), 0);
        after.write_at_end(state);
    }
    Some(decision)
}

/// Like [`take`], but always on the general path.
#[inline(never)]
pub(crate) fn take_general(
    policy: &Policy,
    state: &mut Vec<u8>,
    now: Now,
    attempt: &Attempt,
) -> Decision {
    match Limiter::of(policy) {
        Some(limiter) => with!(limiter, limiter => limiter.take(state, now, attempt)),
        None if policy.algorithm == Algorithm::Block => Decision::without_state(0, attempt),
        None => Decision::without_state(COUNT_MAX, attempt),
    }
}

/// Gives units back, at most those that count. Returns by how many units the count has fallen, at
/// most `units`.
pub fn refund(policy: &Policy, state: &mut Vec<u8>, now: Now, units: u64) -> u64 {
    Limiter::of(policy)
        .map_or(0, |limiter| with!(limiter, limiter => limiter.refund(state, now, units)))
}

/// Sets the usage, at most to the limit.
pub fn set_used(policy: &Policy, state: &mut Vec<u8>, now: Now, used: u64) {
    if let Some(limiter) = Limiter::of(policy) {
        with!(limiter, limiter => limiter.set_used(state, now, used));
    }
}

/// Raises the usage to at least `units`, or to the whole limit if that is less. For a rate the
/// result is exact to the tick, as if none of these units had been refilled.
pub(crate) fn cover(policy: &Policy, state: &mut Vec<u8>, now: Now, hash: u64, units: u64) {
    match Limiter::of(policy) {
        Some(Limiter::Bucket(bucket)) => bucket.cover(state, now, units),
        Some(Limiter::Gcra(gcra)) => gcra.cover(state, now, units),
        Some(Limiter::Leaky(leaky)) => leaky.cover(state, now, units),
        Some(Limiter::Concurrency(_) | Limiter::Several(_)) | None => {}
        Some(window) => with!(window, window => {
            let attempt = Attempt { peek: true, hash, ..Attempt::default() };
            let lacks = |state: &mut Vec<u8>| {
                let seen = window.take(state, now, &attempt);
                seen.used < units.min(seen.limit)
            };
            if !lacks(state) {
                return;
            }
            window.set_used(state, now, units);
            if lacks(state) {
                // The window of this key's hash is over, but `set_used`, which has no hash, kept it
                // open.
                state.clear();
                window.set_used(state, now, units);
            }
        }),
    }
}

/// In a sliding window, counts `units`, the oldest first, as taken now: they were taken before they
/// are spent.
pub(crate) fn recount(policy: &Policy, state: &mut Vec<u8>, now: Now, units: u64) {
    match Limiter::of(policy) {
        Some(Limiter::Sliding(sliding)) => sliding.recount(state, now, units),
        Some(Limiter::Log(log)) => log.recount(state, now, units),
        _ => {}
    }
}

/// Converts a state written under `old` for use under `new`.
///
/// If the algorithm is the same, the new parameters hold at once, as each algorithm defines. Among
/// windows (fixed, sliding, log) the usage stays. Otherwise the key starts with an empty state. Of
/// several policies each takes over the state of the same one before, else of the one at its place.
pub fn adopt(old: &Policy, new: &Policy, state: &mut Vec<u8>, now: Now) {
    if old.algorithm == new.algorithm {
        return;
    }
    if old.is_list() || new.is_list() {
        return several::adopt(old, new, state, now);
    }
    let (Some(old), Some(new)) = (Limiter::of(old), Limiter::of(new)) else {
        return state.clear();
    };
    match (&old, &new) {
        (Limiter::Bucket(old), Limiter::Bucket(new)) => new.adopt(old, state, now),
        (Limiter::Gcra(old), Limiter::Gcra(new)) => new.adopt(old, state, now),
        (Limiter::Leaky(old), Limiter::Leaky(new)) => new.adopt(old, state, now),
        (Limiter::Fixed(old), Limiter::Fixed(new)) => new.adopt(old, state, now),
        (Limiter::Sliding(old), Limiter::Sliding(new)) => new.adopt(old, state, now),
        (Limiter::Log(old), Limiter::Log(new)) => new.adopt(old, state, now),
        (Limiter::Concurrency(old), Limiter::Concurrency(new)) => new.adopt(old, state, now),
        (old, new) => {
            let used = old.window_used(state, now);
            state.clear();
            if let (Some(used @ 1..), Some(_)) = (used, new.window_used(state, now)) {
                with!(new, new => new.set_used(state, now, used));
            }
        }
    }
}

/// Nanoseconds for which a unit taken now counts in full in its window, or in the window that it
/// would open; `None` for algorithms without a window.
pub(crate) fn counted_for(policy: &Policy, state: &[u8], now: Now, hash: u64) -> Option<u64> {
    match Limiter::of(policy)? {
        Limiter::Fixed(fixed) => Some(fixed.counted_for(state, now, hash)),
        Limiter::Sliding(sliding) => Some(sliding.counted_for(state, now)),
        Limiter::Log(log) => Some(log.rate.period),
        Limiter::Bucket(_)
        | Limiter::Gcra(_)
        | Limiter::Leaky(_)
        | Limiter::Concurrency(_)
        | Limiter::Several(_) => None,
    }
}

/// Moves every instant in a state by `by` nanoseconds, saturating: for a state that was written
/// with another origin of the monotonic clock.
pub fn shift(policy: &Policy, state: &mut Vec<u8>, by: i128) {
    match Limiter::of(policy) {
        None => state.clear(),
        Some(Limiter::Bucket(bucket)) => bucket.shift(state, by),
        Some(Limiter::Gcra(gcra)) => gcra.shift(state, by),
        Some(Limiter::Leaky(leaky)) => leaky.shift(state, by),
        Some(Limiter::Fixed(_)) => Fixed::shift(state, by),
        Some(Limiter::Sliding(_)) => Sliding::shift(state, by),
        Some(Limiter::Log(_)) => Log::shift(state, by),
        Some(Limiter::Concurrency(_)) => Concurrency::shift(state, by),
        Some(Limiter::Several(several)) => several.shift(state, by),
    }
}

/// Ends a hold; false if the policy has no hold with this lease.
pub fn settle(policy: &Policy, state: &mut Vec<u8>, now: Now, lease: u64) -> bool {
    match Limiter::of(policy) {
        Some(Limiter::Concurrency(concurrency)) => concurrency.settle(state, now, lease),
        _ => false,
    }
}

/// Begins a hold that was granted elsewhere, even if it would not pass here; false if the policy
/// does not keep holds in its state.
pub(crate) fn give(
    policy: &Policy,
    state: &mut Vec<u8>,
    now: Now,
    (lease, units, for_ns): (u64, u64, u64),
) -> bool {
    match Limiter::of(policy) {
        Some(Limiter::Concurrency(concurrency)) => {
            concurrency.give(state, now, lease, units, for_ns);
            true
        }
        _ => false,
    }
}

/// Lets a hold end `until_after` nanoseconds from now; false if the policy has no hold with this
/// lease.
pub fn renew(policy: &Policy, state: &mut Vec<u8>, now: Now, lease: u64, until_after: u64) -> bool {
    match Limiter::of(policy) {
        Some(Limiter::Concurrency(concurrency)) => {
            concurrency.renew(state, now, lease, until_after)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
