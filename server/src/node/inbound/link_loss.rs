//! The meaning of a lost link for the control plane.

use cluster::message::handshake::CloseReason;
use control::Unreachable;

use crate::transport::{LinkEnd, LinkError, LinkEvent, PeerAddr, RemotePeer};

/// A link that ended, or that could not be opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LinkLoss {
    pub(super) peer_addr: PeerAddr,
    /// The reason for the calls that end.
    pub(super) why: Unreachable,
    /// Calls to the peer may be lost.
    pub(super) ends_calls: bool,
    /// The process of the peer may be gone.
    pub(super) is_suspicious: bool,
}

impl LinkLoss {
    /// Returns the loss that `event` reports; `None` if it reports no loss.
    pub(super) fn of(event: LinkEvent) -> Option<Self> {
        let (peer_addr, why) = match event {
            LinkEvent::Up(_)
            | LinkEvent::Opening(_)
            | LinkEvent::Silent(_)
            | LinkEvent::Heard(_) => return None,
            LinkEvent::Down(peer, end) => return Some(Self::of_end(&peer, end)),
            LinkEvent::Failed { peer: peer_addr, why: LinkError::Refused, .. } => {
                (peer_addr, Unreachable::Refused)
            }
            LinkEvent::Failed { peer: peer_addr, why: LinkError::Late, .. } => {
                (peer_addr, Unreachable::Late)
            }
            LinkEvent::Failed { peer: peer_addr, .. } => (peer_addr, Unreachable::Lost),
        };
        let is_suspicious = why != Unreachable::Late;
        Some(Self { peer_addr, why, ends_calls: true, is_suspicious })
    }

    /// This node calls over links that it dialled. One that ends in order was idle, or had the
    /// address of a seed and made way for the link to its node.
    fn of_end(peer: &RemotePeer, end: LinkEnd) -> Self {
        let is_orderly = matches!(
            end,
            LinkEnd::Ours(CloseReason::Idle)
                | LinkEnd::Theirs(CloseReason::Idle)
                | LinkEnd::Replaced
        );
        let is_silent = end == LinkEnd::Silent;
        Self {
            peer_addr: PeerAddr::Node(peer.node),
            why: if is_silent { Unreachable::Late } else { Unreachable::Lost },
            ends_calls: peer.is_dialled && !is_orderly,
            is_suspicious: !is_orderly && !is_silent,
        }
    }
}
