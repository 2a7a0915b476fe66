//! `tollgate doctor`: each finding, and healthy setups without one.
//!
//! Here: the built program, alone and beside live servers. Not here: the arithmetic of the checks
//! (`server/cli/src/doctor`), clocks that differ (`cluster::operator`).

use std::{
    fs::{self, Permissions},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicU16, Ordering},
    thread,
};

use nix::unistd::geteuid;
use tempfile::TempDir;

use crate::live::{Client, Program, Server};

/// An address of this machine where nobody listens.
fn nowhere() -> String {
    // No test listens on this host. Its ports, and those above them for nodes and the admin
    // listener, are below the ones that the kernel gives out.
    static PORT: AtomicU16 = AtomicU16::new(12_000);
    format!("127.0.77.1:{}", PORT.fetch_add(1, Ordering::Relaxed))
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(Program::Tollgate.path());
    command.arg("doctor").args(words).env_clear();
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Flags of a server that does not run.
fn flags<'a>(listen: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["-l", listen], more].concat()
}

#[track_caller]
fn is_healthy(words: &[&str]) {
    let output = command(words).output().expect("the program is built");
    let said = text(&output);
    assert!(output.status.success() && said.contains("No fault found."), "{words:?}: {said}");
}

#[track_caller]
fn finds(words: &[&str], problem: &str, remedy: &str) -> String {
    let output = command(words).output().expect("the program is built");
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
    assert!(said.contains(problem) && said.contains(remedy), "{problem:?}: {said}");
    said
}

#[test]
fn healthy_settings_have_no_finding() {
    let listen = nowhere();
    is_healthy(&flags(&listen, &[]));
    let folder = tempfile::tempdir().expect("a place for it");
    let limits = folder.path().join("limits.toml");
    fs::write(&limits, "[[limit]]\nname = \"a\"\nmatch = \"a:{x}\"\npolicy = \"block\"\n")
        .expect("the folder is ours");
    let limits = limits.to_string_lossy().into_owned();
    is_healthy(&flags(&listen, &["--limits", &limits, "-c", "100", "-m", "64"]));
    // Three nodes of one machine; two of them run.
    let others: Vec<_> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").expect("free")).collect();
    let others = others.iter().map(|other| other.local_addr().expect("it is bound").to_string());
    let peer = nowhere();
    let seeds = others.chain([peer.clone()]).collect::<Vec<_>>().join(",");
    let cluster = ["--seeds", &seeds, "--expect", "3", "--peer-listen", &peer];
    is_healthy(&flags(&listen, &cluster));
}

#[test]
fn seed_that_does_not_answer_is_found() {
    let (listen, peer, gone) = (nowhere(), nowhere(), nowhere());
    let words = flags(&listen, &["--join", &gone, "--peer-listen", &peer]);
    finds(&words, &format!("the seed {gone} cannot be reached"), "check its --peer-listen");
    let words = flags(&listen, &["--join", "no-such-host.invalid", "--peer-listen", &peer]);
    finds(&words, "the seed no-such-host.invalid:21211 has no address", "correct the name");
}

#[test]
fn wrong_expect_and_too_many_replicas_are_found() {
    let (listen, peer) = (nowhere(), nowhere());
    let other = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let other = other.local_addr().expect("it is bound").to_string();
    let seeds = format!("{peer},{other}");
    let with = |expect: &'static str, replicas: &'static str| {
        let words = ["--seeds", &seeds, "--peer-listen", &peer, "--expect", expect];
        [&words[..], &["--replicas", replicas]].concat().iter().map(|it| (*it).to_owned()).collect()
    };
    let finds = |words: Vec<String>, problem: &str, remedy: &str| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        finds(&flags(&listen, &words), problem, remedy);
    };
    finds(with("3", "2"), "--expect 3 is above the 2 nodes that --seeds names", "write --expect 2");
    finds(with("1", "2"), "--expect 1 of 2 nodes: two halves", "write --expect 2");
    finds(with("2", "3"), "--replicas 3 needs as many nodes, and there are 2", "lower --replicas");
}

#[test]
fn memory_and_descriptors_beyond_the_machine_are_found() {
    let listen = nowhere();
    let words = flags(&listen, &["-m", "4000000"]);
    finds(&words, "the memory cap of 4000000 MiB is above 90 %", "lower -m to at most");
    // A process without rights cannot raise its limit.
    let program = Program::Tollgate.path();
    let mut limited = Command::new("prlimit");
    limited.args(["--nofile=256:256", "setpriv", "--bounding-set=-all", "--inh-caps=-all"]);
    limited.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    // The program may lie below a folder that only its owner may enter.
    let folder = tempfile::tempdir_in("/tmp").expect("a place for it");
    let copy = folder.path().join("tollgate");
    fs::copy(&program, &copy).expect("the program is built");
    open_to_all(folder.path());
    let output = limited.arg(&copy).args(["doctor", "-l", &listen, "-c", "5000"]).output();
    let output = output.expect("util-linux has prlimit and setpriv");
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("-c 5000 needs as many open files, and a process may have 256"),
        "{said}"
    );
    assert!(said.contains("or lower -c to 256"), "{said}");
}

fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(path, all).expect("the folder is ours");
}

#[test]
fn limits_that_never_act_are_found() {
    let listen = nowhere();
    let folder = tempfile::tempdir().expect("a place for it");
    let path = folder.path().join("limits.toml");
    let limit = |name: &str, pattern: &str, more: &str| {
        format!("[[limit]]\nname = \"{name}\"\nmatch = \"{pattern}\"\npolicy = \"block\"\n{more}\n")
    };
    for (text, problem) in [
        (limit("all", "a:*", "") + &limit("one", "a:b", ""), "never reached: `all` of line 1"),
        (
            limit("a", "a:{x}", "overrides = [{ key = \"b:1\", policy = \"unlimited\" }]"),
            "it cannot match",
        ),
        (String::new(), "has no limits"),
    ] {
        fs::write(&path, text).expect("the folder is ours");
        let words = flags(&listen, &["--limits", path.to_str().expect("it is text")]);
        finds(
            &words,
            problem,
            if problem.starts_with("has") { "write a limit" } else { "correct" },
        );
    }
}

#[test]
fn peers_without_a_key_are_found() {
    let (listen, peer) = (nowhere(), nowhere());
    let port = peer.rsplit(':').next().expect("it has a port");
    let open = format!("0.0.0.0:{port}");
    let folder = tempfile::tempdir().expect("a place for it");
    let data = folder.path().join("data").to_string_lossy().into_owned();
    let words = ["--data-dir", &data, "--insecure", "--peer-listen", &open];
    let words = flags(&listen, &[&words[..], &["--advertise", "127.0.0.1"]].concat());
    finds(&words, "can join the cluster: peers have no key", "give all nodes --peer-key-file");
}

#[test]
fn file_that_stops_the_start_exits_with_64() {
    let listen = nowhere();
    for (words, problem) in [
        (&["-Y", "gone"][..], "cannot read auth file gone"),
        (&["--tokens", "gone"], "--tokens: gone"),
        (&["-e", "/nonexistent/x"], "-e /nonexistent/x: no snapshot can be written there"),
        (&["-P", "/nonexistent/p"], "cannot write pidfile /nonexistent/p"),
        (&["--admin-socket", "/nonexistent/s"], "cannot listen on /nonexistent/s"),
    ] {
        let output = command(&flags(&listen, words)).output().expect("the program is built");
        let said = text(&output);
        assert_eq!(output.status.code(), Some(64), "{words:?}: {said}");
        assert!(said.contains(problem), "{words:?}: {said}");
    }
}

/// The flags of a live server, so that the doctor finds it.
fn beside(server: &Server) -> Vec<String> {
    vec!["-l".to_owned(), server.address().to_string()]
}

#[test]
fn live_server_that_evicts_is_found() {
    let server = Server::start_as(Program::Tollgate, &["-m", "8", "-I", "1m"]);
    let words = beside(&server);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    is_healthy(&words);
    let output = command(&words).output().expect("the program is built");
    assert!(text(&output).starts_with("The server runs."), "{}", text(&output));
    let mut client = server.connect();
    let value = "v".repeat(100_000);
    for key in 0..200 {
        client.ask(format!("set key{key} 0 0 100000\r\n{value}\r\n"), "STORED\r\n");
    }
    assert!(client.stat("evictions") > 0, "the memory was too small");
    finds(&words, "were removed before they expired: the cap of 8 MiB is too small", "raise -m");
}

/// A folder that every user may enter, and the program in it: others may not read the folder that
/// it is built in.
fn folder_for_all() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a place for it");
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("it is ours");
    let program = folder.path().join("tollgate");
    fs::copy(Program::Tollgate.path(), &program).expect("the program is built");
    (folder, program)
}

