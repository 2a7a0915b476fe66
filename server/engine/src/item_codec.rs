//! Items in transit between nodes: whole items in one encoding that is the same on every node. Of a
//! key with many holders the changes are sent, and all holders in chunks.
//!
//! Here: whether an item was changed, encoding a copy, storing a copy, reading all items of a
//! partition, and the numbers that only one node of a cluster assigns. Not here: the copy of a
//! count alone (`commands::fast`), when and to which node a copy is sent (`cluster`), the content
//! that outlives a process (`snapshot`).
//!
//! ```text
//! bits u8 | cas u64 | client flags u32 | deadline 40 bits | value
//! value: its bytes; of a counter u64; of a state: n u8 | policy n bytes | holds … (as in `take`)
//!        of many holders: n u8 | policy n bytes | a chunk, or changes (as in `holders`)
//! ```
//!
//! `bits` are those of `item`. Instants are copied unchanged: all nodes count from one origin. A
//! policy is sent as a token, because policy ids and numbers of limits differ between nodes; the
//! limit is known again at the next take of the key.

mod holders;
mod state;
#[cfg(test)]
mod tests;

use std::num::NonZeroU64;

use protocol::{KEY_BYTES_MAX, Value};

use crate::engine::Engine;
use crate::hasher::{HashRange, spread_of};
use crate::item_mark::ItemMark;
use crate::policy_table::{INLINE, inline, put_token};
use crate::snapshot::{ItemRecord, LimitRecord, SnapshotRecord};
use crate::store::arena::Slot;
use crate::store::holders::Holders;
use crate::store::item::{Content, Item, ItemFlag, ItemHeader, ItemLayout};
use crate::store::sums::SumKey as HoldKey;
use crate::store::{HAS_SET, HoldSetId};
use crate::time::{Deadline, Now};

pub use self::state::LimitCopy;

/// Length in bytes of the part before the value.
const HEAD_BYTES: usize = 18;
const BLOB: u8 = 0;
const COUNTER: u8 = 1;
const HOLDERS: u8 = 2;
const STATE: u8 = 3;

/// Least bytes of a chunk of the holders of a key.
const CHUNK_BYTES_MIN: usize = 4 << 10;

/// The reason why a copy was not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutError {
    /// The bytes are not those of [`Engine::copy_of`], or longer than an item may be.
    NotACopy,
    /// There is no room; the former item is unchanged.
    NoRoom,
}

/// The progress of reading or removing a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionCursor {
    spread: u64,
    /// The position among the holders of the key at `spread`.
    inside: Option<HoldKey>,
}

impl PartitionCursor {
    fn at(spread: u64) -> Self {
        Self { spread, inside: None }
    }

    /// Appends the cursor as bytes, to continue later.
    pub fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.spread.to_le_bytes());
        for number in self.inside.into_iter().flat_map(|(lease, end)| [lease, end]) {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }

    /// Decodes the bytes of [`PartitionCursor::encode`]; `None` for other bytes. With any other
    /// cursor some items are skipped.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.as_chunks::<8>();
        let numbers: Vec<u64> = numbers.iter().map(|run| u64::from_le_bytes(*run)).collect();
        match numbers[..] {
            _ if !rest.is_empty() => None,
            [spread] => Some(Self::at(spread)),
            [spread, lease, end] => Some(Self { spread, inside: Some((lease, end)) }),
            _ => None,
        }
    }

    fn from(after: Option<Self>) -> u64 {
        after.map_or(0, |cursor| cursor.spread)
    }
}

impl Engine {
    /// Returns a mark that differs after any change of the item that other nodes need; `None` if
    /// there is no item. An item past its deadline exists until it is removed.
    #[must_use]
    pub fn mark_of(&self, hash: u64, key: &[u8]) -> Option<ItemMark> {
        self.store.find(hash, key).map(|slot| self.mark_at(slot))
    }

    fn mark_at(&self, slot: Slot) -> ItemMark {
        let ItemHeader { cas, client_flags, deadline, marks } = self.store.item(slot).header();
        ItemMark {
            cas,
            client_flags,
            unseen: self.store.unseen(),
            deadline: deadline.to_bytes(),
            marks: marks & ItemFlag::COPIED,
        }
    }

