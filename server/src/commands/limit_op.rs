//! The operation of each verb on a limit: what the verb takes or changes, and how the result
//! becomes its reply.
//!
//! Used wherever a limit decides: one key, a key with its parents, several owners, and an owner out
//! of reach. `Engine::apply_limited` runs the classic verbs on one key by the same functions. Not
//! here: the other verbs on a limited key (`limited_keys`), leases of quota (`native`).

use engine::{TakeParams, TakeResult, added, adding, counted, taking, undecided};
use protocol::{COUNT_MAX, Form, IncrX, Native, Operation, Outcome, PolicyArg, SetMode, TakeMany};
use tollgate_limits::{ChargeCost, LimitMatch};

use crate::commands::limited_keys::{inline_policy, milliseconds};
use crate::commands::multi_key::{Adjustment, ChargeResult, ChargeSet};
use crate::commands::verdict::{applied, cas_of, outcome_of_many, settled, units_of, verdict};

/// The operation of a request on each limit state that it concerns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LimitOp {
    pub(crate) action: LimitAction,
    reply: LimitReply,
    /// The cas unique that the key's own state must have for a change; a take has its own.
    pub(crate) change_cas: Option<u64>,
}

/// The action on one limit state.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LimitAction {
    Take(TakeParams),
    Change(Adjustment),
}

/// The reply that the result becomes.
#[derive(Debug, Clone, Copy)]
enum LimitReply {
    /// The usage after `incr` or `decr` by this many units.
    Count(u64),
    /// `STORED`, or not.
    Add,
    /// The verdict line of `take`.
    Verdict {
        show_cas: bool,
    },
    /// The verdict line of `takem`.
    ManyVerdict,
    /// The verdict line of `refund`.
    Refunded,
    /// The usage, and the part of `delta` that `incrx` applied.
    Applied {
        delta: i64,
        show_cas: bool,
    },
    Settled,
    /// Renewed for this many nanoseconds.
    Renewed(u64),
}

impl LimitOp {
    /// Returns the operation of a verb; `None` if it takes nothing from a limit, or cannot be
    /// applied.
    pub(crate) fn of(operation: &Operation<'_>) -> Option<Self> {
        let mut change_cas = None;
        let (action, reply) = match operation {
            Operation::Arithmetic(arithmetic) if arithmetic.decrement => {
                let units = arithmetic.delta.min(COUNT_MAX);
                change_cas = arithmetic.compare_cas;
                (LimitAction::Change(Adjustment::Refund(units)), LimitReply::Count(0))
            }
            Operation::Arithmetic(arithmetic) if arithmetic.delta > 0 => {
                let take = taking(arithmetic);
                (LimitAction::Take(take), LimitReply::Count(take.cost))
            }
            Operation::Set(set) if set.mode == SetMode::Add => {
                (LimitAction::Take(adding(set)?), LimitReply::Add)
            }
            Operation::Native(native) => return Self::of_native(native),
            _ => return None,
        };
        Some(Self { action, reply, change_cas })
    }

    fn of_native(native: &Native<'_>) -> Option<Self> {
        let (action, reply) = match native {
            Native::Take(take) => {
                let (units, show_cas) = units_of(take);
                (LimitAction::Take(units), LimitReply::Verdict { show_cas })
            }
            Native::Refund(units) => {
                (LimitAction::Change(Adjustment::Refund(*units)), LimitReply::Refunded)
            }
            Native::Settle { lease, actual } => {
                let change = Adjustment::Settle { lease: *lease, actual: *actual };
                (LimitAction::Change(change), LimitReply::Settled)
            }
            Native::Renew { lease, for_ns } => {
                let change = Adjustment::Renew { lease: *lease, for_ns: *for_ns };
                (LimitAction::Change(change), LimitReply::Renewed(*for_ns))
            }
            Native::IncrX(incrx) => counting(incrx),
            Native::Slide(_) | Native::Lease(_) => return None,
        };
        Some(Self { action, reply, change_cas: None })
    }

