//! The map: nodes, partitions, limits, settings. The state machine that Raft replicates.
//!
//! Here: its contents, and queries on them. Not here: the rules for changing it (`command`,
//! `apply`), the way of changes to watchers (`delta`), the choice of changes (`controller`).
//!
//! The map is a function of the applied commands, in order: no clock, no randomness, no hash order.
//! A refused command changes nothing.

mod apply;
pub mod clocks;
pub mod command;
pub mod controller;
pub mod delta;
pub mod entries;
pub mod removals;
mod shared_entry;
mod transition;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{CopyId, Incarnation, NodeId, Partition, Term};
use crate::placement::{COPIES_MAX, Member, NODES_MAX, PartitionOwners, Placement};
use crate::route::Route;

pub use command::{MapAnswer, MapCommand, MapRefusal, Put, Transition};
pub use delta::{Delta, Deltas, Since};
pub use entries::{Entries, EntryChunk};
pub use shared_entry::SharedEntry;

/// The longest address or ring name of a node, in bytes: a DNS name has 253, a colon with a port
/// six.
pub const ADDRESS_BYTES_MAX: usize = 260;
/// The longest name of a zone, a limit or a setting, in bytes.
pub const NAME_BYTES_MAX: usize = 250;
/// The longest body of a limit before feature version [`RECORDS_VERSION`], in bytes.
pub const BODY_BYTES_MAX: usize = 32_768;
/// The most bytes of the bodies of all limits: the map is sent and stored as a whole.
pub const LIMITS_BYTES_MAX: usize = 64 << 20;
/// The most limits.
pub const LIMITS_MAX: usize = 10_000;
/// The most records: limits, and the server's other records.
pub const RECORDS_MAX: usize = 32_768;
/// The longest body of a record, in bytes: a change in the history has a limit's text as JSON.
pub const RECORD_BYTES_MAX: usize = 81_920;
/// The feature version from which on the map has other records than limits, and takes
/// [`MapCommand::Change`].
pub const RECORDS_VERSION: u32 = 2;
/// The feature version from which on limits may have what earlier nodes cannot read: `where`,
/// `order`, and classes of captures. The server looks at it before it proposes a limit.
pub const LIMITS_VERSION: u32 = 3;
/// The feature version from which on a partition with three copies gets a fourth before one of them
/// is removed.
pub const FOURTH_COPY_VERSION: u32 = 5;
/// The newest feature version.
pub const FEATURE_VERSION_MAX: u32 = FOURTH_COPY_VERSION;
/// The most in-sync copies of a partition: the wanted ones, and one that replaces another.
pub const IN_SYNC_MAX: usize = COPIES_MAX + 1;
/// The first byte of the names of records that are no limits.
pub const OWN_NAME: char = '@';
/// The greatest weight of a node.
pub const WEIGHT_MAX: u32 = 1 << 20;
/// The greatest term: a term is the upper part of a cas unique, 24 bits.
pub const TERM_MAX: u32 = (1 << 24) - 1;

/// The state that the cluster has agreed on.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Map {
    ver: u64,
    head: Option<MapHeader>,
    settings: Settings,
    nodes: BTreeMap<NodeId, MapNode>,
    /// Shared, so that the copies of the map that a failover makes do not copy the limits.
    limits: Arc<BTreeMap<String, MapLimit>>,
    partitions: Entries,
}

/// The properties that are fixed when a cluster is created, and the last node id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapHeader {
    /// The id of the cluster, drawn by its founder.
    pub cluster: u128,
    /// The mapping from keys to partitions, and from partitions to nodes.
    pub placement: Placement,
    /// The last node id that was assigned.
    pub last_node: u32,
}

/// The settings that an operator may change for the whole cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Wanted copies of each partition, the primary among them; 1 to [`COPIES_MAX`].
    pub replicas: u8,
    /// A partition starts empty once no copy was reachable for this long; none: never.
    pub lost_after_ms: Option<u64>,
    /// The feature version that all nodes support: new features wait for it.
    pub version: u32,
    /// Marks that nodes set, and settings that clusters of earlier builds stored besides.
    pub others: BTreeMap<String, String>,
}

impl Default for Settings {
    fn default() -> Self {
        let lost_after_ms = Some(5 * 60 * 1000);
        Self { replicas: 2, lost_after_ms, version: 0, others: BTreeMap::new() }
    }
}

