//! What control planes say to each other.
//!
//! Here: the calls, their answers, and their bytes. Not here: the lane that carries them (an opaque
//! `RpcRequest` and its answer), who answers (`handle::rpc_server`).
//!
//! The bytes are a version and postcard's form of what serde sees: openraft's messages are serde
//! types, and the commands in them are written the same way in Raft's log. A map of every field of
//! every message by hand would have to follow each release of openraft.

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
use crate::raft_network::Types;

/// Of all that follows. Who gets another one declines.
const VERSION: u8 = 2;

/// A call with its sender.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Envelope {
    pub(crate) from: Sender,
    /// Whom it is for: an address may have got another tenant. None: whoever is there.
    pub(crate) to: Option<NodeId>,
    pub(crate) call: RpcRequest,
}

/// Who says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sender {
    pub(crate) node_uuid: u128,
    pub(crate) incarnation: Incarnation,
    /// Cluster and id, if it has them.
    pub(crate) membership: Option<(u128, NodeId)>,
    /// Where nodes reach it.
    pub(crate) address: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum RpcRequest {
    /// Who is there? From a node that looks for its cluster, or for voters.
    Greet {
        /// The birth of whoever should found a cluster, in the eyes of a node that has none.
        bootstrap_vote: Option<u128>,
        /// It would found one itself; who only joins must not be waited for.
        founds: bool,
    },
    /// I am here.
    Heartbeat(Heartbeat),
    /// A piece of the whole map.
    Fetch { ver: u64, offset: u64 },
    /// For the leader: a command.
    Ask { command: MapCommand, ttl_ms: u32 },
    /// For the leader: this life seems to be over.
    Suspect { node: NodeId, incarnation: Incarnation },
    /// Are you there?
    Ping,
    /// From the leader to a voter: stand for election, for the leader leaves.
    Stand,
    /// Raft's.
    Append(AppendEntriesRequest<Types>),
    /// Raft's.
    Vote(VoteRequest<u64>),
    /// Raft's: a piece of a snapshot.
    Install(Box<Install>),
}

/// To every voter, four times a second.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Heartbeat {
    /// The version of the map that the sender has.
    pub(crate) map_ver: u64,
    /// It serves clients.
    pub(crate) is_ready: bool,
    /// Operations a second.
    pub(crate) load: u32,
    /// How the disk under its control log does.
    pub(crate) disk: DiskState,
    /// Whom it hears, from a voter to a voter.
    pub(crate) heard: Vec<LastHeard>,
}

/// How the disk under a node's control log does.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskState {
    /// As it should.
    #[default]
    Fine,
    /// Slow: another node should lead.
    Slow,
    /// There is no room for more: another node should lead.
    Full,
    /// It cannot be written: the node takes no part in Raft.
    Failed,
}

/// A piece of a snapshot; all of them in order.
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

/// Who is there.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GreetReply {
    pub(crate) from: Sender,
    /// Whom it wants to found a cluster, if it is in none.
    pub(crate) bootstrap_vote: Option<u128>,
    /// It would found one itself.
    pub(crate) founds: bool,
    /// The voters it knows, since which entry of the log, with their addresses.
    pub(crate) voters: (u64, Vec<(NodeId, String)>),
}

/// What is new.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HeartbeatReply {
    /// Who leads, and where.
    pub(crate) leader: Option<(NodeId, String)>,
    /// Who votes, since which entry of the log.
    pub(crate) voters: (u64, Vec<NodeId>),
    /// So many milliseconds ago a majority was known to be behind the leader.
    pub(crate) contact_ms: Option<u32>,
    /// Encoded deltas; none: fetch the whole.
    pub(crate) deltas: Option<Vec<Bytes>>,
    /// The version of the map that the voter has.
    pub(crate) map_ver: u64,
}

/// What became of a command.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ProposeReply {
    /// The map said so, in this version.
    Answered(u64, Result<MapAnswer, MapRefusal>),
    /// Nothing was done: ask that one.
    NotLeader(Option<(NodeId, String)>),
    /// Nothing was done, it may be later.
    NotYet,
    /// It may have been done.
    Unknown,
}

/// Why a call was not taken.
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

/// None for what another version, or nobody, wrote.
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
                // Small numbers most of the time: types, lengths, terms.
                (chance >> 56) as u8 >> ((chance >> 40) % 8)
            }));
            let _ = decode::<Envelope>(&bytes);
            let _ = decode::<RpcReply>(&bytes);
        }
    }
}
