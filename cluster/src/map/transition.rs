//! Applies changes of partitions to the map.
//!
//! The rules keep counts: a copy that becomes primary is in sync, a copy that becomes in sync was
//! the learner, and a partition starts empty only when no copy can return. Not here: the other
//! commands (`apply`), and the choice of changes (`controller`).

use super::command::{CHANGES_MAX, MapAnswer, MapChange, MapRefusal, Transition};
use super::delta::DeltaItem;
use super::{IN_SYNC_MAX, Map, NodeState, PartitionEntry, TERM_MAX};
use crate::id::{CopyId, Incarnation, NodeId, Partition, Term};

impl Map {
    pub(super) fn change_partitions(
        &self,
        changes: &[MapChange],
    ) -> Result<(MapAnswer, Vec<DeltaItem>), MapRefusal> {
        if changes.len() > CHANGES_MAX {
            return Err(MapRefusal::OutOfBounds);
        }
        let mut items: Vec<(Partition, PartitionEntry)> = Vec::new();
        let mut answers = Vec::with_capacity(changes.len());
        for change in changes {
            let partition = change.partition;
            // A second change of a partition in the same command sees the first.
            let before =
                items.iter().rev().find(|(at, _)| *at == partition).map(|(_, entry)| entry);
            let entry = before.or_else(|| self.entry(partition));
            let after = entry.ok_or(MapRefusal::UnknownPartition).and_then(|entry| {
                if entry.ver != change.ver {
                    return Err(MapRefusal::OtherVersion(change.ver.into()));
                }
                let mut after = self.step(entry, change.transition)?;
                after.ver = entry.ver.checked_add(1).ok_or(MapRefusal::UsedUp)?;
                Ok(after)
            });
            answers.push(after.map(|entry| items.push((partition, entry))));
        }
        let item = |(at, entry): (_, PartitionEntry)| DeltaItem::Partition(at, entry.into());
        let items = items.into_iter().map(item).collect();
        Ok((MapAnswer::Changes(answers), items))
    }

    /// The entry after a transition.
    fn step(
        &self,
        entry: &PartitionEntry,
        transition: Transition,
    ) -> Result<PartitionEntry, MapRefusal> {
        if let Transition::Reset { node, incarnation, waited } = transition {
            return self.reset(entry, node, incarnation, waited);
        }
        let primary = entry.primary.ok_or(MapRefusal::NoPrimary)?;
        let mut after = entry.clone();
        match transition {
            Transition::SetLearner(node, incarnation) => {
                self.check_learner(entry, node)?;
                after.learner = Some(self.new_copy(&mut after, node, incarnation)?);
            }
            Transition::DropLearner(copy) => {
                if entry.learner != Some(copy) {
                    return Err(MapRefusal::NotLearner);
                }
                after.learner = None;
            }
            Transition::AddInSync(copy) => {
                if entry.learner != Some(copy) {
                    return Err(MapRefusal::NotLearner);
                }
                self.living(copy)?;
                if entry.in_sync.len() >= IN_SYNC_MAX {
                    return Err(MapRefusal::EnoughCopies);
                }
                after.in_sync.push(copy);
                after.learner = None;
            }
            Transition::RemoveInSync(copy) => {
                let copy = backup(entry, copy)?;
                after.in_sync.retain(|other| *other != copy);
                if !after.in_sync.iter().any(|&left| self.is_living(left)) {
                    return Err(MapRefusal::LastCopy);
                }
                after.transfer_to = entry.transfer_to.filter(|to| *to != copy);
            }
            Transition::SetTransfer(to) => {
                after.transfer_to = to.map(|to| backup(entry, to)).transpose()?;
                after.transfer_to.map(|to| self.living(to)).transpose()?;
            }
            Transition::Transfer(copy) => {
                backup(entry, copy)?;
                if entry.transfer_to != Some(copy) {
                    return Err(MapRefusal::NotWanted);
                }
                // The target may have died a moment ago. Then the transfer is refused, and the
                // controller removes that copy.
                self.living(copy)?;
                lead(&mut after, copy)?;
            }
            Transition::Promote(copy) => {
                self.living(backup(entry, copy)?)?;
                after.in_sync.retain(|other| *other != primary);
                lead(&mut after, copy)?;
            }
            Transition::Reset { .. } => {}
        }
        Ok(after)
    }

    /// The entry with a new, empty copy, when no in-sync copy can come back.
    fn reset(
        &self,
        entry: &PartitionEntry,
        node: NodeId,
        incarnation: Incarnation,
        waited: bool,
    ) -> Result<PartitionEntry, MapRefusal> {
        self.check_lost(entry, waited)?;
        let mut after = entry.clone();
        let copy = self.new_copy(&mut after, node, incarnation)?;
        after.era = entry
            .era
            .checked_add(u32::from(!entry.in_sync.is_empty()))
            .ok_or(MapRefusal::UsedUp)?;
        after.in_sync = vec![copy];
        after.learner = None;
        lead(&mut after, copy)?;
        Ok(after)
    }

    /// Checks that a partition may get a learner on a node.
    fn check_learner(&self, entry: &PartitionEntry, node: NodeId) -> Result<(), MapRefusal> {
        if entry.in_sync.len() >= self.in_sync_max() {
            return Err(MapRefusal::EnoughCopies);
        }
        if entry.in_sync_on(node).is_some() {
            return Err(MapRefusal::HasCopy);
        }
        if entry.learner.is_some_and(|learner| self.is_living(learner)) {
            return Err(MapRefusal::EnoughCopies);
        }
        Ok(())
    }

    fn living(&self, copy: CopyId) -> Result<(), MapRefusal> {
        if self.is_living(copy) { Ok(()) } else { Err(MapRefusal::NotLiving) }
    }

    /// Checks that no in-sync copy can come back. With `waited` and `lost_after_ms` set, dead nodes
    /// count as lost too.
    fn check_lost(&self, entry: &PartitionEntry, waited: bool) -> Result<(), MapRefusal> {
        let waited = waited && self.settings.lost_after_ms.is_some();
        let is_lost = |&copy: &CopyId| self.is_removed(copy) || waited && !self.is_living(copy);
        if entry.in_sync.iter().all(is_lost) { Ok(()) } else { Err(MapRefusal::MayReturn) }
    }

    /// Assigns another copy of the partition, on a living node with a weight.
    fn new_copy(
        &self,
        entry: &mut PartitionEntry,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Result<CopyId, MapRefusal> {
        let found = self.node(node, incarnation)?;
        if found.state == NodeState::Dead {
            return Err(MapRefusal::NotLiving);
        }
        if found.description.weight == 0 {
            return Err(MapRefusal::WrongState);
        }
        entry.assigned = entry.assigned.checked_add(1).ok_or(MapRefusal::UsedUp)?;
        Ok(CopyId { node, incarnation, assignment: entry.assigned })
    }
}

/// The copy, if it is in sync and not the primary.
fn backup(entry: &PartitionEntry, copy: CopyId) -> Result<CopyId, MapRefusal> {
    match entry.in_sync.contains(&copy) {
        true if entry.primary == Some(copy) => Err(MapRefusal::IsPrimary),
        true => Ok(copy),
        false => Err(MapRefusal::NotInSync),
    }
}

/// Makes a copy the primary of the next term.
fn lead(entry: &mut PartitionEntry, copy: CopyId) -> Result<(), MapRefusal> {
    if entry.term.0 >= TERM_MAX {
        return Err(MapRefusal::UsedUp);
    }
    entry.term = Term(entry.term.0 + 1);
    entry.primary = Some(copy);
    entry.transfer_to = None;
    Ok(())
}
