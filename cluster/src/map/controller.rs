//! Decides which changes bring the map to its target.
//!
//! Here: (map, the voters' observations, targets) → the next commands, and the set of voters. Not
//! here: the rules of commands (`apply`), the copying (`replica`), the detection of dead nodes
//! (`control`).
//!
//! The controller keeps no state: the leader runs it on the present map, proposes its commands, and
//! runs it again. A command that is proposed twice is refused by version the second time.

use std::collections::{BTreeMap, BTreeSet};

use super::command::{CHANGES_MAX, MapChange, MapCommand, Transition};
use super::{Map, MapNode, NodeState, PartitionEntry};
use crate::id::{CopyId, NodeId, Partition};
use crate::placement::{COPIES_MAX, PartitionOwners};

/// The most copies and handovers that a node takes part in at a time. Each of their steps is a
/// commit or two, so a small bound would make a rebalance of 16384 partitions take minutes. A node
/// that is promoted may exceed the bound with moves that it inherits, and so may the primary of a
/// partition that is copied before a backup is removed; it gets no new ones until it is below.
pub const MOVES_MAX: usize = 256;

/// The leader's observations beside the map.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControllerInput {
    /// Nodes without a recent heartbeat at a majority of the voters.
    pub silent: BTreeSet<NodeId>,
    /// The nodes that the map calls dead and that were silent for longer than `lost_after_ms`.
    pub lost: BTreeSet<NodeId>,
    /// Draining nodes that report that they still serve clients: they are not forgotten yet.
    pub serving: BTreeSet<NodeId>,
    /// Makes no new copies for now of a partition that has two: many nodes died at once and may
    /// come back.
    pub hold_copies: bool,
    /// Nodes with a wrong wall clock: none becomes primary while another copy can.
    pub off: BTreeSet<NodeId>,
    /// Joining nodes without a measured wall clock: treated as wrong, and they stay joining.
    pub unmeasured: BTreeSet<NodeId>,
    /// The backups that their primaries asked to remove, and whose removal
    /// [waits](super::removals) for another copy.
    pub removals: BTreeSet<(Partition, CopyId)>,
}

/// The next commands: first about nodes, then about partitions once every node's state is current.
/// Empty if there is nothing to do but wait for primaries that copy or hand over.
///
/// `targets` is [`Map::targets`].
#[must_use]
pub fn next(map: &Map, facts: &ControllerInput, targets: &[PartitionOwners]) -> Vec<MapCommand> {
    let silent = |(id, node): (&NodeId, &MapNode)| {
        (node.state != NodeState::Dead && facts.silent.contains(id))
            .then_some(MapCommand::Bury(*id, node.incarnation))
    };
    let dead: Vec<MapCommand> = map.nodes().iter().filter_map(silent).collect();
    if !dead.is_empty() {
        return dead;
    }
    let mut plan = Plan { map, facts, moves: moves(map) };
    let mut urgent = Vec::new();
    let mut patient = Vec::new();
    // Partitions of dead primaries come first, so that moves inherited by promotion count before
    // new ones. Those with a single copy come next: another death would end their counts.
    for turn in [Turn::Dead, Turn::Single, Turn::Other] {
        for (at, (entry, target)) in map.partitions().iter().zip(targets).enumerate() {
            if Turn::of(map, entry) != turn {
                continue;
            }
            let partition = Partition(at as u16);
            let Some(transition) = plan.step(partition, entry, target) else { continue };
            let change = MapChange { partition, ver: entry.ver, transition };
            let is_urgent =
                matches!(transition, Transition::Promote(_) | Transition::RemoveInSync(_));
            if is_urgent { urgent.push(change) } else { patient.push(change) }
        }
    }
    urgent.append(&mut patient);
    let mut commands = arrived_and_left(map, facts, targets);
    commands.extend(urgent.chunks(CHANGES_MAX).map(|some| MapCommand::Partitions(some.to_vec())));
    commands
}

/// The order in which the controller takes the partitions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The primary is dead.
    Dead,
    /// There is one copy.
    Single,
    Other,
}

impl Turn {
    fn of(map: &Map, entry: &PartitionEntry) -> Self {
        match entry.primary {
            Some(primary) if !map.is_living(primary) => Self::Dead,
            _ if entry.in_sync.len() == 1 => Self::Single,
            _ => Self::Other,
        }
    }
}

