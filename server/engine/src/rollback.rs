//! Rolls back a charge of a limit's state, if one of several keys that are charged together is
//! refused.
//!
//! Here: saving and restoring one key. Not here: charging several keys together
//! (`server/src/commands/multi_key.rs`).

use crate::engine::Engine;
use crate::policy_table::{LimitState, OwnedPolicy};
use crate::store::arena::Slot;
use crate::store::holders::Holders;
use crate::store::item::{Content, ItemHeader};
use crate::store::sums::SumKey as HoldKey;
use crate::store::{HoldSetId, Located};
use crate::time::Now;

/// The saved state of a key before its charge. The bytes of the state are in the caller's buffer,
/// without the policy id: the id of a policy without states may be given to another policy.
#[derive(Debug, Clone, Copy)]
pub struct SavedState {
    content: SavedContent,
    /// The newest hold of a key with many holds.
    newest: Option<HoldKey>,
    start: usize,
    end: usize,
}

#[derive(Debug, Clone, Copy)]
enum SavedContent {
    /// No state, or a plain item, which a state may replace and which is not restored.
    Nothing,
    State(ItemHeader, OwnedPolicy),
}

impl Engine {
    /// Saves the state of a key; appends its bytes to `bytes`.
    pub fn save(&mut self, now: Now, hash: u64, key: &[u8], bytes: &mut Vec<u8>) -> SavedState {
        let start = bytes.len();
        let mut newest = None;
        let was = match self.at(now, hash, key).slot {
            Some(slot) if slot.is_limit_state() => {
                let item = self.store.item(slot);
                let rule = item.state().and_then(|state| {
                    let (owned, body) = self.limits.policies.policy_of(state)?;
                    bytes.extend_from_slice(body);
                    let holders = HoldSetId::of_body(body).and_then(|set| self.store.holders(set));
                    newest = holders.and_then(Holders::newest);
                    Some(owned)
                });
                rule.map_or(SavedContent::Nothing, |owned| {
                    SavedContent::State(item.header(), owned)
                })
            }
            _ => SavedContent::Nothing,
        };
        SavedState { content: was, newest, start, end: bytes.len() }
    }

    /// Restores the saved state of a key, under the same lock. A plain item that a state replaced
    /// stays removed. If there is no room for the state any more, the charge stays, as after a lost
    /// refund: less passes, never more.
    pub fn rollback(&mut self, now: Now, hash: u64, key: &[u8], saved: &SavedState, bytes: &[u8]) {
        let slot = self.at(now, hash, key).slot.filter(|slot| Slot::is_limit_state(*slot));
        match (saved.content, slot) {
            (SavedContent::State(header, owned), slot) => {
                let own = bytes.get(saved.start..saved.end).unwrap_or_default();
                if let Some(set) = HoldSetId::of_body(own) {
                    let named = slot.and_then(|slot| self.store.item(slot).state());
                    if named.and_then(HoldSetId::of) != Some(set) {
                        // The holds were removed, which is the same as if the key had been evicted.
                        return;
                    }
                    self.store.change_holders(set, |holders| holders.roll_back(saved.newest));
                }
                let mut body = Vec::new();
                let policy_id = self.policy_id(&owned, &mut body);
                let body = if body.is_empty() {
                    own
                } else {
                    body.extend_from_slice(own);
                    &body
                };
                let content = Content::State(LimitState { policy_id, body });
                let _ = self.store.write(Located { now, hash, key, slot }, header, content);
            }
            (SavedContent::Nothing, Some(slot)) => self.store.remove(hash, slot),
            (SavedContent::Nothing, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use protocol::{Policy, Value};

    use super::*;
    use crate::{
        EngineOptions, ItemRecord, KeyHasher, MemoryCap, PolicyRef, TakeParams, TakeResult,
    };

    #[test]
    fn a_rollback_restores_the_state() {
        let hasher = KeyHasher::new([1, 2, 3, 4]);
        let memory_cap = Arc::new(MemoryCap::new(1 << 20));
        let mut engine = Engine::new(hasher.clone(), memory_cap, EngineOptions::default());
        let lists = ["log:5/60s", "concurrency:5", "fixed:5/60s;gcra:9/60s"];
        for policy in ["bucket:5/60s", "sliding:5/60s,slices=3"].into_iter().chain(lists) {
            let policy = Policy::parse_list(policy.as_bytes()).expect("a good policy");
            let (now, key) = (Now::at_ms(1000), policy.to_string().into_bytes());
            let hash = hasher.hash(&key);
            let take = TakeParams { cost: 1, ..TakeParams::default() };
            let look =
                |engine: &mut Engine| engine.look(now, hash, &key, Some(PolicyRef::from(&policy)));
            let plain = ItemRecord {
                key: &key,
                value: Value::Number(7),
                client_flags: 0,
                cas: 1,
                left_ms: None,
                stale: false,
                won: false,
                base64: false,
            };
            assert!(engine.restore(now, hash, &plain));
            for before in 0..2 {
                let stood = look(&mut engine);
                let mut bytes = b"other".to_vec();
                let saved = engine.save(now, hash, &key, &mut bytes);
                for _ in 0..3 {
                    let taken = engine.take(now, hash, &key, Some(PolicyRef::from(&policy)), &take);
                    assert!(matches!(taken, TakeResult::Decided(facts) if !facts.refuses()));
                }
                assert_ne!(look(&mut engine), stood, "{policy} {before}");
                engine.rollback(now, hash, &key, &saved, &bytes);
                assert_eq!(look(&mut engine), stood, "{policy} {before}");
                engine.take(now, hash, &key, Some(PolicyRef::from(&policy)), &take);
            }
        }
    }

    #[test]
    fn a_rollback_restores_a_dropped_policy() {
        let hasher = KeyHasher::new([1, 2, 3, 4]);
        let memory_cap = Arc::new(MemoryCap::new(8 << 20));
        let mut engine = Engine::new(hasher.clone(), memory_cap, EngineOptions::default());
        let (now, key) = (Now::at_ms(1000), b"key");
        let hash = hasher.hash(key);
        let take = TakeParams { cost: 1, ..TakeParams::default() };
        let of = |count: u64| {
            Policy::parse(format!("fixed:{count}/60s").as_bytes()).expect("a good policy")
        };
        engine.take(now, hash, key, Some(PolicyRef::from(&of(7))), &take);
        let mut bytes = Vec::new();
        let saved = engine.save(now, hash, key, &mut bytes);
        engine.take(now, hash, key, Some(PolicyRef::from(&of(8))), &take);
        for count in 100..2_000 {
            let other = format!("other{}", count % 10).into_bytes();
            let hash = hasher.hash(&other);
            engine.take(now, hash, &other, Some(PolicyRef::from(&of(count))), &take);
        }
        engine.rollback(now, hash, key, &saved, &bytes);
        let facts = engine.look(now, hash, key, None).expect("it is there");
        assert_eq!((facts.decision.limit, facts.decision.used), (7, 1));
    }
}
