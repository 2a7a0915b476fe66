//! The environment of a run: processor, cores, kernel, and the command line.
//!
//! Here: facts for the head of a report. No host name: it says nothing about speed.

use std::process::Command;
use std::{env, fs, thread};

/// Facts about the machine and the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// The processor's model.
    pub cpu: String,
    /// The number of cores that the generator and the servers may use together.
    pub cores: usize,
    /// The kernel's version.
    pub kernel: String,
    /// TCP's congestion control: some algorithms set a timer for each packet, on loopback too.
    pub congestion_control: String,
    /// The commit of our own servers: of the working tree, with `-dirty` if it was changed since.
    pub commit: String,
    /// The command line, quoted for a shell.
    pub command: String,
}

impl Machine {
    /// Reads the facts. Must be called before pinning, which takes cores away.
    #[must_use]
    pub fn look() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let congestion_control =
            fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
        Self {
            congestion_control: congestion_control.trim().to_owned(),
            cpu: cpu_model(&cpuinfo).unwrap_or("unknown processor").to_owned(),
            cores: thread::available_parallelism().map_or(0, usize::from),
            kernel: format!("Linux {}", kernel.trim()),
            commit: commit().unwrap_or_else(|| "unknown".to_owned()),
            command: command_line(env::args()),
        }
    }
}

#[cfg(test)]
impl Machine {
    /// Fixed facts for reports in tests.
    pub(crate) fn sample() -> Self {
        Self {
            cpu: "cpu".to_owned(),
            cores: 2,
            kernel: "Linux 1".to_owned(),
            congestion_control: "cubic".to_owned(),
            commit: "0123abc".to_owned(),
            command: "load".to_owned(),
        }
    }
}

fn commit() -> Option<String> {
    let output = Command::new("git").args(["describe", "--always", "--dirty"]).output().ok()?;
    let commit = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !commit.is_empty()).then_some(commit)
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim())
}

/// Joins the words of a command and quotes those that a shell would split.
fn command_line(words: impl Iterator<Item = String>) -> String {
    let quoted = words.map(|word| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::{command_line, cpu_model};

    #[test]
    fn a_command_can_be_typed_again() {
        let words = ["load", "--server", "a=x -p {port}", "", "it's"].map(str::to_owned);
        assert_eq!(command_line(words.into_iter()), r"load --server 'a=x -p {port}' '' 'it'\''s'");
    }

    #[test]
    fn the_model_is_found() {
        assert_eq!(
            cpu_model("processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\n"),
            Some("Some CPU @ 3 GHz")
        );
        assert_eq!(cpu_model(""), None);
    }
}
