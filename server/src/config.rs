//! The operator's settings: from [`RawConfig`], as written, to [`Config`], checked and resolved.
//!
//! Here: every setting with its unit, and the steps from the process's arguments to the settings.
//! Not here: applying a setting (`process` before the runtime starts, `listener` and others after
//! it), limits on keys, bounds of the wire (`protocol/src/bounds.rs`).
//!
//! Precedence: flag, `TOLLGATE_*` environment, TOML file, memcached.conf, default.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

pub use self::cluster::{Ack, ClusterConfig, HostPort, PeerFiles, Seed};
pub use self::error::ConfigError;
pub use self::http::{HttpConfig, HttpTls};
pub use self::listen::{ListenAddr, host_and_port};
pub use self::name::ProgramName;
pub use self::raw::{RawConfig, shown_flags};
use self::sub_commands::CHECK_LIMITS;

mod cluster;
mod error;
mod extended;
mod http;
mod listen;
mod name;
mod print;
mod raw;
mod resolve;
mod source;
pub mod sub_commands;
mod value;

/// Maximum length of a line of the authentication file without its line end, in bytes
/// (memcached: 256 with the terminator).
pub const LINE_BYTES_MAX: usize = 254;

/// The environment variable with the password of `tollgate cluster`, read if `--password-file` is
/// missing.
pub const PASSWORD_VARIABLE: &str = "TOLLGATE_PASSWORD";

/// Validated configuration; fixed at startup.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one flag of memcached")]
pub struct Config {
    /// TCP addresses; empty with `-p 0` or a Unix socket.
    pub listen: Vec<ListenAddr>,
    /// File to which the bound ports are written (`MEMCACHED_PORT_FILENAME`).
    pub port_file: Option<PathBuf>,
    /// Unix socket to listen on (`-s`). It turns TCP off, as in memcached.
    pub unix_socket: Option<UnixSocket>,
    /// Maximum number of connections waiting to be accepted (`-b`).
    pub backlog: u32,

    /// Memory cap for items, in bytes (`-m`).
    pub memory_bytes: u64,
    /// Whether a full server evicts items; otherwise stores fail (`-M`).
    pub evict: bool,
    /// Maximum size of an item in bytes, 1 KiB to 1 GiB and at most half of `memory_bytes` (`-I`).
    pub item_bytes_max: usize,
    /// Initial size of the item table, as a power of two from 12 to 32 (`-o hashpower`).
    pub hashpower: Option<u8>,
    /// Whether items carry a cas unique (`-C` turns it off).
    pub cas: bool,
    /// Snapshot file for warm restarts (`-e`).
    pub snapshot_file: Option<PathBuf>,
    /// Time from the start of one snapshot to the start of the next (`--snapshot-interval`).
    /// `None`: snapshots only at shutdown and on request.
    pub snapshot_interval: Option<Duration>,
    /// Whether to request transparent huge pages (`-L`).
    pub large_pages: bool,
    /// Whether to lock the memory of the process (`-k`).
    pub lock_memory: bool,

    /// Maximum number of client connections (`-c`).
    pub connections_max: usize,
    /// Whether to close new connections above `connections_max` at once instead of leaving them in
    /// the backlog (`-o maxconns_fast`).
    pub connections_fast: bool,
    /// Worker threads (`-t`).
    pub threads: usize,
    /// Maximum number of requests of one client per round (`-R`).
    ///
    /// 512, while memcached has 20: the replies of one round leave in one write, and a smaller
    /// bound would cut a pipelined batch into many writes. Requests are cheap, so other clients
    /// hardly wait.
    pub requests_per_event: usize,
    /// Idle time after which a client is disconnected (`-o idle_timeout`, in seconds).
    pub idle_timeout: Option<Duration>,

    /// File of users that may log in (`-Y`).
    pub auth_file: Option<PathBuf>,
    /// File of limits on keys (`--limits`).
    pub limits_file: Option<PathBuf>,
    /// File of limits that change while the server runs (`--limits-store`).
    pub limits_store: Option<PathBuf>,
    /// Whether clients may send `shutdown` and change the cluster (`-A`).
    pub shutdown_command: bool,
    /// Unix socket on which operators may change the cluster (`--admin-socket`).
    pub admin_socket: Option<PathBuf>,
    /// Whether clients on this host may change the cluster (`--admin-loopback`).
    pub admin_loopback: bool,
    /// Whether clients may send `flush_all` (`-F` forbids).
    pub flush_all: bool,
    /// Whether clients may list keys (`-X` forbids).
    pub dumping: bool,
    /// Whether clients may send `watch` (`-W` forbids).
    pub watching: bool,
    /// Size of the buffer for a slow watcher, in bytes (`-o watcher_logbuf_size`, in kilobytes).
    pub watcher_buffer_bytes: usize,
    /// The byte that ends a key's prefix in `stats detail` (`-D`).
    pub prefix_delimiter: u8,
    /// Whether `stats detail` counts from the start; `-D` turns it on.
    pub detail_enabled: bool,

    /// The form in which keys are shown (`--key-display`).
    pub key_display: KeyDisplay,
    /// The admin listener. `None`: there is none.
    pub http: Option<HttpConfig>,

    /// The cluster's settings. `None`: the server runs alone.
    pub cluster: Option<ClusterConfig>,

    /// Run in the background (`-d`). All paths of the configuration are absolute then.
    pub daemon: bool,
    /// Name or number of the user that a process started as root changes to (`-u`).
    pub user: Option<String>,
    /// File to which the process id is written (`-P`).
    pub pidfile: Option<PathBuf>,
    /// Whether to raise the limit on core files (`-r`).
    pub coredumps: bool,
    /// Least severe level to log (`-v`).
    pub log_level: LogLevel,
    /// Format of log lines (`--log-format`).
    pub log_format: LogFormat,

