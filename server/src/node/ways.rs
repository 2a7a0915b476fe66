//! The ways to the other nodes of the map: over their own links, or through another node.
//!
//! Where the link to a node is broken, frames go through the lane of another node, and so do the data links.
//!
//! Here: which lane a control frame takes, what this node passes on for others, who is away. Not here: which
//! nodes are in reach (`reach`), data links (`links`), lanes (`crate::lanes`).
//!
//! A relay passes a frame on as it is, once, over its own lane; it keeps nothing and answers nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cluster::id::NodeId;
use cluster::message::Frame;
use parking_lot::{Mutex, RwLock};

use super::links::{DataLinks, Links, Tunnels};
use super::reach::{Path, Reach, Step};
use crate::lanes::{Lane, Shed};

/// The way to one node.
struct Way {
    lane: Lane,
    data_links: Arc<DataLinks>,
    path: Path,
    /// Something was to be sent while the link was broken.
    is_wanted: AtomicBool,
}

/// The ways to all nodes of the map but this one.
#[derive(Default)]
pub(crate) struct Ways {
    ways: RwLock<BTreeMap<NodeId, Way>>,
    /// The links of the workers to them.
    links: Links,
    tunnels: Tunnels,
    reach: Mutex<Reach>,
    /// Some link is broken, or not up yet; some node is away.
    is_unsettled: AtomicBool,
    is_any_away: AtomicBool,
    /// This node has no contact to most voters.
    is_alone: AtomicBool,
    /// Frames passed on for other nodes.
    passed_on: AtomicU64,
}

impl Way {
    fn want(&self) {
        if self.path != Path::Direct {
            self.is_wanted.store(true, Ordering::Relaxed);
        }
    }
}

fn wrap(from: NodeId, to: NodeId, frame: Frame) -> Frame {
    Frame::Relay { from, to, frame: Box::new(frame) }
}

