//! The rules that a shard's states remember, each kept once and named by a number.
//!
//! A rule is a policy and the limit it belongs to. A state says under which it was written in four
//! bytes. The store counts the states of each number, so what no state uses any more is found
//! without looking at states, and what a limit has at work is known. Not here: what a policy means
//! (`limit`).

use hashbrown::HashMap;
use protocol::Policy;

/// Rules a shard keeps before it first drops unused ones.
const UNUSED_CHECK_MIN: usize = 256;

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

/// Rules by number.
pub(crate) struct Policies {
    known: Vec<Option<Kept>>,
    numbers: HashMap<Kept, u32>,
    free: Vec<u32>,
    /// With so many known, the unused are dropped first.
    check_at: usize,
}

impl Policies {
    pub(crate) fn new() -> Self {
        Self {
            known: Vec::new(),
            numbers: HashMap::new(),
            free: Vec::new(),
            check_at: UNUSED_CHECK_MIN,
        }
    }

    /// The rule of a number that a state holds.
    pub(crate) fn get(&self, number: u32) -> Option<&Kept> {
        self.known.get(number as usize)?.as_ref()
    }

    /// Each limit with a rule that is kept, and the number of that rule.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let known = self.known.iter().enumerate();
        known.filter_map(|(number, kept)| Some((kept.as_ref()?.limit, number as u32)))
    }

    /// The number of a rule, a new one if need be. `states` tells how many states have a number.
    pub(crate) fn number(&mut self, kept: &Kept, states: &[u32]) -> u32 {
        if let Some(number) = self.numbers.get(kept) {
            return *number;
        }
        if self.numbers.len() >= self.check_at {
            self.drop_unused(states);
            self.check_at = (2 * self.numbers.len()).max(UNUSED_CHECK_MIN);
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.known.push(None);
            self.known.len() as u32 - 1
        });
        self.known[number as usize] = Some(*kept);
        self.numbers.insert(*kept, number);
        number
    }

    fn drop_unused(&mut self, states: &[u32]) {
        for (number, place) in self.known.iter_mut().enumerate() {
            if states.get(number).is_none_or(|count| *count == 0)
                && let Some(kept) = place.take()
            {
                self.numbers.remove(&kept);
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
        let first = policies.number(&kept(1), &[]);
        let second = policies.number(&kept(2), &[]);
        let other = policies.number(&Kept { limit: 7, ..kept(1) }, &[]);
        assert!(first != second && first != other && second != other);
        assert_eq!(policies.number(&kept(1), &[]), first);
        assert_eq!(policies.get(second), Some(&kept(2)));
        assert_eq!(policies.get(99), None);
        assert!(policies.limits().any(|pair| pair == (7, other)));
    }

    #[test]
    fn rules_nobody_uses_do_not_pile_up() {
        let mut policies = Policies::new();
        assert_eq!(policies.number(&kept(1), &[]), 0);
        for count in 2..100_000 {
            policies.number(&kept(count), &[1]);
        }
        assert!(policies.known.len() <= UNUSED_CHECK_MIN, "{}", policies.known.len());
        assert_eq!(policies.get(0), Some(&kept(1)));
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
