//! The operator's settings: [`RawConfig`] as written → [`Config`], checked and resolved.
//!
//! Here: every setting with its unit, and the way from the process's arguments to them. Not here:
//! acting on a setting (`process` before the runtime, `listener` and the rest after it), limits on
//! keys, bounds of the wire (`protocol/src/bounds.rs`).
//! Precedence: flag, `TOLLGATE_*` environment, TOML file, memcached.conf, default.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::cli;

pub use self::cluster::{Ack, ClusterConfig, HostPort, PeerFiles, Seed};
pub use self::error::ConfigError;
pub use self::listen::ListenAddr;
pub use self::name::ProgramName;
pub use self::raw::RawConfig;

mod cluster;
mod error;
mod extended;
pub(crate) mod listen;
mod name;
mod print;
mod raw;
mod resolve;
mod source;
mod value;

/// Most bytes of a line of the authentication file without its end (memcached: 256 with the terminator).
pub(crate) const LINE_BYTES_MAX: usize = 254;

/// What the server is to be, decided once at start.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one flag of memcached")]
pub struct Config {
    /// TCP addresses; empty with `-p 0` or a Unix socket.
    pub listen: Vec<ListenAddr>,
    /// Where to write the ports that were bound (`MEMCACHED_PORT_FILENAME`).
    pub port_file: Option<PathBuf>,
    /// Unix socket to listen on (`-s`). As in memcached, TCP is off then.
    pub unix_socket: Option<UnixSocket>,
    /// Connections that may wait to be accepted (`-b`).
    pub backlog: u32,

    /// Most bytes of the item table (`-m`).
    pub memory_bytes: u64,
    /// Whether a full table evicts; otherwise storing fails (`-M`).
    pub evict: bool,
    /// Largest item in bytes, 1 KiB to 1 GiB and at most half of `memory_bytes` (`-I`).
    pub item_bytes_max: usize,
    /// The item table starts with two to this power places (`-o hashpower`), 12 to 32.
    pub hashpower: Option<u8>,
    /// Whether items carry a cas unique (`-C` turns it off).
    pub cas: bool,
    /// Where counters are saved for a warm restart (`-e`).
    pub snapshot_file: Option<PathBuf>,
    /// From the beginning of one snapshot to that of the next while the server runs
    /// (`--snapshot-interval`); none: only at the end and when asked.
    pub snapshot_interval: Option<Duration>,
    /// Ask for transparent huge pages (`-L`).
    pub large_pages: bool,
    /// Lock all memory of the process (`-k`).
    pub lock_memory: bool,

    /// Most clients at once (`-c`).
    pub connections_max: usize,
    /// Beyond the limit, close new connections at once instead of leaving them unaccepted
    /// (`-o maxconns_fast`).
    pub connections_fast: bool,
    /// Worker threads (`-t`).
    pub threads: usize,
    /// Requests of one client that are served before others get their turn (`-R`).
    ///
    /// 512 where memcached has 20: replies of one turn leave in one write, so a short turn would
    /// cut a pipelined batch into many writes. A counter costs so little that others hardly wait.
    pub requests_per_event: usize,
    /// Idle time after which a client is disconnected (`-o idle_timeout`, in seconds).
    pub idle_timeout: Option<Duration>,

    /// Users that may authenticate (`-Y`).
    pub auth_file: Option<PathBuf>,
    /// Limits bound to keys (`--limits`).
    pub limits_file: Option<PathBuf>,
    /// Whether clients may send `shutdown`, and change the cluster (`-A`).
    pub shutdown_command: bool,
    /// Unix socket on which operators change the cluster.
    pub admin_socket: Option<PathBuf>,
    /// Whether clients on this host may change the cluster.
    pub admin_loopback: bool,
    /// Whether clients may send `flush_all` (`-F` forbids).
    pub flush_all: bool,
    /// Whether clients may list keys (`-X` forbids).
    pub dumping: bool,
    /// Whether clients may send `watch` (`-W` forbids).
    pub watching: bool,
    /// Bytes kept for a watcher that reads slowly (`-o watcher_logbuf_size`, in kilobytes).
    pub watcher_buffer_bytes: usize,
    /// Ends the prefix of a key in `stats detail` (`-D`).
    pub prefix_delimiter: u8,
    /// Whether `stats detail` counts from the start; `-D` turns it on.
    pub detail_enabled: bool,

    /// How it takes part in a cluster; none: it is alone.
    pub cluster: Option<ClusterConfig>,

