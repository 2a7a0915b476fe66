//! `tollgate cluster ...` against scripted nodes: the requests, the output and the exit code.
//!
//! Here: the built program beside scripted nodes. Not here: real nodes, command lines
//! (`server/cli`).

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};
use std::thread::{self, JoinHandle};

/// Starts a scripted node: it accepts one client, expects these lines in order, writes the answer
/// to each, then closes.
fn node(script: Vec<(&'static str, String)>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let serve = move || {
        let (stream, _) = listener.accept().expect("the client comes");
        let mut stream = BufReader::new(stream);
        for (expected, answer) in script {
            let mut line = String::new();
            stream.read_line(&mut line).expect("the client asks");
            assert_eq!(line, format!("{expected}\r\n"));
            stream.get_mut().write_all(answer.as_bytes()).expect("the client listens");
        }
    };
    (address, thread::spawn(serve))
}

fn command(server: SocketAddr, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("cluster").args(line.split(' ')).arg("--server").arg(server.to_string());
    command.env_clear();
    command
}

fn run(server: SocketAddr, line: &str) -> Output {
    command(server, line).output().expect("the program is built")
}

/// Runs the program with a standard output that nobody reads, and returns the exit code.
fn run_unread(server: SocketAddr, line: &str) -> Option<i32> {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    command(server, line).stdout(writer).status().expect("the program is built").code()
}

#[track_caller]
fn check(output: &Output, code: i32, stdout: &str, stderr: &str) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let seen = (output.status.code(), text(&output.stdout), text(&output.stderr));
    assert_eq!(seen, (Some(code), stdout.to_owned(), stderr.to_owned()));
}

/// Returns `stats cluster nodes` of n1 at `other`, and of n3 with this state, primaries and
/// backups.
fn nodes(other: SocketAddr, leaving: Option<(&str, u32, u32)>) -> String {
    let leaving = leaving.map(|(state, primaries, backups)| {
        format!(
            "STAT n3:ring_name cache-3\r\nSTAT n3:client 192.0.2.1:1\r\nSTAT n3:state {state}\r\n\
             STAT n3:primaries {primaries}\r\nSTAT n3:backups {backups}\r\n"
        )
    });
    format!(
        "STAT n1:ring_name a\r\nSTAT n1:client {other}\r\nSTAT n1:state active\r\n{}END\r\n",
        leaving.unwrap_or_default()
    )
}

#[test]
fn a_status_is_asked_and_printed() {
    let answer = "STAT node n1\r\nSTAT place active\r\nSTAT ready yes\r\nSTAT not_ready -\r\n\
                  STAT leader n1\r\nSTAT fault -\r\nEND\r\n";
    let (server, script) = node(vec![("stats cluster", answer.to_owned())]);
    let output = run(server, "status --ready");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let start = "All partitions are served and have their copies.\n\n\
                 node        n1, active, ready\ncluster     -\n";
    assert!(stdout.starts_with(start) && output.status.success(), "{stdout}");
    script.join().expect("the script was kept to");
}

#[test]
fn safety_is_the_exit_code_of_a_status() {
    let ready = "STAT place active\r\nSTAT ready yes\r\nSTAT leader n1\r\nSTAT fault -\r\n";
    let safe = "STAT safe_to_proceed yes\r\nSTAT not_safe -\r\n";
    let joins = "STAT safe_to_proceed no\r\nSTAT not_safe n2 is joining\r\n";
    for (stats, line, code, sentence) in [
        (safe, "status", 0, "Safe to proceed with the next node."),
        (joins, "status", 1, "Not yet safe to proceed with the next node: n2 is joining."),
        (joins, "status --ready", 0, "Not yet safe to proceed with the next node: n2 is joining."),
        ("", "status", 1, "Not known whether it is safe to proceed: the asked node is older."),
    ] {
        let (server, script) = node(vec![("stats cluster", format!("{ready}{stats}END\r\n"))]);
        let output = run(server, line);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert_eq!((output.status.code(), stdout.lines().last()), (Some(code), Some(sentence)));
        assert!(output.stderr.is_empty(), "{output:?}");
        script.join().expect("the script was kept to");

        let (server, script) = node(vec![("stats cluster", format!("{ready}{stats}END\r\n"))]);
        assert_eq!(run_unread(server, line), Some(code), "{line}");
        script.join().expect("the script was kept to");
    }
}

#[test]
fn readiness_is_the_exit_code() {
    let seeking = "STAT place seeking\r\nSTAT ready no\r\n\
                   STAT not_ready it seeks a cluster\r\nEND\r\n";
    let ready = "STAT place active\r\nSTAT ready yes\r\nSTAT not_ready -\r\nEND\r\n";
    let starting = "SERVER_ERROR not applied: the node is starting\r\n";
    // A node that does not report readiness: an older build.
    let silent = "STAT place active\r\nEND\r\n";
    let why = |why: &str| format!("not ready: {why}");
    for (answer, line, code, stdout, reason) in [
        (ready, "ready", 0, "ready\n", String::new()),
        (ready, "ready --json", 0, "{\"ready\":true}\n", String::new()),
        (seeking, "ready", 1, "", why("it seeks a cluster")),
        (silent, "ready", 1, "", why("it does not say that it is")),
        (starting, "ready", 1, "", format!("SERVER: {}", starting.trim_end())),
        ("ERROR\r\n", "ready", 1, "", "SERVER is in no cluster".to_owned()),
    ] {
        let (server, script) = node(vec![("stats cluster", answer.to_owned())]);
        let reply = reason.replacen("SERVER", &server.to_string(), 1);
        let stderr = if code == 0 { String::new() } else { format!("tollgate: {reply}\n") };
        check(&run(server, line), code, stdout, &stderr);
        script.join().expect("the script was kept to");
    }
}

