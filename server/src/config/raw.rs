//! `RawConfig`: settings as written, before defaults and before rules that need two settings.
//!
//! Here: every flag with its help text, the clap command, merging two sources. Not here: the
//! sources (`source`), resolving (`resolve`). The doc comment of a field is its line in `--help`.
//! Source of names and units: `memcached -h`, 1.6.18.

use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches};

use super::cluster::ClusterFlags;
use super::extended::Extended;
use super::http::HttpAddr;
use super::listen::ListenList;
use super::{ConfigError, KeyDisplay, LogFormat, value};

const LISTENING: &str = "Listening";
const MEMORY: &str = "Memory and items";
const CONNECTIONS: &str = "Connections";
const COMMANDS: &str = "Commands and access";
const ADMIN: &str = "Admin listener";
const PROCESS: &str = "Process";
const REPORTS: &str = "Configuration and help";
const COMPATIBLE: &str = "Accepted for memcached's sake";

/// Value name that marks a switch: a flag without value on the command line and in the help, but
/// with yes or no in the other sources.
pub(super) const SWITCH: &str = "YES|NO";

/// The forms of the command line.
const USAGE: &str = "\
tollgate [OPTIONS]
       tollgate check-limits FILE [KEY [COST]]
       tollgate doctor [OPTIONS]
       tollgate top
       tollgate healthcheck
       tollgate snapshot --pid NUM
       tollgate token NAME ROLE
       tollgate limits COMMAND
       tollgate explain KEY [COST]
       tollgate cluster COMMAND
       tollgate generate KIND";

/// Maximum memory limit, in megabytes: 16 TiB.
const MEMORY_MB_MAX: u64 = 1 << 24;
/// Maximum time between two snapshots, in seconds: a year.
const INTERVAL_MAX: u64 = 366 * 24 * 60 * 60;
/// Maximum of settings that memcached stores in a C `int`.
const INT_MAX: u64 = i32::MAX as u64;
/// Maximum number of worker threads; a higher value is probably a typing error.
const THREADS_MAX: u64 = 1024;

/// The settings of one source, or of several merged. `None` and an empty list mean "not set".
#[derive(Debug, Clone, Default, PartialEq, clap::Parser)]
#[command(
    about = None,
    disable_help_flag = true,
    disable_version_flag = true,
    // As in getopt_long, a long option may be abbreviated as long as it is unambiguous.
    infer_long_args = true,
    // The last of a repeated flag wins.
    args_override_self = true,
    // A fixed width, so that the help does not depend on the terminal.
    term_width = 100,
)]
#[expect(clippy::doc_markdown, reason = "a terminal shows these lines, and would show backticks")]
pub struct RawConfig {
    /// TCP port; 0 turns TCP off, -1 uses any free port [default: 11211]
    #[arg(short, long, value_name = "NUM", help_heading = LISTENING, value_parser = value::port)]
    pub(super) port: Option<i32>,
    #[allow(rustdoc::broken_intra_doc_links, reason = "brackets of an address")]
    /// Addresses to listen on, comma-separated: host, host:port, [v6]:port, tag[x]:host:port
    /// [default: 127.0.0.1]
    #[arg(short, long, help_heading = LISTENING)]
    #[arg(value_name = "ADDR", value_parser = ListenList::parse)]
    pub(super) listen: Vec<ListenList>,
    /// Unix socket to listen on, instead of TCP
    #[arg(short = 's', long, help_heading = LISTENING)]
    #[arg(value_name = "FILE", value_parser = value::path)]
    pub(super) unix_socket: Option<PathBuf>,
    /// File mode of the Unix socket, octal [default: 700]
    #[arg(short = 'a', long, help_heading = LISTENING)]
    #[arg(value_name = "MASK", value_parser = value::mask)]
    pub(super) unix_mask: Option<u32>,
    /// Maximum number of connections waiting to be accepted [default: 1024]
    #[arg(short = 'b', long, help_heading = LISTENING)]
    #[arg(value_name = "NUM", value_parser = value::number::<u32>(0..=INT_MAX))]
    pub(super) listen_backlog: Option<u32>,

