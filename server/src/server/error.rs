//! The reason why a server could not start, or ended with an error.

use std::io;
use std::path::PathBuf;

use crate::admin::AdminError;
use crate::node::setup::NodeError;
use crate::runtime::listeners::BindError;
use crate::runtime::snapshot::SnapshotError;

/// The reason why a server could not start, or ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// An address or path cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A file named in the configuration cannot be used.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The certificate or the tokens of the admin listener cannot be used.
    #[error(transparent)]
    Admin(AdminError),
    /// The authentication file is faulty.
    #[error(transparent)]
    Auth(#[from] crate::runtime::auth::AuthError),
    /// The limits file is faulty.
    #[error(transparent)]
    Limits(#[from] tollgate_limits::LimitsError),
    /// The store of limits cannot be used.
    #[error(transparent)]
    LimitsStore(#[from] crate::records::file::RecordsFileError),
    /// None of the configured limits can be put in force.
    #[error("no limits can be put in force: {0}")]
    NoLimits(String),
    /// The snapshot could not be written at the end.
    #[error("snapshot not saved: {0}")]
    Snapshot(SnapshotError),
    /// A snapshot cannot be written at the configured path.
    #[error(transparent)]
    SnapshotPlace(SnapshotError),
    /// The node of the cluster cannot start.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The control log could not be written when the server stopped.
    #[error("ended with a fault: {0}")]
    Fault(String),
    /// Another process runs as the same node.
    #[error("{0}")]
    Ended(String),
    /// The server ended before other nodes had copies of all its partitions.
    #[error("left {0} partitions of which no other node has a copy: --drain-timeout was too short")]
    LeftCopies(usize),
    /// The system refused threads, signals or similar resources.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

impl From<AdminError> for ServerError {
    fn from(error: AdminError) -> Self {
        match error {
            AdminError::Bind(error) => Self::Bind(error),
            error => Self::Admin(error),
        }
    }
}

impl ServerError {
    /// Returns whether another start with the same files would fail too, so that a supervisor
    /// should not retry.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Admin(_)
            | Self::Auth(_)
            | Self::Limits(_)
            | Self::LimitsStore(_)
            | Self::NoLimits(_)
            | Self::SnapshotPlace(_)
            | Self::Node(NodeError::Security(_)) => true,
            Self::Bind(_)
            | Self::File { .. }
            | Self::Snapshot(_)
            | Self::Node(_)
            | Self::Fault(_)
            | Self::Ended(_)
            | Self::LeftCopies(_)
            | Self::System(_) => false,
        }
    }
}
