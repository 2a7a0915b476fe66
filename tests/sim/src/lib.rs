//! Whole nodes in a simulated world: the server's own code under faults from a seed.
//!
//! Here: `world`, a run from its seed to its verdict; `nodes`, the hosts; `faults`, their faults;
//! `client` and `editors`, the load; `history`, the requests and replies; `records`, the limits of
//! a map; `invariants`, the properties that must hold, one per file; `update`, nodes of two
//! versions; `queries`, questions to all nodes. Not here: replica cores by themselves, a thousand
//! times faster (`tests/model`), processes and real sockets (`tests/cluster`).
//!
//! A run is one thread. Sockets, clocks and random numbers are the world's, so a seed gives the
//! same run each time: equal values of [`Report::trace`] prove it.

mod client;
mod editors;
mod faults;
mod history;
mod invariants;
mod nodes;
mod queries;
mod records;
mod update;
mod world;

pub use invariants::changes::ChangeCounts;
pub use queries::check as check_queries;
pub use tollgate::simulation::Bug;
pub use world::{Options, Report, Scenario, run};
