//! A run: from its seed to its verdict.
//!
//! Here: the world and its phases: start, faults, healing, rest. Not here: the faults (`faults`),
//! the properties that must hold (`invariants`).

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use model::rng::Rng;
use tollgate::simulation::{self, Bug, FEATURE_VERSION_MAX, PEER_VERSION_OLD, SimulatedNode};
use turmoil::Sim;

use crate::client::Work;
use crate::editors::Editors;
use crate::faults::{CLOCK_STEPS_MS, Faults};
use crate::history::History;
use crate::invariants::changes::{ChangeCounts, ChangeWatch};
use crate::invariants::{self, Evidence, Watch};
use crate::nodes::{CLIENTS, EDITORS, Host, Shape};

/// 2026-01-01T00:00:00Z.
const EPOCH_S: u64 = 1_767_225_600;
/// The time limit for the start of a cluster.
const BEGIN_MAX: Duration = Duration::from_secs(40);
/// The period between two observations of the nodes.
const LOOK: Duration = Duration::from_millis(10);

/// The options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The time during which faults occur.
    pub trouble: Duration,
    /// The events of the run.
    pub scenario: Scenario,
    /// A rule that copies leave out.
    pub bug: Option<Bug>,
    /// Keep the lines of the trace, not only their sum.
    pub keeps_lines: bool,
}

/// The events of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Any faults, while clients count.
    Faults,
    /// Single links are cut, and no other fault occurs.
    Cuts,
    /// Any faults but wrong clocks, while editors change limits.
    Limits,
    /// Nodes are updated one after the other, while editors change limits.
    Update,
}

impl Scenario {
    fn has_editors(self) -> bool {
        matches!(self, Self::Limits | Self::Update)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            trouble: Duration::from_secs(20),
            scenario: Scenario::Faults,
            bug: None,
            keeps_lines: false,
        }
    }
}

/// The result of a run.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// A sum over all events and their times.
    pub trace: u64,
    /// All events, if they were kept.
    pub lines: Vec<String>,
    /// Violations of the properties.
    pub violations: Vec<String>,
    /// Requests of clients.
    pub requests: usize,
    /// Requests with a known outcome.
    pub answered: usize,
    /// Tests of the properties of changes of limits, if there were editors.
    pub changes: Option<ChangeCounts>,
    /// The number of faults.
    pub faults: usize,
    /// The time from the end of the faults until every partition was served.
    pub served_after: Duration,
    /// The time from then until all partitions had their copies.
    pub rest_after: Duration,
    /// The true time that passed in the run.
    pub simulated: Duration,
}

/// Runs a seed in a thread of its own, so that thread-local state is new.
///
/// # Panics
///
/// If the system cannot start a thread.
#[must_use]
pub fn run(seed: u64, options: &Options) -> Report {
    let options = options.clone();
    let thread = std::thread::Builder::new().name(format!("seed-{seed}")).stack_size(16 << 20);
    let running = thread.spawn(move || Run::new(seed, &options).run(&options));
    match running.expect("the system has threads").join() {
        Ok(report) => report,
        Err(cause) => {
            let text = cause.downcast_ref::<String>().map(String::as_str);
            let text = text.or(cause.downcast_ref::<&str>().copied()).unwrap_or("?");
            Report { violations: vec![format!("panicked: {text}")], ..Report::default() }
        }
    }
}

pub(crate) struct Run {
    pub(crate) sim: Sim<'static>,
    pub(crate) hosts: Rc<Vec<Host>>,
    shape: Shape,
    work: Rc<Work>,
    pub(crate) faults: Faults,
    watch: Watch,
    pub(crate) editors: Option<Rc<Editors>>,
    pub(crate) changes: ChangeWatch,
    pub(crate) rng: Rng,
    history: Rc<RefCell<History>>,
    looked: Duration,
}

/// The network of a run, without hosts.
fn network(rng: &mut Rng) -> Sim<'static> {
    turmoil::Builder::new()
        .rng_seed(rng.draw())
        .epoch(SystemTime::UNIX_EPOCH + Duration::from_secs(EPOCH_S))
        .simulation_duration(Duration::from_hours(1))
        .min_message_latency(Duration::from_micros(200))
        .max_message_latency(Duration::from_millis(rng.between(1, 5)))
        .tcp_capacity(4096)
        .enable_random_order()
        .build()
}

/// The hosts of a run. In an update all begin with the old version.
fn hosts_of(shape: &Shape, options: &Options, history: &Rc<RefCell<History>>) -> Vec<Host> {
    let hosts: Vec<Host> =
        (0..shape.nodes).map(|number| Host::new(number, shape, history)).collect();
    if options.scenario == Scenario::Update {
        for host in &hosts {
            host.peer_version.set(PEER_VERSION_OLD);
        }
    }
    hosts
}

