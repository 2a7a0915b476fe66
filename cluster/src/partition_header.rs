//! The hot line of a partition: what a batch has to know of it.
//!
//! Here: the line, and who may read and change it. Not here: when a partition may be served from it
//! (`replica`).

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::id::Term;
use crate::replica::{At, Now};

/// What a batch has to know of a partition that this node serves by itself, with nothing under way.
///
/// While [`PartitionHeader::serving`] answers, the numbers of the partition's changes are given out here.
/// Who works on the partition's `Replica` closes the header first, and opens it when it is done. Keys of
/// a partition lie in shards, which have locks: the header is read and changed under the lock of the key's
/// shard, and closing it ends with a look at each of those locks. So nobody gives out a number afterwards.
#[derive(Debug, Default)]
#[repr(align(32))]
pub struct PartitionHeader {
    /// The last number that was given out.
    lsn: AtomicU64,
    /// The partition's time less the node's monotonic clock; wraps.
    ahead_ns: AtomicU64,
    term: AtomicU32,
    serves: AtomicBool,
}

/// What a header is opened with, and what it was closed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// The term that is served.
    pub term: Term,
    /// The last number that was given out.
    pub lsn: u64,
    /// The partition's time less the node's monotonic clock; wraps.
    pub ahead_ns: u64,
}

impl PartitionHeader {
    /// From now on batches are served from here.
    pub fn open(&self, opening: Opening) {
        self.lsn.store(opening.lsn, Ordering::Relaxed);
        self.ahead_ns.store(opening.ahead_ns, Ordering::Relaxed);
        self.term.store(opening.term.0, Ordering::Relaxed);
        self.serves.store(true, Ordering::Release);
    }

    /// Whether it is open.
    #[must_use]
    #[inline]
    pub fn is_open(&self) -> bool {
        self.serves.load(Ordering::Acquire)
    }

    /// The last number that was given out; `None` where the header is closed.
    #[must_use]
    pub fn served(&self) -> Option<u64> {
        self.is_open().then(|| self.lsn.load(Ordering::Relaxed))
    }

    /// No batch that begins now is served from here. `pass` waits until those that began before are over, by
    /// taking the lock of each shard of the partition once. The last number that was given out; `None`
    /// where the header was not open.
    pub fn close(&self, pass: impl FnOnce()) -> Option<u64> {
        if !self.is_open() {
            return None;
        }
        self.serves.store(false, Ordering::Relaxed);
        pass();
        Some(self.lsn.load(Ordering::Relaxed))
    }

    /// Where the next operation stands; `None` where the header is closed. The lock of the key's shard is
    /// held. `is_shared`: the partition has other shards, whose holders do the same at this moment.
    #[inline]
    pub fn next(&self, now: Now, is_shared: bool) -> Option<At> {
        if !self.is_open() {
            return None;
        }
        let lsn = if is_shared {
            self.lsn.fetch_add(1, Ordering::Relaxed) + 1
        } else {
            let lsn = self.lsn.load(Ordering::Relaxed) + 1;
            self.lsn.store(lsn, Ordering::Relaxed);
            lsn
        };
        let pt_ns = now.mono_ns.wrapping_add(self.ahead_ns.load(Ordering::Relaxed));
        Some(At { pt_ns, term: Term(self.term.load(Ordering::Relaxed)), lsn })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Now { mono_ns: 100, wall_ns: 0 };
    const OPENING: Opening = Opening { term: Term(3), lsn: 7, ahead_ns: u64::MAX };

    #[test]
    fn header_is_half_a_cache_line() {
        assert_eq!(size_of::<PartitionHeader>(), 32);
    }

    #[test]
    fn numbers_are_given_out_while_it_is_open() {
        let header = PartitionHeader::default();
        assert_eq!((header.next(NOW, false), header.close(|| unreachable!())), (None, None));
        header.open(OPENING);
        for (lsn, is_shared) in [(8, false), (9, true), (10, false)] {
            assert_eq!(header.next(NOW, is_shared), Some(At { pt_ns: 99, term: Term(3), lsn }));
        }
        let mut passed = false;
        assert_eq!(header.close(|| passed = true), Some(10));
        assert!(passed && !header.is_open());
        assert_eq!(header.next(NOW, true), None);
    }
}
