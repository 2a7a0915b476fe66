//! Five nodes with three copies under constant load, and every fault of this suite mixed at random.
//!
//! Each round hits one or two nodes (they die, are replaced, stop, are cut off, drain), and
//! meanwhile clocks step, links are cut, disks fail or are slow, and processors are busy. No
//! acknowledged count may be lost, and none repeated. `NODES_SECONDS` lets it continue for that
//! time, `NODES_SEED` repeats a run's choices; without them it does a few rounds. Not here: the
//! duration of each fault's effect (`promises`).

use std::{
    env, process, thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use nix::sys::signal::Signal;

use super::{
    disks::library,
    net::Net,
    nodes::{Cluster, Disks},
    work::Work,
};

const NODES: u8 = 5;
/// The number of rounds without `NODES_SECONDS`.
const ROUNDS: u32 = 4;
const KEYS: usize = 60;
/// Replies that clients receive before the faults of a round and after them.
const SOME: u64 = 300;
/// A node that is not heard for 1.5 s is declared dead within this time.
const DETECTED: Duration = Duration::from_secs(2);

/// A fault that takes a node's counts out of reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blow {
    Kill,
    Replace,
    Standstill,
    CutOff,
    Drain,
}

const BLOWS: [Blow; 5] = [Blow::Kill, Blow::Replace, Blow::Standstill, Blow::CutOff, Blow::Drain];

/// A fault that leaves every node its counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Clock(i64),
    /// Packets to another node vanish, in one direction or both.
    Link {
        to: u8,
        both: bool,
    },
    Disk(&'static str),
    /// Processes that compute all the time.
    Busy,
}

/// Random numbers from a seed: `SplitMix64`.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn one_of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// `count` different nodes.
    fn nodes(&mut self, count: usize) -> Vec<u8> {
        let mut all: Vec<u8> = (0..NODES).collect();
        (0..count).map(|_| all.swap_remove(self.below(all.len() as u64) as usize)).collect()
    }

    fn trouble(&mut self, node: u8) -> Trouble {
        match self.below(4) {
            0 => Trouble::Clock(self.one_of(&[3600, -3600, 86_400, -86_400, 120, -120])),
            1 => {
                let to = (node + 1 + self.below(u64::from(NODES) - 1) as u8) % NODES;
                Trouble::Link { to, both: self.below(2) == 0 }
            }
            2 => Trouble::Disk(self.one_of(&["eio", "enospc", "slow"])),
            _ => Trouble::Busy,
        }
    }
}

/// Processes that compute until they are dropped.
pub(super) struct Busy(Vec<process::Child>);

impl Busy {
    pub(super) fn start(count: usize) -> Self {
        let spin = || process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        Self((0..count).map(|_| spin().expect("there is a shell")).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn strike(cluster: &mut Cluster, node: u8, blow: Blow) {
    match blow {
        Blow::Kill | Blow::Replace => cluster.kill(node),
        Blow::Standstill => cluster.signal(node, Signal::SIGSTOP),
        Blow::CutOff => cluster.net().isolate(node),
        Blow::Drain => cluster.signal(node, Signal::SIGTERM),
    }
}

/// Ends a blow. The caller heals cuts. A node whose disk failed ends with an error.
fn mend(cluster: &mut Cluster, (node, blow): (u8, Blow), had_disk_trouble: bool) {
    match blow {
        Blow::Kill => cluster.restart(node),
        Blow::Replace => cluster.replace(node),
        Blow::Standstill => cluster.signal(node, Signal::SIGCONT),
        Blow::CutOff => {}
        Blow::Drain => {
            let status = cluster.until_ended(node);
            assert!(status.success() || had_disk_trouble, "{}", cluster.log(node));
            cluster.restart(node);
        }
    }
}

fn begin(cluster: &Cluster, node: u8, trouble: Trouble, busy: &mut Vec<Busy>) {
    match trouble {
        Trouble::Clock(seconds) => cluster.set_clock(node, seconds),
        Trouble::Link { to, both } => {
            cluster.net().lose(node, to);
            if both {
                cluster.net().lose(to, node);
            }
        }
        Trouble::Disk(kind) => cluster.set_trouble(node, Some(kind)),
        Trouble::Busy => busy.push(Busy::start(2)),
    }
}

fn round(cluster: &mut Cluster, chance: &mut Chance) {
    let count = 1 + chance.below(2) as usize;
    let blows: Vec<(u8, Blow)> =
        chance.nodes(count).into_iter().map(|node| (node, chance.one_of(&BLOWS))).collect();
    let count = chance.below(3) as usize;
    let troubles: Vec<(u8, Trouble)> =
        chance.nodes(count).into_iter().map(|node| (node, chance.trouble(node))).collect();
    println!("{blows:?}, {troubles:?}");
    let work = Work::start(cluster, 6, KEYS);
    work.until_answered(SOME);
    let hit = |number: &u8| blows.iter().all(|(node, _)| node != number);
    let rest: Vec<u8> = (0..NODES).filter(hit).collect();
    let start = Instant::now();
    let mut busy = Vec::new();
    for (node, trouble) in &troubles {
        begin(cluster, *node, *trouble, &mut busy);
        thread::sleep(Duration::from_millis(chance.below(400)));
    }
    work.use_nodes(rest.iter().map(|number| cluster.address(*number)).collect());
    for (node, blow) in &blows {
        strike(cluster, *node, *blow);
        thread::sleep(Duration::from_millis(chance.below(600)));
    }
    thread::sleep(Duration::from_millis(chance.below(3000)));
    cluster.net().heal();
    for (node, trouble) in &troubles {
        match trouble {
            Trouble::Clock(_) => cluster.set_clock(*node, 0),
            Trouble::Disk(_) => cluster.set_trouble(*node, None),
            Trouble::Link { .. } | Trouble::Busy => {}
        }
    }
    busy.clear();
    for (node, blow) in blows {
        let is_disk =
            |(of, trouble): &(u8, Trouble)| *of == node && matches!(trouble, Trouble::Disk(_));
        mend(cluster, (node, blow), troubles.iter().any(is_disk));
    }
    // A node that was cut off for a moment may still be declared dead, and its copies with it.
    thread::sleep(DETECTED);
    cluster.until_at_rest(NODES.into());
    work.use_nodes(cluster.addresses());
    work.until_answered(SOME);
    let account = work.settle(cluster, rest[0]);
    println!(
        "  {} answers in {:?}, {} broken connections, longest pause {:?}, errors {:?}",
        account.answered,
        start.elapsed(),
        account.broken,
        account.longest,
        account.kinds()
    );
}

#[test]
fn faults_mixed_at_random_lose_and_repeat_no_count() {
    let Some(net) = Net::or_say_why("all faults mixed") else { return };
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = number("NODES_SEED").unwrap_or(u64::from(now.subsec_nanos()));
    println!("NODES_SEED={seed}");
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let disks = Disks::Troubled(library(folder.path()));
    let flags = ["--partition-bits", "8", "--replicas", "3"];
    let mut cluster = Cluster::start_with_clocks_in(Some(net), disks, &[0; 5], &flags);
    let mut chance = Chance(seed);
    let (start, longest) = (Instant::now(), number("NODES_SECONDS").map(Duration::from_secs));
    let mut rounds = 0;
    while longest.map_or(rounds < ROUNDS, |longest| start.elapsed() < longest) {
        round(&mut cluster, &mut chance);
        rounds += 1;
    }
    println!("{rounds} rounds in {:?}", start.elapsed());
}
