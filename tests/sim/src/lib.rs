//! Whole nodes in a simulated world: the server's own code under faults from a seed.
//!
//! Here: `world`, a run from its seed to its verdict; `nodes`, the hosts; `faults`, their faults;
//! `client`, the load; `history`, the requests and replies; `invariants`, the properties that must
//! hold, one per file. Not here: replica cores by themselves, a thousand times faster
//! (`tests/model`), processes and real sockets (`tests/cluster`).
//!
//! A run is one thread. Sockets, clocks and random numbers are the world's, so a seed gives the
//! same run each time: equal values of [`Report::trace`] prove it.

mod client;
mod faults;
mod history;
mod invariants;
mod nodes;
mod world;

pub use tollgate::simulation::Bug;
pub use world::{Options, Report, run};
