//! Disks under the control log that fail, fill or are slow, while nodes count and others restart.
//!
//! Here: no acknowledged count is lost, another node leads, the node reports the fault, and
//! continues when its disk works again. `DISKS=all` tries every fault at a leader, a voter that
//! follows, and a node that does not vote; without it only the worst. Not here: the same from seeds
//! (`tests/sim`).

use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use super::{
    nodes::{Cluster, Disks, LONG, mount},
    pairs::leader,
    work::Work,
};

/// Replies that clients receive between two events.
const SOME: u64 = 200;
/// The time limit for a node to report the fault of its disk.
const SAID_WITHIN: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Leader,
    Follower,
    /// A node that does not vote.
    Observer,
}

/// The preloaded library that causes disk faults; built once for a test.
pub(super) fn library(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/disk_trouble.c");
    let library = folder.join("disk_trouble.so");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(source)
        .arg("-ldl")
        .status();
    assert!(built.is_ok_and(|status| status.success()), "cc builds disk_trouble.c");
    library
}

#[track_caller]
fn until(cluster: &Cluster, what: &str, holds: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONG, "{what}: {}", cluster.logs());
        thread::sleep(Duration::from_millis(20));
    }
    start.elapsed()
}

fn disk(cluster: &Cluster, number: u8) -> String {
    cluster.stat(number, "disk").unwrap_or_default()
}

fn find(cluster: &Cluster, role: Role, nodes: u8) -> u8 {
    let led = leader(cluster, nodes);
    let voters = cluster.stat(led, "voters").expect("it answers");
    let is_voter = |number: u8| {
        let id = cluster.stat(number, "node").expect("it answers");
        voters.split(',').any(|voter| voter == id)
    };
    let found = (0..nodes).find(|&number| match role {
        Role::Leader => number == led,
        Role::Follower => number != led && is_voter(number),
        Role::Observer => !is_voter(number),
    });
    found.expect("four nodes have one of each")
}

/// One disk has a fault while clients count and another node is killed and restarted.
fn has_trouble(
    cluster: &mut Cluster,
    role: Role,
    begin: impl Fn(&Cluster, u8),
    kinds: &[&str],
) -> u8 {
    let number = find(cluster, role, 4);
    let work = Work::start(cluster, 4, 40);
    work.until_answered(SOME);
    begin(cluster, number);
    let said = until(cluster, "it says so", || kinds.contains(&disk(cluster, number).as_str()));
    println!("{role:?} with {kinds:?}: said after {said:?}");
    assert!(said < SAID_WITHIN, "{said:?} {}", cluster.logs());
    assert_ne!(cluster.stat(number, "fault").as_deref(), Some("-"), "it says what is wrong");
    if role == Role::Leader {
        let took = until(cluster, "another leads", || leader(cluster, 4) != number);
        println!("another leads after {took:?}");
    }
    let other = (0..4).find(|other| *other != number && *other != leader(cluster, 4));
    let other = other.expect("four nodes");
    let rest = cluster.addresses().into_iter().filter(|place| *place != cluster.address(other));
    work.use_nodes(rest.collect());
    cluster.kill(other);
    work.until_answered(SOME);
    cluster.restart(other);
    cluster.until_at_rest(4);
    work.use_nodes(cluster.addresses());
    work.until_answered(SOME);
    // Every acknowledged count is there.
    work.settle(cluster, other);
    number
}

fn works_again(cluster: &mut Cluster, number: u8) {
    let took = until(cluster, "its disk works", || disk(cluster, number) == "fine");
    println!("fine again after {took:?}");
    cluster.until_at_rest(4);
}

#[test]
fn a_failing_disk_costs_no_acknowledged_count() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mut cluster = Cluster::start_on(Disks::Troubled(library(folder.path())), 4, &[]);
    let all: Vec<(Role, &str)> = [Role::Leader, Role::Follower, Role::Observer]
        .into_iter()
        .flat_map(|role| ["eio", "slow", "enospc", "erofs"].map(|trouble| (role, trouble)))
        .collect();
    let few = [(Role::Leader, "eio"), (Role::Leader, "slow"), (Role::Follower, "enospc")];
    let is_full = env::var("DISKS").as_deref() == Ok("all");
    for &(role, trouble) in if is_full { &all[..] } else { &few } {
        println!("{role:?}: {trouble}");
        let begin = |cluster: &Cluster, number| cluster.set_trouble(number, Some(trouble));
        let kinds: &[&str] = if trouble == "slow" { &["slow"] } else { &["failed", "full"] };
        let number = has_trouble(&mut cluster, role, begin, kinds);
        cluster.set_trouble(number, None);
        works_again(&mut cluster, number);
    }
}

