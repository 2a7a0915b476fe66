//! Keys with several owners that are charged together: all of them or none.
//!
//! Here: the operation on each key of a request, and the one reply made of the owners' answers. Not
//! here: the operation on one key (`sub_request`), leases (`lease`), charging together on one node
//! (`crate::commands::multi_key`).
//!
//! All keys are charged concurrently, each by its owner. If one owner refuses or does not answer,
//! the units of the others are refunded; a refund that is lost leaves its units spent. No limit
//! therefore allows too much, and of two concurrent requests both may be refused where one would
//! have fitted.

pub(super) mod lease;
mod reply;

use bytes::Bytes;
use cluster::id::Partition;
use engine::algorithms::{Decision, Verdict};
use engine::{TakeInfo, TakeParams, TakeResult};
use protocol::{Form, IncrX, Native, Operation, Policy, PolicyArg, Take, TakeMany};
use tollgate_limits::{CAS_OF_REFUND, ChargeCost, Limit, LimitMatch};

use self::reply::OwnersDecision;
use super::pending::{Client, Completion, ReplyKind};
use super::router::RouterContext;
use super::router::operation;
use super::state_machine::OpKind;
use super::sub_request::{SubOp, SubPolicy, SubRequest, SubResponse};
use crate::commands::context::ExecContext;
use crate::commands::limit_op::{LimitAction, LimitOp, selected_policy};
use crate::commands::multi_key::{Adjustment, ChargeResult, ChargeSet, deny_beyond};
use crate::probe::SampledVerb;

/// Why a command is not a request over several owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotMultiOwner {
    /// The command concerns one key only.
    OneKey,
    /// Several owners cannot perform the command together.
    Unsupported(&'static str),
}

/// An upper bound of the time between a charge and its refund.
const SOON_NS: u64 = 2_500_000_000;

const NO_IDS: &str = "SERVER_ERROR id= is not kept for keys of several owners";
const NO_CAS_OF_REFUND: &str =
    "CLIENT_ERROR ma: C<n> does not go with MD on a key of several owners";
const LIMITS_CHANGE: &str = "SERVER_ERROR not applied: limits are changing\r\n";

/// The operation that a command on a key whose limit has parents applies to all of them.
pub(super) fn limit_op_of(
    found: &LimitMatch<'_>,
    operation: &Operation<'_>,
    form: &Form<'_>,
) -> Result<LimitOp, NotMultiOwner> {
    let is_own = match selected_policy(operation, form) {
        PolicyArg::Configured => true,
        PolicyArg::Named(name) => name == found.limit().name().as_bytes(),
        PolicyArg::Inline(_) => false,
    };
    if found.companion().is_some() || !is_own {
        return Err(NotMultiOwner::OneKey);
    }
    match operation {
        Operation::Native(
            Native::Take(Take { id: Some(_), .. }) | Native::IncrX(IncrX { id: Some(_), .. }),
        ) => Err(NotMultiOwner::Unsupported(NO_IDS)),
        Operation::Native(Native::IncrX(incrx)) if incrx.delta < 0 && incrx.cas.compares() => {
            Err(NotMultiOwner::Unsupported(CAS_OF_REFUND))
        }
        operation => {
            let op = LimitOp::of(operation).ok_or(NotMultiOwner::OneKey)?;
            if op.change_cas.is_some() {
                return Err(NotMultiOwner::Unsupported(NO_CAS_OF_REFUND));
            }
            Ok(op.with_weight(found))
        }
    }
}

/// The reply to a `takem` with this `id`, if the node must refuse it.
pub(super) fn refuses_id(id: Option<&[u8]>) -> Option<&'static str> {
    id.map(|_| NO_IDS)
}

/// Gives a take that holds a name for its holds on all keys.
pub(super) fn give_hold_name(op: &mut LimitOp, charges: &ChargeSet, name: impl FnOnce() -> u64) {
    if let LimitAction::Take(take) = &mut op.action
        && !take.peek
        && charges.rows().any(|row| row.holds_by_itself || row.hold_of(take).is_some())
    {
        take.lease = Some(name());
        // A hold is never returned in part: either all of it is held, or nothing.
        take.part = false;
    }
}

/// One key of a request.
struct OwnerRow {
    limit: Box<[u8]>,
    key: Box<[u8]>,
    partition: Partition,
    counts_refused: bool,
    member: usize,
    members: u16,
    cost: ChargeCost,
    shadow: bool,
    policy: Policy,
    /// Nanoseconds for which the cost is held.
    hold: Option<u64>,
    /// The verdict line names the hold.
    is_named: bool,
    /// The verb and the client's key with which the owner records the decision.
    recorded: Option<(SampledVerb, Box<[u8]>)>,
}