    /// Like [`Engine::mark_of`], before a change that [`Engine::copy_of`] will encode: for a key
    /// with many holders it encodes the changes since this call.
    pub fn mark_before_change(&mut self, hash: u64, key: &[u8]) -> Option<ItemMark> {
        let slot = self.store.find(hash, key)?;
        if let Some(set) = self.store.item(slot).state().and_then(HoldSetId::of) {
            self.store.change_holders(set, Holders::note_changes);
        }
        Some(self.mark_at(slot))
    }

    /// Appends the item of a key; false if there is none. An item past its deadline exists until it
    /// is removed. The copy is whole, except that of many holders it contains only the changes
    /// since [`Engine::mark_before_change`].
    pub fn copy_of(&self, hash: u64, key: &[u8], out: &mut Vec<u8>) -> bool {
        let found = self.store.find(hash, key);
        found.is_some_and(|slot| self.encode(self.store.item(slot), out).is_some())
    }

    /// Like [`Engine::copy_of`], of the item that the last [`Engine::with_unique`] changed in
    /// place; false if it changed none. Call it before the next command.
    pub fn copy_of_changed(&self, out: &mut Vec<u8>) -> bool {
        self.changed_at.is_some_and(|slot| self.encode(self.store.item(slot), out).is_some())
    }

    /// The mark of the item before the [`Engine::take_units`] of the last [`Engine::with_unique`],
    /// as by [`Engine::mark_before_change`]; `None` if the take was decided in place. Call it
    /// before the next command.
    #[inline]
    #[must_use]
    pub fn mark_before_general(&self) -> Option<Option<ItemMark>> {
        self.mark_before_general
    }

    /// Whether the [`Engine::take_units`] of the last [`Engine::with_unique`] changed the item, and
    /// neither [`Engine::copy_of_changed`] nor [`Engine::mark_before_general`] tells so. The take
    /// has refused the key for the first time, or has written a state of another length. Call it
    /// before the next command.
    #[inline]
    #[must_use]
    pub fn is_change_unplaced(&self) -> bool {
        self.uniques.is_change_unplaced
    }

    /// Returns `None` and appends nothing for a state without known policy, which does not occur.
    fn encode(&self, item: Item<'_>, out: &mut Vec<u8>) -> Option<()> {
        let header = item.header();
        let kind = match item.layout() {
            ItemLayout::Blob(_) => BLOB,
            ItemLayout::Narrow | ItemLayout::Wide => COUNTER,
            ItemLayout::State(_) => {
                if let Some(set) = item.state().and_then(HoldSetId::of) {
                    let holders = self.store.holders(set)?;
                    self.encode_head_of_holders(item, out)?;
                    holders.encode_changes(out);
                    return Some(());
                }
                STATE
            }
        };
        let policy = match item.state() {
            Some(state) => Some((self.limits.policies.token_of(state)?, state.own())),
            None => None,
        };
        encode_head(kind, header, out);
        match (policy, item.value()) {
            (Some((token, body)), _) => {
                put_token(token, out);
                out.extend_from_slice(body);
            }
            (None, Value::Number(number)) => out.extend_from_slice(&number.to_le_bytes()),
            (None, Value::Bytes(bytes)) => out.extend_from_slice(bytes),
        }
        Some(())
    }

    /// Appends the part before a chunk of the holders of a key, or before changes.
    fn encode_head_of_holders(&self, item: Item<'_>, out: &mut Vec<u8>) -> Option<()> {
        let token = self.limits.policies.token_of(item.state()?)?;
        encode_head(HOLDERS, item.header(), out);
        put_token(token, out);
        Some(())
    }

