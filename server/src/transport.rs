//! The transport: links that carry frames between nodes.
//!
//! Here: the handle to all links, and the state that their tasks share. Submodules: `options` has
//! the settings, `peer` the sender to a peer and the events about it, `data_link` the handshake of
//! connections that workers take over. Not here: the meaning of frames (`cluster`), choosing the
//! node for a frame, sockets (`net`).
//!
//! ```text
//! any thread: PeerSender::send ──► outbox: a window per class ──► link task: one write
//! link task: one read ──► FrameHandler::frames ──► answers by RemotePeer::sender
//! ```
//!
//! * A *link* is a connection to a peer. The node opens one link per peer for its own frames
//!   (`dialer`): as soon as a frame is pending, and again after a pause while frames are pending. A
//!   peer opens its own (`acceptor`). Each link carries frames both ways: the answer to a frame
//!   uses the link that brought the frame, so that a peer which this node cannot reach still gets
//!   its answers.
//! * Frames of one link arrive in the order in which they were pushed, or not at all. Nothing is
//!   resent here: [`LinkEvent::Down`] reports that frames pushed before it may be lost. The caller
//!   that resends a frame must also prevent its duplication.
//! * Everything is bounded: a full outbox refuses a frame at once, a connection must authenticate
//!   within five seconds and 512 bytes per frame, and at most [`UNAUTHENTICATED_MAX`] connections
//!   are unauthenticated at a time.
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
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};

use bytes::BytesMut;
use cluster::id::NodeId;
use cluster::message::FrameBounds;
use cluster::message::handshake::{CloseReason, Hello, NONCE_BYTES};
use control::WakeGrid;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tollgate_http::TlsFigures;

use crate::net::Listener;
use acceptor::Acceptor;
pub use acceptor::UNAUTHENTICATED_MAX;
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

/// Maximum number of peers with metrics of their own; the others share those of node 0.
const METRICS_MAX: usize = 4096;

/// Counts of inbound connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unauthenticated {
    /// All inbound connections so far.
    pub came: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Connections that are not authenticated yet; at most [`UNAUTHENTICATED_MAX`].
    pub now: usize,
}

/// All links of a node, or of one of its cores.
pub struct Transport {
    hub: Arc<TransportHub>,
}

/// The state that all tasks share.
struct TransportHub {
    handler: Arc<dyn FrameHandler>,
    bounds: FrameBounds,
    windows: SendWindows,
    timing: Timing,
    grid: WakeGrid,
    workers: u16,
    /// The oldest and the newest version of a new link.
    version_min: AtomicU16,
    version_max: u16,
    runtime: Handle,
    guard: Mutex<Arc<ValidatedSecurity>>,
    /// Every task holds a receiver, so that `closed` waits for the end of all tasks.
    phase: watch::Sender<TransportPhase>,
    dialers: Mutex<BTreeMap<PeerAddr, Dialer>>,
    acceptor: Mutex<Acceptor>,
    metrics: Mutex<BTreeMap<PeerAddr, Arc<LinkMetrics>>>,
    links: AtomicU64,
    tls: Arc<TlsFigures>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TransportPhase {
    identity: PeerIdentity,
    is_stopping: bool,
}

impl Transport {
    /// Starts accepting on `listeners`, of which there may be none, on the current runtime.
    ///
    /// # Errors
    ///
    /// The security settings are invalid, or other machines can reach a listener without security
    /// ([`PeerSecurity::permit`]).
    pub fn start(
        options: TransportOptions,
        listeners: Vec<Listener>,
        handler: Arc<dyn FrameHandler>,
    ) -> Result<Self, SecurityError> {
        let TransportOptions {
            identity,
            security,
            bounds,
            windows,
            timing,
            grid,
            workers,
            versions,
            ..
        } = options;
        let addresses: Vec<_> = listeners.iter().filter_map(Listener::address).collect();
        security.permit(&addresses, options.insecure_confirmed)?;
        let guard = security.guard()?;
        let tls = Arc::<TlsFigures>::default();
        tls.set_expiry(guard.expiry_s());
        let hub = Arc::new(TransportHub {
            handler,
            bounds,
            windows,
            timing,
            grid,
            workers,
            version_min: AtomicU16::new(*versions.start()),
            version_max: *versions.end(),
            runtime: Handle::current(),
            guard: Mutex::new(Arc::new(guard)),
            phase: watch::Sender::new(TransportPhase { identity, is_stopping: false }),
            dialers: Mutex::default(),
            acceptor: Mutex::default(),
            metrics: Mutex::default(),
            links: AtomicU64::new(0),
            tls,
        });
        for listener in listeners {
            hub.runtime.spawn(acceptor::accept(Arc::clone(&hub), hub.phase.subscribe(), listener));
        }
        Ok(Self { hub })
    }

    /// Returns the sender to a node at `host:port`. If the address differs from the last call, the
    /// former sender is closed and returns [`Shed::Gone`]; its pending frames are still written if
    /// its link is up.
    #[must_use]
    pub fn sender(&self, node: NodeId, address: &str) -> PeerSender {
        dialer::dialer(&self.hub, PeerAddr::Node(node), address)
    }

    /// Returns the sender to the unknown node at `host:port`, such as a seed.
    #[must_use]
    pub fn sender_at(&self, address: &str) -> PeerSender {
        dialer::dialer(&self.hub, PeerAddr::Address(address.to_owned()), address)
    }

    /// Closes the sender, as a changed address does, and removes its metrics.
    pub fn forget(&self, peer_addr: &PeerAddr) {
        if let Some(peer_path) = self.hub.dialers.lock().remove(peer_addr) {
            peer_path.outbox.close();
        }
        self.hub.metrics.lock().remove(peer_addr);
    }

