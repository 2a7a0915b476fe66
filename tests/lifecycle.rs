//! A server's start, the connections it accepts, and its end: listeners, limits, passwords,
//! signals.
//!
//! Not here: the data that survives a restart (`snapshots`).

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::TcpListener,
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::{signal::Signal, stat::Mode},
    unistd::mkfifo,
};

use crate::live::{Client, PATIENCE, Program, Server};

/// A request of 16 bytes: a whole number of them fills any buffer to its end.
const SIXTEEN: &str = "incr abcdefg 1\r\n";

/// Whether the server has stopped accepting.
fn refuses(server: &Server) -> bool {
    std::net::TcpStream::connect(server.address()).is_err()
}

#[test]
fn one_client_too_many_is_told_so() {
    let mut server = Server::start(&["-c", "10"]);
    let mut first = server.connect();
    server.until_connected(&mut first, 0);
    let mut others: Vec<Client> = (0..9).map(|_| server.connect()).collect();
    server.until_connected(&mut first, 9);
    for _ in 0..3 {
        assert_eq!(server.connect().closed(), "ERROR Too many open connections\r\n");
    }
    assert_eq!(first.stat("rejected_connections"), 3);
    assert_eq!(first.stat("curr_connections"), 10);
    assert_eq!(first.stat("max_connections"), 10);
    for client in &mut others {
        client.ask("mn\r\n", "MN\r\n");
    }
    others.pop();
    server.until_connected(&mut first, 8);
    server.connect().ask("mn\r\n", "MN\r\n");
}

#[test]
fn without_maxconns_fast_one_too_many_waits() {
    let mut server = Server::start(&["-c", "10", "-o", "no_maxconns_fast"]);
    let mut first = server.connect();
    server.until_connected(&mut first, 0);
    let mut others: Vec<Client> = (0..9).map(|_| server.connect()).collect();
    server.until("the server is full", |_| first.stat("accepting_conns") == 0);
    let mut late = server.connect();
    late.send("mn\r\n");
    late.stream.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket takes it");
    let early = late.stream.read(&mut [0]).expect_err("nobody listens yet");
    assert_eq!(early.kind(), ErrorKind::WouldBlock);
    late.stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes it");
    others.pop();
    late.expect("MN\r\n");
    assert!(first.stat("listen_disabled_num") >= 1);
    assert!(first.stat("time_in_listen_disabled_us") >= 200_000);
    assert_eq!(first.stat("rejected_connections"), 0);
}

#[test]
fn the_idle_are_sent_away_and_the_active_stay() {
    let server = Server::start(&["-o", "idle_timeout=1"]);
    let start = Instant::now();
    let mut active = server.connect();
    let mut idle = server.connect();
    let mut half = server.connect();
    half.send("set k 0 0 10\r\nabc");
    let waiting = thread::spawn(move || {
        assert_eq!(idle.closed(), "");
        assert_eq!(half.closed(), "");
        start.elapsed()
    });
    while !waiting.is_finished() {
        active.ask("mn\r\n", "MN\r\n");
        thread::yield_now();
    }
    let waited = waiting.join().expect("it was closed in silence");
    // The server counts whole milliseconds, so the first one may be almost over.
    assert!(waited >= Duration::from_millis(999) && waited < PATIENCE, "{waited:?}");
    assert_eq!(active.stat("idle_kicks"), 2);
    assert_eq!(active.stat("curr_connections"), 1);
}

#[test]
fn short_turns_keep_answers_in_order() {
    for turn in ["1", "20"] {
        let server = Server::start(&["-R", turn, "-t", "1"]);
        let mut client = server.connect();
        client.ask("set abcdefg 0 0 1\r\n0\r\n", "STORED\r\n");
        let expected: String =
            (1..=2_000).map(|count| format!("{count}\r\n")).collect::<Vec<_>>().concat();
        client.ask(SIXTEEN.repeat(2_000), &expected);
        let yields = client.stat("conn_yields");
        assert!(yields >= 2_000 / turn.parse::<u64>().expect("a number") / 2, "{yields}");
    }
}

