//! The refusal of a charge set by one of its keys, or by the cas unique of the first.
//!
//! Not here: the attempt (`multi_key`), the result of one key (`engine`).

use engine::algorithms::{Decision, Verdict, begins_unfilled};
use engine::{TakeInfo, TakeParams, TakeResult};

use super::{ChargeContext, ChargeResult, ChargeScratch, ChargeSet};
use crate::shards::LockedShards;

/// Turns a peek into the decision on a cost of more than a limit can have: it never passes. A limit
/// that only reports does not refuse it.
pub(crate) fn deny_beyond(facts: &mut TakeInfo, is_shadow: bool) {
    facts.decision = Decision {
        verdict: Verdict::Deny,
        granted: 0,
        retry: None,
        lease: None,
        changed: false,
        counted: false,
        ..facts.decision
    };
    facts.shadow = is_shadow;
}

impl ChargeSet {
    /// Compares the cas unique of the first key's state. Returns the result of a change that it
    /// refuses.
    pub(crate) fn refused_by_cas(
        &self,
        charge_ctx: ChargeContext<'_>,
        engines: &mut LockedShards<'_>,
        unique: u64,
    ) -> Option<TakeResult> {
        let row = self.rows.first()?;
        let policy_ref = Some(charge_ctx.policy_ref(row));
        let engine = engines.engine(row.hash);
        engine.refused_by_cas(charge_ctx.now, row.hash, self.key(row), policy_ref, unique)
    }

    /// Reports the key that refuses for longest: after that time all keys allow. Charges the
    /// refused attempt where the policy counts those.
    pub(super) fn refuse(
        &self,
        charge_ctx: ChargeContext<'_>,
        charge_scratch: &mut ChargeScratch,
        engines: &mut LockedShards<'_>,
        take: &TakeParams,
    ) -> ChargeResult {
        let mut worst: Option<(usize, u64)> = None;
        for (index, (row, facts)) in self.rows.iter().zip(&mut charge_scratch.facts).enumerate() {
            if facts.refuses() {
                let attempt = TakeParams { cost: row.cost.capped(take.cost), ..*take };
                charge_ctx.note(row, self.key(row), facts, &attempt);
                if !take.peek {
                    engines.engine(row.hash).note_refused(charge_ctx.now, row.hash, self.key(row));
                }
                let retry = facts.decision.retry.unwrap_or(u64::MAX);
                if worst.is_none_or(|(_, longest)| retry > longest) {
                    worst = Some((index, retry));
                }
            }
            // A bucket that does not begin full begins to fill at its first attempt, even a refused
            // one.
            if !take.peek && !facts.has_state && begins_unfilled(&row.policy) {
                let begin = TakeParams { cost: 0, wait: Some(0), ..TakeParams::default() };
                self.decide(charge_ctx, engines, row, &begin);
            }
            // Only admitted holders count.
            let notes = facts.refuses() && row.policy.ban().is_some();
            if (row.policy.over || take.debit || notes) && !take.peek && !row.holds_by_itself() {
                let attempt = TakeParams {
                    cost: row.cost.capped(take.cost),
                    // A refused attempt counts as a whole.
                    part: false,
                    compare_cas: None,
                    hold: None,
                    ..*take
                };
                let counted = self.decide(charge_ctx, engines, row, &attempt);
                if let TakeResult::Decided(counted) = counted {
                    let counts = row.policy.over || take.debit;
                    facts.at = counted.at;
                    facts.decision = Decision {
                        verdict: facts.decision.verdict,
                        counted: counts && counted.decision.changed,
                        ..counted.decision
                    };
                }
            }
        }
        let index = worst.map_or(0, |(index, _)| index);
        ChargeResult::refused(&charge_scratch.facts, index, self.rows[index].member)
    }
}
