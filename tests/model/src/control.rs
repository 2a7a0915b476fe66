//! The control plane as one linearizable register: the real map, changed by real commands, and the
//! real controller that chooses them. Raft itself is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::map::command::{MapAnswer, MapChange, MapCommand, Transition};
use cluster::map::controller::{self, ControllerInput};
use cluster::map::removals::WaitingRemovals;
use cluster::map::{Entries, FEATURE_VERSION_MAX, Map, NodeDescription, NodeState, SharedEntry};
use cluster::placement::Scheme;
use cluster::{Bug, Incarnation, NodeId, Partition, PartitionOwners, Placement, Rules};

use crate::base::Base;
use crate::rng::Rng;

/// The way in which a term ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Its primary handed over.
    Transfer,
    /// Its primary was declared dead.
    Promote,
    /// Every copy was lost.
    Reset,
}

/// The register and the controller.
pub(crate) struct Control {
    map: Map,
    placement: Placement,
    replicas: usize,
    patience_ns: u64,
    lost_after_ns: Option<u64>,
    /// The time of each node's last heartbeat.
    heard: BTreeMap<NodeId, u64>,
    /// Random numbers that determine the target of each partition.
    salts: Vec<u64>,
    targets: Vec<PartitionOwners>,
    removals: WaitingRemovals,
    /// Whether the model leaves out that removals wait.
    removes_at_once: bool,
    /// The end of each term of each partition, and its time.
    pub(crate) ends: BTreeMap<(Partition, u32), (End, u64)>,
    /// Partitions whose entry has changed since they were last taken.
    pub(crate) changed: BTreeSet<Partition>,
    /// Handoffs that were committed.
    pub(crate) handoffs: u64,
    /// Copies that became in-sync.
    pub(crate) copies: u64,
}

impl Control {
    /// A cluster without nodes.
    pub(crate) fn new(base: &Base, rules: Rules) -> Self {
        let mut map = Map::default();
        let placement =
            Placement::new(Scheme::Xxh3, base.partition_bits).expect("there are few partitions");
        map.apply(&MapCommand::Create { cluster: 1, placement }).expect("it is the first command");
        let lost_after_ms = base.lost_after_ns.map(|lost| lost / 1_000_000);
        let setting = cluster::map::command::Setting::LostAfterMs(lost_after_ms);
        map.apply(&MapCommand::Set(setting)).expect("it is a good setting");
        let version = cluster::map::command::Setting::Version(FEATURE_VERSION_MAX);
        map.apply(&MapCommand::Set(version)).expect("it is a good setting");
        Self {
            map,
            placement,
            replicas: usize::from(base.replicas),
            patience_ns: base.patience_ns,
            lost_after_ns: base.lost_after_ns,
            heard: BTreeMap::new(),
            salts: vec![0; placement.partitions()],
            targets: Vec::new(),
            removals: WaitingRemovals::default(),
            removes_at_once: rules.lack(Bug::RemovalAtOnce),
            ends: BTreeMap::new(),
            changed: BTreeSet::new(),
            handoffs: 0,
            copies: 0,
        }
    }

    /// All entries.
    pub(crate) fn entries(&self) -> &Entries {
        self.map.partitions()
    }

    /// The entry, as nodes receive it.
    pub(crate) fn entry(&self, partition: Partition) -> SharedEntry {
        self.map.partitions()[partition.index()].clone()
    }

    /// The nodes that are in state `wanted`.
    pub(crate) fn nodes(&self, wanted: NodeState) -> Vec<NodeId> {
        let nodes = self.map.nodes().iter();
        nodes.filter(|(_, node)| node.state == wanted).map(|(id, _)| *id).collect()
    }

