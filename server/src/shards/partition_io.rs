//! Import and export of whole items, for copies of a partition.
//!
//! Not here: the format of a copy (`engine`), when and where it is sent (`cluster`).

use engine::{HashRange, LimitCopy, Now, PartitionCursor, PutError};

use super::Shards;

/// Lines of an index read under one lock when a partition is exported or removed: the keys in them,
/// about eight each, are hashed, in at most a millisecond.
const SLICE_LINES: usize = 128;
/// Most lines read per call once any item was found.
const EXPORT_LINES_MAX: usize = 8 << 10;

impl Shards {
    /// [`engine::Engine::copy_of`].
    pub fn copy_of(&self, hash: u64, key: &[u8], out: &mut Vec<u8>) -> bool {
        self.shards[self.shard(hash)].lock().copy_of(hash, key, out)
    }

    /// [`engine::Engine::put_copy`]; other shards make room if needed.
    ///
    /// # Errors
    ///
    /// A [`PutError`]; the item is then unchanged.
    pub fn put_copy(&self, now: Now, hash: u64, key: &[u8], bytes: &[u8]) -> Result<(), PutError> {
        self.with_room_for(now, hash, bytes.len(), |engine| {
            match engine.put_copy(now, hash, key, bytes) {
                Err(PutError::NoRoom) => None,
                done => Some(done),
            }
        })
        .unwrap_or(Err(PutError::NoRoom))
    }

    /// [`engine::Engine::put_limit`]; other shards make room if needed.
    ///
    /// # Errors
    ///
    /// A [`PutError`]; the item is then unchanged.
    pub(crate) fn put_limit(
        &self,
        now: Now,
        (hash, key): (u64, &[u8]),
        copy: LimitCopy<'_>,
        unique: u64,
    ) -> Result<(), PutError> {
        let bytes = copy.policy.len() + copy.state.len();
        self.with_room_for(now, hash, bytes, |engine| {
            match engine.put_limit(now, (hash, key), copy, unique) {
                Err(PutError::NoRoom) => None,
                done => Some(done),
            }
        })
        .unwrap_or(Err(PutError::NoRoom))
    }

    /// [`engine::Engine::bare_count`].
    #[must_use]
    pub(crate) fn bare_count(&self, hash: u64, key: &[u8], unique: u64) -> Option<u64> {
        self.shards[self.shard(hash)].lock().bare_count(hash, key, unique)
    }

    /// [`engine::Engine::put_bare_count`]; other shards make room if needed.
    ///
    /// # Errors
    ///
    /// [`PutError::NoRoom`]; the item is then unchanged.
    pub(crate) fn put_bare_count(
        &self,
        now: Now,
        hash: u64,
        key: &[u8],
        count: u64,
        unique: u64,
    ) -> Result<(), PutError> {
        self.with_room(now, hash, |engine| {
            engine.put_bare_count(now, hash, key, count, unique).then_some(())
        })
        .ok_or(PutError::NoRoom)
    }

    /// [`engine::Engine::remove_copy`].
    pub fn remove_copy(&self, hash: u64, key: &[u8]) {
        self.shards[self.shard(hash)].lock().remove_copy(hash, key);
    }

    /// Passes keys and copies of the live items of `range` to `out`: about `bytes_max` bytes, and
    /// at least one item if there is any. Returns the cursor to pass as `after` to the next call,
    /// `None` at the end. An unknown cursor starts again.
    ///
    /// An item that exists from the first call to the last is passed; one that is added or removed
    /// meanwhile may be. `out` is called while a shard is locked.
    pub fn export(
        &self,
        now: Now,
        range: HashRange,
        after: Option<&[u8]>,
        bytes_max: usize,
        mut out: impl FnMut(&[u8], &[u8]),
    ) -> Option<Vec<u8>> {
        let (first, last) = self.shards_of(range);
        let mut at = after
            .and_then(decode_cursor)
            .filter(|(shard, _)| (first..=last).contains(shard))
            .unwrap_or((first, None));
        let (mut sent, mut looked) = (0, 0);
        loop {
            let (shard, cursor) = at;
            let bounds = (SLICE_LINES, bytes_max.saturating_sub(sent).max(1));
            let next = self.shards[shard].lock().export(now, range, cursor, bounds, |key, copy| {
                sent += key.len() + copy.len();
                out(key, copy);
            });
            at = match next {
                Some(cursor) => (shard, Some(cursor)),
                None if shard < last => (shard + 1, None),
                None => return None,
            };
            looked += SLICE_LINES;
            if sent >= bytes_max.max(1) || sent > 0 && looked >= EXPORT_LINES_MAX {
                return Some(encode_cursor(at.0, at.1));
            }
        }
    }

    /// Removes all items of `range`; items added meanwhile may stay.
    pub fn remove_range(&self, range: HashRange) {
        let (first, last) = self.shards_of(range);
        for shard in &self.shards[first..=last] {
            let mut after = None;
            loop {
                after = shard.lock().remove_range(range, after, SLICE_LINES);
                if after.is_none() {
                    break;
                }
            }
        }
    }

