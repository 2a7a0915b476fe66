//! Guessing passwords: the number of tries of a guesser, and the effect on other clients.
//!
//! Not here: replies before authentication (the transcripts).

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::live::{Client, PATIENCE, Server};

const WRONG: &str = "set k 0 0 10\r\nuser wrong\r\n";
const RIGHT: &str = "set k 0 0 9\r\nuser pass\r\n";
const FAILURE: &str = "CLIENT_ERROR authentication failure\r\n";

/// The tries that an address has at once, and the further ones per second.
const BURST: usize = 10;
const A_SECOND: usize = 2;

/// A client with the source address 127.0.0.`host`.
fn connect_from(host: u8, server: &Server) -> Client {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("there are sockets");
    let from = SocketAddr::from((Ipv4Addr::new(127, 0, 0, host), 0));
    socket.bind(&from.into()).expect("all of 127.0.0.0/8 is this host's");
    socket.connect(&server.address().into()).expect("the server listens");
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true).expect("a socket takes options");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes options");
    Client { stream }
}

#[test]
fn a_guesser_gets_two_tries_a_second() {
    const LONG: Duration = Duration::from_secs(3);
    let server = Server::start(&["-Y", "{auth}", "-t", "2"]);
    // Eight connections at once; each tries again as soon as it has a reply.
    let start = Instant::now();
    let guessers: Vec<_> = (0..8)
        .map(|_| {
            let mut client = connect_from(2, &server);
            std::thread::spawn(move || {
                client.stream.set_read_timeout(Some(LONG)).expect("a socket takes options");
                let mut tried = 0;
                while start.elapsed() < LONG {
                    client.send(WRONG);
                    let mut answer = [0; 100];
                    match std::io::Read::read(&mut client.stream, &mut answer) {
                        Ok(count) if &answer[..count] == FAILURE.as_bytes() => tried += 1,
                        // No reply came in time, or the tries are used up.
                        _ => break,
                    }
                }
                tried
            })
        })
        .collect();
    // Meanwhile another address authenticates repeatedly and never has to wait.
    let mut slowest = Duration::ZERO;
    while start.elapsed() < LONG {
        let mut client = connect_from(3, &server);
        let asked = Instant::now();
        client.ask(RIGHT, "STORED\r\n");
        client.ask("mn\r\n", "MN\r\n");
        slowest = slowest.max(asked.elapsed());
    }
    let tried: usize = guessers.into_iter().map(|guesser| guesser.join().expect("it ends")).sum();
    let seconds = start.elapsed().as_secs() as usize + 1;
    println!("{tried} tries in {:?}, others waited {slowest:?}", start.elapsed());
    assert!(tried >= BURST && tried <= BURST + A_SECOND * seconds, "{tried}");
    assert!(slowest < Duration::from_secs(1), "another address waited {slowest:?}");
}

#[test]
fn to_hang_up_and_come_back_gains_nothing() {
    let server = Server::start(&["-Y", "{auth}"]);
    let start = Instant::now();
    let mut tried = 0;
    // A right password is answered at once; without an immediate reply, the next one is tried.
    while start.elapsed() < Duration::from_secs(2) {
        let mut client = connect_from(2, &server);
        client.stream.set_read_timeout(Some(Duration::from_millis(50))).expect("options");
        client.send(WRONG);
        let mut answer = [0; 100];
        tried += usize::from(std::io::Read::read(&mut client.stream, &mut answer).is_ok());
    }
    let seconds = start.elapsed().as_secs() as usize + 1;
    assert!(tried <= BURST + A_SECOND * seconds, "{tried}");
    // The same address with the right password waits, and is accepted.
    let mut client = connect_from(2, &server);
    client.ask(RIGHT, "STORED\r\n");
    client.ask("mn\r\n", "MN\r\n");
    let mut client = connect_from(3, &server);
    client.ask(RIGHT, "STORED\r\n");
    assert!(client.stat("auth_errors") <= (BURST + A_SECOND * (seconds + 2)) as u64);
}

#[test]
fn ten_wrong_passwords_end_a_connection() {
    let server = Server::start(&["-Y", "{auth}"]);
    let mut client = server.connect();
    client.send(WRONG.repeat(BURST + 5));
    assert_eq!(client.closed(), FAILURE.repeat(BURST));
}

#[test]
fn before_the_password_no_value_is_read_into_memory() {
    let server = Server::start(&["-Y", "{auth}", "-m", "64"]);
    let before = server.resident_bytes();
    let value = "v".repeat(1_000_000);
    let clients: Vec<Client> = (0..200)
        .map(|_| {
            let mut client = server.connect();
            client.send(format!("set k 0 0 1000000\r\n{}", &value[1..]));
            client.expect("CLIENT_ERROR unauthenticated\r\n");
            client
        })
        .collect();
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown}");
    for mut client in clients {
        // The rest of the value is dropped; the request after it is executed.
        client.ask(format!("v\r\n{RIGHT}"), "STORED\r\n");
    }
    let mut client = server.connect();
    client.send(format!("get {}", "k ".repeat(3_000)));
    assert_eq!(client.closed(), "");
}
