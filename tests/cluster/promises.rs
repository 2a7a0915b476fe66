//! The table of docs/operations/cluster.md: for each fault and setting, the counts that are kept,
//! the effect on clients, and its duration. Each cell is tried on five real nodes.
//!
//! Clients are connected to nodes that stay. `PROMISES=strict` enforces the times of the table, on
//! an idle machine; without it they may be four times as long. `PROMISES=write` writes the table
//! into the page. Not here: disks, which have tests of their own. Requires network namespaces
//! (`net`) and libfaketime.

use std::{
    env, fmt, fs, thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;

use super::{
    net::Net,
    nodes::{Cluster, Disks},
    work::{Account, Work},
};

const NODES: u8 = 5;
const KEYS: usize = 40;
/// Replies that clients receive before a fault and after it.
const SOME: u64 = 300;
/// The time after which a partition without a living copy starts empty, in these clusters.
const LOST_AFTER: Duration = Duration::from_secs(4);
/// The time that a stopped node stays stopped.
const STANDSTILL: Duration = Duration::from_secs(3);
/// The seconds that a wall clock is set ahead.
const STEP: i64 = 3600;
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations/cluster.md");
const BEGIN: &str = "<!-- promises: tests/cluster/promises.rs writes this table -->\n";
const END: &str = "<!-- end of promises -->\n";

/// A setting of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    OneCopy,
    TwoCopies,
    TwoCopiesEarly,
    ThreeCopies,
}

const SETTINGS: [Setting; 4] =
    [Setting::OneCopy, Setting::TwoCopies, Setting::TwoCopiesEarly, Setting::ThreeCopies];

impl Setting {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::OneCopy => &["--replicas", "1"],
            Self::TwoCopies => &["--replicas", "2"],
            Self::TwoCopiesEarly => &["--replicas", "2", "--ack", "owner"],
            Self::ThreeCopies => &["--replicas", "3"],
        }
    }
}

/// A fault, or an action of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Join,
    Drain,
    Kill,
    KillLeader,
    Standstill,
    CutLink,
    CutOff,
    ClockStep,
    KillTwo,
    RestartAll,
}

const FAULTS: [Fault; 10] = [
    Fault::Join,
    Fault::Drain,
    Fault::Kill,
    Fault::KillLeader,
    Fault::Standstill,
    Fault::CutLink,
    Fault::CutOff,
    Fault::ClockStep,
    Fault::KillTwo,
    Fault::RestartAll,
];

impl Fault {
    fn words(self) -> &'static str {
        match self {
            Self::Join => "a node joins",
            Self::Drain => "a node drains and restarts",
            Self::Kill => "a process dies",
            Self::KillLeader => "the process that leads the control plane dies",
            Self::Standstill => "a host stands still for 3 s, and comes back",
            Self::CutLink => "the link between two nodes loses everything for 3 s",
            Self::CutOff => "a node and all others do not reach each other for 3 s",
            Self::ClockStep => "the wall clock of a node steps by an hour",
            Self::KillTwo => "two processes die at once",
            Self::RestartAll => "all processes die and start again",
        }
    }
}

/// The counts that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    All,
    /// The counts answered before the last 10 ms.
    AllButTheLag,
    /// The counts of partitions with a living copy; the others start empty.
    WhereACopyLives,
    /// Only the map, the limits and the settings.
    None,
}

/// The longest time during which a client gets an error or waits for longer than 250 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Within {
    Ms(u64),
    /// `lost_after` and at most 3 s more.
    LostAfter,
}

/// One cell of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Promise {
    kept: Kept,
    /// No client gets an error.
    no_error: bool,
    within: Within,
}

const fn promise(kept: Kept, no_error: bool, within: Within) -> Promise {
    Promise { kept, no_error, within }
}

fn promised(setting: Setting, fault: Fault) -> Promise {
    use Setting::{OneCopy, ThreeCopies, TwoCopies, TwoCopiesEarly};
    let kept = if setting == TwoCopiesEarly { Kept::AllButTheLag } else { Kept::All };
    match (fault, setting) {
        (Fault::Join | Fault::Drain | Fault::ClockStep, _) => {
            promise(Kept::All, true, Within::Ms(500))
        }
        (Fault::CutOff, OneCopy) => promise(Kept::All, false, Within::Ms(6000)),
        (Fault::Standstill | Fault::CutOff, _) => promise(kept, false, Within::Ms(5000)),
        (Fault::Kill | Fault::KillLeader, OneCopy)
        | (Fault::KillTwo, OneCopy | TwoCopies | TwoCopiesEarly) => {
            promise(Kept::WhereACopyLives, false, Within::LostAfter)
        }
        (Fault::Kill, _) => promise(kept, true, Within::Ms(1000)),
        (Fault::CutLink, _) => promise(kept, true, Within::Ms(2000)),
        (Fault::KillLeader, _) | (Fault::KillTwo, ThreeCopies) => {
            promise(kept, false, Within::Ms(3000))
        }
        (Fault::RestartAll, _) => promise(Kept::None, false, Within::Ms(3000)),
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self.kept {
            Kept::All => "all kept",
            Kept::AllButTheLag => "kept but for the last 10 ms",
            Kept::WhereACopyLives => "kept where a copy lives, others start empty",
            Kept::None => "none kept; map, limits and settings stay",
        })?;
        out.write_str(if self.no_error { "; no error, waits" } else { "; errors and waits" })?;
        match self.within {
            Within::Ms(ms) if ms % 1000 == 0 => write!(out, " end within {} s", ms / 1000),
            Within::Ms(ms) => write!(out, " end within {ms} ms"),
            Within::LostAfter => out.write_str(" end 3 s after `lost_after`"),
        }
    }
}

