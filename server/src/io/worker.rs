//! A worker: one thread, one runtime, its share of the connections, driven in rounds.
//!
//! A round takes the ready connections, reads all of them, prefetches the memory that their first
//! requests need, and then runs and answers one after the other: cache misses of many small
//! requests overlap, like those of one large batch. tokio reports readiness; there is no task per
//! connection, because a task would run one client to its end before the next is read. The listener
//! assigns each connection to a worker for its lifetime; workers share nothing but the store. Not
//! here: accepting (`listener`), one client (`connection`).

use std::future::poll_fn;
use std::hint::cold_path;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use arrayvec::ArrayVec;
use protocol::likely_key;
use slab::Slab;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::unconstrained;

use crate::commands::scratch::Scratch;
use crate::io::connection::{ConnContext, Connection, ReadResult, TurnEnd};
use crate::io::worker_handle::{ClientArrival, WorkerHandle, WorkerMessage};
use crate::limits::ActiveLimits;
use crate::node::Node;
use crate::node::links::WorkerLinks;
use crate::node::pending::Client;
use crate::node::router::{Router, RouterContext, node_now};
use crate::probe::LISTENERS;
use crate::runtime::buffers::INPUT_BYTES;
use crate::runtime::ready::{ReadyQueue, ReadyWaker};
use crate::runtime::service::Service;
use crate::session::{ClusterContext, REPLY_BYTES_HIGH};

/// Connections per round: enough to overlap cache misses, few enough to answer each soon.
const ROUND_CONNECTIONS: usize = 64;
/// Most bytes read from one connection at once.
const READ_BYTES_MAX: usize = 64 << 10;
/// With less room than this, the round reads no more connections.
const READ_BYTES_MIN: usize = 16 << 10;

/// After this many bytes of large values, read or answered, a round defers further large values, so
/// that small requests wait for no more.
const LARGE_BYTES_A_ROUND: usize = 1 << 20;

/// One round of this many is timed.
const TIMED_ROUNDS: u32 = 64;

/// Longer input probably holds several requests.
const ALONE_BYTES_MAX: usize = 256;

/// Starts worker number `index`.
///
/// # Errors
///
/// The system refuses a thread or its runtime.
pub(crate) fn start(
    service: &Arc<Service>,
    node: Option<&Arc<Node>>,
    index: usize,
) -> io::Result<WorkerHandle> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (handle, mut worker) = make(service, node, index);
    let thread = std::thread::Builder::new()
        .name(format!("worker-{index}"))
        // tokio's task budget is sized for one client: a round of many would use it up, and ready
        // streams would then report that they are not.
        .spawn(move || {
            runtime.block_on(unconstrained(poll_fn(|context| worker.poll(context))));
        })?;
    Ok(handle.on_thread(thread))
}

/// Starts worker number `index` as a task of the current runtime.
#[cfg(feature = "simulation")]
pub(crate) fn task(service: &Arc<Service>, node: Option<&Arc<Node>>, index: usize) -> WorkerHandle {
    let (handle, mut worker) = make(service, node, index);
    tokio::spawn(unconstrained(poll_fn(move |context| worker.poll(context))));
    handle
}

fn make(service: &Arc<Service>, node: Option<&Arc<Node>>, index: usize) -> (WorkerHandle, Worker) {
    let (messages, receiver) = unbounded_channel();
    let connections = Arc::new(AtomicUsize::new(0));
    let worker = Worker {
        service: Arc::clone(service),
        index,
        messages: receiver,
        connections: Slab::new(),
        count: Arc::clone(&connections),
        ready: Arc::default(),
        input: vec![0; INPUT_BYTES].into_boxed_slice(),
        output: Vec::with_capacity(2 * REPLY_BYTES_HIGH),
        limits_generation: service.limits().generation(),
        active_limits: service.limits().load(),
        scratch: Scratch::default(),
        node: node.cloned(),
        router: node.map(|node| Router::new(Arc::clone(node), index as u16)),
        links: WorkerLinks::default(),
        next_client: 0,
        round: 0,
    };
    (WorkerHandle::new(messages, connections), worker)
}

