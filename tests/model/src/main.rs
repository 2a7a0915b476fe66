//! The model runner: many seeds, all checked; or one seed, told step by step.

use std::num::NonZero;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use clap::Parser;
use model::{Aim, FAULTS, Figures, Planted, Profile, run};

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
    /// Lays stress on this in all seeds; `list` names all.
    #[arg(long)]
    aim: Option<String>,
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
            let Some(planted) = FAULTS.iter().find(|known| known.name == name) else {
                for known in FAULTS {
                    println!("{}", known.name);
                }
                return ExitCode::FAILURE;
            };
            Some(planted)
        }
    };
    let aim = match flags.aim.as_deref() {
        None => None,
        Some(name) => {
            let Some(aim) = Aim::ALL.into_iter().find(|aim| aim.name() == name) else {
                for aim in Aim::ALL {
                    println!("{}", aim.name());
                }
                return ExitCode::FAILURE;
            };
            Some(aim)
        }
    };
    // A rule that is left out has an aim of its own.
    let profile = move |seed| {
        let aim = aim.or(bug.map(|planted| planted.aim)).unwrap_or(Aim::of(seed));
        let profile = Profile::aimed(aim, seed);
        bug.map_or(profile.clone(), |planted| profile.with(planted.bug))
    };
    if flags.bugs {
        return prove();
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

/// Each rule left out in turn: how many seeds it takes to find that, and at most so many as the table says.
fn prove() -> ExitCode {
    let next = AtomicUsize::new(0);
    let missed = AtomicUsize::new(0);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while let Some(planted) = FAULTS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    missed.fetch_add(usize::from(!is_found(planted)), Ordering::Relaxed);
                }
            });
        }
    });
    let (missed, took) = (missed.into_inner(), started.elapsed().as_secs_f64());
    println!("{} rules left out, {missed} not found, {took:.0} s", FAULTS.len());
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn is_found(planted: &Planted) -> bool {
    let Planted { name, bug, aim, seeds } = *planted;
    let started = Instant::now();
    let found = (0..seeds).find_map(|seed| {
        let report = run(seed, &Profile::aimed(aim, seed).with(bug), false);
        report.violations.first().cloned().map(|what| (seed, what))
    });
    let (took, aim) = (started.elapsed().as_secs_f64(), aim.name());
    match &found {
        Some((seed, what)) => {
            let what = what.lines().next().unwrap_or_default();
            println!("{name:<28} {aim:<9} seed {seed:>3} of {seeds:>3} {took:>6.1} s  {what}");
        }
        None => println!("{name:<28} {aim:<9} NOT FOUND in {seeds} seeds, {took:.1} s"),
    }
    found.is_some()
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
    let took = started.elapsed();
    let each_second = u128::from(figures.calls) * 1000 / took.as_millis().max(1);
    println!("{} seeds in {} s, {each_second} operations a second", flags.seeds, took.as_secs());
    for (name, count) in figures.all() {
        println!("{count:>14} {name}");
    }
    println!("{:>14} seeds failed", failed.len());
    failed.sort();
    for (seed, what) in failed.iter().take(5) {
        let bug = flags.bug.as_ref().map_or(String::new(), |bug| format!(" --bug {bug}"));
        println!("seed {seed}: {}", what.lines().next().unwrap_or_default());
        let aim = flags.aim.as_ref().map_or(String::new(), |aim| format!(" --aim {aim}"));
        println!("  REPRODUCE: cargo run --release -p model -- --seed {seed}{bug}{aim}");
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
