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
//!   send (`dial`): when something waits, and again after a pause while something does. A peer opens
//!   its own (`accept`). Either carries frames both ways: what answers a frame goes back over the link
//!   that brought it, so a peer that we cannot reach still hears us.
//! * Frames of one link arrive in the order in which they were put in, or not at all. Nothing is
//!   resent here: [`Event::Down`] tells that what was put in before it may be lost. Who resends makes it arrive once.
//! * Nothing is unbounded: an outbox that is full refuses at once, a stranger has said 512 bytes in
//!   five seconds or goes, and there are so many strangers at most.
//!
//! All tasks run on the runtime on which [`Lanes::start`] was called.

mod accept;
mod data_link;
mod dial;
mod figures;
mod greeting;
mod link;
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
use cluster::message::Bounds;
use cluster::message::hello::{Farewell, Hello, NONCE_BYTES};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::net::Listener;
use accept::Doors;
pub use accept::STRANGERS_MAX;
pub use data_link::NewDataLink;
use dial::Way;
use figures::Figures;
pub use figures::PeerFigures;
use link::Link;
pub use options::{Identity, LanesOptions, Timing};
pub use outbox::{Class, Shed, Window, Windows};
pub use peer::{Ending, Event, Handler, Lane, NoLink, Peer, Whom};
pub(crate) use security::TlsConnection;
use security::{Guard, Wire};
pub use security::{KEY_BYTES_MAX, KEY_BYTES_MIN, PeerSecurity, SecurityError};

/// Most peers that figures are kept of; the others share those of node 0.
const FIGURES_MAX: usize = 4096;

/// Connections that others opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strangers {
    /// All of them.
    pub came: u64,
    /// Those that were not let in.
    pub refused: u64,
    /// Those that have not shown who they are yet; [`STRANGERS_MAX`] at most.
    pub now: usize,
}

/// All lanes of a node, or of one of its cores.
pub struct Lanes {
    hub: Arc<Hub>,
}

/// What all tasks share.
struct Hub {
    handler: Arc<dyn Handler>,
    bounds: Bounds,
    windows: Windows,
    timing: Timing,
    workers: u16,
    versions: RangeInclusive<u16>,
    runtime: Handle,
    guard: Mutex<Arc<Guard>>,
    /// Every task has a receiver, so that one knows when all have ended.
    phase: watch::Sender<Phase>,
    ways: Mutex<BTreeMap<Whom, Way>>,
    doors: Mutex<Doors>,
    figures: Mutex<BTreeMap<Whom, Arc<Figures>>>,
    links: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Phase {
    identity: Identity,
    is_stopping: bool,
}

impl Lanes {
    /// Begins to accept on the listeners, on the current runtime. There may be none.
    ///
    /// # Errors
    ///
    /// Security that is not sound, or none where others can reach a listener
    /// ([`PeerSecurity::permit`]).
    pub fn start(
        options: LanesOptions,
        listeners: Vec<Listener>,
        handler: Arc<dyn Handler>,
    ) -> Result<Self, SecurityError> {
        let LanesOptions { identity, security, bounds, windows, timing, workers, versions, .. } =
            options;
        let addresses: Vec<_> = listeners.iter().filter_map(Listener::address).collect();
        security.permit(&addresses, options.insecure_is_said)?;
        let hub = Arc::new(Hub {
            handler,
            bounds,
            windows,
            timing,
            workers,
            versions,
            runtime: Handle::current(),
            guard: Mutex::new(Arc::new(security.guard()?)),
            phase: watch::Sender::new(Phase { identity, is_stopping: false }),
            ways: Mutex::default(),
            doors: Mutex::default(),
            figures: Mutex::default(),
            links: AtomicU64::new(0),
        });
        for listener in listeners {
            hub.runtime.spawn(accept::accept(Arc::clone(&hub), hub.phase.subscribe(), listener));
        }
        Ok(Self { hub })
    }

    /// The lane to a node at `host:port`. With another address than before the old lane is closed,
    /// and whoever has it is told [`Shed::Gone`]; what waits is still written if its link is up.
    #[must_use]
    pub fn lane(&self, node: NodeId, address: &str) -> Lane {
        dial::way(&self.hub, Whom::Node(node), address)
    }

    /// The lane to whoever is at `host:port`: a seed, of which no more is known.
    #[must_use]
    pub fn lane_at(&self, address: &str) -> Lane {
        dial::way(&self.hub, Whom::Address(address.to_owned()), address)
    }

