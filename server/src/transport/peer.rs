//! The other side: who it is, the way to it, and what is told of it.
//!
//! Not here: how that comes about (`dialer`, `acceptor`, `link`).

use std::fmt;
use std::io;
use std::sync::Arc;

use cluster::id::{Incarnation, NodeId};
use cluster::message::handshake::{CloseReason, Hello};
use cluster::message::{Frame, MessageError};

use super::data_link::NewDataLink;
use super::outbox::{Outbox, Shed};

/// What a node does with what its peers say. Called on the runtime of the lanes: it must not wait,
/// for while it does no link moves.
pub trait FrameHandler: Send + Sync + 'static {
    /// Our monotonic clock. Deadlines in frames are on it.
    fn now_ns(&self) -> u64;

    /// Whether who says this may have a link; it has not proved it yet.
    ///
    /// # Errors
    ///
    /// What to tell it instead.
    fn vet(&self, theirs: &Hello) -> Result<(), CloseReason> {
        let _ = theirs;
        Ok(())
    }

    /// The frames of one read, in order. What is left in `frames` is dropped. Their bytes lie in the
    /// block that was read: whoever keeps some for long copies them.
    fn frames(&self, from: &RemotePeer, frames: &mut Vec<Frame>);

    /// Takes over a data link that has shown who it is. Dropping it closes the connection.
    fn data_link(&self, link: NewDataLink) {
        drop(link);
    }

    /// Something became of a link.
    fn link(&self, event: LinkEvent);
}

/// Whom a lane leads to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerAddr {
    /// A node; nobody else is spoken to on it.
    Node(NodeId),
    /// Whoever is at an address.
    Address(String),
}

/// The other side of a link.
#[derive(Debug, Clone)]
pub struct RemotePeer {
    /// Which node; 0: in no cluster yet.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Which of its cores.
    pub core: u16,
    /// Its cluster; 0: in none yet.
    pub cluster: u128,
    /// The version that is spoken.
    pub version: u16,
    /// Counts the links of this process.
    pub link: u64,
    /// We opened the link.
    pub is_dialled: bool,
    /// The way back over the same link, for answers. Of a link that the peer opened it goes with it,
    /// and while half of a window of it is full the peer is not read from; of one that we opened it
    /// is the lane to the peer. What is no answer goes over [`super::Transport::sender`]: where both sides
    /// put much of that on one link, neither would be read from.
    pub sender: PeerSender,
}

/// How a link ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkEnd {
    /// We closed it.
    Ours(CloseReason),
    /// The peer closed it.
    Theirs(CloseReason),
    /// The peer said what is no frame of ours.
    Fault(MessageError),
    /// The connection broke or ended without a word, as it does when a process is killed.
    Lost(io::ErrorKind),
    /// The peer took nothing for long.
    Stalled,
    /// The peer gave no sign of life, though asked for one.
    Silent,
    /// The same core of the same node has opened another.
    Replaced,
}

/// Why there is no link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The host is there and takes no connection: the process is gone.
    #[error("connection refused")]
    Refused,
    /// No connection, or no greeting, in time.
    #[error("no greeting in time")]
    Late,
    /// There is no way, or it broke.
    #[error("{0}")]
    Lost(String),
    /// TLS failed: the certificate of one of the sides is not believed, or the other speaks no TLS.
    #[error("TLS: {0}")]
    Tls(String),
    /// We want no link with who is there.
    #[error("refused by us: {0}")]
    Ours(CloseReason),
    /// Who is there wants none with us.
    #[error("refused by the peer: {0}")]
    Theirs(CloseReason),
    /// Another node is at the address.
    #[error("node {0} is there")]
    OtherNode(NodeId),
    /// Who is there is no peer.
    #[error("no peer: {0}")]
    Fault(MessageError),
}

/// What became of a link.
#[derive(Debug, Clone)]
pub enum LinkEvent {
    /// We begin to open one.
    Opening(PeerAddr),
    /// It is up. Frames from it come after this.
    Up(RemotePeer),
    /// The peer gives no sign of life, though asked for one.
    Silent(RemotePeer),
    /// The silent peer gave one after all.
    Heard(RemotePeer),
    /// It ended, and no more frames come from it. What was put in before may be lost; what is put
    /// in after goes over the next one.
    Down(RemotePeer, LinkEnd),
    /// It could not be opened. What waited is dropped.
    Failed {
        /// To whom.
        peer: PeerAddr,
        /// Where.
        address: String,
        /// Why. [`LinkError::Refused`] says that the process is gone.
        why: LinkError,
    },
}

/// The way to a peer, for any thread. Clones share it.
#[derive(Debug, Clone)]
pub struct PeerSender {
    pub(super) outbox: Arc<Outbox>,
}

impl PeerSender {
    /// Sends a frame, as soon as there is a link and it has written what waits already.
    ///
    /// # Errors
    ///
    /// [`Shed`]: it was not taken and will not be sent.
    pub fn send(&self, frame: Frame) -> Result<(), Shed> {
        self.outbox.push(frame)
    }

    /// Sends a burst under one lock and with one wake at most. What was not taken is left, in order.
    ///
    /// # Errors
    ///
    /// Why the last of those left was not taken.
    pub fn send_all(&self, frames: &mut Vec<Frame>) -> Result<(), Shed> {
        self.outbox.push_all(frames)
    }
}

impl fmt::Display for PeerAddr {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => node.fmt(out),
            Self::Address(address) => address.fmt(out),
        }
    }
}

impl fmt::Display for RemotePeer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.node, self.incarnation.0)
    }
}
