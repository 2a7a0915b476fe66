//! Starts a server from a configuration, and stops it.
//!
//! Here: binding, starting the workers, housekeeping, signals, the drain. Not here: preparing the
//! process (`process`, `main`).

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::LIFE;
use crate::config::Config;
use crate::files;
use crate::io::worker::{self, WorkerHandle};
use crate::limits::map_text::LimitText;
use crate::limits::{Limits, no_limits};
use crate::net::random;
use crate::net::{BoundListener, Listener};
use crate::node::hand_over;
use crate::node::leave::{self, LeaveOutcome};
use crate::node::lifecycle::{self, NodeError, PeerListeners};
use crate::node::{self, Node};
use crate::runtime::auth::AuthFile;
use crate::runtime::connections::HangUp;
use crate::runtime::limits_file::LimitsFile;
use crate::runtime::listeners::{BindError, bind_each};
use crate::runtime::service::Service;
use crate::runtime::snapshot::keeper::{self, Keeper};
use crate::runtime::snapshot::{self, SnapshotError};

/// Period of the sweep and the idle check.
const HOUSEKEEPING_PERIOD: Duration = Duration::from_millis(100);
/// Pause between two steps of a sweep, of which a period has at most 32, so that a worker on the
/// same processor can run.
const SWEEP_PAUSE: Duration = Duration::from_millis(2);
/// The sweep visits every item once in this many periods: half a minute.
const SWEEP_PARTS: usize = 300;
/// Period of the check for a changed limits file.
const LIMITS_FILE_PERIOD: Duration = Duration::from_secs(1);
/// After a stop request, keep accepting for this long so that clients already in the backlog are
/// served.
const DRAIN_LISTEN: Duration = Duration::from_millis(100);
/// For this long, requests already sent are read to their end. A client that continues to send is
/// then disconnected between two requests.
const DRAIN_READ: Duration = Duration::from_secs(5);
/// Longest wait for threads that write to a disk.
const SHUTDOWN_MAX: Duration = Duration::from_secs(2);
/// Longest drain: clients still within a request or a reply are then disconnected.
const DRAIN_MAX: Duration = Duration::from_secs(20);

/// The reason why a server could not start, or ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// An address or path cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A file named in the configuration cannot be used.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The authentication file is faulty.
    #[error(transparent)]
    Auth(#[from] crate::runtime::auth::AuthError),
    /// The limits file is faulty.
    #[error(transparent)]
    Limits(#[from] crate::limits::LimitsError),
    /// None of the configured limits can be put in force.
    #[error("no limits can be put in force: {0}")]
    NoLimits(String),
    /// The snapshot could not be written at the end.
    #[error("snapshot not saved: {0}")]
    Snapshot(SnapshotError),
    /// A snapshot cannot be written at the configured path.
    #[error(transparent)]
    SnapshotPlace(SnapshotError),
    /// The node of the cluster cannot start.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The control log could not be written when the server stopped.
    #[error("ended with a fault: {0}")]
    Fault(String),
    /// Another process runs as the same node.
    #[error("{0}")]
    Ended(String),
    /// The server ended before other nodes had copies of all its partitions.
    #[error("left {0} partitions of which no other node has a copy: --drain-timeout was too short")]
    LeftCopies(usize),
    /// The system refused threads, signals or similar resources.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

impl ServerError {
    /// Returns whether another start with the same files would fail too, so that a supervisor
    /// should not retry.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Auth(_)
            | Self::Limits(_)
            | Self::NoLimits(_)
            | Self::SnapshotPlace(_)
            | Self::Node(NodeError::Security(_)) => true,
            Self::Bind(_)
            | Self::File { .. }
            | Self::Snapshot(_)
            | Self::Node(_)
            | Self::Fault(_)
            | Self::Ended(_)
            | Self::LeftCopies(_)
            | Self::System(_) => false,
        }
    }
}

/// A server with bound addresses that does not serve yet.
pub struct Server {
    service: Arc<Service>,
    /// This process's node, in a cluster.
    node: Option<Arc<Node>>,
    listeners: Vec<BoundListener>,
    limits_file: LimitsFile,
    peers: Option<PeerListeners>,
    runtime: Runtime,
    signals: Signals,
}

