//! The data that a server keeps over a restart or a crash with `-e`, and its handling of bad files.

use std::{fs, process::Command, thread, time::Duration};

use nix::{
    sys::{signal::Signal, stat::Mode},
    unistd::mkfifo,
};
use tempfile::TempDir;

use crate::live::{Client, Program, Server};

const FLAGS: &[&str] = &["-e", "{folder}/snapshot", "-v"];

/// Ends the server with `signal`, and returns its folder.
fn ended_by(server: Server, signal: Signal) -> TempDir {
    server.signal(signal);
    let (status, folder) = server.ended_leaving();
    assert_eq!(status.code(), Some(0));
    folder
}

fn start_in(folder: TempDir) -> Server {
    Server::start_in(Program::Tollgate, FLAGS, folder)
}

/// The cas unique of a key.
fn unique(client: &mut Client, key: &str) -> u64 {
    let answer = client.ask_until(format!("gets {key}\r\n"), "END\r\n");
    let line = answer.lines().next().expect("a line");
    line.rsplit(' ').next().expect("a word").parse().expect("the key is there")
}

/// The remaining seconds of a key.
fn left(client: &mut Client, key: &str) -> i64 {
    let answer = client.ask_until(format!("mg {key} t\r\n"), "\r\n");
    answer.trim().strip_prefix("HD t").expect("the key is there").parse().expect("a number")
}

#[test]
fn everything_is_there_again() {
    for signal in [Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGINT] {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let server = start_in(folder);
        let mut client = server.connect();
        let large = "v".repeat(900_000);
        client.ask("set n 5 0 20\r\n18446744073709551614\r\n", "STORED\r\n");
        client.ask("set zero 0 0 1\r\n0\r\n", "STORED\r\n");
        client.ask("set odd 0 0 3\r\n007\r\n", "STORED\r\n");
        client.ask("set empty 0 0 0\r\n\r\n", "STORED\r\n");
        client.ask("set flags 4294967295 0 5\r\nhello\r\n", "STORED\r\n");
        client.ask("set bytes 0 0 4\r\n\r\n\0\n\r\n", "STORED\r\n");
        client.ask(format!("set large 0 0 900000\r\n{large}\r\n"), "STORED\r\n");
        client.ask("set timed 0 1000 1\r\n1\r\n", "STORED\r\n");
        client.ask("set short 0 1 1\r\n1\r\n", "STORED\r\n");
        client.ask("set past 0 -1 1\r\n1\r\n", "STORED\r\n");
        client.ask("set deleted 0 0 1\r\n1\r\ndelete deleted\r\n", "STORED\r\nDELETED\r\n");
        client.ask("ms AP8= 1 b F9\r\n8\r\n", "HD\r\n");
        client.ask("set stale 0 0 1\r\n1\r\nmd stale I\r\n", "STORED\r\nHD\r\n");
        client.ask(
            "set taken 0 0 1\r\n1\r\nmd taken I\r\nmg taken\r\n",
            "STORED\r\nHD\r\nHD X W\r\n",
        );
        let long = "k".repeat(250);
        client.ask(format!("set {long} 0 0 1\r\n1\r\n"), "STORED\r\n");
        let before = unique(&mut client, "n");
        let all = client.stat("curr_items");
        let folder = ended_by(server, signal);
        // The downtime counts: an item with a second left has expired.
        thread::sleep(Duration::from_millis(1_100));

        let server = start_in(folder);
        let mut client = server.connect();
        let seconds = left(&mut client, "timed");
        assert!((980..=999).contains(&seconds), "{seconds} s left of 1000");
        assert_eq!(left(&mut client, "n"), -1);
        client.ask("get short past deleted\r\n", "END\r\n");
        let expected = all - client.stat("curr_items");
        assert!(expected <= 2, "short and past are gone, {expected} in all");
        assert_eq!(unique(&mut client, "n"), before);
        client.ask("get n\r\n", "VALUE n 5 20\r\n18446744073709551614\r\nEND\r\n");
        client.ask("get zero odd\r\n", "VALUE zero 0 1\r\n0\r\nVALUE odd 0 3\r\n007\r\nEND\r\n");
        client.ask("get empty\r\n", "VALUE empty 0 0\r\n\r\nEND\r\n");
        client.ask("get flags\r\n", "VALUE flags 4294967295 5\r\nhello\r\nEND\r\n");
        client.ask("get bytes\r\n", "VALUE bytes 0 4\r\n\r\n\0\n\r\nEND\r\n");
        client.ask("get large\r\n", &format!("VALUE large 0 900000\r\n{large}\r\nEND\r\n"));
        client.ask("mg AP8= b v f k\r\n", "VA 1 f9 kAP8= b\r\n8\r\n");
        client.ask("mg stale\r\n", "HD X W\r\n");
        client.ask("mg taken\r\n", "HD Z X\r\n");
        client.ask(format!("get {long}\r\n"), &format!("VALUE {long} 0 1\r\n1\r\nEND\r\n"));
        client.ask("incr n 1\r\n", "18446744073709551615\r\n");
        let counted = unique(&mut client, "n");
        assert!(counted > before, "{counted} after {before}");
        client.ask(format!("cas n 0 0 1 {before}\r\n1\r\n"), "EXISTS\r\n");
        client.ask(format!("cas n 0 0 1 {counted}\r\n1\r\n"), "STORED\r\n");
    }
}

