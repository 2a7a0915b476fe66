//! The shards of a batch of keys, all held at once: what lies in them is fetched together, and each is
//! locked once for all that the batch does there.
//!
//! Not here: what is done there (`quick`), shards of keys that are charged together, which have to be
//! waited for (`shards`).

use arrayvec::ArrayVec;
use engine::{Engine, prefetch_for_write};
use parking_lot::MutexGuard;

use super::Shards;

/// Keys at once: as many cache misses as the processor has room for.
pub(crate) const HELD_MAX: usize = 16;

/// Shards that are held. It waits for one only while it has no other, so that two who hold some cannot
/// wait for each other; and whoever has it waits for no other lock before it is [released](Held::release).
pub(crate) struct Held<'a> {
    shards: &'a Shards,
    numbers: ArrayVec<usize, HELD_MAX>,
    /// A bit for the last six bits of each number: where it is missing, no number need be looked for.
    seen: u64,
    /// `None` once the last key of a shard is done with.
    engines: ArrayVec<Option<MutexGuard<'a, Engine>>, HELD_MAX>,
    /// The position of the last key of each.
    lasts: ArrayVec<u8, HELD_MAX>,
    /// By key, its shard among `engines`; past their end for one that somebody else had. Empty once
    /// shards are held one after the other.
    places: ArrayVec<u8, HELD_MAX>,
}

impl<'a> Held<'a> {
    /// Takes the shards of up to [`HELD_MAX`] `hashes` and fetches what the keys need, all at once instead
    /// of one after the other: a lookup by itself waits for two cache misses and more, and a batch of
    /// them need not wait longer than one does.
    ///
    /// All are locked first: between two locks the processor lets no two misses overlap. A shard that
    /// somebody else has is left alone; only the first is waited for, and only if `may_wait`.
    #[inline]
    pub(super) fn new(
        shards: &'a Shards,
        hashes: impl Iterator<Item = u64> + Clone,
        may_wait: bool,
    ) -> Self {
        let hashes = hashes.take(HELD_MAX);
        let (numbers, engines) = (ArrayVec::new(), ArrayVec::new());
        let (lasts, places) = (ArrayVec::new(), ArrayVec::new());
        let mut held = Self { shards, numbers, seen: 0, engines, lasts, places };
        // The lock of each, and what most commands change beside it, may be another processor's now.
        for hash in hashes.clone().skip(1) {
            prefetch_for_write(&*shards.shards[shards.shard(hash)]);
        }
        for hash in hashes.clone() {
            let place = held.place(shards.shard(hash), may_wait);
            if let Some(Some(engine)) = held.engines.get(usize::from(place)) {
                engine.prefetch_line(hash);
                held.lasts[usize::from(place)] = held.places.len() as u8;
            }
            held.places.push(place);
        }
        if held.places.len() == 1 {
            return held;
        }
        for (hash, place) in hashes.zip(&held.places) {
            if let Some(Some(engine)) = held.engines.get(usize::from(*place)) {
                engine.prefetch_item(hash);
            }
        }
        held
    }

    /// Where a shard is among those held, which it now is if it can be had.
    #[inline]
    fn place(&mut self, number: usize, may_wait: bool) -> u8 {
        let bit = 1 << (number % u64::BITS as usize);
        if self.seen & bit != 0
            && let Some(place) = self.numbers.iter().position(|held| *held == number)
        {
            return place as u8;
        }
        let shard = &self.shards.shards[number];
        let engine = match shard.try_lock() {
            None if may_wait && self.engines.is_empty() => Some(shard.lock()),
            tried => tried,
        };
        let Some(engine) = engine else { return HELD_MAX as u8 };
        self.seen |= bit;
        self.numbers.push(number);
        self.engines.push(Some(engine));
        self.lasts.push(0);
        (self.engines.len() - 1) as u8
    }

    /// The engine of a key with this hash, at this position among those it was made with. Where it is not
    /// held all others are released, and from then on one is held at a time.
    #[inline]
    pub(crate) fn engine(&mut self, position: usize, hash: u64) -> &mut Engine {
        let place = self.places.get(position).map(|place| usize::from(*place));
        let place = match place.filter(|place| *place < self.engines.len()) {
            Some(place) => place,
            None => self.hold_only(self.shards.shard(hash)),
        };
        self.engines[place].as_mut().expect("a key behind it is not done with")
    }

    /// The key at this position is done with: its shard is let go, unless others behind it need it.
    #[inline]
    pub(crate) fn done(&mut self, position: usize) {
        let Some(place) = self.places.get(position).map(|place| usize::from(*place)) else {
            return;
        };
        if self.lasts.get(place).is_some_and(|last| usize::from(*last) == position) {
            self.engines[place] = None;
        }
    }

    #[cold]
    fn hold_only(&mut self, number: usize) -> usize {
        if !self.places.is_empty() || self.numbers.first() != Some(&number) {
            self.release();
            self.numbers.push(number);
            self.engines.push(Some(self.shards.shards[number].lock()));
        }
        0
    }

    /// Lets all go.
    pub(crate) fn release(&mut self) {
        if self.engines.is_empty() {
            return;
        }
        self.places.clear();
        self.numbers.clear();
        self.engines.clear();
        self.lasts.clear();
    }
}
