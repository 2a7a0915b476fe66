//! `incrx` on a limited key: takes its delta from the limit, or gives it back.
//!
//! Not here: `incrx` on a plain counter (`engine`), the operation and its reply (`limit_op`).

use std::cell::Cell;

use engine::{CachedReply, Judged, TakeResult};
use protocol::{IncrX, Native, Operation, Outcome};
use tollgate_limits::{LimitMatch, LimitedKeyError};

use crate::commands::context::ExecContext;
use crate::commands::limit_op::{LimitAction, LimitOp};
use crate::commands::multi_key::ChargeResult;
use crate::commands::scratch::Scratch;
use crate::probe::SampledVerb;

impl ExecContext<'_> {
    /// Executes an `incrx` on a limited key, its parents included; `hash` is that of the counted
    /// key.
    pub(crate) fn limited_incrx(
        &mut self,
        found: &LimitMatch<'_>,
        hash: u64,
        incrx: &IncrX<'_>,
    ) -> Result<Outcome<'static>, LimitedKeyError> {
        if incrx.delta < 0 && incrx.cas.compares() {
            return Err(LimitedKeyError::CasOfRefund);
        }
        let op = LimitOp::of(&Operation::Native(Native::IncrX(*incrx)));
        // The owners of the parents are asked by the node that the client asked.
        let Some(op) = op.filter(|_| !self.alone || !found.has_parents()) else {
            return Ok(Outcome::NotAllowed);
        };
        self.list_charges(found)?;
        let charge_ctx = self.charge_context();
        let Scratch { charges, charge_scratch, kept_id, .. } = &mut *self.scratch;
        let (key, _) = charges.first();
        let id = incrx.id.map(|id| charge_ctx.shards.key_id(hash, key, id));
        let judged = Cell::new(Judged::NOTHING);
        let done = charges.locked(charge_ctx, |engines| {
            let is_count = |answer: &CachedReply| matches!(answer, CachedReply::Counted(_));
            let before =
                id.and_then(|id| charge_ctx.shards.answer_to(charge_ctx.now, id, is_count));
            if let Some(CachedReply::Counted(line)) = before {
                return Ok(Outcome::Counted(line));
            }
            let charged = match &op.action {
                LimitAction::Take(take) => {
                    let charged = charges.take(charge_ctx, charge_scratch, engines, take)?;
                    judged.set(charged.all.judged(take));
                    charged
                }
                LimitAction::Change(change) => {
                    ChargeResult::undecided(charges.change(charge_ctx, engines, *change)?)
                }
            };
            let outcome = op.reply(charged);
            let is_decided = !matches!(charged.first, TakeResult::Exists(_));
            if let (Some(id), Outcome::Counted(line), true) = (id, &outcome, is_decided) {
                let reply = CachedReply::Counted(*line);
                kept_id.set(Some(charge_ctx.shards.keep_answer(charge_ctx.now, id, reply)));
            }
            Ok(outcome)
        });
        self.record((hash, found.base()), SampledVerb::Incr, &judged.get());
        Ok(done.unwrap_or(Outcome::OutOfMemory))
    }
}
