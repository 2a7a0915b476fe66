//! Links that this node opens: when a frame is pending, and again after a pause while frames are
//! pending.
//!
//! Here: the task behind each sender. Not here: the handshake (`handshake`), the link itself
//! (`link`).
//!
//! A link that is lost without a farewell is dialled again at once, even without pending frames: a
//! refused connection is the fastest sign that the process is gone.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cluster::message::handshake::{CloseReason, Hello, Side};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::handshake::{AuthenticatedPeer, HandshakeError, handshake};
use super::link::TransportLink;
use super::outbox::Outbox;
use super::security::{SecuredStream, tls_error};
use super::{
    LinkEnd, LinkError, LinkEvent, PeerAddr, PeerIdentity, PeerSender, RemotePeer, TransportHub,
    TransportPhase, close_reason, stopping,
};
use crate::net::Stream;

/// Core number of links to addresses, which distinguishes them from links to nodes.
const CORE_OF_ADDRESSES: u16 = u16::MAX;
/// Maximum number of reasons that are logged as warnings while there is no link.
const REASONS_MAX: usize = 8;

/// A sender for which this node opens links.
#[derive(Debug, Clone)]
pub(super) struct Dialer {
    peer: PeerAddr,
    address: String,
    pub(super) outbox: Arc<Outbox>,
    /// Notified when other events show that the peer is alive: a pending attempt to connect
    /// restarts.
    pub(super) is_near: Arc<Notify>,
}

/// Returns the sender to a peer. Creates one if there is none for `address`.
pub(super) fn dialer(hub: &Arc<TransportHub>, peer_addr: PeerAddr, address: &str) -> PeerSender {
    let mut dialers = hub.dialers.lock();
    if let Some(dialer) = dialers.get(&peer_addr)
        && dialer.address == address
    {
        return PeerSender { outbox: Arc::clone(&dialer.outbox) };
    }
    let outbox = Arc::new(Outbox::new(hub.windows, hub.metrics_of(&peer_addr)));
    let sender = PeerSender { outbox: Arc::clone(&outbox) };
    let is_near = Arc::default();
    let dialer = Dialer { peer: peer_addr.clone(), address: address.to_owned(), outbox, is_near };
    if let Some(old) = dialers.insert(peer_addr, dialer.clone()) {
        old.outbox.close();
    }
    drop(dialers);
    hub.runtime.spawn(keep(Arc::clone(hub), hub.phase.subscribe(), dialer));
    sender
}

/// Opens and runs links until the sender is closed or the transport stops.
async fn keep(hub: Arc<TransportHub>, mut phase: watch::Receiver<TransportPhase>, dialer: Dialer) {
    let mut pause = hub.timing.pause_min;
    let mut logged = Vec::new();
    loop {
        tokio::select! {
            biased;
            () = stopping(&mut phase) => break,
            () = poll_fn(|context| dialer.outbox.poll_wanted(context)) => {}
        }
        if dialer.outbox.is_closed() {
            break;
        }
        hub.handler.link(LinkEvent::Opening(dialer.peer.clone()));
        let identity = phase.borrow().identity;
        let opened = tokio::select! {
            biased;
            () = stopping(&mut phase) => break,
            opened = timeout(hub.timing.hello, open(&hub, &dialer, identity)) => opened,
        };
        match opened.unwrap_or(Err(LinkError::Late)) {
            Ok(link) => {
                logged.clear();
                if serve(&hub, &mut phase, identity, &dialer, link).await {
                    pause = hub.timing.pause_min;
                    continue;
                }
            }
            Err(why) => {
                log_failure(&dialer, &why, &mut logged);
                dialer.outbox.clear(0);
                let Dialer { peer: peer_addr, address, .. } = dialer.clone();
                hub.handler.link(LinkEvent::Failed { peer: peer_addr, address, why });
            }
        }
        tokio::select! {
            biased;
            () = stopping(&mut phase) => break,
            () = dialer.is_near.notified() => pause = hub.timing.pause_min,
            () = sleep(pause) => pause = (pause * 2).min(hub.timing.pause_max),
        }
    }
    dialer.outbox.close();
    dialer.outbox.clear(0);
}

/// Runs a link to its end. Returns whether the next link may be opened without a pause.
async fn serve(
    hub: &TransportHub,
    phase: &mut watch::Receiver<TransportPhase>,
    identity: PeerIdentity,
    dialer: &Dialer,
    mut link: TransportLink,
) -> bool {
    hub.handler.link(LinkEvent::Up(link.peer.clone()));
    let result = tokio::select! {
        biased;
        reason = close_reason(phase, identity) => LinkEnd::Ours(reason),
        ending = link.run() => ending,
    };
    let has_lasted = link.has_lasted();
    hub.end(link, result).await;
    match result {
        LinkEnd::Lost(_) | LinkEnd::Silent => {
            dialer.outbox.probe();
            has_lasted
        }
        LinkEnd::Ours(CloseReason::Idle) | LinkEnd::Theirs(CloseReason::Idle) => true,
        _ => false,
    }
}