fn ask_unix(path: &Path, request: &str, expected: &str) -> bool {
    let Ok(mut stream) = UnixStream::connect(path) else { return false };
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes options");
    stream.write_all(request.as_bytes()).expect("the server takes it");
    let mut answer = vec![0; expected.len()];
    stream.read_exact(&mut answer).expect("an answer comes");
    assert_eq!(String::from_utf8_lossy(&answer), expected);
    true
}

#[test]
fn a_unix_socket_takes_the_place_of_tcp() {
    for (flags, mode) in [(&["-a", "0700"][..], 0o700), (&["-a", "0770"], 0o770), (&[], 0o700)] {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = folder.path().join("socket");
        // A dead server left this socket.
        drop(UnixListener::bind(&path).expect("the folder is ours"));
        let all = [&["-s", "{folder}/socket"], flags].concat();
        let mut server = Server::start_in(Program::under_test(), &all, folder);
        server.until("it listens", |_| ask_unix(&path, "mn\r\n", "MN\r\n"));
        let found = fs::symlink_metadata(&path).expect("the socket is there");
        assert!(found.file_type().is_socket());
        assert_eq!(found.permissions().mode() & 0o777, mode);
        ask_unix(&path, "set k 0 0 1\r\nx\r\nget k\r\n", "STORED\r\nVALUE k 0 1\r\nx\r\nEND\r\n");
        let ports = fs::read_to_string(server.folder().join("ports")).unwrap_or_default();
        assert_eq!(ports, "", "no TCP");
        server.signal(Signal::SIGTERM);
        assert_eq!(server.ended().code(), Some(0));
        assert!(fs::symlink_metadata(&path).is_err(), "the socket is removed");
    }
}

#[test]
fn a_file_that_is_no_socket_is_not_removed() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("precious");
    fs::write(&path, "data").expect("the folder is ours");
    let output = Command::new(Program::Tollgate.path())
        .arg("-s")
        .arg(&path)
        .output()
        .expect("the server starts");
    assert_eq!(output.status.code(), Some(71));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("precious"), "{said}");
    assert_eq!(fs::read_to_string(&path).expect("it is there"), "data");
}

#[test]
fn each_address_given_is_listened_on() {
    let mut flags = vec!["-l", "127.0.0.1", "-l", "127.0.0.1:0"];
    let v6 = TcpListener::bind("[::1]:0").is_ok();
    if v6 {
        flags.extend(["-l", "127.0.0.1,[::1]"]);
    }
    let server = Server::start(&flags);
    assert_eq!(server.addresses().len(), if v6 { 4 } else { 2 });
    server.connect().ask("set k 0 0 1\r\n0\r\n", "STORED\r\n");
    for (address, count) in server.addresses().iter().zip(1..) {
        Client::connect(*address).ask("incr k 1\r\n", &format!("{count}\r\n"));
    }
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = taken.local_addr().expect("it is bound").to_string();
    let output = Command::new(Program::Tollgate.path())
        .args(["-l", &address])
        .output()
        .expect("the server starts");
    assert_eq!(output.status.code(), Some(71));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&address), "{said}");
}

/// Whether the server accepts these credentials.
fn knows(server: &Server, credentials: &str) -> bool {
    let mut client = server.connect();
    client.send(format!("set auth 0 0 {}\r\n{credentials}\r\n", credentials.len()));
    let answer = client.ask_until("", "\r\n");
    match &*answer {
        "STORED\r\n" => true,
        "CLIENT_ERROR authentication failure\r\n" => false,
        _ => panic!("{answer}"),
    }
}