/// Starts the editors, which wait until they may begin.
fn edit(sim: &mut Sim<'_>, editors: &Rc<Editors>, rng: &mut Rng) {
    let is_short = rng.chance(1, 2);
    let count = rng.between(3, 4);
    let chances: Vec<Rng> = (0..count).map(|_| Rng::new(rng.draw())).collect();
    let shared = Rc::clone(editors);
    sim.client(EDITORS, async move {
        shared.begun.notified().await;
        Rc::clone(&shared).fill(is_short).await;
        for (number, rng) in chances.into_iter().enumerate() {
            tokio::task::spawn_local(Rc::clone(&shared).edit(number, rng));
        }
        std::future::pending::<()>().await;
        Ok(())
    });
}

impl Run {
    fn new(seed: u64, options: &Options) -> Self {
        let mut rng = Rng::new(seed);
        simulation::begin(rng.draw(), options.bug);
        let founders = 3;
        let nodes = founders + usize::try_from(rng.below(3)).unwrap_or(0);
        let shape = Shape {
            nodes,
            founders: match options.scenario {
                Scenario::Faults | Scenario::Limits => founders,
                Scenario::Cuts | Scenario::Update => nodes,
            },
            partition_bits: 4,
            lost_after: rng.between(5, 10),
            threads: 1 + usize::try_from(rng.below(2)).unwrap_or(0),
            bug: options.bug,
        };
        let mut sim = network(&mut rng);
        let history = Rc::new(RefCell::new(History::new(options.keeps_lines)));
        history.borrow_mut().note(Duration::ZERO, &format!("{shape:?}"));
        let hosts = hosts_of(&shape, options, &history);
        if rng.chance(1, 2) && !options.scenario.has_editors() {
            // One clock is wrong, so most of the others agree.
            let number = usize::try_from(rng.below(shape.nodes as u64)).unwrap_or(0);
            let ahead_ms = rng.pick(&CLOCK_STEPS_MS).unwrap_or(0);
            hosts[number].set_clock(if rng.chance(1, 2) { ahead_ms } else { -ahead_ms }, 0);
        }
        let hosts = Rc::new(hosts);
        for number in 0..shape.nodes {
            let shared = Rc::clone(&hosts);
            sim.host(hosts[number].address, move || shared[number].life());
        }
        let addresses: Vec<IpAddr> = hosts.iter().map(|host| host.address).collect();
        let work = Rc::new(Work::new(&history, addresses, rng.between(2, 20)));
        let mut faults = Faults::new(Rng::new(rng.draw()), &history, &hosts);
        let clients = if options.scenario.has_editors() { 2 } else { rng.between(3, 6) };
        let crowd: Vec<Rng> = (0..clients).map(|_| Rng::new(rng.draw())).collect();
        let shared = Rc::clone(&work);
        sim.client(CLIENTS, async move {
            shared.begun.notified().await;
            for (number, rng) in crowd.into_iter().enumerate() {
                tokio::task::spawn_local(Rc::clone(&shared).client(number, rng));
            }
            std::future::pending::<()>().await;
            Ok(())
        });
        let editors = options.scenario.has_editors().then(|| {
            faults.may_skew = false;
            let editors = Rc::new(Editors::new(&history, work.nodes.clone()));
            edit(&mut sim, &editors, &mut rng);
            editors
        });
        Self {
            sim,
            hosts,
            shape,
            work,
            faults,
            watch: Watch::default(),
            editors,
            changes: ChangeWatch::default(),
            rng,
            history,
            looked: Duration::ZERO,
        }
    }

    fn run(mut self, options: &Options) -> Report {
        let mut report = Report::default();
        self.phases(options, &mut report);
        let history = self.history.borrow();
        report.trace = history.sum();
        report.lines.clone_from(&history.lines);
        report.violations.clone_from(&history.violations);
        report.requests = history.requests.len();
        report.answered = history.requests.iter().filter(|it| !it.is_unknown()).count();
        report.changes = self.editors.as_ref().map(|_| self.changes.counts);
        report.faults = self.faults.count;
        report.simulated = self.sim.elapsed();
        drop(history);
        drop(self);
        simulation::end();
        report
    }

    fn phases(&mut self, options: &Options, report: &mut Report) {
        let joiners = self.shape.founders..self.shape.nodes;
        for number in joiners.clone() {
            self.hosts[number].is_up.set(false);
            self.sim.crash(self.hosts[number].address);
        }
        let founders = self.shape.founders;
        let begun =
            self.until(BEGIN_MAX, |run| invariants::liveness::is_at_rest(&run.sights(), founders));
        let Some(begun) = begun else {
            self.violation("the cluster does not begin");
            return;
        };
        self.note(&format!("begun after {begun:?}"));
        self.work.begun.notify_one();
        if options.scenario == Scenario::Update {
            return self.update(report);
        }
        if !self.begin_editing() {
            return;
        }
        for number in joiners {
            self.faults.join_later(&self.sim, number, options.trouble);
        }
        let end = self.sim.elapsed() + options.trouble;
        while self.sim.elapsed() < end && self.step() {
            if options.scenario == Scenario::Cuts {
                self.faults.cut_one(&mut self.sim);
            } else {
                self.faults.step(&mut self.sim);
            }
        }
        self.end(report);
    }

