//! Leases of quota of a key and its parents.
//!
//! Not here: takes from them (`multi_key`), the lease of one key (`engine`).

use engine::{LeaseParams, LeaseResult, TakeParams, TakeResult, is_leasable};
use protocol::{COUNT_MAX, LeaseLine};

use super::{ChargeContext, ChargeScratch, ChargeSet, KeyCharge};
use crate::shards::{LockedShards, NoRoom};

impl ChargeSet {
    /// Returns whether the units of all keys can be spent elsewhere.
    pub(crate) fn is_leasable(&self) -> bool {
        self.rows.iter().all(|row| is_leasable(&row.policy))
    }

    /// Leases from the first key as much as all others can spare, and takes that from the others.
    /// These have no lease of their own: units that the client returns later reach them only by
    /// refill.
    pub(crate) fn lease(
        &self,
        charge_ctx: ChargeContext<'_>,
        charge_scratch: &mut ChargeScratch,
        engines: &mut LockedShards<'_>,
        params: &LeaseParams<'_>,
    ) -> Result<LeaseResult, NoRoom> {
        let now = charge_ctx.now;
        let Some((first, others)) = self.rows.split_first() else { return Ok(LeaseResult::Full) };
        if others.iter().any(|row| !is_leasable(&row.policy)) {
            return Ok(LeaseResult::NotLeasable);
        }
        let want = self.least_spare(charge_ctx, engines, others, params.want);
        charge_scratch.forget_saved();
        let engine = engines.engine(first.hash);
        charge_scratch.saved.push(engine.save(
            now,
            first.hash,
            self.key(first),
            &mut charge_scratch.bytes,
        ));
        let params = LeaseParams { want, ..*params };
        let leased = engine.lease(
            now,
            first.hash,
            self.key(first),
            Some(charge_ctx.policy_ref(first)),
            &params,
        );
        let LeaseResult::Decided(line) = leased else { return Ok(leased) };
        if line.granted == 0 {
            return Ok(leased);
        }
        let take = TakeParams { cost: line.granted, wait: Some(0), ..TakeParams::default() };
        for row in others {
            let engine = engines.engine(row.hash);
            charge_scratch.saved.push(engine.save(
                now,
                row.hash,
                self.key(row),
                &mut charge_scratch.bytes,
            ));
            let taken =
                engine.take(now, row.hash, self.key(row), Some(charge_ctx.policy_ref(row)), &take);
            if matches!(taken, TakeResult::Decided(facts) if !facts.refuses()) {
                continue;
            }
            for (row, saved) in self.rows.iter().zip(&charge_scratch.saved).rev() {
                let engine = engines.engine(row.hash);
                engine.rollback(now, row.hash, self.key(row), saved, &charge_scratch.bytes);
            }
            return match taken {
                TakeResult::Full => Err(NoRoom),
                // Two limits count under one key, and the second found the units of the first
                // taken.
                _ => Ok(LeaseResult::Decided(LeaseLine {
                    granted: 0,
                    safe: line.safe - line.granted,
                    ..line
                })),
            };
        }
        Ok(leased)
    }

    /// Returns the units that each of `rows` can spare, at most `want`.
    fn least_spare(
        &self,
        charge_ctx: ChargeContext<'_>,
        engines: &mut LockedShards<'_>,
        rows: &[KeyCharge],
        want: u64,
    ) -> u64 {
        let mut want = want;
        for row in rows {
            let engine = engines.engine(row.hash);
            let look = engine.look(
                charge_ctx.now,
                row.hash,
                self.key(row),
                Some(charge_ctx.policy_ref(row)),
            );
            let spare = look.map_or(0, |facts| facts.decision.left());
            let spare = if row.policy.shadow { COUNT_MAX } else { spare };
            want = want.min(spare);
        }
        want
    }
}
