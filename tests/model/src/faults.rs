//! The faults of a run, and their ends.

use cluster::LinkIndex;
use cluster::map::NodeState;
use cluster::replica::{OpenCause, Opening};
use cluster::{Incarnation, NodeId, Partition};

use super::node::Node;
use super::world::{LinkKey, MS, World};
use crate::base::CONTROL;

/// The most nodes at a time.
const NODES_MAX: usize = 6;

/// A fault, or the end of one.
#[derive(Debug, Clone, Copy)]
pub(super) enum Trouble {
    Crash,
    Restart(NodeId),
    /// No bytes pass between two places for a while.
    Cut,
    Mend(NodeId, NodeId),
    /// One connection is lost.
    Lose,
    /// One direction of a connection stalls.
    Stall,
    Reconnect(LinkKey),
    /// A random partition gets another target.
    Move,
    /// This partition gets another target.
    MoveOnce(Partition),
    Member,
    Resize,
    Clock,
    /// A primary loses the controller, and no other connection.
    Fence,
    /// All copies of a partition lose the controller for long.
    Abandon,
    /// This node crashes.
    Kill(NodeId),
    /// Two nodes crash, one soon after the other.
    Deaths,
    /// The second of them: this node, or any.
    SecondDeath(Option<NodeId>),
}

impl World {
    fn pause(&mut self, mean_ns: u64) -> u64 {
        self.rng.between(mean_ns / 10, 2 * mean_ns)
    }

    fn mean_ns(&self, trouble: Trouble) -> u64 {
        let base = &self.profile.base;
        match trouble {
            Trouble::Crash => base.crash_ns,
            Trouble::Cut => base.cut_ns,
            Trouble::Lose => base.cut_ns / 4,
            Trouble::Stall => base.stall_ns / 3,
            Trouble::Move => base.move_ns,
            Trouble::Member => base.member_ns,
            Trouble::Resize if base.resizes => 4000 * MS,
            Trouble::Clock if base.skew_ns > 0 => 3000 * MS,
            Trouble::Fence => self.profile.aimed.fence_ns,
            Trouble::Abandon => self.profile.aimed.abandon_ns,
            Trouble::Deaths => self.profile.aimed.deaths_ns,
            _ => 0,
        }
    }

    pub(super) fn plan_troubles(&mut self) {
        let kinds = [
            Trouble::Crash,
            Trouble::Cut,
            Trouble::Lose,
            Trouble::Stall,
            Trouble::Move,
            Trouble::Member,
            Trouble::Resize,
            Trouble::Clock,
            Trouble::Fence,
            Trouble::Abandon,
            Trouble::Deaths,
        ];
        for kind in kinds {
            let mean_ns = self.mean_ns(kind);
            if mean_ns > 0 {
                let pause = 500 * MS + self.pause(mean_ns);
                self.trouble_at(pause, kind);
            }
        }
    }

    pub(super) fn trouble(&mut self, trouble: Trouble) {
        if let Trouble::Restart(node) = trouble {
            self.restart(node);
            return;
        }
        if self.is_healed {
            return;
        }
        match trouble {
            Trouble::Crash => self.crash(),
            Trouble::Cut => self.cut(),
            Trouble::Lose => {
                if let Some(key) = self.some_conn() {
                    self.report.counters.losses += 1;
                    self.cut_conn(key);
                }
            }
            Trouble::Stall => self.stall(),
            Trouble::Move => {
                self.report.counters.moves += 1;
                self.control.move_elsewhere(&mut self.rng);
            }
            Trouble::MoveOnce(partition) => {
                self.report.counters.moves += 1;
                self.control.move_partition(partition, &mut self.rng);
                return;
            }
            Trouble::Fence => self.fence(),
            Trouble::Abandon => self.abandon(),
            Trouble::Kill(node) => {
                self.kill(node, true);
                return;
            }
            Trouble::Deaths => self.first_death(),
            Trouble::SecondDeath(victim) => {
                self.second_death(victim);
                return;
            }
            Trouble::Member => self.change_members(),
            Trouble::Resize => {
                let least = u64::from(self.profile.base.replicas.min(2));
                let replicas = self.rng.between(least, 3);
                self.report.counters.resizes += 1;
                self.control.resize(replicas as usize);
            }
            Trouble::Clock => self.jump(),
            Trouble::Mend(from, to) => {
                // The link may have been cut again meanwhile.
                if self.cut_until.get(&(from, to)).is_none_or(|until_ns| *until_ns <= self.now_ns) {
                    self.network.mend((from, to));
                }
                return;
            }
            Trouble::Reconnect(key) => {
                self.reopen(key);
                return;
            }
            Trouble::Restart(_) => return,
        }
        self.plan(trouble);
    }