    /// Returns the operation of a `takem`. Its cost is that of all keys, or the sum of theirs.
    pub(crate) fn of_many(many: &TakeMany<'_>) -> Self {
        let TakeMany { costs, keys, peek, wait, .. } = *many;
        let cost = costs.only().unwrap_or_else(|| costs.total(keys.iter().count()));
        let take = TakeParams { cost, peek, wait, ..TakeParams::default() };
        let reply = LimitReply::ManyVerdict;
        Self { action: LimitAction::Take(take), reply, change_cas: None }
    }

    /// Returns a look at keys, of which no verdict line is made.
    pub(crate) fn look(look: TakeParams) -> Self {
        let reply = LimitReply::Verdict { show_cas: false };
        Self { action: LimitAction::Take(look), reply, change_cas: None }
    }

    /// Returns the operation with the weight of the key: a count that is refused exceeds the usage
    /// by the units that the key would be charged.
    pub(crate) fn with_weight(self, found: &LimitMatch<'_>) -> Self {
        let reply = match self.reply {
            LimitReply::Count(units) => LimitReply::Count(found.cost().capped(units)),
            reply => reply,
        };
        Self { reply, ..self }
    }

    /// Returns whether a verb takes units: a node decides it without the owner of its key.
    pub(crate) fn is_take(operation: &Operation<'_>) -> bool {
        match operation {
            Operation::Arithmetic(arithmetic) => !arithmetic.decrement && arithmetic.delta > 0,
            Operation::Set(set) => set.mode == SetMode::Add,
            Operation::Native(Native::Take(_)) => true,
            Operation::Native(Native::IncrX(incrx)) => incrx.delta > 0,
            _ => false,
        }
    }

    /// Returns the result on a key whose cost is `cost` as one of the request.
    pub(crate) fn in_request(&self, cost: ChargeCost, result: TakeResult) -> TakeResult {
        match self.action {
            LimitAction::Change(change) => change.in_request(cost, result),
            LimitAction::Take(_) => result,
        }
    }

    /// Returns the refusal of an operation with an option that its charges cannot carry out.
    pub(crate) fn refusal(&self, charges: &ChargeSet) -> Option<&'static str> {
        match &self.action {
            LimitAction::Take(take) => charges.refusal(take),
            LimitAction::Change(_) => None,
        }
    }

    /// Returns the reply to the result on all keys that a request charges.
    pub(crate) fn reply(&self, charged: ChargeResult) -> Outcome<'static> {
        match self.reply {
            LimitReply::ManyVerdict => outcome_of_many(charged),
            LimitReply::Verdict { .. } => self.reply_one(charged.all),
            _ => self.reply_one(charged.first),
        }
    }

    /// Returns the reply to the result on the only key that a request charges.
    pub(crate) fn reply_one(&self, result: TakeResult) -> Outcome<'static> {
        match self.reply {
            LimitReply::Count(units) => counted(result, units),
            LimitReply::Add => added(result),
            LimitReply::Verdict { show_cas } => verdict(result, show_cas),
            LimitReply::Refunded | LimitReply::ManyVerdict => verdict(result, false),
            LimitReply::Applied { delta, show_cas } => applied(result, delta, show_cas),
            LimitReply::Settled => settled(result),
            LimitReply::Renewed(for_ns) => match result {
                TakeResult::Decided(_) => Outcome::Renewed(milliseconds(for_ns)),
                other => undecided(other),
            },
        }
    }
}

/// The operation of `incrx`: its delta is taken, or given back.
fn counting(incrx: &IncrX<'_>) -> (LimitAction, LimitReply) {
    let units = incrx.delta.unsigned_abs();
    let (show_cas, compare_cas) = cas_of(incrx.cas);
    let action = if incrx.delta < 0 {
        LimitAction::Change(Adjustment::Refund(units))
    } else {
        let (wait, peek) = (Some(0), units == 0);
        LimitAction::Take(TakeParams { cost: units, wait, peek, compare_cas, ..Default::default() })
    };
    (action, LimitReply::Applied { delta: incrx.delta, show_cas })
}

/// Returns the policy that a command selects: that of `take`, one in the flags of a meta command,
/// or that of the key's limit.
pub(crate) fn selected_policy<'a>(operation: &Operation<'a>, form: &Form<'a>) -> PolicyArg<'a> {
    match operation {
        Operation::Native(Native::Take(take)) => take.policy,
        _ => inline_policy(operation, form).map_or(PolicyArg::Configured, PolicyArg::Inline),
    }
}
