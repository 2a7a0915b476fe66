//! Watches a file while the server runs, so that a change is read.
//!
//! Here: detecting a change. Not here: parsing, and putting the content in force.

use std::path::{Path, PathBuf};

use tollgate_limits::files::FileMark;

/// Detects changes of a file by comparing its metadata once a second. This detects an editor's
/// write and a container's replaced symbolic link alike, and needs no notifications of the
/// operating system.
pub(crate) struct WatchedFile {
    path: Option<PathBuf>,
    /// Mark of the version that was read. Taken before reading, so that a write in between counts
    /// as a change.
    read: Option<FileMark>,
    /// Mark at the last check.
    seen: Option<FileMark>,
}

impl WatchedFile {
    /// Marks the current version as the one that is about to be read. `None` for no file.
    pub(crate) fn now(path: Option<&Path>) -> Self {
        let mut file = Self { path: path.map(Path::to_owned), read: None, seen: None };
        file.read = file.mark();
        file.seen = file.read;
        file
    }

    fn mark(&self) -> Option<FileMark> {
        FileMark::of(self.path.as_ref()?)
    }

    /// Returns whether the file has changed and then stayed the same for one check: a file that is
    /// still being written may lack lines and yet have no mistake. A missing file counts as
    /// unchanged.
    pub(crate) fn has_changed(&mut self) -> bool {
        let mark = self.mark();
        let settled = std::mem::replace(&mut self.seen, mark) == mark;
        let has_changed = settled && mark.is_some() && mark != self.read;
        if has_changed {
            self.read = mark;
        }
        has_changed
    }
}
