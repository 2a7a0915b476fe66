//! Whole nodes in a simulated world: the server's own code under faults from a seed.
//!
//! In `world` a run from its seed to its verdict, in `nodes` the hosts, in `faults` what happens to them,
//! in `client` who counts meanwhile, in `history` what was said, in `invariants` what must be true of it,
//! one property a file. Not here: replica cores by themselves, a thousand times faster (`tests/model`),
//! processes and real sockets (`tests/cluster`).
//!
//! A run is one thread. Sockets, clocks and chance are the world's, so a seed gives the same run each
//! time: [`Report::trace`] says whether it did.

mod client;
mod faults;
mod history;
mod invariants;
mod nodes;
mod world;

pub use tollgate::simulation::Bug;
pub use world::{Options, Report, run};