/// The state of the sub-request of a key.
#[derive(Debug, Clone, Copy)]
enum SubRequestState {
    Open,
    Reported(SubResponse),
    Failed(&'static str),
}

/// The result of a request over several owners.
pub(super) enum MultiOwnerResult {
    Completed(Completion),
    /// Some owner has not answered.
    Failed {
        client: Client,
        place: u64,
        raw_request: Bytes,
        quiet: bool,
        error: &'static str,
    },
}

/// A request over several owners that is under way.
pub(super) struct MultiOwnerRequest {
    client: Client,
    place: u64,
    raw_request: Bytes,
    /// The client expects no reply to a failure.
    quiet: bool,
    /// The reply is the part of one key of a retrieval.
    is_part: bool,
    op: LimitOp,
    /// A key refuses the cost without being asked: it is more than a limit can have.
    is_beyond: bool,
    rows: Vec<OwnerRow>,
    parts: Vec<SubRequestState>,
    open: usize,
}

/// The keys of a request, on which their owners record the decisions.
pub(super) struct RecordedKeys {
    verb: SampledVerb,
    /// In the client's spelling and order; empty: nothing is recorded.
    keys: Vec<Box<[u8]>>,
}

impl RecordedKeys {
    /// The keys of no request.
    pub(super) const NONE: Self = Self { verb: SampledVerb::Take, keys: Vec::new() };

    /// The key of a command.
    pub(super) fn of_command(operation: &Operation<'_>, form: &Form<'_>, key: &[u8]) -> Self {
        let verb = match operation {
            Operation::Native(Native::Take(_)) => SampledVerb::Take,
            Operation::Arithmetic(_) if matches!(form, Form::Meta { .. }) => {
                SampledVerb::MetaArithmetic
            }
            Operation::Arithmetic(_) | Operation::Native(Native::IncrX(_)) => SampledVerb::Incr,
            _ => return Self::NONE,
        };
        Self { verb, keys: vec![key.into()] }
    }

    /// The keys of a `takem`.
    pub(super) fn of_many(many: &TakeMany<'_>) -> Self {
        let keys = many.keys.iter().map(|(key, _)| key.as_bytes().into()).collect();
        Self { verb: SampledVerb::TakeMany, keys }
    }
}

impl MultiOwnerRequest {
    /// Makes a request over all keys that `charges` lists.
    pub(super) fn new(
        client: Client,
        place: u64,
        (raw_request, reply_kind): (&[u8], &ReplyKind),
        (op, recorded): (LimitOp, RecordedKeys),
        ctx: &ExecContext<'_>,
        charges: &ChargeSet,
        partition_of: impl Fn(u64) -> Partition,
    ) -> Self {
        let limits = ctx.active_limits.limits();
        let RecordedKeys { verb, mut keys } = recorded;
        // The first row of a member is its own; a key that is listed twice has one.
        let mut recorded_as = |member: usize| {
            let key = std::mem::take(keys.get_mut(member)?);
            (!key.is_empty()).then_some((verb, key))
        };
        let rows: Vec<OwnerRow> = charges
            .rows()
            .map(|row| OwnerRow {
                limit: limits.get(row.limit).map_or("", Limit::name).as_bytes().into(),
                key: row.key.into(),
                partition: partition_of(row.hash),
                counts_refused: row.counts_refused,
                member: row.member,
                members: row.members,
                cost: row.cost,
                shadow: row.shadow,
                policy: *row.policy,
                hold: match &op.action {
                    LimitAction::Take(take) => row.hold_of(take),
                    LimitAction::Change(_) => None,
                },
                is_named: row.hold.is_some(),
                recorded: recorded_as(row.member),
            })
            .collect();
        let is_beyond = match op.action {
            LimitAction::Take(take) => {
                rows.iter().any(|row| !row.shadow && row.cost.of(take.cost).is_none())
            }
            LimitAction::Change(_) => false,
        };
        let parts = vec![SubRequestState::Open; rows.len()];
        let open = rows.len();
        let raw_request = Bytes::copy_from_slice(raw_request);
        let quiet = matches!(reply_kind, ReplyKind::Whole { quiet: true });
        let is_part = *reply_kind == ReplyKind::Part;
        Self { client, place, raw_request, quiet, is_part, op, is_beyond, rows, parts, open }
    }