    /// Starts the editors once the cluster takes their changes.
    pub(crate) fn begin_editing(&mut self) -> bool {
        let Some(editors) = self.editors.clone() else { return true };
        let is_new = |run: &mut Self| {
            let sights = run.sights();
            !sights.is_empty()
                && sights
                    .iter()
                    .all(|(_, sight)| sight.map.settings().version == FEATURE_VERSION_MAX)
        };
        if self.until(BEGIN_MAX, is_new).is_none() {
            self.violation("the cluster does not take changes");
            return false;
        }
        editors.begun.notify_one();
        if self.until(BEGIN_MAX, |_| editors.is_filled.get()).is_none() {
            self.violation("the history is not filled");
            return false;
        }
        true
    }

    /// Ends the faults, waits until the cluster is at rest, and checks all properties.
    pub(crate) fn end(&mut self, report: &mut Report) {
        self.note("healed");
        self.faults.heal(&mut self.sim);
        let patience = invariants::liveness::patience(self.shape.lost_after);
        let served = self.until(patience.served, |run| {
            run.faults.start_all(&mut run.sim);
            run.is_served()
        });
        let rest = served.and_then(|_| {
            self.until(patience.rest, |run| {
                run.faults.start_all(&mut run.sim);
                run.is_at_rest()
            })
        });
        let (Some(served), Some(rest)) = (served, rest) else {
            let what = invariants::liveness::what_is_missing(&self.sights());
            self.violation(&what);
            return;
        };
        (report.served_after, report.rest_after) = (served, served + rest);
        // The clients work without faults for a second, then stop.
        self.until(Duration::from_secs(1), |_| false);
        self.work.is_over.set(true);
        if let Some(editors) = &self.editors {
            editors.is_over.set(true);
        }
        let is_over = |run: &mut Self| {
            let editors = run.editors.as_ref().map_or(0, |editors| editors.running.get());
            run.work.running.get() + editors == 0
        };
        if self.until(Duration::from_secs(20), is_over).is_none() {
            self.violation("clients wait for ever");
            return;
        }
        // Messages in flight arrive, and the last overrides expire.
        let last = if self.editors.is_some() { 6 } else { 2 };
        self.until(Duration::from_secs(last), |_| false);
        let evidence = Evidence {
            unix_ms: u64::try_from(self.sim.since_epoch().as_millis()).unwrap_or(0),
            sights: self.sights(),
        };
        let mut found = invariants::check(&self.history.borrow(), &self.watch, &evidence);
        invariants::answered::check(&self.history.borrow(), &self.faults.cuts, &mut found);
        if let Some(editors) = &self.editors {
            self.changes.check(editors, &evidence.sights, &mut found);
            found.extend(self.changes.counts.too_rare());
        }
        for what in found {
            self.violation(&what);
        }
    }

    /// Advances by a millisecond. Returns false if the run cannot continue.
    pub(crate) fn step(&mut self) -> bool {
        if let Err(error) = self.sim.step() {
            self.violation(&format!("the world ends: {error}"));
            return false;
        }
        let now = self.sim.elapsed();
        if now >= self.looked + LOOK {
            self.looked = now;
            let sights = self.sights();
            self.watch.look(now, &sights, &mut self.history.borrow_mut());
            if self.editors.is_some() {
                let mut found = Vec::new();
                self.changes.look(&sights, &mut found);
                for what in found {
                    self.violation(&what);
                }
            }
        }
        true
    }

    /// Runs until `is_so` returns true; returns the elapsed time, or `None` after `most`.
    pub(crate) fn until(
        &mut self,
        most: Duration,
        is_so: impl Fn(&mut Self) -> bool,
    ) -> Option<Duration> {
        let start = self.sim.elapsed();
        loop {
            let passed = self.sim.elapsed().saturating_sub(start);
            if is_so(self) {
                return Some(passed);
            }
            if passed >= most {
                return None;
            }
            for _ in 0..10 {
                if !self.step() {
                    return None;
                }
            }
        }
    }

    pub(crate) fn sights(&self) -> Vec<(IpAddr, SimulatedNode)> {
        let running = self.hosts.iter().filter(|host| host.is_up.get());
        running.filter_map(|host| Some((host.address, simulation::view(host.address)?))).collect()
    }

    fn is_served(&self) -> bool {
        invariants::liveness::is_served(&self.sights(), self.shape.nodes)
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        invariants::liveness::is_at_rest(&self.sights(), self.shape.nodes)
    }

    pub(crate) fn note(&self, what: &str) {
        self.history.borrow_mut().note(self.sim.elapsed(), what);
    }

    pub(crate) fn violation(&self, what: &str) {
        self.history.borrow_mut().violation(self.sim.elapsed(), what);
    }
}