    /// Memory for items, in megabytes [default: 64]
    #[arg(short, long, help_heading = MEMORY)]
    #[arg(value_name = "MB", value_parser = value::number::<u64>(1..=MEMORY_MB_MAX))]
    pub(super) memory_limit: Option<u64>,
    /// When memory is full, fail stores instead of evicting items
    #[arg(short = 'M', long, value_name = SWITCH, help_heading = MEMORY)]
    pub(super) disable_evictions: Option<bool>,
    /// Maximum size of an item: bytes, or a number with k, m or g [default: 1m]
    #[arg(short = 'I', long, help_heading = MEMORY)]
    #[arg(value_name = "SIZE", value_parser = value::item_bytes)]
    pub(super) max_item_size: Option<usize>,
    /// Snapshot file for warm restarts; written at shutdown and on SIGUSR2, read at startup
    #[arg(short = 'e', long, help_heading = MEMORY)]
    #[arg(value_name = "FILE", value_parser = value::path)]
    pub(super) memory_file: Option<PathBuf>,
    /// With -e: seconds from one snapshot to the next while serving; a crash loses at most the
    /// changes of this time and of one write; 0 turns it off [default: 0]
    #[arg(long, help_heading = MEMORY)]
    #[arg(value_name = "SECONDS", value_parser = value::number::<u64>(0..=INTERVAL_MAX))]
    pub(super) snapshot_interval: Option<u64>,
    /// Store no cas uniques
    #[arg(short = 'C', long, value_name = SWITCH, help_heading = MEMORY)]
    pub(super) disable_cas: Option<bool>,
    /// Request large memory pages
    #[arg(short = 'L', long, value_name = SWITCH, help_heading = MEMORY)]
    pub(super) enable_largepages: Option<bool>,
    /// Lock the process's memory, so that it is never swapped out
    #[arg(short = 'k', long, value_name = SWITCH, help_heading = MEMORY)]
    pub(super) lock_memory: Option<bool>,

    /// Maximum number of client connections [default: 1024]
    #[arg(short = 'c', long, help_heading = CONNECTIONS)]
    #[arg(value_name = "NUM", value_parser = value::number::<usize>(1..=INT_MAX))]
    pub(super) conn_limit: Option<usize>,
    /// Worker threads [default: 4]
    #[arg(short, long, help_heading = CONNECTIONS)]
    #[arg(value_name = "NUM", value_parser = value::number::<usize>(1..=THREADS_MAX))]
    pub(super) threads: Option<usize>,
    /// Maximum number of requests of one client before other clients are served [default: 512]
    #[arg(short = 'R', long, help_heading = CONNECTIONS)]
    #[arg(value_name = "NUM", value_parser = value::number::<usize>(1..=INT_MAX))]
    pub(super) max_reqs_per_event: Option<usize>,
    #[allow(rustdoc::broken_intra_doc_links, reason = "brackets around what may be left out")]
    /// Extended options, comma-separated: idle_timeout=SECONDS, [no_]maxconns_fast, hashpower=NUM,
    /// watcher_logbuf_size=KB; memcached's others have no effect
    #[arg(short = 'o', long, help_heading = CONNECTIONS)]
    #[arg(value_name = "LIST", value_parser = Extended::parse)]
    pub(super) extended: Vec<Extended>,

