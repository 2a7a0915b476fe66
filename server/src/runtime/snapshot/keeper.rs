//! When the snapshot is saved while the server runs: every so often, and when an operator asks.
//!
//! Here: the thread that does it, reading the last one at start, and what is told of both. Not here:
//! the file (`snapshot`), the snapshot on the way out (`server`).

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{SnapshotError, check, load, loaded, rename_damaged, rename_loaded, save};
use crate::runtime::service::Service;

/// Between two locks of a shard: workers on the same processors go on meanwhile.
const PAUSE: Duration = Duration::from_micros(200);

/// What became of snapshots, for `stats`.
#[derive(Debug, Default)]
pub struct SnapshotMetrics {
    /// Those that were saved.
    pub saved: AtomicU64,
    /// Those that could not be.
    pub failed: AtomicU64,
    /// When the last one that was saved was begun, in Unix milliseconds; 0: there is none.
    pub last_begun_unix_ms: AtomicU64,
    /// How long it took.
    pub last_took_ms: AtomicU64,
    /// How many items it has.
    pub last_items: AtomicU64,
}

/// The thread that saves snapshots while the server runs.
pub(crate) struct Keeper {
    wanted: SyncSender<()>,
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Keeper {
    /// Starts the thread if there is a snapshot file.
    ///
    /// # Errors
    ///
    /// When the system gives no thread.
    pub(crate) fn start(service: &Arc<Service>) -> io::Result<Option<Self>> {
        if service.config().snapshot_file.is_none() {
            return Ok(None);
        }
        // One that is asked for while one is being written follows it; a third has the same effect.
        let (wanted, asked) = sync_channel(1);
        let ends = Arc::new(AtomicBool::new(false));
        let (service, until) = (Arc::clone(service), Arc::clone(&ends));
        let thread = thread::Builder::new()
            .name("snapshot".to_owned())
            .spawn(move || run(&service, &asked, &until))?;
        Ok(Some(Self { wanted, ends, thread }))
    }

    /// Has a snapshot written.
    pub(crate) fn want(&self) {
        // Full: one is on its way that has not begun.
        let _ = self.wanted.try_send(());
    }

    /// Gives up what is being written, and waits for that.
    pub(crate) fn end(self) {
        self.ends.store(true, Ordering::Relaxed);
        drop(self.wanted);
        // It panics only where the process ends.
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
            // From beginning to beginning, so that what a crash loses has a bound.
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
/// No snapshot can be kept there: [`SnapshotError::Unusable`].
pub(crate) fn restore(service: &Service) -> Result<(), SnapshotError> {
    let Some(path) = &service.config().snapshot_file else { return Ok(()) };
    // Once more, as who we are by now.
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
            // With an interval the next one is begun now and takes its place: a crash before that loses
            // no more than it may.
            if service.config().snapshot_interval.is_none() {
                rename_loaded(path)?;
            }
        }
        Ok(None) if read.exists() => tracing::warn!(
            path = %path.display(),
            "no snapshot, starting empty: the last run did not save one; {} is the one that it read",
            read.display()
        ),
        Ok(None) => {}
        // A server that does not start for want of old counts would be worse than one without.
        Err(error) => {
            if let Ok(aside) = rename_damaged(path) {
                let aside = aside.display();
                tracing::error!(%error, %aside, "snapshot left aside: starting empty");
            } else {
                tracing::error!(%error, "snapshot not read: starting empty");
            }
        }
    }
    Ok(())
}

/// Saves one, with pauses, and takes note of it.
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
            tracing::error!(%error, why, "snapshot not saved: the one before stays");
        }
    }
}
