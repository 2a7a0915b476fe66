//! Tests of the policy table against a slow count of the policies of states.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use protocol::{Command, Delete, Exptime, Key, Operation, Policy};

use crate::policy_table::{INLINE, PolicyRef};
use crate::store::item::Item;
use crate::{Engine, EngineOptions, KeyHasher, MemoryCap, Now, TakeParams, TakeResult};

const KEYS: u8 = 90;
/// More policies than the smallest shard stores.
const POLICIES: u64 = 150;

fn policy(number: u64) -> Policy {
    let algorithm = ["bucket", "fixed", "sliding", "log"][(number % 4) as usize];
    let token = format!("{algorithm}:{}/{}s", 3 + number / 4, 2 + number % 3);
    Policy::parse(token.as_bytes()).expect("a good policy")
}

fn engine(memory_bytes: usize, shards: u32) -> Engine {
    let memory_cap = Arc::new(MemoryCap::new(memory_bytes));
    let options = EngineOptions { shards, ..EngineOptions::default() };
    Engine::new(KeyHasher::new([1, 2, 3, 4]), memory_cap, options)
}

/// With this many shards each stores no more policies than its minimum.
const SHARDS_MANY: u32 = 1 << 20;

#[derive(Debug, Clone, Copy)]
enum Step {
    Take { key: u8, policy: u64, limit: u32, cost: u64 },
    PutBack { key: u8 },
    Remembered { key: u8 },
    Delete { key: u8 },
    Save { key: u8, policy: u64 },
    Copy { key: u8, to: u8 },
    Restore { key: u8 },
    Pass(u64),
    Sweep,
    Evict,
    Flush,
}

fn any_step() -> impl Strategy<Value = Step> {
    let key = || 0..KEYS;
    prop_oneof![
        60 => (key(), 0..POLICIES, prop_oneof![9 => Just(0_u32), 1 => 1_u32..4], 0_u64..3)
            .prop_map(|(key, policy, limit, cost)| Step::Take { key, policy, limit, cost }),
        3 => key().prop_map(|key| Step::PutBack { key }),
        5 => key().prop_map(|key| Step::Remembered { key }),
        3 => key().prop_map(|key| Step::Delete { key }),
        5 => (key(), 0..POLICIES).prop_map(|(key, policy)| Step::Save { key, policy }),
        5 => (key(), key()).prop_map(|(key, to)| Step::Copy { key, to }),
        3 => key().prop_map(|key| Step::Restore { key }),
        3 => (0_u64..900).prop_map(Step::Pass),
        2 => Just(Step::Sweep),
        2 => Just(Step::Evict),
        1 => Just(Step::Flush),
    ]
}

struct Bench {
    engine: Engine,
    hasher: KeyHasher,
    now: Now,
}

impl Bench {
    fn new(memory_bytes: usize, shards: u32) -> Self {
        let engine = engine(memory_bytes, shards);
        Self { engine, hasher: KeyHasher::new([1, 2, 3, 4]), now: Now::at_ms(1000) }
    }

    fn take(&mut self, key: u8, rule: Option<(u64, u32)>, cost: u64) -> TakeResult {
        let of = rule.map(|(number, limit)| (policy(number), limit));
        let policy_ref = of.as_ref().map(|(policy, limit)| PolicyRef { policy, limit: *limit });
        let (name, take) = ([b'k', key], TakeParams { cost, ..TakeParams::default() });
        let hash = self.hasher.hash(&name);
        // With more shards the uniques count in other steps.
        match self.engine.take(self.now, hash, &name, policy_ref, &take) {
            TakeResult::Decided(facts) => TakeResult::Decided(crate::TakeInfo { cas: 0, ..facts }),
            other => other,
        }
    }

