//! Applies commands to the map.
//!
//! Here: every rule that a command must pass. Not here: whether the command is useful
//! (`controller`).
//!
//! The rules keep counts: a copy that becomes primary is in sync, a copy that becomes in sync was
//! the learner, and a partition begins anew only when no copy can come back.

use super::command::{
    CHANGES_MAX, FOUNDED, LIMITS_SET, LOST_AFTER_MS_MAX, MapAnswer, MapChange, MapCommand,
    MapRefusal, Setting, Transition, YES,
};
use super::delta::{Delta, DeltaItem};
use super::{
    ADDRESS_BYTES_MAX, BODY_BYTES_MAX, LIMITS_BYTES_MAX, LIMITS_MAX, Map, MapHeader, MapLimit,
    MapNode, NAME_BYTES_MAX, NodeDescription, NodeState, PartitionEntry, TERM_MAX, WEIGHT_MAX,
};
use crate::id::{CopyId, Incarnation, NodeId, Partition, Term};
use crate::placement::{COPIES_MAX, NODES_MAX};

/// The settings that nodes set themselves.
const MARKS: [&str; 2] = [FOUNDED, LIMITS_SET];

impl Map {
    /// Applies a command. Returns its answer, and the changes if there are any.
    ///
    /// # Errors
    ///
    /// The reason for refusing the whole command. Then the map is unchanged.
    pub fn apply(
        &mut self,
        command: &MapCommand,
    ) -> Result<(MapAnswer, Option<Delta>), MapRefusal> {
        let (answer, items) = self.decide(command)?;
        if items.is_empty() {
            return Ok((answer, None));
        }
        let delta = Delta { ver: self.ver + 1, items };
        self.take(&delta);
        Ok((answer, Some(delta)))
    }

    /// Returns the answer and the changed items. The map is not changed here, so a watcher that
    /// applies the items gets the same map.
    fn decide(&self, command: &MapCommand) -> Result<(MapAnswer, Vec<DeltaItem>), MapRefusal> {
        if let MapCommand::Create { cluster, placement } = command {
            if self.head.is_some() {
                return Err(MapRefusal::Exists);
            }
            let head = MapHeader { cluster: *cluster, placement: *placement, last_node: 0 };
            return Ok((MapAnswer::Done, vec![DeltaItem::Head(head)]));
        }
        let head = self.head.ok_or(MapRefusal::NotCreated)?;
        let items = match command {
            MapCommand::Create { .. } => Vec::new(),
            MapCommand::Register { node_uuid, incarnation, description } => {
                return self.register(head, *node_uuid, *incarnation, description);
            }
            MapCommand::Activate(id, incarnation) => {
                self.change_state(*id, *incarnation, &[NodeState::Joining], NodeState::Active)?
            }
            MapCommand::Drain(id, incarnation) => {
                let before = [NodeState::Joining, NodeState::Active];
                self.change_state(*id, *incarnation, &before, NodeState::Draining)?
            }
            MapCommand::Bury(id, incarnation) => {
                let before = [NodeState::Joining, NodeState::Active, NodeState::Draining];
                self.change_state(*id, *incarnation, &before, NodeState::Dead)?
            }
            MapCommand::Forget(id, incarnation) => self.forget(*id, *incarnation)?,
            MapCommand::Partitions(changes) => return self.change_partitions(changes),
            MapCommand::PutLimit { name, version, body } => {
                self.put_limit(name, *version, body.as_ref())?
            }
            MapCommand::Set(setting) => self.set(setting)?,
        };
        Ok((MapAnswer::Done, items))
    }

