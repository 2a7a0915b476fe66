//! Holds of one key that are too many for its item: stored beside it, so that an operation costs
//! the logarithm of their number, and replicated to other nodes change by change.
//!
//! Here: the holds of a key in two orders, by name and by end, the changes since the last
//! replication, and the encoding of both. Not here: the decisions on holds
//! (`algorithms/concurrency`), the storage of the sets (`store`).
//!
//! ```text
//! bits u8 | next lease u64 | change …
//! change: PUT, place u64, end u64, units u64 | DROP, place, end
//!       | CUT, place, end | ENDED, end, place
//! ```
//!
//! With `FULL` among the bits the changes start from no holds. Any change may be applied twice, and
//! changes made before a chunk of a copy may be applied after it: the last change that names a hold
//! determines it.

use super::sums::{Sum, SumEntry, SumKey, SumTree};

/// Most holds of one key.
pub(crate) const HOLDERS_MAX: usize = 1 << 20;

/// Most ended holds that one operation removes.
const ENDED_MAX: usize = 64;

/// The number of other holds that each replication repeats: a copy that lost its holds for lack of
/// memory is complete again after some time.
const REFRESHED: usize = 4;

/// More changes than this are replicated as all holds.
const CHANGES_MAX: usize = 4096;

/// The bit of a chunk that starts from no holds.
const FULL: u8 = 1;

const PUT: u8 = 0;
const DROP: u8 = 1;
const CUT: u8 = 2;
const ENDED: u8 = 3;

/// Most bytes of an encoded change.
const CHANGE_BYTES_MAX: usize = 25;

/// A change of the holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HoldChange {
    /// A hold exists with these units; its key is that of `by_lease`.
    Put(SumEntry),
    /// The hold is removed.
    Drop(SumKey),
    /// All holds from this key of `by_lease` on are removed.
    Cut(SumKey),
    /// All holds up to this key of `by_end` are removed.
    Ended(SumKey),
}

/// The part of the holds that is not replicated yet.
#[derive(Debug, Default)]
enum Unreplicated {
    /// All holds.
    #[default]
    All,
    /// These changes.
    Changes(Vec<HoldChange>),
}

/// The holds of one key.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    /// By the place of the lease, then the end.
    by_lease: SumTree,
    /// By the end, then the place of the lease.
    by_end: SumTree,
    next_lease: u64,
    unreplicated: Unreplicated,
    /// The key of `by_lease` at which the refresh continues.
    refresh: SumKey,
}

/// The position of a lease in the order in which leases are granted. The leases of one operation of
/// a cluster have a number in their top bits that counts down.
fn place(lease: u64) -> u64 {
    lease << 8 | (!lease >> 56)
}

/// Maps an instant to an unsigned number of the same order.
fn order(instant: i64) -> u64 {
    instant.cast_unsigned() ^ 1 << 63
}

fn instant_of(order: u64) -> i64 {
    (order ^ 1 << 63).cast_signed()
}

impl Holders {
    pub(crate) fn new(next_lease: u64) -> Self {
        Self { next_lease, ..Self::default() }
    }

