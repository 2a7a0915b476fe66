//! Sockets of a simulated world: turmoil's, changed to fail as TCP does.
//!
//! Here: streams and listeners based on turmoil's. Not here: cut network paths
//! (`crate::simulation`), the course of a simulation (`tests/sim`).
//!
//! turmoil drops packets on a cut path, and then refuses the connection, or lets a stream wait for
//! ever for the missing bytes. TCP does neither: an attempt to connect is repeated until its caller
//! gives up, and a stream delivers all bytes or ends. Therefore an attempt fails here only if the
//! host is reachable and no process listens, and the code that restores a path must first break the
//! streams that lost packets on it.

use std::collections::BTreeSet;
use std::future::{Future as _, pending};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use turmoil::net::{TcpListener, TcpStream};

use crate::net::world::with_world;

/// Ends a stream from outside.
#[derive(Debug, Default)]
struct Fuse {
    is_blown: bool,
    wakers: [Option<Waker>; 2],
}

/// The streams and listeners of a world.
#[derive(Default)]
pub(crate) struct Sockets {
    listening: BTreeSet<SocketAddr>,
    streams: Vec<(SocketAddr, SocketAddr, Weak<Mutex<Fuse>>)>,
}

impl Sockets {
    /// Ends all streams between two hosts.
    pub(crate) fn break_between(&mut self, one: std::net::IpAddr, other: std::net::IpAddr) {
        self.streams.retain(|(from, to, fuse)| {
            let Some(fuse) = fuse.upgrade() else { return false };
            if [(one, other), (other, one)].contains(&(from.ip(), to.ip())) {
                let mut fuse = fuse.lock();
                fuse.is_blown = true;
                fuse.wakers.iter_mut().filter_map(Option::take).for_each(Waker::wake);
                return false;
            }
            true
        });
    }
}

/// A stream in a simulated world.
#[derive(Debug)]
pub struct SimStream {
    stream: TcpStream,
    fuse: Arc<Mutex<Fuse>>,
}

const READ: usize = 0;
const WRITE: usize = 1;

impl SimStream {
    fn new(stream: TcpStream) -> io::Result<Self> {
        let fuse = Arc::default();
        let (from, to) = (stream.local_addr()?, stream.peer_addr()?);
        with_world(|world| world.sockets.streams.push((from, to, Arc::downgrade(&fuse))));
        Ok(Self { stream, fuse })
    }

    /// Connects. Waits for ever if the host is unreachable.
    pub(super) async fn connect(address: &str) -> io::Result<Self> {
        match TcpStream::connect(address).await {
            Ok(stream) => Self::new(stream),
            Err(error) => {
                let is_refused = address.parse::<SocketAddr>().is_ok_and(|to| {
                    with_world(|world| world.is_in_reach(to.ip()) && !world.is_listening(to))
                });
                if is_refused { Err(error) } else { pending().await }
            }
        }
    }

    pub(super) fn peer(&self) -> String {
        self.stream.peer_addr().map_or_else(|_| "unknown".to_owned(), |peer| peer.to_string())
    }

    pub(super) fn send(&mut self, reply: &[u8]) -> io::Result<usize> {
        self.stream.try_write(reply)
    }

    /// Writes unless the stream is broken or full.
    pub(super) fn try_send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.fuse.lock().is_blown {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.try_write(bytes)
    }

    pub(super) fn poll_writable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_whole(WRITE, context)?;
        pin!(self.stream.writable()).poll(context)
    }

    fn is_whole(&self, side: usize, context: &Context<'_>) -> io::Result<()> {
        let mut fuse = self.fuse.lock();
        if fuse.is_blown {
            return Err(io::ErrorKind::TimedOut.into());
        }
        fuse.wakers[side] = Some(context.waker().clone());
        Ok(())
    }

    pub(super) fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_whole(READ, context)?;
        let mut byte = [0];
        self.stream.poll_peek(context, &mut ReadBuf::new(&mut byte)).map_ok(|_| ())
    }
}

impl AsyncRead for SimStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.is_whole(READ, context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for SimStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.is_whole(WRITE, context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A listener on every address of its host.
pub struct SimListener {
    listener: TcpListener,
    /// The address that peers use.
    place: SocketAddr,
}

impl std::fmt::Debug for SimListener {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_tuple("Listener").field(&self.place).finish()
    }
}

impl SimListener {
    /// Listens on a port of the current host, at `place`.
    pub(crate) async fn bind(place: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("0.0.0.0", place.port())).await?;
        with_world(|world| world.sockets.listening.insert(place));
        Ok(Self { listener, place })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.place
    }

    pub(super) async fn accept(&self) -> io::Result<SimStream> {
        SimStream::new(self.listener.accept().await?.0)
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        with_world(|world| world.sockets.listening.remove(&self.place));
    }
}

impl crate::net::world::World {
    fn is_listening(&self, place: SocketAddr) -> bool {
        self.sockets.listening.contains(&place)
    }
}