/// The handled signals. Once this exists, they no longer kill the process.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    save: Signal,
    /// Saves a snapshot; the server continues.
    keep: Signal,
    reload: Signal,
}

impl Signals {
    fn listen(runtime: &Runtime) -> io::Result<Self> {
        let _context = runtime.enter();
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            save: signal(SignalKind::user_defined1())?,
            keep: signal(SignalKind::user_defined2())?,
            reload: signal(SignalKind::hangup())?,
        })
    }
}

impl Server {
    /// Binds all addresses of `config` and reads the files that it names. `verbosity` receives the
    /// level of each `verbosity` command.
    ///
    /// # Errors
    ///
    /// The first error of these steps.
    pub fn bind(
        config: Config,
        verbosity: impl Fn(u32) + Send + Sync + 'static,
    ) -> Result<Self, ServerError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Listen for signals before the bound ports make the process visible to those that send
        // them.
        let signals = Signals::listen(&runtime)?;
        if let Some(path) = &config.snapshot_file {
            snapshot::check(path).map_err(ServerError::SnapshotPlace)?;
        }
        let users = config.auth_file.as_deref().map(AuthFile::load).transpose()?;
        let limits_file = LimitsFile::now(&config);
        let (mut limits, mut texts) = (Limits::default(), Vec::new());
        match &config.limits_file {
            Some(path) if config.cluster.is_some() => {
                let file = LimitText::load(path)?;
                if file.limits.is_empty() && !file.allow_empty {
                    tracing::warn!("{}", no_limits(path));
                }
                texts = file.limits;
            }
            Some(path) => {
                limits = Limits::load(path)?;
                if let Some(warning) = limits.warning(path) {
                    tracing::warn!("{warning}");
                }
            }
            None => {}
        }
        let listeners = bind_all(&config)?;
        let addresses: Vec<SocketAddr> =
            listeners.iter().filter_map(BoundListener::address).collect();
        if let Some(path) = &config.port_file {
            write_ports(path, &addresses)
                .map_err(|source| ServerError::File { path: path.clone(), source })?;
        }
        let port = addresses.first().map_or(0, SocketAddr::port);
        let peers = config
            .cluster
            .as_ref()
            .map(|cluster| PeerListeners::bind(cluster, port, config.backlog))
            .transpose()?;
        let service = Service::new(config, users, limits, random_seeds()?, Box::new(verbosity));
        let node = Node::of(&service);
        if let Some(node) = &node {
            node.limits_file.change(texts);
        }
        service.port.store(usize::from(port), Ordering::Relaxed);
        let service = Arc::new(service);
        Ok(Self { service, node, listeners, limits_file, peers, runtime, signals })
    }

    /// Returns the bound TCP addresses.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(BoundListener::address).collect()
    }

    /// Returns the shared state, to inspect it or to stop the server from another thread.
    #[must_use]
    pub fn service(&self) -> Arc<Service> {
        Arc::clone(&self.service)
    }

    /// Serves until a signal or the `shutdown` command stops it.
    ///
    /// # Errors
    ///
    /// The system refuses threads or signals, or the final snapshot cannot be saved.
    pub fn run(self) -> Result<(), ServerError> {
        let Self { service, node, listeners, limits_file, peers, runtime, signals } = self;
        keeper::restore(&service).map_err(ServerError::SnapshotPlace)?;
        let keeper = Keeper::start(&service)?;
        let workers = (0..service.config().threads)
            .map(|index| worker::start(&service, node.as_ref(), index))
            .collect::<io::Result<_>>()?;
        let served = runtime.block_on(async {
            let setup = peers.zip(node.clone());
            let setup =
                setup.map(|(peers, node)| peers.setup(service.config(), node)).transpose()?;
            let infos = listeners.iter().map(BoundListener::info).collect();
            service.connections().set_listeners(infos);
            let listeners = listeners.into_iter().map(BoundListener::attach);
            let listeners = listeners.collect::<io::Result<_>>()?;
            let shared = (&*service, node.as_deref());
            let until = handle_signals(shared, limits_file, signals, keeper.as_ref());
            serve(&service, setup, listeners, workers, until).await
        });
        // A write may block as long as its disk does.
        runtime.shutdown_timeout(SHUTDOWN_MAX);
        let failure = node.as_ref().and_then(|node| node.limits_file.failure());
        let served = match failure {
            Some(why) if served.is_ok() => Err(ServerError::NoLimits(why.to_owned())),
            _ => served,
        };
        let config = service.config();
        let unix_socket = config.unix_socket.as_ref().map(|socket| &socket.path);
        for path in unix_socket.into_iter().chain(&config.admin_socket) {
            // The file may no longer exist.
            let _ = std::fs::remove_file(path);
        }
        if let Some(keeper) = keeper {
            keeper.end();
        }
        served?;
        if let Some(path) = &service.config().snapshot_file {
            let items = snapshot::save(service.shards(), service.clock().now(), path, || true)
                .map_err(ServerError::Snapshot)?;
            tracing::info!(items, path = %path.display(), "snapshot saved");
        }
        Ok(())
    }
}

