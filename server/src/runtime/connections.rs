//! Who is connected: for `stats conns`, the connection limit, idle timeouts and the drain.
//!
//! Not here: what a connection does (`connection`).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::net::DetachedStream;
use crate::net::{ListenerInfo, UNIX_PEER};
use crate::runtime::buffers::{Buffer, Holding};
use crate::runtime::service::Service;

/// When a client is to be hung up on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HangUp {
    /// Not that anybody knew.
    Never,
    /// When all that has come from it is answered.
    Quiet,
    /// In the worker's next round.
    Now,
}

/// What a connection is in the middle of, in memcached's words for its states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    /// It waits for a request, or for the rest of a line.
    Waiting,
    /// It reads a value.
    ReadingValue,
    /// It drops the rest of a value that was refused.
    Swallowing,
    /// It waits for the client to read.
    Writing,
}

impl Activity {
    const ALL: [Self; 4] = [Self::Waiting, Self::ReadingValue, Self::Swallowing, Self::Writing];

    /// memcached's word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Waiting => "conn_read",
            Self::ReadingValue => "conn_nread",
            Self::Swallowing => "conn_swallow",
            Self::Writing => "conn_mwrite",
        }
    }
}

/// One client, as others may see it.
#[derive(Debug)]
pub struct ConnectionInfo {
    /// File descriptor.
    pub fd: i32,
    /// The client's address.
    pub peer: String,
    /// The address of ours that it came to.
    pub local: Arc<str>,
    /// It came over the admin socket.
    pub is_admin: bool,
    /// It may change the cluster.
    pub is_operator: bool,
    /// What its buffers take.
    pub(crate) holding: Holding,
    /// Milliseconds on the monotonic clock when it last sent something.
    last_active_ms: AtomicU64,
    /// A request is half read or an answer half written.
    busy: AtomicBool,
    /// What `stats conns` says of it: an [`Activity`].
    activity: AtomicU8,
    /// It is to be hung up on, at once or when it has nothing more to say: an [`HangUp`].
    ending: AtomicU8,
    /// Gets the worker to look at it.
    waker: Mutex<Option<Waker>>,
}

impl ConnectionInfo {
    pub(crate) fn note(&self, now_ms: u64, busy: bool, activity: Activity) {
        self.last_active_ms.store(now_ms, Ordering::Relaxed);
        self.busy.store(busy, Ordering::Relaxed);
        self.activity.store(activity as u8, Ordering::Relaxed);
    }

    pub(crate) fn activity(&self) -> Activity {
        let number = self.activity.load(Ordering::Relaxed);
        Activity::ALL.get(usize::from(number)).copied().unwrap_or(Activity::Waiting)
    }

    /// Where it comes from, if that is an address.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        address(&self.peer)
    }

    pub(crate) fn set_waker(&self, waker: Waker) {
        *self.waker.lock() = Some(waker);
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// Whole seconds since the client last sent something.
    #[must_use]
    pub fn idle_seconds(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.last_active_ms.load(Ordering::Relaxed)) / 1000
    }

    /// Hangs up on it. What was decided stays, unless this is sooner.
    pub(crate) fn end(&self, result: HangUp) {
        self.ending.fetch_max(result as u8, Ordering::AcqRel);
        self.wake();
    }

    /// Gets the worker to look at it.
    pub(crate) fn wake(&self) {
        if let Some(waker) = &*self.waker.lock() {
            waker.wake_by_ref();
        }
    }

    pub(crate) fn ending(&self) -> HangUp {
        match self.ending.load(Ordering::Acquire) {
            0 => HangUp::Never,
            1 => HangUp::Quiet,
            _ => HangUp::Now,
        }
    }
}

/// All clients.
#[derive(Debug, Default)]
pub struct Connections {
    open: Mutex<BTreeMap<u64, Arc<ConnectionInfo>>>,
    next: AtomicU64,
    current: AtomicUsize,
    total: AtomicU64,
    rejected: AtomicU64,
    idle_kicks: AtomicU64,
    /// Told whenever one closes.
    closed: Notify,
    listeners: Mutex<Vec<ListenerInfo>>,
    /// Where the last client came to.
    last_local: Mutex<Arc<str>>,
}

/// A place among the open connections, given up when dropped.
pub(crate) struct Registration {
    service: Arc<Service>,
    index: u64,
    pub(crate) info: Arc<ConnectionInfo>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let connections = self.service.connections();
        connections.open.lock().remove(&self.index);
        connections.current.fetch_sub(1, Ordering::Relaxed);
        connections.closed.notify_one();
    }
}

