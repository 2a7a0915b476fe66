//! Access of a batch to the headers of partitions.
//!
//! Here: the headers with the time of the round, the replica sets, cas uniques. Not here: when a
//! header is open (`cluster::replica`), the records of a batch (`batch`).

use cluster::contact::LastContact;
use cluster::id::Partition;
use cluster::partition_header::{HeaderState, PartitionHeader};
use cluster::record_ends::RecordEnds;
use cluster::replica::{AckMode, ApplyPosition, NodeTime};
use cluster::replica_set::{ReplicaSet, ReplicaSetTable, SetIndex};
use engine::prefetch;

use super::Node;
use super::state_machine::{items_time, unique};

/// The headers of all partitions, for the batches of one round.
#[derive(Clone, Copy)]
pub(crate) struct Serving<'a> {
    headers: &'a [PartitionHeader],
    record_ends: &'a RecordEnds,
    sets: &'a ReplicaSetTable,
    /// A hash shifted right by this many bits gives its partition.
    shift: u32,
    now: NodeTime,
    has_lease: bool,
    /// Copies may be out of reach, and no voter majority can remove them.
    is_cut_off: bool,
    ack: AckMode,
    owner_lag_ns: u64,
}

/// The position and the replica set of an operation that a header admits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServedOp {
    pub(crate) at: ApplyPosition,
    pub(crate) set: ReplicaSet,
}

impl<'a> Serving<'a> {
    /// Returns `None` while no batch may be served from headers.
    pub(crate) fn new(node: &'a Node, contact: LastContact, now: NodeTime) -> Option<Self> {
        let keyspace = node.keyspace()?;
        let headers = keyspace.replicas.headers(contact, now)?;
        let record_ends = keyspace.replicas.record_ends();
        let (sets, has_lease) =
            (keyspace.replicas.set_table(), keyspace.replicas.has_lease(contact, now));
        let shift = u64::BITS - keyspace.bits;
        let (ack, owner_lag_ns) = (node.options.ack, node.options.replicas.owner_lag_ns);
        let is_cut_off = node.paths.is_cut_off();
        Some(Self {
            headers,
            record_ends,
            sets,
            shift,
            now,
            has_lease,
            is_cut_off,
            ack,
            owner_lag_ns,
        })
    }

    /// The time of the round.
    pub(crate) fn now(&self) -> NodeTime {
        self.now
    }

    /// The partition of keys with this hash.
    #[inline]
    pub(crate) fn partition(&self, hash: u64) -> Partition {
        Partition((hash >> self.shift) as u16)
    }

    /// The header of keys with this hash.
    #[inline]
    pub(crate) fn header(&self, hash: u64) -> &'a PartitionHeader {
        &self.headers[(hash >> self.shift) as usize]
    }

    /// The positions of the records of all partitions.
    #[inline]
    pub(crate) fn record_ends(&self) -> &'a RecordEnds {
        self.record_ends
    }

    /// Whether the header of the hash's partition is open to operations.
    #[inline]
    pub(crate) fn may_serve(&self, hash: u64) -> bool {
        self.header(hash).state() == HeaderState::Serves
    }

    /// Prefetches the header of a hash's partition.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch(self.header(hash));
    }

    /// The position of the next operation on a key with this hash, whose shard is held; `None` if
    /// the header does not admit it. A read of a partition with other copies needs a lease.
    #[inline]
    pub(crate) fn next(&self, hash: u64, is_read: bool) -> Option<ServedOp> {
        let header = self.header(hash);
        let at = header.next(self.now)?;
        let index = header.set();
        if index == SetIndex(0) {
            return Some(ServedOp { at, set: ReplicaSet::default() });
        }
        if self.is_cut_off || (is_read && !self.has_lease) {
            return None;
        }
        Some(ServedOp { at, set: self.sets.get(index) })
    }

    /// The time of an operation for the engine.
    #[inline]
    pub(crate) fn time(&self, at: ApplyPosition) -> engine::Now {
        engine::Now { mono: items_time(at.pt_ns), unix_ms: self.now.wall_ns / 1_000_000 }
    }

    /// Whether no other node can have become primary meanwhile.
    pub(crate) fn has_lease(&self) -> bool {
        self.has_lease
    }

    /// Replies that need not wait for copies wait once the oldest byte that a copy lacks is this
    /// old, in nanoseconds.
    pub(crate) fn early_lag_ns(&self) -> u64 {
        self.owner_lag_ns
    }

    /// Whether replies need not wait for copies that are not far behind.
    pub(crate) fn answers_early(&self) -> bool {
        self.ack == AckMode::Owner
    }
}

impl ServedOp {
    /// The cas unique of the operation.
    #[inline]
    pub(crate) fn unique(&self) -> u64 {
        unique(self.at)
    }
}
