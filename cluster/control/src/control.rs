//! A node's part in the control plane.
//!
//! Here: the handle, what it shares with its tasks, how it starts and ends. Not here: finding a
//! cluster or founding one (`seek`), beats (`beat`), what a leader does (`lead`), commands on their
//! way to it (`propose`), what others are answered (`answer`).

mod answer;
mod beat;
mod lead;
mod propose;
mod seek;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cluster::id::{Incarnation, NodeId};
use cluster::map::{Command, Description, Map, NodeState};
use cluster::placement::Placement;
use openraft::{Config, RaftMetrics, ServerState, SnapshotPolicy};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::liveness::Liveness;
use crate::network::{Peers, Post, Types, node_id};
use crate::published::{Published, Watch};
use crate::rpc::Sender;
use crate::store::log::Log;
use crate::store::machine::Machine;
use crate::store::{Identity, Seat, Store, StoreError};

pub use propose::{NoOutcome, Outcome};

type Raft = openraft::Raft<Types>;

/// How a node without a cluster gets one. One that has one goes back to it whatever this says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// Found a cluster at once.
    Found,
    /// Found one with so many others that have none, when all of them see each other; or join one.
    Expect(usize),
    /// Wait until a seed has one, and join it.
    Join,
}

/// What a node is told when it starts.
#[derive(Debug, Clone)]
pub struct Options {
    /// Drawn at random for this start: births, cluster ids and delays come from it. Two nodes must
    /// not have the same.
    pub seed: u128,
    /// What it says of itself.
    pub description: Description,
    /// Of a cluster that it founds.
    pub placement: Placement,
    /// How it gets a cluster.
    pub begin: Begin,
    /// Where other nodes may be.
    pub seeds: Vec<String>,
}

/// A node's part in the control plane. Clones are the same one; it ends with [`Control::stop`].
#[derive(Clone)]
pub struct Control {
    node: Arc<Node>,
}

/// How a node stands with its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
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
    pub identity: Identity,
    /// How it stands.
    pub place: Place,
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
    /// Why Raft does not run any more: the disk, mostly. The process should end.
    pub fault: Option<String>,
    /// When this node last heard each of the others, if it is a voter.
    pub heard: Vec<(NodeId, Duration)>,
}

/// What the handle and its tasks share.
pub(crate) struct Node {
    store: Store,
    options: Options,
    published: Arc<Published>,
    post: Post,
    origin: Instant,
    state: Mutex<State>,
    /// A beat is due now.
    beat_now: Notify,
    /// The leader has something to look at.
    lead_now: Notify,
    /// Where [`Control::registered`] looks again.
    progress: watch::Sender<u64>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

struct State {
    identity: Identity,
    raft: Option<Raft>,
    seeds: Vec<String>,
    rng: Rng,
    liveness: Liveness,
    /// Who leads, by the last news.
    leader: Option<NodeId>,
    /// The last moment at which a majority was known to be behind a leader.
    contact: Option<Instant>,
    /// This life was seen in the map.
    was_member: bool,
    /// A registration, or the fetching of the whole map, is on its way.
    is_registering: bool,
    is_fetching: bool,
    registered_at: Option<Instant>,
    is_ready: bool,
    load: u32,
    /// A snapshot that comes in pieces.
    incoming: Option<(String, Vec<u8>)>,
    seekers: seek::Seekers,
}

/// Chance, from a seed: `SplitMix64`. Source: Steele, Lea and Flood, "Fast splittable pseudorandom
/// number generators", 2014.
struct Rng(u128);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let mut mixed = (self.0 >> 64) as u64 ^ (self.0 as u64).rotate_left(32);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn wide(&mut self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }
}

impl Control {
    /// Starts a node: its tasks run until [`stop`](Self::stop), on the runtime of the caller.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the data directory cannot be read or written.
    pub async fn start(
        store: Store,
        options: Options,
        peers: Arc<dyn Peers>,
    ) -> Result<Self, StoreError> {
        let mut rng = Rng(options.seed);
        // The seed itself, not a draw: whoever drew it saw to it that no other node has it.
        let identity = store.begin(options.seed).await?;
        let published = Published::new();
        let sender = Sender {
            birth: identity.birth,
            incarnation: identity.incarnation,
            seat: identity.seat.map(|seat| (seat.cluster, seat.node)),
            address: options.description.peer_address.clone(),
        };
        let post = Post::new(peers, published.clone(), sender);
        rng.next();
        let state = State {
            identity,
            raft: None,
            seeds: options.seeds.clone(),
            rng,
            liveness: Liveness::default(),
            leader: None,
            contact: None,
            was_member: false,
            is_registering: false,
            is_fetching: false,
            registered_at: None,
            is_ready: false,
            load: 0,
            incoming: None,
            seekers: seek::Seekers::default(),
        };
        let node = Arc::new(Node {
            store,
            options,
            published,
            post,
            origin: Instant::now(),
            state: Mutex::new(state),
            beat_now: Notify::new(),
            lead_now: Notify::new(),
            progress: watch::Sender::new(0),
            tasks: Mutex::default(),
        });
        if identity.seat.is_some() {
            node.start_raft().await?;
        }
        for task in [tokio::spawn(beat::run(node.clone())), tokio::spawn(lead::run(node.clone()))] {
            node.tasks.lock().push(task);
        }
        Ok(Self { node })
    }

