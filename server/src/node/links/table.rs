//! All data links of the node, by row and by node and incarnation.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cluster::LinkIndex;
use cluster::id::{Incarnation, NodeId};
use parking_lot::RwLock;

use super::peer_link::{PeerLink, PeerTime};

/// Rows are reused only beyond this number, so that an index in the log rarely means two links.
const FRESH_ROWS: usize = 1024;
/// A row is a `u16`.
const ROWS_MAX: usize = 1 << 16;

/// All data links.
#[derive(Debug, Default)]
pub(crate) struct Links {
    table: RwLock<LinkRows>,
    generation: AtomicU64,
}

#[derive(Debug, Default)]
struct LinkRows {
    rows: Vec<Option<Arc<PeerLink>>>,
    free: VecDeque<LinkIndex>,
    nodes: BTreeMap<NodeId, PeerIncarnations>,
}

/// The incarnations of one node.
#[derive(Debug, Default)]
struct PeerIncarnations {
    /// The newest one is last.
    incarnations: Vec<PeerIncarnation>,
    /// This incarnation and all before it have ended: no new links to them are made.
    ended: Incarnation,
}

#[derive(Debug)]
struct PeerIncarnation {
    incarnation: Incarnation,
    /// The incarnation is over in the map; its links stay until no replica set names them.
    is_over: bool,
    time: Arc<PeerTime>,
    /// By `k`.
    links: Box<[Arc<PeerLink>]>,
}

impl Links {
    /// Returns the link in a row.
    pub(crate) fn get(&self, index: LinkIndex) -> Option<Arc<PeerLink>> {
        self.table.read().rows.get(usize::from(index.0))?.clone()
    }

    /// Grows when a link is added or ends: caches of links must then be refreshed.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// All links.
    pub(crate) fn all(&self) -> Vec<Arc<PeerLink>> {
        self.table.read().rows.iter().flatten().cloned().collect()
    }

    /// The number of links that are up.
    pub(crate) fn up(&self) -> usize {
        self.table.read().rows.iter().flatten().filter(|link| link.is_up()).count()
    }

    /// Returns the link to an incarnation of a node for the partitions of a shard. `None` before
    /// the first connection, and once the incarnation is over.
    pub(crate) fn link_to(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        partition_shard: usize,
    ) -> Option<LinkIndex> {
        let table = self.table.read();
        let known_peer = table
            .nodes
            .get(&node)?
            .incarnation(incarnation)
            .filter(|known_peer| !known_peer.is_over)?;
        let k = partition_shard.checked_rem(known_peer.links.len())?;
        Some(known_peer.links[k].index)
    }

    /// Returns the link to the newest incarnation of a node for the operations of a worker.
    pub(crate) fn of_worker(&self, node: NodeId, worker: u16) -> Option<Arc<PeerLink>> {
        let table = self.table.read();
        let known_peer =
            table.nodes.get(&node)?.incarnations.last().filter(|known_peer| !known_peer.is_over)?;
        let k = usize::from(worker).checked_rem(known_peer.links.len())?;
        Some(Arc::clone(&known_peer.links[k]))
    }

    /// The newest time that an incarnation of a node has sent, on its monotonic clock; 0: none.
    pub(crate) fn peer_time_ns(&self, node: NodeId, incarnation: Incarnation) -> u64 {
        self.time_ns_of(node, |known| known == incarnation)
    }

    /// The time of [`Links::peer_time_ns`] for the newest incarnation of a node that ends with
    /// these bits; see [`run_of`].
    pub(crate) fn run_time_ns(&self, node: NodeId, run: u8) -> u64 {
        self.time_ns_of(node, |known| run_of(known) == run)
    }

    fn time_ns_of(&self, node: NodeId, is_wanted: impl Fn(Incarnation) -> bool) -> u64 {
        let table = self.table.read();
        let mut known = table.nodes.get(&node).into_iter().flat_map(|known| &known.incarnations);
        let known_peer = known.rfind(|known_peer| is_wanted(known_peer.incarnation));
        known_peer.map_or(0, |known_peer| known_peer.time.time_ns.load(Ordering::Acquire))
    }

