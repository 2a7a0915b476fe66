//! Writing an item: over the former one, or to another slot.
//!
//! Here: the choice of the slot. Not here: the bytes of an item (`item`), making room (`eviction`).

use super::arena::Slot;
use super::item::{Content, Item, ItemHeader, ItemLayout};
use super::{Full, HoldSetId, Located, Store};

/// An item to be written.
struct NewItem<'a> {
    header: ItemHeader,
    content: Content<'a>,
    /// Its size.
    bytes: usize,
    is_state: bool,
    /// The set of holds that it names.
    set: Option<HoldSetId>,
}

impl<'a> NewItem<'a> {
    #[inline]
    fn new(key: &[u8], header: ItemHeader, content: Content<'a>) -> Self {
        let bytes = ItemLayout::of(content).item_bytes(key.len(), header.client_flags);
        let is_state = matches!(content, Content::State(_));
        let set = match content {
            Content::State(state) => HoldSetId::of(state),
            Content::Value(_) => None,
        };
        Self { header, content, bytes, is_state, set }
    }
}

impl Store {
    /// Writes the item of a key, over the one that `at` found if there is one.
    ///
    /// # Errors
    ///
    /// [`Full`]; the old item is then unchanged.
    pub(crate) fn write(
        &mut self,
        at: Located<'_>,
        header: ItemHeader,
        content: Content<'_>,
    ) -> Result<Slot, Full> {
        let new = NewItem::new(at.key, header, content);
        if let Some(slot) = at.slot.filter(|slot| self.fits(*slot, &new)) {
            self.overwrite(at, slot, &new);
            return Ok(slot);
        }
        let slot = self.write_apart(at, &new)?;
        // Making room may have moved the old item, but never evicts it. A hint could name the new
        // slot.
        let slot = if at.slot.is_some()
            && let Some((old, _)) = self.find_in_index(at.hash, at.key)
        {
            self.replace(at.hash, old, slot, new.set)
        } else {
            self.add_to_index(at.hash, slot);
            slot
        };
        self.account();
        Ok(slot)
    }

    /// Whether an item is to be written over the one in `slot`. If there is no room, a smaller item
    /// stays in its slot: a refund must not be lost for lack of memory, nor evict another item.
    #[inline]
    fn fits(&self, slot: Slot, new: &NewItem<'_>) -> bool {
        let arena = self.arena(slot);
        slot.is_limit_state() == new.is_state
            && (arena.same_class(slot, new.bytes)
                || (new.is_state || !slot.is_large())
                    && arena.get(slot).len() >= new.bytes
                    && self.lacks_room_for(new.bytes, new.is_state, None))
    }

    /// Writes an item over the former one of its key.
    #[inline]
    fn overwrite(&mut self, at: Located<'_>, slot: Slot, new: &NewItem<'_>) {
        self.release_set(slot, new.set);
        self.note_cas(self.item(slot).cas(), new.header.cas);
        if let Content::State(state) = new.content
            && self.item(slot).state().is_none_or(|former| former.policy_id != state.policy_id)
        {
            self.count_out(slot);
            self.count_in(state);
        }
        self.item_bytes -= self.item(slot).bytes();
        self.item_mut(slot).fill(at.now, new.header, at.key, new.content);
        self.item_bytes += new.bytes;
    }

    /// Writes an item to a slot that the index does not name yet.
    #[inline]
    fn write_apart(&mut self, at: Located<'_>, new: &NewItem<'_>) -> Result<Slot, Full> {
        // A counter that outgrows 32 bits may exceed the cap: by at most one chunk for each class
        // of the shard, and then by four bytes, rounded, for each counter.
        let widens = ItemLayout::of(new.content) == ItemLayout::Wide
            && at.slot.is_some_and(|slot| self.item(slot).layout() == ItemLayout::Narrow);
        let room = self.make_room(at, new.bytes, new.is_state);
        if !widens {
            room?;
        }
        let slot = if new.is_state {
            self.states.allocate(new.bytes).ok_or(Full)?.in_limit_arena()
        } else {
            self.plain.allocate(new.bytes).ok_or(Full)?
        };
        self.item_mut(slot).fill(at.now, new.header, at.key, new.content);
        self.item_bytes += new.bytes;
        if let Content::State(state) = new.content {
            self.count_in(state);
        }
        Ok(slot)
    }

    /// Replaces the item in `old` by the one in `new`, which names `set`. Returns the slot in which
    /// the new item is then.
    #[inline]
    fn replace(&mut self, hash: u64, old: Slot, new: Slot, set: Option<HoldSetId>) -> Slot {
        // The written item may have the same header as the old one.
        self.unseen = self.unseen.wrapping_add(1);
        self.release_set(old, set);
        self.count_out(old);
        self.item_bytes -= self.item(old).bytes();
        self.index.relocate(hash, old.raw(), new.raw());
        if self.free(old) == Some(new) { old } else { new }
    }

    #[inline]
    fn add_to_index(&mut self, hash: u64, slot: Slot) {
        let (plain, states, hasher) = (&self.plain, &self.states, &self.hasher);
        self.index.insert(hash, slot.raw(), |other| {
            let other = Slot::from_raw(other);
            let arena = if other.is_limit_state() { states } else { plain };
            hasher.hash(Item(arena.get(other)).key())
        });
    }
}
