//! Data links: the connections over which workers of two nodes exchange changes and operations.
//!
//! Here: a connection's way to the worker that reads it, what becomes of a link for the node. In `table` all
//! links, in `peer_link` one of them, in `writer` its bytes out and signs of life, in `stream` what carries them: a
//! socket, or a `tunnel` through another node; in `worker` the links that a worker reads; in `dialer` opening them. Not here: the handshake (`crate::transport`), what frames
//! are and how a link goes on after a loss (`cluster::link`), what a frame does ([`LinkHandler`]).
//!
//! Two nodes have as many links as the greater number of their workers. Worker `k % workers` reads link `k` at
//! either end; any thread writes. The operations of a worker, and what answers them, go over the link of the
//! worker, so that the worker that waits reads the answers; records go over the link of their partition's shard.

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
use cluster::message::tunnel::{TunnelEnd, TunnelEvent, TunnelFrame as Piece};
use cluster::receive_stream::ReceiveStream;
use tokio::sync::Notify;

use super::{Node, WorkerEvent};
use crate::net::DetachedStream;
use crate::net::shared::SharedStream;
use crate::transport::{NewDataLink, PeerSender, Timing, TlsConnection};
pub(super) use dialer::keep;
pub(crate) use peer_link::PeerLink;
use stream::LinkStream;
pub(crate) use table::Links;
use tunnel::Tunnel;
pub(super) use tunnel::Tunnels;
pub(crate) use worker::WorkerLinks;

/// What a worker does with what comes over its data links. `L` is what it is lent for the time of a call.
pub(crate) trait LinkHandler<L> {
    /// A link was read: what came was said before now, whatever the clock said when the round began.
    fn has_read(&mut self, ctx: &mut L);

    /// A frame came; the frames of a link come in order. `stream` stands before it, and it has `bytes` bytes with its header. No
    /// [`FrameKind::Ack`], [`FrameKind::Ping`] or [`FrameKind::Pong`] comes here.
    ///
    /// # Errors
    ///
    /// The connection has to end.
    fn link_frame(
        &mut self,
        ctx: &mut L,
        link: &Arc<PeerLink>,
        stream: &mut ReceiveStream,
        kind: FrameKind,
        body: &[u8],
        bytes: usize,
    ) -> Result<(), FrameError>;

    /// A word came: its refusals are to be dealt with, and what the peer's lanes are done with. It is acknowledged after that.
    fn ack(&mut self, ctx: &mut L, link: &Arc<PeerLink>, ack: &StreamAck<'_>);

    /// The word was acknowledged.
    fn acknowledged(&mut self, ctx: &mut L, link: &Arc<PeerLink>);

    /// The link is up: it has a new connection, or its peer is heard again. What was asked over it and is not answered is to be
    /// sent again.
    fn link_up(&mut self, ctx: &mut L, link: &Arc<PeerLink>);

    /// Something is to be sent over the link at the end of the round.
    fn touched(&mut self, link: &Arc<PeerLink>);

    /// Appends what the lanes of this worker are done with.
    fn streams_done(&mut self, done: &mut Vec<StreamDone>);
}

/// How the data links to one node are opened.
#[derive(Debug)]
pub(crate) struct DataLinks {
    peer: NodeId,
    address: String,
    timing: Timing,
    /// The number of links; 0 until a handshake has told the peer's number of workers.
    count: AtomicU16,
    /// By `k`: the number of the connection that a worker has or is to take over, if this side opened it.
    handed: Box<[AtomicU64]>,
    /// A bit for each `k`: that connection goes through another node.
    tunnelled: AtomicU16,
    /// The map has no such node at this address any more.
    is_forgotten: AtomicBool,
    /// Notified when a link goes down.
    down: Notify,
}

/// Links with output that this thread has to flush.
#[derive(Debug, Default)]
pub(crate) struct TouchedLinks(Vec<Arc<PeerLink>>);

impl TouchedLinks {
    /// Something was appended to a link, or said.
    pub(crate) fn add(&mut self, link: &Arc<PeerLink>) {
        if !self.0.iter().any(|known| Arc::ptr_eq(known, link)) {
            self.0.push(Arc::clone(link));
        }
    }

    /// Sends the output of these links. Called once a round, without locks.
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

/// A connection on which both sides have said who they are.
struct Connected {
    node: NodeId,
    end: TunnelEnd,
    id: DataLinkId,
    is_dialled: bool,
    wire: Detached,
    tls: Option<Box<TlsConnection>>,
    rest: BytesMut,
}

/// A connection that is on no runtime.
#[derive(Debug)]
enum Detached {
    Socket(DetachedStream),
    Tunnel(Arc<Tunnel>),
}

impl Detached {
    /// The connection on the current runtime.
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

