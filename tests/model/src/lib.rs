//! A cluster in one process on simulated time: real replica cores, the real map and its controller,
//! the real engine as payload, and everything that can go wrong between them, drawn from a seed.
//!
//! * [`profile`]: what a seed means: how many nodes, which faults, how often.
//! * [`world`]: nodes, links and time; runs a seed.
//! * [`plane`]: the same for the new data plane, over links of bytes.
//! * `control`: the map as a linearizable register, and the controller that changes it.
//! * `payload`: the engine as the machine of a replica; `journal`: which operation did what.
//! * `check`: what must be true when all faults are over.

mod check;
mod control;
mod journal;
mod network;
mod payload;
pub mod plane;
pub mod profile;
pub mod rng;
pub mod world;

pub use profile::{Fault, Profile};
pub use world::{Figures, Report, run};
