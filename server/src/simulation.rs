//! A server as a task in a simulated world, beside others.
//!
//! Here: the replacements for the process (random numbers, skewed clocks, cut links), and a node
//! without threads, signals and files. Not here: the sockets (`net::simulated`), the scenarios and
//! their checks (`tests/sim`).
//!
//! A world belongs to one thread. Its seed determines all random numbers, and each host has its own
//! clock.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

pub use cluster::map::Map;
pub use cluster::replica::{Position, Role};
pub use cluster::{Bug, Rules};
pub use control::Status;
pub use control::simulation::{Disk, DiskFault};

use crate::config::Config;
use crate::limits::Limits;
use crate::net::Listener;
use crate::net::simulated::{SimListener as SimulatedListener, Sockets};
use crate::node::lifecycle::Setup;
use crate::server::{self, ServerError};
use crate::service::Service;
use crate::worker;

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// The state that the hosts of a simulation share.
#[derive(Default)]
pub(crate) struct World {
    chance: u64,
    bug: Option<Bug>,
    /// The host of each runtime, by runtime id.
    hosts: BTreeMap<String, Host>,
    /// The newest process at each address.
    services: BTreeMap<IpAddr, Weak<Service>>,
    cuts: BTreeSet<(IpAddr, IpAddr)>,
    pub(crate) sockets: Sockets,
}

#[derive(Clone)]
struct Host {
    address: IpAddr,
    clock: Arc<HostClock>,
}

impl World {
    fn draw(&mut self) -> u64 {
        // SplitMix64, as in `control`.
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.chance;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn here(&self) -> Option<&Host> {
        let id: Id = Handle::try_current().ok()?.id();
        self.hosts.get(&id.to_string())
    }

    /// Returns whether segments pass from the current host to `to` and back.
    pub(crate) fn is_in_reach(&self, to: IpAddr) -> bool {
        self.here().is_none_or(|here| {
            let from = here.address;
            !self.cuts.contains(&(from, to)) && !self.cuts.contains(&(to, from))
        })
    }
}

/// Runs `work` on the world of this thread; without a world, on an empty one that is dropped.
pub(crate) fn with_world<T>(work: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(|world| match world {
        Some(world) => work(world),
        None => work(&mut World::default()),
    })
}

/// Returns whether this thread has a world.
pub(crate) fn is_on() -> bool {
    WORLD.with_borrow(Option::is_some)
}

/// Fills `bytes` from the seed. Returns false without a world.
pub(crate) fn fill(bytes: &mut [u8]) -> bool {
    WORLD.with_borrow_mut(|world| {
        let Some(world) = world else { return false };
        for chunk in bytes.chunks_mut(8) {
            let drawn = world.draw().to_le_bytes();
            chunk.copy_from_slice(&drawn[..chunk.len()]);
        }
        true
    })
}

/// Creates a world on this thread. `bug` names a rule that is disabled in it.
pub fn begin(seed: u64, bug: Option<Bug>) {
    WORLD.with_borrow_mut(|world| *world = Some(World { chance: seed, bug, ..World::default() }));
}

/// Returns the rules in force in this world.
pub(crate) fn rules() -> Rules {
    let bug = WORLD.with_borrow(|world| world.as_ref()?.bug);
    bug.map(Rules::without).unwrap_or_default()
}

/// Removes the world of this thread.
pub fn end() {
    let world = WORLD.with_borrow_mut(Option::take);
    drop(world);
}

/// Drops everything sent from `from` to `to` from now on; to be called together with turmoil's own
/// cut.
pub fn cut(from: IpAddr, to: IpAddr) {
    with_world(|world| world.cuts.insert((from, to)));
}

/// Repairs the links between two hosts. Streams that lost bytes end: call this before turmoil's own
/// repair.
pub fn mend(one: IpAddr, other: IpAddr) {
    with_world(|world| {
        world.cuts.remove(&(one, other));
        world.cuts.remove(&(other, one));
        world.sockets.break_between(one, other);
    });
}

/// Ends the streams between two hosts, as after a timeout.
pub fn break_streams(one: IpAddr, other: IpAddr) {
    with_world(|world| world.sockets.break_between(one, other));
}

/// The error of a host's clock. It outlives the host's processes.
#[derive(Debug, Default)]
pub struct Skew {
    /// Milliseconds by which the wall clock is ahead.
    pub ahead_ms: AtomicI64,
    /// Millionths by which time runs faster.
    pub fast_ppm: AtomicI64,
    /// The wall clock shows the true time, whatever the other fields contain.
    pub is_right: AtomicBool,
}

/// The clock of one process.
#[derive(Debug)]
pub(crate) struct HostClock {
    skew: Arc<Skew>,
    start_unix: Duration,
    shown: Mutex<(Instant, u64)>,
}

impl HostClock {
    fn new(skew: Arc<Skew>) -> Self {
        let start_unix = turmoil::since_epoch().unwrap_or_default();
        Self { skew, start_unix, shown: Mutex::new((Instant::now(), 0)) }
    }