    fn plan(&mut self, trouble: Trouble) {
        let mean_ns = self.mean_ns(trouble);
        let pause = self.pause(mean_ns);
        self.trouble_at(pause, trouble);
    }

    /// Starts a new process on an empty data directory.
    pub(super) fn join(&mut self) {
        self.node_uuids += 1;
        let (node_uuid, incarnation) = (self.node_uuids, Incarnation(1));
        let id = self.control.register(self.now_ns, node_uuid, incarnation);
        let rate_ppm = self.rng.either_way(self.profile.base.rate_ppm);
        let skew_ns = self.rng.either_way(self.profile.base.skew_ns);
        self.begin_node(id, node_uuid, incarnation, (rate_ppm, skew_ns));
    }

    fn up(&self) -> Vec<NodeId> {
        self.nodes.values().filter(|node| node.is_up).map(|node| node.id).collect()
    }

    fn crash(&mut self) {
        let up = self.up();
        if let Some(victim) = self.rng.pick(&up) {
            self.kill(victim, false);
        }
    }

    /// Ends a process once all partitions have all copies, and soon after it another one.
    fn first_death(&mut self) {
        self.control.aim();
        let is_known = |node: &Node| self.control.incarnation(node.id) == Some(node.incarnation);
        let is_whole = self.nodes.values().all(|node| node.is_up && is_known(node))
            && self.control.is_settled();
        if is_whole && !self.is_second_due && self.nodes.len() >= 5 {
            self.crash();
            self.is_second_due = true;
            let pause = self.rng.between(20 * MS, self.profile.base.patience_ns + 1500 * MS);
            self.trouble_at(pause, Trouble::SecondDeath(None));
        }
    }

    fn second_death(&mut self, victim: Option<NodeId>) {
        let up = self.up();
        let Some(victim) = victim.or_else(|| self.rng.pick(&up)) else { return };
        if !self.is_second_due || !up.contains(&victim) {
            return;
        }
        self.is_second_due = false;
        self.report.counters.checked_deaths += 1;
        let lost = self.lost_with(victim);
        if !lost.is_empty() {
            self.violation(format!("the death of {victim} loses {lost:?}, the second of two"));
        }
        self.kill(victim, false);
    }

    /// The partitions without a copy once this process has ended.
    fn lost_with(&self, victim: NodeId) -> Vec<Partition> {
        self.control.lost(|node, incarnation| {
            let known = self.nodes.get(&node);
            node != victim
                && known.is_some_and(|node| node.is_up && node.incarnation == incarnation)
        })
    }

    /// Ends a process, unless more copies would be lost than may be.
    fn kill(&mut self, victim: NodeId, is_aimed: bool) {
        let up = self.up();
        if !up.contains(&victim) {
            return;
        }
        let lost = self.lost_with(victim);
        let may_lose = self.profile.base.may_lose || (is_aimed && self.profile.aimed.may_lose);
        if !lost.is_empty() && !may_lose {
            return;
        }
        self.report.counters.crashes += 1;
        self.report.counters.crashes_aimed += u64::from(is_aimed);
        self.note([6, u64::from(victim.0), 0], || format!("{victim} crashes"));
        self.nodes.get_mut(&victim).expect("it is up").is_up = false;
        for other in up {
            self.cut_pair(victim, other);
        }
        self.note_lost();
        if self.rng.chance(3, 4) || self.profile.aimed.deaths_ns > 0 {
            let pause = self.rng.between(50 * MS, 4000 * MS);
            self.trouble_at(pause, Trouble::Restart(victim));
        }
    }

