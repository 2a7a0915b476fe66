//! What a command does to the map.
//!
//! Here: every rule a command must pass. Not here: whether it is wise (`controller`).
//!
//! Each rule keeps counts: whoever becomes primary is in sync, whoever becomes in sync is the very
//! copy that was being made, and a partition begins anew only when no copy can come back.

use super::command::{
    Answer, CHANGES_MAX, Change, Command, FOUNDED, LIMITS_TOLD, LOST_AFTER_MS_MAX, Refused,
    Setting, Step, YES,
};
use super::delta::{Delta, Item};
use super::{
    ADDRESS_BYTES_MAX, BODY_BYTES_MAX, Description, Entry, Head, LIMITS_BYTES_MAX, LIMITS_MAX,
    Limit, Map, NAME_BYTES_MAX, Node, NodeState, TERM_MAX, WEIGHT_MAX,
};
use crate::id::{CopyId, Incarnation, NodeId, Partition, Term};
use crate::placement::{COPIES_MAX, NODES_MAX};

/// The settings that nodes make for themselves.
const MARKS: [&str; 2] = [FOUNDED, LIMITS_TOLD];

impl Map {
    /// Applies a command: what it answers, and what it changed, if anything.
    ///
    /// # Errors
    ///
    /// Why the command as a whole is refused. Then nothing has changed.
    pub fn apply(&mut self, command: &Command) -> Result<(Answer, Option<Delta>), Refused> {
        let (answer, items) = self.decide(command)?;
        if items.is_empty() {
            return Ok((answer, None));
        }
        let delta = Delta { ver: self.ver + 1, items };
        self.take(&delta);
        Ok((answer, Some(delta)))
    }

    /// The answer, and the items that change. Nothing is changed here, so that a watcher who
    /// applies the items gets what we get.
    fn decide(&self, command: &Command) -> Result<(Answer, Vec<Item>), Refused> {
        if let Command::Create { cluster, placement } = command {
            if self.head.is_some() {
                return Err(Refused::Exists);
            }
            let head = Head { cluster: *cluster, placement: *placement, last_node: 0 };
            return Ok((Answer::Done, vec![Item::Head(head)]));
        }
        let head = self.head.ok_or(Refused::NotCreated)?;
        let items = match command {
            Command::Create { .. } => Vec::new(),
            Command::Register { birth, incarnation, description } => {
                return self.register(head, *birth, *incarnation, description);
            }
            Command::Activate(id, life) => {
                self.change_state(*id, *life, &[NodeState::Joining], NodeState::Active)?
            }
            Command::Drain(id, life) => {
                let before = [NodeState::Joining, NodeState::Active];
                self.change_state(*id, *life, &before, NodeState::Draining)?
            }
            Command::Bury(id, life) => {
                let before = [NodeState::Joining, NodeState::Active, NodeState::Draining];
                self.change_state(*id, *life, &before, NodeState::Dead)?
            }
            Command::Forget(id, life) => self.forget(*id, *life)?,
            Command::Partitions(changes) => return self.change_partitions(changes),
            Command::PutLimit { name, version, body } => {
                self.put_limit(name, *version, body.as_ref())?
            }
            Command::Set(setting) => self.set(setting)?,
        };
        Ok((Answer::Done, items))
    }

    fn register(
        &self,
        head: Head,
        birth: u128,
        incarnation: Incarnation,
        description: &Description,
    ) -> Result<(Answer, Vec<Item>), Refused> {
        if !description.is_bounded() {
            return Err(Refused::OutOfBounds);
        }
        let known = self.nodes.iter().find(|(_, node)| node.birth == birth);
        let is_taken = self
            .nodes
            .values()
            .any(|node| node.birth != birth && node.description.ring_name == description.ring_name);
        if is_taken {
            return Err(Refused::NameTaken);
        }
        let description = description.clone();
        let Some((&id, node)) = known else {
            if self.nodes.len() >= NODES_MAX {
                return Err(Refused::OutOfBounds);
            }
            let last_node = head.last_node.checked_add(1).ok_or(Refused::UsedUp)?;
            let id = NodeId(last_node);
            let node = Node { birth, incarnation, state: NodeState::Joining, description };
            let items = vec![Item::Head(Head { last_node, ..head }), Item::Node(id, Some(node))];
            return Ok((Answer::Registered(id), items));
        };
        if incarnation < node.incarnation {
            return Err(Refused::OtherIncarnation);
        }
        let is_back = incarnation > node.incarnation || node.state == NodeState::Dead;
        let state = if is_back { NodeState::Joining } else { node.state };
        let after = Node { birth, incarnation, state, description };
        let items = if after == *node { Vec::new() } else { vec![Item::Node(id, Some(after))] };
        Ok((Answer::Registered(id), items))
    }

    fn node(&self, id: NodeId, incarnation: Incarnation) -> Result<&Node, Refused> {
        let node = self.nodes.get(&id).ok_or(Refused::UnknownNode)?;
        if node.incarnation == incarnation { Ok(node) } else { Err(Refused::OtherIncarnation) }
    }

