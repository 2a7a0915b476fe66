//! The control plane: keeps the map agreed and durable.
//!
//! openraft on one, three or five of the nodes replicates [`cluster::Map`]; its vote and log are in
//! a redb file. All other nodes watch. The leader learns from the voters which nodes are dead, and
//! commits the commands of `cluster::map::controller`.
//!
//! The crate has no socket, no thread and no clock but tokio's. Bytes go through
//! [`ControlTransport`], which the server implements over its transport, and a simulation can
//! control the time.
//!
//! * [`Control`]: a node's part in the control plane, and the server's interface to it.
//! * [`ControlTransport`]: the calls between nodes, which the server carries.
//! * [`ControlStore`]: the data directory.
//! * `rpc`, `raft_network`: the calls, and their delivery; `raft_types`: the types of Raft;
//!   `raft_runtime`: its tasks and waits.
//! * `map_watch`: the newest map, and the watchers of it.
//! * `failure_detector`: the nodes with recent heartbeats.
//! * [`WakeGrid`]: the instants at which periodic waits end, here and in the server.
//!
//! Guarantees: a map that was published is never taken back, and each change that
//! [`Control::propose`] returns is in every later map. Without a majority of the voters nothing
//! changes, and the last map stays readable.

mod failure_detector;
mod handle;
mod map_watch;
mod raft_network;
mod raft_runtime;
mod raft_types;
mod rpc;
mod store;
mod wake_grid;

#[cfg(any(test, feature = "simulation"))]
pub mod simulation;

pub use handle::{
    CommandOutcome, Control, ControlFuture, ControlOptions, MembershipState, NodeReport,
    ProposeError, StartMode, Status,
};
pub use map_watch::{MapUpdate, MapWatch};
pub use raft_network::{CallFuture, ControlTransport, Unreachable};
pub use rpc::DiskState;
pub use store::{ControlStore, Membership, NodeIdentity, StoreError};
pub use wake_grid::{GRID_STEP, GridTicks, WakeGrid};

#[cfg(test)]
mod tests;
