//! What the run is doing, on standard error, so that standard output stays a Markdown document.
//!
//! Here: lines for people who wait. On a terminal a part's line is rewritten in place; in a log each
//! part is one line when it is done.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use crate::table::thousands;

/// The run's voice.
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
    /// Says something once.
    pub fn say(&self, line: &str) {
        eprintln!("{} {line}", clock(self.start.elapsed()));
    }

    /// Says how far a part is: `done` of `whole`.
    pub fn part(&self, what: &str, done: u64, whole: u64) {
        let line = format!("{what} {} of {}", thousands(done), thousands(whole));
        let at = clock(self.start.elapsed());
        if self.terminal {
            eprint!("\r{at} {line}{}", if done < whole { " " } else { "\n" });
            // A progress line that cannot be shown is not worth failing a measurement for.
            let _ = stderr().flush();
        } else if done >= whole {
            eprintln!("{at} {line}");
        }
    }
}

fn clock(since: Duration) -> String {
    format!("{:>2}:{:02}", since.as_secs() / 60, since.as_secs() % 60)
}
