//! The paths to the other nodes of the map: over their own links, or through another node.
//!
//! While the link to a node is broken, control frames and data links go through another node.
//!
//! Here: the sender that a control frame takes, the frames that this node passes on for others, the
//! nodes that are away. Not here: which nodes are in reach (`reachability`), data links (`links`),
//! control links (`crate::transport`).
//!
//! A relay passes a frame on unchanged, once, over its own link; it keeps nothing and answers
//! nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cluster::id::NodeId;
use cluster::message::Frame;
use parking_lot::{Mutex, RwLock};

use super::links::{DataLinks, Links, Tunnels};
use super::reachability::{Path, ReachAction, Reachability};
use crate::transport::{PeerSender, Shed};

/// The path to one node.
struct PeerPath {
    sender: PeerSender,
    data_links: Arc<DataLinks>,
    path: Path,
    /// A frame was to be sent while the link was broken.
    is_wanted: AtomicBool,
}

/// The paths to all nodes of the map but this one.
#[derive(Default)]
pub(crate) struct PeerPaths {
    paths: RwLock<BTreeMap<NodeId, PeerPath>>,
    /// The links of the workers to them.
    links: Arc<Links>,
    tunnels: Tunnels,
    reach: Mutex<Reachability>,
    /// Some link is broken or not yet up.
    is_unsettled: AtomicBool,
    /// Some node is away.
    is_any_away: AtomicBool,
    /// This node has no contact to most voters.
    is_alone: AtomicBool,
    /// The number of frames passed on for other nodes.
    passed_on: AtomicU64,
}

impl PeerPath {
    fn want(&self) {
        if self.path != Path::Direct {
            self.is_wanted.store(true, Ordering::Relaxed);
        }
    }
}

fn wrap(from: NodeId, to: NodeId, frame: Frame) -> Frame {
    Frame::Relay { from, to, frame: Box::new(frame) }
}

