//! The idempotency cache: the replies to requests with an id, for a repeat within a minute.
//!
//! Here: a queue of replies found by the hash of key and id, bounded in bytes; the oldest is
//! dropped first. Not here: the encoding of a reply (`cached_reply`), copies for other nodes
//! (`copy`), locks and the number of caches (`server/src/shards/idempotency.rs`).
//!
//! ```text
//! record, 48 bytes: hash of key and id 16 | next of the partition u32 | given at ms u32
//!                   | partition u16 | generation u16 | answer 20, or where it lies apart
//! ```
//!
//! The index takes some 9 bytes more for each record. A hash has 128 bits under a secret key
//! ([`KeyHasher::id_hash`](crate::KeyHasher::id_hash)): clients choose ids, and can neither find
//! two that collide nor meet such two by chance.

mod cached_reply;
mod copy;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

pub use self::cached_reply::CachedReply;
pub use self::copy::{IdCopy, KeyChange};
use crate::hasher::IdHash;
use crate::store::index::Index;
use crate::time::Now;

/// Milliseconds for which a reply is kept (`docs/reference/verbs-native.md`, `id=`).
pub const ID_KEPT_MS: u32 = 60_000;

/// Records of a chunk. Chunks are added and dropped as a whole: the oldest records go together.
const CHUNK: u32 = 128;
/// Bytes of a reply inside its record.
const ANSWER_BYTES: usize = 20;
/// First byte of a reply outside its record; no encoded reply begins with it.
const SPILLED: u8 = 0xFF;
/// Bytes that a reply outside its record takes beside its own: its place, and the allocator's
/// rounding.
const SPILLED_BYTES: usize = 32;
/// Seconds after its newest record from which a chunk contains only expired replies.
const FORGOTTEN_AFTER_SECONDS: u32 = 62;

/// The partition of the key of a request with an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IdPartition {
    /// Its number; 0 outside a cluster.
    pub number: u16,
    /// Increased to drop all ids of the partition.
    pub generation: u16,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct IdRecord {
    hash: [u64; 2],
    /// The slot of the next record of the partition, if there is one.
    next: u32,
    at_ms: u32,
    partition: u16,
    generation: u16,
    answer: [u8; ANSWER_BYTES],
}

const _: () = assert!(size_of::<IdRecord>() <= 48, "the bound that the design sets");

impl IdRecord {
    const EMPTY: Self = Self {
        hash: [0; 2],
        next: 0,
        at_ms: 0,
        partition: 0,
        generation: 0,
        answer: [0; ANSWER_BYTES],
    };

    fn is_of(&self, hash: IdHash) -> bool {
        self.hash == [hash.0 as u64, (hash.0 >> 64) as u64]
    }

    fn hash(&self) -> IdHash {
        IdHash(u128::from(self.hash[1]) << 64 | u128::from(self.hash[0]))
    }

    fn partition(&self) -> IdPartition {
        IdPartition { number: self.partition, generation: self.generation }
    }

    /// Whether the reply is valid at `now`. The 32-bit clock wraps after 49 days, and no record is
    /// kept for that long.
    fn is_kept(&self, now: Now) -> bool {
        let age_ms = ms_of(now).wrapping_sub(self.at_ms).cast_signed();
        age_ms < ID_KEPT_MS.cast_signed()
    }
}

/// The low bits of a time in milliseconds.
fn ms_of(now: Now) -> u32 {
    now.mono.millis() as u32
}

/// Records in the order of their arrival.
struct IdChunk {
    records: Box<[IdRecord; CHUNK as usize]>,
    used: u32,
    /// Replies that do not fit their records.
    spilled: Vec<Box<[u8]>>,
    /// Arrival of the first and the last record, in seconds of the node's own clock.
    first_second: u32,
    last_second: u32,
}

const CHUNK_BYTES: usize = size_of::<IdChunk>() + size_of::<[IdRecord; CHUNK as usize]>();

/// The oldest and the newest record of a partition.
#[derive(Debug, Clone, Copy)]
struct Chain {
    oldest: u32,
    newest: u32,
}

/// The position at which an export of ids continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdCursor(u32);

