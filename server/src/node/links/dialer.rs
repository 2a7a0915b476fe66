//! Opens the data links to one node again and again: directly, or through another node while the
//! direct path is broken.
//!
//! Not here: the handshake (`crate::transport`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cluster::message::handshake::DataLinkId;
use cluster::message::tunnel::{TunnelEnd, TunnelEvent};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::{Connected, DataLinks};
use crate::node::Node;
use crate::node::inbound::PeerHandler;
use crate::transport::{FrameHandler as _, PeerSender, Transport};

/// A connection that lasts this long resets the pause between attempts.
const LASTS_NS: u64 = 1_000_000_000;

/// Keeps all links open until the node is forgotten.
pub(in crate::node) async fn keep(
    node: Arc<Node>,
    reception: Arc<PeerHandler>,
    links: Arc<DataLinks>,
) {
    let (shortest, longest) = (links.timing.pause_min, links.timing.pause_max);
    let mut pause = shortest;
    let mut opened_ns = 0;
    while !links.is_forgotten.load(Ordering::Relaxed) {
        let Some(transport) = node.transport() else { return };
        if transport.identity().node != node.me().0 {
            // The transport has not yet received this node's identity.
            rest(&mut pause, longest).await;
            continue;
        }
        let Some(next) = links.next(&node) else {
            links.down.notified().await;
            if reception.now_ns().saturating_sub(opened_ns) >= LASTS_NS {
                pause = shortest;
            }
            rest(&mut pause, longest).await;
            continue;
        };
        let k = next.k();
        let is_open = open(&node, transport, &links, next).await;
        if is_open {
            opened_ns = reception.now_ns();
        }
        if !is_open || links.next(&node).is_some_and(|next| next.k() == k) {
            // The attempt failed, or its connection is gone already.
            rest(&mut pause, longest).await;
        }
    }
}

/// Opens a connection and hands it to its worker. Returns false if it could not be opened.
async fn open(node: &Node, transport: &Transport, links: &DataLinks, next: NextLink) -> bool {
    match next {
        NextLink::Direct(k) => match transport.open_data_link(links.peer, links.address(), k).await
        {
            Ok(link) => {
                node.take_data_link(link);
                true
            }
            Err(why) => {
                tracing::debug!(
                    node = %links.peer,
                    index = k,
                    %why,
                    "the data link cannot be opened: trying again"
                );
                false
            }
        },
        NextLink::Through(sender, index) => {
            let id = DataLinkId { index, number: transport.next_data_link() };
            node.open_tunnel(links, sender, id).await
        }
    }
}

async fn rest(pause: &mut Duration, longest: Duration) {
    sleep(*pause).await;
    *pause = (*pause * 2).min(longest);
}

/// A connection that should be opened.
enum NextLink {
    /// Directly to the node.
    Direct(u16),
    /// Through the relay that this sender leads to.
    Through(PeerSender, u16),
}

impl NextLink {
    fn k(&self) -> u16 {
        match self {
            Self::Direct(k) | Self::Through(_, k) => *k,
        }
    }
}

impl DataLinks {
    /// Returns the first link that has no connection, or whose connection takes another path than
    /// it should. The handshake of link 0 shows the number of links.
    fn next(&self, node: &Node) -> Option<NextLink> {
        let count = self.count.load(Ordering::Acquire).max(1);
        let tunnelled = self.tunnelled.load(Ordering::Acquire);
        let has_none = |k: u16| self.handed[usize::from(k)].load(Ordering::Acquire) == 0;
        let has_tunnel = |k: u16| tunnelled & 1 << k != 0;
        if let Some(sender) = node.paths.relay_to(self.peer) {
            let is_up = |k| node.links().of_worker(self.peer, k).is_some_and(|link| link.is_up());
            let is_next = |k: &u16| has_none(*k) || !has_tunnel(*k) && !is_up(*k);
            return (0..count).find(is_next).map(|k| NextLink::Through(sender, k));
        }
        (0..count).find(|k| has_none(*k) || has_tunnel(*k)).map(NextLink::Direct)
    }
}

impl Node {
    /// Opens a connection through the relay that `sender` leads to, and hands it to its worker.
    /// Returns false if it could not be opened.
    async fn open_tunnel(&self, links: &DataLinks, sender: PeerSender, id: DataLinkId) -> bool {
        let (me, incarnation) = self.me();
        let (opened, answer) = oneshot::channel();
        let tunnel = self.paths.tunnels().begin((me, links.peer), id, sender, Some(opened));
        let ours = TunnelEnd { incarnation, workers: self.options.workers as u16 };
        if tunnel.send(TunnelEvent::Open(ours)).is_err() {
            return false;
        }
        let Ok(Ok(end)) = timeout(links.timing.connect, answer).await else { return false };
        tracing::info!(
            node = %links.peer,
            index = id.index,
            "data link opened through another node"
        );
        self.take_connection(Connected::through(tunnel, links.peer, end, id, true))
    }
}
