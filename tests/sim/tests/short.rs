//! The short form: a few seeds, each twice with equal traces, and runs without a rule, which must
//! be found.
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
