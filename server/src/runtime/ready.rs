//! The queue of connections that are ready, and the waker that fills it.
//!
//! Here: connections of clients and data links alike. Not here: reading them (`io::worker`,
//! `node::links`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use parking_lot::Mutex;

/// Indexes of ready connections, in the order they became ready. A ring buffer reuses its memory; a
/// queue of linked blocks would allocate.
pub(crate) type ReadyQueue = Mutex<VecDeque<usize>>;

/// Queues a ready connection and wakes the worker.
#[derive(Debug)]
pub(crate) struct ReadyWaker {
    index: usize,
    /// True while the connection is in the queue.
    pub(crate) queued: AtomicBool,
    ready: Arc<ReadyQueue>,
    worker: Waker,
}

impl ReadyWaker {
    /// Creates a waker that queues connection `index`.
    pub(crate) fn new(index: usize, ready: &Arc<ReadyQueue>, worker: &Waker) -> Self {
        let (ready, worker) = (Arc::clone(ready), worker.clone());
        Self { index, queued: AtomicBool::new(false), ready, worker }
    }
}

impl Wake for ReadyWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.ready.lock().push_back(self.index);
            self.worker.wake_by_ref();
        }
    }
}