    /// Answers what another node's [`Peers::call`] brought here, with bytes to bring back.
    ///
    /// It takes as long as a commit at most, and the caller gives up after its `ttl`.
    pub async fn handle(&self, rpc: Bytes) -> Bytes {
        answer::answer(&self.node, &rpc).await
    }

    /// Asks for a change of the map, wherever the leader is, for as long as `ttl`. What is answered
    /// is in the map of this node already, unless that takes longer than a beat or two.
    ///
    /// # Errors
    ///
    /// [`NoOutcome`], within `ttl`.
    pub async fn propose(&self, command: Command, ttl: Duration) -> Result<Outcome, NoOutcome> {
        propose::propose(&self.node, command, ttl).await
    }

    /// The newest map that this node knows; version 0 before there is one.
    #[must_use]
    pub fn map(&self) -> Arc<Map> {
        self.node.published.map()
    }

    /// Every change of the map, from now on, beginning with the whole.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch::new(self.node.published.clone())
    }

    /// Who this node is.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.node.state.lock().identity
    }

    /// Waits until this life of the node is in the map, and says under which id.
    pub async fn registered(&self) -> (NodeId, Incarnation) {
        let mut progress = self.node.progress.subscribe();
        let mut map = self.node.published.subscribe();
        loop {
            if matches!(self.node.place(), Place::Member(_)) {
                let identity = self.identity();
                let node = identity.seat.map_or(NodeId(0), |seat| seat.node);
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

    /// Where other nodes may be, when names were resolved again.
    pub fn set_seeds(&self, seeds: Vec<String>) {
        self.node.state.lock().seeds = seeds;
    }

    /// A lane to a node was refused or broke: the leader should look whether it is still there.
    pub async fn suspect(&self, node: NodeId) {
        propose::suspect(&self.node, node).await;
    }

    /// How long ago a majority of the voters was known to be behind a leader; none: never yet.
    #[must_use]
    pub fn contact(&self) -> Option<Duration> {
        self.node.contact_age()
    }

    /// How the node stands with its cluster.
    #[must_use]
    pub fn place(&self) -> Place {
        self.node.place()
    }

    /// All of that, for operators.
    #[must_use]
    pub fn status(&self) -> Status {
        let node = &self.node;
        let metrics = node.metrics();
        let place = node.place();
        let contact = node.contact_age();
        let leader = node.leader();
        let now = node.now();
        let map = node.published.map();
        let state = node.state.lock();
        let word = state.liveness.word(now);
        let heard = |&(id, _, ago): &(NodeId, _, u32)| (id, Duration::from_millis(ago.into()));
        Status {
            identity: state.identity,
            place,
            leader,
            voters: node.published.voters().1,
            raft_term: metrics.as_ref().map_or(0, |metrics| metrics.current_term),
            map_ver: map.ver(),
            contact,
            fault: metrics.and_then(|metrics| metrics.running_state.err()).map(|e| e.to_string()),
            heard: word.iter().map(heard).collect(),
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
            let _ = raft.shutdown().await;
        }
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Control").field(&self.status()).finish()
    }
}

impl Node {
    /// Since the start, for what has no clock.
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn raft(&self) -> Option<Raft> {
        self.state.lock().raft.clone()
    }

    fn seat(&self) -> Option<Seat> {
        self.state.lock().identity.seat
    }

    fn id(&self) -> Option<NodeId> {
        self.seat().map(|seat| seat.node)
    }

    fn metrics(&self) -> Option<RaftMetrics<u64, openraft::BasicNode>> {
        self.state.lock().raft.as_ref().map(|raft| raft.metrics().borrow().clone())
    }

    /// This node leads, as far as it knows.
    fn is_leader(&self) -> bool {
        self.metrics().is_some_and(|metrics| metrics.state == ServerState::Leader)
    }

    /// Who leads: by Raft where this node votes, else by the last news.
    fn leader(&self) -> Option<NodeId> {
        let metrics = self.metrics();
        let me = self.id();
        let (_, voters) = self.published.voters();
        let by_raft = metrics
            .filter(|_| me.is_some_and(|me| voters.contains(&me)))
            .and_then(|metrics| metrics.current_leader.map(node_id));
        by_raft.or(self.state.lock().leader.filter(|leader| Some(*leader) != me))
    }

    /// A leader knows from its followers; any other node from whoever it beat.
    fn contact_age(&self) -> Option<Duration> {
        let me = self.id();
        let metrics = self.metrics().filter(|metrics| metrics.state == ServerState::Leader);
        let state = self.state.lock();
        let Some(metrics) = metrics else { return state.contact.map(|contact| contact.elapsed()) };
        if self.published.voters().1.iter().all(|voter| Some(*voter) == me) {
            return Some(Duration::ZERO);
        }
        let by_raft = metrics.millis_since_quorum_ack.map(Duration::from_millis);
        let by_news = state.contact.map(|contact| contact.elapsed());
        by_raft.into_iter().chain(by_news).min()
    }

    fn place(&self) -> Place {
        let map = self.published.map();
        let state = self.state.lock();
        let Some(seat) = state.identity.seat else { return Place::Seeking };
        match map.nodes().get(&seat.node) {
            Some(node)
                if node.incarnation == state.identity.incarnation
                    && node.state != NodeState::Dead =>
            {
                Place::Member(node.state)
            }
            None if state.was_member => Place::Gone,
            _ => Place::Registering,
        }
    }

    /// Starts Raft under the node's id. Whoever is no member of the cluster's Raft only listens.
    async fn start_raft(self: &Arc<Self>) -> Result<(), StoreError> {
        let Some(seat) = self.seat() else { return Ok(()) };
        self.post.take_seat(seat.cluster, seat.node);
        let (timeout, jitter) = {
            let rng = &mut self.state.lock().rng;
            (ELECTION_MS + rng.below(ELECTION_SPREAD_MS), rng.below(20))
        };
        let config = Config {
            cluster_name: format!("{:x}", seat.cluster),
            heartbeat_interval: HEARTBEAT_MS + jitter,
            // One value, drawn by us: openraft's own generator cannot be seeded.
            election_timeout_min: timeout,
            election_timeout_max: timeout + 1,
            install_snapshot_timeout: INSTALL_MS,
            max_payload_entries: 64,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(1000),
            max_in_snapshot_log_to_keep: 200,
            ..Config::default()
        };
        let machine = Machine::new(self.store.clone(), self.published.clone())?;
        let log = Log::new(self.store.clone());
        let id = u64::from(seat.node.0);
        let raft = Raft::new(id, Arc::new(config), self.post.clone(), log, machine).await;
        let raft = raft.map_err(|error| {
            tracing::error!(%error, "Raft does not start");
            StoreError::Unreadable("Raft's state")
        })?;
        if seat.is_founder && !raft.is_initialized().await.unwrap_or(true) {
            let address = self.options.description.peer_address.clone();
            let members = [(id, openraft::BasicNode::new(address))];
            if let Err(error) = raft.initialize(std::collections::BTreeMap::from(members)).await {
                tracing::error!(%error, "the cluster is not initialised");
            }
        }
        self.state.lock().raft = Some(raft);
        self.beat_now.notify_one();
        Ok(())
    }

    /// Takes a place in a cluster, or another one, and starts Raft anew under its id.
    async fn sit(self: &Arc<Self>, seat: Seat) -> Result<(), StoreError> {
        let raft = self.state.lock().raft.take();
        if let Some(raft) = raft {
            let _ = raft.shutdown().await;
        }
        let identity = Identity { seat: Some(seat), ..self.state.lock().identity };
        self.store.take_seat(identity).await?;
        {
            let mut state = self.state.lock();
            state.identity = identity;
            state.was_member = false;
        }
        tracing::info!(node = %seat.node, cluster = format!("{:x}", seat.cluster), "has a place");
        self.start_raft().await
    }
}

/// Raft's heartbeats; its clock ticks half as slowly again.
const HEARTBEAT_MS: u64 = 150;
/// A follower waits twice this before it stands for election: the leader's lease, and the timeout.
const ELECTION_MS: u64 = 350;
/// Nodes draw theirs from as many, so that two seldom stand at once.
const ELECTION_SPREAD_MS: u64 = 150;
/// A whole snapshot may take so long.
const INSTALL_MS: u64 = 10_000;
