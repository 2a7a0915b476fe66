//! The plain verbs on limited keys.
//!
//! Here: the key and policy that a command applies to, its parents, and the encoding of a refusal.
//! Not here: the limit of a key (`server/limits`), the effect of each verb on a limit state
//! (`engine`), the native verbs (`native`), companions (`companions`).

use std::cell::Cell;

use engine::algorithms::{Attempt, take};
use engine::{Judged, PolicyRef, TakeResult};
use protocol::{
    Command, Form, ItemView, Operation, Outcome, Value, encode, encode_hit, name_refusal,
};
use tollgate_limits::{ChargeCost, Deny, LimitMatch, LimitedKeyError};

use crate::commands::context::ExecContext;
use crate::commands::decider::AskedPairs;
use crate::commands::items::{encode_outcome, line};
use crate::commands::limit_op::{LimitAction, LimitOp};
use crate::commands::multi_key::{Adjustment, ChargeContext};
use crate::commands::verdict::name_holds;
use crate::probe::SampledVerb;

/// The limit match of a key; `None` for a plain one.
pub(crate) type KeyLimit<'a> = Result<Option<LimitMatch<'a>>, LimitedKeyError>;

/// Converts nanoseconds to milliseconds, rounded up.
pub(crate) fn milliseconds(nanos: u64) -> u64 {
    nanos.div_ceil(1_000_000)
}

impl<'a> ExecContext<'a> {
    /// Returns the context for charging several keys together.
    pub(crate) fn charge_context(&self) -> ChargeContext<'a> {
        ChargeContext {
            now: self.now,
            shards: self.shards(),
            active_limits: self.active_limits,
            worker: self.worker,
            counters: self.counters,
        }
    }
}