    /// File of user:password lines; clients must log in as one of these users
    #[arg(short = 'Y', long, help_heading = COMMANDS)]
    #[arg(value_name = "FILE", value_parser = value::path)]
    pub(super) auth_file: Option<PathBuf>,
    /// TOML file of limits on keys; read again when it changes and on SIGHUP
    #[arg(long, help_heading = COMMANDS)]
    #[arg(value_name = "FILE", value_parser = value::path)]
    pub(super) limits: Option<PathBuf>,
    /// Allow every client to stop the server with shutdown and to change its cluster
    #[arg(short = 'A', long, value_name = SWITCH, help_heading = COMMANDS)]
    pub(super) enable_shutdown: Option<bool>,
    /// Unix socket for operators, mode 600; connections there may change the cluster without a
    /// password
    #[arg(long, help_heading = COMMANDS)]
    #[arg(value_name = "FILE", value_parser = value::path)]
    pub(super) admin_socket: Option<PathBuf>,
    /// Allow clients on this host to change the cluster
    #[arg(long, value_name = SWITCH, help_heading = COMMANDS)]
    pub(super) admin_loopback: Option<bool>,
    /// Refuse the command flush_all
    #[arg(short = 'F', long, value_name = SWITCH, help_heading = COMMANDS)]
    pub(super) disable_flush_all: Option<bool>,
    /// Refuse commands that list keys
    #[arg(short = 'X', long, value_name = SWITCH, help_heading = COMMANDS)]
    pub(super) disable_dumping: Option<bool>,
    /// Refuse the command watch
    #[arg(short = 'W', long, value_name = SWITCH, help_heading = COMMANDS)]
    pub(super) disable_watch: Option<bool>,
    /// Count statistics by key prefix; CHAR ends a prefix [default: off, ":"]
    #[arg(short = 'D', long, help_heading = COMMANDS)]
    #[arg(value_name = "CHAR", value_parser = value::delimiter)]
    pub(super) prefix_delimiter: Option<u8>,

    /// Address for health checks and metrics over HTTP, or off [default: 127.0.0.1 and the client
    /// port + 20000]
    #[arg(long, help_heading = ADMIN, value_name = "ADDR", value_parser = HttpAddr::parse)]
    pub(super) http: Option<HttpAddr>,
    /// Serve HTTP with the certificate of -o ssl_chain_cert=FILE,ssl_key=FILE
    #[arg(long, value_name = SWITCH, help_heading = ADMIN)]
    pub(super) http_tls: Option<bool>,
    /// Name by which the admin listener is reached, besides localhost and addresses; repeatable
    #[arg(long, help_heading = ADMIN, value_name = "NAME", value_parser = value::host_name)]
    #[arg(action = clap::ArgAction::Append)]
    pub(super) http_host: Vec<String>,
    /// Make everyone who reaches the admin listener an admin, without a token
    #[arg(long, value_name = SWITCH, help_heading = ADMIN)]
    pub(super) http_insecure: Option<bool>,
    /// File for limits that change over HTTP, their overrides and history, without a cluster
    #[arg(long, help_heading = ADMIN)]
    #[arg(value_name = "FILE", value_parser = value::path)]
    pub(super) limits_store: Option<PathBuf>,
    /// File of tokens for the admin listener; tollgate token prints its lines
    #[arg(long, help_heading = ADMIN)]
    #[arg(value_name = "FILE", value_parser = value::path)]
    pub(super) tokens: Option<PathBuf>,
    /// Keys in the API, the tail and stats: full, or hashed, as the name of the limit and 12 hex
    /// digits [default: full]
    #[arg(long, help_heading = ADMIN, value_name = "FORM", value_parser = key_display)]
    pub(super) key_display: Option<KeyDisplay>,
    /// Memory for recorded decisions, on which another limit can be tried: 0 for none, or bytes, or
    /// a number with k, m or g [default: 8m]
    #[arg(long, help_heading = ADMIN, value_name = "SIZE", value_parser = value::recorder_bytes)]
    pub(super) recorder: Option<usize>,

    /// The settings of a node that belongs to a cluster.
    #[command(flatten)]
    pub(super) cluster: ClusterFlags,

