//! All dedup logs of a node, by op stream.
//!
//! Not here: the entries of one log (`super`).

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::{CopyGeneration, DedupLog};
use crate::frames::{ChunkWriter, ExceptionKind};
use crate::id::{Incarnation, NodeId, OpStreamId};
use crate::route::Refusal;
use crate::rules::{Bug, Rules};

/// The reason for not performing the operations of an op stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAdmitted {
    /// The map does not have this incarnation of the stream's node yet. The sender, which has a
    /// newer map, sends the operations again until this node has that map too.
    NotYet,
    /// The map has a later incarnation, or has removed the node: the results of the stream's
    /// operations are forgotten.
    Over,
}

/// The container of a log: the log itself, or a lock that threads share.
pub trait LogCell: From<DedupLog> {
    /// Calls `work` with the log.
    fn read<T>(&self, work: impl FnOnce(&DedupLog) -> T) -> T;
}

impl LogCell for DedupLog {
    fn read<T>(&self, work: impl FnOnce(&DedupLog) -> T) -> T {
        work(self)
    }
}

/// The logs of all op streams that this node has received, and the incarnations of nodes by the
/// map.
#[derive(Debug)]
pub struct DedupLogs<L = DedupLog> {
    logs: BTreeMap<OpStreamId, L>,
    incarnations: BTreeMap<NodeId, Incarnation>,
    /// The last node id that the map assigned.
    last_node: u32,
    rules: Rules,
}

impl<L: LogCell> Default for DedupLogs<L> {
    fn default() -> Self {
        Self::new(Rules::default())
    }
}

impl<L: LogCell> DedupLogs<L> {
    /// An empty collection.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self { logs: BTreeMap::new(), incarnations: BTreeMap::new(), last_node: 0, rules }
    }

    /// Stores the nodes of the map, and the last node id that it assigned. Drops the logs of past
    /// incarnations. A node or an incarnation that is newer than this map keeps its logs; it is
    /// admitted once the map has it.
    pub fn set_incarnations(
        &mut self,
        incarnations: BTreeMap<NodeId, Incarnation>,
        last_node: u32,
    ) {
        self.incarnations = incarnations;
        self.last_node = last_node;
        let incarnations = &self.incarnations;
        self.logs.retain(|stream, _| {
            admit_by_map(incarnations, last_node, *stream) != Err(NotAdmitted::Over)
        });
    }

    /// Checks that the map has this incarnation of the stream's node, so that operations of the
    /// stream may be performed.
    ///
    /// # Errors
    ///
    /// The map does not have it.
    pub fn admit(&self, stream: OpStreamId) -> Result<(), NotAdmitted> {
        if self.rules.lack(Bug::UnseenLaneIsNew) {
            return Ok(());
        }
        admit_by_map(&self.incarnations, self.last_node, stream)
    }

    /// The log of an op stream; created if missing. A server keeps a reference beside each op
    /// stream that it reads or serves, so that a batch does not search for it.
    pub fn log(&mut self, stream: OpStreamId) -> &mut L {
        let rules = self.rules;
        self.logs.entry(stream).or_insert_with(|| DedupLog::new(rules).into())
    }

    /// The log of an op stream, if there is one.
    #[must_use]
    pub fn get(&self, stream: OpStreamId) -> Option<&L> {
        self.logs.get(&stream)
    }

    /// The number below which the op stream sends nothing any more, as far as this node has
    /// received; else 0.
    #[must_use]
    pub fn done(&self, stream: OpStreamId) -> u64 {
        self.logs.get(&stream).map_or(0, |log| log.read(DedupLog::done))
    }

    /// All logs, by op stream.
    pub fn iter(&self) -> impl Iterator<Item = (OpStreamId, &L)> {
        self.logs.iter().map(|(stream, log)| (*stream, log))
    }

    /// Writes the results of a copy into a chunk, from an op stream and number on, until about
    /// `bytes_max` bytes are written. Returns the op stream and number to continue with, none at
    /// the end.
    pub fn export(
        &self,
        copy: CopyGeneration,
        from: Option<(OpStreamId, u64)>,
        bytes_max: usize,
        chunk: &mut ChunkWriter<'_>,
    ) -> Option<(OpStreamId, u64)> {
        let first = from.map_or(OpStreamId::default(), |(stream, _)| stream);
        let mut bytes = 0;
        for (&stream, log) in self.logs.range(first..) {
            let number = from.filter(|(from, _)| *from == stream).map_or(0, |(_, number)| number);
            let mut is_begun = false;
            let next = log.read(|log| {
                log.export(copy, number, |result| {
                    if bytes > bytes_max {
                        return false;
                    }
                    if !is_begun {
                        chunk.stream(stream, log.done());
                        is_begun = true;
                    }
                    chunk.result(result);
                    bytes += 64;
                    true
                })
            });
            if let Some(next) = next {
                return Some((stream, next));
            }
        }
        None
    }

    /// Drops the logs for which `is_kept` returns false.
    pub fn retain(&mut self, mut is_kept: impl FnMut(OpStreamId) -> bool) {
        self.logs.retain(|stream, _| is_kept(*stream));
    }
}

impl From<NotAdmitted> for ExceptionKind {
    fn from(reason: NotAdmitted) -> Self {
        match reason {
            NotAdmitted::NotYet => Self::NotOwner(None),
            NotAdmitted::Over => Self::Refused(Refusal::Stale),
        }
    }
}

fn admit_by_map(
    incarnations: &BTreeMap<NodeId, Incarnation>,
    last_node: u32,
    stream: OpStreamId,
) -> Result<(), NotAdmitted> {
    match incarnations.get(&stream.node) {
        Some(incarnation) => match stream.incarnation.cmp(incarnation) {
            Ordering::Less => Err(NotAdmitted::Over),
            Ordering::Equal => Ok(()),
            Ordering::Greater => Err(NotAdmitted::NotYet),
        },
        None if stream.node.0 > last_node => Err(NotAdmitted::NotYet),
        None => Err(NotAdmitted::Over),
    }
}
