//! Several shards that are locked at once, for keys that are charged together.
//!
//! Not here: the charge (`multi_key`), the shards of a batch, which are locked one by one
//! (`batch`).

use arrayvec::ArrayVec;
use engine::{Engine, Now};

use super::lock::ShardGuard;
use super::{NoRoom, Shards};

/// Most keys that one request changes at once: those of a `takem`, each with its parents.
pub(crate) const KEYS_TOGETHER_MAX: usize =
    protocol::TAKE_KEYS_MAX * (1 + tollgate_limits::PARENTS_MAX);

impl Shards {
    /// [`Shards::with_room`] on all shards of `hashes` at once. If `change` finds no room in one of
    /// them, it must have changed nothing.
    pub(crate) fn with_locked<T>(
        &self,
        now: Now,
        hashes: &(impl Iterator<Item = u64> + Clone),
        mut change: impl FnMut(&mut LockedShards<'_>) -> Result<T, NoRoom>,
    ) -> Option<T> {
        loop {
            // Filled here, not returned by a function: a move would copy its whole room.
            let mut locked = LockedShards { shards: self, engines: ArrayVec::new() };
            locked.lock(hashes.clone());
            if let Ok(done) = change(&mut locked) {
                return Some(done);
            }
            drop(locked);
            let keep: ArrayVec<u64, KEYS_TOGETHER_MAX> =
                hashes.clone().take(KEYS_TOGETHER_MAX).collect();
            if !self.make_room(now, &keep, 0) {
                return None;
            }
        }
    }
}

/// Several shards, locked at once.
pub(crate) struct LockedShards<'a> {
    shards: &'a Shards,
    engines: ArrayVec<(usize, ShardGuard<'a>), KEYS_TOGETHER_MAX>,
}

impl LockedShards<'_> {
    /// Locks the shards in ascending order, so that two callers cannot deadlock. All other code
    /// waits for a shard only while it holds none, or for a bounded time (`batch`).
    fn lock(&mut self, hashes: impl Iterator<Item = u64>) {
        let mut numbers = ArrayVec::<usize, KEYS_TOGETHER_MAX>::new();
        numbers.extend(hashes.take(KEYS_TOGETHER_MAX).map(|hash| self.shards.shard(hash)));
        numbers.sort_unstable();
        for &index in &numbers {
            if self.engines.last().is_none_or(|(last, _)| *last != index) {
                self.engines.push((index, self.shards.shards[index].lock()));
            }
        }
    }

    /// Returns the engine of a key whose shard is locked.
    pub(crate) fn engine(&mut self, hash: u64) -> &mut Engine {
        let index = self.shards.shard(hash);
        let place = self.engines.binary_search_by_key(&index, |(index, _)| *index);
        &mut self.engines[place.expect("the shard of every key is locked")].1
    }
}
