//! Dedup logs: results that are kept until their op stream is done with them. An operation that is
//! sent again is answered from the log and not done again.
//!
//! A node has one log for each op stream, whether results were made here, or arrived with records
//! or with a copy. An entry is only valid for the copy that it came with, so it carries the
//! generation of that copy. The log is read only for operations that were sent before.

mod logs;

pub use self::logs::{DedupLogs, LogCell, NotAdmitted};
use crate::frames::{ExportedResult, RecordResult};
use crate::id::{Partition, Term};
use crate::rules::{Bug, Rules};

/// The most entries outside the index; a lookup scans them one by one.
const UNINDEXED_MAX: usize = 64;
/// The log is not pruned below this number of entries.
const ENTRIES_MIN: usize = 256;

/// A copy and its term, which an entry must match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyGeneration {
    /// The partition.
    pub partition: Partition,
    /// The generation of the copy; see `PartitionHeader::generation`.
    pub generation: u16,
    /// The term.
    pub term: Term,
}

/// The result of looking up an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DedupLookup<'a> {
    /// The log has no result: do the operation.
    New,
    /// The operation was done, with this result.
    Done(RecordResult<'a>),
    /// The op stream is done with this number: refuse the operation.
    Stale,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum DedupEntryKind {
    Number,
    Bytes,
    None,
    /// The operation changed nothing. Its result, as bytes, counts only in its term.
    Unchanged,
}

/// The size is 32 bytes.
#[derive(Debug, Clone, Copy)]
struct DedupEntry {
    number: u64,
    /// The counter's value; or the offset of the bytes, 48 bits, and their length, 16 bits.
    value: u64,
    term: Term,
    partition: Partition,
    generation: u16,
    kind: DedupEntryKind,
}

impl DedupEntry {
    /// The range of its bytes in [`DedupLog::bytes`], if it has bytes.
    #[inline]
    fn range(&self) -> Option<(usize, usize)> {
        let (from, length) = ((self.value >> 16) as usize, (self.value & 0xffff) as usize);
        matches!(self.kind, DedupEntryKind::Bytes | DedupEntryKind::Unchanged)
            .then_some((from, from + length))
    }
}

/// The results of one op stream, in the order of arrival.
#[derive(Debug, Default)]
pub struct DedupLog {
    /// No number below is sent any more.
    done: u64,
    entries: Vec<DedupEntry>,
    bytes: Vec<u8>,
    /// The indexes of the first entries, sorted by number.
    index: Vec<u32>,
    /// The number of entries at which the log is pruned.
    prune_at: usize,
    rules: Rules,
}

impl DedupLog {
    /// An empty log.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Records that the op stream is done with all numbers below `done`.
    #[inline]
    pub fn advance_done(&mut self, done: u64) {
        self.done = self.done.max(done);
    }

    /// No number below is sent any more.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done
    }

    /// The number of results.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no result is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds the result of an operation that made a record.
    #[inline]
    pub fn add(&mut self, number: u64, copy: CopyGeneration, result: RecordResult<'_>) {
        match result {
            RecordResult::Bytes(bytes) => {
                self.add_bytes(number, copy, DedupEntryKind::Bytes, bytes);
            }
            RecordResult::Number(value) => {
                self.prune_if_due();
                self.push(number, copy, DedupEntryKind::Number, value);
            }
            RecordResult::None => {
                self.prune_if_due();
                self.push(number, copy, DedupEntryKind::None, 0);
            }
        }
    }

    /// Adds the result of an operation that changed nothing. Only its primary has the result, and
    /// only for this term.
    pub fn add_unchanged(&mut self, number: u64, copy: CopyGeneration, result: &[u8]) {
        self.add_bytes(number, copy, DedupEntryKind::Unchanged, result);
    }

    fn add_bytes(&mut self, number: u64, copy: CopyGeneration, kind: DedupEntryKind, bytes: &[u8]) {
        self.prune_if_due();
        let value = (self.bytes.len() as u64) << 16 | u64::from(bytes.len() as u16);
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(usize::from(u16::MAX))]);
        self.push(number, copy, kind, value);
    }

    /// Called before the bytes of an entry are added, because pruning moves bytes.
    #[inline]
    fn prune_if_due(&mut self) {
        if self.entries.len() >= self.prune_at {
            self.prune();
        }
    }

    #[inline]
    fn push(&mut self, number: u64, copy: CopyGeneration, kind: DedupEntryKind, value: u64) {
        let CopyGeneration { partition, generation, term } = copy;
        self.entries.push(DedupEntry { number, value, term, partition, generation, kind });
    }

    /// Drops the results that the op stream is done with.
    fn prune(&mut self) {
        let done = if self.rules.lack(Bug::LogDroppedEarly) { self.done + 3 } else { self.done };
        // `bytes` holds the results in the order of `entries`. One `drain` removes the results
        // before that of the first kept entry. A dropped entry behind it leaves its result, which a
        // later prune removes.
        let mut first_kept = None;
        self.entries.retain_mut(|entry| {
            let is_kept = entry.number >= done;
            if is_kept && let Some((from, _)) = entry.range() {
                let removed = *first_kept.get_or_insert(from);
                entry.value -= (removed as u64) << 16;
            }
            is_kept
        });
        let used = self.bytes.len();
        self.bytes.drain(..first_kept.unwrap_or(used));
        // By the bytes before the prune: a log that keeps few of them will need as many again.
        self.bytes.shrink_to(4 * used);
        self.index.clear();
        let least = if self.rules.lack(Bug::LogDroppedEarly) { 8 } else { ENTRIES_MIN };
        self.prune_at = (2 * self.entries.len()).max(least);
    }

    fn result(&self, entry: &DedupEntry) -> RecordResult<'_> {
        match entry.kind {
            DedupEntryKind::Number => RecordResult::Number(entry.value),
            DedupEntryKind::None => RecordResult::None,
            DedupEntryKind::Bytes | DedupEntryKind::Unchanged => {
                let (from, to) = entry.range().unwrap_or_default();
                RecordResult::Bytes(&self.bytes[from..to])
            }
        }
    }

    /// Looks up an operation. Call it at the moment at which the operation would be done.
    pub fn look_up(&mut self, number: u64, copy: CopyGeneration) -> DedupLookup<'_> {
        if number < self.done && !self.rules.lack(Bug::DoneNotRefused) {
            return DedupLookup::Stale;
        }
        if self.rules.lack(Bug::NoDedupe) {
            return DedupLookup::New;
        }
        if self.entries.len() - self.index.len() > UNINDEXED_MAX {
            self.index = (0..self.entries.len() as u32).collect();
            self.index.sort_by_key(|&place| self.entries[place as usize].number);
        }
        let number_at = |place: &u32| self.entries[*place as usize].number;
        let from = self.index.partition_point(|place| number_at(place) < number);
        let indexed = self.index[from..].iter().map(|&place| place as usize);
        let indexed = indexed.take_while(|&place| self.entries[place].number == number);
        let found = indexed
            .chain(self.index.len()..self.entries.len())
            .map(|place| &self.entries[place])
            .find(|entry| entry.number == number && self.is_of(entry, copy));
        found.map_or(DedupLookup::New, |entry| DedupLookup::Done(self.result(entry)))
    }

    fn is_of(&self, entry: &DedupEntry, copy: CopyGeneration) -> bool {
        let is_life = entry.generation == copy.generation || self.rules.lack(Bug::LogSurvivesWipe);
        let is_term = entry.kind != DedupEntryKind::Unchanged
            || entry.term == copy.term
            || self.rules.lack(Bug::UnchangedSurvivesDeposal);
        entry.partition == copy.partition && is_life && is_term
    }

    /// Calls `each` with the results of this copy from number `from` on, in ascending order, until
    /// it returns false. Returns the number of the first result that `each` rejected.
    pub fn export(
        &self,
        copy: CopyGeneration,
        from: u64,
        mut each: impl FnMut(&ExportedResult<'_>) -> bool,
    ) -> Option<u64> {
        let from = from.max(self.done);
        let is_wanted = |entry: &&DedupEntry| {
            entry.number >= from
                && entry.kind != DedupEntryKind::Unchanged
                && self.is_of(entry, copy)
        };
        let mut wanted: Vec<&DedupEntry> = self.entries.iter().filter(is_wanted).collect();
        wanted.sort_by_key(|entry| entry.number);
        wanted.dedup_by_key(|entry| entry.number);
        let refused = wanted.into_iter().find(|entry| {
            !each(&ExportedResult { number: entry.number, result: self.result(entry) })
        });
        refused.map(|entry| entry.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Incarnation, NodeId, OpStreamId};

    fn copy(partition: u16, generation: u16, term: u32) -> CopyGeneration {
        CopyGeneration { partition: Partition(partition), generation, term: Term(term) }
    }

    #[test]
    fn entry_is_32_bytes() {
        assert_eq!(size_of::<DedupEntry>(), 32);
    }

    #[test]
    fn result_counts_for_its_copy_only() {
        let mut log = DedupLog::default();
        log.add(5, copy(1, 0, 3), RecordResult::Number(77));
        log.add(6, copy(1, 0, 3), RecordResult::Bytes(b"STORED"));
        log.add_unchanged(7, copy(1, 0, 3), b"NOT_STORED");
        log.add(8, copy(1, 0, 3), RecordResult::None);
        assert_eq!(log.look_up(5, copy(1, 0, 4)), DedupLookup::Done(RecordResult::Number(77)));
        assert_eq!(
            log.look_up(6, copy(1, 0, 4)),
            DedupLookup::Done(RecordResult::Bytes(b"STORED"))
        );
        assert_eq!(
            log.look_up(7, copy(1, 0, 3)),
            DedupLookup::Done(RecordResult::Bytes(b"NOT_STORED"))
        );
        assert_eq!(log.look_up(8, copy(1, 0, 4)), DedupLookup::Done(RecordResult::None));
        assert_eq!(log.look_up(7, copy(1, 0, 4)), DedupLookup::New, "it ended with its term");
        assert_eq!(log.look_up(5, copy(1, 1, 3)), DedupLookup::New, "its copy was wiped");
        assert_eq!(log.look_up(5, copy(2, 0, 3)), DedupLookup::New);
        log.advance_done(6);
        log.advance_done(2);
        assert_eq!(log.look_up(5, copy(1, 0, 3)), DedupLookup::Stale);
    }

    #[test]
    fn log_keeps_results_until_they_are_done() {
        let mut log = DedupLog::default();
        for number in 1..=10_000_u64 {
            let bytes = number.to_le_bytes();
            let result = if number % 3 == 0 {
                RecordResult::Bytes(&bytes)
            } else {
                RecordResult::Number(number)
            };
            log.add(number, copy((number % 4) as u16, 0, 1), result);
            log.advance_done(number.saturating_sub(50));
            let oldest = number.saturating_sub(50).max(1);
            if number % 7 == 0 {
                for number in oldest..=number {
                    let bytes = number.to_le_bytes();
                    let result = match number % 3 {
                        0 => RecordResult::Bytes(&bytes),
                        _ => RecordResult::Number(number),
                    };
                    let lookup = log.look_up(number, copy((number % 4) as u16, 0, 2));
                    assert_eq!(lookup, DedupLookup::Done(result), "{number}");
                }
            }
        }
        assert!(log.len() < 2 * ENTRIES_MIN, "{}", log.len());
        let mut numbers = Vec::new();
        let next = log.export(copy(3, 0, 1), 0, |result| {
            numbers.push(result.number);
            numbers.len() < 5
        });
        assert_eq!(numbers, [9951, 9955, 9959, 9963, 9967]);
        assert_eq!(next, Some(9967), "the last one was not taken");
    }

    #[test]
    fn logs_end_with_the_incarnation_of_their_node() {
        let stream = |node, incarnation| OpStreamId {
            node: NodeId(node),
            incarnation: Incarnation(incarnation),
            ..OpStreamId::default()
        };
        let mut logs = DedupLogs::<DedupLog>::default();
        logs.set_incarnations([(NodeId(1), Incarnation(4)), (NodeId(2), Incarnation(1))].into(), 2);
        for stream in [stream(1, 4), stream(1, 5), stream(2, 1)] {
            logs.log(stream).advance_done(3);
        }
        for (stream, expected) in [
            (stream(1, 3), Err(NotAdmitted::Over)),
            (stream(1, 4), Ok(())),
            (stream(1, 5), Err(NotAdmitted::NotYet)),
            (stream(3, 1), Err(NotAdmitted::NotYet)),
        ] {
            assert_eq!(logs.admit(stream), expected, "{stream:?}");
        }
        logs.log(stream(3, 1)).advance_done(1);
        logs.set_incarnations([(NodeId(1), Incarnation(5))].into(), 2);
        let left: Vec<_> = logs.iter().map(|(stream, _)| stream).collect();
        assert_eq!(left, [stream(1, 5), stream(3, 1)], "the map does not know node 3 yet");
        assert_eq!(logs.admit(stream(2, 1)), Err(NotAdmitted::Over), "its node was removed");
    }
}
