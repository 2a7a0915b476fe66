//! `RawConfig` → `Config`: defaults, and rules that need more than one setting.
//!
//! Here: defaults, settings that turn others off, refusals, and settings without effect. Not here:
//! bounds of one value (`value`), precedence of sources (`source`, `RawConfig::or`). Defaults are
//! those of `memcached -h` unless a comment gives another reason.

use std::time::Duration;

use super::extended::Extended;
use super::raw::{Protocol, RawConfig};
use super::value::Verbosity;
use super::{
    Config, ConfigError, KeyDisplay, ListenAddr, LogFormat, LogLevel, ProgramName, UnixSocket,
};

const PORT: i32 = 11211;
const MEBI: u64 = 1 << 20;
const ITEM_BYTES_MAX: usize = 1 << 20;
/// A copy whose link has two of the four MiB of `UNACKED_BYTES_MAX` to acknowledge is given up, and
/// a chunk of it carries at least one whole item.
const CLUSTER_ITEM_BYTES_MAX: usize = 1 << 20;
const WATCHER_LOGBUF_KB: usize = 256;

impl RawConfig {
    /// Applies defaults and checks the rules that involve several settings.
    pub(super) fn resolve(self, name: ProgramName) -> Result<Config, ConfigError> {
        let mut options = Extended::default();
        for later in &self.extended {
            options.update(later.clone());
        }
        self.refuse_unbuilt()?;
        if self.admin_socket.is_some() && self.admin_socket == self.unix_socket {
            return Err(ConfigError::Usage(
                "--admin-socket and -s name the same file; give each its own".to_owned(),
            ));
        }
        let memory_mb = self.memory_limit.unwrap_or(64);
        let item_bytes_max = self.item_bytes_max(memory_mb)?;
        let mut warnings = self.without_effect(&options);
        let listen = self.addresses(name);
        let cluster = self.cluster.clone().resolve(&listen, &mut warnings)?;
        let http = self.http(name, &listen, (options.ssl_chain_cert, options.ssl_key))?;
        if cluster.is_some() {
            self.refuse_in_cluster(item_bytes_max)?;
        }
        Ok(Config {
            listen,
            http,
            cluster,
            port_file: None,
            backlog: self.listen_backlog.unwrap_or(1024),
            memory_bytes: memory_mb * MEBI,
            evict: !self.disable_evictions.unwrap_or(false),
            item_bytes_max,
            hashpower: options.hashpower,
            cas: !self.disable_cas.unwrap_or(false),
            snapshot_interval: self.interval()?,
            snapshot_file: self.memory_file,
            large_pages: self.enable_largepages.unwrap_or(false),
            lock_memory: self.lock_memory.unwrap_or(false),
            connections_max: self.conn_limit.unwrap_or(1024),
            connections_fast: options.maxconns_fast.unwrap_or(true),
            threads: self.threads.unwrap_or(4),
            // Not memcached's 20; `Config::requests_per_event` gives the reason.
            requests_per_event: self.max_reqs_per_event.unwrap_or(512),
            idle_timeout: options
                .idle_timeout_s
                .filter(|seconds| *seconds > 0)
                .map(Duration::from_secs),
            auth_file: self.auth_file,
            limits_file: self.limits,
            limits_store: self.limits_store,
            shutdown_command: self.enable_shutdown.unwrap_or(false),
            admin_socket: self.admin_socket,
            admin_loopback: self.admin_loopback.unwrap_or(false),
            flush_all: !self.disable_flush_all.unwrap_or(false),
            dumping: !self.disable_dumping.unwrap_or(false),
            watching: !self.disable_watch.unwrap_or(false),
            watcher_buffer_bytes: options.watcher_logbuf_kb.unwrap_or(WATCHER_LOGBUF_KB) << 10,
            prefix_delimiter: self.prefix_delimiter.unwrap_or(b':'),
            detail_enabled: self.prefix_delimiter.is_some(),
            key_display: self.key_display.unwrap_or(KeyDisplay::Full),
            daemon: self.daemon.unwrap_or(false),
            user: self.user,
            pidfile: self.pidfile,
            coredumps: self.enable_coredumps.unwrap_or(false),
            log_level: log_level(&self.verbose),
            log_format: self.log_format.unwrap_or(LogFormat::Text),
            unix_socket: self
                .unix_socket
                .map(|path| UnixSocket { path, mask: self.unix_mask.unwrap_or(0o700) }),
            name,
            warnings,
        })
    }

    /// The greatest size of an item, which needs twice its memory.
    fn item_bytes_max(&self, memory_mb: u64) -> Result<usize, ConfigError> {
        let item_bytes_max = self.max_item_size.unwrap_or(ITEM_BYTES_MAX);
        if item_bytes_max as u64 > memory_mb * MEBI / 2 {
            return Err(ConfigError::Usage(format!(
                "-I {item_bytes_max} with -m {memory_mb}: \
                 Cannot set item size limit higher than 1/2 of memory max."
            )));
        }
        Ok(item_bytes_max)
    }

