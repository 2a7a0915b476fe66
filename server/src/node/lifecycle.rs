//! A node's tasks, from its start to its end.
//!
//! Here: starting transport and control plane, following the map, ticks, proposing changes to the
//! controller. Not here: the effect of the map on a replica (`replicas`), the decisions of the
//! control plane (`control`), the way out (`leave`), log lines about other nodes (`events`).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::ToSocketAddrs as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cluster::id::{Incarnation, NodeId, Partition};
use cluster::map::command::{FOUNDED, MapChange, Setting, YES};
use cluster::map::{Map, MapCommand, PartitionEntry, clocks};
use cluster::placement::Placement;
use control::{Control, ControlOptions, ControlStore, StoreError};
use engine::{Nanos, Partitioner};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::inbound::{PeerClient, PeerHandler};
use super::leave::{self, LeaveOutcome};
use super::links::DataLinks;
use super::replicas::Replicas;
use super::{Keyspace, Node, events, limits, links};
use crate::cluster_stats::hears_control;
use crate::config::{ClusterConfig, Config, Seed};
use crate::net::{BoundListener, Listener};
use crate::runtime::listeners::{BindError, bind_each};
use crate::runtime::service::Service;
use crate::transport::{
    FrameHandler as _, PeerAddr, PeerIdentity, SecurityError, Transport, TransportOptions,
};

/// Time between ticks while an operation or a copy waits.
const TICK: Duration = Duration::from_millis(20);
/// Time between ticks at rest.
const TICK_AT_REST: Duration = Duration::from_millis(250);
/// Time between checks of the last contact to the controller.
const CONTACT_PERIOD: Duration = Duration::from_millis(100);
/// The period of `tick_silent`, and of `store_times` for one part of the partitions.
const REST_PERIOD: Duration = Duration::from_millis(200);
/// The number of those parts: each partition stores its time every 4 s.
const REST_PARTS: usize = 20;
/// Time between two reports of this node's state to the control plane.
const CONDITION_PERIOD: Duration = Duration::from_millis(200);
/// Time between two clean-ups after incarnations that are over.
const INCARNATIONS_PERIOD: Duration = Duration::from_secs(5);
/// Most changes of the map that replicas propose in one command.
const PROPOSALS_MAX: usize = cluster::map::command::CHANGES_MAX;
/// The time to live of this node's commands.
pub(super) const COMMAND_TTL: Duration = Duration::from_secs(2);
/// Time between two look-ups of seed names.
const SEEDS_PERIOD: Duration = Duration::from_secs(30);
/// Without contact to most voters for this long, a node is cut off.
const ALONE: Duration = Duration::from_secs(1);
/// Time between two looks at state that has no notification.
pub(super) const POLL: Duration = Duration::from_millis(20);

/// Why a node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The data directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The peer key or the certificates cannot be used.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// An error of the operating system.
    #[error("peers: {0}")]
    Io(#[from] io::Error),
}

/// The listeners for other nodes, bound before there is a runtime.
pub(crate) struct PeerListeners {
    listeners: Vec<BoundListener>,
    client_port: u16,
}

impl PeerListeners {
    /// Binds the peer addresses.
    ///
    /// # Errors
    ///
    /// Those of binding client addresses.
    pub(crate) fn bind(
        cluster: &ClusterConfig,
        client_port: u16,
        backlog: u32,
    ) -> Result<Self, BindError> {
        let listeners = bind_each(&cluster.peer_listen, backlog)?;
        Ok(Self { listeners, client_port })
    }

    /// Opens the data directory and attaches the listeners to the current runtime.
    ///
    /// # Errors
    ///
    /// [`NodeError`].
    pub(crate) fn setup(self, config: &Config, node: Arc<Node>) -> Result<Setup, NodeError> {
        let Some(cluster) = &config.cluster else {
            return Err(io::Error::other("the configuration has no cluster").into());
        };
        let port = self.listeners.iter().find_map(BoundListener::address);
        let port = port.map_or(0, |address| address.port());
        let listeners =
            self.listeners.into_iter().map(BoundListener::attach).collect::<io::Result<_>>()?;
        let store = match &cluster.data_dir {
            Some(directory) => ControlStore::open(directory)?,
            None => ControlStore::in_memory()?,
        };
        Setup::new(config, node, store, listeners, (self.client_port, port))
    }
}

