//! What an operator is told of the cluster: `stats cluster`, `config get cluster`.
//!
//! Here: one view of it all, made from what the control plane, the map, the lanes and the node know.
//! Not here: how it is written (`write`), the words by which an operator changes things (`words`),
//! who counts the traffic (`node`).

mod words;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use arrayvec::ArrayVec;
use cluster::id::{NodeId, Partition};
use cluster::map::{Map, MapNode, NodeState, PartitionEntry, clocks};
use cluster::placement::COPIES_MAX;
use control::{DiskState, MembershipState, Status};

pub use words::{SETTINGS, WordsError, command_of, node_of, setting};
pub use write::{Topic, write, write_config};

/// A node that heard no majority of the voters for this long is not ready. An election after the
/// leader's death is over sooner.
const HEARING_MAX: Duration = Duration::from_secs(3);

/// Whether a node whose lease is so old hears the control plane.
pub(crate) fn hears_control(lease: Option<Duration>) -> bool {
    lease.is_some_and(|age| age < HEARING_MAX)
}

/// Everything that an operator may ask of a node about its cluster, at one moment.
#[derive(Debug)]
pub struct ClusterView<'a> {
    /// Which node answers; none before it has an id.
    pub node: Option<NodeId>,
    /// How it stands, and what its control plane knows.
    pub status: &'a Status,
    /// The map that this is about.
    pub map: &'a Map,
    /// The other nodes and itself, by id.
    pub nodes: Vec<NodeRow<'a>>,
    /// How the partitions are.
    pub partitions: PartitionTotals,
    /// What this node did for clients and nodes.
    pub traffic: Traffic,
    /// Why peers refuse links, while that keeps the node from its cluster.
    pub refusal: Option<String>,
}

/// What the node's lanes know of another node.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct PeerLinkView {
    /// A link is up.
    pub is_up: bool,
    /// How far its clock is ahead of ours, if that was measured.
    pub clock_offset_ms: Option<i64>,
}

/// What the node did since it started.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Clients' operations on keys of its own.
    pub ops_direct: u64,
    /// Clients' operations that another node was asked to do.
    pub ops_forwarded: u64,
    /// Operations that other nodes asked of it.
    pub ops_received: u64,
    /// Operations asked again, of the same node or another.
    pub ops_resent: u64,
    /// Operations whose client was told that they were not applied.
    pub not_applied: u64,
    /// Operations whose client was told that nobody knows.
    pub unknown_outcome: u64,
    /// Units admitted on its own account while an owner was out of reach.
    pub degraded_admitted: u64,
    /// Units of these that no owner was told yet.
    pub debt_pending: u64,
    /// Operations that wait for a partition to move, now.
    pub held: u64,
    /// Links to other nodes that are broken, now.
    pub links_broken: u64,
    /// Data links to other nodes that are up, now.
    pub data_links: u64,
    /// Frames passed on between two other nodes whose link is broken.
    pub frames_relayed: u64,
}

/// A node as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRow<'a> {
    /// Which.
    pub id: NodeId,
    /// What the map knows of it.
    pub node: &'a MapNode,
    /// How long ago this node heard it, which a voter knows.
    pub heard_ms_ago: Option<u64>,
    /// Whether it is active, has its copies, and hears the control plane by its own word, which a
    /// voter knows.
    pub is_ready: Option<bool>,
    /// Its operations a second, likewise.
    pub ops_per_second: Option<u32>,
    /// How the disk under its control log does, which it knows of itself and a voter of others.
    pub disk: Option<DiskState>,
    /// Partitions that it answers for.
    pub primaries: usize,
    /// In-sync copies beside these.
    pub backups: usize,
    /// Copies that it is getting.
    pub learners: usize,
    /// What the lanes know of it; none of itself.
    pub link: Option<PeerLinkView>,
    /// How far its clock is ahead of the time that most of the nodes agree on, if that is known.
    pub clock_offset_ms: Option<i64>,
}

