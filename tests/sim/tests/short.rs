//! The short form: a few seeds of each kind, each twice with equal traces, and runs without a rule,
//! which must be found.
//!
//! Not here: many seeds (`just chaos`).

use std::process::{Command, Output};

fn sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sim")).args(args).output().expect("it was built")
}

#[test]
fn seeds_hold() {
    for seed in 1..=5 {
        let out = sim(&[&seed.to_string(), "--trouble=10"]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    }
}

#[test]
fn cut_links_are_gone_around() {
    for seed in 1..=3 {
        let out = sim(&[&seed.to_string(), "--cuts", "--trouble=25"]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    }
}

/// The sum of a count over the outputs of several runs.
fn sum(outs: &[String], name: &str) -> u64 {
    let count = |out: &String| -> u64 {
        let rest = out.split_once(&format!("{name}: "));
        let digits = rest.and_then(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next());
        digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
    };
    outs.iter().map(count).sum()
}

#[test]
fn limits_change_whole_and_once() {
    let mut outs = Vec::new();
    for seed in 1..=6 {
        let out = sim(&[&seed.to_string(), "--limits"]);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{text}");
        outs.push(text);
    }
    // A run fails by itself if it tests one of the other properties too rarely.
    for (name, least) in [("unknown", 20), ("renewals", 20), ("leaders", 8), ("contests", 30)] {
        let count = sum(&outs, name);
        assert!(count >= least, "{name}: {count} tests in six seeds, at least {least} wanted");
    }
}

#[test]
fn an_update_disturbs_nobody() {
    for seed in 1..=4 {
        let out = sim(&[&seed.to_string(), "--update"]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
    }
}

#[test]
fn queries_name_the_nodes_that_do_not_answer() {
    for seed in 1..=5 {
        let out = sim(&[&seed.to_string(), "--queries"]);
        let text = [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(out.status.success(), "{text:?}");
    }
}

/// The number of seeds in which a bug among the changes of limits is found.
const CHANGE_SEEDS: u64 = 10;

/// Asserts that a run of this kind without a rule reports a violation of this text in time, in
/// seeds from `first` on.
fn assert_found(kind: &str, rule: &str, text: &str, first: u64) {
    let bug = format!("--bug={rule}");
    let is_found = (first..first + CHANGE_SEEDS).any(|seed| {
        let out = sim(&[&seed.to_string(), "--once", kind, &bug]);
        String::from_utf8_lossy(&out.stdout).contains(text)
    });
    assert!(is_found, "{rule} is not found in {CHANGE_SEEDS} seeds from {first} on");
}

#[test]
fn bugs_among_changes_of_limits_are_found() {
    assert_found("--limits", "ChangeInParts", " of 10.0.0.", 1);
    assert_found("--limits", "HistoryUncompared", " of 10.0.0.", 1);
    assert_found("--limits", "RingTooShort", ", without Some(", 1);
    // Few seeds find it.
    assert_found("--limits", "ExpiryUncompared", "removes what ends at", 15);
    assert_found("--update", "BoundsBeforeVersion", "differs from another's", 1);
}

/// Whether one of forty seeds reports a violation if `rule` is left out.
fn is_missed(rule: &str) -> bool {
    let bug = format!("--bug={rule}");
    (1..=40).any(|seed| !sim(&[&seed.to_string(), "--once", &bug]).status.success())
}

#[test]
fn a_resend_that_is_done_again_is_found() {
    assert!(is_missed("NoDedupe"));
}

#[test]
fn a_sweep_by_the_wall_clock_is_found() {
    assert!(is_missed("SweepByWall"));
}
