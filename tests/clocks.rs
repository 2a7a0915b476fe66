//! A lone server whose wall clock steps: times to live keep their length, and calendar limits open
//! with their next window. Not here: clusters (`cluster::clocks`).

use std::{
    thread,
    time::{Duration, Instant, SystemTime},
};

use crate::faketime::WallClock;
use crate::live::{Client, PATIENCE, Program, Server};

const DAY: i64 = 86_400;
const TEN_YEARS: i64 = 3653 * DAY;

fn start() -> (Server, WallClock) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let clock = WallClock::new(folder.path().join("clock"));
    let server = Server::start_with(Program::Tollgate, &["-t", "1"], folder, |command| {
        clock.give_to(command);
    });
    (server, clock)
}

/// Sets the clock, and waits until the server shows it.
#[track_caller]
fn set(server: &Server, clock: &WallClock, seconds: i64) {
    clock.set(seconds);
    let (mut client, start) = (server.connect(), Instant::now());
    loop {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let wanted = now.expect("it is after 1970").as_secs().saturating_add_signed(seconds);
        if client.stat("time").abs_diff(wanted) <= 2 {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "the clock is not followed");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_clock_that_steps_ends_nothing_before_its_time() {
    let (server, clock) = start();
    let mut client = server.connect();
    client.ask("set item 0 600 1\r\n7\r\n", "STORED\r\n");
    for policy in ["fixed", "log", "sliding"] {
        let taken = client.ask_until(format!("take {policy} 2 {policy}:2/600s\r\n"), "\r\n");
        assert!(taken.starts_with("ALLOW"), "{taken}");
    }
    for seconds in [3600, -3600, DAY, -DAY, TEN_YEARS, -TEN_YEARS, 0] {
        set(&server, &clock, seconds);
        let checked = client.stat("crawler_items_checked");
        let start = Instant::now();
        while client.stat("crawler_items_checked") < checked + 20 {
            assert!(start.elapsed() < PATIENCE, "no sweep");
            thread::sleep(Duration::from_millis(20));
        }
        client.ask("get item\r\n", "VALUE item 0 1\r\n7\r\nEND\r\n");
        for policy in ["fixed", "log", "sliding"] {
            let reply = client.ask_until(format!("take {policy} 1 {policy}:2/600s\r\n"), "\r\n");
            assert!(reply.starts_with("DENY"), "{seconds:+} s: {reply}");
        }
    }
}

/// Takes one of three units in four seconds; returns the verdict and the milliseconds left of the
/// window.
fn take_one(client: &mut Client) -> (String, u64) {
    let reply = client.ask_until("take key 1 fixed:3/4s,align=calendar\r\n", "\r\n");
    let left_ms = reply.split_whitespace().nth(4).and_then(|word| word.parse().ok());
    (reply, left_ms.unwrap_or(0))
}

#[test]
fn a_limit_used_while_the_clock_was_ahead_opens_again() {
    for ahead in [DAY, TEN_YEARS] {
        let (server, clock) = start();
        let mut client = server.connect();
        set(&server, &clock, ahead);
        // This is early in a window, so that the state still exists when the clock is right again.
        while take_one(&mut client).1 < 2500 {
            thread::sleep(Duration::from_millis(100));
        }
        set(&server, &clock, 0);
        while !take_one(&mut client).0.starts_with("DENY") {}
        let (reply, left_ms) = take_one(&mut client);
        assert!(left_ms <= 4000, "{reply}");
        let start = Instant::now();
        while !take_one(&mut client).0.starts_with("ALLOW") {
            assert!(start.elapsed() < PATIENCE, "it stays shut: {reply}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}
