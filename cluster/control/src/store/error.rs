//! The reasons why the store cannot be used, as an operator reads them.
//!
//! Not here: the effect of a fault on the node (`handle::disk`).

use std::io;
use std::path::{Path, PathBuf};

/// The reason why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The system refuses access to the directory, or to a file in it.
    #[error("data directory: {}: {source}", path.display())]
    Directory {
        /// The directory or file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another process has locked the directory.
    #[error(
        "data directory {} is in use by {by}: each server needs a directory of its own",
        path.display()
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process, as far as known.
        by: String,
    },
    /// The file exists but is damaged.
    #[error(
        "control log {} is damaged ({what}): restore the file from a copy, or move {} away and start \
         with an empty directory; the node then joins its cluster as a new one. It holds no counters",
        path.display(),
        path.parent().unwrap_or(path).display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage, in short.
        what: String,
    },
    /// The directory was copied: its node runs somewhere else.
    #[error(
        "the node of this data directory runs at {address}: the directory was copied while in use. \
         Start with an empty one"
    )]
    Copied {
        /// The address at which the node runs.
        address: String,
    },
    /// A write to the lock file failed.
    #[error("the data directory: {0}")]
    Probe(#[source] io::Error),
    /// An error of the database.
    #[error("the control log: {0}")]
    Database(#[source] Box<redb::Error>),
    /// The contents have another format, or are invalid.
    #[error("the control log: {0} is not readable")]
    Unreadable(&'static str),
    /// The runtime ended during a write.
    #[error("the control log: interrupted")]
    Interrupted,
    /// The file was closed after a fault, and was not opened again yet.
    #[error("the control log: closed after a fault")]
    Closed,
}

impl StoreError {
    /// The same error, with the file concerned.
    pub(super) fn at(self, path: Option<&Path>) -> Self {
        let Some(path) = path else { return self };
        let path = path.to_owned();
        match self {
            Self::Unreadable(what) => {
                Self::Damaged { path, what: format!("{what} is not readable") }
            }
            Self::Database(error) => match *error {
                redb::Error::Io(source) if source.kind() != io::ErrorKind::InvalidData => {
                    Self::Directory { path, source }
                }
                redb::Error::DatabaseAlreadyOpen => {
                    let path = path.parent().map_or(path.clone(), Path::to_owned);
                    Self::InUse { path, by: "another process".to_owned() }
                }
                error => Self::Damaged { path, what: error.to_string() },
            },
            other => other,
        }
    }
}

impl<E: Into<redb::Error>> From<Wrapped<E>> for StoreError {
    fn from(Wrapped(error): Wrapped<E>) -> Self {
        Self::Database(Box::new(error.into()))
    }
}

/// Converts redb's errors; it has one type for each of its calls.
pub(crate) struct Wrapped<E>(E);

pub(crate) trait Wrap<T> {
    fn wrap(self) -> Result<T, StoreError>;
}

impl<T, E: Into<redb::Error>> Wrap<T> for Result<T, E> {
    fn wrap(self) -> Result<T, StoreError> {
        self.map_err(|error| Wrapped(error).into())
    }
}
