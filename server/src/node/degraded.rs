//! Decisions of limits while the owner of a key is out of reach.
//!
//! Here: which requests get such a decision. Not here: taking from the node's own counts
//! (`own_counts`), its debts to the owners (`debts`), when an owner is out of reach (`router`),
//! charging by the owners (`multi_owner`).
//!
//! The setting `on_unavailable` of a limit selects the decision: allow, deny, an error, or the
//! node's own count of its share: the limit, divided by the number of active nodes. The units that
//! the count allows are charged to the owner as soon as possible, once, and beyond the limit.

mod decision;
mod own_counts;
mod pairs;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cluster::id::Partition;
use engine::{Engine, EngineOptions, KeyHasher, MemoryCap, TakeInfo, TakeParams, TakeResult};
use protocol::{
    Command, Decoded, Form, Native, Operation, Outcome, Policy, PolicyArg, Request, VerdictLine,
    decode, encode,
};
use tollgate_limits::{ChargeCost, LimitMatch, Limits, OnUnavailable, Unlimited};

use self::decision::{exempt, fixed_decision, whole_limit, with_limit};
use self::pairs::{add_pairs, asked_of};
use super::debts::DebtPolicy;
use super::own_holds::OwnHolds;
use super::pending::{Completion, PendingOp};
use super::router::{Router, RouterContext};
use super::state_machine::partition_of;
use crate::commands::context::ExecContext;
use crate::commands::limit_op::{LimitAction, LimitOp, selected_policy};
use crate::commands::lookup::{KeyLookup, look_up};
use crate::commands::multi_key::ChargeResult;
use crate::commands::native::refusal;
use crate::commands::verdict::{name_holds, write_many_reply};

/// Most keys with debts or holds of one worker; beyond that, local decisions deny.
const DEBTS_MAX: usize = 4096;
/// The node's own counts take this part of the memory cap, and at least `LOCAL_BYTES_MIN`.
const LOCAL_SHARE: usize = 64;
const LOCAL_BYTES_MIN: usize = 1 << 20;

pub(super) struct LocalCounts {
    pub(super) engine: Engine,
    pub(super) hasher: KeyHasher,
    pub(super) holds: OwnHolds,
}

impl LocalCounts {
    pub(super) fn new(memory_bytes: usize) -> Self {
        use std::hash::{BuildHasher as _, RandomState};
        let seeds = std::array::from_fn(|index| RandomState::new().hash_one(index));
        let hasher = KeyHasher::new(seeds);
        let memory_cap =
            Arc::new(MemoryCap::new((memory_bytes / LOCAL_SHARE).max(LOCAL_BYTES_MIN)));
        let engine = Engine::new(hasher.clone(), memory_cap, EngineOptions::default());
        Self { engine, hasher, holds: OwnHolds::default() }
    }
}

pub(super) struct DegradedCharge {
    pub(super) debt_policy: DebtPolicy,
    pub(super) policy: Policy,
    pub(super) key: Box<[u8]>,
    pub(super) partition: Partition,
    pub(super) cost: ChargeCost,
    member: usize,
    members: u16,
    /// Nanoseconds for which the cost is held, if the limit of its child says so.
    pub(super) hold: Option<u64>,
}

impl DegradedCharge {
    /// The charge of a request on one key.
    fn of_one(debt_policy: DebtPolicy, policy: Policy, key: &[u8], partition: Partition) -> Self {
        let cost = ChargeCost::SAME;
        let (member, members, hold) = (0, 1, None);
        Self { debt_policy, policy, key: key.into(), partition, cost, member, members, hold }
    }
}

/// The units that a request takes, the keys it charges, and the mode of its decision.
struct DegradedTake {
    op: LimitOp,
    take: TakeParams,
    charges: Vec<DegradedCharge>,
    mode: OnUnavailable,
}

/// A decision without the owners, and those on each charge if they are asked for.
struct DegradedDecision {
    result: ChargeResult,
    facts: Vec<TakeInfo>,
}

/// Whether a command is decided while its owner is out of reach.
pub(super) fn is_taking(
    limits: &Limits,
    command: &Command<'_>,
    form: &Form<'_>,
    lookup: &KeyLookup<'_>,
) -> bool {
    let is_bound = matches!(&lookup.key_limit, Ok(Some(found)) if found.companion().is_none());
    let selects_one = || {
        let policy_arg = selected_policy(&command.operation, form);
        !matches!(policy_arg, PolicyArg::Configured)
    };
    // A `take` alone passes on a plain key.
    let passes = || {
        let is_take = matches!(command.operation, Operation::Native(Native::Take(_)));
        let is_plain = is_take && lookup.has_no_limit();
        is_plain && limits.unlimited(command.key.as_bytes()).is_some()
    };
    LimitOp::is_take(&command.operation) && (is_bound || selects_one() || passes())
}