impl Setup {
    /// Prepares the start of a node. `ports`: the bound ports for clients and for nodes.
    ///
    /// # Errors
    ///
    /// [`NodeError`].
    pub(crate) fn new(
        config: &Config,
        node: Arc<Node>,
        store: ControlStore,
        listeners: Vec<Listener>,
        ports: (u16, u16),
    ) -> Result<Self, NodeError> {
        let Some(cluster) = &config.cluster else {
            return Err(io::Error::other("the configuration has no cluster").into());
        };
        let mut seed = [0; 16];
        crate::net::random::fill(&mut seed)?;
        let identity = PeerIdentity {
            cluster: 0,
            node: NodeId::default(),
            incarnation: Incarnation::default(),
            core: 0,
        };
        let mut transport = TransportOptions::new(identity, cluster.security()?);
        transport.insecure_confirmed = cluster.insecure;
        transport.workers = u16::try_from(config.threads).unwrap_or(u16::MAX);
        // A record may have an item's state twice; a chunk of a copy may have several answers.
        let least = 4 * config.item_bytes_max + (64 << 10);
        transport.bounds.frame_bytes_max = transport.bounds.frame_bytes_max.max(least);
        let control = ControlOptions {
            seed: u128::from_le_bytes(seed),
            description: cluster.description(ports.0, ports.1),
            placement: cluster.placement,
            begin: cluster.begin,
            seeds: resolve(&cluster.seeds),
        };
        Ok(Self { node, store, control, transport, listeners })
    }
}

/// The addresses of all seeds; a name that cannot be resolved now has none.
fn resolve(seeds: &[Seed]) -> Vec<String> {
    let mut places = Vec::new();
    for seed in seeds {
        match seed {
            Seed::Place(place) => places.push(place.to_string()),
            Seed::Name(name) => match (name.host.as_str(), name.port).to_socket_addrs() {
                Ok(found) => places.extend(found.map(|address| address.to_string())),
                Err(error) => {
                    tracing::info!(%error, %name, "cannot resolve the seed's name; trying again");
                }
            },
        }
    }
    places
}

/// The prerequisites of a node's start.
pub(crate) struct Setup {
    pub(crate) node: Arc<Node>,
    pub(crate) store: ControlStore,
    pub(crate) control: ControlOptions,
    /// [`start`] fills in its identity.
    pub(crate) transport: TransportOptions,
    pub(crate) listeners: Vec<Listener>,
}

/// The tasks of a node; they end with it.
pub(crate) struct NodeTasks {
    node: Arc<Node>,
    tasks: JoinSet<()>,
}

/// Starts this process as a node, on the current runtime.
///
/// # Errors
///
/// [`NodeError`].
pub(crate) async fn start(service: &Arc<Service>, setup: Setup) -> Result<NodeTasks, NodeError> {
    let node = setup.node;
    let _ = node.runtime.set(tokio::runtime::Handle::current());
    let reception = Arc::new(PeerHandler::new(Arc::clone(service), Arc::clone(&node)));
    let transport =
        Transport::start(setup.transport, setup.listeners, Arc::clone(&reception) as _)?;
    let _ = node.transport.set(transport);
    let post = Arc::new(PeerClient(Arc::clone(&node), Arc::clone(service)));
    let control = Control::start(setup.store, setup.control, post).await?;
    let _ = node.control.set(control.clone());
    let mut tasks = JoinSet::new();
    let (have_limits, has_limits) = oneshot::channel();
    tasks.spawn(limits::follow(
        Arc::clone(service),
        Arc::clone(&node),
        control.clone(),
        have_limits,
    ));
    tasks.spawn(follow(
        (Arc::clone(service), Arc::clone(&node)),
        control.clone(),
        Arc::clone(&reception),
        has_limits,
    ));
    tasks.spawn(tick(Arc::clone(&node), control.clone(), Arc::clone(&reception)));
    if let Some(cluster) = &service.config().cluster {
        tasks.spawn(look_up(control.clone(), cluster.seeds.clone()));
        let (replicas, lost_after) = (cluster.replicas, cluster.lost_after);
        tasks.spawn(found(Arc::clone(&node), control.clone(), replicas, lost_after));
    }
    if service.config().limits_file.is_some() {
        let texts = node.limits_file.get();
        tasks.spawn(limits::follow_file(Arc::clone(&node), control.clone(), texts));
    }
    tasks.spawn(events::log_events(control.clone()));
    tasks.spawn(propose_changes(Arc::clone(&node), control));
    Ok(NodeTasks { node, tasks })
}

