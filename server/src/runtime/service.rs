//! The state that all clients share: the store, the counters, the configuration, the stop signal.
//!
//! Not here: one client's requests (`session`), threads (`worker`).

#[cfg(test)]
mod of_flags;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use control::WakeGrid;
use crossbeam::utils::CachePadded;
use engine::PartitionPrefix;
use parking_lot::RwLock;
use protocol::Command;
use tokio::sync::Notify;
use tollgate_limits::{Limits, share_seeds};

use crate::config::Config;
use crate::counters::{CounterSums, Counters};
use crate::limits::LimitsHandle;
use crate::limits::service::{LimitsStore, off_thread};
use crate::net::clock::Clock;
use crate::observe::Observatory;
use crate::observe::recorder::RecorderHandle;
use crate::runtime::auth::AuthFile;
use crate::runtime::buffers::{Buffer, BufferBudget};
use crate::runtime::cluster_node::ClusterNode;
use crate::runtime::connections::{ConnectionInfo, Connections, Delays};
use crate::runtime::guesses::Guesses;
use crate::runtime::prefixes::Prefixes;
use crate::runtime::snapshot::SnapshotMetrics;
use crate::shards::{Shards, ShardsOptions};

/// Lowest cap that `cache_memlimit` accepts, in megabytes, as in memcached.
const MEMORY_LIMIT_MEGABYTES_MIN: u64 = 8;

/// The part of its life in which a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Addresses are bound, and the snapshot is read.
    Starting,
    /// Clients are accepted.
    Serving,
    /// The stop was requested.
    Draining,
}

/// The state all clients share.
pub struct Service {
    config: Config,
    clock: Clock,
    grid: WakeGrid,
    shards: Shards,
    /// Whether the hash of a key in the tables of overrides is that of the shards.
    shares_key_hash: bool,
    /// One set per worker, and one for requests of other nodes.
    counters: Box<[CachePadded<Counters>]>,
    connections: Connections,
    prefixes: Prefixes,
    limits: Arc<LimitsHandle>,
    limits_store: Arc<LimitsStore>,
    observatory: Observatory,
    /// Absent if nothing is recorded.
    recorder: Option<Arc<RecorderHandle>>,
    node: OnceLock<Arc<dyn ClusterNode>>,
    /// The part of the key hasher that a cluster sets.
    partition_prefix: Option<Arc<PartitionPrefix>>,
    users: RwLock<Option<AuthFile>>,
    verbosity: Box<dyn Fn(u32) + Send + Sync>,
    reading: BufferBudget,
    unwritten: BufferBudget,
    guesses: Guesses,
    delays: Delays,
    stop: Notify,
    snapshots: SnapshotMetrics,
    stage: AtomicU8,
    /// When housekeeping last ran, in milliseconds on the monotonic clock.
    housekeeping_ms: AtomicU64,
    /// Times that accepting paused for lack of connections, and the total pause.
    pub(crate) listen_disabled: AtomicU64,
    pub(crate) listen_disabled_us: AtomicU64,
    pub(crate) accepting: AtomicBool,
    /// The bound TCP port; 0 for none.
    pub(crate) port: AtomicUsize,
}

impl Service {
    /// Creates the shared state. `limits` come from the limits file; `seeds` are those of the key
    /// hash, also of the overrides if no table of them was built before; `verbosity` receives the
    /// level of each `verbosity` command.
    #[must_use]
    pub fn new(
        config: Config,
        users: Option<AuthFile>,
        limits: Limits,
        seeds: [u64; 4],
        verbosity: Box<dyn Fn(u32) + Send + Sync>,
    ) -> Self {
        let memory_bytes = usize::try_from(config.memory_bytes).unwrap_or(usize::MAX);
        let partition_prefix: Option<Arc<PartitionPrefix>> =
            config.cluster.is_some().then(Arc::default);
        let shards = Shards::new(ShardsOptions {
            memory_bytes,
            may_evict: config.evict,
            cas: config.cas,
            bounds: protocol::Bounds { item_bytes_max: config.item_bytes_max },
            workers: config.threads,
            seeds,
            partition_prefix: partition_prefix.clone(),
        });
        // The hash of a shard begins with the partition in a cluster.
        let shares_key_hash = share_seeds(seeds) && partition_prefix.is_none();
        // One more than workers: requests of other nodes are counted separately.
        let counters = (0..=config.threads).map(|_| CachePadded::default()).collect();
        let prefixes = Prefixes::new(config.prefix_delimiter, config.detail_enabled);
        let limits = Arc::new(LimitsHandle::new(limits, config.threads + 1));
        Self {
            clock: Clock::new(),
            grid: WakeGrid::from_now(),
            shards,
            shares_key_hash,
            counters,
            connections: Connections::default(),
            prefixes,
            limits_store: Arc::new(LimitsStore::new(Arc::clone(&limits))),
            limits,
            observatory: Observatory::new(config.key_display),
            recorder: RecorderHandle::new(
                config.http.as_ref().map_or(0, |http| http.recorder_bytes),
            ),
            node: OnceLock::new(),
            partition_prefix,
            users: RwLock::new(users),
            verbosity,
            reading: BufferBudget::default(),
            unwritten: BufferBudget::default(),
            guesses: Guesses::new(seeds),
            delays: Delays::default(),
            stop: Notify::new(),
            snapshots: SnapshotMetrics::default(),
            stage: AtomicU8::new(Stage::Starting as u8),
            housekeeping_ms: AtomicU64::new(0),
            listen_disabled: AtomicU64::new(0),
            listen_disabled_us: AtomicU64::new(0),
            accepting: AtomicBool::new(true),
            port: AtomicUsize::new(0),
            config,
        }
    }

