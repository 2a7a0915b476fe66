//! The name that the program was started under, and the settings that depend on it.
//!
//! Here: version line and licence text. Not here: the default address, which also depends on the
//! name (`resolve`); replies to `version` (`connection`).

use std::ffi::OsStr;
use std::path::Path;

/// The name that the program was started under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramName {
    /// The program's own name; any other name counts as this one.
    Tollgate,
    /// `memcached`: scripts check the version, and the default address is every interface.
    Memcached,
}

impl ProgramName {
    /// The version of memcached that the server is compatible with.
    pub const MEMCACHED_VERSION: &'static str = "1.6.45";

    /// The name of `program`, a path or a bare name.
    #[must_use]
    pub fn of(program: &OsStr) -> Self {
        match Path::new(program).file_name() {
            Some(name) if name == "memcached" => Self::Memcached,
            _ => Self::Tollgate,
        }
    }

    /// The first line of `-h`, and the output of `-V`.
    pub(super) fn version_line(self) -> String {
        match self {
            Self::Tollgate => format!("tollgate {}", env!("CARGO_PKG_VERSION")),
            Self::Memcached => format!("memcached {}", Self::MEMCACHED_VERSION),
        }
    }

    /// The output of `-i`.
    pub(super) fn licence(self) -> String {
        format!(
            "{}\n\nTollgate {}, licensed under either of\n\n  \
             Apache License, Version 2.0 (http://www.apache.org/licenses/LICENSE-2.0)\n  \
             MIT license (http://opensource.org/licenses/MIT)\n\nat your option. \
             It contains no code of memcached.\n",
            self.version_line(),
            env!("CARGO_PKG_VERSION"),
        )
    }
}