impl IdCursor {
    /// The position as a number, to continue later.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    /// Returns the position with a number that [`IdCursor::number`] returned.
    #[must_use]
    pub fn of_number(number: u32) -> Self {
        Self(number)
    }
}

/// Replies by the hash of key and id.
pub struct IdempotencyCache {
    chunks: VecDeque<IdChunk>,
    /// The slot of the first record of the first chunk. Slots count up, and wrap.
    first: u32,
    index: Index,
    spilled_bytes: usize,
    chains: Vec<Option<Chain>>,
    forgotten: u64,
}

impl Default for IdempotencyCache {
    fn default() -> Self {
        Self {
            chunks: VecDeque::new(),
            first: 0,
            index: Index::new(),
            spilled_bytes: 0,
            chains: Vec::new(),
            forgotten: 0,
        }
    }
}

impl IdempotencyCache {
    /// The number of replies, including expired ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are no replies.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes allocated.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK_BYTES + self.spilled_bytes + self.index.allocated_bytes()
    }

    /// Replies that were dropped within their minute for lack of room.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Arrival of the oldest reply, in the seconds passed to [`IdempotencyCache::keep`].
    #[must_use]
    pub fn oldest_second(&self) -> Option<u32> {
        self.chunks.front().map(|chunk| chunk.first_second)
    }

    fn slots(&self) -> u32 {
        self.chunks.back().map_or(0, |last| (self.chunks.len() as u32 - 1) * CHUNK + last.used)
    }

    fn record(&self, slot: u32) -> Option<(&IdChunk, &IdRecord)> {
        let place = slot.wrapping_sub(self.first);
        let chunk = self.chunks.get((place / CHUNK) as usize)?;
        let number = place % CHUNK;
        (number < chunk.used).then(|| (chunk, &chunk.records[number as usize]))
    }

    fn answer(chunk: &IdChunk, record: &IdRecord) -> Option<CachedReply> {
        let bytes = match record.answer {
            [SPILLED, rest @ ..] => {
                let place = u32::from_le_bytes(*rest.first_chunk()?);
                chunk.spilled.get(place as usize)?
            }
            _ => &record.answer[..],
        };
        CachedReply::decode(bytes)
    }

    /// Returns the earlier reply to this id, if it is still valid and `is_wanted` accepts it.
    pub fn find(
        &self,
        now: Now,
        partition: IdPartition,
        hash: IdHash,
        is_wanted: impl Fn(&CachedReply) -> bool,
    ) -> Option<CachedReply> {
        let mut found = None;
        self.index.find(hash.low(), |slot| {
            let Some((chunk, record)) = self.record(slot) else { return false };
            if record.is_of(hash) && record.partition() == partition && record.is_kept(now) {
                found = Self::answer(chunk, record).filter(&is_wanted);
            }
            found.is_some()
        });
        found
    }

    /// Stores a reply; beyond `bytes_max` the oldest are dropped. `second` is the time of the
    /// node's own clock, which determines when memory is freed; the time in `copy`, the
    /// partition's, determines how long the reply is valid.
    pub fn keep(&mut self, second: u32, partition: IdPartition, copy: &IdCopy, bytes_max: usize) {
        if self.chunks.back().is_none_or(|chunk| chunk.used == CHUNK) {
            self.chunks.push_back(IdChunk {
                records: Box::new([IdRecord::EMPTY; CHUNK as usize]),
                used: 0,
                spilled: Vec::new(),
                first_second: second,
                last_second: second,
            });
        }
        let slot = self.first.wrapping_add(self.slots());
        let Some(chunk) = self.chunks.back_mut() else { return };
        let hash = [copy.hash.0 as u64, (copy.hash.0 >> 64) as u64];
        let IdPartition { number, generation } = partition;
        let mut record =
            IdRecord { hash, at_ms: copy.at_ms, partition: number, generation, ..IdRecord::EMPTY };
        let bytes = copy.answer.encode();
        if let Some(place) = record.answer.get_mut(..bytes.len()) {
            place.copy_from_slice(&bytes);
        } else {
            record.answer[0] = SPILLED;
            let place = chunk.spilled.len() as u32;
            record.answer[1..5].copy_from_slice(&place.to_le_bytes());
            self.spilled_bytes += bytes.len() + SPILLED_BYTES;
            chunk.spilled.push(bytes.as_slice().into());
        }
        chunk.records[chunk.used as usize] = record;
        chunk.used += 1;
        chunk.last_second = chunk.last_second.max(second);
        self.append(number, slot);
        let (chunks, first) = (&self.chunks, self.first);
        self.index.insert(copy.hash.low(), slot, |slot| {
            let place = slot.wrapping_sub(first);
            let chunk = chunks.get((place / CHUNK) as usize);
            chunk.map_or(0, |chunk| chunk.records[(place % CHUNK) as usize].hash[0])
        });
        while self.bytes() > bytes_max && self.chunks.len() > 1 {
            let recent = self.chunks.front().map_or(0, |chunk| chunk.last_second);
            if second.saturating_sub(recent) <= ID_KEPT_MS / 1000 {
                self.forgotten += u64::from(CHUNK);
            }
            self.forget_first();
        }
    }

    /// Appends a record to its partition's chain.
    fn append(&mut self, partition: u16, slot: u32) {
        let place = usize::from(partition);
        if place >= self.chains.len() {
            self.chains.resize((place + 1).next_power_of_two(), None);
        }
        let chain = self.chains[place];
        self.chains[place] =
            Some(Chain { oldest: chain.map_or(slot, |one| one.oldest), newest: slot });
        if let Some(Chain { newest, .. }) = chain {
            let place = newest.wrapping_sub(self.first);
            if let Some(chunk) = self.chunks.get_mut((place / CHUNK) as usize) {
                chunk.records[(place % CHUNK) as usize].next = slot;
            }
        }
    }

    /// Drops the oldest chunk.
    fn forget_first(&mut self) {
        let Some(chunk) = self.chunks.pop_front() else { return };
        for (index, record) in chunk.records[..chunk.used as usize].iter().enumerate() {
            let slot = self.first.wrapping_add(index as u32);
            self.index.remove(record.hash[0], slot);
            // The oldest record of all is the oldest of its partition.
            let chain = &mut self.chains[usize::from(record.partition)];
            *chain = chain
                .filter(|chain| chain.newest != slot)
                .map(|chain| Chain { oldest: record.next, ..chain });
        }
        self.spilled_bytes -=
            chunk.spilled.iter().map(|bytes| bytes.len() + SPILLED_BYTES).sum::<usize>();
        self.first = self.first.wrapping_add(CHUNK);
    }

    /// Frees the memory of replies that have expired by the node's own clock.
    pub fn forget_old(&mut self, second: u32) {
        while self.chunks.front().is_some_and(|chunk| {
            chunk.last_second.saturating_add(FORGOTTEN_AFTER_SECONDS) <= second
        }) {
            self.forget_first();
        }
    }

    /// Passes valid replies of a partition to `out`, the oldest first, up to `count` of them;
    /// returns the position at which to continue, `None` at the end. Replies stored after the first
    /// call may be missing.
    pub fn export(
        &self,
        now: Now,
        partition: IdPartition,
        after: Option<IdCursor>,
        count: usize,
        mut out: impl FnMut(&IdCopy),
    ) -> Option<IdCursor> {
        let chain = (*self.chains.get(usize::from(partition.number))?)?;
        // The next record may be dropped by now: then all records before it are dropped, too.
        let at = after.map(|cursor| cursor.0).filter(|slot| {
            self.record(*slot).is_some_and(|(_, record)| record.partition == partition.number)
        });
        let mut slot = at.unwrap_or(chain.oldest);
        for _ in 0..count {
            let (chunk, record) = self.record(slot)?;
            if record.partition() == partition
                && record.is_kept(now)
                && let Some(answer) = Self::answer(chunk, record)
            {
                out(&IdCopy { hash: record.hash(), at_ms: record.at_ms, answer });
            }
            if slot == chain.newest {
                return None;
            }
            slot = record.next;
        }
        Some(IdCursor(slot))
    }
}
