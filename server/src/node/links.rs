//! Data links: the connections over which workers of two nodes exchange changes and operations.
//!
//! Here: passing a connection to the worker that reads it, the node's reaction to the state of a
//! link.
//!
//! - `table`: all links. `peer_link`: one of them. `writer`: its output and signs of life.
//! - `stream`: the bytes of a connection: a socket, or a `tunnel` through another node.
//! - `worker`: the links that a worker reads. `dialer`: opening them.
//!
//! Not here: the handshake (`crate::transport`), frames and the recovery of a link after a loss
//! (`cluster::link`), the effect of a frame ([`LinkHandler`]).
//!
//! Two nodes have as many links as the greater number of their workers. Worker `k % workers` reads
//! link `k` at either end; any thread writes. The operations of a worker, and their answers, go
//! over the link of the worker, so that the worker that waits reads the answers; records go over
//! the link of their partition's shard.

mod dialer;
mod peer_link;
mod stream;
mod table;
mod tunnel;
mod worker;
mod writer;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use bytes::BytesMut;
use cluster::frames::{FrameError, FrameKind, StreamAck, StreamDone};
use cluster::id::NodeId;
use cluster::message::handshake::{DATA_LINKS_MAX, DataLinkId, data_links};
use cluster::message::tunnel::{TunnelEnd, TunnelEvent, TunnelFrame};
use cluster::receive_stream::ReceiveStream;
use tokio::sync::Notify;

use super::{Node, WorkerEvent};
use crate::net::DetachedStream;
use crate::net::shared::SharedStream;
use crate::transport::{NewDataLink, PeerSender, Timing, TlsConnection};
pub(super) use dialer::keep;
pub use peer_link::LINK_APPENDS;
pub(crate) use peer_link::PeerLink;
use stream::LinkStream;
pub(crate) use table::{Links, run_of};
use tunnel::Tunnel;
pub(super) use tunnel::Tunnels;
pub(crate) use worker::WorkerLinks;

/// Handles the frames of a worker's data links. `L` is the context that each call borrows.
pub(crate) trait LinkHandler<L> {
    /// A link was read: its frames were sent before now, even if the round's clock is older.
    fn has_read(&mut self, ctx: &mut L);

    /// A frame arrived; the frames of a link arrive in order. `stream` is positioned before the
    /// frame, which has `bytes` bytes with its header. [`FrameKind::Ack`], [`FrameKind::Ping`] and
    /// [`FrameKind::Pong`] are handled elsewhere.
    ///
    /// # Errors
    ///
    /// The connection must end.
    fn link_frame(
        &mut self,
        ctx: &mut L,
        link: &Arc<PeerLink>,
        stream: &mut ReceiveStream,
        kind: FrameKind,
        body: &[u8],
        bytes: usize,
    ) -> Result<(), FrameError>;

    /// An ack arrived. The handler processes its refusals and the done numbers of the peer's
    /// streams; the acknowledgement is stored after that.
    fn ack(&mut self, ctx: &mut L, link: &Arc<PeerLink>, ack: &StreamAck<'_>);

    /// The acknowledgement was stored.
    fn acknowledged(&mut self, ctx: &mut L, link: &Arc<PeerLink>);

    /// The link is up: it has a new connection, or its peer is no longer silent. The handler sends
    /// the unanswered operations of this link again.
    fn link_up(&mut self, ctx: &mut L, link: &Arc<PeerLink>);

    /// The link needs a flush at the end of the round.
    fn touched(&mut self, link: &Arc<PeerLink>);

    /// Appends the done numbers of this worker's streams.
    fn streams_done(&mut self, done: &mut Vec<StreamDone>);
}

/// The state of opening the data links to one node.
#[derive(Debug)]
pub(crate) struct DataLinks {
    peer: NodeId,
    address: String,
    timing: Timing,
    /// The number of links; 0 until a handshake has shown the peer's number of workers.
    count: AtomicU16,
    /// By `k`: the number of the connection that its worker has or is about to take, if this side
    /// opened it.
    handed: Box<[AtomicU64]>,
    /// A bit for each `k`: the connection goes through another node.
    tunnelled: AtomicU16,
    /// The map no longer has this node at this address.
    is_forgotten: AtomicBool,
    /// Notified when a link goes down.
    down: Notify,
}

/// Links with output that this thread has to flush.
#[derive(Debug, Default)]
pub(crate) struct TouchedLinks(Vec<Arc<PeerLink>>);

impl TouchedLinks {
    /// Records that a link has output.
    pub(crate) fn add(&mut self, link: &Arc<PeerLink>) {
        if !self.0.iter().any(|known| Arc::ptr_eq(known, link)) {
            self.0.push(Arc::clone(link));
        }
    }

