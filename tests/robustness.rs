//! Clients that are many, vanish, send nonsense or never read: none of them costs another client a
//! reply, or the server its memory.
//!
//! Not here: clients with large values (`buffers`), the memory of items (`memory`), the server's
//! start and end (`lifecycle`). Bounds on memory are about twice the measured values.

use std::{
    io::{Read, Write},
    net::Shutdown,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::SockRef;

use crate::{
    live::{Client, Neighbour, Server},
    operators::NODE,
};

pub(crate) const MIB: u64 = 1 << 20;

/// The longest that a neighbour may wait for one reply in a debug build on a busy machine.
pub(crate) const NEIGHBOUR_WAIT_MAX: Duration = Duration::from_secs(1);

/// xorshift64: any sequence serves, provided that the seed reproduces it.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> usize {
        usize::try_from(self.next() % bound).expect("the bound fits")
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.next().to_le_bytes()[0]).take(count).collect()
    }
}

/// Raises this process's limit of open files to `count`.
pub(crate) fn allow_files(count: u64) {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limits can be read");
    if soft < count {
        setrlimit(Resource::RLIMIT_NOFILE, count, hard.max(count))
            .expect("as root, or with a high hard limit");
    }
}

/// Sends until the server closes the connection or reads no more.
fn pour(client: &mut Client, bytes: &[u8]) {
    // The server may have closed the connection, as it should.
    let _ = client.stream.write_all(bytes);
}

/// Closes with a reset.
pub(crate) fn reset(client: Client) {
    SockRef::from(&client.stream).set_linger(Some(Duration::ZERO)).expect("a socket takes options");
    drop(client);
}

/// The growth of resident memory since it was `before`.
pub(crate) fn grown(server: &Server, before: u64) -> u64 {
    let grown = server.resident_bytes().saturating_sub(before);
    println!("grown by {} KiB", grown >> 10);
    grown
}

#[test]
fn ten_thousand_clients_each_get_their_answer() {
    const CLIENTS: u64 = 10_000;
    allow_files(CLIENTS + 2_000);
    let mut server = Server::start(&["-c", "12000"]);
    let mut first = server.connect();
    first.ask("set n 0 0 1\r\n0\r\n", "STORED\r\n");
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send("incr n 1\r\n");
    }
    let mut answers: Vec<u64> = clients
        .iter_mut()
        .map(|client| client.ask_until("", "\r\n").trim().parse().expect("a number"))
        .collect();
    answers.sort_unstable();
    assert!(answers.iter().copied().eq(1..=CLIENTS), "every answer once");
    assert_eq!(first.stat("curr_connections"), CLIENTS + 1);
    println!("{} KiB a client", server.resident_bytes() / CLIENTS / 1024);
    drop(clients);
    server.until_connected(&mut first, 0);
    assert_eq!(first.stat("total_connections"), CLIENTS + 2, "and the one that `start` made");
    assert_eq!(first.stat("rejected_connections"), 0);
    first.ask("get n\r\n", "VALUE n 0 5\r\n10000\r\nEND\r\n");
}

#[test]
fn half_a_command_leaves_nothing_behind() {
    half_a_command(Server::start(&[]));
}

#[test]
fn half_a_command_leaves_nothing_behind_at_a_node() {
    half_a_command(Server::start(&NODE));
}

fn half_a_command(mut server: Server) {
    let mut first = server.connect();
    first.ask("set k 7 0 3\r\nold\r\n", "STORED\r\n");
    let neighbour = Neighbour::of(&server);
    let commands = [
        "set k 0 0 3\r\nnew\r\n",
        "set k 0 0 3 noreply\r\nnew\r\n",
        "set fresh 0 0 3\r\nnew\r\n",
        "append k 0 0 3\r\nnew\r\n",
        "ms k 3 T0 I\r\nnew\r\n",
        "delete k\r\n",
        "delete k noreply\n",
        "flush_all\r\n",
        "incr neighbour 1\r\n",
        "ma neighbour D5\r\n",
        "touch k -1\r\n",
        "md k q\r\n",
    ];
    for command in commands {
        // A line may end in a bare newline, so the last significant byte is before that.
        for cut in 1..command.trim_end_matches('\n').len() {
            let mut client = server.connect();
            client.send(&command[..cut]);
            if cut % 2 == 0 { reset(client) } else { drop(client) }
        }
    }
    println!("slowest: {:?}", neighbour.slowest());
    server.until_connected(&mut first, 0);
    first.ask("get k fresh\r\n", "VALUE k 7 3\r\nold\r\nEND\r\n");
    assert_eq!(first.stat("curr_items"), 2);
}

