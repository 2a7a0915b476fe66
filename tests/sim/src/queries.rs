//! Queries of all nodes: silent nodes, nodes that start again, paths that change.
//!
//! Here: three nodes, asked from one of them, without load; faults at times from a seed. Not here:
//! runs under faults (`world`), the answers themselves (`tollgate::simulation`).

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use model::rng::Rng;
use tollgate::simulation::{self, NodeState, QueryResult};

use crate::history::History;
use crate::invariants::liveness;
use crate::nodes::{Host, Shape};

const NODES: usize = 3;
/// The bound of the server on queries under way.
const ASKED_MAX: usize = 8;
/// The time limits of a query and of a replay, and time for messages.
const QUERY_MAX: Duration = Duration::from_millis(1_300);
const REPLAY_MAX: Duration = Duration::from_millis(6_300);
/// The queries during which a path changes.
const CHANGES: u64 = 12;

struct QueriedNodes {
    sim: turmoil::Sim<'static>,
    hosts: Rc<Vec<Host>>,
    rng: Rng,
    seed: u64,
}

impl QueriedNodes {
    /// Starts a cluster and waits until it is at rest.
    fn begun(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        simulation::begin(rng.draw(), None);
        let mut builder = turmoil::Builder::new();
        builder
            .rng_seed(rng.draw())
            .epoch(SystemTime::UNIX_EPOCH + Duration::from_hours(490_896))
            .simulation_duration(Duration::from_hours(1))
            .min_message_latency(Duration::from_micros(200))
            .max_message_latency(Duration::from_millis(rng.between(1, 5)))
            .tcp_capacity(4096)
            .enable_random_order();
        let mut sim = builder.build();
        let history = Rc::new(RefCell::new(History::new(false)));
        let shape = Shape {
            nodes: NODES,
            founders: NODES,
            partition_bits: 4,
            lost_after: 5,
            threads: 1,
            bug: None,
        };
        let hosts = (0..NODES).map(|number| Host::new(number, &shape, &history)).collect();
        let hosts: Rc<Vec<Host>> = Rc::new(hosts);
        for number in 0..NODES {
            let shared = Rc::clone(&hosts);
            sim.host(hosts[number].address, move || shared[number].life());
        }
        let mut nodes = Self { sim, hosts, rng, seed };
        nodes.until("the cluster is at rest", Self::is_at_rest);
        nodes
    }

    fn is_at_rest(&self) -> bool {
        let views = self.hosts.iter();
        let views: Vec<_> = views
            .filter_map(|host| Some((host.address, simulation::view(host.address)?)))
            .collect();
        liveness::is_at_rest(&views, NODES)
    }

    fn address(&self, number: usize) -> IpAddr {
        self.hosts[number].address
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let end = self.sim.elapsed() + Duration::from_mins(1);
        while !is_so(self) {
            assert!(self.sim.elapsed() < end, "seed {}: not so after long: {what}", self.seed);
            self.sim.step().expect("the world goes on");
        }
    }

    /// Begins queries from the first node.
    fn begin(&mut self, times: usize, is_replay: bool) -> Rc<RefCell<Vec<Option<QueryResult>>>> {
        let results: Rc<RefCell<Vec<Option<QueryResult>>>> = Rc::default();
        let shared = Rc::clone(&results);
        let start = || simulation::start_query(self.address(0), is_replay);
        let started: Vec<_> = (0..times).filter_map(|_| start()).collect();
        let name = format!("asks{}", self.sim.elapsed().as_nanos());
        self.sim.client(name, async move {
            for started in started {
                let result = started.await?;
                shared.borrow_mut().push(result);
            }
            Ok(())
        });
        results
    }

    /// Asks `times` at once; returns the results and the time that all took.
    fn ask(&mut self, times: usize) -> (Vec<Option<QueryResult>>, Duration) {
        let started = self.sim.elapsed();
        let results = self.begin(times, false);
        self.until("all results are there", |_| results.borrow().len() == times);
        (results.take(), self.sim.elapsed().checked_sub(started).unwrap())
    }

    /// Asks once; returns the answers, the names of the missing nodes, and the time.
    fn ask_once(&mut self) -> (Vec<(u32, String)>, Vec<String>, Duration) {
        let (mut results, took) = self.ask(1);
        let result = results.pop().flatten().expect("few queries are under way");
        (result.answers, result.missing, took)
    }

    /// Asks until all nodes answer: after a start the paths of the nodes are still settling.
    fn until_all_answer(&mut self) {
        let end = self.sim.elapsed() + Duration::from_secs(10);
        loop {
            let (_, missing, _) = self.ask_once();
            if missing.is_empty() {
                return;
            }
            assert!(self.sim.elapsed() < end, "seed {}: {missing:?} stay missing", self.seed);
        }
    }

    /// Every node answers, once and with its own address.
    fn check_whole(&mut self) {
        let seed = self.seed;
        let (answers, missing, took) = self.ask_once();
        assert_eq!((answers.len(), missing), (NODES, vec![]), "seed {seed}: {answers:?} {took:?}");
        assert!(took < Duration::from_millis(500), "seed {seed}: {took:?}");
        for (at, (node, answer)) in answers.iter().enumerate() {
            assert_eq!(usize::try_from(*node).ok(), Some(at + 1), "seed {seed}");
            assert!(answer.contains("HotKeys { kind: Denied, count: 7, limit: None }"), "{answer}");
        }
        for host in self.hosts.iter() {
            let from = format!("{} ", host.address);
            let own = answers.iter().filter(|(_, answer)| answer.starts_with(&from));
            assert_eq!(own.count(), 1, "seed {seed}: {answers:?}");
        }
    }