#[test]
fn a_full_disk_costs_no_acknowledged_count() {
    let tried = tempfile::tempdir().expect("a temporary folder can be made");
    if let Err(why) = mount(tried.path()) {
        let message =
            format!("\n*** SKIPPED a full disk: nothing can be mounted here: {why} ***\n");
        let _ = std::io::stderr().write_all(message.as_bytes());
        return;
    }
    let unmounted = Command::new("umount").arg(tried.path()).status();
    assert!(unmounted.is_ok_and(|status| status.success()), "what was mounted can be unmounted");
    let mut cluster = Cluster::start_on(Disks::Small, 4, &[]);
    let ballast = |cluster: &Cluster, number| cluster.data(number).join("ballast");
    let begin = |cluster: &Cluster, number| {
        let mut file = fs::File::create(ballast(cluster, number)).expect("it has room yet");
        while file.write_all(&[0; 4096]).is_ok() {}
    };
    let roles = [Role::Leader, Role::Follower, Role::Observer];
    let is_full = env::var("DISKS").as_deref() == Ok("all");
    for &role in if is_full { &roles[..] } else { &roles[..1] } {
        let number = has_trouble(&mut cluster, role, begin, &["failed", "full"]);
        fs::remove_file(ballast(&cluster, number)).expect("it is there");
        works_again(&mut cluster, number);
    }
}

#[test]
fn a_node_with_a_failed_disk_drains_and_ends_with_1() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mut cluster = Cluster::start_on(Disks::Troubled(library(folder.path())), 3, &[]);
    let number = leader(&cluster, 3);
    let work = Work::start(&cluster, 4, 40);
    work.until_answered(SOME);
    cluster.set_trouble(number, Some("eio"));
    until(&cluster, "it says so", || disk(&cluster, number) == "failed");
    until(&cluster, "another leads", || leader(&cluster, 3) != number);
    let rest = cluster.addresses().into_iter().filter(|place| *place != cluster.address(number));
    work.use_nodes(rest.collect());
    let ended = cluster.end(number);
    assert_eq!(ended.code(), Some(1), "{}", cluster.log(number));
    work.until_answered(SOME);
    work.settle(&cluster, (number + 1) % 3);
}

#[test]
fn a_lone_node_with_a_failed_disk_serves_on() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mut cluster = Cluster::start_on(Disks::Troubled(library(folder.path())), 1, &[]);
    assert_eq!(cluster.ask(0, "set k 0 0 1\r\n0\r\n"), "STORED");
    cluster.set_trouble(0, Some("eio"));
    until(&cluster, "it says so", || disk(&cluster, 0) == "failed");
    for count in 1..=20 {
        assert_eq!(cluster.ask(0, "incr k 1\r\n"), count.to_string());
        thread::sleep(Duration::from_millis(50));
    }
    let lines = cluster.log(0).lines().filter(|line| line.contains("cannot be written")).count();
    assert_eq!(lines, 1, "{}", cluster.log(0));
    cluster.set_trouble(0, None);
    until(&cluster, "its disk works", || disk(&cluster, 0) == "fine");
    assert_eq!(cluster.ask(0, "incr k 1\r\n"), "21");
    cluster.set_trouble(0, Some("erofs"));
    until(&cluster, "it says so", || disk(&cluster, 0) != "fine");
    until(&cluster, "it fails", || disk(&cluster, 0) == "failed");
    let start = Instant::now();
    let ended = cluster.end(0);
    assert_eq!(ended.code(), Some(1), "{}", cluster.log(0));
    assert!(start.elapsed() < Duration::from_secs(15), "there is nobody to wait for");
}
