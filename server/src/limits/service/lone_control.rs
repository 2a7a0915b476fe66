//! The control plane of a cluster of one node, for tests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cluster::id::NodeId;
use cluster::map::NodeDescription;
use cluster::placement::{Placement, Scheme};
use control::{
    CallFuture, Control, ControlOptions, ControlStore, ControlTransport, NodeIdentity, StartMode,
    Unreachable, WakeGrid,
};

/// A node without others calls nobody.
struct NoPeers;

impl ControlTransport for NoPeers {
    fn call(&self, _: Option<NodeId>, _: &str, _: Bytes, _: Duration) -> CallFuture {
        Box::pin(std::future::ready(Err(Unreachable::Lost)))
    }

    fn identify(&self, _: NodeIdentity) {}
}

/// Founds a cluster of one node.
pub(crate) async fn control() -> Control {
    let options = ControlOptions {
        seed: 1,
        description: NodeDescription {
            client_address: "127.0.0.1:1".to_owned(),
            peer_address: "127.0.0.1:2".to_owned(),
            ring_name: "n".to_owned(),
            weight: 1,
            zone: String::new(),
        },
        placement: Placement::new(Scheme::Ketama, 2).expect("few bits"),
        begin: StartMode::Found,
        seeds: Vec::new(),
        grid: WakeGrid::from_now(),
    };
    let store = ControlStore::in_memory().expect("memory is there");
    let control = Control::start(store, options, Arc::new(NoPeers)).await.expect("it works");
    control.registered().await;
    control
}
