//! Lanes: what carries frames between nodes.
//!
//! Here: the handle to all of them, and what their tasks share. In `options` the settings, in `peer`
//! the way to one peer and what the node is told of it, in `data_link` the handshake of connections that
//! workers take over. Not here: what frames mean (`cluster`),
//! which node gets which, sockets (`net`).
//!
//! ```text
//! any thread: Lane::send ──► outbox: a window per class ──► link task: all that waits, one write
//! link task: one read ──► all whole frames in it ──► Handler::frames, answers by Peer::lane
//! ```
//!
//! * A *lane* is the way to a peer, a *link* a connection on it. We open one link for what we have to
//!   send (`dialer`): when something waits, and again after a pause while something does. A peer opens
//!   its own (`acceptor`). Either carries frames both ways: what answers a frame goes back over the link
//!   that brought it, so a peer that we cannot reach still hears us.
//! * Frames of one link arrive in the order in which they were put in, or not at all. Nothing is
//!   resent here: [`LinkEvent::Down`] tells that what was put in before it may be lost. Who resends makes it arrive once.
//! * Nothing is unbounded: an outbox that is full refuses at once, a stranger has said 512 bytes in
//!   five seconds or goes, and there are so many strangers at most.
//!
//! All tasks run on the runtime on which [`Transport::start`] was called.

mod acceptor;
mod data_link;
mod dialer;
mod handshake;
mod link;
mod metrics;
mod options;
mod outbox;
mod peer;
pub(crate) mod ping;
mod security;

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::BytesMut;
use cluster::id::NodeId;
use cluster::message::FrameBounds;
use cluster::message::handshake::{CloseReason, Hello, NONCE_BYTES};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::net::Listener;
use acceptor::Acceptor;
pub use acceptor::STRANGERS_MAX;
pub use data_link::NewDataLink;
use dialer::Dialer;
use link::TransportLink;
use metrics::LinkMetrics;
pub use metrics::PeerMetrics;
pub use options::{PeerIdentity, Timing, TransportOptions};
pub use outbox::{FrameClass, SendWindow, SendWindows, Shed};
pub use peer::{FrameHandler, LinkEnd, LinkError, LinkEvent, PeerAddr, PeerSender, RemotePeer};
pub(crate) use security::TlsConnection;
pub use security::{KEY_BYTES_MAX, KEY_BYTES_MIN, PeerSecurity, SecurityError};
use security::{SecuredStream, ValidatedSecurity};

/// Most peers that figures are kept of; the others share those of node 0.
const METRICS_MAX: usize = 4096;

/// Connections that others opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unauthenticated {
    /// All of them.
    pub came: u64,
    /// Those that were not let in.
    pub refused: u64,
    /// Those that have not shown who they are yet; [`STRANGERS_MAX`] at most.
    pub now: usize,
}

/// All lanes of a node, or of one of its cores.
pub struct Transport {
    hub: Arc<TransportHub>,
}

