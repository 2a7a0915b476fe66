//! The types that Raft replicates, and the ids of its members.
//!
//! Not here: the calls that carry them (`rpc`), their delivery (`raft_network`).

use bytes::Bytes;
use cluster::id::NodeId;
use cluster::map::{MapAnswer, MapCommand, MapRefusal};
use openraft::BasicNode;
use serde::{Deserialize, Serialize};

openraft::declare_raft_types!(
    /// The types that openraft replicates.
    pub(crate) Types:
        D = MapCommand,
        R = Applied,
        NodeId = u64,
        Node = BasicNode,
        Entry = openraft::Entry<Types>,
        SnapshotData = Bytes,
        AsyncRuntime = crate::raft_runtime::RaftRuntime,
);

/// The result of applying an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Applied {
    pub(crate) ver: u64,
    /// None for an entry of Raft's own.
    pub(crate) answer: Option<Result<MapAnswer, MapRefusal>>,
}

/// A node's id in the map from its id in Raft, which is the same number.
pub(crate) fn node_id(raft_id: u64) -> NodeId {
    NodeId(u32::try_from(raft_id).unwrap_or(u32::MAX))
}
