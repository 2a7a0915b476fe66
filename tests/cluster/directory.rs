//! Data directories that are in use, copied, damaged, or of another cluster.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;

use super::nodes::{Cluster, LONG};
use crate::live::Program;

/// Starts a server on a directory that it cannot use; it ends by itself.
fn refused(directory: &Path) -> Output {
    let mut command = Command::new("timeout");
    command.arg("30").arg(Program::Tollgate.path());
    command.args(["-p", "-1", "-l", "127.0.0.1", "-U", "0", "--peer-listen", "127.0.0.1:0"]);
    command.args(["--ring-name", "refused", "--data-dir"]).arg(directory);
    command.output().expect("timeout runs")
}

#[track_caller]
fn says(output: &Output, words: &[&str]) {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    for word in words {
        assert!(stderr.contains(word), "{word}: {stderr}");
    }
}

#[test]
fn a_directory_in_use_is_named_with_who_has_it() {
    let cluster = Cluster::start(1, &[]);
    let directory = cluster.data(0);
    let output = refused(&directory);
    says(&output, &[&directory.display().to_string(), "is in use by process "]);
}

#[test]
fn a_damaged_control_log_is_named_with_a_remedy() {
    let mut cluster = Cluster::start(1, &[]);
    cluster.kill(0);
    let directory = cluster.data(0);
    let file = directory.join("control.redb");
    let whole = fs::read(&file).expect("it is there");
    let mut overwritten = whole.clone();
    overwritten[..4096].fill(0x55);
    let mut middle = whole.clone();
    middle[4096..].fill(0xaa);
    for damaged in [overwritten, whole[..whole.len() / 3].to_vec(), middle, b"no store".to_vec()] {
        fs::write(&file, damaged).expect("it is ours");
        let output = refused(&directory);
        let expected =
            [&*file.display().to_string(), "is damaged", "start with an empty directory"];
        says(&output, &expected);
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("the folder is ours");
    for entry in fs::read_dir(from).expect("it is there").flatten() {
        fs::copy(entry.path(), to.join(entry.file_name())).expect("files can be copied");
    }
}

#[test]
fn a_copied_directory_ends_with_an_error() {
    let mut cluster = Cluster::start(3, &[]);
    // The node is stopped, so that it writes nothing during the copy.
    cluster.signal(0, Signal::SIGSTOP);
    copy(&cluster.data(0), &cluster.data(3));
    cluster.signal(0, Signal::SIGCONT);
    let number = cluster.join();
    let ended = cluster.until_ended(number);
    assert_eq!(ended.code(), Some(1), "{}", cluster.log(number));
    let log = cluster.log(number);
    assert!(log.contains("copied"), "{log}");
    assert!(log.lines().filter(|line| line.contains("ERROR")).count() <= 2, "{log}");
    // The node itself is unaffected.
    cluster.until_at_rest(3);
    let log = cluster.log(0);
    assert!(!log.contains("ERROR"), "{log}");
}

#[test]
fn a_seed_of_another_cluster_is_warned_of() {
    let other = Cluster::start(1, &[]);
    let mut cluster = Cluster::start(1, &[]);
    cluster.kill(0);
    let seed = format!("{}:21211", other.host(0));
    cluster.restart_with(0, &["--seeds", &seed]);
    let start = Instant::now();
    let wanted = format!("{seed} is ignored: it belongs to cluster ");
    while !cluster.log(0).contains(&wanted) {
        assert!(start.elapsed() < LONG, "{}", cluster.log(0));
        thread::sleep(Duration::from_millis(20));
    }
    thread::sleep(Duration::from_secs(2));
    assert_eq!(cluster.log(0).matches(&wanted).count(), 1, "{}", cluster.log(0));
}
