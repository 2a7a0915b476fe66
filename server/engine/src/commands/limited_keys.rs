//! The plain verbs on a limited key: any memcached client's `incr` is a rate limiter.
//!
//! Here: the effect of each classic and meta verb on a limited key
//! (`docs/reference/verbs-memcached.md`). Not here: which keys are limited
//! (`server/limits`), the decision itself (`take`).

use protocol::{
    Arithmetic, COUNT_MAX, Delete, ItemView, Operation, Outcome, Set, SetMode, Value, lenient_u64,
};

use crate::algorithms::Decision;
use crate::commands::take::{Judged, LimitedKey, SetUsage, TakeInfo, TakeParams, TakeResult};
use crate::engine::Engine;
use crate::policy_table::PolicyRef;
use crate::time::Now;

impl Engine {
    /// Applies a plain verb to a limited key; also returns the limit's judgement.
    pub fn apply_limited(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        policy_ref: Option<PolicyRef<'_>>,
        operation: &Operation<'_>,
    ) -> (Outcome<'static>, Judged) {
        let place = LimitedKey { now, hash, key, policy_ref };
        let outcome = match operation {
            Operation::Arithmetic(arithmetic) if arithmetic.decrement => {
                self.refund_limited(place, arithmetic)
            }
            Operation::Arithmetic(arithmetic) => return self.count_limited(place, arithmetic),
            Operation::Get(get) => self.look_limited(place, get.unless_cas),
            Operation::Inspect => self.look_limited(place, None),
            Operation::Set(set) if set.mode == SetMode::Add => return self.add_limited(place, set),
            Operation::Set(set) => self.set_limited(place, set),
            Operation::Delete(delete) => self.delete_limited(place, delete),
            Operation::Touch(_) => match self.look_limited(place, None) {
                Outcome::Hit(_) => Outcome::Touched,
                _ => Outcome::NotFound,
            },
            Operation::TooLarge { .. } => Outcome::TooLarge,
            Operation::Native(_) => Outcome::NotAllowed,
        };
        (outcome, Judged::NOTHING)
    }

    fn count_limited(
        &mut self,
        place: LimitedKey<'_>,
        arithmetic: &Arithmetic,
    ) -> (Outcome<'static>, Judged) {
        let LimitedKey { now, hash, key, policy_ref } = place;
        let take = taking(arithmetic);
        let limited = self.take(now, hash, key, policy_ref, &take);
        (counted(limited, take.cost), limited.judged(&take))
    }

    fn refund_limited(
        &mut self,
        place: LimitedKey<'_>,
        arithmetic: &Arithmetic,
    ) -> Outcome<'static> {
        let LimitedKey { now, hash, key, policy_ref } = place;
        let compared = arithmetic.compare_cas;
        let refused = compared.and_then(|cas| self.refused_by_cas(now, hash, key, policy_ref, cas));
        let refund = || self.refund(now, hash, key, policy_ref, units(arithmetic.delta));
        counted(refused.unwrap_or_else(refund), 0)
    }

    /// Looks at a key; the value is unwanted if the state has the cas unique `unless_cas`.
    fn look_limited(&mut self, place: LimitedKey<'_>, unless_cas: Option<u64>) -> Outcome<'static> {
        match self.look(place.now, place.hash, place.key, place.policy_ref) {
            Some(facts) if facts.has_state => Outcome::Hit(ItemView {
                value_unwanted: unless_cas == Some(facts.cas),
                ..view(&facts, usage(&facts))
            }),
            _ => Outcome::Miss,
        }
    }

    fn set_limited(&mut self, place: LimitedKey<'_>, set: &Set<'_>) -> Outcome<'static> {
        let LimitedKey { now, hash, key, policy_ref } = place;
        if matches!(set.mode, SetMode::Append | SetMode::Prepend | SetMode::Replace) {
            return Outcome::NotAllowed;
        }
        let Some(units) = lenient_u64(set.value) else { return Outcome::NonNumeric };
        let used = SetUsage {
            used: self::units(units),
            client_flags: set.client_flags,
            compare_cas: set.compare_cas,
        };
        match self.set_used(now, hash, key, policy_ref, &used) {
            TakeResult::Decided(facts) => Outcome::Stored(view(&facts, usage(&facts))),
            other => undecided(other),
        }
    }

    fn add_limited(&mut self, place: LimitedKey<'_>, set: &Set<'_>) -> (Outcome<'static>, Judged) {
        let LimitedKey { now, hash, key, policy_ref } = place;
        let Some(take) = adding(set) else { return (Outcome::NonNumeric, Judged::NOTHING) };
        let limited = self.take(now, hash, key, policy_ref, &take);
        (added(limited), limited.judged(&take))
    }

    fn delete_limited(&mut self, place: LimitedKey<'_>, delete: &Delete) -> Outcome<'static> {
        let at = self.at(place.now, place.hash, place.key);
        let Some(slot) = at.slot else { return Outcome::NotFound };
        if delete.compare_cas.is_some_and(|unique| unique != self.store.item(slot).cas()) {
            return Outcome::Exists;
        }
        self.store.remove(at.hash, slot);
        Outcome::Deleted
    }
}

