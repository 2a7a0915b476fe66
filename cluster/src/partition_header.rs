//! The hot line of a partition: the fields that every batch reads.
//!
//! Here: the line, and who may read and change it. Not here: when a partition may be served from it
//! (`replica`).

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::id::Term;
use crate::replica::{At, Now};

/// The fields that a batch reads of a partition which this node serves alone.
///
/// While it [is open](PartitionHeader::is_open), the numbers and times of the partition's changes are given out
/// here. A thread that works on the partition's `Replica` closes the header first, and opens it when it is done.
/// The keys of a partition lie in one or more shards, and each shard has a lock. A batch reads and changes the
/// header under the lock of its key's shard. `close` takes the lock of each of these shards once, so no batch
/// takes a number after `close` has returned.
#[derive(Debug, Default)]
#[repr(align(32))]
pub struct PartitionHeader {
    /// The last number that was given out.
    lsn: AtomicU64,
    /// The partition's time less the node's monotonic clock; wraps.
    ahead_ns: AtomicU64,
    /// The last time that was given out, nanoseconds since 1970.
    pt_ns: AtomicU64,
    term: AtomicU32,
    serves: AtomicBool,
}

/// The values that a header is opened with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// Time, term and number of the last operation. The partition is served in this term.
    pub last: At,
    /// The partition's time less the node's monotonic clock; wraps.
    pub ahead_ns: u64,
}

impl PartitionHeader {
    /// Opens the header: batches are served from it.
    pub fn open(&self, opening: Opening) {
        self.lsn.store(opening.last.lsn, Ordering::Relaxed);
        self.pt_ns.store(opening.last.pt_ns, Ordering::Relaxed);
        self.term.store(opening.last.term.0, Ordering::Relaxed);
        self.ahead_ns.store(opening.ahead_ns, Ordering::Relaxed);
        self.serves.store(true, Ordering::Release);
    }

    /// Whether it is open.
    #[must_use]
    #[inline]
    pub fn is_open(&self) -> bool {
        self.serves.load(Ordering::Acquire)
    }

    /// Time, term and number of the last operation; `None` if the header is closed.
    #[must_use]
    pub fn last(&self) -> Option<At> {
        self.is_open().then(|| self.at())
    }

    fn at(&self) -> At {
        At {
            pt_ns: self.pt_ns.load(Ordering::Relaxed),
            term: Term(self.term.load(Ordering::Relaxed)),
            lsn: self.lsn.load(Ordering::Relaxed),
        }
    }

    /// Closes the header: no batch that begins afterwards is served from it. `pass` waits until those that
    /// began before are over, by taking the lock of each shard of the partition once. Returns time,
    /// term and number of the last operation; `None` if the header was closed.
    pub fn close(&self, pass: impl FnOnce()) -> Option<At> {
        if !self.is_open() {
            return None;
        }
        self.serves.store(false, Ordering::Relaxed);
        pass();
        Some(self.at())
    }

    /// Takes time, term and number of the next operation; `None` if the header is closed. The time is never
    /// before that of the last operation, even if `now` is: each thread reads the clock once a round. The caller
    /// holds the lock of the key's shard. `is_shared`: the partition has several shards, so other threads may
    /// call this at the same time.
    #[inline]
    pub fn next(&self, now: Now, is_shared: bool) -> Option<At> {
        if !self.is_open() {
            return None;
        }
        let pt_ns = now.mono_ns.wrapping_add(self.ahead_ns.load(Ordering::Relaxed));
        let term = Term(self.term.load(Ordering::Relaxed));
        if is_shared {
            let lsn = self.lsn.fetch_add(1, Ordering::Relaxed) + 1;
            let last_ns = self.pt_ns.fetch_max(pt_ns, Ordering::Relaxed);
            return Some(At { pt_ns: pt_ns.max(last_ns), term, lsn });
        }
        let lsn = self.lsn.load(Ordering::Relaxed) + 1;
        let pt_ns = pt_ns.max(self.pt_ns.load(Ordering::Relaxed));
        self.lsn.store(lsn, Ordering::Relaxed);
        self.pt_ns.store(pt_ns, Ordering::Relaxed);
        Some(At { pt_ns, term, lsn })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The partition's time is 1000 ahead of the node's clock.
    const OPENING: Opening =
        Opening { last: At { pt_ns: 1050, term: Term(3), lsn: 7 }, ahead_ns: 1000 };

    fn at(mono_ns: u64) -> Now {
        Now { mono_ns, wall_ns: 0 }
    }

    #[test]
    fn header_is_half_a_cache_line() {
        assert_eq!(size_of::<PartitionHeader>(), 32);
    }

    #[test]
    fn numbers_are_given_out_while_it_is_open() {
        let header = PartitionHeader::default();
        assert_eq!((header.next(at(100), false), header.close(|| unreachable!())), (None, None));
        header.open(OPENING);
        for (lsn, is_shared) in [(8, false), (9, true), (10, false)] {
            let expected = At { pt_ns: 1100, term: Term(3), lsn };
            assert_eq!(header.next(at(100), is_shared), Some(expected));
            assert_eq!(header.last(), Some(expected));
        }
        let mut passed = false;
        assert_eq!(header.close(|| passed = true).map(|last| last.lsn), Some(10));
        assert!(passed && !header.is_open());
        assert_eq!(header.next(at(100), true), None);
    }

    #[test]
    fn time_of_a_slow_thread_turns_nothing_back() {
        for is_shared in [false, true] {
            let header = PartitionHeader::default();
            header.open(OPENING);
            for (mono_ns, pt_ns) in [(20, 1050), (90, 1090), (60, 1090), (91, 1091)] {
                let next = header.next(at(mono_ns), is_shared).expect("it is open");
                assert_eq!(next.pt_ns, pt_ns, "{mono_ns}");
            }
            assert_eq!(header.close(|| ()).map(|last| last.pt_ns), Some(1091));
        }
    }
}