    /// Bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        let changes = match &self.unreplicated {
            Unreplicated::All => 0,
            Unreplicated::Changes(changes) => changes.capacity() * size_of::<HoldChange>(),
        };
        size_of::<Self>() + self.by_lease.bytes() + self.by_end.bytes() + changes
    }

    /// All holds, including those that have ended but are not yet removed.
    pub(crate) fn all(&self) -> Sum {
        self.by_end.sum()
    }

    /// The holds that have not ended.
    pub(crate) fn live(&self, now: i64) -> Sum {
        let (all, ended) = (self.all(), self.ended(now));
        Sum { units: all.units - ended.units, len: all.len - ended.len }
    }

    fn ended(&self, now: i64) -> Sum {
        self.by_end.before((order(now).saturating_add(1), 0))
    }

    /// The instant at which the last hold ends.
    pub(crate) fn last_end(&self) -> Option<i64> {
        self.by_end.last().map(|entry| instant_of(entry.key.0))
    }

    /// The instant at which the ended holds reach the sum `least`.
    pub(crate) fn end_of(&self, least: Sum) -> Option<i64> {
        self.by_end.reaching(least).map(|entry| instant_of(entry.key.0))
    }

    /// Begins a hold under the name `named`, or the next free one, and returns the name.
    pub(crate) fn begin(&mut self, units: u64, end: i64, named: Option<u64>) -> u64 {
        let lease = named.unwrap_or(self.next_lease);
        if named.is_none() {
            self.next_lease = lease.saturating_add(1);
        }
        let key = (place(lease), order(end));
        // One request may hold the same key twice under one name.
        let held = self.at(key).unwrap_or(0);
        self.change(HoldChange::Put(SumEntry { key, units: held.saturating_add(units) }));
        lease
    }

    fn at(&self, key: SumKey) -> Option<u64> {
        self.by_lease.at_or_after(key).filter(|entry| entry.key == key).map(|entry| entry.units)
    }

    /// The hold of a lease, unless it has ended.
    fn find(&self, lease: u64, now: i64) -> Option<SumEntry> {
        let place = place(lease);
        let found = self.by_lease.at_or_after((place, order(now).saturating_add(1)));
        found.filter(|entry| entry.key.0 == place)
    }

    /// Ends a hold; false if there is no such hold.
    pub(crate) fn settle(&mut self, lease: u64, now: i64) -> bool {
        let Some(found) = self.find(lease, now) else { return false };
        self.change(HoldChange::Drop(found.key));
        true
    }

    /// Changes the end of a hold; false if there is no such hold.
    pub(crate) fn renew(&mut self, lease: u64, now: i64, end: i64) -> bool {
        let Some(found) = self.find(lease, now) else { return false };
        self.change(HoldChange::Drop(found.key));
        if end > now {
            let key = (found.key.0, order(end));
            self.change(HoldChange::Put(SumEntry { key, units: found.units }));
        }
        true
    }

    /// Gives back units of the newest holds; returns their number.
    pub(crate) fn refund(&mut self, units: u64, now: i64) -> u64 {
        let (mut left, mut cut, mut rest) = (units, None, None);
        while left > 0
            && let Some(last) = self.by_lease.last()
        {
            cut = Some(last.key);
            self.apply(HoldChange::Drop(last.key));
            if instant_of(last.key.1) <= now {
                continue;
            }
            if last.units > left {
                rest = Some(SumEntry { units: last.units - left, ..last });
            }
            left = left.saturating_sub(last.units);
        }
        if let Some(cut) = cut {
            self.note(HoldChange::Cut(cut));
        }
        if let Some(rest) = rest {
            self.change(HoldChange::Put(rest));
        }
        units - left
    }

    /// The newest hold.
    pub(crate) fn newest(&self) -> Option<SumKey> {
        self.by_lease.last().map(|entry| entry.key)
    }

    /// Removes the holds that began after `newest` was the newest.
    pub(crate) fn roll_back(&mut self, newest: Option<SumKey>) {
        let (lease, end) = newest.unwrap_or_default();
        if newest.is_none() {
            self.change(HoldChange::Cut((0, 0)));
        } else if let Some(end) = end.checked_add(1) {
            self.change(HoldChange::Cut((lease, end)));
        }
    }

    /// Removes some of the holds that have ended.
    pub(crate) fn forget_ended(&mut self, now: i64) {
        let (end, mut count, mut last) = ((order(now).saturating_add(1), 0), 0, None);
        self.by_end.visit_from((0, 0), &mut |entry| {
            let is_over = entry.key < end;
            if is_over {
                last = Some(entry.key);
                count += 1;
            }
            is_over && count < ENDED_MAX
        });
        if let Some(last) = last {
            self.change(HoldChange::Ended(last));
        }
    }

    /// Passes the lease, units and end of each hold that has not ended to `visit`, the oldest
    /// first.
    pub(crate) fn each(&self, now: i64, mut visit: impl FnMut(u64, u64, i64)) {
        self.by_lease.visit_from((0, 0), &mut |SumEntry { key: (place, end), units }| {
            if instant_of(end) > now {
                visit(place >> 8 | !place << 56, units, instant_of(end));
            }
            true
        });
    }

    /// The name of the next hold that the caller does not name.
    pub(crate) fn next_lease(&self) -> u64 {
        self.next_lease
    }

    fn change(&mut self, change: HoldChange) {
        self.apply(change);
        self.note(change);
    }

    fn note(&mut self, change: HoldChange) {
        let Unreplicated::Changes(changes) = &mut self.unreplicated else { return };
        changes.push(change);
        if changes.len() > CHANGES_MAX {
            self.unreplicated = Unreplicated::All;
        }
    }

    fn apply(&mut self, change: HoldChange) {
        match change {
            HoldChange::Put(entry @ SumEntry { key: (place, end), units }) => {
                self.by_lease.insert(entry);
                self.by_end.insert(SumEntry { key: (end, place), units });
            }
            HoldChange::Drop((place, end)) => {
                self.by_lease.remove((place, end));
                self.by_end.remove((end, place));
            }
            HoldChange::Cut(key) => {
                while let Some(last) = self.by_lease.last().filter(|last| last.key >= key) {
                    self.apply(HoldChange::Drop(last.key));
                }
            }
            HoldChange::Ended(key) => {
                while let Some(first) = self.by_end.first().filter(|first| first.key <= key) {
                    self.apply(HoldChange::Drop((first.key.1, first.key.0)));
                }
            }
        }
    }

    /// Starts recording changes, for the next replication.
    pub(crate) fn note_changes(&mut self) {
        let (mut seen, mut next) = (0, SumKey::default());
        self.by_lease.visit_from(self.refresh, &mut |entry| {
            seen += 1;
            next = if seen > REFRESHED { entry.key } else { SumKey::default() };
            seen <= REFRESHED
        });
        self.refresh = next;
        match &mut self.unreplicated {
            Unreplicated::Changes(changes) => {
                changes.clear();
                changes.shrink_to(ENDED_MAX);
            }
            Unreplicated::All => self.unreplicated = Unreplicated::Changes(Vec::new()),
        }
    }

    /// Appends the recorded changes, or all holds.
    pub(crate) fn encode_changes(&self, out: &mut Vec<u8>) {
        let Unreplicated::Changes(changes) = &self.unreplicated else {
            self.encode_chunk(None, usize::MAX, out);
            return;
        };
        self.encode_head(0, out);
        for change in changes {
            encode(*change, out);
        }
        // The holds as they are after the changes, and so encoded after them.
        let mut seen = 0;
        self.by_lease.visit_from(self.refresh, &mut |entry| {
            encode(HoldChange::Put(entry), out);
            seen += 1;
            seen < REFRESHED
        });
    }

    /// Appends holds from the key `from` on, up to about `bytes_max` bytes; returns the key at
    /// which to continue. `None` for `from` starts the first chunk.
    pub(crate) fn encode_chunk(
        &self,
        from: Option<SumKey>,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Option<SumKey> {
        self.encode_head(if from.is_none() { FULL } else { 0 }, out);
        let (start, mut next) = (out.len(), None);
        self.by_lease.visit_from(from.unwrap_or_default(), &mut |entry| {
            if out.len() > start && out.len() - start + CHANGE_BYTES_MAX > bytes_max {
                next = Some(entry.key);
                return false;
            }
            encode(HoldChange::Put(entry), out);
            true
        });
        next
    }

    fn encode_head(&self, bits: u8, out: &mut Vec<u8>) {
        out.push(bits);
        out.extend_from_slice(&self.next_lease.to_le_bytes());
    }

    /// Applies a chunk or changes; ends are moved by `shift` nanoseconds. [`read_chunk`] must have
    /// accepted the bytes before.
    pub(crate) fn absorb(&mut self, bytes: &[u8], shift: i128) {
        let Some((bits, next_lease, mut rest)) = decode_head(bytes) else { return };
        if bits & FULL != 0 {
            *self = Self::default();
        }
        self.next_lease = next_lease;
        while let Some(change) = decode(&mut rest) {
            let moved = |end: u64| {
                let moved = i128::from(instant_of(end)).saturating_add(shift);
                let end = if shift < 0 { i64::MIN } else { i64::MAX };
                order(i64::try_from(moved).unwrap_or(end))
            };
            self.apply(match change {
                HoldChange::Put(SumEntry { key: (place, end), units }) => {
                    HoldChange::Put(SumEntry { key: (place, moved(end)), units })
                }
                other => other,
            });
        }
    }
}

