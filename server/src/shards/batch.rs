//! The locked shards of a batch of keys: their memory is prefetched together, and each shard is
//! locked once per batch.
//!
//! Not here: the execution (`fast`), the shards of keys that are charged together, which wait for
//! their locks in order (`locked_shards`).

use arrayvec::ArrayVec;
use engine::Engine;

use super::Shards;
use super::lock::ShardGuard;

/// Most keys per batch: as many cache misses as a processor can overlap.
pub(crate) const BATCH_SHARDS_MAX: usize = 16;

/// The locked shards of a batch. While it holds a shard, it waits for another one only for the
/// bounded time of `ShardLock::lock_soon`, so that two batches cannot deadlock. Its owner must wait
/// for no other lock before [`ShardBatch::release`].
pub(crate) struct ShardBatch<'a> {
    shards: &'a Shards,
    rows: ArrayVec<LockedShard<'a>, BATCH_SHARDS_MAX>,
    /// A filter over the low six bits of each shard index: a clear bit proves absence from `rows`.
    seen: u64,
    /// For each key, the position of its shard in `rows`, or a position past the end if another
    /// thread held the shard. Empty once shards are locked one at a time.
    places: ArrayVec<u8, BATCH_SHARDS_MAX>,
}

/// A shard of the batch.
struct LockedShard<'a> {
    index: usize,
    /// `None` once the last key of the shard is done.
    engine: Option<ShardGuard<'a>>,
    /// The position of its last key in the batch.
    last: u8,
}

/// Returns the bit of a shard in [`ShardBatch::seen`].
fn bit(index: usize) -> u64 {
    1 << (index % u64::BITS as usize)
}

impl<'a> ShardBatch<'a> {
    /// Locks the shards of up to [`BATCH_SHARDS_MAX`] `hashes` and prefetches the memory that the
    /// keys need. A single lookup waits for two or more cache misses; prefetching overlaps the
    /// misses of all lookups.
    ///
    /// All shards are locked before the first prefetch, because the processor does not overlap
    /// misses across lock operations. Skips a shard that another thread holds; waits only for the
    /// first one, and only if `may_wait`.
    #[inline]
    pub(super) fn new(shards: &'a Shards, hashes: &[u64], may_wait: bool) -> Self {
        let mut locked = Self { shards, rows: ArrayVec::new(), seen: 0, places: ArrayVec::new() };
        for (position, hash) in hashes.iter().enumerate() {
            let place = locked.place(shards.shard(*hash), may_wait);
            if let Some(row) = locked.rows.get_mut(usize::from(place)) {
                row.last = position as u8;
                if let Some(engine) = &row.engine {
                    engine.prefetch_line(*hash);
                }
            }
            locked.places.push(place);
        }
        if locked.places.len() == 1 {
            return locked;
        }
        let mut behind = 0_u16;
        for (position, (hash, place)) in hashes.iter().zip(&locked.places).enumerate() {
            if let Some(LockedShard { engine: Some(engine), .. }) =
                locked.rows.get(usize::from(*place))
                && !engine.prefetch_item(*hash)
            {
                behind |= 1 << position;
            }
        }
        if behind != 0 {
            locked.prefetch_behind(hashes, behind);
        }
        locked
    }

    /// Prefetches the items of the keys in the bit set `keys`, which are not in their index line.
    #[cold]
    fn prefetch_behind(&self, hashes: &[u64], mut keys: u16) {
        while keys != 0 {
            let position = keys.trailing_zeros() as usize;
            let row = self.rows.get(usize::from(self.places[position]));
            if let Some(LockedShard { engine: Some(engine), .. }) = row {
                engine.prefetch_item_behind(hashes[position]);
            }
            keys &= keys - 1;
        }
    }

    /// Locks a shard if it is free and returns its position in `rows`; [`BATCH_SHARDS_MAX`] if it
    /// is not free.
    #[inline]
    fn place(&mut self, index: usize, may_wait: bool) -> u8 {
        if let Some(place) = self.find(index) {
            return place as u8;
        }
        let shard = &self.shards.shards[index];
        let engine = match shard.try_lock() {
            None if may_wait && self.rows.is_empty() => Some(shard.lock()),
            tried => tried,
        };
        if engine.is_none() {
            return BATCH_SHARDS_MAX as u8;
        }
        self.push(index, engine) as u8
    }

    /// Returns the position of a shard in `rows`.
    #[inline]
    fn find(&self, index: usize) -> Option<usize> {
        if self.seen & bit(index) == 0 {
            return None;
        }
        self.rows.iter().position(|row| row.index == index)
    }

    #[inline]
    fn push(&mut self, index: usize, engine: Option<ShardGuard<'a>>) -> usize {
        self.seen |= bit(index);
        self.rows.push(LockedShard { index, engine, last: 0 });
        self.rows.len() - 1
    }

