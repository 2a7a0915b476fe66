//! The Tollgate server: memcached's protocol in front of the engine's counters.
//!
//! The map of the package, in the order a byte travels: `listener` accepts, `worker` is a thread,
//! `connection` reads and writes, `session` turns bytes into answers, `service` is what all
//! clients share, `shards` the store behind its locks. Beside them: `config`, `process`, `auth`,
//! `snapshot`, `stats`; `transport`, which carries what nodes say to each other; `cluster_stats`, what an
//! operator is told of the cluster, and `cli`, the operator's own program. Only `net` names socket
//! types and only `clock` reads a clock.

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

/// The level of memcached's protocol that is spoken here: what clients mean when they ask for the
/// version. Tollgate's own version is what `tollgate -V` prints.
pub const MEMCACHED_VERSION: &str = config::ProgramName::MEMCACHED_VERSION;

/// The target of log lines that an operator sees at every level: the server's life, and what happens to
/// the nodes of its cluster.
pub const LIFE: &str = "tollgate::life";

/// File descriptors kept for the process itself beside one per client: listeners, runtimes,
/// logs, the snapshot.
pub const RESERVED_FILES: usize = 64;
