//! `deploy/`: the server accepts and obeys the configuration in its files.
//!
//! Here: every flag and every `TOLLGATE_` variable in those files is in the help of `tollgate`,
//! `tollgate cluster` or `tollgate healthcheck`, and all files name the same image. In the modules
//! each configuration is started for real. Container engine, Kubernetes and systemd are not
//! available, so the test reads commands, environment and health checks from the files and runs
//! them in network namespaces. `monitoring` compares alert rules and dashboard with the metrics of
//! real servers, `dashboard` checks the form of the dashboard.

mod chart;
mod compose;
mod dashboard;
mod machine;
mod monitoring;
mod unit;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::live::Program;

/// Flags of other programs: cargo, useradd, docker, systemctl, kubectl, helm.
const OTHERS: [&str; 14] = [
    "release",
    "locked",
    "system",
    "uid",
    "gid",
    "no-create-home",
    "home-dir",
    "shell",
    "from",
    "build",
    "now",
    "from-literal",
    "set",
    "read-only",
];

/// The words that follow two dashes. Three dashes, a rule or the end of a document, are no flag.
fn flags(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("--") {
        let is_front =
            !text[..at].ends_with(|before: char| before == '-' || before.is_alphanumeric());
        let is_word =
            |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
        let word: String = text[at + 2..].chars().take_while(|letter| is_word(*letter)).collect();
        if is_front && word.starts_with(|first: char| first.is_ascii_lowercase()) {
            found.insert(word);
        }
    }
    found
}

/// The flags that correspond to environment variables.
fn variables(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, prefix) in text.match_indices("TOLLGATE_") {
        let name = text[at + prefix.len()..].chars();
        let name = name.take_while(|letter| letter.is_ascii_uppercase() || *letter == '_');
        let flag: String = name.map(|letter| letter.to_ascii_lowercase()).collect();
        if !flag.is_empty() {
            found.insert(flag.replace('_', "-"));
        }
    }
    found
}

/// The server's version, which is the tag of its image.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A file of `deploy/`.
fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name);
    fs::read_to_string(path).expect("the file is there")
}

/// A value of a YAML file, as text.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The seconds of `120s` or `120`.
fn seconds(text: &str) -> u64 {
    text.trim_end_matches('s').parse().expect("seconds")
}

/// All files below a folder, with their text.
fn files(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).expect("the folder is there").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else {
            let text = fs::read_to_string(&path).expect("our sources are UTF-8");
            found.push((path.display().to_string(), text));
        }
    }
}

/// The help text of the server for these arguments.
fn help(words: &[&str]) -> String {
    let program = Program::Tollgate.path();
    let output = Command::new(program).args(words).output().expect("the server was built");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn every_flag_in_deploy_is_one_the_server_knows() {
    let server = flags(&help(&["--help"]));
    let mut cluster = flags(&help(&["cluster", "--help"]));
    cluster.extend(flags(&help(&["healthcheck", "--help"])));
    for verb in ["status", "nodes", "partitions", "drain", "forget", "set"] {
        cluster.extend(flags(&help(&["cluster", verb, "--help"])));
    }
    let mut found = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy"), &mut found);
    assert!(found.len() > 10, "the files are somewhere else");
    let mut unknown = Vec::new();
    for (name, text) in found {
        for flag in flags(&text) {
            let is_known = server.contains(&flag) || cluster.contains(&flag);
            if !is_known && !OTHERS.contains(&flag.as_str()) {
                unknown.push(format!("{name}: --{flag}"));
            }
        }
        for flag in variables(&text) {
            if !server.contains(&flag) {
                unknown.push(format!("{name}: TOLLGATE_ variable for --{flag}"));
            }
        }
    }
    assert!(unknown.is_empty(), "the server knows none of:\n{}", unknown.join("\n"));
}

#[test]
fn all_files_mean_the_same_image() {
    let image = format!("tollgate:{VERSION}");
    assert!(
        read("Dockerfile").contains(&format!("docker build -f deploy/Dockerfile -t {image} .\n"))
    );
    let compose: Value = serde_saphyr::from_str(&read("compose.yaml")).expect("good YAML");
    for (service, what) in compose["services"].as_object().expect("it has services") {
        assert_eq!(what["image"], image.as_str(), "{service}");
    }
    let chart: Value =
        serde_saphyr::from_str(&read("helm/tollgate/Chart.yaml")).expect("good YAML");
    assert_eq!(chart["appVersion"], VERSION);
    let values: Value =
        serde_saphyr::from_str(&read("helm/tollgate/values.yaml")).expect("good YAML");
    assert_eq!((text(&values["image"]["repository"]), text(&values["image"]["tag"])), {
        ("tollgate".to_owned(), String::new())
    });
}

#[test]
fn flags_are_found_where_they_stand() {
    let text = "--- a\n  - --data-dir=/x\n  - \"--limits\"\n# `--ready`, x--no, --{{ y }}, -- z\n";
    assert_eq!(flags(text).into_iter().collect::<Vec<_>>(), ["data-dir", "limits", "ready"]);
    let text = "TOLLGATE_PEER_KEY_FILE=/x\nX: ${TOLLGATE_ACK}, TOLLGATE_, the long name\n";
    assert_eq!(variables(text).into_iter().collect::<Vec<_>>(), ["ack", "peer-key-file"]);
}
