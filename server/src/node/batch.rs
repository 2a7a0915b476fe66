//! Operations on the keys of open partitions, with the records of their changes.
//!
//! Here: one operation under its shard's lock, the records of a batch, and in `needs` the positions
//! that its replies need. Not here: the operations themselves (`session`, `fast`), the choice of
//! the owner and parked replies (`router`).
//!
//! A batch holds its shards from its first operation until its records are appended, its positions
//! are noted and its results are logged. A takeover, a chunk of a copy or a resend therefore sees
//! either all of that or nothing.

mod needs;
mod results;

use std::hint::cold_path;

use arrayvec::ArrayVec;
use cluster::frames::{KeyState, LIMIT_BYTES_MAX, Record, RecordResult, RecordsWriter};
use cluster::replica::ApplyPosition;
use cluster::replica_set::ReplicaSet;
use cluster::{LinkIndex, OpStreamId};
use engine::{Engine, ItemMark, LimitCopy};
use protocol::encode_number;

use self::results::{BatchOpResult, keep_results};
use super::link_cache::LinkCache;
use super::links::Links;
use super::replicas::Replicas;
use super::serving::{ServedOp, Serving};
use super::state_machine::unique;
use crate::shards::BATCH_SHARDS_MAX;

/// The change that an operation made to its item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchChange {
    Nothing,
    /// The item is a bare count whose cas unique is the operation's own.
    Count(u64),
    /// The item's encoding is in the recorder's `state`.
    Item,
    /// The item's short form is there, with this many bytes before the policy.
    Limit(usize),
    Deleted,
}

/// The common part of the ids of the operations in a section of records.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpSection {
    pub(crate) stream: OpStreamId,
    /// The number that `place` in a record is relative to.
    pub(crate) first: u64,
    /// The stream is done with all numbers below this one.
    pub(crate) done: u64,
}

/// The section of records without operations, in place of its index.
const NO_OPS: u8 = u8::MAX;

/// Identifies an operation in its record and in the dedup log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpId {
    /// The index of its section in this batch, from [`Recorder::section`].
    pub(crate) section: u8,
    pub(crate) number: u64,
}

/// An operation of the batch.
pub(crate) struct BatchOp {
    pub(crate) hash: u64,
    pub(crate) set: ReplicaSet,
    pub(crate) at: ApplyPosition,
    /// The operation has made a record.
    pub(crate) is_changed: bool,
    name: Option<OpId>,
    result: BatchOpResult,
}

/// The records of one batch. Each worker has one and reuses its memory.
#[derive(Default)]
pub(crate) struct Recorder {
    rows: ArrayVec<BatchOp, BATCH_SHARDS_MAX>,
    sections: ArrayVec<OpSection, BATCH_SHARDS_MAX>,
    links: Vec<LinkRecords>,
    state: Vec<u8>,
    /// A short form as an item, for a link of an older node.
    item: Vec<u8>,
    /// The partition of some operation has other copies.
    has_copies: bool,
    /// The change and the result of the last operation.
    change: Option<(BatchChange, BatchOpResult)>,
}

struct LinkRecords {
    link: LinkIndex,
    writer: RecordsWriter,
    /// The index of the open section, or [`NO_OPS`].
    section: Option<u8>,
    is_used: bool,
    /// The node at the other end takes short forms of limit states.
    takes_limits: bool,
    /// The position in the link's stream at which the batch ends.
    end: u64,
}

impl LinkRecords {
    /// Writes the record of a limit state as that of an item, as older nodes take it. `memory` is
    /// scratch.
    #[cold]
    fn record_item(&mut self, record: &Record<'_>, cas: u64, memory: &mut Vec<u8>) {
        let KeyState::Limit { policy, state } = record.state else { return };
        memory.clear();
        LimitCopy { policy, state }.write_item(cas, memory);
        let item_bytes = memory.len();
        if let RecordResult::Number(number) = record.result {
            encode_number(memory, number);
        }
        let (item, line) = memory.split_at(item_bytes);
        let result = match record.result {
            RecordResult::Number(_) => RecordResult::Bytes(line),
            other => other,
        };
        self.writer.record(&Record { state: KeyState::Item(item), result, ..*record });
    }
}