    /// Sends the output of these links. Called once per round, without locks.
    pub(crate) fn flush(&mut self, now_ns: u64) {
        for link in self.0.drain(..) {
            link.flush(now_ns);
        }
    }
}

/// A connection on its way to the worker that takes it over.
#[derive(Debug)]
pub(crate) struct LinkArrival {
    links: Arc<DataLinks>,
    link: Arc<PeerLink>,
    number: u64,
    wire: Detached,
    tls: Option<Box<TlsConnection>>,
    /// Bytes that the peer sent behind its proof.
    rest: BytesMut,
}

/// A connection whose two sides have identified themselves.
struct Connected {
    node: NodeId,
    end: TunnelEnd,
    /// The version that the handshake agreed on; a tunnel has no handshake.
    version: Option<u16>,
    id: DataLinkId,
    is_dialled: bool,
    wire: Detached,
    tls: Option<Box<TlsConnection>>,
    rest: BytesMut,
}

impl Connected {
    /// A connection through a third node.
    fn through(
        tunnel: Arc<Tunnel>,
        node: NodeId,
        end: TunnelEnd,
        id: DataLinkId,
        is_dialled: bool,
    ) -> Self {
        let (wire, rest) = (Detached::Tunnel(tunnel), BytesMut::new());
        Self { node, end, version: None, id, is_dialled, wire, tls: None, rest }
    }
}

/// A connection that is not attached to a runtime.
#[derive(Debug)]
enum Detached {
    Socket(DetachedStream),
    Tunnel(Arc<Tunnel>),
}

impl Detached {
    /// Attaches the connection to the current runtime.
    fn attach(self) -> io::Result<LinkStream> {
        match self {
            Self::Socket(stream) => Ok(LinkStream::Socket(Arc::new(SharedStream::attach(stream)?))),
            Self::Tunnel(tunnel) => Ok(LinkStream::Tunnel(tunnel)),
        }
    }
}

impl DataLinks {
    pub(super) fn new(peer: NodeId, address: &str, timing: Timing) -> Self {
        Self {
            peer,
            address: address.to_owned(),
            timing,
            count: AtomicU16::new(0),
            handed: (0..DATA_LINKS_MAX).map(|_| AtomicU64::new(0)).collect(),
            tunnelled: AtomicU16::new(0),
            is_forgotten: AtomicBool::new(false),
            down: Notify::new(),
        }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Records the connection that a worker is about to take over.
    fn hand(&self, id: DataLinkId, is_tunnel: bool) {
        let bit = 1 << id.index;
        if is_tunnel {
            self.tunnelled.fetch_or(bit, Ordering::AcqRel);
        } else {
            self.tunnelled.fetch_and(!bit, Ordering::AcqRel);
        }
        self.handed[usize::from(id.index)].store(id.number, Ordering::Release);
    }

    /// Links may have to take another path from now on.
    pub(super) fn path_changed(&self) {
        self.down.notify_one();
    }

    /// Stops opening connections.
    pub(super) fn forget(&self) {
        self.is_forgotten.store(true, Ordering::Relaxed);
        self.down.notify_one();
    }
}

impl Node {
    /// The data links to all nodes.
    pub(crate) fn links(&self) -> &Arc<Links> {
        self.paths.links()
    }

    /// Hands a connection to the worker that reads it; drops it if it is no link to a node of the
    /// map.
    pub(super) fn take_data_link(&self, connection: NewDataLink) {
        let NewDataLink { node, incarnation, workers, version, id, is_dialled, stream, tls, rest } =
            connection;
        let end = TunnelEnd { incarnation, workers };
        let wire = Detached::Socket(stream);
        let version = Some(version);
        self.take_connection(Connected { node, end, version, id, is_dialled, wire, tls, rest });
    }

