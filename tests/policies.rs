//! Hundreds of thousands of written policies on a live server: no other client is refused, and none
//! waits longer than beside the same number of takes under one policy.
//!
//! `POLICIES=1000000` writes that many and enforces the bound on the waits, for an idle machine.
//! Not here: the policy table by itself (`engine`).

use std::{
    env,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{ids::pipeline, live::Server};

/// The most that the 99th percentile of the others' waits may be with many policies, in hundredths
/// of the same percentile with one policy.
const RATIO_MAX: u128 = 120;
/// Rounds of each kind; the kinds take turns.
const ROUNDS: usize = 7;
/// The pause between two bursts of some 500 takes, in which the server can serve all clients.
const PAUSE: Duration = Duration::from_millis(2);

/// The waits of other clients while one client takes from `count` keys under the policies of
/// `policy`.
fn waits_of_others(count: usize, policy: impl Fn(usize) -> String + Sync) -> Vec<Duration> {
    let server = Server::start(&["-m", "1024", "-t", "2"]);
    let address = server.address();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let others = [0, 1].map(|number| {
            let (mut client, is_over) = (server.connect(), &is_over);
            scope.spawn(move || {
                let mut waits = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    let own = format!("take own{number} 1 fixed:100000000/1h\r\n");
                    let answer = client.ask_until(own, "\r\n");
                    waits.push(start.elapsed());
                    let expected = format!("ALLOW 100000000 {} ", 100_000_000 - waits.len());
                    assert!(answer.starts_with(&expected), "{answer}");
                    if waits.len() % 16 == 0 {
                        // No client wrote this policy before.
                        let new = waits.len();
                        let take = format!("take new{number}-{new} 1 bucket:{new}/7h\r\n");
                        let answer = client.ask_until(take, "\r\n");
                        assert!(answer.starts_with(&format!("ALLOW {new} ")), "{answer}");
                    }
                }
                waits
            })
        });
        let line = |number| format!("take p{number} 1 {}\r\n", policy(number));
        pipeline(address, (count, PAUSE), line, |number, answer| {
            assert!(answer.starts_with("ALLOW "), "{number}: {answer}");
        });
        is_over.store(true, Ordering::Relaxed);
        let waits = others.map(|other| other.join().expect("nothing is refused"));
        waits.concat()
    })
}

fn p99(waits: &mut [Duration]) -> Duration {
    waits.sort_unstable();
    waits[waits.len() * 99 / 100]
}

#[test]
fn distinct_policies_of_one_client_fail_nobody() {
    let long = env::var("POLICIES").ok().and_then(|text| text.parse().ok());
    let count = long.unwrap_or(100_000);
    let (mut same, mut distinct) = (Vec::new(), Vec::new());
    for _ in 0..if long.is_some() { ROUNDS } else { 1 } {
        same.push(p99(&mut waits_of_others(count, |_| "fixed:1000000/366d".to_owned())));
        let each = |number| format!("fixed:{}/366d", 1 + number);
        distinct.push(p99(&mut waits_of_others(count, each)));
        println!("p99 of others: {same:?} under one policy, {distinct:?} under {count}");
    }
    let median = |waits: &mut Vec<Duration>| {
        waits.sort_unstable();
        waits[waits.len() / 2].as_nanos()
    };
    let ratio = median(&mut distinct) * 100 / median(&mut same);
    println!("ratio of the medians: {ratio} %");
    assert!(long.is_none() || ratio <= RATIO_MAX, "{ratio} %");
}
