//! Errors: a limits file that is refused, and a counted key that is invalid; and the treatment of
//! overrides that cannot match.

use std::path::PathBuf;

/// The reason why a limits file is refused, for operators: one line, no trailing full stop.
#[derive(Debug, thiserror::Error)]
pub enum LimitsError {
    /// The file has a mistake.
    #[error("{file}:{line}: {reason}")]
    Refused {
        /// The file as it was named.
        file: String,
        /// The line of the mistake, from 1.
        line: usize,
        /// The mistake.
        reason: String,
    },
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file as it was named.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A reloaded file has no limits, while there are limits in force.
    #[error(
        "{} has no limits: those in force stay, unless it says `allow_empty = true` at its top",
        path.display()
    )]
    Emptied {
        /// The file as it was named.
        path: PathBuf,
    },
    /// The file has no limits to put.
    #[error("{} has no limits", path.display())]
    Empty {
        /// The file as it was named.
        path: PathBuf,
    },
    /// The file does not agree with the limits that API and operators have set, or these cannot be
    /// changed.
    #[error("{}: {reason}", path.display())]
    Conflict {
        /// The file as it was named.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The file exceeds a bound of a cluster.
    #[error("{}: it has {what}, and a cluster may have {most}", path.display())]
    TooMany {
        /// The file as it was named.
        path: PathBuf,
        /// The excess, such as "5000 limits".
        what: String,
        /// The bound.
        most: usize,
    },
}

/// The reply to a compare-and-set that gives units back.
pub const CAS_OF_REFUND: &str =
    "CLIENT_ERROR incrx: cas=<n> does not go with a negative delta on a limited key";

/// The reason why a client's key has no valid counted key.
///
/// `Display` is the reply line, because the client's key causes the error. Nothing is charged, and
/// the connection stays open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitedKeyError {
    /// The counted key would be longer than a key may be.
    #[error("CLIENT_ERROR the key that the limit counts is too long")]
    TooLong,
    /// The counted key would be empty.
    #[error("CLIENT_ERROR the key that the limit counts is empty")]
    Empty,
    /// The key has more than [`super::PARENTS_MAX`] parents, their parents included.
    #[error("CLIENT_ERROR the key has too many parents")]
    TooManyParents,
    /// A unit of the caller is not a unit of each limit of the key.
    #[error("CLIENT_ERROR a limit with a weight, or a cost or hold of a parent, cannot be leased")]
    NotLeasable,
    /// A compare-and-set gives units back.
    #[error("{CAS_OF_REFUND}")]
    CasOfRefund,
}

/// The treatment of overrides and exemptions that match nothing, and of parents that match nothing
/// or lead back to their limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BadOverrides {
    Refused,
    /// Refused, but exemptions are left out: a change of limits need not touch the exemptions too.
    ExemptionsLeftOut,
    /// For limits that are stored already: earlier versions accepted some of these, and a parent
    /// may have expired.
    LeftOut,
}