/// Serves on the current runtime with these workers until `until` completes, then ends the workers.
///
/// # Errors
///
/// The node of the cluster cannot start.
pub(crate) async fn serve(
    service: &Arc<Service>,
    setup: Option<lifecycle::Setup>,
    listeners: Vec<Listener>,
    workers: Vec<WorkerHandle>,
    until: impl Future<Output = ()>,
) -> Result<(), ServerError> {
    let workers = Arc::new(workers);
    let tasks = match setup {
        Some(setup) => Some(lifecycle::start(service, setup).await?),
        None => None,
    };
    let mut accepting = tokio::task::JoinSet::new();
    for listener in listeners {
        let (service, workers) = (Arc::clone(service), Arc::clone(&workers));
        accepting.spawn(crate::io::listener::accept(service, listener, workers));
    }
    until.await;
    let since = Instant::now();
    sleep(DRAIN_LISTEN).await;
    if let (Some(tasks), Some(cluster)) = (&tasks, &service.config().cluster) {
        leave::announce(tasks.node());
        hand_over::hand_over(tasks.node(), cluster.drain_timeout / 2).await;
    }
    accepting.abort_all();
    while accepting.join_next().await.is_some() {}
    drain(service).await;
    let mut ended = Ok(());
    if let (Some(tasks), Some(cluster)) = (&tasks, &service.config().cluster) {
        // At this point, no client of this node waits for other nodes.
        hand_over::stop_serving(tasks.node());
        let left = cluster.drain_timeout.saturating_sub(since.elapsed());
        ended = verdict(tasks.node(), tasks.leave(left).await, cluster.drain_timeout);
    }
    for worker in Arc::into_inner(workers).into_iter().flatten() {
        worker.end();
    }
    // Last: peers that find the port closed consider the node dead, so it must not serve by then.
    if let Some(tasks) = tasks {
        tasks.end().await;
    }
    ended
}

/// Returns an error if the node ended with a fault, or left partitions that no other node has
/// although it was to wait for that.
fn verdict(node: &Node, left: LeaveOutcome, wait: Duration) -> Result<(), ServerError> {
    let control = node.control();
    if let Some(why) = control.and_then(control::Control::ended) {
        return Err(ServerError::Ended(why));
    }
    if let Some(why) = control.and_then(control::Control::fault) {
        return Err(ServerError::Fault(why));
    }
    match left {
        LeaveOutcome::Late(only_here) if only_here > 0 && !wait.is_zero() => {
            Err(ServerError::LeftCopies(only_here))
        }
        LeaveOutcome::Late(_) | LeaveOutcome::Alone | LeaveOutcome::Everything => Ok(()),
    }
}

/// Returns four unpredictable seeds.
///
/// # Errors
///
/// The system has no source of randomness.
pub(crate) fn random_seeds() -> io::Result<[u64; 4]> {
    let mut seeds = [0; 4];
    for seed in &mut seeds {
        let mut bytes = [0; 8];
        random::fill(&mut bytes)?;
        *seed = u64::from_le_bytes(bytes);
    }
    Ok(seeds)
}

/// Runs housekeeping until the stop request, for a node without signals and files.
#[cfg(feature = "simulation")]
pub(crate) async fn run_housekeeping_until_stopped(service: &Service, node: Option<&Node>) {
    tokio::select! {
        biased;
        () = service.stopped() => {}
        why = leave::until_removed(node) => tracing::info!(why, "stopping"),
        never = run_housekeeping(service) => match never {},
    }
}