    /// Returns the active configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns this process's node, in a cluster.
    pub(crate) fn node(&self) -> Option<&dyn ClusterNode> {
        self.node.get().map(AsRef::as_ref)
    }

    /// Sets the node, once, before the server starts.
    pub(crate) fn set_node(&self, node: Arc<dyn ClusterNode>) {
        let _ = self.node.set(node);
    }

    /// Returns the part of the key hasher that maps a hash to its partition, in a cluster.
    pub(crate) fn partition_prefix(&self) -> Option<&Arc<PartitionPrefix>> {
        self.partition_prefix.as_ref()
    }

    /// Returns the clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the instants at which periodic waits of the main thread end.
    pub(crate) fn grid(&self) -> &WakeGrid {
        &self.grid
    }

    /// Replaces the grid by that of the runtime, before the server starts.
    pub(crate) fn set_grid(&mut self, grid: WakeGrid) {
        self.grid = grid;
    }

    /// Returns all items.
    #[must_use]
    pub fn shards(&self) -> &Shards {
        &self.shards
    }

    /// Returns whether the tables of overrides hash a key as the shards do.
    #[inline]
    pub(crate) fn shares_key_hash(&self) -> bool {
        self.shares_key_hash
    }

    /// Returns the open connections.
    #[must_use]
    pub fn connections(&self) -> &Connections {
        &self.connections
    }

    /// Returns the counts by key prefix.
    #[must_use]
    pub fn prefixes(&self) -> &Prefixes {
        &self.prefixes
    }

    /// Returns the limits in force.
    #[must_use]
    pub fn limits(&self) -> &LimitsHandle {
        &self.limits
    }

    /// Returns the changer of limits.
    pub(crate) fn limits_store(&self) -> &Arc<LimitsStore> {
        &self.limits_store
    }

    /// Returns the observations.
    pub(crate) fn observatory(&self) -> &Observatory {
        &self.observatory
    }

    /// Makes the rings for samples, before the workers start. Without it none is taken.
    pub fn open_probes(&self, seeds: [u64; 4]) {
        // The last set is for requests of other nodes.
        let sets = self.config.threads + usize::from(self.config.cluster.is_some());
        for (worker, counters) in self.counters.iter().enumerate().take(sets) {
            counters.probe.open(seeds[worker % seeds.len()].wrapping_add(worker as u64));
        }
    }

    /// Returns all sets of counters.
    pub(crate) fn all_counters(&self) -> impl Iterator<Item = &Counters> {
        self.counters.iter().map(|counters| &**counters)
    }

    /// Returns the flight recorder; `None` if nothing is recorded.
    pub(crate) fn recorder(&self) -> Option<&Arc<RecorderHandle>> {
        self.recorder.as_ref()
    }

    /// Returns the metrics of snapshots taken while the server runs.
    #[must_use]
    pub fn snapshots(&self) -> &SnapshotMetrics {
        &self.snapshots
    }

    /// Returns the counters of worker number `worker`, which alone may add to them.
    #[must_use]
    pub fn counters(&self, worker: usize) -> &Counters {
        &self.counters[worker]
    }

    /// Returns the sums of all workers' counters.
    #[must_use]
    pub fn sums(&self) -> CounterSums {
        let mut sums = CounterSums::default();
        for counters in &self.counters {
            counters.add_to(&mut sums);
        }
        sums
    }

    /// Zeroes the counters that `stats reset` zeroes.
    pub fn reset_counters(&self) {
        for counters in &self.counters {
            counters.reset();
        }
        self.shards.reset_counters();
        self.connections.reset_counters();
        self.prefixes.reset();
        self.limits.reset_metrics();
    }

    /// Returns whether commands are counted by key prefix (`stats detail`).
    pub(crate) fn notes_prefixes(&self) -> bool {
        self.prefixes.is_enabled()
    }

    pub(crate) fn note_prefix(&self, command: &Command<'_>, hit: bool) {
        if self.notes_prefixes() {
            self.prefixes.note(command, hit);
        }
    }

    /// Returns whether clients must log in first.
    #[must_use]
    pub fn asks_password(&self) -> bool {
        self.config.auth_file.is_some()
    }

    /// Returns whether `credentials`, "user password", match the authentication file.
    #[must_use]
    pub fn knows_password(&self, credentials: &[u8]) -> bool {
        self.users.read().as_ref().is_some_and(|users| users.check(credentials))
    }

