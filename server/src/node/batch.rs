//! Operations on the keys of open partitions, with the records of their changes.
//!
//! Here: one operation under its shard's lock, the records of a batch, the positions that its
//! replies need. Not here: the operations themselves (`session`, `fast`), the choice of the owner
//! and parked replies (`router`).
//!
//! A batch holds its shards from its first operation until its records are appended, its positions
//! are noted and its results are logged. A takeover, a chunk of a copy or a resend therefore sees
//! either all of that or nothing.

use std::hint::cold_path;

use arrayvec::ArrayVec;
use cluster::dedup_log::{CopyGeneration, DedupLog};
use cluster::frames::{KeyState, Record, RecordResult, RecordsWriter};
use cluster::parked_reply::{NEEDS_MAX, Need};
use cluster::replica::ApplyPosition;
use cluster::replica_set::{LINKS_MAX, ReplicaSet};
use cluster::{LinkIndex, OpStreamId};
use engine::{Engine, ItemMark};

use super::link_cache::LinkCache;
use super::links::Links;
use super::replicas::Replicas;
use super::serving::{ServedOp, Serving};
use crate::shards::BATCH_SHARDS_MAX;

/// The needs of the replies of a batch.
pub(crate) type Needs = ArrayVec<ArrayVec<Need, LINKS_MAX>, BATCH_SHARDS_MAX>;

/// The change that an operation made to its item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchChange {
    Nothing,
    /// The item is a bare count whose cas unique is the operation's own.
    Count(u64),
    /// The item's encoding is in the recorder's `state`.
    Item,
    Deleted,
}

/// Identifies an operation in its record and in the dedup log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpId {
    pub(crate) stream: OpStreamId,
    /// The number that `place` in a record is relative to.
    pub(crate) first: u64,
    /// The stream is done with all numbers below this one.
    pub(crate) done: u64,
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

#[derive(Debug, Clone, Copy)]
enum BatchOpResult {
    None,
    Number(u64),
    /// A range of bytes in the output.
    Text(u32, u32),
}

/// The records of one batch. Each worker has one and reuses its memory.
#[derive(Default)]
pub(crate) struct Recorder {
    rows: ArrayVec<BatchOp, BATCH_SHARDS_MAX>,
    links: Vec<LinkRecords>,
    state: Vec<u8>,
    /// The partition of some operation has other copies.
    has_copies: bool,
    /// The change and the result of the last operation.
    change: Option<(BatchChange, BatchOpResult)>,
}

struct LinkRecords {
    link: LinkIndex,
    writer: RecordsWriter,
    section: Option<(OpStreamId, u64)>,
    is_used: bool,
    /// The position in the link's stream at which the batch ends.
    end: u64,
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
        self.has_copies = false;
        self.links.iter_mut().for_each(|records| records.is_used = false);
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
        if let Some(count) = engine.bare_count_changed() {
            return Some(BatchChange::Count(count));
        }
        self.state.clear();
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
            place: name.map_or(0, |name| (name.number - name.first) as u16),
            term: row.at.term,
            lsn: row.at.lsn,
            pt_ns: serving.header(row.hash).time_beside(frame_ns, row.at),
            key,
            state: match change {
                BatchChange::Count(count) => KeyState::Counter(count),
                BatchChange::Item => KeyState::Item(&self.state),
                BatchChange::Deleted => KeyState::Deleted,
                BatchChange::Nothing => KeyState::Unchanged,
            },
            result: record_result(result, out),
        };
        for &link in row.set.links() {
            let records = records_of(&mut self.links, link);
            if !records.is_used {
                records.is_used = true;
                records.section = None;
                records.writer.begin(frame_ns);
            }
            let section = name.map_or((OpStreamId::default(), 0), |name| (name.stream, name.first));
            if records.section != Some(section) {
                records.section = Some(section);
                records.writer.section(section.0, section.1, name.map_or(0, |name| name.done));
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
        while let Some(from) = rest.iter().position(|row| row.name.is_some()) {
            rest = &rest[from..];
            let stream = rest[0].name.map_or_else(OpStreamId::default, |name| name.stream);
            let is_other = |row: &BatchOp| row.name.is_some_and(|name| name.stream != stream);
            let (rows, others) =
                rest.split_at(rest.iter().position(is_other).unwrap_or(rest.len()));
            rest = others;
            if let Ok(log) = copies.logs().log_of(stream) {
                keep_results(&mut log.lock(), serving, rows, out);
            }
        }
    }

    /// The positions that copies must hold before the replies of the first `count` operations are
    /// sent. Called after [`Recorder::finish`].
    pub(crate) fn needs(
        &self,
        count: usize,
        serving: &Serving<'_>,
        (links, cache): (&Links, &mut LinkCache),
    ) -> Needs {
        let mut known: ArrayVec<(LinkIndex, u64), NEEDS_MAX> = ArrayVec::new();
        let mut suffices_to = |index: LinkIndex| {
            if let Some((_, position)) = known.iter().find(|(link, _)| *link == index) {
                return *position;
            }
            let position = cache.get(links, index).map_or(u64::MAX, |link| {
                let may_be_early = serving.answers_early()
                    && link.age_ns(serving.now().mono_ns) < serving.early_lag_ns();
                if may_be_early { u64::MAX } else { link.acked.get() }
            });
            // A link that finds no room is asked again.
            let _ = known.try_push((index, position));
            position
        };
        let mut needs = Needs::new();
        for row in self.rows.iter().take(count) {
            let mut own = ArrayVec::new();
            let partition = serving.partition(row.hash);
            for (slot, &link) in row.set.mandatory().iter().enumerate() {
                let position = serving.record_ends().get(partition, slot);
                if suffices_to(link) < position {
                    own.push(Need { link, position });
                }
            }
            needs.push(own);
        }
        needs
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

/// Adds results to the log of their stream.
fn keep_results(log: &mut DedupLog, serving: &Serving<'_>, rows: &[BatchOp], out: &[u8]) {
    for row in rows {
        let Some(name) = row.name else { continue };
        let life = serving.header(row.hash).generation();
        let copy = CopyGeneration {
            partition: serving.partition(row.hash),
            generation: life,
            term: row.at.term,
        };
        match row.result {
            // A result without a change holds only while this node is primary: with other copies, a
            // newer primary may decide otherwise.
            BatchOpResult::Text(from, to) if !row.is_changed && !row.set.is_empty() => {
                log.add_unchanged(name.number, copy, &out[from as usize..to as usize]);
            }
            result => log.add(name.number, copy, record_result(result, out)),
        }
    }
}

fn record_result(result: BatchOpResult, out: &[u8]) -> RecordResult<'_> {
    match result {
        BatchOpResult::None => RecordResult::None,
        BatchOpResult::Number(count) => RecordResult::Number(count),
        BatchOpResult::Text(from, to) => RecordResult::Bytes(&out[from as usize..to as usize]),
    }
}

fn records_of(all: &mut Vec<LinkRecords>, link: LinkIndex) -> &mut LinkRecords {
    let place = all.iter().position(|records| records.link == link).unwrap_or_else(|| {
        let writer = RecordsWriter::default();
        all.push(LinkRecords { link, writer, section: None, is_used: false, end: 0 });
        all.len() - 1
    });
    &mut all[place]
}
