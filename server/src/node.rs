//! This process as a node of a cluster.
//!
//! Here: the state that all threads of a node share, and small queries of it.
//!
//! - `replicas`: the partitions of this node. `state_machine`: their keys and operations.
//! - `dispatch`: turns requests into operations. `router`: a worker's way from its clients to the
//!   owners of keys. `pending`: replies of operations. `reply_queue`: the order of a client's
//!   replies.
//! - `multi_owner`, `sub_request`: keys that are charged together. `degraded`, `debts`: decisions
//!   of limits while owners are out of reach. `limits`: the limits in force.
//! - `inbox`: events for a worker. `inbound`: control frames of other nodes. `clocks`: the offsets
//!   of their clocks. `reachability` and `paths`: how frames reach them. `links`: the connections
//!   of the workers. `link_cache`: a worker's cache of them.
//! - `operator`: commands of operators. `query`: queries of all nodes. `setup`, `lifecycle`: the
//!   node's tasks from start to end.
//!   `ticks`: their clock. `leave`: the way out of the cluster. `events`: log lines about other
//!   nodes.
//!
//! Not here: how a count is replicated (`cluster::replica`), how the map is agreed on (`control`),
//! links that carry control frames (`crate::transport`).
//!
//! ```text
//! client ─► worker: dispatch ─► router ─┬─► replicas (this node is primary)
//!                                       └─► data link ─► worker of the primary ─► replicas
//! replicas ─► (data link, if remote) ─► router ─► reply_queue ─► client
//! ```

pub(crate) mod batch;
mod clocks;
mod debts;
mod degraded;
pub(crate) mod dispatch;
pub(crate) mod environment;
mod events;
pub(crate) mod hand_over;
mod inbound;
mod inbox;
pub(crate) mod leave;
pub(crate) mod lifecycle;
mod limits;
mod link_cache;
pub(crate) mod links;
mod multi_owner;
pub(crate) mod operation;
mod operator;
mod own_holds;
mod paths;
pub(crate) mod pending;
mod policy_share;
pub(crate) mod query;
mod reachability;
pub(crate) mod replicas;
pub(crate) mod reply_queue;
pub(crate) mod router;
pub(crate) mod serving;
pub(crate) mod setup;
pub(crate) mod state_machine;
mod sub_request;
mod ticks;
mod updates;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cluster::contact::LastContact;
use cluster::id::{Incarnation, NodeId};
use cluster::message::handshake::CloseReason;
use cluster::replica::{AckMode, ReplicaOptions};
use control::{Control, Unreachable, WakeGrid};
use engine::PartitionPrefix;
use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::config::Ack;
use crate::runtime::service::Service;
use crate::transport::{LinkError, PeerAddr, Transport};
use degraded::LocalCounts;
pub(crate) use inbox::{Inbox, WorkerEvent};
pub use lifecycle::PLACED_KEYS;
pub use links::LINK_APPENDS;
use paths::PeerPaths;
use reachability::{Path, ReachAction, Reachability};
use replicas::Replicas;
pub(crate) use state_machine::partition_of;

/// Whether a link stays closed until an operator changes a setting.
fn is_about_peers(why: CloseReason) -> bool {
    matches!(why, CloseReason::WrongKey | CloseReason::NoVersion | CloseReason::OtherCluster)
}

/// State that exists once the node has joined a cluster.
pub(crate) struct Keyspace {
    /// Bits of a partition's number, which are the top bits of every hash.
    pub(crate) bits: u32,
    pub(crate) replicas: Replicas,
}

/// Options of a node.
pub(crate) struct NodeOptions {
    /// When writes are answered.
    pub(crate) ack: AckMode,
    /// Options of every replica.
    pub(crate) replicas: ReplicaOptions,
    /// Worker threads.
    pub(crate) workers: usize,
    /// The memory cap of the item table, in bytes.
    pub(crate) memory_bytes: usize,
    /// The instants at which its periodic waits end.
    pub(crate) grid: WakeGrid,
}

impl NodeOptions {
    fn of(service: &Service) -> Option<Self> {
        let config = service.config();
        let ack = match config.cluster.as_ref()?.ack {
            Ack::Replica => AckMode::Replica,
            Ack::Owner => AckMode::Owner,
        };
        let copies = ReplicaOptions {
            hold_ns: HOLD_NS,
            begins_min_ns: state_machine::ORIGIN_NS,
            begins_max_ns: state_machine::LATEST_NS,
            ..ReplicaOptions::default()
        };
        #[cfg(feature = "simulation")]
        let copies = ReplicaOptions { rules: crate::net::world::rules(), ..copies };
        let memory_bytes = usize::try_from(config.memory_bytes).unwrap_or(usize::MAX);
        let (workers, grid) = (config.threads, service.grid().clone());
        Some(Self { ack, replicas: copies, workers, memory_bytes, grid })
    }
}

/// An operation waits at most this long while its partition changes its primary. The value is close
/// to the router's own deadline, because a commit for many partitions is slow on a busy machine.
const HOLD_NS: u64 = 900_000_000;