#[test]
fn uniques_stay_unique_even_after_the_highest() {
    let server = start_in(tempfile::tempdir().expect("a temporary folder can be made"));
    let mut client = server.connect();
    client.ask("ms top 1 E18446744073709551615\r\n1\r\n", "HD\r\n");
    client.ask("ms near 1 E18446744073709551552\r\n1\r\n", "HD\r\n");
    client.ask("set k 0 0 1\r\n1\r\n", "STORED\r\n");
    let before = unique(&mut client, "k");
    let server = start_in(ended_by(server, Signal::SIGTERM));
    let mut client = server.connect();
    assert_eq!(unique(&mut client, "top"), u64::MAX);
    for _ in 0..100 {
        for key in 0..20 {
            client.ask(format!("set k{key} 0 0 1\r\n1\r\n"), "STORED\r\n");
        }
    }
    client.ask("set k 0 0 1\r\n1\r\n", "STORED\r\n");
    assert!(unique(&mut client, "k") > before);
}

#[test]
fn many_items_come_over_with_other_threads() {
    let server = start_in(tempfile::tempdir().expect("a temporary folder can be made"));
    let mut client = server.connect();
    for batch in 0..50 {
        let requests: String = (0..1000)
            .map(|number| {
                format!("set key{batch}-{number} {number} 0 4\r\n{:04}\r\n", 1000 + number)
            })
            .map(|request| request.replacen(" 4\r\n", " 4 noreply\r\n", 1))
            .collect::<Vec<_>>()
            .concat();
        client.send(requests);
    }
    client.ask("mn\r\n", "MN\r\n");
    let folder = ended_by(server, Signal::SIGUSR1);
    let flags = [FLAGS, &["-t", "7", "-m", "1024"]].concat();
    let server = Server::start_in(Program::Tollgate, &flags, folder);
    let mut client = server.connect();
    assert_eq!(client.stat("curr_items"), 50_000);
    for batch in 0..50 {
        let expected = format!("VALUE key{batch}-77 77 4\r\n1077\r\nEND\r\n");
        client.ask(format!("get key{batch}-77\r\n"), &expected);
    }
}

#[test]
fn a_damaged_file_is_left_aside_whole() {
    let server = start_in(tempfile::tempdir().expect("a temporary folder can be made"));
    let mut client = server.connect();
    for number in 0..20 {
        client.ask(format!("set key{number} 1 100 3\r\n123\r\n"), "STORED\r\n");
        client.ask(format!("set word{number} 1 0 5\r\nhello\r\n"), "STORED\r\n");
    }
    let mut folder = ended_by(server, Signal::SIGTERM);
    let path = folder.path().join("snapshot");
    let good = fs::read(&path).expect("the snapshot is there");
    let mut bad: Vec<(String, Vec<u8>)> = [0, 1, 19, 20, 27, 30, good.len() / 2, good.len() - 1]
        .map(|length| (format!("cut to {length}"), good[..length].to_vec()))
        .to_vec();
    let ends = [0, 19, 24, 28, 29, 30, good.len() - 1, good.len() - 5, good.len() - 13];
    for at in (100..good.len()).step_by(211).chain(ends) {
        for bit in [0, 7] {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << bit;
            bad.push((format!("bit {bit} of byte {at}"), bytes));
        }
    }
    bad.push(("twice".to_owned(), [&good[..good.len() - 13], &good[28..]].concat()));
    println!("{} files", bad.len());
    for (what, bytes) in bad {
        fs::write(&path, &bytes).expect("the folder is ours");
        let mut server = start_in(folder);
        let mut client = server.connect();
        assert_eq!(client.stat("curr_items"), 0, "{what}");
        assert!(server.log().contains("ERROR"), "{what}: {}", server.log());
        let aside = server.folder().join("snapshot.damaged");
        assert!(fs::read(aside).expect("it is kept") == bytes, "{what}");
        assert!(server.resident_bytes() < 64 << 20, "{what}");
        client.ask("set k 0 0 1\r\n1\r\n", "STORED\r\n");
        assert_eq!(server.exited(), None);
        // Killed, so that it does not write a good snapshot.
        server.signal(Signal::SIGKILL);
        (_, folder) = server.ended_leaving();
    }
    // Bytes after the end do not affect the records before it.
    fs::write(&path, &good).expect("the folder is ours");
    let server = start_in(folder);
    assert_eq!(server.connect().stat("curr_items"), 40);
}

