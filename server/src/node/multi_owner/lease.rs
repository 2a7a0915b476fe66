//! A lease of a key whose parents have other owners.
//!
//! Here: its three rounds. Not here: the lease of one key (`engine`), the same on one node
//! (`crate::commands::multi_key`).
//!
//! 1. *Look*: each owner says what it could give; the owner of the key, what it would lease.
//! 2. *Lend*: the parents are charged with the least of these units, all or none.
//! 3. *Lease*: the owner of the key leases at most these units, and notes the client's report.
//!
//! The parents pay before the key leases, so units that a client holds are always charged to all.
//! Units that the key does not lease after all are refunded; if a refund is lost, they stay spent.
//! The report counts in the last round alone: after any earlier failure, the client may repeat it.

use bytes::Bytes;
use cluster::id::Partition;
use engine::{LeaseParams, TakeParams, TakeResult};
use protocol::{COUNT_MAX, Decoded, Lease, LeaseLine, Outcome, Request, decode};
use tollgate_limits::Limit;

use super::{LIMITS_CHANGE, SOON_NS};
use crate::commands::context::ExecContext;
use crate::commands::multi_key::{Adjustment, ChargeRow, ChargeSet};
use crate::node::pending::{Client, Completion, NOT_APPLIED, UNKNOWN};
use crate::node::router::{RouterContext, operation};
use crate::node::state_machine::OpKind;
use crate::node::sub_request::{SubOp, SubPolicy, SubRequest, SubResponse};

/// The key of the lease, or one of its parents.
struct LeaseRow {
    limit: Box<[u8]>,
    key: Box<[u8]>,
    partition: Partition,
    /// The limit only reports.
    shadow: bool,
    /// Units that a parent lent and would take back.
    lent: u64,
}

/// The client's request.
struct ClientLease {
    name: Box<[u8]>,
    want: u64,
    used: u64,
    unused: u64,
    weight: u32,
    ttl: Option<u64>,
}

/// A round of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseRound {
    Look,
    /// The parents are charged with these units.
    Lend(u64),
    /// The key leases at most these units.
    Lease(u64),
}

/// A lease over several owners that is under way.
pub(in crate::node) struct LeaseRequest {
    client: Client,
    place: u64,
    raw_request: Bytes,
    quiet: bool,
    lease: ClientLease,
    /// The key, then its parents.
    rows: Vec<LeaseRow>,
    round: LeaseRound,
    /// The responses of this round, in the order of its operations.
    parts: Vec<Option<Result<SubResponse, &'static str>>>,
}

/// The end of a round.
pub(in crate::node) enum RoundResult {
    Next(Box<LeaseRequest>),
    Completed(Completion),
}

/// The end of a lease, as its client reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseReply {
    Leased(LeaseLine),
    /// An owner has no room for the state.
    Full,
    Error(&'static str),
}

