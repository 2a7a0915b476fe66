//! The pairs that `info` and `each` add to the verdict line of a degraded decision.
//!
//! Not here: the decision (`degraded`).

use engine::{Engine, KeyHasher, Now, PolicyRef, TakeInfo, TakeParams, TakeResult};
use protocol::{
    Command, DecidingLimit, Native, Operation, Policy, Request, Take, name_decider, name_refusal,
};

use super::DegradedCharge;
use crate::commands::decider::{AskedPairs, Decided, verdicts_of, write_verdicts};
use crate::commands::multi_key::{ChargeResult, deny_beyond};
use crate::commands::take_many::pairs_of;

/// Returns the pairs that a request asks for.
pub(super) fn asked_of(request: &Request<'_>) -> AskedPairs {
    match request {
        Request::TakeMany { many, .. } => pairs_of(many),
        Request::Command {
            command:
                Command { operation: Operation::Native(Native::Take(Take { info: true, .. })), .. },
            ..
        } => AskedPairs { info: true, keys: 0 },
        _ => AskedPairs::default(),
    }
}

/// Peeks at the node's own count of each charge. `share_of` returns the node's share of a policy.
pub(super) fn look_at_all(
    engine: &mut Engine,
    hasher: &KeyHasher,
    now: Now,
    (charges, attempt): (&[DegradedCharge], &TakeParams),
    share_of: impl Fn(&Policy) -> Policy,
) -> Vec<TakeInfo> {
    let look = |charge: &DegradedCharge| {
        let policy = share_of(&charge.policy);
        let units = TakeParams {
            cost: charge.cost.capped(attempt.cost),
            peek: true,
            hold: charge.hold_of(attempt),
            compare_cas: None,
            ..*attempt
        };
        let (hash, policy_ref) = (hasher.hash(&charge.key), Some(PolicyRef::from(&policy)));
        let TakeResult::Decided(mut facts) =
            engine.take(now, hash, &charge.key, policy_ref, &units)
        else {
            return None;
        };
        if charge.cost.of(attempt.cost).is_none() {
            deny_beyond(&mut facts, policy.shadow);
        }
        Some(facts)
    };
    charges.iter().map_while(look).collect()
}

/// Adds what decided, and the decision on each key, to the only line of `out`. `facts` are those of
/// `charges`.
pub(super) fn add_pairs(
    asked: AskedPairs,
    result: ChargeResult,
    (charges, facts): (&[DegradedCharge], &[TakeInfo]),
    out: &mut Vec<u8>,
) {
    if !matches!(result.all, TakeResult::Decided(_) | TakeResult::Exists(_)) {
        return;
    }
    let decider_of = |decided: Decided| {
        let charge = charges.get(decided.row)?;
        let period_ms = decided.period_ms(&charge.policy);
        Some(DecidingLimit { name: charge.debt_policy.limit(), period_ms })
    };
    match decider_of(result.decided) {
        Some(decider) if asked.info => name_decider(out, 0, &decider),
        Some(DecidingLimit { name: Some(name), .. }) if result.refused.is_some() => {
            name_refusal(out, 0, name);
        }
        _ => {}
    }
    let rows = charges.iter().map(|charge| charge.members).zip(facts);
    let verdicts = verdicts_of(asked.keys, &rows);
    write_verdicts(&verdicts, 0, out, |decided| decider_of(decided).filter(|_| asked.info));
}
