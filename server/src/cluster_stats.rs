//! The operator's view of the cluster: `stats cluster`, `config get cluster`.
//!
//! Here: one view, built from the control plane, the map, the transport and the node. Not here: its
//! output (`write`), the words of operator commands (`words`), the rule of a rolling restart
//! (`proceed`), the traffic counters (`node`).

mod proceed;
mod words;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use arrayvec::ArrayVec;
use cluster::id::{NodeId, Partition};
use cluster::map::{Map, MapNode, NodeState, PartitionEntry, clocks};
use cluster::placement::COPIES_MAX;
use control::{DiskState, MembershipState, Status};

pub use proceed::not_safe_to_proceed;
pub use words::{SETTINGS, WordsError, command_of, node_of, setting};
pub use write::{Topic, write, write_config};

/// A node without contact to a majority of the voters for this long is not ready. An election after
/// the leader's death takes less time.
const HEARING_MAX: Duration = Duration::from_secs(3);

/// Returns whether a lease of this age means contact with the control plane.
pub(crate) fn hears_control(lease: Option<Duration>) -> bool {
    lease.is_some_and(|age| age < HEARING_MAX)
}

/// All that an operator may request from a node about its cluster, at one moment.
#[derive(Debug)]
pub struct ClusterView<'a> {
    /// The node that replies; `None` before it has an id.
    pub node: Option<NodeId>,
    /// The state of its membership and its control plane.
    pub status: &'a Status,
    /// The map that the view describes.
    pub map: &'a Map,
    /// All nodes, itself included, by id.
    pub nodes: Vec<NodeRow<'a>>,
    /// The states of the partitions.
    pub partitions: PartitionTotals,
    /// The operations of this node for clients and nodes.
    pub traffic: Traffic,
    /// The reason why peers refuse links, while that keeps the node from its cluster.
    pub refusal: Option<String>,
    /// The reason why the node does not serve its first client yet.
    pub waits_for: Option<&'static str>,
}

/// A node's link to another node.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct PeerLinkView {
    /// The link is up.
    pub is_up: bool,
    /// Milliseconds by which the other node's clock is ahead of ours, if measured.
    pub clock_offset_ms: Option<i64>,
}

/// The operations of a node since it started.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Clients' operations on keys that this node owns.
    pub ops_direct: u64,
    /// Clients' operations forwarded to another node.
    pub ops_forwarded: u64,
    /// Operations received from other nodes.
    pub ops_received: u64,
    /// Operations sent again, to the same node or another.
    pub ops_resent: u64,
    /// Operations reported to the client as not applied.
    pub not_applied: u64,
    /// Operations reported to the client with unknown outcome.
    pub unknown_outcome: u64,
    /// Units admitted by degraded decisions.
    pub degraded_admitted: u64,
    /// Units of these that are not yet reported to their owner.
    pub debt_pending: u64,
    /// Operations that currently wait for a partition to move.
    pub held: u64,
    /// Links to other nodes that are currently broken.
    pub links_broken: u64,
    /// Data links to other nodes that are currently up.
    pub data_links: u64,
    /// Frames relayed between two other nodes with a broken link.
    pub frames_relayed: u64,
}

/// A node in the operator's view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRow<'a> {
    /// The node's id.
    pub id: NodeId,
    /// Its entry in the map.
    pub node: &'a MapNode,
    /// Milliseconds since this node last received its heartbeat; only voters have it.
    pub heard_ms_ago: Option<u64>,
    /// Whether the node is active, has its copies, and reports contact with the control plane; only
    /// voters have it.
    pub is_ready: Option<bool>,
    /// Its operations per second; only voters have it.
    pub ops_per_second: Option<u32>,
    /// The state of the disk under its control log; only the node itself and voters have it.
    pub disk: Option<DiskState>,
    /// Partitions whose primary is on the node.
    pub primaries: usize,
    /// Other in-sync copies on the node.
    pub backups: usize,
    /// Copies that the node is receiving.
    pub learners: usize,
    /// The link to it; `None` for the node itself.
    pub link: Option<PeerLinkView>,
    /// Milliseconds by which its clock is ahead of the time that most nodes agree on, if known.
    pub clock_offset_ms: Option<i64>,
}

/// Counts of partitions by state.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct PartitionTotals {
    /// All partitions.
    pub total: usize,
    /// Partitions with a living primary.
    pub served: usize,
    /// Partitions without a living primary.
    pub without_primary: usize,
    /// Partitions with fewer living in-sync copies than wanted, as far as there are nodes for them.
    pub under_replicated: usize,
    /// Partitions about to be handed over.
    pub moving: usize,
    /// Partitions that are getting another copy.
    pub learners: usize,
    /// The number of times that a partition lost its last copy and started empty.
    pub lost: u64,
}