impl ExecContext<'_> {
    /// The take of a request; `None` if it cannot be decided without its owner.
    fn taking(
        &mut self,
        request: &Request<'_>,
        default: OnUnavailable,
        place: impl Fn(u64) -> Partition,
    ) -> Option<DegradedTake> {
        let mut counted = Vec::new();
        match request {
            Request::TakeMany { many, .. } => {
                let is_listed = self.list_all_charges(many, &mut counted).ok()?;
                let op = LimitOp::of_many(many);
                is_listed.then(|| self.listed(op, default, place))?
            }
            Request::Command { command, form } => {
                let own = command.key.as_bytes();
                let lookup = look_up(self, own, &mut counted);
                if !is_taking(self.active_limits.limits(), command, form, &lookup) {
                    return None;
                }
                let hash = lookup.hash;
                let found = lookup.key_limit.as_ref().ok()?.as_ref();
                let bound = found.filter(|found| found.companion().is_none());
                let key = bound.map_or(own, LimitMatch::key);
                let op = LimitOp::of(&command.operation)?;
                let LimitAction::Take(take) = op.action else { return None };
                let selected = selected_policy(&command.operation, form);
                let (debt_policy, policy, mode) = match selected {
                    PolicyArg::Inline(token) => {
                        let policy = Policy::parse(token).ok()?;
                        (DebtPolicy::Written(token.into()), policy, default)
                    }
                    PolicyArg::Named(_) if self.is_exempt(own) => exempt(),
                    PolicyArg::Named(name) => {
                        let limit = self.active_limits.limits().by_name(name)?;
                        let mode = limit.on_unavailable().unwrap_or(default);
                        (DebtPolicy::Named(name.into()), *limit.policy_of(key), mode)
                    }
                    PolicyArg::Configured => {
                        let Some(found) = bound else {
                            return self.unlimited(op, take, own, place(hash), default);
                        };
                        if found.charges_more() {
                            self.list_charges(found).ok()?;
                            return self.listed(op.with_weight(found), default, place);
                        }
                        let limit = found.limit();
                        let mode = limit.on_unavailable().unwrap_or(default);
                        (DebtPolicy::Named(limit.name().as_bytes().into()), *found.policy(), mode)
                    }
                };
                let charge = DegradedCharge::of_one(debt_policy, policy, key, place(hash));
                Some(DegradedTake { op, take, charges: vec![charge], mode })
            }
            _ => None,
        }
    }

    /// The take of a key without a limit whose requests pass.
    fn unlimited(
        &self,
        op: LimitOp,
        take: TakeParams,
        own: &[u8],
        partition: Partition,
        default: OnUnavailable,
    ) -> Option<DegradedTake> {
        let (debt_policy, policy, mode) = match self.active_limits.limits().unlimited(own)? {
            Unlimited::Exempt => exempt(),
            Unlimited::Fallback(limit) => {
                // The node's own count has nothing to divide.
                let mode = match limit.on_unavailable().unwrap_or(default) {
                    OnUnavailable::Local => OnUnavailable::Allow,
                    mode => mode,
                };
                (DebtPolicy::Named(limit.name().as_bytes().into()), *limit.policy(), mode)
            }
        };
        let charge = DegradedCharge::of_one(debt_policy, policy, own, partition);
        Some(DegradedTake { op, take, charges: vec![charge], mode })
    }

    fn is_exempt(&self, key: &[u8]) -> bool {
        self.active_limits.limits().exemption(key).is_some()
    }

    /// The take of the keys that `scratch.charges` lists.
    fn listed(
        &self,
        op: LimitOp,
        default: OnUnavailable,
        place: impl Fn(u64) -> Partition,
    ) -> Option<DegradedTake> {
        let LimitAction::Take(take) = op.action else { return None };
        let limits = self.active_limits.limits();
        let mut mode = None;
        let mut charges = Vec::new();
        for row in self.scratch.charges.rows() {
            let limit = limits.get(row.limit)?;
            mode = mode.or(limit.on_unavailable());
            charges.push(DegradedCharge {
                debt_policy: DebtPolicy::Named(limit.name().as_bytes().into()),
                policy: *limit.policy_of(row.key),
                key: row.key.into(),
                partition: place(row.hash),
                member: row.member,
                members: row.members,
                cost: row.cost,
                hold: row.hold,
            });
        }
        Some(DegradedTake { op, take, charges, mode: mode.unwrap_or(default) })
    }

    /// Writes the reply of a degraded decision. `policy` is the whole policy of the first key.
    fn write_degraded_reply(
        &mut self,
        request: &Request<'_>,
        op: LimitOp,
        policy: &Policy,
        mut charged: ChargeResult,
        out: &mut Vec<u8>,
    ) {
        if let Request::Command { command, .. } = request
            && matches!(command.operation, Operation::Arithmetic(_))
        {
            // A plain client compares with the whole limit, not with this node's share.
            charged.first = with_limit(charged.first, whole_limit(policy, self.now));
        }
        let outcome = match op.reply(charged) {
            Outcome::Verdict(line) => Outcome::Verdict(VerdictLine { degraded: true, ..line }),
            other => other,
        };
        let mut counted_key = Vec::new();
        match request {
            Request::TakeMany { quiet: false, .. } => {
                write_many_reply(&outcome, out);
            }
            Request::Command { command, form } => {
                let lookup = look_up(self, command.key.as_bytes(), &mut counted_key);
                let found = lookup.key_limit.as_ref().ok().and_then(Option::as_ref);
                match found {
                    Some(found) if !matches!(command.operation, Operation::Native(_)) => {
                        self.write_limited_reply(found, command, form, outcome, out);
                    }
                    _ => encode(out, command, form, &outcome),
                }
            }
            _ => {}
        }
    }
}

