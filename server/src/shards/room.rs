//! Making room: a change that finds none in its own shard evicts from the others and runs again.
//!
//! Not here: the choice of a victim in a shard (`engine`).

use std::sync::atomic::Ordering;

use engine::{EVICTIONS_MAX, Engine, EvictionScope, Now};

use super::Shards;

/// Eviction makes room for at least this many bytes: a chunk, and the growth of an index.
const ROOM_BYTES_MIN: usize = 16 << 10;

/// The error of a change that finds no room in its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom;

impl Shards {
    /// Runs `change` on the locked shard of `hash`. If it returns `None` for lack of room, other
    /// shards make room and it runs again. Returns `None` if no more room can be made.
    pub fn with_room<T>(
        &self,
        now: Now,
        hash: u64,
        change: impl FnMut(&mut Engine) -> Option<T>,
    ) -> Option<T> {
        self.with_room_for(now, hash, 0, change)
    }

    /// [`Shards::with_room`] for a change that stores about `bytes` bytes.
    pub(super) fn with_room_for<T>(
        &self,
        now: Now,
        hash: u64,
        bytes: usize,
        mut change: impl FnMut(&mut Engine) -> Option<T>,
    ) -> Option<T> {
        let home = self.shard(hash);
        loop {
            if let Some(done) = change(&mut self.shards[home].lock()) {
                return Some(done);
            }
            if !self.make_room(now, &[hash], bytes) {
                return None;
            }
        }
    }

    /// Evicts from all shards in turn until `bytes` fit; evicts limit states only when no plain
    /// item is left, and no items of keys with the hashes `keep`: an `append` must find the item
    /// that it found before. Returns false if nothing may be evicted, or eviction would not help.
    pub(super) fn make_room(&self, now: Now, keep: &[u64], bytes: usize) -> bool {
        if !self.may_evict || self.memory_cap.is_mostly_free() {
            return false;
        }
        self.evict_by_turns(now, keep, bytes, EvictionScope::Plain)
            || self.evict_by_turns(now, keep, bytes, EvictionScope::All)
    }

    fn evict_by_turns(&self, now: Now, keep: &[u64], bytes: usize, reach: EvictionScope) -> bool {
        let mut freed = false;
        // Start at a different shard each time.
        let first = self.next_to_give.fetch_add(1, Ordering::Relaxed);
        for step in 0..self.shards.len() {
            let mut engine = self.shards[first.wrapping_add(step) % self.shards.len()].lock();
            for _ in 0..EVICTIONS_MAX {
                if !engine.evict(now, keep, reach) {
                    break;
                }
                freed = true;
                if !self.memory_cap.exceeds_cap_by(bytes.max(ROOM_BYTES_MIN)) {
                    return freed;
                }
            }
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use protocol::SetMode;

    use super::super::tests::{shards, store};

    #[test]
    fn room_for_a_change_does_not_cost_the_changed_item() {
        let shards = shards(64 << 20, None);
        let large = vec![b'x'; 1_000_000];
        // With as many large items as shards, many shards hold only the item that is changed.
        for number in 0..64 {
            assert!(store(&shards, SetMode::Set, format!("large{number}").as_bytes(), &large));
        }
        for number in 0..640 {
            let key = format!("large{number}");
            assert!(store(&shards, SetMode::Set, key.as_bytes(), &large));
            assert!(store(&shards, SetMode::Append, key.as_bytes(), &large[..2000]), "{key}");
        }
        assert!(shards.totals().losses.evicted > 100);
    }
}
