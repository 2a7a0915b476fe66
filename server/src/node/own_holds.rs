//! Holds that this node granted by itself while their owner was out of reach.
//!
//! Here: the holds that an owner does not know yet, reporting them, and settling or renewing them
//! before that. Not here: granting them (`degraded`).
//!
//! The report of a hold contains its name and the time it has left, so the owner counts a repeated
//! report once. A hold that the owner knows is like any other: its owner settles it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cluster::id::Partition;
use engine::{ForeignHold, TakeParams};
use protocol::{Algorithm, Command, Form, Native, Operation, encode};
use tollgate_limits::ChargeCost;

use super::debts::DebtPolicy;
use super::degraded::{DegradedCharge, LocalCounts};
use super::pending::{OpAccess, OpResult, ReplyKind};
use super::router::operation;
use super::router::{Router, RouterContext};
use super::state_machine::OpKind;
use super::sub_request::{SubOp, SubRequest};
use crate::commands::limit_op::LimitOp;
use crate::commands::multi_key::hold_of;

/// A hold on one key: the name it shares with those on other keys, and its index among them.
pub(super) type HoldName = (u64, usize);

/// A hold that this node has to report to its owner.
#[derive(Debug)]
struct OwnHold {
    debt_policy: DebtPolicy,
    key: Box<[u8]>,
    partition: Partition,
    units: u64,
    /// Its cost, made of that of the request.
    cost: ChargeCost,
    /// Its policy is `concurrency`, which counts holders.
    is_holder: bool,
    /// The end, on the monotonic clock.
    end_ns: u64,
    /// A report is under way.
    is_under_way: bool,
}

/// The holds that their owners do not know yet.
#[derive(Debug, Default)]
pub(super) struct OwnHolds {
    open: BTreeMap<HoldName, OwnHold>,
}

/// The holds that a worker granted and has to report.
#[derive(Debug, Default)]
pub(super) struct HoldsToTell {
    names: Vec<HoldName>,
    /// The hold of each report that is under way.
    numbers: slab::Slab<HoldName>,
}

impl DegradedCharge {
    /// The nanoseconds for which the request or a rule holds the units.
    pub(super) fn hold_of(&self, take: &TakeParams) -> Option<u64> {
        let is_holder = matches!(self.policy.algorithm, Algorithm::Concurrency { .. });
        hold_of((self.hold, is_holder), self.cost, take)
    }

    /// The same, with the duration of the policy; `None`: they are not held.
    pub(super) fn hold_ns(&self, take: &TakeParams) -> Option<u64> {
        match self.policy.algorithm {
            Algorithm::Concurrency { hold, .. } => Some(self.hold_of(take).unwrap_or(hold)),
            _ => self.hold_of(take),
        }
    }
}

impl OwnHolds {
    fn of_lease(&mut self, lease: u64) -> impl Iterator<Item = (&HoldName, &mut OwnHold)> {
        self.open.range_mut((lease, 0)..=(lease, usize::MAX))
    }

    /// Whether no report of this hold is under way, and the hold is here.
    fn has(&mut self, lease: u64) -> bool {
        let mut holds = self.of_lease(lease).peekable();
        holds.peek().is_some() && holds.all(|(_, hold)| !hold.is_under_way)
    }
}

impl HoldsToTell {
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.numbers.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.names.len() + self.numbers.len()
    }
}

impl Router {
    /// Adds a hold that was granted, to report it to its owner.
    pub(super) fn owe_hold(
        &mut self,
        ctx: &mut RouterContext<'_>,
        (lease, row): HoldName,
        charge: DegradedCharge,
        (units, for_ns): (u64, u64),
    ) {
        let DegradedCharge { debt_policy, key, partition, policy, cost, .. } = charge;
        let is_holder = matches!(policy.algorithm, Algorithm::Concurrency { .. });
        let end_ns = ctx.now.mono_ns.saturating_add(for_ns);
        let hold = OwnHold {
            debt_policy,
            key,
            partition,
            units,
            cost,
            is_holder,
            end_ns,
            is_under_way: false,
        };
        self.node().metrics.debt.fetch_add(units, Ordering::Relaxed);
        self.node().local.lock().holds.open.insert((lease, row), hold);
        self.debts.holds.names.push((lease, row));
        self.send_holds(ctx);
    }

