//! The memory cap: which items are evicted, which stay, which memory is freed.
//!
//! Not here: memory of connections (`robustness`). Resident memory is compared with the cap plus a
//! third, for the allocator's rounding and for freed memory that it cannot use again at once.

use std::time::Duration;

use crate::{
    live::{Client, Server},
    operators::NODE,
};

const MIB: u64 = 1 << 20;

/// The most resident memory beside the items, in a debug build, whose code takes half of it;
/// samples of requests take 4 MiB.
const PROCESS_BYTES: u64 = 32 * MIB;
/// The same of a node, whose partitions and control plane take more.
const NODE_BYTES: u64 = 52 * MIB;

fn assert_within_cap(server: &Server, client: &mut Client, megabytes: u64) {
    assert_within(server, client, megabytes, PROCESS_BYTES);
}

fn assert_within(server: &Server, client: &mut Client, megabytes: u64, beside: u64) {
    let (bytes, resident) = (client.stat("bytes"), server.resident_bytes());
    println!("bytes {} KiB, resident {} KiB", bytes >> 10, resident >> 10);
    assert!(bytes <= megabytes * MIB, "{bytes}");
    assert!(resident < megabytes * MIB * 4 / 3 + beside, "{resident}");
}

/// A value that names its key at both ends.
fn value_of(number: usize, length: usize) -> String {
    let name = format!("<{number}>");
    format!("{name}{}{name}", ".".repeat(length.saturating_sub(2 * name.len())))
}

#[test]
fn a_full_store_lets_the_oldest_go() {
    full_store(&Server::start(&["-m", "16"]), PROCESS_BYTES);
}

#[test]
fn a_full_store_lets_the_oldest_go_at_a_node() {
    full_store(&Server::start(&[&["-m", "16"], &NODE[..]].concat()), NODE_BYTES);
}

fn full_store(server: &Server, beside: u64) {
    const ITEMS: usize = 400_000;
    let mut client = server.connect();
    send_each(&mut client, ITEMS, |number| {
        let value = value_of(number, 100);
        format!("set key{number} 0 0 {} noreply\r\n{value}\r\n", value.len())
    });
    assert_within(server, &mut client, 16, beside);
    assert!(client.stat("evictions") > ITEMS as u64 / 2);
    let items = client.stat("curr_items");
    assert!(items > 60_000, "{items} items in 16 MB: memory is wasted");
    assert_eq!(items + client.stat("evictions"), ITEMS as u64);
    for number in ITEMS - 1000..ITEMS {
        let value = value_of(number, 100);
        let expected = format!("VALUE key{number} 0 {}\r\n{value}\r\nEND\r\n", value.len());
        client.ask(format!("get key{number}\r\n"), &expected);
    }
}