    fn restart(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get(&id).filter(|node| !node.is_up) else { return };
        let (node_uuid, life) = (node.node_uuid, Incarnation(node.incarnation.0 + 1));
        let clocks = (node.rate_ppm, node.skew_ns);
        self.begin_node(id, node_uuid, life, clocks);
    }

    fn some_conn(&mut self) -> Option<LinkKey> {
        let open: Vec<_> =
            self.conns.iter().filter(|(_, conn)| conn.is_open).map(|(key, _)| *key).collect();
        self.rng.pick(&open)
    }

    fn cut(&mut self) {
        let length = if self.rng.chance(1, 5) {
            self.rng.between(3000 * MS, 9000 * MS)
        } else {
            self.rng.between(50 * MS, 3000 * MS)
        };
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        let mut links = Vec::new();
        if self.rng.chance(1, 8) {
            // All copies of a partition are separated from the controller.
            let place = self.rng.below(self.control.entries().len() as u64);
            for copy in &self.control.entries()[place as usize].in_sync {
                links.extend([(copy.node, CONTROL), (CONTROL, copy.node)]);
            }
        } else if self.rng.chance(1, 3) {
            // One node, or two together, are separated from the rest.
            let Some(first) = self.rng.pick(&ids) else { return };
            let second = self.rng.pick(&ids).filter(|_| self.rng.chance(1, 2));
            let inside = |node: NodeId| node == first || Some(node) == second;
            for &from in ids.iter().chain(&[CONTROL]) {
                for &to in ids.iter().chain(&[CONTROL]) {
                    if inside(from) != inside(to) {
                        links.push((from, to));
                    }
                }
            }
        } else {
            let mut places = ids;
            places.push(CONTROL);
            let (from, to) = (self.rng.pick(&places), self.rng.pick(&places));
            if let (Some(from), Some(to)) = (from, to)
                && from != to
            {
                links.extend([(from, to), (to, from)]);
            }
        }
        self.cut_ways(&links, length);
    }

    /// Cuts these directions for `length` nanoseconds.
    fn cut_ways(&mut self, ways: &[(NodeId, NodeId)], length: u64) {
        self.report.counters.cuts += ways.len() as u64;
        for &(from, to) in ways {
            self.note([7, u64::from(from.0), u64::from(to.0)], || {
                format!("cut {from} -> {to} for {} ms", length / MS)
            });
            let until_ns = self.cut_until.entry((from, to)).or_default();
            *until_ns = (*until_ns).max(self.now_ns + length);
            self.network.cut((from, to));
            self.cut_pair(from, to);
            self.trouble_at(length, Trouble::Mend(from, to));
        }
    }

    /// A primary loses the controller until another one takes over. Its links stay.
    fn fence(&mut self) {
        let place = self.rng.below(self.control.entries().len() as u64) as usize;
        let entry = &self.control.entries()[place];
        let Some(primary) = entry.primary.filter(|_| entry.in_sync.len() > 1) else { return };
        self.report.counters.fences += 1;
        let patience_ns = self.profile.base.patience_ns;
        let length = self.rng.between(patience_ns, patience_ns + 2500 * MS);
        let node = primary.node;
        self.cut_ways(&[(node, CONTROL), (CONTROL, node)], length);
    }

    /// All copies of a partition lose the controller, until it gives the partition up.
    fn abandon(&mut self) {
        let lost_ns = self.profile.options.lost_after_ns.unwrap_or(3000 * MS);
        let length = self.rng.between(lost_ns, 2 * lost_ns + 2000 * MS);
        let place = self.rng.below(self.control.entries().len() as u64) as usize;
        let copies = self.control.entries()[place].in_sync.clone();
        self.report.counters.abandons += 1;
        for copy in copies {
            self.cut_ways(&[(copy.node, CONTROL), (CONTROL, copy.node)], length);
        }
    }

