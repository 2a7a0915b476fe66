//! Access to commands that change a cluster: the admin socket, loopback, `-A`, passwords.
//!
//! Here: one real node, raw lines and the built `tollgate cluster`. Not here: the effect of the
//! commands (`cluster`), the display of their replies (`server/program/tests/cluster_cli.rs`).

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::{fs::MetadataExt as _, net::UnixStream},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use nix::sys::signal::Signal;

use crate::live::{Client, PATIENCE, Program, Server};

/// The flags of a node that forms a cluster of its own.
pub(crate) const NODE: [&str; 8] = [
    "--data-dir",
    "{folder}/data",
    "--partition-bits",
    "4",
    "--peer-listen",
    "127.0.0.1:0",
    "--ring-name",
    "one",
];
const SOCKET: [&str; 2] = ["--admin-socket", "{folder}/admin.sock"];

/// Every command that changes the cluster for all, and the beginning of its reply.
const CHANGES: [(&str, &str); 5] = [
    ("cluster set replicas 2\r\n", "OK\r\n"),
    (
        "cluster limit x 55\r\n[[limit]]\nname = \"x\"\nmatch = \"x:{id}\"\npolicy = \"block\"\n\r\n",
        "OK\r\n",
    ),
    ("cluster unlimit x\r\n", "OK\r\n"),
    ("cluster forget n1\r\n", "CLIENT_ERROR cluster: "),
    ("cluster drain n9\r\n", "CLIENT_ERROR cluster: "),
];

const REFUSED: &str = "CLIENT_ERROR cluster: not allowed on this connection; \
                       use the server's --admin-socket, or start it with --admin-loopback or -A\r\n";

fn node(flags: &[&str]) -> Server {
    let mut server = Server::start_as(Program::Tollgate, &[&NODE, flags].concat());
    server.until("the node has its cluster", |server| is_served(&mut server.connect()));
    server
}

/// The same for a server that requires a password: `user`, `pass`.
fn node_with_users(flags: &[&str]) -> Server {
    let flags = [&NODE, flags, &["-Y", "{auth}"]].concat();
    let mut server = Server::start_as(Program::Tollgate, &flags);
    server.until("the node has its cluster", |server| is_served(&mut logged_in(server)));
    server
}

/// Whether a `get` on this connection is answered with a miss.
fn is_served(client: &mut Client) -> bool {
    client.send("get a\r\n");
    let mut answer = [0; 5];
    client.stream.read_exact(&mut answer).is_ok() && answer == *b"END\r\n"
}

fn logged_in(server: &Server) -> Client {
    let mut client = server.connect();
    client.ask("set login 0 0 9\r\nuser pass\r\n", "STORED\r\n");
    client
}

fn socket(server: &Server) -> PathBuf {
    server.folder().join("admin.sock")
}

