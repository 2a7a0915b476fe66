//! Buffers of connections: values that are only announced, replies that are not read.
//!
//! Not here: the memory of items (`memory`), other misbehaving clients (`robustness`).

use std::{
    io::{ErrorKind, Read, Write},
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;
use socket2::SockRef;

use crate::{
    live::{Client, Neighbour, Server},
    robustness::{MIB, NEIGHBOUR_WAIT_MAX, allow_files, grown, reset},
};

/// Sends `bytes` until the server has read nothing for a while; returns the number of bytes sent.
fn stuff(client: &mut Client, bytes: &[u8]) -> usize {
    client
        .stream
        .set_write_timeout(Some(Duration::from_millis(300)))
        .expect("a socket takes options");
    let mut sent = 0;
    loop {
        match client.stream.write(&bytes[sent % bytes.len()..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return sent,
            Err(error) => panic!("{error} after {sent} bytes"),
        }
    }
}

#[test]
fn promised_values_take_no_memory() {
    const CLIENTS: usize = 1_000;
    allow_files(4_000);
    let mut server = Server::start(&["-c", "2000", "-m", "64"]);
    let mut first = server.connect();
    let neighbour = Neighbour::of(&server);
    let before = server.resident_bytes();
    for (name, sent, bound) in [("none", 0, 16), ("some", 100 << 10, 140), ("most", 999_999, 140)] {
        let part = vec![b'x'; sent];
        let clients: Vec<Client> = (0..CLIENTS)
            .map(|number| {
                let mut client = server.connect();
                client.send(format!("set promise{number} 0 0 1000000\r\n"));
                client.send(&part);
                client
            })
            .collect();
        println!("{name}: {} KiB", server.resident_bytes().saturating_sub(before) >> 10);
        assert!(grown(&server, before) < bound * MIB, "{name}");
        for client in clients {
            reset(client);
        }
        server.until_connected(&mut first, 1);
    }
    let slowest = neighbour.slowest();
    assert!(slowest < NEIGHBOUR_WAIT_MAX, "a neighbour waited {slowest:?}");
    assert_eq!(first.stat("curr_items"), 1);
    // The memory reserved for the announced values is free: as much can be read again.
    let value = "v".repeat(1_000_000);
    first.ask(format!("set k 0 0 1000000\r\n{value}\r\n"), "STORED\r\n");
}

#[test]
fn a_large_value_leaves_its_clients_buffer() {
    let server = Server::start(&["-m", "64"]);
    let mut first = server.connect();
    let before = server.resident_bytes();
    let value = "v".repeat(1_000_000);
    let clients: Vec<Client> = (0..300)
        .map(|_| {
            let mut client = server.connect();
            let (most, rest) = value.split_at(999_990);
            let request = format!("set k 0 0 1000000\r\n{most}");
            let read = first.stat("bytes_read");
            client.send(&request);
            while first.stat("bytes_read") < read + request.len() as u64 {}
            // One read returns the end of the value and the beginning of the next request.
            client.ask(format!("{rest}\r\nget"), "STORED\r\n");
            client
        })
        .collect();
    assert!(grown(&server, before) < 32 * MIB);
    for mut client in clients {
        client.ask(" none\r\n", "END\r\n");
    }
}

#[test]
fn clients_that_never_read_stay_within_the_cap() {
    let mut server = Server::start(&["-m", "64"]);
    let mut first = server.connect();
    let value = "v".repeat(1_000_000);
    first.ask(format!("set big 0 0 1000000\r\n{value}\r\n"), "STORED\r\n");
    let before = server.resident_bytes();
    let clients: Vec<Client> = (0..500)
        .map(|_| {
            let mut client = server.connect();
            client.send("get big big big big big big big big big\r\n");
            client
        })
        .collect();
    let (mut written, mut unchanged) = (0, 0);
    server.until("nobody takes any more", |_| {
        let now = first.stat("bytes_written");
        // The counter includes the replies to `stats`.
        unchanged = if now - written < 10_000 { unchanged + 1 } else { 0 };
        written = now;
        unchanged > 50
    });
    assert!(grown(&server, before) < 100 * MIB);
    drop(clients);
}

#[test]
fn a_client_that_never_reads_stalls_no_other() {
    let mut server = Server::start(&["-t", "1"]);
    let mut first = server.connect();
    let value = "v".repeat(1_000_000);
    first.ask(format!("set big 0 0 1000000\r\n{value}\r\n"), "STORED\r\n");
    first.ask("set small 0 0 1\r\ns\r\n", "STORED\r\n");
    let neighbour = Neighbour::of(&server);
    let before = server.resident_bytes();
    let mut clients = Vec::new();
    for request in
        ["get big big big big big big big\r\n".repeat(1000), "get small\r\n".repeat(1000)]
    {
        for _ in 0..3 {
            let mut client = server.connect();
            println!("{} bytes taken", stuff(&mut client, request.as_bytes()));
            clients.push(client);
        }
    }
    let slowest = neighbour.slowest();
    println!("slowest: {slowest:?}");
    assert!(slowest < NEIGHBOUR_WAIT_MAX, "a neighbour waited {slowest:?}");
    assert!(grown(&server, before) < 24 * MIB);
    // The clients that read in the end receive complete replies.
    clients[5].expect(&"VALUE small 0 1\r\ns\r\nEND\r\n".repeat(10_000));
    clients[0].expect(&format!("VALUE big 0 1000000\r\n{value}\r\n").repeat(7));
    clients[0].expect("END\r\n");
    drop(clients);
    server.until_connected(&mut first, 0);
}

#[test]
fn a_value_without_memory_is_refused_in_order() {
    let server = Server::start(&["-m", "2", "-t", "1"]);
    let mut first = server.connect();
    first.ask("set k 0 0 3\r\nold\r\n", "STORED\r\n");
    first.ask("set kept 0 0 3\r\nold\r\n", "STORED\r\n");
    first.ask("ms a2V5 3 b\r\nold\r\n", "HD\r\n");
    // Two values that arrive slowly, but without a stop.
    let (stop, begun) = (AtomicBool::new(false), Barrier::new(3));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut client = server.connect();
                client.ask("mn\r\nset p 0 0 1000000\r\n", "MN\r\n");
                client.send("v".repeat(520_000));
                begun.wait();
                for _ in 0..40 {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    client.send("v".repeat(10_000));
                    thread::sleep(Duration::from_millis(100));
                }
            });
        }
        begun.wait();
        let read = |first: &mut Client| first.stat("bytes_read");
        while read(&mut first) < 1_040_000 {}
        let value = "v".repeat(500_000);
        let refused = "SERVER_ERROR out of memory storing object\r\n";
        first.ask(format!("set k 0 0 500000\r\n{value}\r\nmn\r\n"), &format!("{refused}MN\r\n"));
        first.ask("get k\r\n", "END\r\n");
        first.ask("set k 0 0 3\r\nold\r\n", "STORED\r\n");
        first.ask(format!("set k 0 0 500000 noreply\r\n{value}\r\nmn\r\n"), "MN\r\n");
        first.ask("get k\r\n", "END\r\n");
        first.ask(format!("append kept 0 0 500000\r\n{value}\r\n"), refused);
        first.ask("get kept\r\n", "VALUE kept 0 3\r\nold\r\nEND\r\n");
        first.ask(format!("ms a2V5 500000 b q\r\n{value}\r\n"), refused);
        first.ask("mg a2V5 b\r\n", "EN\r\n");
        assert_eq!(first.stat("store_no_memory"), 4);
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn values_that_never_come_leave_room_for_others() {
    let server = Server::start(&["-m", "64"]);
    let mut first = server.connect();
    let value = "v".repeat(1_000_000);
    let set = |number: usize| format!("set k{number} 0 0 1000000\r\n{value}\r\n");
    let promises: Vec<Client> = (0..200)
        .map(|number| {
            let mut client = server.connect();
            client.send(format!("set p{number} 0 0 1000000\r\n"));
            client
        })
        .collect();
    for number in 0..20 {
        first.ask(set(number), "STORED\r\n");
    }
    // Most of each value arrives, and then nothing.
    let mut promises = promises;
    for client in &mut promises {
        let _ = client.stream.write_all(&value.as_bytes()[..999_000]);
    }
    // A connection without progress for a second may be closed to make room.
    thread::sleep(Duration::from_millis(1_100));
    for number in 0..40 {
        first.ask(set(number), "STORED\r\n");
    }
    // A connection that continues is served, unless it was closed.
    let ended = promises.iter_mut().filter_map(|client| {
        client.stream.write_all(&value.as_bytes()[..1_000]).ok()?;
        client.stream.write_all(b"\r\n").ok()?;
        let mut answer = [0; 100];
        let count = client.stream.read(&mut answer).ok()?;
        Some(String::from_utf8_lossy(&answer[..count]).into_owned())
    });
    for answer in ended {
        let refused = "SERVER_ERROR out of memory storing object\r\n";
        assert!([refused, "STORED\r\n", ""].contains(&&*answer), "{answer}");
    }
}