pub(crate) fn bind_all(config: &Config) -> Result<Vec<BoundListener>, ServerError> {
    let mut listeners = bind_each(&config.listen, config.backlog)?;
    if let Some(socket) = &config.unix_socket {
        let listener = BoundListener::unix(&socket.path, socket.mask, config.backlog)
            .map_err(|source| BindError { place: socket.path.display().to_string(), source })?;
        listeners.push(listener);
    }
    if let Some(path) = &config.admin_socket {
        let listener = BoundListener::admin(path, config.backlog)
            .map_err(|source| BindError { place: path.display().to_string(), source })?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Writes the file of `MEMCACHED_PORT_FILENAME` in memcached's format, for test suites.
fn write_ports(path: &std::path::Path, addresses: &[SocketAddr]) -> io::Result<()> {
    let mut lines = String::new();
    for address in addresses {
        let family = if address.is_ipv4() { "INET" } else { "INET6" };
        lines.push_str("TCP ");
        lines.push_str(family);
        lines.push_str(": ");
        lines.push_str(&address.port().to_string());
        lines.push('\n');
    }
    files::must_be_replaceable(path)?;
    let part = path.with_extension("lck");
    std::fs::write(&part, lines)?;
    std::fs::rename(&part, path)
}

/// Runs housekeeping and handles signals until the stop request.
async fn handle_signals(
    (service, node): (&Service, Option<&Node>),
    mut limits_file: LimitsFile,
    signals: Signals,
    keeper: Option<&Keeper>,
) {
    let Signals { mut terminate, mut interrupt, mut save, mut keep, mut reload } = signals;
    let mut house = pin!(run_housekeeping(service));
    let mut look = interval(LIMITS_FILE_PERIOD);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let why = tokio::select! {
            biased;
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
            // memcached's warm restart: saves the snapshot and exits.
            _ = save.recv() => "SIGUSR1",
            () = service.stopped() => "shutdown command",
            why = leave::until_removed(node) => why,
            _ = reload.recv() => {
                service.reload_users();
                if let Some(node) = node {
                    lifecycle::reload_security(service, node);
                }
                limits_file = LimitsFile::now(service.config());
                service.reload_limits();
                tracing::info!("SIGHUP: users, peer security and limits file read again");
                continue;
            }
            _ = keep.recv() => {
                if let Some(keeper) = keeper {
                    keeper.want();
                } else {
                    tracing::warn!("SIGUSR2 ignored: set a snapshot file with -e");
                }
                continue;
            }
            _ = look.tick() => {
                limits_file.follow(service);
                continue;
            }
            never = &mut house => match never {},
        };
        tracing::info!(target: LIFE, why, "stopping");
        service.stop();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::warn!(target: LIFE, "second signal: exiting at once without saving");
            std::process::exit(1);
        });
        return;
    }
}

/// Sweeps items and ends idle connections, forever.
async fn run_housekeeping(service: &Service) -> Infallible {
    let mut tick = interval(HOUSEKEEPING_PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        service.clock().follow_unix_time();
        end_idle(service);
        service.delays().wake(service.clock().now().mono.millis());
        service.shards().sweep_ids(service.clock().now());
        let mut first = 0;
        loop {
            let now = node::sweep_now(service, service.clock().now());
            let Some(next) = service.shards().sweep(now, SWEEP_PARTS, first) else { break };
            first = next;
            sleep(SWEEP_PAUSE).await;
        }
    }
}

/// Disconnects clients that have been idle for too long.
fn end_idle(service: &Service) {
    let Some(timeout) = service.config().idle_timeout else { return };
    let now = service.clock().now();
    for connection in service.connections().list() {
        let idle = connection.idle_seconds(now.mono.millis());
        if idle >= timeout.as_secs() && connection.ending() == HangUp::Never {
            service.connections().note_idle_kick();
            connection.end(HangUp::Now);
        }
    }
}

/// Lets clients finish their current request or reply, then disconnects them.
async fn drain(service: &Service) {
    let since = Instant::now();
    while service.connections().current() > 0 && since.elapsed() < DRAIN_MAX {
        let result = if since.elapsed() < DRAIN_READ { HangUp::Quiet } else { HangUp::Now };
        for connection in service.connections().list() {
            if !connection.is_busy() {
                connection.end(result);
            }
        }
        sleep(Duration::from_millis(5)).await;
    }
}
