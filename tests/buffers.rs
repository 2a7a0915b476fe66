//! Buffers of connections: values that are only promised, answers that nobody reads.
//!
//! Not here: the memory of items (`memory`), other troublesome clients (`robustness`).

use std::{
    io::{ErrorKind, Write},
    time::Duration,
};

use crate::{
    live::{Client, Neighbour, Server},
    robustness::{MIB, NEIGHBOUR_WAIT_MAX, allow_files, grown, reset},
};

/// Sends `bytes` again and again until the server has taken nothing for a while; tells how many.
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
    for (name, sent, bound) in [("none", 0, 16), ("some", 100 << 10, 48), ("most", 999_999, 140)] {
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
    // What was promised is forgotten: there is memory to read as much again.
    let value = "v".repeat(1_000_000);
    first.ask(format!("set k 0 0 1000000\r\n{value}\r\n"), "STORED\r\n");
}

#[test]
fn a_large_value_does_not_stay_in_the_buffer_of_its_client() {
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
            // The end of the value and the front of the next request are read at once.
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
fn many_who_never_read_take_no_more_than_the_memory_cap() {
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
        // The answers of `stats` are among them.
        unchanged = if now - written < 10_000 { unchanged + 1 } else { 0 };
        written = now;
        unchanged > 50
    });
    assert!(grown(&server, before) < 100 * MIB);
    drop(clients);
}

#[test]
fn who_never_reads_stalls_nobody() {
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
    // Those who read after all find everything in order.
    clients[5].expect(&"VALUE small 0 1\r\ns\r\nEND\r\n".repeat(10_000));
    clients[0].expect(&format!("VALUE big 0 1000000\r\n{value}\r\n").repeat(7));
    clients[0].expect("END\r\n");
    drop(clients);
    server.until_connected(&mut first, 0);
}

#[test]
fn a_value_there_is_no_memory_to_read_is_refused_in_order() {
    let server = Server::start(&["-m", "2", "-t", "1"]);
    let mut first = server.connect();
    first.ask("set k 0 0 3\r\nold\r\n", "STORED\r\n");
    first.ask("set kept 0 0 3\r\nold\r\n", "STORED\r\n");
    let promises: Vec<Client> = (0..2)
        .map(|_| {
            let mut client = server.connect();
            client.ask("mn\r\nset p 0 0 1000000\r\nabc", "MN\r\n");
            client
        })
        .collect();
    let value = "v".repeat(500_000);
    let refused = "SERVER_ERROR out of memory storing object\r\n";
    first.ask(format!("set k 0 0 500000\r\n{value}\r\nmn\r\n"), &format!("{refused}MN\r\n"));
    first.ask("get k\r\n", "END\r\n");
    first.ask("set k 0 0 3\r\nold\r\n", "STORED\r\n");
    first.ask(format!("set k 0 0 500000 noreply\r\n{value}\r\nmn\r\n"), "MN\r\n");
    first.ask("get k\r\n", "END\r\n");
    first.ask(format!("append kept 0 0 500000\r\n{value}\r\n"), refused);
    first.ask("get kept\r\n", "VALUE kept 0 3\r\nold\r\nEND\r\n");
    assert_eq!(first.stat("store_no_memory"), 3);
    drop(promises);
}