impl Ways {
    /// Whether the map has this node.
    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.ways.read().contains_key(&node)
    }

    /// The map has a node, which is reached over this lane. Returns its data links if they are new.
    pub(super) fn insert(
        &self,
        node: NodeId,
        lane: Lane,
        new: impl FnOnce() -> DataLinks,
        address: &str,
    ) -> Option<Arc<DataLinks>> {
        let mut reach = self.reach.lock();
        let path = reach.meet(node);
        let mut ways = self.ways.write();
        let known = ways.remove(&node).map(|way| way.data_links);
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
        ways.insert(node, Way { lane, data_links, path, is_wanted: AtomicBool::new(false) });
        fresh
    }

    /// The data links to a node of the map.
    pub(super) fn data_links(&self, node: NodeId) -> Option<Arc<DataLinks>> {
        self.ways.read().get(&node).map(|way| Arc::clone(&way.data_links))
    }

    /// The links of the workers.
    pub(super) fn links(&self) -> &Links {
        &self.links
    }

    /// The connections of links that go through other nodes.
    pub(super) fn tunnels(&self) -> &Tunnels {
        &self.tunnels
    }

    /// The lane to the node through which frames to `node` go, if there is one.
    pub(super) fn relay_to(&self, node: NodeId) -> Option<Lane> {
        let ways = self.ways.read();
        match ways.get(&node)?.path {
            Path::Through(relay) => ways.get(&relay).map(|way| way.lane.clone()),
            Path::Direct | Path::Broken | Path::Away => None,
        }
    }

    /// Only nodes that are known stay.
    pub(super) fn retain(&self, is_known: impl Fn(NodeId) -> bool) {
        self.ways.write().retain(|node, way| {
            let is_known = is_known(*node);
            if !is_known {
                way.data_links.forget();
            }
            is_known
        });
        self.links.retain_nodes(&is_known);
        self.reach.lock().retain(is_known);
    }

    /// Something is to be sent to a node, and cannot be now.
    pub(super) fn want(&self, node: NodeId) {
        if let Some(way) = self.ways.read().get(&node) {
            way.is_wanted.store(true, Ordering::Relaxed);
        }
    }

    /// Sends a frame to a node that the map may not have yet: over `lane`, unless that is broken and
    /// another node reaches it.
    pub(super) fn send_or(
        &self,
        me: NodeId,
        to: NodeId,
        lane: &Lane,
        frame: Frame,
    ) -> Result<(), Shed> {
        let ways = self.ways.read();
        let way = ways.get(&to).inspect(|way| way.want());
        match way.map(|way| way.path) {
            Some(Path::Through(relay)) if ways.contains_key(&relay) => {
                ways[&relay].lane.send(wrap(me, to, frame))
            }
            _ => lane.send(frame),
        }
    }

    /// Passes a frame on that its sender could not bring to its receiver. Only over this node's own
    /// link, and only if that is not broken: nothing goes round in circles.
    pub(super) fn pass_on(&self, from: NodeId, to: NodeId, frame: Box<Frame>) {
        if !self.reach.lock().is_direct(to) {
            return;
        }
        if let Some(way) = self.ways.read().get(&to)
            && way.lane.send(Frame::Relay { from, to, frame }).is_ok()
        {
            self.passed_on.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether frames to a node go through another one.
    pub(super) fn is_relayed(&self, node: NodeId) -> bool {
        let ways = self.ways.read();
        ways.get(&node).is_some_and(|way| matches!(way.path, Path::Through(_)))
    }

    /// Whether a node is out of reach in every way, so that nobody should wait for it.
    pub(super) fn is_away(&self, node: NodeId) -> bool {
        self.is_any_away.load(Ordering::Relaxed)
            && self.ways.read().get(&node).is_some_and(|way| {
                way.want();
                way.path == Path::Away
            })
    }

    /// Whether this node has no contact to most voters, and some node is away.
    pub(super) fn is_cut_off(&self) -> bool {
        self.is_any_away.load(Ordering::Relaxed) && self.is_alone.load(Ordering::Relaxed)
    }

    /// Whether some link is broken, or not up yet: then there is something to do as time passes.
    pub(super) fn is_unsettled(&self) -> bool {
        self.is_unsettled.load(Ordering::Relaxed)
    }

    /// Broken links, and frames passed on for other nodes.
    pub(super) fn figures(&self) -> (u64, u64) {
        let broken = self.reach.lock().broken_links() as u64;
        (broken, self.passed_on.load(Ordering::Relaxed))
    }

    /// Something was heard of a link, or time passes: what is to be done now. The first of each is a
    /// change of path that holds already.
    pub(super) fn note(
        &self,
        now_ns: u64,
        is_alone: Option<bool>,
        news: impl FnOnce(&mut Reach),
    ) -> Vec<Step> {
        if let Some(is_alone) = is_alone {
            self.is_alone.store(is_alone, Ordering::Relaxed);
        }
        let is_alone = self.is_alone.load(Ordering::Relaxed);
        let mut reach = self.reach.lock();
        news(&mut reach);
        for (node, way) in &*self.ways.read() {
            if way.is_wanted.swap(false, Ordering::Relaxed) {
                reach.wanted(*node, now_ns);
            }
        }
        let steps = reach.tick(now_ns, is_alone);
        self.is_unsettled.store(reach.is_unsettled(), Ordering::Relaxed);
        if steps.iter().any(|step| matches!(step, Step::Take(..))) {
            let mut ways = self.ways.write();
            for step in &steps {
                if let Step::Take(node, path) = step
                    && let Some(way) = ways.get_mut(node)
                {
                    way.path = *path;
                    way.data_links.path_changed();
                }
            }
            let is_away = ways.values().any(|way| way.path == Path::Away);
            self.is_any_away.store(is_away, Ordering::Relaxed);
        }
        steps
    }

    /// Asks a peer for a sign of life through another node.
    pub(super) fn ask(&self, me: NodeId, peer: NodeId, relay: NodeId, number: u64) {
        if let Some(way) = self.ways.read().get(&relay) {
            let _ = way.lane.send(wrap(me, peer, Frame::Ping(number)));
        }
    }
}
