//! Whole control planes in one process, on paused time.

mod disks;
mod durable;
mod failures;
mod founding;
mod members;
mod proposals;
mod survival;
mod thousand;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::id::{Incarnation, NodeId};
use cluster::map::command::{MapChange, Setting, Transition};
use cluster::map::{Map, MapCommand, NodeDescription, NodeState};
use cluster::placement::{Placement, Scheme};
use cluster::{CopyId, Partition};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::simulation::{Disk, SimNetwork};
use crate::{Control, ControlOptions, MembershipState, StartMode, WakeGrid};

/// One heartbeat period, and the round trip.
const BEAT: Duration = Duration::from_millis(256 + 4);
const TTL: Duration = Duration::from_secs(5);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Nodes by name; a name is also an address.
struct World {
    net: SimNetwork,
    names: Vec<&'static str>,
    nodes: BTreeMap<&'static str, Running>,
    starts: u128,
    zones: BTreeMap<&'static str, &'static str>,
    bits: u8,
}

struct Running {
    control: Control,
    disk: Disk,
    serving: JoinHandle<()>,
}

impl World {
    fn new(seed: u64, names: &[&'static str]) -> Self {
        Self {
            net: SimNetwork::new(seed),
            names: names.to_vec(),
            nodes: BTreeMap::new(),
            starts: u128::from(seed) << 32,
            zones: BTreeMap::new(),
            bits: 3,
        }
    }

    async fn start_on(&mut self, name: &'static str, disk: Disk, begin: StartMode) -> Control {
        self.starts += 1;
        let store = disk.store().expect("the disk works");
        let mut options = options(name, self.starts, self.bits, begin);
        options.description.zone = self.zones.get(name).copied().unwrap_or_default().to_owned();
        options.seeds = self.names.iter().map(|&name| name.to_owned()).collect();
        let control = Control::start(store, options, self.net.peers(name)).await.expect("it works");
        self.net.attach(name, control.clone());
        let serving = tokio::spawn(serve_partitions(control.clone()));
        self.nodes.insert(name, Running { control: control.clone(), disk, serving });
        control
    }

    async fn start(&mut self, name: &'static str, begin: StartMode) -> Control {
        self.start_on(name, Disk::new(), begin).await
    }

    /// A cluster founded by the first of `names`; all nodes are members.
    async fn cluster(seed: u64, names: &[&'static str]) -> Self {
        let mut world = Self::new(seed, names);
        for (at, name) in names.iter().enumerate() {
            let begin = if at == 0 { StartMode::Found } else { StartMode::Join };
            world.start(name, begin).await;
            world.is_in(name).await;
        }
        world
    }

    async fn is_in(&self, name: &'static str) -> NodeId {
        timeout(ms(20_000), self.at(name).registered()).await.expect("it gets in").0
    }

    fn at(&self, name: &'static str) -> &Control {
        &self.nodes[name].control
    }

    /// Ends the process at once; unsynced writes are lost.
    async fn kill(&mut self, name: &'static str) -> Disk {
        self.net.detach(name);
        self.end(name).await
    }

    /// Ends the host at once.
    async fn power_off(&mut self, name: &'static str) -> Disk {
        self.net.darken(name);
        self.end(name).await
    }

    async fn end(&mut self, name: &'static str) -> Disk {
        let running = self.nodes.remove(name).expect("it runs");
        running.disk.cut();
        running.serving.abort();
        running.control.stop().await;
        running.disk.after_power_cut(|| false)
    }

    fn leader(&self) -> Option<&'static str> {
        let leads = |(name, running): (&&'static str, &Running)| {
            let status = running.control.status();
            let me = status.identity.membership?.node;
            (status.leader == Some(me) && status.contact? < ms(500)).then_some(*name)
        };
        self.nodes.iter().find_map(leads)
    }

    /// Waits until `holds` returns true. Returns the time that took.
    async fn until(
        &self,
        what: &'static str,
        longest: Duration,
        holds: impl Fn(&Self) -> bool,
    ) -> Duration {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < longest, "not within {longest:?}: {what}\n{}", self.show());
            sleep(ms(5)).await;
        }
        start.elapsed()
    }

    fn show(&self) -> String {
        let one = |(name, running): (&&str, &Running)| {
            let nodes: Vec<_> = running
                .control
                .map()
                .nodes()
                .iter()
                .map(|(id, node)| (id.0, node.state, node.incarnation.0))
                .collect();
            format!("{name}: {:?} {nodes:?}\n", running.control.status())
        };
        self.nodes.iter().map(one).collect()
    }

    async fn voters_are(&self, wanted: &[u32], longest: Duration) -> Duration {
        let wanted: BTreeSet<NodeId> = wanted.iter().map(|&id| NodeId(id)).collect();
        self.until("the voters", longest, move |world| {
            world.nodes.values().all(|running| running.control.status().voters == wanted)
        })
        .await
    }

    /// Whether all nodes have the same map.
    fn is_even(&self) -> bool {
        let mut maps = self.nodes.values().map(|running| running.control.map());
        let first = maps.next().expect("one runs");
        maps.all(|map| map == first)
    }
}

/// Acts as a server for the partitions of which it is primary: copies, and hands over.
async fn serve_partitions(control: Control) {
    let mut watch = control.watch();
    loop {
        let map = watch.changed().await.map;
        let Some(membership) = control.identity().membership else { continue };
        for (partition, entry) in (0..).map(Partition).zip(map.partitions()) {
            let Some(primary) = entry.primary.filter(|copy| copy.node == membership.node) else {
                continue;
            };
            let living = |copy: &CopyId| map.is_living(*copy);
            let step = match (entry.transfer_to, entry.learner) {
                (Some(to), _) if entry.in_sync.iter().all(living) && to != primary => {
                    Transition::Transfer(to)
                }
                (_, Some(learner)) if living(&learner) => Transition::AddInSync(learner),
                _ => continue,
            };
            let change = MapChange { partition, ver: entry.ver, transition: step };
            let _ = control.propose(MapCommand::Partitions(vec![change]), TTL).await;
        }
    }
}

fn options(name: &str, seed: u128, bits: u8, begin: StartMode) -> ControlOptions {
    ControlOptions {
        // Node uuids ascend in the order of starts.
        seed,
        description: NodeDescription {
            client_address: name.to_owned(),
            peer_address: name.to_owned(),
            ring_name: name.to_owned(),
            weight: 1,
            zone: String::new(),
        },
        placement: Placement::new(Scheme::Ketama, bits).expect("few"),
        begin,
        seeds: vec![],
        grid: WakeGrid::from_now(),
    }
}

/// Proposes a command that must not be refused.
async fn done(control: &Control, command: MapCommand) {
    let outcome = control.propose(command, TTL).await.expect("a leader");
    outcome.answer.expect("it is allowed");
}

fn is_dead(at: &'static str, id: u32) -> impl Fn(&World) -> bool {
    move |world| state(&world.at(at).map(), id) == Some(NodeState::Dead)
}

fn put(name: &str, version: u64, body: &str) -> MapCommand {
    MapCommand::PutLimit { name: name.to_owned(), version, body: Some(body.as_bytes().to_vec()) }
}

fn body(map: &Map, name: &str) -> Option<String> {
    map.limits().get(name).map(|limit| String::from_utf8_lossy(&limit.body).into_owned())
}

fn state(map: &Map, id: u32) -> Option<NodeState> {
    map.nodes().get(&NodeId(id)).map(|node| node.state)
}