    /// Ends the links to incarnations that are over in the map, once no replica set names them.
    /// Calls `is_over` for each incarnation that has links.
    pub(crate) fn retain_incarnations(
        &self,
        is_over: impl Fn(NodeId, Incarnation) -> bool,
        is_named: impl Fn(LinkIndex) -> bool,
    ) {
        let over = self.note_over(is_over);
        if over.is_empty() {
            return;
        }
        // Called without the lock: no look-up finds these links any more, so no set comes to name
        // one.
        let named: Vec<LinkIndex> = over.into_iter().filter(|index| is_named(*index)).collect();
        let mut table = self.table.write();
        let LinkRows { rows, free, nodes } = &mut *table;
        let is_kept = |known_peer: &PeerIncarnation| {
            !known_peer.is_over || known_peer.links.iter().any(|link| named.contains(&link.index))
        };
        for PeerIncarnations { incarnations, ended } in nodes.values_mut() {
            for known_peer in incarnations.extract_if(.., |known_peer| !is_kept(known_peer)) {
                *ended = known_peer.incarnation.max(*ended);
                for link in known_peer.links {
                    link.writer.fail(io::ErrorKind::ConnectionAborted);
                    rows[usize::from(link.index.0)] = None;
                    free.push_back(link.index);
                }
            }
        }
        drop(table);
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Marks the incarnations that are over, and returns their links.
    fn note_over(&self, is_over: impl Fn(NodeId, Incarnation) -> bool) -> Vec<LinkIndex> {
        let mut table = self.table.write();
        let mut over = Vec::new();
        for (node, known) in &mut table.nodes {
            for known_peer in &mut known.incarnations {
                known_peer.is_over |= is_over(*node, known_peer.incarnation);
                if known_peer.is_over {
                    over.extend(known_peer.links.iter().map(|link| link.index));
                }
            }
        }
        over
    }

    /// Drops the ended incarnations of nodes that cannot return.
    pub(in crate::node) fn retain_nodes(&self, is_known: impl Fn(NodeId) -> bool) {
        self.table
            .write()
            .nodes
            .retain(|node, known| is_known(*node) || !known.incarnations.is_empty());
    }

    /// Returns the links to an incarnation of a node, and makes them at the first call. `None`: the
    /// incarnation has ended, or there is a newer one, or no row is left.
    pub(super) fn links_to(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        count: u16,
        k: u16,
    ) -> Option<Arc<PeerLink>> {
        let mut table = self.table.write();
        let LinkRows { rows, free, nodes } = &mut *table;
        let known = nodes.entry(node).or_default();
        if incarnation <= known.ended && known.ended != Incarnation::default() {
            return None;
        }
        let newest = known.incarnations.last().map(|known_peer| known_peer.incarnation);
        if newest.is_some_and(|newest| newest > incarnation) {
            return None;
        }
        if newest != Some(incarnation) {
            let time = Arc::new(PeerTime::default());
            let mut links = Vec::new();
            for k in 0..count {
                let index = row(rows, free)?;
                let link = Arc::new(PeerLink::new(index, node, incarnation, k, &time));
                rows[usize::from(index.0)] = Some(Arc::clone(&link));
                links.push(link);
            }
            known.incarnations.push(PeerIncarnation {
                incarnation,
                is_over: false,
                time,
                links: links.into(),
            });
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        known.incarnations.last()?.links.get(usize::from(k)).cloned()
    }
}

/// The last 8 bits of an incarnation. They tell it from the others of its node that have links: it
/// is a count.
pub(crate) fn run_of(incarnation: Incarnation) -> u8 {
    incarnation.0 as u8
}

/// Returns an unused row.
fn row(rows: &mut Vec<Option<Arc<PeerLink>>>, free: &mut VecDeque<LinkIndex>) -> Option<LinkIndex> {
    if rows.len() >= FRESH_ROWS
        && let Some(index) = free.pop_front()
    {
        return Some(index);
    }
    let index = LinkIndex(u16::try_from(rows.len()).ok().filter(|_| rows.len() < ROWS_MAX)?);
    rows.push(None);
    Some(index)
}

impl PeerIncarnations {
    fn incarnation(&self, incarnation: Incarnation) -> Option<&PeerIncarnation> {
        self.incarnations.iter().find(|known_peer| known_peer.incarnation == incarnation)
    }
}
