//! The result of charging several keys, and changes of them that cannot be refused.
//!
//! Not here: the keys and their charge (`multi_key`), the reply (`limit_op`).

use engine::algorithms::{self, Attempt, Decision, Verdict};
use engine::{Engine, Now, PolicyRef, TakeInfo, TakeParams, TakeResult};
use tollgate_limits::{ChargeCost, UNLIMITED};

use crate::commands::decider::Decided;

/// The result of a charge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChargeResult {
    /// The reply for all keys, with the numbers of the key with the least remaining, or of the one
    /// that refuses for longest.
    pub(crate) all: TakeResult,
    /// The numbers of the first key, with the decision for all.
    pub(crate) first: TakeResult,
    /// The index of the request's key that refused.
    pub(crate) at: usize,
    /// The index of the charge that refused.
    pub(crate) refused: Option<usize>,
    /// The charge whose figures `all` has.
    pub(crate) decided: Decided,
}

impl ChargeResult {
    /// Creates the result if all keys allow, with the numbers of the key with the least remaining.
    pub(crate) fn allowed(facts: &[TakeInfo], granted: u64, cost: u64) -> Self {
        let first = &facts[0];
        let counted = || facts.iter().enumerate().filter(|(_, facts)| !facts.shadow);
        let decisions = || counted().map(|(_, facts)| &facts.decision);
        let row = counted().min_by_key(|(_, facts)| facts.decision.remaining);
        let row = row.map_or(0, |(row, _)| row);
        let tightest = &facts[row];
        // A position says nothing about the policies of a parent.
        let at = first.at.filter(|_| row == 0);
        let waits = decisions().any(|decision| decision.verdict == Verdict::Wait);
        let verdict = match () {
            () if granted < cost => Verdict::Part,
            () if waits => Verdict::Wait,
            () => Verdict::Allow,
        };
        let longest = decisions().map(|decision| decision.retry.unwrap_or(u64::MAX)).max();
        let retry = longest.filter(|retry| *retry < u64::MAX);
        let lease = facts.iter().find_map(|facts| facts.decision.lease);
        let shadow = facts.iter().any(|facts| facts.shadow);
        let of = |decision: &Decision| {
            let decision = Decision { verdict, granted, retry, lease, ..*decision };
            TakeResult::Decided(TakeInfo { decision, shadow, at, ..*first })
        };
        let decided = Decided { row, part: tightest.at };
        let all = of(&tightest.decision);
        Self { all, first: of(&first.decision), at: 0, refused: None, decided }
    }

    /// Creates the result of a take that charges no key, because no limit applies to any.
    pub(crate) fn unlimited(now: Now, take: &TakeParams) -> Self {
        let attempt = Attempt { cost: take.cost, peek: take.peek, ..Attempt::default() };
        let decision = algorithms::take(&UNLIMITED, &mut Vec::new(), now, &attempt);
        let (cas, client_flags, has_state) = (0, 0, false);
        let facts = TakeInfo { decision, cas, client_flags, has_state, shadow: false, at: None };
        Self::allowed(&[facts], take.cost, take.cost)
    }

    /// Creates the result if key `index` refuses, which is charged for key `member` of the request.
    pub(crate) fn refused(facts: &[TakeInfo], index: usize, member: usize) -> Self {
        let first = facts[0];
        let denied = |facts: TakeInfo| {
            let decision = Decision { verdict: Verdict::Deny, granted: 0, ..facts.decision };
            TakeResult::Decided(TakeInfo { decision, shadow: false, ..facts })
        };
        let all = TakeInfo { cas: first.cas, ..facts[index] };
        let decided = Decided { row: index, part: all.at };
        let (all, first) = (denied(all), denied(first));
        Self { all, first, at: member, refused: Some(index), decided }
    }

    pub(crate) fn undecided(limited: TakeResult) -> Self {
        let part = match limited {
            TakeResult::Decided(facts) | TakeResult::Exists(facts) => facts.at,
            TakeResult::NotFound | TakeResult::Full => None,
        };
        let decided = Decided { row: 0, part };
        Self { all: limited, first: limited, at: 0, refused: None, decided }
    }
}

/// A change of several keys that cannot be refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Adjustment {
    /// Gives this many units back.
    Refund(u64),
    /// Ends a hold at its true cost.
    Settle {
        /// The id of the hold.
        lease: u64,
        /// The true cost.
        actual: u64,
    },
    /// Extends a hold to this time from now.
    Renew {
        /// The id of the hold.
        lease: u64,
        /// Nanoseconds from now.
        for_ns: u64,
    },
}

impl Adjustment {
    /// Returns the change of a key whose cost is `cost`.
    pub(crate) fn of_key(self, cost: ChargeCost) -> Self {
        match self {
            Self::Refund(units) => Self::Refund(cost.refund(units)),
            Self::Settle { lease, actual } => Self::Settle { lease, actual: cost.settled(actual) },
            Self::Renew { .. } => self,
        }
    }

    /// Returns the result of this change of a request on a key whose cost is `cost`, with the units
    /// given back as units of the request.
    pub(crate) fn in_request(self, cost: ChargeCost, mut result: TakeResult) -> TakeResult {
        if let (Self::Refund(units), TakeResult::Decided(facts)) = (self, &mut result) {
            let granted = &mut facts.decision.granted;
            *granted = granted.checked_div(cost.refund(1)).unwrap_or(0).min(units);
        }
        result
    }

    /// Applies the change to one key.
    pub(crate) fn apply(
        self,
        engine: &mut Engine,
        now: Now,
        hash: u64,
        key: &[u8],
        policy_ref: Option<PolicyRef<'_>>,
    ) -> TakeResult {
        match self {
            Self::Refund(units) => engine.refund(now, hash, key, policy_ref, units),
            Self::Settle { lease, actual } => engine.settle(now, hash, key, lease, actual),
            Self::Renew { lease, for_ns } => engine.renew(now, hash, key, lease, for_ns),
        }
    }
}