/// How many partitions are how.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct PartitionTotals {
    /// All.
    pub total: usize,
    /// With a primary that lives.
    pub served: usize,
    /// Without one.
    pub without_primary: usize,
    /// With fewer living in-sync copies than wanted, as far as there are nodes for them.
    pub under_replicated: usize,
    /// About to be handed over.
    pub moving: usize,
    /// Getting another copy.
    pub learners: usize,
}

/// What is to be said of a partition, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartitionHealth {
    /// No primary, or one that is dead.
    NoPrimary,
    /// A death away from that, or nearer to it than wanted.
    UnderReplicated,
    /// About to be handed over.
    Moving,
    /// Getting another copy.
    Learning,
    /// As it should be, as far as anyone sees.
    Fine,
}

/// A partition as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionRow<'a> {
    /// Which.
    pub partition: Partition,
    /// The worst that is to be said of it.
    pub state: PartitionHealth,
    /// What the map says.
    pub entry: &'a PartitionEntry,
}

impl PartitionRow<'_> {
    /// The in-sync copies beside the primary.
    #[must_use]
    pub fn backups(&self) -> ArrayVec<NodeId, COPIES_MAX> {
        let backups = self.entry.in_sync.iter().filter(|copy| Some(**copy) != self.entry.primary);
        backups.map(|copy| copy.node).take(COPIES_MAX).collect()
    }
}

impl NodeRow<'_> {
    /// Whether its clock is off so far that it becomes primary last, if that is known.
    #[must_use]
    pub fn is_clock_off(&self) -> Option<bool> {
        self.clock_offset_ms.map(|offset_ms| offset_ms.unsigned_abs() > clocks::OFF_MS)
    }
}

impl<'a> ClusterView<'a> {
    /// The view from a node with this `status` and `map`. `links` has what its lanes know of others.
    #[must_use]
    pub fn of(
        status: &'a Status,
        map: &'a Map,
        links: &BTreeMap<NodeId, PeerLinkView>,
        traffic: Traffic,
    ) -> Self {
        let node =
            status.identity.membership.map(|membership| membership.node).filter(|node| node.0 != 0);
        let mut view = Self {
            node,
            status,
            map,
            nodes: Vec::with_capacity(map.nodes().len()),
            partitions: PartitionTotals::default(),
            traffic,
            refusal: None,
        };
        let mut held: BTreeMap<NodeId, [usize; 3]> = BTreeMap::new();
        for row in view.partition_rows() {
            let entry = row.entry;
            view.partitions.count(map, entry, view.wanted());
            for copy in entry.copies() {
                let kind = match Some(copy) {
                    copy if copy == entry.primary => 0,
                    copy if copy == entry.learner => 2,
                    _ => 1,
                };
                held.entry(copy.node).or_default()[kind] += 1;
            }
        }
        let ahead = |(id, link): (&NodeId, &PeerLinkView)| Some((*id, link.clock_offset_ms?));
        let mut ahead: BTreeMap<NodeId, i64> = links.iter().filter_map(ahead).collect();
        ahead.extend(node.map(|node| (node, 0)));
        let common = clocks::common_ms(&ahead, status.leader).unwrap_or(0);
        for (&id, row) in map.nodes() {
            let report = status.reports.iter().find(|report| report.node == id);
            let [primaries, backups, learners] = held.get(&id).copied().unwrap_or_default();
            view.nodes.push(NodeRow {
                id,
                node: row,
                heard_ms_ago: report.map(|report| millis(report.ago)),
                is_ready: report.map(|report| {
                    report.is_ready && row.state == NodeState::Active && learners == 0
                }),
                ops_per_second: report.map(|report| report.load),
                disk: if Some(id) == node {
                    Some(status.disk)
                } else {
                    report.map(|report| report.disk)
                },
                primaries,
                backups,
                learners,
                clock_offset_ms: ahead.get(&id).map(|ahead| ahead.saturating_sub(common)),
                link: (Some(id) != node).then(|| links.get(&id).copied().unwrap_or_default()),
            });
        }
        view
    }