#[test]
fn answers_that_nobody_reads_leave_room_for_others() {
    let server = Server::start(&["-m", "64"]);
    let mut first = server.connect();
    let value = "v".repeat(1_000_000);
    first.ask(format!("set big 0 0 1000000\r\n{value}\r\n"), "STORED\r\n");
    let silent: Vec<Client> = (0..120)
        .map(|_| {
            let mut client = server.connect();
            SockRef::from(&client.stream).set_recv_buffer_size(4096).expect("options");
            client.send("get big big big big big big big big big\r\n");
            client
        })
        .collect();
    thread::sleep(Duration::from_millis(1_500));
    // A slow reader receives all of it: connections that do not read make room.
    for _ in 0..3 {
        let mut client = server.connect();
        client.send("get big big big big big big big big big\r\n");
        thread::sleep(Duration::from_millis(300));
        for _ in 0..9 {
            client.expect(&format!("VALUE big 0 1000000\r\n{value}\r\n"));
        }
        client.expect("END\r\n");
    }
    drop(silent);
}

#[test]
fn many_large_answers_let_a_small_one_through() {
    const READERS: usize = 60;
    let server = Server::start(&["-t", "1", "-m", "256"]);
    let mut first = server.connect();
    let value = "v".repeat(1_000_000);
    first.ask(format!("set big 0 0 1000000\r\n{value}\r\n"), "STORED\r\n");
    let mut readers: Vec<Client> = (0..READERS).map(|_| server.connect()).collect();
    for client in &mut readers {
        client.ask("mn\r\n", "MN\r\n");
    }
    // All requests arrive before the server reads the first; the small one arrived last.
    server.signal(Signal::SIGSTOP);
    for (number, client) in readers.iter_mut().enumerate() {
        let request = if number % 2 == 0 { "get big\r\n" } else { "mg big v\r\n" };
        client.send(request);
    }
    first.send("stats\r\n");
    server.signal(Signal::SIGCONT);
    let stats = first.ask_until("", "END\r\n");
    let answered = stats.lines().find_map(|line| line.strip_prefix("STAT cmd_get "));
    let answered: usize = answered.and_then(|count| count.parse().ok()).expect("a count");
    println!("{answered} large answers went before it");
    assert!(answered < READERS / 4, "{answered} large answers went before it");
    // In the end each receives its whole reply.
    for (number, client) in readers.iter_mut().enumerate() {
        let head = if number % 2 == 0 { "VALUE big 0 1000000\r\n" } else { "VA 1000000\r\n" };
        let end = if number % 2 == 0 { "END\r\n" } else { "" };
        client.expect(&format!("{head}{value}\r\n{end}"));
    }
}

#[test]
fn many_large_values_let_a_small_one_through() {
    const WRITERS: usize = 40;
    let server = Server::start(&["-t", "1", "-m", "256"]);
    let neighbour = Neighbour::of(&server);
    let value = "v".repeat(1_000_000);
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (server, value) = (&server, &value);
            scope.spawn(move || {
                let mut client = server.connect();
                for round in 0..2 {
                    let request = format!("set w{writer}:{round} 0 0 1000000\r\n{value}\r\n");
                    client.ask(request, "STORED\r\n");
                }
            });
        }
    });
    let slowest = neighbour.slowest();
    println!("slowest: {slowest:?}");
    assert!(slowest < NEIGHBOUR_WAIT_MAX, "a neighbour waited {slowest:?}");
}
