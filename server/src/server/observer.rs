//! The thread `observer`, which drains the samples of the workers: ten times a second while there
//! are any, otherwise once a second.
//!
//! Here: the thread, and the bell that ends its rest. Not here: the work of a wake-up (`observe`).
//! A simulated server has no such thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;

use crate::counters::Counters;
use crate::observe::recorder::RecorderSink;
use crate::observe::sample::RecordSink;
use crate::observe::{LookContext, WATCH_PERIOD, Watcher};
use crate::runtime::service::Service;

/// The reason for a wake-up before the end of a wait.
enum ObserverCall {
    Look,
    End,
}

/// Ends the rest of the observer when there is something to look at.
pub(super) struct ObserverBell {
    service: Arc<Service>,
    calls: Sender<ObserverCall>,
    is_resting: Arc<AtomicBool>,
}

impl ObserverBell {
    /// Wakes the observer if it rests while a ring has samples or the tail has followers. Costs a
    /// load otherwise, so it may be called often; the next call makes up for one that comes just
    /// before the rest.
    pub(super) fn ring_if_due(&self) {
        if !self.is_resting.load(Ordering::Acquire) {
            return;
        }
        let has_samples = self.service.all_counters().any(|counters| counters.probe.has_samples());
        if has_samples || self.service.observatory().is_followed() {
            self.is_resting.store(false, Ordering::Release);
            let _ = self.calls.send(ObserverCall::Look);
        }
    }
}

/// The running thread.
pub(super) struct ObserverThread {
    thread: JoinHandle<()>,
    bell: ObserverBell,
}

impl ObserverThread {
    /// Makes the rings of the workers, which must not run yet, and starts the thread.
    ///
    /// # Errors
    ///
    /// The system refuses a thread.
    pub(super) fn start(service: &Arc<Service>, seeds: [u64; 4]) -> io::Result<Self> {
        service.open_probes(seeds);
        let (calls, received) = channel();
        let is_resting = Arc::<AtomicBool>::default();
        let (shared, resting) = (Arc::clone(service), Arc::clone(&is_resting));
        let thread = std::thread::Builder::new()
            .name("observer".to_owned())
            .spawn(move || observe(&shared, &received, &resting))?;
        let bell = ObserverBell { service: Arc::clone(service), calls, is_resting };
        Ok(Self { thread, bell })
    }

    /// Returns the bell, which the thread that runs housekeeping rings.
    pub(super) fn bell(&self) -> &ObserverBell {
        &self.bell
    }

    /// Ends the thread and waits for it.
    pub(super) fn end(self) {
        let _ = self.bell.calls.send(ObserverCall::End);
        if self.thread.join().is_err() {
            tracing::error!("the thread observer panicked: please report this log as a bug");
        }
    }
}

/// Looks until the end is called.
fn observe(service: &Arc<Service>, calls: &Receiver<ObserverCall>, is_resting: &AtomicBool) {
    let counters: Vec<&Counters> = service.all_counters().collect();
    let mut sink = service.recorder().map(|recorder| {
        let (recorder, service) = (Arc::clone(recorder), Arc::clone(service));
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
        let watcher = watcher.get_or_insert_with(|| Watcher::new(&look, sink.take()));
        let pause = watcher.look(&look);
        is_resting.store(pause > WATCH_PERIOD, Ordering::Release);
        match calls.recv_timeout(pause) {
            Ok(ObserverCall::Look) | Err(RecvTimeoutError::Timeout) => {}
            Ok(ObserverCall::End) | Err(RecvTimeoutError::Disconnected) => return,
        }
        is_resting.store(false, Ordering::Release);
    }
}
