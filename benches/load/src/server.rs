//! A server under test: its process from start to end, its version and its memory.
//!
//! Here: starting on a free port, waiting for a reply, ending by process id. Not here: its CPU time
//! (`cpu`), measured requests (`worker`).

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};
use std::{fs, thread};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cpu::{Cores, CpuReading};
use crate::dialect::Dialect;
use crate::error::LoadError;
use crate::limits_file::{LIMITS_MAX, LimitsFile};
use crate::redis::SCRIPTS;
use crate::resp;
use crate::watch::Watch;

/// The time limit for a server to reply after its start, and to end after a signal.
const PATIENCE: Duration = Duration::from_secs(20);

/// The beginning of the placeholder for the path of a limits file.
const LIMITS: &str = "{limits:";

/// The placeholder for the port of the admin listener.
const ADMIN: &str = "{admin}";
/// The beginning of the names of Tollgate's worker threads.
const WORKERS: &str = "worker-";

/// The command of a server, as given with `--server NAME=COMMAND` or `--server
/// NAME=DIALECT:COMMAND`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// The name in the tables.
    pub name: String,
    /// The server's dialect.
    pub dialect: Dialect,
    /// Words separated by blanks, without quoting. `{port}` stands for the port to listen on,
    /// `{memory}` for the megabytes it may use, `{limits:N}` for a limits file of `N` limits,
    /// `{admin}` for the port of an admin listener that is watched during the run.
    pub command: String,
}

impl Recipe {
    /// The first file that the command names by a path and that does not exist.
    #[must_use]
    pub fn missing(&self) -> Option<&str> {
        self.command
            .split_whitespace()
            .find(|word| word.contains('/') && !Path::new(word).is_file())
    }

    /// The number of limits in the server's limits file, and the placeholder of that file.
    fn limits(&self) -> Option<(u32, &str)> {
        let start = self.command.find(LIMITS)?;
        let (number, _) = self.command[start + LIMITS.len()..].split_once('}')?;
        let count = number.parse().ok().filter(|count| (1..=LIMITS_MAX).contains(count))?;
        Some((count, &self.command[start..=start + LIMITS.len() + number.len()]))
    }
}

impl FromStr for Recipe {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, command)) if !name.is_empty() && command.contains("{port}") => {
                let (dialect, command) = Dialect::NAMED
                    .into_iter()
                    .find_map(|(word, dialect)| {
                        let command = command.strip_prefix(word)?.strip_prefix(':')?;
                        Some((dialect, command))
                    })
                    .unwrap_or((Dialect::default(), command));
                let recipe = Self { name: name.to_owned(), dialect, command: command.to_owned() };
                if recipe.command.contains(LIMITS) && recipe.limits().is_none() {
                    return Err(format!("expected {LIMITS}N}} with N from 1 to {LIMITS_MAX}"));
                }
                Ok(recipe)
            }
            _ => Err("expected NAME=COMMAND or NAME=DIALECT:COMMAND with {port} in it".to_owned()),
        }
    }
}

/// A running server. Dropping it ends the process.
#[derive(Debug)]
pub struct Server {
    /// The name in the tables.
    pub name: String,
    /// The server's dialect.
    pub dialect: Dialect,
    /// The command that was run.
    pub command: String,
    /// The reply to `version`, or the program's output for `--version`.
    pub version: String,
    /// The address on which it listens.
    pub address: SocketAddr,
    child: Child,
    /// Kept while the server may read the file again.
    _limits: Option<LimitsFile>,
    watch: Option<Watch>,
    /// The beginning of the names of the threads whose CPU counts.
    threads: &'static str,
}

