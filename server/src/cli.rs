//! `tollgate cluster ...`: the operator's program for a running cluster.
//!
//! Here: its command line, and what each verb does. Not here: the conversation (`client`), how answers
//! are shown (`show`), what nodes answer (`cluster_stats`), the other sub-commands (`snapshot`), words
//! that are none (`word`).
//!
//! It talks memcached's text protocol to the client port of any node, or to its admin socket.

mod client;
mod drain;
mod limits;
mod login;
mod show;
mod snapshot;
mod word;

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _};

use crate::cluster_stats::{self, SETTINGS};
use crate::config::ConfigError;
use crate::config::listen::host_and_port;
use crate::limits::LimitsError;
use client::{ServerClient, StatPairs};
pub(crate) use login::PASSWORD_VARIABLE;
pub use snapshot::SnapshotRequest;
pub(crate) use word::refusal;

/// The word that asks for this program.
pub(crate) const CLUSTER: &str = "cluster";
/// The word that asks for a snapshot.
pub(crate) const SNAPSHOT: &str = "snapshot";
/// The word that asks to read a limits file and nothing else.
pub(crate) const CHECK_LIMITS: &str = "check-limits";

/// How the command line is written.
const USAGE: &str = "write tollgate cluster status, ready, nodes, partitions, limits, drain NODE, \
                     forget NODE or set NAME VALUE; --help tells more";

/// Memcached's port: where a node is asked unless told otherwise.
const PORT: u16 = 11211;

/// The admin socket of the server in this environment, such as a container's, is asked first.
const ADMIN_SOCKET_VARIABLE: &str = "TOLLGATE_ADMIN_SOCKET";

/// Ask a cluster how it is, or tell it something, at any of its nodes
#[derive(Debug, Clone, PartialEq, Eq, clap::Parser)]
#[command(name = "tollgate cluster", disable_help_subcommand = true, term_width = 100)]
pub struct CliRequest {
    #[command(subcommand)]
    verb: Verb,
    #[arg(
        long,
        global = true,
        value_name = "ADDR",
        value_parser = server,
        help = "The node to ask: host, host:port, or the path of its admin socket, with a slash \
                [default: TOLLGATE_ADMIN_SOCKET, or 127.0.0.1:11211]"
    )]
    server: Option<String>,
    #[command(flatten)]
    login: login::LoginFlags,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, clap::Subcommand)]
#[expect(clippy::doc_markdown, reason = "a terminal shows these lines, and would show backticks")]
enum Verb {
    /// How the node that is asked and its cluster are
    Status {
        /// Fail unless that node is ready
        #[arg(long)]
        ready: bool,
    },
    /// Exit with 0 if the node that is asked is active, hears the control plane and has its copies;
    /// else with 1, and say why
    Ready,
    /// The nodes, one a line
    Nodes {
        /// With addresses, zones, weights, and who was heard when
        #[arg(long)]
        wide: bool,
    },
    /// The partitions that are not as they should be
    Partitions {
        /// All of them
        #[arg(long)]
        all: bool,
    },
    /// Have a node give away all it holds, and leave
    Drain {
        /// Its id, ring name or address, or self: the one that is asked
        #[arg(value_name = "NODE", value_parser = word)]
        node: String,
        /// Wait until it has left, and tell how many copies it still holds
        #[arg(long)]
        wait: bool,
    },
    /// Give up a dead node with all that only it holds
    Forget {
        /// Its id, ring name or address
        #[arg(value_name = "NODE", value_parser = word)]
        node: String,
    },
    /// Show or change the limits, which hold on all nodes
    Limits {
        #[command(subcommand)]
        what: limits::LimitsAction,
    },
    /// Change a setting of the whole cluster: replicas (1 to 3), or lost_after (seconds, or never)
    Set {
        /// Which
        #[arg(value_name = "NAME", value_parser = word)]
        name: String,
        /// What it becomes
        #[arg(value_name = "VALUE", value_parser = word)]
        value: String,
    },
}

/// What a command line asks for.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// This text.
    Help(String),
    /// Something of a cluster.
    Request(CliRequest),
    /// A snapshot of a server.
    Snapshot(SnapshotRequest),
}

/// Why the cluster did not do it, or could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// No node there, or it went away.
    #[error("{server}: {source}")]
    Unreachable {
        /// Where.
        server: String,
        /// What the system said.
        source: io::Error,
    },
    /// What it answered instead.
    #[error("{server}: {answer}")]
    Refused {
        /// Who answered.
        server: String,
        /// Its line.
        answer: String,
    },
    /// The server asks for a password.
    #[error("{0} asks for a password: use --login USER, or its admin socket as --server")]
    Unauthenticated(String),
    /// The login that was asked for is not possible.
    #[error("{0}")]
    Login(String),
    /// The server is alone, or no Tollgate.
    #[error("{0} is in no cluster")]
    NoCluster(String),
    /// No node goes by that name there.
    #[error("{server} knows no node {node}, or more than one")]
    NoNode {
        /// Who was asked.
        server: String,
        /// The name.
        node: String,
    },
    /// The node that was asked is not ready.
    #[error("not ready: {0}")]
    NotReady(String),
    /// The drain came to nothing.
    #[error("{0}")]
    Undrained(String),
    /// The limits that are to be put.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// The file with a process id.
    #[error("{}: {source}", path.display())]
    Pidfile {
        /// The file.
        path: PathBuf,
        /// What the system said, or what is in it.
        source: io::Error,
    },
    /// A process that cannot be asked.
    #[error("process {pid}: {source}")]
    Process {
        /// Its id.
        pid: i32,
        /// What the system said, or why it is not asked.
        source: io::Error,
    },
    /// What was to be shown cannot be written.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// What the arguments (the program's name first) ask for, if they begin with a sub-command that is read
