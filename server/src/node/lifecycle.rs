//! A node's tasks, from its start to its end.
//!
//! Here: starting transport and control plane, following the map, proposing changes to the
//! controller. Not here: the prerequisites of the start (`setup`), ticks (`ticks`), the
//! effect of the map on a replica (`replicas`), the decisions of the control plane (`control`), the
//! way out (`leave`), log lines about other nodes (`events`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cluster::id::{Incarnation, NodeId, Partition};
use cluster::map::command::{FOUNDED, MapChange, Setting, YES};
use cluster::map::{Map, MapCommand, Settings};
use cluster::placement::Placement;
use control::Control;
use engine::{Partitioner, StepCount};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::inbound::{PeerClient, PeerHandler};
use super::leave::{self, LeaveOutcome};
use super::links::DataLinks;
use super::replicas::Replicas;
use super::setup::{NodeError, Setup, resolve};
use super::{Keyspace, Node, events, limits, links, ticks, updates};
use crate::config::Seed;
use crate::records::MapRecords;
use crate::runtime::service::Service;
use crate::transport::{FrameHandler as _, PeerAddr, Transport};

/// Most changes of the map that replicas propose in one command.
const PROPOSALS_MAX: usize = cluster::map::command::CHANGES_MAX;
/// The time to live of this node's commands.
pub(super) const COMMAND_TTL: Duration = Duration::from_secs(2);
/// Time between two look-ups of seed names.
const SEEDS_PERIOD: Duration = Duration::from_secs(30);
/// Time between two looks at state that has no notification.
pub(super) const POLL: Duration = Duration::from_millis(20);

/// The feature version of the map from which on all nodes read holds with the usage since their
/// takes.
const HOLD_USAGE_VERSION: u32 = cluster::map::LIMITS_VERSION;

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
    // Until the map says what all nodes know.
    service.shards().keep_hold_usage(false);
    let _ = node.runtime.set(tokio::runtime::Handle::current());
    let reception = Arc::new(PeerHandler::new(Arc::clone(service), Arc::clone(&node)));
    let transport =
        Transport::start(setup.transport, setup.listeners, Arc::clone(&reception) as _)?;
    let _ = node.transport.set(transport);
    let post = Arc::new(PeerClient(Arc::clone(&node), Arc::clone(service)));
    let control = Control::start(setup.store, setup.control, post).await?;
    let _ = node.control.set(control.clone());
    let mut tasks = JoinSet::new();
    service.limits_store().set_records(Arc::new(MapRecords::new(control.clone())));
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
    tasks.spawn(ticks::tick(Arc::clone(&node), control.clone(), Arc::clone(&reception)));
    if let Some(cluster) = &service.config().cluster {
        tasks.spawn(look_up(control.clone(), cluster.seeds.clone()));
        let (replicas, lost_after) = (cluster.replicas, cluster.lost_after);
        tasks.spawn(found(Arc::clone(&node), control.clone(), replicas, lost_after));
    }
    if service.config().limits_file.is_some() {
        let texts = node.limits_file.get();
        let both = (Arc::clone(service), Arc::clone(&node));
        tasks.spawn(limits::follow_file(both, control.clone(), texts));
    }
    tasks.spawn(updates::follow(Arc::clone(service), Arc::clone(&node), control.clone()));
    tasks.spawn(events::log_events(Arc::clone(service), control.clone()));
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

