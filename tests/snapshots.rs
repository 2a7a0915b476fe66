//! What a server brings over a restart with `-e`, and what it does with a bad file.

use std::{fs, thread, time::Duration};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::live::{Client, Program, Server};

const FLAGS: &[&str] = &["-e", "{folder}/snapshot", "-v"];

/// Ends the server as asked, and leaves its folder.
fn ended_by(server: Server, signal: Signal) -> TempDir {
    server.signal(signal);
    let (status, folder) = server.ended_leaving();
    assert_eq!(status.code(), Some(0));
    folder
}

fn start_in(folder: TempDir) -> Server {
    Server::start_in(Program::Tollgate, FLAGS, folder)
}

/// Cas unique of a key.
fn unique(client: &mut Client, key: &str) -> u64 {
    let answer = client.ask_until(format!("gets {key}\r\n"), "END\r\n");
    let line = answer.lines().next().expect("a line");
    line.rsplit(' ').next().expect("a word").parse().expect("the key is there")
}

/// Seconds a key has left.
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
        // The time away counts: what had a second left has none now.
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
fn uniques_are_never_given_twice_even_after_the_highest() {
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
        assert!(server.resident_bytes() < 64 << 20, "{what}");
        client.ask("set k 0 0 1\r\n1\r\n", "STORED\r\n");
        assert_eq!(server.exited(), None);
        // Killed, so that it does not write a good one.
        server.signal(Signal::SIGKILL);
        (_, folder) = server.ended_leaving();
    }
    // What follows the end does no harm to what is before.
    fs::write(&path, &good).expect("the folder is ours");
    let server = start_in(folder);
    assert_eq!(server.connect().stat("curr_items"), 40);
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_at_the_end() {
    let mut server = Server::start(&["-e", "{folder}/none/snapshot"]);
    server.connect().ask("set k 0 0 1\r\n1\r\n", "STORED\r\n");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.ended().code(), Some(1));
    assert!(server.log().contains("snapshot not saved"), "{}", server.log());
}
