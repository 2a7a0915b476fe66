//! A wall clock for one process, by libfaketime; the machine's other clocks do not change.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Debian's path; `tests/setup.sh` installs the library.
pub(crate) const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// The wall clock of one process; it may be set while the process runs.
#[derive(Debug)]
pub(crate) struct WallClock {
    file: PathBuf,
}

impl WallClock {
    /// A clock that shows the real time, and keeps its setting in this file.
    pub(crate) fn new(file: PathBuf) -> Self {
        let clock = Self { file };
        if !clock.file.exists() {
            clock.set(0);
        }
        clock
    }

    /// Sets the clock `seconds` ahead of the real time.
    pub(crate) fn set(&self, seconds: i64) {
        // The process reads the file at any time, so the file is replaced as a whole.
        let new = self.file.with_extension("new");
        fs::write(&new, format!("{seconds:+}\n")).expect("the folder is ours");
        fs::rename(new, &self.file).expect("the folder is ours");
    }

    /// Makes this the clock of a process that will be started.
    pub(crate) fn give_to(&self, command: &mut Command) {
        assert!(Path::new(LIBRARY).exists(), "{LIBRARY} is missing: run tests/setup.sh");
        command.env("LD_PRELOAD", LIBRARY).env("FAKETIME_TIMESTAMP_FILE", &self.file);
        for flag in ["FAKETIME_NO_CACHE", "FAKETIME_DONT_FAKE_MONOTONIC", "NO_FAKE_STAT"] {
            command.env(flag, "1");
        }
    }
}
