//! The open connections, for `stats conns`, the connection limit, idle timeouts and the drain.
//!
//! Not here: the work of one connection (`connection`).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::net::DetachedStream;
use crate::net::{ListenerInfo, UNIX_PEER, UNIX_UNNAMED};
use crate::runtime::buffers::{Buffer, Holding};
use crate::runtime::service::Service;

/// When to disconnect a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HangUp {
    /// The client stays connected.
    Never,
    /// Disconnect when all received requests are answered.
    Quiet,
    /// Disconnect in the worker's next round.
    Now,
}

/// The state of a connection, named as in memcached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Waits for a request, or for the rest of a line.
    Waiting,
    /// Reads a value.
    ReadingValue,
    /// Drops the rest of a refused value.
    Swallowing,
    /// Waits for the client to read.
    Writing,
}

impl Activity {
    const ALL: [Self; 4] = [Self::Waiting, Self::ReadingValue, Self::Swallowing, Self::Writing];

    /// Returns memcached's name for the state.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Waiting => "conn_read",
            Self::ReadingValue => "conn_nread",
            Self::Swallowing => "conn_swallow",
            Self::Writing => "conn_mwrite",
        }
    }
}

/// The kind of the listener that a client came through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Surface {
    Tcp,
    Unix,
    Admin,
}

impl ConnectionInfo {
    /// Returns the number of the listener that the client came through: its place in
    /// [`Surface::ALL`].
    pub(crate) fn listener(&self) -> usize {
        self.surface as usize
    }
}

impl Surface {
    pub(crate) const ALL: [Self; 3] = [Self::Tcp, Self::Unix, Self::Admin];

    /// Returns the value of the label `listener`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Admin => "admin",
        }
    }

    fn of(peer: &str, is_admin: bool) -> Self {
        match peer {
            _ if is_admin => Self::Admin,
            UNIX_PEER => Self::Unix,
            _ => Self::Tcp,
        }
    }
}

/// The counts of one kind of listener.
#[derive(Debug, Default)]
struct SurfaceCounts {
    current: AtomicUsize,
    total: AtomicU64,
    rejected: AtomicU64,
}

/// One client, as other threads see it.
#[derive(Debug)]
pub struct ConnectionInfo {
    /// File descriptor.
    pub fd: i32,
    /// The client's address.
    pub peer: String,
    /// The local address that the client connected to.
    pub local: Arc<str>,
    /// The listener that it came through.
    surface: Surface,
    /// True if the client connected to the admin socket.
    pub is_admin: bool,
    /// True if the client may change the cluster.
    pub is_operator: bool,
    /// The bytes that its buffers hold.
    pub(crate) holding: Holding,
    /// Milliseconds on the monotonic clock when the client last sent data.
    last_active_ms: AtomicU64,
    /// True while a request is partly read or a reply partly written.
    busy: AtomicBool,
    /// The [`Activity`] for `stats conns`.
    activity: AtomicU8,
    /// The pending [`HangUp`].
    ending: AtomicU8,
    /// Wakes the worker for this connection.
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

    /// Whether this is a request of the server to itself: over a pair of sockets without a path.
    pub(crate) fn is_server(&self) -> bool {
        self.is_admin && &*self.local == UNIX_UNNAMED
    }

    /// Returns the client's IP address, or `None` on a unix socket.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        address(&self.peer)
    }

    pub(crate) fn set_waker(&self, waker: Waker) {
        *self.waker.lock() = Some(waker);
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// Returns the whole seconds since the client last sent data.
    #[must_use]
    pub fn idle_seconds(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.last_active_ms.load(Ordering::Relaxed)) / 1000
    }

    /// Requests disconnection. The earlier of this and a previous request applies.
    pub(crate) fn end(&self, result: HangUp) {
        self.ending.fetch_max(result as u8, Ordering::AcqRel);
        self.wake();
    }

    /// Makes the worker look at the connection.
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
    /// In the order of [`Surface::ALL`].
    counts: [SurfaceCounts; 3],
    idle_kicks: AtomicU64,
    /// Notified when a connection closes.
    closed: Notify,
    listeners: Mutex<Vec<ListenerInfo>>,
    /// The local address of the last client.
    last_local: Mutex<Arc<str>>,
}

