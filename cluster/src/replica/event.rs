//! The inputs, outputs and environment of a copy.

use bytes::Bytes;

use crate::dedup_log::CopyGeneration;
use crate::frames::{ChunkWriter, KeyState, RecordResult};
use crate::id::{CopyId, LinkIndex, OpStreamId, Partition, Term};
use crate::map::command::MapChange;
use crate::partition_header::PartitionHeader;
use crate::position::{ApplyPosition, NodeTime};
use crate::record_ends::RecordEnds;
use crate::replica_set::{ReplicaSet, SetIndex};
use crate::route::{Refusal, Route};

/// The moment at which an operation is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckMode {
    /// When every mandatory copy holds the change.
    Replica,
    /// At once, while the backups are at most `owner_lag_ns` behind.
    Owner,
}

/// The reason for opening the parked batches of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenCause {
    /// A mandatory copy refused the records of this term from a position on. The operations are
    /// sent again.
    Refused {
        /// The term.
        term: Term,
        /// The link to the copy.
        link: LinkIndex,
        /// The position where the first refused frame ends.
        from: u64,
    },
    /// This node no longer serves the partition in terms lower than `below`. The operations are
    /// sent again.
    Deposed {
        /// The newer term.
        below: Term,
    },
    /// A copy is no longer mandatory. The operations no longer need its link.
    Removed {
        /// The link to the copy.
        link: LinkIndex,
        /// Later positions belong to another copy on that node.
        up_to: u64,
    },
}

/// An event of a partition that opens parked batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// The partition.
    pub partition: Partition,
    /// The cause.
    pub cause: OpenCause,
}

/// An action for the node, to be carried out in order once the header is open again. `O` is a held
/// operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaEvent<O> {
    /// Propose a change of the map to the controller.
    Ask(MapChange),
    /// Put the opening into the inbox of every worker, before the acknowledgement that came with it
    /// is stored.
    Open(Opening),
    /// Do a held operation, after looking it up in the dedup log.
    Perform(O),
    /// A held operation belongs to another primary. It was not done.
    Refer(O, Option<Route>),
    /// A held operation was not done.
    Refuse(O, Refusal),
}

/// The decision on an operation that its header does not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Do the operation: the header serves it now.
    Perform,
    /// [Hold](super::Replica::hold) the operation.
    Hold,
    /// The operation belongs to another primary.
    Refer(Option<Route>),
    /// Refuse the operation.
    Refuse(Refusal),
}

/// The keys of one copy, and their meaning.
///
/// Every decision must follow from the state, the time argument and the operation, never from a
/// clock or from randomness.
pub trait StateMachine {
    /// Sets a key to the primary's state. `at` is the record's position, which determines a
    /// counter's cas unique.
    fn install(&mut self, at: ApplyPosition, key: &[u8], state: &KeyState<'_>);

    /// Calls `each` with about `bytes_max` bytes of keys and states, from `cursor` on; none starts
    /// at the first key. Returns the next cursor; none at the end.
    ///
    /// A key that exists from the first call to the last must be included. A key that is added,
    /// removed or changed meanwhile need not be. A counter whose cas unique does not match `at` is
    /// exported as a whole item.
    fn export(
        &mut self,
        at: ApplyPosition,
        cursor: Option<&[u8]>,
        bytes_max: usize,
        each: &mut dyn FnMut(&[u8], &KeyState<'_>),
    ) -> Option<Bytes>;

    /// Removes all keys.
    fn clear(&mut self);
}

/// The links, sets and logs of the node.
pub trait Environment {
    /// The link for a partition's records to this copy's node and incarnation. None if they were
    /// never connected.
    fn link_to(&self, copy: CopyId, partition: Partition) -> Option<LinkIndex>;

    /// Appends a frame to a link's stream. Returns the position where it ends.
    fn append(
        &mut self,
        link: LinkIndex,
        now: NodeTime,
        write: &mut dyn FnMut(&mut Vec<u8>),
    ) -> u64;

    /// The acknowledged position of a link's stream. It is stored only after the refusals of the
    /// same ack were processed.
    fn acked(&self, link: LinkIndex) -> u64;

    /// The position where a link's stream ends.
    fn end(&self, link: LinkIndex) -> u64;

    /// The unacknowledged bytes of a link's stream, in quarters of its capacity.
    fn quarters(&self, link: LinkIndex) -> usize;

    /// The time without an acknowledgement on a link's stream while bytes were outstanding.
    fn silence_ns(&self, link: LinkIndex, now: NodeTime) -> u64;

    /// The newest reading of the monotonic clock of a node's incarnation that has arrived; 0 for
    /// none.
    fn peer_time_ns(&self, copy: CopyId) -> u64;

    /// The row of a set, counted for one more partition. None if the table is full.
    fn acquire_set(&mut self, set: ReplicaSet) -> Option<SetIndex>;

    /// Counts one partition less that refers to the row.
    fn release_set(&mut self, index: SetIndex);

    /// The set in a row.
    fn set(&self, index: SetIndex) -> ReplicaSet;

    /// Writes results into a chunk; see [`DedupLogs::export`](crate::dedup_log::DedupLogs::export).
    fn export_results(
        &mut self,
        copy: CopyGeneration,
        from: Option<(OpStreamId, u64)>,
        bytes_max: usize,
        chunk: &mut ChunkWriter<'_>,
    ) -> Option<(OpStreamId, u64)>;

    /// Records the done number of an op stream, and a result of it if given.
    fn import_result(
        &mut self,
        stream: OpStreamId,
        done: u64,
        result: Option<(u64, CopyGeneration, RecordResult<'_>)>,
    );
}

/// The arguments of a call. The caller has closed the header; the call opens it before it returns.
pub struct CallContext<'a, M, N, O> {
    /// The present time.
    pub now: NodeTime,
    /// The header of the partition.
    pub header: &'a PartitionHeader,
    /// The positions of the records of all partitions.
    pub record_ends: &'a RecordEnds,
    /// The keys of the copy.
    pub state_machine: &'a mut M,
    /// The node.
    pub node: &'a mut N,
    /// The actions for the node.
    pub events: &'a mut Vec<ReplicaEvent<O>>,
}
