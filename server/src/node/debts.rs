//! The debts of a node to owners: units that it allowed by itself while they were out of reach.
//!
//! Here: adding up the units of each key, and charging them to the owner, once. Not here: allowing
//! them (`degraded`), holds (`own_holds`).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use cluster::id::Partition;

use super::own_holds::HoldsToTell;
use super::pending::{OpAccess, OpResult, ReplyKind};
use super::router::{Router, RouterContext, operation};
use super::state_machine::OpKind;
use super::sub_request::{SubOp, SubPolicy, SubRequest};

/// An operation that charges a debt is retried for this long.
const DEBT_DEADLINE_NS: u64 = 3_600_000_000_000;

/// The policy of a key, in the form in which its owner receives it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DebtPolicy {
    Named(Box<[u8]>),
    Written(Box<[u8]>),
}

impl DebtPolicy {
    /// The name of the limit, if it is that of one.
    pub(super) fn limit(&self) -> Option<&str> {
        match self {
            Self::Named(limit) => str::from_utf8(limit).ok(),
            Self::Written(_) => None,
        }
    }

    pub(super) fn sub_policy(&self) -> SubPolicy<'_> {
        match self {
            Self::Named(limit) => SubPolicy::Named(limit),
            Self::Written(token) => SubPolicy::Written(token),
        }
    }
}

/// The debt of a worker for one key.
#[derive(Debug, Default)]
struct Debt {
    /// Units in the operation that is under way to the owner.
    sent: u64,
    /// Units that were allowed since that operation was sent.
    more: u64,
    partition: Partition,
}

#[derive(Debug, Default)]
pub(super) struct Debts {
    open: BTreeMap<(DebtPolicy, Box<[u8]>), Debt>,
    /// The policy and key of each operation that charges a debt.
    numbers: slab::Slab<(DebtPolicy, Box<[u8]>)>,
    pub(super) holds: HoldsToTell,
}

impl Debts {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.holds.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.open.len() + self.holds.len()
    }
}

impl Router {
    /// Adds units that were allowed without the owner of their key to the debt of that key.
    pub(super) fn owe(
        &mut self,
        router_ctx: &mut RouterContext<'_>,
        name: (DebtPolicy, Box<[u8]>),
        partition: Partition,
        units: u64,
    ) {
        self.node().metrics.debt.fetch_add(units, Ordering::Relaxed);
        let debt = self.debts.open.entry(name.clone()).or_default();
        debt.more = debt.more.saturating_add(units);
        debt.partition = partition;
        self.send_debt(router_ctx, name);
    }

    /// Sends the debt of a key to its owner, unless an earlier part of it is under way.
    fn send_debt(&mut self, router_ctx: &mut RouterContext<'_>, name: (DebtPolicy, Box<[u8]>)) {
        let Some(debt) = self.debts.open.get_mut(&name) else { return };
        if debt.sent > 0 || debt.more == 0 {
            return;
        }
        debt.sent = std::mem::take(&mut debt.more);
        let mut bytes = Vec::new();
        SubRequest { policy: name.0.sub_policy(), key: &name.1, op: SubOp::Debt(debt.sent) }
            .encode(&mut bytes);
        let partition = debt.partition;
        let reply_kind = ReplyKind::Debt(self.debts.numbers.insert(name));
        let op = operation(OpKind::SubRequest, &bytes);
        self.submit_until(
            router_ctx,
            DEBT_DEADLINE_NS,
            partition,
            OpAccess::Write,
            &op,
            0,
            reply_kind,
        );
    }

    /// Completes the charge of a debt. Its units remain owed if it was certainly not applied.
    pub(super) fn debt_ended(
        &mut self,
        router_ctx: &mut RouterContext<'_>,
        index: usize,
        result: &OpResult,
    ) {
        let Some(name) = self.debts.numbers.try_remove(index) else { return };
        let Some(debt) = self.debts.open.get_mut(&name) else { return };
        let sent = std::mem::take(&mut debt.sent);
        if matches!(result, OpResult::NotApplied(_)) {
            debt.more = debt.more.saturating_add(sent);
        } else {
            self.node().metrics.debt.fetch_sub(sent, Ordering::Relaxed);
        }
        let Some(debt) = self.debts.open.get(&name) else { return };
        if debt.more == 0 {
            self.debts.open.remove(&name);
        } else if matches!(result, OpResult::Done(_)) {
            self.send_debt(router_ctx, name);
        }
    }

    /// Sends the debts that are not under way, to owners that may be in reach again.
    pub(super) fn send_debts(&mut self, router_ctx: &mut RouterContext<'_>) {
        self.send_holds(router_ctx);
        let waiting: Vec<_> = self
            .debts
            .open
            .iter()
            .filter(|(_, debt)| debt.sent == 0 && debt.more > 0)
            .filter(|(_, debt)| !self.is_resting(router_ctx.now, debt.partition))
            .map(|(name, _)| name.clone())
            .collect();
        for name in waiting {
            self.send_debt(router_ctx, name);
        }
    }
}