    /// A copy has refused a frame, and its node has not yet sent the ack with the refusal.
    pub(super) fn refused(
        &mut self,
        id: NodeId,
        link: LinkIndex,
        partition: Partition,
        is_over: bool,
    ) {
        // Most refusals come from copies that are being made; these have few consequences.
        let chance = self.profile.aimed.cut_on_refusal / if is_over { 1 } else { 5 };
        if self.is_healed || !self.rng.chance(chance, 100) {
            return;
        }
        self.report.counters.refusals_cut += 1;
        let (key, side) = self.key(id, link);
        let peer = [key.0, key.2][side];
        self.note([13, u64::from(id.0), u64::from(peer.0)], || {
            format!("{id} refuses {partition} of {peer}, and is cut off")
        });
        self.break_conn(key);
        if is_over && self.rng.chance(1, 2) {
            // Meanwhile the partition continues on other nodes, without any message to the refused
            // one.
            let length = self.rng.between(300 * MS, 2000 * MS);
            self.cut_ways(&[(id, peer), (peer, id)], length);
            self.cut_ways(&[(CONTROL, peer), (peer, CONTROL)], length + 500 * MS);
            for delay in [0, length / 2] {
                self.trouble_at(delay, Trouble::MoveOnce(partition));
            }
        }
    }

    /// Parked batches of a partition are opened at a node.
    pub(super) fn opened(&mut self, id: NodeId, opening: &Opening) {
        let aimed = self.profile.aimed;
        if self.is_healed {
            return;
        }
        match opening.cause {
            OpenCause::Removed { .. } if self.rng.chance(aimed.crash_on_removal, 100) => {
                let pause = self.rng.below(100 * MS);
                self.trouble_at(pause, Trouble::Kill(id));
            }
            OpenCause::Refused { .. } if self.is_second_due => {
                let pause = self.rng.between(MS, 200 * MS);
                self.trouble_at(pause, Trouble::SecondDeath(Some(id)));
            }
            OpenCause::Refused { .. } if self.rng.chance(aimed.crash_on_refusal, 100) => {
                let pause = self.rng.between(MS, 100 * MS);
                self.cut_ways(&[(id, CONTROL), (CONTROL, id)], 500 * MS);
                self.trouble_at(pause, Trouble::Kill(id));
            }
            _ => {}
        }
    }

    /// A copy became in-sync.
    pub(super) fn joined(&mut self, partition: Partition) {
        let primary = self.control.entries()[partition.index()].primary;
        if let Some(primary) = primary
            && !self.is_healed
            && self.rng.chance(self.profile.aimed.crash_on_join, 100)
        {
            let pause = self.rng.below(3 * MS);
            self.trouble_at(pause, Trouble::Kill(primary.node));
        }
    }

    fn stall(&mut self) {
        let Some(key) = self.some_conn() else { return };
        self.report.counters.stalls += 1;
        let length = self.rng.between(20 * MS, 2000 * MS);
        let sides = self.rng.between(1, 3);
        let until_ns = self.now_ns + length;
        let conn = self.conns.get_mut(&key).expect("it is open");
        for side in 0..2 {
            if sides >> side & 1 == 1 {
                conn.stall_until[side] = until_ns;
            }
        }
        self.note([8, sides, length], || format!("stall {key:?} for {} ms", length / MS));
        let sooner = self.rng.between(5 * MS, length);
        if self.rng.chance(3, 4) {
            self.trouble_at(sooner, Trouble::Reconnect(key));
        }
    }

    fn change_members(&mut self) {
        let active = self.control.nodes(NodeState::Active);
        self.report.counters.members += 1;
        if self.nodes.len() < NODES_MAX && self.rng.chance(1, 2) {
            self.join();
        } else if active.len() > 3
            && let Some(node) = self.rng.pick(&active)
        {
            self.note([9, u64::from(node.0), 0], || format!("{node} drains"));
            self.control.drain(node);
        }
    }

