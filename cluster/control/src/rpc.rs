//! The calls between control planes.
//!
//! Here: the requests, the replies, and their encoding. Not here: the link that carries them as
//! opaque bytes, the answers (`handle::rpc_server`).
//!
//! The encoding is a version byte, then postcard's form of the serde types: openraft's messages are
//! serde types, and Raft's log stores the commands in them in the same form. A hand-written
//! encoding would have to follow each release of openraft.

use bytes::Bytes;
use cluster::id::{Incarnation, NodeId};
use cluster::map::{MapAnswer, MapCommand, MapRefusal};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{SnapshotMeta, Vote};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure_detector::LastHeard;
use crate::raft_types::Types;

/// The version of the encoding. A node that receives another version declines.
const VERSION: u8 = 2;

/// A request with its sender.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Envelope {
    pub(crate) from: Sender,
    /// The intended receiver, because another node may have taken over the address. None: any node
    /// at the address.
    pub(crate) to: Option<NodeId>,
    pub(crate) call: RpcRequest,
}

/// The sender of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sender {
    pub(crate) node_uuid: u128,
    pub(crate) incarnation: Incarnation,
    /// The sender's cluster and id, if it has them.
    pub(crate) membership: Option<(u128, NodeId)>,
    /// The sender's address for nodes.
    pub(crate) address: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum RpcRequest {
    /// Asks for the receiver's identity. From a node that looks for its cluster or for voters.
    Greet {
        /// The bootstrap vote of a sender without a cluster: the uuid of the node that should found
        /// one.
        bootstrap_vote: Option<u128>,
        /// Whether the sender would found a cluster. A node that only joins does not count for the
        /// founding.
        founds: bool,
    },
    /// A sign of life.
    Heartbeat(Heartbeat),
    /// Requests a chunk of the whole map.
    Fetch { ver: u64, offset: u64 },
    /// Proposes a command to the leader.
    Ask { command: MapCommand, ttl_ms: u32 },
    /// Reports to the leader that this incarnation seems to be over.
    Suspect { node: NodeId, incarnation: Incarnation },
    /// Checks that the process answers.
    Ping,
    /// From a leader that leaves, to a voter: stand for election.
    Stand,
    /// A request of Raft.
    Append(AppendEntriesRequest<Types>),
    /// A request of Raft.
    Vote(VoteRequest<u64>),
    /// A request of Raft: a chunk of a snapshot.
    Install(Box<Install>),
}

/// A sign of life to every voter, four times a second.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Heartbeat {
    /// The version of the sender's map.
    pub(crate) map_ver: u64,
    /// Whether the sender serves clients.
    pub(crate) is_ready: bool,
    /// The sender's operations per second.
    pub(crate) load: u32,
    /// The state of the disk under the sender's control log.
    pub(crate) disk: DiskState,
    /// From a voter to a voter: the last message of each node.
    pub(crate) heard: Vec<LastHeard>,
}

/// The state of the disk under a node's control log.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskState {
    /// Writes succeed in time.
    #[default]
    Fine,
    /// The disk is slow: another node should lead.
    Slow,
    /// The disk has no space left: another node should lead.
    Full,
    /// The disk cannot be written: the node takes no part in Raft.
    Failed,
}

/// A chunk of a snapshot; chunks are sent in order.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Install {
    pub(crate) vote: Vote<u64>,
    pub(crate) meta: SnapshotMeta<u64, openraft::BasicNode>,
    pub(crate) offset: u64,
    pub(crate) bytes: Bytes,
    pub(crate) is_last: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum RpcReply {
    Greeting(GreetReply),
    News(HeartbeatReply),
    Chunk { ver: u64, total: u64, bytes: Bytes },
    Propose(ProposeReply),
    Done,
    Append(AppendEntriesResponse<u64>),
    Vote(VoteResponse<u64>),
    Installed(SnapshotResponse<u64>),
    Declined(Declined),
}

/// The identity of the receiver.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GreetReply {
    pub(crate) from: Sender,
    /// The bootstrap vote of a node without a cluster.
    pub(crate) bootstrap_vote: Option<u128>,
    /// Whether the node would found a cluster.
    pub(crate) founds: bool,
    /// The voters that the node knows, with their addresses, and the log entry that made them
    /// voters.
    pub(crate) voters: (u64, Vec<(NodeId, String)>),
}

/// The answer to a heartbeat.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HeartbeatReply {
    /// The leader and its address.
    pub(crate) leader: Option<(NodeId, String)>,
    /// The voters, and the log entry that made them voters.
    pub(crate) voters: (u64, Vec<NodeId>),
    /// The time since a majority was known to follow the leader, in milliseconds.
    pub(crate) contact_ms: Option<u32>,
    /// Encoded deltas; none: fetch the whole map.
    pub(crate) deltas: Option<Vec<Bytes>>,
    /// The version of the answering node's map.
    pub(crate) map_ver: u64,
}

/// The result of a proposed command.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ProposeReply {
    /// The map's answer, in this version of the map.
    Answered(u64, Result<MapAnswer, MapRefusal>),
    /// Nothing was done: ask the leader, if given.
    NotLeader(Option<(NodeId, String)>),
    /// Nothing was done: ask again later.
    NotYet,
    /// The command may have been applied.
    Unknown,
}

/// The reason for declining a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum Declined {
    #[error("in another cluster")]
    OtherCluster,
    #[error("for another node")]
    OtherNode,
    #[error("not in a cluster yet")]
    NotMember,
    #[error("not understood")]
    Malformed,
    #[error("it does not fit")]
    OutOfPlace,
    #[error("going down")]
    Stopped,
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Bytes {
    let bytes = postcard::to_extend(value, vec![VERSION]);
    bytes.expect("nothing in it can fail to be written").into()
}

/// Decodes a value; none for bytes of another version or from another source.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (&VERSION, body) = bytes.split_first()? else { return None };
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_calls_of_this_version_are_read() {
        let from = Sender {
            node_uuid: 1,
            incarnation: Incarnation(2),
            membership: None,
            address: "a".into(),
        };
        let heartbeat = Heartbeat {
            map_ver: 300,
            is_ready: true,
            load: 9,
            disk: DiskState::Slow,
            heard: vec![(NodeId(1), Incarnation(1), 7)],
        };
        let bytes =
            encode(&Envelope { from, to: Some(NodeId(3)), call: RpcRequest::Heartbeat(heartbeat) });
        assert!(decode::<Envelope>(&bytes).is_some());
        for cut in 0..bytes.len() {
            assert!(decode::<Envelope>(&bytes[..cut]).is_none(), "{cut}");
        }
        assert!(decode::<Envelope>(&[&bytes[..], &[0]].concat()).is_none());
        let mut other = bytes.to_vec();
        other[0] += 1;
        assert!(decode::<Envelope>(&other).is_none());
    }

    #[test]
    fn no_garbage_is_dangerous() {
        let mut chance = 1_u64;
        for length in (0..64).cycle().take(20_000) {
            let mut bytes = vec![VERSION];
            bytes.extend((0..length).map(|_| {
                chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Small numbers most of the time, because types, lengths and terms are small.
                (chance >> 56) as u8 >> ((chance >> 40) % 8)
            }));
            let _ = decode::<Envelope>(&bytes);
            let _ = decode::<RpcReply>(&bytes);
        }
    }
}