    /// Waits until every current holder of a shard of `range` has unlocked it.
    pub(crate) fn pass_through(&self, range: HashRange) {
        let (first, last) = self.shards_of(range);
        for shard in &self.shards[first..=last] {
            drop(shard.lock());
        }
    }

    /// Returns whether a partition spans several shards, if its number has `bits` bits.
    pub(crate) fn share_partitions(&self, bits: u32) -> bool {
        bits < u64::BITS - self.shift
    }

    /// Returns the first shard of a range.
    pub(crate) fn first_shard(&self, range: HashRange) -> usize {
        self.shards_of(range).0
    }

    /// Returns the first and the last shard of a range.
    fn shards_of(&self, HashRange { prefix, bits }: HashRange) -> (usize, usize) {
        if bits == 0 {
            return (0, self.shards.len() - 1);
        }
        let first = prefix << (64 - bits);
        (self.shard(first), self.shard(first | u64::MAX >> bits))
    }
}

fn encode_cursor(shard: usize, cursor: Option<PartitionCursor>) -> Vec<u8> {
    let mut bytes = (shard as u32).to_le_bytes().to_vec();
    if let Some(cursor) = cursor {
        cursor.encode(&mut bytes);
    }
    bytes
}

fn decode_cursor(bytes: &[u8]) -> Option<(usize, Option<PartitionCursor>)> {
    let (shard, place) = bytes.split_first_chunk()?;
    let shard = u32::from_le_bytes(*shard) as usize;
    if place.is_empty() {
        return Some((shard, None));
    }
    Some((shard, Some(PartitionCursor::decode(place)?)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use engine::{Nanos, PartitionPrefix, PartitionTimes};
    use protocol::{Command, Exptime, Operation};

    use super::super::tests::{shards, store};
    use super::*;

    /// The times of partitions 0 and 1, in nanoseconds.
    struct TwoTimes([AtomicU64; 2]);

    impl TwoTimes {
        fn set(&self, slow: Nanos, fast: Nanos) {
            self.0[0].store(slow.0, Ordering::Relaxed);
            self.0[1].store(fast.0, Ordering::Relaxed);
        }
    }

    impl PartitionTimes for &'static TwoTimes {
        fn time(&self, partition: u64, _: Now) -> Nanos {
            Nanos(self.0[partition as usize].load(Ordering::Relaxed))
        }

        fn latest(&self, now: Now) -> Nanos {
            self.time(0, now).max(self.time(1, now))
        }
    }

    fn key(number: u32) -> Vec<u8> {
        format!("key{number}").into_bytes()
    }

    fn is_there(shards: &Shards, key: &[u8]) -> bool {
        shards.copy_of(shards.hash(key), key, &mut Vec::new())
    }

    fn set(shards: &Shards, key: &[u8], value: &[u8]) {
        assert!(store(shards, protocol::SetMode::Set, key, value));
    }

    #[test]
    fn a_partition_is_exported_and_removed_in_any_layout() {
        const KEYS: u32 = 5000;
        let now = Now::at_ms(1000);
        // Cover partitions that span several shards, and shards that hold several partitions.
        for (memory_bytes, count) in [(1 << 20, 2), (64 << 20, 64)] {
            for bits in [0, 1, 2, 3, 4, 14] {
                let partition_prefix = Arc::new(PartitionPrefix::default());
                let shards = shards(memory_bytes, Some(Arc::clone(&partition_prefix)));
                assert_eq!(shards.shards.len(), count);
                let place = move |key: &[u8]| u64::from(key[key.len() - 1] % 8) % (1_u64 << bits);
                partition_prefix.set(bits, [1, 2, 3, 4], place);
                for number in 0..KEYS {
                    set(&shards, &key(number), b"17");
                }
                for prefix in [0, 1] {
                    if bits == 0 && prefix > 0 {
                        continue;
                    }
                    let range = HashRange { prefix, bits };
                    let expected: BTreeSet<Vec<u8>> =
                        (0..KEYS).map(key).filter(|key| place(key) == prefix).collect();
                    let (mut seen, mut after, mut calls) = (BTreeSet::new(), None, 0);
                    loop {
                        let before = seen.len();
                        after = shards.export(now, range, after.as_deref(), 2000, |key, copy| {
                            assert_eq!(copy.last_chunk(), Some(&17_u64.to_le_bytes()));
                            assert!(seen.insert(key.to_vec()));
                        });
                        calls += 1;
                        if after.is_none() {
                            break;
                        }
                        assert!(seen.len() > before && seen.len() - before < 100);
                    }
                    assert!(calls > 5, "{calls}");
                    assert_eq!(seen, expected, "{bits} bits");
                    shards.remove_range(range);
                    for number in 0..KEYS {
                        let key = key(number);
                        assert_eq!(is_there(&shards, &key), place(&key) > prefix);
                    }
                }
            }
        }
    }

    #[test]
    fn a_sweep_looks_at_items_by_their_partitions_time() {
        const HOUR_MS: u64 = 3_600_000;
        static TIMES: TwoTimes = TwoTimes([const { AtomicU64::new(0) }; 2]);
        let partition_prefix = Arc::new(PartitionPrefix::default());
        let shards = shards(1 << 20, Some(Arc::clone(&partition_prefix)));
        partition_prefix.set(4, [1, 2, 3, 4], |key: &[u8]| u64::from(key[key.len() - 1] % 16));
        partition_prefix.set_times(&TIMES);
        let put = |key: &[u8], now: Now, seconds: i32| {
            let set = protocol::Set::plain(protocol::SetMode::Set, 0, Exptime(seconds), b"1");
            let command = Command {
                key: protocol::Key::plain(key).expect("a key"),
                operation: Operation::Set(set),
            };
            shards.apply(now, shards.hash(key), &command, |_| ());
        };
        // Partition 1 is an hour ahead of partition 0.
        let (slow, fast) = (Now::at_ms(1000), Now::at_ms(1000 + HOUR_MS));
        for number in 0..1000 {
            put(format!("{number}:p").as_bytes(), slow, 600);
            put(format!("{number}:q").as_bytes(), fast, 600);
        }
        let sweep_all = || {
            let mono = partition_prefix.latest_time(Now::at_ms(0));
            let now = Now { mono, unix_ms: 0 };
            let mut first = Some(0);
            while let Some(shard) = first {
                first = shards.sweep(now, 1, shard);
            }
        };
        let all = |end: &str| {
            (0..1000)
                .filter(|number| is_there(&shards, format!("{number}:{end}").as_bytes()))
                .count()
        };
        for (at_slow, at_fast, left) in [
            (0, 1000 + 3 * HOUR_MS, (1000, 0)),
            (605_999, 1000 + 3 * HOUR_MS, (1000, 0)),
            (606_000, 1000 + 3 * HOUR_MS, (0, 0)),
        ] {
            TIMES.set(Nanos(at_slow * 1_000_000), Nanos(at_fast * 1_000_000));
            for _ in 0..40 {
                sweep_all();
            }
            assert_eq!((all("p"), all("q")), left);
        }
    }

    #[test]
    fn an_eviction_takes_no_living_item_for_an_ended_one() {
        static TIMES: TwoTimes = TwoTimes([const { AtomicU64::new(0) }; 2]);
        let partition_prefix = Arc::new(PartitionPrefix::default());
        let shards = shards(1 << 20, Some(Arc::clone(&partition_prefix)));
        partition_prefix.set(4, [1, 2, 3, 4], |key: &[u8]| u64::from(key[key.len() - 1] % 16));
        // Partition 1 is a day ahead of partition 0.
        let (slow, fast) = (Now::at_ms(1000), Now::at_ms(86_401_000));
        TIMES.set(slow.mono, fast.mono);
        partition_prefix.set_times(&TIMES);
        for (now, end) in [(slow, "p"), (fast, "q")] {
            for number in 0..20_000 {
                let key = format!("{number}:{end}");
                let set = protocol::Set::plain(protocol::SetMode::Set, 0, Exptime(600), b"1");
                let command = Command {
                    key: protocol::Key::plain(key.as_bytes()).expect("a key"),
                    operation: Operation::Set(set),
                };
                shards.apply(now, shards.hash(key.as_bytes()), &command, |_| ());
            }
        }
        let losses = shards.totals().losses;
        assert!(losses.evicted > 1000 && losses.reclaimed == 0, "{losses:?}");
    }

    #[test]
    fn an_unknown_cursor_starts_again() {
        let shards = shards(1 << 20, None);
        set(&shards, b"key", b"value");
        let range = HashRange { prefix: 0, bits: 0 };
        for cursor in [&b""[..], b"1", b"12345678", &[9; 20]] {
            let mut seen = 0;
            let next = shards.export(Now::at_ms(1000), range, Some(cursor), 100, |_, _| seen += 1);
            assert_eq!((next.is_none() || seen == 1, seen), (true, 1));
        }
    }

    #[test]
    fn a_copy_makes_room_in_all_shards() {
        let (from, to) = (shards(64 << 20, None), shards(1 << 20, None));
        let now = Now::at_ms(1000);
        for number in 0..50_000 {
            set(&to, &key(number), b"1");
        }
        let mut copies = Vec::new();
        for number in 0..20 {
            let (key, value) = (key(number), vec![b'x'; 40_000]);
            set(&from, &key, &value);
            copies.clear();
            let hash = from.hash(&key);
            assert!(from.copy_of(hash, &key, &mut copies));
            assert_eq!(to.put_copy(now, hash, &key, &copies), Ok(()));
            let mut back = Vec::new();
            assert!(to.copy_of(hash, &key, &mut back) && back == copies);
        }
        let huge = vec![0; 2 << 20];
        assert_eq!(to.put_copy(now, 1, b"key", &huge), Err(PutError::NotACopy));
        to.remove_copy(from.hash(&key(0)), &key(0));
        assert!(!is_there(&to, &key(0)));
    }
}
