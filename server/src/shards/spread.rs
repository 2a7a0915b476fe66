//! The distance of shards in memory.
//!
//! Not here: the layout within a shard (`engine`).

use std::ops::Deref;

use engine::CACHE_LINE_BYTES;

use super::lock::ShardLock;

/// Cache lines per shard: an odd number. A cache selects the set of a line by the low bits of its
/// address, and a lookup reads the same offsets of every shard. With sixteen lines per shard these
/// would share four of the 64 sets of a 48 KB first-level cache, which hold 48 lines for the 512
/// shards of two workers.
const LINES: usize = size_of::<ShardLock>().div_ceil(CACHE_LINE_BYTES) | 1;
const GAP_BYTES: usize = LINES * CACHE_LINE_BYTES - size_of::<ShardLock>();

/// A shard on cache lines of its own.
#[repr(C, align(64))]
pub(super) struct Spread {
    lock: ShardLock,
    _gap: [u8; GAP_BYTES],
}

const _: () = assert!(align_of::<Spread>() == CACHE_LINE_BYTES);
const _: () = assert!(size_of::<Spread>() == LINES * CACHE_LINE_BYTES);

impl Spread {
    pub(super) fn new(lock: ShardLock) -> Self {
        Self { lock, _gap: [0; GAP_BYTES] }
    }
}

impl Deref for Spread {
    type Target = ShardLock;

    fn deref(&self) -> &ShardLock {
        &self.lock
    }
}
