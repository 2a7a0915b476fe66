//! The model runner: many seeds, all checked; or one seed, told step by step.

#[path = "main_plane.rs"]
mod plane;

use std::num::NonZero;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use model::profile::FAULTS;
use model::{Fault, Figures, Profile, run};

/// Runs clusters of real replica cores under faults drawn from seeds, on simulated time.
#[derive(Debug, Parser)]
pub(crate) struct Flags {
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
    /// Runs the second world, that of the new data plane.
    #[arg(long)]
    plane: bool,
    /// Of the second world: lays stress on this in all seeds; `list` names all.
    #[arg(long)]
    aim: Option<String>,
    /// Threads; by default one per core.
    #[arg(long)]
    threads: Option<usize>,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    if flags.plane {
        return plane::main(&flags);
    }
    let fault = match flags.bug.as_deref().map(model::profile::fault) {
        Some(None) => {
            for (name, _) in FAULTS {
                println!("{name}");
            }
            return ExitCode::FAILURE;
        }
        Some(found) => found,
        None => None,
    };
    if flags.bugs {
        return prove(flags.seeds);
    }
    if let Some(seed) = flags.seed {
        return tell(seed, fault);
    }
    many(&flags, fault)
}

fn profile(seed: u64, fault: Option<Fault>) -> Profile {
    let profile = Profile::draw(seed);
    match fault {
        Some(fault) => profile.with(fault),
        None => profile,
    }
}

/// One seed, with everything that happens.
fn tell(seed: u64, fault: Option<Fault>) -> ExitCode {
    let profile = profile(seed, fault);
    println!("{profile:#?}");
    let report = run(seed, &profile, true);
    println!("{:#?}", report.figures);
    println!("trace {:016x}", report.hash);
    for what in &report.violations {
        println!("VIOLATION {what}");
    }
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Each rule left out in turn: how many seeds it takes to find that.
fn prove(seeds: u64) -> ExitCode {
    let next = AtomicUsize::new(0);
    let missed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while let Some((name, fault)) = FAULTS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let started = Instant::now();
                    let found = (0..seeds).find_map(|seed| {
                        let report = run(seed, &profile(seed, Some(*fault)), false);
                        report.violations.first().cloned().map(|what| (seed, what))
                    });
                    let took = started.elapsed().as_secs_f64();
                    if let Some((seed, what)) = found {
                        let what = what.lines().next().unwrap_or_default();
                        println!("{name:<22} seed {seed:>5} {took:>6.1} s  {what}");
                    } else {
                        missed.fetch_add(1, Ordering::Relaxed);
                        println!("{name:<22} NOT FOUND in {seeds} seeds, {took:.1} s");
                    }
                }
            });
        }
    });
    if missed.into_inner() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct Sum {
    figures: Figures,
    failed: Vec<(u64, String)>,
}

/// Many seeds, each run twice.
fn many(flags: &Flags, fault: Option<Fault>) -> ExitCode {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = flags.threads.unwrap_or(cores);
    let next = AtomicU64::new(0);
    let sum = Mutex::new(Sum { figures: Figures::default(), failed: Vec::new() });
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= flags.seeds {
                        return;
                    }
                    one(flags.first + at, fault, &sum);
                }
            });
        }
        let mut shown = Instant::now();
        while next.load(Ordering::Relaxed) < flags.seeds {
            std::thread::sleep(Duration::from_millis(50));
            if shown.elapsed() >= Duration::from_secs(5) {
                shown = Instant::now();
                let sum = sum.lock().expect("no run panics");
                let done = next.load(Ordering::Relaxed).min(flags.seeds);
                eprintln!(
                    "{done} of {} seeds, {} operations, {} failed",
                    flags.seeds,
                    sum.figures.calls,
                    sum.failed.len()
                );
            }
        }
    });
    let mut sum = sum.into_inner().expect("no run panics");
    println!("{} seeds, each twice, in {:.0} s", flags.seeds, started.elapsed().as_secs_f64());
    print(&sum.figures);
    sum.failed.sort();
    println!("{:>14} seeds failed", sum.failed.len());
    for (seed, what) in sum.failed.iter().take(10) {
        let bug = flags.bug.as_ref().map_or(String::new(), |bug| format!(" --bug {bug}"));
        println!("seed {seed}: {what}");
        println!("  REPRODUCE: cargo run --release -p model -- --seed {seed}{bug}");
    }
    if sum.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn one(seed: u64, fault: Option<Fault>, sum: &Mutex<Sum>) {
    let profile = profile(seed, fault);
    let report = run(seed, &profile, false);
    let again = run(seed, &profile, false);
    let mut what = report.violations.first().cloned();
    if again.hash != report.hash {
        what = Some(format!("another trace the second time: {:016x}", again.hash));
    }
    if let Some(what) = &what {
        eprintln!("seed {seed}: {what}");
    }
    let mut sum = sum.lock().expect("no run panics");
    sum.figures.add(&report.figures);
    sum.failed.extend(what.map(|what| (seed, what)));
}

fn print(figures: &Figures) {
    let lines = [
        (figures.calls, "operations"),
        (figures.done, "answered"),
        (figures.at_once, "answered at once"),
        (figures.not_applied, "certainly not applied"),
        (figures.unknown, "of unknown outcome"),
        (figures.unknown_applied, "of them applied"),
        (figures.early_lost, "answered early and lost, all within the lag"),
        (figures.failovers, "failovers"),
        (figures.handoffs, "handoffs"),
        (figures.copies, "copies made"),
        (figures.resets, "partitions begun anew, all copies being lost"),
        (figures.crashes, "crashes"),
        (figures.pieces, "pieces of copies"),
        (figures.restarts, "learners told to begin anew"),
        (figures.diverged, "times a copy was at another place than a new primary"),
        (figures.gaps, "gaps seen between records"),
        (figures.refused, "attempts refused"),
        (figures.holds_moved, "holds settled at another primary than took them"),
        (figures.leases_moved, "leases of quota gone on with at another primary"),
        (figures.ids_repeated, "ids repeated and answered"),
        (figures.messages, "messages"),
        (figures.relayed, "of them through a third node"),
        (figures.simulated_ns / 1_000_000_000, "simulated seconds"),
        (figures.rest_ns / 1_000_000, "ms at most from the last fault to all copies in place"),
        (figures.lost, "lost"),
        (figures.double, "done twice"),
    ];
    for (count, what) in lines {
        println!("{count:>14} {what}");
    }
}
