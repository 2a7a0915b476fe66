//! How far apart shards lie in memory.
//!
//! Not here: what lies where within one (`engine`).

use std::ops::Deref;

use engine::CACHE_LINE_BYTES;

use super::lock::ShardLock;

/// Lines of a shard: an odd number. A cache finds a line by the low bits of its address, and what a lookup reads of
/// shards lies as far apart as they do: with sixteen lines each it falls into four of the 64 sets of a first cache of
/// 48 KB, which hold 48 lines for the 512 shards of two workers.
const LINES: usize = size_of::<ShardLock>().div_ceil(CACHE_LINE_BYTES) | 1;
const GAP_BYTES: usize = LINES * CACHE_LINE_BYTES - size_of::<ShardLock>();

/// A shard on cache lines that it has for itself.
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
