//! Accuracy: what each algorithm makes of seeded traffic, against the perfect count.
//!
//! Everything goes through the real engine with a simulated clock. Here: the map. Read in this order:
//!
//! - who is compared, and how it is asked: [`contender`], [`subject`]
//! - what is true: [`truth`]
//! - what comes: [`traffic`], [`sources`], [`adversary`]
//! - what is measured: [`enforced`], [`observed`], all of it in [`study`]
//! - what is shown: [`page`], [`figures`]
//!
//! `bin/accuracy.rs` is the program.

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
