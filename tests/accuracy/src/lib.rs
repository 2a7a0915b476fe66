//! Accuracy: the decisions of each algorithm on seeded traffic, compared with the perfect count.
//!
//! Everything goes through the real engine with a simulated clock. Here: the map. Read in this
//! order:
//!
//! - the policies and how they are called: [`contender`], [`subject`]
//! - the perfect count: [`truth`]
//! - the arrivals: [`traffic`], [`sources`], [`adversary`]
//! - the measurements: [`enforced`], [`observed`], all of them in [`study`]
//! - the page and its pictures: [`page`], [`figures`]
//!
//! `main.rs` is the program.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "counts and times become floats only to be averaged, compared and printed"
)]

pub mod adversary;
pub mod contender;
pub mod enforced;
pub mod figures;
pub mod observed;
pub mod page;
pub mod sources;
pub mod study;
pub mod subject;
pub mod traffic;
pub mod truth;
