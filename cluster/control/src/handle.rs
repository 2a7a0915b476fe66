//! A node's part in the control plane.
//!
//! Here: the handle, and what the server may ask of it. Not here: what it shares with its tasks
//! (`state`), finding a cluster or founding one (`bootstrap`), beats (`heartbeat`), what a leader does (`leader`),
//! commands on their way to it (`proposals`), what others are answered (`rpc_server`), a leader that leaves
//! (`step_down`), a disk that fails (`disk`).

mod bootstrap;
mod disk;
mod heartbeat;
mod leader;
mod proposals;
mod rpc_server;
mod state;
mod step_down;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
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
use state::{ControlNode, NodeCondition, Raft};

pub use proposals::{CommandOutcome, ProposeError};

/// How a node without a cluster gets one. One that has one goes back to it whatever this says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartMode {
    /// Found a cluster at once.
    Found,
    /// Found one with so many others that have none, when all of them see each other; or join one.
    Expect(usize),
    /// Wait until a seed has one, and join it.
    Join,
}

/// What a node is told when it starts.
#[derive(Debug, Clone)]
pub struct ControlOptions {
    /// Drawn at random for this start: births, cluster ids and delays come from it. Two nodes must
    /// not have the same.
    pub seed: u128,
    /// What it says of itself.
    pub description: NodeDescription,
    /// Of a cluster that it founds.
    pub placement: Placement,
    /// How it gets a cluster.
    pub begin: StartMode,
    /// Where other nodes may be.
    pub seeds: Vec<String>,
}

/// A node's part in the control plane. Clones are the same one; it ends with [`Control::stop`].
#[derive(Clone)]
pub struct Control {
    node: Arc<ControlNode>,
}

/// How a node stands with its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MembershipState {
    /// It looks for one.
    Seeking,
    /// It has an id; its present life is not in the map, or is held dead there.
    Registering,
    /// It is in the map.
    Member(NodeState),
    /// The cluster let it go: it was drained, or forgotten. The process should end.
    Gone,
}

/// For `tollgate cluster status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Who the node is.
    pub identity: NodeIdentity,
    /// How it stands.
    pub membership_state: MembershipState,
    /// Who leads, as far as it knows.
    pub leader: Option<NodeId>,
    /// Who votes, likewise.
    pub voters: BTreeSet<NodeId>,
    /// Raft's term, if the node votes.
    pub raft_term: u64,
    /// The version of its map.
    pub map_ver: u64,
    /// How long ago a majority of the voters was known to be behind a leader.
    pub contact: Option<Duration>,
    /// See [`Control::lease`].
    pub lease: Option<Duration>,
    /// Why Raft does not run, mostly the disk; or that the disk is slow. The node serves all the same,
    /// and Raft runs again when the disk can be written.
    pub fault: Option<String>,
    /// How the disk under the control log does.
    pub disk: DiskState,
    /// What this node knows of itself, and of those that beat it, if it is a voter.
    pub reports: Vec<NodeReport>,
}

/// What a voter hears of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeReport {
    /// Of whom.
    pub node: NodeId,
    /// How long ago the last beat came.
    pub ago: Duration,
    /// Whether it serves clients, by its own word.
    pub is_ready: bool,
    /// Its operations a second, likewise.
    pub load: u32,
    /// How the disk under its control log does, likewise.
    pub disk: DiskState,
}

impl Control {
    /// Starts a node: its tasks run until [`stop`](Self::stop), on the runtime of the caller.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the data directory cannot be read or written.
    pub async fn start(
        store: ControlStore,
        options: ControlOptions,
        peers: Arc<dyn ControlTransport>,
    ) -> Result<Self, StoreError> {
        // The seed itself, not a draw: whoever drew it saw to it that no other node has it.
        let identity = store.begin(options.seed).await?;
        let node = Arc::new(ControlNode::new(store, options, peers, identity));
        bootstrap::is_the_only_one(&node).await?;
        if identity.membership.is_some() {
            node.start_raft().await?;
        }
        for task in [
            tokio::spawn(heartbeat::run(node.clone())),
            tokio::spawn(leader::run(node.clone())),
            tokio::spawn(disk::run(node.clone())),
        ] {
            node.tasks.lock().push(task);
        }
        Ok(Self { node })
    }

    /// Answers what another node's [`ControlTransport::call`] brought here, with bytes to bring back.
    ///
    /// It takes as long as a commit at most, and the caller gives up after its `ttl`.
    pub async fn handle(&self, rpc: Bytes) -> Bytes {
        rpc_server::answer(&self.node, &rpc).await
    }

    /// Asks for a change of the map, wherever the leader is, for as long as `ttl`. What is answered
    /// is in the map of this node already, unless that takes longer than a beat or two.
    ///
    /// # Errors
    ///
    /// [`ProposeError`], within `ttl`.
    pub async fn propose(
        &self,
        command: MapCommand,
        ttl: Duration,
    ) -> Result<CommandOutcome, ProposeError> {
        proposals::propose(&self.node, command, ttl).await
    }

