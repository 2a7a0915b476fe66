//! The Tollgate server: memcached's protocol in front of the engine's counters.
//!
//! The folders, each above the ones that it uses: `io` has the event loop and the sockets of clients, `session`
//! turns bytes into requests and replies, `node` finds the owner of a key and holds copies, `commands` runs
//! requests on items and limits, `runtime` is shared by all threads, `shards` is the store behind its locks,
//! `config` and `cli` are the settings and the operator's program, `limits` finds the limit of a key,
//! `transport` connects nodes, `net` has sockets, clocks and randomness. Only `net` names socket types and reads
//! a clock.

pub mod cli;
pub mod cluster_stats;
pub mod commands;
pub mod config;
pub mod counters;
mod files;
mod io;
pub mod limits;
pub mod net;
mod node;
pub mod runtime;
pub mod session;
pub mod shards;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod transport;

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
