//! Data links: connections between the workers of two nodes.
//!
//! Here: dialling a data link, and the connection that a worker takes over after the handshake,
//! from either side. Not here: the handshake itself (`handshake`), reading and writing
//! (`crate::node::links`).

use std::fmt;
use std::future::pending;
use std::io;

use bytes::BytesMut;
use cluster::id::{Incarnation, NodeId};
use cluster::message::handshake::DataLinkId;
use tokio::time::timeout;

use super::dialer::{connect, link_error};
use super::handshake::AuthenticatedPeer;
use super::security::{SecuredStream, TlsConnection};
use super::{LinkError, PeerAddr, Transport};
use crate::net::DetachedStream;

/// A connection that both sides have authenticated, not registered with any runtime.
pub struct NewDataLink {
    /// The peer.
    pub node: NodeId,
    /// The peer's incarnation.
    pub incarnation: Incarnation,
    /// The peer's number of workers.
    pub workers: u16,
    /// The newest version of the peer protocol that both sides know.
    pub version: u16,
    /// The id of the link.
    pub id: DataLinkId,
    /// Whether this side opened the link.
    pub is_dialled: bool,
    pub(crate) stream: DetachedStream,
    pub(crate) tls: Option<Box<TlsConnection>>,
    /// Bytes that the peer sent after its proof.
    pub(crate) rest: BytesMut,
}

impl fmt::Debug for NewDataLink {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "data link {} {:?}", self.node, self.id)
    }
}

impl NewDataLink {
    pub(super) fn new(
        authenticated: AuthenticatedPeer,
        id: DataLinkId,
        is_dialled: bool,
        wire: SecuredStream,
    ) -> io::Result<Self> {
        let (stream, tls) = wire.detach()?;
        let AuthenticatedPeer { theirs, version, rest } = authenticated;
        let (node, incarnation, workers) = (theirs.node, theirs.incarnation, theirs.workers);
        Ok(Self { node, incarnation, workers, version, id, is_dialled, stream, tls, rest })
    }
}

impl Transport {
    /// Returns a number for a connection of a data link, higher than all earlier ones.
    #[must_use]
    pub fn next_data_link(&self) -> u64 {
        self.hub.next_link()
    }

    /// Opens data link `index` to `node` at `address`, with a number higher than all earlier ones.
    ///
    /// # Errors
    ///
    /// The reason why the link cannot be opened.
    pub async fn open_data_link(
        &self,
        node: NodeId,
        address: &str,
        index: u16,
    ) -> Result<NewDataLink, LinkError> {
        let hub = &self.hub;
        let id = DataLinkId { index, number: self.next_data_link() };
        let mut ours = hub.hello(self.identity()).map_err(|error| link_error(&error))?;
        ours.data_link = Some(id);
        let peer_addr = PeerAddr::Node(node);
        let connected =
            timeout(hub.timing.hello, connect(hub, &peer_addr, address, &ours, pending()));
        let (wire, authenticated) = connected.await.unwrap_or(Err(LinkError::Late))?;
        NewDataLink::new(authenticated, id, true, wire).map_err(|error| link_error(&error))
    }
}
