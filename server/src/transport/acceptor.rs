//! Links that peers open.
//!
//! Here: inbound connections before and after authentication, and the bounds on both. Not here: the
//! handshake (`handshake`), the link itself (`link`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cluster::id::{Incarnation, NodeId};
use cluster::message::handshake::{CloseReason, Hello, NONCE_BYTES, Side};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::data_link::NewDataLink;
use super::handshake::{AuthenticatedPeer, HandshakeError, handshake};
use super::outbox::Outbox;
use super::security::SecuredStream;
use super::{
    LinkEnd, LinkEvent, PeerAddr, PeerIdentity, PeerSender, RemotePeer, TransportHub,
    TransportPhase, close_reason, stopping,
};
use crate::net::{Listener, Stream};

/// Maximum number of unauthenticated connections. One more closes the oldest.
pub const UNAUTHENTICATED_MAX: usize = 64;
/// Maximum number of links that peers have opened.
const INBOUND_LINKS_MAX: usize = 4096;
/// Pause after the system refused a connection, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Inbound connections before and after authentication.
#[derive(Default)]
pub(super) struct Acceptor {
    /// All inbound connections so far.
    pub(super) came: u64,
    /// Inbound connections that were refused.
    pub(super) refused: u64,
    /// By number, so in the order of arrival.
    pub(super) unauthenticated: BTreeMap<u64, AbortHandle>,
    inbound_links: BTreeMap<LinkSlot, InboundLink>,
}

/// Identifies an inbound link: each core of a node has one. Nodes without a cluster all have id 0,
/// and most of them the first incarnation, so their links are told apart by nonce.
type LinkSlot = (NodeId, u16, Option<[u8; NONCE_BYTES]>);

struct InboundLink {
    incarnation: Incarnation,
    link: u64,
    replaced: Arc<Notify>,
}

fn link_slot(theirs: &Hello) -> LinkSlot {
    let nonce = (theirs.node == NodeId(0)).then_some(theirs.nonce);
    (theirs.node, theirs.core, nonce)
}