    /// The operation on each key, with its partition.
    pub(super) fn operations(&self) -> Vec<(Partition, Bytes)> {
        let asked = |index: usize, row: &OwnerRow| match self.op.action {
            LimitAction::Take(take) => {
                let take = TakeParams {
                    cost: row.cost.capped(take.cost),
                    part: take.part && row.cost.is_scaled(),
                    hold: row.hold,
                    peek: take.peek
                        || (!take.debit && (self.is_beyond || row.cost.of(take.cost).is_none())),
                    compare_cas: take.compare_cas.filter(|_| index == 0),
                    client_flags: take.client_flags.filter(|_| index == 0),
                    ..take
                };
                row.sub_request(SubOp::Take(
                    take,
                    row.recorded.as_ref().map(|(verb, key)| (*verb, &**key)),
                ))
            }
            LimitAction::Change(change) => row.sub_request(SubOp::Adjust(change.of_key(row.cost))),
        };
        let of = |(index, row): (usize, &OwnerRow)| (row.partition, asked(index, row));
        self.rows.iter().enumerate().map(of).collect()
    }

    /// Records the outcome of a sub-request. Returns true if it was the last.
    pub(super) fn note(&mut self, row: usize, result: Result<Bytes, &'static str>) -> bool {
        let Some(part) = self.parts.get_mut(row) else { return false };
        if !matches!(part, SubRequestState::Open) {
            return false;
        }
        *part = match result {
            Ok(bytes) => match SubResponse::decode(&bytes) {
                Some(response) => SubRequestState::Reported(response),
                // The owner found no such limit on its node.
                None => SubRequestState::Failed(LIMITS_CHANGE),
            },
            Err(why) => SubRequestState::Failed(why),
        };
        self.open -= 1;
        self.open == 0
    }

    /// Returns the result, and the refunds to send.
    pub(super) fn finish(
        self,
        router_ctx: &mut RouterContext<'_>,
    ) -> (MultiOwnerResult, Vec<(Partition, Bytes)>) {
        let mut back = Vec::new();
        let ended = match self.outcome(&mut back) {
            Ok(decision) => {
                let mut text = Vec::new();
                self.write_reply(router_ctx, &decision, &mut text);
                let done = Completion::ready(self.client, self.place, Bytes::from(text));
                let kind = if self.is_part { ReplyKind::Part } else { done.kind.clone() };
                MultiOwnerResult::Completed(Completion { kind, ..done })
            }
            Err(error) if self.is_part => {
                let kind = ReplyKind::FailedPart(error);
                let done = Completion::ready(self.client, self.place, Bytes::new());
                MultiOwnerResult::Completed(Completion { kind, ..done })
            }
            Err(error) => {
                let Self { client, place, raw_request, quiet, .. } = self;
                MultiOwnerResult::Failed { client, place, raw_request, quiet, error }
            }
        };
        (ended, back)
    }

    fn outcome(&self, back: &mut Vec<(Partition, Bytes)>) -> Result<OwnersDecision, &'static str> {
        let take = match self.op.action {
            LimitAction::Take(take) => take,
            LimitAction::Change(_) => {
                return self.changed().map(|charged| OwnersDecision { charged, facts: Vec::new() });
            }
        };
        let mut facts: Vec<TakeInfo> = Vec::with_capacity(self.rows.len());
        let mut failed = None;
        let mut odd = None;
        for (part, row) in self.parts.iter().zip(&self.rows) {
            match part {
                SubRequestState::Reported(SubResponse::Result(TakeResult::Decided(decided))) => {
                    facts.push(row.judged(*decided, take.cost));
                }
                SubRequestState::Reported(SubResponse::Result(other)) => odd = odd.or(Some(*other)),
                SubRequestState::Reported(
                    SubResponse::NoLimit | SubResponse::Leased(_) | SubResponse::NotLeasable,
                ) => {
                    failed = failed.or(Some(LIMITS_CHANGE));
                }
                SubRequestState::Failed(why) => failed = failed.or(Some(*why)),
                SubRequestState::Open => {}
            }
        }
        let whole = facts.len() == self.rows.len();
        let refuses = facts.iter().any(TakeInfo::refuses);
        let granted =
            |facts: &TakeInfo, row: &OwnerRow| row.cost.paid_by(facts.decision.granted, take.cost);
        let agreed = |facts: &TakeInfo| !facts.shadow && facts.decision.verdict == Verdict::Part;
        let all_keep = if whole && !refuses {
            let parts = facts.iter().zip(&self.rows).filter(|(facts, _)| agreed(facts));
            Some(parts.map(|(facts, row)| granted(facts, row)).fold(take.cost, u64::min))
        } else {
            None
        };
        let is_peek = take.peek || (self.is_beyond && !take.debit);
        let mut given_back = Vec::new();
        if !is_peek {
            given_back = self.add_refunds(&take, (all_keep, refuses), back);
        }
        let all_keep = all_keep.unwrap_or(0);
        let charged = match (failed, odd) {
            (Some(why), _) => return Err(why),
            (None, Some(odd)) => ChargeResult::undecided(odd),
            (None, None) if refuses => {
                // Units that a key granted, or counted although it refused, are part of its usage.
                for facts in facts.iter_mut().filter(|_| !is_peek) {
                    facts.decision.counted |= facts.decision.granted > 0;
                }
                let retry = |facts: &TakeInfo| facts.decision.retry.unwrap_or(u64::MAX);
                let refusing = facts.iter().enumerate().filter(|(_, facts)| facts.refuses());
                let worst =
                    refusing.max_by_key(|(index, facts)| (retry(facts), usize::MAX - index));
                let index = worst.map_or(0, |(index, _)| index);
                let charged = ChargeResult::refused(&facts, index, self.rows[index].member);
                for (row, units) in given_back {
                    if let Some(facts) = facts.get_mut(row) {
                        let remaining = &mut facts.decision.remaining;
                        *remaining = remaining.saturating_add_unsigned(units);
                    }
                }
                charged
            }
            (None, None) => ChargeResult::allowed(&facts, all_keep, take.cost),
        };
        let facts = if whole { facts } else { Vec::new() };
        Ok(OwnersDecision { charged, facts })
    }

