//! The rules of this repository that a program can check.
//!
//! Not here: what rustfmt and clippy check.

use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a file above which it should be two; tests do not count.
const FILE_LINES_MAX: usize = 600;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root").to_owned()
}

/// All our Rust files, as paths from the root with their text.
fn sources() -> Vec<(String, String)> {
    let root = root();
    let mut folders: Vec<PathBuf> =
        ["protocol", "server", "cluster", "tests", "benches", "examples"]
            .map(|name| root.join(name))
            .into();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                if path.file_name().is_some_and(|name| name != "target" && name != "corpus") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("our sources are UTF-8");
                let name = path.strip_prefix(&root).expect("it lies in the root");
                files.push((name.display().to_string(), text));
            }
        }
    }
    assert!(files.len() > 50, "the sources are somewhere else");
    files
}

/// The part of a file before its unit tests.
fn code(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()
}

#[test]
fn every_file_says_what_lives_in_it() {
    for (name, text) in sources() {
        assert!(text.starts_with("//! "), "{name} does not open with a `//!` line");
    }
}

#[test]
fn every_example_says_how_to_run_it() {
    let folder = fs::read_dir(root().join("examples")).expect("there are examples");
    for path in folder.flatten().map(|entry| entry.path()) {
        let text = fs::read_to_string(&path).expect("our sources are UTF-8");
        let head: Vec<_> = text.lines().take(12).collect();
        let head = head.join("\n");
        assert!(head.contains("tollgate --limits examples/"), "{}", path.display());
        let name = path.file_stem().and_then(|name| name.to_str()).expect("names are text");
        let is_program =
            path.extension().is_some_and(|extension| extension != "toml" && extension != "md");
        assert!(!is_program || head.contains(name), "{}", path.display());
    }
}

#[test]
fn nothing_is_left_half_done() {
    // Written in two parts, so that this file does not find itself.
    let banned = [("todo", "!("), ("unimplemented", "!("), ("dbg", "!("), ("#[ign", "ore")];
    for (name, text) in sources() {
        for (first, second) in banned {
            assert!(!text.contains(&format!("{first}{second}")), "{name} has {first}{second}");
        }
    }
}

#[test]
fn no_file_is_two_files() {
    for (name, text) in sources() {
        let is_test = name.starts_with("tests/") || name.contains("/tests");
        let lines = code(&text).lines().count();
        assert!(is_test || lines <= FILE_LINES_MAX, "{name} has {lines} lines");
    }
}

#[test]
fn clocks_and_sockets_have_one_home_each() {
    let clocks = ["clock.rs", "listener.rs", "server.rs", "simulation.rs"];
    let clocks = clocks.map(|name| format!("server/src/{name}"));
    for (name, text) in sources() {
        if !name.starts_with("server/src") || name.ends_with("/tests.rs") {
            continue;
        }
        let code = code(&text);
        let reads_clock = code.contains("Instant::now") || code.contains("SystemTime::now");
        assert!(!reads_clock || clocks.contains(&name), "{name} reads a clock");
        let names_socket = ["TcpStream", "TcpListener", "UnixStream", "UnixListener"]
            .iter()
            .any(|socket| code.contains(socket));
        assert!(!names_socket || name.starts_with("server/src/net"), "{name} names a socket type");
    }
}
