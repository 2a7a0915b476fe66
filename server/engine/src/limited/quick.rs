//! The short way of a take: a state is read, decided on and written where it lies.
//!
//! Most takes need no more: there is a state without holds and leases, of the rule that is asked for.
//! It may be past its deadline, for a key whose calls are few is idle again before the next: its
//! place is used again as it is. All else goes the long way (`limited`), which answers the same.

use super::{Facts, Limited, Take, holds_by_itself, let_go_of_a_large, only_watches};
use crate::apply::{At, Engine};
use crate::arena::Slot;
use crate::item::{Content, Figures, Mark, State};
use crate::limit::{self, Ask, Decision, Verdict};
use crate::policies::Rule;
use crate::time::{Deadline, Now};

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
        let at = self.found(now, hash, key);
        if let Some(slot) = at.slot {
            let limited = self.take_in_place(at, slot, Some(rule), &take, state);
            let_go_of_a_large(state);
            if let Some(limited) = limited {
                return limited;
            }
        }
        let at = self.at(now, hash, key);
        self.take_apart(at, Some(rule), &take)
    }

    /// Takes from the state in `slot`, which may be past its deadline; `None` if it is no such take,
    /// and then nothing is changed. The state is decided on in `state`, whatever lies there.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is a tenth fewer instructions for `take_units`")]
    pub(super) fn take_in_place(
        &mut self,
        at: At<'_>,
        slot: Slot,
        rule: Option<Rule<'_>>,
        take: &Take,
        state: &mut Vec<u8>,
    ) -> Option<Limited> {
        let Take { cost, part, peek, wait, .. } = *take;
        let is_simple =
            take.hold.is_none() && take.compare_cas.is_none() && take.client_flags.is_none();
        if !is_simple || !slot.is_second() {
            return None;
        }
        let item = self.store.item(slot);
        let State { rule: number, body } = item.state()?;
        // Neither holds nor leases.
        let [0, 0, own @ ..] = body else { return None };
        let kept = self.limits.policies.get(number)?;
        let policy = &kept.policy;
        let is_past = item.deadline().is_past(at.now);
        let is_asked_for = match rule {
            Some(rule) => rule.limit == kept.limit && rule.policy == policy,
            None => !is_past,
        };
        if !is_asked_for || holds_by_itself(policy) {
            return None;
        }
        state.clear();
        let own_bytes = own.len();
        let mut figures = if is_past {
            Figures::new(0, 0, Deadline::NEVER)
        } else {
            state.extend_from_slice(own);
            item.figures()
        };
        let (over, hash) = (policy.over, at.hash);
        let ask = Ask { cost, part, peek, over, wait, hold: None, lease: None, hash };
        let mut decision = limit::take(policy, state, at.now, &ask);
        let refused = decision.verdict == Verdict::Deny && !peek;
        let shadow = only_watches(policy, &mut decision);
        let stays = decision.changed && state.len() == own_bytes;
        if is_past {
            if !stays {
                return None;
            }
            self.store.note_expired(slot);
        }
        if refused {
            figures = figures.mark(Mark::REFUSED, true);
            self.store.item_mut(slot).set_mark(Mark::REFUSED);
        }
        let kept = Kept { slot, figures, stays };
        let Some((cas, has_state)) = self.keep_in_place(at, kept, &decision, state) else {
            return Some(Limited::Full);
        };
        let client_flags = figures.client_flags;
        Some(Limited::Decided(Facts { decision, cas, client_flags, has_state, shadow }))
    }

    /// Keeps `state`. The answer is its cas unique, and whether there is a state; `None` for no room.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is a tenth fewer instructions for `take_units`")]
    fn keep_in_place(
        &mut self,
        at: At<'_>,
        Kept { slot, mut figures, stays }: Kept,
        decision: &Decision,
        state: &mut Vec<u8>,
    ) -> Option<(u64, bool)> {
        if !decision.changed {
            return Some((figures.cas, true));
        }
        if state.is_empty() {
            self.store.remove(at.hash, slot);
            return Some((0, false));
        }
        let idle_at = at.now.mono.0.saturating_add(decision.reset);
        let left_ms = idle_at.div_ceil(1_000_000).saturating_sub(at.now.mono.millis());
        figures.cas = self.uniques.next(None);
        figures.deadline = Deadline::after_ms(at.now, left_ms);
        if stays {
            let mut item = self.store.item_mut(slot);
            let former_cas = item.as_item().cas();
            item.set_figures(figures);
            item.set_state_end(state);
            self.store.note_cas(former_cas, figures.cas);
        } else {
            state.splice(..0, [0, 0]);
            let rule = self.store.item(slot).state()?.rule;
            let content = Content::State(State { rule, body: state });
            self.store.write(at.now, at.hash, at.key, Some(slot), figures, content).ok()?;
        }
        Some((figures.cas, true))
    }
}

/// What [`Engine::keep_in_place`] keeps beside the state.
struct Kept {
    slot: Slot,
    figures: Figures,
    /// It is as long as it was.
    stays: bool,
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