/// Gives a new cluster its settings and limits, once, on the node that founded it. An operator's
/// setting waits for the mark, because this task would replace it.
async fn found(node: Arc<Node>, control: Control, replicas: u8, lost_after: Option<Duration>) {
    control.registered().await;
    let is_founder = control.identity().membership.is_some_and(|membership| membership.is_founder);
    let lost_after_ms = lost_after.map(|after| after.as_millis() as u64);
    let mark = Setting::Other { name: FOUNDED.to_owned(), value: Some(YES.to_owned()) };
    while is_founder && !control.map().settings().others.contains_key(FOUNDED) {
        let settings = [Setting::Replicas(replicas), Setting::LostAfterMs(lost_after_ms)];
        updates::raise(&node, &control).await;
        limits::found(&node, &control, &node.limits_file.get()).await;
        if node.limits_file.failure().is_some() {
            // A marked cluster would be served without limits.
            return;
        }
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
    let _ = node.me.set(me);
    let mut nodes = BTreeMap::new();
    let mut to_open = until_limits(&node, &control, has_limits, &mut nodes).await;
    tracing::info!(target: crate::LIFE, node = %me.0, incarnation = me.1.0, "in the cluster");
    let mut watch = control.watch();
    let mut settings = None;
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
            node.partition_prefix.set_times(copies.item_times(node.links()));
            let _ = node.keyspace.set(Keyspace { bits, replicas: copies });
        }
        to_open.extend(sync_peers(&node, map, &mut nodes));
        for links in to_open.drain(..) {
            keepers.spawn(links::keep(Arc::clone(&node), Arc::clone(&reception), links));
        }
        let Some(keyspace) = node.keyspace() else { continue };
        if settings.as_ref() != Some(map.settings()) {
            apply(map.settings(), &service, &keyspace.replicas);
            settings = Some(map.settings().clone());
        }
        let incarnations = incarnations_of(map);
        if incarnations != last_lives {
            keyspace.replicas.logs().set_incarnations(incarnations.clone(), head.last_node);
            last_lives = incarnations;
        }
        let changes = keyspace.replicas.changes(map.partitions());
        let mut promoted = BTreeSet::new();
        reception.with_replica_context(|replica_ctx| {
            for partition in &changes.partitions {
                let entry = &map.partitions()[partition.index()];
                promoted.extend(keyspace.replicas.learn(replica_ctx, *partition, entry));
            }
        });
        keyspace.replicas.share_entries(&changes.partitions, map.partitions());
        for id in promoted {
            node.on_promoted(id, reception.now_ns());
        }
        log_lost(&changes.lost);
        node.learned_ver.store(map.ver(), Ordering::Release);
        node.generation.fetch_add(1, Ordering::AcqRel);
        node.wake_workers();
    }
}

/// Applies the settings of the map.
fn apply(settings: &Settings, service: &Service, replicas: &Replicas) {
    replicas.set_lost_after(settings.lost_after_ms.map(|ms| ms.saturating_mul(1_000_000)));
    service.shards().keep_hold_usage(settings.version >= HOLD_USAGE_VERSION);
}

/// Logs the partitions that started empty since the last map.
fn log_lost(lost: &[Partition]) {
    if let [first, ..] = lost {
        tracing::warn!(
            target: crate::LIFE,
            partitions = lost.len(),
            "counts are lost: no node had a copy of partition {first} and those counted here any \
             more, so they start empty"
        );
    }
}

/// Opens paths to the nodes of the map until the first limits are in force: without them, a limited
/// key would be counted as a plain one. Returns the data links that this node must open then.
async fn until_limits(
    node: &Node,
    control: &Control,
    mut has_limits: oneshot::Receiver<()>,
    nodes: &mut BTreeMap<NodeId, (Incarnation, String)>,
) -> Vec<Arc<DataLinks>> {
    let mut watch = control.watch();
    let mut to_open = Vec::new();
    loop {
        tokio::select! {
            biased;
            _ = &mut has_limits => return to_open,
            news = watch.changed() => {
                if news.map.head().is_some() {
                    to_open.extend(sync_peers(node, &news.map, nodes));
                }
            }
        }
    }
}

/// Keys whose place was computed: an MD5 each, unless the cluster places keys by another function.
pub static PLACED_KEYS: StepCount = StepCount::new();

/// The partition of each key, for the layout of shards.
struct ShardLayout(Placement);

impl Partitioner for ShardLayout {
    fn partition(&self, key: &[u8]) -> u64 {
        PLACED_KEYS.add(1);
        u64::from(self.0.partition(key).0)
    }

    fn partitions(&self, keys: &[&[u8]], numbers: &mut [u64]) {
        PLACED_KEYS.add(keys.len());
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

pub(super) fn incarnations_of(map: &Map) -> BTreeMap<NodeId, Incarnation> {
    map.nodes().iter().map(|(id, node)| (*id, node.incarnation)).collect()
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