    /// Notes the connection that a worker is to take over.
    fn hand(&self, id: DataLinkId, is_tunnel: bool) {
        let bit = 1 << id.index;
        if is_tunnel {
            self.tunnelled.fetch_or(bit, Ordering::AcqRel);
        } else {
            self.tunnelled.fetch_and(!bit, Ordering::AcqRel);
        }
        self.handed[usize::from(id.index)].store(id.number, Ordering::Release);
    }

    /// Links may have to go another way from now on.
    pub(super) fn path_changed(&self) {
        self.down.notify_one();
    }

    /// No more connections are opened.
    pub(super) fn forget(&self) {
        self.is_forgotten.store(true, Ordering::Relaxed);
        self.down.notify_one();
    }
}

impl Node {
    /// The data links to all nodes.
    pub(crate) fn links(&self) -> &Links {
        self.paths.links()
    }

    /// Hands a connection to the worker that reads it; drops it if it is no link to a node of the map.
    pub(super) fn take_data_link(&self, connection: NewDataLink) {
        let NewDataLink { node, incarnation, workers, id, is_dialled, stream, tls, rest } =
            connection;
        let end = TunnelEnd { incarnation, workers };
        let wire = Detached::Socket(stream);
        self.take_connection(Connected { node, end, id, is_dialled, wire, tls, rest });
    }

    /// As [`Node::take_data_link`], whatever the connection is made of. False: it was dropped.
    fn take_connection(&self, connected: Connected) -> bool {
        let Connected { node, end, id, is_dialled, wire, tls, rest } = connected;
        let workers = self.options.workers as u16;
        let (me, _) = self.me();
        let is_openers = if is_dialled { me < node } else { node < me };
        let count = data_links(workers, end.workers);
        let Some(links) = self.paths.data_links(node) else { return false };
        // Before it knows its partitions, this node can do nothing with a frame; the peer tries again.
        let is_ready = self.keyspace().is_some() && !self.has_closed_links.load(Ordering::Acquire);
        if !is_openers || id.index >= count || !is_ready {
            return false;
        }
        let Some(link) = self.links().links_to(node, end.incarnation, count, id.index) else {
            return false;
        };
        links.count.store(count, Ordering::Release);
        if is_dialled {
            links.hand(id, matches!(wire, Detached::Tunnel(_)));
        }
        let arrival = LinkArrival { links, link, number: id.number, wire, tls, rest };
        if let Some(inbox) = self.inbox(id.index % workers) {
            inbox.push(WorkerEvent::DataLink(Box::new(arrival)));
        }
        true
    }

    /// Takes what came through another node about a connection that goes through it. `sender` leads back.
    pub(super) fn on_tunnel(&self, from: NodeId, sender: &PeerSender, frame: Piece) {
        let tunnels = self.paths.tunnels();
        let (me, incarnation) = self.me();
        let id = frame.id;
        let tunnel = tunnels.get(from, id);
        match (frame.event, tunnel) {
            (TunnelEvent::Open(end), _) => {
                let tunnel = tunnels.begin((me, from), id, sender.clone(), None);
                let workers = self.options.workers as u16;
                // Said before the worker says its first word.
                let said = tunnel.send(TunnelEvent::Opened(TunnelEnd { incarnation, workers }));
                let (wire, rest) = (Detached::Tunnel(tunnel), BytesMut::new());
                if said.is_ok() {
                    let (node, is_dialled, tls) = (from, false, None);
                    self.take_connection(Connected { node, end, id, is_dialled, wire, tls, rest });
                }
            }
            (TunnelEvent::Opened(end), _) => tunnels.opened(from, id, end),
            (TunnelEvent::Bytes { at, taken, bytes }, Some(tunnel)) => {
                tunnel.on_bytes(at, taken, &bytes);
            }
            (TunnelEvent::Bytes { .. }, None) => {
                // Who hears nothing finds out by itself.
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

    /// Nothing is heard over a connection of a link: what was sent over it may be lost. A newer one is tried beside it.
    fn data_link_silent(&self, links: &DataLinks, link: &PeerLink, number: u64, now_ns: u64) {
        let (peer, k) = (link.peer, link.k);
        tracing::info!(node = %peer, index = k, "data link silent");
        self.update_reachability(now_ns, None, |reach| reach.data_link_silent(peer, k, now_ns));
        let handed = &links.handed[usize::from(k)];
        let _ = handed.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed);
        links.path_changed();
    }

    /// Asks for signs of life over all data links where that is due.
    pub(super) fn tick_data_links(&self, now_ns: u64) {
        for link in self.links().all() {
            if link.transport.tick(now_ns) {
                link.flush(now_ns);
            }
            let output = link.transport.lock();
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