/// Accepts connections on one listener until the transport stops.
pub(super) async fn accept(
    hub: Arc<TransportHub>,
    mut phase: watch::Receiver<TransportPhase>,
    listener: Listener,
) {
    loop {
        let stream = tokio::select! {
            biased;
            () = stopping(&mut phase) => return,
            stream = listener.accept_peer() => stream,
        };
        match stream {
            Ok(stream) => on_connection(&hub, &phase, stream),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection from a peer: trying again");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn on_connection(hub: &Arc<TransportHub>, phase: &watch::Receiver<TransportPhase>, stream: Stream) {
    // The spawned task removes itself under this lock, so it must be inserted before.
    let mut acceptor = hub.acceptor.lock();
    while acceptor.unauthenticated.len() >= UNAUTHENTICATED_MAX
        && let Some((_, oldest)) = acceptor.unauthenticated.pop_first()
    {
        oldest.abort();
        acceptor.refused += 1;
    }
    acceptor.came += 1;
    let number = acceptor.came;
    let task = hub.runtime.spawn(receive(Arc::clone(hub), phase.clone(), number, stream));
    acceptor.unauthenticated.insert(number, task.abort_handle());
}

/// Authenticates an inbound connection, and runs its link to the end.
async fn receive(
    hub: Arc<TransportHub>,
    mut phase: watch::Receiver<TransportPhase>,
    number: u64,
    stream: Stream,
) {
    let address = stream.peer();
    let identity = phase.borrow().identity;
    let outcome = tokio::select! {
        biased;
        () = stopping(&mut phase) => return,
        outcome = timeout(hub.timing.hello, admit(&hub, identity, stream)) => outcome,
    };
    let link = {
        let mut acceptor = hub.acceptor.lock();
        if acceptor.unauthenticated.remove(&number).is_none() {
            // The connection was closed as the oldest one in the meantime.
            return;
        }
        match outcome {
            Ok(Ok((wire, authenticated))) if authenticated.theirs.data_link.is_some() => {
                drop(acceptor);
                return hand_over(&hub, wire, authenticated);
            }
            Ok(Ok((wire, authenticated))) => acceptor.install(&hub, wire, authenticated),
            Ok(Err(why)) => {
                acceptor.refused += 1;
                tracing::info!(address, ?why, "refused a connection: the handshake failed");
                return;
            }
            Err(_) => {
                acceptor.refused += 1;
                tracing::info!(address, "refused a connection: no handshake in time");
                return;
            }
        }
    };
    let Some((mut link, slot, replaced)) = link else {
        tracing::warn!(address, "refused a peer: there are too many links");
        return;
    };
    let number = link.peer.link;
    hub.handler.link(LinkEvent::Up(link.peer.clone()));
    hub.hurry(&PeerAddr::Node(link.peer.node));
    let result = tokio::select! {
        biased;
        reason = close_reason(&mut phase, identity) => LinkEnd::Ours(reason),
        () = replaced.notified() => LinkEnd::Replaced,
        ending = link.run() => ending,
    };
    {
        let mut acceptor = hub.acceptor.lock();
        if acceptor.inbound_links.get(&slot).is_some_and(|inbound| inbound.link == number) {
            acceptor.inbound_links.remove(&slot);
        }
    }
    link.peer.sender.outbox.close();
    hub.end(link, result).await;
}

/// Passes a data link to the handler.
fn hand_over(hub: &TransportHub, wire: SecuredStream, authenticated: AuthenticatedPeer) {
    let Some(id) = authenticated.theirs.data_link else { return };
    match NewDataLink::new(authenticated, id, false, wire) {
        Ok(link) => hub.handler.data_link(link),
        Err(error) => tracing::info!(%error, "cannot hand over a data link"),
    }
}

async fn admit(
    hub: &TransportHub,
    identity: PeerIdentity,
    stream: Stream,
) -> Result<(SecuredStream, AuthenticatedPeer), HandshakeError> {
    let guard = hub.guard();
    let accepted = guard.accept(stream).await;
    hub.note_tls(&guard, &accepted);
    let mut wire = accepted?;
    let ours = hub.hello(identity)?;
    let authenticated = handshake(&mut wire, Side::Accepting, &ours, &guard.key, |theirs| {
        let acceptor = hub.acceptor.lock();
        let known = acceptor.inbound_links.get(&link_slot(theirs));
        if known.is_some_and(|inbound| inbound.incarnation > theirs.incarnation) {
            return Err(CloseReason::OldIncarnation);
        }
        drop(acceptor);
        hub.handler.vet(theirs)
    });
    let authenticated = authenticated.await?;
    Ok((wire, authenticated))
}

impl Acceptor {
    /// Registers a link. It replaces an earlier link of the same core: a peer that opens a second
    /// link has lost the first.
    fn install(
        &mut self,
        hub: &TransportHub,
        wire: SecuredStream,
        authenticated: AuthenticatedPeer,
    ) -> Option<(super::link::TransportLink, LinkSlot, Arc<Notify>)> {
        let AuthenticatedPeer { theirs, version, rest } = authenticated;
        let slot = link_slot(&theirs);
        if self.inbound_links.len() >= INBOUND_LINKS_MAX && !self.inbound_links.contains_key(&slot)
        {
            self.refused += 1;
            return None;
        }
        let metrics = hub.metrics_of(&PeerAddr::Node(theirs.node));
        let peer = RemotePeer {
            node: theirs.node,
            incarnation: theirs.incarnation,
            core: theirs.core,
            cluster: theirs.cluster,
            version,
            link: hub.next_link(),
            is_dialled: false,
            sender: PeerSender { outbox: Arc::new(Outbox::new(hub.windows, metrics)) },
        };
        let replaced = Arc::new(Notify::new());
        let inbound = InboundLink {
            incarnation: theirs.incarnation,
            link: peer.link,
            replaced: Arc::clone(&replaced),
        };
        if let Some(before) = self.inbound_links.insert(slot, inbound) {
            before.replaced.notify_one();
        }
        Some((hub.link(peer, wire, rest), slot, replaced))
    }
}
