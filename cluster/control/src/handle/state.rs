//! The state that the handle of a node and its tasks share.
//!
//! Here: the state, the start of Raft, and queries: leader, contact, lease, membership. Not here:
//! the tasks (`heartbeat`, `leader`, `bootstrap`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cluster::id::{Incarnation, NodeId};
use cluster::map::removals::WaitingRemovals;
use cluster::map::{MapRefusal, NodeState};
use openraft::{BasicNode, Config, RaftMetrics, ServerState, SnapshotPolicy};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{ControlOptions, MembershipState, bootstrap};
use crate::failure_detector::FailureDetector;
use crate::map_watch::MapPublisher;
use crate::raft_network::{ControlTransport, RpcClient};
use crate::raft_runtime::on_grid;
use crate::raft_types::{Types, node_id};
use crate::rpc::{DiskState, Sender};
use crate::store::raft_log::RaftLog;
use crate::store::state_machine::MapStateMachine;
use crate::store::{ControlStore, Membership, NodeIdentity, StoreError};

pub(super) type Raft = openraft::Raft<Types>;

/// The handle's and the tasks' common state.
pub(super) struct ControlNode {
    pub(super) store: ControlStore,
    pub(super) options: ControlOptions,
    pub(super) published: Arc<MapPublisher>,
    pub(super) rpc: RpcClient,
    pub(super) origin: Instant,
    pub(super) state: Mutex<ControlState>,
    /// Requests a heartbeat now.
    pub(super) heartbeat_now: Notify,
    /// Requests a round of the leader now.
    pub(super) leader_now: Notify,
    /// Wakes [`Control::registered`](super::Control::registered).
    pub(super) progress: watch::Sender<u64>,
    pub(super) tasks: Mutex<Vec<JoinHandle<()>>>,
}

pub(super) struct ControlState {
    pub(super) identity: NodeIdentity,
    pub(super) raft: Option<Raft>,
    pub(super) seeds: Vec<String>,
    pub(super) rng: Rng,
    pub(super) liveness: FailureDetector,
    /// The leader by the last answer.
    pub(super) leader: Option<NodeId>,
    /// This node leads, and is transferring the leadership to another voter.
    pub(super) steps_down: bool,
    /// The last moment at which a majority was known to follow a leader.
    pub(super) contact: Option<Instant>,
    /// For each voter, when the last heartbeat was sent that it answered while the map had this
    /// node alive.
    pub(super) answered: BTreeMap<NodeId, Instant>,
    /// When a partition of this node last changed.
    pub(super) moved_at: Option<Instant>,
    /// This incarnation was seen in the map.
    pub(super) was_member: bool,
    /// The last heartbeat of each node in the incarnation of the map.
    pub(super) incarnations: BTreeMap<NodeId, (Incarnation, Instant)>,
    /// When the cluster first reported that another process runs as this node.
    pub(super) doubled: Option<Instant>,
    /// Seeds that belong to another cluster; each is logged once.
    pub(super) strange_seeds: BTreeSet<String>,
    /// The last refusal of a registration.
    pub(super) refused: Option<MapRefusal>,
    /// The reason why the process should end.
    pub(super) ended: Option<String>,
    /// A registration is in flight; `is_fetching`: a fetch of the whole map is.
    pub(super) is_registering: bool,
    pub(super) is_fetching: bool,
    pub(super) registered_at: Option<Instant>,
    pub(super) is_ready: bool,
    pub(super) load: u32,
    /// The reports in the other nodes' heartbeats.
    pub(super) conditions: BTreeMap<NodeId, NodeCondition>,
    /// For each node, the milliseconds by which its wall clock is ahead of this node's, as far as
    /// known.
    pub(super) clocks: BTreeMap<NodeId, i64>,
    /// This incarnation has led, and has been the only voter since.
    pub(super) has_led_alone: bool,
    /// The reason why Raft does not run.
    pub(super) fault: Option<RaftFault>,
    /// A snapshot that arrives in chunks.
    pub(super) incoming: Option<(String, Vec<u8>)>,
    pub(super) seekers: bootstrap::BootstrapPeers,
    /// Used while this node leads.
    pub(super) removals: WaitingRemovals,
}

