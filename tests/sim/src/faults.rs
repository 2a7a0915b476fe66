//! Faults of hosts and of the links between them.
//!
//! Here: drawing faults from the seed, causing them, ending them. Not here: a node's reaction.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use model::rng::Rng;
use tollgate::simulation::{self, Disk, DiskFault};
use turmoil::Sim;

use crate::history::History;
use crate::nodes::{CLIENTS, Host};

/// The end of a fault.
#[derive(Debug, Clone)]
enum Undo {
    /// The node starts, after the links to its host are mended.
    Start(usize),
    Mend(Vec<(IpAddr, IpAddr)>),
    Release(IpAddr, IpAddr),
    Latency(IpAddr, IpAddr),
    /// The disk of a host works again.
    Disk(usize),
    /// A starved host runs for a moment: its links are released. Then it may be starved a number of
    /// further times.
    Run(usize, Vec<(IpAddr, IpAddr)>, u64),
    /// A host is starved again.
    Starve(usize, u64),
}

/// The steps of wall clocks: two minutes, an hour, a day, ten years.
pub(crate) const CLOCK_STEPS_MS: [i64; 4] = [120_000, 3_600_000, 86_400_000, 315_576_000_000];
/// The longest latency of a link without a fault.
const LATENCY_MAX: Duration = Duration::from_millis(5);

/// The faults of a run.
pub(crate) struct Faults {
    rng: Rng,
    next: Duration,
    undos: Vec<(Duration, Undo)>,
    /// Pairs of hosts whose link has a fault: one at a time.
    busy: BTreeSet<(IpAddr, IpAddr)>,
    /// False after a fault that removes a voter for ever: the majority must stay.
    may_take: bool,
    /// Whether wall clocks may be wrong.
    pub(crate) may_skew: bool,
    pub(crate) count: usize,
    /// The periods in which single links were cut.
    pub(crate) cuts: Vec<(Duration, Duration)>,
    history: Rc<RefCell<History>>,
    hosts: Rc<Vec<Host>>,
}

fn pair(one: IpAddr, other: IpAddr) -> (IpAddr, IpAddr) {
    if one < other { (one, other) } else { (other, one) }
}

impl Faults {
    pub(crate) fn new(rng: Rng, history: &Rc<RefCell<History>>, hosts: &Rc<Vec<Host>>) -> Self {
        Self {
            rng,
            next: Duration::ZERO,
            undos: Vec::new(),
            busy: BTreeSet::new(),
            may_take: true,
            may_skew: true,
            count: 0,
            cuts: Vec::new(),
            history: Rc::clone(history),
            hosts: Rc::clone(hosts),
        }
    }

    fn note(&self, now: Duration, what: &str) {
        self.history.borrow_mut().note(now, what);
    }

    /// Schedules the first start of a node, some time within `most`.
    pub(crate) fn join_later(&mut self, sim: &Sim<'_>, number: usize, most: Duration) {
        let most_ms = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        self.later(sim.elapsed(), 0, most_ms, Undo::Start(number));
    }

    /// Causes and ends the faults that are due.
    pub(crate) fn step(&mut self, sim: &mut Sim<'_>) {
        let now = sim.elapsed();
        while let Some(at) = self.undos.iter().position(|(when, _)| *when <= now) {
            let (_, undo) = self.undos.remove(at);
            self.undo(sim, undo);
        }
        if now >= self.next {
            self.next = now + Duration::from_millis(self.rng.between(200, 2500));
            self.strike(sim);
        }
    }

    /// Cuts a single link between two nodes, in one direction or in both; each time another.
    pub(crate) fn cut_one(&mut self, sim: &mut Sim<'_>) {
        let now = sim.elapsed();
        while let Some(at) = self.undos.iter().position(|(when, _)| *when <= now) {
            let (_, undo) = self.undos.remove(at);
            self.undo(sim, undo);
            // The pause lets the nodes find the way back.
            self.next = now + Duration::from_secs(3);
        }
        if now < self.next || !self.undos.is_empty() {
            return;
        }
        let number = usize::try_from(self.rng.below(self.hosts.len() as u64)).unwrap_or(0);
        let ways = self.ways_of(number, false);
        let (both, back) = (self.rng.chance(1, 2), self.rng.chance(1, 2));
        let Some((from, to)) = self.rng.pick(&ways) else { return };
        let way = if back { (to, from) } else { (from, to) };
        self.cut(sim, &[way], both);
        self.later(now, 6000, 9000, Undo::Mend(vec![way]));
        self.cuts.extend(self.undos.last().map(|(when, _)| (now, *when)));
        self.count += 1;
        self.note(now, &format!("cut {way:?}, in both directions: {both}"));
    }