/// The largest change that an operation may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touches {
    /// Nothing that other copies must record.
    Nothing,
    /// The number in its key's item.
    Count,
    /// The limit state in its key's item, by [`Engine::take_units`].
    State,
    /// Anything in its key's item.
    Item,
}

impl Recorder {
    /// Begins a batch.
    pub(crate) fn begin(&mut self) {
        self.rows.clear();
        self.sections.clear();
        self.has_copies = false;
        self.links.iter_mut().for_each(|records| records.is_used = false);
    }

    /// The index of a section in this batch. Called at most once for an operation.
    #[inline(never)]
    pub(crate) fn section(&mut self, section: OpSection) -> u8 {
        let known = self.sections.iter().position(|known| *known == section);
        let index = known.unwrap_or_else(|| {
            self.sections.push(section);
            self.sections.len() - 1
        });
        index as u8
    }

    /// Lets [`Recorder::finish`] log the reply of the last operation, which made no record.
    #[inline]
    pub(crate) fn keep(&mut self, name: OpId) {
        if let Some(row) = self.rows.last_mut() {
            row.name = Some(name);
        }
    }

    /// Whether the partition of any operation has other copies.
    pub(crate) fn has_copies(&self) -> bool {
        self.has_copies
    }

    /// The operations of the batch, in order.
    pub(crate) fn rows(&self) -> &[BatchOp] {
        &self.rows
    }

    /// Performs an operation on a key whose shard is held. `answer` performs it and appends its
    /// reply to `out`; it returns false if the operation needs the general path. If the outcome is
    /// a change, the caller passes the operation's id to [`Recorder::record`].
    #[inline]
    pub(crate) fn run(
        &mut self,
        serving: &Serving<'_>,
        engine: &mut Engine,
        (key, hash): (&[u8], u64),
        (placed, touches): (ServedOp, Touches),
        out: &mut Vec<u8>,
        answer: impl FnOnce(&mut Engine, &mut Vec<u8>) -> bool,
    ) -> BatchOutcome {
        let unique = placed.unique();
        let start = out.len() as u32;
        if placed.set.is_empty() {
            if !engine.with_unique(unique, |engine| answer(engine, out)) {
                return BatchOutcome::General;
            }
            serving.header(hash).take(placed.at);
            self.push(hash, placed, BatchOpResult::Text(start, out.len() as u32));
            return BatchOutcome::Done;
        }
        self.has_copies = true;
        let before = match touches {
            // A count that has changed has the operation's cas unique, and a take tells what it
            // changed.
            Touches::Nothing | Touches::Count | Touches::State => None,
            Touches::Item => Some(engine.mark_before_change(hash, key)),
        };
        let is_answered = engine.with_unique(unique, |engine| answer(engine, out));
        let change = match before {
            _ if is_answered && let Some(change) = self.change_in_place(engine) => change,
            Some(before) => self.change(engine, (key, hash), before, unique),
            None => match touches {
                Touches::Count if is_answered => self.change_of_count(engine, (key, hash), unique),
                Touches::State => self.change_of_state(engine, (key, hash), unique),
                _ => BatchChange::Nothing,
            },
        };
        if change == BatchChange::Nothing {
            // A node without a lease may be stale, so a result without a change may be wrong. The
            // general path asks the copies.
            if !is_answered || !serving.has_lease() {
                out.truncate(start as usize);
                return BatchOutcome::General;
            }
            self.push(hash, placed, BatchOpResult::Text(start, out.len() as u32));
            return BatchOutcome::Done;
        }
        serving.header(hash).take(placed.at);
        self.push(hash, placed, BatchOpResult::None);
        let result = match (is_answered, change, touches) {
            (false, ..) => BatchOpResult::None,
            (true, BatchChange::Count(count), Touches::Count) => BatchOpResult::Number(count),
            (true, BatchChange::Limit(_), _) => BatchOpResult::of_reply(out, start),
            _ => BatchOpResult::Text(start, out.len() as u32),
        };
        self.change = Some((change, result));
        if is_answered { BatchOutcome::Changed } else { BatchOutcome::ChangedGeneral }
    }

