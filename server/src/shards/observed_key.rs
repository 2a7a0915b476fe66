//! The key that a node's operation may change, observed while its shard is locked.
//!
//! Here: the shards as a request's commands use them. Not here: the order of the operations on a
//! key, and the records of their changes (`node`).

use std::cell::Cell;
use std::ops::Deref;

use engine::{Engine, ItemMark, Now};
use protocol::{Command, ITEM_OVERHEAD_BYTES, Operation, Outcome};

use super::{LockedShards, NoRoom, Shards};

/// The key that an operation may change. Gives the change its cas unique, and notices it.
pub(crate) struct ObservedKey<'a> {
    key: &'a [u8],
    hash: u64,
    /// The cas unique of whatever the operation changes.
    unique: u64,
    /// The operation has locked the key's shard before.
    has_begun: Cell<bool>,
    is_changed: Cell<bool>,
}

impl<'a> ObservedKey<'a> {
    /// Observes the key for an operation that has not run yet. `unique` is a number as
    /// [`Engine::begin_at`] asks for.
    pub(crate) fn new(key: &'a [u8], hash: u64, unique: u64) -> Self {
        let (has_begun, is_changed) = (Cell::new(false), Cell::new(false));
        Self { key, hash, unique, has_begun, is_changed }
    }

    /// Whether the operation has changed the key. Changes of other keys may, rarely, count too.
    pub(crate) fn is_changed(&self) -> bool {
        self.is_changed.get()
    }

    /// Begins a step of the operation in the locked shard of the key.
    fn begin(&self, engine: &mut Engine) -> Option<ItemMark> {
        engine.begin_at(self.unique);
        if self.has_begun.replace(true) {
            engine.mark_of(self.hash, self.key)
        } else {
            engine.mark_before_change(self.hash, self.key)
        }
    }

    /// Ends a step before which the item had the mark `before`.
    fn end(&self, engine: &mut Engine, before: Option<ItemMark>) {
        engine.end_at();
        if engine.mark_of(self.hash, self.key) != before {
            self.is_changed.set(true);
        }
    }
}

/// The shards as the commands of one request use them. At a node, what a command changes has the
/// operation's cas unique, and the change of the request's key is noticed.
#[derive(Clone, Copy)]
pub(crate) struct CommandShards<'a> {
    shards: &'a Shards,
    observed: Option<&'a ObservedKey<'a>>,
}

impl<'a> CommandShards<'a> {
    /// The shards for a request. Without an observed key, each shard gives its own cas uniques.
    pub(crate) fn new(shards: &'a Shards, observed: Option<&'a ObservedKey<'a>>) -> Self {
        Self { shards, observed }
    }

    /// [`Shards::apply`].
    pub(crate) fn apply<R>(
        self,
        now: Now,
        hash: u64,
        command: &Command<'_>,
        mut reply: impl FnMut(Outcome<'_>) -> R,
    ) -> R {
        let bytes = match &command.operation {
            Operation::Set(set) => set.value.len() + ITEM_OVERHEAD_BYTES,
            _ => 0,
        };
        let done =
            self.with_room_for(now, hash, bytes, |engine| match engine.apply(now, hash, command) {
                Outcome::OutOfMemory => None,
                outcome => Some(reply(outcome)),
            });
        done.unwrap_or_else(|| {
            self.with_room(now, hash, |engine| {
                engine.drop_replaced(hash, command);
                Some(())
            });
            reply(Outcome::OutOfMemory)
        })
    }

    /// [`Shards::with_room`].
    pub(crate) fn with_room<T>(
        self,
        now: Now,
        hash: u64,
        work: impl FnMut(&mut Engine) -> Option<T>,
    ) -> Option<T> {
        self.with_room_for(now, hash, 0, work)
    }

    fn with_room_for<T>(
        self,
        now: Now,
        hash: u64,
        bytes: usize,
        mut work: impl FnMut(&mut Engine) -> Option<T>,
    ) -> Option<T> {
        self.shards.with_room_for(now, hash, bytes, |engine| {
            let Some(observed) = self.observed else { return work(engine) };
            let before = observed.begin(engine);
            let done = work(engine);
            observed.end(engine, before);
            done
        })
    }

    /// [`Shards::with_locked`]; an observed key is one of those with `hashes`.
    pub(crate) fn with_locked<T>(
        self,
        now: Now,
        hashes: &(impl Iterator<Item = u64> + Clone),
        mut work: impl FnMut(&mut LockedShards<'_>) -> Result<T, NoRoom>,
    ) -> Option<T> {
        self.shards.with_locked(now, hashes, |locked| {
            let Some(observed) = self.observed else { return work(locked) };
            let before = observed.begin(locked.engine(observed.hash));
            let done = work(locked);
            observed.end(locked.engine(observed.hash), before);
            done
        })
    }
}

impl Deref for CommandShards<'_> {
    type Target = Shards;

    fn deref(&self) -> &Shards {
        self.shards
    }
}