    fn register(
        &self,
        head: MapHeader,
        node_uuid: u128,
        incarnation: Incarnation,
        description: &NodeDescription,
    ) -> Result<(MapAnswer, Vec<DeltaItem>), MapRefusal> {
        if !description.is_bounded() {
            return Err(MapRefusal::OutOfBounds);
        }
        let known = self.nodes.iter().find(|(_, node)| node.node_uuid == node_uuid);
        let is_taken = self.nodes.values().any(|node| {
            node.node_uuid != node_uuid && node.description.ring_name == description.ring_name
        });
        if is_taken {
            return Err(MapRefusal::NameTaken);
        }
        let description = description.clone();
        let Some((&id, node)) = known else {
            if self.nodes.len() >= NODES_MAX {
                return Err(MapRefusal::OutOfBounds);
            }
            let last_node = head.last_node.checked_add(1).ok_or(MapRefusal::UsedUp)?;
            let id = NodeId(last_node);
            let node = MapNode { node_uuid, incarnation, state: NodeState::Joining, description };
            let items = vec![
                DeltaItem::Head(MapHeader { last_node, ..head }),
                DeltaItem::Node(id, Some(node)),
            ];
            return Ok((MapAnswer::Registered(id), items));
        };
        if incarnation < node.incarnation {
            return Err(MapRefusal::OtherIncarnation);
        }
        let is_back = incarnation > node.incarnation || node.state == NodeState::Dead;
        let state = if is_back { NodeState::Joining } else { node.state };
        let after = MapNode { node_uuid, incarnation, state, description };
        let items =
            if after == *node { Vec::new() } else { vec![DeltaItem::Node(id, Some(after))] };
        Ok((MapAnswer::Registered(id), items))
    }

    fn node(&self, id: NodeId, incarnation: Incarnation) -> Result<&MapNode, MapRefusal> {
        let node = self.nodes.get(&id).ok_or(MapRefusal::UnknownNode)?;
        if node.incarnation == incarnation { Ok(node) } else { Err(MapRefusal::OtherIncarnation) }
    }

    fn change_state(
        &self,
        id: NodeId,
        incarnation: Incarnation,
        before: &[NodeState],
        after: NodeState,
    ) -> Result<Vec<DeltaItem>, MapRefusal> {
        let node = self.node(id, incarnation)?;
        if node.state == after {
            return Ok(Vec::new());
        }
        if !before.contains(&node.state) {
            return Err(MapRefusal::WrongState);
        }
        Ok(vec![DeltaItem::Node(id, Some(MapNode { state: after, ..node.clone() }))])
    }

    fn forget(&self, id: NodeId, incarnation: Incarnation) -> Result<Vec<DeltaItem>, MapRefusal> {
        match self.node(id, incarnation)?.state {
            NodeState::Joining | NodeState::Active => return Err(MapRefusal::WrongState),
            NodeState::Draining if self.holds_any(id) => return Err(MapRefusal::StillHolds),
            NodeState::Draining | NodeState::Dead => {}
        }
        Ok(vec![DeltaItem::Node(id, None)])
    }

    /// Whether the node holds or learns a partition.
    pub(super) fn holds_any(&self, id: NodeId) -> bool {
        self.partitions.iter().any(|entry| entry.copies().any(|copy| copy.node == id))
    }

    fn put_limit(
        &self,
        name: &str,
        version: u64,
        body: Option<&Vec<u8>>,
    ) -> Result<Vec<DeltaItem>, MapRefusal> {
        let present = self.limits.get(name);
        if present.map_or(0, |limit| limit.version) != version {
            return Err(MapRefusal::OtherVersion(version));
        }
        let too_long = body.is_some_and(|body| body.len() > BODY_BYTES_MAX);
        let too_many = present.is_none() && self.limits.len() >= LIMITS_MAX;
        let length = |limit: &MapLimit| limit.body.len();
        let others: usize =
            self.limits.values().map(length).sum::<usize>() - present.map_or(0, length);
        let too_many = too_many || others + body.map_or(0, Vec::len) > LIMITS_BYTES_MAX;
        if too_long || too_many || !is_name(name) {
            return Err(MapRefusal::OutOfBounds);
        }
        if body.is_none() && present.is_none() {
            return Ok(Vec::new());
        }
        // A limit that replaces a removed one must not reuse its versions, so versions continue
        // from the map's own.
        let next = version.max(self.ver).checked_add(1).ok_or(MapRefusal::UsedUp)?;
        let limit = body.map(|body| MapLimit { version: next, body: body.clone() });
        Ok(vec![DeltaItem::Limit(name.to_owned(), limit)])
    }

