//! A worker: one thread, one runtime, its share of the connections.
//!
//! Connections are dealt to workers by the listener and stay where they are; a worker shares the
//! store with the others and nothing else. Not here: accepting (`listener`), serving one client
//! (`connection`).

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;

use crate::connection::{Connection, Scratch};
use crate::connections::Registration;
use crate::counters::Counters;
use crate::net::DetachedStream;
use crate::service::Service;

/// What the connections of one thread share.
pub(crate) struct Worker {
    pub(crate) service: Arc<Service>,
    number: usize,
    /// Borrowed for the length of a batch, in which nothing waits.
    pub(crate) scratch: RefCell<Scratch>,
}

impl Worker {
    pub(crate) fn counters(&self) -> &Counters {
        self.service.counters(self.number)
    }
}

/// A client on its way to a worker.
pub(crate) struct Arrival {
    pub(crate) stream: DetachedStream,
    pub(crate) registration: Registration,
}

/// The way to a running worker. Its queue is bounded by the connection limit.
pub(crate) struct WorkerHandle {
    arrivals: UnboundedSender<Arrival>,
    connections: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

impl WorkerHandle {
    /// How many connections the worker has.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Lets the worker end, its last connections with it, and waits for that.
    pub(crate) fn end(self) {
        drop(self.arrivals);
        if self.thread.join().is_err() {
            tracing::error!("a worker panicked");
        }
    }

    /// Hands the worker a client.
    pub(crate) fn deal(&self, arrival: Arrival) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        // A worker that is gone is a server that is stopping: the client is dropped.
        let _ = self.arrivals.send(arrival);
    }
}

/// Starts worker number `number`.
///
/// # Errors
///
/// What the system says when a thread or its runtime cannot be made.
pub(crate) fn start(service: &Arc<Service>, number: usize) -> io::Result<WorkerHandle> {
    let (arrivals, receiver) = unbounded_channel();
    let connections = Arc::new(AtomicUsize::new(0));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let thread = std::thread::Builder::new().name(format!("worker-{number}")).spawn({
        let (service, connections) = (Arc::clone(service), Arc::clone(&connections));
        move || {
            let worker = Worker { service, number, scratch: RefCell::new(Scratch::new()) };
            LocalSet::new().block_on(&runtime, receive(Rc::new(worker), receiver, connections));
        }
    })?;
    Ok(WorkerHandle { arrivals, connections, thread })
}

/// One connection less when dropped.
struct Served(Arc<AtomicUsize>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves all that arrive until the listener is gone.
async fn receive(
    worker: Rc<Worker>,
    mut arrivals: UnboundedReceiver<Arrival>,
    connections: Arc<AtomicUsize>,
) {
    while let Some(Arrival { stream, registration }) = arrivals.recv().await {
        let served = Served(Arc::clone(&connections));
        let info = Arc::clone(&registration.info);
        let stream = match stream.attach() {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, peer = info.peer, "connection lost before it was served");
                continue;
            }
        };
        let connection = Connection::new(Rc::clone(&worker), registration, stream);
        let peer = Arc::clone(&info);
        let task = tokio::task::spawn_local(async move {
            let _served = served;
            if let Err(error) = connection.serve().await {
                tracing::trace!(%error, peer = peer.peer, "connection ended");
            }
        });
        info.set_abort(task.abort_handle());
    }
}