impl NodeTasks {
    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    /// Hands over everything that other nodes need, and leaves the cluster.
    pub(crate) async fn leave(&self, deadline: Duration) -> LeaveOutcome {
        leave::leave(&self.node, deadline).await
    }

    pub(crate) async fn end(mut self) {
        self.tasks.shutdown().await;
        if let Some(control) = self.node.control() {
            control.stop().await;
        }
        if let Some(transport) = self.node.transport() {
            transport.stop().await;
        }
    }
}

/// Reads the peer key or certificates again; existing links stay as they are.
pub(crate) fn reload_security(service: &Service, node: &Node) {
    let Some(cluster) = &service.config().cluster else { return };
    let Some(transport) = node.transport() else { return };
    if let Err(error) = cluster.security().and_then(|security| transport.secure(security)) {
        tracing::error!(
            %error,
            "peer key and certificates not reloaded, the old ones stay in use: correct the files"
        );
    }
}

/// Resolves the names among the seeds periodically.
async fn look_up(control: Control, seeds: Vec<Seed>) {
    if !seeds.iter().any(|seed| matches!(seed, Seed::Name(_))) {
        return;
    }
    loop {
        sleep(SEEDS_PERIOD).await;
        let seeds = seeds.clone();
        if let Ok(places) = tokio::task::spawn_blocking(move || resolve(&seeds)).await {
            control.set_seeds(places);
        }
    }
}

/// Gives a new cluster its settings and limits, once, on the node that founded it.
async fn found(node: Arc<Node>, control: Control, replicas: u8, lost_after: Option<Duration>) {
    control.registered().await;
    let is_founder = control.identity().membership.is_some_and(|membership| membership.is_founder);
    let lost_after_ms = lost_after.map(|after| after.as_millis() as u64);
    let mark = Setting::Other { name: FOUNDED.to_owned(), value: Some(YES.to_owned()) };
    while is_founder && !control.map().settings().others.contains_key(FOUNDED) {
        let settings = [Setting::Replicas(replicas), Setting::LostAfterMs(lost_after_ms)];
        limits::found(&node, &control, &node.limits_file.get()).await;
        for setting in settings.into_iter().chain([mark.clone()]) {
            if control.propose(MapCommand::Set(setting), COMMAND_TTL).await.is_err() {
                break;
            }
        }
        sleep(POLL).await;
    }
}

