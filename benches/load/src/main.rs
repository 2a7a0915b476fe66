//! The load generator's program: parse, run, print, exit code.
//!
//! Everything else is in the package's library; its README explains the printed report.

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use kit::progress::Progress;
use load::cpu::Cores;
use load::machine::Machine;
use load::options::Options;
use load::report::Report;
use load::{cluster, compare, memory, peers};

/// All replies arrived, and some were wrong.
const WRONG: u8 = 1;
/// The run could not finish.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(wrong) => {
            eprintln!("load: {wrong} wrong replies");
            ExitCode::from(WRONG)
        }
        Err(error) => {
            eprintln!("load: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

/// Makes the run, prints its report and returns the number of wrong replies.
fn run(options: Options) -> anyhow::Result<u64> {
    let options = options.resolve()?;
    let machine = Machine::look();
    let cores = options.pin.map(Cores::split).transpose().context("--pin")?;
    let progress = Progress::default();
    let mut report = Report::new(machine, options.reference_index());
    report.beside.clone_from(&options.beside);
    let outcome = if options.cluster {
        cluster::run(&options, cores.as_ref(), &progress, &mut report)
    } else if options.memory {
        memory::run(&options, cores.as_ref(), &progress, &mut report)
    } else if options.peers.is_some() {
        peers::run(&options, cores.as_ref(), &progress, &mut report)
    } else {
        compare::run(&options, cores.as_ref(), &progress, &mut report)
    };
    if let Err(error) = &outcome {
        report.notes.push(format!("**the run did not finish: {error}**"));
    }
    let text = report.render();
    print!("{text}");
    if let Some(path) = &options.out {
        std::fs::write(path, &text).with_context(|| path.display().to_string())?;
    }
    outcome?;
    if let Some(folder) = &options.peers {
        peers::write(folder, &report).with_context(|| folder.display().to_string())?;
    }
    Ok(report.wrong)
}
