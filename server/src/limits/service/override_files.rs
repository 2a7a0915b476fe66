//! The files of overrides of limits in force: their faults, and reading them again.
//!
//! Not here: the lines of a file (`overrides_file`), the limits file (`limits_file`).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tollgate_limits::files::FileMark;
use tollgate_limits::{Limits, OverrideSource, OverridesRead};

use super::{LimitsStore, off_thread};
use crate::LIFE;
use crate::limits::FaultOf;

/// A file of overrides of a limit in force.
#[derive(Debug)]
struct OverridesFile {
    path: Arc<str>,
    /// The version that was read last, good or bad.
    read: Option<FileMark>,
    /// The version at the last look.
    seen: Option<FileMark>,
    /// The mistake of the version that was read last.
    fault: Option<String>,
}

/// The files of overrides of the limits in force, by the name of the limit.
#[derive(Debug, Default)]
pub(super) struct OverridesFiles {
    files: BTreeMap<String, OverridesFile>,
}

impl OverridesFiles {
    /// Follows the limits that are put in force, with the files that were read for them.
    pub(super) fn follow(&mut self, limits: &Limits, reads: Vec<OverridesRead>) {
        self.files.retain(|name, _| {
            let limit = limits.by_name(name.as_bytes());
            limit.is_some_and(|limit| limit.overrides_file().is_some())
        });
        for read in reads {
            let limit = limits.by_name(read.limit.as_bytes());
            let Some(path) = limit.and_then(|limit| limit.overrides_file()) else { continue };
            let (path, mark) = (Arc::from(path), read.mark);
            let fault = read.fault.map(|error| error.to_string());
            let file = OverridesFile { path, read: mark, seen: mark, fault };
            self.files.insert(read.limit, file);
        }
    }

    /// Returns the mistake of a file, if one has any.
    pub(super) fn fault(&self) -> Option<String> {
        self.files.values().find_map(|file| file.fault.clone())
    }

    /// Returns the names of the limits whose files have changed, and then stayed the same for one
    /// look unless `at_once`, with the versions to read. A missing file counts as unchanged.
    fn changed(&mut self, at_once: bool) -> Vec<(String, FileMark)> {
        let mut changed = Vec::new();
        for (name, file) in &mut self.files {
            let mark = FileMark::of(Path::new(&*file.path));
            let is_settled = std::mem::replace(&mut file.seen, mark) == mark || at_once;
            if let Some(mark) = mark.filter(|mark| is_settled && file.read != Some(*mark)) {
                changed.push((name.clone(), mark));
            }
        }
        changed
    }
}

impl LimitsStore {
    /// Looks for files of overrides that have changed, and reads them on another thread. `at_once`:
    /// even if they may still be written.
    pub(crate) fn follow_override_files(self: &Arc<Self>, at_once: bool) {
        let changed = self.override_files.lock().changed(at_once);
        if changed.is_empty() {
            return;
        }
        let this = Arc::clone(self);
        tokio::spawn(async move {
            // One at a time: a file may take longer than the time between two looks.
            let _one = this.reloading.lock().await;
            let store = Arc::clone(&this);
            let read = move || {
                for (name, mark) in &changed {
                    store.read_override_file(name, *mark);
                }
            };
            if let Err(error) = off_thread(read).await {
                tracing::error!(%error, "files of overrides are not read");
            }
        });
    }

    /// Reads this version of the file of a limit in force. One with a mistake leaves the overrides
    /// as they were.
    fn read_override_file(&self, name: &str, wanted: FileMark) {
        let active = self.handle.load();
        let Some(limit) = active.limits().by_name(name.as_bytes()) else { return };
        let Some(path) = limit.overrides_file() else { return };
        // A later version may be half written: the next look finds it.
        if self.has_read(name, wanted) || FileMark::of(Path::new(path)) != Some(wanted) {
            return;
        }
        let (table, mark) = active.limits().read_override_file(limit);
        let _one = self.applying.lock();
        let present = self.handle.load();
        if present.limits().with_file_of(limit).is_none() {
            // The limit has changed, and its file was read for that.
            return;
        }
        if let Some(file) = self.override_files.lock().files.get_mut(name) {
            file.read = mark;
            file.fault = table.as_ref().err().map(ToString::to_string);
        }
        match table {
            Ok(table) => {
                let mut limits = present.limits().clone();
                limits.set_override_file(name, table);
                let limit = limits.by_name(name.as_bytes());
                let count = limit.map(|limit| limit.override_table_len(OverrideSource::File));
                self.handle.replace(limits);
                tracing::info!(target: LIFE, limit = name, count, path, "overrides in force");
            }
            Err(error) => {
                self.handle.refuse_of(FaultOf::InForce, &error);
                tracing::error!(
                    limit = name,
                    %error,
                    "file of overrides refused, overrides kept as they were: correct the file"
                );
            }
        }
        self.renew_fault();
    }

    /// Whether a version of a file was read since it was found changed.
    fn has_read(&self, name: &str, version: FileMark) -> bool {
        let files = self.override_files.lock();
        files.files.get(name).is_none_or(|file| file.read == Some(version))
    }

    /// Shows the mistake of a file of overrides again, after limits were put in force beside it.
    pub(crate) fn renew_fault(&self) {
        if let Some(fault) = self.override_files.lock().fault() {
            self.handle.set_fault(FaultOf::InForce, Some(fault));
        }
    }

    /// Records the files of the limits that are put in force, and logs their mistakes.
    pub(super) fn note_override_files(&self, limits: &Limits, reads: Vec<OverridesRead>) {
        for read in &reads {
            let name = &read.limit;
            if let Some(error) = &read.fault {
                self.handle.refuse_of(FaultOf::InForce, error);
                tracing::error!(
                    limit = name,
                    %error,
                    "file of overrides refused, the limit is in force without it: correct the file"
                );
            } else if let Some(limit) = limits.by_name(name.as_bytes()) {
                let count = limit.override_table_len(OverrideSource::File);
                let path = limit.overrides_file();
                tracing::info!(target: LIFE, limit = name, count, path, "overrides in force");
            }
        }
        self.override_files.lock().follow(limits, reads);
    }
}
