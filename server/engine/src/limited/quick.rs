//! The short way of a take: a state is read, decided on and written where it lies.
//!
//! Most takes need no more: there is a state without holds and leases, of the rule that is asked for.
//! It may be past its deadline, for a key whose calls are few is idle again before the next: its
//! place is used again as it is. All else goes the long way (`limited`), which answers the same.

use super::{Facts, Limited, Take, holds_by_itself, let_go_of_a_large, only_watches};
use crate::apply::{Engine, Uniques};
use crate::arena::Slot;
use crate::item::{Content, Figures, ItemMut, Mark, State};
use crate::limit::{self, Ask, Decision, Verdict};
use crate::policies::{Policies, Rule};
use crate::store::Change;
use crate::time::{Deadline, Nanos, Now};

impl Engine {
    /// As [`Engine::take`] of so many units, without anything else that a take may ask for: most are
    /// that. `state` is memory of the caller's: any of the shard's own goes from processor to processor.
    pub fn take_units(
        &mut self,
        now: Now,
        (hash, key): (u64, &[u8]),
        rule: Rule<'_>,
        cost: u64,
        state: &mut Vec<u8>,
    ) -> Limited {
        let take = Take { cost, ..Take::default() };
        if let Some(limited) = self.take_in_place(now, (hash, key), Some(rule), &take, state) {
            return limited;
        }
        let at = self.at(now, hash, key);
        self.take_apart(at, Some(rule), &take)
    }

    /// Takes from a state that is there, though it may be past its deadline; `None` if it is no such take,
    /// and then nothing is changed. The state is decided on in `state`, whatever lies there.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is a tenth fewer instructions for `take_units`")]
    pub(super) fn take_in_place(
        &mut self,
        now: Now,
        (hash, key): (u64, &[u8]),
        rule: Option<Rule<'_>>,
        take: &Take,
        state: &mut Vec<u8>,
    ) -> Option<Limited> {
        let is_simple =
            take.hold.is_none() && take.compare_cas.is_none() && take.client_flags.is_none();
        if !is_simple {
            return None;
        }
        self.flush_if_due(now);
        let (policies, uniques) = (&self.limits.policies, &mut self.uniques);
        let taking = Taking { now, hash, rule, take, policies, uniques, state: &mut *state };
        let taken = self.store.change(hash, key, taking)??;
        let Taken { slot, decision, shadow, figures, former_cas, unfetched, kept } = taken;
        if let Some(is_unfetched) = unfetched {
            self.store.losses.note_expired(is_unfetched);
        }
        let mut is_full = false;
        match kept {
            Keeps::Former => {}
            Keeps::InPlace => self.store.note_cas(former_cas, figures.cas),
            Keeps::Nothing => self.store.remove(hash, slot),
            Keeps::Anew { rule } => {
                state.splice(..0, [0, 0]);
                let content = Content::State(State { rule, body: state });
                let written = self.store.write(now, hash, key, Some(slot), figures, content);
                is_full = written.is_err();
            }
        }
        let_go_of_a_large(state);
        if is_full {
            return Some(Limited::Full);
        }
        let has_state = !matches!(kept, Keeps::Nothing);
        let Figures { cas, client_flags, .. } = figures;
        Some(Limited::Decided(Facts { decision, cas, client_flags, has_state, shadow }))
    }
}

/// A take from the state of an item that is found.
struct Taking<'a> {
    now: Now,
    hash: u64,
    rule: Option<Rule<'a>>,
    take: &'a Take,
    policies: &'a Policies,
    uniques: &'a mut Uniques,
    state: &'a mut Vec<u8>,
}

/// What was taken from the item in a slot.
struct Taken {
    slot: Slot,
    decision: Decision,
    shadow: bool,
    /// Those that it has by now, or is to have.
    figures: Figures,
    former_cas: u64,
    /// It was past its deadline: whether nobody had fetched it.
    unfetched: Option<bool>,
    kept: Keeps,
}

/// What is kept after a take.
enum Keeps {
    /// The state as it was.
    Former,
    /// Another one, which lies there by now.
    InPlace,
    /// None any more: the item is to go.
    Nothing,
    /// One of another length, under the same rule: the item is to be written.
    Anew { rule: u32 },
}

