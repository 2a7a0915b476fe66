//! Opening the data links to one node, again and again.
//!
//! Not here: the handshake (`crate::lanes`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;

use super::DataLinks;
use crate::lanes::Handler as _;
use crate::node::Node;
use crate::node::peers::Reception;

/// A connection that lasts for this long is no failed attempt.
const LASTS_NS: u64 = 1_000_000_000;

/// Keeps all links open until the node is forgotten.
pub(in crate::node) async fn keep(
    node: Arc<Node>,
    reception: Arc<Reception>,
    links: Arc<DataLinks>,
) {
    let (shortest, longest) = (links.timing.pause_min, links.timing.pause_max);
    let mut pause = shortest;
    let mut opened_ns = 0;
    while !links.is_forgotten.load(Ordering::Relaxed) {
        let Some(lanes) = node.lanes() else { return };
        if lanes.identity().node != node.me().0 {
            // The lanes are told soon who this node is.
            rest(&mut pause, longest).await;
            continue;
        }
        let Some(index) = links.first_down() else {
            links.down.notified().await;
            if reception.now_ns().saturating_sub(opened_ns) >= LASTS_NS {
                pause = shortest;
            }
            rest(&mut pause, longest).await;
            continue;
        };
        match lanes.open_data_link(links.peer, links.address(), index).await {
            Ok(link) => {
                opened_ns = reception.now_ns();
                node.take_data_link(link);
                if links.first_down() == Some(index) {
                    // It was of no use.
                    rest(&mut pause, longest).await;
                }
            }
            Err(why) => {
                tracing::debug!(node = %links.peer, index, %why, "no data link");
                rest(&mut pause, longest).await;
            }
        }
    }
}

async fn rest(pause: &mut Duration, longest: Duration) {
    sleep(*pause).await;
    *pause = (*pause * 2).min(longest);
}

impl DataLinks {
    /// The first link that no worker has or is to take over. The first of all tells how many there are.
    fn first_down(&self) -> Option<u16> {
        let count = self.count.load(Ordering::Acquire).max(1);
        let is_down = |k: &u16| self.handed[usize::from(*k)].load(Ordering::Acquire) == 0;
        (0..count).find(is_down)
    }
}