impl LeaseRequest {
    /// Makes a lease of the first key of `charges`, which lists its parents too.
    pub(in crate::node) fn new(
        (client, place): (Client, u64),
        (raw_request, quiet): (&[u8], bool),
        lease: &Lease<'_>,
        ctx: &ExecContext<'_>,
        charges: &ChargeSet,
        partition_of: impl Fn(u64) -> Partition,
    ) -> Self {
        let limits = ctx.active_limits.limits();
        let row = |row: ChargeRow<'_>| LeaseRow {
            limit: limits.get(row.limit).map_or("", Limit::name).as_bytes().into(),
            key: row.key.into(),
            partition: partition_of(row.hash),
            shadow: row.shadow,
            lent: 0,
        };
        let &Lease { client: name, want, used, unused, weight, ttl, .. } = lease;
        let lease = ClientLease { name: name.into(), want, used, unused, weight, ttl };
        let rows: Vec<LeaseRow> = charges.rows().map(row).collect();
        let parts = vec![None; rows.len()];
        let raw_request = Bytes::copy_from_slice(raw_request);
        Self { client, place, raw_request, quiet, lease, rows, round: LeaseRound::Look, parts }
    }

    /// The operations of this round, with their partitions.
    pub(in crate::node) fn operations(&self) -> Vec<(Partition, Bytes)> {
        let of = |row: &LeaseRow, op| (row.partition, row.sub_request(op));
        let (first, parents) = self.rows.split_at(1.min(self.rows.len()));
        let lease = |max, peek| {
            let &ClientLease { ref name, want, used, unused, weight, ttl } = &self.lease;
            SubOp::Lease(LeaseParams { client: name, want, used, unused, weight, ttl, max, peek })
        };
        match self.round {
            LeaseRound::Look => {
                let peek = TakeParams { peek: true, ..TakeParams::default() };
                let first = first.iter().map(|row| of(row, lease(u64::MAX, true)));
                first.chain(parents.iter().map(|row| of(row, SubOp::Take(peek, None)))).collect()
            }
            LeaseRound::Lend(units) => {
                parents.iter().map(|row| of(row, SubOp::Lend(units))).collect()
            }
            LeaseRound::Lease(max) => first.iter().map(|row| of(row, lease(max, false))).collect(),
        }
    }

    /// Records the outcome of an operation of this round. Returns true if it was the last.
    pub(in crate::node) fn note(
        &mut self,
        index: usize,
        result: Result<Bytes, &'static str>,
    ) -> bool {
        let Some(part @ None) = self.parts.get_mut(index) else { return false };
        // An owner without such a limit answers otherwise.
        let read = |bytes: Bytes| SubResponse::decode(&bytes).ok_or(LIMITS_CHANGE);
        *part = Some(result.and_then(read));
        self.parts.iter().all(Option::is_some)
    }

    /// Ends a round: with the next one, or with the reply. Returns the refunds to send too.
    pub(in crate::node) fn finish(
        mut self: Box<Self>,
        router_ctx: &RouterContext<'_>,
    ) -> (RoundResult, Vec<(Partition, Bytes)>) {
        let next = match self.round {
            LeaseRound::Look => self.least_spare().map(|units| match units {
                units if units == 0 || self.rows.len() < 2 => (LeaseRound::Lease(units), 0),
                units => (LeaseRound::Lend(units), 0),
            }),
            LeaseRound::Lend(units) => self.lent().map(|have_all| {
                let kept = if have_all { units } else { 0 };
                (LeaseRound::Lease(kept), kept)
            }),
            LeaseRound::Lease(_) => Err(self.leased()),
        };
        match next {
            Ok((round, kept)) => {
                // Units that only some parents lent are of no use.
                let is_lent = matches!(self.round, LeaseRound::Lend(_)) && kept == 0;
                let back = if is_lent { self.refunds(0) } else { Vec::new() };
                self.round = round;
                self.parts = vec![None; self.operations().len()];
                (RoundResult::Next(self), back)
            }
            Err(reply) => {
                let kept = match (&reply, self.round) {
                    (LeaseReply::Leased(line), _) => line.granted,
                    // The owner may have leased them.
                    (LeaseReply::Error(UNKNOWN), LeaseRound::Lease(units)) => units,
                    _ => 0,
                };
                let back = self.refunds(kept);
                (RoundResult::Completed(self.completion(&reply, router_ctx)), back)
            }
        }
    }

    /// The least units that all keys can give, after the round of looking. From now on the client
    /// wants no more than its parents can spare.
    fn least_spare(&mut self) -> Result<u64, LeaseReply> {
        let (mut spare, mut leased) = (u64::MAX, 0);
        for (part, row) in self.parts.iter().zip(&self.rows) {
            match part {
                Some(Ok(SubResponse::Leased(line))) => leased = line.granted,
                Some(Ok(SubResponse::Result(TakeResult::Decided(facts)))) => {
                    let left = facts.decision.left();
                    spare = spare.min(if row.shadow { COUNT_MAX } else { left });
                }
                other => return Err(failure(*other)),
            }
        }
        self.lease.want = self.lease.want.min(spare);
        Ok(leased.min(spare))
    }

    /// Notes the units of each parent, after the round of lending. Returns whether all lent them.
    fn lent(&mut self) -> Result<bool, LeaseReply> {
        let (mut have_all, mut failed) = (true, None);
        for (part, row) in self.parts.iter().zip(self.rows.iter_mut().skip(1)) {
            match part {
                Some(Ok(SubResponse::Result(TakeResult::Decided(facts)))) => {
                    have_all &= !facts.refuses();
                    // Units that become free this soon may be free before a refund arrives, and it
                    // would then be taken off the next window.
                    let is_kept = facts.refuses() || facts.decision.reset <= SOON_NS;
                    row.lent = if is_kept { 0 } else { facts.decision.granted };
                }
                other => failed = failed.or(Some(failure(*other))),
            }
        }
        failed.map_or(Ok(have_all), Err)
    }

    /// The reply after the last round.
    fn leased(&self) -> LeaseReply {
        match self.parts.first().copied().flatten() {
            Some(Ok(SubResponse::Leased(line))) => LeaseReply::Leased(line),
            Some(Err(UNKNOWN)) => LeaseReply::Error(UNKNOWN),
            other => failure(other),
        }
    }

    /// The refunds of the units that parents lent beyond `kept`.
    fn refunds(&self, kept: u64) -> Vec<(Partition, Bytes)> {
        let beyond = self.rows.iter().map(|row| (row, row.lent.saturating_sub(kept)));
        let refund = |(row, units): (&LeaseRow, u64)| {
            (row.partition, row.sub_request(SubOp::Adjust(Adjustment::Refund(units))))
        };
        beyond.filter(|(_, units)| *units > 0).map(refund).collect()
    }

    fn completion(&self, reply: &LeaseReply, router_ctx: &RouterContext<'_>) -> Completion {
        let bounds = router_ctx.service.shards().bounds();
        let mut text = Vec::new();
        match reply {
            LeaseReply::Error(_) if self.quiet => {}
            LeaseReply::Error(error) => text.extend_from_slice(error.as_bytes()),
            LeaseReply::Full | LeaseReply::Leased(_) => {
                let outcome = match reply {
                    LeaseReply::Leased(line) => Outcome::Leased(*line),
                    _ => Outcome::OutOfMemory,
                };
                if let Ok(Decoded::Request {
                    request: Request::Command { command, form }, ..
                }) = decode(&self.raw_request, 0, bounds)
                {
                    protocol::encode(&mut text, &command, &form, &outcome);
                }
            }
        }
        Completion::ready(self.client, self.place, Bytes::from(text))
    }
}

/// The reply after an operation that leased nothing.
fn failure(part: Option<Result<SubResponse, &'static str>>) -> LeaseReply {
    match part {
        Some(Ok(SubResponse::Result(TakeResult::Full))) => LeaseReply::Full,
        Some(Ok(_)) => LeaseReply::Error(LIMITS_CHANGE),
        // Units may be spent, but the lease and the client's report did not change.
        None | Some(Err(UNKNOWN)) => LeaseReply::Error(NOT_APPLIED),
        Some(Err(why)) => LeaseReply::Error(why),
    }
}

impl LeaseRow {
    fn sub_request(&self, op: SubOp<'_>) -> Bytes {
        let mut bytes = Vec::new();
        SubRequest { policy: SubPolicy::Named(&self.limit), key: &self.key, op }.encode(&mut bytes);
        operation(OpKind::SubRequest, &bytes)
    }
}
