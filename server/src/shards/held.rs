//! The shards of a batch of keys, all held at once: what lies in them is fetched together, and each is
//! locked once for all that the batch does there.
//!
//! Not here: what is done there (`quick`), shards of keys that are charged together, which have to be
//! waited for (`shards`).

use arrayvec::ArrayVec;
use engine::Engine;
use parking_lot::MutexGuard;

use super::Shards;

/// Keys at once: as many cache misses as the processor has room for.
pub(crate) const HELD_MAX: usize = 16;

/// The shards of up to [`HELD_MAX`] keys. Whoever has one waits for no other lock before it is dropped.
pub(crate) struct Held<'a> {
    numbers: ArrayVec<usize, HELD_MAX>,
    engines: ArrayVec<MutexGuard<'a, Engine>, HELD_MAX>,
    /// By key, its shard among `engines`; past their end for one that somebody else had.
    places: ArrayVec<u8, HELD_MAX>,
}

impl<'a> Held<'a> {
    /// Takes the shards of the first [`HELD_MAX`] `hashes` and fetches what the keys need, all at once
    /// instead of one after the other: a lookup by itself waits for two cache misses and more, and a
    /// batch of them need not wait longer than one does.
    ///
    /// All are locked first: between two locks the processor lets no two misses overlap. A shard that
    /// somebody else has is left alone, so nobody waits here for another.
    #[inline]
    pub(super) fn new(shards: &'a Shards, hashes: impl Iterator<Item = u64> + Clone) -> Self {
        let hashes = hashes.take(HELD_MAX);
        let mut held =
            Self { numbers: ArrayVec::new(), engines: ArrayVec::new(), places: ArrayVec::new() };
        for hash in hashes.clone() {
            let place = held.place(shards, shards.shard(hash));
            if let Some(engine) = held.engines.get(usize::from(place)) {
                engine.prefetch_line(hash);
            }
            held.places.push(place);
        }
        if held.places.len() == 1 {
            return held;
        }
        for (hash, place) in hashes.zip(&held.places) {
            if let Some(engine) = held.engines.get_mut(usize::from(*place)) {
                engine.prefetch_item(hash);
            }
        }
        held
    }

    /// Where a shard is among those held, which it now is if it can be had.
    #[inline]
    fn place(&mut self, shards: &'a Shards, number: usize) -> u8 {
        let place = self.numbers.iter().position(|held| *held == number);
        let place = place.unwrap_or_else(|| match shards.shards[number].try_lock() {
            Some(engine) => {
                self.numbers.push(number);
                self.engines.push(engine);
                self.engines.len() - 1
            }
            None => HELD_MAX,
        });
        place as u8
    }

    /// The engine of the key at `position` among those it was made with; `None` if somebody else had it.
    #[inline]
    pub(crate) fn engine(&mut self, position: usize) -> Option<&mut Engine> {
        let place = self.places.get(position)?;
        self.engines.get_mut(usize::from(*place)).map(|engine| &mut **engine)
    }
}