    fn change_state(
        &self,
        id: NodeId,
        incarnation: Incarnation,
        before: &[NodeState],
        after: NodeState,
    ) -> Result<Vec<Item>, Refused> {
        let node = self.node(id, incarnation)?;
        if node.state == after {
            return Ok(Vec::new());
        }
        if !before.contains(&node.state) {
            return Err(Refused::WrongState);
        }
        Ok(vec![Item::Node(id, Some(Node { state: after, ..node.clone() }))])
    }

    fn forget(&self, id: NodeId, incarnation: Incarnation) -> Result<Vec<Item>, Refused> {
        match self.node(id, incarnation)?.state {
            NodeState::Joining | NodeState::Active => return Err(Refused::WrongState),
            NodeState::Draining if self.holds_any(id) => return Err(Refused::StillHolds),
            NodeState::Draining | NodeState::Dead => {}
        }
        Ok(vec![Item::Node(id, None)])
    }

    /// A node holds or learns a partition.
    pub(super) fn holds_any(&self, id: NodeId) -> bool {
        self.partitions.iter().any(|entry| entry.copies().any(|copy| copy.node == id))
    }

    fn put_limit(
        &self,
        name: &str,
        version: u64,
        body: Option<&Vec<u8>>,
    ) -> Result<Vec<Item>, Refused> {
        let present = self.limits.get(name);
        if present.map_or(0, |limit| limit.version) != version {
            return Err(Refused::OtherVersion(version));
        }
        let too_long = body.is_some_and(|body| body.len() > BODY_BYTES_MAX);
        let too_many = present.is_none() && self.limits.len() >= LIMITS_MAX;
        let length = |limit: &Limit| limit.body.len();
        let others: usize =
            self.limits.values().map(length).sum::<usize>() - present.map_or(0, length);
        let too_many = too_many || others + body.map_or(0, Vec::len) > LIMITS_BYTES_MAX;
        if too_long || too_many || !is_name(name) {
            return Err(Refused::OutOfBounds);
        }
        if body.is_none() && present.is_none() {
            return Ok(Vec::new());
        }
        // Where one was removed, the count begins anew, above the versions it had: the map's own.
        let next = version.max(self.ver).checked_add(1).ok_or(Refused::UsedUp)?;
        let limit = body.map(|body| Limit { version: next, body: body.clone() });
        Ok(vec![Item::Limit(name.to_owned(), limit)])
    }

    fn set(&self, setting: &Setting) -> Result<Vec<Item>, Refused> {
        let mut settings = self.settings.clone();
        match setting {
            Setting::Replicas(replicas) => {
                if !(1..=COPIES_MAX).contains(&usize::from(*replicas)) {
                    return Err(Refused::OutOfBounds);
                }
                settings.replicas = *replicas;
            }
            Setting::LostAfterMs(lost_after_ms) => {
                if lost_after_ms.is_some_and(|ms| !(1..=LOST_AFTER_MS_MAX).contains(&ms)) {
                    return Err(Refused::OutOfBounds);
                }
                settings.lost_after_ms = *lost_after_ms;
            }
            Setting::Version(version) => {
                if *version < settings.version {
                    return Err(Refused::OutOfBounds);
                }
                settings.version = *version;
            }
            Setting::Other { name, value: None } => {
                settings.others.remove(name);
            }
            Setting::Other { name, value: Some(value) } => {
                if !MARKS.contains(&name.as_str()) || value != YES {
                    return Err(Refused::NoSetting);
                }
                settings.others.insert(name.clone(), value.clone());
            }
        }
        let is_new = settings != self.settings;
        Ok(if is_new { vec![Item::Settings(settings)] } else { Vec::new() })
    }

    fn change_partitions(&self, changes: &[Change]) -> Result<(Answer, Vec<Item>), Refused> {
        if changes.len() > CHANGES_MAX {
            return Err(Refused::OutOfBounds);
        }
        let mut items: Vec<(Partition, Entry)> = Vec::new();
        let mut answers = Vec::with_capacity(changes.len());
        for change in changes {
            let partition = change.partition;
            // A second change of a partition in the same command sees the first.
            let before =
                items.iter().rev().find(|(at, _)| *at == partition).map(|(_, entry)| entry);
            let entry = before.or_else(|| self.entry(partition));
            let after = entry.ok_or(Refused::UnknownPartition).and_then(|entry| {
                if entry.ver != change.ver {
                    return Err(Refused::OtherVersion(change.ver.into()));
                }
                let mut after = self.step(entry, change.step)?;
                after.ver = entry.ver.checked_add(1).ok_or(Refused::UsedUp)?;
                Ok(after)
            });
            answers.push(after.map(|entry| items.push((partition, entry))));
        }
        let items = items.into_iter().map(|(at, entry)| Item::Partition(at, entry)).collect();
        Ok((Answer::Changes(answers), items))
    }