    /// The incarnation of a node in the map.
    pub(crate) fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        self.map.nodes().get(&node).map(|node| node.incarnation)
    }

    /// The version of the map.
    pub(crate) fn ver(&self) -> u64 {
        self.map.ver()
    }

    /// The wanted number of copies.
    pub(crate) fn replicas(&self) -> usize {
        self.replicas
    }

    /// Changes the wanted number of copies.
    pub(crate) fn resize(&mut self, replicas: usize) {
        self.replicas = replicas;
    }

    /// Changes the target of a random partition.
    pub(crate) fn move_elsewhere(&mut self, rng: &mut Rng) {
        let place = rng.below(self.salts.len() as u64) as usize;
        self.salts[place] = rng.draw();
    }

    /// Changes the target of this partition.
    pub(crate) fn move_partition(&mut self, partition: Partition, rng: &mut Rng) {
        self.salts[partition.index()] = rng.draw();
    }

    /// Registers a node and returns its id.
    pub(crate) fn register(
        &mut self,
        now_ns: u64,
        node_uuid: u128,
        incarnation: Incarnation,
    ) -> NodeId {
        let description = NodeDescription {
            client_address: "c".to_owned(),
            peer_address: "p".to_owned(),
            ring_name: format!("node-{node_uuid}"),
            weight: 1,
            zone: String::new(),
        };
        let command = MapCommand::Register { node_uuid, incarnation, description };
        let Ok((MapAnswer::Registered(node), _)) = self.map.apply(&command) else {
            panic!("the node is not taken")
        };
        self.heard.insert(node, now_ns);
        node
    }

    /// Handles a heartbeat. Returns whether the reply proves that no other copy becomes primary for
    /// a while: the incarnation that sent it is not declared dead.
    pub(crate) fn heartbeat(
        &mut self,
        now_ns: u64,
        node: NodeId,
        node_uuid: u128,
        incarnation: Incarnation,
    ) -> bool {
        let Some(known) = self.map.nodes().get(&node) else { return false };
        if known.incarnation > incarnation {
            return false;
        }
        self.heard.insert(node, now_ns);
        let counts = known.incarnation == incarnation && known.state != NodeState::Dead;
        if !counts {
            self.register(now_ns, node_uuid, incarnation);
        }
        counts
    }

    /// Starts to drain a node.
    pub(crate) fn drain(&mut self, node: NodeId) {
        if let Some(incarnation) = self.incarnation(node) {
            let _ = self.map.apply(&MapCommand::Drain(node, incarnation));
        }
    }

    /// Handles a primary's request for a change.
    pub(crate) fn ask(&mut self, now_ns: u64, change: MapChange) {
        let mut changes = vec![change];
        if !self.removes_at_once {
            let silent = self.silent(now_ns, self.patience_ns * 2 / 5);
            let now = Duration::from_nanos(now_ns);
            self.removals.withhold(&self.map, &mut changes, &silent, now);
        }
        if !changes.is_empty() {
            self.command(now_ns, &MapCommand::Partitions(changes));
        }
    }

    fn command(&mut self, now_ns: u64, command: &MapCommand) -> bool {
        let before: Vec<u32> = self.map.partitions().iter().map(|entry| entry.term.0).collect();
        let Ok((answer, Some(_))) = self.map.apply(command) else { return false };
        self.map.check().expect("the map keeps its rules");
        let MapCommand::Partitions(changes) = command else { return true };
        let MapAnswer::Changes(results) = answer else { return true };
        for (change, _) in changes.iter().zip(results).filter(|(_, result)| result.is_ok()) {
            let partition = change.partition;
            self.changed.insert(partition);
            let end = match change.transition {
                Transition::Transfer(_) => End::Transfer,
                Transition::Promote(_) => End::Promote,
                Transition::Reset { .. } => End::Reset,
                Transition::AddInSync(_) => {
                    self.copies += 1;
                    continue;
                }
                _ => continue,
            };
            self.handoffs += u64::from(end == End::Transfer);
            self.ends.insert((partition, before[partition.index()]), (end, now_ns));
        }
        true
    }

    /// The nodes without a heartbeat for longer than this.
    fn silent(&self, now_ns: u64, longest_ns: u64) -> BTreeSet<NodeId> {
        let heard_ns = |node: &NodeId| self.heard.get(node).copied().unwrap_or(0);
        let nodes = self.map.nodes().keys().copied();
        nodes.filter(|node| now_ns - heard_ns(node) > longest_ns).collect()
    }

    /// Declares silent nodes dead, and changes the map towards its targets.
    pub(crate) fn tick(&mut self, now_ns: u64) {
        let silent = self.silent(now_ns, self.patience_ns);
        let mut lost = self.silent(now_ns, self.lost_after_ns.unwrap_or(u64::MAX));
        lost.retain(|node| silent.contains(node));
        let mut facts = ControllerInput { silent, lost, ..ControllerInput::default() };
        for _ in 0..8 {
            self.aim();
            facts.removals = self.removals.waiting(&self.map, Duration::from_nanos(now_ns));
            let commands = controller::next(&self.map, &facts, &self.targets);
            let mut is_done = true;
            for command in &commands {
                is_done &= !self.command(now_ns, command);
            }
            if is_done {
                return;
            }
        }
    }

    /// Computes the target of each partition: some of the members, in an order that its salt gives.
    pub(crate) fn aim(&mut self) {
        let members = self.map.members();
        let mut targets = Vec::with_capacity(self.salts.len());
        for (at, salt) in self.salts.iter().enumerate() {
            let mut salted = members.clone();
            for member in &mut salted {
                member.ring_name = format!("{salt}-{}", member.node.0);
            }
            targets.push(self.placement.targets(&salted, self.replicas)[at]);
        }
        self.targets = targets;
    }

    /// Whether every partition is at its target, with all its copies.
    pub(crate) fn is_settled(&self) -> bool {
        let wanted = self.replicas.min(self.map.members().len());
        self.map.partitions().iter().zip(&self.targets).all(|(entry, target)| {
            let is_led = entry.primary.is_some_and(|primary| {
                self.map.is_living(primary) && target.primary() == Some(primary.node)
            });
            is_led
                && entry.in_sync.len() == wanted
                && entry.learner.is_none()
                && entry.transfer_to.is_none()
                && entry
                    .in_sync
                    .iter()
                    .all(|copy| self.map.is_living(*copy) && target.contains(&copy.node))
        })
    }

    /// The partitions without an in-sync copy that is up.
    pub(crate) fn lost(&self, is_up: impl Fn(NodeId, Incarnation) -> bool) -> Vec<Partition> {
        let is_lost = |entry: &SharedEntry| {
            let mut copies = entry.in_sync.iter();
            !entry.in_sync.is_empty() && !copies.any(|copy| is_up(copy.node, copy.incarnation))
        };
        let partitions = self.map.partitions().iter().enumerate();
        partitions.filter(|(_, entry)| is_lost(entry)).map(|(at, _)| Partition(at as u16)).collect()
    }
}
