//! The model runner: many seeds, all checked; or one seed, told step by step.

use std::num::NonZero;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use clap::Parser;
use model::plane::{FAULTS, Figures, Profile, run};

/// Runs clusters of real replica cores under faults drawn from seeds, on simulated time.
#[derive(Debug, Parser)]
struct Flags {
    /// How many seeds.
    #[arg(long, default_value_t = 2000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Runs this one seed and prints all that happens.
    #[arg(long)]
    seed: Option<u64>,
    /// Leaves out a rule; `list` names them.
    #[arg(long)]
    bug: Option<String>,
    /// Leaves out each rule in turn, until a seed finds it.
    #[arg(long)]
    bugs: bool,
    /// Threads; by default one per core.
    #[arg(long)]
    threads: Option<usize>,
}

/// Things that a hundred seeds must have had at least so often, or they say little.
const LEAST: &[(&str, u64)] = &[
    ("done", 30_000),
    ("pieces", 3_000),
    ("installed", 30_000),
    ("refusals_heard", 100),
    ("resumed", 100),
    ("cut_under_way", 100),
    ("overtaken", 100),
    ("blocked", 100),
    ("openings", 300),
    ("reopened", 100),
    ("found", 100),
    ("held", 300),
    ("not_owner", 300),
    ("adopts", 300),
    ("chunks", 1_000),
    ("rounds", 300),
    ("stalls_in_rounds", 100),
    ("failovers", 100),
    ("handoffs", 100),
    ("copies", 300),
    ("crashes", 50),
];

fn main() -> ExitCode {
    let flags = Flags::parse();
    let bug = match flags.bug.as_deref() {
        None => None,
        Some(name) => {
            let Some((_, bug)) = FAULTS.iter().find(|(known, _)| *known == name) else {
                for (name, _) in FAULTS {
                    println!("{name}");
                }
                return ExitCode::FAILURE;
            };
            Some(*bug)
        }
    };
    let profile = move |seed| {
        let profile = Profile::draw(seed);
        bug.map_or(profile.clone(), |bug| profile.with(bug))
    };
    if flags.bugs {
        return prove(flags.seeds);
    }
    if let Some(seed) = flags.seed {
        let profile = profile(seed);
        println!("{profile:#?}");
        let report = run(seed, &profile, true);
        println!("{:#?}", report.figures);
        for what in &report.violations {
            println!("VIOLATION {what}");
        }
        return if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    many(&flags, profile)
}

/// Each rule left out in turn: how many seeds it takes to find that.
fn prove(seeds: u64) -> ExitCode {
    let next = AtomicUsize::new(0);
    let missed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while let Some((name, bug)) = FAULTS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let started = Instant::now();
                    let found = (0..seeds).find_map(|seed| {
                        let report = run(seed, &Profile::draw(seed).with(*bug), false);
                        report.violations.first().cloned().map(|what| (seed, what))
                    });
                    let took = started.elapsed().as_secs_f64();
                    if let Some((seed, what)) = found {
                        let what = what.lines().next().unwrap_or_default();
                        println!("{name:<32} seed {seed:>5} {took:>6.1} s  {what}");
                    } else {
                        missed.fetch_add(1, Ordering::Relaxed);
                        println!("{name:<32} NOT FOUND in {seeds} seeds, {took:.1} s");
                    }
                }
            });
        }
    });
    if missed.into_inner() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Many seeds; every sixteenth runs twice, for the same trace.
fn many(flags: &Flags, profile: impl Fn(u64) -> Profile + Sync) -> ExitCode {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let next = AtomicU64::new(0);
    let sum = Mutex::new((Figures::default(), Vec::new()));
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..flags.threads.unwrap_or(cores) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= flags.seeds {
                        return;
                    }
                    let seed = flags.first + at;
                    let profile = profile(seed);
                    let report = run(seed, &profile, false);
                    let mut what = report.violations.first().cloned();
                    if seed.is_multiple_of(16) && run(seed, &profile, false).hash != report.hash {
                        what = Some("another trace the second time".to_owned());
                    }
                    if let Some(what) = &what {
                        eprintln!("seed {seed}: {}", what.lines().next().unwrap_or_default());
                    }
                    let mut sum = sum.lock().expect("no run panics");
                    sum.0.add(&report.figures);
                    sum.1.extend(what.map(|what| (seed, what)));
                }
            });
        }
    });
    let (figures, mut failed) = sum.into_inner().expect("no run panics");
    println!("{} seeds in {:.0} s", flags.seeds, started.elapsed().as_secs_f64());
    for (name, count) in figures.all() {
        println!("{count:>14} {name}");
    }
    println!("{:>14} seeds failed", failed.len());
    failed.sort();
    for (seed, what) in failed.iter().take(5) {
        let bug = flags.bug.as_ref().map_or(String::new(), |bug| format!(" --bug {bug}"));
        println!("seed {seed}: {}", what.lines().next().unwrap_or_default());
        println!("  REPRODUCE: cargo run --release -p model -- --seed {seed}{bug}");
    }
    let counts = figures.all();
    let mut is_exercised = true;
    for (name, least) in LEAST {
        let count = counts.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count);
        if flags.seeds >= 100 && count < least * flags.seeds / 100 {
            println!("too rarely: {name}, {count} times, at least {least} in 100 seeds");
            is_exercised = false;
        }
    }
    if failed.is_empty() && is_exercised { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