impl Router {
    /// Decides a request whose owner is out of reach; returns `error` if it cannot be decided.
    pub(super) fn answer_degraded(
        &mut self,
        router_ctx: &mut RouterContext<'_>,
        raw_request: &[u8],
        error: &'static str,
    ) -> Bytes {
        let error = Bytes::from_static(error.as_bytes());
        let node = Arc::clone(self.node());
        let Some(keyspace) = node.keyspace() else { return error };
        let Some(default) = router_ctx.service.config().cluster.as_ref().map(|c| c.on_unavailable)
        else {
            return error;
        };
        let bounds = router_ctx.service.shards().bounds();
        let Ok(Decoded::Request { request, .. }) = decode(raw_request, 0, bounds) else {
            return error;
        };
        let mut ctx = router_ctx.exec_context();
        let place = |hash| partition_of(keyspace, hash);
        let Some(DegradedTake { op, take, charges, mode }) = ctx.taking(&request, default, place)
        else {
            return error;
        };
        let Some(first) = charges.first() else { return error };
        if let Some(refusal) = refusal(&take, charges.iter().map(|charge| &charge.policy)) {
            let reply = if error.is_empty() { String::new() } else { format!("{refusal}\r\n") };
            return Bytes::from(reply);
        }
        let now = ctx.now;
        let asked = asked_of(&request);
        let has_room = self.debts.len() + charges.len() <= DEBTS_MAX;
        let DegradedDecision { result: charged, facts } = match mode {
            OnUnavailable::Error => return error,
            OnUnavailable::Allow => fixed_decision(now, &charges, &take, true),
            OnUnavailable::Deny => fixed_decision(now, &charges, &take, false),
            OnUnavailable::Local if !has_room => fixed_decision(now, &charges, &take, false),
            OnUnavailable::Local => node.take_local(now, &charges, &take, asked),
        };
        let mut text = Vec::new();
        ctx.write_degraded_reply(&request, op, &first.policy, charged, &mut text);
        add_pairs(asked, charged, (&charges, &facts), &mut text);
        let held = charges.iter().filter(|one| one.hold.is_some());
        name_holds(
            &op.reply(charged),
            held.filter_map(|one| one.debt_policy.limit()),
            0,
            &mut text,
        );
        let is_debit = take.debit && has_room && mode == OnUnavailable::Local;
        if let TakeResult::Decided(facts) = charged.all
            && (is_debit || !facts.refuses())
            && !take.peek
        {
            let granted = if is_debit { take.cost } else { facts.decision.granted };
            node.metrics.degraded.fetch_add(granted, Ordering::Relaxed);
            if mode == OnUnavailable::Local {
                self.owe_all(router_ctx, charges, &take, (granted, facts.decision.lease));
            }
        }
        Bytes::from(text)
    }

    /// Owes what the node's own counts have allowed to the owners of the keys.
    fn owe_all(
        &mut self,
        router_ctx: &mut RouterContext<'_>,
        charges: Vec<DegradedCharge>,
        take: &TakeParams,
        (granted, lease): (u64, Option<u64>),
    ) {
        for (row, charge) in charges.into_iter().enumerate() {
            let units = charge.cost.capped(granted);
            if units == 0 {
                continue;
            }
            if let (Some(lease), Some(for_ns)) = (lease, charge.hold_ns(take)) {
                self.owe_hold(router_ctx, (lease, row), charge, (units, for_ns));
            } else {
                let name = (charge.debt_policy, charge.key);
                self.owe(router_ctx, name, charge.partition, units);
            }
        }
    }

    /// Answers a request by a degraded decision after its operation failed.
    pub(super) fn answer_failed(
        &mut self,
        router_ctx: &mut RouterContext<'_>,
        pending: &PendingOp,
        raw_request: &[u8],
        quiet: bool,
        error: &'static str,
    ) {
        let text = self.answer_degraded(router_ctx, raw_request, if quiet { "" } else { error });
        self.completions.push(Completion::ready(pending.client, pending.place, text));
    }
}