/// Applies every change of the map.
async fn follow(
    (service, node): (Arc<Service>, Arc<Node>),
    control: Control,
    reception: Arc<PeerHandler>,
    has_limits: oneshot::Receiver<()>,
) {
    let me = control.registered().await;
    // Without its limits, a limited key would be counted as a plain one.
    let _ = has_limits.await;
    let _ = node.me.set(me);
    tracing::info!(target: crate::LIFE, node = %me.0, incarnation = me.1.0, "in the cluster");
    let mut watch = control.watch();
    let mut vers: Vec<u32> = Vec::new();
    let mut last_lost_after = node.options.replicas.lost_after_ns;
    let mut nodes = BTreeMap::new();
    let mut last_lives = BTreeMap::new();
    let mut keepers = JoinSet::new();
    loop {
        while keepers.try_join_next().is_some() {}
        let news = watch.changed().await;
        let map = &news.map;
        let Some(head) = map.head() else { continue };
        if node.keyspace().is_none() {
            let placement = head.placement;
            let partitions = placement.partitions();
            let bits = partitions.trailing_zeros();
            node.partition_prefix.set(bits, seeds_of(head.cluster), ShardLayout(placement));
            let are_shared = service.shards().share_partitions(bits);
            let copies = Replicas::new(partitions, node.options.replicas, are_shared);
            let _ = node.keyspace.set(Keyspace { bits, replicas: copies });
            vers = vec![0; partitions];
        }
        for links in sync_peers(&node, map, &mut nodes) {
            keepers.spawn(links::keep(Arc::clone(&node), Arc::clone(&reception), links));
        }
        let Some(keyspace) = node.keyspace() else { continue };
        let lost_after = map.settings().lost_after_ms.map(|ms| ms.saturating_mul(1_000_000));
        if lost_after != last_lost_after {
            last_lost_after = lost_after;
            keyspace.replicas.set_lost_after(lost_after);
        }
        let incarnations = incarnations_of(map);
        if incarnations != last_lives {
            keyspace.replicas.logs().set_incarnations(incarnations.clone(), head.last_node);
            last_lives = incarnations;
        }
        let mut promoted = BTreeSet::new();
        reception.with_replica_context(|replica_ctx| {
            for (index, (entry, ver)) in map.partitions().iter().zip(&mut vers).enumerate() {
                if entry.ver != *ver {
                    *ver = entry.ver;
                    promoted.extend(keyspace.replicas.learn(
                        replica_ctx,
                        Partition(index as u16),
                        entry,
                    ));
                }
            }
        });
        for id in promoted {
            node.on_promoted(id, reception.now_ns());
        }
        node.learned_ver.store(map.ver(), Ordering::Release);
        node.generation.fetch_add(1, Ordering::AcqRel);
        node.wake_workers();
    }
}

/// The partition of each key, for the layout of shards.
struct ShardLayout(Placement);

impl Partitioner for ShardLayout {
    fn partition(&self, key: &[u8]) -> u64 {
        u64::from(self.0.partition(key).0)
    }

    fn partitions(&self, keys: &[&[u8]], numbers: &mut [u64]) {
        self.0.partitions_of(keys, numbers);
    }
}

/// Seeds of the key hash that all nodes of a cluster share and clients cannot know: the cluster's
/// id was drawn at random, and no client receives it.
fn seeds_of(cluster: u128) -> [u64; 4] {
    let (low, high) = (cluster as u64, (cluster >> 64) as u64);
    [low, high, low.rotate_left(32) ^ high, low ^ high.rotate_left(32)]
}

/// Opens paths to new nodes, and closes those to nodes that left the map. Returns the data links
/// that this node must open: the node with the lower id opens them.
fn sync_peers(
    node: &Node,
    map: &Map,
    known: &mut BTreeMap<NodeId, (Incarnation, String)>,
) -> Vec<Arc<DataLinks>> {
    let Some(transport) = node.transport() else { return Vec::new() };
    let (me, _) = node.me();
    let nodes = || {
        map.nodes().iter().map(|(id, node)| (id, node.incarnation, &node.description.peer_address))
    };
    // Most changes of the map are changes of partitions.
    if nodes().eq(known.iter().map(|(id, (incarnation, place))| (id, *incarnation, place))) {
        return Vec::new();
    }
    let now: BTreeMap<NodeId, (Incarnation, String)> =
        nodes().map(|(id, incarnation, place)| (*id, (incarnation, place.clone()))).collect();
    *node.places.write() = now.iter().map(|(id, (_, place))| (place.clone(), *id)).collect();
    let mut to_open = Vec::new();
    for (id, (_, address)) in &now {
        if *id != me {
            let new = || DataLinks::new(*id, address, transport.timing());
            let links = node.paths.insert(*id, transport.sender(*id, address), new, address);
            to_open.extend(links.filter(|_| me < *id));
            // A seed's link has no id: two links to one peer would conflict.
            transport.forget(&PeerAddr::Address(address.clone()));
        }
    }
    node.clocks.lock().retain(|id| now.contains_key(&id));
    for id in known.keys().filter(|id| !now.contains_key(id)) {
        transport.forget(&PeerAddr::Node(*id));
    }
    node.paths.retain(|id| now.contains_key(&id));
    *known = now;
    to_open
}

