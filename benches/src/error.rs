//! Why a run cannot go on.
//!
//! Here: failures of the run itself. Not here: a wrong reply, which is counted and shown and fails
//! the run only at its end (`exchange::Tally`).

use std::io;
use std::time::Duration;

/// What ended a run early. Servers already started are ended, finished cells are still printed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A server's process could not be started, found or asked about.
    #[error("{server}: {what}")]
    Server {
        /// The name given with `--server`.
        server: String,
        /// What was tried and how it failed.
        what: String,
    },
    /// The server closed or reset a connection while replies were due.
    #[error("connection lost with {outstanding} requests unanswered: {cause}")]
    ConnectionLost {
        /// Requests sent on it whose replies had not come.
        outstanding: usize,
        /// The socket's error, or end of file.
        cause: io::Error,
    },
    /// Replies were due and none came for this long.
    #[error("no reply for {0:?}")]
    Stalled(Duration),
    /// The options contradict each other.
    #[error("{0}")]
    Options(String),
    /// The generator's own files and sockets.
    #[error(transparent)]
    Io(#[from] io::Error),
}