/// The table in the form of the page.
fn table() -> String {
    let mut table = String::from(
        "| fault | `--replicas 1` | `--replicas 2` | `--replicas 2 --ack owner` | `--replicas 3` |\n\
         |---|---|---|---|---|\n",
    );
    for fault in FAULTS {
        let cells = SETTINGS.map(|setting| promised(setting, fault).to_string());
        table.push_str(&["| ", fault.words(), " | ", &cells.join(" | "), " |\n"].concat());
    }
    table
}

fn leader(cluster: &Cluster, nodes: &[u8]) -> u8 {
    let start = Instant::now();
    loop {
        let leads = |number: &&u8| {
            let leader = cluster.stat(**number, "leader");
            leader.is_some() && leader == cluster.stat(**number, "node")
        };
        if let Some(number) = nodes.iter().find(leads) {
            return *number;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "nobody leads: {}", cluster.logs());
        thread::sleep(Duration::from_millis(20));
    }
}

/// The nodes that a fault hits.
fn victims(cluster: &Cluster, fault: Fault, nodes: &[u8]) -> Vec<u8> {
    let leader = leader(cluster, nodes);
    let others: Vec<u8> = nodes.iter().copied().filter(|number| *number != leader).collect();
    match fault {
        // The clients of a cut link are at both of its ends.
        Fault::Join | Fault::CutLink => Vec::new(),
        Fault::Drain | Fault::KillLeader => vec![leader],
        Fault::Kill | Fault::Standstill | Fault::CutOff | Fault::ClockStep => vec![others[0]],
        Fault::KillTwo => vec![leader, others[1]],
        Fault::RestartAll => nodes.to_vec(),
    }
}

/// The effects of a fault.
struct Measured {
    account: Account,
    /// The time from the fault to the last error, or to the end of the last long wait.
    troubled: Duration,
    /// Counts that were answered and are lost, by key.
    lost: Vec<u64>,
    /// The replies within 10 ms, before the fault.
    in_the_lag: u64,
}

/// Causes a fault under load, and waits until all nodes are at rest again. A joined node becomes
/// one of `nodes`.
fn measure(cluster: &mut Cluster, fault: Fault, nodes: &mut Vec<u8>) -> Measured {
    let victims = victims(cluster, fault, nodes);
    let stays = |number: &u8| !victims.contains(number);
    let stay: Vec<u8> = nodes.iter().copied().filter(stays).collect();
    let places = |of: &[u8]| of.iter().map(|number| cluster.address(*number)).collect::<Vec<_>>();
    let at = if stay.is_empty() { places(nodes) } else { places(&stay) };
    Work::set_up_at(cluster, nodes[0], KEYS);
    let begin = Instant::now();
    let work = Work::on(at, 4, KEYS);
    work.until_answered(SOME);
    let in_the_lag = SOME * 10 / u64::try_from(begin.elapsed().as_millis()).unwrap_or(1).max(1) + 1;
    let count = nodes.len();
    let start = Instant::now();
    match fault {
        Fault::Join => {
            nodes.push(cluster.join());
            cluster.until_at_rest(count + 1);
        }
        Fault::Drain => {
            assert!(cluster.end(victims[0]).success(), "{}", cluster.logs());
            cluster.restart(victims[0]);
            cluster.until_at_rest(count);
        }
        Fault::Kill | Fault::KillLeader | Fault::KillTwo => {
            cluster.kill_all(&victims);
            cluster.until_at_rest(count - victims.len());
        }
        Fault::Standstill => {
            cluster.signal(victims[0], Signal::SIGSTOP);
            thread::sleep(STANDSTILL);
            cluster.signal(victims[0], Signal::SIGCONT);
            cluster.until_at_rest(count);
        }
        Fault::CutLink => {
            let ways = [(nodes[1], nodes[2]), (nodes[2], nodes[1])];
            for (from, to) in ways {
                cluster.net().lose(from, to);
            }
            thread::sleep(STANDSTILL);
            for (from, to) in ways {
                cluster.net().find(from, to);
            }
            cluster.until_at_rest(count);
        }
        Fault::CutOff => {
            cluster.net().isolate(victims[0]);
            thread::sleep(STANDSTILL);
            cluster.net().heal();
            cluster.until_at_rest(count);
        }
        Fault::ClockStep => {
            cluster.set_clock(victims[0], STEP);
            thread::sleep(STANDSTILL);
            cluster.set_clock(victims[0], 0);
            cluster.until_at_rest(count);
        }
        Fault::RestartAll => {
            cluster.kill_all(&victims);
            for number in &victims {
                cluster.restart(*number);
            }
            cluster.until_at_rest(count);
        }
    }
    if fault == Fault::RestartAll {
        // There is no key that could be counted.
        thread::sleep(Duration::from_millis(500));
    } else {
        work.until_answered(SOME);
    }
    let troubled = work.last_trouble().map_or(Duration::ZERO, |last| last - start);
    let account = work.end();
    if matches!(fault, Fault::Kill | Fault::KillLeader | Fault::KillTwo) {
        for number in &victims {
            cluster.restart(*number);
        }
        cluster.until_at_rest(count);
    }
    let lost = account.losses(cluster, nodes[0]);
    Measured { account, troubled, lost, in_the_lag }
}

