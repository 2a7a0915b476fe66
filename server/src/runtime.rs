//! State that all threads share, and the process: users, connections, counters, snapshots, files.
//!
//! Not here: items (`shards`), settings (`config`).

pub mod auth;
pub(crate) mod buffers;
pub(crate) mod connections;
pub mod counters;
pub(crate) mod files;
pub(crate) mod guesses;
pub(crate) mod limits_file;
pub(crate) mod prefixes;
pub mod process;
pub mod service;
pub mod snapshot;