#[test]
fn a_killed_client_process_leaves_nothing_behind() {
    let mut server = Server::start(&[]);
    let mut first = server.connect();
    first.ask("set k 0 0 3\r\nold\r\n", "STORED\r\n");
    let neighbour = Neighbour::of(&server);
    let script = "exec 3<>/dev/tcp/127.0.0.1/$0; printf \"set k 0 0 100\\r\\nincr k 1\\r\\n\" >&3; read -r <&3";
    let port = server.address().port().to_string();
    let mut children: Vec<_> = (0..20)
        .map(|_| {
            let mut command = Command::new("bash");
            command.args(["-c", script, &port]).stdin(Stdio::null());
            command.spawn().expect("there is a bash")
        })
        .collect();
    server.until_connected(&mut first, 21);
    let wanted =
        u64::try_from(children.len() * "set k 0 0 100\r\nincr k 1\r\n".len()).expect("fits");
    assert!(first.stat("bytes_read") > wanted);
    for child in &mut children {
        child.kill().expect("it is our child");
        child.wait().expect("it is our child");
    }
    server.until_connected(&mut first, 1);
    neighbour.slowest();
    first.ask("get k\r\n", "VALUE k 0 3\r\nold\r\nEND\r\n");
}

#[test]
fn garbage_costs_one_connection_at_most() {
    garbage(Server::start(&[]));
}

#[test]
fn garbage_costs_one_connection_at_most_at_a_node() {
    garbage(Server::start(&NODE));
}

fn garbage(mut server: Server) {
    let mut first = server.connect();
    first.ask("set k 0 0 3\r\nold\r\n", "STORED\r\n");
    let neighbour = Neighbour::of(&server);
    let before = server.resident_bytes();
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut cases: Vec<Vec<u8>> = (0..200)
        .map(|_| {
            let count = random.below(5_000);
            random.bytes(count)
        })
        .collect();
    cases.push(random.bytes(10 << 20));
    cases.extend((0..50).map(|_| [&b"\x80"[..], &random.bytes(23)].concat()));
    cases.extend(
        [
            "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "POST /set HTTP/1.1\r\nContent-Length: 20\r\n\r\nset k 0 0 3\r\nnew\r\n",
            "OPTIONS * HTTP/1.1\r\n\r\n",
            "\x16\x03\x01\x02\0\x01\0\x01\u{fc}\x03\x03",
            "*1\r\n$4\r\nPING\r\n",
            "\r\n\r\n\r\n",
            "\n",
            "\0",
            "set k 0 0 2147483645\r\n",
            "set k 0 0 2147483647\r\nabc",
            "set k 0 0 2147483648\r\n",
            "set k 0 0 18446744073709551615\r\n",
            "set k 0 0 18446744073709551616\r\n",
            "set k 0 0 -1\r\n",
            "ms k 2147483645\r\n",
            "ms k 2147483647 S1 q\r\nabc",
            "ms k 18446744073709551615\r\n",
            "ms k -1\r\n",
        ]
        .map(|text| text.as_bytes().to_vec()),
    );
    for case in &cases {
        // `set` with a value too large deletes the key `k`, as it should; no other is affected.
        let mut client = server.connect();
        pour(&mut client, case);
        let _ = client.stream.shutdown(Shutdown::Write);
        client.closed();
    }
    for start in ["x", "get ", "gets ", "set ", "mg ", "get a\r\nmg "] {
        let mut client = server.connect();
        pour(&mut client, start.as_bytes());
        pour(&mut client, &vec![b'y'; 100 << 20]);
        client.closed();
    }
    let slowest = neighbour.slowest();
    println!("slowest: {slowest:?}");
    assert!(slowest < NEIGHBOUR_WAIT_MAX, "a neighbour waited {slowest:?}");
    server.until_connected(&mut first, 0);
    assert!(grown(&server, before) < 16 * MIB);
    first.ask("mn\r\n", "MN\r\n");
}

#[test]
fn a_hundred_megabytes_of_keys_are_no_request() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    // The worker's thread allocates this memory for its first client.
    client.ask("mn\r\n", "MN\r\n");
    let before = server.resident_bytes();
    pour(&mut client, b"get");
    pour(&mut client, &b" k".repeat(50 << 20));
    assert_eq!(client.closed(), "");
    assert!(grown(&server, before) < 16 * MIB);
}