impl PeerPaths {
    /// Whether the map has this node.
    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.paths.read().contains_key(&node)
    }

    /// Adds a node of the map, with its sender. Returns its data links if they are new.
    pub(super) fn insert(
        &self,
        node: NodeId,
        sender: PeerSender,
        new: impl FnOnce() -> DataLinks,
        address: &str,
    ) -> Option<Arc<DataLinks>> {
        let mut reach = self.reach.lock();
        let path = reach.path_to(node);
        let mut paths = self.paths.write();
        let known = paths.remove(&node).map(|peer_path| peer_path.data_links);
        let kept = known.filter(|known| {
            let is_same = known.address() == address;
            if !is_same {
                known.forget();
            }
            is_same
        });
        let is_new = kept.is_none();
        let data_links = kept.unwrap_or_else(|| Arc::new(new()));
        let fresh = is_new.then(|| Arc::clone(&data_links));
        paths
            .insert(node, PeerPath { sender, data_links, path, is_wanted: AtomicBool::new(false) });
        fresh
    }

    /// Returns the data links to a node of the map.
    pub(super) fn data_links(&self, node: NodeId) -> Option<Arc<DataLinks>> {
        self.paths.read().get(&node).map(|peer_path| Arc::clone(&peer_path.data_links))
    }

    /// The links of the workers.
    pub(super) fn links(&self) -> &Arc<Links> {
        &self.links
    }

    /// The connections of data links that go through other nodes.
    pub(super) fn tunnels(&self) -> &Tunnels {
        &self.tunnels
    }

    /// Returns the sender of the relay to `node`, if there is one.
    pub(super) fn relay_to(&self, node: NodeId) -> Option<PeerSender> {
        let paths = self.paths.read();
        match paths.get(&node)?.path {
            Path::Through(relay) => paths.get(&relay).map(|peer_path| peer_path.sender.clone()),
            Path::Direct | Path::Broken | Path::Away => None,
        }
    }

    /// Drops all nodes for which `is_known` is false.
    pub(super) fn retain(&self, is_known: impl Fn(NodeId) -> bool) {
        self.paths.write().retain(|node, peer_path| {
            let is_known = is_known(*node);
            if !is_known {
                peer_path.data_links.forget();
            }
            is_known
        });
        self.links.retain_nodes(&is_known);
        self.reach.lock().retain(is_known);
    }

    /// Records that a frame for a node waits for its path.
    pub(super) fn want(&self, node: NodeId) {
        if let Some(peer_path) = self.paths.read().get(&node) {
            peer_path.is_wanted.store(true, Ordering::Relaxed);
        }
    }

    /// Sends a frame to a node that the map may not have yet: over `sender`, unless its link is
    /// broken and a relay reaches the node.
    pub(super) fn send_or(
        &self,
        me: NodeId,
        to: NodeId,
        sender: &PeerSender,
        frame: Frame,
    ) -> Result<(), Shed> {
        let paths = self.paths.read();
        let peer_path = paths.get(&to).inspect(|peer_path| peer_path.want());
        match peer_path.map(|peer_path| peer_path.path) {
            Some(Path::Through(relay)) if paths.contains_key(&relay) => {
                paths[&relay].sender.send(wrap(me, to, frame))
            }
            _ => sender.send(frame),
        }
    }

    /// Passes a frame on for its sender. It goes only over this node's own link, and only if that
    /// is not broken, so that no frame goes in circles.
    pub(super) fn pass_on(&self, from: NodeId, to: NodeId, frame: Box<Frame>) {
        if !self.reach.lock().is_direct(to) {
            return;
        }
        if let Some(peer_path) = self.paths.read().get(&to)
            && peer_path.sender.send(Frame::Relay { from, to, frame }).is_ok()
        {
            self.passed_on.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether frames to a node go through a relay.
    pub(super) fn is_relayed(&self, node: NodeId) -> bool {
        let paths = self.paths.read();
        paths.get(&node).is_some_and(|peer_path| matches!(peer_path.path, Path::Through(_)))
    }

    /// Whether some node is out of reach.
    #[inline]
    pub(super) fn is_any_away(&self) -> bool {
        self.is_any_away.load(Ordering::Relaxed)
    }

    /// Whether a node is out of reach on every path, and operations should not wait for it.
    pub(super) fn is_away(&self, node: NodeId) -> bool {
        self.is_any_away()
            && self.paths.read().get(&node).is_some_and(|peer_path| {
                peer_path.want();
                peer_path.path == Path::Away
            })
    }

    /// Whether this node has no contact to most voters, and some node is away.
    pub(super) fn is_cut_off(&self) -> bool {
        self.is_any_away() && self.is_alone.load(Ordering::Relaxed)
    }

    /// Whether some link is broken or not yet up: reachability then depends on time.
    pub(super) fn is_unsettled(&self) -> bool {
        self.is_unsettled.load(Ordering::Relaxed)
    }

    /// The number of broken links, and of frames passed on for other nodes.
    pub(super) fn metrics(&self) -> (u64, u64) {
        let broken = self.reach.lock().broken_links() as u64;
        (broken, self.passed_on.load(Ordering::Relaxed))
    }

    /// Applies `news` and the time, and returns the resulting actions. A change of path among them
    /// is in force already.
    pub(super) fn note(
        &self,
        now_ns: u64,
        is_alone: Option<bool>,
        news: impl FnOnce(&mut Reachability),
    ) -> Vec<ReachAction> {
        if let Some(is_alone) = is_alone {
            self.is_alone.store(is_alone, Ordering::Relaxed);
        }
        let is_alone = self.is_alone.load(Ordering::Relaxed);
        let mut reach = self.reach.lock();
        news(&mut reach);
        for (node, peer_path) in &*self.paths.read() {
            if peer_path.is_wanted.swap(false, Ordering::Relaxed) {
                reach.wanted(*node, now_ns);
            }
        }
        let actions = reach.tick(now_ns, is_alone);
        self.is_unsettled.store(reach.is_unsettled(), Ordering::Relaxed);
        if actions.iter().any(|action| matches!(action, ReachAction::Take(..))) {
            let mut paths = self.paths.write();
            for action in &actions {
                if let ReachAction::Take(node, path) = action
                    && let Some(peer_path) = paths.get_mut(node)
                {
                    peer_path.path = *path;
                    peer_path.data_links.path_changed();
                }
            }
            let is_away = paths.values().any(|peer_path| peer_path.path == Path::Away);
            self.is_any_away.store(is_away, Ordering::Relaxed);
        }
        actions
    }

    /// Sends a ping to a peer through a relay.
    pub(super) fn probe_through(&self, me: NodeId, peer: NodeId, relay: NodeId, number: u64) {
        if let Some(peer_path) = self.paths.read().get(&relay) {
            let _ = peer_path.sender.send(wrap(me, peer, Frame::Ping(number)));
        }
    }
}
