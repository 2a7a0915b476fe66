//! Items of a range of hashes, such as those of a partition: read and removed line by line.
//!
//! Here: the walk. Not here: hashes that give a partition lines of its own (`hasher`).

use super::{Item, Slot, Store};
use crate::hasher::{HashRange, spread_of};

impl Store {
    /// Passes the items of a range to `visit`, from the spread `from` on, until it returns false or
    /// `lines` lines of the index are read. Returns the spread at which to continue, `None` at the
    /// end.
    ///
    /// The order is that of spreads, which depend only on keys: an item that stays is never
    /// skipped, whatever else is added, removed or moved in the meantime.
    pub(crate) fn read_range<'s>(
        &'s self,
        range: HashRange,
        from: u64,
        lines: usize,
        mut visit: impl FnMut(Item<'s>) -> bool,
    ) -> Option<u64> {
        let (first, last) = self.hasher.spreads(range);
        let (mut from, mut found) = (from.max(first), Vec::new());
        for _ in 0..lines {
            let end = self.line_at(range, from, &mut found);
            found.sort_unstable_by_key(|(spread, ..)| *spread);
            let mut enough = None;
            for (spread, _, slot) in found.drain(..) {
                // Two keys of one spread are visited together.
                if enough.is_some_and(|shown| spread > shown) {
                    return Some(spread);
                }
                if !visit(self.item(slot)) {
                    enough = Some(spread);
                }
            }
            from = end.checked_add(1).filter(|next| *next <= last)?;
            if enough.is_some() {
                break;
            }
        }
        Some(from)
    }

    /// Removes the items of a range in up to `lines` lines, in the order of [`Store::read_range`].
    pub(crate) fn remove_range(
        &mut self,
        range: HashRange,
        from: u64,
        lines: usize,
    ) -> Option<u64> {
        let (first, last) = self.hasher.spreads(range);
        let (mut from, mut found) = (from.max(first), Vec::new());
        for _ in 0..lines {
            let end = self.line_at(range, from, &mut found);
            // The last item of a class moves into a freed slot, so remove the last first.
            found.sort_unstable_by_key(|(_, _, slot)| std::cmp::Reverse(slot.raw()));
            for (_, hash, slot) in found.drain(..) {
                self.remove(hash, slot);
            }
            from = end.checked_add(1).filter(|next| *next <= last)?;
        }
        Some(from)
    }

    /// Adds the items of a range in the line of a spread, from that spread on: spread, hash and
    /// slot. Returns the last spread of the line.
    fn line_at(&self, range: HashRange, from: u64, found: &mut Vec<(u64, u64, Slot)>) -> u64 {
        let mut slots = Vec::new();
        let end = self.index.line_at(from, &mut slots);
        found.extend(slots.into_iter().filter_map(|slot| {
            let slot = Slot::from_raw(slot);
            let hash = self.hasher.hash(self.item(slot).key());
            let spread = spread_of(hash);
            (range.contains(hash) && spread >= from).then_some((spread, hash, slot))
        }));
        end
    }
}