#[test]
fn passwords_are_asked_first_and_read_again_on_hangup() {
    const REFUSED: &str = "CLIENT_ERROR unauthenticated\r\n";
    let mut server = Server::start(&["-Y", "{auth}"]);
    let file = server.folder().join("auth");
    let mut early = server.connect();
    early.ask("get k\r\n", REFUSED);
    early.ask("stats\r\n", REFUSED);
    early.ask("incr k 1\r\n", REFUSED);
    early.ask("flush_all\r\n", REFUSED);
    drop(early);
    let mut client = server.connect();
    client.ask("set x 0 0 10\r\nuser wrong\r\n", "CLIENT_ERROR authentication failure\r\n");
    client.ask("get x\r\n", REFUSED);
    client.ask("set x 0 0 9\r\nuser pass\r\n", "STORED\r\n");
    client.ask("get x\r\n", "END\r\n");
    client.ask("set n 0 0 1\r\n1\r\nincr n 1\r\n", "STORED\r\n2\r\n");
    assert_eq!(client.stat("auth_cmds"), 2);
    assert_eq!(client.stat("auth_errors"), 1);

    fs::write(&file, "one:first\ntwo:second\ntwo:third\n").expect("the folder is ours");
    server.signal(Signal::SIGHUP);
    server.until("the file is read again", |server| knows(server, "one first"));
    assert!(knows(&server, "two second") && knows(&server, "two third"));
    assert!(!knows(&server, "user pass") && !knows(&server, "one second"));
    // An authenticated connection stays authenticated.
    client.ask("incr n 1\r\n", "3\r\n");

    fs::write(&file, "no colon here\n").expect("the folder is ours");
    server.signal(Signal::SIGHUP);
    server.until("the bad file is told", |server| server.log().contains("kept as it was"));
    assert!(knows(&server, "one first") && knows(&server, "two second"));
    assert!(!server.log().contains("no colon here"), "{}", server.log());

    fs::remove_file(&file).expect("it is there");
    server.signal(Signal::SIGHUP);
    server.until("it is told again", |server| server.log().matches("kept as it was").count() == 2);
    assert!(knows(&server, "one first"));
}

#[test]
fn shutdown_ends_the_server_only_where_allowed() {
    for word in ["shutdown\r\n", "shutdown graceful\r\n"] {
        let mut server = Server::start(&["-A", "-P", "{folder}/pid"]);
        let mut other = server.connect();
        other.ask("mn\r\n", "MN\r\n");
        let mut client = server.connect();
        client.ask("shutdown now\r\n", "CLIENT_ERROR invalid shutdown mode\r\n");
        client.send(word);
        assert_eq!(client.closed(), "");
        assert_eq!(server.ended().code(), Some(0), "{word:?}");
        assert_eq!(other.closed(), "");
        assert!(!server.folder().join("pid").exists());
    }
    let server = Server::start(&[]);
    server.connect().ask("shutdown\r\n", "SERVER_ERROR: shutdown not enabled\r\n");
    server.connect().ask("mn\r\n", "MN\r\n");
}

#[test]
fn a_pidfile_lives_as_long_as_the_server() {
    let mut server = Server::start(&["-P", "{folder}/pid"]);
    let file = server.folder().join("pid");
    server.until("the pid is written", |_| file.exists());
    let pid = fs::read_to_string(&file).expect("it is there");
    assert_eq!(pid, format!("{}\n", server.pid()));
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ended().code(), Some(0));
    assert!(!file.exists());
}

#[test]
fn a_pidfile_replaces_no_pipe() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let pipe = folder.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).expect("the folder is ours");
    for (flags, variable) in [(&["-P", "pipe"][..], "OTHER"), (&[], "MEMCACHED_PORT_FILENAME")] {
        let mut command = Command::new("timeout");
        command.arg("10").arg(Program::Tollgate.path()).args(["-p", "-1"]).args(flags);
        let output = command.current_dir(folder.path()).env(variable, "pipe").output();
        let output = output.expect("coreutils have timeout");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("it is not a regular file"), "{stderr}");
    }
    assert!(fs::metadata(&pipe).expect("it is there").file_type().is_fifo());
}

#[test]
fn hangup_and_broken_pipes_end_nothing() {
    let mut server = Server::start(&["-v"]);
    for _ in 0..3 {
        server.signal(Signal::SIGHUP);
        server.signal(Signal::SIGPIPE);
    }
    server.until("the hangup is heard", |server| server.log().contains("SIGHUP"));
    server.connect().ask("mn\r\n", "MN\r\n");
    assert_eq!(server.exited(), None);
}

