//! State that all threads share, and the process: users, connections, counters, snapshots, files.
//!
//! Not here: items (`shards`), settings (`config`).

mod audit;
pub mod auth;
pub(crate) mod buffers;
pub(crate) mod cluster_node;
pub(crate) mod connections;
pub(crate) mod guesses;
pub(crate) mod listeners;
pub(crate) mod prefixes;
pub mod process;
pub(crate) mod ready;
pub mod service;
pub mod snapshot;
pub(crate) mod watched_file;

pub(crate) use self::audit::audit;
