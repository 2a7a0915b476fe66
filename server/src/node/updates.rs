//! The work of the leader once a second: the feature version of the cluster, and expired limits.
//!
//! Not here: the leader's rounds over partitions (`control`).

use std::sync::Arc;
use std::time::Duration;

use cluster::map::command::Setting;
use cluster::map::{FOURTH_COPY_VERSION, LIMITS_VERSION, MapCommand, NodeState, RECORDS_VERSION};
use cluster::message::VERSION_MIN;
use control::Control;

use super::Node;
use crate::runtime::service::Service;
use crate::transport::PeerAddr;

/// Time between two looks.
const PERIOD: Duration = Duration::from_millis(1024);
/// The time to live of one command.
const COMMAND_TTL: Duration = Duration::from_secs(5);

/// The feature versions, the newest first.
const FEATURE_VERSIONS: [u32; 3] = [FOURTH_COPY_VERSION, LIMITS_VERSION, RECORDS_VERSION];

/// The oldest protocol version of links in a cluster whose map has this feature version: a node
/// that does not know the map's commands must not take part.
fn link_version(feature_version: u32) -> u16 {
    let known = FEATURE_VERSIONS.into_iter().find(|known| *known <= feature_version);
    known.and_then(|known| u16::try_from(known).ok()).unwrap_or(VERSION_MIN)
}

impl Node {
    /// Whether the map has this feature version, so that every node knows what it has.
    pub(super) fn has_features(&self, version: u32) -> bool {
        self.control().is_some_and(|control| control.map().settings().version >= version)
    }

    /// Whether this node, and every other one that is not dead, has agreed on a protocol version
    /// that knows what this feature version has.
    fn all_know(&self, control: &Control, feature_version: u32) -> bool {
        let Some(transport) = self.transport() else { return false };
        if u32::from(transport.newest_version()) < feature_version {
            return false;
        }
        let me = self.me().0;
        let metrics = transport.metrics();
        let knows = |node| {
            metrics.iter().any(|(peer_addr, metrics)| {
                *peer_addr == PeerAddr::Node(node)
                    && metrics.links_now > 0
                    && u32::from(metrics.version) >= feature_version
            })
        };
        let map = control.map();
        let mut others =
            map.nodes().iter().filter(|(id, node)| **id != me && node.state != NodeState::Dead);
        others.all(|(id, _)| knows(*id))
    }
}

/// Raises the feature version of the map to the newest one that all nodes know.
pub(super) async fn raise(node: &Node, control: &Control) {
    let present = control.map().settings().version;
    let mut newer = FEATURE_VERSIONS.into_iter().filter(|version| *version > present);
    let Some(version) = newer.find(|version| node.all_know(control, *version)) else { return };
    match control.propose(MapCommand::Set(Setting::Version(version)), COMMAND_TTL).await {
        Ok(_) => {
            tracing::info!(version, "all nodes are updated: older ones are refused from now on");
        }
        Err(error) => tracing::debug!(%error, "the feature version is not set yet"),
    }
}

/// Does the leader's work, and on every node refuses peers that are too old for the map.
pub(super) async fn follow(service: Arc<Service>, node: Arc<Node>, control: Control) {
    let (me, _) = control.registered().await;
    loop {
        let version = control.map().settings().version;
        if let Some(transport) = node.transport() {
            transport.require_version(link_version(version));
        }
        if control.leader() == Some(me) {
            raise(&node, &control).await;
            let now_ms = service.clock().now().unix_ms;
            if version >= RECORDS_VERSION && service.limits_store().has_expired(now_ms) {
                service.limits_store().expire(now_ms).await;
            }
        }
        service.grid().wait(PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_link_follows_the_map() {
        for (feature_version, expected) in
            [(0, 1), (1, 1), (2, 2), (3, 3), (4, 3), (5, 5), (u32::MAX, 5)]
        {
            assert_eq!(link_version(feature_version), expected);
        }
    }
}