    /// Ends all faults, and starts all nodes that are down.
    pub(crate) fn heal(&mut self, sim: &mut Sim<'_>) {
        let mut undos = std::mem::take(&mut self.undos);
        undos.sort_by_key(|(when, _)| *when);
        for (_, undo) in undos {
            // No host is starved from now on.
            let undo = match undo {
                Undo::Starve(..) => continue,
                Undo::Run(number, ways, _) => Undo::Run(number, ways, 0),
                undo => undo,
            };
            self.undo(sim, undo);
        }
        self.hosts.iter().for_each(Host::right_clock);
        self.start_all(sim);
    }

    /// Starts all nodes that are down; a node that was leaving at the end of the faults may have
    /// ended since.
    pub(crate) fn start_all(&mut self, sim: &mut Sim<'_>) {
        for number in 0..self.hosts.len() {
            if !self.is_running(number) {
                self.start(sim, number);
            }
        }
    }

    fn is_running(&self, number: usize) -> bool {
        let host = &self.hosts[number];
        host.is_up.get()
    }

    fn later(&mut self, now: Duration, least_ms: u64, most_ms: u64, undo: Undo) {
        let when = now + Duration::from_millis(self.rng.between(least_ms, most_ms));
        self.undos.push((when, undo));
    }

    fn undo(&mut self, sim: &mut Sim<'_>, undo: Undo) {
        let now = sim.elapsed();
        self.note(now, &format!("undo {undo:?}"));
        match undo {
            Undo::Start(number) => self.start(sim, number),
            Undo::Mend(pairs) => {
                for (one, other) in pairs {
                    simulation::mend(one, other);
                    sim.repair(one, other);
                    self.busy.remove(&pair(one, other));
                }
            }
            Undo::Release(one, other) => {
                sim.release(one, other);
                self.busy.remove(&pair(one, other));
            }
            Undo::Run(number, ways, times) => {
                for (one, other) in ways {
                    sim.release(one, other);
                    self.busy.remove(&pair(one, other));
                }
                if times > 0 {
                    self.later(now, 5, 60, Undo::Starve(number, times - 1));
                }
            }
            Undo::Starve(number, times) => self.starve(sim, number, times),
            Undo::Disk(number) => self.hosts[number].disk.borrow().set_trouble(None),
            Undo::Latency(one, other) => {
                sim.set_link_max_message_latency(one, other, LATENCY_MAX);
                self.busy.remove(&pair(one, other));
            }
        }
    }

    pub(crate) fn start(&mut self, sim: &mut Sim<'_>, number: usize) {
        let host = &self.hosts[number];
        if self.is_running(number) {
            return;
        }
        if host.has_left.get() {
            // The cluster has removed it, so an operator gives it a new disk.
            *host.disk.borrow_mut() = Disk::new();
        }
        host.is_up.set(true);
        sim.bounce(host.address);
    }

    /// Kills a process.
    pub(crate) fn crash(&self, sim: &mut Sim<'_>, number: usize) {
        let host = &self.hosts[number];
        host.is_up.set(false);
        sim.crash(host.address);
    }

    /// Cuts the power of a disk: `keeps` decides which writes survive.
    fn turn_off(&self, number: usize, keeps: impl FnMut() -> bool) {
        let mut disk = self.hosts[number].disk.borrow_mut();
        disk.cut();
        let after = disk.after_power_cut(keeps);
        *disk = after;
    }

    /// The links of a host that have no fault yet; those to clients too if `and_clients`.
    fn ways_of(&self, number: usize, and_clients: bool) -> Vec<(IpAddr, IpAddr)> {
        let here = self.hosts[number].address;
        let others = self.hosts.iter().map(|host| host.address).filter(|other| *other != here);
        let clients = and_clients.then_some(CLIENTS);
        let ways = others.chain(clients).map(|other| (here, other));
        ways.filter(|(one, other)| !self.busy.contains(&pair(*one, *other))).collect()
    }

    fn cut(&mut self, sim: &Sim<'_>, ways: &[(IpAddr, IpAddr)], both: bool) {
        for (from, to) in ways {
            simulation::cut(*from, *to);
            if both {
                simulation::cut(*to, *from);
                sim.partition(*from, *to);
            } else {
                sim.partition_oneway(*from, *to);
            }
            self.busy.insert(pair(*from, *to));
        }
    }