/// Counters of the workers' operations.
#[derive(Debug, Default)]
pub(crate) struct RouterMetrics {
    /// Sent to a primary on this node.
    pub(crate) direct: AtomicU64,
    /// Sent to another node.
    pub(crate) forwarded: AtomicU64,
    /// Ended as certainly not done.
    pub(crate) not_applied: AtomicU64,
    /// Ended with an unknown outcome.
    pub(crate) unknown: AtomicU64,
    /// Sent again.
    pub(crate) resent: AtomicU64,
    /// Units that this node admitted by itself while an owner was out of reach.
    pub(crate) degraded: AtomicU64,
    /// Those of `degraded` that their owners do not know of yet.
    pub(crate) debt: AtomicU64,
}

/// The state that all threads of a node share.
pub(crate) struct Node {
    pub(crate) options: NodeOptions,
    partition_prefix: Arc<PartitionPrefix>,
    me: OnceLock<(NodeId, Incarnation)>,
    keyspace: OnceLock<Keyspace>,
    control: OnceLock<Control>,
    transport: OnceLock<Transport>,
    /// The paths to the nodes of the map.
    paths: PeerPaths,
    /// Node ids by peer address, this node's included.
    places: RwLock<BTreeMap<String, NodeId>>,
    inboxes: Box<[Inbox]>,
    /// Grows with every change of the map that the node has processed.
    generation: AtomicU64,
    /// The version of the map that all copies have learnt.
    learned_ver: AtomicU64,
    /// Grows every few tens of milliseconds while an operation or a copy waits, and rarely
    /// otherwise.
    ticks: AtomicU64,
    /// No operation waits, and ticks are rare; see [`Node::want_ticks`].
    is_at_rest: AtomicBool,
    tick_wanted: Notify,
    proposals_wanted: Notify,
    /// Counts the holds on several keys that this node has named.
    holds: AtomicU64,
    /// Its own counts of limits, for use while owners are out of reach.
    local: Mutex<LocalCounts>,
    calls: Mutex<inbound::PendingCalls>,
    clocks: Mutex<clocks::Clocks>,
    queries: query::Queries,
    /// The runtime of its tasks.
    runtime: OnceLock<Handle>,
    pub(crate) metrics: RouterMetrics,
    /// Set for good once clients are no longer served.
    has_stopped: AtomicBool,
    /// The workers end, and no further data link is accepted.
    has_closed_links: AtomicBool,
    /// Why this node or its peers refuse links, while that keeps the node out of its cluster.
    refused: Mutex<Option<String>>,
    /// The limits file of this node, which may differ from the limits in force.
    pub(crate) limits_file: limits::FileTexts,
}

impl Node {
    /// Creates the node of a process with this shared state; `None` without a cluster.
    pub(crate) fn of(service: &Service) -> Option<Arc<Self>> {
        let options = NodeOptions::of(service)?;
        let node = Arc::new(Self::new(options, Arc::clone(service.partition_prefix()?)));
        service.set_node(Arc::clone(&node) as _);
        Some(node)
    }

    fn new(options: NodeOptions, partition_prefix: Arc<PartitionPrefix>) -> Self {
        let local = Mutex::new(LocalCounts::new(options.memory_bytes));
        let inboxes = (0..options.workers).map(|_| Inbox::default()).collect();
        Self {
            options,
            partition_prefix,
            me: OnceLock::new(),
            keyspace: OnceLock::new(),
            control: OnceLock::new(),
            transport: OnceLock::new(),
            paths: PeerPaths::default(),
            places: RwLock::default(),
            inboxes,
            generation: AtomicU64::new(0),
            learned_ver: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            is_at_rest: AtomicBool::new(false),
            tick_wanted: Notify::new(),
            proposals_wanted: Notify::new(),
            holds: AtomicU64::new(0),
            local,
            calls: Mutex::default(),
            clocks: Mutex::default(),
            queries: query::Queries::default(),
            runtime: OnceLock::new(),
            metrics: RouterMetrics::default(),
            has_stopped: AtomicBool::new(false),
            has_closed_links: AtomicBool::new(false),
            refused: Mutex::default(),
            limits_file: limits::FileTexts::default(),
        }
    }

    /// This node's id and incarnation; node 0 before the node has joined a cluster.
    pub(crate) fn me(&self) -> (NodeId, Incarnation) {
        self.me.get().copied().unwrap_or_default()
    }

    /// The partitions, once this node has joined a cluster.
    pub(crate) fn keyspace(&self) -> Option<&Keyspace> {
        self.keyspace.get()
    }

    /// When this node last had contact with the controller.
    pub(crate) fn last_contact(&self) -> LastContact {
        self.keyspace()
            .map_or_else(LastContact::default, |keyspace| keyspace.replicas.last_contact())
    }

    /// The control plane, once it runs.
    pub(crate) fn control(&self) -> Option<&Control> {
        self.control.get()
    }

    fn runtime(&self) -> Option<&Handle> {
        self.runtime.get()
    }

    pub(crate) fn transport(&self) -> Option<&Transport> {
        self.transport.get()
    }

