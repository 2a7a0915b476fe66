//! The control plane: keeps the map agreed and durable.
//!
//! openraft on one, three or five of the nodes replicates [`cluster::Map`]; its vote and log lie in
//! a redb file. Every other node watches. The leader hears from the voters who is dead and makes
//! what `cluster::map::controller` says come true.
//!
//! No socket, no thread and no clock but tokio's: bytes go through [`Peers`], which the server
//! implements over its lanes, and time can be held by a simulation.
//!
//! * [`Control`]: a node's part in the control plane, and all that the server calls.
//! * [`Peers`]: what the server carries for it.
//! * [`Store`]: the data directory.
//! * `rpc`, `network`: what is said, and how it gets there.
//! * `published`: the newest map, and who waits for a newer one.
//! * `liveness`: who is heard.
//!
//! What may be relied on: a map that was seen is never taken back, and whatever
//! [`Control::propose`] answers is in every later map. Without a majority of the voters nothing
//! changes, and the last map stays readable.

mod control;
mod liveness;
mod network;
mod published;
mod rpc;
mod store;

#[cfg(any(test, feature = "simulation"))]
pub mod simulation;

pub use control::{Begin, Control, Heard, NoOutcome, Options, Outcome, Place, Status};
pub use network::{Called, Peers, Unreachable};
pub use published::{News, Watch};
pub use rpc::DiskState;
pub use store::{Identity, Seat, Store, StoreError};

#[cfg(test)]
mod tests;