    /// Why this node should not get clients, or another node not be stopped yet; none: it is ready.
    #[must_use]
    pub fn not_ready(&self) -> Option<&'static str> {
        let own = self.nodes.iter().find(|row| Some(row.id) == self.node);
        match self.status.membership_state {
            _ if self.status.fault.is_some() => Some("its part in the control plane has failed"),
            MembershipState::Seeking => Some("it seeks a cluster"),
            MembershipState::Registering => Some("the cluster does not know it yet"),
            MembershipState::Member(NodeState::Joining) => Some("it has not got its copies yet"),
            MembershipState::Member(NodeState::Draining) => Some("it is draining"),
            MembershipState::Member(NodeState::Dead) => Some("the cluster holds it dead"),
            MembershipState::Gone => Some("the cluster let it go"),
            MembershipState::Member(NodeState::Active) if !hears_control(self.status.lease) => {
                Some("it does not hear the control plane")
            }
            MembershipState::Member(NodeState::Active)
                if own.is_none_or(|row| row.learners > 0) =>
            {
                Some("it is getting copies")
            }
            MembershipState::Member(NodeState::Active) => None,
        }
    }

    /// In-sync copies that each partition should have now: as many as wanted, or as there are nodes.
    #[must_use]
    pub fn wanted(&self) -> usize {
        usize::from(self.map.settings().replicas).min(self.map.members().len().max(1))
    }

    /// All partitions in order.
    pub fn partition_rows(&self) -> impl Iterator<Item = PartitionRow<'a>> + use<'a> {
        let (map, wanted) = (self.map, self.wanted());
        map.partitions().iter().zip(0..=u16::MAX).map(move |(entry, index)| PartitionRow {
            partition: Partition(index),
            state: state_of(map, entry, wanted),
            entry,
        })
    }

    /// This node's own row; none before it has one.
    #[must_use]
    pub fn own(&self) -> Option<&NodeRow<'a>> {
        self.nodes.iter().find(|row| Some(row.id) == self.node)
    }

    /// The voters, as far as this node knows.
    #[must_use]
    pub fn voters(&self) -> &BTreeSet<NodeId> {
        &self.status.voters
    }
}

fn is_served(map: &Map, entry: &PartitionEntry) -> bool {
    entry.primary.is_some_and(|primary| map.is_living(primary))
}

fn is_under_replicated(map: &Map, entry: &PartitionEntry, wanted: usize) -> bool {
    entry.in_sync.iter().filter(|copy| map.is_living(**copy)).count() < wanted
}

fn state_of(map: &Map, entry: &PartitionEntry, wanted: usize) -> PartitionHealth {
    if !is_served(map, entry) {
        PartitionHealth::NoPrimary
    } else if is_under_replicated(map, entry, wanted) {
        PartitionHealth::UnderReplicated
    } else if entry.transfer_to.is_some() {
        PartitionHealth::Moving
    } else if entry.learner.is_some() {
        PartitionHealth::Learning
    } else {
        PartitionHealth::Fine
    }
}

impl PartitionTotals {
    /// A partition may be under-replicated, moving and learning at once.
    fn count(&mut self, map: &Map, entry: &PartitionEntry, wanted: usize) {
        let is_served = is_served(map, entry);
        self.total += 1;
        self.served += usize::from(is_served);
        self.without_primary += usize::from(!is_served);
        self.under_replicated += usize::from(is_under_replicated(map, entry, wanted));
        self.moving += usize::from(entry.transfer_to.is_some());
        self.learners += usize::from(entry.learner.is_some());
    }
}

/// How a disk does, in a word.
fn disk_word(disk: DiskState) -> &'static str {
    match disk {
        DiskState::Fine => "fine",
        DiskState::Slow => "slow",
        DiskState::Full => "full",
        DiskState::Failed => "failed",
    }
}

/// How far a node belongs, in a word.
fn state_word(state: NodeState) -> &'static str {
    match state {
        NodeState::Joining => "joining",
        NodeState::Active => "active",
        NodeState::Draining => "draining",
        NodeState::Dead => "dead",
    }
}

/// How a node stands with its cluster, in a word.
fn place_word(charge_ctx: MembershipState) -> &'static str {
    match charge_ctx {
        MembershipState::Seeking => "seeking",
        MembershipState::Registering => "registering",
        MembershipState::Member(state) => state_word(state),
        MembershipState::Gone => "gone",
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
