//! A connection of a data link through a third node, while there is no direct one.
//!
//! Here: the bytes of one connection as frames that a relay passes on, at either end. Not here: the
//! choice of the relay (`crate::node::reachability`), opening a tunnel (`dialer`).
//!
//! The relay may drop a frame: the next one then does not fit, and the connection ends. A window
//! that the receiver moves bounds the bytes under way, because the relay's own links are bounded.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use cluster::id::NodeId;
use cluster::message::Frame;
use cluster::message::handshake::DataLinkId;
use cluster::message::tunnel::{TunnelEnd, TunnelEvent, TunnelFrame};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::transport::{PeerSender, Shed};

/// Most bytes under way in one direction: all tunnels to a node share the window of a control link.
const WINDOW_BYTES: u64 = 64 << 10;
/// Most bytes of one frame.
const FRAME_BYTES_MAX: usize = 16 << 10;

/// One end of a connection.
pub(super) struct Tunnel {
    me: NodeId,
    peer: NodeId,
    id: DataLinkId,
    /// The sender to the relay.
    sender: PeerSender,
    state: Mutex<TunnelState>,
}

#[derive(Debug, Default)]
struct TunnelState {
    /// Received bytes; those before `at` were read.
    inbound: Vec<u8>,
    at: usize,
    /// The number of bytes received.
    came: u64,
    /// The number of bytes received and read, as reported to the peer.
    reported: u64,
    /// The number of bytes sent.
    sent: u64,
    /// The number of sent bytes that the peer has read.
    read: u64,
    /// The relay's sender is full: it is tried again at the next tick.
    is_held_up: bool,
    has_ended: bool,
    waker: Option<Waker>,
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "tunnel to {} {:?}", self.peer, self.id)
    }
}

/// The tunnels of a node.
#[derive(Debug, Default)]
pub(in crate::node) struct Tunnels {
    /// By peer and `k`.
    tunnels: Mutex<BTreeMap<(NodeId, u16), KnownTunnel>>,
}

#[derive(Debug, Default)]
struct KnownTunnel {
    tunnel: Weak<Tunnel>,
    /// Receives the peer's answer to `Open`.
    opened: Option<oneshot::Sender<TunnelEnd>>,
}

impl Tunnels {
    /// Begins a connection at this end; an older one of the same link is dropped from the table.
    /// The peer's agreement is sent on `opened`.
    pub(super) fn begin(
        &self,
        (me, peer): (NodeId, NodeId),
        id: DataLinkId,
        sender: PeerSender,
        opened: Option<oneshot::Sender<TunnelEnd>>,
    ) -> Arc<Tunnel> {
        let tunnel = Arc::new(Tunnel { me, peer, id, sender, state: Mutex::default() });
        let known = KnownTunnel { tunnel: Arc::downgrade(&tunnel), opened };
        self.tunnels.lock().insert((peer, id.index), known);
        tunnel
    }

    /// The peer agrees to a connection.
    pub(super) fn opened(&self, peer: NodeId, id: DataLinkId, end: TunnelEnd) {
        let mut known = self.tunnels.lock();
        if let Some(known) = known.get_mut(&(peer, id.index))
            && known.tunnel.upgrade().is_some_and(|tunnel| tunnel.id == id)
            && let Some(opened) = known.opened.take()
        {
            // The receiver is gone: the dialer no longer waits.
            let _ = opened.send(end);
        }
    }

    /// This end of a connection.
    pub(super) fn get(&self, peer: NodeId, id: DataLinkId) -> Option<Arc<Tunnel>> {
        let tunnel = self.tunnels.lock().get(&(peer, id.index))?.tunnel.upgrade()?;
        (tunnel.id == id).then_some(tunnel)
    }
}

/// Wraps a tunnel frame for `to`, as a relay passes it on.
pub(super) fn wrap(me: NodeId, to: NodeId, id: DataLinkId, part: TunnelEvent) -> Frame {
    Frame::Relay { from: me, to, frame: Box::new(Frame::Tunnel(TunnelFrame { id, event: part })) }
}

impl Tunnel {
    pub(super) fn send(&self, part: TunnelEvent) -> Result<(), Shed> {
        self.sender.send(wrap(self.me, self.peer, self.id, part))
    }

    /// Handles received bytes.
    pub(super) fn on_bytes(&self, at: u64, taken: u64, bytes: &[u8]) {
        let mut state = self.state.lock();
        let is_next = at == state.came && taken <= state.sent;
        let room = (WINDOW_BYTES * 2).saturating_sub((state.inbound.len() - state.at) as u64);
        if !is_next || bytes.len() as u64 > room {
            state.has_ended = true;
        } else {
            state.came += bytes.len() as u64;
            state.read = state.read.max(taken);
            state.inbound.extend_from_slice(bytes);
        }
        state.wake();
    }

    /// The peer has ended the connection.
    pub(super) fn ended(&self) {
        let mut state = self.state.lock();
        state.has_ended = true;
        state.wake();
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        if !std::mem::replace(&mut self.state.lock().has_ended, true) {
            // If this is lost, the peer detects the silence.
            let _ = self.send(TunnelEvent::End);
        }
    }

    /// Tries a full sender again.
    pub(super) fn retry(&self) {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.is_held_up) {
            state.wake();
        }
    }

    pub(super) fn poll_recv(
        &self,
        context: &Context<'_>,
        room: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.state.lock();
        let waiting = &state.inbound[state.at..];
        let count = waiting.len().min(room.len());
        room[..count].copy_from_slice(&waiting[..count]);
        state.at += count;
        if state.at == state.inbound.len() {
            state.inbound.clear();
            state.at = 0;
        }
        let reported_before = state.reported;
        if state.taken() - reported_before >= WINDOW_BYTES / 2 {
            let part = state.frame(&[]);
            if self.send(part).is_err() {
                state.reported = reported_before;
                state.is_held_up = true;
            }
        }
        if count == 0 && !state.has_ended {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(count))
    }

    pub(super) fn poll_readable(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state.lock();
        if state.at < state.inbound.len() || state.has_ended {
            return Poll::Ready(Ok(()));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }

    pub(super) fn poll_writable(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state.lock();
        if state.has_ended || state.room() > 0 && !state.is_held_up {
            return Poll::Ready(Ok(()));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Sends as much of the front of `bytes` as there is room for.
    pub(super) fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state.lock();
        let mut sent = 0;
        while sent < bytes.len() {
            if state.has_ended {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let count = (bytes.len() - sent).min(FRAME_BYTES_MAX).min(state.room() as usize);
            if count == 0 {
                break;
            }
            let reported_before = state.reported;
            let part = state.frame(&bytes[sent..sent + count]);
            match self.send(part) {
                Ok(()) => {
                    state.sent += count as u64;
                    sent += count;
                }
                Err(Shed::Full(_)) => {
                    state.reported = reported_before;
                    state.is_held_up = true;
                    break;
                }
                Err(Shed::Gone) => state.has_ended = true,
            }
        }
        if sent == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(sent)
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.close();
    }
}

impl TunnelState {
    /// Bytes received and read.
    fn taken(&self) -> u64 {
        self.came - (self.inbound.len() - self.at) as u64
    }

    fn room(&self) -> u64 {
        WINDOW_BYTES.saturating_sub(self.sent - self.read)
    }

    fn frame(&mut self, bytes: &[u8]) -> TunnelEvent {
        self.reported = self.taken();
        TunnelEvent::Bytes {
            at: self.sent,
            taken: self.reported,
            bytes: Bytes::copy_from_slice(bytes),
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
