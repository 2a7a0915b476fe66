//! The short way of a take: a state is read, decided on and written where it lies.
//!
//! Most takes need no more: there is a state without holds and leases, of the rule that is asked for,
//! and it stays as long as it is. All else goes the long way (`limited`), which answers the same.

use super::{Facts, HEAD_BYTES, Limited, Take, holds_by_itself, only_watches};
use crate::apply::{At, Engine};
use crate::item::Mark;
use crate::limit::{self, Ask, Verdict};
use crate::policies::Rule;
use crate::time::Deadline;

impl Engine {
    /// Takes from a state in place; `None` if it is no such take, and then nothing is changed.
    #[inline]
    pub(super) fn take_in_place(
        &mut self,
        at: At<'_>,
        rule: Option<Rule<'_>>,
        take: &Take,
    ) -> Option<Limited> {
        let Take { cost, part, peek, wait, .. } = *take;
        if take.hold.is_some() || take.compare_cas.is_some() || take.client_flags.is_some() {
            return None;
        }
        let slot = at.slot.filter(|slot| slot.is_second())?;
        let item = self.store.item(slot);
        let (&[a, b, c, d, 0, 0], own) = item.state()?.split_first_chunk::<HEAD_BYTES>()? else {
            return None;
        };
        let kept = self.limits.policies.get(u32::from_le_bytes([a, b, c, d]))?;
        let policy = &kept.policy;
        let is_asked_for =
            rule.is_none_or(|rule| rule.limit == kept.limit && rule.policy == policy);
        if !is_asked_for || holds_by_itself(policy) {
            return None;
        }
        let state = &mut self.limits.encoded;
        state.clear();
        state.extend_from_slice(own);
        let ask = Ask {
            cost,
            part,
            peek,
            over: policy.over,
            wait,
            hold: None,
            lease: None,
            hash: at.hash,
        };
        let mut decision = limit::take(policy, state, at.now, &ask);
        let refused = decision.verdict == Verdict::Deny && !peek;
        let shadow = only_watches(policy, &mut decision);
        let (mut cas, client_flags) = (item.cas(), item.client_flags());
        if decision.changed {
            if state.len() != own.len() {
                return None;
            }
            cas = self.next_cas(None);
            let idle_at = at.now.mono.0.saturating_add(decision.reset);
            let left_ms = idle_at.div_ceil(1_000_000).saturating_sub(at.now.mono.millis());
            let mut item = self.store.item_mut(slot);
            item.set_cas(cas);
            item.set_deadline(Deadline::after_ms(at.now, left_ms));
            item.touch(at.now);
            item.set_state_end(&self.limits.encoded);
        }
        if refused {
            self.store.item_mut(slot).set_mark(Mark::REFUSED);
        }
        Some(Limited::Decided(Facts { decision, cas, client_flags, has_state: true, shadow }))
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
                let one = quick.take(now, hash, key.as_bytes(), rule, &take);
                let at = apart.at(now, hash, key.as_bytes());
                let other = apart.take_apart(at, rule, &take);
                prop_assert_eq!(one, other);
                prop_assert_eq!(quick.item_bytes(), apart.item_bytes());
                prop_assert!(quick.limit_records(now).eq(apart.limit_records(now)));
            }
        }
    }
}
