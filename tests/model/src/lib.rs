//! A cluster in one process on simulated time: real replica cores, the real map and its controller,
//! and everything that can go wrong between them, drawn from a seed.
//!
//! Nodes have several workers, whose rounds are split into the parts in which they hold shards; links are cut within
//! frames, stand still, and are overtaken by newer ones.
//!
//! * `base`: how many nodes, which faults, how often; `profile`: the rest of what a seed means.
//! * `world`: nodes, links of bytes and time; runs a seed. `faults`: what goes wrong.
//! * `node`, `batch`: one node and its workers. `payload`: its keys.
//! * `network`: which messages to and from the controller pass, and when.
//! * `control`: the map as a linearizable register, and the controller that changes it.
//! * [`rng`]: chance, from a seed. `journal`: which operation did what; `check`: what must be true when all faults are over.

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
pub use world::{Figures, Group, Report, run};