/// Logs each reason as a warning once, until there is a link: a peer that is down is dialled every
/// second, and the reason may change each time.
fn log_failure(dialer: &Dialer, why: &LinkError, logged: &mut Vec<LinkError>) {
    let Dialer { peer: peer_addr, address, .. } = dialer;
    let is_seed = matches!(peer_addr, PeerAddr::Address(_));
    let is_myself = matches!(
        why,
        LinkError::Ours(CloseReason::Myself) | LinkError::Theirs(CloseReason::Myself)
    );
    if is_seed && is_myself {
        // All nodes may have the same seeds, so each finds its own address among them.
        tracing::debug!(address, "this seed is the node itself");
    } else if logged.contains(why) || logged.len() >= REASONS_MAX {
        tracing::debug!(peer = %peer_addr, address, %why, "still cannot open a link");
    } else {
        let is_strange = matches!(
            why,
            LinkError::Ours(CloseReason::OtherCluster)
                | LinkError::Theirs(CloseReason::OtherCluster)
        );
        if is_seed && is_strange {
            tracing::warn!(
                "{address} is ignored: it is in another cluster than the data directory of this node. To \
                 join that one, start with an empty data directory"
            );
        } else {
            tracing::warn!(peer = %peer_addr, address, %why, "cannot open a link");
        }
        logged.push(why.clone());
    }
}

async fn open(
    hub: &TransportHub,
    dialer: &Dialer,
    identity: PeerIdentity,
) -> Result<TransportLink, LinkError> {
    dialer.outbox.metrics().dials.fetch_add(1, Relaxed);
    let mut ours = hub.hello(identity).map_err(|error| link_error(&error))?;
    if matches!(dialer.peer, PeerAddr::Address(_)) {
        // The peer may be a node to which there is a sender by id as well.
        ours.core = CORE_OF_ADDRESSES;
    }
    let near = dialer.is_near.notified();
    let (wire, authenticated) = connect(hub, &dialer.peer, &dialer.address, &ours, near).await?;
    let theirs = &authenticated.theirs;
    let peer = RemotePeer {
        node: theirs.node,
        incarnation: theirs.incarnation,
        core: theirs.core,
        cluster: theirs.cluster,
        version: authenticated.version,
        link: hub.next_link(),
        is_dialled: true,
        sender: PeerSender { outbox: Arc::clone(&dialer.outbox) },
    };
    Ok(hub.link(peer, wire, authenticated.rest))
}

/// Connects to `peer_addr` and authenticates with `ours`. When `near` completes, a pending attempt
/// to connect restarts.
pub(super) async fn connect(
    hub: &TransportHub,
    peer_addr: &PeerAddr,
    address: &str,
    ours: &Hello,
    near: impl Future<Output = ()>,
) -> Result<(SecuredStream, AuthenticatedPeer), LinkError> {
    let connect = || timeout(hub.timing.connect, Stream::connect(address));
    let connected = tokio::select! {
        // The system repeats a lost SYN only after a second and more.
        () = near => connect().await,
        connected = connect() => connected,
    };
    let stream = connected.map_err(|_| LinkError::Late)?.map_err(|error| link_error(&error))?;
    let guard = hub.guard();
    let connected = guard.connect(address, stream).await;
    hub.note_tls(&guard, &connected);
    let mut wire = connected.map_err(|error| link_error(&error))?;
    let mut other = None;
    let authenticated = handshake(&mut wire, Side::Connecting, ours, &guard.key, |theirs| {
        if let PeerAddr::Node(node) = *peer_addr
            && node != theirs.node
        {
            other = Some(theirs.node);
            // The nearest reason: the map has another node at this address.
            return Err(CloseReason::OldIncarnation);
        }
        hub.handler.vet(theirs)
    });
    let authenticated = authenticated.await.map_err(|why| match (other, why) {
        (Some(node), _) => LinkError::OtherNode(node),
        (None, HandshakeError::Lost(error)) => link_error(&error),
        (None, HandshakeError::Ours(reason)) => LinkError::Ours(reason),
        (None, HandshakeError::Theirs(reason)) => LinkError::Theirs(reason),
        (None, HandshakeError::Fault(fault)) => LinkError::Fault(fault),
    })?;
    Ok((wire, authenticated))
}

pub(super) fn link_error(error: &io::Error) -> LinkError {
    match tls_error(error) {
        Some(tls) => LinkError::Tls(tls.to_string()),
        None if error.kind() == io::ErrorKind::ConnectionRefused => LinkError::Refused,
        None => LinkError::Lost(error.to_string()),
    }
}
