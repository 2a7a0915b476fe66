//! Accepting clients: the connection limit, and which worker gets whom.
//!
//! One task accepts for all workers and gives each client to the worker with the fewest. Workers
//! that each accept for themselves (`SO_REUSEPORT`) end up with unequal shares when clients are
//! few and stay long, and a second server could take half of a port without anybody noticing.
//! Not here: serving a client (`connection`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::io::worker::{ClientArrival, WorkerHandle};
use crate::net::Listener;
use crate::runtime::connections::Connections;
use crate::runtime::service::Service;

/// Pause after the system refused a connection: file descriptors run out and come back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Places beyond `-c` that only the admin socket has, so that an operator gets in when clients have
/// taken all others.
const ADMIN_CONNECTIONS: usize = 16;

/// memcached's words to a client over the limit.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// Accepts on one listener for ever.
pub(crate) async fn accept(
    service: Arc<Service>,
    listener: Listener,
    workers: Arc<Vec<WorkerHandle>>,
) {
    let config = service.config();
    let is_admin = listener.is_admin();
    let max = config.connections_max + if is_admin { ADMIN_CONNECTIONS } else { 0 };
    loop {
        if !config.connections_fast && is_full(&service, max) {
            wait_for_a_place(&service, max).await;
        }
        let mut stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                service.listen_disabled.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if config.connections_fast && is_full(&service, max) {
            service.connections().note_rejected();
            stream.send(TOO_MANY);
            continue;
        }
        let registration = Connections::register(&service, &stream, is_admin);
        let worker = workers.iter().min_by_key(|worker| worker.connections());
        if let Some(worker) = worker {
            worker.deal(ClientArrival { stream, registration });
        }
    }
}

fn is_full(service: &Service, max: usize) -> bool {
    service.connections().current() >= max
}

/// `no_maxconns_fast`: clients wait in the backlog until a place is free.
async fn wait_for_a_place(service: &Service, max: usize) {
    let since = Instant::now();
    service.accepting.store(false, Ordering::Relaxed);
    service.listen_disabled.fetch_add(1, Ordering::Relaxed);
    while is_full(service, max) {
        service.connections().one_closed().await;
    }
    service.accepting.store(true, Ordering::Relaxed);
    let waited_us = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
    service.listen_disabled_us.fetch_add(waited_us, Ordering::Relaxed);
}