/// A connection with its waker.
struct ConnectionSlot {
    connection: Connection,
    /// A unique number of the client within this worker: indexes are reused.
    id: u64,
    queue: Arc<ReadyWaker>,
    waker: Waker,
    /// The connection was read in this round and has not run: it must not be read again before.
    has_work: bool,
    /// The connection was woken meanwhile and is queued again after its turn.
    woken: bool,
}

struct Worker {
    service: Arc<Service>,
    index: usize,
    messages: UnboundedReceiver<WorkerMessage>,
    connections: Slab<ConnectionSlot>,
    count: Arc<AtomicUsize>,
    ready: Arc<ReadyQueue>,
    input: Box<[u8]>,
    output: Vec<u8>,
    /// The generation of `active_limits`.
    limits_generation: u64,
    active_limits: Arc<ActiveLimits>,
    scratch: Scratch,
    /// This process's node, in a cluster.
    node: Option<Arc<Node>>,
    /// The router to other nodes, in a cluster.
    router: Option<Router>,
    /// The connections to other nodes that this worker reads.
    links: WorkerLinks,
    next_client: u64,
    /// Rounds so far.
    round: u32,
}

/// A connection that a round has to run.
struct ReadyConnection {
    index: usize,
    /// Its range in the round's buffer; `None` for bytes in the connection's own buffer.
    input: Option<Range<usize>>,
}

