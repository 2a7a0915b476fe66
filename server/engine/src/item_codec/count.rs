//! The commonest copy, eight bytes long: an item that is only a count.
//!
//! Here: reading and storing a bare count. Not here: copies of all other items (`item_codec`).

use protocol::Value;

use super::PutError;
use crate::engine::Engine;
use crate::store::ItemChange;
use crate::store::arena::Slot;
use crate::store::item::{Content, Item, ItemFlag, ItemHeader, ItemMut};
use crate::time::{Deadline, Now};

impl Engine {
    /// The count of a key, if its item is a bare count with this cas unique: without client flags,
    /// deadline, and marks that other nodes need. Its key, its cas unique and this number are then
    /// the whole item.
    #[must_use]
    #[inline]
    pub fn bare_count(&self, hash: u64, key: &[u8], cas: u64) -> Option<u64> {
        let (_, item) = self.store.find_item(hash, key)?;
        bare_count(item).filter(|_| item.cas() == cas)
    }

    /// Like [`Engine::bare_count`], of the item that the last [`Engine::with_unique`] changed in
    /// place. Call it before the next command.
    #[must_use]
    #[inline]
    pub fn bare_count_changed(&self) -> Option<u64> {
        bare_count(self.store.item(self.changed_at?))
    }

    /// Makes the item of a key a bare count, as [`Engine::put_copy`] does with the copy of one.
    ///
    /// # Errors
    ///
    /// [`PutError::NoRoom`]; the item is then unchanged.
    #[inline]
    pub fn put_bare_count(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        count: u64,
        cas: u64,
    ) -> Result<(), PutError> {
        let putting = PutCountInPlace { now, count, cas };
        if let Some(Some(former_cas)) = self.store.change(hash, key, putting) {
            self.store.note_cas(former_cas, cas);
            self.uniques.raise(cas);
            return Ok(());
        }
        self.put_new_count(now, hash, key, count, cas)
    }

    #[cold]
    fn put_new_count(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        count: u64,
        cas: u64,
    ) -> Result<(), PutError> {
        let at = self.found(now, hash, key);
        self.uniques.raise(cas);
        let header = ItemHeader::new(cas, 0, Deadline::NEVER);
        let content = Content::Value(Value::Number(count));
        let written = self.store.write(at, header, content);
        written.map(|_| ()).map_err(|_| PutError::NoRoom)
    }
}

fn bare_count(item: Item<'_>) -> Option<u64> {
    let Value::Number(number) = item.value() else { return None };
    let header = item.header();
    let is_bare = header.client_flags == 0
        && header.deadline == Deadline::NEVER
        && header.marks & ItemFlag::COPIED == 0;
    is_bare.then_some(number)
}

/// Changes a bare count to another. Returns the former cas unique; `None` if nothing was changed.
struct PutCountInPlace {
    now: Now,
    count: u64,
    cas: u64,
}

impl ItemChange for PutCountInPlace {
    type Answer = Option<u64>;

    #[inline]
    fn make(self, slot: Slot, mut item: ItemMut<'_>) -> Self::Answer {
        let former_cas = item.as_item().cas();
        if slot.is_limit_state()
            || bare_count(item.as_item()).is_none()
            || !item.set_number(self.count)
        {
            return None;
        }
        item.set_cas(self.cas);
        item.touch(self.now);
        Some(former_cas)
    }
}
