//! The kit of the programs that measure: the load generator, the accuracy study, the instruction
//! counts.
//!
//! * [`rng`]: seeded random numbers.
//! * [`table`], [`chart`]: tables in Markdown, pictures in SVG.
//! * [`progress`]: progress lines.
//!
//! Not here: any measurement.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "counts and times become floats only to be averaged, compared and printed"
)]

pub mod chart;
pub mod progress;
pub mod rng;
pub mod table;
