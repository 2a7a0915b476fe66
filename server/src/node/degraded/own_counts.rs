//! Takes from the node's own counts, while the owners of keys are out of reach.
//!
//! Not here: which requests do (`degraded`), the node's share of a policy (`policy_share`).

use cluster::map::NodeState;
use engine::{Engine, KeyHasher, Now, PolicyRef, TakeInfo, TakeParams, TakeResult};
use protocol::Policy;
use tollgate_limits::ChargeCost;

use super::super::Node;
use super::super::policy_share::share;
use super::pairs::look_at_all;
use super::{DegradedCharge, DegradedDecision, LocalCounts};
use crate::commands::decider::AskedPairs;
use crate::commands::multi_key::{ChargeResult, deny_beyond};

impl Node {
    /// The number of active nodes. A limit is divided among them, and this node allows its share.
    fn parts(&self) -> u64 {
        let Some(control) = self.control() else { return 1 };
        let map = control.map();
        let is_active = |node: &&cluster::map::MapNode| {
            node.state != NodeState::Dead && node.description.weight > 0
        };
        (map.nodes().values().filter(is_active).count() as u64).max(1)
    }

    /// Takes from the node's own counts: from all charges or from none.
    pub(super) fn take_local(
        &self,
        now: Now,
        charges: &[DegradedCharge],
        attempt: &TakeParams,
        asked: AskedPairs,
    ) -> DegradedDecision {
        let parts = self.parts();
        // No other node gives this id to a hold: the owner later takes the hold over under it.
        let lease = charges
            .iter()
            .any(|charge| charge.hold_ns(attempt).is_some())
            .then(|| self.name_hold());
        let attempt = &TakeParams { lease, ..*attempt };
        let takes_part = attempt.part
            && charges.iter().all(|one| one.cost == ChargeCost::SAME)
            && charges.len() == 1;
        let mut local = self.local.lock();
        let LocalCounts { engine, hasher, .. } = &mut *local;
        let mut facts = Vec::with_capacity(charges.len());
        for (index, charge) in charges.iter().enumerate() {
            let policy = share(&charge.policy, parts);
            let hash = hasher.hash(&charge.key);
            let is_beyond = charge.cost.of(attempt.cost).is_none();
            let units = TakeParams {
                cost: charge.cost.capped(attempt.cost),
                part: takes_part,
                peek: attempt.peek || is_beyond,
                hold: charge.hold_of(attempt),
                compare_cas: attempt.compare_cas.filter(|_| index == 0),
                ..*attempt
            };
            let policy_ref = Some(PolicyRef::from(&policy));
            let mut taken = engine.take(now, hash, &charge.key, policy_ref, &units);
            if let (true, TakeResult::Decided(facts)) = (is_beyond, &mut taken) {
                deny_beyond(facts, policy.shadow);
            }
            // Work that is done is charged to all, whatever is left.
            if let TakeResult::Decided(decided) = taken
                && (attempt.debit || !decided.refuses())
            {
                facts.push(decided);
                continue;
            }
            if !attempt.peek {
                give_back(engine, hasher, now, charges.iter().zip(&facts));
            }
            let TakeResult::Decided(decided) = taken else {
                return DegradedDecision {
                    result: ChargeResult::undecided(taken),
                    facts: Vec::new(),
                };
            };
            facts.push(decided);
            let result = ChargeResult::refused(&facts, index, charge.member);
            if asked.keys > 0 {
                let share_of = |policy: &Policy| share(policy, parts);
                facts = look_at_all(engine, hasher, now, (charges, attempt), share_of);
            }
            return DegradedDecision { result, facts };
        }
        let result = result_of(charges, &facts, attempt.cost, takes_part);
        DegradedDecision { result, facts }
    }
}

/// Gives back the units that were taken from these charges.
fn give_back<'c>(
    engine: &mut Engine,
    hasher: &KeyHasher,
    now: Now,
    taken: impl Iterator<Item = (&'c DegradedCharge, &'c TakeInfo)>,
) {
    for (charge, facts) in taken {
        let (hash, key) = (hasher.hash(&charge.key), &charge.key);
        match facts.decision.lease {
            Some(hold) => engine.settle(now, hash, key, hold, 0),
            None => engine.refund(now, hash, key, None, facts.decision.granted),
        };
    }
}

/// The result once all charges are taken; a debit may be refused even then.
fn result_of(
    charges: &[DegradedCharge],
    facts: &[TakeInfo],
    cost: u64,
    takes_part: bool,
) -> ChargeResult {
    let retry = |facts: &TakeInfo| facts.decision.retry.unwrap_or(u64::MAX);
    let refusing = facts.iter().enumerate().filter(|(_, facts)| facts.refuses());
    if let Some((index, _)) =
        refusing.max_by_key(|(index, facts)| (retry(facts), usize::MAX - index))
    {
        return ChargeResult::refused(facts, index, charges[index].member);
    }
    // A constant cost of a parent is no part of the request's.
    let granted = match facts.first() {
        Some(facts) if takes_part => facts.decision.granted.min(cost),
        _ => cost,
    };
    ChargeResult::allowed(facts, granted, cost)
}
