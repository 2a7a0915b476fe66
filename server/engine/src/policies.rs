//! The policies that a shard's states remember, each kept once and named by a number.
//!
//! A state says under which policy it was written in four bytes. Numbers that no state uses any
//! more are found by looking at all states, once in so many new policies that the cost is spread
//! thin. Not here: what a policy means (`limit`).

use hashbrown::HashMap;
use protocol::Policy;

/// Policies a shard keeps before it first looks for unused ones.
const UNUSED_CHECK_MIN: usize = 256;

/// Policies by number.
pub(crate) struct Policies {
    known: Vec<Option<Policy>>,
    numbers: HashMap<Policy, u32>,
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

    /// The policy of a number that a state holds.
    pub(crate) fn get(&self, number: u32) -> Option<&Policy> {
        self.known.get(number as usize)?.as_ref()
    }

    /// The number of a policy, a new one if need be. `in_use` tells the numbers that states hold;
    /// it is asked rarely.
    pub(crate) fn number<I: Iterator<Item = u32>>(
        &mut self,
        policy: &Policy,
        in_use: impl FnOnce() -> I,
    ) -> u32 {
        if let Some(number) = self.numbers.get(policy) {
            return *number;
        }
        if self.numbers.len() >= self.check_at {
            self.drop_unused(in_use());
            self.check_at = (2 * self.numbers.len()).max(UNUSED_CHECK_MIN);
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.known.push(None);
            self.known.len() as u32 - 1
        });
        self.known[number as usize] = Some(*policy);
        self.numbers.insert(*policy, number);
        number
    }

    fn drop_unused(&mut self, in_use: impl Iterator<Item = u32>) {
        let mut used = vec![false; self.known.len()];
        for number in in_use {
            if let Some(used) = used.get_mut(number as usize) {
                *used = true;
            }
        }
        for (number, used) in used.into_iter().enumerate() {
            if !used && let Some(policy) = self.known[number].take() {
                self.numbers.remove(&policy);
                self.free.push(number as u32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Algorithm, Rate};

    use super::*;

    fn policy(count: u64) -> Policy {
        let rate = Rate { count, period: 1_000_000_000 };
        Policy { algorithm: Algorithm::Gcra { rate, burst: 0 }, over: false, shadow: false }
    }

    #[test]
    fn a_policy_has_one_number() {
        let mut policies = Policies::new();
        let first = policies.number(&policy(1), || [].into_iter());
        let second = policies.number(&policy(2), || [].into_iter());
        assert_ne!(first, second);
        assert_eq!(policies.number(&policy(1), || [].into_iter()), first);
        assert_eq!(policies.get(second), Some(&policy(2)));
        assert_eq!(policies.get(99), None);
    }

    #[test]
    fn policies_nobody_uses_do_not_pile_up() {
        let mut policies = Policies::new();
        let kept = policies.number(&policy(1), || [].into_iter());
        for count in 2..100_000 {
            policies.number(&policy(count), || [kept].into_iter());
        }
        assert!(policies.known.len() <= UNUSED_CHECK_MIN, "{}", policies.known.len());
        assert_eq!(policies.get(kept), Some(&policy(1)));
    }
}
