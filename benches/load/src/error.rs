//! The errors that end a run.
//!
//! Here: failures of the run itself. Not here: a wrong reply, which is counted and shown and fails
//! the run only at its end (`exchange::Tally`).

use std::io;
use std::time::Duration;

/// An error that ended a run early. Started servers are ended, finished cells are still printed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A server's process could not be started, found or read.
    #[error("{server}: {what}")]
    Server {
        /// The name given with `--server`.
        server: String,
        /// The failed action and its error.
        what: String,
    },
    /// The server closed or reset a connection while replies were due.
    #[error("connection lost with {outstanding} requests unanswered: {cause}")]
    ConnectionLost {
        /// Requests sent on the connection whose replies had not arrived.
        outstanding: usize,
        /// The error of the socket, or end of file.
        cause: io::Error,
    },
    /// Replies were due and none arrived for this long.
    #[error("no reply for {0:?}")]
    Stalled(Duration),
    /// The options contradict each other.
    #[error("{0}")]
    Options(String),
    /// An error of the generator's own files and sockets.
    #[error(transparent)]
    Io(#[from] io::Error),
}
