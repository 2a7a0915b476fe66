//! Key → partition, and the nodes that should hold each partition.
//!
//! Here: one interface to both schemes, and the table of targets. Not here: the circle itself
//! (`ketama`), the alternative (`rendezvous`), the present holders of a partition (`map`).
//!
//! A partition's target primary is the owner of the middle of its range. Its backups are the owners
//! of that point once the nodes before them are removed. So a join moves partitions to the new node
//! only, and after a crash the first backup is the owner on the circle without the dead node: a
//! client that ejects the dead node and a cluster that promotes the backup agree.

pub mod ketama;
mod md5_of_many;
pub mod rendezvous;

use std::ops::Deref;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::id::{NodeId, Partition};
use ketama::Circle;

/// The most copies of a partition: a primary and two backups.
pub const COPIES_MAX: usize = 3;
/// The most nodes of a cluster: four times the largest cluster tested.
pub const NODES_MAX: usize = 4096;
/// The most partitions are two to the power of this: a partition number has sixteen bits in every
/// format.
pub const PARTITION_BITS_MAX: u8 = 16;

/// The algorithm that maps keys to nodes. Fixed when a cluster is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scheme {
    /// libmemcached's weighted ketama: a client that uses it connects to the owner directly.
    Ketama,
    /// For clients without ketama: a cheaper hash, and equal shares.
    Xxh3,
}

/// Maps keys to partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    scheme: Scheme,
    partition_bits: u8,
}

/// A node, as placement needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The id of the node.
    pub node: NodeId,
    /// The node's name in clients' server lists: `host`, or `host:port` when the port is not 11211.
    pub ring_name: String,
    /// The node's share relative to others; at least 1.
    pub weight: u32,
    /// The node's zone. Copies of a partition avoid sharing one. Empty: the node is a zone of its
    /// own.
    pub zone: String,
}

/// The nodes of one partition: the primary, then the backups.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct PartitionOwners {
    nodes: [NodeId; COPIES_MAX],
    len: u8,
}

impl PartitionOwners {
    /// The target primary; none if there are no nodes.
    #[must_use]
    pub fn primary(&self) -> Option<NodeId> {
        self.first().copied()
    }

    fn push(&mut self, node: NodeId) {
        self.nodes[usize::from(self.len)] = node;
        self.len += 1;
    }
}

impl Deref for PartitionOwners {
    type Target = [NodeId];

    fn deref(&self) -> &[NodeId] {
        &self.nodes[..usize::from(self.len)]
    }
}

impl Placement {
    /// A placement on two to the power of `partition_bits` partitions; none above
    /// [`PARTITION_BITS_MAX`].
    #[must_use]
    pub fn new(scheme: Scheme, partition_bits: u8) -> Option<Self> {
        (partition_bits <= PARTITION_BITS_MAX).then_some(Self { scheme, partition_bits })
    }

    /// The algorithm that maps keys to nodes.
    #[must_use]
    pub fn scheme(self) -> Scheme {
        self.scheme
    }

    /// The number of partitions.
    #[must_use]
    pub fn partitions(self) -> usize {
        1 << self.partition_bits
    }

    /// The hash of a key: its position on the circle.
    #[must_use]
    pub fn hash(self, key: &[u8]) -> u32 {
        match self.scheme {
            Scheme::Ketama => ketama::hash(key),
            Scheme::Xxh3 => (xxh3_64(key) >> 32) as u32,
        }
    }

    /// The partition of a key. With ketama this computes an MD5, so call it only to forward, or for
    /// a key that is not known to be local.
    #[must_use]
    pub fn partition(self, key: &[u8]) -> Partition {
        self.partition_of_hash(self.hash(key))
    }

    /// Writes the partition of each of `keys` to `numbers`, up to the length of `numbers`. With
    /// ketama sixteen keys at once cost about an eighth of [`Placement::partition`] each.
    pub fn partitions_of(self, keys: &[&[u8]], numbers: &mut [u64]) {
        let mut numbers = numbers.iter_mut();
        let each = |hash| {
            if let Some(number) = numbers.next() {
                *number = u64::from(self.partition_of_hash(hash).0);
            }
        };
        match self.scheme {
            Scheme::Ketama => md5_of_many::first_words(keys, each),
            Scheme::Xxh3 => keys.iter().map(|key| self.hash(key)).for_each(each),
        }
    }

