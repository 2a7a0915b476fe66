//! The control plane: keeps the map agreed and durable.
//!
//! openraft on one, three or five of the nodes replicates [`cluster::Map`]; its vote and log lie in
//! a redb file. Every other node watches. The leader hears from the voters who is dead and makes
//! what `cluster::map::controller` says come true.
//!
//! No socket, no thread and no clock but tokio's: bytes go through [`ControlTransport`], which the server
//! implements over its lanes, and time can be held by a simulation.
//!
//! * [`Control`]: a node's part in the control plane, and all that the server calls.
//! * [`ControlTransport`]: what the server carries for it.
//! * [`ControlStore`]: the data directory.
//! * `rpc`, `raft_network`: what is said, and how it gets there.
//! * `map_watch`: the newest map, and who waits for a newer one.
//! * `failure_detector`: who is heard.
//!
//! What may be relied on: a map that was seen is never taken back, and whatever
//! [`Control::propose`] answers is in every later map. Without a majority of the voters nothing
//! changes, and the last map stays readable.

mod failure_detector;
mod handle;
mod map_watch;
mod raft_network;
mod rpc;
mod store;

#[cfg(any(test, feature = "simulation"))]
pub mod simulation;

pub use handle::{
    CommandOutcome, Control, ControlOptions, MembershipState, NodeReport, ProposeError, StartMode,
    Status,
};
pub use map_watch::{MapUpdate, MapWatch};
pub use raft_network::{CallFuture, ControlTransport, Unreachable};
pub use rpc::DiskState;
pub use store::{ControlStore, Membership, NodeIdentity, StoreError};

#[cfg(test)]
mod tests;
