//! `tollgate snapshot`: has a running server on this machine write its snapshot.
//!
//! Here: its command line, and the signal. Not here: writing the snapshot (`server`).

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tollgate::config::ConfigError;
use tollgate_limits::files;

use super::{CliError, Parsed, help_or, parse_words};

/// Maximum size of a file with a process id.
const PIDFILE_BYTES_MAX: u64 = 64;

/// Have a running server write its snapshot (-e) while it serves on; equivalent to kill -USR2
#[derive(Debug, Clone, PartialEq, Eq, clap::Parser)]
#[command(name = "tollgate snapshot", term_width = 100)]
#[command(group(clap::ArgGroup::new("process").required(true)))]
pub struct SnapshotRequest {
    /// Process id of the server
    #[arg(long, value_name = "NUM", group = "process")]
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// File with the server's process id, as written by the server's -P
    #[arg(long, value_name = "FILE", group = "process")]
    pidfile: Option<PathBuf>,
}

/// Parses the words after `snapshot`.
pub(crate) fn parse(words: &[OsString]) -> Result<Parsed, ConfigError> {
    match parse_words(words) {
        Ok(request) => Ok(Parsed::Snapshot(request)),
        Err(error) => help_or(error, "write tollgate snapshot --pid NUM or --pidfile FILE"),
    }
}

impl SnapshotRequest {
    /// Sends the signal and reports that on `out`.
    ///
    /// # Errors
    ///
    /// No process has this id, or the process does not catch the signal.
    pub fn run(&self, out: &mut impl Write) -> Result<(), CliError> {
        let pid = match (self.pid, &self.pidfile) {
            (Some(pid), _) => pid,
            (None, Some(path)) => {
                let error_of = |source| CliError::Pidfile { path: path.clone(), source };
                let text = files::read(path, PIDFILE_BYTES_MAX).map_err(error_of)?;
                let pid = String::from_utf8_lossy(&text).trim().parse().ok();
                let other = || error_of(io::Error::other("it holds no process id"));
                pid.filter(|pid| *pid > 0).ok_or_else(other)?
            }
            (None, None) => return Ok(()),
        };
        let error_of = |source: io::Error| CliError::Process { pid, source };
        if !takes_signal(&fs::read_to_string(format!("/proc/{pid}/status")).map_err(error_of)?) {
            return Err(error_of(io::Error::other("it takes no SIGUSR2, so it is no tollgate")));
        }
        kill(Pid::from_raw(pid), Signal::SIGUSR2).map_err(|error| error_of(error.into()))?;
        writeln!(
            out,
            "process {pid} was asked to write its snapshot; `stats` and its log tell when it is saved"
        )?;
        Ok(())
    }
}

/// Whether a process with this `/proc/<pid>/status` catches SIGUSR2. The signal would terminate any
/// other process.
fn takes_signal(status: &str) -> bool {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    caught >> (Signal::SIGUSR2 as u32 - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_in_one_way() {
        let read = |line: &str| {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            match parse(&words) {
                Ok(Parsed::Snapshot(request)) => Ok(request),
                Ok(other) => Err(format!("{other:?}")),
                Err(error) => Err(error.to_string()),
            }
        };
        let pid = SnapshotRequest { pid: Some(7), pidfile: None };
        assert_eq!(read("--pid 7"), Ok(pid));
        let pidfile = SnapshotRequest { pid: None, pidfile: Some("/run/t.pid".into()) };
        assert_eq!(read("--pidfile /run/t.pid"), Ok(pidfile));
        let usage = "write tollgate snapshot --pid NUM or --pidfile FILE";
        assert_eq!(read(""), Err(usage.to_owned()));
        for line in ["--pid 0", "--pid -1", "--pid x", "--pid 7 --pidfile /p", "7"] {
            let reason = read(line).expect_err(line);
            assert!(!reason.contains('\n'), "{line}: {reason}");
        }
    }

    #[test]
    fn only_a_process_that_catches_the_signal_is_sent_it() {
        assert!(takes_signal("Name:\tx\nSigCgt:\t0000000000000800\n"));
        assert!(!takes_signal("Name:\tx\nSigCgt:\t00000000000007ff\n"));
        assert!(!takes_signal("Name:\tx\n"));
        let this = SnapshotRequest { pid: Some(std::process::id().cast_signed()), pidfile: None };
        let error = this.run(&mut Vec::new()).expect_err("tests catch nothing").to_string();
        assert!(error.ends_with("it takes no SIGUSR2, so it is no tollgate"), "{error}");
    }
}
