//! Applies commands to the map.
//!
//! Here: every rule that a command must pass. Not here: the rules of a change to a partition
//! (`transition`), and whether the command is useful (`controller`).

use super::command::{
    FOUNDED, LIMITS_SET, LOST_AFTER_MS_MAX, MapAnswer, MapCommand, MapRefusal, Setting, YES,
};
use super::delta::{Delta, DeltaItem};
use super::{
    ADDRESS_BYTES_MAX, BODY_BYTES_MAX, LIMITS_BYTES_MAX, LIMITS_MAX, Map, MapHeader, MapLimit,
    MapNode, NAME_BYTES_MAX, NodeDescription, NodeState, WEIGHT_MAX,
};
use crate::id::{Incarnation, NodeId};
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

    pub(super) fn node(
        &self,
        id: NodeId,
        incarnation: Incarnation,
    ) -> Result<&MapNode, MapRefusal> {
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
