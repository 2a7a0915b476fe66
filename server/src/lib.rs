//! The Tollgate server: memcached's protocol in front of the engine's counters.
//!
//! The modules in the order of a request: `listener` accepts, `worker` is a thread, `connection`
//! reads and writes, `session` turns bytes into replies, `service` is the state that all clients
//! share, `shards` is the store behind its locks. Beside them: `config`, `process`, `auth`,
//! `snapshot`, `stats`; `transport`, the links between nodes; `cluster_stats`, the reports about
//! the cluster; `cli`, the operator's commands. Only `net` names socket types and only `clock`
//! reads a clock.

mod admin;
pub mod auth;
mod buffers;
pub mod cli;
pub mod clock;
pub mod cluster_stats;
pub mod config;
mod connection;
mod connections;
pub mod counters;
mod fast;
mod files;
mod guesses;
mod items;
mod limited_keys;
pub mod limits;
mod limits_file;
mod listener;
mod multi_key;
mod native;
pub mod net;
mod node;
mod policy_cache;
mod prefixes;
pub mod process;
mod random;
pub mod scratch;
pub mod service;
pub mod session;
pub mod shards;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod snapshot;
mod stats;
pub mod transport;
mod worker;

mod server;

pub use server::{Server, ServerError};

/// The version in the reply to `version`: the memcached release whose protocol this server follows.
/// `tollgate -V` prints Tollgate's own version.
pub const MEMCACHED_VERSION: &str = config::ProgramName::MEMCACHED_VERSION;

/// The log target for lines that appear at every level: the server's lifecycle and changes to the
/// nodes of its cluster.
pub const LIFE: &str = "tollgate::life";

/// File descriptors reserved for the process itself, beside one per client: listeners, runtimes,
/// logs, the snapshot.
pub const RESERVED_FILES: usize = 64;