impl Worker {
    /// Runs one round. Ready when the listener is gone.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            match self.messages.poll_recv(context) {
                Poll::Ready(Some(WorkerMessage::Client(arrival))) => self.adopt(context, arrival),
                Poll::Ready(Some(WorkerMessage::Ping(reply))) => {
                    // The asker may have given up.
                    let _ = reply.send(());
                }
                Poll::Ready(None) => {
                    while let Some(index) = self.connections.iter().next().map(|(key, _)| key) {
                        self.hang_up(index);
                    }
                    if let Some(router) = &self.router {
                        self.links.close(router.node(), self.service.clock().now().mono.0);
                    }
                    return Poll::Ready(());
                }
                Poll::Pending => break,
            }
        }
        if let Some(router) = &mut self.router {
            router.begin_round();
            self.run_node_events(context);
        }
        self.run_round();
        if self.router.is_some() {
            self.send_bursts();
        }
        if !self.ready.lock().is_empty() || self.links.is_ready() {
            // Leave the rest to the next round, so that the runtime polls for new events first.
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Reads and runs the ready connections, and times one round of [`TIMED_ROUNDS`].
    fn run_round(&mut self) {
        let is_timed = self.round.is_multiple_of(TIMED_ROUNDS);
        let start = is_timed.then(|| self.service.clock().now().mono);
        let ready = self.read_ready();
        if ready.is_empty() {
            return;
        }
        self.round = self.round.wrapping_add(1);
        self.follow_limits();
        self.prefetch(&ready);
        let requests = self.run(&ready);
        if let Some(start) = start {
            cold_path();
            let time_ns = self.service.clock().now().mono.0.saturating_sub(start.0);
            let latency = &self.service.counters(self.index).probe.latency;
            for (listener, requests) in requests.into_iter().enumerate() {
                latency.add(listener, requests as u64, time_ns.div_ceil(1000));
            }
        }
    }

    fn follow_limits(&mut self) {
        // Read before the limits themselves, so that a change during loading is noticed in the next
        // round.
        let generation = self.service.limits().generation();
        if generation != self.limits_generation {
            self.active_limits = self.service.limits().load();
            self.limits_generation = generation;
        }
    }

    fn adopt(&mut self, context: &mut Context<'_>, arrival: ClientArrival) {
        let ClientArrival { stream, registration } = arrival;
        let stream = match stream.attach() {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, peer = registration.info.peer, "client dropped on arrival");
                self.count.fetch_sub(1, Ordering::Relaxed);
                return;
            }
        };
        let entry = self.connections.vacant_entry();
        let queue = Arc::new(ReadyWaker::new(entry.key(), &self.ready, context.waker()));
        let waker = Waker::from(Arc::clone(&queue));
        registration.info.set_waker(waker.clone());
        waker.wake_by_ref();
        let connection = Connection::new(registration, stream);
        self.next_client += 1;
        let id = self.next_client;
        entry.insert(ConnectionSlot {
            connection,
            id,
            queue,
            waker,
            has_work: false,
            woken: false,
        });
    }

    /// Takes answers of other nodes, reads the links to them, and delivers replies to the clients.
    fn run_node_events(&mut self, context: &Context<'_>) {
        self.follow_limits();
        if let Some(router) = &self.router
            && let Some(inbox) = router.node().inbox(self.index as u16)
        {
            inbox.set_waker(context.waker());
        }
        self.with_router(|router, ctx, links, input| {
            let node = Arc::clone(router.node());
            if links.is_ready() {
                links.read(&node, ctx.now.mono_ns, input, ctx, router);
            }
            router.on_events(ctx);
            for arrival in std::mem::take(&mut router.arrivals) {
                links.adopt(&node, ctx.now.mono_ns, context, arrival);
            }
        });
        self.deliver();
    }

    /// Ends a round: sends the frames collected for other nodes.
    fn send_bursts(&mut self) {
        self.with_router(|router, ctx, _, _| router.send_bursts(ctx));
        self.deliver();
    }

    fn with_router(
        &mut self,
        work: impl FnOnce(&mut Router, &mut RouterContext<'_>, &mut WorkerLinks, &mut [u8]),
    ) {
        let Some(router) = &mut self.router else { return };
        let service = Arc::clone(&self.service);
        let mut ctx = RouterContext {
            service: &service,
            counters: service.counters(self.index),
            now: node_now(service.clock(), service.clock().now()),
            active_limits: &self.active_limits,
            worker: self.index,
            scratch: &mut self.scratch,
        };
        work(router, &mut ctx, &mut self.links, &mut self.input);
    }

    /// Moves answers into the clients' reply queues and wakes the clients with ready replies.
    fn deliver(&mut self) {
        let Some(router) = &mut self.router else { return };
        let runs = std::mem::take(&mut router.runs);
        for run in &runs {
            let Some(slot) = self.connections.get_mut(run.client.index) else { continue };
            if slot.id == run.client.id && slot.connection.complete_run(run, router.text_of(run)) {
                slot.queue.wake_by_ref();
            }
        }
        router.runs = runs;
        router.runs.clear();
        router.forget_texts();
        for completion in router.completions.drain(..) {
            // The client may have left, and another may use its index.
            let Some(slot) = self.connections.get_mut(completion.client.index) else {
                continue;
            };
            if slot.id == completion.client.id && slot.connection.complete(completion) {
                slot.queue.wake_by_ref();
            }
        }
    }

    fn hang_up(&mut self, index: usize) {
        let slot = self.connections.remove(index);
        slot.connection.release(&self.service);
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Reads the ready connections into consecutive ranges of the round's buffer.
    fn read_ready(&mut self) -> ArrayVec<ReadyConnection, ROUND_CONNECTIONS> {
        let mut ready = ArrayVec::new();
        let mut used = 0;
        let service = Arc::clone(&self.service);
        let counters = service.counters(self.index);
        while !ready.is_full() && self.input.len() - used >= READ_BYTES_MIN {
            let Some(index) = self.ready.lock().pop_front() else { break };
            // Indexes are reused: a late wake-up may reach a successor, whose only cost is one
            // extra look.
            let Some(slot) = self.connections.get_mut(index) else { continue };
            slot.queue.queued.store(false, Ordering::Release);
            if slot.has_work {
                // Another thread woke the connection after it was read: the bytes already read run
                // first.
                slot.woken = true;
                continue;
            }
            let room = &mut self.input[used..];
            let room = &mut room[..READ_BYTES_MAX.min(INPUT_BYTES - used)];
            let mut context = Context::from_waker(&slot.waker);
            let input = match slot.connection.read(&mut context, &service, counters, room) {
                Ok(ReadResult::Wait) => continue,
                Ok(ReadResult::Held) => None,
                Ok(ReadResult::Bytes(count)) => {
                    used += count;
                    Some(used - count..used)
                }
                // A stream error means that the client has left.
                Ok(ReadResult::Close) | Err(_) => {
                    self.hang_up(index);
                    continue;
                }
            };
            slot.has_work = true;
            ready.push(ReadyConnection { index, input });
        }
        ready
    }

    /// Prefetches the memory that the only request of each connection needs. A session prefetches
    /// for connections that send several.
    fn prefetch(&mut self, ready: &[ReadyConnection]) {
        if ready.len() < 2 {
            return;
        }
        let shards = self.service.shards();
        let keys: ArrayVec<&[u8], ROUND_CONNECTIONS> = ready
            .iter()
            .filter_map(|ready| Some(&self.input[ready.input.clone()?]))
            .filter(|input| input.len() <= ALONE_BYTES_MAX)
            .filter_map(likely_key)
            .collect();
        let mut hashes = [0; ROUND_CONNECTIONS];
        let hashes = &mut hashes[..keys.len()];
        shards.hash_all(&keys, hashes);
        for hash in hashes.iter() {
            shards.prefetch_shard(*hash);
        }
        shards.prefetch(hashes.iter().copied());
        if self.active_limits.has_large_tables() {
            let hashes = self.service.shares_key_hash().then_some(&*hashes);
            let (limits, counted) = (self.active_limits.limits(), &mut self.scratch.prefetched_key);
            limits.prefetch_overrides::<ROUND_CONNECTIONS>(&keys, hashes, counted);
        }
    }

    /// Runs the connections, and returns the number of requests of each listener.
    fn run(&mut self, ready: &[ReadyConnection]) -> [usize; LISTENERS] {
        let service = Arc::clone(&self.service);
        let counters = service.counters(self.index);
        let now = service.clock().now();
        let mut large_left = LARGE_BYTES_A_ROUND;
        let mut requests = [0; LISTENERS];
        for ReadyConnection { index, input } in ready {
            let Some(slot) = self.connections.get_mut(*index) else { continue };
            slot.has_work = false;
            if std::mem::take(&mut slot.woken) {
                slot.queue.wake_by_ref();
            }
            if large_left == 0 && slot.connection.puts_off() {
                slot.queue.wake_by_ref();
                continue;
            }
            if let Some(router) = &mut self.router {
                router.client = Client { index: *index, id: slot.id };
                router.operator_fd = slot.connection.operator_fd();
            }
            let mut conn_ctx = ConnContext {
                cluster: self
                    .node
                    .as_deref()
                    .zip(self.router.as_mut())
                    .map(|(node, router)| ClusterContext { node, router }),
                service: &service,
                counters,
                now,
                worker: self.index,
                active_limits: &self.active_limits,
                scratch: &mut self.scratch,
                large_left: &mut large_left,
                requests: 0,
                output: &mut self.output,
            };
            let mut context = Context::from_waker(&slot.waker);
            let after = match input {
                Some(range) => {
                    slot.connection.run(&mut context, &mut conn_ctx, &self.input[range.clone()])
                }
                None => slot.connection.run_held(&mut context, &mut conn_ctx),
            };
            if let Some(sum) = requests.get_mut(slot.connection.listener()) {
                *sum += conn_ctx.requests;
            }
            match after {
                Ok(TurnEnd::Wait) => {}
                Ok(TurnEnd::Again) => slot.queue.wake_by_ref(),
                Ok(TurnEnd::Close) | Err(_) => self.hang_up(*index),
            }
        }
        if self.output.capacity() > 8 * REPLY_BYTES_HIGH {
            // One large value must not enlarge the worker's buffer forever.
            self.output = Vec::with_capacity(2 * REPLY_BYTES_HIGH);
        }
        requests
    }
}