/// What all tasks share.
struct TransportHub {
    handler: Arc<dyn FrameHandler>,
    bounds: FrameBounds,
    windows: SendWindows,
    timing: Timing,
    workers: u16,
    versions: RangeInclusive<u16>,
    runtime: Handle,
    guard: Mutex<Arc<ValidatedSecurity>>,
    /// Every task has a receiver, so that one knows when all have ended.
    phase: watch::Sender<TransportPhase>,
    dialers: Mutex<BTreeMap<PeerAddr, Dialer>>,
    acceptor: Mutex<Acceptor>,
    metrics: Mutex<BTreeMap<PeerAddr, Arc<LinkMetrics>>>,
    links: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TransportPhase {
    identity: PeerIdentity,
    is_stopping: bool,
}

impl Transport {
    /// Begins to accept on the listeners, on the current runtime. There may be none.
    ///
    /// # Errors
    ///
    /// Security that is not sound, or none where others can reach a listener
    /// ([`PeerSecurity::permit`]).
    pub fn start(
        options: TransportOptions,
        listeners: Vec<Listener>,
        handler: Arc<dyn FrameHandler>,
    ) -> Result<Self, SecurityError> {
        let TransportOptions {
            identity, security, bounds, windows, timing, workers, versions, ..
        } = options;
        let addresses: Vec<_> = listeners.iter().filter_map(Listener::address).collect();
        security.permit(&addresses, options.insecure_confirmed)?;
        let hub = Arc::new(TransportHub {
            handler,
            bounds,
            windows,
            timing,
            workers,
            versions,
            runtime: Handle::current(),
            guard: Mutex::new(Arc::new(security.guard()?)),
            phase: watch::Sender::new(TransportPhase { identity, is_stopping: false }),
            dialers: Mutex::default(),
            acceptor: Mutex::default(),
            metrics: Mutex::default(),
            links: AtomicU64::new(0),
        });
        for listener in listeners {
            hub.runtime.spawn(acceptor::accept(Arc::clone(&hub), hub.phase.subscribe(), listener));
        }
        Ok(Self { hub })
    }

    /// The lane to a node at `host:port`. With another address than before the old lane is closed,
    /// and whoever has it is told [`Shed::Gone`]; what waits is still written if its link is up.
    #[must_use]
    pub fn sender(&self, node: NodeId, address: &str) -> PeerSender {
        dialer::dialer(&self.hub, PeerAddr::Node(node), address)
    }

    /// The lane to whoever is at `host:port`: a seed, of which no more is known.
    #[must_use]
    pub fn sender_at(&self, address: &str) -> PeerSender {
        dialer::dialer(&self.hub, PeerAddr::Address(address.to_owned()), address)
    }

    /// Closes the lane, as one with another address does, and forgets the figures.
    pub fn forget(&self, peer_addr: &PeerAddr) {
        if let Some(peer_path) = self.hub.dialers.lock().remove(peer_addr) {
            peer_path.outbox.close();
        }
        self.hub.metrics.lock().remove(peer_addr);
    }

    /// Opens a link if none is up, though there is nothing to say: an [`LinkEvent`] tells what came of it.
    pub fn probe(&self, peer_addr: &PeerAddr) {
        if let Some(peer_path) = self.hub.dialers.lock().get(peer_addr) {
            peer_path.outbox.probe();
        }
    }

    /// Restarts a pending attempt to connect to the peer. Called when other news shows that the peer lives.
    pub fn hurry(&self, peer_addr: &PeerAddr) {
        self.hub.hurry(peer_addr);
    }

    /// We are somebody else now: links are closed once they are empty, and the next ones begin anew.
    pub fn identify(&self, identity: PeerIdentity) {
        self.hub
            .phase
            .send_if_modified(|phase| std::mem::replace(&mut phase.identity, identity) != identity);
    }

    /// Who we are.
    #[must_use]
    pub fn identity(&self) -> PeerIdentity {
        self.hub.phase.borrow().identity
    }

    /// The longest frame.
    #[must_use]
    pub fn bounds(&self) -> FrameBounds {
        self.hub.bounds
    }

    /// The times that links go by.
    #[must_use]
    pub fn timing(&self) -> Timing {
        self.hub.timing
    }

    /// Secures the links that begin from now on in another way: by a renewed certificate. What was
    /// secured stays secured.
    ///
    /// # Errors
    ///
    /// Security that is not sound, or none any more; then nothing has changed.
    pub fn secure(&self, security: PeerSecurity) -> Result<(), SecurityError> {
        let guard = security.guard()?;
        let mut current = self.hub.guard.lock();
        if guard.is_open() && !current.is_open() {
            return Err(SecurityError::Given);
        }
        *current = Arc::new(guard);
        Ok(())
    }

    /// What was said to each peer, and how.
    #[must_use]
    pub fn metrics(&self) -> Vec<(PeerAddr, PeerMetrics)> {
        let metrics = self.hub.metrics.lock();
        metrics.iter().map(|(peer_addr, metrics)| (peer_addr.clone(), metrics.read())).collect()
    }