    /// Returns the engine of the key with this hash at `position` of the batch. If its shard is not
    /// locked and does not become free soon, releases all other shards; from then on one shard is
    /// locked at a time.
    #[inline]
    pub(crate) fn engine(&mut self, position: usize, hash: u64) -> &mut Engine {
        let place = self.places.get(position).map(|place| usize::from(*place));
        let Some(place) = place.filter(|place| *place < self.rows.len()) else {
            return self.late_engine(position, self.shards.shard(hash));
        };
        self.rows[place].engine.as_mut().expect("a key behind it is not done with")
    }

    /// [`ShardBatch::engine`] that never releases other shards: returns `None` if the shard does
    /// not become free soon.
    #[inline]
    pub(crate) fn engine_beside(&mut self, position: usize, hash: u64) -> Option<&mut Engine> {
        let place = self.places.get(position).map(|place| usize::from(*place));
        let place = match place.filter(|place| *place < self.rows.len()) {
            Some(place) => place,
            None => self.hold_beside(position, self.shards.shard(hash))?,
        };
        self.rows[place].engine.as_deref_mut()
    }

    /// Ends the use of the key at `position`: unlocks its shard unless later keys need it.
    #[inline]
    pub(crate) fn done(&mut self, position: usize) {
        if let Some(place) = self.places.get(position)
            && let Some(row) = self.rows.get_mut(usize::from(*place))
            && usize::from(row.last) == position
        {
            row.engine = None;
        }
    }

    /// Locks a shard that another thread held: beside the others if it becomes free soon, else
    /// alone.
    #[cold]
    fn late_engine(&mut self, position: usize, index: usize) -> &mut Engine {
        let place = self.hold_beside(position, index).unwrap_or_else(|| self.hold_only(index));
        self.rows[place].engine.as_mut().expect("it was locked just now")
    }

    /// Locks a shard that another thread held if it becomes free soon, and returns its position in
    /// `rows`.
    #[cold]
    fn hold_beside(&mut self, position: usize, index: usize) -> Option<usize> {
        if position >= self.places.len() {
            return None;
        }
        let place = self.find(index).unwrap_or_else(|| self.push(index, None));
        let shards = self.shards;
        let row = &mut self.rows[place];
        // An earlier key may have used and unlocked the same shard.
        row.engine = row.engine.take().or_else(|| shards.shards[index].lock_soon());
        row.engine.as_ref()?;
        row.last = row.last.max(position as u8);
        self.places[position] = place as u8;
        Some(place)
    }

    fn hold_only(&mut self, index: usize) -> usize {
        if !self.places.is_empty() || self.rows.first().is_none_or(|row| row.index != index) {
            self.release();
            let engine = self.shards.shards[index].lock();
            self.push(index, Some(engine));
        }
        0
    }

    /// Unlocks all shards.
    pub(crate) fn release(&mut self) {
        self.rows.clear();
        self.places.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::super::tests::shards;
    use super::*;

    /// Returns hashes of keys in these shards.
    fn hashes(shards: &Shards, numbers: [u64; 4]) -> [u64; 4] {
        numbers.map(|number| number << shards.shift)
    }

    fn is_held(shards: &Shards, hash: u64) -> bool {
        shards.shards[shards.shard(hash)].try_lock().is_none()
    }

    #[test]
    fn a_shard_freed_in_time_is_locked_with_the_others() {
        let shards = shards(64 << 20, None);
        let hashes = hashes(&shards, [3, 5, 7, 5]);
        let another = shards.shards[5].lock();
        let mut locked = shards.lock_batch(&hashes);
        drop(another);
        assert_eq!(hashes.map(|hash| is_held(&shards, hash)), [true, false, true, false]);
        for (position, hash) in hashes.into_iter().enumerate() {
            locked.engine(position, hash);
            assert!(is_held(&shards, hash), "{position}");
            assert_eq!(is_held(&shards, hashes[2]), position < 3, "{position}");
            locked.done(position);
            assert!(!is_held(&shards, hash), "{position}");
        }
    }

    #[test]
    fn a_batch_that_waits_for_a_shard_holds_no_other() {
        let shards = shards(64 << 20, None);
        let hashes = hashes(&shards, [3, 5, 7, 5]);
        let (has_one, may_go) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _one = shards.shards[5].lock();
                has_one.wait();
                may_go.wait();
                // Not available before the other thread unlocks it.
                let _other = shards.shards[7].lock();
            });
            has_one.wait();
            let mut locked = shards.lock_batch(&hashes);
            may_go.wait();
            for (position, hash) in hashes.into_iter().enumerate() {
                locked.engine(position, hash);
                assert!(is_held(&shards, hash), "{position}");
                locked.done(position);
            }
            locked.release();
        });
        assert!(!hashes.iter().any(|hash| is_held(&shards, *hash)));
    }
}
