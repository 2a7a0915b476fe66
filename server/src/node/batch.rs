//! Operations on open headers, with the records of what they change.
//!
//! Here: one operation under its shard's lock, the records of a batch, the positions that its replies need. Not here: what
//! the operations are (`session`, `fast`), whose they are and where replies wait (`router`).
//!
//! A batch holds its shards from its first operation until its records are appended, its positions noted and its results
//! logged: a takeover, a piece of a copy or a resend sees all of that or nothing.

use std::hint::cold_path;
use std::sync::Arc;

use arrayvec::ArrayVec;
use cluster::dedup_log::{CopyGeneration, DedupLog};
use cluster::frames::{KeyState, Record, RecordResult, RecordsWriter};
use cluster::parked_reply::Need;
use cluster::replica::ApplyPosition;
use cluster::replica_set::{LINKS_MAX, ReplicaSet};
use cluster::{LinkIndex, OpStreamId};
use engine::{Engine, ItemMark};

use super::links::{Links, PeerLink};
use super::replicas::Replicas;
use super::serving::{ServedOp, Serving};
use crate::shards::BATCH_SHARDS_MAX;

/// The links of a node as a worker knows them, and those that it has appended to since it sent last.
#[derive(Default)]
pub(crate) struct LinkCache {
    generation: u64,
    links: Vec<Option<Arc<PeerLink>>>,
    touched: Vec<LinkIndex>,
}

impl LinkCache {
    /// Takes note of links that came or went. Once a round.
    pub(crate) fn refresh(&mut self, links: &Links) {
        let generation = links.generation();
        if generation != self.generation {
            self.generation = generation;
            self.links.clear();
        }
    }

    /// A link.
    #[inline]
    pub(crate) fn get(&mut self, links: &Links, index: LinkIndex) -> Option<&Arc<PeerLink>> {
        let place = usize::from(index.0);
        if self.links.get(place).is_none_or(Option::is_none) {
            self.fetch(links, index);
        }
        self.links[place].as_ref()
    }

    #[cold]
    fn fetch(&mut self, links: &Links, index: LinkIndex) {
        let place = usize::from(index.0);
        if self.links.len() <= place {
            self.links.resize_with(place + 1, || None);
        }
        self.links[place] = links.get(index);
    }

    /// Whether the streams to all copies of a set take one more record.
    #[inline]
    pub(crate) fn may_append(&mut self, links: &Links, set: ReplicaSet) -> bool {
        set.links().iter().all(|link| self.get(links, *link).is_some_and(|link| !link.is_full()))
    }

    /// Whether a link that was used lately has so much to acknowledge that clients should not be read.
    pub(crate) fn is_any_over_half(&self) -> bool {
        self.links.iter().flatten().any(|link| link.is_over_half())
    }

    /// Something was appended to a link: it is to be sent at the end of the round.
    pub(crate) fn touch(&mut self, index: LinkIndex) {
        if !self.touched.contains(&index) {
            self.touched.push(index);
        }
    }

    /// Sends what was appended.
    pub(crate) fn flush(&mut self, links: &Links, now_ns: u64) {
        while let Some(index) = self.touched.pop() {
            if let Some(link) = self.get(links, index) {
                link.flush(now_ns);
            }
        }
    }
}

/// What an operation did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchChange {
    Nothing,
    /// The item is a bare count, of the operation's own cas unique.
    Count(u64),
    /// The item lies at the end of the recorder's memory.
    Item,
    Deleted,
}

/// Whose operation it is: what its record and its entry in the log say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpId {
    pub(crate) stream: OpStreamId,
    /// The number that places are added to, and what the lane is done with.
    pub(crate) first: u64,
    pub(crate) done: u64,
    pub(crate) number: u64,
}

/// An operation of the batch.
pub(crate) struct BatchOp {
    pub(crate) hash: u64,
    pub(crate) set: ReplicaSet,
    pub(crate) at: ApplyPosition,
    /// It has made a record.
    pub(crate) is_changed: bool,
    name: Option<OpId>,
    result: BatchOpResult,
}

#[derive(Debug, Clone, Copy)]
enum BatchOpResult {
    None,
    Number(u64),
    /// Bytes of the output.
    Text(u32, u32),
}

