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
    rows: ArrayVec<Row<'a>, HELD_MAX>,
    /// A bit for the last six bits of each number: where it is missing, no number need be looked for.
    seen: u64,
    /// By key, its shard among `rows`; past their end for one that somebody else had. Empty once
    /// shards are held one after the other.
    places: ArrayVec<u8, HELD_MAX>,
}

/// A shard that is held.
struct Row<'a> {
    number: usize,
    /// `None` once the last key of the shard is done with.
    engine: Option<MutexGuard<'a, Engine>>,
    /// The position of the last key.
    last: u8,
}

impl<'a> Held<'a> {
    /// Takes the shards of up to [`HELD_MAX`] `hashes` and fetches what the keys need, all at once instead
    /// of one after the other: a lookup by itself waits for two cache misses and more, and a batch of
    /// them need not wait longer than one does.
    ///
    /// All are locked first: between two locks the processor lets no two misses overlap. A shard that
    /// somebody else has is left alone; only the first is waited for, and only if `may_wait`.
    #[inline]
    pub(super) fn new(shards: &'a Shards, hashes: &[u64], may_wait: bool) -> Self {
        let mut held = Self { shards, rows: ArrayVec::new(), seen: 0, places: ArrayVec::new() };
        // The lock of each, and what most commands change beside it, may be another processor's now.
        for hash in hashes.iter().skip(1) {
            prefetch_for_write(&*shards.shards[shards.shard(*hash)]);
        }
        for (position, hash) in hashes.iter().enumerate() {
            let place = held.place(shards.shard(*hash), may_wait);
            if let Some(row) = held.rows.get_mut(usize::from(place)) {
                row.last = position as u8;
                if let Some(engine) = &row.engine {
                    engine.prefetch_line(*hash);
                }
            }
            held.places.push(place);
        }
        if held.places.len() == 1 {
            return held;
        }
        for (hash, place) in hashes.iter().zip(&held.places) {
            if let Some(Row { engine: Some(engine), .. }) = held.rows.get(usize::from(*place)) {
                engine.prefetch_item(*hash);
            }
        }
        held
    }

    /// Where a shard is among those held, which it now is if it can be had.
    #[inline]
    fn place(&mut self, number: usize, may_wait: bool) -> u8 {
        let bit = 1 << (number % u64::BITS as usize);
        if self.seen & bit != 0
            && let Some(place) = self.rows.iter().position(|row| row.number == number)
        {
            return place as u8;
        }
        let shard = &self.shards.shards[number];
        let engine = match shard.try_lock() {
            None if may_wait && self.rows.is_empty() => Some(shard.lock()),
            tried => tried,
        };
        if engine.is_none() {
            return HELD_MAX as u8;
        }
        self.seen |= bit;
        self.rows.push(Row { number, engine, last: 0 });
        (self.rows.len() - 1) as u8
    }

    /// The engine of a key with this hash, at this position among those it was made with. Where it is not
    /// held all others are released, and from then on one is held at a time.
    #[inline]
    pub(crate) fn engine(&mut self, position: usize, hash: u64) -> &mut Engine {
        let place = self.places.get(position).map(|place| usize::from(*place));
        let place = match place.filter(|place| *place < self.rows.len()) {
            Some(place) => place,
            None => self.hold_only(self.shards.shard(hash)),
        };
        self.rows[place].engine.as_mut().expect("a key behind it is not done with")
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

    #[cold]
    fn hold_only(&mut self, number: usize) -> usize {
        if !self.places.is_empty() || self.rows.first().is_none_or(|row| row.number != number) {
            self.release();
            let engine = Some(self.shards.shards[number].lock());
            self.rows.push(Row { number, engine, last: 0 });
        }
        0
    }

    /// Lets all go.
    pub(crate) fn release(&mut self) {
        self.rows.clear();
        self.places.clear();
    }
}
