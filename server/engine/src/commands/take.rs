//! Commands on limited keys: load the state, run the algorithm, store the result.
//!
//! Here: takes and peeks, and their results. Not here: the arithmetic (`algorithms`), quota leases
//! (`lease`), plain items (`items`), saved states (`snapshot`), the encoding of a state
//! (`loaded_state`), the fast path of most takes (`fast`), ending and renewing holds (`holds`).

mod fast;
mod hold_list;
mod holds;
mod loaded_state;
mod many;
mod usage;

use std::num::NonZeroU8;

use protocol::{LIST_POLICIES_MAX, Policy};

pub(crate) use self::hold_list::{HoldList, encode as encode_holds};
pub use self::holds::ForeignHold;
pub(crate) use self::loaded_state::{LoadedState, has_own_state};
use self::many::without_hold;
pub use self::usage::SetUsage;
use crate::algorithms::{self, Attempt, Decision, Verdict};
use crate::engine::{Engine, Hold};
use crate::policy_table::PolicyRef;
use crate::store::arena::Slot;
use crate::store::item::ItemFlag;
use crate::store::{Full, Located};
use crate::time::Now;

/// Most unsettled holds of one key: a take that asks for one more is refused.
pub const HOLDS_MAX: usize = 1024;

/// A take by a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TakeParams {
    /// The cost in units, 0 to [`protocol::COUNT_MAX`].
    pub cost: u64,
    /// Whether to take the available units if the whole cost is not available.
    pub part: bool,
    /// Whether to decide without changing the state.
    pub peek: bool,
    /// The caller's own bound on a wait, in nanoseconds.
    pub wait: Option<u64>,
    /// Nanoseconds for which the cost is held as an estimate, to be settled.
    pub hold: Option<u64>,
    /// Take only if the state has this cas unique, or for 0 only if there is no state.
    pub compare_cas: Option<u64>,
    /// The client's 32 bits, if it sets them.
    pub client_flags: Option<u32>,
    /// The lease of the hold, if it must equal that of another key.
    pub lease: Option<u64>,
    /// Whether the cost was spent already: a refusal charges it too.
    pub debit: bool,
    /// Whether a key with several policies reports the figures of the first, and not of the one
    /// that decides.
    pub of_first: bool,
}

/// The result of a command on a limited key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeResult {
    /// Decided, or peeked.
    Decided(TakeInfo),
    /// The state has another cas unique; the information is that of a peek.
    Exists(TakeInfo),
    /// There is no state, or no hold with this lease.
    NotFound,
    /// There is no room for the state.
    Full,
}

/// A decision with further information on the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakeInfo {
    /// The algorithm's decision.
    pub decision: Decision,
    /// The cas unique of the state after the decision; 0 without state.
    pub cas: u64,
    /// The client's 32 bits.
    pub client_flags: u32,
    /// Whether the key has a state after the decision.
    pub has_state: bool,
    /// Whether the attempt was refused, delayed or granted in part by a policy that only reports:
    /// the caller continues.
    pub shadow: bool,
    /// The policy whose figures these are, or the ban, if there are several and the caller did not
    /// want those of the first.
    pub at: Option<Decider>,
}

/// The part of a limit with several policies that decided: a policy, or the ban.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decider(NonZeroU8);

impl Decider {
    /// The ban.
    pub const BAN: Self = Self(NonZeroU8::MIN);

    /// The policy at the position `index`; `None` beyond the most policies of a limit.
    #[must_use]
    pub fn policy(index: usize) -> Option<Self> {
        let index = u8::try_from(index).ok().filter(|at| usize::from(*at) < LIST_POLICIES_MAX)?;
        NonZeroU8::new(index + 2).map(Self)
    }

    /// The position of the policy, from 0; `None` for the ban.
    #[must_use]
    pub fn index(self) -> Option<usize> {
        usize::from(self.0.get()).checked_sub(2)
    }

    /// A number for another node, 1 to 9.
    #[must_use]
    pub fn code(self) -> u8 {
        self.0.get()
    }

    /// The inverse of [`Decider::code`]; `None` for other numbers.
    #[must_use]
    pub fn of_code(code: u8) -> Option<Self> {
        NonZeroU8::new(code)
            .map(Self)
            .filter(|one| usize::from(one.code()) <= LIST_POLICIES_MAX + 1)
    }
}

