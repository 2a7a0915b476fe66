//! The peer: its identity, the sender to it, and the events about it.
//!
//! Here: the interface to the node. Not here: opening and running links (`dialer`, `acceptor`,
//! `link`).

use std::fmt;
use std::io;
use std::sync::Arc;

use cluster::id::{Incarnation, NodeId};
use cluster::message::handshake::{CloseReason, Hello};
use cluster::message::{Frame, MessageError};

use super::data_link::NewDataLink;
use super::outbox::{Outbox, Shed};

/// The node's handler of frames and events. Called on the runtime of the transport: it must not
/// block, because no link makes progress meanwhile.
pub trait FrameHandler: Send + Sync + 'static {
    /// The node's monotonic clock, which deadlines in frames refer to.
    fn now_ns(&self) -> u64;

    /// Decides whether a peer with this hello may have a link. The peer has not proved its identity
    /// yet.
    ///
    /// # Errors
    ///
    /// The reason to send to the peer.
    fn vet(&self, theirs: &Hello) -> Result<(), CloseReason> {
        let _ = theirs;
        Ok(())
    }

    /// Handles the frames of one read, in order. Frames left in `frames` are dropped. Their bytes
    /// share the block of the read: copy those that are kept for long.
    fn frames(&self, from: &RemotePeer, frames: &mut Vec<Frame>);

    /// Takes over an authenticated data link. Dropping it closes the connection.
    fn data_link(&self, link: NewDataLink) {
        drop(link);
    }

    /// Handles an event of a link.
    fn link(&self, event: LinkEvent);
}

/// The target of a sender.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerAddr {
    /// A node; a link to any other node is refused.
    Node(NodeId),
    /// The node at an address, whatever its id.
    Address(String),
}

/// The other side of a link.
#[derive(Debug, Clone)]
pub struct RemotePeer {
    /// The peer's id; 0 without a cluster.
    pub node: NodeId,
    /// The peer's incarnation.
    pub incarnation: Incarnation,
    /// The peer's core.
    pub core: u16,
    /// The peer's cluster; 0 for none.
    pub cluster: u128,
    /// The protocol version of the link.
    pub version: u16,
    /// The number of the link in this process.
    pub link: u64,
    /// Whether this side opened the link.
    pub is_dialled: bool,
    /// The sender for answers over the same link. On a link that the peer opened it is closed with
    /// the link, and the peer is not read from while a window of it is more than half full; on a
    /// link that this side opened it is the sender to the peer. Frames that are no answers must go
    /// over [`super::Transport::sender`]: if both sides sent many of them over one link, neither
    /// would be read from.
    pub sender: PeerSender,
}

/// The reason why a link ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkEnd {
    /// This side closed it.
    Ours(CloseReason),
    /// The peer closed it.
    Theirs(CloseReason),
    /// The peer sent an invalid frame.
    Fault(MessageError),
    /// The connection broke, or ended without a farewell, as when a process is killed.
    Lost(io::ErrorKind),
    /// The peer accepted no bytes for too long.
    Stalled,
    /// The peer did not answer a ping in time.
    Silent,
    /// The same core of the same node has opened another link.
    Replaced,
}

/// The reason why a link could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The host refuses the connection: the process is gone.
    #[error("connection refused")]
    Refused,
    /// The connection or the handshake timed out.
    #[error("no greeting in time")]
    Late,
    /// The host is unreachable, or the connection broke.
    #[error("{0}")]
    Lost(String),
    /// TLS failed: a certificate was not accepted, or the peer does not speak TLS.
    #[error("TLS: {0}")]
    Tls(String),
    /// This side refuses a link with the peer.
    #[error("refused by us: {0}")]
    Ours(CloseReason),
    /// The peer refuses the link.
    #[error("refused by the peer: {0}")]
    Theirs(CloseReason),
    /// Another node has the address.
    #[error("node {0} is there")]
    OtherNode(NodeId),
    /// The peer sent an invalid frame.
    #[error("no peer: {0}")]
    Fault(MessageError),
}

/// An event of a link.
#[derive(Debug, Clone)]
pub enum LinkEvent {
    /// The first step of opening a link.
    Opening(PeerAddr),
    /// The link is up. Its frames follow.
    Up(RemotePeer),
    /// The peer has not answered a ping in time.
    Silent(RemotePeer),
    /// The silent peer has answered after all.
    Heard(RemotePeer),
    /// The link ended, and no more frames come from it. Frames pushed before may be lost; frames
    /// pushed later go over the next link.
    Down(RemotePeer, LinkEnd),
    /// A link could not be opened. Pending frames were dropped.
    Failed {
        /// The target.
        peer: PeerAddr,
        /// The address.
        address: String,
        /// The reason. [`LinkError::Refused`] means that the process is gone.
        why: LinkError,
    },
}

/// The sender to a peer, for any thread. Clones share one outbox.
#[derive(Debug, Clone)]
pub struct PeerSender {
    pub(super) outbox: Arc<Outbox>,
}

impl PeerSender {
    /// Sends a frame, once there is a link and all earlier frames are written.
    ///
    /// # Errors
    ///
    /// [`Shed`]: the frame was refused and will not be sent.
    pub fn send(&self, frame: Frame) -> Result<(), Shed> {
        self.outbox.push(frame)
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
