//! The accuracy study's program: parse, measure, write or compare, exit code.
//!
//! Everything else is in the package's library.

use std::path::PathBuf;
use std::process::ExitCode;

use accuracy::study::Study;
use accuracy::{figures, page};
use anyhow::Context;
use clap::Parser;
use kit::progress::Progress;

/// The files differ from the measurement.
const DIFFERS: u8 = 1;
/// The run could not finish.
const FAILED: u8 = 2;

/// Runs seeded traffic through the engine with a simulated clock and writes the decisions of each
/// algorithm as tables and pictures.
///
/// Exit codes: 0 written, or unchanged; 1 --check found a difference; 2 the run could not finish.
#[derive(Debug, Parser)]
#[command(name = "accuracy", version, max_term_width = 100)]
struct Options {
    /// The seed of all traffic
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The folder of the page and its pictures
    #[arg(long, value_name = "FOLDER", default_value = "docs/accuracy")]
    out: PathBuf,
    /// Write nothing; fail if the files differ from a new measurement
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(differing) if differing.is_empty() => ExitCode::SUCCESS,
        Ok(differing) => {
            eprintln!("accuracy: run `just accuracy`, these differ: {}", differing.join(", "));
            ExitCode::from(DIFFERS)
        }
        Err(error) => {
            eprintln!("accuracy: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

/// Measures and writes the files, or compares them and returns those that differ.
fn run(options: &Options) -> anyhow::Result<Vec<String>> {
    let progress = Progress::default();
    progress.say(&format!("seed {}", options.seed));
    let page = page::render(&Study::run(options.seed, &progress));
    let mut files = vec![("README.md", page)];
    let figures = figures::all(options.seed).context("drawing")?;
    files.extend(figures.into_iter().map(|figure| (figure.file, figure.svg)));
    let mut differing = Vec::new();
    if !options.check {
        std::fs::create_dir_all(&options.out).with_context(|| options.out.display().to_string())?;
    }
    for (name, text) in files {
        let path = options.out.join(name);
        if !options.check {
            std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        } else if std::fs::read_to_string(&path).ok() != Some(text) {
            differing.push(path.display().to_string());
        }
    }
    let done = if options.check { "compared with" } else { "written to" };
    progress.say(&format!("{done} {}", options.out.display()));
    Ok(differing)
}
