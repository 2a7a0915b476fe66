//! The header of a partition: the fields that every batch reads and changes.
//!
//! Here: the fields, and the locks needed to read and change them. Not here: the positions of its
//! last record (`record_ends`), the choice of a partition's state (`replica`).

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::id::Term;
use crate::map::TERM_MAX;
use crate::position::{ApplyPosition, NodeTime};
use crate::replica_set::SetIndex;
use crate::rules::{Bug, Rules};

/// The work that batches may do on a partition.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum HeaderState {
    /// No work: the node has no copy, or the copy takes no records.
    #[default]
    None = 0,
    /// Install the next record of the header's term.
    Follows = 1,
    /// Do operations of the header's term.
    Serves = 2,
    /// No work: the `Replica` decides on each operation.
    Slow = 3,
}

/// The fields of a partition that every batch reads, in half a cache line.
///
/// The header always holds the partition's last lsn and time: the `Replica` keeps no copy of them.
///
/// The first of a partition's shards guards its header. A thread that changes the header, or reads
/// it to act on it, holds the lock of that shard; this applies to batches and to work on the
/// `Replica`. A thread that works on the `Replica` without the lock
/// [closes](PartitionHeader::close) the header first and [opens](PartitionHeader::open) it when it
/// is done. Only one thread at a time works on the `Replica`, and no other changes state and term.
/// The fields are atomics only so that threads can share them; none orders another.
#[derive(Debug, Default)]
#[repr(align(32))]
pub struct PartitionHeader {
    /// The lsn of the last record.
    lsn: AtomicU64,
    /// The partition's time less the monotonic clock of the primary's node; wraps.
    ahead_ns: AtomicU64,
    /// The newest time that was used, in nanoseconds since 1970; never goes back.
    pt_ns: AtomicU64,
    /// The newest term that was seen, above the [`STATE_BITS`] of the state.
    term_and_state: AtomicU32,
    set: AtomicU16,
    /// Counts how often this node's copy was wiped; wraps.
    generation: AtomicU16,
}

/// Bits of a [`HeaderState`].
const STATE_BITS: u32 = 2;
const STATE_MASK: u32 = (1 << STATE_BITS) - 1;

const _: () = assert!(TERM_MAX <= u32::MAX >> STATE_BITS, "maps and frames have no greater term");

const fn packed(term: Term, state: HeaderState) -> u32 {
    term.0 << STATE_BITS | state as u32
}

impl PartitionHeader {
    /// The work that batches may do.
    #[must_use]
    #[inline]
    pub fn state(&self) -> HeaderState {
        match self.term_and_state.load(Ordering::Acquire) & STATE_MASK {
            1 => HeaderState::Follows,
            2 => HeaderState::Serves,
            3 => HeaderState::Slow,
            _ => HeaderState::None,
        }
    }

    /// The newest term that was seen. If the partition is served or followed, this is its term.
    #[must_use]
    #[inline]
    pub fn term(&self) -> Term {
        Term(self.term_and_state.load(Ordering::Relaxed) >> STATE_BITS)
    }

    /// The lsn of the last record.
    #[must_use]
    #[inline]
    pub fn lsn(&self) -> u64 {
        self.lsn.load(Ordering::Relaxed)
    }

    /// The newest time that was used, in nanoseconds since 1970.
    #[must_use]
    #[inline]
    pub fn pt_ns(&self) -> u64 {
        self.pt_ns.load(Ordering::Relaxed)
    }

    /// The partition's time less the monotonic clock of the primary's node; wraps.
    #[must_use]
    #[inline]
    pub fn ahead_ns(&self) -> u64 {
        self.ahead_ns.load(Ordering::Relaxed)
    }

    /// The row of the set of links that carry records.
    #[must_use]
    #[inline]
    pub fn set(&self) -> SetIndex {
        SetIndex(self.set.load(Ordering::Relaxed))
    }

    /// The generation of the copy. Results of another generation do not count.
    #[must_use]
    #[inline]
    pub fn generation(&self) -> u16 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Time, term and lsn for the next operation; none if the header does not serve the partition.
    /// The time is never before one that was used, even if `now` is: each thread reads its clock
    /// once a round.
    ///
    /// [`PartitionHeader::take`] takes the lsn, once the operation has changed something.
    #[must_use]
    #[inline]
    pub fn next(&self, now: NodeTime) -> Option<ApplyPosition> {
        (self.state() == HeaderState::Serves).then(|| self.next_closed(now))
    }