#[test]
fn an_unwritable_file_is_an_error_at_the_end() {
    let mut server = Server::start(&["-e", "{folder}/snapshot"]);
    server.connect().ask("set k 0 0 1\r\n1\r\n", "STORED\r\n");
    fs::create_dir(server.folder().join("snapshot.part")).expect("the folder is ours");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ended().code(), Some(1));
    assert!(server.log().contains("snapshot not saved"), "{}", server.log());
}

#[test]
fn a_place_that_is_no_file_is_refused_at_start() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let at = |name: &str| folder.path().join(name).display().to_string();
    mkfifo(at("pipe").as_str(), Mode::S_IRWXU).expect("the folder is ours");
    fs::create_dir(at("dir")).expect("the folder is ours");
    fs::create_dir(at("busy.part")).expect("the folder is ours");
    for (path, why) in [
        (at("pipe"), "it is not a regular file"),
        (at("dir"), "is a directory"),
        ("/dev/null".to_owned(), "it is not a regular file"),
        (at("none/snapshot"), "No such file or directory"),
        ("/proc/snapshot".to_owned(), ""),
        (at("busy"), "is a directory"),
    ] {
        let mut command = Command::new(Program::Tollgate.path());
        let output = command.args(["-p", "-1", "-e", &path]).output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{path}: {stderr}");
        let expected = format!("tollgate: -e {path}: no snapshot can be written there: {why}");
        assert!(stderr.starts_with(&expected) && stderr.lines().count() == 1, "{path}: {stderr}");
    }
    let kind = fs::metadata(at("pipe")).expect("it is there").file_type();
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&kind), "nothing took its place");
}

/// Kills the server, and starts another one in its folder.
fn killed_and_started(server: Server, flags: &[&str]) -> Server {
    server.signal(Signal::SIGKILL);
    let (_, folder) = server.ended_leaving();
    Server::start_in(Program::Tollgate, flags, folder)
}

/// Waits until `count` snapshots were saved since the start.
#[track_caller]
fn until_saved(server: &mut Server, client: &mut Client, count: u64) {
    server.until("a snapshot is saved", |_| client.stat("snapshot_saved") >= count);
}

#[test]
fn a_kill_after_a_warm_start_restores_nothing_old() {
    let server = start_in(tempfile::tempdir().expect("a temporary folder can be made"));
    let mut client = server.connect();
    client.ask("set n 0 0 1\r\n5\r\nset deleted 0 0 1\r\n1\r\n", "STORED\r\nSTORED\r\n");
    client.ask_until("take k 3 fixed:3/h\r\n", "\r\n");
    let mut server = start_in(ended_by(server, Signal::SIGTERM));
    // The server listens before it reads the snapshot, and replies after that.
    server.until("the snapshot is put aside", |server| {
        server.folder().join("snapshot.loaded").exists()
    });
    let mut client = server.connect();
    let log = server.log();
    assert!(log.contains("snapshot read items=3 age_s="), "{log}");
    assert!(!server.folder().join("snapshot").exists());
    client.ask("incr n 1\r\ndelete deleted\r\n", "6\r\nDELETED\r\n");
    let server = killed_and_started(server, FLAGS);
    server.connect().ask("get n deleted\r\n", "END\r\n");
    let log = server.log();
    assert!(log.contains("the last run saved no snapshot"), "{log}");
}