    /// Returns the time since the start of the process.
    pub(crate) fn elapsed(&self) -> Duration {
        let mut told = self.shown.lock();
        let now = Instant::now();
        let passed = i128::try_from(now.duration_since(told.0).as_nanos()).unwrap_or_default();
        let fast = i128::from(self.skew.fast_ppm.load(Ordering::Relaxed));
        let passed = passed * (1_000_000 + fast) / 1_000_000;
        *told = (now, told.1 + u64::try_from(passed).unwrap_or_default());
        Duration::from_nanos(told.1)
    }

    /// Returns the time since 1970.
    pub(crate) fn unix(&self) -> Duration {
        if self.skew.is_right.load(Ordering::Relaxed) {
            return turmoil::since_epoch().unwrap_or_default();
        }
        let ahead = self.skew.ahead_ms.load(Ordering::Relaxed);
        let right = self.start_unix + self.elapsed();
        let by = Duration::from_millis(ahead.unsigned_abs());
        if ahead < 0 { right.saturating_sub(by) } else { right + by }
    }
}

/// Returns the clock of the current host, if it is simulated.
pub(crate) fn clock() -> Option<Arc<HostClock>> {
    WORLD.with_borrow(|world| Some(Arc::clone(&world.as_ref()?.here()?.clock)))
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
}

impl NodeLife {
    /// Runs the node on the current runtime until it is stopped or leaves its cluster. Returns true
    /// if it left.
    ///
    /// # Errors
    ///
    /// The same as those of a server.
    pub async fn run(self) -> Result<bool, ServerError> {
        let Self { config, limits, disk, skew, address, ports } = self;
        let clock = Arc::new(HostClock::new(skew));
        let id = Handle::current().id().to_string();
        with_world(|world| world.hosts.insert(id, Host { address, clock }));
        let seeds = server::random_seeds()?;
        let service = Service::new(config, None, limits, seeds, Box::new(|_| ()));
        let service = Arc::new(service);
        with_world(|world| world.services.insert(address, Arc::downgrade(&service)));
        service.port.store(usize::from(ports.0), Ordering::Relaxed);
        let bind = |port| async move {
            let place = SocketAddr::new(address, port);
            SimulatedListener::bind(place).await.map(Listener::Simulated)
        };
        let clients = vec![bind(ports.0).await?];
        let peers = vec![bind(ports.1).await?];
        let store = disk.store().map_err(crate::node::lifecycle::NodeError::from)?;
        let setup = Setup::new(service.config(), store, peers, ports)?;
        let workers =
            (0..service.config().threads).map(|index| worker::task(&service, index)).collect();
        let until = server::run_housekeeping_until_stopped(&service);
        match server::serve(&service, Some(setup), clients, workers, until).await {
            // A disk fault or a short drain time is not an error of the node.
            Ok(()) | Err(ServerError::Fault(_) | ServerError::LeftCopies(_)) => {}
            Err(error) => return Err(error),
        }
        let control = service.node().and_then(|node| node.control());
        Ok(control
            .is_some_and(|control| control.membership_state() == control::MembershipState::Gone))
    }
}

/// The state of a node at one moment, for checks.
#[derive(Debug)]
pub struct NodeView {
    /// Its map.
    pub map: Arc<Map>,
    /// The status of its control plane.
    pub status: Status,
    /// Its copies, by partition; `None` for one that it never had.
    pub replicas: Vec<Option<ReplicaView>>,
}

/// The state of a copy at one moment.
#[derive(Debug)]
pub struct ReplicaView {
    /// Its role.
    pub role: Role,
    /// The highest term it has seen.
    pub term: u32,
    /// The last record it holds.
    pub position: Position,
    /// Operations that it holds back.
    pub held: usize,
}

/// Returns the state of the newest process at an address; `None` before it has a control plane.
#[must_use]
pub fn view(address: IpAddr) -> Option<NodeView> {
    let service = with_world(|world| world.services.get(&address).and_then(Weak::upgrade))?;
    let node = service.node()?;
    let control = node.control()?;
    let copies = node.keyspace().map(|keyspace| keyspace.replicas.views()).unwrap_or_default();
    Some(NodeView { map: control.map(), status: control.status(), replicas: copies })
}

/// Returns the keys of a partition on a node, and their states at `unix_ms`.
#[must_use]
pub fn items(address: IpAddr, partition: u16, unix_ms: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let service = with_world(|world| world.services.get(&address).and_then(Weak::upgrade));
    let mut items = BTreeMap::new();
    let Some((service, bits)) = service.and_then(|service| {
        let bits = service.node()?.keyspace()?.bits;
        Some((service, bits))
    }) else {
        return items;
    };
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
    let service = with_world(|world| world.services.get(&address).and_then(Weak::upgrade));
    if let Some(service) = service {
        service.stop();
    }
}