/// The records of one batch. A worker has one, and it keeps its memory.
#[derive(Default)]
pub(crate) struct Recorder {
    rows: ArrayVec<BatchOp, BATCH_SHARDS_MAX>,
    links: Vec<LinkRecords>,
    state: Vec<u8>,
    /// Some operation's partition has other copies.
    has_copies: bool,
    /// What the last operation changed.
    change: Option<(BatchChange, BatchOpResult)>,
}

struct LinkRecords {
    link: LinkIndex,
    writer: RecordsWriter,
    section: Option<(OpStreamId, u64)>,
    is_used: bool,
    /// Where the batch ends in the link's stream.
    end: u64,
}

/// How much an operation may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touches {
    /// Nothing that other copies must know.
    Nothing,
    /// The number of its key's item.
    Count,
    /// Anything of its key's item.
    Item,
}

impl Recorder {
    /// Begins a batch.
    pub(crate) fn begin(&mut self) {
        self.rows.clear();
        self.has_copies = false;
        self.links.iter_mut().for_each(|records| records.is_used = false);
    }

    /// Keeps the reply of the operation that was done last, and made no record, for whoever sends it again.
    #[inline]
    pub(crate) fn keep(&mut self, name: OpId) {
        if let Some(row) = self.rows.last_mut() {
            row.name = Some(name);
        }
    }

    /// Whether any of the operations has to be known elsewhere.
    pub(crate) fn has_copies(&self) -> bool {
        self.has_copies
    }

    /// The operations that were done, in order.
    pub(crate) fn rows(&self) -> &[BatchOp] {
        &self.rows
    }

    /// Does an operation on a key whose shard is held: `answer` does it and appends its reply to `out`; false: it is to go the long
    /// way. If it has changed something, `name` gives its name for the record, and [`Recorder::record`] is to be called.
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
            // A count that was done has the operation's unique number.
            Touches::Nothing | Touches::Count => None,
            Touches::Item => Some(engine.mark_before_change(hash, key)),
        };
        let is_answered = engine.with_unique(unique, |engine| answer(engine, out));
        let change = match before {
            Some(before) => self.change(engine, (key, hash), before, unique),
            None if touches == Touches::Count && is_answered => {
                self.change_of_count(engine, (key, hash), unique)
            }
            None => BatchChange::Nothing,
        };
        if change == BatchChange::Nothing {
            // That nothing was to be done may not be true any more at a node without a lease: the long way asks the copies.
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

    /// Writes the record of the operation that was done last, and changed something. `name`: whose it is; none: it has no
    /// result that is to be kept.
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

    /// Ends a batch whose shards are still held: appends its records, notes their positions and logs the results. `out` is what
    /// the replies were appended to.
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
            let header = serving.header(row.hash);
            for (slot, &link) in row.set.links().iter().enumerate() {
                if let Some(records) = self.links.iter().find(|records| records.link == link) {
                    header.set_position(slot, records.end);
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
            if let Some(log) = copies.logs().log_of(stream) {
                keep_results(&mut log.lock(), serving, rows, out);
            }
        }
    }

    /// The positions that the reply of an operation needs before it is told; called after [`Recorder::finish`].
    #[inline]
    pub(crate) fn needs(
        row: &BatchOp,
        serving: &Serving<'_>,
        (links, cache): (&Links, &mut LinkCache),
    ) -> ArrayVec<Need, LINKS_MAX> {
        let mut needs = ArrayVec::new();
        for (slot, &index) in row.set.mandatory().iter().enumerate() {
            let position = serving.header(row.hash).position(slot);
            let Some(link) = cache.get(links, index) else { continue };
            let is_held = link.acked.get() >= position;
            let may_be_early = || {
                serving.answers_early()
                    && link.age_ns(serving.now().mono_ns) < serving.early_lag_ns()
            };
            if !is_held && !may_be_early() {
                needs.push(Need { link: index, position });
            }
        }
        needs
    }
}

/// How an operation of a batch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchOutcome {
    /// Its reply is there, and there is nothing to record.
    Done,
    /// Its reply is there; it is to be recorded.
    Changed,
    /// It has changed its key, which is to be recorded, but has to go the long way.
    ChangedGeneral,
    /// It has done nothing and has to go the long way.
    General,
}

/// Adds results to the log of their lane.
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
            // What changed nothing is true as long as this node is primary; with other copies they may know better.
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
