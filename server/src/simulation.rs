//! A server as a task in a simulated world, beside others.
//!
//! Here: a node without threads, signals and files, and views of its state; `edit`, changes of its
//! limits; `query`, questions to all nodes. Not here: the world (`net::world`), its sockets
//! (`net::simulated`), the scenarios and their checks (`tests/sim`).

mod edit;
mod query;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

pub use cluster::map::command::Setting;
pub use cluster::map::{
    FEATURE_VERSION_MAX, Map, MapAnswer, MapCommand, MapRefusal, NodeState, Put, RECORDS_VERSION,
};
use cluster::message::{VERSION_MAX, VERSION_MIN};
pub use cluster::replica::{Position, Role};
pub use cluster::{Bug, Rules};
pub use control::simulation::{Disk, DiskFault};
pub use control::{CommandOutcome, ProposeError, Status};
use tokio::runtime::Handle;
pub use tollgate_http::{Actor, ChangedLimit, LimitChange, OverrideChange, ServiceError, Via};
use tollgate_limits::Limits;

pub use self::edit::{LimitsEdit, policy_in_force, start_edit, start_proposal};
pub use self::query::{QueryResult, start_query};
use crate::config::Config;
use crate::io::worker;
use crate::net::Listener;
use crate::net::simulated::SimListener as SimulatedListener;
use crate::net::world;
pub use crate::net::world::{Skew, break_streams, cut, mend};
use crate::node::Node;
pub use crate::node::replicas::ReplicaView;
use crate::node::setup::Setup;
use crate::runtime::service::Service;
use crate::server::{self, ServerError};

thread_local! {
    /// The newest life at each address.
    static SERVICES: RefCell<BTreeMap<IpAddr, LifeHandle>> = const { RefCell::new(BTreeMap::new()) };
}

/// The state of a life while it runs.
struct LifeHandle {
    service: Weak<Service>,
    node: Weak<Node>,
    runtime: Handle,
}

/// Creates a world on this thread. `bug` names a rule that is disabled in it.
pub fn begin(seed: u64, bug: Option<Bug>) {
    SERVICES.with_borrow_mut(BTreeMap::clear);
    world::begin(seed, bug);
}

/// Removes the world of this thread.
pub fn end() {
    SERVICES.with_borrow_mut(BTreeMap::clear);
    world::end();
}

fn service(address: IpAddr) -> Option<Arc<Service>> {
    SERVICES.with_borrow(|services| services.get(&address).and_then(|life| life.service.upgrade()))
}

fn runtime(address: IpAddr) -> Option<Handle> {
    SERVICES.with_borrow(|services| Some(services.get(&address)?.runtime.clone()))
}

fn node(address: IpAddr) -> Option<Arc<Node>> {
    SERVICES.with_borrow(|services| services.get(&address).and_then(|life| life.node.upgrade()))
}

/// One process of a node.
pub struct NodeLife {
    /// The configuration: a cluster with addresses as seeds, and the advertised ports.
    pub config: Config,
    /// The limits in force.
    pub limits: Limits,
    /// The control plane's disk.
    pub disk: Disk,
    /// The error of its clock.
    pub skew: Arc<Skew>,
    /// The host's address.
    pub address: IpAddr,
    /// The ports for clients and for peers.
    pub ports: (u16, u16),
    /// The newest version of the peer protocol that it speaks, from [`PEER_VERSION_OLD`] to
    /// [`PEER_VERSION_NEW`].
    pub peer_version: u16,
    /// The rules by which its map applies commands.
    pub map_rules: Rules,
}

/// The peer protocol of nodes that know neither changes of several records nor queries.
pub const PEER_VERSION_OLD: u16 = VERSION_MIN;
/// The newest peer protocol.
pub const PEER_VERSION_NEW: u16 = VERSION_MAX;

