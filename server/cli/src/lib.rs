//! The sub-commands, above all `tollgate cluster ...`: the operator's program for a cluster.
//!
//! Here: its command line and the execution of each sub-command. Beside it: the conversation
//! (`client`), the printing of replies (`show`), the other sub-commands (`check_limits`,
//! `snapshot`, `token`, `healthcheck`, `top`, `doctor`, `api_limits`, `explain`, `generate`). Not
//! here: the replies of nodes and refusals of unknown words (`server`), the start of a server
//! (`server/program`).
//!
//! The program speaks memcached's text protocol to the client port of any node, or to its admin
//! socket.

mod admin_client;
mod api_limits;
mod api_show;
mod check_limits;
mod client;
mod doctor;
mod drain;
mod explain;
mod generate;
mod healthcheck;
mod limits;
mod limits_api;
mod login;
mod show;
mod snapshot;
mod start_check;
mod token;
mod top;

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use tollgate::cluster_stats::{self, SETTINGS};
use tollgate::config::sub_commands::{
    CHECK_LIMITS, CLUSTER, DOCTOR, EXPLAIN, GENERATE, HEALTHCHECK, LIMITS, SNAPSHOT, TOKEN, TOP,
};
use tollgate::config::{ConfigError, host_and_port};

pub use api_limits::ApiLimitsRequest;
pub use check_limits::CheckLimitsRequest;
use client::{ServerClient, StatPairs};
pub use doctor::DoctorRequest;
pub use explain::ExplainRequest;
pub use generate::GenerateRequest;
pub use healthcheck::HealthcheckRequest;
pub use snapshot::SnapshotRequest;
pub use start_check::{StartRefusal, check_start};
pub use token::TokenRequest;
use tollgate_limits::LimitsError;
pub use top::TopRequest;

/// The forms of the command line.
const USAGE: &str = "write tollgate cluster status, ready, nodes, partitions, limits, drain NODE, \
                     forget NODE or set NAME VALUE; --help tells more";

/// Memcached's port, used where `--server` names none.
const PORT: u16 = 11211;

/// Environment variable with the path of an admin socket, such as that of the server in the same
/// container. The default of `--server`.
const ADMIN_SOCKET_VARIABLE: &str = "TOLLGATE_ADMIN_SOCKET";

/// Show or change the state of a cluster, through any of its nodes
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
        help = "Address of the node: host, host:port, or the path of its admin socket, which \
                contains a slash [default: TOLLGATE_ADMIN_SOCKET, or 127.0.0.1:11211]"
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
    /// Show the state of the asked node and of its cluster; exit with 0 if it is safe to proceed
    /// with the next node of a rolling restart, else with 1
    Status {
        /// Exit with 0 if that node is ready, whatever the rest of the cluster does
        #[arg(long)]
        ready: bool,
    },
    /// Exit with 0 if the asked node is active, in contact with the control plane and has its
    /// copies; else print the reason and exit with 1
    Ready,
    /// List the nodes, one per line
    Nodes {
        /// Also list addresses, zones, weights, and the time since each node's last heartbeat
        #[arg(long)]
        wide: bool,
    },
    /// List the partitions that are not fully served and replicated
    Partitions {
        /// List all partitions
        #[arg(long)]
        all: bool,
    },
    /// Move all copies off a node, then remove the node from the cluster
    Drain {
        /// Id, ring name or address of the node, or self for the asked node
        #[arg(value_name = "NODE", value_parser = word)]
        node: String,
        /// Wait until the node has left, and print the number of copies that it still holds
        #[arg(long)]
        wait: bool,
    },
    /// Remove a dead node, and lose the keys that only it holds
    Forget {
        /// Id, ring name or address of the node
        #[arg(value_name = "NODE", value_parser = word)]
        node: String,
    },
    /// Show or change the limits, which apply on all nodes
    Limits {
        #[command(subcommand)]
        what: limits::LimitsAction,
    },
    /// Change a setting of the whole cluster: replicas (1 to 3), or lost_after (seconds, or never)
    Set {
        /// Name of the setting
        #[arg(value_name = "NAME", value_parser = word)]
        name: String,
        /// New value of the setting
        #[arg(value_name = "VALUE", value_parser = word)]
        value: String,
    },
}