/// Validates a chunk or changes; returns whether they start from no holds, and the number of holds
/// that they put.
pub(crate) fn read_chunk(bytes: &[u8]) -> Option<(bool, usize)> {
    let (bits, _, mut rest) = decode_head(bytes)?;
    let mut puts = 0;
    while !rest.is_empty() {
        puts += usize::from(matches!(decode(&mut rest)?, HoldChange::Put(_)));
    }
    (bits & !FULL == 0 && puts <= HOLDERS_MAX).then_some((bits & FULL != 0, puts))
}

fn decode_head(bytes: &[u8]) -> Option<(u8, u64, &[u8])> {
    let (&bits, rest) = bytes.split_first()?;
    let (next_lease, rest) = rest.split_first_chunk()?;
    Some((bits, u64::from_le_bytes(*next_lease), rest))
}

fn encode(change: HoldChange, out: &mut Vec<u8>) {
    let (kind, key, units) = match change {
        HoldChange::Put(entry) => (PUT, entry.key, Some(entry.units)),
        HoldChange::Drop(key) => (DROP, key, None),
        HoldChange::Cut(key) => (CUT, key, None),
        HoldChange::Ended(key) => (ENDED, key, None),
    };
    out.push(kind);
    for number in [Some(key.0), Some(key.1), units].into_iter().flatten() {
        out.extend_from_slice(&number.to_le_bytes());
    }
}

fn decode(bytes: &mut &[u8]) -> Option<HoldChange> {
    let number = |bytes: &mut &[u8]| {
        let (number, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(u64::from_le_bytes(*number))
    };
    let (&kind, rest) = bytes.split_first()?;
    *bytes = rest;
    let key = (number(bytes)?, number(bytes)?);
    Some(match kind {
        PUT => HoldChange::Put(SumEntry { key, units: number(bytes)? }),
        DROP => HoldChange::Drop(key),
        CUT => HoldChange::Cut(key),
        ENDED => HoldChange::Ended(key),
        _ => return None,
    })
}
