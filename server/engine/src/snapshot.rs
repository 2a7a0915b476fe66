//! The part of a shard that outlives the process: the content of a snapshot, without its encoding.
//!
//! Here: the records of items and of limit states, reading and restoring them. Not here: the file
//! (`server/src/runtime/snapshot.rs`).

use protocol::{Policy, Value};

use crate::algorithms;
use crate::commands::lease::Leases;
use crate::commands::take::{HoldList, encode_holds, has_own_state};
use crate::engine::{Engine, Hold};
use crate::policy_table::{LimitState, OwnedPolicy};
use crate::store::Located;
use crate::store::item::{Content, Item, ItemFlag, ItemHeader};
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

/// A saved limit state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitRecord<'a> {
    /// The key, 1 to 250 bytes.
    pub key: &'a [u8],
    /// The client's 32 bits.
    pub client_flags: u32,
    /// The cas unique.
    pub cas: u64,
    /// Milliseconds until the state is idle.
    pub left_ms: u64,
    /// The policy under which the state was written.
    pub policy: Policy,
    /// Holds, leases and the algorithm's own state; its instants are of the process that wrote it.
    pub body: &'a [u8],
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

impl Engine {
    /// Each live plain item, with all fields that must outlive the process.
    pub fn records(&self, now: Now) -> impl Iterator<Item = ItemRecord<'_>> {
        self.store
            .items()
            .filter(move |item| !item.deadline().is_past(now) && item.state().is_none())
            .map(move |item| ItemRecord::of(item, now))
    }

    /// Restores a record; false if there is no room. An item of the same key is overwritten.
    pub fn restore(&mut self, now: Now, hash: u64, record: &ItemRecord<'_>) -> bool {
        let slot = self.store.find(hash, record.key);
        self.uniques.raise(record.cas);
        let header = record.header(now);
        let content = Content::Value(record.value);
        self.store.write(Located { now, hash, key: record.key, slot }, header, content).is_ok()
    }

    /// Each live limit state with all fields that must outlive the process, except the holds of a
    /// key that has many ([`Engine::save_slice`]).
    #[cfg(test)]
    pub(crate) fn limit_records(&self, now: Now) -> impl Iterator<Item = LimitRecord<'_>> {
        let live = self.store.items().filter(move |item| !item.deadline().is_past(now));
        live.filter_map(move |item| self.limit_record(item, now))
    }

    /// A limit state with all fields that must outlive the process; `None` for any other item.
    pub(crate) fn limit_record<'s>(&'s self, item: Item<'s>, now: Now) -> Option<LimitRecord<'s>> {
        let (rule, body) = self.limits.policies.policy_of(item.state()?)?;
        Some(LimitRecord {
            key: item.key(),
            client_flags: item.client_flags(),
            cas: item.cas(),
            left_ms: item.deadline().left_ms(now).unwrap_or(0),
            policy: rule.policy,
            body,
        })
    }

    /// Restores a state; `shift` is the number of nanoseconds by which its instants are later on
    /// this process's clock. Returns false if there is no room, or if the body is invalid.
    pub fn restore_limit(
        &mut self,
        now: Now,
        hash: u64,
        record: &LimitRecord<'_>,
        shift: i128,
    ) -> bool {
        let Some((list, mut state)) = HoldList::split(record.body) else { return false };
        if list.has_set {
            return self.restore_holders(now, hash, record, shift);
        }
        let mut leases = None;
        if list.has_leases {
            let Some((read, rest)) = Leases::decode(state) else { return false };
            leases = read.shifted(shift);
            if leases.is_none() {
                return false;
            }
            state = rest;
        }
        if !has_own_state(&record.policy, record.body) {
            return false;
        }
        self.uniques.raise(record.cas);
        let at = self.at(now, hash, record.key);
        let owned = OwnedPolicy { policy: record.policy, limit: 0 };
        let mut body = Vec::new();
        let policy_id = self.policy_id(&owned, &mut body);
        let holds: Vec<Hold> = list.holds().map(|hold| hold.shifted(shift)).collect();
        let keeps_usage = self.limits.keeps_hold_usage;
        encode_holds(&holds, &record.policy, list.has_leases, keeps_usage, &mut body);
        if let Some(leases) = leases {
            leases.encode(&mut body);
        }
        let mut state = state.to_vec();
        algorithms::shift(&record.policy, &mut state, shift);
        body.extend_from_slice(&state);
        let deadline = Deadline::after_ms(now, record.left_ms);
        let header = ItemHeader::new(record.cas, record.client_flags, deadline);
        let content = Content::State(LimitState { policy_id, body: &body });
        self.store.write(at, header, content).is_ok()
    }

    /// Restores a chunk of the holds of a key that has many.
    fn restore_holders(
        &mut self,
        now: Now,
        hash: u64,
        record: &LimitRecord<'_>,
        shift: i128,
    ) -> bool {
        self.uniques.raise(record.cas);
        let deadline = Deadline::after_ms(now, record.left_ms);
        let header = ItemHeader::new(record.cas, record.client_flags, deadline);
        let owned = OwnedPolicy { policy: record.policy, limit: 0 };
        let mut front = Vec::new();
        let policy_id = self.policy_id(&owned, &mut front);
        let chunk = record.body.get(2..).unwrap_or_default();
        self.absorb_holders((now, hash, record.key), header, (policy_id, &front), chunk, shift)
            .is_ok()
    }
}
