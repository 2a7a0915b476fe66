//! The second world: the new data plane (`cluster::plane`) over links of bytes.
//!
//! Nodes have several workers, whose rounds are split into the parts in which they hold shards; links are cut within
//! frames, stand still, and are overtaken by newer ones. The map and its controller are those of the first world.

mod batch;
mod check;
mod faults;
mod node;
mod payload;
mod profile;
mod world;

pub use self::profile::{Aim, Aimed, FAULTS, Planted, Profile};
pub use self::world::{Figures, Group, Report, run};