    /// Adds the refunds of the units that keys granted beyond those for `all_keep` units of the
    /// request; `None`: beyond nothing. `refuses`: some key refuses. Returns the rows that get
    /// units back, and how many.
    fn add_refunds(
        &self,
        take: &TakeParams,
        (all_keep, refuses): (Option<u64>, bool),
        back: &mut Vec<(Partition, Bytes)>,
    ) -> Vec<(usize, u64)> {
        let mut given_back = Vec::new();
        for (index, (part, row)) in self.parts.iter().zip(&self.rows).enumerate() {
            let SubRequestState::Reported(SubResponse::Result(TakeResult::Decided(facts))) = part
            else {
                continue;
            };
            let kept = all_keep.map_or(0, |units| row.cost.capped(units));
            let units = facts.decision.granted.saturating_sub(kept);
            if units == 0 || facts.refuses() || ((row.counts_refused || take.debit) && refuses) {
                continue;
            }
            let held = facts.decision.lease.or(take.lease.filter(|_| row.hold.is_some()));
            let change = match held {
                Some(name) => Adjustment::Settle { lease: name, actual: kept },
                // Units that become free this soon may be free before a refund arrives, and it
                // would then be taken off the next window.
                None if facts.decision.reset <= SOON_NS => continue,
                None => Adjustment::Refund(units),
            };
            back.push((row.partition, row.sub_request(SubOp::Adjust(change))));
            given_back.push((index, units));
        }
        given_back
    }

    /// The result of a change, which is never refused: that of the first key with something to
    /// change.
    fn changed(&self) -> Result<ChargeResult, &'static str> {
        let mut result = TakeResult::NotFound;
        for (part, row) in self.parts.iter().zip(&self.rows).rev() {
            match part {
                SubRequestState::Reported(SubResponse::Result(
                    decided @ TakeResult::Decided(_),
                )) => result = self.op.in_request(row.cost, *decided),
                SubRequestState::Failed(why) => return Err(why),
                _ => {}
            }
        }
        Ok(ChargeResult::undecided(result))
    }
}

impl OwnerRow {
    /// Returns the owner's decision, or the refusal of a cost that its limit cannot have, or whose
    /// part does not make one unit of the request.
    fn judged(&self, mut facts: TakeInfo, units: u64) -> TakeInfo {
        let Decision { verdict, granted, .. } = facts.decision;
        if self.cost.of(units).is_none() {
            deny_beyond(&mut facts, self.shadow);
        } else if verdict == Verdict::Part && self.cost.paid_by(granted, units) == 0 {
            facts.decision.verdict = Verdict::Deny;
        }
        facts
    }

    fn sub_request(&self, op: SubOp<'_>) -> Bytes {
        let mut bytes = Vec::new();
        SubRequest { policy: SubPolicy::Named(&self.limit), key: &self.key, op }.encode(&mut bytes);
        operation(OpKind::SubRequest, &bytes)
    }
}
