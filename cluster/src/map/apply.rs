//! Applies commands to the map.
//!
//! Here: every rule that a command must pass. Not here: the rules of a change to a partition
//! (`transition`), and whether the command is useful (`controller`).

use super::command::{
    FOUNDED, LIMITS_SET, LOST_AFTER_MS_MAX, MapAnswer, MapCommand, MapRefusal, PUTS_BYTES_MAX,
    PUTS_MAX, Put, Setting, YES,
};
use super::delta::{Delta, DeltaItem};
use super::{
    ADDRESS_BYTES_MAX, BODY_BYTES_MAX, LIMITS_BYTES_MAX, LIMITS_MAX, Map, MapHeader, MapLimit,
    MapNode, NAME_BYTES_MAX, NodeDescription, NodeState, OWN_NAME, RECORD_BYTES_MAX, RECORDS_MAX,
    RECORDS_VERSION, WEIGHT_MAX,
};
use crate::id::{Incarnation, NodeId};
use crate::placement::{COPIES_MAX, NODES_MAX};
use crate::rules::{Bug, Rules};

/// The first bytes of the names of the server's records of the history.
const HISTORY_NAME: &str = "@c/";

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
        self.apply_by(command, Rules::default())
    }

    /// Applies a command by `rules`, which lack one in simulations.
    ///
    /// # Errors
    ///
    /// [`MapRefusal`]: why the command changes nothing.
    pub fn apply_by(
        &mut self,
        command: &MapCommand,
        rules: Rules,
    ) -> Result<(MapAnswer, Option<Delta>), MapRefusal> {
        let (answer, items) = self.decide(command, rules)?;
        if items.is_empty() {
            return Ok((answer, None));
        }
        let delta = Delta { ver: self.ver + 1, items };
        self.take(&delta);
        Ok((answer, Some(delta)))
    }

    /// Returns the answer and the changed items. The map is not changed here, so a watcher that
    /// applies the items gets the same map.
    fn decide(
        &self,
        command: &MapCommand,
        rules: Rules,
    ) -> Result<(MapAnswer, Vec<DeltaItem>), MapRefusal> {
        if let MapCommand::Create { cluster, placement } = command {
            if self.head.is_some() {
                return Err(MapRefusal::Exists);
            }
            let head = MapHeader { cluster: *cluster, placement: *placement, last_node: 0 };
            return Ok((MapAnswer::Done, vec![DeltaItem::Head(head.into())]));
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
                let put = Put { name: name.clone(), version: *version, body: body.clone() };
                self.put_limit(&put, rules)?
            }
            MapCommand::Change(puts) => self.change_records(puts, rules)?,
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
                DeltaItem::Head(MapHeader { last_node, ..head }.into()),
                DeltaItem::Node(id, Some(node.into())),
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
            if after == *node { Vec::new() } else { vec![DeltaItem::Node(id, Some(after.into()))] };
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
        let node = MapNode { state: after, ..node.clone() };
        Ok(vec![DeltaItem::Node(id, Some(node.into()))])
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

    /// The bounds that all nodes of the cluster know: bytes of a body, limits, all records.
    fn record_bounds(&self, rules: Rules) -> (usize, usize, usize) {
        let is_early = rules.lack(Bug::BoundsBeforeVersion);
        if self.settings.version >= RECORDS_VERSION || is_early {
            (RECORD_BYTES_MAX, LIMITS_MAX, RECORDS_MAX)
        } else {
            (BODY_BYTES_MAX, LIMITS_MAX, LIMITS_MAX)
        }
    }

    fn put_limit(&self, put: &Put, rules: Rules) -> Result<Vec<DeltaItem>, MapRefusal> {
        if self.settings.version >= RECORDS_VERSION && put.name.starts_with(OWN_NAME) {
            return Err(MapRefusal::OutOfBounds);
        }
        self.put(std::slice::from_ref(put), rules)
    }

    fn change_records(&self, puts: &[Put], rules: Rules) -> Result<Vec<DeltaItem>, MapRefusal> {
        if self.settings.version < RECORDS_VERSION {
            return Err(MapRefusal::BeingUpdated);
        }
        let bytes = |put: &Put| put.name.len() + put.body.as_ref().map_or(0, Vec::len);
        if puts.len() > PUTS_MAX || puts.iter().map(bytes).sum::<usize>() > PUTS_BYTES_MAX {
            return Err(MapRefusal::OutOfBounds);
        }
        let mut names: Vec<&str> = puts.iter().map(|put| put.name.as_str()).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(MapRefusal::OutOfBounds);
        }
        if rules.lack(Bug::ChangeInParts) {
            let parts = puts.iter().map(|put| self.put(std::slice::from_ref(put), rules));
            return Ok(parts.map_while(Result::ok).flatten().collect());
        }
        self.put(puts, rules)
    }

    /// Puts records of different names: all, or none.
    fn put(&self, puts: &[Put], rules: Rules) -> Result<Vec<DeltaItem>, MapRefusal> {
        let (body_bytes_max, limits_max, records_max) = self.record_bounds(rules);
        let is_limit = |name: &str| !name.starts_with(OWN_NAME);
        let (mut items, mut added, mut added_limits) = (Vec::new(), 0_usize, 0_usize);
        let (mut removed, mut removed_limits) = (0_usize, 0_usize);
        let (mut bytes_before, mut bytes_after, mut grows) = (0, 0, false);
        for Put { name, version, body } in puts {
            let present = self.limits.get(name);
            let is_uncompared =
                name.starts_with(HISTORY_NAME) && rules.lack(Bug::HistoryUncompared);
            if present.map_or(0, |record| record.version) != *version && !is_uncompared {
                return Err(MapRefusal::OtherVersion(*version));
            }
            let length = body.as_ref().map_or(0, Vec::len);
            if length > body_bytes_max || !is_name(name) {
                return Err(MapRefusal::OutOfBounds);
            }
            let is_new = present.is_none() && body.is_some();
            added += usize::from(is_new);
            added_limits += usize::from(is_new && is_limit(name));
            let is_gone = present.is_some() && body.is_none();
            removed += usize::from(is_gone);
            removed_limits += usize::from(is_gone && is_limit(name));
            bytes_before += present.map_or(0, |record| record.body.len());
            bytes_after += length;
            grows |= body.is_some();
            if body.is_none() && present.is_none() {
                continue;
            }
            // A limit that replaces a removed one must not reuse its versions, so versions continue
            // from the map's own.
            let next = (*version).max(self.ver).checked_add(1).ok_or(MapRefusal::UsedUp)?;
            let record = body.as_ref().map(|body| MapLimit { version: next, body: body.clone() });
            items.push(DeltaItem::Limit(Box::new((name.clone(), record))));
        }
        let lengths = self.limits.values().map(|record| record.body.len());
        let bytes = lengths.sum::<usize>() - bytes_before + bytes_after;
        let records = self.limits.len() + added - removed;
        let is_many_limits = added_limits > 0 && {
            let limits = self.limits.keys().filter(|name| is_limit(name)).count();
            limits + added_limits - removed_limits > limits_max
        };
        if (added > 0 && records > records_max)
            || is_many_limits
            || (grows && bytes > LIMITS_BYTES_MAX)
        {
            return Err(MapRefusal::OutOfBounds);
        }
        Ok(items)
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
        Ok(if is_new { vec![DeltaItem::Settings(settings.into())] } else { Vec::new() })
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
