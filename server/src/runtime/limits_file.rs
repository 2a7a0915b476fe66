//! The limits file while the server runs: it is read again when it has changed.
//!
//! Not here: what is in it (`limits`), what becomes of it (`service`, and in a cluster `node::limits`).

use std::os::unix::fs::MetadataExt as _;

use crate::config::Config;
use crate::runtime::service::Service;

/// The limits file as it was read last. It is looked at by its figures once a second: that sees an
/// editor's write and a container's changed link alike, and needs nothing of the system.
pub(crate) struct LimitsFile {
    /// Of the file that was read. Taken before it was: what is written meanwhile is a change.
    read: Option<FileMark>,
    /// At the last look.
    seen: Option<FileMark>,
}

/// Device, inode, length, and the seconds and nanoseconds of the last write.
type FileMark = (u64, u64, u64, i64, i64);

impl LimitsFile {
    /// The file as it stands, about to be read.
    pub(crate) fn now(config: &Config) -> Self {
        let mark = Self::mark(config);
        Self { read: mark, seen: mark }
    }

    fn mark(config: &Config) -> Option<FileMark> {
        let data = std::fs::metadata(config.limits_file.as_ref()?).ok()?;
        Some((data.dev(), data.ino(), data.size(), data.mtime(), data.mtime_nsec()))
    }

    /// Reads the limits again if the file has changed and is not being written: a file cut off in the
    /// middle of it may have fewer limits and no mistake. One that is gone for the moment is as it was.
    pub(crate) fn follow(&mut self, service: &Service) {
        let mark = Self::mark(service.config());
        let settled = std::mem::replace(&mut self.seen, mark) == mark;
        if settled && mark.is_some() && mark != self.read {
            self.read = mark;
            service.reload_limits();
        }
    }
}
