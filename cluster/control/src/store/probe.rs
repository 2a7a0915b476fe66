//! Probes of the disk: is there free space, and does a write reach it?
//!
//! Here: one probe, and the thread that probes a disk which nothing was written to for a while. Not
//! here: the result of a probe (`health`), probes of a simulated disk (`handle::disk`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use redb::Durability;

use super::directory::{room, touch};
use super::{ControlStore, StoreError, commit, put};

/// The name of the value that a probe writes to the control log.
const PROBE: &str = "probe";

impl ControlStore {
    /// Whether the store is in a file, not in memory or on a simulated disk.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.inner.is_disk
    }

    /// Writes a value without meaning to the control log, to learn whether the disk works.
    pub(crate) async fn probe(&self) -> Result<(), StoreError> {
        if self.is_on_disk() {
            let store = self.clone();
            let probed = tokio::task::spawn_blocking(move || store.probe_disk(true)).await;
            return probed.unwrap_or(Err(StoreError::Interrupted));
        }
        self.write(Durability::Immediate, |write| put(write, PROBE, &())).await
    }

    /// Probes the disk whenever nothing was written to it for `idle_max`, until the store is
    /// dropped, on a thread of its own: a probe may hang, and it wakes no other thread. Only for a
    /// store [on a disk](Self::is_on_disk).
    ///
    /// # Errors
    ///
    /// The system refuses a thread.
    pub(crate) fn keep_probing(&self, idle_max: Duration) -> Result<(), StoreError> {
        let inner = Arc::downgrade(&self.inner);
        let probing = move || {
            while let Some(inner) = inner.upgrade() {
                let store = Self { inner, opening: None };
                let pause = store.inner.health.until_probe(idle_max);
                let pause = pause.unwrap_or_else(|| {
                    // The store records the result.
                    let _ = store.probe_disk(false);
                    idle_max
                });
                drop(store);
                #[expect(clippy::disallowed_methods, reason = "a thread, and no task, waits")]
                thread::sleep(pause);
            }
        };
        let spawned = thread::Builder::new().name("disk-probe".to_owned()).spawn(probing);
        spawned.map(drop).map_err(StoreError::Probe)
    }

    /// Looks for free space and writes. Most probes write to the lock file, which costs the
    /// processor less than the control log; with `is_thorough` it is the control log.
    fn probe_disk(&self, is_thorough: bool) -> Result<(), StoreError> {
        let health = &self.inner.health;
        let begun = health.begin(true);
        let is_thorough = health.begin_probe() || is_thorough;
        let written = catch_unwind(AssertUnwindSafe(|| {
            if let Some(directory) = self.file().and_then(Path::parent) {
                health.note_room(room(directory, is_thorough));
            }
            // Only the write counts as the speed of the disk.
            health.begin_again(begun);
            match &self.inner.lock {
                Some(lock) if !is_thorough => touch(lock).map_err(StoreError::Probe),
                _ => {
                    let database = self.database()?;
                    commit(&database, Durability::Immediate, |write| put(write, PROBE, &()))
                }
            }
        }));
        let written = written.unwrap_or(Err(StoreError::Interrupted));
        health.end(begun, written.as_ref().err());
        written
    }
}
