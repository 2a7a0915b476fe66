//! Writing an item: over the former one, or to another slot.
//!
//! Here: the choice of the slot. Not here: the bytes of an item (`item`), making room (`eviction`).

use super::arena::Slot;
use super::item::{Content, Item, ItemHeader, ItemLayout};
use super::{Full, HoldSetId, Store};
use crate::time::Now;

impl Store {
    /// Writes the item of `key`, over the one in `old` if there is one.
    ///
    /// # Errors
    ///
    /// [`Full`]; the old item is then unchanged.
    pub(crate) fn write(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        old: Option<Slot>,
        header: ItemHeader,
        content: Content<'_>,
    ) -> Result<Slot, Full> {
        let bytes = ItemLayout::of(content).item_bytes(key.len(), header.client_flags);
        let is_state = matches!(content, Content::State(_));
        let set = match content {
            Content::State(state) => HoldSetId::of(state),
            Content::Value(_) => None,
        };
        // If there is no room, a smaller item stays in its slot: a refund must not be lost for lack
        // of memory, nor evict another item.
        let fits = |slot: Slot| {
            let arena = self.arena(slot);
            slot.is_limit_state() == is_state
                && (arena.same_class(slot, bytes)
                    || (is_state || !slot.is_large())
                        && arena.get(slot).len() >= bytes
                        && self.lacks_room_for(bytes, is_state, None))
        };
        if let Some(slot) = old.filter(|slot| fits(*slot)) {
            self.release_set(slot, set);
            self.note_cas(self.item(slot).cas(), header.cas);
            if let Content::State(state) = content
                && self.item(slot).state().is_none_or(|former| former.policy_id != state.policy_id)
            {
                self.count_out(slot);
                self.count_in(state);
            }
            self.item_bytes -= self.item(slot).bytes();
            self.item_mut(slot).fill(now, header, key, content);
            self.item_bytes += bytes;
            return Ok(slot);
        }
        let new = old.is_none().then_some(hash);
        // A counter that outgrows 32 bits may exceed the cap: by at most one chunk for each class
        // of the shard, and then by four bytes, rounded, for each counter.
        let widens = ItemLayout::of(content) == ItemLayout::Wide
            && old.is_some_and(|slot| self.item(slot).layout() == ItemLayout::Narrow);
        let room = self.make_room(now, bytes, is_state, new, key);
        if !widens {
            room?;
        }
        let slot = if is_state {
            self.states.allocate(bytes).ok_or(Full)?.in_limit_arena()
        } else {
            self.plain.allocate(bytes).ok_or(Full)?
        };
        self.item_mut(slot).fill(now, header, key, content);
        self.item_bytes += bytes;
        if let Content::State(state) = content {
            self.count_in(state);
        }
        let mut place = slot;
        // Making room may have moved the old item, but never evicts it. A hint could name the new
        // slot.
        if old.is_some()
            && let Some((old, _)) = self.find_in_index(hash, key)
        {
            // The written item may have the same header as the old one.
            self.unseen = self.unseen.wrapping_add(1);
            self.release_set(old, set);
            self.count_out(old);
            self.item_bytes -= self.item(old).bytes();
            self.index.relocate(hash, old.raw(), slot.raw());
            if self.free(old) == Some(slot) {
                place = old;
            }
        } else {
            let (plain, states, hasher) = (&self.plain, &self.states, &self.hasher);
            self.index.insert(hash, slot.raw(), |other| {
                let other = Slot::from_raw(other);
                let arena = if other.is_limit_state() { states } else { plain };
                hasher.hash(Item(arena.get(other)).key())
            });
        }
        self.account();
        Ok(place)
    }
}
