//! Reasons to refuse a configuration.
//!
//! Here: the one error of `config`, with the texts for the operator. Not here: failures of the
//! process (`process`), exit codes of other errors (`server/program`).

use std::path::PathBuf;

/// The reason why the server does not start: the setting, its origin, and a remedy.
///
/// `Display` is one line without a trailing full stop; the program prefixes its name.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A flag is unknown, lacks its value, or has one that cannot be used.
    #[error("{0}")]
    Usage(String),
    /// The same mistake, outside the command line.
    #[error("{origin}: {reason}")]
    Written {
        /// `file:line`, or the name of the environment variable.
        origin: String,
        /// The mistake.
        reason: String,
    },
    /// A file named by `--config` or `--memcached-conf` cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The path as it was written.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

impl ConfigError {
    /// The exit code: 64 is `EX_USAGE` of sysexits.h, which memcached uses for the same errors.
    pub const EXIT_CODE: u8 = 64;

    /// Adds the origin of the mistake, unless the error has one already.
    pub(super) fn at(self, origin: &str) -> Self {
        match self {
            Self::Usage(reason) => Self::Written { origin: origin.to_owned(), reason },
            located => located,
        }
    }
}

/// Keeps clap's first line, which names flag and value; the other lines only refer to the help.
impl From<clap::Error> for ConfigError {
    fn from(error: clap::Error) -> Self {
        let text = error.render().to_string();
        let line = text.lines().next().unwrap_or_default();
        Self::Usage(line.strip_prefix("error: ").unwrap_or(line).to_owned())
    }
}