    fn push(&mut self, hash: u64, ServedOp { at, set }: ServedOp, result: BatchOpResult) {
        self.rows.push(BatchOp { hash, set, at, is_changed: false, name: None, result });
    }

    /// The change of an operation that changed its item in place.
    #[inline]
    fn change_in_place(&mut self, engine: &Engine) -> Option<BatchChange> {
        match engine.bare_count_changed() {
            Some(count) => Some(BatchChange::Count(count)),
            None => self.copy_in_place(engine),
        }
    }

    /// [`Recorder::change_in_place`] of any item but a bare count, which needs none of these steps.
    #[inline(never)]
    fn copy_in_place(&mut self, engine: &Engine) -> Option<BatchChange> {
        self.state.clear();
        if let Some(state_bytes) = engine.copy_of_limit(LIMIT_BYTES_MAX, &mut self.state) {
            return Some(BatchChange::Limit(state_bytes));
        }
        engine.copy_of_changed(&mut self.state).then_some(BatchChange::Item)
    }

    #[inline]
    fn change_of_count(
        &mut self,
        engine: &mut Engine,
        (key, hash): (&[u8], u64),
        unique: u64,
    ) -> BatchChange {
        if let Some(count) = engine.bare_count(hash, key, unique) {
            return BatchChange::Count(count);
        }
        cold_path();
        if engine.mark_of(hash, key).is_none_or(|mark| mark.cas() != unique) {
            return BatchChange::Nothing;
        }
        self.copy(engine, (key, hash))
    }

    /// The change of a take that [`Recorder::change_in_place`] does not show.
    fn change_of_state(
        &mut self,
        engine: &mut Engine,
        (key, hash): (&[u8], u64),
        unique: u64,
    ) -> BatchChange {
        match engine.mark_before_general() {
            Some(before) => self.change(engine, (key, hash), before, unique),
            None if engine.is_change_unplaced() => self.copy(engine, (key, hash)),
            None => BatchChange::Nothing,
        }
    }

    fn copy(&mut self, engine: &mut Engine, (key, hash): (&[u8], u64)) -> BatchChange {
        self.state.clear();
        if engine.copy_of(hash, key, &mut self.state) {
            BatchChange::Item
        } else {
            BatchChange::Deleted
        }
    }

    #[inline]
    fn change(
        &mut self,
        engine: &mut Engine,
        (key, hash): (&[u8], u64),
        before: Option<ItemMark>,
        unique: u64,
    ) -> BatchChange {
        let after = engine.mark_of(hash, key);
        if before == after {
            return BatchChange::Nothing;
        }
        if after.is_none() {
            return BatchChange::Deleted;
        }
        if let Some(count) = engine.bare_count(hash, key, unique) {
            return BatchChange::Count(count);
        }
        self.copy(engine, (key, hash))
    }