fn incarnations_of(map: &Map) -> BTreeMap<NodeId, Incarnation> {
    map.nodes().iter().map(|(id, node)| (*id, node.incarnation)).collect()
}

/// Whether an incarnation of a node is over by the map, and no copy of it is in the map.
fn is_over(map: &Map, id: NodeId, incarnation: Incarnation) -> bool {
    let is_past = match map.nodes().get(&id) {
        Some(node) => incarnation < node.incarnation,
        None => map.head().is_some_and(|head| id.0 <= head.last_node),
    };
    let is_named = |entry: &PartitionEntry| entry.copy_on(id, incarnation).is_some();
    is_past && !map.partitions().iter().any(is_named)
}

/// Drops remains of incarnations that are over in the map, which all replicas have learnt: dedup
/// logs, and links that no replica set names.
fn end_incarnations(node: &Node, copies: &Replicas, map: &Map, reception: &PeerHandler) {
    let Some(head) = map.head() else { return };
    // Records that were under way may have brought back some logs.
    copies.logs().set_incarnations(incarnations_of(map), head.last_node);
    node.links().retain_incarnations(
        |id, incarnation| is_over(map, id, incarnation),
        |link| copies.names(link),
    );
    reception.with_replica_context(|replica_ctx| copies.forget_links(replica_ctx));
}

/// A task that runs once per period.
struct Periodic {
    period_ns: u64,
    next_ns: u64,
}

impl Periodic {
    fn every(period: Duration) -> Self {
        Self { period_ns: period.as_nanos() as u64, next_ns: 0 }
    }

    fn is_now(&mut self, now_ns: u64) -> bool {
        let is_now = now_ns >= self.next_ns;
        if is_now {
            self.next_ns = now_ns + self.period_ns;
        }
        is_now
    }
}

/// Advances the time of replicas and workers.
async fn tick(node: Arc<Node>, control: Control, reception: Arc<PeerHandler>) {
    let mut contact = Periodic::every(CONTACT_PERIOD);
    let mut rest = Periodic::every(REST_PERIOD);
    let mut condition = Periodic::every(CONDITION_PERIOD);
    let mut lives = Periodic::every(INCARNATIONS_PERIOD);
    let mut part = 0;
    let mut operations = 0;
    let mut looked_ns = reception.now_ns();
    let mut is_off = false;
    let mut identity = None;
    loop {
        node.rest_until_tick(TICK, TICK_AT_REST).await;
        identify(&node, &control, &mut identity);
        let now_ns = reception.now_ns();
        node.partition_prefix.set_now(Nanos(now_ns));
        if let Some(keyspace) = node.keyspace() {
            // `now_ns` precedes the lease's age: a pause makes the contact older, never newer.
            if contact.is_now(now_ns)
                && let Some(age) = control.lease()
                && node.learned_ver.load(Ordering::Acquire) >= control.map().ver()
            {
                keyspace.replicas.contact(now_ns.saturating_sub(age.as_nanos() as u64));
            }
            reception.with_replica_context(|replica_ctx| {
                keyspace.replicas.tick_busy(replica_ctx);
                if rest.is_now(now_ns) {
                    part = (part + 1) % REST_PARTS;
                    keyspace.replicas.tick_silent(replica_ctx);
                    keyspace.replicas.store_times(replica_ctx, part, REST_PARTS);
                }
            });
        }
        if condition.is_now(now_ns) {
            let all = node.metrics.direct.load(Ordering::Relaxed)
                + node
                    .keyspace()
                    .map_or(0, |s| s.replicas.metrics.received.load(Ordering::Relaxed));
            let elapsed_ms = (now_ns - looked_ns) / 1_000_000;
            let load = (all - operations).saturating_mul(1000) / elapsed_ms.max(1);
            let load = u32::try_from(load).unwrap_or(u32::MAX);
            (operations, looked_ns) = (all, now_ns);
            // Other nodes learn this besides the map's state of the node and its copies.
            let is_ready = node.keyspace().is_some()
                && hears_control(control.lease())
                && !node.has_stopped.load(Ordering::Relaxed);
            control.set_condition(is_ready, load);
            send_clocks(&node, &control, now_ns, &mut is_off);
        }
        if lives.is_now(now_ns)
            && let Some(keyspace) = node.keyspace()
        {
            let map = control.map();
            if node.learned_ver.load(Ordering::Acquire) >= map.ver() {
                end_incarnations(&node, &keyspace.replicas, &map, &reception);
            }
        }
        node.tick_data_links(reception.now_ns());
        if node.paths.is_unsettled() {
            let is_alone = control.contact().is_none_or(|age| age >= ALONE);
            node.update_reachability(reception.now_ns(), Some(is_alone), |_| {});
        }
        node.ticks.fetch_add(1, Ordering::AcqRel);
        for inbox in &node.inboxes {
            if inbox.is_waiting.load(Ordering::Acquire) {
                inbox.wake();
            }
        }
    }
}