    /// Opens a link if none is up, even without pending frames. A [`LinkEvent`] reports the result.
    pub fn probe(&self, peer_addr: &PeerAddr) {
        if let Some(peer_path) = self.hub.dialers.lock().get(peer_addr) {
            peer_path.outbox.probe();
        }
    }

    /// Restarts a pending attempt to connect to the peer. Called when other events show that the
    /// peer is alive.
    pub fn hurry(&self, peer_addr: &PeerAddr) {
        self.hub.hurry(peer_addr);
    }

    /// Changes the node's identity. Links are closed once they are empty, and new ones use the new
    /// identity.
    pub fn identify(&self, identity: PeerIdentity) {
        self.hub
            .phase
            .send_if_modified(|phase| std::mem::replace(&mut phase.identity, identity) != identity);
    }

    /// The node's identity.
    #[must_use]
    pub fn identity(&self) -> PeerIdentity {
        self.hub.phase.borrow().identity
    }

    /// The bounds of a frame.
    #[must_use]
    pub fn bounds(&self) -> FrameBounds {
        self.hub.bounds
    }

    /// The timing of links.
    #[must_use]
    pub fn timing(&self) -> Timing {
        self.hub.timing
    }

    /// Replaces the security of future links, for example by a renewed certificate. Existing links
    /// keep theirs.
    ///
    /// # Errors
    ///
    /// The settings are invalid, or would turn security off. Nothing has changed then.
    pub fn secure(&self, security: PeerSecurity) -> Result<(), SecurityError> {
        let guard = security.guard()?;
        let mut current = self.hub.guard.lock();
        if guard.is_open() && !current.is_open() {
            return Err(SecurityError::Given);
        }
        self.hub.tls.set_expiry(guard.expiry_s());
        *current = Arc::new(guard);
        Ok(())
    }

    /// The TLS handshakes of links and the end of the certificate; `None` without TLS.
    #[must_use]
    pub fn tls(&self) -> Option<Arc<TlsFigures>> {
        self.hub.guard().has_tls().then(|| Arc::clone(&self.hub.tls))
    }

    /// The metrics of each peer.
    #[must_use]
    pub fn metrics(&self) -> Vec<(PeerAddr, PeerMetrics)> {
        let metrics = self.hub.metrics.lock();
        metrics.iter().map(|(peer_addr, metrics)| (peer_addr.clone(), metrics.read())).collect()
    }

    /// The protocol version of the links to a node; `None` while no link is up.
    #[must_use]
    pub fn version_of(&self, node: NodeId) -> Option<u16> {
        let metrics = self.hub.metrics.lock();
        let metrics = metrics.get(&PeerAddr::Node(node))?.read();
        (metrics.links_now > 0).then_some(metrics.version)
    }

    /// The newest version of the protocol that this node speaks.
    #[must_use]
    pub fn newest_version(&self) -> u16 {
        self.hub.version_max
    }

    /// Refuses peers that speak only older versions of the protocol from now on. Links that are up
    /// stay.
    pub fn require_version(&self, version: u16) {
        self.hub.version_min.fetch_max(version.min(self.hub.version_max), Relaxed);
    }

    /// The counts of inbound connections.
    #[must_use]
    pub fn unauthenticated(&self) -> Unauthenticated {
        let acceptor = self.hub.acceptor.lock();
        let Acceptor { came, refused, ref unauthenticated, .. } = *acceptor;
        Unauthenticated { came, refused, now: unauthenticated.len() }
    }

    /// Writes pending frames on the links that are up, sends farewells, and ends all tasks.
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
    /// The hello of this node, as `identity`.
    fn hello(&self, identity: PeerIdentity) -> io::Result<Hello> {
        let mut nonce = [0; NONCE_BYTES];
        crate::net::random::fill(&mut nonce)?;
        Ok(Hello {
            version_min: self.version_min.load(Relaxed),
            version_max: self.version_max,
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

    /// Makes a link of a connection that both sides have authenticated.
    fn link(&self, peer: RemotePeer, wire: SecuredStream, rest: BytesMut) -> TransportLink {
        let metrics = peer.sender.outbox.metrics();
        metrics.links.fetch_add(1, Relaxed);
        metrics.version.store(peer.version, Relaxed);
        metrics.links_now.fetch_add(1, Relaxed);
        tracing::info!(%peer, version = peer.version, dialled = peer.is_dialled, "link up");
        let handler = Arc::clone(&self.handler);
        TransportLink::new(peer, wire, handler, self.bounds, self.timing, &self.grid, rest)
    }

    /// Ends a link: sends a farewell, then reports the event.
    async fn end(&self, link: TransportLink, result: LinkEnd) {
        let peer = link.peer.clone();
        let outbox = &peer.sender.outbox;
        // The handler logs the effect on the peer, for example that it is dead.
        tracing::info!(%peer, ending = ?result, "link down");
        let left = link.end(&result).await;
        outbox.clear(left);
        outbox.metrics().links_now.fetch_sub(1, Relaxed);
        self.handler.link(LinkEvent::Down(peer, result));
    }

    fn guard(&self) -> Arc<ValidatedSecurity> {
        Arc::clone(&self.guard.lock())
    }

    /// Counts the TLS handshake of a link, if it has one.
    fn note_tls<T>(&self, guard: &ValidatedSecurity, result: &io::Result<T>) {
        if guard.has_tls() {
            self.tls.count(result.is_ok());
        }
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

/// Completes when a link that began as `identity` has to close, with the reason.
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

/// Completes when all tasks have to stop.
async fn stopping(phase: &mut watch::Receiver<TransportPhase>) {
    // An error means that the sender is dropped: the hub is gone, so stop too.
    let _ = phase.wait_for(|phase| phase.is_stopping).await;
}
