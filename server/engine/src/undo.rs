//! Taking back what was done to a limit's state, when of several keys that are charged together one
//! cannot be.
//!
//! Not here: charging several keys together (`server/src/together.rs`).

use crate::apply::Engine;
use crate::arena::Slot;
use crate::item::{Content, Figures};
use crate::time::Now;

/// How a key stood before it was charged. The bytes of its state lie in the caller's buffer.
#[derive(Debug, Clone, Copy)]
pub struct Saved {
    was: Was,
    start: usize,
    end: usize,
}

#[derive(Debug, Clone, Copy)]
enum Was {
    Nothing,
    State(Figures),
    /// A plain item, which a state replaces.
    Plain,
}

impl Engine {
    /// Notes how a key stands; the bytes go behind what is in `bytes`.
    pub fn save(&mut self, now: Now, hash: u64, key: &[u8], bytes: &mut Vec<u8>) -> Saved {
        let start = bytes.len();
        let was = match self.at(now, hash, key).slot {
            None => Was::Nothing,
            Some(slot) if slot.is_second() => {
                let item = self.store.item(slot);
                bytes.extend_from_slice(item.state().unwrap_or_default());
                Was::State(item.figures())
            }
            Some(_) => Was::Plain,
        };
        Saved { was, start, end: bytes.len() }
    }

    /// Makes the key stand as it did, under the same lock. Where there is no room for that any more
    /// what was taken stays taken, as after a refund that got lost: less passes, never more.
    pub fn bring_back(&mut self, now: Now, hash: u64, key: &[u8], saved: &Saved, bytes: &[u8]) {
        let slot = self.at(now, hash, key).slot.filter(|slot| Slot::is_second(*slot));
        match (saved.was, slot) {
            (Was::State(figures), slot) => {
                let state = Content::State(bytes.get(saved.start..saved.end).unwrap_or_default());
                let _ = self.store.write(now, hash, key, slot, figures, state);
            }
            (Was::Nothing, Some(slot)) => self.store.remove(hash, slot),
            (Was::Nothing, None) | (Was::Plain, _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use protocol::Policy;

    use super::*;
    use crate::{Budget, KeyHasher, Limited, Options, Rule, Take};

    #[test]
    fn what_is_taken_back_was_never_taken() {
        let hasher = KeyHasher::new([1, 2, 3, 4]);
        let budget = Arc::new(Budget::new(1 << 20));
        let mut engine = Engine::new(hasher.clone(), budget, Options::default());
        for policy in ["bucket:5/60s", "sliding:5/60s,slices=3", "log:5/60s", "concurrency:5"] {
            let policy = Policy::parse(policy.as_bytes()).expect("a good policy");
            let (now, key) = (Now::at_ms(1000), policy.to_string().into_bytes());
            let hash = hasher.hash(&key);
            let take = Take { cost: 1, ..Take::default() };
            let look =
                |engine: &mut Engine| engine.look(now, hash, &key, Some(Rule::from(&policy)));
            for before in 0..2 {
                let stood = look(&mut engine);
                let mut bytes = b"other".to_vec();
                let saved = engine.save(now, hash, &key, &mut bytes);
                for _ in 0..3 {
                    let taken = engine.take(now, hash, &key, Some(Rule::from(&policy)), &take);
                    assert!(matches!(taken, Limited::Decided(facts) if !facts.refuses()));
                }
                assert_ne!(look(&mut engine), stood, "{policy} {before}");
                engine.bring_back(now, hash, &key, &saved, &bytes);
                assert_eq!(look(&mut engine), stood, "{policy} {before}");
                engine.take(now, hash, &key, Some(Rule::from(&policy)), &take);
            }
        }
    }
}