/// Reports this node's identity to peers, if it differs from `last`.
fn identify(node: &Node, control: &Control, last: &mut Option<control::NodeIdentity>) {
    let identity = control.identity();
    if *last != Some(identity)
        && let Some(transport) = node.transport()
    {
        let (cluster, id, incarnation) = match identity.membership {
            Some(membership) => (membership.cluster, membership.node, identity.incarnation),
            // All nodes that seek a cluster have id 0. Their uuids, in place of incarnations,
            // distinguish them, so that a link of one does not end that of another.
            None => (0, NodeId::default(), Incarnation(identity.node_uuid as u64)),
        };
        transport.identify(PeerIdentity { cluster, node: id, incarnation, core: 0 });
        *last = Some(identity);
    }
}

/// Reports the offsets of clocks, and logs when this node's clock is off, or right again.
fn send_clocks(node: &Node, control: &Control, now_ns: u64, was_off: &mut bool) {
    let (me, _) = node.me();
    let mut clocks = node.clocks.lock().all(now_ns);
    clocks.insert(me, 0);
    let leader = control.status().leader;
    let before = was_off.then_some(me).into_iter().collect();
    let is_off = clocks::off(&clocks, leader, &before).contains(&me);
    if is_off != *was_off {
        *was_off = is_off;
        let ahead_ms = clocks::common_ms(&clocks, leader).map_or(0, i64::saturating_neg);
        if is_off {
            tracing::warn!(
                ahead_ms,
                "this node's clock is off, so it becomes primary last: correct its time"
            );
        } else {
            tracing::info!(ahead_ms, "this node's clock is right again");
        }
    }
    control.set_clocks(clocks);
}

/// Proposes to the controller the changes that replicas ask for.
async fn propose_changes(node: Arc<Node>, control: Control) {
    let mut next = Partition::default();
    loop {
        node.proposals_wanted.notified().await;
        while let Some(keyspace) = node.keyspace()
            && keyspace.replicas.has_proposals()
        {
            let mut changes = keyspace.replicas.proposals(next, PROPOSALS_MAX);
            let Some(last) = changes.last() else { continue };
            next = Partition(last.partition.0.wrapping_add(1));
            let map = control.map();
            // The controller would refuse a change that was decided on an older version.
            let is_current = |change: &MapChange| {
                map.entry(change.partition).is_some_and(|e| e.ver <= change.ver)
            };
            changes.retain(is_current);
            drop(map);
            if changes.is_empty() {
                continue;
            }
            // A replica repeats a change that was refused or lost.
            let _ = control.propose(MapCommand::Partitions(changes), COMMAND_TTL).await;
        }
    }
}
