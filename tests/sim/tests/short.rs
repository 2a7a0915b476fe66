//! The short form: a few seeds, each twice, and a rule left out.
//!
//! Not here: many seeds (`just chaos`).

use std::time::Duration;

use sim::{Options, run};

#[test]
fn seeds_hold_and_repeat() {
    let options =
        Options { trouble: Duration::from_secs(6), keeps_lines: true, ..Options::default() };
    for seed in 1..=2 {
        let first = run(seed, &options);
        assert!(first.violations.is_empty(), "{:#?}\nREPRODUCE: just sim {seed}", first.violations);
        let second = run(seed, &options);
        let differs = first.lines.iter().zip(&second.lines).find(|(one, other)| one != other);
        assert_eq!(differs, None, "two runs of seed {seed} differ");
        assert_eq!(first.trace, second.trace, "two runs of seed {seed} differ");
    }
}
