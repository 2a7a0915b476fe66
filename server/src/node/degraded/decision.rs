//! Decisions of a node that does not know the owner's count.
//!
//! Not here: the node's own counts (`degraded`).

use engine::algorithms::{Attempt, Decision, Verdict, take};
use engine::{Now, TakeInfo, TakeParams, TakeResult};
use protocol::Policy;
use tollgate_limits::{OnUnavailable, UNLIMITED};

use super::super::debts::DebtPolicy;
use super::{DegradedCharge, DegradedDecision};
use crate::commands::multi_key::ChargeResult;

/// The retry time of a denied request.
const DENY_RETRY_NS: u64 = 1_000_000_000;

/// The policy and the mode of an exempt key, which has no debts.
pub(super) fn exempt() -> (DebtPolicy, Policy, OnUnavailable) {
    (DebtPolicy::Written(b"unlimited"[..].into()), UNLIMITED, OnUnavailable::Allow)
}

/// The decision of a peek at a key without state.
pub(super) fn fresh(policy: &Policy, now: Now) -> Decision {
    take(policy, &mut Vec::new(), now, &Attempt { cost: 0, peek: true, ..Attempt::default() })
}

/// The limit of a policy, or of the first of several.
pub(super) fn whole_limit(policy: &Policy, now: Now) -> u64 {
    fresh(&policy.first(), now).limit
}

/// Replaces the limit of a decision.
pub(super) fn with_limit(limited: TakeResult, limit: u64) -> TakeResult {
    match limited {
        TakeResult::Decided(facts) => TakeResult::Decided(TakeInfo {
            decision: Decision { limit, ..facts.decision },
            ..facts
        }),
        other => other,
    }
}

/// The decision of a mode that allows or denies, independent of any count.
pub(super) fn fixed_decision(
    now: Now,
    charges: &[DegradedCharge],
    attempt: &TakeParams,
    passes: bool,
) -> DegradedDecision {
    let facts: Vec<TakeInfo> = charges
        .iter()
        .map(|charge| fixed_facts(now, &charge.policy, charge.cost.capped(attempt.cost), passes))
        .collect();
    let result = match facts.first() {
        Some(first) if first.refuses() => ChargeResult::refused(&[*first], 0, 0),
        Some(first) => ChargeResult::allowed(&[*first], attempt.cost, attempt.cost),
        None => ChargeResult::undecided(TakeResult::NotFound),
    };
    DegradedDecision { result, facts }
}

fn fixed_facts(now: Now, policy: &Policy, cost: u64, passes: bool) -> TakeInfo {
    let fresh = fresh(policy, now);
    let decision = Decision {
        verdict: if passes { Verdict::Allow } else { Verdict::Deny },
        remaining: if passes { fresh.remaining } else { 0 },
        used: 0,
        granted: if passes { cost } else { 0 },
        retry: Some(if passes { 0 } else { DENY_RETRY_NS }),
        reset: 0,
        changed: false,
        counted: false,
        lease: None,
        ..fresh
    };
    TakeInfo {
        decision,
        cas: 0,
        client_flags: 0,
        has_state: false,
        shadow: policy.shadow,
        at: None,
    }
}
