//! `sim SEED`: one run, twice. `sim`: many, one after the other. Each in a process of its own, so
//! that leftovers of a crashed node end with it.
//!
//! Not here: the run itself (`sim::run`).

use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use sim::{Bug, Options, Report, Scenario, run};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Whole nodes in a simulated world.
#[derive(Parser)]
struct Flags {
    /// Run this seed twice and compare the traces.
    seed: Option<u64>,
    /// Run seeds from here on, one after the other.
    #[arg(long)]
    from: Option<u64>,
    /// The minutes after which no new seed starts.
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// The maximum number of seeds.
    #[arg(long, default_value_t = u64::MAX)]
    seeds: u64,
    /// The seconds during which faults occur.
    #[arg(long, default_value_t = 20)]
    trouble: u64,
    /// Cut single links between two nodes and cause no other fault: then every request is answered.
    #[arg(long)]
    cuts: bool,
    /// Change limits on several nodes at once, under all faults but wrong clocks.
    #[arg(long, conflicts_with = "cuts")]
    limits: bool,
    /// Update the nodes one after the other, and change limits.
    #[arg(long, conflicts_with_all = ["cuts", "limits"])]
    update: bool,
    /// Ask all nodes, while one is silent, starts again, or its path changes.
    #[arg(long, conflicts_with_all = ["cuts", "limits", "update"])]
    queries: bool,
    /// Leave a rule out, by its name among `cluster::Bug`.
    #[arg(long, value_parser = bug)]
    bug: Option<Bug>,
    /// Print the whole trace.
    #[arg(long)]
    trace: bool,
    /// Print the nodes' logs, filtered by level and module, such as `warn,tollgate::node=debug`.
    #[arg(long)]
    log: Option<Targets>,
    /// Run the seed once only.
    #[arg(long)]
    once: bool,
}

impl Flags {
    fn scenario(&self) -> Scenario {
        match self {
            Self { cuts: true, .. } => Scenario::Cuts,
            Self { limits: true, .. } => Scenario::Limits,
            Self { update: true, .. } => Scenario::Update,
            _ => Scenario::Faults,
        }
    }

    /// The flag of the kind of run, if it is given.
    fn kind(&self) -> Option<&'static str> {
        let kinds = [
            (self.cuts, "--cuts"),
            (self.limits, "--limits"),
            (self.update, "--update"),
            (self.queries, "--queries"),
        ];
        kinds.into_iter().find_map(|(is_given, flag)| is_given.then_some(flag))
    }
}

