//! The shards of a batch of keys, all held at once: what lies in them is fetched together, and each is
//! locked once for all that the batch does there.
//!
//! Not here: what is done there (`fast`), shards of keys that are charged together, which have to be
//! waited for (`shards`).

use arrayvec::ArrayVec;
use engine::Engine;

use super::Shards;
use super::lock::ShardGuard;

/// Keys at once: as many cache misses as the processor has room for.
pub(crate) const BATCH_SHARDS_MAX: usize = 16;

/// Shards that are held. While it has some it waits for another only as long as a batch takes, so that two who hold
/// some do not wait for each other for good; and whoever has it waits for no other lock before it is [released](ShardBatch::release).
pub(crate) struct ShardBatch<'a> {
    shards: &'a Shards,
    rows: ArrayVec<LockedShard<'a>, BATCH_SHARDS_MAX>,
    /// A bit for the last six bits of each number: where it is missing, no number need be looked for.
    seen: u64,
    /// By key, its shard among `rows`; past their end for one that somebody else had. Empty once
    /// shards are held one after the other.
    places: ArrayVec<u8, BATCH_SHARDS_MAX>,
}

/// A shard that is held.
struct LockedShard<'a> {
    index: usize,
    /// `None` once the last key of the shard is done with.
    engine: Option<ShardGuard<'a>>,
    /// The position of the last key.
    last: u8,
}

/// The bit of a shard in [`ShardBatch::seen`].
fn bit(index: usize) -> u64 {
    1 << (index % u64::BITS as usize)
}

impl<'a> ShardBatch<'a> {
    /// Takes the shards of up to [`BATCH_SHARDS_MAX`] `hashes` and fetches what the keys need, all at once instead
    /// of one after the other: a lookup by itself waits for two cache misses and more, and a batch of
    /// them need not wait longer than one does.
    ///
    /// All are locked first: between two locks the processor lets no two misses overlap. A shard that
    /// somebody else has is left alone; only the first is waited for, and only if `may_wait`.
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

    /// Fetches the items of those keys, a bit for each, that are not in their lines.
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

    /// Takes a shard if it can be had, and tells where it is among those held; [`BATCH_SHARDS_MAX`] if it is not.
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

    /// Where a shard is among those held.
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

    /// The engine of a key with this hash, at this position among those it was made with. Where it is not
    /// held, and somebody else does not let it go soon, all others are released, and from then on one is held at a time.
    #[inline]
    pub(crate) fn engine(&mut self, position: usize, hash: u64) -> &mut Engine {
        let place = self.places.get(position).map(|place| usize::from(*place));
        let place = match place.filter(|place| *place < self.rows.len()) {
            Some(place) => place,
            None => self.hold_late(position, self.shards.shard(hash)),
        };
        self.rows[place].engine.as_mut().expect("a key behind it is not done with")
    }

    /// As [`ShardBatch::engine`], but no shard is released for another: `None` if it cannot be had soon.
    #[inline]
    pub(crate) fn engine_beside(&mut self, position: usize, hash: u64) -> Option<&mut Engine> {
        let place = self.places.get(position).map(|place| usize::from(*place));
        let place = match place.filter(|place| *place < self.rows.len()) {
            Some(place) => place,
            None => self.hold_beside(position, self.shards.shard(hash))?,
        };
        self.rows[place].engine.as_deref_mut()
    }

    /// The key at this position is done with: its shard is let go, unless others behind it need it.
    #[inline]
    pub(crate) fn done(&mut self, position: usize) {
        if let Some(place) = self.places.get(position)
            && let Some(row) = self.rows.get_mut(usize::from(*place))
            && usize::from(row.last) == position
        {
            row.engine = None;
        }
    }

    /// Takes a shard that somebody else had, if it is free by now or soon, or else by itself; where it lies among those
    /// held.
    #[cold]
    fn hold_late(&mut self, position: usize, index: usize) -> usize {
        self.hold_beside(position, index).unwrap_or_else(|| self.hold_only(index))
    }

    /// Takes a shard that somebody else had, if it is free by now or soon; where it lies among those held.
    #[cold]
    fn hold_beside(&mut self, position: usize, index: usize) -> Option<usize> {
        if position >= self.places.len() {
            return None;
        }
        let place = self.find(index).unwrap_or_else(|| self.push(index, None));
        let shards = self.shards;
        let row = &mut self.rows[place];
        // A key before this one may have had it, and be done with it.
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

    /// Lets all go.
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

    /// Hashes of keys in these shards.
    fn hashes(shards: &Shards, numbers: [u64; 4]) -> [u64; 4] {
        numbers.map(|number| number << shards.shift)
    }

    fn is_held(shards: &Shards, hash: u64) -> bool {
        shards.shards[shards.shard(hash)].try_lock().is_none()
    }

    #[test]
    fn a_shard_that_is_free_again_is_held_beside_the_others() {
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
    fn who_waits_for_a_shard_holds_no_other() {
        let shards = shards(64 << 20, None);
        let hashes = hashes(&shards, [3, 5, 7, 5]);
        let (has_one, may_go) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _one = shards.shards[5].lock();
                has_one.wait();
                may_go.wait();
                // Not to be had before the other lets go.
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