    /// [`PartitionHeader::next`] for the thread that has closed the header of a partition that is
    /// served.
    #[must_use]
    #[inline]
    pub fn next_closed(&self, now: NodeTime) -> ApplyPosition {
        let pt_ns = now.mono_ns.wrapping_add(self.ahead_ns()).max(self.pt_ns());
        self.pt_ns.store(pt_ns, Ordering::Relaxed);
        ApplyPosition { pt_ns, term: self.term(), lsn: self.lsn() + 1 }
    }

    /// Takes the lsn of `at`: the operation with this position has changed something.
    #[inline]
    pub fn take(&self, at: ApplyPosition) {
        debug_assert_eq!(at.lsn, self.lsn() + 1, "the shard is held from `next` on");
        self.lsn.store(at.lsn, Ordering::Relaxed);
    }

    /// The time that a record must carry; none if it follows from the frame's time.
    #[must_use]
    #[inline]
    pub fn time_beside(&self, frame_ns: u64, at: ApplyPosition) -> Option<u64> {
        (frame_ns.wrapping_add(self.ahead_ns()) != at.pt_ns).then_some(at.pt_ns)
    }

    /// Whether a copy takes this record: the copy follows the term, and the record is its next.
    #[must_use]
    #[inline]
    pub fn accepts(&self, term: Term, lsn: u64) -> bool {
        let follows = packed(term, HeaderState::Follows);
        self.term_and_state.load(Ordering::Acquire) == follows && self.lsn() + 1 == lsn
    }

    /// The time of a record in a frame with time `frame_ns`.
    #[must_use]
    #[inline]
    pub fn time_of(&self, frame_ns: u64, carried_ns: Option<u64>) -> u64 {
        carried_ns.unwrap_or_else(|| frame_ns.wrapping_add(self.ahead_ns()))
    }

    /// The time by which the items of the partition expire: never later than that of its primary,
    /// and never before the newest record's. 0 if there is no copy. The caller holds a shard of the
    /// partition. `known` is the term of the newest primary that the node knows of, and `clock_ns`
    /// returns the newest reading of that primary's monotonic clock; 0 for none.
    #[must_use]
    pub fn items_ns(
        &self,
        now: NodeTime,
        rules: Rules,
        known: Option<Term>,
        clock_ns: impl FnOnce() -> u64,
    ) -> u64 {
        if rules.lack(Bug::SweepByWall) {
            return now.wall_ns;
        }
        // The header is open only as long as its offset is to the clock of its term's primary.
        let is_known = known == Some(self.term()) || rules.lack(Bug::SweepByMapPrimary);
        let reading_ns = match self.state() {
            HeaderState::Serves => now.mono_ns,
            HeaderState::Follows if is_known => clock_ns(),
            HeaderState::Follows | HeaderState::Slow | HeaderState::None => 0,
        };
        match reading_ns {
            0 => self.pt_ns(),
            _ => self.pt_ns().max(reading_ns.wrapping_add(self.ahead_ns())),
        }
    }

    /// Records that a record was installed.
    #[inline]
    pub fn installed(&self, lsn: u64, pt_ns: u64) {
        self.lsn.store(lsn, Ordering::Relaxed);
        self.pt_ns.store(pt_ns.max(self.pt_ns()), Ordering::Relaxed);
    }

    /// Closes the header: no batch that begins afterwards is served from it. `pass` waits for
    /// batches that began before, by taking the lock of each shard of the partition once; it does
    /// nothing if the caller holds the first of them. Returns the state before.
    pub fn close(&self, pass: impl FnOnce()) -> HeaderState {
        let state = self.state();
        let closed = packed(self.term(), HeaderState::Slow);
        self.term_and_state.store(closed, Ordering::Relaxed);
        if matches!(state, HeaderState::Follows | HeaderState::Serves) {
            pass();
        }
        state
    }

    /// Opens the header: batches may do the work of `state`.
    pub fn open(&self, state: HeaderState) {
        self.term_and_state.store(packed(self.term(), state), Ordering::Release);
    }

    /// Sets the term, at most [`TERM_MAX`]: maps and frames with a greater one are refused.
    pub(super) fn set_term(&self, term: Term) {
        debug_assert!(term.0 <= TERM_MAX, "maps and frames with a greater term are refused");
        self.term_and_state.store(packed(term, self.state()), Ordering::Relaxed);
    }

    pub(super) fn set_lsn(&self, lsn: u64) {
        self.lsn.store(lsn, Ordering::Relaxed);
    }

    pub(super) fn set_time(&self, pt_ns: u64, ahead_ns: u64) {
        self.pt_ns.store(pt_ns, Ordering::Relaxed);
        self.ahead_ns.store(ahead_ns, Ordering::Relaxed);
    }

