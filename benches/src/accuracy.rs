//! Accuracy: what each algorithm makes of seeded traffic, against the perfect count.
//!
//! Everything goes through the real engine with a simulated clock. Here: the map. Read in this order:
//!
//! - who is compared, and how it is asked: [`contender`], [`subject`]
//! - what is true: [`truth`]
//! - what comes: [`traffic`], [`sources`], [`adversary`]
//! - what is measured: [`enforced`], [`observed`]

pub mod adversary;
pub mod contender;
pub mod enforced;
pub mod observed;
pub mod sources;
pub mod subject;
pub mod traffic;
pub mod truth;
