//! Probes of the disk: is there free space, and does a write reach it?
//!
//! Here: one probe. Not here: when a probe is due (`handle::disk`), its result (`health`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use redb::Durability;
use tokio::task::JoinHandle;

use super::directory::{room, touch};
use super::{ControlStore, StoreError, commit, put};

/// The name of the value that a probe writes to the control log.
const PROBE: &str = "probe";

impl ControlStore {
    /// Writes a value without meaning to the control log, to learn whether the disk works.
    pub(crate) async fn probe(&self) -> Result<(), StoreError> {
        if self.inner.is_disk {
            return self.probe_disk(true).await.unwrap_or(Err(StoreError::Interrupted));
        }
        self.write(Durability::Immediate, |write| put(write, PROBE, &())).await
    }

    /// Starts a probe, which may hang, and does not wait for it. The store records the result.
    pub(crate) fn start_probe(&self) {
        if self.inner.is_disk {
            // Nothing waits for the thread, so its end wakes no task.
            drop(self.probe_disk(false));
        } else {
            let store = self.clone();
            tokio::spawn(async move { store.probe().await });
        }
    }

    /// Looks for free space and writes, both in one visit of a thread that may wait for the disk.
    /// Most probes write to the lock file, which costs the processor less than the control log;
    /// with `is_thorough` it is the control log.
    fn probe_disk(&self, is_thorough: bool) -> JoinHandle<Result<(), StoreError>> {
        let store = self.clone();
        // The probe counts as pending from here on, so that no second one is started meanwhile.
        let begun = store.inner.health.begin(true);
        tokio::task::spawn_blocking(move || {
            let health = &store.inner.health;
            let is_thorough = health.begin_probe() || is_thorough;
            let written = catch_unwind(AssertUnwindSafe(|| {
                if let Some(directory) = store.file().and_then(Path::parent) {
                    health.note_room(room(directory, is_thorough));
                }
                // Only the write counts as the speed of the disk.
                health.begin_again(begun);
                match &store.inner.lock {
                    Some(lock) if !is_thorough => touch(lock).map_err(StoreError::Probe),
                    _ => {
                        let database = store.database()?;
                        commit(&database, Durability::Immediate, |write| put(write, PROBE, &()))
                    }
                }
            }));
            let written = written.unwrap_or(Err(StoreError::Interrupted));
            health.end(begun, written.as_ref().err());
            written
        })
    }
}
