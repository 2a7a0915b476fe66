//! The delivery of calls to other nodes, Raft's calls among them.
//!
//! Here: the trait that the server implements over its transport, the address book, openraft's
//! network. Not here: the calls themselves (`rpc`).

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cluster::id::{Incarnation, NodeId};
use openraft::error::{
    Fatal, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable as RaftUnreachable,
};
use openraft::network::{Backoff, RPCOption};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{BasicNode, OptionalSend, RaftNetwork, RaftNetworkFactory, Snapshot, Vote};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::map_watch::MapPublisher;
use crate::raft_types::{Types, node_id};
use crate::rpc::{self, Declined, Envelope, Install, RpcReply, RpcRequest, Sender};
use crate::store::NodeIdentity;

/// The bytes of a snapshot in one call: far below the longest control frame.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
/// Raft's pause after a call that failed.
const BACKOFF: Duration = Duration::from_millis(100);
/// The timeout for a chunk of a snapshot.
const CHUNK_TTL: Duration = Duration::from_secs(1);
/// The most addresses kept beside the map's.
const ADDRESSES_MAX: usize = 4096;

/// The pending answer of a call.
pub type CallFuture = Pin<Box<dyn Future<Output = Result<Bytes, Unreachable>> + Send>>;

/// The transport to other nodes; the server implements it.
pub trait ControlTransport: Send + Sync + 'static {
    /// Carries `rpc` to [`Control::handle`](crate::Control::handle) of a node, and its answer back.
    ///
    /// `to` is none if only the address is known. The future is dropped after `ttl`, because a
    /// later answer is of no use. Calls to one node may overtake each other.
    fn call(&self, to: Option<NodeId>, address: &str, rpc: Bytes, ttl: Duration) -> CallFuture;

    /// Sets the identity under which this node calls others: before its first call, once it has
    /// greeted its seeds, and whenever its membership changes. A call that waits for its answer
    /// meanwhile may be lost.
    fn identify(&self, identity: NodeIdentity);
}

/// The reason for the lack of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// The host answers but refuses connections on the address: the process is gone.
    #[error("connection refused")]
    Refused,
    /// No part of the call was sent, and none will be: there is no path to the node.
    #[error("not sent")]
    NotSent,
    /// The connection broke: the node may have received the call.
    #[error("connection lost")]
    Lost,
    /// The answer did not arrive in time.
    #[error("no answer in time")]
    Late,
}

/// The reason for the lack of a usable answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    #[error("declined: {0}")]
    Declined(Declined),
}

/// This node's client for calls to all others. Clones share it.
#[derive(Clone)]
pub(crate) struct RpcClient {
    inner: Arc<RpcClientInner>,
}

struct RpcClientInner {
    peers: Arc<dyn ControlTransport>,
    published: Arc<MapPublisher>,
    sender: Mutex<Sender>,
    /// Addresses that nodes reported, with their incarnations; newer than the map's, or known
    /// before there is a map.
    addresses: Mutex<BTreeMap<NodeId, (Incarnation, String)>>,
}

impl RpcClient {
    pub(crate) fn new(
        peers: Arc<dyn ControlTransport>,
        published: Arc<MapPublisher>,
        sender: Sender,
    ) -> Self {
        let addresses = Mutex::default();
        Self {
            inner: Arc::new(RpcClientInner {
                peers,
                published,
                sender: Mutex::new(sender),
                addresses,
            }),
        }
    }

    pub(crate) fn identify(&self, identity: NodeIdentity) {
        self.inner.peers.identify(identity);
    }

    pub(crate) fn sender(&self) -> Sender {
        self.inner.sender.lock().clone()
    }

    pub(crate) fn join(&self, cluster: u128, node: NodeId) {
        self.inner.sender.lock().membership = Some((cluster, node));
    }

    /// Stores a node's address.
    pub(crate) fn learn(&self, node: NodeId, incarnation: Incarnation, address: &str) {
        let mut addresses = self.inner.addresses.lock();
        if addresses.get(&node).is_none_or(|(life, _)| *life <= incarnation)
            && (addresses.len() < ADDRESSES_MAX || addresses.contains_key(&node))
        {
            addresses.insert(node, (incarnation, address.to_owned()));
        }
    }

