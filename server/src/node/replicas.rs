//! The replicas on this node, and the access of threads to them.
//!
//! Here: groups of partitions behind one lock each, applying the map's entries, carrying out the
//! events of a replica. In `perform` operations outside batches, in `follow` frames from other
//! copies, in `watch` replicas that wait for something, in `logs` dedup logs, in `destinations`
//! where operations go, in `times` when items expire, in `view` what others see. Not here: the
//! replica itself (`cluster::replica`), its keys (`state_machine`), its access to the node
//! (`environment`), batches on open headers (`batch`).
//!
//! A thread that holds the lock of a group closes the header of a partition before it changes the
//! partition, so that batches leave the partition alone, and opens the header before it releases
//! the lock. Batches never take that lock.

mod destinations;
mod follow;
mod logs;
mod perform;

#[cfg(test)]
mod tests;
mod times;
mod view;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use cluster::LinkIndex;
use cluster::contact::{Contact, LastContact};
use cluster::frames::RecordsWriter;
use cluster::id::{CopyId, NodeId, Partition};
use cluster::map::SharedEntry;
use cluster::map::command::MapChange;
use cluster::partition_header::{HeaderState, PartitionHeader};
use cluster::record_ends::RecordEnds;
use cluster::replica::{
    CallContext, Destination, GROUP_PARTITIONS, NodeTime, Replica, ReplicaEvent, ReplicaGroup,
    ReplicaHost, ReplicaOptions, Route,
};
use cluster::replica_set::{ReplicaSetTable, ReplicaSets};
use parking_lot::{Mutex, MutexGuard, RwLock};

use self::destinations::Destinations;
use self::logs::SharedLogs;
use self::times::ItemTimes;
#[cfg(feature = "simulation")]
pub use self::view::ReplicaView;
use self::watch::LinkWatch;
use super::environment::NodeEnvironment;
use super::links::{Links, TouchedLinks};
use super::operation::HeldOp;
use super::state_machine::{PartitionState, StateChange, range_of};
use super::{Node, WorkerEvent};
use crate::commands::scratch::Scratch;
use crate::counters::Counters;
use crate::limits::ActiveLimits;
use crate::runtime::service::Service;

/// The replicas of a few partitions.
type Group = ReplicaGroup<HeldOp>;

/// The headers of all partitions. They have an allocation of their own: with the counts of an `Arc`
/// in front, 2^n bytes would take 1.25 · 2^n in jemalloc.
type Headers = Arc<Box<[PartitionHeader]>>;

/// All partitions.
pub(crate) struct Replicas {
    groups: Box<[Mutex<Group>]>,
    /// Written while the group is locked.
    destinations: Destinations,
    headers: Headers,
    record_ends: RecordEnds,
    /// Several shards share a partition: no batch is served from headers.
    are_shared: bool,
    contact: Contact,
    options: RwLock<Arc<ReplicaOptions>>,
    /// No other lock is acquired while this one is held.
    pub(super) sets: Mutex<ReplicaSets>,
    set_table: ReplicaSetTable,
    logs: SharedLogs,
    watch: LinkWatch,
    /// The changes that replicas propose to the controller.
    proposals: Mutex<BTreeMap<Partition, MapChange>>,
    pub(crate) metrics: ReplicaMetrics,
}

/// Counters of the replicas, since the start.
#[derive(Debug, Default)]
pub(crate) struct ReplicaMetrics {
    /// Operations that other nodes sent to this one.
    pub(crate) received: AtomicU64,
}

impl ReplicaMetrics {
    /// Adds `count` operations of other nodes.
    pub(crate) fn note_received(&self, count: u64) {
        self.received.fetch_add(count, Ordering::Relaxed);
    }
}