/// The reply of the admin socket to one request of one line.
fn say(path: &Path, text: &str) -> String {
    let mut stream = UnixStream::connect(path).expect("the socket is there");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes options");
    stream.write_all(text.as_bytes()).expect("the server listens");
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\n") && stream.read(&mut byte).expect("an answer comes") == 1 {
        answer.push(byte[0]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// Sends each change and compares the beginning of the reply.
#[track_caller]
fn check(mut ask: impl FnMut(&str) -> String, is_allowed: bool) {
    for (change, allowed) in CHANGES {
        let answer = ask(change);
        let expected = if is_allowed { allowed } else { REFUSED };
        assert!(answer.starts_with(expected), "{change:?}: {answer:?}");
        assert!(is_allowed || answer == REFUSED, "{change:?}: {answer:?}");
    }
}

/// Runs `tollgate cluster` with these arguments and variables.
fn tollgate(words: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(Program::Tollgate.path());
    command.arg("cluster").args(words).env_clear().envs(variables.iter().copied());
    command.stdin(Stdio::null()).output().expect("the program was built")
}

#[track_caller]
fn succeeds(output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[track_caller]
fn fails(output: &Output, why: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(why), "{said}");
}

#[test]
fn a_loopback_client_may_not_change_a_cluster() {
    let server = node(&SOCKET);
    check(|change| server.connect().ask_until(change, "\n"), false);
    // Reading is allowed.
    let mut client = server.connect();
    client.ask_until("stats cluster\r\n", "END\r\n");
    client.ask_until("cluster limits\r\n", "END\r\n");
}

#[test]
fn flags_let_loopback_change_a_cluster() {
    for flag in ["--admin-loopback", "-A"] {
        let server = node(&[flag]);
        check(|change| server.connect().ask_until(change, "\n"), true);
    }
}

#[test]
fn the_admin_socket_is_for_its_owner() {
    let mut server = node(&SOCKET);
    let path = socket(&server);
    assert_eq!(fs::metadata(&path).expect("it is there").mode() & 0o7777, 0o600);
    check(|change| say(&path, change), true);
    assert!(say(&path, "incr x 1\r\n").starts_with("NOT_FOUND"), "the same lines");

    let path = path.to_string_lossy().into_owned();
    succeeds(&tollgate(&["set", "replicas", "3", "--server", &path], &[]));
    // The environment of a container names the socket.
    succeeds(&tollgate(&["set", "replicas", "2"], &[("TOLLGATE_ADMIN_SOCKET", &path)]));
    let address = server.address().to_string();
    fails(&tollgate(&["set", "replicas", "2", "--server", &address], &[]), "not allowed");
    fails(&tollgate(&["nodes", "--server", "/nowhere/x.sock"], &[]), "/nowhere/x.sock: No such");

    // Another user cannot open it, whatever its folder permits.
    let folder = server.folder();
    fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
    let other = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["nc", "-N", "-U", &path])
        .stdin(Stdio::null())
        .output();
    let other = other.expect("setpriv and nc are installed");
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(said.contains("Permission denied"), "{said}");

    server.signal(Signal::SIGTERM);
    assert!(server.ended().success(), "{}", server.log());
    assert!(!Path::new(&path).exists(), "the socket goes with its server");
}

#[test]
fn the_admin_socket_of_a_living_server_is_kept() {
    let server = node(&SOCKET);
    let path = socket(&server).to_string_lossy().into_owned();
    let second = Command::new(Program::Tollgate.path())
        .args(["-p", "-1", "--admin-socket", &path])
        .output()
        .expect("the program was built");
    fails(&second, "another server listens there");
    assert!(say(Path::new(&path), "version\r\n").starts_with("VERSION"));

    // The socket of a dead server is replaced.
    server.signal(Signal::SIGKILL);
    let (_, folder) = server.ended_leaving();
    assert!(folder.path().join("admin.sock").exists(), "a killed server leaves it");
    let flags = [&NODE[..], &SOCKET].concat();
    let server = Server::start_in(Program::Tollgate, &flags, folder);
    assert!(say(&socket(&server), "version\r\n").starts_with("VERSION"));
}

#[test]
fn the_admin_socket_has_room_when_clients_have_none() {
    let mut server = node(&[&SOCKET[..], &["-c", "3"]].concat());
    // The connections of the readiness checks may take a moment to be closed.
    let mut first = server.connect();
    server.until("its connections are closed", |server| {
        let is_served = is_served(&mut first);
        if !is_served {
            first = server.connect();
        }
        is_served
    });
    server.until_connected(&mut first, 0);
    let _others = [server.connect(), server.connect()];
    server.until_connected(&mut first, 2);
    assert_eq!(server.connect().closed(), "ERROR Too many open connections\r\n");
    assert_eq!(say(&socket(&server), "cluster set replicas 2\r\n"), "OK\r\n");
}

#[test]
fn an_operator_logs_in_with_a_password() {
    let server = node_with_users(&[&SOCKET[..], &["--admin-loopback"]].concat());
    let address = server.address().to_string();
    let password = server.folder().join("password");
    fs::write(&password, "pass\n").expect("the folder is ours");
    let password = password.to_string_lossy().into_owned();
    let ask = |words: &[&str], variables: &[(&str, &str)]| {
        tollgate(&[words, &["--server", &address]].concat(), variables)
    };
    succeeds(&ask(&["set", "replicas", "3", "--login", "user", "--password-file", &password], &[]));
    succeeds(&ask(&["nodes", "--login", "user"], &[("TOLLGATE_PASSWORD", "pass")]));
    succeeds(&ask(&["limits", "get", "--login=user"], &[("TOLLGATE_PASSWORD", "pass")]));

    fails(&ask(&["nodes"], &[]), "asks for a password: use --login USER");
    let wrong = ask(&["nodes", "--login", "user"], &[("TOLLGATE_PASSWORD", "wrong")]);
    fails(&wrong, "authentication failure");
    fails(&ask(&["nodes", "--password-file", &password], &[]), "needs --login USER");
    fails(&ask(&["nodes", "--login", "user", "--password-file", "/nowhere"], &[]), "/nowhere: No");
    fails(&ask(&["nodes", "--login", "user"], &[("TOLLGATE_PASSWORD", "a\nb")]), "one line");

    // The mode of the socket replaces a password.
    check(|change| say(&socket(&server), change), true);
}

#[test]
fn a_password_is_kept_from_a_server_without_users() {
    let server = node(&SOCKET);
    let address = server.address().to_string();
    let words = ["nodes", "--server", &address, "--login", "user"];
    succeeds(&tollgate(&words, &[("TOLLGATE_PASSWORD", "pass")]));
    server.connect().ask("get login\r\n", "END\r\n");
}

#[test]
fn a_password_is_asked_for_without_an_echo() {
    let server = node_with_users(&[]);
    let address = server.address().to_string();
    // A pseudo-terminal; its other end types the password and shows the echo.
    let script = "import os, pty, sys, termios, time\n\
                  pid, end = pty.fork()\n\
                  if pid == 0: os.execv(sys.argv[1], sys.argv[1:])\n\
                  seen = b''\n\
                  while b'user: ' not in seen: seen += os.read(end, 1024)\n\
                  while termios.tcgetattr(end)[3] & termios.ECHO: time.sleep(0.01)\n\
                  os.write(end, b'pass\\n')\n\
                  try:\n    \
                  while True: seen += os.read(end, 1024) or sys.exit(3)\n\
                  except OSError: pass\n\
                  print(seen.decode())\n\
                  sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n";
    let program = Program::Tollgate.path();
    let output = Command::new("timeout")
        .args(["60", "python3"])
        .args(["-c", script])
        .arg(program)
        .args(["cluster", "nodes", "--server", &address, "--login", "user"])
        .env_remove("TOLLGATE_PASSWORD")
        .output()
        .expect("python3 is installed");
    succeeds(&output);
    let seen = String::from_utf8_lossy(&output.stdout);
    assert!(seen.contains("Password of user: ") && seen.contains("READY"), "{seen}");
    assert!(!seen.contains("pass\r") && !seen.contains("pass\n"), "{seen}");
}