    /// The newest map that this node knows; version 0 before there is one.
    #[must_use]
    pub fn map(&self) -> Arc<Map> {
        self.node.published.map()
    }

    /// Every change of the map, from now on, beginning with the whole.
    #[must_use]
    pub fn watch(&self) -> MapWatch {
        MapWatch::new(self.node.published.clone())
    }

    /// Who this node is.
    #[must_use]
    pub fn identity(&self) -> NodeIdentity {
        self.node.state.lock().identity
    }

    /// Waits until this life of the node is in the map, and says under which id.
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

    /// What the next beats say: whether the node serves clients, and its operations a second.
    pub fn set_condition(&self, is_ready: bool, load: u32) {
        let mut state = self.node.state.lock();
        (state.is_ready, state.load) = (is_ready, load);
    }

    /// How many milliseconds the wall clock of each node is ahead of this node's, its own among them.
    /// The leader does not make a node primary whose clock is off.
    pub fn set_clocks(&self, clocks: BTreeMap<NodeId, i64>) {
        self.node.state.lock().clocks = clocks;
    }

    /// Where other nodes may be, when names were resolved again.
    pub fn set_seeds(&self, seeds: Vec<String>) {
        self.node.state.lock().seeds = seeds;
    }

    /// A lane to a node was refused or broke: the leader should look whether it is still there.
    pub async fn suspect(&self, node: NodeId) {
        proposals::suspect(&self.node, node).await;
    }

    /// How long ago a majority of the voters was known to be behind a leader; none: never yet.
    #[must_use]
    pub fn contact(&self) -> Option<Duration> {
        self.node.contact_age()
    }

    /// The age of the newest moment from which on, for 1.5 s, no other node is promoted over this
    /// one: a majority of the voters answered beats sent since, and the map they answered with holds
    /// the node alive. None: there is none.
    ///
    /// A process whose port refuses connections is taken for dead at once; whoever closes it must
    /// not trust a lease any more.
    #[must_use]
    pub fn lease(&self) -> Option<Duration> {
        self.node.lease_age()
    }

    /// Why the process should end: another one is this node.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        self.node.state.lock().ended.clone()
    }

    /// Whether another node's process answers; an error says why not.
    ///
    /// # Errors
    ///
    /// [`Unreachable`].
    pub async fn ping(&self, node: NodeId) -> Result<(), Unreachable> {
        match self.node.rpc.call_node(node, RpcRequest::Ping, PING_TTL).await {
            // Whoever declines is there.
            Ok(_) | Err(CallError::Declined(_)) => Ok(()),
            Err(CallError::Unreachable(why)) => Err(why),
        }
    }

    /// Why Raft does not run on this node: its disk, mostly.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        disk::failure(&self.node)
    }

    /// How the node stands with its cluster.
    #[must_use]
    pub fn membership_state(&self) -> MembershipState {
        self.node.membership_state()
    }

    /// All of that, for operators.
    #[must_use]
    pub fn status(&self) -> Status {
        let node = &self.node;
        let metrics = node.metrics();
        let membership_state = node.membership_state();
        let contact = node.contact_age();
        let lease = node.lease_age();
        let leader = node.leader();
        let now = node.now();
        let map = node.published.map();
        let (disk, fault) = (disk::state(node), disk::fault(node));
        let state = node.state.lock();
        let report = state.liveness.report(now);
        let heard = |&(id, _, ago_ms): &(NodeId, Incarnation, u32)| {
            // Beats go to others only, and voters alone get them.
            let own = (state.identity.membership.is_some_and(|membership| membership.node == id))
                .then(|| NodeCondition { is_ready: state.is_ready, load: state.load, disk });
            let condition = own.or_else(|| state.conditions.get(&id).copied())?;
            let NodeCondition { is_ready, load, disk } = condition;
            let ago = Duration::from_millis(ago_ms.into());
            Some(NodeReport { node: id, ago, is_ready, load, disk })
        };
        Status {
            identity: state.identity,
            membership_state,
            leader,
            voters: node.published.voters().1,
            raft_term: metrics.as_ref().map_or(0, |metrics| metrics.current_term),
            map_ver: map.ver(),
            contact,
            lease,
            fault,
            disk,
            reports: report.iter().filter_map(heard).collect(),
        }
    }

    /// Ends the node's tasks. What was answered is on disk.
    pub async fn stop(&self) {
        let tasks = std::mem::take(&mut *self.node.tasks.lock());
        for task in tasks {
            task.abort();
            let _ = task.await;
        }
        let raft = self.node.state.lock().raft.take();
        if let Some(raft) = raft {
            // A write may hang for as long as its disk does.
            let _ = tokio::time::timeout(STOP_MAX, raft.shutdown()).await;
        }
    }
}

/// For [`Control::ping`].
const PING_TTL: Duration = Duration::from_millis(500);
/// Raft may take so long to end.
const STOP_MAX: Duration = Duration::from_secs(2);

impl fmt::Debug for Control {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Control").field(&self.status()).finish()
    }
}