/// A greater cost is refused by any limit anyway, and the bound keeps every number readable for
/// clients.
#[must_use]
pub fn units(delta: u64) -> u64 {
    delta.min(COUNT_MAX)
}

/// The take of an `incr` on a limited key. A plain client cannot wait, so a queue admits it at once
/// or not at all.
#[must_use]
pub fn taking(arithmetic: &Arithmetic) -> TakeParams {
    TakeParams {
        cost: units(arithmetic.delta),
        wait: Some(0),
        compare_cas: arithmetic.compare_cas,
        of_first: true,
        ..TakeParams::default()
    }
}

/// The outcome of an `incr` by `units`; an `incr` by 0 is a peek.
#[must_use]
pub fn counted(limited: TakeResult, units: u64) -> Outcome<'static> {
    match limited {
        TakeResult::Decided(facts) if facts.refuses() && units > 0 => {
            Outcome::Refused(view(&facts, refused_count(&facts, units)))
        }
        TakeResult::Decided(facts) => Outcome::Number(view(&facts, usage(&facts))),
        other => undecided(other),
    }
}

/// The number in the reply to a refused `incr` by `units`. It is above the limit, whatever the debt
/// or usage: a plain client recognises a refusal by that.
#[must_use]
pub fn refused_count(facts: &TakeInfo, units: u64) -> u64 {
    let Decision { used, limit, counted, .. } = facts.decision;
    let attempted = if counted { used } else { used.saturating_add(units) };
    attempted.max(limit.saturating_add(1)).min(COUNT_MAX)
}

/// The take of an `add`: its whole value, if there is no state; `None` if the value is not a
/// number.
#[must_use]
pub fn adding(set: &Set<'_>) -> Option<TakeParams> {
    Some(TakeParams {
        cost: units(lenient_u64(set.value)?),
        wait: Some(0),
        compare_cas: Some(0),
        client_flags: Some(set.client_flags),
        of_first: true,
        ..TakeParams::default()
    })
}

/// The outcome of an `add`.
#[must_use]
pub fn added(limited: TakeResult) -> Outcome<'static> {
    match limited {
        TakeResult::Decided(facts) if facts.refuses() => Outcome::NotStored,
        TakeResult::Decided(facts) => Outcome::Stored(view(&facts, usage(&facts))),
        TakeResult::Exists(_) => Outcome::NotStored,
        other => undecided(other),
    }
}

/// The usage that a plain client sees: 0 up to the limit.
#[must_use]
pub fn usage(facts: &TakeInfo) -> u64 {
    facts.decision.used.min(facts.decision.limit)
}

fn view(facts: &TakeInfo, number: u64) -> ItemView<'static> {
    let reset_seconds = facts.decision.reset.div_ceil(1_000_000_000);
    let seconds = u32::try_from(reset_seconds).unwrap_or(u32::MAX);
    ItemView {
        value: Value::Number(number),
        client_flags: facts.client_flags,
        cas: facts.cas,
        ttl_seconds: Some(seconds),
        former_ttl_seconds: Some(seconds),
        ..ItemView::default()
    }
}

/// The outcome if nothing was decided.
#[must_use]
pub fn undecided(limited: TakeResult) -> Outcome<'static> {
    match limited {
        TakeResult::Exists(_) => Outcome::Exists,
        TakeResult::NotFound => Outcome::NotFound,
        TakeResult::Full | TakeResult::Decided(_) => Outcome::OutOfMemory,
    }
}
