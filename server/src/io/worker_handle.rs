//! The handle to a running worker: new clients, and a sign of life.
//!
//! Not here: the worker (`worker`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender};
use tokio::sync::oneshot;

use crate::net::DetachedStream;
use crate::runtime::connections::Registration;

/// An accepted client on its way to a worker.
pub(crate) struct ClientArrival {
    pub(crate) stream: DetachedStream,
    pub(crate) registration: Registration,
}

/// A message to a worker.
pub(super) enum WorkerMessage {
    /// A client to serve.
    Client(ClientArrival),
    /// A request for a sign of life.
    Ping(oneshot::Sender<()>),
}

/// Gives a worker clients of the server's own, and asks it for a sign of life. Does not keep the
/// worker running.
pub(crate) struct WorkerProbe {
    messages: WeakUnboundedSender<WorkerMessage>,
    connections: Arc<AtomicUsize>,
}

impl WorkerProbe {
    /// Wakes the worker. The receiver gets its answer, or an error if the worker has ended.
    pub(crate) fn ping(&self) -> oneshot::Receiver<()> {
        let (reply, answer) = oneshot::channel();
        if let Some(messages) = self.messages.upgrade() {
            // The worker has ended: `reply` is dropped.
            let _ = messages.send(WorkerMessage::Ping(reply));
        }
        answer
    }

    /// Returns the number of connections of the worker.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Sends a client to the worker. Without the worker the client is dropped.
    pub(crate) fn deal(&self, arrival: ClientArrival) {
        if let Some(messages) = self.messages.upgrade() {
            self.connections.fetch_add(1, Ordering::Relaxed);
            // The worker is gone, so the server is stopping: drop the client.
            let _ = messages.send(WorkerMessage::Client(arrival));
        }
    }
}

/// The handle to a running worker. The connection limit bounds its queue.
pub(crate) struct WorkerHandle {
    messages: UnboundedSender<WorkerMessage>,
    connections: Arc<AtomicUsize>,
    /// `None` for a worker that runs as a task.
    thread: Option<JoinHandle<()>>,
}

impl WorkerHandle {
    /// Creates the handle of a worker that counts its `connections`.
    pub(super) fn new(
        messages: UnboundedSender<WorkerMessage>,
        connections: Arc<AtomicUsize>,
    ) -> Self {
        Self { messages, connections, thread: None }
    }

    /// Makes the handle wait for this thread at the end.
    pub(super) fn on_thread(self, thread: JoinHandle<()>) -> Self {
        Self { thread: Some(thread), ..self }
    }

    /// Returns the number of connections of the worker.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Closes the worker with its connections, and waits for its thread.
    pub(crate) fn end(self) {
        drop(self.messages);
        if self.thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a worker thread panicked: please report this log as a bug");
        }
    }

    /// Returns a handle that does not keep the worker running.
    pub(crate) fn probe(&self) -> WorkerProbe {
        WorkerProbe {
            messages: self.messages.downgrade(),
            connections: Arc::clone(&self.connections),
        }
    }

    /// Sends a client to the worker.
    pub(crate) fn deal(&self, arrival: ClientArrival) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        // The worker is gone, so the server is stopping: drop the client.
        let _ = self.messages.send(WorkerMessage::Client(arrival));
    }
}