    fn step(&mut self, step: Step) -> Option<TakeResult> {
        let now = self.now;
        let name = |key: u8| [b'k', key];
        match step {
            Step::Take { key, policy, limit, cost } => {
                return Some(self.take(key, Some((policy, limit)), cost));
            }
            Step::Remembered { key } => return Some(self.take(key, None, 1)),
            Step::PutBack { key } => {
                let hash = self.hasher.hash(&name(key));
                self.engine.refund(now, hash, &name(key), None, 1);
            }
            Step::Delete { key } => {
                let (name, operation) = (name(key), Operation::Delete(Delete::default()));
                let key = Key::plain(&name).expect("two bytes are a key");
                self.engine.apply(now, self.hasher.hash(&name), &Command { key, operation });
            }
            Step::Save { key, policy } => {
                let (hash, mut bytes) = (self.hasher.hash(&name(key)), Vec::new());
                let saved = self.engine.save(now, hash, &name(key), &mut bytes);
                self.take(key, Some((policy, 0)), 1);
                self.engine.rollback(now, hash, &name(key), &saved, &bytes);
            }
            Step::Copy { key, to } => {
                let (from, mut copy) = (self.hasher.hash(&name(key)), Vec::new());
                if self.engine.copy_of(from, &name(key), &mut copy) {
                    let hash = self.hasher.hash(&name(to));
                    let _ = self.engine.put_copy(now, hash, &name(to), &copy);
                }
            }
            Step::Restore { key } => {
                let hash = self.hasher.hash(&name(key));
                let mut record = None;
                for one in self.engine.limit_records(now).filter(|one| one.key == name(key)) {
                    record = Some((one.policy, one.body.to_vec(), one.left_ms));
                }
                let (policy, body, left_ms) = record?;
                self.engine.remove_copy(hash, &name(key));
                let (key, body) = (&name(key)[..], &body[..]);
                let record =
                    crate::LimitRecord { key, client_flags: 0, cas: 1, left_ms, policy, body };
                self.engine.restore_limit(now, hash, &record, 0);
            }
            Step::Pass(ms) => self.now = Now::at_ms(now.mono.millis() + ms),
            Step::Sweep => {
                self.engine.sweep(now, 1000);
            }
            Step::Evict => {
                self.engine.evict(now, &[], crate::EvictionScope::All);
            }
            Step::Flush => self.engine.flush(now, Exptime(0)),
        }
        None
    }

    /// Checks that every state has a stored or inline policy, and that exactly those policies are
    /// stored.
    fn check(&mut self) {
        self.engine.drop_unused_policies();
        let mut used = BTreeMap::new();
        for state in self.engine.store.items().filter_map(Item::state) {
            let (owned, _) = self.engine.limits.policies.policy_of(state).expect("it has a rule");
            if state.policy_id == INLINE {
                assert_eq!(owned.limit, 0, "limits have numbers always");
            } else {
                let (rule, count) = used.entry(state.policy_id).or_insert((owned, 0_u32));
                assert_eq!(*rule, owned);
                *count += 1;
            }
        }
        let counts = self.engine.store.states_by_policy().iter().enumerate();
        let counted = counts.filter(|(_, count)| **count > 0);
        let counted: Vec<_> = counted.map(|(index, count)| (index as u32, *count)).collect();
        let expected: Vec<_> = used.iter().map(|(number, (_, count))| (*number, *count)).collect();
        assert_eq!(counted, expected);
        let kept: BTreeSet<u32> =
            self.engine.limits.policies.limits().map(|(_, number)| number).collect();
        assert_eq!(kept, used.keys().copied().collect(), "exactly those in use are kept");
    }

    fn states(&self) -> BTreeMap<Vec<u8>, (Policy, Vec<u8>, u64)> {
        self.engine
            .limit_records(self.now)
            .map(|one| (one.key.to_vec(), (one.policy, one.body.to_vec(), one.left_ms)))
            .collect()
    }
}

proptest! {
    #[test]
    fn the_table_has_exactly_the_policies_in_use(
        steps in prop::collection::vec(any_step(), 1..400),
        is_short: bool,
    ) {
        let mut bench = Bench::new(if is_short { 40 << 10 } else { 8 << 20 }, SHARDS_MANY);
        for (index, step) in steps.into_iter().enumerate() {
            bench.step(step);
            if index % 16 == 0 {
                bench.check();
            }
        }
        bench.check();
    }

    #[test]
    fn an_inline_policy_decides_as_a_stored_one(
        steps in prop::collection::vec(any_step(), 1..400),
    ) {
        // Only the first engine has room for all policies.
        let (mut wide, mut narrow) = (Bench::new(8 << 20, 1), Bench::new(8 << 20, SHARDS_MANY));
        for key in 0..KEYS {
            for bench in [&mut wide, &mut narrow] {
                bench.take(key, Some((u64::from(key), 0)), 1);
            }
        }
        let inline = |bench: &Bench| {
            let mut states = bench.engine.store.items().filter_map(Item::state);
            states.any(|state| state.policy_id == INLINE)
        };
        prop_assert!(inline(&narrow) && !inline(&wide));
        for step in steps {
            if !matches!(step, Step::Evict) {
                prop_assert_eq!(wide.step(step), narrow.step(step), "{:?}", step);
            }
        }
        prop_assert_eq!(wide.states(), narrow.states());
        narrow.check();
    }
}
