//! Accepts clients, enforces the connection limit and chooses the worker of each client.
//!
//! One task accepts for all workers and gives each client to the worker with the fewest. With one
//! `SO_REUSEPORT` socket per worker, few long connections would be shared unequally, and a second
//! server could silently take half of the port's connections. Not here: serving a client
//! (`connection`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::io::worker_handle::{ClientArrival, WorkerHandle};
use crate::net::Listener;
use crate::runtime::connections::Connections;
use crate::runtime::service::Service;

/// Pause after `accept` fails, for example because no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Connections beyond `-c` reserved for the admin socket, so that an operator can connect when
/// clients hold all others.
const ADMIN_CONNECTIONS: usize = 16;

/// memcached's reply to a client over the limit.
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// Accepts connections on one listener forever.
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
                tracing::warn!(
                    %error,
                    "cannot accept a client, trying again: if files ran out, raise the limit on \
                     open files or lower -c"
                );
                service.listen_disabled.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if config.connections_fast && is_full(&service, max) {
            service.connections().note_rejected(&stream, is_admin);
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

/// With `no_maxconns_fast`, clients wait in the backlog until a connection closes.
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