/// A node's report about itself in its heartbeats.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct NodeCondition {
    pub(super) is_ready: bool,
    pub(super) load: u32,
    pub(super) disk: DiskState,
}

/// The reason why Raft does not run.
#[derive(Debug, Clone)]
pub(super) struct RaftFault {
    pub(super) since: Instant,
    /// The reason, as text for operators.
    pub(super) why: String,
    /// The error of the last attempt to recover.
    pub(super) still: Option<String>,
}

/// A seeded generator of random numbers: `SplitMix64`. Source: Steele, Lea and Flood, "Fast
/// splittable pseudorandom number generators", 2014.
pub(super) struct Rng(pub(super) u128);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let mut mixed = (self.0 >> 64) as u64 ^ (self.0 as u64).rotate_left(32);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(super) fn wide(&mut self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }
}

impl ControlNode {
    pub(super) fn new(
        store: ControlStore,
        options: ControlOptions,
        peers: Arc<dyn ControlTransport>,
        identity: NodeIdentity,
    ) -> Self {
        let mut rng = Rng(options.seed);
        let published = MapPublisher::new();
        let sender = Sender {
            node_uuid: identity.node_uuid,
            incarnation: identity.incarnation,
            membership: identity.membership.map(|membership| (membership.cluster, membership.node)),
            address: options.description.peer_address.clone(),
        };
        let rpc = RpcClient::new(peers, published.clone(), sender);
        rng.next();
        let state = ControlState {
            identity,
            raft: None,
            seeds: options.seeds.clone(),
            rng,
            liveness: FailureDetector::default(),
            leader: None,
            steps_down: false,
            contact: None,
            answered: BTreeMap::new(),
            moved_at: None,
            was_member: false,
            incarnations: BTreeMap::new(),
            doubled: None,
            strange_seeds: BTreeSet::new(),
            refused: None,
            ended: None,
            is_registering: false,
            is_fetching: false,
            registered_at: None,
            is_ready: false,
            load: 0,
            conditions: BTreeMap::new(),
            clocks: BTreeMap::new(),
            has_led_alone: false,
            fault: None,
            incoming: None,
            seekers: bootstrap::BootstrapPeers::default(),
            removals: WaitingRemovals::default(),
        };
        Self {
            store,
            options,
            published,
            rpc,
            origin: Instant::now(),
            state: Mutex::new(state),
            heartbeat_now: Notify::new(),
            leader_now: Notify::new(),
            progress: watch::Sender::new(0),
            tasks: Mutex::default(),
        }
    }

    /// The time since the start, for parts that have no clock.
    pub(super) fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Whether the node was stopped: a running node always has tasks.
    pub(super) fn is_stopped(&self) -> bool {
        self.tasks.lock().is_empty()
    }

    pub(super) fn raft(&self) -> Option<Raft> {
        self.state.lock().raft.clone()
    }

    pub(super) fn membership(&self) -> Option<Membership> {
        self.state.lock().identity.membership
    }

    pub(super) fn id(&self) -> Option<NodeId> {
        self.membership().map(|membership| membership.node)
    }

    pub(super) fn metrics(&self) -> Option<RaftMetrics<u64, openraft::BasicNode>> {
        self.with_metrics(RaftMetrics::clone)
    }

    /// Calls `read` on Raft's metrics, if Raft runs. Meanwhile Raft cannot change them.
    pub(super) fn with_metrics<T>(
        &self,
        read: impl FnOnce(&RaftMetrics<u64, openraft::BasicNode>) -> T,
    ) -> Option<T> {
        let metrics = self.state.lock().raft.as_ref()?.metrics();
        let metrics = metrics.borrow();
        Some(read(&metrics))
    }

