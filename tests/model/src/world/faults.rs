//! What goes wrong, and how it ends: crashes, cuts, stalls, joins, drains, moves.

use cluster::map::NodeState;
use cluster::{Incarnation, NodeId, Partition};

use super::node::{Node, describe};
use super::{Event, HEARTBEAT_NS, MS, TICK_NS, World};
use crate::profile::CONTROL;

/// Most nodes at a time.
const NODES_MAX: usize = 7;

/// Something that goes wrong, or is mended.
#[derive(Debug, Clone, Copy)]
pub(super) enum Trouble {
    Crash,
    Restart(NodeId),
    Cut,
    Mend(NodeId, NodeId),
    Stall,
    Reconnect(NodeId, NodeId),
    Move,
    Member,
    Resize,
    Clock,
}

impl World {
    fn pause(&mut self, mean_ns: u64) -> u64 {
        self.rng.between(mean_ns / 10, 2 * mean_ns)
    }

    pub(super) fn plan_troubles(&mut self) {
        let profile = self.profile.clone();
        let kinds = [
            (profile.crash_ns, Trouble::Crash),
            (profile.cut_ns, Trouble::Cut),
            (profile.stall_ns, Trouble::Stall),
            (profile.move_ns, Trouble::Move),
            (profile.member_ns, Trouble::Member),
            (if profile.resizes { 4000 * MS } else { 0 }, Trouble::Resize),
            (if profile.skew_ns > 0 { 3000 * MS } else { 0 }, Trouble::Clock),
        ];
        for (mean_ns, kind) in kinds.into_iter().filter(|(mean_ns, _)| *mean_ns > 0) {
            let pause = 500 * MS + self.pause(mean_ns);
            self.at(pause, Event::Trouble(kind));
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
        let profile = self.profile.clone();
        let again = match trouble {
            Trouble::Crash => {
                self.crash();
                profile.crash_ns
            }
            Trouble::Cut => {
                self.cut();
                profile.cut_ns
            }
            Trouble::Stall => {
                self.stall();
                profile.stall_ns
            }
            Trouble::Move => {
                self.control.move_elsewhere(&mut self.rng);
                profile.move_ns
            }
            Trouble::Member => {
                self.change_members();
                profile.member_ns
            }
            Trouble::Resize => {
                let replicas = self.rng.between(u64::from(profile.replicas.min(2)), 3);
                self.control.resize(replicas as usize);
                4000 * MS
            }
            Trouble::Clock => {
                self.jump();
                3000 * MS
            }
            Trouble::Mend(from, to) => {
                self.network.mend((from, to));
                return;
            }
            Trouble::Reconnect(from, to) => {
                self.network.reconnect((from, to));
                return;
            }
            Trouble::Restart(_) => return,
        };
        let pause = self.pause(again);
        self.at(pause, Event::Trouble(trouble));
    }

    /// A new process on an empty data directory.
    pub(super) fn join(&mut self) {
        self.births += 1;
        let (birth, incarnation) = (self.births, Incarnation(1));
        let id = self.control.register(self.now_ns, birth, incarnation);
        let rate_ppm = self.rng.either_way(self.profile.rate_ppm);
        let skew_ns = self.rng.either_way(self.profile.skew_ns);
        self.begin(id, birth, incarnation, (rate_ppm, skew_ns));
    }

    fn begin(&mut self, id: NodeId, birth: u128, incarnation: Incarnation, clocks: (i64, i64)) {
        let partitions = 1 << self.profile.partition_bits;
        let options = self.profile.options;
        let (journal, now_ns) = (&self.journal, self.now_ns);
        let node = Node::new(id, birth, incarnation, clocks, partitions, options, journal, now_ns);
        self.note([5, u64::from(id.0), incarnation.0, 0], || {
            format!("{id} begins, incarnation {}", incarnation.0)
        });
        self.nodes.insert(id, node);
        let pause = self.rng.below(TICK_NS);
        self.at(pause, Event::Tick(id, incarnation));
        let pause = self.rng.below(HEARTBEAT_NS / 10);
        self.at(pause, Event::Heartbeat(id, incarnation));
    }

    fn up(&self) -> Vec<NodeId> {
        self.nodes.values().filter(|node| node.is_up).map(|node| node.id).collect()
    }

    fn crash(&mut self) {
        let up = self.up();
        let Some(victim) = self.rng.pick(&up) else { return };
        let lost = self.control.lost(|node, incarnation| {
            node != victim
                && self
                    .nodes
                    .get(&node)
                    .is_some_and(|node| node.is_up && node.incarnation == incarnation)
        });
        if !lost.is_empty() && !self.profile.may_lose {
            return;
        }
        self.report.figures.crashes += 1;
        self.note([6, u64::from(victim.0), 0, 0], || format!("{victim} crashes"));
        let node = self.nodes.get_mut(&victim).expect("it is up");
        node.is_up = false;
        self.note_lost();
        if self.rng.chance(3, 4) {
            let pause = self.rng.between(50 * MS, 4000 * MS);
            self.at(pause, Event::Trouble(Trouble::Restart(victim)));
        }
    }

    fn restart(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get(&id).filter(|node| !node.is_up) else { return };
        let (birth, life) = (node.birth, Incarnation(node.incarnation.0 + 1));
        let clocks = (node.rate_ppm, node.skew_ns);
        self.begin(id, birth, life, clocks);
    }

    fn link(&mut self) -> Option<(NodeId, NodeId)> {
        let mut places: Vec<NodeId> = self.nodes.keys().copied().collect();
        places.push(CONTROL);
        let (from, to) = (self.rng.pick(&places)?, self.rng.pick(&places)?);
        (from != to).then_some((from, to))
    }

    fn cut(&mut self) {
        let length = if self.rng.chance(1, 5) {
            self.rng.between(3000 * MS, 9000 * MS)
        } else {
            self.rng.between(50 * MS, 3000 * MS)
        };
        let mut links = Vec::new();
        if self.rng.chance(1, 8) {
            // All copies of a partition are where the controller is not.
            let place = self.rng.below(self.control.entries().len() as u64);
            for copy in &self.control.entries()[place as usize].in_sync {
                links.extend([(copy.node, CONTROL), (CONTROL, copy.node)]);
            }
        } else if self.rng.chance(1, 4) {
            // A node alone, or two together on the other side.
            let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
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
        } else if let Some((from, to)) = self.link() {
            links.push((from, to));
            if self.rng.chance(1, 2) {
                links.push((to, from));
            }
        }
        for (from, to) in links {
            self.note([7, u64::from(from.0), u64::from(to.0), length], || {
                format!("cut {from} -> {to} for {} ms", length / MS)
            });
            self.network.cut((from, to));
            self.at(length, Event::Trouble(Trouble::Mend(from, to)));
        }
    }

    fn stall(&mut self) {
        let Some((from, to)) = self.link() else { return };
        let length = self.rng.between(100 * MS, 3000 * MS);
        self.note([8, u64::from(from.0), u64::from(to.0), length], || {
            format!("stall {from} -> {to} for {} ms", length / MS)
        });
        let until_ns = self.now_ns + length;
        self.network.stall((from, to), until_ns);
        let sooner = self.rng.between(50 * MS, length);
        self.at(sooner, Event::Trouble(Trouble::Reconnect(from, to)));
    }

    fn change_members(&mut self) {
        let active = self.control.nodes(NodeState::Active);
        if self.nodes.len() < NODES_MAX && self.rng.chance(1, 2) {
            self.join();
        } else if active.len() > 3
            && let Some(node) = self.rng.pick(&active)
        {
            self.note([9, u64::from(node.0), 0, 0], || format!("{node} drains"));
            self.control.drain(node);
        }
    }

    fn jump(&mut self) {
        let up = self.up();
        let Some(id) = self.rng.pick(&up) else { return };
        let skew_ns = self.rng.either_way(self.profile.skew_ns);
        self.note([10, u64::from(id.0), skew_ns.cast_unsigned(), 0], || {
            format!("the wall clock of {id} jumps to {} ms ahead", skew_ns / 1_000_000)
        });
        self.nodes.get_mut(&id).expect("it is up").skew_ns = skew_ns;
    }

    /// Processes that the map has let go end.
    pub(super) fn retire(&mut self) {
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        for id in ids {
            if self.control.incarnation(id).is_none() {
                self.note([11, u64::from(id.0), 0, 0], || format!("{id} has left"));
                self.nodes.remove(&id);
            }
        }
        let known: Vec<NodeId> = self.nodes.keys().copied().collect();
        for replica in self.nodes.values_mut().flat_map(|node| &mut node.replicas) {
            replica.retain_sessions(|node| known.contains(&node));
        }
    }

    /// Takes note of partitions that no living process holds.
    pub(super) fn note_lost(&mut self) {
        let nodes = &self.nodes;
        let lost = self.control.lost(|node, incarnation| {
            nodes.get(&node).is_some_and(|node| node.is_up && node.incarnation == incarnation)
        });
        self.lost.extend(lost);
    }

    /// All faults end.
    pub(super) fn heal(&mut self) {
        self.note([12, 0, 0, 0], || "all faults end".to_owned());
        self.is_healed = true;
        self.network.heal();
        let down: Vec<NodeId> =
            self.nodes.values().filter(|node| !node.is_up).map(|node| node.id).collect();
        for id in down {
            self.restart(id);
        }
    }

    /// Whether nothing is left to do.
    pub(super) fn is_quiet(&self) -> bool {
        if !self.control.is_settled()
            || !self.nodes.values().all(|node| node.session.pending() == 0)
        {
            return false;
        }
        self.control.entries().iter().enumerate().all(|(at, entry)| {
            let mut positions = entry.in_sync.iter().filter_map(|copy| {
                let node = self.nodes.get(&copy.node)?;
                let replica = &node.replicas[at];
                let load = replica.load();
                let is_idle = load.held + load.waiting + load.reads == 0
                    && replica.term() == entry.term
                    && replica.entry().ver == entry.ver;
                is_idle.then(|| node.position(Partition(at as u16)))
            });
            let first = positions.next();
            let count = positions.clone().count() + 1;
            first.is_some() && count == entry.in_sync.len() && positions.all(|at| Some(at) == first)
        })
    }

    /// The state of everything, for a violation.
    pub(super) fn describe(&self) -> String {
        let mut lines = Vec::new();
        for (at, entry) in self.control.entries().iter().enumerate() {
            lines.push(format!("\n  p{at}: {}", describe(entry)));
            for node in self.nodes.values() {
                let replica = &node.replicas[at];
                lines.push(format!(
                    "\n    {} up {} {:?} term {} at {:?} load {:?} pending {}",
                    node.id,
                    node.is_up,
                    replica.part(),
                    replica.term().0,
                    node.position(Partition(at as u16)),
                    replica.load(),
                    node.session.pending(),
                ));
            }
        }
        lines.concat()
    }
}
