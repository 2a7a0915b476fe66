//! The hosts of nodes: their disks and clocks outlive the processes.
//!
//! Here: the state of a host, and the start of a node on it. Not here: when it starts (`faults`).

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate::config::{Config, Startup};
use tollgate::simulation::{Bug, Disk, NodeLife, PEER_VERSION_NEW, Rules, Skew};
use tollgate_limits::Limits;

use crate::history::History;

/// The ports for clients and for nodes.
pub(crate) const PORTS: (u16, u16) = (11211, 21211);

/// The limits file of every node: without limits, because clients write their policies.
const LIMITS: &str = "";

/// A host.
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) address: IpAddr,
    pub(crate) disk: RefCell<Disk>,
    pub(crate) skew: Arc<Skew>,
    /// Whether its process runs.
    pub(crate) is_up: Rc<Cell<bool>>,
    /// Whether its process ended because the cluster has removed the node.
    pub(crate) has_left: Rc<Cell<bool>>,
    /// The newest peer protocol of its next process.
    pub(crate) peer_version: Cell<u16>,
    map_rules: Rules,
    args: Vec<String>,
    history: Rc<RefCell<History>>,
}

/// The setup of a cluster.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) nodes: usize,
    /// The number of nodes that found the cluster; the others join.
    pub(crate) founders: usize,
    pub(crate) partition_bits: u8,
    pub(crate) lost_after: u64,
    pub(crate) threads: usize,
    /// A rule that is left out.
    pub(crate) bug: Option<Bug>,
}

/// The rules of a node's map. A map that takes later bounds too early is one node's, so that it
/// differs from the others.
fn map_rules(number: usize, bug: Option<Bug>) -> Rules {
    let bug = bug.filter(|bug| *bug != Bug::BoundsBeforeVersion || number == 1);
    bug.map(Rules::without).unwrap_or_default()
}

/// The address of clients.
pub(crate) const CLIENTS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 1));

/// The address of editors.
pub(crate) const EDITORS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 2));

fn address_of(number: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, u8::try_from(number + 1).unwrap_or(u8::MAX)))
}

impl Host {
    pub(crate) fn new(number: usize, shape: &Shape, history: &Rc<RefCell<History>>) -> Self {
        let address = address_of(number);
        let seeds: Vec<String> =
            (0..shape.founders).map(|at| format!("{}:{}", address_of(at), PORTS.1)).collect();
        let seeds = seeds.join(",");
        let (port, peer) = PORTS;
        let mut args = vec![
            "tollgate".to_owned(),
            format!("--listen={address}:{port}"),
            format!("--peer-listen={address}:{peer}"),
            format!("--threads={}", shape.threads),
            "--memory-limit=64".to_owned(),
            format!("--partition-bits={}", shape.partition_bits),
            format!("--lost-after={}", shape.lost_after),
            "--replicas=2".to_owned(),
            "--on-unavailable=error".to_owned(),
            "--drain-timeout=20".to_owned(),
            "--insecure".to_owned(),
            "--enable-shutdown".to_owned(),
            format!("--seeds={seeds}"),
        ];
        if number < shape.founders {
            args.push(format!("--expect={}", shape.founders));
        }
        Self {
            name: format!("n{}", number + 1),
            address,
            disk: RefCell::default(),
            skew: Arc::default(),
            is_up: Rc::new(Cell::new(true)),
            has_left: Rc::default(),
            peer_version: Cell::new(PEER_VERSION_NEW),
            map_rules: map_rules(number, shape.bug),
            args,
            history: Rc::clone(history),
        }
    }

    /// The configuration of its nodes.
    pub(crate) fn config(&self) -> Result<Config, String> {
        match Config::from_sources(self.args_os(), []) {
            Ok(Startup::Serve(config)) => Ok(*config),
            Ok(_) => Err("the arguments ask for something else".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn args_os(&self) -> Vec<std::ffi::OsString> {
        self.args.iter().map(Into::into).collect()
    }

    /// Runs one incarnation of a node.
    pub(crate) fn life(&self) -> impl Future<Output = turmoil::Result> + use<> {
        self.has_left.set(false);
        let life = self.config().and_then(|config| {
            let limits = Limits::parse("limits", LIMITS.as_bytes());
            Ok(NodeLife {
                config,
                limits: limits.map_err(|error| error.to_string())?,
                disk: self.disk.borrow().clone(),
                skew: Arc::clone(&self.skew),
                address: self.address,
                ports: PORTS,
                peer_version: self.peer_version.get(),
                map_rules: self.map_rules,
            })
        });
        let history = Rc::clone(&self.history);
        let (has_left, is_up) = (Rc::clone(&self.has_left), Rc::clone(&self.is_up));
        let name = self.name.clone();
        async move {
            let ended = match life {
                Ok(life) => life.run().await.map_err(|error| error.to_string()),
                Err(error) => Err(error),
            };
            let now = turmoil::sim_elapsed().unwrap_or_default();
            match ended {
                Ok(left) => {
                    let what = if left { "has left the cluster" } else { "ended by itself" };
                    history.borrow_mut().note(now, &format!("{name} {what}"));
                    has_left.set(left);
                }
                Err(error) => {
                    history.borrow_mut().violation(now, format!("{name} cannot run: {error}"));
                }
            }
            is_up.set(false);
            Ok(())
        }
    }

    /// Corrects its wall clock, as an operator does.
    pub(crate) fn right_clock(&self) {
        self.skew.is_right.store(true, Ordering::Relaxed);
    }

    /// Makes its wall clock wrong.
    pub(crate) fn set_clock(&self, ahead_ms: i64, fast_ppm: i64) {
        self.skew.is_right.store(false, Ordering::Relaxed);
        self.skew.ahead_ms.store(ahead_ms, Ordering::Relaxed);
        self.skew.fast_ppm.store(fast_ppm, Ordering::Relaxed);
    }
}