/// here.
pub(crate) fn sub_command(args: &[OsString]) -> Option<Result<Parsed, ConfigError>> {
    let (first, rest) = match args {
        // As for the server, the name may be handed over as a word.
        [_, name, first, rest @ ..] if name == "tollgate" => (first, rest),
        [_, first, rest @ ..] => (first, rest),
        _ => return None,
    };
    match first.to_str()? {
        CLUSTER => Some(parse(rest)),
        SNAPSHOT => Some(snapshot::parse(rest)),
        _ => None,
    }
}

/// Reads the words behind `cluster`.
fn parse(words: &[OsString]) -> Result<Parsed, ConfigError> {
    let command = CliRequest::command().no_binary_name(true);
    match command.try_get_matches_from(words).and_then(|found| CliRequest::from_arg_matches(&found))
    {
        Ok(request) => {
            if let Verb::Set { name, value } = &request.verb {
                cluster_stats::setting(name.as_bytes(), value.as_bytes())
                    .map_err(|error| ConfigError::Usage(error.to_string()))?;
            }
            Ok(Parsed::Request(request))
        }
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp => Ok(Parsed::Help(error.render().to_string())),
            ErrorKind::MissingSubcommand
            | ErrorKind::InvalidSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                Err(ConfigError::Usage(USAGE.to_owned()))
            }
            ErrorKind::MissingRequiredArgument if is_set(words) => Err(ConfigError::Usage(
                format!("write tollgate cluster set NAME VALUE; {SETTINGS}"),
            )),
            ErrorKind::MissingRequiredArgument => {
                Err(ConfigError::Usage(format!("an argument is missing: {USAGE}")))
            }
            _ => Err(error.into()),
        },
    }
}

fn is_set(words: &[OsString]) -> bool {
    words.iter().find(|word| !word.as_encoded_bytes().starts_with(b"-")) == Some(&"set".into())
}

/// One word of a line that is sent.
fn word(text: &str) -> Result<String, String> {
    let odd = |c: char| c.is_whitespace() || c.is_control();
    if text.is_empty() || text.contains(odd) {
        return Err("expected one word".to_owned());
    }
    Ok(text.to_owned())
}

fn server(text: &str) -> Result<String, String> {
    if text.contains('/') {
        return Ok(text.to_owned());
    }
    let (host, port) = host_and_port(text.trim())?;
    let port = port.unwrap_or(PORT);
    Ok(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

impl CliRequest {
    /// The node to ask.
    fn server(&self) -> String {
        if let Some(server) = &self.server {
            return server.clone();
        }
        match env::var(ADMIN_SOCKET_VARIABLE) {
            // A name without a slash would be a host's.
            Ok(path) if !path.contains('/') && !path.is_empty() => format!("./{path}"),
            Ok(path) if !path.is_empty() => path,
            _ => format!("127.0.0.1:{PORT}"),
        }
    }

    /// Does it, and shows what came of it on `out`.
    ///
    /// # Errors
    ///
    /// When no node can be reached, or the cluster does not do it.
    pub fn run(&self, out: &mut impl Write) -> Result<(), CliError> {
        let credentials = self.login.credentials()?;
        let mut server = ServerClient::connect(&self.server(), credentials)?;
        match &self.verb {
            Verb::Status { ready } => {
                let stats = server.stats("cluster")?;
                out.write_all(show::status(&stats, self.json).as_bytes())?;
                if *ready {
                    is_ready(&stats)?;
                }
            }
            Verb::Ready => {
                is_ready(&server.stats("cluster")?)?;
                out.write_all(show::ready(self.json).as_bytes())?;
            }
            Verb::Nodes { wide } => {
                let stats = server.stats("cluster nodes")?;
                out.write_all(show::nodes(&stats, *wide, self.json).as_bytes())?;
            }
            Verb::Partitions { all } => {
                let topic = if *all { "cluster partitions all" } else { "cluster partitions" };
                let stats = server.stats(topic)?;
                out.write_all(show::partitions(&stats, self.json).as_bytes())?;
            }
            Verb::Drain { node, wait } => {
                drain::drain(
                    server,
                    node,
                    wait.then_some(Duration::from_millis(500)),
                    |response| {
                        out.write_all(show::progress(response, self.json).as_bytes())?;
                        out.flush()
                    },
                )?;
            }
            Verb::Forget { node } => {
                server.command(&format!("cluster forget {node}"))?;
                out.write_all(show::done(self.json).as_bytes())?;
            }
            Verb::Limits { what } => limits::run(&mut server, what, self.json, out)?,
            Verb::Set { name, value } => {
                server.command(&format!("cluster set {name} {value}"))?;
                out.write_all(show::done(self.json).as_bytes())?;
            }
        }
        Ok(())
    }
}

/// What the node says of itself: it knows best.
fn is_ready(stats: &StatPairs) -> Result<(), CliError> {
    match (show::printed(stats, "ready"), show::printed(stats, "not_ready")) {
        ("yes", _) => Ok(()),
        ("-", _) => Err(CliError::NotReady("it does not say that it is".to_owned())),
        (_, why) => Err(CliError::NotReady(why.to_owned())),
    }
}

#[cfg(test)]
mod tests;