    pub(super) fn set_set(&self, set: SetIndex) {
        self.set.store(set.0, Ordering::Relaxed);
    }

    pub(super) fn begin_generation(&self) {
        self.generation.store(self.generation().wrapping_add(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mono_ns: u64) -> NodeTime {
        NodeTime { mono_ns, wall_ns: 0 }
    }

    fn serving() -> PartitionHeader {
        let header = PartitionHeader::default();
        header.set_term(Term(3));
        header.set_lsn(7);
        header.set_time(1050, 1000);
        header.open(HeaderState::Serves);
        header
    }

    #[test]
    fn header_is_half_a_cache_line() {
        assert_eq!((size_of::<PartitionHeader>(), align_of::<PartitionHeader>()), (32, 32));
    }

    #[test]
    fn state_and_term_share_a_word() {
        let states =
            [HeaderState::None, HeaderState::Follows, HeaderState::Serves, HeaderState::Slow];
        let header = PartitionHeader::default();
        for state in states {
            header.open(state);
            for term in [0, 1, 3, TERM_MAX].map(Term) {
                header.set_term(term);
                assert_eq!((header.state(), header.term()), (state, term));
            }
        }
        header.open(HeaderState::Follows);
        assert!(header.accepts(Term(TERM_MAX), 1) && !header.accepts(Term(TERM_MAX - 1), 1));
        header.close(|| ());
        assert_eq!((header.state(), header.term()), (HeaderState::Slow, Term(TERM_MAX)));
        assert!(!header.accepts(Term(TERM_MAX), 1));
    }

    #[test]
    fn header_gives_lsns_while_it_serves() {
        let header = serving();
        let first = ApplyPosition { pt_ns: 1100, term: Term(3), lsn: 8 };
        assert_eq!(header.next(at(100)), Some(first));
        assert_eq!(header.next(at(100)), Some(first), "what changes nothing takes no number");
        header.take(first);
        assert_eq!(header.next(at(100)), Some(ApplyPosition { lsn: 9, ..first }));
        let mut passed = false;
        assert_eq!(header.close(|| passed = true), HeaderState::Serves);
        assert!(passed);
        assert_eq!(header.next(at(100)), None);
        assert_eq!(header.close(|| unreachable!()), HeaderState::Slow);
    }

    #[test]
    fn slow_thread_turns_no_time_back() {
        let header = serving();
        for (mono_ns, pt_ns) in [(20, 1050), (90, 1090), (60, 1090), (91, 1091)] {
            let next = header.next(at(mono_ns)).expect("it serves");
            assert_eq!(next.pt_ns, pt_ns, "{mono_ns}");
            let carried = header.time_beside(mono_ns, next);
            assert_eq!(carried.is_some(), mono_ns + 1000 != pt_ns);
            assert_eq!(header.time_of(mono_ns, carried), pt_ns);
        }
    }

    #[test]
    fn items_expire_by_the_clock_of_the_terms_primary() {
        let header = serving();
        let now = NodeTime { mono_ns: 70, wall_ns: 5 };
        let time = |known, clock_ns| header.items_ns(now, Rules::default(), known, || clock_ns);
        assert_eq!(time(None, 0), 1070, "this node's");
        header.open(HeaderState::Follows);
        assert_eq!(time(Some(Term(3)), 90), 1090, "the primary's");
        assert_eq!(time(Some(Term(3)), 20), 1050, "not before the newest record");
        assert_eq!(time(Some(Term(3)), 0), 1050, "its clock is not known");
        assert_eq!((time(Some(Term(2)), 90), time(None, 90)), (1050, 1050), "of another term");
        for state in [HeaderState::Slow, HeaderState::None] {
            header.open(state);
            assert_eq!(time(Some(Term(3)), 90), 1050, "the offset may change meanwhile");
        }
        assert_eq!(PartitionHeader::default().items_ns(now, Rules::default(), None, || 90), 0);
    }

    #[test]
    fn copy_takes_the_next_record_of_its_term_only() {
        let header = serving();
        assert!(!header.accepts(Term(3), 8));
        header.open(HeaderState::Follows);
        assert!(header.accepts(Term(3), 8));
        assert!(!header.accepts(Term(2), 8) && !header.accepts(Term(4), 8));
        assert!(!header.accepts(Term(3), 7) && !header.accepts(Term(3), 9));
        header.installed(8, 1040);
        assert_eq!((header.lsn(), header.pt_ns()), (8, 1050));
    }
}
