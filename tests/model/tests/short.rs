//! A few seeds of the model, and proof that it would find what it looks for. `just model` runs many.

use model::{FAULTS, Profile, run};

/// Runs `check` on two threads, for even and for odd numbers.
fn on_two_threads(check: impl Fn(u64) + Sync) {
    std::thread::scope(|scope| {
        scope.spawn(|| check(0));
        scope.spawn(|| check(1));
    });
}

#[test]
fn seeds_keep_every_invariant_and_give_the_same_trace_twice() {
    const SEEDS: u64 = 16;
    on_two_threads(|first| {
        for seed in (first..SEEDS).step_by(2) {
            let profile = Profile::draw(seed);
            let report = run(seed, &profile, false);
            let reproduce = format!("cargo run --release -p model -- --seed {seed}");
            assert_eq!(report.violations, Vec::<String>::new(), "REPRODUCE: {reproduce}");
            assert!(report.figures.done > 0, "seed {seed} did nothing");
            let again = run(seed, &profile, false);
            assert_eq!(again.hash, report.hash, "another trace the second time: {reproduce}");
        }
    });
}

#[test]
fn rules_that_are_left_out_are_missed() {
    // Those that many seeds find; `cargo run --release -p model -- --bugs` tries all.
    let quick = [
        "answer-early",
        "drop-silent-backup",
        "no-dedupe",
        "piece-needs-one-link",
        "read-not-parked",
        "transfer-undrained",
        "serve-in-transfer",
        "clock-of-node",
        "chunk-without-log",
        "owner-unbounded",
        "deposal-releases",
        "number-not-kept-on-resend",
    ];
    on_two_threads(|first| {
        for name in quick.iter().skip(first as usize).step_by(2) {
            let planted = FAULTS.iter().find(|known| known.name == *name).expect("it is a rule");
            let is_found = (0..planted.seeds).any(|seed| {
                let profile = Profile::aimed(planted.aim, seed).with(planted.bug);
                !run(seed, &profile, false).violations.is_empty()
            });
            assert!(is_found, "{name} is not found in {} seeds", planted.seeds);
        }
    });
}
