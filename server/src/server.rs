//! Starts a server from a configuration, and stops it.
//!
//! Here: binding, starting the workers, the drain. Not here: preparing the process (`process`,
//! `server/program`), signals and housekeeping while it serves (`signals`, `housekeeping`).

mod error;
mod housekeeping;
mod observer;
mod signals;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use control::WakeGrid;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep};
use tollgate_limits::files;
use tollgate_limits::map_text::LimitText;
use tollgate_limits::{Limits, no_limits};

pub use self::error::ServerError;
#[cfg(feature = "simulation")]
pub(crate) use self::housekeeping::run_housekeeping_until_stopped;
use self::observer::ObserverThread;
use self::signals::{Handled, Signals, WatchedFiles, handle_signals};
use crate::admin::{BoundAdmin, ObservedAnswers, ServerHost};
use crate::config::Config;
use crate::io::worker;
use crate::io::worker_handle::WorkerHandle;
use crate::net::random;
use crate::net::{BoundListener, Listener};
use crate::node::Node;
use crate::node::hand_over;
use crate::node::leave::{self, LeaveOutcome};
use crate::node::lifecycle;
use crate::node::setup::{PeerListeners, Setup};
use crate::records::FileRecords;
use crate::runtime::auth::AuthFile;
use crate::runtime::connections::HangUp;
use crate::runtime::listeners::{BindError, bind_each};
use crate::runtime::service::{Service, Stage};
use crate::runtime::snapshot;
use crate::runtime::snapshot::keeper::{self, Keeper};

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

/// A server with bound addresses that does not serve yet.
pub struct Server {
    service: Arc<Service>,
    /// This process's node, in a cluster.
    node: Option<Arc<Node>>,
    listeners: Vec<BoundListener>,
    files: WatchedFiles,
    admin: Option<BoundAdmin>,
    peers: Option<PeerListeners>,
    runtime: Runtime,
    signals: Signals,
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
        let grid = WakeGrid::from_now();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Listen for signals before the bound ports make the process visible to those that send
        // them.
        let signals = Signals::listen(&runtime)?;
        if let Some(path) = &config.snapshot_file {
            snapshot::check(path).map_err(ServerError::SnapshotPlace)?;
        }
        let users = config.auth_file.as_deref().map(AuthFile::load).transpose()?;
        let files = WatchedFiles::now(&config);
        let mut texts = Vec::new();
        match &config.limits_file {
            Some(path) if config.cluster.is_some() => {
                let file = LimitText::load(path)?;
                if file.limits.is_empty() && !file.allow_empty {
                    tracing::warn!("{}", no_limits(path));
                }
                texts = file.limits;
            }
            Some(_) | None => {}
        }
        let records = match (&config.cluster, &config.limits_store) {
            (Some(_), _) => None,
            (None, Some(path)) => Some(FileRecords::open(path)?),
            (None, None) => Some(FileRecords::in_memory()),
        };
        let listeners = bind_all(&config)?;
        let admin = config.http.as_ref().map(BoundAdmin::bind).transpose()?.flatten();
        let addresses: Vec<SocketAddr> =
            listeners.iter().filter_map(BoundListener::address).collect();
        let port = addresses.first().map_or(0, SocketAddr::port);
        let peers = config
            .cluster
            .as_ref()
            .map(|cluster| PeerListeners::bind(cluster, port, config.backlog))
            .transpose()?;
        let seeds = random_seeds()?;
        let mut service =
            Service::new(config, users, Limits::default(), seeds, Box::new(verbosity));
        service.set_grid(grid);
        if let Some(records) = records {
            let path = service.config().limits_file.as_deref();
            let now_ms = service.clock().now().unix_ms;
            let start = service.limits_store().start(Arc::new(records), path, now_ms);
            runtime.block_on(start)?;
            let limits = service.limits().load();
            if let Some(warning) = path.and_then(|path| limits.limits().warning(path)) {
                tracing::warn!("{warning}");
            }
        }
        // Last: who reads the ports may connect at once.
        if let Some(path) = &service.config().port_file {
            write_ports(path, &addresses)
                .map_err(|source| ServerError::File { path: path.clone(), source })?;
        }
        let node = Node::of(&service);
        if let Some(node) = &node {
            node.limits_file.change(texts);
        }
        service.port.store(usize::from(port), Ordering::Relaxed);
        let service = Arc::new(service);
        Ok(Self { service, node, listeners, files, admin, peers, runtime, signals })
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
        let Self { service, node, listeners, files, admin, peers, runtime, signals } = self;
        let host = Arc::new(ServerHost::new(Arc::clone(&service), node.clone()));
        // First: a probe may ask while the snapshot is read.
        let admin = admin.map(|admin| admin.start(Arc::clone(&host))).transpose()?;
        if let Some(node) = &node {
            node.set_query_answers(Arc::new(ObservedAnswers(Arc::clone(&service))));
        }
        let observer = ObserverThread::start(&service, random_seeds()?)?;
        keeper::restore(&service).map_err(ServerError::SnapshotPlace)?;
        let keeper = Keeper::start(&service)?;
        let workers = (0..service.config().threads)
            .map(|index| worker::start(&service, node.as_ref(), index))
            .collect::<io::Result<Vec<_>>>()?;
        host.set_workers(workers.iter().map(WorkerHandle::probe).collect());
        let served = runtime.block_on(async {
            let grid = service.grid().clone();
            tokio::spawn(async move { grid.lead().await });
            let setup = peers.zip(node.clone());
            let setup =
                setup.map(|(peers, node)| peers.setup(service.config(), node)).transpose()?;
            let infos = listeners.iter().map(BoundListener::info).collect();
            service.connections().set_listeners(infos);
            let listeners = listeners.into_iter().map(BoundListener::attach);
            let listeners = listeners.collect::<io::Result<_>>()?;
            let handled = Handled {
                service: &service,
                node: node.as_deref(),
                keeper: keeper.as_ref(),
                admin: admin.as_ref(),
                bell: observer.bell(),
            };
            let until = handle_signals(handled, files, signals);
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
        observer.end();
        // Last: the process is alive until here.
        if let Some(admin) = admin {
            admin.end();
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
    setup: Option<Setup>,
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
    service.enter(Stage::Serving);
    until.await;
    service.enter(Stage::Draining);
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
