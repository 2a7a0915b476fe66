//! The effect of each command on the items of one shard.
//!
//! Here: the choice by kind of command and of item. Not here: the storage of items (`store`), the
//! decision of a limit (`algorithms`).

mod counters;
pub(crate) mod fast;
mod incrx;
mod items;
pub(crate) mod lease;
pub(crate) mod limited_keys;
pub(crate) mod take;

use protocol::{Command, Operation, Outcome, SetMode};

use self::items::view;
use crate::engine::Engine;
use crate::store::arena::Slot;
use crate::time::Now;

impl Engine {
    /// Applies `command` at `now`; `hash` is the hash of its key, by the engine's hasher.
    ///
    /// [`Outcome::OutOfMemory`] changes nothing: the caller may make room in other shards and
    /// retry, or call [`Engine::drop_replaced`].
    pub fn apply(&mut self, now: Now, hash: u64, command: &Command<'_>) -> Outcome<'_> {
        let key = command.key.as_bytes();
        let (at, expired) = self.live(now, hash, key);
        if expired {
            self.get_expired += u64::from(matches!(command.operation, Operation::Get(_)));
        }
        if at.slot.is_some_and(Slot::is_limit_state) {
            // A limit state stores its policy, and the plain verbs act on it.
            return self.apply_limited(now, hash, key, None, &command.operation).0;
        }
        match &command.operation {
            Operation::Arithmetic(arithmetic) => self.count(at, arithmetic),
            Operation::Get(get) => self.get(at, get),
            Operation::Set(set) => self.set(at, set),
            Operation::Delete(delete) => self.delete(at, delete),
            Operation::Touch(exptime) => self.touch(at, *exptime),
            Operation::Inspect => match at.slot {
                Some(slot) => Outcome::Hit(view(self.store.item(slot), now)),
                None => Outcome::Miss,
            },
            Operation::TooLarge { .. } => {
                self.drop_replaced(hash, command);
                Outcome::TooLarge
            }
            // Native verbs have their own methods.
            Operation::Native(_) => Outcome::NotAllowed,
        }
    }

    /// Drops the item that a failed store was meant to replace, as memcached does: a client that
    /// got "not stored" must not go on reading the old value. Append and prepend keep the item, and
    /// every store keeps a limit state, because used units stay used.
    pub fn drop_replaced(&mut self, hash: u64, command: &Command<'_>) {
        let replaces = match &command.operation {
            Operation::TooLarge { drop } => *drop,
            Operation::Set(set) => !matches!(set.mode, SetMode::Append | SetMode::Prepend),
            _ => false,
        };
        if replaces
            && let Some(slot) = self.store.find(hash, command.key.as_bytes())
            && !slot.is_limit_state()
        {
            self.store.remove(hash, slot);
        }
    }
}