/// Activates joining nodes that hold all their copies, and forgets draining nodes that hold none.
fn arrived_and_left(
    map: &Map,
    facts: &ControllerInput,
    targets: &[PartitionOwners],
) -> Vec<MapCommand> {
    let mut holds: BTreeSet<NodeId> = BTreeSet::new();
    let mut waits: BTreeSet<NodeId> = BTreeSet::new();
    for (entry, target) in map.partitions().iter().zip(targets) {
        holds.extend(entry.copies().map(|copy| copy.node));
        waits.extend(
            target
                .iter()
                .filter(|&&node| !entry.in_sync_on(node).is_some_and(|copy| map.is_living(copy))),
        );
        waits.extend(
            target
                .primary()
                .filter(|node| !facts.off.contains(node))
                .filter(|&node| entry.primary.is_none_or(|primary| primary.node != node)),
        );
    }
    let due = |(&id, node): (&NodeId, &MapNode)| match node.state {
        NodeState::Joining if !waits.contains(&id) => {
            Some(MapCommand::Activate(id, node.incarnation))
        }
        NodeState::Draining if !holds.contains(&id) && !facts.serving.contains(&id) => {
            Some(MapCommand::Forget(id, node.incarnation))
        }
        _ => None,
    };
    map.nodes().iter().filter_map(due).collect()
}

/// The number of moves that each node takes part in. Nodes without moves are missing.
#[must_use]
pub fn moves(map: &Map) -> BTreeMap<NodeId, usize> {
    let mut moves = BTreeMap::new();
    for entry in map.partitions() {
        let Some(primary) = entry.primary else { continue };
        for copy in entry.learner.iter().chain(&entry.transfer_to) {
            *moves.entry(copy.node).or_default() += 1;
            *moves.entry(primary.node).or_default() += 1;
        }
    }
    moves
}

struct Plan<'a> {
    map: &'a Map,
    facts: &'a ControllerInput,
    moves: BTreeMap<NodeId, usize>,
}