    /// Who came to our door.
    #[must_use]
    pub fn unauthenticated(&self) -> Unauthenticated {
        let acceptor = self.hub.acceptor.lock();
        let Acceptor { came, refused, ref unauthenticated, .. } = *acceptor;
        Unauthenticated { came, refused, now: unauthenticated.len() }
    }

    /// Writes what waits on the links that are up, says farewell on them, and ends all tasks.
    pub async fn stop(&self) {
        self.hub.phase.send_modify(|phase| phase.is_stopping = true);
        self.hub.phase.closed().await;
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.hub.phase.send_modify(|phase| phase.is_stopping = true);
    }
}

impl TransportHub {
    /// What we begin a link with, as `identity`.
    fn hello(&self, identity: PeerIdentity) -> io::Result<Hello> {
        let mut nonce = [0; NONCE_BYTES];
        crate::net::random::fill(&mut nonce)?;
        Ok(Hello {
            version_min: *self.versions.start(),
            version_max: *self.versions.end(),
            cluster: identity.cluster,
            node: identity.node,
            incarnation: identity.incarnation,
            core: identity.core,
            nonce,
            workers: self.workers,
            data_link: None,
            more: bytes::Bytes::new(),
        })
    }

    /// A link that both sides have greeted on.
    fn link(&self, peer: RemotePeer, wire: SecuredStream, rest: BytesMut) -> TransportLink {
        let metrics = peer.sender.outbox.metrics();
        metrics.links.fetch_add(1, Relaxed);
        metrics.links_now.fetch_add(1, Relaxed);
        tracing::info!(%peer, version = peer.version, dialled = peer.is_dialled, "link up");
        TransportLink::new(peer, wire, Arc::clone(&self.handler), self.bounds, self.timing, rest)
    }

    /// The end of a link: the last word, then the news.
    async fn end(&self, link: TransportLink, result: LinkEnd) {
        let peer = link.peer.clone();
        let outbox = &peer.sender.outbox;
        // What it means for the peer is told where it is known: that it cannot be dialled, or is dead.
        tracing::info!(%peer, ending = ?result, "link down");
        let left = link.end(&result).await;
        outbox.clear(left);
        outbox.metrics().links_now.fetch_sub(1, Relaxed);
        self.handler.link(LinkEvent::Down(peer, result));
    }

    fn guard(&self) -> Arc<ValidatedSecurity> {
        Arc::clone(&self.guard.lock())
    }

    fn hurry(&self, peer_addr: &PeerAddr) {
        if let Some(peer_path) = self.dialers.lock().get(peer_addr) {
            peer_path.is_near.notify_waiters();
        }
    }

    fn next_link(&self) -> u64 {
        self.links.fetch_add(1, Relaxed) + 1
    }

    fn metrics_of(&self, peer_addr: &PeerAddr) -> Arc<LinkMetrics> {
        let mut metrics = self.metrics.lock();
        let is_full = metrics.len() >= METRICS_MAX && !metrics.contains_key(peer_addr);
        let peer_addr = if is_full { PeerAddr::Node(NodeId(0)) } else { peer_addr.clone() };
        Arc::clone(metrics.entry(peer_addr).or_default())
    }
}

/// Ready when a link that began as `identity` has to end, with the word to say.
async fn close_reason(
    phase: &mut watch::Receiver<TransportPhase>,
    identity: PeerIdentity,
) -> CloseReason {
    let is_over = |phase: &TransportPhase| phase.is_stopping || phase.identity != identity;
    match phase.wait_for(is_over).await {
        Ok(phase) if !phase.is_stopping => CloseReason::Idle,
        _ => CloseReason::ShuttingDown,
    }
}

/// Ready when everything has to end.
async fn stopping(phase: &mut watch::Receiver<TransportPhase>) {
    // Without a sender there is nobody to go on for.
    let _ = phase.wait_for(|phase| phase.is_stopping).await;
}