/// The state of a node's membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeState {
    /// The node is receiving its copies.
    Joining,
    /// The node has its copies.
    Active,
    /// The node is giving its copies away.
    Draining,
    /// The voters receive no heartbeats from the node. Its copies may still exist.
    Dead,
}

/// A node's description of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDescription {
    /// The address for clients.
    pub client_address: String,
    /// The address for nodes.
    pub peer_address: String,
    /// Its name in clients' server lists.
    pub ring_name: String,
    /// Its share relative to others, from 1 to [`WEIGHT_MAX`]. 0 means a witness, which may vote
    /// and holds no copies.
    pub weight: u32,
    /// The node's zone. Copies of a partition avoid sharing one; may be empty.
    pub zone: String,
}

/// A node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapNode {
    /// Drawn once for the data directory. A registration with the same uuid is the same node.
    pub node_uuid: u128,
    /// The present incarnation.
    pub incarnation: Incarnation,
    /// The state of its membership.
    pub state: NodeState,
    /// The node's description of itself.
    pub description: NodeDescription,
}

/// A limit, or another record of the server's whose name begins with `@`. Only the server
/// interprets its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapLimit {
    /// Grows with each change.
    pub version: u64,
    /// The limit, in the server's format.
    pub body: Vec<u8>,
}

/// The holders of a partition.
#[derive(Debug, Default, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PartitionEntry {
    /// Changes when, and only when, the primary does.
    pub term: Term,
    /// Changes with every change of the entry. Commands compare it.
    pub ver: u32,
    /// Changes when, and only when, counts were lost.
    pub era: u32,
    /// The number of copies that were ever assigned.
    pub assigned: u32,
    /// The copy that serves; none before the first one.
    pub primary: Option<CopyId>,
    /// The copies that hold every acknowledged change, the primary among them; up to
    /// [`COPIES_MAX`].
    pub in_sync: Vec<CopyId>,
    /// The copy that is being made.
    pub learner: Option<CopyId>,
    /// The in-sync copy that is to become primary.
    pub transfer_to: Option<CopyId>,
}

impl PartitionEntry {
    /// All copies, the learner last.
    pub fn copies(&self) -> impl Iterator<Item = CopyId> + '_ {
        self.in_sync.iter().chain(&self.learner).copied()
    }

    /// The destination of operations.
    #[must_use]
    pub fn route(&self) -> Option<Route> {
        self.primary.map(|primary| Route { term: self.term, primary })
    }

    /// The copy on this incarnation of a node, if the node holds one.
    #[must_use]
    pub fn copy_on(&self, node: NodeId, incarnation: Incarnation) -> Option<CopyId> {
        self.copies().find(|copy| copy.node == node && copy.incarnation == incarnation)
    }

    /// The in-sync copy on a node.
    #[must_use]
    pub fn in_sync_on(&self, node: NodeId) -> Option<CopyId> {
        self.in_sync.iter().find(|copy| copy.node == node).copied()
    }
}

impl Map {
    /// Grows with every change; 0 before the first.
    #[must_use]
    pub fn ver(&self) -> u64 {
        self.ver
    }

    /// The properties fixed at creation; none before.
    #[must_use]
    pub fn head(&self) -> Option<MapHeader> {
        self.head
    }

    /// The operator's settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// All nodes by id.
    #[must_use]
    pub fn nodes(&self) -> &BTreeMap<NodeId, MapNode> {
        &self.nodes
    }

    /// All limits and other records by name.
    #[must_use]
    pub fn limits(&self) -> &BTreeMap<String, MapLimit> {
        &self.limits
    }

    /// All partitions in order; none before the cluster is created.
    #[must_use]
    pub fn partitions(&self) -> &Entries {
        &self.partitions
    }

    /// Shares the entries of `other` in the chunks that are equal.
    pub fn share(&mut self, other: &Self) {
        self.partitions.share(&other.partitions);
    }

    /// Does the work of [`Map::share`] for the chunks of these partitions only.
    pub fn share_changed(&mut self, changed: impl IntoIterator<Item = Partition>, other: &Self) {
        for partition in changed {
            self.partitions.share_chunk_of(partition, &other.partitions);
        }
    }

    /// The holders of a partition.
    #[must_use]
    pub fn entry(&self, partition: Partition) -> Option<&PartitionEntry> {
        self.partitions.get(partition.index()).map(|entry| &**entry)
    }