/// The address of a client, if it has one.
fn address(peer: &str) -> Option<IpAddr> {
    let address = peer.strip_prefix("tcp:").or_else(|| peer.strip_prefix("tcp6:"))?;
    Some(address.parse::<SocketAddr>().ok()?.ip().to_canonical())
}

/// Clients that are to be looked at again at some time, such as one whose password is checked later.
#[derive(Debug, Default)]
pub(crate) struct Delays(Mutex<Vec<(u64, Arc<ConnectionInfo>)>>);

impl Delays {
    /// Has the worker look at `client` at this time, in milliseconds on the monotonic clock, or
    /// somewhat later.
    pub(crate) fn add(&self, at_ms: u64, client: Arc<ConnectionInfo>) {
        self.0.lock().push((at_ms, client));
    }

    /// Wakes those whose time has come.
    pub(crate) fn wake(&self, now_ms: u64) {
        self.0.lock().retain(|(at_ms, client)| {
            let is_due = *at_ms <= now_ms;
            if is_due {
                client.wake();
            }
            !is_due
        });
    }
}

impl Connections {
    /// Notes a new connection; `is_admin` if it came over the admin socket.
    pub(crate) fn register(
        service: &Arc<Service>,
        stream: &DetachedStream,
        is_admin: bool,
    ) -> Registration {
        let connections = service.connections();
        let config = service.config();
        let (fd, peer) = (stream.fd(), stream.peer());
        let local = connections.shared(stream.local());
        let is_local = address(&peer).map_or(peer == UNIX_PEER, |address| address.is_loopback());
        let info = Arc::new(ConnectionInfo {
            fd,
            is_admin,
            is_operator: is_admin || (config.admin_loopback && is_local) || config.shutdown_command,
            peer,
            local,
            holding: Holding::default(),
            last_active_ms: AtomicU64::new(service.clock().now().mono.millis()),
            busy: AtomicBool::new(false),
            activity: AtomicU8::new(Activity::Waiting as u8),
            ending: AtomicU8::new(HangUp::Never as u8),
            waker: Mutex::new(None),
        });
        let number = connections.next.fetch_add(1, Ordering::Relaxed);
        connections.open.lock().insert(number, Arc::clone(&info));
        connections.current.fetch_add(1, Ordering::Relaxed);
        connections.total.fetch_add(1, Ordering::Relaxed);
        Registration { service: Arc::clone(service), index: number, info }
    }

    /// An address that most clients come to, without a copy for each.
    fn shared(&self, local: String) -> Arc<str> {
        let mut last = self.last_local.lock();
        if **last != *local {
            *last = local.into();
        }
        Arc::clone(&last)
    }

    /// How many are open.
    #[must_use]
    pub fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// How many were opened since the start or the last `stats reset`.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// How many were turned away at the connection limit.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// How many were closed for idleness.
    #[must_use]
    pub fn idle_kicks(&self) -> u64 {
        self.idle_kicks.load(Ordering::Relaxed)
    }

    pub(crate) fn note_idle_kick(&self) {
        self.idle_kicks.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until one closes.
    pub(crate) async fn one_closed(&self) {
        self.closed.notified().await;
    }

    pub(crate) fn reset_counters(&self) {
        self.total.store(0, Ordering::Relaxed);
        self.rejected.store(0, Ordering::Relaxed);
        self.idle_kicks.store(0, Ordering::Relaxed);
    }

    /// Hangs up on the client, other than `but`, whose buffer of this kind has stood still for
    /// longest. What it held is the caller's; `None` if all move.
    pub(crate) fn end_stalled(
        &self,
        but: &ConnectionInfo,
        buffer: Buffer,
        now_ms: u64,
    ) -> Option<usize> {
        let open = self.open.lock();
        let stalled = open
            .values()
            .filter(|client| !std::ptr::eq(&raw const ***client, but))
            .filter_map(|client| Some((client.holding.stalled_ms(buffer, now_ms)?, client)))
            .max_by_key(|(stalled_ms, _)| *stalled_ms);
        let (_, client) = stalled?;
        let freed = client.holding.clear(buffer);
        client.end(HangUp::Now);
        Some(freed)
    }

    /// Names the sockets that clients come to.
    pub(crate) fn set_listeners(&self, listeners: Vec<ListenerInfo>) {
        *self.listeners.lock() = listeners;
    }

    /// The sockets that clients come to.
    pub(crate) fn listeners(&self) -> Vec<ListenerInfo> {
        self.listeners.lock().clone()
    }

    /// The open connections, oldest first.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<ConnectionInfo>> {
        self.open.lock().values().cloned().collect()
    }
}
