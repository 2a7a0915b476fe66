//! The holds of a key that has many, in transit or restored.
//!
//! Here: storing a chunk of them, or changes of them. Not here: their encoding (`store/holders`).

use super::PutError;
use crate::engine::Engine;
use crate::policy_table::LimitState;
use crate::store::holders::{Holders, read_chunk};
use crate::store::item::{Content, ItemHeader};
use crate::store::{Full, HoldSetId};
use crate::time::Now;

/// Bytes of a hold in memory, in nodes that are three quarters full.
const HOLD_BYTES_HERE: usize = 64;

impl Engine {
    /// Applies a chunk of the holds of another node or process, or changes of them, to those of a
    /// key. `front` is the inline policy that precedes a state's own bytes, if `policy_id` is
    /// [`INLINE`](crate::policy_table::INLINE).
    pub(crate) fn absorb_holders(
        &mut self,
        (now, hash, key): (Now, u64, &[u8]),
        header: ItemHeader,
        (policy_id, front): (u32, &[u8]),
        chunk: &[u8],
        shift: i128,
    ) -> Result<(), PutError> {
        let (is_anew, puts) = read_chunk(chunk).ok_or(PutError::NotACopy)?;
        let room = self.store.room_for_holders(now, puts * HOLD_BYTES_HERE, hash);
        room.map_err(|Full| PutError::NoRoom)?;
        let at = self.found(now, hash, key);
        let known = at.slot.and_then(|slot| HoldSetId::of(self.store.item(slot).state()?));
        let set = match known.filter(|_| !is_anew) {
            Some(set) => set,
            None => self.store.add_holders(Holders::default()),
        };
        self.store.change_holders(set, |holders| holders.absorb(chunk, shift));
        let mut body = Vec::with_capacity(front.len() + set.body().len());
        body.extend_from_slice(front);
        body.extend_from_slice(&set.body());
        let content = Content::State(LimitState { policy_id, body: &body });
        let written = self.store.write(at, header, content);
        if written.is_err() {
            self.drop_unnamed(at, set);
        }
        written.map(|_| ()).map_err(|Full| PutError::NoRoom)
    }
}