fn check(cluster: &Cluster, promise: Promise, measured: &Measured, about: &str) {
    let Measured { account, troubled, lost, in_the_lag } = measured;
    let (all, some) = (lost.iter().sum::<u64>(), lost.iter().filter(|lost| **lost > 0).count());
    println!(
        "{about}: {} answers, {all} lost of {some} keys, troubled for {troubled:?}, errors {:?}, \
         {} broken connections",
        account.answered,
        account.kinds(),
        account.broken
    );
    match promise.kept {
        Kept::All => assert_eq!(all, 0, "{about}"),
        // Four clients with one request each may be ahead of the clock.
        Kept::AllButTheLag => assert!(all <= 4 * in_the_lag + 4, "{about}: {all}"),
        Kept::WhereACopyLives => assert!(some < KEYS * 3 / 4, "{about}: {some} keys"),
        Kept::None => assert_eq!(some, KEYS, "{about}"),
    }
    if promise.no_error {
        let errors = account.kinds();
        assert!(errors.is_empty(), "{about}: {errors:?}, until {troubled:?}: {}", cluster.logs());
        assert_eq!(account.broken, 0, "{about}");
    }
    let within = match promise.within {
        Within::Ms(ms) => Duration::from_millis(ms),
        Within::LostAfter => LOST_AFTER + Duration::from_secs(3),
    };
    let is_strict = env::var("PROMISES").as_deref() == Ok("strict");
    let within = if is_strict { within } else { within * 4 };
    assert!(*troubled < within, "{about}: {troubled:?}");
}

/// Tries every fault on a cluster with this setting.
fn keeps_its_promises(setting: Setting) {
    let Some(net) = Net::or_say_why("faults and settings") else { return };
    let lost_after = LOST_AFTER.as_secs().to_string();
    let more = ["--lost-after", &lost_after, "--partition-bits", "8"];
    let flags = [setting.flags(), &more].concat();
    let right = [0; NODES as usize];
    let mut cluster = Cluster::start_with_clocks_in(Some(net), Disks::Plain, &right, &flags);
    let mut nodes: Vec<u8> = (0..NODES).collect();
    for fault in FAULTS {
        let measured = measure(&mut cluster, fault, &mut nodes);
        let about = format!("{setting:?}, {}", fault.words());
        check(&cluster, promised(setting, fault), &measured, &about);
        if fault == Fault::Join {
            let newcomer = nodes.pop().expect("it joined");
            assert!(cluster.end(newcomer).success(), "{}", cluster.logs());
            cluster.until_at_rest(nodes.len());
        }
    }
    let replicas = cluster.stat(0, "replicas").expect("it answers");
    assert_eq!(replicas, setting.flags()[1], "settings stay");
}

#[test]
fn one_copy_keeps_its_promises() {
    keeps_its_promises(Setting::OneCopy);
}

#[test]
fn two_copies_keep_their_promises() {
    keeps_its_promises(Setting::TwoCopies);
}

#[test]
fn two_copies_answered_early_keep_their_promises() {
    keeps_its_promises(Setting::TwoCopiesEarly);
}

#[test]
fn three_copies_keep_their_promises() {
    keeps_its_promises(Setting::ThreeCopies);
}

#[test]
fn the_page_promises_what_is_tried() {
    let page = fs::read_to_string(PAGE).expect("the page is there");
    let (before, rest) = page.split_once(BEGIN).expect("the page says where the table begins");
    let (written, after) = rest.split_once(END).expect("the page says where the table ends");
    if env::var("PROMISES").as_deref() == Ok("write") {
        fs::write(PAGE, [before, BEGIN, &table(), END, after].concat()).expect("it is ours");
        return;
    }
    assert_eq!(written, table(), "PROMISES=write cargo test -p tests promises");
}