    /// Reports the open holds to owners that may be in reach.
    pub(super) fn send_holds(&mut self, ctx: &mut RouterContext<'_>) {
        let node = Arc::clone(self.node());
        for name in std::mem::take(&mut self.debts.holds.names) {
            let mut local = node.local.lock();
            let Some(hold) = local.holds.open.get_mut(&name) else { continue };
            let for_ns = hold.end_ns.saturating_sub(ctx.now.mono_ns);
            if for_ns == 0 {
                node.metrics.debt.fetch_sub(hold.units, Ordering::Relaxed);
                local.holds.open.remove(&name);
                continue;
            }
            let partition = hold.partition;
            if self.is_resting(ctx.now, partition) {
                self.debts.holds.names.push(name);
                continue;
            }
            hold.is_under_way = true;
            let op = SubOp::Hold(ForeignHold { lease: name.0, units: hold.units, for_ns });
            let mut bytes = Vec::new();
            SubRequest { policy: hold.debt_policy.sub_policy(), key: &hold.key, op }
                .encode(&mut bytes);
            drop(local);
            let reply_kind = ReplyKind::Hold(self.debts.holds.numbers.insert(name));
            let op = operation(OpKind::SubRequest, &bytes);
            self.submit(ctx, partition, OpAccess::Write, &op, 0, reply_kind);
        }
    }

    /// Completes the report of a hold: the owner knows it now, or the report is repeated.
    pub(super) fn on_hold_sent(&mut self, index: usize, result: &OpResult) {
        let Some(name) = self.debts.holds.numbers.try_remove(index) else { return };
        let node = Arc::clone(self.node());
        let mut local = node.local.lock();
        let Some(hold) = local.holds.open.get_mut(&name) else { return };
        hold.is_under_way = false;
        if matches!(result, OpResult::Done(_)) {
            node.metrics.debt.fetch_sub(hold.units, Ordering::Relaxed);
            local.holds.open.remove(&name);
        } else {
            self.debts.holds.names.push(name);
        }
    }

    /// Settles or renews a hold that its owner does not know yet. Returns `None` for any other hold
    /// or command.
    pub(super) fn change_own_hold(
        &mut self,
        ctx: &mut RouterContext<'_>,
        command: &Command<'_>,
        form: &Form<'_>,
    ) -> Option<Bytes> {
        let Operation::Native(native) = &command.operation else { return None };
        let (lease, renewed_ns) = match native {
            Native::Settle { lease, .. } => (*lease, None),
            Native::Renew { lease, for_ns } => (*lease, Some(*for_ns)),
            _ => return None,
        };
        let now = ctx.exec_context().now;
        let node = Arc::clone(self.node());
        let mut local = node.local.lock();
        if !local.holds.has(lease) {
            return None;
        }
        let (mut first, mut owed) = (None, Vec::new());
        let LocalCounts { engine, hasher, holds } = &mut *local;
        for (_, hold) in holds.of_lease(lease) {
            let hash = hasher.hash(&hold.key);
            let done = if let Native::Settle { actual, .. } = native {
                node.metrics.debt.fetch_sub(hold.units, Ordering::Relaxed);
                // Used units stay used; a holder no longer holds anything.
                let actual = hold.cost.settled(*actual);
                if !hold.is_holder && actual > 0 {
                    let name = (hold.debt_policy.clone(), hold.key.clone());
                    owed.push((name, hold.partition, actual));
                }
                engine.settle(now, hash, &hold.key, lease, actual)
            } else {
                let for_ns = renewed_ns.unwrap_or(0);
                hold.end_ns = ctx.now.mono_ns.saturating_add(for_ns);
                engine.renew(now, hash, &hold.key, lease, for_ns)
            };
            first.get_or_insert(done);
        }
        let done = first?;
        if renewed_ns.is_none() {
            holds.open.retain(|(other, _), _| *other != lease);
        }
        drop(local);
        for (name, partition, actual) in owed {
            self.owe(ctx, name, partition, actual);
        }
        let outcome = LimitOp::of(&command.operation)?.reply_one(done);
        let mut text = Vec::new();
        encode(&mut text, command, form, &outcome);
        Some(Bytes::from(text))
    }
}