    fn set(&self, setting: &Setting) -> Result<Vec<DeltaItem>, MapRefusal> {
        let mut settings = self.settings.clone();
        match setting {
            Setting::Replicas(replicas) => {
                if !(1..=COPIES_MAX).contains(&usize::from(*replicas)) {
                    return Err(MapRefusal::OutOfBounds);
                }
                settings.replicas = *replicas;
            }
            Setting::LostAfterMs(lost_after_ms) => {
                if lost_after_ms.is_some_and(|ms| !(1..=LOST_AFTER_MS_MAX).contains(&ms)) {
                    return Err(MapRefusal::OutOfBounds);
                }
                settings.lost_after_ms = *lost_after_ms;
            }
            Setting::Version(version) => {
                if *version < settings.version {
                    return Err(MapRefusal::OutOfBounds);
                }
                settings.version = *version;
            }
            Setting::Other { name, value: None } => {
                settings.others.remove(name);
            }
            Setting::Other { name, value: Some(value) } => {
                if !MARKS.contains(&name.as_str()) || value != YES {
                    return Err(MapRefusal::NoSetting);
                }
                settings.others.insert(name.clone(), value.clone());
            }
        }
        let is_new = settings != self.settings;
        Ok(if is_new { vec![DeltaItem::Settings(settings)] } else { Vec::new() })
    }

    fn change_partitions(
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
        let items = items.into_iter().map(|(at, entry)| DeltaItem::Partition(at, entry)).collect();
        Ok((MapAnswer::Changes(answers), items))
    }

    /// The entry after a transition.
    fn step(
        &self,
        entry: &PartitionEntry,
        transition: Transition,
    ) -> Result<PartitionEntry, MapRefusal> {
        let mut after = entry.clone();
        if let Transition::Reset { node, incarnation, waited } = transition {
            self.check_lost(entry, waited)?;
            let copy = self.new_copy(&mut after, node, incarnation)?;
            after.era = entry
                .era
                .checked_add(u32::from(!entry.in_sync.is_empty()))
                .ok_or(MapRefusal::UsedUp)?;
            after.in_sync = vec![copy];
            after.learner = None;
            lead(&mut after, copy)?;
            return Ok(after);
        }
        let primary = entry.primary.ok_or(MapRefusal::NoPrimary)?;
        let in_sync = |copy: CopyId| match entry.in_sync.contains(&copy) {
            true if copy == primary => Err(MapRefusal::IsPrimary),
            true => Ok(copy),
            false => Err(MapRefusal::NotInSync),
        };
        match transition {
            Transition::SetLearner(node, incarnation) => {
                if entry.in_sync.len() >= COPIES_MAX {
                    return Err(MapRefusal::EnoughCopies);
                }
                if entry.in_sync_on(node).is_some() {
                    return Err(MapRefusal::HasCopy);
                }
                if entry.learner.is_some_and(|learner| self.is_living(learner)) {
                    return Err(MapRefusal::EnoughCopies);
                }
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
                if entry.in_sync.len() >= COPIES_MAX {
                    return Err(MapRefusal::EnoughCopies);
                }
                after.in_sync.push(copy);
                after.learner = None;
            }
            Transition::RemoveInSync(copy) => {
                let copy = in_sync(copy)?;
                after.in_sync.retain(|other| *other != copy);
                if !after.in_sync.iter().any(|&left| self.is_living(left)) {
                    return Err(MapRefusal::LastCopy);
                }
                after.transfer_to = entry.transfer_to.filter(|to| *to != copy);
            }
            Transition::SetTransfer(to) => {
                after.transfer_to = to.map(in_sync).transpose()?;
                after.transfer_to.map(|to| self.living(to)).transpose()?;
            }
            Transition::Transfer(copy) => {
                in_sync(copy)?;
                if entry.transfer_to != Some(copy) {
                    return Err(MapRefusal::NotWanted);
                }
                // The target may have died a moment ago. Then the transfer is refused, and the
                // controller removes that copy.
                self.living(copy)?;
                lead(&mut after, copy)?;
            }
            Transition::Promote(copy) => {
                self.living(in_sync(copy)?)?;
                after.in_sync.retain(|other| *other != primary);
                lead(&mut after, copy)?;
            }
            Transition::Reset { .. } => {}
        }
        Ok(after)
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

fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
}

impl NodeDescription {
    /// Whether each field is within its bounds.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        let addresses = [&self.client_address, &self.peer_address, &self.ring_name];
        addresses.iter().all(|text| (1..=ADDRESS_BYTES_MAX).contains(&text.len()))
            && self.zone.len() <= NAME_BYTES_MAX
            && self.weight <= WEIGHT_MAX
    }
}