    /// The newest address of a node.
    pub(crate) fn address(&self, node: NodeId) -> Option<String> {
        let map = self.inner.published.map();
        let known = map.nodes().get(&node);
        let addresses = self.inner.addresses.lock();
        match (addresses.get(&node), known) {
            (Some((incarnation, _)), Some(known)) if *incarnation < known.incarnation => {
                Some(known.description.peer_address.clone())
            }
            (Some((_, address)), _) => Some(address.clone()),
            (None, known) => known.map(|known| known.description.peer_address.clone()),
        }
    }

    /// Calls a node; with `to` none, any node at the address.
    pub(crate) async fn call(
        &self,
        to: Option<NodeId>,
        address: &str,
        call: RpcRequest,
        ttl: Duration,
    ) -> Result<RpcReply, CallError> {
        let envelope = Envelope { from: self.sender(), to, call };
        let called = self.inner.peers.call(to, address, rpc::encode(&envelope), ttl);
        let bytes = timeout(ttl, called).await.unwrap_or(Err(Unreachable::Late))?;
        match rpc::decode(&bytes) {
            Some(RpcReply::Declined(why)) => Err(CallError::Declined(why)),
            Some(reply) => Ok(reply),
            None => Err(CallError::Declined(Declined::Malformed)),
        }
    }

    /// Calls a node at its newest address.
    pub(crate) async fn call_node(
        &self,
        to: NodeId,
        call: RpcRequest,
        ttl: Duration,
    ) -> Result<RpcReply, CallError> {
        let address = self.address(to).ok_or(Unreachable::NotSent)?;
        self.call(Some(to), &address, call, ttl).await
    }
}

impl RaftNetworkFactory<Types> for RpcClient {
    type Network = MemberConnection;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> MemberConnection {
        MemberConnection { rpc: self.clone(), to: node_id(target), address: node.addr.clone() }
    }
}

/// The client for one member of Raft.
pub(crate) struct MemberConnection {
    rpc: RpcClient,
    to: NodeId,
    /// The address at which the node became a member.
    address: String,
}

type Failed<E> = RPCError<u64, BasicNode, RaftError<u64, E>>;
type Streamed = StreamingError<Types, Fatal<u64>>;

fn failed<E: std::error::Error>(error: CallError) -> Failed<E> {
    RPCError::Unreachable(RaftUnreachable::new(&error))
}

impl MemberConnection {
    async fn call(&self, call: RpcRequest, ttl: Duration) -> Result<RpcReply, CallError> {
        let address = self.rpc.address(self.to).unwrap_or_else(|| self.address.clone());
        self.rpc.call(Some(self.to), &address, call, ttl).await
    }

    async fn send(
        &self,
        vote: Vote<u64>,
        snapshot: Snapshot<Types>,
    ) -> Result<SnapshotResponse<u64>, CallError> {
        let whole = *snapshot.snapshot;
        let mut offset = 0;
        loop {
            let end = whole.len().min(offset + CHUNK_BYTES);
            let install = Install {
                vote,
                meta: snapshot.meta.clone(),
                offset: offset as u64,
                bytes: whole.slice(offset..end),
                is_last: end == whole.len(),
            };
            match self.call(RpcRequest::Install(Box::new(install)), CHUNK_TTL).await? {
                RpcReply::Installed(response) => return Ok(response),
                RpcReply::Done if end < whole.len() => offset = end,
                _ => return Err(CallError::Declined(Declined::OutOfPlace)),
            }
        }
    }
}

impl RaftNetwork<Types> for MemberConnection {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, Failed<openraft::error::Infallible>> {
        match self.call(RpcRequest::Append(rpc), option.soft_ttl()).await {
            Ok(RpcReply::Append(response)) => Ok(response),
            Ok(_) => Err(failed(CallError::Declined(Declined::Malformed))),
            Err(error) => Err(failed(error)),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<u64>,
        option: RPCOption,
    ) -> Result<VoteResponse<u64>, Failed<openraft::error::Infallible>> {
        match self.call(RpcRequest::Vote(rpc), option.soft_ttl()).await {
            Ok(RpcReply::Vote(response)) => Ok(response),
            Ok(_) => Err(failed(CallError::Declined(Declined::Malformed))),
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
