//! A cluster in one process on simulated time: real replica cores, the real map and its controller,
//! and everything that can go wrong between them, drawn from a seed.
//!
//! * [`plane`]: nodes, links of bytes and time; runs a seed.
//! * `base`: how many nodes, which faults, how often.
//! * `network`: what passes between two nodes at all.
//! * `control`: the map as a linearizable register, and the controller that changes it.
//! * `journal`: which operation did what.

mod base;
mod control;
mod journal;
mod network;
pub mod plane;
mod rng;
