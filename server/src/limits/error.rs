//! What can go wrong: a file that is refused, and a key of a limit that cannot be made.

use std::path::PathBuf;

/// Why a limits file is refused, as the operator reads it: one line, no trailing full stop.
#[derive(Debug, thiserror::Error)]
pub enum LimitsError {
    /// Something in it is wrong.
    #[error("{file}:{line}: {reason}")]
    Refused {
        /// The file as it was named.
        file: String,
        /// Which line, from 1.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file as it was named.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It has no limits, where there were some.
    #[error(
        "{} has no limits: those in force stay, unless it says `allow_empty = true` at its top",
        path.display()
    )]
    Emptied {
        /// The file as it was named.
        path: PathBuf,
    },
    /// It has no limits that could be put.
    #[error("{} has no limits", path.display())]
    Empty {
        /// The file as it was named.
        path: PathBuf,
    },
    /// A cluster cannot keep so many.
    #[error("{}: it has {what}, and a cluster may have {most}", path.display())]
    TooMany {
        /// The file as it was named.
        path: PathBuf,
        /// How many of what it has.
        what: String,
        /// How many there may be.
        most: usize,
    },
}

/// Why the key that a limit counts under cannot be made from a client's key.
///
/// The client's key is to blame, so the client hears it; nothing is charged, the connection stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitedKeyError {
    /// It would be longer than any key.
    #[error("CLIENT_ERROR the key that the limit counts is too long")]
    TooLong,
    /// It would be empty.
    #[error("CLIENT_ERROR the key that the limit counts is empty")]
    Empty,
    /// With its parents' parents it has more than [`super::PARENTS_MAX`].
    #[error("CLIENT_ERROR the key has too many parents")]
    TooManyParents,
}