    /// Closes the lane, as one with another address does, and forgets the figures.
    pub fn forget(&self, whom: &Whom) {
        if let Some(way) = self.hub.ways.lock().remove(whom) {
            way.outbox.close();
        }
        self.hub.figures.lock().remove(whom);
    }

    /// Opens a link if none is up, though there is nothing to say: an [`Event`] tells what came of it.
    pub fn probe(&self, whom: &Whom) {
        if let Some(way) = self.hub.ways.lock().get(whom) {
            way.outbox.probe();
        }
    }

    /// Restarts a pending attempt to connect to the peer. Called when other news shows that the peer lives.
    pub fn hurry(&self, whom: &Whom) {
        self.hub.hurry(whom);
    }

    /// We are somebody else now: links are closed once they are empty, and the next ones begin anew.
    pub fn identify(&self, identity: Identity) {
        self.hub
            .phase
            .send_if_modified(|phase| std::mem::replace(&mut phase.identity, identity) != identity);
    }

    /// Who we are.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.hub.phase.borrow().identity
    }

    /// The longest frame.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
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
    pub fn figures(&self) -> Vec<(Whom, PeerFigures)> {
        let figures = self.hub.figures.lock();
        figures.iter().map(|(whom, figures)| (whom.clone(), figures.read())).collect()
    }

    /// Who came to our door.
    #[must_use]
    pub fn strangers(&self) -> Strangers {
        let doors = self.hub.doors.lock();
        let Doors { came, refused, ref strangers, .. } = *doors;
        Strangers { came, refused, now: strangers.len() }
    }

    /// Writes what waits on the links that are up, says farewell on them, and ends all tasks.
    pub async fn stop(&self) {
        self.hub.phase.send_modify(|phase| phase.is_stopping = true);
        self.hub.phase.closed().await;
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.hub.phase.send_modify(|phase| phase.is_stopping = true);
    }
}

impl Hub {
    /// What we begin a link with, as `identity`.
    fn hello(&self, identity: Identity) -> io::Result<Hello> {
        let mut nonce = [0; NONCE_BYTES];
        crate::random::fill(&mut nonce)?;
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
    fn link(&self, peer: Peer, wire: Wire, rest: BytesMut) -> Link {
        let figures = peer.lane.outbox.figures();
        figures.links.fetch_add(1, Relaxed);
        figures.links_now.fetch_add(1, Relaxed);
        tracing::info!(%peer, version = peer.version, dialled = peer.is_dialled, "link up");
        Link::new(peer, wire, Arc::clone(&self.handler), self.bounds, self.timing, rest)
    }

    /// The end of a link: the last word, then the news.
    async fn end(&self, link: Link, ending: Ending) {
        let peer = link.peer.clone();
        let outbox = &peer.lane.outbox;
        // What it means for the peer is told where it is known: that it cannot be dialled, or is dead.
        tracing::info!(%peer, ?ending, "link down");
        let left = link.end(&ending).await;
        outbox.clear(left);
        outbox.figures().links_now.fetch_sub(1, Relaxed);
        self.handler.link(Event::Down(peer, ending));
    }

    fn guard(&self) -> Arc<Guard> {
        Arc::clone(&self.guard.lock())
    }

    fn hurry(&self, whom: &Whom) {
        if let Some(way) = self.ways.lock().get(whom) {
            way.is_near.notify_waiters();
        }
    }

    fn next_link(&self) -> u64 {
        self.links.fetch_add(1, Relaxed) + 1
    }

    fn figures_of(&self, whom: &Whom) -> Arc<Figures> {
        let mut figures = self.figures.lock();
        let is_full = figures.len() >= FIGURES_MAX && !figures.contains_key(whom);
        let whom = if is_full { Whom::Node(NodeId(0)) } else { whom.clone() };
        Arc::clone(figures.entry(whom).or_default())
    }
}

/// Ready when a link that began as `identity` has to end, with the word to say.
async fn farewell(phase: &mut watch::Receiver<Phase>, identity: Identity) -> Farewell {
    let is_over = |phase: &Phase| phase.is_stopping || phase.identity != identity;
    match phase.wait_for(is_over).await {
        Ok(phase) if !phase.is_stopping => Farewell::Idle,
        _ => Farewell::ShuttingDown,
    }
}

/// Ready when everything has to end.
async fn stopping(phase: &mut watch::Receiver<Phase>) {
    // Without a sender there is nobody to go on for.
    let _ = phase.wait_for(|phase| phase.is_stopping).await;
}