    /// The program name, which selects the version that the server reports.
    pub name: ProgramName,
    /// Settings that were accepted without effect: one line each, to be logged at startup.
    pub warnings: Vec<String>,
}

/// A Unix socket to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixSocket {
    /// Path of the socket.
    pub path: PathBuf,
    /// Permissions of the socket, 0 to 0o777.
    pub mask: u32,
}

/// Least severe level to log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// The default, without `-v`.
    Warn,
    /// `-v`.
    Info,
    /// `-vv`.
    Debug,
    /// `-vvv`.
    Trace,
}

impl LogLevel {
    /// The number of `v`s, as `stats settings` shows it.
    #[must_use]
    pub fn verbosity(self) -> u8 {
        self as u8
    }

    /// Returns the level of `-v` repeated `level` times, as the `verbosity` command counts.
    #[must_use]
    pub fn of_verbosity(level: u32) -> Self {
        match level {
            0 => Self::Warn,
            1 => Self::Info,
            2 => Self::Debug,
            _ => Self::Trace,
        }
    }
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Plain text, for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The form in which keys are shown to operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyDisplay {
    /// The keys themselves.
    Full,
    /// The name of the limit and a hash: keys are personal data.
    Hashed,
}

impl KeyDisplay {
    /// The values of the flag.
    const ALL: [(&str, Self); 2] = [("full", Self::Full), ("hashed", Self::Hashed)];

    /// Returns the value of the flag.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Hashed => "hashed",
        }
    }
}

/// The request of a command line that begins with no sub-command of `server/cli`.
#[derive(Debug)]
pub enum Startup {
    /// Print this text and exit: help, version, licence.
    Print(String),
    /// Print the configuration ([`Config::to_toml`]) and exit.
    Check(Box<Config>),
    /// Check this limits file, list its limits and exit.
    CheckLimits(PathBuf),
    /// Run the server.
    Serve(Box<Config>),
}

impl Config {
    /// Reads the process's arguments (the program's name first) and environment, and the files
    /// they name.
    ///
    /// # Errors
    ///
    /// Any setting that is refused, with its origin. The process exits with
    /// [`ConfigError::EXIT_CODE`].
    pub fn from_sources(
        args: impl IntoIterator<Item = OsString>,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Startup, ConfigError> {
        let (name, flags) = source::command_line(args)?;
        if flags.help {
            return Ok(Startup::Print(raw::help(&name.version_line())));
        }
        if flags.version {
            return Ok(Startup::Print(name.version_line() + "\n"));
        }
        if flags.license {
            return Ok(Startup::Print(name.licence()));
        }
        if let [verb, words @ ..] = flags.words.as_slice()
            && verb == CHECK_LIMITS
        {
            return match words {
                [file] => Ok(Startup::CheckLimits(PathBuf::from(file))),
                _ => Err(ConfigError::Usage(format!("write {CHECK_LIMITS} FILE"))),
            };
        }
        // memcached ignores words, and scripts that call the server by its name rely on it.
        if let (ProgramName::Tollgate, Some(word)) = (name, flags.words.first()) {
            return Err(ConfigError::Usage(sub_commands::refusal(word)));
        }
        let check = flags.check_config;

        let variables: Vec<_> = variables.into_iter().collect();
        let port_file = variables.iter().find(|(name, _)| name == "MEMCACHED_PORT_FILENAME");
        let port_file = port_file.map(|(_, path)| PathBuf::from(path));

        let environment = source::environment(variables)?;
        let mut warnings = environment.warnings;
        let mut raw = flags.or(environment.raw);
        if let Some(path) = raw.config.clone() {
            raw = raw.or(source::toml(&path)?.raw);
        }
        if let Some(path) = raw.memcached_conf.clone() {
            let conf = source::memcached_conf(&path)?;
            warnings.extend(conf.warnings);
            raw = raw.or(conf.raw);
        }
        let mut config = raw.resolve(name)?;
        config.port_file = port_file.filter(|path| !path.as_os_str().is_empty());
        config.warnings.splice(0..0, warnings);
        if config.daemon {
            config.make_paths_absolute();
        }
        let config = Box::new(config);
        Ok(if check { Startup::Check(config) } else { Startup::Serve(config) })
    }

    /// Makes every path absolute, because a daemon's working directory is `/`.
    fn make_paths_absolute(&mut self) {
        let socket = self.unix_socket.as_mut().map(|socket| &mut socket.path);
        let paths = [
            self.port_file.as_mut(),
            self.snapshot_file.as_mut(),
            self.auth_file.as_mut(),
            self.limits_file.as_mut(),
            self.limits_store.as_mut(),
            self.pidfile.as_mut(),
            self.admin_socket.as_mut(),
            socket,
        ];
        let cluster = self.cluster.as_mut().map(ClusterConfig::paths).into_iter().flatten();
        paths.into_iter().flatten().chain(cluster).for_each(make_absolute);
        self.http_paths().for_each(make_absolute);
    }
}

/// `absolute` fails on an empty path, which was refused earlier, or without a working directory,
/// which leaves only the path as written.
fn make_absolute(path: &mut PathBuf) {
    if let Ok(absolute) = std::path::absolute(&*path) {
        *path = absolute;
    }
}

/// The settings of a server started as `tollgate` without arguments.
impl Default for Config {
    fn default() -> Self {
        RawConfig::default()
            .resolve(ProgramName::Tollgate)
            .expect("the defaults respect every rule")
    }
}

#[cfg(test)]
mod tests;
