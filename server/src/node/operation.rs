//! An operation at its owner: where it came from, and what became of it.
//!
//! Not here: how it is done (`replicas`, `state_machine`), who brings it and who tells its answer (`router`).

use arrayvec::ArrayVec;
use bytes::Bytes;
use cluster::id::{Partition, Term};
use cluster::parked_reply::Need;
use cluster::replica::{Refusal, Route};
use cluster::replica_set::LINKS_MAX;
use cluster::{LinkIndex, OpStreamId};

/// Where the answer to an operation goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpSource {
    /// To the worker itself: it asked its own node.
    Own,
    /// Over this link.
    Link(LinkIndex),
}

/// An operation at its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpRef<'a> {
    /// The worker that answers it.
    pub(crate) worker: u16,
    pub(crate) source: OpSource,
    /// The number of the `Forward` that brought it.
    pub(crate) sending: u64,
    /// Its place in the `Forward`.
    pub(crate) place: u16,
    pub(crate) stream: OpStreamId,
    /// Its number in the lane.
    pub(crate) number: u64,
    pub(crate) partition: Partition,
    /// It may be done in this term only.
    pub(crate) term: Term,
    /// The bits of `frames::op_flags`; the others are a [`OpKind`](super::state_machine::OpKind).
    pub(crate) op_flags: u8,
    /// On this node's monotonic clock: later it is not done.
    pub(crate) deadline_ns: u64,
    /// What its client wrote, or what stands for that.
    pub(crate) line: &'a [u8],
}

/// An operation that is held until its partition is served: an [`OpRef`] with a line of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeldOp {
    pub(crate) worker: u16,
    pub(crate) source: OpSource,
    pub(crate) sending: u64,
    pub(crate) place: u16,
    pub(crate) stream: OpStreamId,
    pub(crate) number: u64,
    pub(crate) partition: Partition,
    pub(crate) term: Term,
    pub(crate) op_flags: u8,
    pub(crate) deadline_ns: u64,
    pub(crate) line: Bytes,
}

/// What became of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Performed {
    /// It was done, now or before, and its reply was appended to the output.
    Done {
        /// The reply is told once these are met; at once if there are none.
        needs: ArrayVec<Need, LINKS_MAX>,
        /// The term in which it was done.
        term: Term,
    },
    /// It is held: it comes back as `WorkerEvent::Perform`, `Refer` or `Refuse`.
    Held,
    /// This node is not primary in that term; who is, as far as it knows. This sending was not done.
    Refer(Option<Route>),
    /// This sending was not done and will not be.
    Refused(Refusal),
}

impl HeldOp {
    /// The operation with its line borrowed.
    pub(crate) fn as_ref(&self) -> OpRef<'_> {
        let Self { worker, source, sending, place, stream, number, .. } = *self;
        let Self { partition, term, op_flags, deadline_ns, .. } = *self;
        OpRef {
            worker,
            source,
            sending,
            place,
            stream,
            number,
            partition,
            term,
            op_flags,
            deadline_ns,
            line: &self.line,
        }
    }
}

impl OpRef<'_> {
    /// The operation with a copy of its line.
    pub(crate) fn to_held(self) -> HeldOp {
        let Self { worker, source, sending, place, stream, number, .. } = self;
        let Self { partition, term, op_flags, deadline_ns, line, .. } = self;
        let line = Bytes::copy_from_slice(line);
        HeldOp {
            worker,
            source,
            sending,
            place,
            stream,
            number,
            partition,
            term,
            op_flags,
            deadline_ns,
            line,
        }
    }
}
