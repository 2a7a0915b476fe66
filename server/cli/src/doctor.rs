//! `tollgate doctor`: finds mistakes in a server's settings, its machine and its cluster, and says
//! what to do.
//!
//! Here: the command line, the output, and where a running server is asked. Not here: the checks
//! of settings and machine (`before`) and of a running server (`beside`).

mod before;
mod beside;

use std::env::vars_os;
use std::ffi::OsString;
use std::io::Write;

use tollgate::config::sub_commands::DOCTOR;
use tollgate::config::{Config, ConfigError, ListenAddr, Startup, host_and_port, shown_flags};

use super::client::ServerClient;
use super::start_check::{StartRefusal, check_start, hidden_file};
use super::{CliError, Parsed};

/// The help, before that of the server's own flags.
const HELP: &str = "\
Find mistakes in a server's settings, its machine and its cluster, before it starts or beside it

Usage: tollgate doctor [the server's own flags]

Prints each finding with its remedy, and exits with 1 if there is one, or with 64 if the server
would not start with these flags. The files that they name are read; nothing is changed. The
server's flags:

";

/// The first sentence of the help.
const ABOUT: &str = "Find mistakes in a server's settings, its machine and its cluster, before it \
                     starts or beside it";

/// A mistake, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    problem: String,
    remedy: String,
}

impl Finding {
    fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { problem: problem.into(), remedy: remedy.into() }
    }
}

/// A request for a diagnosis of a server with these settings.
#[derive(Debug)]
pub struct DoctorRequest {
    config: Box<Config>,
}

/// The command as completions and the manual page show it.
pub(super) fn command() -> clap::Command {
    shown_flags().name(DOCTOR).about(ABOUT)
}

/// Parses the words after `doctor`: flags of the server, together with its environment and files.
pub(super) fn parse(words: &[OsString]) -> Result<Parsed, ConfigError> {
    let args = std::iter::once(OsString::from("tollgate")).chain(words.iter().cloned());
    match Config::from_sources(args, vars_os())? {
        Startup::Serve(config) | Startup::Check(config) => {
            Ok(Parsed::Doctor(DoctorRequest { config }))
        }
        Startup::Print(help) => Ok(Parsed::Help(format!("{HELP}{help}"))),
        Startup::CheckLimits(_) => {
            Err(ConfigError::Usage(format!("write {DOCTOR} and the server's flags")))
        }
    }
}

/// Replaces control characters: names of nodes and texts of files come from others.
fn plain(text: &str) -> String {
    text.replace(char::is_control, "?")
}

/// Returns where a server with these settings answers on this machine, the admin socket first: it
/// asks for no password, but only its user may open it. A port that the server chooses is left out.
fn own_addresses(config: &Config) -> Vec<String> {
    let socket = config.unix_socket.as_ref().map(|socket| &socket.path);
    let sockets = config.admin_socket.iter().chain(socket).filter_map(|path| {
        let path = path.to_str()?;
        Some(if path.contains('/') { path.to_owned() } else { format!("./{path}") })
    });
    let ports = config.listen.iter().filter(|address| address.port != 0).take(1);
    let ports = ports.filter_map(|address| {
        let host = match address.host.as_str() {
            ListenAddr::ANY | "0.0.0.0" => "127.0.0.1",
            "::" => "::1",
            host => host,
        };
        let address = ListenAddr { host: host.to_owned(), port: address.port, label: None };
        Some(address.to_string()).filter(|address| host_and_port(address).is_ok())
    });
    sockets.chain(ports).collect()
}

impl DoctorRequest {
    /// Prints the findings to `out`.
    ///
    /// # Errors
    ///
    /// [`CliError::WouldNotStart`] if the server would refuse a file that its flags name,
    /// [`CliError::Faults`] if there are findings, or the output cannot be written.
    pub fn run(&self, out: &mut impl Write) -> Result<(), CliError> {
        let config = &self.config;
        let mut addresses = own_addresses(config).into_iter();
        let server = addresses.find_map(|address| ServerClient::connect(&address, None).ok());
        let mut unknown = None;
        let (mut findings, state) = match server {
            Some(mut server) => match beside::look(&mut server) {
                Ok(seen) => {
                    unknown = seen.unknown;
                    (seen.findings, seen.state)
                }
                Err(error) => {
                    let remedy = "ask it through --admin-socket, or look at the server's log";
                    let problem = format!("the running server tells nothing: {error}");
                    (vec![Finding::new(problem, remedy)], beside::RunningState::default())
                }
            },
            None => (Vec::new(), beside::RunningState::default()),
        };
        match check_start(config, state.is_running) {
            // These two are findings, with a remedy.
            Ok(()) | Err(StartRefusal::Limits(_) | StartRefusal::Security(_)) => {}
            Err(refusal) => match hidden_file(config).filter(|_| state.is_running) {
                Some(path) => findings.push(Finding::new(
                    refusal.to_string(),
                    format!(
                        "run the doctor as the server's user: this one may not read {}",
                        path.display()
                    ),
                )),
                None => return Err(refusal.into()),
            },
        }
        findings.extend(before::look(config, &state));
        let is_running = if state.is_running { "runs" } else { "does not run, or cannot be asked" };
        writeln!(out, "The server {is_running}.")?;
        if let Some(unknown) = unknown {
            writeln!(out, "{}.", plain(&unknown))?;
        }
        for finding in &findings {
            writeln!(out, "\n* {}.\n  {}.", plain(&finding.problem), plain(&finding.remedy))?;
        }
        match findings.len() {
            0 => writeln!(out, "No fault found.")?,
            1 => writeln!(out, "\n1 fault found.")?,
            count => writeln!(out, "\n{count} faults found.")?,
        }
        if findings.is_empty() { Ok(()) } else { Err(CliError::Faults) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(flags: &[&str]) -> Box<Config> {
        let args = ["tollgate"].iter().chain(flags).map(OsString::from);
        match Config::from_sources(args, []) {
            Ok(Startup::Serve(config)) => config,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn running_server_is_asked_on_this_machine() {
        for (flags, expected) in [
            (&[][..], &["127.0.0.1:11211"][..]),
            (&["-p", "7"], &["127.0.0.1:7"]),
            (&["-p", "7", "-l", "10.0.0.9"], &["10.0.0.9:7"]),
            (&["-p", "7", "-l", "[::]:8"], &["[::1]:8"]),
            (&["-s", "sock"], &["./sock"]),
            (&["-p", "7", "--admin-socket", "/run/a.sock"], &["/run/a.sock", "127.0.0.1:7"]),
            (&["-s", "sock", "--admin-socket", "/run/a.sock"], &["/run/a.sock", "./sock"]),
            (&["-p", "0", "-l", "127.0.0.1"], &[]),
        ] {
            assert_eq!(own_addresses(&config(flags)), expected, "{flags:?}");
        }
    }

    #[test]
    fn help_shows_the_flags_of_the_server() {
        let Ok(Parsed::Help(help)) = parse(&["--help".into()]) else { panic!("no help") };
        assert!(help.starts_with("Find mistakes") && help.contains("--limits"), "{help}");
        assert!(parse(&["--no-such-flag".into()]).is_err());
        assert!(matches!(parse(&["check-limits".into(), "x".into()]), Err(ConfigError::Usage(_))));
    }
}
