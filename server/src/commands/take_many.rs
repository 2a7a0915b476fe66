//! `takem`, and takes from several listed keys at once.
//!
//! Not here: charging the keys (`multi_key`), the owners of keys in a cluster (`node`).

use std::cell::Cell;

use engine::{CachedReply, Judged, TakeParams};
use protocol::{Costs, Keys, Outcome};

use crate::commands::context::ExecContext;
use crate::commands::items::line;
use crate::commands::limit_op::{LimitAction, LimitOp};
use crate::commands::multi_key::ChargeResult;
use crate::commands::native::recall;
use crate::commands::scratch::Scratch;
use crate::commands::verdict::write_many_reply;
use crate::limits::{ChargeCost, LimitedKeyError};
use crate::probe::SampledVerb;

/// A `takem` request.
#[derive(Clone, Copy)]
pub(crate) struct TakeMany<'a> {
    pub(crate) costs: Costs<'a>,
    pub(crate) keys: Keys<'a>,
    pub(crate) peek: bool,
    /// The longest wait that the caller accepts, in nanoseconds.
    pub(crate) wait: Option<u64>,
    pub(crate) id: Option<&'a [u8]>,
}

impl ExecContext<'_> {
    /// Executes a `takem`.
    pub(crate) fn take_many(&mut self, many: TakeMany<'_>, quiet: bool, out: &mut Vec<u8>) {
        let mut counted = std::mem::take(&mut self.scratch.more_keys);
        counted.resize_with(1, Vec::new);
        let listed = self.list_all_charges((many.costs, many.keys), &mut counted[0]);
        self.scratch.more_keys = counted;
        let (outcome, refused) = match listed {
            Ok(true) => {
                let op = LimitOp::of_many(many.costs, many.keys, (many.peek, many.wait));
                let LimitAction::Take(units) = op.action else { return };
                if let Some(error) = op.refusal(&self.scratch.charges) {
                    if !quiet {
                        line(out, error);
                    }
                    return;
                }
                if self.scratch.charges.is_empty() {
                    let reply = self.unlimited_reply(&op);
                    return out.extend_from_slice(if quiet { b"" } else { &reply });
                }
                let judged = Cell::new(Judged::NOTHING);
                let outcome = self.take_listed(&units, many.id, |charged| {
                    judged.set(charged.all.judged(&units));
                    op.reply(charged)
                });
                self.record_many(&many, &judged.get());
                outcome
            }
            Ok(false) => (Outcome::NotFound, None),
            Err(error) if !quiet => return line(out, &error.to_string()),
            Err(_) => return,
        };
        if !quiet {
            let start = out.len();
            write_many_reply(&outcome, out);
            self.name_refusal(refused, start, out);
            self.name_holds(&outcome, start, out);
        }
    }

    /// Lists the keys of a `takem` with their parents, without those that pass unlimited. Returns
    /// false if no limit matches one of the others.
    pub(crate) fn list_all_charges(
        &mut self,
        (costs, keys): (Costs<'_>, Keys<'_>),
        counted: &mut Vec<u8>,
    ) -> Result<bool, LimitedKeyError> {
        let limits = self.active_limits.limits();
        let charges = &mut self.scratch.charges;
        charges.clear();
        let is_one = costs.only().is_some();
        for (member, ((key, _), cost)) in keys.iter().zip(costs.iter()).enumerate() {
            let cost = if is_one { ChargeCost::SAME } else { ChargeCost::fixed(cost) };
            match limits.find(key.as_bytes(), counted)? {
                Some(found) if found.companion().is_none() => {
                    charges.add(limits, self.service.shards(), &found, (member, cost))?;
                }
                None if limits.unlimited(key.as_bytes()).is_some() => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Returns the reply to a `takem` none of whose keys is charged.
    pub(crate) fn unlimited_reply(&self, op: &LimitOp) -> Vec<u8> {
        let mut reply = Vec::new();
        if let LimitAction::Take(take) = &op.action {
            let charged = ChargeResult::unlimited(self.now, take);
            write_many_reply(&op.reply(charged), &mut reply);
        }
        reply
    }

    /// Records the decision on all keys of a `takem` for each of them.
    fn record_many(&self, many: &TakeMany<'_>, judged: &Judged) {
        for (member, ((key, _), cost)) in many.keys.iter().zip(many.costs.iter()).enumerate() {
            // The first row of a member is its own; a key that is listed twice has one.
            if let Some(row) = self.scratch.charges.rows().find(|row| row.member == member)
                && (cost > 0 || many.costs.only().is_some())
            {
                let judged = Judged { cost, ..*judged };
                self.record((row.hash, key.as_bytes()), SampledVerb::TakeMany, &judged);
            }
        }
    }

    /// Takes from the listed keys. Returns the limit that refused, too. The reply to an `id` is
    /// cached with the first key, and with the index of the charge that refused: a repeat lists the
    /// same keys, unless the limits have changed.
    pub(crate) fn take_listed(
        &mut self,
        units: &TakeParams,
        id: Option<&[u8]>,
        answer: impl Fn(ChargeResult) -> Outcome<'static>,
    ) -> (Outcome<'static>, Option<usize>) {
        let charge_ctx = self.charge_context();
        let Scratch { charges, charge_scratch, kept_id, .. } = &mut *self.scratch;
        let (key, hash) = charges.first();
        let id = id.map(|id| charge_ctx.shards.key_id(hash, key, id));
        let done = charges.locked(charge_ctx, |engines| {
            let before = id.and_then(|id| recall(charge_ctx.shards, charge_ctx.now, id));
            if let Some((line, refused)) = before {
                let limit = refused.and_then(|row| charges.limit(row));
                return Ok((Outcome::Verdict(line), limit));
            }
            let charged = charges.take(charge_ctx, charge_scratch, engines, units)?;
            let refused = charged.refused.and_then(|row| charges.limit(row));
            let outcome = answer(charged);
            if let (Some(id), Outcome::Verdict(line)) = (id.filter(|_| !units.peek), &outcome) {
                let reply = CachedReply::Verdict(*line, charged.refused);
                kept_id.set(Some(charge_ctx.shards.keep_answer(charge_ctx.now, id, reply)));
            }
            Ok((outcome, refused))
        });
        done.unwrap_or((Outcome::OutOfMemory, None))
    }
}