    fn jump(&mut self) {
        let up = self.up();
        let Some(id) = self.rng.pick(&up) else { return };
        let skew_ns = self.rng.either_way(self.profile.base.skew_ns);
        self.report.counters.clock_steps += 1;
        self.nodes.get_mut(&id).expect("it is up").skew_ns = skew_ns;
    }

    /// Ends processes that the map has removed.
    pub(super) fn retire(&mut self) {
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        for id in ids {
            if self.control.incarnation(id).is_none() {
                self.note([11, u64::from(id.0), 0], || format!("{id} has left"));
                let others: Vec<NodeId> = self.nodes.keys().copied().collect();
                for other in others {
                    self.cut_pair(id, other);
                }
                self.nodes.remove(&id);
            }
        }
    }

    /// Records partitions that no living process holds.
    pub(super) fn note_lost(&mut self) {
        let nodes = &self.nodes;
        let lost = self.control.lost(|node, incarnation| {
            nodes.get(&node).is_some_and(|node| node.is_up && node.incarnation == incarnation)
        });
        self.lost.extend(lost);
    }

    /// All faults end.
    pub(super) fn heal(&mut self) {
        self.note([12, 0, 0], || "all faults end".to_owned());
        self.is_healed = true;
        self.network.heal();
        for conn in self.conns.values_mut() {
            conn.stall_until = [0; 2];
        }
        let down: Vec<NodeId> =
            self.nodes.values().filter(|node| !node.is_up).map(|node| node.id).collect();
        for id in down {
            self.restart(id);
        }
    }

    /// Whether no work is left.
    pub(super) fn is_quiet(&self) -> bool {
        if !self.control.is_settled() || !self.nodes.values().all(super::node::Node::is_quiet) {
            return false;
        }
        self.control.entries().iter().enumerate().all(|(at, entry)| {
            let partition = Partition(at as u16);
            let mut positions = entry.in_sync.iter().filter_map(|copy| {
                let node = self.nodes.get(&copy.node)?;
                let is_idle =
                    node.headers[at].term() == entry.term && node.entry(partition).ver == entry.ver;
                is_idle.then(|| node.position(partition))
            });
            let first = positions.next();
            let count = positions.clone().count() + 1;
            first.is_some() && count == entry.in_sync.len() && positions.all(|at| Some(at) == first)
        })
    }

    /// The state of everything, for a violation.
    pub(super) fn describe(&self) -> String {
        let mut lines = vec![format!("\n  settled {}", self.control.is_settled())];
        for node in self.nodes.values() {
            lines.push(format!("\n  {} up {} quiet {}", node.id, node.is_up, node.is_quiet()));
            for worker in &node.workers {
                lines.push(format!(
                    "\n    unanswered {} parked {} todo {} clients {}",
                    worker.streams.unanswered(),
                    worker.parked.len(),
                    worker.todo.len(),
                    worker.clients.len(),
                ));
            }
            for link in &node.shared.links {
                lines.push(format!(
                    "\n    link {}.{} k{} no {} up {} unacked {} held {} refusals {}",
                    link.peer,
                    link.incarnation.0,
                    link.k,
                    link.sender.number(),
                    link.sender.is_up(),
                    link.sender.stream.unacked(),
                    link.receiver.stream.held(),
                    link.receiver.stream.refusals(),
                ));
            }
        }
        for (at, entry) in self.control.entries().iter().enumerate() {
            let partition = Partition(at as u16);
            lines.push(format!("\n  p{at}: {entry:?}"));
            for node in self.nodes.values() {
                lines.push(format!(
                    "\n    {} {:?} {:?} term {} at {:?} held {} ver {} free {}",
                    node.id,
                    node.role(partition),
                    node.headers[at].state(),
                    node.headers[at].term().0,
                    node.position(partition),
                    node.view(partition, |replica, _| replica.held()),
                    node.entry(partition).ver,
                    node.is_free(partition),
                ));
            }
        }
        lines.concat()
    }
}