/// The judgement of a limit on an attempt, for its metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// No attempt: a peek, or a cost of 0.
    Nothing,
    /// The attempt passed.
    Allowed,
    /// The attempt was refused.
    Denied,
    /// A policy that only reports would have refused the attempt.
    ShadowDenied,
}

/// The judgement of a limit on an attempt, with its figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judged {
    /// The judgement.
    pub judgement: Judgement,
    /// The cost of the attempt, in units.
    pub cost: u64,
    /// Units with which the attempt passed; 0 if it did not.
    pub units: u64,
    /// Whether the attempt was allowed and at least 80 % of the limit is used after it.
    pub is_near: bool,
    /// Nanoseconds after which a refused attempt would pass; `None`: never.
    pub retry: Option<u64>,
}

impl Judged {
    /// No attempt.
    pub const NOTHING: Self =
        Self { judgement: Judgement::Nothing, cost: 0, units: 0, is_near: false, retry: None };
}

impl TakeInfo {
    /// Whether the caller must not continue.
    #[must_use]
    pub fn refuses(&self) -> bool {
        self.decision.verdict == Verdict::Deny && !self.shadow
    }

    /// The judgement of the limit on `take`.
    #[inline]
    #[must_use]
    pub fn judged(&self, take: &TakeParams) -> Judged {
        let Decision { granted, retry, .. } = self.decision;
        if take.peek || take.cost == 0 {
            return Judged::NOTHING;
        }
        let judged = Judged { cost: take.cost, retry, ..Judged::NOTHING };
        if self.refuses() {
            Judged { judgement: Judgement::Denied, ..judged }
        } else if self.shadow {
            Judged { judgement: Judgement::ShadowDenied, units: take.cost, ..judged }
        } else {
            let is_near = self.is_near();
            Judged { judgement: Judgement::Allowed, units: granted, is_near, ..judged }
        }
    }

    /// Whether at least 80 % of the limit is used.
    #[inline]
    #[must_use]
    pub fn is_near(&self) -> bool {
        let Decision { limit, used, .. } = self.decision;
        used >= limit - limit / 5
    }
}

impl TakeResult {
    /// The judgement of the limit on `take`.
    #[inline]
    #[must_use]
    pub fn judged(&self, take: &TakeParams) -> Judged {
        match self {
            Self::Decided(facts) => facts.judged(take),
            _ => Judged::NOTHING,
        }
    }
}

/// A limited key and its policy: that of the limit that matches the key, or `None` for the policy
/// stored in the key's state.
#[derive(Clone, Copy)]
pub(super) struct LimitedKey<'a> {
    pub(super) now: Now,
    pub(super) hash: u64,
    pub(super) key: &'a [u8],
    pub(super) policy_ref: Option<PolicyRef<'a>>,
}

impl Engine {
    /// Takes from a key under `policy_ref`, or under the policy stored in its state.
    pub fn take(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        policy_ref: Option<PolicyRef<'_>>,
        take: &TakeParams,
    ) -> TakeResult {
        let mut limited = TakeResult::Full;
        let mut report = |facts: &TakeInfo| limited = TakeResult::Decided(*facts);
        let limited_key = LimitedKey { now, hash, key, policy_ref };
        if self.take_in_place(limited_key, take, None, &mut report).is_some() {
            return limited;
        }
        let at = self.at(now, hash, key);
        self.take_general(at, policy_ref, take)
    }