    /// Stores the copy of a key's item on another node, the bytes of [`Engine::copy_of`] there.
    ///
    /// # Errors
    ///
    /// A [`PutError`]; the item is then unchanged.
    pub fn put_copy(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        bytes: &[u8],
    ) -> Result<(), PutError> {
        if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
            return Err(PutError::NotACopy);
        }
        let (kind, header, value) = decode(bytes).ok_or(PutError::NotACopy)?;
        if kind == STATE && self.put_state_in_place(now, (hash, key), header, value) {
            return Ok(());
        }
        if kind == HOLDERS {
            return self.put_holders(now, hash, key, header, value);
        }
        let at = self.found(now, hash, key);
        let content = match kind {
            BLOB if self.fits(key.len(), value.len()) => Some(Content::Value(Value::Bytes(value))),
            COUNTER => {
                let number = <[u8; 8]>::try_from(value).map(u64::from_le_bytes);
                number.ok().map(|number| Content::Value(Value::Number(number)))
            }
            STATE => self.state_of_copy(at.slot, value).map(Content::State),
            _ => None,
        };
        let content = content.ok_or(PutError::NotACopy)?;
        self.uniques.raise(header.cas);
        let written = self.store.write(at, header, content);
        written.map(|_| ()).map_err(|_| PutError::NoRoom)
    }

    /// Applies a chunk of the holders of a key, or changes of them.
    fn put_holders(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        header: ItemHeader,
        value: &[u8],
    ) -> Result<(), PutError> {
        let (token, chunk) = inline(value).ok_or(PutError::NotACopy)?;
        let policy_id = self.policy_id_of_copy(token).ok_or(PutError::NotACopy)?;
        let front = if policy_id == INLINE { &value[..value.len() - chunk.len()] } else { &[] };
        self.absorb_holders((now, hash, key), header, (policy_id, front), chunk, 0)?;
        self.uniques.raise(header.cas);
        Ok(())
    }

    /// Removes the item of a key, if there is one.
    pub fn remove_copy(&mut self, hash: u64, key: &[u8]) {
        if let Some(slot) = self.store.find(hash, key) {
            self.store.remove(hash, slot);
        }
    }

    /// Until [`Engine::end_at`], makes `unique` the cas unique of every changed item and the name
    /// of every hold and lease, in place of the engine's own numbers; 0 counts as 1.
    ///
    /// Call it before each command with a number that no node has used for that key before: the
    /// number must not depend on the clock, on other keys of the shard, or on the number of shards.
    /// A command that is retried gets the same number again.
    pub fn begin_at(&mut self, unique: u64) {
        self.uniques.given = NonZeroU64::new(unique.max(1));
    }

    /// Lets the engine use its own numbers again, after [`Engine::begin_at`].
    pub fn end_at(&mut self) {
        self.uniques.given = None;
    }

    /// Runs `work` as after [`Engine::begin_at`], then restores the former number.
    #[inline]
    pub fn with_unique<T>(&mut self, unique: u64, work: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.uniques.given, NonZeroU64::new(unique.max(1)));
        self.uniques.is_change_unplaced = false;
        self.changed_at = None;
        self.mark_before_general = None;
        let done = work(self);
        self.uniques.given = before;
        done
    }

    /// Passes keys and copies of live items of `range` to `out`: reads up to `lines_max` lines of
    /// the index, and stops after `bytes_max` bytes. Returns the cursor at which to continue,
    /// `None` at the end.
    ///
    /// An item that exists from the first call to the last is passed; one that is added or removed
    /// in the meantime may be.
    pub fn export(
        &self,
        now: Now,
        range: HashRange,
        after: Option<PartitionCursor>,
        (lines_max, bytes_max): (usize, usize),
        mut out: impl FnMut(&[u8], &[u8]),
    ) -> Option<PartitionCursor> {
        let (mut pieces, mut copy) = (0, Vec::new());
        let mut inside = after.and_then(|cursor| cursor.inside);
        let (from, mut stopped) = (PartitionCursor::from(after), None);
        let next = self.store.read_range(range, from, lines_max, |item| {
            if stopped.is_some() {
                return false;
            }
            let set = item.state().and_then(HoldSetId::of);
            let spread = || spread_of(self.store.hash_of(item));
            let at = inside.take().filter(|_| spread() == from);
            copy.clear();
            if item.deadline().is_past(now) {
                return true;
            }
            if let Some(holders) = set.and_then(|set| self.store.holders(set)) {
                if self.encode_head_of_holders(item, &mut copy).is_none() {
                    return true;
                }
                let room = bytes_max.saturating_sub(pieces).max(CHUNK_BYTES_MIN);
                let next = holders.encode_chunk(at, room, &mut copy);
                stopped = next.map(|hold| PartitionCursor { spread: spread(), inside: Some(hold) });
            } else if self.encode(item, &mut copy).is_none() {
                return true;
            }
            out(item.key(), &copy);
            pieces += item.key().len() + copy.len();
            pieces < bytes_max && stopped.is_none()
        });
        stopped.or(next.map(PartitionCursor::at))
    }

    /// Passes the content of a snapshot to `visit`, item by item, from `after` on, until
    /// `lines_max` lines of the index are read or about `bytes_max` bytes are passed; returns a
    /// cursor like [`Engine::export`]. An item that exists from the first call to the last is
    /// passed once. One with many holders is passed in chunks, the first of which starts from no
    /// holds, and each of its holds once.
    pub fn save_slice(
        &self,
        now: Now,
        after: Option<PartitionCursor>,
        (lines_max, bytes_max): (usize, usize),
        mut visit: impl FnMut(SnapshotRecord<'_>),
    ) -> Option<PartitionCursor> {
        let (mut shown, mut chunk) = (0, Vec::new());
        let mut inside = after.and_then(|cursor| cursor.inside);
        let (from, mut stopped) = (PartitionCursor::from(after), None);
        let all = HashRange { prefix: 0, bits: 0 };
        let next = self.store.read_range(all, from, lines_max, |item| {
            if stopped.is_some() {
                return false;
            }
            let spread = || spread_of(self.store.hash_of(item));
            let at = inside.take().filter(|_| spread() == from);
            if item.deadline().is_past(now) {
                return true;
            }
            if item.state().is_none() {
                let record = ItemRecord::of(item, now);
                shown += record.key.len() + record.value.len();
                visit(SnapshotRecord::Item(record));
            } else if let Some(record) = self.limit_record(item, now) {
                let set = HoldSetId::of_body(record.body);
                if let Some(holders) = set.and_then(|set| self.store.holders(set)) {
                    chunk.clear();
                    chunk.extend_from_slice(&HAS_SET.to_le_bytes());
                    let room = bytes_max.saturating_sub(shown).max(CHUNK_BYTES_MIN);
                    let next = holders.encode_chunk(at, room, &mut chunk);
                    stopped =
                        next.map(|hold| PartitionCursor { spread: spread(), inside: Some(hold) });
                    shown += record.key.len() + chunk.len();
                    visit(SnapshotRecord::Limit(LimitRecord { body: &chunk, ..record }));
                } else {
                    shown += record.key.len() + record.body.len();
                    visit(SnapshotRecord::Limit(record));
                }
            }
            shown < bytes_max && stopped.is_none()
        });
        stopped.or(next.map(PartitionCursor::at))
    }

    /// Removes the items of `range` in up to `lines_max` lines of the index; returns a cursor like
    /// [`Engine::export`].
    pub fn remove_range(
        &mut self,
        range: HashRange,
        after: Option<PartitionCursor>,
        lines_max: usize,
    ) -> Option<PartitionCursor> {
        self.store
            .remove_range(range, PartitionCursor::from(after), lines_max)
            .map(PartitionCursor::at)
    }
}

/// Appends the part before the value.
fn encode_head(kind: u8, header: ItemHeader, out: &mut Vec<u8>) {
    let ItemHeader { cas, client_flags, deadline, marks } = header;
    out.push(kind | marks & ItemFlag::COPIED);
    out.extend_from_slice(&cas.to_le_bytes());
    out.extend_from_slice(&client_flags.to_le_bytes());
    out.extend_from_slice(&deadline.to_bytes());
}

/// Splits a copy into its kind, its header and its value.
fn decode(bytes: &[u8]) -> Option<(u8, ItemHeader, &[u8])> {
    let (head, value) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let [bits, rest @ ..] = head;
    let (cas, rest) = rest.split_first_chunk()?;
    let (client_flags, rest) = rest.split_first_chunk()?;
    let deadline = Deadline::from_bytes(*rest.first_chunk()?);
    let marks = bits & ItemFlag::COPIED;
    let header = ItemHeader {
        marks,
        ..ItemHeader::new(u64::from_le_bytes(*cas), u32::from_le_bytes(*client_flags), deadline)
    };
    Some((bits & !marks, header, value))
}