fn bug(name: &str) -> Result<Bug, String> {
    Ok(match name {
        "AnswerEarly" => Bug::AnswerEarly,
        "DropSilentBackup" => Bug::DropSilentBackup,
        "NoDedupe" => Bug::NoDedupe,
        "AcceptOldTerms" => Bug::AcceptOldTerms,
        "LateMandatory" => Bug::LateMandatory,
        "LearnerBehind" => Bug::LearnerBehind,
        "TransferUndrained" => Bug::TransferUndrained,
        "ServeInTransfer" => Bug::ServeInTransfer,
        "ClockOfNode" => Bug::ClockOfNode,
        "ReadsUnconfirmed" => Bug::ReadsUnconfirmed,
        "ServeWhenLost" => Bug::ServeWhenLost,
        "AcceptOldAttempts" => Bug::AcceptOldAttempts,
        "SweepByWall" => Bug::SweepByWall,
        "ChunkWithoutLog" => Bug::ChunkWithoutLog,
        "DeposalReleases" => Bug::DeposalReleases,
        "LogDroppedEarly" => Bug::LogDroppedEarly,
        "ResumeOneBehind" => Bug::ResumeOneBehind,
        "WordBeforeRefusal" => Bug::WordBeforeRefusal,
        "ChangeInParts" => Bug::ChangeInParts,
        "HistoryUncompared" => Bug::HistoryUncompared,
        "BoundsBeforeVersion" => Bug::BoundsBeforeVersion,
        "RingTooShort" => Bug::RingTooShort,
        "ExpiryUncompared" => Bug::ExpiryUncompared,
        _ => return Err("no such rule".to_owned()),
    })
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    if let Some(filter) = &flags.log {
        let lines = fmt::layer().with_ansi(false).without_time();
        tracing_subscriber::registry().with(filter.clone()).with(lines).init();
    }
    let is_well = match flags.seed {
        Some(seed) if flags.once => Ok(once(seed, &flags)),
        Some(seed) => twice(seed, &flags),
        None => many(&flags),
    };
    let is_well = is_well.unwrap_or_else(|error| {
        println!("{error}");
        false
    });
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one seed in this process.
fn once(seed: u64, flags: &Flags) -> bool {
    // tokio and hash tables draw random numbers from the system, which this replaces.
    mad_turmoil::rand::set_rng(StdRng::seed_from_u64(seed));
    if flags.queries {
        // A thread of its own: the world is thread-local, and tasks of nodes need a large stack.
        let builder = std::thread::Builder::new().stack_size(16 << 20);
        let checked = builder.spawn(move || sim::check_queries(seed));
        let is_well = checked.is_ok_and(|checked| checked.join().is_ok());
        println!("seed {seed}: queries, well: {is_well}");
        return is_well;
    }
    let options = Options {
        trouble: Duration::from_secs(flags.trouble),
        bug: flags.bug,
        scenario: flags.scenario(),
        keeps_lines: flags.trace,
    };
    let report = run(seed, &options);
    report.lines.iter().for_each(|line| println!("{line}"));
    let Report { requests, answered, faults, served_after, rest_after, simulated, .. } = &report;
    println!(
        "seed {seed}: {requests} requests, {answered} answered, {faults} faults, served after \
         {served_after:?}, at rest after {rest_after:?}, {simulated:?}, trace {:016x}",
        report.trace
    );
    if let Some(counts) = &report.changes {
        println!("seed {seed}: {counts:?}");
    }
    for violation in report.violations.iter().take(20) {
        println!("seed {seed}: {violation}");
    }
    report.violations.is_empty()
}

/// Runs one seed in two new processes: state that a process has once, such as tokio's count of
/// runtimes, is then the same for both.
fn twice(seed: u64, flags: &Flags) -> std::io::Result<bool> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(seed.to_string()).args(["--once", "--trace"]);
    command.arg(format!("--trouble={}", flags.trouble));
    command.args(flags.kind());
    if let Some(bug) = flags.bug {
        command.arg(format!("--bug={bug:?}"));
    }
    command.stderr(Stdio::inherit());
    let (first, second) = (command.output()?, command.output()?);
    let texts =
        [first.stdout, second.stdout].map(|text| String::from_utf8_lossy(&text).into_owned());
    let lines = texts.each_ref().map(|text| text.lines().collect::<Vec<_>>());
    let front = format!("seed {seed}:");
    for line in lines[0].iter().filter(|line| flags.trace || line.starts_with(&front)) {
        println!("{line}");
    }
    let mut is_well = first.status.success();
    if lines[0] != lines[1] {
        is_well = false;
        let mut pairs = lines[0].iter().zip(&lines[1]);
        let (one, other) = pairs.find(|(one, other)| one != other).unwrap_or((&"end", &"end"));
        println!("seed {seed}: two runs differ\nthe first:  {one}\nthe second: {other}");
    }
    if !is_well {
        println!("REPRODUCE: just sim {seed} {}", flags.kind().unwrap_or_default());
    }
    Ok(is_well)
}

/// The machine's uptime. The clocks of this process belong to the worlds, and stand still outside
/// one.
fn uptime() -> std::io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/uptime")?;
    let seconds = text.split(' ').next().and_then(|word| word.parse().ok());
    seconds.map(Duration::from_secs_f64).ok_or_else(|| std::io::Error::other(text))
}

/// Runs many seeds.
fn many(flags: &Flags) -> std::io::Result<bool> {
    let start = uptime()?;
    let from = flags.from.unwrap_or(1);
    let (mut count, mut bad) = (0, Vec::new());
    for seed in from..from.saturating_add(flags.seeds) {
        if uptime()?.saturating_sub(start) >= Duration::from_mins(flags.minutes) {
            break;
        }
        count += 1;
        if !twice(seed, flags)? {
            bad.push(seed);
        }
    }
    let took = uptime()?.saturating_sub(start);
    println!("{count} seeds in {took:?}, {} of them bad: {bad:?}", bad.len());
    Ok(bad.is_empty())
}
