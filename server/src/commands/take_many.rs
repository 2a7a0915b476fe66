//! `takem`, and takes from several listed keys at once.
//!
//! Not here: charging the keys (`multi_key`), the owners of keys in a cluster (`node`).

use std::cell::Cell;

use engine::{CachedReply, Judged, Judgement, TakeParams};
use protocol::{Outcome, TAKE_KEYS_MAX, TakeMany};
use tollgate_limits::{ChargeCost, LimitedKeyError, Unlimited};

use crate::commands::context::ExecContext;
use crate::commands::decider::{
    AskedPairs, Decided, KeyDecisions, keep_verdicts, recall_verdicts, write_verdicts,
};
use crate::commands::items::line;
use crate::commands::limit_op::{LimitAction, LimitOp};
use crate::commands::multi_key::{ChargeContext, ChargeResult};
use crate::commands::native::recall;
use crate::commands::scratch::Scratch;
use crate::commands::verdict::write_many_reply;
use crate::probe::SampledVerb;

/// Returns the pairs that a `takem` asks for.
pub(crate) fn pairs_of(many: &TakeMany<'_>) -> AskedPairs {
    AskedPairs { info: many.info, keys: if many.each { many.keys.iter().count() } else { 0 } }
}

impl ExecContext<'_> {
    /// Executes a `takem`.
    pub(crate) fn take_many(&mut self, many: TakeMany<'_>, quiet: bool, out: &mut Vec<u8>) {
        let mut counted = std::mem::take(&mut self.scratch.more_keys);
        counted.resize_with(1, Vec::new);
        let listed = self.list_all_charges(&many, &mut counted[0]);
        self.scratch.more_keys = counted;
        let asked = pairs_of(&many);
        let (outcome, decided) = match listed {
            Ok(true) => {
                let op = LimitOp::of_many(&many);
                let LimitAction::Take(units) = op.action else { return };
                if let Some(error) = op.refusal(&self.scratch.charges) {
                    if !quiet {
                        line(out, error);
                    }
                    return;
                }
                if self.scratch.charges.is_empty() {
                    let reply = self.unlimited_reply(&op, &many);
                    return out.extend_from_slice(if quiet { b"" } else { &reply });
                }
                let judged = Cell::new(Judged::NOTHING);
                let outcome = self.take_listed(&units, (many.id, asked), |charged| {
                    judged.set(charged.all.judged(&units));
                    op.reply(charged)
                });
                self.record_many(&many, &judged.get());
                self.count_unlimited(&many, &judged.get());
                outcome
            }
            Ok(false) => (Outcome::NotFound, None),
            Err(error) if !quiet => return line(out, &error.to_string()),
            Err(_) => return,
        };
        if !quiet {
            let start = out.len();
            write_many_reply(&outcome, out);
            if matches!(outcome, Outcome::Verdict(_)) {
                self.add_pairs(asked, decided, start, out);
            }
            self.name_holds(&outcome, start, out);
        }
    }

    /// Lists the keys of a `takem` with their parents, without those that pass unlimited; with
    /// `each` only those that a limit matches. Returns false if no limit matches one of the others,
    /// with `each` if no key is limited or passes unlimited.
    pub(crate) fn list_all_charges(
        &mut self,
        many: &TakeMany<'_>,
        counted: &mut Vec<u8>,
    ) -> Result<bool, LimitedKeyError> {
        let TakeMany { costs, keys, .. } = *many;
        let limits = self.active_limits.limits();
        let charges = &mut self.scratch.charges;
        charges.clear();
        let is_one = costs.only().is_some();
        let mut is_any = false;
        for (member, ((key, _), cost)) in keys.iter().zip(costs.iter()).enumerate() {
            let cost = if is_one { ChargeCost::SAME } else { ChargeCost::fixed(cost) };
            match limits.find(key.as_bytes(), counted)? {
                Some(found) if found.companion().is_none() => {
                    charges.add(limits, self.service.shards(), &found, (member, cost))?;
                }
                None if limits.unlimited(key.as_bytes()).is_some() => {}
                _ if many.each => continue,
                _ => return Ok(false),
            }
            is_any = true;
        }
        Ok(is_any)
    }

    /// Counts a `takem` none of whose keys is charged, and returns its reply.
    pub(crate) fn unlimited_reply(&mut self, op: &LimitOp, many: &TakeMany<'_>) -> Vec<u8> {
        let (mut reply, asked) = (Vec::new(), pairs_of(many));
        if let LimitAction::Take(take) = &op.action {
            let charged = ChargeResult::unlimited(self.now, take);
            self.count_unlimited(many, &charged.all.judged(take));
            write_many_reply(&op.reply(charged), &mut reply);
            let verdicts: KeyDecisions = (0..asked.keys.min(TAKE_KEYS_MAX)).map(|_| None).collect();
            write_verdicts(&verdicts, 0, &mut reply, |_| None);
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

    /// Counts the keys of a `takem` that pass unlimited as a `take` of each does: for the fallback
    /// if the call passed, and in the recorder's sample with the decision on the call.
    pub(crate) fn count_unlimited(&mut self, many: &TakeMany<'_>, judged: &Judged) {
        let limits = self.active_limits.limits();
        if judged.judgement == Judgement::Nothing || !limits.may_pass_unlimited() {
            return;
        }
        let passes = judged.judgement != Judgement::Denied;
        let mut counted = std::mem::take(&mut self.scratch.more_keys);
        counted.resize_with(1, Vec::new);
        for ((key, _), cost) in many.keys.iter().zip(many.costs.iter()) {
            let key = key.as_bytes();
            if cost == 0 || !matches!(limits.find(key, &mut counted[0]), Ok(None)) {
                continue;
            }
            let Some(unlimited) = limits.unlimited(key) else { continue };
            let judged = if passes {
                Judged { judgement: Judgement::Allowed, cost, units: cost, ..Judged::NOTHING }
            } else {
                Judged { cost, ..*judged }
            };
            let key = (self.service.shards().hash(key), key);
            self.record(key, SampledVerb::TakeMany, &judged);
            if let Unlimited::Fallback(limit) = unlimited
                && passes
            {
                self.note_judged(limit.index(), key, &judged);
            }
        }
        self.scratch.more_keys = counted;
    }

    /// Takes from the listed keys. Returns the charge that decided, too; the decision on each key
    /// is in `scratch` if it is asked for. The reply to an `id` is cached with the first key, and
    /// with the charge that decided if it is to be named: a repeat lists the same keys, unless the
    /// limits have changed.
    pub(crate) fn take_listed(
        &mut self,
        units: &TakeParams,
        (id, asked): (Option<&[u8]>, AskedPairs),
        answer: impl Fn(ChargeResult) -> Outcome<'static>,
    ) -> (Outcome<'static>, Option<Decided>) {
        let charge_ctx = self.charge_context();
        let Scratch { charges, charge_scratch, kept_id, .. } = &mut *self.scratch;
        let (key, hash) = charges.first();
        let ChargeContext { shards, now, .. } = charge_ctx;
        let id = id.map(|id| (id, shards.key_id(hash, key, id)));
        let done = charges.locked(charge_ctx, |engines| {
            let before = id.and_then(|(id, key_id)| Some((id, recall(&shards, now, key_id)?)));
            if let Some((id, (line, decided))) = before {
                if asked.keys > 0 {
                    let keys = recall_verdicts(&shards, now, (charges, id), asked.keys);
                    charge_scratch.verdicts = keys;
                }
                return Ok((Outcome::Verdict(line), decided.map(Decided::of_code)));
            }
            let charged = charges.take(charge_ctx, charge_scratch, engines, units)?;
            let outcome = answer(charged);
            if asked.keys > 0 {
                charge_scratch.decide_keys(charges, asked.keys);
            }
            if let (Some((id, key_id)), Outcome::Verdict(line), false) = (id, &outcome, units.peek)
            {
                let is_named = asked.info || charged.refused.is_some();
                let decided = is_named.then(|| charged.decided.code());
                let reply = CachedReply::Verdict(*line, decided);
                kept_id.set(Some(shards.keep_answer(now, key_id, reply)));
                if asked.keys > 0 {
                    keep_verdicts(&shards, now, (charges, id), &charge_scratch.verdicts);
                }
            }
            Ok((outcome, Some(charged.decided)))
        });
        done.unwrap_or((Outcome::OutOfMemory, None))
    }
}
