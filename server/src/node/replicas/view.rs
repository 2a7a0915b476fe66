//! The replicas of a node, as others see them: counts by role and, in a simulation, each state.

use cluster::replica::Role;
#[cfg(feature = "simulation")]
use cluster::{partition_header::PartitionHeader, replica::Position};
#[cfg(feature = "simulation")]
use parking_lot::Mutex;

#[cfg(feature = "simulation")]
use super::ReplicaSlot;
use super::Replicas;

/// The number of replicas of a node, by role.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReplicaCounts {
    pub(crate) primaries: usize,
    pub(crate) backups: usize,
    pub(crate) learners: usize,
    /// Operations that wait for a handover.
    pub(crate) held: usize,
}

impl Replicas {
    /// Counts the replicas on this node.
    pub(crate) fn counts(&self) -> ReplicaCounts {
        let mut counts = ReplicaCounts::default();
        for slot in &self.slots {
            let slot = slot.lock();
            let Some(replica) = &slot.replica else { continue };
            match replica.role() {
                Role::None => {}
                Role::Learner => counts.learners += 1,
                Role::Backup => counts.backups += 1,
                Role::Primary => counts.primaries += 1,
            }
            counts.held += replica.held();
        }
        counts
    }

    /// The state of all replicas.
    #[cfg(feature = "simulation")]
    pub(crate) fn views(&self) -> Vec<Option<ReplicaView>> {
        let sight = |(slot, header): (&Mutex<ReplicaSlot>, &PartitionHeader)| {
            let slot = slot.lock();
            let replica = slot.replica.as_ref()?;
            Some(ReplicaView {
                role: replica.role(),
                term: header.term().0,
                position: replica.position(header),
                held: replica.held(),
            })
        };
        self.slots.iter().zip(&self.headers).map(sight).collect()
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