impl Plan<'_> {
    /// The next transition of a partition towards its target, if one is due.
    fn step(
        &mut self,
        partition: Partition,
        entry: &PartitionEntry,
        target: &PartitionOwners,
    ) -> Option<Transition> {
        let Some(primary) = entry.primary else { return self.reset(target, false) };
        if !self.map.is_living(primary) {
            return self.without_primary(entry, target);
        }
        // The primary acknowledges nothing while it waits for a dead backup.
        if let Some(&dead) = entry.in_sync.iter().find(|&&copy| !self.map.is_living(copy)) {
            return Some(Transition::RemoveInSync(dead));
        }
        let is_unwanted = |copy: &&CopyId| {
            **copy != primary && self.facts.removals.contains(&(partition, **copy))
        };
        if let Some(&copy) = entry.in_sync.iter().find(is_unwanted) {
            return self.replace(entry, primary, target, copy);
        }
        self.tidy(entry, primary, target)
            .or_else(|| self.hand_over(entry, primary, target))
            .or_else(|| self.add_or_remove(entry, primary, target))
    }

    /// Makes another copy before a backup that does not follow is removed. Until then the backup
    /// may be promoted: it has every acknowledged count. Without a node for a copy it is removed.
    fn replace(
        &mut self,
        entry: &PartitionEntry,
        primary: CopyId,
        target: &PartitionOwners,
        copy: CopyId,
    ) -> Option<Transition> {
        // With three copies the primary repeats its request, or another backup is about to die.
        let is_made = entry.learner.is_some_and(|learner| self.map.is_living(learner));
        if entry.in_sync.len() > 2 || is_made {
            return None;
        }
        let missing = target.iter().copied().find(|&node| entry.in_sync_on(node).is_none());
        let Some(node) = missing else { return Some(Transition::RemoveInSync(copy)) };
        let incarnation = self.map.nodes().get(&node)?.incarnation;
        *self.moves.entry(node).or_default() += 1;
        *self.moves.entry(primary.node).or_default() += 1;
        Some(Transition::SetLearner(node, incarnation))
    }

    /// Promotes the best backup of a dead primary. Without one the partition waits, or is reset if
    /// no copy that could come back would be lost.
    fn without_primary(
        &mut self,
        entry: &PartitionEntry,
        target: &PartitionOwners,
    ) -> Option<Transition> {
        let living = |copy: &&CopyId| self.map.is_living(**copy);
        let rank = |copy: &&CopyId| target.iter().position(|&node| node == copy.node);
        // A node that leaves, or one with a wrong clock, is promoted only if there is no other.
        let best = entry.in_sync.iter().filter(living).min_by_key(|copy| {
            let is_last = (self.is_off(copy.node), self.is_leaving(copy.node));
            (is_last, rank(copy).unwrap_or(COPIES_MAX), copy.node)
        });
        if let Some(&copy) = best {
            if entry.learner.is_some() {
                *self.moves.entry(copy.node).or_default() += 1;
            }
            return Some(Transition::Promote(copy));
        }
        if entry.in_sync.iter().all(|&copy| self.map.is_removed(copy)) {
            return self.reset(target, false);
        }
        let is_lost =
            |&copy: &CopyId| self.map.is_removed(copy) || self.facts.lost.contains(&copy.node);
        let may = self.map.settings().lost_after_ms.is_some();
        if may && entry.in_sync.iter().all(is_lost) { self.reset(target, true) } else { None }
    }

    fn reset(&self, target: &PartitionOwners, waited: bool) -> Option<Transition> {
        let right = target.iter().copied().find(|&node| !self.is_off(node));
        let node = right.or(target.primary())?;
        let incarnation = self.map.nodes().get(&node)?.incarnation;
        Some(Transition::Reset { node, incarnation, waited })
    }

    /// Withdraws a learner or a transfer that is no longer useful.
    fn tidy(
        &self,
        entry: &PartitionEntry,
        primary: CopyId,
        target: &PartitionOwners,
    ) -> Option<Transition> {
        let is_of_use =
            |learner: &CopyId| self.map.is_living(*learner) && target.contains(&learner.node);
        if let Some(learner) = entry.learner.filter(|learner| !is_of_use(learner)) {
            return Some(Transition::DropLearner(learner));
        }
        let to = entry.transfer_to?;
        let is_wanted = self.next_primary(entry, primary, target) == Some(to);
        (!is_wanted).then_some(Transition::SetTransfer(None))
    }

    /// The copy that should take over from a living primary. If the clock of the target primary is
    /// wrong, the next target node stands in for it.
    fn next_primary(
        &self,
        entry: &PartitionEntry,
        primary: CopyId,
        target: &PartitionOwners,
    ) -> Option<CopyId> {
        if target.primary()? == primary.node {
            return None;
        }
        let right = || target.iter().copied().filter(|&node| !self.is_off(node));
        let first = right().next();
        if first == Some(primary.node) {
            return None;
        }
        if let Some(copy) = first.and_then(|node| entry.in_sync_on(node)) {
            return Some(copy);
        }
        // A draining primary does not wait for the first node to be in sync. Neither does a primary
        // outside the target that blocks the room for that node's copy.
        let is_full =
            entry.in_sync.len() >= self.map.in_sync_max() && !target.contains(&primary.node);
        let is_leaving = self.is_leaving(primary.node);
        if !is_leaving && !is_full {
            return None;
        }
        if first.is_some() {
            return right().find_map(|node| entry.in_sync_on(node));
        }
        // A draining primary hands over even to a node with a wrong clock if there will be no
        // other.
        is_leaving.then(|| target.iter().find_map(|&node| entry.in_sync_on(node)))?
    }

    fn hand_over(
        &mut self,
        entry: &PartitionEntry,
        primary: CopyId,
        target: &PartitionOwners,
    ) -> Option<Transition> {
        let to = self.next_primary(entry, primary, target)?;
        if entry.transfer_to == Some(to) || !self.may_move(to.node, primary.node) {
            return None;
        }
        Some(Transition::SetTransfer(Some(to)))
    }

    /// Adds the missing replica before removing the surplus one, unless that would exceed
    /// [`Map::in_sync_max`]. A partition with one copy does not wait for nodes to come back: its
    /// counts would end with that node, even if a copy that lives was removed because it refused
    /// to follow.
    fn add_or_remove(
        &mut self,
        entry: &PartitionEntry,
        primary: CopyId,
        target: &PartitionOwners,
    ) -> Option<Transition> {
        let missing = target.iter().copied().find(|&node| entry.in_sync_on(node).is_none());
        let surplus = entry.in_sync.iter().copied().find(|&copy| {
            copy != primary && !target.contains(&copy.node) && entry.transfer_to != Some(copy)
        });
        match (missing, surplus) {
            (None, surplus) => surplus.map(Transition::RemoveInSync),
            (Some(_), Some(surplus)) if entry.in_sync.len() >= self.map.in_sync_max() => {
                Some(Transition::RemoveInSync(surplus))
            }
            (Some(node), _) if entry.in_sync.len() < self.map.in_sync_max() => {
                if entry.learner.is_some()
                    || (self.facts.hold_copies && entry.in_sync.len() > 1)
                    || !self.may_move(node, primary.node)
                {
                    return None;
                }
                let incarnation = self.map.nodes().get(&node)?.incarnation;
                Some(Transition::SetLearner(node, incarnation))
            }
            _ => None,
        }
    }

    /// Counts a move between two nodes, unless one of them is at `MOVES_MAX`.
    fn may_move(&mut self, to: NodeId, from: NodeId) -> bool {
        let count = |node: NodeId| self.moves.get(&node).copied().unwrap_or(0);
        if count(to) >= MOVES_MAX || count(from) >= MOVES_MAX {
            return false;
        }
        *self.moves.entry(to).or_default() += 1;
        *self.moves.entry(from).or_default() += 1;
        true
    }

    fn is_off(&self, node: NodeId) -> bool {
        self.facts.off.contains(&node) || self.facts.unmeasured.contains(&node)
    }

    fn is_leaving(&self, node: NodeId) -> bool {
        self.map.nodes().get(&node).is_none_or(|node| node.state == NodeState::Draining)
    }
}