    /// Whether this node leads, as far as it knows.
    pub(super) fn is_leader(&self) -> bool {
        self.with_metrics(|metrics| metrics.state == ServerState::Leader) == Some(true)
    }

    /// Whether this node is the only voter.
    pub(super) fn is_sole_voter(&self) -> bool {
        let me = self.id();
        let (_, voters) = self.published.voters();
        !voters.is_empty() && voters.iter().all(|voter| Some(*voter) == me)
    }

    /// The leader: by Raft if this node votes, else by the last answer.
    pub(super) fn leader(&self) -> Option<NodeId> {
        let by_raft = self.with_metrics(|metrics| metrics.current_leader.map(node_id)).flatten();
        let me = self.id();
        let (_, voters) = self.published.voters();
        let by_raft = by_raft.filter(|_| me.is_some_and(|me| voters.contains(&me)));
        by_raft.or(self.state.lock().leader.filter(|leader| Some(*leader) != me))
    }

    /// The age of the contact: a leader takes it from its followers, any other node from answers to
    /// its heartbeats.
    pub(super) fn contact_age(&self) -> Option<Duration> {
        let is_leader = |metrics: &RaftMetrics<_, _>| metrics.state == ServerState::Leader;
        let acknowledged_ms = self
            .with_metrics(|metrics| is_leader(metrics).then_some(metrics.millis_since_quorum_ack))
            .flatten();
        let is_alone = self.is_sole_voter();
        let mut state = self.state.lock();
        // Without its only voter a cluster decides nothing. Once this node has led alone, its map
        // is the newest one, even while its Raft does not run.
        state.has_led_alone = is_alone && (state.has_led_alone || acknowledged_ms.is_some());
        if state.has_led_alone {
            return Some(Duration::ZERO);
        }
        let by_news = state.contact.map(|contact| contact.elapsed());
        let by_raft = acknowledged_ms.flatten().map(Duration::from_millis);
        by_raft.into_iter().chain(by_news).min()
    }

    /// The age of the majority-th newest answer. The voters are known only as of the contact, so
    /// the lease is at least as old as the contact.
    pub(super) fn lease_age(&self) -> Option<Duration> {
        let MembershipState::Member(_) = self.membership_state() else { return None };
        let contact = self.contact_age()?;
        let me = self.id();
        let (_, voters) = self.published.voters();
        let state = self.state.lock();
        let age = |voter: &NodeId| {
            if Some(*voter) == me {
                return Some(Duration::ZERO);
            }
            state.answered.get(voter).map(Instant::elapsed)
        };
        let mut ages: Vec<Duration> = voters.iter().filter_map(age).collect();
        ages.sort_unstable();
        ages.get(voters.len() / 2).map(|age| contact.max(*age))
    }

    pub(super) fn membership_state(&self) -> MembershipState {
        let map = self.published.map();
        let state = self.state.lock();
        let Some(membership) = state.identity.membership else { return MembershipState::Seeking };
        match map.nodes().get(&membership.node) {
            Some(node)
                if node.incarnation == state.identity.incarnation
                    && node.state != NodeState::Dead =>
            {
                MembershipState::Member(node.state)
            }
            None if state.was_member => MembershipState::Gone,
            _ => MembershipState::Registering,
        }
    }

    /// Whether all nodes sent a message recently.
    pub(super) fn hears_all(&self) -> bool {
        let (me, now) = (self.id(), self.now());
        let state = self.state.lock();
        state.liveness.ages(now).all(|(id, age)| Some(id) == me || age < HEARD_RECENTLY)
    }

