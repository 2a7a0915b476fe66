//! Limit states while memory is short: they are evicted last, and used units stay used.
//!
//! Not here: values and counters (`memory`), refused keys that meet a flood (`limits`).

use crate::live::{Client, Server};

/// Stores plain values of each length until none fits.
fn fill(client: &mut Client) {
    for length in [100_000, 1000, 700, 500] {
        let value = "z".repeat(length);
        let mut number = 0;
        let mut refused = 0;
        while refused < 200 {
            let answer = client
                .ask_until(format!("set f{length}-{number} 0 0 {length}\r\n{value}\r\n"), "\r\n");
            refused = if answer == "STORED\r\n" { 0 } else { refused + 1 };
            number += 1;
        }
    }
}

/// The number of states that were evicted.
fn forgotten(client: &mut Client, count: usize) -> usize {
    (0..count)
        .filter(|number| {
            let ask = format!("take lim{number} 0 fixed:1000/1h peek\r\n");
            client.ask_until(ask, "\r\n").starts_with("ALLOW 1000 1000 ")
        })
        .count()
}

fn make_states(client: &mut Client, count: usize) {
    for number in 0..count {
        let answer = client.ask_until(format!("take lim{number} 7 fixed:1000/1h\r\n"), "\r\n");
        assert!(answer.starts_with("ALLOW 1000 993 "), "{answer}");
    }
}

#[test]
fn a_refund_needs_no_room() {
    let server = Server::start(&["-M", "-m", "8"]);
    let mut client = server.connect();
    let mut leases = Vec::new();
    for number in 0..100 {
        for _ in 0..10 {
            let ask = format!("take conc{number} 1 concurrency:10,hold=300s\r\n");
            let answer = client.ask_until(ask, "\r\n");
            let (_, lease) = answer.trim_end().split_once("lease=").expect("a lease");
            leases.push((number, lease.to_owned()));
        }
        client.ask_until(format!("take bucket{number} 5 bucket:1000/1h hold=300s\r\n"), "\r\n");
        for _ in 0..6 {
            client.ask_until(format!("take log{number} 1 log:1000/1h\r\n"), "\r\n");
        }
    }
    fill(&mut client);
    for (number, lease) in leases.iter().step_by(10) {
        let answer = client.ask_until(format!("settle conc{number} {lease} 0\r\n"), "\r\n");
        assert!(answer.starts_with("SETTLED 10 1 "), "{answer}");
    }
    for number in 0..100 {
        for key in ["conc", "log"] {
            let answer = client.ask_until(format!("refund {key}{number} 3\r\n"), "\r\n");
            assert!(!answer.contains("ERROR"), "{answer}");
        }
    }
    for (number, lease) in leases.iter().skip(9).step_by(10) {
        let answer = client.ask_until(format!("settle conc{number} {lease} 0\r\n"), "\r\n");
        assert!(!answer.contains("ERROR"), "{answer}");
    }
}

#[test]
fn a_set_that_finds_no_room_forgets_no_limit() {
    let server = Server::start(&["-M", "-m", "8"]);
    let mut client = server.connect();
    // Keys of all lengths: for some of them the longer count needs a slot of another size.
    let keys: Vec<String> =
        (0..200).map(|number| format!("lim{}{number:03}", "y".repeat(number % 8))).collect();
    for key in &keys {
        client.ask_until(format!("take {key} 50 fixed:1000000/1h\r\n"), "\r\n");
    }
    fill(&mut client);
    let mut refused = 0;
    for key in &keys {
        let answer = client.ask_until(format!("set {key} 0 0 6\r\n999000\r\n"), "\r\n");
        let peek = client.ask_until(format!("take {key} 0 fixed:1000000/1h peek\r\n"), "\r\n");
        // The stored number is the number of used units.
        let left = if answer == "STORED\r\n" { "1000 " } else { "999950 " };
        refused += usize::from(answer != "STORED\r\n");
        assert!(peek.starts_with(&format!("ALLOW 1000000 {left}")), "{key}: {answer}{peek}");
    }
    assert!(refused > 0, "each found room: nothing was tried");
}

#[test]
fn states_go_after_the_plain_items_of_all_shards() {
    const STATES: usize = 5000;
    let server = Server::start(&["-m", "64"]);
    let mut client = server.connect();
    make_states(&mut client, STATES);
    let value = "v".repeat(20_000);
    for number in 0..5000 {
        client.send(format!("set p{number} 0 0 20000 noreply\r\n{value}\r\n"));
    }
    client.ask("mn\r\n", "MN\r\n");
    assert!(client.stat("evictions") > 0);
    let large = "B".repeat(1_000_000);
    for number in 0..64 {
        client.ask(format!("set big{number} 0 0 1000000\r\n{large}\r\n"), "STORED\r\n");
    }
    for _ in 0..20 {
        client.ask("append big63 0 0 2000\r\n".to_owned() + &large[..2000] + "\r\n", "STORED\r\n");
    }
    assert_eq!(forgotten(&mut client, STATES), 0);
}

#[test]
fn a_value_that_can_never_fit_evicts_no_item() {
    const STATES: usize = 2000;
    let server = Server::start(&["-m", "64", "-I", "32m"]);
    let mut client = server.connect();
    make_states(&mut client, STATES);
    client.ask("set kept 0 0 4\r\nkept\r\n", "STORED\r\n");
    client.ask("cache_memlimit 20\r\n", "OK\r\n");
    let huge = "h".repeat(25 << 20);
    client.ask(
        format!("set huge 0 0 {}\r\n{huge}\r\n", huge.len()),
        "SERVER_ERROR out of memory storing object\r\n",
    );
    client.ask("get kept\r\n", "VALUE kept 0 4\r\nkept\r\nEND\r\n");
    assert_eq!(forgotten(&mut client, STATES), 0);
}