impl ExecContext<'_> {
    /// Returns the policy of a limited key.
    pub(crate) fn policy_of<'f>(&self, found: &LimitMatch<'f>) -> PolicyRef<'f> {
        self.active_limits.policy_ref(found.limit().index(), found.policy())
    }

    /// Returns whether a request on a limited key is a charge of several keys, or of one with a
    /// weight.
    pub(crate) fn charges_more(&self, found: &LimitMatch<'_>) -> bool {
        found.charges_more() && !(self.alone && found.has_parents())
    }

    /// Adds the limit that refused to the verdict line that `out` contains from `start` on.
    pub(crate) fn name_refusal(&self, limit: Option<usize>, start: usize, out: &mut Vec<u8>) {
        if let Some(limit) = limit.and_then(|limit| self.active_limits.limits().get(limit)) {
            name_refusal(out, start, limit.name());
        }
    }

    /// Adds the holds on the parents that `scratch.charges` lists to the verdict line that `out`
    /// contains from `start` on.
    pub(crate) fn name_holds(&self, outcome: &Outcome<'_>, start: usize, out: &mut Vec<u8>) {
        let limits = self.active_limits.limits();
        let held = self.scratch.charges.rows().filter_map(|row| row.named_hold());
        let names = held.filter_map(|limit| Some(limits.get(limit)?.name()));
        name_holds(outcome, names, start, out);
    }

    /// Executes a classic or meta verb on a limited key; `hash` is the hash of the counted key.
    pub(crate) fn limited_command(
        &mut self,
        found: &LimitMatch<'_>,
        command: &Command<'_>,
        form: &Form<'_>,
        hash: u64,
        out: &mut Vec<u8>,
    ) {
        let meta = matches!(form, Form::Meta { .. });
        self.counters.cmd_meta.add(u64::from(meta));
        let mut text = Vec::new();
        let operation = &command.operation;
        let key = command.key.as_bytes();
        let (outcome, judged) = match self.limited_outcome(found, (key, operation), hash, &mut text)
        {
            Ok(decided) => decided,
            Err(error) => return write_error(&error.to_string(), form, out),
        };
        self.record_arithmetic((hash, found.base()), operation, meta, &judged);
        self.write_limited_reply(found, command, form, outcome, out);
    }

    /// Writes the reply to a command on a limited key.
    pub(crate) fn write_limited_reply(
        &mut self,
        found: &LimitMatch<'_>,
        command: &Command<'_>,
        form: &Form<'_>,
        outcome: Outcome<'_>,
        out: &mut Vec<u8>,
    ) {
        let meta = matches!(form, Form::Meta { .. });
        let outcome = match outcome {
            Outcome::Refused(_) if meta && found.limit().deny() == Deny::Ns => Outcome::NotStored,
            Outcome::Refused(item) => {
                let value = match item.value {
                    Value::Number(count) => Value::Number(self.above_limit(found, count)),
                    value @ Value::Bytes(_) => value,
                };
                Outcome::Refused(ItemView { value, ..item })
            }
            outcome => outcome,
        };
        self.note(command, &outcome, meta);
        encode_outcome(out, command, form, &outcome);
    }

    /// Raises a refused count above the limit. A plain client compares the count with the limit and
    /// does not see overrides, so a refusal by a smaller override must exceed both.
    pub(crate) fn above_limit(&self, found: &LimitMatch<'_>, count: u64) -> u64 {
        if found.overridden().is_none() {
            return count;
        }
        let attempt = Attempt { cost: 0, peek: true, ..Attempt::default() };
        let first = found.limit().policy().first();
        let limit = take(&first, &mut Vec::new(), self.now, &attempt).limit;
        count.max(limit.saturating_add(1)).min(protocol::COUNT_MAX)
    }

    /// Executes one key of a retrieval.
    pub(crate) fn limited_retrieve(
        &mut self,
        found: &LimitMatch<'_>,
        command: &Command<'_>,
        hash: u64,
        with_cas: bool,
        out: &mut Vec<u8>,
    ) {
        let mut text = Vec::new();
        // A companion whose parents cannot be counted has no figures.
        let asked = (command.key.as_bytes(), &command.operation);
        let looked = self.limited_outcome(found, asked, hash, &mut text);
        let Ok((outcome, _)) = looked else { return };
        self.note(command, &outcome, false);
        if let Outcome::Hit(item) = &outcome {
            encode_hit(out, command.key.as_bytes(), item, with_cas);
        }
    }

    /// Executes `ma` or `mg` with a policy in the request (`P`).
    pub(crate) fn inline_policy_command(
        &mut self,
        token: &[u8],
        counted_key: &[u8],
        command: &Command<'_>,
        form: &Form<'_>,
        hash: u64,
        out: &mut Vec<u8>,
    ) {
        let policy_id = match self.scratch.policy_cache.parse(token) {
            Ok(policy_id) => policy_id,
            Err(why) => return write_error(&format!("CLIENT_ERROR {why}"), form, out),
        };
        self.counters.cmd_meta.add(1);
        let policy_ref = PolicyRef::from(self.scratch.policy_cache.policy(policy_id));
        let operation = &command.operation;
        let (outcome, judged) = self.apply_limited(counted_key, hash, policy_ref, operation);
        self.record_arithmetic((hash, command.key.as_bytes()), operation, true, &judged);
        self.note(command, &outcome, true);
        encode(out, command, form, &outcome);
    }

    fn limited_outcome<'t>(
        &mut self,
        found: &LimitMatch<'_>,
        (key, operation): (&[u8], &Operation<'_>),
        hash: u64,
        text: &'t mut Vec<u8>,
    ) -> Result<(Outcome<'t>, Judged), LimitedKeyError> {
        if let Some(companion) = found.companion() {
            let outcome = self.companion(found, (companion, key), operation, hash, text)?;
            return Ok((outcome, Judged::NOTHING));
        }
        if self.charges_more(found)
            && let Some(op) = LimitOp::of(operation)
        {
            let op = op.with_weight(found);
            return match op.action {
                LimitAction::Take(take) => {
                    self.list_charges(found)?;
                    let judged = Cell::new(Judged::NOTHING);
                    let (outcome, _) =
                        self.take_listed(&take, (None, AskedPairs::default()), |charged| {
                            judged.set(charged.all.judged(&take));
                            op.reply(charged)
                        });
                    Ok((outcome, judged.get()))
                }
                LimitAction::Change(change) => {
                    let changed = self.adjust_all(found, change, op.change_cas)?;
                    Ok((op.reply_one(changed), Judged::NOTHING))
                }
            };
        }
        let (outcome, judged) =
            self.apply_limited(found.key(), hash, self.policy_of(found), operation);
        self.note_judged(found.limit().index(), (hash, found.key()), &judged);
        Ok((outcome, judged))
    }

    /// Records an `incr` or `ma`, and nothing else; `key` is the client's.
    fn record_arithmetic(
        &self,
        key: (u64, &[u8]),
        operation: &Operation<'_>,
        meta: bool,
        judged: &Judged,
    ) {
        if matches!(operation, Operation::Arithmetic(_)) {
            let verb = if meta { SampledVerb::MetaArithmetic } else { SampledVerb::Incr };
            self.record(key, verb, judged);
        }
    }

    fn apply_limited(
        &self,
        key: &[u8],
        hash: u64,
        policy_ref: PolicyRef<'_>,
        operation: &Operation<'_>,
    ) -> (Outcome<'static>, Judged) {
        let done = self.shards().with_room(self.now, hash, |engine| {
            match engine.apply_limited(self.now, hash, key, Some(policy_ref), operation) {
                (Outcome::OutOfMemory, _) => None,
                done => Some(done),
            }
        });
        done.unwrap_or((Outcome::OutOfMemory, Judged::NOTHING))
    }

    /// Changes a limited key and its parents; with `compare_cas` only if the key's own state has
    /// this cas unique.
    pub(crate) fn adjust_all(
        &mut self,
        found: &LimitMatch<'_>,
        change: Adjustment,
        compare_cas: Option<u64>,
    ) -> Result<TakeResult, LimitedKeyError> {
        self.list_charges(found)?;
        let (charge_ctx, charges) = (self.charge_context(), &self.scratch.charges);
        let changed = charges.locked(charge_ctx, |engines| {
            let refused =
                compare_cas.and_then(|cas| charges.refused_by_cas(charge_ctx, engines, cas));
            refused.map_or_else(|| charges.change(charge_ctx, engines, change), Ok)
        });
        Ok(changed.unwrap_or(TakeResult::Full))
    }

    /// Lists a limited key and its parents, to be charged together.
    pub(crate) fn list_charges(&mut self, found: &LimitMatch<'_>) -> Result<(), LimitedKeyError> {
        let charges = &mut self.scratch.charges;
        charges.clear();
        charges.add(
            self.active_limits.limits(),
            self.service.shards(),
            found,
            (0, ChargeCost::SAME),
        )
    }
}

/// Returns the policy in the `P` flag of a meta command, for verbs that accept one. memcached
/// reserves the flag for proxies; their tokens are ignored.
pub(crate) fn inline_policy<'a>(operation: &Operation<'_>, form: &Form<'a>) -> Option<&'a [u8]> {
    let may_bring = matches!(operation, Operation::Arithmetic(_) | Operation::Get(_));
    let is_policy =
        |token: &[u8]| token.contains(&b':') || matches!(token, b"unlimited" | b"block");
    match form {
        Form::Meta { policy: Some(token), .. } if may_bring && is_policy(token) => Some(token),
        _ => None,
    }
}

/// Writes an error, unless the client requested silence; meta commands always report errors.
pub(crate) fn write_error(why: &str, form: &Form<'_>, out: &mut Vec<u8>) {
    if matches!(form, Form::Meta { .. }) || !form.is_quiet() {
        line(out, why);
    }
}