/// The health of a partition, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartitionHealth {
    /// Without a living primary.
    NoPrimary,
    /// With fewer living in-sync copies than wanted.
    UnderReplicated,
    /// About to be handed over.
    Moving,
    /// Getting another copy.
    Learning,
    /// Without a known problem.
    Fine,
}

/// A partition in the operator's view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionRow<'a> {
    /// The partition's number.
    pub partition: Partition,
    /// Its worst state.
    pub state: PartitionHealth,
    /// Its entry in the map.
    pub entry: &'a PartitionEntry,
}

impl PartitionRow<'_> {
    /// Returns the in-sync copies except the primary.
    #[must_use]
    pub fn backups(&self) -> ArrayVec<NodeId, COPIES_MAX> {
        let backups = self.entry.in_sync.iter().filter(|copy| Some(**copy) != self.entry.primary);
        backups.map(|copy| copy.node).take(COPIES_MAX).collect()
    }
}

impl NodeRow<'_> {
    /// Returns whether its clock is off so far that the node becomes primary last, if known.
    #[must_use]
    pub fn is_clock_off(&self) -> Option<bool> {
        self.clock_offset_ms.map(|offset_ms| offset_ms.unsigned_abs() > clocks::OFF_MS)
    }
}

impl<'a> ClusterView<'a> {
    /// Builds the view of a node from its `status` and `map`. `links` describes its links to the
    /// other nodes.
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
            waits_for: None,
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

    /// Returns the reason why this node should not get clients, and why no other node should be
    /// stopped yet; `None` if it is ready.
    #[must_use]
    pub fn not_ready(&self) -> Option<&'static str> {
        let own = self.nodes.iter().find(|row| Some(row.id) == self.node);
        match self.status.membership_state {
            _ if self.status.fault.is_some() => Some("its part in the control plane has failed"),
            MembershipState::Seeking => Some("it seeks a cluster"),
            MembershipState::Registering => Some("the cluster does not know it yet"),
            MembershipState::Member(NodeState::Joining | NodeState::Active)
                if self.waits_for.is_some() =>
            {
                self.waits_for
            }
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

    /// Returns the in-sync copies that each partition should have now: the configured number, or
    /// the number of nodes if that is less.
    #[must_use]
    pub fn wanted(&self) -> usize {
        usize::from(self.map.settings().replicas).min(self.map.members().len().max(1))
    }

    /// Returns all partitions in order.
    pub fn partition_rows(&self) -> impl Iterator<Item = PartitionRow<'a>> + use<'a> {
        let (map, wanted) = (self.map, self.wanted());
        map.partitions().iter().zip(0..=u16::MAX).map(move |(entry, index)| PartitionRow {
            partition: Partition(index),
            state: state_of(map, entry, wanted),
            entry,
        })
    }

    /// Returns this node's row; `None` before it has an id.
    #[must_use]
    pub fn own(&self) -> Option<&NodeRow<'a>> {
        self.nodes.iter().find(|row| Some(row.id) == self.node)
    }

    /// Returns the voters, as far as this node has them.
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
    /// Adds a partition to the counts. It may be under-replicated, moving and learning at once.
    fn count(&mut self, map: &Map, entry: &PartitionEntry, wanted: usize) {
        let is_served = is_served(map, entry);
        self.total += 1;
        self.served += usize::from(is_served);
        self.without_primary += usize::from(!is_served);
        self.under_replicated += usize::from(is_under_replicated(map, entry, wanted));
        self.moving += usize::from(entry.transfer_to.is_some());
        self.learners += usize::from(entry.learner.is_some());
        self.lost += u64::from(entry.era);
    }
}

/// Returns the word for a disk state.
fn disk_word(disk: DiskState) -> &'static str {
    match disk {
        DiskState::Fine => "fine",
        DiskState::Slow => "slow",
        DiskState::Full => "full",
        DiskState::Failed => "failed",
    }
}

/// Returns the word for a node's state.
fn state_word(state: NodeState) -> &'static str {
    match state {
        NodeState::Joining => "joining",
        NodeState::Active => "active",
        NodeState::Draining => "draining",
        NodeState::Dead => "dead",
    }
}

/// Returns the word for a node's membership.
pub(crate) fn membership_word(state: MembershipState) -> &'static str {
    match state {
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