/// The nodes that should vote: one of up to two nodes, three of three or four, else five, in as
/// many zones as possible. Between nodes that spread the voters equally well, present voters stay.
///
/// A dead voter, or one in `unfit` because its disk fails, is replaced by a healthy node. Without
/// such a node it stays a voter, so a majority never shrinks with the number of dead nodes.
#[must_use]
pub fn voters(map: &Map, current: &BTreeSet<NodeId>, unfit: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
    let stays = |node: &MapNode| node.state != NodeState::Draining;
    let wanted = match map.nodes().values().filter(|node| stays(node)).count() {
        0..3 => 1,
        3..5 => 3,
        _ => 5,
    };
    let zone = |id: NodeId| match map.nodes().get(&id) {
        Some(node) if !node.description.zone.is_empty() => Ok(&*node.description.zone),
        _ => Err(id),
    };
    let trouble = |id: &NodeId, node: &MapNode| match node.state {
        NodeState::Dead => 2,
        _ if unfit.contains(id) => 1,
        _ => 0,
    };
    let mut chosen: BTreeSet<NodeId> = BTreeSet::new();
    while chosen.len() < wanted {
        let best = map
            .nodes()
            .iter()
            .filter(|(id, node)| {
                let may_vote = current.contains(*id) || trouble(id, node) == 0;
                stays(node) && !chosen.contains(*id) && may_vote
            })
            .min_by_key(|(id, node)| {
                let neighbours = chosen.iter().filter(|&&one| zone(one) == zone(**id)).count();
                (trouble(id, node), neighbours, !current.contains(*id), **id)
            });
        let Some((&id, _)) = best else { break };
        chosen.insert(id);
    }
    make_odd(map, &mut chosen, current);
    chosen
}

/// Makes the number of voters odd: an even number survives no more deaths than one less. With too
/// few candidates a new voter waits for a second one, and a dead voter stays, for it may come back.
fn make_odd(map: &Map, chosen: &mut BTreeSet<NodeId>, current: &BTreeSet<NodeId>) {
    if chosen.len() % 2 == 1 {
        return;
    }
    let is_there =
        |id: &NodeId| map.nodes().get(id).is_some_and(|node| node.state != NodeState::Draining);
    if let Some(newcomer) = chosen.iter().copied().rfind(|id| !current.contains(id)) {
        chosen.remove(&newcomer);
    } else if let Some(&dead) = current.difference(chosen).find(|id| is_there(id)) {
        chosen.insert(dead);
    }
}