    /// The partition of a hash: its top bits.
    #[must_use]
    pub fn partition_of_hash(self, hash: u32) -> Partition {
        Partition((u64::from(hash) >> (32 - self.partition_bits)) as u16)
    }

    /// The middle of a partition's range.
    #[must_use]
    pub fn middle(self, partition: Partition) -> u32 {
        let doubled = u64::from(partition.0) * 2 + 1;
        (doubled << (31 - self.partition_bits)) as u32
    }

    /// The target holders of every partition: `copies` nodes each, or all nodes if there are fewer,
    /// in as many zones as possible. The order of `members` decides ties only.
    #[must_use]
    pub fn targets(self, members: &[Member], copies: usize) -> Vec<PartitionOwners> {
        let copies = copies.clamp(1, COPIES_MAX);
        let members = &members[..members.len().min(NODES_MAX)];
        let zones = Zones::of(members);
        let partitions = (0..self.partitions()).map(|index| Partition(index as u16));
        match self.scheme {
            Scheme::Ketama => {
                let circle = Circle::new(members.iter().map(|one| (&*one.ring_name, one.weight)));
                partitions
                    .map(|partition| {
                        let place = self.middle(partition);
                        choose(members, &zones, copies, |out, may| circle.next(place, out, may))
                    })
                    .collect()
            }
            Scheme::Xxh3 => {
                let nodes =
                    rendezvous::Nodes::new(members.iter().map(|one| (&*one.ring_name, one.weight)));
                partitions
                    .map(|partition| {
                        let draw = nodes.draw(partition);
                        choose(members, &zones, copies, |out, may| draw.next(out, may))
                    })
                    .collect()
            }
        }
    }
}

/// The zone of each member, as a number.
struct Zones {
    of: Vec<u16>,
}

impl Zones {
    fn of(members: &[Member]) -> Self {
        let mut names: Vec<&str> = members.iter().map(|one| &*one.zone).collect();
        names.sort_unstable();
        names.dedup();
        let number = |(at, member): (usize, &Member)| match names.binary_search(&&*member.zone) {
            Ok(zone) if !member.zone.is_empty() => zone as u16,
            // An unnamed zone is a zone of its own; its number follows the named ones.
            _ => (names.len() + at) as u16,
        };
        Self { of: members.iter().enumerate().map(number).collect() }
    }

    fn differ(&self, member: u16, chosen: &[u16]) -> bool {
        let zone = self.of[usize::from(member)];
        chosen.iter().all(|&other| self.of[usize::from(other)] != zone)
    }
}

/// Chooses up to `copies` members, each in a zone of its own while there is another zone.
/// `next(gone, may)` returns the first member that is not in `gone` and passes `may`.
fn choose(
    members: &[Member],
    zones: &Zones,
    copies: usize,
    next: impl Fn(&[u16], &dyn Fn(u16) -> bool) -> Option<u16>,
) -> PartitionOwners {
    let mut chosen = [0_u16; COPIES_MAX];
    let mut holders = PartitionOwners::default();
    for at in 0..copies {
        let before = &chosen[..at];
        let elsewhere = next(before, &|member| zones.differ(member, before));
        let Some(member) = elsewhere.or_else(|| next(before, &|_| true)) else { break };
        holders.push(members[usize::from(member)].node);
        chosen[at] = member;
    }
    holders
}

/// The changes between two target tables.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Movement {
    /// Partitions with another primary than before.
    pub primaries: usize,
    /// The subset of `primaries` that move to a node that held a copy before; these need no
    /// copying.
    pub promoted: usize,
    /// Copies on nodes that held no copy of the partition before.
    pub copies: usize,
}

impl Movement {
    /// Compares two tables of targets.
    #[must_use]
    pub fn between(before: &[PartitionOwners], after: &[PartitionOwners]) -> Self {
        let mut movement = Self::default();
        for (before, after) in before.iter().zip(after) {
            if before.primary() != after.primary() {
                movement.primaries += 1;
                let held = after.primary().is_some_and(|node| before.contains(&node));
                movement.promoted += usize::from(held);
            }
            movement.copies += after.iter().filter(|&node| !before.contains(node)).count();
        }
        movement
    }
}

#[cfg(test)]
mod tests;
