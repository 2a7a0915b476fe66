//! The idempotency cache of all keys: one table with one bound for the ids of all shards.
//!
//! Here: the parts of the table behind their locks, and the import and export of ids for copies of
//! a partition. Not here: one part (`engine::IdempotencyCache`), the requests with ids (`native`).
//!
//! The hash of key and id chooses the part. The ids of any keys, even of one hot key, therefore
//! spread over all parts, and the oldest id of a part is about the oldest of all. Lock order: the
//! lock of a part is taken while a shard's is held, never the reverse.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};

use engine::{
    CachedReply, HashRange, IdCopy, IdCursor, IdHash, IdPartition, IdempotencyCache, Now,
};
use parking_lot::Mutex;

use super::Shards;

/// The table has two to the power of this many parts.
const PART_BITS: u32 = 3;
const PARTS: usize = 1 << PART_BITS;
/// The cap on ids is at least this many bytes, about a million ids, unless that exceeds seven
/// eighths of the memory cap. Ids are not counted in the memory cap.
const IDS_BYTES: usize = 56 << 20;
/// Most ids exported under one lock.
const EXPORT_MAX: usize = 1024;
/// Length of a cursor into the ids, in the peer format.
const CURSOR_BYTES: usize = 5;

/// Replies by key and id.
#[derive(Default)]
pub(super) struct IdempotencyTable {
    parts: [Mutex<IdempotencyCache>; PARTS],
    /// Whether an id was ever cached.
    is_used: AtomicBool,
    /// The generation of each partition; unset until ids of a partition are first forgotten.
    generations: OnceLock<Box<[AtomicU16]>>,
    /// Seconds on the node's own clock.
    second: AtomicU32,
}

/// The id of a request on a key, for the calls below.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyId {
    hash: IdHash,
    partition: IdPartition,
}

/// Metrics of the cached ids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct IdempotencyMetrics {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    /// Age of the oldest id in seconds.
    pub(crate) oldest_seconds: u64,
    /// Ids dropped within their minute, for lack of room.
    pub(crate) forgotten: u64,
}

impl IdempotencyTable {
    fn generation(&self, partition: u16) -> u16 {
        let generations = self.generations.get();
        let generation = generations.and_then(|all| all.get(usize::from(partition)));
        generation.map_or(0, |generation| generation.load(Ordering::Acquire))
    }

    fn partition(&self, number: u16) -> IdPartition {
        IdPartition { number, generation: self.generation(number) }
    }

    fn part(&self, hash: IdHash) -> &Mutex<IdempotencyCache> {
        &self.parts[hash.front(PART_BITS)]
    }
}

/// Returns the most bytes of all ids at a memory cap.
fn ids_bytes_max(memory_bytes: usize) -> usize {
    (memory_bytes / 4).max(IDS_BYTES.min(memory_bytes / 8 * 7))
}

impl Shards {
    /// Returns the id of a request on a key of this hash.
    pub(crate) fn key_id(&self, hash: u64, key: &[u8], id: &[u8]) -> KeyId {
        let bits = self.hasher.partition_bits();
        let number = hash.checked_shr(u64::BITS - bits).unwrap_or(0) as u16;
        KeyId { hash: self.hasher.id_hash(key, id), partition: self.idempotency.partition(number) }
    }

    /// Returns the cached reply to this id if `is_wanted` accepts it.
    pub(crate) fn answer_to(
        &self,
        now: Now,
        id: KeyId,
        is_wanted: impl Fn(&CachedReply) -> bool,
    ) -> Option<CachedReply> {
        self.idempotency.part(id.hash).lock().find(now, id.partition, id.hash, is_wanted)
    }

    /// Caches the reply to an id. Returns the record for the copies of the key's partition.
    pub(crate) fn keep_answer(&self, now: Now, id: KeyId, answer: CachedReply) -> IdCopy {
        let copy = IdCopy::new(now, id.hash, answer);
        self.keep_id(id.partition, &copy);
        copy
    }

    fn keep_id(&self, partition: IdPartition, copy: &IdCopy) {
        if !self.idempotency.is_used.load(Ordering::Relaxed) {
            self.idempotency.is_used.store(true, Ordering::Release);
        }
        let second = self.idempotency.second.load(Ordering::Relaxed);
        let bytes_max = ids_bytes_max(self.memory_cap.limit_bytes()) / PARTS;
        self.idempotency.part(copy.hash).lock().keep(second, partition, copy, bytes_max);
    }