    /// Run in the background
    #[arg(short, long, value_name = SWITCH, help_heading = PROCESS)]
    pub(super) daemon: Option<bool>,
    /// When started as root, change to this user, a name or number
    #[arg(short, long, value_name = "USER", help_heading = PROCESS, value_parser = value::word)]
    pub(super) user: Option<String>,
    /// File to write the process id to
    #[arg(short = 'P', long, help_heading = PROCESS)]
    #[arg(value_name = "FILE", value_parser = value::path)]
    pub(super) pidfile: Option<PathBuf>,
    /// Raise the limit on core files
    #[arg(short = 'r', long, value_name = SWITCH, help_heading = PROCESS)]
    pub(super) enable_coredumps: Option<bool>,
    /// Log more: -v info, -vv debug, -vvv trace; LEVEL is 0 to 3, or v, vv, vvv
    /// [default: warnings]
    #[arg(short, long, help_heading = PROCESS)]
    #[arg(value_name = "LEVEL", value_parser = value::verbosity)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    pub(super) verbose: Vec<value::Verbosity>,
    /// Format of log lines: text or json [default: text]
    #[arg(long, help_heading = PROCESS, value_name = "FORMAT", value_parser = log_format)]
    pub(super) log_format: Option<LogFormat>,

    /// TOML file of settings
    #[arg(long, value_name = "FILE", help_heading = REPORTS, value_parser = value::path)]
    pub(super) config: Option<PathBuf>,
    /// File of flags in the format of /etc/memcached.conf
    #[arg(long, value_name = "FILE", help_heading = REPORTS, value_parser = value::path)]
    pub(super) memcached_conf: Option<PathBuf>,
    /// Print the effective configuration and exit
    #[arg(long, help_heading = REPORTS)]
    pub(super) check_config: bool,
    /// Print this help and exit
    #[arg(short, long, help_heading = REPORTS)]
    pub(super) help: bool,
    /// Print the version and exit
    #[arg(short = 'V', long, help_heading = REPORTS)]
    pub(super) version: bool,
    /// Print the licence and exit
    #[arg(short = 'i', long, help_heading = REPORTS)]
    pub(super) license: bool,

    /// UDP port; only 0 (off) is accepted
    #[arg(short = 'U', long, help_heading = COMPATIBLE)]
    #[arg(value_name = "NUM", value_parser = value::udp_port)]
    pub(super) udp_port: Option<u16>,
    /// Protocol: ascii; auto is accepted and means the same
    #[arg(short = 'B', long, help_heading = COMPATIBLE)]
    #[arg(value_name = "NAME", value_parser = protocol)]
    pub(super) protocol: Option<Protocol>,
    /// No effect
    #[arg(short = 'f', long, help_heading = COMPATIBLE)]
    #[arg(value_name = "NUM", value_parser = value::growth_factor)]
    pub(super) slab_growth_factor: Option<f64>,
    /// No effect
    #[arg(short = 'n', long, help_heading = COMPATIBLE)]
    #[arg(value_name = "BYTES", value_parser = value::number::<u32>(1..=INT_MAX))]
    pub(super) slab_min_size: Option<u32>,
    /// No effect
    #[arg(short = 'N', long, alias = "napi_ids", help_heading = COMPATIBLE)]
    #[arg(value_name = "NUM", value_parser = value::number::<u32>(1..=INT_MAX))]
    pub(super) napi_ids: Option<u32>,
    /// Refused: SASL is not built yet
    #[arg(short = 'S', long, value_name = SWITCH, help_heading = COMPATIBLE)]
    pub(super) enable_sasl: Option<bool>,
    /// Refused: TLS is not built yet
    #[arg(short = 'Z', long, value_name = SWITCH, help_heading = COMPATIBLE)]
    pub(super) enable_ssl: Option<bool>,

    /// Words that are no flags. memcached ignores them; here they cause a warning.
    #[arg(hide = true)]
    pub(super) words: Vec<String>,
}

/// The values of `-B`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// The text protocols.
    Ascii,
    /// Any protocol of the client; the binary protocol is not supported yet.
    Auto,
}

fn protocol(text: &str) -> Result<Protocol, String> {
    match text.trim() {
        "ascii" => Ok(Protocol::Ascii),
        "auto" => Ok(Protocol::Auto),
        "binary" => Err("the binary protocol is not built yet; use ascii".to_owned()),
        _ => Err("expected ascii or auto".to_owned()),
    }
}