/// The context in which a thread works on replicas.
pub(crate) struct ReplicaContext<'a> {
    pub(crate) service: &'a Service,
    pub(crate) node: &'a Node,
    pub(crate) now: NodeTime,
    pub(crate) contact: LastContact,
    pub(crate) counters: &'a Counters,
    pub(crate) active_limits: &'a ActiveLimits,
    pub(crate) worker: usize,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) replica_scratch: &'a mut ReplicaScratch,
}

/// Memory that a thread reuses.
#[derive(Default)]
pub(crate) struct ReplicaScratch {
    /// For counted keys.
    counted: Vec<u8>,
    change: StateChange,
    records: RecordsWriter,
    events: Vec<ReplicaEvent<HeldOp>>,
    /// Links with appended frames.
    pub(crate) touched: TouchedLinks,
}

/// The context of a call on a replica.
type ReplicaCall<'a, 'k, 'n> = CallContext<'a, PartitionState<'k>, NodeEnvironment<'n>, HeldOp>;

impl Replicas {
    /// Makes empty slots for `partitions` partitions. `are_shared`: several shards share a
    /// partition.
    pub(crate) fn new(partitions: usize, options: ReplicaOptions, are_shared: bool) -> Self {
        // Each partition has a set, and one of them has two for a moment; row 0 is the empty set's.
        let sets = ReplicaSets::new(partitions + 2);
        Self {
            groups: (0..partitions.div_ceil(GROUP_PARTITIONS)).map(|_| Mutex::default()).collect(),
            destinations: Destinations::new(partitions),
            headers: Arc::new((0..partitions).map(|_| PartitionHeader::default()).collect()),
            record_ends: RecordEnds::new(partitions),
            are_shared,
            contact: Contact::default(),
            options: RwLock::new(Arc::new(options)),
            set_table: sets.table(),
            sets: Mutex::new(sets),
            logs: SharedLogs::new(options.rules),
            watch: LinkWatch::default(),
            proposals: Mutex::default(),
            metrics: ReplicaMetrics::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.headers.len()
    }

    /// The headers of all partitions; `None` if no batch may be served from them: the last contact
    /// with the controller is too old, or shards share partitions.
    pub(crate) fn headers(
        &self,
        contact: LastContact,
        now: NodeTime,
    ) -> Option<&[PartitionHeader]> {
        let may = !self.are_shared && !self.is_stopped(contact, now);
        may.then_some(&self.headers)
    }

    /// The header of a partition.
    #[inline]
    pub(crate) fn header(&self, partition: Partition) -> Option<&PartitionHeader> {
        self.headers.get(partition.index())
    }

    /// The positions of the records of all partitions.
    pub(crate) fn record_ends(&self) -> &RecordEnds {
        &self.record_ends
    }

    /// Whether several shards share a partition, so that no header may be used under the lock of
    /// one.
    pub(crate) fn are_shared(&self) -> bool {
        self.are_shared
    }

    /// When this node last had contact with the controller. A worker reads it at the beginning of
    /// each round and uses it for the whole round.
    pub(crate) fn last_contact(&self) -> LastContact {
        self.contact.last()
    }

    /// Whether this node must not perform or answer anything, for lack of contact with the
    /// controller.
    pub(crate) fn is_stopped(&self, contact: LastContact, now: NodeTime) -> bool {
        contact.is_stopped(now, &self.options.read())
    }

    /// Whether reads may be answered without asking the other copies.
    pub(crate) fn has_lease(&self, contact: LastContact, now: NodeTime) -> bool {
        contact.has_lease(now, &self.options.read())
    }

    /// The options of replicas.
    pub(crate) fn options(&self) -> ReplicaOptions {
        **self.options.read()
    }

    /// The sets of links that headers refer to.
    pub(crate) fn set_table(&self) -> &ReplicaSetTable {
        &self.set_table
    }

    /// Whether the records of any partition go over this link.
    pub(crate) fn names(&self, link: LinkIndex) -> bool {
        self.sets.lock().names(link)
    }

    /// The times by which items expire. `links` are the node's.
    pub(crate) fn item_times(&self, links: &Arc<Links>) -> ItemTimes {
        let (headers, destinations) = (Arc::clone(&self.headers), self.destinations.clone());
        ItemTimes::new(headers, destinations, Arc::clone(links), self.options().rules)
    }

    /// The dedup logs.
    pub(crate) fn logs(&self) -> &SharedLogs {
        &self.logs
    }

    /// Records a contact: the controller answered a heartbeat sent at `sent_ns`, and all replicas
    /// have learnt its map.
    pub(crate) fn contact(&self, sent_ns: u64) {
        self.contact.record(sent_ns);
    }

    /// The destination of operations for a partition, as far as this node knows.
    #[inline]
    pub(crate) fn destination(&self, partition: Partition) -> Option<Destination> {
        self.destinations.get(partition)
    }

    /// The route of a partition by the newest entry of the map.
    pub(crate) fn route(&self, partition: Partition) -> Option<Route> {
        let (_, group) = self.enter(partition)?;
        group.entry(partition).route()
    }

    /// Removes and returns up to `max` proposals: the newest of each partition, beginning with
    /// partition `from`.
    pub(crate) fn proposals(&self, from: Partition, max: usize) -> Vec<MapChange> {
        let mut asks = self.proposals.lock();
        let later = asks.range(from..).map(|(partition, _)| *partition);
        let earlier = asks.range(..from).map(|(partition, _)| *partition);
        let chosen: Vec<Partition> = later.chain(earlier).take(max).collect();
        chosen.iter().filter_map(|partition| asks.remove(partition)).collect()
    }

    /// Whether there are such proposals.
    pub(crate) fn has_proposals(&self) -> bool {
        !self.proposals.lock().is_empty()
    }

    /// Applies a map entry. Returns the node that it makes primary of a newer term, if it does.
    pub(crate) fn learn(
        &self,
        replica_ctx: &mut ReplicaContext<'_>,
        partition: Partition,
        entry: &SharedEntry,
    ) -> Option<NodeId> {
        let (header, mut group) = self.enter(partition)?;
        let before = self.destination(partition);
        let newer = entry.route().filter(|new| before.is_none_or(|old| new.term > old.term));
        if let Some(route) = newer {
            self.destinations.set(partition, route);
        }
        self.call(replica_ctx, partition, (header, &mut group), |replica, call| {
            replica.learn(call, entry);
        });
        newer.filter(|_| before.is_some()).map(|new| new.primary.node)
    }

    /// Applies the cluster's setting; see [`ReplicaOptions::lost_after_ns`].
    pub(crate) fn set_lost_after(&self, lost_after_ns: Option<u64>) {
        Arc::make_mut(&mut self.options.write()).lost_after_ns = lost_after_ns;
    }

    /// Runs `work` on the replica of a partition, if there is such a partition, and carries out its
    /// events.
    fn on<T>(
        &self,
        replica_ctx: &mut ReplicaContext<'_>,
        partition: Partition,
        work: impl FnOnce(&mut Replica<HeldOp>, &mut ReplicaCall<'_, '_, '_>) -> T,
    ) -> Option<T> {
        let (header, mut group) = self.enter(partition)?;
        Some(self.call(replica_ctx, partition, (header, &mut group), work))
    }

    /// Locks a partition's group.
    fn enter(&self, partition: Partition) -> Option<(&PartitionHeader, MutexGuard<'_, Group>)> {
        let header = self.header(partition)?;
        Some((header, self.groups[partition.index() / GROUP_PARTITIONS].lock()))
    }

    /// This node, as its replicas know it.
    fn host(&self, node: &Node) -> ReplicaHost {
        let (node, incarnation) = node.me();
        ReplicaHost { node, incarnation, options: Arc::clone(&self.options.read()) }
    }

    /// Does the work of [`Replicas::on`] in a locked group.
    fn call<T>(
        &self,
        replica_ctx: &mut ReplicaContext<'_>,
        partition: Partition,
        (header, group): (&PartitionHeader, &mut Group),
        work: impl FnOnce(&mut Replica<HeldOp>, &mut ReplicaCall<'_, '_, '_>) -> T,
    ) -> T {
        close(replica_ctx, partition, header);
        let host = self.host(replica_ctx.node);
        let done = self
            .with(replica_ctx, partition, header, |call| group.call(&host, partition, call, work));
        self.after(replica_ctx, &host, partition, (header, group));
        done
    }

    fn with<T>(
        &self,
        replica_ctx: &mut ReplicaContext<'_>,
        partition: Partition,
        header: &PartitionHeader,
        work: impl FnOnce(&mut ReplicaCall<'_, '_, '_>) -> T,
    ) -> T {
        let range = range_of(partition, replica_ctx.node.bits());
        let shard = replica_ctx.service.shards().first_shard(range);
        let ReplicaScratch { counted, events, touched, .. } = &mut *replica_ctx.replica_scratch;
        let mut machine = PartitionState {
            service: replica_ctx.service,
            counters: replica_ctx.counters,
            active_limits: replica_ctx.active_limits,
            worker: replica_ctx.worker,
            scratch: replica_ctx.scratch,
            counted,
            partition,
            bits: replica_ctx.node.bits(),
            unix_ms: replica_ctx.now.wall_ns / 1_000_000,
        };
        let mut node = NodeEnvironment { node: replica_ctx.node, replicas: self, touched, shard };
        work(&mut CallContext {
            now: replica_ctx.now,
            header,
            record_ends: &self.record_ends,
            state_machine: &mut machine,
            node: &mut node,
            events,
        })
    }

    /// Carries out the events of a replica while its group is locked: openings are in all inboxes
    /// before the acknowledgement that came with them is stored.
    fn after(
        &self,
        replica_ctx: &mut ReplicaContext<'_>,
        host: &ReplicaHost,
        partition: Partition,
        (header, group): (&PartitionHeader, &Group),
    ) {
        let node = replica_ctx.node;
        let push = |worker, inbound| {
            if let Some(inbox) = node.inbox(worker) {
                inbox.push(inbound);
            }
        };
        for event in replica_ctx.replica_scratch.events.drain(..) {
            match event {
                ReplicaEvent::Ask(change) => {
                    self.proposals.lock().insert(partition, change);
                    node.wake_proposals();
                }
                ReplicaEvent::Open(opening) => {
                    for inbox in &node.inboxes {
                        inbox.push(WorkerEvent::Open(opening));
                    }
                }
                ReplicaEvent::Perform(op) => push(op.worker, WorkerEvent::Perform(op)),
                ReplicaEvent::Refer(op, route) => push(op.worker, WorkerEvent::Refer(op, route)),
                ReplicaEvent::Refuse(op, refusal) => {
                    push(op.worker, WorkerEvent::Refuse(op, refusal));
                }
            }
        }
        self.note_busy(replica_ctx, host, partition, (header, group));
    }
}

/// Closes the header of a partition whose group is locked, and returns its previous state.
fn close(
    replica_ctx: &ReplicaContext<'_>,
    partition: Partition,
    header: &PartitionHeader,
) -> HeaderState {
    let range = range_of(partition, replica_ctx.node.bits());
    header.close(|| replica_ctx.service.shards().pass_through(range))
}

/// Copies bytes, because a slice of a received block would keep the whole block in memory.
pub(crate) fn own_bytes(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// Whether a node is cut off from a copy that must hold every change, and from most voters, which
/// alone could remove that copy. Matters to the primary only.
fn lacks_copy(node: &Node, in_sync: &[CopyId]) -> bool {
    node.paths.is_cut_off() && in_sync.iter().any(|copy| node.paths.is_away(copy.node))
}
