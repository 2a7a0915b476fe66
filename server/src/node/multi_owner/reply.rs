//! The one reply to a request over several owners.
//!
//! Not here: the decision over the owners' answers (`multi_owner`).

use engine::TakeInfo;
use protocol::{
    DecidingLimit, Decoded, Native, Operation, Outcome, Request, Take, decode, encode_hit,
    name_decider, name_refusal,
};

use super::{LIMITS_CHANGE, MultiOwnerRequest};
use crate::commands::companions::CompanionFigures;
use crate::commands::decider::{AskedPairs, Decided, verdicts_of, write_verdicts};
use crate::commands::limit_op::LimitAction;
use crate::commands::lookup::look_up;
use crate::commands::multi_key::ChargeResult;
use crate::commands::take_many::pairs_of;
use crate::commands::verdict::{name_holds, write_many_reply};
use crate::node::router::RouterContext;

/// The result on all keys, and the decision on each.
pub(super) struct OwnersDecision {
    pub(super) charged: ChargeResult,
    /// In the order of the rows; empty if there is no decision.
    pub(super) facts: Vec<TakeInfo>,
}

impl MultiOwnerRequest {
    /// Writes the reply that a node without a cluster would write.
    pub(super) fn write_reply(
        &self,
        router_ctx: &mut RouterContext<'_>,
        decision: &OwnersDecision,
        out: &mut Vec<u8>,
    ) {
        let bounds = router_ctx.service.shards().bounds();
        let Ok(Decoded::Request { request, .. }) = decode(&self.raw_request, 0, bounds) else {
            return;
        };
        let mut counted = Vec::new();
        let mut ctx = router_ctx.exec_context();
        match request {
            Request::TakeMany { many, quiet } => {
                if let LimitAction::Take(take) = &self.op.action {
                    ctx.count_unlimited(&many, &decision.charged.all.judged(take));
                }
                if !quiet {
                    let outcome = self.op.reply(decision.charged);
                    write_many_reply(&outcome, out);
                    self.add_pairs(pairs_of(&many), decision, &outcome, out);
                }
            }
            Request::Retrieve { keys, with_cas, .. } => {
                let Some(key) = keys.only() else { return };
                let lookup = look_up(&ctx, key.as_bytes(), &mut counted);
                let Ok(Some(found)) = lookup.key_limit else { return };
                let figures = CompanionFigures::of_all(decision.charged, &decision.facts);
                let mut text = Vec::new();
                let outcome = ctx.companion_of_owners(&found, figures, &mut text);
                ctx.counters.cmd_get.add(1);
                if let Outcome::Hit(item) = &outcome {
                    ctx.counters.get_hits.add(1);
                    encode_hit(out, key.as_bytes(), item, with_cas);
                }
            }
            Request::Command { command, form } => {
                let lookup = look_up(&ctx, command.key.as_bytes(), &mut counted);
                let Ok(Some(found)) = lookup.key_limit else {
                    let reply = if self.quiet { "" } else { LIMITS_CHANGE };
                    return out.extend_from_slice(reply.as_bytes());
                };
                if found.companion().is_some() {
                    let figures = CompanionFigures::of_all(decision.charged, &decision.facts);
                    let mut text = Vec::new();
                    let outcome = ctx.companion_of_owners(&found, figures, &mut text);
                    return ctx.write_limited_reply(&found, &command, &form, outcome, out);
                }
                let outcome = self.op.reply(decision.charged);
                if let Operation::Native(native) = &command.operation {
                    protocol::encode(out, &command, &form, &outcome);
                    let info = matches!(native, Native::Take(Take { info: true, .. }));
                    self.add_pairs(AskedPairs { info, keys: 0 }, decision, &outcome, out);
                } else {
                    ctx.write_limited_reply(&found, &command, &form, outcome, out);
                }
            }
            Request::Admin { .. } => {}
        }
    }

    /// The limit of a row.
    fn decider_of(&self, decided: Decided) -> Option<DecidingLimit<'_>> {
        let row = self.rows.get(decided.row)?;
        let name = str::from_utf8(&row.limit).ok()?;
        Some(DecidingLimit { name: Some(name), period_ms: decided.period_ms(&row.policy) })
    }

    /// Adds what decided, the decision on each key and the holds on parents to the only line of
    /// `out`, a verdict line.
    fn add_pairs(
        &self,
        asked: AskedPairs,
        decision: &OwnersDecision,
        outcome: &Outcome<'_>,
        out: &mut Vec<u8>,
    ) {
        if !matches!(outcome, Outcome::Verdict(_)) {
            return;
        }
        let ChargeResult { decided, refused, .. } = decision.charged;
        match self.decider_of(decided) {
            Some(decider) if asked.info => name_decider(out, 0, &decider),
            Some(DecidingLimit { name: Some(name), .. }) if refused.is_some() => {
                name_refusal(out, 0, name);
            }
            _ => {}
        }
        let members = self.rows.iter().map(|row| row.members);
        let verdicts = verdicts_of(asked.keys, &members.zip(&decision.facts));
        write_verdicts(&verdicts, 0, out, |decided| {
            self.decider_of(decided).filter(|_| asked.info)
        });
        let held = self.rows.iter().filter(|row| row.is_named);
        let names = held.filter_map(|row| str::from_utf8(&row.limit).ok());
        name_holds(outcome, names, 0, out);
    }
}