fn key_display(text: &str) -> Result<KeyDisplay, String> {
    let found = KeyDisplay::ALL.into_iter().find(|(word, _)| *word == text.trim());
    found.map(|(_, display)| display).ok_or_else(|| "expected full or hashed".to_owned())
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    match text.trim() {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("expected text or json".to_owned()),
    }
}

impl RawConfig {
    /// Parses the words of a command line, without the program's name.
    pub(super) fn parse<W>(words: W) -> Result<Self, ConfigError>
    where
        W: IntoIterator,
        W::Item: Into<std::ffi::OsString> + Clone,
    {
        let command = command().no_binary_name(true);
        let matches = command.try_get_matches_from(words)?;
        let mut raw = Self::from_arg_matches(&matches)?;
        raw.words.retain(|word| !word.trim().is_empty());
        Ok(raw)
    }

    /// Fills the settings that `self` leaves unset from a source of lower precedence.
    ///
    /// Addresses are replaced as a whole; `-o` is merged option by option.
    pub(super) fn or(mut self, lower: Self) -> Self {
        macro_rules! fill {
            ($($field:ident)*) => { $(self.$field = self.$field.or(lower.$field);)* };
        }
        fill! {
            port unix_socket unix_mask listen_backlog
            memory_limit disable_evictions max_item_size memory_file snapshot_interval disable_cas
            enable_largepages lock_memory
            conn_limit threads max_reqs_per_event
            auth_file limits enable_shutdown admin_socket admin_loopback disable_flush_all disable_dumping disable_watch
            prefix_delimiter http http_tls http_insecure tokens limits_store key_display recorder
            daemon user pidfile enable_coredumps log_format config memcached_conf
            udp_port protocol slab_growth_factor slab_min_size napi_ids enable_sasl enable_ssl
        }
        self.cluster = self.cluster.or(lower.cluster);
        if self.listen.is_empty() {
            self.listen = lower.listen;
        }
        if self.http_host.is_empty() {
            self.http_host = lower.http_host;
        }
        if self.verbose.is_empty() {
            self.verbose = lower.verbose;
        }
        self.extended.splice(0..0, lower.extended);
        self.words.splice(0..0, lower.words);
        self.check_config |= lower.check_config;
        self.help |= lower.help;
        self.version |= lower.version;
        self.license |= lower.license;
        self
    }
}

/// The clap command for parsing. Switches take an optional `=yes` or `=no`, so that a source can
/// turn off a switch that a source of lower precedence turned on.
pub(super) fn command() -> clap::Command {
    RawConfig::command().mut_args(|arg| {
        if is_switch(&arg) {
            arg.num_args(0..=1)
                .require_equals(true)
                .default_missing_value("yes")
                .value_parser(value::switch)
        } else if arg.get_action().takes_values()
            && !arg.is_positional()
            && !arg.is_require_equals_set()
        {
            // As in getopt, the word after a flag is its value, even if it begins with a hyphen
            // (`-p -1`).
            arg.allow_hyphen_values(true)
        } else {
            arg
        }
    })
}

/// Returns the clap command with the server's flags as users see them: a switch takes no value.
///
/// The command has no sub-commands, and parses no command line ([`Config::from_sources`] does).
///
/// [`Config::from_sources`]: super::Config::from_sources
#[must_use]
pub fn shown_flags() -> clap::Command {
    RawConfig::command().mut_args(|arg| {
        if is_switch(&arg) {
            arg.action(clap::ArgAction::SetTrue).value_parser(clap::value_parser!(bool))
        } else {
            arg
        }
    })
}

/// The help text, with `first_line` at the top.
pub(super) fn help(first_line: &str) -> String {
    let mut shown = shown_flags()
        .help_template("{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}")
        .override_usage(USAGE)
        .before_help(first_line.to_owned())
        .after_help(
            "A flag outweighs the environment (TOLLGATE_MEMORY_LIMIT=64), which outweighs\n\
             --config (memory_limit = 64), which outweighs --memcached-conf.",
        );
    shown.render_help().to_string()
}

fn is_switch(arg: &clap::Arg) -> bool {
    arg.get_value_names().is_some_and(|names| names.iter().any(|name| name.as_str() == SWITCH))
}
