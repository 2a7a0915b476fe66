//! What goes into a copy and what comes out of it.

use bytes::Bytes;

use crate::dedup_log::CopyGeneration;
use crate::frames::{ChunkWriter, KeyState, RecordResult};
use crate::id::{CopyId, Incarnation, NodeId, Partition, Term};
use crate::id::{LinkIndex, OpStreamId};
use crate::map::PartitionEntry;
use crate::map::command::MapChange;
use crate::partition_header::PartitionHeader;
use crate::replica_set::{ReplicaSet, SetIndex};

/// The clocks of a node, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeTime {
    /// Since some origin; never goes back. For timers and deadlines.
    pub mono_ns: u64,
    /// Since 1970, as the node believes; may be wrong, and may jump.
    pub wall_ns: u64,
}

/// A place in the history of a partition. Two copies at the same place hold the same state, for a
/// term has one primary, which numbers its records one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// The term in which the record was made.
    pub term: Term,
    /// Counts the records of the partition, from 1; 0 before the first.
    pub lsn: u64,
}

/// Where operations for a partition go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The term that an operation sent there is stamped with.
    pub term: Term,
    /// The primary in that term.
    pub primary: CopyId,
}

impl PartitionEntry {
    /// Where operations go.
    #[must_use]
    pub fn route(&self) -> Option<Route> {
        self.primary.map(|primary| Route { term: self.term, primary })
    }

    /// The copy on this life of a node, if it holds one.
    #[must_use]
    pub fn copy_on(&self, node: NodeId, incarnation: Incarnation) -> Option<CopyId> {
        self.copies().find(|copy| copy.node == node && copy.incarnation == incarnation)
    }
}

/// When an operation is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckMode {
    /// When every mandatory copy holds it.
    Replica,
    /// At once, while the backups are no more than `owner_lag_ns` behind.
    Owner,
}

/// Why an attempt was not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Its deadline had passed.
    Expired,
    /// The partition is changing its primary and this takes long.
    Moving,
    /// A queue is full.
    Busy,
    /// No contact to the controller for so long that the partition may have been given up.
    Stopped,
    /// The number is below one the lane declared done: a late copy of an old attempt.
    Stale,
    /// The primary, or a copy that has to hold the change, is out of reach.
    Unreachable,
}

/// When, and where in the history, an operation is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApplyPosition {
    /// The partition's time, nanoseconds since 1970; the only time a state may hold.
    pub pt_ns: u64,
    /// The term.
    pub term: Term,
    /// The record that a change will be. With the term it makes a number that is never given twice,
    /// so cas uniques and leases can be made of both.
    pub lsn: u64,
}

/// Why the pieces that have operations of a partition are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenCause {
    /// A mandatory copy did not take the records of this term from a position on: the operations are sent again.
    Refused {
        /// The term.
        term: Term,
        /// The link to the copy.
        link: LinkIndex,
        /// Where the first refused frame ends.
        from: u64,
    },
    /// The partition is not served here any more in the terms below: the operations are sent again.
    Deposed {
        /// The newer term.
        below: Term,
    },
    /// A copy is mandatory no more: the operations need its link no more.
    Removed {
        /// The link to the copy.
        link: LinkIndex,
        /// Positions behind it are about another copy there.
        up_to: u64,
    },
}

/// Something happened to a partition that pieces wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// The partition.
    pub partition: Partition,
    /// What.
    pub cause: OpenCause,
}

/// What is to be carried out, in order, once the header is open again. `O` is a held operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaEvent<O> {
    /// Ask the controller for a change of the map.
    Ask(MapChange),
    /// Put this into the inbox of every worker, before the acknowledgement that came with it is stored.
    Open(Opening),
    /// Do a held operation, after it was looked up.
    Perform(O),
    /// A held operation belongs to another primary; it was not done.
    Refer(O, Option<Route>),
    /// A held operation was not done.
    Refuse(O, Refusal),
}

