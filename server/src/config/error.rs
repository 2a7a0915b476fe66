//! Why a configuration was refused.
//!
//! Here: the one error of `config`, as the operator reads it. Not here: what the process can fail
//! at (`process`), exit codes of anything else (`main`).

use std::path::PathBuf;

/// Why the server does not start: what was written, where, and what to write instead.
///
/// `Display` is one line without a trailing full stop; `main` puts the program's name before it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A flag is unknown, lacks its value, or has one that cannot be used.
    #[error("{0}")]
    Usage(String),
    /// The same, found outside the command line.
    #[error("{origin}: {reason}")]
    Written {
        /// `file:line`, or the name of the environment variable.
        origin: String,
        /// What is wrong there.
        reason: String,
    },
    /// A file named by `--config` or `--memcached-conf` cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file as it was named.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl ConfigError {
    /// The exit code: 64 is `EX_USAGE` of sysexits.h, which memcached uses for the same.
    pub const EXIT_CODE: u8 = 64;

    /// Adds where the mistake was written, unless that is already known.
    pub(super) fn at(self, origin: &str) -> Self {
        match self {
            Self::Usage(reason) => Self::Written { origin: origin.to_owned(), reason },
            located => located,
        }
    }
}

/// Keeps clap's first line, which names flag and value; the rest is its advice to read the help.
impl From<clap::Error> for ConfigError {
    fn from(error: clap::Error) -> Self {
        let text = error.render().to_string();
        let line = text.lines().next().unwrap_or_default();
        Self::Usage(line.strip_prefix("error: ").unwrap_or(line).to_owned())
    }
}
