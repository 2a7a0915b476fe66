//! How calls reach other nodes, and Raft's among them.
//!
//! Here: the trait that the server implements over its lanes, the address book, openraft's network.
//! Not here: what is said (`rpc`).

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cluster::id::{Incarnation, NodeId};
use cluster::map::{Answer, Command, Refused};
use openraft::error::{
    Fatal, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable as RaftUnreachable,
};
use openraft::network::{Backoff, RPCOption};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{BasicNode, OptionalSend, RaftNetwork, RaftNetworkFactory, Snapshot, Vote};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::published::Published;
use crate::rpc::{self, Call, Declined, Install, Letter, Reply, Sender};

/// Bytes of a snapshot in one call: far below the longest frame of a lane.
pub(crate) const PIECE_BYTES: usize = 256 << 10;
/// After a call that did not get through, Raft waits so long.
const BACKOFF: Duration = Duration::from_millis(100);
/// A piece of a snapshot may take so long.
const PIECE_TTL: Duration = Duration::from_secs(1);
/// Most addresses kept beside the map's.
const ADDRESSES_MAX: usize = 4096;

openraft::declare_raft_types!(
    /// What openraft replicates, by which types.
    pub(crate) Types:
        D = Command,
        R = Applied,
        NodeId = u64,
        Node = BasicNode,
        Entry = openraft::Entry<Types>,
        SnapshotData = Bytes,
        AsyncRuntime = openraft::TokioRuntime,
);

/// What applying an entry gave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Applied {
    pub(crate) ver: u64,
    /// None: it was an entry of Raft's own.
    pub(crate) answer: Option<Result<Answer, Refused>>,
}

/// What a call will have become.
pub type Called = Pin<Box<dyn Future<Output = Result<Bytes, Unreachable>> + Send>>;

/// The way to other nodes; the server's lanes.
pub trait Peers: Send + Sync + 'static {
    /// Carries `rpc` to [`Control::handle`](crate::Control::handle) of a node, and its answer back.
    ///
    /// `to` is none where only the address is known. The future is dropped after `ttl`; an answer
    /// that comes later is of no use. Calls to one node may overtake each other.
    fn call(&self, to: Option<NodeId>, address: &str, rpc: Bytes, ttl: Duration) -> Called;
}

/// Why no answer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// The host is there and takes no connection on the address: the process is gone.
    #[error("connection refused")]
    Refused,
    /// The connection broke, or there is no way.
    #[error("connection lost")]
    Lost,
    /// Nothing came in time.
    #[error("no answer in time")]
    Late,
}

/// Why there is no answer of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoAnswer {
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    #[error("declined: {0}")]
    Declined(Declined),
}

/// This node's way to all others. Clones share it.
#[derive(Clone)]
pub(crate) struct Post {
    inner: Arc<Inner>,
}

struct Inner {
    peers: Arc<dyn Peers>,
    published: Arc<Published>,
    sender: Mutex<Sender>,
    /// Where nodes said that they are, in which life; newer than the map, or before there is one.
    addresses: Mutex<BTreeMap<NodeId, (Incarnation, String)>>,
}

impl Post {
    pub(crate) fn new(peers: Arc<dyn Peers>, published: Arc<Published>, sender: Sender) -> Self {
        let addresses = Mutex::default();
        Self { inner: Arc::new(Inner { peers, published, sender: Mutex::new(sender), addresses }) }
    }

    pub(crate) fn sender(&self) -> Sender {
        self.inner.sender.lock().clone()
    }

    pub(crate) fn take_seat(&self, cluster: u128, node: NodeId) {
        self.inner.sender.lock().seat = Some((cluster, node));
    }

    /// Remembers where a node is.
    pub(crate) fn learn(&self, node: NodeId, incarnation: Incarnation, address: &str) {
        let mut addresses = self.inner.addresses.lock();
        if addresses.get(&node).is_none_or(|(life, _)| *life <= incarnation)
            && (addresses.len() < ADDRESSES_MAX || addresses.contains_key(&node))
        {
            addresses.insert(node, (incarnation, address.to_owned()));
        }
    }

    /// Where a node is.
    pub(crate) fn address(&self, node: NodeId) -> Option<String> {
        let map = self.inner.published.map();
        let known = map.nodes().get(&node);
        let addresses = self.inner.addresses.lock();
        match (addresses.get(&node), known) {
            (Some((life, _)), Some(known)) if *life < known.incarnation => {
                Some(known.description.peer_address.clone())
            }
            (Some((_, address)), _) => Some(address.clone()),
            (None, known) => known.map(|known| known.description.peer_address.clone()),
        }
    }

