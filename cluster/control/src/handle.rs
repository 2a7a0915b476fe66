//! A node's part in the control plane.
//!
//! Here: the handle, which is the server's interface. Not here: the state shared with its tasks
//! (`state`), finding or founding a cluster (`bootstrap`), heartbeats (`heartbeat`), the leader's
//! work (`leader`), commands on their way to the leader (`proposals`), answers to other nodes
//! (`rpc_server`), a leader that leaves (`step_down`), a disk that fails (`disk`).

mod bootstrap;
mod disk;
mod heartbeat;
mod leader;
mod proposals;
mod removals;
mod rpc_server;
mod state;
mod step_down;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cluster::id::{Incarnation, NodeId};
use cluster::map::{Map, MapCommand, NodeDescription, NodeState};
use cluster::placement::Placement;

use crate::map_watch::MapWatch;
use crate::raft_network::{CallError, ControlTransport, Unreachable};
use crate::rpc::{DiskState, RpcRequest};
use crate::store::{ControlStore, NodeIdentity, StoreError};
use crate::wake_grid::WakeGrid;
use state::{ControlNode, NodeCondition, Raft};

pub use proposals::{CommandOutcome, ProposeError};

/// An operation of the control plane under way.
///
/// The future is boxed because rustc compiles the body of an `async fn` in the package that polls
/// it, with all generic code that the body uses: the server would compile Raft a second time.
pub type ControlFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The way in which a node without a cluster gets one. A node with a cluster returns to it in any
/// mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartMode {
    /// Found a cluster at once.
    Found,
    /// Found a cluster together with others once this number of nodes without one, including this
    /// node, see each other; or join a cluster.
    Expect(usize),
    /// Wait until a seed has a cluster, and join it.
    Join,
}

/// Options for starting a node.
#[derive(Debug, Clone)]
pub struct ControlOptions {
    /// Drawn at random for this start; the node uuid, cluster ids and delays derive from it. Two
    /// nodes must not have the same seed.
    pub seed: u128,
    /// The node's description of itself.
    pub description: NodeDescription,
    /// The placement of a cluster that this node founds.
    pub placement: Placement,
    /// The way to get a cluster.
    pub begin: StartMode,
    /// Addresses at which other nodes may be.
    pub seeds: Vec<String>,
    /// The instants at which its periodic waits end.
    pub grid: WakeGrid,
}

/// A node's part in the control plane. Clones share it; it ends with [`Control::stop`].
#[derive(Clone)]
pub struct Control {
    node: Arc<ControlNode>,
}

/// The state of a node's membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MembershipState {
    /// The node is looking for a cluster.
    Seeking,
    /// The node has an id, but its present incarnation is not in the map, or is dead there.
    Registering,
    /// The node is in the map.
    Member(NodeState),
    /// The cluster has removed the node: it was drained or forgotten. The process should end.
    Gone,
}

/// The state of the control plane, for `tollgate cluster status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The identity of the node.
    pub identity: NodeIdentity,
    /// The state of its membership.
    pub membership_state: MembershipState,
    /// The leader, as far as the node knows.
    pub leader: Option<NodeId>,
    /// The voters, as far as the node knows.
    pub voters: BTreeSet<NodeId>,
    /// Raft's term, if the node votes; else 0.
    pub raft_term: u64,
    /// The version of its map.
    pub map_ver: u64,
    /// The time since a majority of the voters was known to follow a leader.
    pub contact: Option<Duration>,
    /// See [`Control::lease`].
    pub lease: Option<Duration>,
    /// The reason why Raft does not run, mostly the disk, or a slow or full disk. The node keeps
    /// serving, and Raft runs again once the disk can be written.
    pub fault: Option<String>,
    /// The state of the disk under the control log.
    pub disk: DiskState,
    /// Reports about this node, and, on a voter, about all nodes that send it heartbeats.
    pub reports: Vec<NodeReport>,
}

/// A node, as a voter sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeReport {
    /// The node.
    pub node: NodeId,
    /// The time since its last heartbeat.
    pub ago: Duration,
    /// Whether it serves clients, by its own report.
    pub is_ready: bool,
    /// Its operations per second, by its own report.
    pub load: u32,
    /// The state of the disk under its control log, by its own report.
    pub disk: DiskState,
}