    /// One query more than the bound is refused.
    fn check_bound(&mut self) {
        let (results, _) = self.ask(ASKED_MAX + 1);
        let refused = results.iter().filter(|result| result.is_none()).count();
        assert_eq!(refused, 1, "seed {}: the bound of queries under way", self.seed);
    }

    /// A node that is silent is named in time, and so is one that is dead, at once.
    fn check_silent(&mut self) {
        let seed = self.seed;
        let number = 1 + usize::try_from(self.rng.below(2)).unwrap_or(0);
        let silent = self.address(number);
        let others: Vec<IpAddr> = (0..NODES).map(|number| self.address(number)).collect();
        for other in others.iter().filter(|other| **other != silent) {
            self.sim.hold(*other, silent);
        }
        let (answers, missing, took) = self.ask_once();
        assert_eq!((answers.len(), missing.len()), (NODES - 1, 1), "seed {seed}: {missing:?}");
        assert!(missing[0].contains(&silent.to_string()), "seed {seed}: {missing:?}");
        assert!(took < QUERY_MAX, "seed {seed}: the time limit: {took:?}");
        for other in others.iter().filter(|other| **other != silent) {
            self.sim.release(*other, silent);
        }
        self.until_all_answer();

        self.sim.crash(silent);
        self.until("the node is dead", |nodes| {
            let view = simulation::view(nodes.address(0));
            view.is_some_and(|view| {
                view.map.nodes().values().any(|node| node.state == NodeState::Dead)
            })
        });
        let (answers, dead, took) = self.ask_once();
        assert_eq!((answers.len(), dead), (NODES - 1, missing), "seed {seed}: the same node");
        assert!(
            took < Duration::from_millis(500),
            "seed {seed}: a dead node is not asked: {took:?}"
        );
        self.sim.bounce(silent);
        self.until("the node is back", Self::is_at_rest);
        self.until_all_answer();
    }

    /// A query during which the streams between two nodes end misses no node: it is asked again.
    fn check_changed_paths(&mut self) {
        for time in 0..CHANGES {
            let is_replay = time % 2 == 0;
            let (limit, pause_ms) = if is_replay { (REPLAY_MAX, 600) } else { (QUERY_MAX, 6) };
            let started = self.sim.elapsed();
            let results = self.begin(1, is_replay);
            let strike = started + Duration::from_micros(self.rng.below(pause_ms * 1000));
            self.until("the path changes", |nodes| nodes.sim.elapsed() >= strike);
            let other = 1 + usize::try_from(self.rng.below(2)).unwrap_or(0);
            simulation::break_streams(self.address(0), self.address(other));
            self.until("the result is there", |_| results.borrow().len() == 1);
            let took = self.sim.elapsed().checked_sub(started).unwrap();
            let result = results.take().pop().flatten().expect("few queries are under way");
            let seed = self.seed;
            assert_eq!(result.missing, Vec::<String>::new(), "seed {seed}, query {time}: {took:?}");
            assert_eq!(result.answers.len(), NODES, "seed {seed}, query {time}");
            assert!(took < limit, "seed {seed}, query {time}: {took:?}");
        }
    }

    /// A node that is killed and starts again within the query's time limit answers, or is named.
    fn check_restarted(&mut self) {
        let seed = self.seed;
        let number = 1 + usize::try_from(self.rng.below(2)).unwrap_or(0);
        let address = self.address(number);
        let started = self.sim.elapsed();
        let results = self.begin(1, true);
        let strike = started + Duration::from_micros(self.rng.below(300_000));
        self.until("the node is killed", |nodes| nodes.sim.elapsed() >= strike);
        self.sim.crash(address);
        let back = strike + Duration::from_millis(self.rng.between(20, 400));
        self.until("the node starts again", |nodes| nodes.sim.elapsed() >= back);
        self.sim.bounce(address);
        self.until("the result is there", |_| results.borrow().len() == 1);
        let took = self.sim.elapsed().checked_sub(started).unwrap();
        let result = results.take().pop().flatten().expect("few queries are under way");
        assert!(took < REPLAY_MAX, "seed {seed}: {took:?}");
        assert_eq!(result.answers.len() + result.missing.len(), NODES, "seed {seed}: {result:?}");
        let is_named = |name: &String| name.contains(&address.to_string());
        assert!(result.missing.iter().all(is_named), "seed {seed}: {result:?}");
        self.until("the node is back", Self::is_at_rest);
        self.until_all_answer();
    }
}

impl Drop for QueriedNodes {
    fn drop(&mut self) {
        simulation::end();
    }
}

/// Asks a healthy cluster, too often, while paths change, one with a node that starts again, with a
/// silent node, with a dead node.
///
/// # Panics
///
/// If an answer is not as it should be. The message has the seed.
pub fn check(seed: u64) {
    let mut nodes = QueriedNodes::begun(seed);
    nodes.until_all_answer();
    nodes.check_whole();
    nodes.check_bound();
    nodes.check_changed_paths();
    nodes.check_restarted();
    nodes.check_silent();
    nodes.check_whole();
}