    /// Takes from any state: decodes the state, decides, and encodes the new state.
    fn take_general(
        &mut self,
        at: Located<'_>,
        policy_ref: Option<PolicyRef<'_>>,
        take: &TakeParams,
    ) -> TakeResult {
        let Located { now, hash, .. } = at;
        let at = if take.peek {
            at
        } else {
            match self.room_to_hold(at) {
                Ok(at) => at,
                Err(Full) => return TakeResult::Full,
            }
        };
        let mut loaded = self.load(at, policy_ref);
        loaded.of_first = take.of_first;
        let holds_by_itself = holds_by_itself(&loaded.policy);
        let may_hold = !take.peek && (take.hold.is_some() || holds_by_itself);
        let lease = may_hold.then(|| take.lease.unwrap_or_else(|| self.next_lease(now)));
        let attempt = Attempt {
            cost: take.cost,
            part: take.part,
            peek: take.peek,
            over: loaded.policy.over || take.debit,
            wait: take.wait,
            hold: take.hold,
            lease,
            hash,
        };
        if take.compare_cas.is_some_and(|unique| !loaded.has_cas(unique)) {
            let decision = self.look_at(&mut loaded, now, attempt);
            return TakeResult::Exists(self.facts(&mut loaded, decision, false));
        }
        let wants_hold = may_hold && !holds_by_itself;
        let no_hold = wants_hold && loaded.holds.len() >= HOLDS_MAX;
        let mut decision = if no_hold {
            let first_end = loaded.holds.iter().map(|hold| hold.end).min().unwrap_or(0);
            without_hold(
                self.look_at(&mut loaded, now, attempt),
                first_end.saturating_sub(now.mono.0),
            )
        } else {
            self.decide(&mut loaded, now, &attempt)
        };
        loaded.header.client_flags = take.client_flags.unwrap_or(loaded.header.client_flags);
        let allowed = decision.verdict != Verdict::Deny;
        if wants_hold
            && allowed
            && let (Some(lease), Some(hold)) = (lease, take.hold)
        {
            loaded.holds.push(Hold::begin(lease, decision.granted, now, hold));
            decision.lease = Some(lease);
            decision.changed = true;
        }
        let refused = !allowed && !take.peek;
        let shadow = only_watches(&loaded.policy, &mut decision);
        if !decision.changed {
            if refused && let Some(slot) = loaded.slot {
                self.store.item_mut(slot).set_mark(ItemFlag::REFUSED);
            }
            return TakeResult::Decided(self.facts(&mut loaded, decision, shadow));
        }
        if refused {
            loaded.header = loaded.header.mark(ItemFlag::REFUSED, true);
        }
        self.keep(at, &mut loaded, decision, shadow)
    }

    /// Marks a key as refused if the refusal was decided by a peek: a refused key is evicted last.
    pub fn note_refused(&mut self, now: Now, hash: u64, key: &[u8]) {
        if let Some(slot) = self.at(now, hash, key).slot.filter(|slot| slot.is_limit_state()) {
            self.store.item_mut(slot).set_mark(ItemFlag::REFUSED);
        }
    }

    /// Peeks at a key under `policy_ref` or the stored policy; `None` if there is neither a policy
    /// nor a state.
    pub fn look(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        policy_ref: Option<PolicyRef<'_>>,
    ) -> Option<TakeInfo> {
        let at = self.at(now, hash, key);
        if policy_ref.is_none() && !is_state(at) {
            return None;
        }
        let mut loaded = self.load(at, policy_ref);
        let decision = self.look_at(&mut loaded, now, Attempt { hash, ..Attempt::default() });
        Some(self.facts(&mut loaded, decision, false))
    }
}

fn is_state(at: Located<'_>) -> bool {
    at.slot.is_some_and(Slot::is_limit_state)
}

/// Whether the policy only reports this decision: then the caller is not refused, delayed or
/// granted a part.
fn only_watches(policy: &Policy, decision: &mut Decision) -> bool {
    let watched = policy.shadow && decision.verdict != Verdict::Allow;
    if watched {
        decision.verdict = Verdict::Deny;
    }
    watched
}

/// Whether every take of the policy is a hold, as in `concurrency`.
fn holds_by_itself(policy: &Policy) -> bool {
    matches!(policy.algorithm, protocol::Algorithm::Concurrency { .. })
}

/// Whether takes of the policy are decided on the general path alone. A bucket that does not begin
/// full is: its state has another deadline than all others.
#[inline]
fn is_general(policy: &Policy) -> bool {
    use protocol::Algorithm::{Concurrency, Several};
    matches!(policy.algorithm, Concurrency { .. } | Several(_))
        || algorithms::begins_unfilled(policy)
}

#[cfg(test)]
mod settle_tests;
#[cfg(test)]
mod unfilled_tests;