    /// The time between snapshots, which needs a snapshot file.
    fn interval(&self) -> Result<Option<Duration>, ConfigError> {
        let interval = self.snapshot_interval.filter(|seconds| *seconds > 0);
        if interval.is_some() && self.memory_file.is_none() {
            let reason = "--snapshot-interval needs the file of the snapshot: add -e FILE";
            return Err(ConfigError::Usage(reason.to_owned()));
        }
        Ok(interval.map(Duration::from_secs))
    }

    /// The TCP addresses. A Unix socket or `-p 0` leaves none, even with `-l`, as in memcached
    /// 1.6.18.
    fn addresses(&self, name: ProgramName) -> Vec<ListenAddr> {
        let port = self.port.unwrap_or(PORT);
        if self.unix_socket.is_some() || port == 0 {
            return Vec::new();
        }
        // The only value out of range is -1, which asks for any free port.
        let port = u16::try_from(port).unwrap_or(0);
        if self.listen.is_empty() {
            // memcached's default, every interface, applies only under its name: it exposes the
            // server.
            let host = match name {
                ProgramName::Memcached => ListenAddr::ANY,
                ProgramName::Tollgate => "127.0.0.1",
            };
            return vec![ListenAddr { host: host.to_owned(), port, label: None }];
        }
        let mut addresses: Vec<ListenAddr> = Vec::new();
        for address in self.listen.iter().flat_map(|list| list.resolve(port)) {
            // memcached ignores an address that is already bound.
            let known = |other: &ListenAddr| {
                address.port != 0 && other.host == address.host && other.port == address.port
            };
            if !addresses.iter().any(known) {
                addresses.push(address);
            }
        }
        addresses
    }

    /// Refuses flags that promise protection which is not built yet. Without it the server would be
    /// open although the operator meant to protect it.
    fn refuse_unbuilt(&self) -> Result<(), ConfigError> {
        let refuse = |text: &str| Err(ConfigError::Usage(text.to_owned()));
        if self.enable_sasl == Some(true) {
            return refuse("-S (--enable-sasl): SASL is not built yet; use -Y FILE");
        }
        if self.enable_ssl == Some(true) {
            return refuse("-Z (--enable-ssl): TLS is not built yet; leave it out");
        }
        Ok(())
    }

    /// Refuses flags that contradict a cluster.
    fn refuse_in_cluster(&self, item_bytes_max: usize) -> Result<(), ConfigError> {
        let refuse = |text: &str| Err(ConfigError::Usage(text.to_owned()));
        if item_bytes_max > CLUSTER_ITEM_BYTES_MAX {
            return refuse(&format!(
                "-I {item_bytes_max}: in a cluster an item has at most 1m, because it is sent to \
                 other nodes as a whole; write -I 1m or less"
            ));
        }
        if self.disable_cas == Some(true) {
            return refuse(
                "-C (--disable-cas): copies are told apart by cas; leave it out in a cluster",
            );
        }
        if self.limits_store.is_some() {
            return refuse("--limits-store: in a cluster the limits are in its map; leave it out");
        }
        if self.memory_file.is_some() {
            return refuse(
                "-e (--memory-file): in a cluster counters live in copies on other nodes, and one \
                 that comes back is given them; leave it out",
            );
        }
        Ok(())
    }

    /// Warnings for settings that were accepted without effect: one line per flag, one for all
    /// names of `-o`.
    fn without_effect(&self, options: &Extended) -> Vec<String> {
        let deaf = self.port == Some(0) && self.unix_socket.is_none();
        let ignored = options.ignored.join(",");
        let words = self.words.join(" ");
        let level = self.verbose.iter().find_map(|level| level.unknown.as_deref());
        let lines = [
            (self.slab_growth_factor.is_some(), "-f has no effect: there are no slabs"),
            (self.slab_min_size.is_some(), "-n has no effect: there are no slabs"),
            (self.napi_ids.is_some(), "-N has no effect: connections are spread without NAPI ids"),
            (self.protocol == Some(Protocol::Auto), "-B auto: the binary protocol is not spoken"),
            (self.unix_mask.is_some() && self.unix_socket.is_none(), "-a has no effect without -s"),
            (
                self.unix_socket.is_some() && !self.listen.is_empty(),
                "-l has no effect with -s, which turns TCP off as in memcached",
            ),
            (deaf, "-p 0 without -s: nothing listens"),
            (
                level.is_some(),
                &format!(
                    "--verbose={}: no level, so taken as -v; write 0 to 3, or v, vv, vvv",
                    level.unwrap_or_default()
                ),
            ),
            (!ignored.is_empty(), &format!("-o {ignored}: accepted without effect")),
            (!words.is_empty(), &format!("not a flag, ignored: {words}")),
        ];
        lines.into_iter().filter(|(said, _)| *said).map(|(_, line)| line.to_owned()).collect()
    }
}

fn log_level(levels: &[Verbosity]) -> LogLevel {
    match levels.iter().fold(0_u8, |sum, level| sum.saturating_add(level.steps)) {
        0 => LogLevel::Warn,
        1 => LogLevel::Info,
        2 => LogLevel::Debug,
        _ => LogLevel::Trace,
    }
}