    /// Reads the authentication file again; a faulty file leaves the previous users in force.
    pub fn reload_users(&self) {
        let Some(path) = &self.config.auth_file else { return };
        match AuthFile::load(path) {
            Ok(users) => *self.users.write() = Some(users),
            Err(error) => tracing::error!(
                %error,
                "authentication file refused, user list kept as it was: correct the file, then \
                 send SIGHUP"
            ),
        }
    }

    /// Reads the limits file again; a faulty file leaves the previous limits in force. In a
    /// cluster, its changes are proposed to all nodes.
    pub fn reload_limits(&self) {
        let Some(path) = &self.config.limits_file else { return };
        if let Some(node) = self.node() {
            match node.reload_limits(path) {
                Ok(()) => {
                    self.limits.clear_fault();
                    self.limits_store.renew_fault();
                }
                Err(error) => {
                    self.limits.refuse(&error);
                    tracing::error!(
                        error = %error.in_log(path),
                        "limits file refused, limits kept as they were: correct the file"
                    );
                }
            }
            return;
        }
        let (store, path) = (Arc::clone(&self.limits_store), path.clone());
        let now_ms = self.clock.now().unix_ms;
        tokio::spawn(async move {
            match store.reload(&path, now_ms).await {
                Ok(count) => tracing::info!(
                    target: crate::LIFE,
                    count,
                    path = %path.display(),
                    "limits in force"
                ),
                Err(error) => {
                    let text = off_thread(move || error.in_log(&path)).await;
                    let text = text.unwrap_or_else(|error| error.to_string());
                    tracing::error!(
                        error = %text,
                        "limits file refused, limits kept as they were: correct the file"
                    );
                }
            }
        });
    }

    pub(crate) fn set_verbosity(&self, level: u32) {
        (self.verbosity)(level);
    }

    /// Changes the memory cap. Returns false below memcached's minimum.
    pub(crate) fn set_memory_limit(&self, megabytes: u64) -> bool {
        let enough = megabytes >= MEMORY_LIMIT_MEGABYTES_MIN;
        if enough {
            let bytes = usize::try_from(megabytes.saturating_mul(1 << 20)).unwrap_or(usize::MAX);
            self.shards.memory_cap().set_limit_bytes(bytes);
        }
        enough
    }

    fn buffers(&self, buffer: Buffer) -> &BufferBudget {
        match buffer {
            Buffer::Reading => &self.reading,
            Buffer::Unwritten => &self.unwritten,
        }
    }

    /// Reserves `bytes` for a client's buffer, replacing its former reservation; 0 releases it.
    /// When the budget is used up, stalled clients lose their part and are disconnected. Returns
    /// false, with nothing reserved, if that does not suffice.
    pub(crate) fn reserve(&self, client: &ConnectionInfo, buffer: Buffer, bytes: usize) -> bool {
        let (memory_cap, max) = (self.buffers(buffer), self.buffered_max());
        memory_cap.give_back(client.holding.clear(buffer));
        if bytes == 0 {
            return true;
        }
        while !memory_cap.take(bytes, max) {
            let now_ms = self.clock.now().mono.millis();
            let Some(freed) = self.connections.end_stalled(client, buffer, now_ms) else {
                return false;
            };
            memory_cap.give_back(freed);
        }
        client.holding.set(buffer, bytes);
        true
    }

    /// Returns the most bytes that the buffers of one kind may hold in total.
    fn buffered_max(&self) -> usize {
        self.shards.memory_cap().limit_bytes().max(2 * self.config.item_bytes_max)
    }

    /// Returns the record of wrong passwords.
    pub(crate) fn guesses(&self) -> &Guesses {
        &self.guesses
    }

    /// Returns the clients to look at again later.
    pub(crate) fn delays(&self) -> &Delays {
        &self.delays
    }

    /// Returns the part of its life in which the server is.
    pub(crate) fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Starting,
            1 => Stage::Serving,
            _ => Stage::Draining,
        }
    }

    /// Moves on to another part of the server's life.
    pub(crate) fn enter(&self, stage: Stage) {
        self.note_housekeeping();
        self.stage.fetch_max(stage as u8, Ordering::AcqRel);
    }

    /// Records that housekeeping runs.
    pub(crate) fn note_housekeeping(&self) {
        self.housekeeping_ms.store(self.clock.now().mono.millis(), Ordering::Relaxed);
    }

    /// Returns the milliseconds since housekeeping last ran.
    pub(crate) fn housekeeping_age_ms(&self) -> u64 {
        let last_ms = self.housekeeping_ms.load(Ordering::Relaxed);
        self.clock.now().mono.millis().saturating_sub(last_ms)
    }

    /// Asks the server to stop.
    pub fn stop(&self) {
        self.stop.notify_one();
    }

    /// Waits for [`Service::stop`].
    pub async fn stopped(&self) {
        self.stop.notified().await;
    }
}