#[test]
fn a_greedy_client_starves_nobody() {
    let server = Server::start(&["-t", "1"]);
    let mut setup = server.connect();
    setup.ask("set greedy 0 0 1\r\n0\r\n", "STORED\r\n");
    let start = Instant::now();
    let neighbour = Neighbour::of(&server);
    let mut waits = Vec::new();
    thread::scope(|scope| {
        let many_keys = format!("get{}\r\n", " k".repeat(500_000));
        for request in ["incr greedy 1\r\n".repeat(10_000), "mn\r\n".repeat(20_000), many_keys] {
            let mut client = server.connect();
            let mut reader = Client { stream: client.stream.try_clone().expect("a duplicate") };
            let stop = start + Duration::from_secs(2);
            scope.spawn(move || {
                while Instant::now() < stop {
                    pour(&mut client, request.as_bytes());
                }
                client.stream.shutdown(Shutdown::Write).expect("it is open");
            });
            scope.spawn(move || {
                let mut buffer = vec![0; 1 << 20];
                while reader.stream.read(&mut buffer).expect("answers come") > 0 {}
            });
        }
        while start.elapsed() < Duration::from_secs(2) {
            let asked = Instant::now();
            setup.ask("mn\r\n", "MN\r\n");
            waits.push(asked.elapsed());
        }
    });
    let slowest = neighbour.slowest().max(waits.iter().max().copied().unwrap_or_default());
    println!("slowest: {slowest:?} of {}", waits.len());
    assert!(slowest < NEIGHBOUR_WAIT_MAX, "a neighbour waited {slowest:?}");
}

#[test]
fn a_flood_without_answers_is_counted_exactly() {
    const FLOOD: usize = 1_000_000;
    let server = Server::start(&[]);
    let mut client = server.connect();
    client.ask("set k 0 0 1\r\n0\r\n", "STORED\r\n");
    let start = Instant::now();
    for _ in 0..FLOOD / 1000 {
        client.send("incr k 1 noreply\r\n".repeat(1000));
    }
    client.ask("get k\r\n", "VALUE k 0 7\r\n1000000\r\nEND\r\n");
    println!("{:?}", start.elapsed());
}

#[test]
fn noreply_is_silent_even_about_errors() {
    let server = Server::start(&["-F", "-m", "2", "-M", "-I", "1m"]);
    let large = "x".repeat(2 << 20);
    for request in [
        "set k 0 0 1 noreply\r\nx\r\n",
        "add k 0 0 1 noreply\r\nx\r\n",
        "replace none 0 0 1 noreply\r\nx\r\n",
        "append none 0 0 1 noreply\r\nx\r\n",
        "prepend none 0 0 1 noreply\r\nx\r\n",
        "cas none 0 0 1 5 noreply\r\nx\r\n",
        "cas k 0 0 1 5 noreply\r\nx\r\n",
        "incr k 1 noreply\r\n",
        "incr none 1 noreply\r\n",
        "decr k x noreply\r\n",
        "delete none noreply\r\n",
        "touch none 0 noreply\r\n",
        "touch none x noreply\r\n",
        "flush_all noreply\r\n",
        "flush_all 0 noreply\r\n",
        "verbosity 0 noreply\r\n",
        "cache_memlimit 1 noreply\r\n",
        &format!("set k 0 0 {} noreply\r\n{large}\r\n", large.len()),
        "ms none 1 q MS\r\nx\r\n",
        "mg nothing v q\r\n",
    ] {
        let mut client = server.connect();
        let shown = &request[..request.len().min(60)];
        let answer = client.ask_until(format!("{request}mn\r\n"), "MN\r\n");
        assert_eq!(answer, "MN\r\n", "{shown:?}");
    }
}

#[test]
fn a_half_closed_client_still_receives_all_replies() {
    let server = Server::start(&["-R", "20"]);
    let mut client = server.connect();
    client.ask("set k 0 0 1\r\n0\r\n", "STORED\r\n");
    client.send("incr k 1\r\n".repeat(50_000));
    client.stream.shutdown(Shutdown::Write).expect("it is open");
    let answers = client.closed();
    let expected: String =
        (1..=50_000).map(|count| format!("{count}\r\n")).collect::<Vec<_>>().concat();
    assert!(answers == expected, "{} of {} bytes came", answers.len(), expected.len());
}