/// An entry in the open connections; dropping it removes the entry.
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
        let counts = &connections.counts[self.info.surface as usize];
        counts.current.fetch_sub(1, Ordering::Relaxed);
        connections.closed.notify_one();
    }
}

/// Parses the IP address of a client; `None` on a unix socket.
pub(crate) fn address(peer: &str) -> Option<IpAddr> {
    let address = peer.strip_prefix("tcp:").or_else(|| peer.strip_prefix("tcp6:"))?;
    Some(address.parse::<SocketAddr>().ok()?.ip().to_canonical())
}

/// Clients to look at again at a given time, for example to check a password later.
#[derive(Debug, Default)]
pub(crate) struct Delays(Mutex<Vec<(u64, Arc<ConnectionInfo>)>>);

impl Delays {
    /// Makes the worker look at `client` at `at_ms`, in milliseconds on the monotonic clock, or
    /// somewhat later.
    pub(crate) fn add(&self, at_ms: u64, client: Arc<ConnectionInfo>) {
        self.0.lock().push((at_ms, client));
    }

    /// Wakes the clients whose time has come.
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
    /// Registers a new connection; `is_admin` if it came through the admin socket.
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
        let surface = Surface::of(&peer, is_admin);
        let info = Arc::new(ConnectionInfo {
            fd,
            surface,
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
        let counts = &connections.counts[surface as usize];
        counts.current.fetch_add(1, Ordering::Relaxed);
        counts.total.fetch_add(1, Ordering::Relaxed);
        Registration { service: Arc::clone(service), index: number, info }
    }

    /// Returns `local` without a copy if it equals the address of the last client, as for most
    /// clients.
    fn shared(&self, local: String) -> Arc<str> {
        let mut last = self.last_local.lock();
        if **last != *local {
            *last = local.into();
        }
        Arc::clone(&last)
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// Returns the number of connections opened since the start or the last `stats reset`.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().map(|counts| counts.total.load(Ordering::Relaxed)).sum()
    }

    /// Returns the number of connections refused at the connection limit.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.counts.iter().map(|counts| counts.rejected.load(Ordering::Relaxed)).sum()
    }

    /// Returns the number of connections closed by the idle timeout.
    #[must_use]
    pub fn idle_kicks(&self) -> u64 {
        self.idle_kicks.load(Ordering::Relaxed)
    }

    pub(crate) fn note_idle_kick(&self) {
        self.idle_kicks.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_rejected(&self, stream: &DetachedStream, is_admin: bool) {
        let surface = Surface::of(&stream.peer(), is_admin);
        self.counts[surface as usize].rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns, of each kind of listener, the open connections, and those opened and refused since
    /// the start or the last `stats reset`.
    pub(crate) fn by_surface(&self) -> impl Iterator<Item = (Surface, [u64; 3])> + '_ {
        Surface::ALL.into_iter().zip(&self.counts).map(|(surface, counts)| {
            let current = counts.current.load(Ordering::Relaxed) as u64;
            let [total, rejected] =
                [&counts.total, &counts.rejected].map(|count| count.load(Ordering::Relaxed));
            (surface, [current, total, rejected])
        })
    }

    /// Waits until a connection closes.
    pub(crate) async fn one_closed(&self) {
        self.closed.notified().await;
    }

    pub(crate) fn reset_counters(&self) {
        for counts in &self.counts {
            counts.total.store(0, Ordering::Relaxed);
            counts.rejected.store(0, Ordering::Relaxed);
        }
        self.idle_kicks.store(0, Ordering::Relaxed);
    }

    /// Disconnects the client whose buffer of this kind has been stalled for longest, except `but`.
    /// Returns the bytes that it held, which the caller must give back; `None` if no client is
    /// stalled.
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

    /// Sets the listening sockets.
    pub(crate) fn set_listeners(&self, listeners: Vec<ListenerInfo>) {
        *self.listeners.lock() = listeners;
    }

    /// Returns the listening sockets.
    pub(crate) fn listeners(&self) -> Vec<ListenerInfo> {
        self.listeners.lock().clone()
    }

    /// Returns the open connections, oldest first.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<ConnectionInfo>> {
        self.open.lock().values().cloned().collect()
    }
}