    /// Writes the record of the last operation, which changed its item. Without a `name` the record
    /// has no result for the dedup log.
    #[inline]
    pub(crate) fn record(
        &mut self,
        serving: &Serving<'_>,
        (links, cache): (&Links, &mut LinkCache),
        key: &[u8],
        name: Option<OpId>,
        out: &[u8],
    ) {
        let Some((change, result)) = self.change.take() else { return };
        let Some(row) = self.rows.last_mut() else { return };
        row.is_changed = true;
        let name = name.filter(|_| !matches!(result, BatchOpResult::None));
        (row.name, row.result) = (name, result);
        let frame_ns = serving.now().mono_ns;
        let record = Record {
            partition: serving.partition(row.hash),
            place: name.map_or(0, |name| {
                (name.number - self.sections[usize::from(name.section)].first) as u16
            }),
            term: row.at.term,
            lsn: row.at.lsn,
            pt_ns: serving.header(row.hash).time_beside(frame_ns, row.at),
            key,
            state: match change {
                BatchChange::Count(count) => KeyState::Counter(count),
                BatchChange::Item => KeyState::Item(&self.state),
                BatchChange::Limit(bytes) => {
                    let LimitCopy { policy, state } = LimitCopy::of(&self.state, bytes);
                    KeyState::Limit { policy, state }
                }
                BatchChange::Deleted => KeyState::Deleted,
                BatchChange::Nothing => KeyState::Unchanged,
            },
            result: result.in_record(out),
        };
        for &link in row.set.links() {
            let records = records_of(&mut self.links, link);
            if !records.is_used {
                records.is_used = true;
                records.section = None;
                let link = cache.get(links, link);
                records.takes_limits = link.is_some_and(|link| link.takes_limit_states());
                records.writer.begin(frame_ns);
            }
            let section = name.map_or(NO_OPS, |name| name.section);
            if records.section != Some(section) {
                records.section = Some(section);
                let section = self.sections.get(usize::from(section)).copied();
                let OpSection { stream, first, done } = section.unwrap_or_default();
                records.writer.section(stream, first, done);
            }
            if matches!(record.state, KeyState::Limit { .. }) && !records.takes_limits {
                records.record_item(&record, unique(row.at), &mut self.item);
                continue;
            }
            records.writer.record(&record);
        }
    }

    /// Ends a batch whose shards are still held: appends its records, notes their positions and
    /// logs the results. `out` holds the replies.
    pub(crate) fn finish(
        &mut self,
        serving: &Serving<'_>,
        (links, cache): (&Links, &mut LinkCache),
        copies: &Replicas,
        out: &[u8],
    ) {
        let now_ns = serving.now().mono_ns;
        for records in self.links.iter_mut().filter(|records| records.is_used) {
            let Some(link) = cache.get(links, records.link) else { continue };
            records.end = link.append(now_ns, records.writer.finish());
            cache.touch(records.link);
        }
        for row in self.rows.iter().filter(|row| row.is_changed) {
            let partition = serving.partition(row.hash);
            for (slot, &link) in row.set.links().iter().enumerate() {
                if let Some(records) = self.links.iter().find(|records| records.link == link) {
                    serving.record_ends().set(partition, slot, records.end);
                }
            }
        }
        let mut rest = &self.rows[..];
        while let Some(section) = rest.iter().find_map(|row| Some(row.name?.section)) {
            let is_other = |row: &BatchOp| row.name.is_some_and(|name| name.section != section);
            let (rows, others) =
                rest.split_at(rest.iter().position(is_other).unwrap_or(rest.len()));
            rest = others;
            if let Ok(log) = copies.logs().log_of(self.sections[usize::from(section)].stream) {
                keep_results(&mut log.lock(), serving, rows, out);
            }
        }
    }
}

/// The outcome of an operation of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchOutcome {
    /// The reply is written, and there is nothing to record.
    Done,
    /// The reply is written; the change is to be recorded.
    Changed,
    /// The operation has changed its key, which is to be recorded, but needs the general path for
    /// its reply.
    ChangedGeneral,
    /// The operation has done nothing and needs the general path.
    General,
}

fn records_of(all: &mut Vec<LinkRecords>, link: LinkIndex) -> &mut LinkRecords {
    let place = all.iter().position(|records| records.link == link).unwrap_or_else(|| {
        let (writer, section) = (RecordsWriter::default(), None);
        let (is_used, takes_limits) = (false, false);
        all.push(LinkRecords { link, writer, section, is_used, takes_limits, end: 0 });
        all.len() - 1
    });
    &mut all[place]
}