    /// Holds back all messages to and from a host for a moment, those of clients included: other
    /// nodes see a host whose processors are busy.
    fn starve(&mut self, sim: &Sim<'_>, number: usize, times: u64) {
        let ways = self.ways_of(number, true);
        for (one, other) in &ways {
            sim.hold(*one, *other);
            self.busy.insert(pair(*one, *other));
        }
        self.later(sim.elapsed(), 50, 900, Undo::Run(number, ways, times));
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each fault")]
    fn strike(&mut self, sim: &mut Sim<'_>) {
        let now = sim.elapsed();
        let number = usize::try_from(self.rng.below(self.hosts.len() as u64)).unwrap_or(0);
        let name = self.hosts[number].name.clone();
        let here = self.hosts[number].address;
        let mut ways = self.ways_of(number, false);
        let kind = self.rng.below(19);
        let details = match kind {
            0 | 1 if self.is_running(number) => {
                self.crash(sim, number);
                self.turn_off(number, || true);
                self.later(now, 20, 4000, Undo::Start(number));
                "killed"
            }
            2 if self.is_running(number) => {
                // The links are cut before the process ends, so that no other node notices the end.
                let ways = self.ways_of(number, true);
                self.cut(sim, &ways, true);
                self.crash(sim, number);
                let mut chance = self.rng.clone();
                self.turn_off(number, || chance.chance(1, 2));
                let when = now + Duration::from_millis(self.rng.between(500, 6000));
                self.undos.push((when, Undo::Mend(ways)));
                self.undos.push((when, Undo::Start(number)));
                "loses power"
            }
            3 if self.is_running(number) && self.may_take && self.is_calm() => {
                self.may_take = false;
                self.crash(sim, number);
                self.turn_off(number, || false);
                *self.hosts[number].disk.borrow_mut() = Disk::new();
                self.later(now, 100, 4000, Undo::Start(number));
                "killed and emptied"
            }
            4 if self.is_running(number) && self.may_take && self.is_calm() => {
                self.may_take = false;
                simulation::stop(here);
                self.later(now, 12_000, 20_000, Undo::Start(number));
                "is asked to leave"
            }
            5 | 6 => {
                self.cut(sim, &ways, true);
                self.later(now, 100, 6000, Undo::Mend(ways));
                "is cut off from nodes"
            }
            7 => {
                ways = self.ways_of(number, true);
                self.cut(sim, &ways, true);
                self.later(now, 100, 6000, Undo::Mend(ways));
                "is cut off"
            }
            8 | 9 => {
                let both = self.rng.chance(1, 2);
                let back = self.rng.chance(1, 2);
                let Some((from, to)) = self.rng.pick(&ways) else { return };
                let way = if back { (to, from) } else { (from, to) };
                self.cut(sim, &[way], both);
                self.later(now, 100, 8000, Undo::Mend(vec![way]));
                "loses a way"
            }
            10 => {
                let Some((one, other)) = self.rng.pick(&ways) else { return };
                sim.hold(one, other);
                self.busy.insert(pair(one, other));
                self.later(now, 50, 4000, Undo::Release(one, other));
                "has a way that holds"
            }
            11 => {
                let Some((one, other)) = self.rng.pick(&ways) else { return };
                let latency = Duration::from_millis(self.rng.between(20, 300));
                sim.set_link_max_message_latency(one, other, latency);
                self.busy.insert(pair(one, other));
                self.later(now, 500, 8000, Undo::Latency(one, other));
                "has a slow way"
            }
            12 if self.may_skew => {
                let (ahead_ms, fast_ppm) = (self.rng.either_way(3000), self.rng.either_way(10_000));
                self.hosts[number].set_clock(ahead_ms, fast_ppm);
                "has a wrong clock"
            }
            13 if self.may_skew => {
                let step_ms = self.rng.pick(&CLOCK_STEPS_MS).unwrap_or(0);
                let ahead_ms = if self.rng.chance(1, 2) { step_ms } else { -step_ms };
                self.hosts[number].set_clock(ahead_ms, self.rng.either_way(10_000));
                "has a clock that is far off"
            }
            14 => {
                self.hosts[number].right_clock();
                "has its clock set right"
            }
            15 => {
                let Some((one, other)) = self.rng.pick(&ways) else { return };
                simulation::break_streams(one, other);
                "loses its streams on a way"
            }
            16 if self.is_running(number) => {
                let trouble =
                    if self.rng.chance(1, 2) { DiskFault::Full } else { DiskFault::Broken };
                self.hosts[number].disk.borrow().set_trouble(Some(trouble));
                self.later(now, 500, 6000, Undo::Disk(number));
                "has a disk that cannot be written"
            }
            17 if self.is_running(number) => {
                let delay = Duration::from_millis(self.rng.between(100, 1000));
                self.hosts[number].disk.borrow().set_trouble(Some(DiskFault::Slow(delay)));
                self.later(now, 500, 8000, Undo::Disk(number));
                "has a slow disk"
            }
            18 if self.is_running(number) => {
                let times = self.rng.between(2, 12);
                self.starve(sim, number, times);
                "gets no processor, again and again"
            }
            _ => return,
        };
        self.count += 1;
        self.note(now, &format!("fault {name} {details}"));
    }

    /// Whether every node is up and reachable, and three nodes vote.
    fn is_calm(&self) -> bool {
        // With fewer voters, a node that loses its disk may take the majority with it.
        let votes = |host: &Host| {
            simulation::view(host.address).is_some_and(|sight| sight.status.voters.len() >= 3)
        };
        self.undos.is_empty()
            && (0..self.hosts.len()).all(|number| self.is_running(number))
            && self.hosts.iter().all(votes)
    }
}
