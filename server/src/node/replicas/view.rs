//! The replicas of a node, as others see them: what they lack of a map, held operations and, in a
//! simulation, each state.

use cluster::id::Partition;
use cluster::map::Entries;
use cluster::replica::GROUP_PARTITIONS;
#[cfg(feature = "simulation")]
use cluster::replica::{Position, Role};

use super::Replicas;

/// The entries of a map that the replicas do not know yet.
#[derive(Default)]
pub(crate) struct MapChanges {
    pub(crate) partitions: Vec<Partition>,
    /// Those that started empty since the entries that the replicas know.
    pub(crate) lost: Vec<Partition>,
}

impl Replicas {
    /// The partitions whose entries among `entries`, those of the map, are newer than the replicas
    /// know.
    pub(crate) fn changes(&self, entries: &Entries) -> MapChanges {
        let mut changes = MapChanges::default();
        for (place, (group, chunk)) in self.groups.iter().zip(entries.chunks()).enumerate() {
            let group = group.lock();
            if group.entries().is_shared(chunk) {
                continue;
            }
            let first = place * GROUP_PARTITIONS;
            for index in first..self.len().min(first + GROUP_PARTITIONS) {
                let partition = Partition(index as u16);
                let (entry, known) = (chunk.get(partition), group.entry(partition));
                if entry.ver > known.ver {
                    changes.partitions.push(partition);
                }
                // The first entry that a node knows says nothing about what was before.
                if entry.era > known.era && known.ver > 0 {
                    changes.lost.push(partition);
                }
            }
        }
        changes
    }

    /// Lets the groups of these partitions, which have learnt `entries`, share them.
    pub(crate) fn share_entries(&self, partitions: &[Partition], entries: &Entries) {
        let place = |partition: &Partition| partition.index() / GROUP_PARTITIONS;
        for same in partitions.chunk_by(|one, other| place(one) == place(other)) {
            let place = place(&same[0]);
            if let (Some(group), Some(chunk)) =
                (self.groups.get(place), entries.chunks().get(place))
            {
                group.lock().share(chunk);
            }
        }
    }

    /// The operations that wait for a handover.
    pub(crate) fn held(&self) -> usize {
        self.groups.iter().map(|group| group.lock().held()).sum()
    }

    /// The state of all replicas.
    #[cfg(feature = "simulation")]
    pub(crate) fn views(&self, node: &super::Node) -> Vec<ReplicaView> {
        let host = self.host(node);
        let view = |partition| {
            let (header, group) = self.enter(partition)?;
            Some(group.view(&host, partition, header, |replica| ReplicaView {
                role: replica.role(),
                term: header.term().0,
                position: replica.position(header),
                held: replica.held(),
            }))
        };
        (0..self.len()).map(|index| Partition(index as u16)).filter_map(view).collect()
    }
}

/// The state of a copy at one moment, for checks.
#[cfg(feature = "simulation")]
#[derive(Debug)]
pub struct ReplicaView {
    /// Primary, backup or learner.
    pub role: Role,
    /// The highest term it has seen.
    pub term: u32,
    /// The last record it holds.
    pub position: Position,
    /// Operations that it holds back.
    pub held: usize,
}