    /// The entry after a step.
    fn step(&self, entry: &Entry, step: Step) -> Result<Entry, Refused> {
        let mut after = entry.clone();
        if let Step::Reset { node, incarnation, waited } = step {
            self.check_lost(entry, waited)?;
            let copy = self.new_copy(&mut after, node, incarnation)?;
            after.era = entry
                .era
                .checked_add(u32::from(!entry.in_sync.is_empty()))
                .ok_or(Refused::UsedUp)?;
            after.in_sync = vec![copy];
            after.learner = None;
            lead(&mut after, copy)?;
            return Ok(after);
        }
        let primary = entry.primary.ok_or(Refused::NoPrimary)?;
        let in_sync = |copy: CopyId| match entry.in_sync.contains(&copy) {
            true if copy == primary => Err(Refused::IsPrimary),
            true => Ok(copy),
            false => Err(Refused::NotInSync),
        };
        match step {
            Step::SetLearner(node, incarnation) => {
                if entry.in_sync.len() >= COPIES_MAX {
                    return Err(Refused::EnoughCopies);
                }
                if entry.in_sync_on(node).is_some() {
                    return Err(Refused::HasCopy);
                }
                if entry.learner.is_some_and(|learner| self.is_living(learner)) {
                    return Err(Refused::EnoughCopies);
                }
                after.learner = Some(self.new_copy(&mut after, node, incarnation)?);
            }
            Step::DropLearner(copy) => {
                if entry.learner != Some(copy) {
                    return Err(Refused::NotLearner);
                }
                after.learner = None;
            }
            Step::AddInSync(copy) => {
                if entry.learner != Some(copy) {
                    return Err(Refused::NotLearner);
                }
                self.living(copy)?;
                if entry.in_sync.len() >= COPIES_MAX {
                    return Err(Refused::EnoughCopies);
                }
                after.in_sync.push(copy);
                after.learner = None;
            }
            Step::RemoveInSync(copy) => {
                let copy = in_sync(copy)?;
                after.in_sync.retain(|other| *other != copy);
                if !after.in_sync.iter().any(|&left| self.is_living(left)) {
                    return Err(Refused::LastCopy);
                }
                after.transfer_to = entry.transfer_to.filter(|to| *to != copy);
            }
            Step::SetTransfer(to) => {
                after.transfer_to = to.map(in_sync).transpose()?;
                after.transfer_to.map(|to| self.living(to)).transpose()?;
            }
            Step::Transfer(copy) => {
                in_sync(copy)?;
                if entry.transfer_to != Some(copy) {
                    return Err(Refused::NotWanted);
                }
                // The other may have died a moment ago. Then it is promoted over, not waited for.
                self.living(copy)?;
                lead(&mut after, copy)?;
            }
            Step::Promote(copy) => {
                self.living(in_sync(copy)?)?;
                after.in_sync.retain(|other| *other != primary);
                lead(&mut after, copy)?;
            }
            Step::Reset { .. } => {}
        }
        Ok(after)
    }

    fn living(&self, copy: CopyId) -> Result<(), Refused> {
        if self.is_living(copy) { Ok(()) } else { Err(Refused::NotLiving) }
    }

    /// No copy in sync can come back; or none may within the time that the settings give it.
    fn check_lost(&self, entry: &Entry, waited: bool) -> Result<(), Refused> {
        let waited = waited && self.settings.lost_after_ms.is_some();
        let is_lost = |&copy: &CopyId| self.is_gone(copy) || waited && !self.is_living(copy);
        if entry.in_sync.iter().all(is_lost) { Ok(()) } else { Err(Refused::MayReturn) }
    }

    /// Another copy of the partition, on a node that lives and is to hold something.
    fn new_copy(
        &self,
        entry: &mut Entry,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Result<CopyId, Refused> {
        let found = self.node(node, incarnation)?;
        if found.state == NodeState::Dead {
            return Err(Refused::NotLiving);
        }
        if found.description.weight == 0 {
            return Err(Refused::WrongState);
        }
        entry.assigned = entry.assigned.checked_add(1).ok_or(Refused::UsedUp)?;
        Ok(CopyId { node, incarnation, assignment: entry.assigned })
    }
}

/// Makes a copy the primary of the next term.
fn lead(entry: &mut Entry, copy: CopyId) -> Result<(), Refused> {
    if entry.term.0 >= TERM_MAX {
        return Err(Refused::UsedUp);
    }
    entry.term = Term(entry.term.0 + 1);
    entry.primary = Some(copy);
    entry.transfer_to = None;
    Ok(())
}

fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
}

impl Description {
    /// Every part has an allowed size.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        let addresses = [&self.client_address, &self.peer_address, &self.ring_name];
        addresses.iter().all(|text| (1..=ADDRESS_BYTES_MAX).contains(&text.len()))
            && self.zone.len() <= NAME_BYTES_MAX
            && self.weight <= WEIGHT_MAX
    }
}