impl Change for Taking<'_> {
    type Answer = Option<Taken>;

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is most of `take_in_place`")]
    fn make(self, slot: Slot, mut item: ItemMut<'_>) -> Option<Taken> {
        if !slot.is_second() {
            return None;
        }
        let now = self.now;
        let Take { cost, part, peek, wait, .. } = *self.take;
        let former = item.as_item();
        let State { rule: number, body } = former.state()?;
        // Neither holds nor leases.
        let [0, 0, own @ ..] = body else { return None };
        let own_bytes = own.len();
        let kept = self.policies.get(number)?;
        let policy = &kept.policy;
        let is_past = former.deadline().is_past(now);
        let is_asked_for = match self.rule {
            Some(rule) => rule.limit == kept.limit && rule.policy == policy,
            None => !is_past,
        };
        if !is_asked_for || holds_by_itself(policy) {
            return None;
        }
        self.state.clear();
        let former_cas = former.cas();
        let behind_state = former.behind_state();
        let unfetched = is_past.then(|| !former.has(Mark::FETCHED));
        let mut figures = if is_past {
            Figures::new(0, 0, Deadline::NEVER)
        } else {
            self.state.extend_from_slice(own);
            former.figures()
        };
        let (over, hash) = (policy.over, self.hash);
        let ask = Ask { cost, part, peek, over, wait, hold: None, lease: None, hash };
        let mut decision = limit::take(policy, self.state, now, &ask);
        let refused = decision.verdict == Verdict::Deny && !peek;
        let shadow = only_watches(policy, &mut decision);
        let stays = decision.changed && self.state.len() == own_bytes;
        if is_past && !stays {
            return None;
        }
        if refused {
            figures = figures.mark(Mark::REFUSED, true);
        }
        let kept = if decision.changed && self.state.is_empty() {
            figures.cas = 0;
            Keeps::Nothing
        } else if decision.changed {
            let idle_at = Nanos(now.mono.0.saturating_add(decision.reset));
            figures.cas = self.uniques.next(None);
            figures.deadline = Deadline::not_before(idle_at);
            if stays {
                item.set_figures(figures);
                item.set_state_end(behind_state, self.state);
                Keeps::InPlace
            } else {
                Keeps::Anew { rule: number }
            }
        } else {
            Keeps::Former
        };
        if refused {
            item.set_mark(Mark::REFUSED);
        }
        Some(Taken { slot, decision, shadow, figures, former_cas, unfetched, kept })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use protocol::Policy;

    use super::*;
    use crate::{Budget, KeyHasher, Now, Options};

    const POLICIES: [&str; 12] = [
        "bucket:5/1s",
        "bucket:5/1s,debt=3,over",
        "bucket:9/2s,init=2",
        "bucket:4/1s,interval,shadow",
        "gcra:5/1s,burst=3",
        "leaky:5/1s,capacity=4,wait=300ms",
        "fixed:5/1s",
        "sliding:200/2s",
        "sliding:6/1s,slices=4",
        "log:4/1s",
        "concurrency:3,hold=1s",
        "unlimited",
    ];

    fn engine() -> Engine {
        let budget = Arc::new(Budget::new(64 << 20));
        Engine::new(KeyHasher::new([1, 2, 3, 4]), budget, Options::default())
    }

    proptest! {
        #[test]
        fn both_ways_answer_and_keep_the_same(
            steps in prop::collection::vec(
                (0..POLICIES.len(), 0_u64..4, 0_u64..7, 0_u64..900, any::<[bool; 4]>()), 1..120,
            ),
        ) {
            let policies = POLICIES.map(|word| Policy::parse(word.as_bytes()).expect(word));
            let (mut quick, mut apart) = (engine(), engine());
            let mut state = b"of another key".to_vec();
            let mut ms = 1000;
            for (policy, key, cost, later, [part, peek, remembered, holds]) in steps {
                ms += later;
                let (now, key) = (Now::at_ms(ms), format!("key{key}"));
                let hash = KeyHasher::new([1, 2, 3, 4]).hash(key.as_bytes());
                let hold = (holds && later < 90).then_some(500_000_000);
                let take = Take { cost, part, peek, hold, ..Take::default() };
                // Mostly one policy a key, so that states are met again.
                let policy = if later < 45 { &policies[policy] } else { &policies[hash as usize % 12] };
                let rule = (!remembered).then_some(Rule { policy, limit: 0 });
                let one = match rule {
                    Some(rule) if take == (Take { cost, ..Take::default() }) => {
                        quick.take_units(now, (hash, key.as_bytes()), rule, cost, &mut state)
                    }
                    rule => quick.take(now, hash, key.as_bytes(), rule, &take),
                };
                let at = apart.at(now, hash, key.as_bytes());
                let other = apart.take_apart(at, rule, &take);
                prop_assert_eq!(one, other);
                prop_assert_eq!(quick.item_bytes(), apart.item_bytes());
                prop_assert_eq!(quick.losses(), apart.losses());
                // A key that was idle lies where it lay, or last.
                let [one, other] = [&quick, &apart].map(|engine| {
                    let mut records: Vec<_> = engine.limit_records(now).collect();
                    records.sort_by_key(|record| record.key);
                    records
                });
                prop_assert_eq!(one, other);
            }
        }
    }
}