    /// Returns a new name for a hold on several keys. Names have 53 bits, which every client can
    /// read. Names of one node never collide; names of different nodes almost never do.
    fn name_hold(&self) -> u64 {
        let (node, incarnation) = self.me();
        let count = self.holds.fetch_add(1, Ordering::Relaxed);
        let seed = u64::from(node.0) << 32 ^ incarnation.0;
        let mixed = |number: u64| {
            // SplitMix64 (Steele, Lea, Flood 2014), a bijection.
            let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            number ^ number >> 31
        };
        let number = mixed(seed).wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        (mixed(number) >> 11).max(1)
    }

    fn bits(&self) -> u32 {
        self.keyspace.get().map_or(0, |keyspace| keyspace.bits)
    }

    pub(crate) fn inbox(&self, core: u16) -> Option<&Inbox> {
        self.inboxes.get(usize::from(core))
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn ticks(&self) -> u64 {
        self.ticks.load(Ordering::Acquire)
    }

    /// Ends the rest between ticks, because an operation or a copy waits.
    fn want_ticks(&self) {
        if self.is_at_rest.load(Ordering::SeqCst) && self.is_at_rest.swap(false, Ordering::SeqCst) {
            self.tick_wanted.notify_one();
        }
    }

    /// Ends the calls to a node: frames to it may be lost, or take another path from now on.
    fn fail_calls(&self, lost: NodeId, why: Unreachable) {
        self.calls.lock().end_all(&PeerAddr::Node(lost), why);
    }

    /// Applies `news` and the time to the reachability of nodes, and performs the resulting
    /// actions.
    fn update_reachability(
        &self,
        now_ns: u64,
        is_alone: Option<bool>,
        news: impl FnOnce(&mut Reachability),
    ) {
        let (me, _) = self.me();
        for action in self.paths.note(now_ns, is_alone, news) {
            match action {
                ReachAction::Take(node, path) => self.set_path(node, path),
                ReachAction::Ask { peer, relay, number } => {
                    self.paths.probe_through(me, peer, relay, number);
                }
                ReachAction::Probe(node) => {
                    if let Some(transport) = self.transport() {
                        transport.probe(&PeerAddr::Node(node));
                    }
                }
            }
        }
    }

    /// Records that the map made a node primary. If the node was out of reach, dials it at once.
    fn on_promoted(&self, node: NodeId, now_ns: u64) {
        if !self.paths.is_away(node) {
            return;
        }
        if let Some(transport) = self.transport() {
            transport.hurry(&PeerAddr::Node(node));
        }
        self.update_reachability(now_ns, None, |reach| reach.note_alive(node, now_ns));
    }

    fn set_path(&self, node: NodeId, path: Path) {
        match path {
            Path::Direct => tracing::info!(%node, "the node is in reach over its own link"),
            Path::Through(relay) => {
                tracing::warn!(
                    %node,
                    %relay,
                    "the link to the node is broken: sending through a relay"
                );
            }
            Path::Broken => {
                tracing::info!(%node, "the link to the node is broken: looking for a relay");
            }
            Path::Away => {
                tracing::warn!(
                    %node,
                    "the node is out of reach: check its process and the network"
                );
            }
        }
        if matches!(path, Path::Direct | Path::Through(_)) {
            self.fail_calls(node, Unreachable::Lost);
        }
    }

    /// The reply to requests before the node has a place in a cluster.
    fn starting(&self) -> String {
        match &*self.refused.lock() {
            Some(why) => format!("SERVER_ERROR not applied: no place in a cluster: {why}\r\n"),
            None => dispatch::STARTING.to_owned(),
        }
    }

    /// Records a link that could not be opened, while that keeps the node out of its cluster.
    fn note_refusal(&self, address: &str, why: &LinkError) {
        let refusal = match why {
            LinkError::Theirs(why) | LinkError::Ours(why) if is_about_peers(*why) => {
                format!("{why} at peer {address}")
            }
            LinkError::Tls(why) => format!("TLS at peer {address}: {why}"),
            _ => return,
        };
        if self.keyspace().is_some() {
            return;
        }
        let before = self.refused.lock().replace(refusal.clone());
        if before.is_none() {
            tracing::error!(
                why = refusal,
                "no place in a cluster: check the peer key or certificates, and the seeds"
            );
        }
    }

    /// Why peers refuse links, while the node has no place in a cluster.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.refused.lock().clone().filter(|_| self.keyspace().is_none())
    }

    fn wake_proposals(&self) {
        self.proposals_wanted.notify_one();
    }

    /// Wakes all workers.
    fn wake_workers(&self) {
        self.inboxes.iter().for_each(Inbox::wake);
    }
}

/// The nanoseconds by which the time of items may be ahead of `now`; wraps. In a cluster each
/// partition has its own time, by which expiry is decided; the latest of them counts.
pub(crate) fn sweep_ahead_ns(service: &Service, now: engine::Now) -> u64 {
    let latest = |prefix: &Arc<PartitionPrefix>| prefix.latest_time(now).0;
    service.partition_prefix().map_or(0, |prefix| latest(prefix).wrapping_sub(now.mono.0))
}

#[cfg(test)]
mod limit_op_tests;
