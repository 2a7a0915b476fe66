//! The progress of a run, on standard error, so that standard output stays a Markdown document.
//!
//! Here: progress lines. On a terminal a part's line is rewritten in place; in a log each part is
//! one line when it is done.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use crate::table::thousands;

/// Writes progress lines, with the time since its start.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
    start: Instant,
}

impl Default for Progress {
    fn default() -> Self {
        Self { terminal: stderr().is_terminal(), start: Instant::now() }
    }
}

impl Progress {
    /// Writes a line.
    pub fn say(&self, line: &str) {
        eprintln!("{} {line}", clock(self.start.elapsed()));
    }

    /// Reports the progress of a part: `done` of `whole`.
    pub fn part(&self, what: &str, done: u64, whole: u64) {
        let line = format!("{what} {} of {}", thousands(done), thousands(whole));
        let at = clock(self.start.elapsed());
        if self.terminal {
            eprint!("\r{at} {line}{}", if done < whole { " " } else { "\n" });
            // A progress line that cannot be shown must not end a measurement.
            let _ = stderr().flush();
        } else if done >= whole {
            eprintln!("{at} {line}");
        }
    }
}

fn clock(since: Duration) -> String {
    format!("{:>2}:{:02}", since.as_secs() / 60, since.as_secs() % 60)
}