#[test]
fn a_refused_command_exits_with_1() {
    let refusal = "CLIENT_ERROR cluster: there is no node n9\r\n".to_owned();
    let (server, script) = node(vec![("cluster forget n9", refusal)]);
    let stderr = format!("tollgate: {server}: CLIENT_ERROR cluster: there is no node n9\n");
    check(&run(server, "forget n9"), 1, "", &stderr);
    script.join().expect("the script was kept to");

    let (server, script) = node(vec![("stats cluster partitions all", "ERROR\r\n".to_owned())]);
    let stderr = format!("tollgate: {server} is in no cluster\n");
    check(&run(server, "partitions --all"), 1, "", &stderr);
    script.join().expect("the script was kept to");

    let (server, script) = node(vec![("cluster set replicas 3", "OK\r\n".to_owned())]);
    check(&run(server, "set replicas 3 --json"), 0, "{\"done\":true}\n", "");
    script.join().expect("the script was kept to");
}

#[test]
fn a_node_that_is_not_there_is_named() {
    let closed = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let server = closed.local_addr().expect("it is bound");
    drop(closed);
    let output = run(server, "nodes");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.starts_with(&format!("tollgate: {server}: Connection refused")), "{stderr}");

    // A node that closes the connection at once.
    let (server, script) = node(vec![]);
    assert_eq!(run(server, "nodes").status.code(), Some(1));
    script.join().expect("the script was kept to");
}

#[test]
fn a_drain_is_followed_after_the_asked_node_leaves() {
    // n3 is told to drain itself and ends; n1 then reports that n3 has left.
    let (other, other_script) = node(vec![("stats cluster nodes", {
        // Only n1 is left.
        "STAT n1:ring_name a\r\nSTAT n1:state active\r\nEND\r\n".to_owned()
    })]);
    let list = |state, primaries, backups| {
        ("stats cluster nodes", nodes(other, Some((state, primaries, backups))))
    };
    let (server, script) = node(vec![
        list("active", 5, 7),
        ("cluster drain cache-3", "OK\r\n".to_owned()),
        // The map is a moment old.
        list("active", 5, 7),
        list("draining", 2, 7),
        list("draining", 0, 7),
    ]);
    let stdout = "n3: 12 copies left, 5 of them primaries\n\
                  n3: 9 copies left, 2 of them primaries\n\
                  n3: 7 copies left, 0 of them primaries\n\
                  n3 has left\n";
    check(&run(server, "drain cache-3 --wait"), 0, stdout, "");
    script.join().expect("the script was kept to");
    other_script.join().expect("the script was kept to");
}

#[test]
fn a_drain_that_comes_to_nothing_fails() {
    let nowhere = "192.0.2.1:1".parse().expect("an address");
    for (last, why) in [
        (
            Some(("dead", 1, 1)),
            "tollgate: n3 (cache-3) died before it had given everything away; if it will not come \
             back, `tollgate cluster forget n3` gives up what only it holds\n",
        ),
        (Some(("joining", 1, 1)), "tollgate: n3 was started anew while it drained, and is back\n"),
    ] {
        let (server, script) = node(vec![
            ("stats cluster nodes", nodes(nowhere, Some(("active", 1, 1)))),
            ("cluster drain 3", "OK\r\n".to_owned()),
            ("stats cluster nodes", nodes(nowhere, Some(("draining", 1, 1)))),
            ("stats cluster nodes", nodes(nowhere, last)),
        ]);
        let output = run(server, "drain 3 --wait");
        check(&output, 1, "n3: 2 copies left, 1 of them primaries\n", why);
        script.join().expect("the script was kept to");
    }
}

#[test]
fn a_drain_is_followed_to_its_end_without_a_reader() {
    let nowhere = "192.0.2.1:1".parse().expect("an address");
    for (last, code) in [(None, 0), (Some(("dead", 1, 1)), 1)] {
        let (server, script) = node(vec![
            ("stats cluster nodes", nodes(nowhere, Some(("active", 1, 1)))),
            ("cluster drain 3", "OK\r\n".to_owned()),
            ("stats cluster nodes", nodes(nowhere, Some(("draining", 1, 1)))),
            ("stats cluster nodes", nodes(nowhere, last)),
        ]);
        assert_eq!(run_unread(server, "drain 3 --wait"), Some(code));
        script.join().expect("the script was kept to");
    }
}

#[test]
fn a_drain_may_be_left_alone() {
    let nowhere = "192.0.2.1:1".parse().expect("an address");
    let (server, script) = node(vec![
        ("stats cluster nodes", nodes(nowhere, Some(("active", 1, 1)))),
        ("cluster drain n3", "OK\r\n".to_owned()),
    ]);
    check(&run(server, "drain n3"), 0, "done\n", "");
    script.join().expect("the script was kept to");

    let (server, script) = node(vec![("stats cluster nodes", nodes(nowhere, None))]);
    let stderr = format!("tollgate: {server} knows no node n3, or more than one\n");
    check(&run(server, "drain n3 --wait"), 1, "", &stderr);
    script.join().expect("the script was kept to");
}
