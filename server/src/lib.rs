//! The Tollgate server: memcached's protocol in front of the engine's counters.
//!
//! The folders, each above those that it uses: `admin` answers health checks and scrapes, `io` has
//! the event loop and the sockets of clients, `session` turns bytes into requests and replies,
//! `node` finds the owner of a key and holds copies, `commands` runs requests on items and limits,
//! `runtime` is the state that all threads share, `observe` keeps hot keys and series, `shards` is
//! the store behind its locks, `config` has the operator's settings, `limits` has the limits in
//! force and changes them, `records` stores them, `transport` links nodes, `net` has sockets,
//! clocks and randomness, `probe` takes samples. Only `net` names socket types and reads a clock.
//!
//! Not here: the sub-commands (`server/cli`), the process (`server/program`).

pub mod admin;
pub mod cluster_stats;
pub mod commands;
pub mod config;
pub mod counters;
mod io;
pub mod limits;
pub mod net;
mod node;
mod observe;
mod probe;
mod records;
pub mod runtime;
pub mod session;
pub mod shards;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod transport;

mod server;

pub use node::{LINK_APPENDS, PLACED_KEYS};
pub use server::{Server, ServerError};

/// The version in the reply to `version`: the memcached release whose protocol this server follows.
/// `tollgate -V` prints Tollgate's own version.
pub const MEMCACHED_VERSION: &str = config::ProgramName::MEMCACHED_VERSION;

/// The log target for lines that appear at every level: the server's lifecycle and changes to the
/// nodes of its cluster.
pub const LIFE: &str = "tollgate::life";

/// The log target for lines that appear at every level and tell who changed what.
pub const AUDIT: &str = "tollgate::audit";

/// File descriptors reserved for the process itself, beside one per client: listeners, runtimes,
/// logs, the snapshot.
pub const RESERVED_FILES: usize = 64;
