//! The rules that a shard's states remember, each kept once and named by a number.
//!
//! A rule is a policy and the limit it belongs to. A state says under which it was written in four
//! bytes. The store counts the states of each number, so what no state uses any more is found
//! without looking at states, and what a limit has at work is known. Not here: what a policy means
//! (`limit`).

use std::cell::OnceCell;

use hashbrown::HashMap;
use protocol::Policy;

/// Rules a shard keeps before it first drops unused ones, and may keep whatever its share of memory.
const UNUSED_CHECK_MIN: usize = 256;

/// What a rule takes: itself, its places in list, tables and free list, their slack, its token twice.
pub(crate) const RULE_BYTES: usize = 512;

/// A policy as a caller brings it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule<'a> {
    /// What decides.
    pub policy: &'a Policy,
    /// The limit it belongs to, as the caller numbers limits; 0 for one that a client wrote out.
    pub limit: u32,
}

impl<'a> From<&'a Policy> for Rule<'a> {
    fn from(policy: &'a Policy) -> Self {
        Self { policy, limit: 0 }
    }
}

/// A rule that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Kept {
    pub(crate) policy: Policy,
    pub(crate) limit: u32,
}

/// A rule that has a number.
struct Known {
    kept: Kept,
    /// Its policy's token, once a copy was made of a state under it.
    token: OnceCell<Box<[u8]>>,
}

impl Known {
    fn token(&self) -> &[u8] {
        self.token.get_or_init(|| self.kept.policy.to_string().into_bytes().into())
    }
}

/// Rules by number.
#[repr(C)]
pub(crate) struct Policies {
    /// In front, for its place in memory ([`Engine`](crate::Engine)).
    known: Vec<Option<Known>>,
    numbers: HashMap<Kept, u32>,
    /// Numbers of rules without a limit, by their policy's token: those that came from another node.
    copied: HashMap<Box<[u8]>, u32>,
    free: Vec<u32>,
    /// With so many known, the unused are dropped first.
    check_at: usize,
}

impl Policies {
    /// Where the bytes end that a lookup reads.
    pub(crate) const LOOKUP_END: usize = std::mem::offset_of!(Self, numbers);

    pub(crate) fn new() -> Self {
        Self {
            known: Vec::new(),
            numbers: HashMap::new(),
            copied: HashMap::new(),
            free: Vec::new(),
            check_at: UNUSED_CHECK_MIN,
        }
    }

    /// The rule of a number that a state holds.
    pub(crate) fn get(&self, number: u32) -> Option<&Kept> {
        Some(&self.known.get(number as usize)?.as_ref()?.kept)
    }

    /// How the policy of a rule is written.
    pub(crate) fn token(&self, number: u32) -> Option<&[u8]> {
        Some(self.known.get(number as usize)?.as_ref()?.token())
    }

    /// The number of the rule that a copy from another node was made under, there of whatever limit;
    /// `None` for what is no policy. It has a place always: the node it comes from has a bound.
    pub(crate) fn number_of_copy(&mut self, token: &[u8], states: &[u32]) -> Option<u32> {
        if let Some(number) = self.copied.get(token) {
            return Some(*number);
        }
        let kept = Kept { policy: Policy::parse(token).ok()?, limit: 0 };
        let number = self.number(&kept, states, usize::MAX)?;
        // Of the spellings of one policy only one is remembered.
        if self.token(number)? == token {
            self.copied.insert(token.into(), number);
        }
        Some(number)
    }