impl NodeLife {
    /// Runs the node on the current runtime until it is stopped or leaves its cluster. Returns true
    /// if it left.
    ///
    /// # Errors
    ///
    /// The same as those of a server.
    pub async fn run(self) -> Result<bool, ServerError> {
        let Self { config, limits, disk, skew, address, ports, peer_version, map_rules } = self;
        world::enter(address, skew);
        let seeds = server::random_seeds()?;
        let service = Service::new(config, None, limits, seeds, Box::new(|_| ()));
        let service = Arc::new(service);
        let Some(node) = Node::of(&service) else {
            return Err(io::Error::other("the configuration has no cluster").into());
        };
        query::answer_queries(&node, address);
        let (weak_service, weak_node) = (Arc::downgrade(&service), Arc::downgrade(&node));
        let runtime = Handle::current();
        let life = LifeHandle { service: weak_service, node: weak_node, runtime };
        SERVICES.with_borrow_mut(|services| services.insert(address, life));
        service.port.store(usize::from(ports.0), Ordering::Relaxed);
        let bind = |port| async move {
            let place = SocketAddr::new(address, port);
            SimulatedListener::bind(place).await.map(Listener::Simulated)
        };
        let clients = vec![bind(ports.0).await?];
        let peers = vec![bind(ports.1).await?];
        let store = disk.store_by(map_rules).map_err(crate::node::setup::NodeError::from)?;
        let mut setup = Setup::new(service.config(), Arc::clone(&node), store, peers, ports)?;
        setup.transport.versions = PEER_VERSION_OLD..=peer_version;
        let threads = 0..service.config().threads;
        let workers = threads.map(|index| worker::task(&service, Some(&node), index)).collect();
        let until = server::run_housekeeping_until_stopped(&service, Some(&node));
        match server::serve(&service, Some(setup), clients, workers, until).await {
            // A disk fault or a short drain time is not an error of the node.
            Ok(()) | Err(ServerError::Fault(_) | ServerError::LeftCopies(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(node
            .control()
            .is_some_and(|control| control.membership_state() == control::MembershipState::Gone))
    }
}

/// The state of a node at one moment, for checks.
#[derive(Debug)]
pub struct SimulatedNode {
    /// Its map.
    pub map: Arc<Map>,
    /// The status of its control plane.
    pub status: Status,
    /// Its copies, by partition.
    pub replicas: Vec<ReplicaView>,
    /// The reason why other nodes refuse it, as operators read it.
    pub refusal: Option<String>,
}

/// Looks at the newest life at an address; none before it has a control plane.
#[must_use]
pub fn view(address: IpAddr) -> Option<SimulatedNode> {
    let node = node(address)?;
    let control = node.control()?;
    let copies = node.keyspace().map(|keyspace| keyspace.replicas.views(&node)).unwrap_or_default();
    let (map, status, refusal) = (control.map(), control.status(), node.refusal());
    Some(SimulatedNode { map, status, replicas: copies, refusal })
}

/// Returns the keys of a partition on a node, and their states at `unix_ms`.
#[must_use]
pub fn items(address: IpAddr, partition: u16, unix_ms: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut items = BTreeMap::new();
    let bits = node(address).and_then(|node| Some(node.keyspace()?.bits));
    let (Some(service), Some(bits)) = (service(address), bits) else { return items };
    let range = engine::HashRange { prefix: u64::from(partition), bits };
    let mono = crate::node::state_machine::items_time(unix_ms.saturating_mul(1_000_000));
    let now = engine::Now { mono, unix_ms };
    let mut cursor: Option<Vec<u8>> = None;
    loop {
        let max = 1 << 20;
        cursor = service.shards().export(now, range, cursor.as_deref(), max, |key, state| {
            items.insert(key.to_vec(), state.to_vec());
        });
        if cursor.is_none() {
            return items;
        }
    }
}

/// Stops the newest process at an address: it leaves its cluster and ends, as after SIGTERM.
pub fn stop(address: IpAddr) {
    if let Some(service) = service(address) {
        service.stop();
    }
}