impl Control {
    /// Starts a node. Its tasks run until [`stop`](Self::stop), on the caller's runtime.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the data directory cannot be read or written.
    #[must_use]
    pub fn start(
        store: ControlStore,
        options: ControlOptions,
        peers: Arc<dyn ControlTransport>,
    ) -> ControlFuture<'static, Result<Self, StoreError>> {
        Box::pin(async move {
            // Use the seed itself, not a draw from it: the caller ensures that no other node has
            // this seed.
            let identity = store.begin(options.seed).await?;
            // Until its seeds are greeted, the node is one without a cluster to others: under its
            // own id it could not ask whether another process has that id, or is in another
            // cluster.
            peers.identify(NodeIdentity { membership: None, ..identity });
            let node = Arc::new(ControlNode::new(store, options, peers, identity));
            bootstrap::is_the_only_one(&node).await?;
            if identity.membership.is_some() {
                node.start_raft().await?;
            }
            if node.store.is_on_disk() {
                node.store.keep_probing(disk::PROBE_AFTER)?;
            }
            for task in [
                tokio::spawn(heartbeat::run(node.clone())),
                tokio::spawn(leader::run(node.clone())),
                tokio::spawn(disk::run(node.clone())),
            ] {
                node.tasks.lock().push(task);
            }
            Ok(Self { node })
        })
    }

    /// Answers a request that another node sent by [`ControlTransport::call`].
    ///
    /// The answer takes at most as long as a commit, and the caller gives up after its `ttl`.
    #[must_use]
    pub fn handle(&self, rpc: Bytes) -> ControlFuture<'_, Bytes> {
        Box::pin(async move { rpc_server::answer(&self.node, &rpc).await })
    }

    /// Proposes a change of the map to the leader, for up to `ttl`. When this returns, the map of
    /// this node already has the change, unless that takes longer than two heartbeats.
    ///
    /// # Errors
    ///
    /// [`ProposeError`], within `ttl`.
    #[must_use]
    pub fn propose(
        &self,
        command: MapCommand,
        ttl: Duration,
    ) -> ControlFuture<'_, Result<CommandOutcome, ProposeError>> {
        Box::pin(proposals::propose(&self.node, command, ttl))
    }

    /// The newest map of this node; version 0 before there is one.
    #[must_use]
    pub fn map(&self) -> Arc<Map> {
        self.node.published.map()
    }

    /// Watches the map: the first update is the whole map, the next ones are its changes.
    #[must_use]
    pub fn watch(&self) -> MapWatch {
        MapWatch::new(self.node.published.clone())
    }

    /// The identity of this node.
    #[must_use]
    pub fn identity(&self) -> NodeIdentity {
        self.node.state.lock().identity
    }

    /// Waits until this incarnation of the node is in the map. Returns its id and incarnation.
    pub async fn registered(&self) -> (NodeId, Incarnation) {
        let mut progress = self.node.progress.subscribe();
        let mut map = self.node.published.subscribe();
        loop {
            if matches!(self.node.membership_state(), MembershipState::Member(_)) {
                let identity = self.identity();
                let node = identity.membership.map_or(NodeId(0), |membership| membership.node);
                return (node, identity.incarnation);
            }
            tokio::select! {
                biased;
                _ = map.changed() => {}
                _ = progress.changed() => {}
            }
        }
    }

    /// Sets the report for the next heartbeats: whether the node serves clients, and its operations
    /// per second.
    pub fn set_condition(&self, is_ready: bool, load: u32) {
        let mut state = self.node.state.lock();
        (state.is_ready, state.load) = (is_ready, load);
    }

    /// Sets the clocks: for each node, this one included, the milliseconds by which its wall clock
    /// is ahead of this node's. The leader does not make a node with a wrong clock primary.
    pub fn set_clocks(&self, clocks: BTreeMap<NodeId, i64>) {
        self.node.state.lock().clocks = clocks;
    }

    /// Replaces the addresses at which other nodes may be, after names were resolved again.
    pub fn set_seeds(&self, seeds: Vec<String>) {
        self.node.state.lock().seeds = seeds;
    }

    /// Reports that a link to a node was refused or broke, so that the leader checks the node.
    #[must_use]
    pub fn suspect(&self, node: NodeId) -> ControlFuture<'_, ()> {
        Box::pin(proposals::suspect(&self.node, node))
    }

    /// The time since a majority of the voters was known to follow a leader; none if there was no
    /// such moment.
    #[must_use]
    pub fn contact(&self) -> Option<Duration> {
        self.node.contact_age()
    }

    /// The age of this node's lease; none if it has no lease. For 1.5 s from the beginning of the
    /// lease no other node is promoted over this one. The lease begins at the newest moment such
    /// that a majority of the voters answered heartbeats sent since, with a map in which the node
    /// is alive.
    ///
    /// A process that refuses connections on its port is declared dead at once. A process that
    /// closes its port must therefore stop trusting its lease first.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.node.lease_age()
    }

    /// The reason why the process should end: another process runs as this node.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        self.node.state.lock().ended.clone()
    }

    /// Checks that another node's process answers.
    ///
    /// # Errors
    ///
    /// [`Unreachable`], with the reason.
    #[must_use]
    pub fn ping(&self, node: NodeId) -> ControlFuture<'_, Result<(), Unreachable>> {
        Box::pin(async move {
            match self.node.rpc.call_node(node, RpcRequest::Ping, PING_TTL).await {
                // A node that declines is running.
                Ok(_) | Err(CallError::Declined(_)) => Ok(()),
                Err(CallError::Unreachable(why)) => Err(why),
            }
        })
    }

    /// The reason why Raft does not run on this node, mostly its disk.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        disk::failure(&self.node)
    }

    /// The state of this node's membership.
    #[must_use]
    pub fn membership_state(&self) -> MembershipState {
        self.node.membership_state()
    }

    /// The leader, as far as the node knows.
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        self.node.leader()
    }

    /// The state of the control plane, for operators.
    #[must_use]
    pub fn status(&self) -> Status {
        let node = &self.node;
        let raft_term = node.with_metrics(|metrics| metrics.current_term).unwrap_or(0);
        let membership_state = node.membership_state();
        let contact = node.contact_age();
        let lease = node.lease_age();
        let leader = node.leader();
        let now = node.now();
        let map = node.published.map();
        let (disk, fault) = (disk::state(node), disk::fault(node));
        let state = node.state.lock();
        let report = state.liveness.report(now);
        let (_, voters) = node.published.voters();
        let membership = state.identity.membership;
        let is_voter = membership.is_some_and(|membership| voters.contains(&membership.node));
        let heard = |&(id, _, ago_ms): &(NodeId, Incarnation, u32)| {
            // The node sends no heartbeats to itself, and only voters receive those of others. What
            // a former voter knows is old.
            let own = (membership.is_some_and(|membership| membership.node == id))
                .then(|| NodeCondition { is_ready: state.is_ready, load: state.load, disk });
            let others = || state.conditions.get(&id).copied().filter(|_| is_voter);
            let condition = own.or_else(others)?;
            let NodeCondition { is_ready, load, disk } = condition;
            let ago = Duration::from_millis(ago_ms.into());
            Some(NodeReport { node: id, ago, is_ready, load, disk })
        };
        Status {
            identity: state.identity,
            membership_state,
            leader,
            voters,
            raft_term,
            map_ver: map.ver(),
            contact,
            lease,
            fault,
            disk,
            reports: report.iter().filter_map(heard).collect(),
        }
    }

    /// Ends the node's tasks. Everything that was acknowledged is on disk.
    #[must_use]
    pub fn stop(&self) -> ControlFuture<'_, ()> {
        Box::pin(async move {
            let tasks = std::mem::take(&mut *self.node.tasks.lock());
            for task in tasks {
                task.abort();
                let _ = task.await;
            }
            let raft = self.node.state.lock().raft.take();
            if let Some(raft) = raft {
                // A pending write may hang while its disk hangs.
                let _ = tokio::time::timeout(STOP_MAX, raft.shutdown()).await;
            }
        })
    }
}

/// The timeout of [`Control::ping`].
const PING_TTL: Duration = Duration::from_millis(500);
/// The longest wait for Raft's shutdown.
const STOP_MAX: Duration = Duration::from_secs(2);

impl fmt::Debug for Control {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Control").field(&self.status()).finish()
    }
}
