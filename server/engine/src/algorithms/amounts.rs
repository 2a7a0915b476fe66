//! Usage under each policy of a limit as an amount, and giving it back: for settlements.
//!
//! Not here: which amounts a settlement gives back (`commands/take/hold_list`).

use protocol::{Algorithm, LIST_POLICIES_MAX, Policy};

use super::{Limiter, refund, tat};
use crate::time::Now;

/// `units` as an amount of usage under each policy: ticks of the rate of a bucket, of GCRA and of a
/// leaky bucket, units of all others. Ticks also tell parts of a unit, which a rate refills.
pub(crate) fn amounts_of(policy: &Policy, units: u64) -> [u128; LIST_POLICIES_MAX] {
    let mut amounts = [units.into(); LIST_POLICIES_MAX];
    for (amount, policy) in amounts.iter_mut().zip(policy.each()) {
        if let Algorithm::Bucket { rate, .. }
        | Algorithm::Gcra { rate, .. }
        | Algorithm::Leaky { rate, .. } = policy.algorithm
        {
            *amount = tat::cost(rate, units);
        }
    }
    amounts
}

/// The usage under each policy, as an amount ([`amounts_of`]). It is `u128::MAX` for unused places,
/// and for a sliding window and a log, of which the time of the take tells what may be given back
/// ([`give_back`]); 0 for holders, which do not leave with an estimate.
pub(crate) fn used_of_each(
    policy: &Policy,
    state: &[u8],
    now: Now,
    hash: u64,
) -> [u128; LIST_POLICIES_MAX] {
    let mut used = [u128::MAX; LIST_POLICIES_MAX];
    match Limiter::of(policy) {
        Some(Limiter::Several(several)) => several.used_of_each(state, now, hash, &mut used),
        Some(limiter) => used[0] = limiter.amount_used(state, now, hash),
        None => {}
    }
    used
}

/// Gives back amounts ([`amounts_of`]) that were taken at `taken`, an instant on the monotonic
/// clock: one for each policy. A sliding window and a log give back what was taken then and still
/// counts, or was taken before it; for others the caller must bound the amounts by all usage since
/// ([`used_of_each`]).
pub(crate) fn give_back(
    policy: &Policy,
    state: &mut Vec<u8>,
    now: Now,
    amounts: &[u128; LIST_POLICIES_MAX],
    taken: i64,
) {
    if let Some(Limiter::Several(several)) = Limiter::of(policy) {
        several.give_back(state, now, amounts, taken);
    } else {
        give_back_one(policy, state, now, amounts[0], taken);
    }
}

/// [`give_back`] for a policy that is no list.
pub(super) fn give_back_one(
    policy: &Policy,
    state: &mut Vec<u8>,
    now: Now,
    amount: u128,
    taken: i64,
) {
    let units = u64::try_from(amount).unwrap_or(u64::MAX);
    match Limiter::of(policy) {
        Some(Limiter::Bucket(bucket)) => bucket.give_back(state, now, amount),
        Some(Limiter::Gcra(gcra)) => gcra.give_back(state, now, amount),
        Some(Limiter::Leaky(leaky)) => leaky.give_back(state, now, amount),
        Some(Limiter::Sliding(sliding)) => {
            sliding.refund_of(state, now, units, taken);
        }
        Some(Limiter::Log(log)) => {
            log.refund_of(state, now, units, taken);
        }
        _ => {
            refund(policy, state, now, units);
        }
    }
}

impl Limiter {
    /// An element of [`used_of_each`].
    pub(super) fn amount_used(&self, state: &[u8], now: Now, hash: u64) -> u128 {
        match self {
            Self::Bucket(bucket) => bucket.amount_used(state, now),
            Self::Gcra(gcra) => gcra.amount_used(state, now),
            Self::Leaky(leaky) => leaky.amount_used(state, now),
            Self::Fixed(fixed) => fixed.used_with_hash(state, now, hash).into(),
            Self::Concurrency(_) => 0,
            Self::Sliding(_) | Self::Log(_) | Self::Several(_) => u128::MAX,
        }
    }
}
