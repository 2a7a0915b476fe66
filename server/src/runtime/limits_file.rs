//! Watches the limits file while the server runs, and reads it again after a change.
//!
//! Here: detecting a change. Not here: parsing (`limits`), putting limits in force (`service`, and
//! in a cluster `node::limits`).

use std::os::unix::fs::MetadataExt as _;

use crate::config::Config;
use crate::runtime::service::Service;

/// Detects changes of the limits file by comparing its metadata once a second. This detects an
/// editor's write and a container's replaced symbolic link alike, and needs no notifications of the
/// operating system.
pub(crate) struct LimitsFile {
    /// Mark of the version that was read. Taken before reading, so that a write in between counts
    /// as a change.
    read: Option<FileMark>,
    /// Mark at the last check.
    seen: Option<FileMark>,
}

/// Device, inode, length, and the seconds and nanoseconds of the last write.
type FileMark = (u64, u64, u64, i64, i64);

impl LimitsFile {
    /// Marks the current version as the one that is about to be read.
    pub(crate) fn now(config: &Config) -> Self {
        let mark = Self::mark(config);
        Self { read: mark, seen: mark }
    }

    fn mark(config: &Config) -> Option<FileMark> {
        let data = std::fs::metadata(config.limits_file.as_ref()?).ok()?;
        Some((data.dev(), data.ino(), data.size(), data.mtime(), data.mtime_nsec()))
    }

    /// Reads the limits again if the file has changed and then stayed the same for one check: a
    /// file that is still being written may have fewer limits and yet no mistake. A missing file
    /// counts as unchanged.
    pub(crate) fn follow(&mut self, service: &Service) {
        let mark = Self::mark(service.config());
        let settled = std::mem::replace(&mut self.seen, mark) == mark;
        if settled && mark.is_some() && mark != self.read {
            self.read = mark;
            service.reload_limits();
        }
    }
}
