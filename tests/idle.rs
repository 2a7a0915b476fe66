//! The cost of the admin listener on an idle server: memory, and wake-ups of threads.
//!
//! Not here: its cost under load (`benches/load`).

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::http::Admin;
use crate::live::{Program, Server};

const WORKERS: u64 = 2;
/// The most resident memory of the listener, without and for each worker.
const LISTENER_BYTES: u64 = (3 << 20) / 2;
const WORKER_BYTES: u64 = (6 << 20) / 10;
/// The time for which wake-ups are counted.
pub(crate) const WATCHED: Duration = Duration::from_secs(10);
/// Wake-ups of a thread in that time by which two equal servers may differ. A timer of a
/// second would add more.
const WAKE_UPS_BETWEEN: u64 = 8;
/// The time after which a new server is at rest.
const REST: Duration = Duration::from_secs(3);

/// The times that each thread of a process went to sleep, by the thread's name.
fn sleeps(process: u32) -> BTreeMap<String, u64> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
    let mut sleeps = BTreeMap::new();
    for task in tasks.flatten() {
        let read = |file| fs::read_to_string(task.path().join(file));
        // A thread may end meanwhile.
        let (Ok(name), Ok(status)) = (read("comm"), read("status")) else { continue };
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let count: u64 = count.and_then(|count| count.trim().parse().ok()).expect("a count");
        *sleeps.entry(name.trim().to_owned()).or_default() += count;
    }
    sleeps
}

/// The wake-ups of each thread of a process in [`WATCHED`], by the thread's name.
pub(crate) fn wake_ups(process: u32) -> BTreeMap<String, u64> {
    let before = sleeps(process);
    thread::sleep(WATCHED);
    let after = sleeps(process).into_iter();
    let since = |(name, count): (String, u64)| {
        let count = count.saturating_sub(before.get(&name).copied().unwrap_or(0));
        (name, count)
    };
    after.map(since).collect()
}

/// Makes the allocator use small pages: only those that the server has touched are resident. With
/// huge pages of 2 MiB, which the kernel gives if it has some, equal servers differ by up to
/// 14 MiB.
fn in_small_pages(command: &mut Command) {
    command.env("_RJEM_MALLOC_CONF", "hpa:false");
}

/// A server without the listener, and one with it that has answered; both are at rest.
fn pair() -> (Server, Admin) {
    let workers = WORKERS.to_string();
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let flags = ["--http", "off", "-t", &workers];
    let without = Server::start_with(Program::under_test(), &flags, folder, in_small_pages);
    let with = Admin::start_with(&["-t", &workers], in_small_pages);
    thread::sleep(REST);
    (without, with)
}

#[test]
fn an_idle_listener_costs_little() {
    // The resident pages of the program's file vary a little: the middle one of five pairs counts.
    let pairs = [pair(), pair(), pair(), pair(), pair()];
    let mut grown = pairs.each_ref().map(|(without, with)| {
        with.server.resident_bytes().saturating_sub(without.resident_bytes())
    });
    grown.sort_unstable();
    println!("resident {:?} KiB more", grown.map(|bytes| bytes >> 10));
    assert!(grown[2] <= LISTENER_BYTES + WORKERS * WORKER_BYTES, "{grown:?}");

    let watched = thread::scope(|scope| {
        let watch = |server: &Server| {
            let process = server.pid();
            scope.spawn(move || wake_ups(process))
        };
        let watched = pairs.each_ref().map(|(without, with)| (watch(without), watch(&with.server)));
        watched.map(|(without, with)| {
            (without.join().expect("it counts"), with.join().expect("it counts"))
        })
    });
    // The thread's further wake-ups in each pair. A timer that is set again and again wakes its
    // thread once or twice a period, by its phase, so the pair that differs least counts.
    let mut further = BTreeMap::<&str, Vec<u64>>::new();
    for (before, after) in &watched {
        println!("wake-ups in {WATCHED:?}: without {before:?}, with {after:?}");
        assert_eq!(after.get("http"), Some(&0), "{after:?}");
        for (name, count) in after.iter().filter(|(name, _)| *name != "observer") {
            let before = before.get(name).copied().unwrap_or(0);
            further.entry(name).or_default().push(count.saturating_sub(before));
        }
    }
    for (name, counts) in further {
        let least = counts.iter().min().expect("a pair has it");
        assert!(*least <= WAKE_UPS_BETWEEN, "{name} woke {counts:?} times more");
    }
}