    /// Run in the background (`-d`). Every path here is absolute then.
    pub daemon: bool,
    /// Name or number of the user to become when started as root (`-u`).
    pub user: Option<String>,
    /// Where to write the process id (`-P`).
    pub pidfile: Option<PathBuf>,
    /// Raise the limit on core files (`-r`).
    pub coredumps: bool,
    /// Least severe level that is logged (`-v`).
    pub log_level: LogLevel,
    /// How a log line is written (`--log-format`).
    pub log_format: LogFormat,

    /// Whose version the server reports.
    pub name: ProgramName,
    /// What was accepted without effect: a line each, to be logged at start.
    pub warnings: Vec<String>,
}

/// A Unix socket to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixSocket {
    /// Its place in the file system.
    pub path: PathBuf,
    /// Permissions of the socket, 0 to 0o777.
    pub mask: u32,
}

/// Least severe level that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Without `-v`.
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

    /// The level of so many `v`s, as the `verbosity` command counts.
    #[must_use]
    pub fn of_verbosity(level: u32) -> Self {
        match level {
            0 => Self::Warn,
            1 => Self::Info,
            2 => Self::Debug,
            _ => Self::Trace,
        }
    }

    /// The level's name in a `tracing` filter.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// How a log line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What the arguments ask the process to do.
#[derive(Debug)]
pub enum Startup {
    /// Print this text and exit: help, version, licence.
    Print(String),
    /// Print the configuration ([`Config::to_toml`]) and exit.
    Check(Box<Config>),
    /// Print what this limits file says and exit.
    CheckLimits(PathBuf),
    /// Ask a running node about its cluster, or tell it something.
    Cluster(cli::CliRequest),
    /// Have a running server write its snapshot.
    Snapshot(cli::SnapshotRequest),
    /// Serve.
    Serve(Box<Config>),
}

impl Config {
    /// Reads the process's arguments and environment, and the files they name.
    ///
    /// # Errors
    ///
    /// Whatever is refused, with its place; the process exits with [`ConfigError::EXIT_CODE`].
    pub fn from_env_args() -> Result<Startup, ConfigError> {
        Self::from_sources(std::env::args_os(), std::env::vars_os())
    }

    /// As [`Config::from_env_args`], from these arguments (the program's name first) and variables.
    ///
    /// # Errors
    ///
    /// As [`Config::from_env_args`].
    pub fn from_sources(
        args: impl IntoIterator<Item = OsString>,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Startup, ConfigError> {
        let args: Vec<OsString> = args.into_iter().collect();
        if let Some(parsed) = cli::sub_command(&args) {
            return Ok(match parsed? {
                cli::Parsed::Help(text) => Startup::Print(text),
                cli::Parsed::Request(request) => Startup::Cluster(request),
                cli::Parsed::Snapshot(request) => Startup::Snapshot(request),
            });
        }
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
            && verb == cli::CHECK_LIMITS
        {
            return match words {
                [file] => Ok(Startup::CheckLimits(PathBuf::from(file))),
                _ => Err(ConfigError::Usage(format!("write {} FILE", cli::CHECK_LIMITS))),
            };
        }
        // As memcached we ignore words, for scripts that call it so.
        if let (ProgramName::Tollgate, Some(word)) = (name, flags.words.first()) {
            return Err(ConfigError::Usage(cli::refusal(word)));
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

    /// A daemon's directory is `/`, so a path that was meant from here must say so.
    fn make_paths_absolute(&mut self) {
        let socket = self.unix_socket.as_mut().map(|socket| &mut socket.path);
        let paths = [
            self.port_file.as_mut(),
            self.snapshot_file.as_mut(),
            self.auth_file.as_mut(),
            self.limits_file.as_mut(),
            self.pidfile.as_mut(),
            self.admin_socket.as_mut(),
            socket,
        ];
        let cluster = self.cluster.as_mut().map(ClusterConfig::paths).into_iter().flatten();
        for path in paths.into_iter().flatten().chain(cluster) {
            // It fails on an empty path, which was refused, or without a working directory, where
            // nothing better than the path itself is known.
            if let Ok(absolute) = std::path::absolute(&*path) {
                *path = absolute;
            }
        }
    }
}

/// The settings of a server started as `tollgate` without a word more.
impl Default for Config {
    fn default() -> Self {
        RawConfig::default()
            .resolve(ProgramName::Tollgate)
            .expect("the defaults respect every rule")
    }
}

#[cfg(test)]
mod tests;
