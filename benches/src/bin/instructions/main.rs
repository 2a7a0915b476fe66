//! The instruction counts' program: count under callgrind, compare with the stored counts, exit
//! code.
//!
//! In reading order: `case`, the cases; `run`, how they are executed; `link`, the ends of a data
//! link; `local`, a client without a socket; `callgrind`, the counter; `baseline`, the stored
//! counts.

#![allow(
    clippy::cast_precision_loss,
    reason = "counts become floats only to be compared and printed"
)]

mod baseline;
mod callgrind;
mod case;
mod link;
mod local;
mod run;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Parser;

use self::baseline::Counts;

/// A case takes more instructions than the stored count, or has no stored count.
const DEARER: u8 = 1;
/// The run could not finish.
const FAILED: u8 = 2;

/// Counts the instructions of decoding, applying, encoding and all of it, per operation, and
/// compares them with the stored counts.
///
/// Exit codes: 0 no case takes over 5 % more; 1 a case does, or is only counted or only stored; 2
/// the run could not finish.
#[derive(Debug, Parser)]
#[command(name = "instructions", version, max_term_width = 100)]
struct Options {
    /// Store the new counts instead of comparing
    #[arg(long, conflicts_with = "only")]
    write: bool,
    /// Count only cases whose name contains this, such as `whole.take`
    #[arg(long, value_name = "PART", default_value = "")]
    only: String,
    /// The file of the stored counts
    #[arg(long, value_name = "FILE", default_value = "benches/instructions.toml")]
    baseline: PathBuf,
    /// Run in this process, without counting
    #[arg(long, hide = true)]
    here: bool,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(DEARER),
        Err(error) => {
            eprintln!("instructions: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

/// Counts, and writes or compares. Returns false if a case became dearer or was not compared.
fn run(options: &Options) -> anyhow::Result<bool> {
    let Options { write, only, baseline, here } = options;
    if *here {
        run::all(only);
        return Ok(true);
    }
    let (counts, profiles) = callgrind::count(only)?;
    ensure!(!counts.of.is_empty(), "nothing is called {only}");
    let at_baseline = || baseline.display().to_string();
    if *write {
        std::fs::write(baseline, counts.render()).with_context(at_baseline)?;
        eprintln!("instructions: written to {}", baseline.display());
        return Ok(true);
    }
    let written = std::fs::read_to_string(baseline).with_context(at_baseline)?;
    let written = Counts::parse(&written).with_context(at_baseline)?;
    let found = counts.compare(&written, only);
    print!("{}", found.table);
    eprintln!("instructions: for `callgrind_annotate`: {}", profiles.display());
    if counts.rustc != written.rustc {
        eprintln!("instructions: by {}, written down by {}", counts.rustc, written.rustc);
    }
    if counts.cpu != written.cpu {
        // The libraries choose other code paths on another processor, so a difference means
        // nothing.
        eprintln!("instructions: on {}, written down on {}: not judged", counts.cpu, written.cpu);
        return Ok(true);
    }
    if !found.cheaper.is_empty() {
        eprintln!(
            "instructions: over 5 % cheaper, `just instructions --write`: {}",
            found.cheaper.join(", ")
        );
    }
    if !found.alone.is_empty() {
        eprintln!(
            "instructions: new or gone, `just instructions --write`: {}",
            found.alone.join(", ")
        );
    }
    if !found.dearer.is_empty() {
        eprintln!(
            "instructions: over 5 % dearer, `just instructions --write` if that is meant: {}",
            found.dearer.join(", ")
        );
    }
    Ok(found.dearer.is_empty() && found.alone.is_empty())
}
