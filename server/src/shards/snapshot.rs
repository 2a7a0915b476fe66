//! Reading all items for a snapshot, and restoring them.
//!
//! Not here: the file (`runtime/snapshot`), the content of a record (`engine`).

use engine::{ItemRecord, LimitRecord, Now, PartitionCursor, SnapshotRecord};

use super::Shards;

/// Lines of an index read under one lock for a snapshot: some hundred keys, which must be hashed.
const SAVE_LINES: usize = 64;
/// Bytes passed under one lock for a snapshot; the last item may exceed them.
const SAVE_BYTES: usize = 32 << 10;

/// A position in the store while it is saved; the default is the start.
#[derive(Debug, Clone, Copy, Default)]
pub struct SaveCursor {
    shard: usize,
    cursor: Option<PartitionCursor>,
}

impl Shards {
    /// Passes every live item to `visit`, shard by shard, until it returns false.
    pub fn visit(&self, now: Now, mut visit: impl FnMut(&ItemRecord<'_>) -> bool) {
        for shard in &self.shards {
            let engine = shard.lock();
            if !engine.records(now).all(|record| visit(&record)) {
                return;
            }
        }
    }

    /// Passes the next records of a snapshot to `visit`, about `SAVE_BYTES`, under one lock of one
    /// shard. Returns the cursor to continue from, `None` at the end. An item that exists from the
    /// first call to the last is passed once.
    #[must_use]
    pub fn save_slice(
        &self,
        now: Now,
        from: SaveCursor,
        visit: impl FnMut(SnapshotRecord<'_>),
    ) -> Option<SaveCursor> {
        let SaveCursor { shard, cursor } = from;
        let engine = self.shards.get(shard)?.lock();
        match engine.save_slice(now, cursor, (SAVE_LINES, SAVE_BYTES), visit) {
            Some(cursor) => Some(SaveCursor { shard, cursor: Some(cursor) }),
            None if shard + 1 < self.shards.len() => {
                Some(SaveCursor { shard: shard + 1, cursor: None })
            }
            None => None,
        }
    }

    /// Restores a saved limit state with its instants `shift` nanoseconds later. Returns false if
    /// there is no room.
    #[must_use]
    pub fn restore_limit(&self, now: Now, record: &LimitRecord<'_>, shift: i128) -> bool {
        let hash = self.hasher.hash(record.key);
        self.shards[self.shard(hash)].lock().restore_limit(now, hash, record, shift)
    }

    /// Restores a saved item. Returns false if there is no room.
    #[must_use]
    pub fn restore(&self, now: Now, record: &ItemRecord<'_>) -> bool {
        let hash = self.hasher.hash(record.key);
        self.shards[self.shard(hash)].lock().restore(now, hash, record)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fill, shards};
    use super::*;

    #[test]
    fn saving_locks_for_few_items_and_meets_each_once() {
        const KEPT: u32 = 20_000;
        let shards = shards(64 << 20, None);
        let now = Now::at_ms(0);
        fill(&shards, now, KEPT);
        let mut seen = std::collections::BTreeMap::new();
        let (mut next, mut slices) = (Some(SaveCursor::default()), 0);
        while let Some(place) = next {
            let mut shown = 0;
            next = shards.save_slice(now, place, |record| {
                let SnapshotRecord::Item(record) = record else { panic!("no limit is there") };
                *seen.entry(record.key.to_vec()).or_insert(0) += 1;
                shown += 1;
            });
            assert!(shown <= 2_000, "{shown} under one lock");
            // Items come and go meanwhile, and the tables grow.
            slices += 1;
            for number in 0..50 {
                let key = format!("new{slices}-{number}");
                let record = ItemRecord {
                    key: key.as_bytes(),
                    value: protocol::Value::Number(1),
                    client_flags: 0,
                    cas: 0,
                    left_ms: None,
                    stale: false,
                    won: false,
                    base64: false,
                };
                assert!(shards.restore(now, &record));
                shards.remove_copy(shards.hash(key.as_bytes()), key.as_bytes());
            }
        }
        assert!(slices >= 64, "{slices}");
        for number in 0..KEPT {
            assert_eq!(seen.get(number.to_be_bytes().as_slice()), Some(&1), "{number}");
        }
        assert!(seen.values().all(|times| *times == 1));
    }
}
