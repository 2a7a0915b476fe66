//! Saves snapshots while the server runs: at intervals, and on request.
//!
//! Here: the thread that saves, reading the last snapshot at startup, and the metrics and log lines
//! of both. Not here: the file (`snapshot`), the snapshot at shutdown (`server`).

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{SnapshotError, check, load, loaded, rename_damaged, rename_loaded, save};
use crate::runtime::service::Service;

/// Pause between two locks of a shard, in which workers on the same processor can run.
const PAUSE: Duration = Duration::from_micros(200);

/// Metrics of snapshots, for `stats`.
#[derive(Debug, Default)]
pub struct SnapshotMetrics {
    /// Snapshots that were saved.
    pub saved: AtomicU64,
    /// Snapshots that failed.
    pub failed: AtomicU64,
    /// Start of the last saved snapshot, in Unix milliseconds; 0: none was saved.
    pub last_begun_unix_ms: AtomicU64,
    /// Duration of the last saved snapshot.
    pub last_took_ms: AtomicU64,
    /// Number of items in the last saved snapshot.
    pub last_items: AtomicU64,
}

/// Handle to the thread that saves snapshots while the server runs.
pub(crate) struct Keeper {
    wanted: SyncSender<()>,
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Keeper {
    /// Starts the thread if a snapshot file is configured.
    ///
    /// # Errors
    ///
    /// The system cannot create a thread.
    pub(crate) fn start(service: &Arc<Service>) -> io::Result<Option<Self>> {
        if service.config().snapshot_file.is_none() {
            return Ok(None);
        }
        // A request during a snapshot starts another one afterwards; further requests share that
        // one.
        let (wanted, asked) = sync_channel(1);
        let ends = Arc::new(AtomicBool::new(false));
        let (service, until) = (Arc::clone(service), Arc::clone(&ends));
        let thread = thread::Builder::new()
            .name("snapshot".to_owned())
            .spawn(move || run(&service, &asked, &until))?;
        Ok(Some(Self { wanted, ends, thread }))
    }

    /// Requests a snapshot.
    pub(crate) fn want(&self) {
        // The channel is full: an earlier request has not started yet.
        let _ = self.wanted.try_send(());
    }

    /// Cancels a snapshot in progress and waits for the thread to end.
    pub(crate) fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        drop(self.wanted);
        // An error means a panic, which ends the process anyway.
        let _ = self.thread.join();
    }
}

fn run(service: &Service, asked: &Receiver<()>, ends: &AtomicBool) {
    let Some(path) = &service.config().snapshot_file else { return };
    let interval = service.config().snapshot_interval;
    let now_ns = || service.clock().now().mono.0;
    let mut begun_ns = now_ns();
    if interval.is_some() {
        keep(service, path, ends, "due");
    }
    loop {
        let is_asked = match interval {
            None => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
            // Measured from start to start, which bounds the loss by a crash.
            Some(interval) => {
                let since = Duration::from_nanos(now_ns().saturating_sub(begun_ns));
                asked.recv_timeout(interval.saturating_sub(since))
            }
        };
        begun_ns = now_ns();
        match is_asked {
            Ok(()) => keep(service, path, ends, "asked for"),
            Err(RecvTimeoutError::Timeout) => keep(service, path, ends, "due"),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Reads the snapshot of the last run, if there is one.
///
/// # Errors
///
/// No snapshot can be written to the path: [`SnapshotError::Unusable`].
pub(crate) fn restore(service: &Service) -> Result<(), SnapshotError> {
    let Some(path) = &service.config().snapshot_file else { return Ok(()) };
    // Check again, because the user may have changed since the first check.
    check(path)?;
    let read = loaded(path);
    match load(service.shards(), service.clock().now(), path) {
        Ok(Some(restored)) => {
            tracing::info!(
                target: "tollgate::life",
                items = restored.items,
                age_s = restored.age_ms / 1000,
                expired = restored.expired,
                refused = restored.refused,
                path = %path.display(),
                "snapshot read"
            );
            // With an interval a new snapshot is started now and replaces this one. Until then a
            // crash restores this one, which loses no more than an interval.
            if service.config().snapshot_interval.is_none() {
                rename_loaded(path)?;
            }
        }
        Ok(None) if read.exists() => tracing::warn!(
            path = %path.display(),
            "starting empty: the last run saved no snapshot; {} is the snapshot that it had read",
            read.display()
        ),
        Ok(None) => {}
        // Old counts are not worth refusing to start.
        Err(error) => {
            if let Ok(aside) = rename_damaged(path) {
                let aside = aside.display();
                tracing::error!(
                    %error,
                    %aside,
                    "starting empty: the snapshot cannot be read and was renamed"
                );
            } else {
                tracing::error!(%error, "starting empty: the snapshot cannot be read");
            }
        }
    }
    Ok(())
}

/// Saves a snapshot, with pauses, and updates the metrics.
fn keep(service: &Service, path: &Path, ends: &AtomicBool, why: &str) {
    let begun = service.clock().now();
    let pause = || {
        thread::sleep(PAUSE);
        !ends.load(Ordering::Relaxed)
    };
    let saved = save(service.shards(), begun, path, pause);
    let took_ms = service.clock().now().mono.millis().saturating_sub(begun.mono.millis());
    let metrics = service.snapshots();
    match saved {
        Ok(items) => {
            metrics.saved.fetch_add(1, Ordering::Relaxed);
            metrics.last_begun_unix_ms.store(begun.unix_ms, Ordering::Relaxed);
            metrics.last_took_ms.store(took_ms, Ordering::Relaxed);
            metrics.last_items.store(items, Ordering::Relaxed);
            tracing::info!(items, took_ms, why, path = %path.display(), "snapshot saved");
        }
        Err(_) if ends.load(Ordering::Relaxed) => {}
        Err(error) => {
            metrics.failed.fetch_add(1, Ordering::Relaxed);
            tracing::error!(%error, why, "snapshot not saved: the previous one stays in place");
        }
    }
}