#[test]
fn requests_sent_before_the_end_are_answered() {
    const CLIENTS: usize = 20;
    const REQUESTS: usize = 40_960;
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut server = Server::start(&["-t", "2"]);
        let mut counter = server.connect();
        counter.ask("set abcdefg 0 0 1\r\n0\r\n", "STORED\r\n");
        let request = SIXTEEN.repeat(REQUESTS);
        let clients: Vec<Client> = (0..CLIENTS).map(|_| server.connect()).collect();
        let start = Instant::now();
        let answers = thread::scope(|scope| {
            let readers: Vec<_> = clients
                .iter()
                .map(|client| {
                    let stream = client.stream.try_clone().expect("a duplicate");
                    scope.spawn(move || Client { stream }.closed())
                })
                .collect();
            let writers: Vec<_> = clients
                .iter()
                .map(|client| {
                    let mut stream = client.stream.try_clone().expect("a duplicate");
                    let request = &request;
                    scope.spawn(move || stream.write_all(request.as_bytes()).expect("it serves"))
                })
                .collect();
            for writer in writers {
                writer.join().expect("all is sent");
            }
            server.signal(signal);
            let answers = readers.into_iter().map(|reader| reader.join().expect("it is closed"));
            answers.collect::<Vec<String>>().concat()
        });
        assert_eq!(server.ended().code(), Some(0));
        println!("ended after {:?}", start.elapsed());
        let count = answers.lines().count();
        assert_eq!(count, CLIENTS * REQUESTS, "all are answered");
        assert!(start.elapsed() < 2 * PATIENCE);
    }
}

#[test]
fn clients_still_in_the_queue_at_the_end_are_served() {
    const CLIENTS: usize = 200;
    let mut server = Server::start(&["-t", "1"]);
    server.connect().ask("set n 0 0 1\r\n0\r\n", "STORED\r\n");
    let mut clients: Vec<Client> = (0..CLIENTS)
        .map(|_| {
            let mut client = server.connect();
            client.send("incr n 1\r\n");
            client
        })
        .collect();
    server.signal(Signal::SIGTERM);
    let answers: usize = clients.iter_mut().map(|client| client.closed().lines().count()).sum();
    assert_eq!(server.ended().code(), Some(0));
    assert_eq!(answers, CLIENTS);
}

#[test]
fn half_a_command_may_be_finished_at_the_end() {
    let mut server = Server::start(&[]);
    let mut client = server.connect();
    client.ask("mn\r\nset k 0 0 5\r\nab", "MN\r\n");
    let mut idle = server.connect();
    idle.ask("mn\r\n", "MN\r\n");
    server.signal(Signal::SIGTERM);
    assert_eq!(idle.closed(), "");
    server.until("it accepts no more", |server| refuses(server));
    client.ask("cde\r\n", "STORED\r\n");
    assert_eq!(client.closed(), "");
    assert_eq!(server.ended().code(), Some(0));
}

#[test]
fn a_second_signal_ends_at_once() {
    let mut server = Server::start(&[]);
    let mut client = server.connect();
    client.ask("mn\r\nset k 0 0 5\r\nab", "MN\r\n");
    server.signal(Signal::SIGTERM);
    server.until("it accepts no more", |server| refuses(server));
    assert_eq!(server.exited(), None);
    let start = Instant::now();
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ended().code(), Some(1));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[test]
fn a_client_that_never_stops_does_not_delay_the_end() {
    let mut server = Server::start(&[]);
    let mut client = server.connect();
    client.ask("set abcdefg 0 0 1\r\n0\r\n", "STORED\r\n");
    let mut reader = Client { stream: client.stream.try_clone().expect("a duplicate") };
    let writing = thread::spawn(move || {
        let request = SIXTEEN.repeat(100);
        while client.stream.write_all(request.as_bytes()).is_ok() {}
    });
    let reading = thread::spawn(move || reader.closed().len());
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ended().code(), Some(0));
    writing.join().expect("it ends");
    println!("{} bytes", reading.join().expect("it ends"));
}

/// Holds whether or not the process may lock memory: the allocator's reserved addresses do not
/// become resident by locking.
#[test]
fn memory_is_locked_as_it_comes_into_use() {
    let server = Server::start(&["-k", "-m", "64"]);
    server.connect().ask("set k 0 0 1\r\n1\r\nincr k 1\r\n", "STORED\r\n2\r\n");
    let resident = server.resident_bytes();
    assert!(resident < 64 << 20, "{resident}");
}