    /// Whether the copy's node is alive, to the voters' knowledge, in the incarnation that was
    /// assigned the copy.
    #[must_use]
    pub fn is_living(&self, copy: CopyId) -> bool {
        self.nodes.get(&copy.node).is_some_and(|node| {
            node.incarnation == copy.incarnation && node.state != NodeState::Dead
        })
    }

    /// Whether the copy cannot come back: its node was forgotten, or has another incarnation.
    #[must_use]
    pub fn is_removed(&self, copy: CopyId) -> bool {
        self.nodes.get(&copy.node).is_none_or(|node| node.incarnation != copy.incarnation)
    }

    /// A partition with this number of in-sync copies gets no further one. From feature version
    /// [`FOURTH_COPY_VERSION`] on it is one more than wanted, so that one can replace another, and
    /// at least [`COPIES_MAX`]; before, it is [`COPIES_MAX`].
    #[must_use]
    pub fn in_sync_max(&self) -> usize {
        if self.settings.version < FOURTH_COPY_VERSION {
            return COPIES_MAX;
        }
        COPIES_MAX.max(usize::from(self.settings.replicas) + 1)
    }

    /// The nodes that should hold copies: neither draining nor dead, and no witness.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        let holds = |node: &MapNode| {
            matches!(node.state, NodeState::Joining | NodeState::Active)
                && node.description.weight > 0
        };
        self.nodes
            .iter()
            .filter(|(_, node)| holds(node))
            .map(|(&id, node)| Member {
                node: id,
                ring_name: node.description.ring_name.clone(),
                weight: node.description.weight,
                zone: node.description.zone.clone(),
            })
            .collect()
    }

    /// The nodes that should hold each partition. The result depends only on
    /// [`members`](Self::members) and `replicas`. Computing it takes milliseconds, so keep it.
    #[must_use]
    pub fn targets(&self) -> Vec<PartitionOwners> {
        let Some(head) = self.head else { return Vec::new() };
        head.placement.targets(&self.members(), usize::from(self.settings.replicas))
    }

    /// Checks the invariants that hold after every command. For tests, and for maps from elsewhere.
    ///
    /// # Errors
    ///
    /// The violated invariant.
    pub fn check(&self) -> Result<(), &'static str> {
        let partitions = self.head.map_or(0, |head| head.placement.partitions());
        let claims = [
            (self.partitions.len() == partitions, "there is an entry for each partition"),
            (self.head.is_some() || self.nodes.is_empty(), "nodes follow the creation"),
            (self.nodes.len() <= NODES_MAX, "nodes are bounded"),
            (self.limits.len() <= RECORDS_MAX, "records are bounded"),
            (
                (1..=COPIES_MAX).contains(&usize::from(self.settings.replicas)),
                "the wanted copies can be had",
            ),
            (
                self.nodes
                    .keys()
                    .all(|node| self.head.is_some_and(|head| node.0 <= head.last_node)),
                "ids of nodes were given",
            ),
        ];
        if let Some((_, what)) = claims.into_iter().find(|(holds, _)| !holds) {
            return Err(what);
        }
        self.partitions.iter().try_for_each(|entry| entry.check())
    }
}

impl PartitionEntry {
    /// Checks the invariants that hold for an entry after every command.
    ///
    /// # Errors
    ///
    /// The violated invariant.
    pub fn check(&self) -> Result<(), &'static str> {
        let mut nodes: Vec<NodeId> = self.copies().map(|copy| copy.node).collect();
        let copies = nodes.len();
        nodes.sort_unstable();
        nodes.dedup();
        let claims = [
            (self.in_sync.len() <= IN_SYNC_MAX, "in-sync copies are bounded"),
            (
                self.primary.map_or(self.in_sync.is_empty(), |copy| self.in_sync.contains(&copy)),
                "the primary is in sync",
            ),
            (nodes.len() == copies, "a node holds one copy, in sync or learning"),
            (
                self.transfer_to
                    .is_none_or(|to| self.in_sync.contains(&to) && self.primary != Some(to)),
                "only a backup in sync becomes primary",
            ),
            (self.copies().all(|copy| copy.assignment <= self.assigned), "assignments are counted"),
            ((self.term == Term(0)) == self.primary.is_none(), "a term has a primary"),
            (self.term.0 <= TERM_MAX, "terms have 24 bits"),
        ];
        match claims.into_iter().find(|(holds, _)| !holds) {
            Some((_, what)) => Err(what),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