    /// Each limit with a rule that is kept, and the number of that rule.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let known = self.known.iter().enumerate();
        known.filter_map(|(number, kept)| Some((kept.as_ref()?.kept.limit, number as u32)))
    }

    /// The number of a rule, a new one if need be. `states` tells how many states have a number.
    ///
    /// `None` where `rules_max` are in use: any client can write policies out, and each takes memory
    /// beside the store. Rules of limits always have a place; the limits file bounds them.
    pub(crate) fn number(&mut self, kept: &Kept, states: &[u32], rules_max: usize) -> Option<u32> {
        if let Some(number) = self.numbers.get(kept) {
            return Some(*number);
        }
        let rules_max = rules_max.max(UNUSED_CHECK_MIN);
        if self.numbers.len() >= self.check_at.min(rules_max) {
            self.drop_unused(states);
            self.check_at = (2 * self.numbers.len()).max(UNUSED_CHECK_MIN);
            if kept.limit == 0 && self.numbers.len() >= rules_max {
                return None;
            }
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.known.push(None);
            self.known.len() as u32 - 1
        });
        self.known[number as usize] = Some(Known { kept: *kept, token: OnceCell::new() });
        self.numbers.insert(*kept, number);
        Some(number)
    }

    fn drop_unused(&mut self, states: &[u32]) {
        for (number, place) in self.known.iter_mut().enumerate() {
            if states.get(number).is_none_or(|count| *count == 0)
                && let Some(known) = place.take()
            {
                self.numbers.remove(&known.kept);
                if known.kept.limit == 0
                    && let Some(token) = known.token.get()
                {
                    self.copied.remove(token);
                }
                self.free.push(number as u32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Algorithm, Rate};

    use super::*;

    fn kept(count: u64) -> Kept {
        let rate = Rate { count, period: 1_000_000_000 };
        let algorithm = Algorithm::Gcra { rate, burst: 0 };
        Kept { policy: Policy { algorithm, over: false, shadow: false }, limit: 0 }
    }

    #[test]
    fn a_rule_has_one_number() {
        let mut policies = Policies::new();
        let mut number = |kept| policies.number(&kept, &[], 0).expect("there is a place");
        let (first, second) = (number(kept(1)), number(kept(2)));
        let other = number(Kept { limit: 7, ..kept(1) });
        assert!(first != second && first != other && second != other);
        assert_eq!(number(kept(1)), first);
        assert_eq!(policies.get(second), Some(&kept(2)));
        assert_eq!(policies.get(99), None);
        assert!(policies.limits().any(|pair| pair == (7, other)));
    }

    #[test]
    fn rules_nobody_uses_do_not_pile_up() {
        let mut policies = Policies::new();
        assert_eq!(policies.number(&kept(1), &[], 1000), Some(0));
        for count in 2..100_000 {
            assert!(policies.number(&kept(count), &[1], 1000).is_some());
        }
        assert!(policies.known.len() <= UNUSED_CHECK_MIN, "{}", policies.known.len());
        assert_eq!(policies.get(0), Some(&kept(1)));
    }

    #[test]
    fn policies_in_use_have_a_bound_and_those_of_limits_a_place() {
        let mut policies = Policies::new();
        let in_use = [1; 2000];
        for count in 1..=1000 {
            assert!(policies.number(&kept(count), &in_use, 1000).is_some());
        }
        assert_eq!(policies.number(&kept(1001), &in_use, 1000), None);
        assert!(policies.number(&kept(1000), &in_use, 1000).is_some());
        assert!(policies.number(&Kept { limit: 3, ..kept(1001) }, &in_use, 1000).is_some());
        // When states go there is room again.
        assert!(policies.number(&kept(1001), &in_use[..10], 1000).is_some());
    }

    #[test]
    fn rules_of_copies_have_a_place_and_one_number() {
        let mut policies = Policies::new();
        let in_use = [1; 2000];
        let token = |count: u64| kept(count).policy.to_string().into_bytes();
        for count in 1..=1000 {
            let number = policies.number_of_copy(&token(count), &in_use);
            assert_eq!(number, policies.number(&kept(count), &in_use, 0));
            assert_eq!(number, policies.number_of_copy(&token(count), &in_use));
            assert_eq!(number.and_then(|number| policies.token(number)), Some(&token(count)[..]));
        }
        assert_eq!(policies.number_of_copy(b"gcra:1/1s,burst=0", &in_use), Some(0));
        assert_eq!(policies.number_of_copy(b"gcra", &in_use), None);
        // Those no state uses go, and their tokens with them.
        for count in 1001..50_000 {
            assert!(policies.number_of_copy(&token(count), &[]).is_some());
        }
        assert!(policies.copied.len() <= policies.numbers.len());
        assert!(policies.numbers.len() <= 2 * 1024, "{}", policies.numbers.len());
    }

    #[test]
    fn the_keys_at_work_are_those_that_have_a_state() {
        use std::sync::Arc;

        use crate::{Budget, Engine, KeyHasher, Now, Options, Take};

        let hasher = KeyHasher::new([1, 2, 3, 4]);
        let budget = Arc::new(Budget::new(300 << 10));
        let mut engine = Engine::new(hasher.clone(), budget, Options::default());
        let policies = ["bucket:5/60s", "log:9/2s", "fixed:5/1s", "sliding:3/s,slices=4"]
            .map(|token| Policy::parse(token.as_bytes()).expect("a good policy"));
        let take = Take { cost: 1, ..Take::default() };
        let mut draw = 1_u64;
        for step in 0..40_000_u64 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            let [a, b, c, ..] = draw.to_be_bytes();
            let now = Now::at_ms(1000 + step);
            let key = format!("key{}", u64::from(a) + (step / 5000) * 200);
            let hash = hasher.hash(key.as_bytes());
            let limit = u32::from(b % 3);
            let rule = Rule { policy: &policies[usize::from(c % 4)], limit };
            match b {
                ..5 => {
                    engine.put_back(now, hash, key.as_bytes(), None, 9);
                }
                5 => {
                    engine.sweep(now, 100);
                }
                _ => {
                    engine.take(now, hash, key.as_bytes(), Some(rule), &take);
                }
            }
            if step % 1000 == 0 {
                let mut counted = 0;
                engine.active_keys(|limit, count| {
                    assert!(limit < 3 && count > 0);
                    counted += count;
                });
                assert_eq!(counted, engine.len() as u64, "step {step}");
            }
        }
        engine.flush(Now::at_ms(90_000), protocol::Exptime(0));
        engine.active_keys(|_, _| panic!("there is nothing left"));
    }
}