/// The request of a command line.
#[derive(Debug)]
pub enum Parsed {
    /// Print this text.
    Help(String),
    /// Run a `tollgate cluster` command.
    Request(CliRequest),
    /// Have a server write a snapshot.
    Snapshot(SnapshotRequest),
    /// Make a token for the admin listener.
    Token(TokenRequest),
    /// Ask a server whether it is alive and ready.
    Healthcheck(HealthcheckRequest),
    /// Show the figures of a server.
    Top(TopRequest),
    /// Find mistakes of a server.
    Doctor(DoctorRequest),
    /// Run a `tollgate limits` command.
    Limits(ApiLimitsRequest),
    /// Check a limits file without a server.
    CheckLimits(CheckLimitsRequest),
    /// Show the reasons behind the verdict on a key.
    Explain(ExplainRequest),
    /// Print a manual page or completions.
    Generate(GenerateRequest),
}

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The connection failed or ended.
    #[error("{server}: {source}")]
    Unreachable {
        /// The address of the server.
        server: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The server replied with an error.
    #[error("{server}: {answer}")]
    Refused {
        /// The address of the server.
        server: String,
        /// The line that it replied.
        answer: String,
    },
    /// The server requires a login.
    #[error("{0} asks for a password: use --login USER, or its admin socket as --server")]
    Unauthenticated(String),
    /// The login flags contradict each other, or the password cannot be used.
    #[error("{0}")]
    Login(String),
    /// The server is in no cluster, or is no Tollgate.
    #[error("{0} is in no cluster")]
    NoCluster(String),
    /// A file or a flag cannot be used.
    #[error("{0}")]
    Input(String),
    /// No node has that name, or more than one has.
    #[error("{server} knows no node {node}, or more than one")]
    NoNode {
        /// The address of the server that was asked.
        server: String,
        /// The name as the operator wrote it.
        node: String,
    },
    /// The asked node is not ready.
    #[error("not ready: {0}")]
    NotReady(String),
    /// No node should be restarted now. The output says why.
    #[error("not yet safe to proceed with the next node")]
    NotSafe,
    /// Standard input or output is no terminal, or the terminal is gone.
    #[error("{0}: without a terminal use --once or --json")]
    Terminal(io::Error),
    /// A server with these settings would not start.
    #[error(transparent)]
    WouldNotStart(#[from] StartRefusal),
    /// The doctor found faults. The output says which.
    #[error("faults found")]
    Faults,
    /// The node did not finish its drain.
    #[error("{0}")]
    Undrained(String),
    /// The limits file cannot be read or is not valid.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// The file with the process id cannot be used.
    #[error("{}: {source}", path.display())]
    Pidfile {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system, or the defect of the file's content.
        source: io::Error,
    },
    /// The process cannot be signalled.
    #[error("process {pid}: {source}")]
    Process {
        /// The process id.
        pid: i32,
        /// The error of the operating system, or the reason why no signal was sent.
        source: io::Error,
    },
    /// The output cannot be written.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// Parses the words after the name of a sub-command.
type SubCommandParser = fn(&[OsString]) -> Result<Parsed, ConfigError>;

/// The sub-commands by name.
const SUB_COMMANDS: [(&str, SubCommandParser); 10] = [
    (CHECK_LIMITS, check_limits::parse),
    (CLUSTER, parse),
    (DOCTOR, doctor::parse),
    (EXPLAIN, explain::parse),
    (GENERATE, generate::parse),
    (HEALTHCHECK, healthcheck::parse),
    (LIMITS, api_limits::parse),
    (SNAPSHOT, snapshot::parse),
    (TOKEN, token::parse),
    (TOP, top::parse),
];

/// Parses `args` (the program's name first). `None` if they do not begin with a sub-command that is
/// parsed here.
#[must_use]
pub fn sub_command(args: &[OsString]) -> Option<Result<Parsed, ConfigError>> {
    let (first, rest) = match args {
        // The server accepts its name as the first word too.
        [_, name, first, rest @ ..] if name == "tollgate" => (first, rest),
        [_, first, rest @ ..] => (first, rest),
        _ => return None,
    };
    let (_, parse) = SUB_COMMANDS.iter().find(|(name, _)| first == name)?;
    Some(parse(rest))
}

/// Parses the words after `cluster`.
fn parse(words: &[OsString]) -> Result<Parsed, ConfigError> {
    match parse_words::<CliRequest>(words) {
        Ok(request) => {
            if let Verb::Set { name, value } = &request.verb {
                cluster_stats::setting(name.as_bytes(), value.as_bytes())
                    .map_err(|error| ConfigError::Usage(error.to_string()))?;
            }
            request.login.check()?;
            Ok(Parsed::Request(request))
        }
        Err(error) => match error.kind() {
            ErrorKind::MissingRequiredArgument if has_verb(words, "set") => Err(
                ConfigError::Usage(format!("write tollgate cluster set NAME VALUE; {SETTINGS}")),
            ),
            _ if has_verb(words, "limits") => help_or(error, limits::USAGE),
            ErrorKind::MissingRequiredArgument => {
                Err(ConfigError::Usage(format!("an argument is missing: {USAGE}")))
            }
            _ => help_or(error, USAGE),
        },
    }
}

/// Parses the words after the name of a sub-command.
fn parse_words<R: clap::Parser>(words: &[OsString]) -> Result<R, clap::Error> {
    let found = R::command().no_binary_name(true).try_get_matches_from(words)?;
    R::from_arg_matches(&found)
}

/// The help that a command line asks for, or its mistake.
fn help_of(error: clap::Error) -> Result<Parsed, ConfigError> {
    match error.kind() {
        ErrorKind::DisplayHelp => Ok(Parsed::Help(error.render().to_string())),
        _ => Err(error.into()),
    }
}

/// [`help_of`]; `usage` names what is missing.
fn help_or(error: clap::Error, usage: &str) -> Result<Parsed, ConfigError> {
    match error.kind() {
        ErrorKind::MissingSubcommand
        | ErrorKind::InvalidSubcommand
        | ErrorKind::MissingRequiredArgument
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Err(ConfigError::Usage(usage.to_owned()))
        }
        _ => help_of(error),
    }
}

/// Whether the first word that is no flag is `verb`.
fn has_verb(words: &[OsString], verb: &str) -> bool {
    let first = words.iter().find(|word| !word.as_encoded_bytes().starts_with(b"-"));
    first.is_some_and(|word| word == verb)
}

/// Accepts one word for a command line that is sent to a node.
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

/// The address to connect to: the one given, or the default of `--server`.
fn server_address(given: Option<&String>) -> String {
    if let Some(server) = given {
        return server.clone();
    }
    match env::var(ADMIN_SOCKET_VARIABLE) {
        // Add a slash: without one the path would be read as a host name.
        Ok(path) if !path.contains('/') && !path.is_empty() => format!("./{path}"),
        Ok(path) if !path.is_empty() => path,
        _ => format!("127.0.0.1:{PORT}"),
    }
}

impl CliRequest {
    /// Runs the command and prints its result to `out`.
    ///
    /// # Errors
    ///
    /// No node is reachable, the login fails, or the cluster refuses the command.
    pub fn run(&self, out: &mut impl Write) -> Result<(), CliError> {
        let credentials = self.login.credentials()?;
        let mut server = ServerClient::connect(&server_address(self.server.as_ref()), credentials)?;
        match &self.verb {
            Verb::Status { ready } => {
                let stats = server.stats("cluster")?;
                out.write_all(show::status(&stats, self.json).as_bytes())?;
                if *ready {
                    is_ready(&stats)?;
                } else if show::printed(&stats, "safe_to_proceed") != "yes" {
                    return Err(CliError::NotSafe);
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

/// Checks the readiness that the asked node reports of itself.
fn is_ready(stats: &StatPairs) -> Result<(), CliError> {
    match (show::printed(stats, "ready"), show::printed(stats, "not_ready")) {
        ("yes", _) => Ok(()),
        ("-", _) => Err(CliError::NotReady("it does not say that it is".to_owned())),
        (_, why) => Err(CliError::NotReady(why.to_owned())),
    }
}

#[cfg(test)]
mod tests;