    /// Calls a node, or whoever is at an address.
    pub(crate) async fn call(
        &self,
        to: Option<NodeId>,
        address: &str,
        call: Call,
        ttl: Duration,
    ) -> Result<Reply, NoAnswer> {
        let letter = Letter { from: self.sender(), to, call };
        let called = self.inner.peers.call(to, address, rpc::encode(&letter), ttl);
        let bytes = timeout(ttl, called).await.unwrap_or(Err(Unreachable::Late))?;
        match rpc::decode(&bytes) {
            Some(Reply::Declined(why)) => Err(NoAnswer::Declined(why)),
            Some(reply) => Ok(reply),
            None => Err(NoAnswer::Declined(Declined::Malformed)),
        }
    }

    /// Calls a node wherever it is.
    pub(crate) async fn call_node(
        &self,
        to: NodeId,
        call: Call,
        ttl: Duration,
    ) -> Result<Reply, NoAnswer> {
        let address = self.address(to).ok_or(Unreachable::Lost)?;
        self.call(Some(to), &address, call, ttl).await
    }
}

/// A node's id in the map from its id in Raft, which are the same number.
pub(crate) fn node_id(raft_id: u64) -> NodeId {
    NodeId(u32::try_from(raft_id).unwrap_or(u32::MAX))
}

impl RaftNetworkFactory<Types> for Post {
    type Network = Line;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Line {
        Line { post: self.clone(), to: node_id(target), address: node.addr.clone() }
    }
}

/// The way to one member.
pub(crate) struct Line {
    post: Post,
    to: NodeId,
    /// Where it was when it became a member.
    address: String,
}

type Failed<E> = RPCError<u64, BasicNode, RaftError<u64, E>>;
type Streamed = StreamingError<Types, Fatal<u64>>;

fn failed<E: std::error::Error>(error: NoAnswer) -> Failed<E> {
    RPCError::Unreachable(RaftUnreachable::new(&error))
}

impl Line {
    async fn call(&self, call: Call, ttl: Duration) -> Result<Reply, NoAnswer> {
        let address = self.post.address(self.to).unwrap_or_else(|| self.address.clone());
        self.post.call(Some(self.to), &address, call, ttl).await
    }

    async fn send(
        &self,
        vote: Vote<u64>,
        snapshot: Snapshot<Types>,
    ) -> Result<SnapshotResponse<u64>, NoAnswer> {
        let whole = *snapshot.snapshot;
        let mut offset = 0;
        loop {
            let end = whole.len().min(offset + PIECE_BYTES);
            let install = Install {
                vote,
                meta: snapshot.meta.clone(),
                offset: offset as u64,
                bytes: whole.slice(offset..end),
                is_last: end == whole.len(),
            };
            match self.call(Call::Install(Box::new(install)), PIECE_TTL).await? {
                Reply::Installed(response) => return Ok(response),
                Reply::Done if end < whole.len() => offset = end,
                _ => return Err(NoAnswer::Declined(Declined::OutOfPlace)),
            }
        }
    }
}

impl RaftNetwork<Types> for Line {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, Failed<openraft::error::Infallible>> {
        match self.call(Call::Append(rpc), option.soft_ttl()).await {
            Ok(Reply::Append(response)) => Ok(response),
            Ok(_) => Err(failed(NoAnswer::Declined(Declined::Malformed))),
            Err(error) => Err(failed(error)),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<u64>,
        option: RPCOption,
    ) -> Result<VoteResponse<u64>, Failed<openraft::error::Infallible>> {
        match self.call(Call::Vote(rpc), option.soft_ttl()).await {
            Ok(Reply::Vote(response)) => Ok(response),
            Ok(_) => Err(failed(NoAnswer::Declined(Declined::Malformed))),
            Err(error) => Err(failed(error)),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote<u64>,
        snapshot: Snapshot<Types>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<u64>, Streamed> {
        let sent = timeout(option.soft_ttl(), self.send(vote, snapshot));
        tokio::select! {
            biased;
            closed = cancel => Err(closed.into()),
            sent = sent => sent
                .unwrap_or(Err(Unreachable::Late.into()))
                .map_err(|error| Streamed::Unreachable(RaftUnreachable::new(&error))),
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(BACKOFF))
    }
}
