//! The ketama continuum compared with libmemcached's own, key by key.
//!
//! Here: a C program (`clients/ketama.c`) calls the library that PHP, Python and others use,
//! through `memcached_generate_hash`; nothing is sent. `WRITE=1` writes its results for some keys
//! into `cluster/src/placement/golden.txt`, which the cluster's own tests read. Not here:
//! partitions. `tests/setup.sh` installs libmemcached and gcc.

use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    thread,
};

use cluster::placement::ketama::{Circle, hash, ring_name};

/// The keys of a comparison.
const KEYS: usize = 20_000;
/// The most servers that this libmemcached accepts: with more it aborts.
const SERVERS_MAX: usize = 100;
/// The keys of a golden line.
const GOLDEN_KEYS: usize = 400;
const GOLDEN: &str = "../cluster/src/placement/golden.txt";
/// The weights in libmemcached's own ketama test.
const WEIGHTS: [u32; 8] = [600, 300, 200, 350, 1000, 800, 950, 100];

type Server = (String, u16, u32);

fn equal(count: usize, port: u16) -> Vec<Server> {
    (1..=count).map(|n| (format!("10.0.{}.{}", 1 + n / 250, n % 250), port, 1)).collect()
}

fn weighted(port: u16) -> Vec<Server> {
    (1..).zip(WEIGHTS).map(|(n, weight)| (format!("10.0.1.{n}"), port, weight)).collect()
}

/// Different ports, names and weights.
fn mixed() -> Vec<Server> {
    [("localhost", 11211, 1), ("cache-1.example", 11212, 3), ("cache-2.example", 11211, 1000)]
        .map(|(host, port, weight)| (host.to_owned(), port, weight))
        .to_vec()
}

fn circle(servers: &[Server]) -> Circle {
    let named: Vec<(String, u32)> =
        servers.iter().map(|(host, port, weight)| (ring_name(host, *port), *weight)).collect();
    Circle::new(named.iter().map(|(name, weight)| (&**name, *weight)))
}

/// Short, long and unusual keys.
fn keys() -> Vec<String> {
    (0..KEYS)
        .map(|n| match n % 4 {
            0 => format!("key:{n}"),
            1 => format!("{n:0250}"),
            2 => format!("user/{}@\"schlüssel\"?{n}", n * 7919),
            _ => format!("{n:x}"),
        })
        .collect()
}

/// The path of the program, compiled once.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let executable = env::current_exe().expect("a test knows its executable");
        let program = executable.with_file_name("libmemcached-ketama");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/ketama.c");
        let status = Command::new("gcc")
            .args(["-Wall", "-o"])
            .args([&program, &source])
            .arg("-lmemcached")
            .status()
            .expect("gcc starts: run tests/setup.sh");
        assert!(status.success(), "{} compiles: run tests/setup.sh", source.display());
        program
    })
}

/// The index of each key's server according to libmemcached.
fn libmemcached(servers: &[Server], keys: &[String]) -> Vec<u16> {
    let servers = servers.iter().map(|(host, port, weight)| format!("{host}:{port}:{weight}"));
    let mut child = Command::new(program())
        .args(servers)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it was just compiled");
    let mut input = child.stdin.take().expect("it is piped");
    let lines = keys.join("\n") + "\n";
    let writer = thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = child.wait_with_output().expect("the child is ours");
    writer.join().expect("no panic").expect("the program reads all");
    assert!(output.status.success(), "{}", output.status);
    let said = String::from_utf8(output.stdout).expect("numbers");
    let owners: Vec<u16> = said.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(owners.len(), keys.len());
    owners
}

#[track_caller]
fn agrees(servers: &[Server]) {
    let keys = keys();
    let circle = circle(servers);
    let theirs = libmemcached(servers, &keys);
    let differ = (keys.iter().zip(theirs))
        .filter(|(key, theirs)| circle.owner(hash(key.as_bytes())) != Some(*theirs))
        .count();
    assert_eq!(differ, 0, "of {KEYS} keys");
}

#[test]
fn equal_weights_agree() {
    for count in [1, 2, 3, 10, 25, SERVERS_MAX] {
        agrees(&equal(count, 11211));
        agrees(&equal(count, 22122));
    }
}

#[test]
fn unequal_weights_agree() {
    agrees(&weighted(11211));
    agrees(&weighted(22122));
    agrees(&mixed());
}

#[test]
fn the_circle_without_a_server_agrees() {
    // The servers of a client that ejects dead ones; with weights, the others get other points.
    let keys = keys();
    let servers = weighted(11211);
    let circle = circle(&servers);
    for gone in 0..servers.len() {
        let mut left = servers.clone();
        left.remove(gone);
        let theirs = libmemcached(&left, &keys);
        for (key, theirs) in keys.iter().zip(theirs) {
            let theirs = theirs + u16::from(usize::from(theirs) >= gone);
            let ours = circle.next(hash(key.as_bytes()), &[gone as u16], &|_| true);
            assert_eq!(ours, Some(theirs), "{key} without {gone}");
        }
    }
}

#[test]
fn the_golden_file_is_what_libmemcached_says() {
    let keys: Vec<String> = (0..GOLDEN_KEYS).map(|n| format!("key:{n}")).collect();
    let mut text = "# What libmemcached's weighted ketama answers for key:0, key:1, …: the index of the \
                    server, a digit\n# of base 36 each. Made by `WRITE=1 cargo test -p tests golden`.\n"
        .to_owned();
    for servers in [
        equal(3, 11211),
        equal(3, 22122),
        equal(10, 11211),
        equal(30, 22122),
        weighted(11211),
        weighted(22122),
        mixed(),
    ] {
        let words: Vec<String> = servers.iter().map(|(h, p, w)| format!("{h}:{p}:{w}")).collect();
        let owners: String = libmemcached(&servers, &keys)
            .into_iter()
            .map(|owner| char::from_digit(owner.into(), 36).expect("at most 36 servers"))
            .collect();
        text.extend(["servers ", &words.join(" "), "\nowners ", &owners, "\n"]);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    if env::var_os("WRITE").is_some() {
        fs::write(&path, &text).expect("the file is ours");
    }
    assert_eq!(fs::read_to_string(path).expect("it is committed"), text);
}
