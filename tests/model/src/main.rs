//! The model runner: many seeds, all checked; or one seed, printed step by step.

use std::num::NonZero;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use clap::Parser;
use model::{Aim, Counters, FAULTS, Group, Planted, Profile, run};

/// A seed makes many small allocations, for which glibc's `malloc` takes longer.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Runs clusters of real replica cores under faults drawn from seeds, on simulated time.
#[derive(Debug, Parser)]
struct Flags {
    /// The number of seeds.
    #[arg(long, default_value_t = 2000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Runs this one seed and prints all events.
    #[arg(long)]
    seed: Option<u64>,
    /// Leaves out a rule; `list` prints the names.
    #[arg(long)]
    bug: Option<String>,
    /// Leaves out each rule in turn, until a seed finds it.
    #[arg(long)]
    bugs: bool,
    /// Uses this aim for all seeds; `list` prints the names.
    #[arg(long)]
    aim: Option<String>,
    /// Threads; by default one per core.
    #[arg(long)]
    threads: Option<usize>,
}

/// The minimum of each counter over a hundred seeds, without which they prove little: work, faults
/// by kind, and tests of each invariant.
const LEAST: &[(&str, u64)] = &[
    ("done", 500_000),
    ("answers_behind_records", 20_000),
    ("answers_refused", 50),
    ("batches_released", 100_000),
    ("installed", 200_000),
    ("refused", 500),
    ("refusals_heard", 1_000),
    ("resumed", 500),
    ("cut_under_way", 300),
    ("overtaken", 5_000),
    ("blocked", 500),
    ("openings", 800),
    ("reopened", 3_000),
    ("given_up", 3_000),
    ("found", 10_000),
    ("held", 5_000),
    ("not_owner", 50_000),
    ("adopts", 300),
    ("chunks", 10_000),
    ("restarts", 20),
    ("rounds", 30_000),
    ("failovers", 150),
    ("handoffs", 250),
    ("copies", 800),
    ("rested", 1_000),
    ("resets", 100),
    ("stopped", 3_000),
    ("stalls_in_rounds", 1_000),
    ("crashes", 60),
    ("crashes_aimed", 3),
    ("cuts", 800),
    ("losses", 500),
    ("refusals_cut", 30),
    ("stalls", 400),
    ("fences", 25),
    ("abandons", 4),
    ("moves", 300),
    ("members", 40),
    ("resizes", 10),
    ("clock_steps", 80),
    ("checked_states", 50_000),
    ("checked_primaries", 10_000_000),
    ("checked_ends", 5_000),
    ("checked_times", 80_000),
    ("checked_lengths", 8),
    ("checked_answers", 300_000),
    ("checked_order", 100_000),
    ("checked_reads", 50_000),
    ("checked_once", 150_000),
    ("checked_refused", 20_000),
    ("checked_clock", 150_000),
    ("checked_copies", 300),
    ("checked_early", 8),
    ("checked_deaths", 4),
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
        println!("{:#?}", report.counters);
        for what in &report.violations {
            println!("VIOLATION {what}");
        }
        return if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    many(&flags, profile)
}

/// Leaves out each rule in turn: the number of seeds until one finds it, at most that of the table.
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

/// Runs many seeds; every sixteenth runs twice and must give the same trace.
fn many(flags: &Flags, profile: impl Fn(u64) -> Profile + Sync) -> ExitCode {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let next = AtomicU64::new(0);
    let sum = Mutex::new((Counters::default(), Vec::new()));
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
                    sum.0.add(&report.counters);
                    sum.1.extend(what.map(|what| (seed, what)));
                }
            });
        }
    });
    let (counters, mut failed) = sum.into_inner().expect("no run panics");
    let took = started.elapsed();
    let each_second = u128::from(counters.calls) * 1000 / took.as_millis().max(1);
    println!("{} seeds in {} s, {each_second} operations a second", flags.seeds, took.as_secs());
    for group in [Group::Work, Group::Fault, Group::Invariant] {
        println!("{}", group.title());
        for (_, name, count) in counters.all().into_iter().filter(|(of, ..)| *of == group) {
            println!("{count:>14} {name}");
        }
    }
    println!("{:>14} seeds failed", failed.len());
    failed.sort();
    for (seed, what) in failed.iter().take(5) {
        let bug = flags.bug.as_ref().map_or(String::new(), |bug| format!(" --bug {bug}"));
        println!("seed {seed}: {}", what.lines().next().unwrap_or_default());
        let aim = flags.aim.as_ref().map_or(String::new(), |aim| format!(" --aim {aim}"));
        println!("  REPRODUCE: cargo run --release -p model -- --seed {seed}{bug}{aim}");
    }
    // Only a mix of aims reaches every minimum.
    let is_mixed = flags.aim.is_none() && flags.bug.is_none();
    let is_exercised = !is_mixed || flags.seeds < 100 || is_exercised(&counters, flags.seeds);
    if failed.is_empty() && is_exercised { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether `seeds` seeds reached every minimum.
fn is_exercised(counters: &Counters, seeds: u64) -> bool {
    let counts = counters.all();
    let mut is_enough = true;
    for (name, least) in LEAST {
        let found = counts.iter().find(|(_, known, _)| known == name);
        let count = found.map_or(0, |(.., count)| *count);
        if count < least * seeds / 100 {
            println!("too rarely: {name}, {count} times, at least {least} in 100 seeds");
            is_enough = false;
        }
    }
    is_enough
}
