//! The conversation with a node, in memcached's text protocol.
//!
//! Here: logging in, sending a line, reading `STAT` lines or a one-line reply. Not here: the socket
//! (`server/src/net`), the meaning of the stats (`show`).

use std::io;
use std::time::Duration;

use tollgate::net::Conversation;

use super::CliError;
use super::login::Credentials;

/// Timeout of one read or write. A change of the map takes less than half of this.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of lines in a reply: all nodes, or all partitions.
const LINES_MAX: usize = 1 << 20;

/// Maximum size of all limits together.
const LIMITS_BYTES_MAX: usize = cluster::map::LIMITS_BYTES_MAX;

/// Reply to every other request of a server that requires a login.
const UNAUTHENTICATED: &str = "CLIENT_ERROR unauthenticated";

/// Names and values of `STAT` lines, in the order of the reply.
pub(super) type StatPairs = Vec<(String, String)>;

/// A connection to one node.
#[derive(Debug)]
pub(super) struct ServerClient {
    name: String,
    conversation: Conversation,
    credentials: Option<Credentials>,
}

impl ServerClient {
    /// Connects to the node at `name`, `host:port` or the path of its admin socket, and logs in if
    /// the server requires a login.
    pub(super) fn connect(name: &str, credentials: Option<Credentials>) -> Result<Self, CliError> {
        let conversation = Conversation::open(name, PATIENCE)
            .map_err(|source| CliError::Unreachable { server: name.to_owned(), source })?;
        let mut server = Self { name: name.to_owned(), conversation, credentials };
        if server.credentials.is_some() {
            server.log_in()?;
        }
        Ok(server)
    }

    /// Connects to another node of the cluster, with the same credentials.
    pub(super) fn another(&self, name: &str) -> Result<Self, CliError> {
        Self::connect(name, self.credentials.clone())
    }

    /// Whether the operator gave a user to log in as.
    pub(super) fn has_credentials(&self) -> bool {
        self.credentials.is_some()
    }

    /// Logs in if the server requires it. A server without users would store the credentials as an
    /// item that every client can read, so `version` checks for the requirement first.
    fn log_in(&mut self) -> Result<(), CliError> {
        let Some(credentials) = &self.credentials else { return Ok(()) };
        let text = credentials.as_str();
        let line = format!("set login 0 0 {}\r\n{text}", text.len());
        self.send("version")?;
        if self.line()? != UNAUTHENTICATED {
            return Ok(());
        }
        self.send(&line)?;
        match self.line()? {
            answer if answer == "STORED" => Ok(()),
            answer => Err(self.refused(answer)),
        }
    }

    /// The address as the operator wrote it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Checks that the server answers, be it with a request to log in.
    pub(super) fn answers(&mut self) -> Result<(), CliError> {
        self.send("version")?;
        match self.line()? {
            answer if answer.starts_with("VERSION ") || answer == UNAUTHENTICATED => Ok(()),
            answer => Err(self.refused(answer)),
        }
    }

    /// Sends `stats` with `topic` and returns its `STAT` lines.
    pub(super) fn stats(&mut self, topic: &str) -> Result<StatPairs, CliError> {
        self.send(&format!("stats {topic}"))?;
        let mut stats = StatPairs::new();
        loop {
            let line = self.line()?;
            if let Some(stat) = line.strip_prefix("STAT ") {
                let (name, value) = stat.split_once(' ').unwrap_or((stat, ""));
                stats.push((name.to_owned(), value.to_owned()));
            } else if line == "END" {
                return Ok(stats);
            } else if line == "ERROR" && stats.is_empty() {
                return Err(CliError::NoCluster(self.name.clone()));
            } else {
                return Err(self.refused(line));
            }
            if stats.len() > LINES_MAX {
                return Err(self.refused("an answer without end".to_owned()));
            }
        }
    }

    /// Sends `line` and expects `OK`.
    pub(super) fn command(&mut self, line: &str) -> Result<(), CliError> {
        self.send(line)?;
        match self.line()? {
            answer if answer == "OK" => Ok(()),
            answer if answer == "ERROR" => Err(CliError::NoCluster(self.name.clone())),
            answer => Err(self.refused(answer)),
        }
    }

    /// Returns all limits, as the text of a limits file.
    pub(super) fn limits(&mut self) -> Result<String, CliError> {
        self.send("cluster limits")?;
        match self.line()? {
            head if head.starts_with("CONFIG limits ") => {}
            answer if answer == "ERROR" => return Err(CliError::NoCluster(self.name.clone())),
            answer => return Err(self.refused(answer)),
        }
        let mut text = String::new();
        loop {
            // No line of a limit is `END`.
            match self.line()? {
                line if line == "END" => break,
                line => {
                    text.push_str(&line);
                    text.push('\n');
                }
            }
            if text.len() > LIMITS_BYTES_MAX {
                return Err(self.refused("an answer without end".to_owned()));
            }
        }
        // Remove the line end that closes the block.
        text.pop();
        Ok(text)
    }

    fn send(&mut self, line: &str) -> Result<(), CliError> {
        self.conversation.send(line).map_err(|source| self.unreachable(source))
    }

    fn line(&mut self) -> Result<String, CliError> {
        self.conversation.line().map_err(|source| self.unreachable(source))
    }

    fn unreachable(&self, source: io::Error) -> CliError {
        CliError::Unreachable { server: self.name.clone(), source }
    }

    fn refused(&self, answer: String) -> CliError {
        if answer == UNAUTHENTICATED {
            return CliError::Unauthenticated(self.name.clone());
        }
        CliError::Refused { server: self.name.clone(), answer }
    }
}