    /// Starts Raft under the node's id. A node that is no member of the cluster's Raft only
    /// listens.
    pub(super) async fn start_raft(self: &Arc<Self>) -> Result<(), StoreError> {
        let Some(membership) = self.membership() else { return Ok(()) };
        self.rpc.join(membership.cluster, membership.node);
        let timeout = ELECTION_MS + self.state.lock().rng.below(ELECTION_SPREAD_MS);
        let config = Config {
            cluster_name: format!("{:x}", membership.cluster),
            heartbeat_interval: HEARTBEAT_MS,
            // A single value, drawn here: openraft's own generator cannot be seeded.
            election_timeout_min: timeout,
            election_timeout_max: timeout + 1,
            install_snapshot_timeout: INSTALL_MS,
            max_payload_entries: 64,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(1000),
            max_in_snapshot_log_to_keep: 200,
            ..Config::default()
        };
        let store = self.store.of_this_opening();
        let state_machine = MapStateMachine::new(store.clone(), self.published.clone())?;
        let log = RaftLog::new(store);
        let id = u64::from(membership.node.0);
        let raft = Raft::new(id, Arc::new(config), self.rpc.clone(), log, state_machine);
        let raft = on_grid(self.options.grid.clone(), raft).await;
        let raft = raft.map_err(|error| {
            tracing::error!(%error, "Raft failed to start on this node");
            StoreError::Unreadable("Raft's state")
        })?;
        if membership.is_founder && !raft.is_initialized().await.unwrap_or(true) {
            let address = self.options.description.peer_address.clone();
            let members = [(id, BasicNode::new(address))];
            if let Err(error) = raft.initialize(BTreeMap::from(members)).await {
                tracing::error!(%error, "Raft failed to initialise the new cluster");
            }
        }
        let metrics = raft.metrics();
        self.state.lock().raft = Some(raft);
        tokio::spawn(wake_leader(Arc::clone(self), metrics));
        self.heartbeat_now.notify_one();
        Ok(())
    }

    /// Stores a first or another membership, and restarts Raft under its id.
    pub(super) async fn set_membership(
        self: &Arc<Self>,
        membership: Membership,
    ) -> Result<(), StoreError> {
        let raft = self.state.lock().raft.take();
        if let Some(raft) = raft {
            let _ = raft.shutdown().await;
        }
        let identity = NodeIdentity { membership: Some(membership), ..self.state.lock().identity };
        self.store.store_membership(identity).await?;
        {
            let mut state = self.state.lock();
            state.identity = identity;
            state.was_member = false;
            state.answered.clear();
        }
        self.rpc.identify(identity);
        let cluster = format!("{:08x}", (membership.cluster >> 96) as u32);
        tracing::info!(
            target: "tollgate::life",
            node = %membership.node,
            cluster,
            "this node is a member of a cluster"
        );
        self.start_raft().await
    }
}

/// Ends the wait of the leader's task whenever this node begins to lead, until its Raft ends.
async fn wake_leader(
    node: Arc<ControlNode>,
    mut metrics: watch::Receiver<RaftMetrics<u64, BasicNode>>,
) {
    let leads = |metrics: &RaftMetrics<_, _>| metrics.state == ServerState::Leader;
    while metrics.wait_for(leads).await.is_ok() {
        node.leader_now.notify_one();
        if metrics.wait_for(|metrics| !leads(metrics)).await.is_err() {
            return;
        }
    }
}

/// The timeout of a heartbeat of Raft's leader, and the least time between two. The leader sends
/// them with its [ticks](crate::raft_runtime::RAFT_TICK).
const HEARTBEAT_MS: u64 = 120;
/// A follower waits twice this before it stands for election, with the next tick: the leader's
/// lease, then the timeout.
const ELECTION_MS: u64 = 250;
/// Nodes draw their timeouts from a range of this width, so that two seldom stand at once.
const ELECTION_SPREAD_MS: u64 = 100;
/// After this time without a heartbeat no voter believes in a leader any more.
pub(super) const LEASE_MAX: Duration = Duration::from_millis(ELECTION_MS + ELECTION_SPREAD_MS);
/// A node with a last message of this age cannot become silent before the leader's next round at
/// rest.
const HEARD_RECENTLY: Duration = Duration::from_millis(600);
/// The timeout for a whole snapshot.
const INSTALL_MS: u64 = 10_000;