    /// Adds an id received from another copy of the partition.
    pub(crate) fn put_id(&self, now: Now, partition: u16, copy: &IdCopy) {
        let partition = self.idempotency.partition(partition);
        let is_known = {
            let part = self.idempotency.part(copy.hash).lock();
            part.find(now, partition, copy.hash, |answer| *answer == copy.answer).is_some()
        };
        if !is_known {
            self.keep_id(partition, copy);
        }
    }

    /// Forgets the ids of a partition, because its copy here starts again.
    pub(crate) fn forget_ids(&self, HashRange { prefix, bits }: HashRange) {
        if !self.idempotency.is_used.load(Ordering::Acquire) {
            return;
        }
        let generations = self
            .idempotency
            .generations
            .get_or_init(|| (0..1_usize << bits.min(16)).map(|_| AtomicU16::new(0)).collect());
        if let Some(generation) = generations.get(prefix as usize) {
            generation.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Appends ids of a partition to `out`, about `bytes_max` bytes, each as written by
    /// [`IdCopy::encode`]. Returns the cursor to continue from, `None` at the end.
    pub(crate) fn export_ids(
        &self,
        now: Now,
        partition: u16,
        after: Option<&[u8]>,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Option<Vec<u8>> {
        let (mut part, mut cursor) = after.and_then(decode_cursor).unwrap_or((0, None));
        let partition = self.idempotency.partition(partition);
        let start = out.len();
        while let Some(ids) = self.idempotency.parts.get(part) {
            cursor = ids.lock().export(now, partition, cursor, EXPORT_MAX, |copy| copy.encode(out));
            if cursor.is_none() {
                part += 1;
            }
            if out.len() - start >= bytes_max && part < PARTS {
                return Some(encode_cursor(part, cursor));
            }
        }
        None
    }

    /// Returns whether `cursor` comes from [`Shards::export_ids`].
    pub(crate) fn is_of_ids(cursor: &[u8]) -> bool {
        cursor.len() == CURSOR_BYTES || cursor.len() == 1
    }

    /// Sets the node's own time and frees the memory of expired ids.
    pub(crate) fn sweep_ids(&self, now: Now) {
        let second = u32::try_from(now.mono.millis() / 1000).unwrap_or(u32::MAX);
        if self.idempotency.second.swap(second, Ordering::Relaxed) != second {
            for part in &self.idempotency.parts {
                part.lock().forget_old(second);
            }
        }
    }

    pub(crate) fn idempotency_metrics(&self) -> IdempotencyMetrics {
        let second = self.idempotency.second.load(Ordering::Relaxed);
        let mut metrics = IdempotencyMetrics::default();
        for part in &self.idempotency.parts {
            let part = part.lock();
            metrics.count += part.len() as u64;
            metrics.bytes += part.bytes() as u64;
            metrics.forgotten += part.forgotten();
            let age = part.oldest_second().map_or(0, |oldest| second.saturating_sub(oldest));
            metrics.oldest_seconds = metrics.oldest_seconds.max(age.into());
        }
        metrics
    }
}

fn encode_cursor(part: usize, cursor: Option<IdCursor>) -> Vec<u8> {
    let mut bytes = vec![part as u8];
    if let Some(cursor) = cursor {
        bytes.extend_from_slice(&cursor.number().to_le_bytes());
    }
    bytes
}

fn decode_cursor(bytes: &[u8]) -> Option<(usize, Option<IdCursor>)> {
    let (part, rest) = bytes.split_first()?;
    let cursor = rest.try_into().ok().map(|bytes| IdCursor::of_number(u32::from_le_bytes(bytes)));
    Some((usize::from(*part), cursor))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use engine::PartitionPrefix;
    use protocol::CountLine;

    use super::super::tests::shards;
    use super::*;

    fn answer(value: i64) -> CachedReply {
        let ttl_ms = None;
        CachedReply::Counted(CountLine { exists: false, value, applied: 1, ttl_ms, cas: None })
    }

    fn keep(shards: &Shards, now: Now, key: &[u8], id: u32) -> IdCopy {
        let id_text = id.to_string();
        let id_of = shards.key_id(shards.hash(key), key, id_text.as_bytes());
        shards.keep_answer(now, id_of, answer(id.into()))
    }

    fn find(shards: &Shards, now: Now, key: &[u8], id: u32) -> bool {
        let id_text = id.to_string();
        let id_of = shards.key_id(shards.hash(key), key, id_text.as_bytes());
        shards.answer_to(now, id_of, |_| true) == Some(answer(id.into()))
    }

    #[test]
    fn one_key_may_use_all_room_for_ids() {
        const MEMORY_BYTES: usize = 4 << 20;
        let (shards, now) = (shards(MEMORY_BYTES, None), Now::at_ms(1000));
        shards.sweep_ids(now);
        for id in 0..200_000 {
            keep(&shards, now, b"key", id);
        }
        let metrics = shards.idempotency_metrics();
        assert!(metrics.bytes <= ids_bytes_max(MEMORY_BYTES) as u64, "{metrics:?}");
        assert!(metrics.count > 50_000, "{metrics:?}");
        assert_eq!(metrics.count + metrics.forgotten, 200_000);
        // The parts are of about the same length, but not exactly.
        let kept = metrics.count as u32;
        assert!((200_000 - kept * 9 / 10..200_000).all(|id| find(&shards, now, b"key", id)));
        assert!((0..200_000 - kept * 11 / 10).all(|id| !find(&shards, now, b"key", id)));
        shards.sweep_ids(Now::at_ms(31_000));
        assert_eq!(shards.idempotency_metrics().oldest_seconds, 30);
        shards.sweep_ids(Now::at_ms(63_000));
        assert_eq!(
            (shards.idempotency_metrics().count, shards.idempotency_metrics().oldest_seconds),
            (0, 0)
        );
    }

    #[test]
    fn the_room_for_ids_follows_the_memory_cap() {
        let megabytes = |megabytes: usize| ids_bytes_max(megabytes << 20) >> 20;
        assert_eq!([4, 64, 100, 192, 1024].map(megabytes), [3, 56, 56, 56, 256]);
    }

    #[test]
    fn partitions_have_no_generations_before_the_first_id() {
        let (shards, now) = (shards(64 << 20, None), Now::at_ms(1000));
        let all = HashRange { prefix: 0, bits: 0 };
        shards.forget_ids(all);
        assert!(shards.idempotency.generations.get().is_none());
        keep(&shards, now, b"a", 1);
        assert!(find(&shards, now, b"a", 1));
        shards.forget_ids(all);
        assert!(!find(&shards, now, b"a", 1));
        assert!(shards.idempotency.generations.get().is_some());
    }

    #[test]
    fn a_partition_is_read_out_in_pieces() {
        let placed = || {
            let partition_prefix = Arc::new(PartitionPrefix::default());
            let shards = shards(64 << 20, Some(Arc::clone(&partition_prefix)));
            partition_prefix.set(8, [1, 2, 3, 4], |key: &[u8]| u64::from(key[0] % 4));
            shards
        };
        let (from, to, now) = (placed(), placed(), Now::at_ms(1000));
        for id in 0..8000 {
            keep(&from, now, &[b'a' + (id % 4) as u8], id);
        }
        let number = u16::from(b'a' % 4);
        let (mut after, mut pieces): (Option<Vec<u8>>, _) = (None, 0);
        loop {
            let mut out = Vec::new();
            after = from.export_ids(now, number, after.as_deref(), 1000, &mut out);
            let mut rest = &out[..];
            while let Some((copy, behind)) = IdCopy::decode(rest) {
                // Adding an id twice has no further effect.
                to.put_id(now, number, &copy);
                to.put_id(now, number, &copy);
                rest = behind;
            }
            pieces += 1;
            let Some(cursor) = &after else { break };
            assert!(Shards::is_of_ids(cursor) && out.len() < 60_000);
        }
        assert!(pieces > 3);
        assert_eq!(to.idempotency_metrics().count, 2000);
        assert!((0..8000).all(|id| find(&to, now, &[b'a' + (id % 4) as u8], id) == (id % 4 == 0)));
        to.forget_ids(HashRange { prefix: number.into(), bits: 8 });
        assert!((0..8000).all(|id| !find(&to, now, b"a", id)));
        keep(&to, now, b"a", 1);
        assert!(find(&to, now, b"a", 1));
        let mut out = Vec::new();
        assert_eq!(to.export_ids(now, number, None, 1000, &mut out), None);
        assert_eq!(IdCopy::decode(&out).map(|(_, rest)| rest.len()), Some(0));
    }
}
