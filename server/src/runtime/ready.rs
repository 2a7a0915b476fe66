//! The queue of connections that are ready, and the waker that fills it.
//!
//! Here: for clients and for data links alike. Not here: what a worker does with them (`io::worker`,
//! `node::links`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use parking_lot::Mutex;

/// Numbers of connections to be looked at, in the order they became ready. Its memory is used again: a queue
/// of linked blocks would allocate one in so many requests.
pub(crate) type ReadyQueue = Mutex<VecDeque<usize>>;

/// Notes that a connection is ready, and wakes the worker.
#[derive(Debug)]
pub(crate) struct ReadyWaker {
    index: usize,
    /// It is in the queue already.
    pub(crate) queued: AtomicBool,
    ready: Arc<ReadyQueue>,
    worker: Waker,
}

impl ReadyWaker {
    /// Wakes the worker for connection `index` of the queue.
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