impl Server {
    /// Starts the server with `memory_mb` megabytes and waits until it replies. If `workers_alone`
    /// is set, [`Self::cpu`] is that of its workers.
    ///
    /// # Errors
    ///
    /// If it does not start, ends, or does not reply in time.
    pub fn start(
        recipe: &Recipe,
        memory_mb: u32,
        cores: Option<&Cores>,
        workers_alone: bool,
    ) -> Result<Self, LoadError> {
        let (port, admin) = (free_address()?.port(), free_address()?);
        let limits = recipe.limits();
        let file = limits.map(|(count, _)| LimitsFile::write(count)).transpose()?;
        let path = file.as_ref().map(|file| file.path().display().to_string());
        let command = recipe
            .command
            .replace(limits.map_or(LIMITS, |(_, word)| word), path.as_deref().unwrap_or(LIMITS))
            .replace("{port}", &port.to_string())
            .replace(ADMIN, &admin.port().to_string())
            .replace("{memory}", &memory_mb.to_string());
        let failed = |what: String| LoadError::Server { server: recipe.name.clone(), what };
        let mut words = command.split_whitespace();
        let program = words.next().ok_or_else(|| failed("an empty command".to_owned()))?;
        let mut starter = Command::new(program);
        starter.args(words).stdin(Stdio::null()).stdout(Stdio::null());
        let spawned = match cores {
            Some(cores) => cores.start_pinned(|| starter.spawn())?,
            None => starter.spawn(),
        };
        let mut server = Self {
            name: recipe.name.clone(),
            dialect: recipe.dialect,
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            version: String::new(),
            child: spawned.map_err(|e| failed(format!("{command}: {e}")))?,
            command,
            _limits: file,
            watch: None,
            threads: if workers_alone { WORKERS } else { "" },
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            match server.ask_version() {
                Ok(version) => server.version = version,
                Err(e) if Instant::now() > deadline => return Err(failed(format!("silent: {e}"))),
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
            if let Some(status) = server.child.try_wait()? {
                return Err(failed(format!("{}: ended with {status}", server.command)));
            }
            if !server.version.is_empty() {
                if recipe.command.contains(ADMIN) {
                    let watch =
                        Watch::begin(admin).map_err(|e| failed(format!("watching: {e}")))?;
                    server.watch = Some(watch);
                }
                return Ok(server);
            }
        }
    }

    /// Waits for the server, loads the scripts and returns its version.
    fn ask_version(&self) -> io::Result<String> {
        if !self.dialect.is_resp() {
            return match ask(self.address, b"version\r\n")?.strip_prefix("VERSION ") {
                Some(version) if !version.is_empty() => Ok(version.to_owned()),
                _ => Err(io::Error::other("no answer to version")),
            };
        }
        let mut ping = Vec::new();
        resp::write(&mut ping, [b"PING"]);
        if ask(self.address, &ping)? != "+PONG" {
            return Err(io::Error::other("no answer to PING"));
        }
        let scripts = if self.dialect == Dialect::Redis { &SCRIPTS[..] } else { &[] };
        for script in scripts {
            let mut load = Vec::new();
            resp::write(&mut load, [b"SCRIPT", b"LOAD", script.source.as_bytes()]);
            // The digest is a string, so a line with its length precedes it.
            let answer = ask_lines(self.address, &load, 2)?;
            if answer.last().is_none_or(|digest| digest != script.digest) {
                return Err(io::Error::other(format!("SCRIPT LOAD answered {answer:?}")));
            }
        }
        let program = self.command.split_whitespace().next().unwrap_or_default();
        let output = Command::new(program).arg("--version").output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let numbered = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
        let mut words = text.split_whitespace().map(|word| word.trim_start_matches("v="));
        Ok(words.find(numbered).unwrap_or("unknown").to_owned())
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The CPU time that counts: that of all threads, or of the workers alone.
    ///
    /// # Errors
    ///
    /// If the process is gone, or has no such thread.
    pub fn cpu(&self) -> io::Result<CpuReading> {
        CpuReading::take(self.pid(), self.threads)
    }

    /// Bytes that the watchers read; `None` if nobody watches.
    #[must_use]
    pub fn watched_bytes(&self) -> Option<u64> {
        self.watch.as_ref().map(Watch::bytes)
    }

    /// Resident memory in bytes: now, and at its peak.
    ///
    /// # Errors
    ///
    /// If the process is gone.
    pub fn resident_bytes(&self) -> io::Result<(u64, u64)> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let field = |name| {
            status_kib(&status, name)
                .map(|kib| kib * 1024)
                .ok_or_else(|| io::Error::other(format!("no {name} in /proc/*/status")))
        };
        Ok((field("VmRSS:")?, field("VmHWM:")?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Before the signal: a server waits for open streams.
        self.watch = None;
        // A process that cannot be ended is left running: nothing else is possible.
        let Ok(pid) = i32::try_from(self.pid()) else { return };
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loopback address that was free a moment ago.
fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind(("127.0.0.1", 0))?.local_addr()
}

/// The first line of the reply to `request`.
fn ask(address: SocketAddr, request: &[u8]) -> io::Result<String> {
    Ok(ask_lines(address, request, 1)?.remove(0))
}

/// The first lines of the reply to `request`.
fn ask_lines(address: SocketAddr, request: &[u8], lines: usize) -> io::Result<Vec<String>> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(request)?;
    let mut answer = BufReader::new(stream).lines();
    (0..lines).map(|_| answer.next().unwrap_or(Err(ErrorKind::UnexpectedEof.into()))).collect()
}

fn status_kib(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Recipe, status_kib};
    use crate::dialect::Dialect;

    #[test]
    fn a_recipe_needs_a_name_and_a_port() {
        let recipe: Recipe = "a=prog -x=1 -p {port}".parse().unwrap();
        assert_eq!((recipe.name.as_str(), recipe.command.as_str()), ("a", "prog -x=1 -p {port}"));
        let recipe: Recipe = "a=prog {port} -x {limits:12} -y".parse().unwrap();
        assert_eq!(recipe.limits(), Some((12, "{limits:12}")));
        assert_eq!(recipe.dialect, Dialect::Tollgate);
        let recipe: Recipe = "r=redis-cell:/no/prog --port {port}".parse().unwrap();
        assert_eq!(recipe.dialect, Dialect::RedisCell);
        assert_eq!(recipe.missing(), Some("/no/prog"));
        for poor in ["", "a", "=prog {port}", "a=prog -p 11211", "a={port} {limits:0}"] {
            assert!(poor.parse::<Recipe>().is_err(), "{poor}");
        }
    }

    #[test]
    fn memory_is_found_in_the_status() {
        let status = "Name:\tx\nVmHWM:\t   9200 kB\nVmRSS:\t   8100 kB\n";
        assert_eq!(status_kib(status, "VmRSS:"), Some(8100));
        assert_eq!(status_kib(status, "VmSwap:"), None);
    }
}
