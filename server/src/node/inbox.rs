//! The events that other threads have for a worker.
//!
//! Not here: handling them (`router`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use bytes::Bytes;
use cluster::id::NodeId;
use cluster::replica::{Opening, Refusal, Route};
use crossbeam::queue::SegQueue;

use super::links;
use super::operation::HeldOp;

/// An event for a worker.
#[derive(Debug)]
pub(crate) enum WorkerEvent {
    /// A partition has changed in a way that replies may wait for.
    Open(Opening),
    /// A held operation is due to be performed.
    Perform(HeldOp),
    /// A held operation belongs to another primary.
    Refer(HeldOp, Option<Route>),
    /// A held operation was not done.
    Refuse(HeldOp, Refusal),
    /// A link to a node is up: unanswered operations for the node are sent again.
    LinkUp(NodeId),
    /// A task's reply to a request; the token identifies the waiting client.
    Reply(u64, Bytes),
    /// A data link for the worker to serve.
    DataLink(Box<links::LinkArrival>),
}

/// A worker's queue of events from other threads.
#[derive(Default)]
pub(crate) struct Inbox {
    queue: SegQueue<WorkerEvent>,
    waker: OnceLock<Waker>,
    /// The worker has been woken and has not yet read the queue.
    is_woken: AtomicBool,
    /// The worker waits for answers and needs a wake-up at every tick.
    pub(crate) is_waiting: AtomicBool,
    /// Replies of the worker wait for copies.
    awaits_copies: AtomicBool,
}

impl Inbox {
    /// Whether replies of the worker wait for copies: the worker is then woken when a link
    /// acknowledges something.
    pub(crate) fn awaits_copies(&self) -> bool {
        self.awaits_copies.load(Ordering::Acquire)
    }

    /// Records whether replies of the worker wait for copies.
    pub(crate) fn set_awaits_copies(&self, awaits: bool) {
        if self.awaits_copies.load(Ordering::Relaxed) != awaits {
            self.awaits_copies.store(awaits, Ordering::SeqCst);
        }
    }

    /// Sets the waker of the worker; only the first call has an effect.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        let _ = self.waker.set(waker.clone());
    }

    pub(crate) fn push(&self, inbound: WorkerEvent) {
        self.queue.push(inbound);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        if !self.is_woken.swap(true, Ordering::AcqRel)
            && let Some(waker) = self.waker.get()
        {
            waker.wake_by_ref();
        }
    }

    /// Called by the worker before it reads the queue: every later event wakes it again.
    pub(crate) fn clear_woken(&self) {
        self.is_woken.store(false, Ordering::Release);
    }

    pub(crate) fn pop(&self) -> Option<WorkerEvent> {
        self.queue.pop()
    }
}
