//! A few seeds of the model, and proof that it finds rules that are left out. `just model` runs
//! many.

use model::{Counters, FAULTS, Profile, run};

/// Runs `check` on two threads, for even and for odd numbers.
fn on_two_threads(check: impl Fn(u64) + Sync) {
    std::thread::scope(|scope| {
        scope.spawn(|| check(0));
        scope.spawn(|| check(1));
    });
}

#[test]
fn seed_gives_the_same_trace_twice() {
    const SEEDS: u64 = 4;
    on_two_threads(|first| {
        for seed in (first..SEEDS).step_by(2) {
            let profile = Profile::draw(seed);
            let report = run(seed, &profile, false);
            let reproduce = format!("cargo run --release -p model -- --seed {seed}");
            assert_eq!(report.violations, Vec::<String>::new(), "REPRODUCE: {reproduce}");
            assert!(report.counters.done > 0, "seed {seed} did nothing");
            let again = run(seed, &profile, false);
            assert_eq!(again.hash, report.hash, "another trace the second time: {reproduce}");
        }
    });
}

#[test]
fn seeds_keep_and_test_every_invariant() {
    // The seeds include every aim.
    const SEEDS: u64 = 21;
    let sum = std::sync::Mutex::new(Counters::default());
    on_two_threads(|first| {
        for seed in (first..SEEDS).step_by(2) {
            let report = run(seed, &Profile::draw(seed), false);
            let reproduce = format!("cargo run --release -p model -- --seed {seed}");
            assert_eq!(report.violations, Vec::<String>::new(), "REPRODUCE: {reproduce}");
            assert!(report.counters.done > 0, "seed {seed} did nothing");
            sum.lock().expect("no run panics").add(&report.counters);
        }
    });
    for (_, name, count) in sum.into_inner().expect("no run panics").all() {
        let is_tested = !name.starts_with("checked_") || count > 0;
        assert!(is_tested, "{name}: the invariant was never tested");
    }
}

#[test]
fn rules_that_are_left_out_are_missed() {
    // Rules that few seeds find; `cargo run --release -p model -- --bugs` tries all.
    const SEEDS: u64 = 8;
    let quick = [
        "refusal-lost-with-link",
        "older-link-read-on",
        "resume-one-behind",
        "number-not-kept-on-resend",
        "log-dropped-early",
        "log-dies-with-stream",
        "looked-up-on-arrival",
        "chunk-without-log",
        "no-dedupe",
        "transfer-undrained",
        "serve-when-lost",
        "accept-old-terms",
        "accept-old-attempts",
        "read-not-parked",
        "clock-of-node",
        "sweep-by-wall",
        "unseen-lane-is-new",
        "word-before-refusal",
        "piece-needs-one-link",
        "log-survives-wipe",
        "answer-early",
        "answers-behind-one-copy",
        "answers-overtake-records",
        "deposal-opens-nothing",
        "deposal-releases",
        "drop-silent-backup",
        "removal-at-once",
        "owner-unbounded",
        "policy-outlives-frame",
    ];
    // The first seeds miss these.
    let first_seed = |name| match name {
        "accept-old-terms" => 12,
        "piece-needs-one-link" => 17,
        "log-survives-wipe" => 19,
        "answers-behind-one-copy" | "unseen-lane-is-new" => 34,
        _ => 0,
    };
    on_two_threads(|first| {
        for name in quick.iter().skip(first as usize).step_by(2) {
            let planted = FAULTS.iter().find(|known| known.name == *name).expect("it is a rule");
            let from = first_seed(*name);
            let is_found = (from..from + SEEDS).any(|seed| {
                let profile = Profile::aimed(planted.aim, seed).with(planted.bug);
                !run(seed, &profile, false).violations.is_empty()
            });
            assert!(is_found, "{name} is not found in {SEEDS} seeds");
        }
    });
}
