//! A cluster in one process on simulated time: real replica cores, the real map and its controller,
//! and every fault that can occur between them, drawn from a seed.
//!
//! Nodes have several workers, whose rounds are split into the parts in which they lock shards;
//! links are cut within frames, stall, and are overtaken by newer ones.
//!
//! * `base`: the number of nodes, the faults and their rates; `profile`: the rest of a seed's
//!   profile.
//! * `world`: nodes, links of bytes and time; runs a seed. `faults`: the faults.
//! * `node`, `batch`: one node and its workers. `payload`: its keys.
//! * `network`: which messages to and from the controller pass, and when.
//! * `control`: the map as a linearizable register, and the controller that changes it.
//! * [`rng`]: random numbers from a seed. `journal`: the effect of each operation; `check`: the
//!   properties that must hold when all faults are over.

mod base;
mod batch;
mod check;
mod control;
mod faults;
mod journal;
mod network;
mod node;
mod payload;
mod profile;
pub mod rng;
mod world;

pub use profile::{Aim, Aimed, FAULTS, Planted, Profile};
pub use world::{Counters, Group, Report, run};
