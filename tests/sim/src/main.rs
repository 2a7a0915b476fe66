//! `sim SEED`: one run, twice. `sim chaos`: many, each in a process of its own.
//!
//! Not here: what a run is (`sim::run`).

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::Parser;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use sim::{Bug, Options, Report, run};

/// Whole nodes in a simulated world.
#[derive(Parser)]
struct Flags {
    /// Run this seed twice and compare.
    seed: Option<u64>,
    /// Run seeds from here on, one after the other.
    #[arg(long)]
    from: Option<u64>,
    /// For so many minutes.
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// At most so many seeds.
    #[arg(long, default_value_t = u64::MAX)]
    seeds: u64,
    /// Things go wrong for so many seconds.
    #[arg(long, default_value_t = 20)]
    trouble: u64,
    /// Leave a rule out: AnswerEarly, NoDedupe, AcceptOldTerms and so on.
    #[arg(long, value_parser = bug)]
    bug: Option<Bug>,
    /// Print everything that happens.
    #[arg(long)]
    trace: bool,
    /// Print what nodes log, as `RUST_LOG` has it.
    #[arg(long)]
    log: Option<String>,
    /// Run the seed once only.
    #[arg(long)]
    once: bool,
}

fn bug(name: &str) -> Result<Bug, String> {
    Ok(match name {
        "AnswerEarly" => Bug::AnswerEarly,
        "DropSilentBackup" => Bug::DropSilentBackup,
        "NoDedupe" => Bug::NoDedupe,
        "AcceptOldTerms" => Bug::AcceptOldTerms,
        "LateMandatory" => Bug::LateMandatory,
        "LearnerBehind" => Bug::LearnerBehind,
        "AdoptByLength" => Bug::AdoptByLength,
        "TransferUndrained" => Bug::TransferUndrained,
        "ServeInTransfer" => Bug::ServeInTransfer,
        "ClockOfNode" => Bug::ClockOfNode,
        "ReadsUnconfirmed" => Bug::ReadsUnconfirmed,
        "ServeWhenLost" => Bug::ServeWhenLost,
        "AcceptOldAttempts" => Bug::AcceptOldAttempts,
        "OldStartsCount" => Bug::OldStartsCount,
        "CopyWithoutResults" => Bug::CopyWithoutResults,
        _ => return Err("no such rule".to_owned()),
    })
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    if let Some(filter) = &flags.log {
        let filter = tracing_subscriber::EnvFilter::new(filter);
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).without_time().init();
    }
    let is_well = match flags.seed {
        Some(seed) => one(seed, &flags),
        None => many(&flags),
    };
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One seed; twice, unless told otherwise.
fn one(seed: u64, flags: &Flags) -> bool {
    mad_turmoil::rand::set_rng(StdRng::seed_from_u64(seed));
    let options = Options {
        trouble: Duration::from_secs(flags.trouble),
        bug: flags.bug,
        keeps_lines: true,
    };
    let start = Instant::now();
    let first = run(seed, &options);
    if flags.trace {
        first.lines.iter().for_each(|line| println!("{line}"));
    }
    let Report { requests, answered, faults, served_after, rest_after, simulated, .. } = &first;
    println!(
        "seed {seed}: {requests} requests, {answered} answered, {faults} faults, served after \
         {served_after:?}, at rest after {rest_after:?}, {simulated:?} in {:?}, trace {:016x}",
        start.elapsed(),
        first.trace
    );
    let mut is_well = first.violations.is_empty();
    for violation in first.violations.iter().take(20) {
        println!("seed {seed}: {violation}");
    }
    if !flags.once {
        let second = run(seed, &options);
        if first.trace != second.trace {
            is_well = false;
            println!("seed {seed}: two runs differ");
            let pairs = first.lines.iter().zip(&second.lines).enumerate();
            if let Some((at, (one, other))) = pairs.into_iter().find(|(_, (a, b))| a != b) {
                println!("line {at} of the first:  {one}\nline {at} of the second: {other}");
            }
        }
    }
    if !is_well {
        println!("REPRODUCE: just sim {seed}");
    }
    is_well
}

/// Many seeds, each in a process of its own: what a crashed node leaves behind goes with it.
fn many(flags: &Flags) -> bool {
    let start = Instant::now();
    let from = flags.from.unwrap_or(1);
    let (mut count, mut bad) = (0, Vec::new());
    let myself = match std::env::current_exe() {
        Ok(path) => path,
        Err(error) => {
            println!("where am I? {error}");
            return false;
        }
    };
    for seed in from..from.saturating_add(flags.seeds) {
        if start.elapsed() > Duration::from_mins(flags.minutes) {
            break;
        }
        let mut command = Command::new(&myself);
        command.arg(seed.to_string()).arg(format!("--trouble={}", flags.trouble));
        if let Some(bug) = flags.bug {
            command.arg(format!("--bug={bug:?}"));
        }
        if flags.once {
            command.arg("--once");
        }
        count += 1;
        if !command.status().is_ok_and(|status| status.success()) {
            bad.push(seed);
        }
    }
    println!("{count} seeds in {:?}, {} of them bad: {bad:?}", start.elapsed(), bad.len());
    bad.is_empty()
}