#[test]
fn a_snapshot_on_request_is_what_a_kill_leaves() {
    let mut server = start_in(tempfile::tempdir().expect("a temporary folder can be made"));
    let mut client = server.connect();
    client.ask("set n 7 0 1\r\n5\r\nset s 0 0 3\r\nabc\r\n", "STORED\r\nSTORED\r\n");
    let taken = client.ask_until("take k 2 fixed:3/h\r\n", "\r\n");
    assert!(taken.starts_with("ALLOW"), "{taken}");
    server.signal(Signal::SIGUSR2);
    until_saved(&mut server, &mut client, 1);
    assert_eq!(client.stat("snapshot_items"), 3);
    client.ask("incr n 1\r\n", "6\r\n");
    let mut command = Command::new(Program::Tollgate.path());
    let output = command.args(["snapshot", "--pid", &server.pid().to_string()]).output();
    assert!(output.expect("it runs").status.success());
    until_saved(&mut server, &mut client, 2);
    // This increment is lost.
    client.ask("incr n 1\r\n", "7\r\n");
    assert_eq!(server.exited(), None);
    let server = killed_and_started(server, FLAGS);
    let mut client = server.connect();
    client.ask("get n s\r\n", "VALUE n 7 1\r\n6\r\nVALUE s 0 3\r\nabc\r\nEND\r\n");
    let refused = client.ask_until("take k 2 fixed:3/h\r\n", "\r\n");
    assert!(refused.starts_with("DENY"), "{refused}");
}

#[test]
fn a_signal_without_a_snapshot_file_ends_nothing() {
    let mut server = Server::start(&[]);
    server.signal(Signal::SIGUSR2);
    server.until("it is told", |server| {
        server.log().contains("SIGUSR2 ignored: set a snapshot file")
    });
    server.connect().ask("mn\r\n", "MN\r\n");
}

#[test]
fn snapshots_at_intervals_bound_what_a_kill_loses() {
    let flags = [FLAGS, &["--snapshot-interval", "1"]].concat();
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mut server = Server::start_in(Program::Tollgate, &flags, folder);
    let mut client = server.connect();
    client.ask("set n 0 0 1\r\n0\r\n", "STORED\r\n");
    for count in 1..=1000 {
        client.ask("incr n 1\r\n", &format!("{count}\r\n"));
    }
    // The first snapshot saved from now on may have been started before; the second was not.
    let saved = client.stat("snapshot_saved");
    until_saved(&mut server, &mut client, saved + 2);
    let server = killed_and_started(server, &flags);
    server.connect().ask("get n\r\n", "VALUE n 0 4\r\n1000\r\nEND\r\n");
}

#[test]
fn a_kill_after_a_warm_start_at_intervals_keeps_all() {
    let flags = [FLAGS, &["--snapshot-interval", "3600"]].concat();
    let server = start_in(tempfile::tempdir().expect("a temporary folder can be made"));
    server.connect().ask("set n 0 0 1\r\n5\r\n", "STORED\r\n");
    let folder = ended_by(server, Signal::SIGTERM);
    let server = Server::start_in(Program::Tollgate, &flags, folder);
    // This holds whether or not the first new snapshot was already saved.
    let mut server = killed_and_started(server, &flags);
    let mut client = server.connect();
    client.ask("get n\r\n", "VALUE n 0 1\r\n5\r\nEND\r\n");
    until_saved(&mut server, &mut client, 1);
    let server = killed_and_started(server, &flags);
    server.connect().ask("get n\r\n", "VALUE n 0 1\r\n5\r\nEND\r\n");
}

#[test]
fn a_crash_in_the_middle_leaves_the_snapshot_before() {
    let mut server = start_in(tempfile::tempdir().expect("a temporary folder can be made"));
    let mut client = server.connect();
    client.ask("set n 0 0 1\r\n5\r\n", "STORED\r\n");
    server.signal(Signal::SIGUSR2);
    until_saved(&mut server, &mut client, 1);
    let value = "v".repeat(900_000);
    for number in 0..4 {
        client.ask(format!("set large{number} 0 0 900000\r\n{value}\r\n"), "STORED\r\n");
    }
    client.ask("incr n 1\r\n", "6\r\n");
    // From now on, a write of more than a megabyte into a file ends the process.
    let pid = server.pid().to_string();
    let mut limit = Command::new("prlimit");
    let limit = limit.args(["--pid", &pid, "--fsize=1000000", "--core=0"]).status();
    assert!(limit.expect("util-linux has prlimit").success());
    server.signal(Signal::SIGUSR2);
    let (status, folder) = server.ended_leaving();
    assert_eq!(status.code(), None, "it did not end by itself");
    assert!(folder.path().join("snapshot.part").exists(), "it was in the middle");
    let server = start_in(folder);
    server.connect().ask("get n large0\r\n", "VALUE n 0 1\r\n5\r\nEND\r\n");
}