#[test]
fn secrets_of_a_live_server_that_another_user_may_not_read_are_a_finding() {
    let (folder, program) = folder_for_all();
    let auth = folder.path().join("auth");
    fs::write(&auth, "user:pass\n").expect("the folder is ours");
    let path = auth.to_str().expect("the path is text");
    let socket = folder.path().join("admin");
    let socket = socket.to_str().expect("the path is text");
    let flags = ["-Y", path, "--admin-socket", socket];
    let _server = Server::start_as(Program::Tollgate, &flags);
    fs::set_permissions(socket, Permissions::from_mode(0o777)).expect("it is ours");
    is_healthy(&flags);
    fs::set_permissions(&auth, Permissions::from_mode(0o000)).expect("it is ours");
    let (code, said) = as_another_user(&program, &flags);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("The server runs."), "{said}");
    let problem = format!("cannot read auth file {path}: Permission denied");
    assert!(said.contains(&problem), "{said}");
    assert!(said.contains("run the doctor as the server's user"), "{said}");
}

/// Runs the doctor as another user than root. Returns its exit code and what it said.
fn as_another_user(program: &Path, flags: &[&str]) -> (Option<i32>, String) {
    let mut doctor = Command::new(program);
    doctor.arg("doctor").args(flags).env_clear();
    if geteuid().is_root() {
        // Root may read everything.
        doctor.uid(65_534);
    }
    let output = doctor.output().expect("the program is built");
    (output.status.code(), text(&output))
}

#[test]
fn a_server_whose_admin_socket_is_closed_to_others_is_asked_at_its_port() {
    let (folder, program) = folder_for_all();
    let socket = folder.path().join("admin");
    let socket = socket.to_str().expect("the path is text");
    let server = Server::start_as(Program::Tollgate, &["--admin-socket", socket]);
    let address = server.address().to_string();
    let flags = ["-l", &address, "--admin-socket", socket];
    is_healthy(&flags);
    fs::set_permissions(socket, Permissions::from_mode(0o000)).expect("it is ours");
    let (code, said) = as_another_user(&program, &flags);
    assert!(code == Some(0) && said.starts_with("The server runs."), "{said}");
}

/// Answers as a node of another version, to one client.
fn older_node() -> (String, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let serve = move || {
        let (stream, _) = listener.accept().expect("the doctor comes");
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).expect("the doctor asks");
        assert_eq!(line, "stats cluster\r\n");
        stream.get_mut().write_all(b"STAT node n2\r\nEND\r\n").expect("the doctor listens");
    };
    (address, thread::spawn(serve))
}

#[test]
fn mixed_versions_are_found() {
    // A real cluster of two versions needs an old program: both nodes are scripted.
    let ((other, older), silent) = (older_node(), nowhere());
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let newer = thread::spawn(move || {
        let (stream, _) = listener.accept().expect("the doctor comes");
        let mut stream = BufReader::new(stream);
        for answer in [
            "STAT evictions 0\r\nEND\r\n".to_owned(),
            "STAT limits 0\r\nEND\r\n".to_owned(),
            "STAT tollgate_version 7.0.0\r\nSTAT place active\r\nSTAT nodes_active 2\r\n\
             STAT replicas 2\r\nEND\r\n"
                .to_owned(),
            format!(
                "STAT n1:self yes\r\nSTAT n2:self no\r\nSTAT n2:client {other}\r\n\
                 STAT n3:client {silent}\r\nSTAT n4:state dead\r\n\
                 STAT n4:client {silent}\r\nEND\r\n"
            ),
        ] {
            stream.read_line(&mut String::new()).expect("the doctor asks");
            stream.get_mut().write_all(answer.as_bytes()).expect("the doctor listens");
        }
    });
    let problem = "versions are mixed: the asked node has 7.0.0, n2 an older one";
    let unknown = "The versions of these nodes could not be asked: n3 (";
    let said = finds(&["-l", &address], problem, "finish the update");
    assert!(said.contains(unknown) && !said.contains("n4"), "{said}");
    older.join().expect("the script was kept to");
    newer.join().expect("the script was kept to");
}

#[test]
fn node_with_fewer_nodes_than_copies_is_found() {
    let node = [&crate::operators::NODE[..], &["-A"]].concat();
    let mut server = Server::start_as(Program::Tollgate, &node);
    server.until("the node has its cluster", |server| is_served(&mut server.connect()));
    let words = beside(&server);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    finds(&words, "the setting replicas is 2, above the number of living nodes, 1", "add nodes");
    server.connect().ask("cluster set replicas 1\r\n", "OK\r\n");
    server.until("it has its setting", |server| {
        server.connect().ask_until("stats cluster\r\n", "END\r\n").contains("STAT replicas 1\r\n")
    });
    is_healthy(&words);
}

/// Whether a `get` is answered with a miss: the node has its cluster.
fn is_served(client: &mut Client) -> bool {
    client.send("get a\r\n");
    let mut answer = [0; 5];
    client.stream.read_exact(&mut answer).is_ok() && answer == *b"END\r\n"
}
