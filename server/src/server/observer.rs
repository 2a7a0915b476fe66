//! The thread `observer`, which wakes ten times a second and drains the samples of the workers.
//!
//! Not here: the work of a wake-up (`observe`). A simulated server has no such thread.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;

use crate::counters::Counters;
use crate::observe::recorder::RecorderSink;
use crate::observe::sample::RecordSink;
use crate::observe::{LookContext, WATCH_PERIOD, Watcher};
use crate::runtime::service::Service;

/// The running thread.
pub(super) struct ObserverThread {
    thread: JoinHandle<()>,
    end: Sender<()>,
}

impl ObserverThread {
    /// Makes the rings of the workers, which must not run yet, and starts the thread.
    ///
    /// # Errors
    ///
    /// The system refuses a thread.
    pub(super) fn start(service: &Arc<Service>, seeds: [u64; 4]) -> io::Result<Self> {
        service.open_probes(seeds);
        let (end, ended) = channel();
        let service = Arc::clone(service);
        let thread = std::thread::Builder::new().name("observer".to_owned()).spawn(move || {
            let counters: Vec<&Counters> = service.all_counters().collect();
            let mut sink = service.recorder().map(|recorder| {
                let (recorder, service) = (Arc::clone(recorder), Arc::clone(&service));
                let clock = move || service.clock().now().unix_ms;
                Box::new(RecorderSink::new(recorder, clock)) as Box<dyn RecordSink>
            });
            let mut watcher = None;
            loop {
                let active = service.limits().load();
                let now = service.clock().now();
                let look = LookContext {
                    observatory: service.observatory(),
                    counters: &counters,
                    active: &active,
                    mono_ms: now.mono.millis(),
                    unix_ms: now.unix_ms,
                };
                watcher.get_or_insert_with(|| Watcher::new(&look, sink.take())).look(&look);
                if ended.recv_timeout(WATCH_PERIOD) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        })?;
        Ok(Self { thread, end })
    }

    /// Ends the thread and waits for it.
    pub(super) fn end(self) {
        let _ = self.end.send(());
        if self.thread.join().is_err() {
            tracing::error!("the thread observer panicked: please report this log as a bug");
        }
    }
}
