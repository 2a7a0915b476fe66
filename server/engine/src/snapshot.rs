//! The part of an item that outlives the process: the content of a snapshot, without its encoding.
//!
//! Here: the records. Not here: the file (`server/src/runtime/snapshot.rs`).

use protocol::Value;

use crate::commands::take::LimitRecord;
use crate::store::item::{Item, ItemFlag, ItemHeader};
use crate::time::{Deadline, Now};

/// A saved item. Times are relative, because instants are meaningless to another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemRecord<'a> {
    /// The key, 1 to 250 bytes.
    pub key: &'a [u8],
    /// The value; a counter stays a counter.
    pub value: Value<'a>,
    /// The client's 32 bits.
    pub client_flags: u32,
    /// The cas unique.
    pub cas: u64,
    /// Milliseconds left; `None` for an item without a deadline.
    pub left_ms: Option<u64>,
    /// Whether the item is marked stale.
    pub stale: bool,
    /// Whether a client has won the right to recache the item.
    pub won: bool,
    /// Whether the key arrived in base64.
    pub base64: bool,
}

/// One entry of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotRecord<'a> {
    /// A plain item.
    Item(ItemRecord<'a>),
    /// A limit state.
    Limit(LimitRecord<'a>),
}

impl<'a> ItemRecord<'a> {
    pub(crate) fn of(item: Item<'a>, now: Now) -> Self {
        Self {
            key: item.key(),
            value: item.value(),
            client_flags: item.client_flags(),
            cas: item.cas(),
            left_ms: item.deadline().left_ms(now),
            stale: item.has(ItemFlag::STALE),
            won: item.has(ItemFlag::WON),
            base64: item.has(ItemFlag::BASE64),
        }
    }

    pub(crate) fn header(&self, now: Now) -> ItemHeader {
        let deadline =
            self.left_ms.map_or(Deadline::NEVER, |left_ms| Deadline::after_ms(now, left_ms));
        ItemHeader::new(self.cas, self.client_flags, deadline)
            .mark(ItemFlag::STALE, self.stale)
            .mark(ItemFlag::WON, self.won)
            .mark(ItemFlag::BASE64, self.base64)
    }
}