#[test]
fn small_and_large_items_share_the_cap() {
    const ITEMS: usize = 3_000;
    let server = Server::start(&["-m", "32"]);
    let mut client = server.connect();
    let mut newest = Vec::new();
    for number in 0..ITEMS {
        let length = [100, 2_000, 50_000, 500_000, 700, 9_000, 200_000, 33][number % 8];
        let value = value_of(number, length);
        client.ask(format!("set key{number} 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
        newest.push((number, value));
        if newest.len() > 20 {
            newest.remove(0);
        }
        if number % 300 == 299 {
            assert_within_cap(&server, &mut client, 32);
        }
    }
    let missing: Vec<usize> = newest
        .iter()
        .filter(|(number, value)| {
            let answer = client.ask_until(format!("get key{number}\r\n"), "END\r\n");
            let expected = format!("VALUE key{number} 0 {}\r\n{value}\r\nEND\r\n", value.len());
            assert!(answer == expected || answer == "END\r\n", "a value is whole or gone");
            answer == "END\r\n"
        })
        .map(|(number, _)| *number)
        .collect();
    // A large value makes room in its own shard first, and may evict a new item there.
    assert!(missing.len() <= 5, "of the newest twenty are gone: {missing:?}");
    assert!(!missing.contains(&(ITEMS - 1)), "the newest of all is gone");
    assert!(client.stat("evictions") > 0);
}

#[test]
fn without_eviction_stores_fail_and_counts_go_on() {
    const COUNTERS: usize = 1_000;
    let server = Server::start(&["-m", "8", "-M"]);
    let mut client = server.connect();
    for number in 0..COUNTERS {
        client.ask(format!("set count{number} 0 0 10\r\n4294967295\r\n"), "STORED\r\n");
        client.ask(format!("set small{number} 0 0 1\r\n9\r\n"), "STORED\r\n");
    }
    // Large values first, then ever smaller ones, until not even a counter fits anywhere.
    let (mut stored, mut refused) = (0_u64, 0_u64);
    for length in [100_000, 1_000, 200, 40, 1] {
        let value = "1".repeat(length);
        let mut in_a_row = 0;
        for number in 0.. {
            let request = format!("set fill{length}-{number} 0 0 {length}\r\n{value}\r\n");
            match &*client.ask_until(request, "\r\n") {
                "STORED\r\n" => {
                    stored += 1;
                    in_a_row = 0;
                }
                "SERVER_ERROR out of memory storing object\r\n" => {
                    refused += 1;
                    in_a_row += 1;
                }
                other => panic!("{other:?}"),
            }
            if in_a_row == 300 {
                break;
            }
        }
    }
    // The number of small items depends on the hash; the free memory left does not.
    let left = left(&mut client);
    println!("{stored} stored, {left} bytes left");
    assert!(stored > 70 && left < 16 << 10);
    assert_within_cap(&server, &mut client, 8);
    assert_eq!(client.stat("evictions"), 0);
    assert_eq!(client.stat("store_no_memory"), refused);
    let items = client.stat("curr_items");
    assert_eq!(items, stored + 2 * COUNTERS as u64);
    // A slot that becomes free can be used.
    client.ask("delete small0\r\n", "DELETED\r\n");
    client.ask("add small0 0 0 1\r\n9\r\n", "STORED\r\n");
    for round in 1..=5_u64 {
        for number in 0..COUNTERS {
            client.ask(
                format!("incr count{number} 1\r\n"),
                &format!("{}\r\n", 4_294_967_295 + round),
            );
            client.ask(format!("incr small{number} 1\r\n"), &format!("{}\r\n", 9 + round));
        }
    }
    client.ask("incr count0 18446744069414584315\r\n", "18446744073709551615\r\n");
    client.ask("incr count0 1\r\n", "0\r\n");
    client.ask("add count0 0 0 1\r\n5\r\n", "NOT_STORED\r\n");
    client.ask("incr none 1\r\n", "NOT_FOUND\r\n");
    // No other item has this size, so no slot for it can have become free.
    let create = format!("ma {} N0 J7\r\n", "k".repeat(250));
    client.ask(create, "SERVER_ERROR out of memory storing object\r\n");
    // Each of the counters is now four bytes longer, for which the cap had no room.
    assert_within_cap(&server, &mut client, 9);
    assert_eq!(client.stat("curr_items"), items, "none is lost");
}

#[test]
fn an_item_that_is_never_evicted_still_expires() {
    let server = Server::start(&["-m", "8", "-M"]);
    let mut client = server.connect();
    let value = "v".repeat(1_000);
    let mut full = false;
    for number in 0..20_000 {
        let request = format!("set short{number} 0 1 1000\r\n{value}\r\n");
        full = client.ask_until(request, "\r\n").starts_with("SERVER_ERROR");
        if full {
            break;
        }
    }
    assert!(full);
    let start = std::time::Instant::now();
    while !client.ask_until(format!("set k 0 0 1000\r\n{value}\r\n"), "\r\n").starts_with("STORED")
    {
        assert!(start.elapsed() < crate::live::PATIENCE);
    }
}

/// Sends a line, or lines, for each number below `count`, a thousand at once, and waits for the
/// replies.
fn send_each(client: &mut Client, count: usize, lines: impl Fn(usize) -> String) {
    for batch in 0..count / 1000 {
        let batch: Vec<String> = (batch * 1000..(batch + 1) * 1000).map(&lines).collect();
        client.send(batch.concat());
    }
    client.ask("mn\r\n", "MN\r\n");
}

/// Stores `count` values of `length` bytes; returns the resident memory after that.
fn fill(server: &Server, client: &mut Client, count: usize, length: usize) -> u64 {
    let value = "v".repeat(length);
    send_each(client, count, |number| {
        format!("set key{number} 0 0 {length} noreply\r\n{value}\r\n")
    });
    assert_eq!(client.stat("curr_items"), count as u64);
    server.resident_bytes()
}

fn delete_all(client: &mut Client, count: usize) {
    send_each(client, count, |number| format!("delete key{number} noreply\r\n"));
}

/// The bounds follow `load --memory`, which measures 55 and 64 bytes per key with five million
/// keys.
#[test]
fn a_counter_and_a_bucket_are_as_small_as_promised() {
    const KEYS: usize = 1_000_000;
    for (line, most) in [
        ("set {} 0 3600 1 noreply\r\n0\r\n", 56),
        ("take {} 1 bucket:1/1d,capacity=100000 noreply\r\n", 64),
    ] {
        let measured = || {
            let server = Server::start(&["-m", "1024"]);
            let mut client = server.connect();
            client.ask("mn\r\n", "MN\r\n");
            let before = server.resident_bytes();
            send_each(&mut client, KEYS, |number| line.replace("{}", &format!("key:{number:016}")));
            assert_eq!(client.stat("curr_items"), KEYS as u64);
            (server.resident_bytes() - before) / KEYS as u64
        };
        // Resident memory includes memory that the allocator frees a moment later, some bytes per
        // key.
        let least = (0..4).map(|_| measured()).min().expect("there are some");
        println!("{least} bytes for {line:?}");
        assert!(least <= most, "{least} bytes for {line:?}");
    }
}

/// The allocator keeps the pages of evicted items; they must be used again, whatever the size of
/// the next items.
#[test]
fn memory_of_items_that_are_gone_is_used_again() {
    let server = Server::start(&["-m", "256"]);
    let mut client = server.connect();
    let before = server.resident_bytes();
    let peak = fill(&server, &mut client, 300_000, 150) - before;
    for (count, length) in [(300_000, 150), (80_000, 600), (500_000, 70), (1_000, 50_000)] {
        client.ask("flush_all\r\n", "OK\r\n");
        assert_eq!((client.stat("curr_items"), client.stat("bytes")), (0, 0));
        let now = fill(&server, &mut client, count, length) - before;
        println!("{} KiB, first {} KiB", now >> 10, peak >> 10);
        assert!(now < peak * 3 / 2, "{now} bytes, first {peak}");
        delete_all(&mut client, count);
        assert_eq!(client.stat("curr_items"), 0);
    }
}

/// Memory that the allocator keeps for one size must not add to the memory of another size.
#[test]
fn sizes_that_change_all_the_time_cost_no_memory() {
    const CAP: u64 = 64 * MIB;
    let server = Server::start(&["-m", "64"]);
    let mut client = server.connect();
    let mut peak = 0;
    for (turn, length) in
        [1000, 30_000, 100_000, 400_000, 3000, 100_000, 300_000, 60_000].into_iter().enumerate()
    {
        let value = "v".repeat(length);
        let wave = (4 << 20) / length;
        for number in 0..20 {
            let request: String = (number * wave..(number + 1) * wave)
                .map(|key| format!("set key{turn}-{key} 0 0 {length} noreply\r\n{value}\r\n"))
                .collect::<Vec<_>>()
                .concat();
            client.send(request);
            client.ask("mn\r\n", "MN\r\n");
            peak = peak.max(server.resident_bytes());
        }
        // The allocator frees it within half a second.
        std::thread::sleep(Duration::from_millis(600));
        println!("{length}: {} KiB so far", peak >> 10);
    }
    // The items of one size, as much memory of the size before that is not yet freed, and the
    // process.
    assert!(peak < 3 * CAP, "{peak}");
}

/// Bytes that can be allocated before the cap is reached.
fn left(client: &mut Client) -> usize {
    let slabs = client.ask_until("stats slabs\r\n", "END\r\n");
    let line = slabs.lines().find_map(|line| line.strip_prefix("STAT total_malloced "));
    let used: u64 = line.expect("it is there").parse().expect("a number");
    usize::try_from(client.stat("limit_maxbytes").saturating_sub(used)).expect("it fits")
}

#[test]
fn a_small_item_finds_room_among_few_large_ones() {
    let server = Server::start(&["-m", "16", "-t", "4"]);
    let mut client = server.connect();
    let value = "v".repeat(1_000_000);
    for number in 0.. {
        // Most shards are empty, and the room is less than a chunk of small items.
        let room = left(&mut client);
        if room < 4_096 {
            break;
        }
        // A large value is counted with the allocator's rounding: a quarter at most.
        let length = (room * 3 / 4).min(value.len());
        let request = format!("set large{number} 0 0 {length}\r\n{}\r\n", &value[..length]);
        client.ask(request, "STORED\r\n");
    }
    assert_eq!(client.stat("evictions"), 0);
    for number in 0..100 {
        client.ask(format!("set small{number} 0 0 2\r\n41\r\n"), "STORED\r\n");
        client.ask(format!("incr small{number} 1\r\n"), "42\r\n");
    }
    assert!(client.stat("evictions") > 0);
}

#[test]
fn a_lowered_cap_is_kept() {
    let mut server = Server::start(&["-m", "64"]);
    let mut client = server.connect();
    let value = "v".repeat(10_000);
    for number in 0..5_000 {
        client.send(format!("set key{number} 0 0 10000 noreply\r\n{value}\r\n"));
    }
    client.ask("cache_memlimit 10\r\n", "OK\r\n");
    server.until("it has shrunk", |_| client.stat("bytes") < 10 * MIB);
    assert_eq!(client.stat("limit_maxbytes"), 10 * MIB);
    client.ask("set k 0 0 1\r\n1\r\nincr k 1\r\n", "STORED\r\n2\r\n");
    client
        .ask("cache_memlimit 7\r\n", "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n");
}