/// What becomes of an operation that its header does not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It may be done: the header serves it.
    Perform,
    /// It is to be [held](super::Replica::hold).
    Hold,
    /// It belongs to another primary.
    Refer(Option<Route>),
    /// It is not done.
    Refuse(Refusal),
}

/// The keys of one copy, and what they are: only the machine knows.
///
/// Everything it decides must follow from the state, the time and the operation: never from a clock or from chance.
pub trait StateMachine {
    /// Makes the state of a key what it is at the primary. `at` is the record's place, of which a counter's cas unique is made.
    fn install(&mut self, at: ApplyPosition, key: &[u8], state: &KeyState<'_>);

    /// Calls `each` with about `bytes_max` bytes of keys and states, from `cursor` on (none: from the start), and answers where
    /// to go on; none at the end. A key that is there from the first call to the last must be among them; one that comes,
    /// goes or changes meanwhile need not. Of a counter whose cas unique is not that of `at`, it gives a whole item.
    fn export(
        &mut self,
        at: ApplyPosition,
        cursor: Option<&[u8]>,
        bytes_max: usize,
        each: &mut dyn FnMut(&[u8], &KeyState<'_>),
    ) -> Option<Bytes>;

    /// Forgets everything.
    fn clear(&mut self);
}

/// What a copy needs of its node: links, sets of copies and logs.
pub trait Environment {
    /// The link that a partition's records to this copy's node, in this life, go over. None: there was no connection yet.
    fn link_to(&self, copy: CopyId, partition: Partition) -> Option<LinkIndex>;

    /// Appends a frame to a link's stream; answers where it ends.
    fn append(
        &mut self,
        link: LinkIndex,
        now: NodeTime,
        write: &mut dyn FnMut(&mut Vec<u8>),
    ) -> u64;

    /// Up to where a link's stream is acknowledged. It is stored only after the refusals that came with it were dealt with.
    fn acked(&self, link: LinkIndex) -> u64;

    /// Where a link's stream ends.
    fn end(&self, link: LinkIndex) -> u64;

    /// Bytes of a link's stream that are not acknowledged, in quarters of what it may hold.
    fn quarters(&self, link: LinkIndex) -> usize;

    /// For how long a link's stream acknowledged nothing though it should have.
    fn silence_ns(&self, link: LinkIndex, now: NodeTime) -> u64;

    /// The newest time that a node has said, in this life, on its monotonic clock; 0: none.
    fn peer_time_ns(&self, copy: CopyId) -> u64;

    /// The row of a set, for one more partition.
    fn acquire_set(&mut self, set: ReplicaSet) -> Option<SetIndex>;

    /// A partition names a row no more.
    fn release_set(&mut self, index: SetIndex);

    /// A row.
    fn set(&self, index: SetIndex) -> ReplicaSet;

    /// As [`DedupLogs::export`](crate::dedup_log::DedupLogs::export).
    fn export_results(
        &mut self,
        copy: CopyGeneration,
        from: Option<(OpStreamId, u64)>,
        bytes_max: usize,
        chunk: &mut ChunkWriter<'_>,
    ) -> Option<(OpStreamId, u64)>;

    /// Takes note of what a lane is done with, and of a result of it, if one is given.
    fn import_result(
        &mut self,
        stream: OpStreamId,
        done: u64,
        result: Option<(u64, CopyGeneration, RecordResult<'_>)>,
    );
}

/// What a call works with. The caller has closed the header; it is open again when the call returns.
pub struct CallContext<'a, M, N, O> {
    /// When.
    pub now: NodeTime,
    /// The hot line of the partition.
    pub header: &'a PartitionHeader,
    /// The keys of the copy.
    pub state_machine: &'a mut M,
    /// The node.
    pub node: &'a mut N,
    /// What is to be carried out.
    pub events: &'a mut Vec<ReplicaEvent<O>>,
}
