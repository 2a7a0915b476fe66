//! The plain verbs on a key that a limit holds: any memcached client's `incr` is a limiter.
//!
//! Here: what each classic and meta verb means there (the table of the protocol design, section 2).
//! Not here: which keys are bound (`server/src/limits.rs`), the decision itself (`limited`).

use protocol::{
    Arithmetic, COUNT_MAX, Command, Delete, ItemView, Operation, Outcome, Policy, Set, SetMode,
    Value, lenient_u64,
};

use crate::apply::Engine;
use crate::limit::Verdict;
use crate::limited::{Facts, Limited, SetUsed, Take};
use crate::time::Now;

/// Where a command applies, and under which policy: that of the limit bound to the key, or `None`
/// for the one that the key's state remembers.
#[derive(Clone, Copy)]
struct Place<'a> {
    now: Now,
    hash: u64,
    key: &'a [u8],
    policy: Option<&'a Policy>,
}

impl Engine {
    /// Applies a plain verb to a key that a limit holds.
    pub fn apply_bound(
        &mut self,
        now: Now,
        hash: u64,
        policy: Option<&Policy>,
        command: &Command<'_>,
    ) -> Outcome<'static> {
        let place = Place { now, hash, key: command.key.as_bytes(), policy };
        match &command.operation {
            Operation::Arithmetic(arithmetic) => self.count_bound(place, arithmetic),
            Operation::Get(_) | Operation::Inspect => self.look_bound(place),
            Operation::Set(set) => self.set_bound(place, set),
            Operation::Delete(delete) => self.delete_bound(place, delete),
            Operation::Touch(_) => match self.look_bound(place) {
                Outcome::Hit(_) => Outcome::Touched,
                _ => Outcome::NotFound,
            },
            Operation::TooLarge { .. } => Outcome::TooLarge,
            Operation::Native(_) => Outcome::NotAllowed,
        }
    }

    fn count_bound(&mut self, place: Place<'_>, arithmetic: &Arithmetic) -> Outcome<'static> {
        let Place { now, hash, key, policy } = place;
        // More than any limit: refused as a whole, without a number no client can read.
        let units = arithmetic.delta.min(COUNT_MAX);
        if arithmetic.decrement {
            return match self.put_back(now, hash, key, policy, units) {
                Limited::Decided(facts) => Outcome::Number(view(&facts, usage(&facts))),
                other => unusual(other),
            };
        }
        // A plain client cannot be told to wait: a queue admits it at once or not at all.
        let take = Take {
            cost: units,
            wait: Some(0),
            compare_cas: arithmetic.compare_cas,
            ..Take::default()
        };
        match self.take(now, hash, key, policy, &take) {
            Limited::Decided(facts) if facts.decision.verdict == Verdict::Deny && !facts.shadow => {
                // Above the limit, whatever is owed or spent: that is how a plain client knows.
                let above = facts.decision.limit.saturating_add(1);
                let attempted = usage(&facts).saturating_add(units);
                Outcome::Refused(view(&facts, attempted.max(above).min(COUNT_MAX)))
            }
            Limited::Decided(facts) => Outcome::Number(view(&facts, usage(&facts))),
            other => unusual(other),
        }
    }

    fn look_bound(&mut self, place: Place<'_>) -> Outcome<'static> {
        match self.look(place.now, place.hash, place.key, place.policy) {
            Some((_, facts)) if facts.has_state => Outcome::Hit(view(&facts, usage(&facts))),
            _ => Outcome::Miss,
        }
    }

    fn set_bound(&mut self, place: Place<'_>, set: &Set<'_>) -> Outcome<'static> {
        let Place { now, hash, key, policy } = place;
        if matches!(set.mode, SetMode::Append | SetMode::Prepend | SetMode::Replace) {
            return Outcome::NotAllowed;
        }
        let Some(units) = lenient_u64(set.value) else { return Outcome::NonNumeric };
        if set.mode == SetMode::Add {
            if let Outcome::Hit(_) = self.look_bound(place) {
                return Outcome::NotStored;
            }
            let take = Take {
                cost: units.min(COUNT_MAX),
                wait: Some(0),
                client_flags: Some(set.client_flags),
                ..Take::default()
            };
            return match self.take(now, hash, key, policy, &take) {
                Limited::Decided(facts)
                    if facts.decision.verdict != Verdict::Deny || facts.shadow =>
                {
                    Outcome::Stored(view(&facts, usage(&facts)))
                }
                Limited::Decided(_) => Outcome::NotStored,
                other => unusual(other),
            };
        }
        let used = SetUsed {
            used: units.min(COUNT_MAX),
            client_flags: set.client_flags,
            compare_cas: set.compare_cas,
        };
        match self.set_used(now, hash, key, policy, &used) {
            Limited::Decided(facts) => Outcome::Stored(view(&facts, usage(&facts))),
            other => unusual(other),
        }
    }

    fn delete_bound(&mut self, place: Place<'_>, delete: &Delete) -> Outcome<'static> {
        let at = self.at(place.now, place.hash, place.key);
        let Some(slot) = at.slot else { return Outcome::NotFound };
        if delete.compare_cas.is_some_and(|unique| unique != self.store.item(slot).cas()) {
            return Outcome::Exists;
        }
        self.store.remove(at.hash, slot);
        Outcome::Deleted
    }
}

/// Usage as a plain client sees it: 0 up to the limit.
fn usage(facts: &Facts) -> u64 {
    facts.decision.used.min(facts.decision.limit)
}

fn view(facts: &Facts, number: u64) -> ItemView<'static> {
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

/// What is answered when nothing was decided.
fn unusual(limited: Limited) -> Outcome<'static> {
    match limited {
        Limited::Exists(_) => Outcome::Exists,
        Limited::NotFound => Outcome::NotFound,
        Limited::Full | Limited::TooManyHolds | Limited::Decided(_) => Outcome::OutOfMemory,
    }
}
