//! The short form: a few seeds, each twice with equal traces, and a rule left out, which must be missed.
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
fn a_rule_left_out_is_missed() {
    let found = (1..=40).find(|seed| {
        let seed = seed.to_string();
        !sim(&[&seed, "--once", "--bug=NoDedupe"]).status.success()
    });
    assert!(
        found.is_some(),
        "forty seeds are well without the rule that a resend is not done again"
    );
}