    /// Does the work of [`Node::take_data_link`] for any kind of connection. Returns false if it
    /// dropped the connection.
    fn take_connection(&self, connected: Connected) -> bool {
        let Connected { node, end, version, id, is_dialled, wire, tls, rest } = connected;
        let workers = self.options.workers as u16;
        let (me, _) = self.me();
        let is_openers = if is_dialled { me < node } else { node < me };
        let count = data_links(workers, end.workers);
        let Some(links) = self.paths.data_links(node) else { return false };
        // Without its partitions, this node cannot process a frame; the peer tries again.
        let is_ready = self.keyspace().is_some() && !self.has_closed_links.load(Ordering::Acquire);
        if !is_openers || id.index >= count || !is_ready {
            return false;
        }
        let Some(link) = self.links().links_to(node, end.incarnation, count, id.index) else {
            return false;
        };
        links.count.store(count, Ordering::Release);
        if let Some(version) = version {
            link.version.store(version, Ordering::Relaxed);
        }
        if is_dialled {
            links.hand(id, matches!(wire, Detached::Tunnel(_)));
        }
        let arrival = LinkArrival { links, link, number: id.number, wire, tls, rest };
        if let Some(inbox) = self.inbox(id.index % workers) {
            inbox.push(WorkerEvent::DataLink(Box::new(arrival)));
        }
        true
    }

    /// Handles a tunnel frame that a relay delivered. `sender` leads back to the relay.
    pub(super) fn on_tunnel(&self, from: NodeId, sender: &PeerSender, frame: TunnelFrame) {
        let tunnels = self.paths.tunnels();
        let (me, incarnation) = self.me();
        let id = frame.id;
        let tunnel = tunnels.get(from, id);
        match (frame.event, tunnel) {
            (TunnelEvent::Open(end), _) => {
                let tunnel = tunnels.begin((me, from), id, sender.clone(), None);
                let workers = self.options.workers as u16;
                // Sent before the worker sends its first ack.
                let said = tunnel.send(TunnelEvent::Opened(TunnelEnd { incarnation, workers }));
                if said.is_ok() {
                    self.take_connection(Connected::through(tunnel, from, end, id, false));
                }
            }
            (TunnelEvent::Opened(end), _) => tunnels.opened(from, id, end),
            (TunnelEvent::Bytes { at, taken, bytes }, Some(tunnel)) => {
                tunnel.on_bytes(at, taken, &bytes);
            }
            (TunnelEvent::Bytes { .. }, None) => {
                // If this is lost, the peer finds out by its own timeout.
                let _ = sender.send(tunnel::wrap(me, from, id, TunnelEvent::End));
            }
            (TunnelEvent::End, Some(tunnel)) => tunnel.ended(),
            (TunnelEvent::End, None) => {}
        }
    }

    /// A connection of a link ended, or could not be used.
    fn data_link_down(&self, links: &DataLinks, link: &PeerLink, number: u64, now_ns: u64) {
        let peer = links.peer;
        self.update_reachability(now_ns, None, |reach| reach.data_link_up(peer, link.k));
        let handed = &links.handed[usize::from(link.k)];
        let _ = handed.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed);
        links.down.notify_one();
    }

    /// The peer is silent on a connection of a link: frames sent over it may be lost. Starts a
    /// newer connection beside it.
    fn data_link_silent(&self, links: &DataLinks, link: &PeerLink, number: u64, now_ns: u64) {
        let (peer, k) = (link.peer, link.k);
        tracing::info!(
            node = %peer,
            index = k,
            "no answer over the data link: opening another connection"
        );
        self.update_reachability(now_ns, None, |reach| reach.data_link_silent(peer, k, now_ns));
        let handed = &links.handed[usize::from(k)];
        let _ = handed.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed);
        links.path_changed();
    }

    /// Sends pings over all data links where they are due.
    pub(super) fn tick_data_links(&self, now_ns: u64) {
        for link in self.links().all() {
            if link.writer.tick(now_ns) {
                link.flush(now_ns);
            }
            let output = link.writer.lock();
            let is_direct = output.is_up() && !output.is_tunnelled();
            drop(output);
            if !is_direct {
                self.paths.want(link.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests;
