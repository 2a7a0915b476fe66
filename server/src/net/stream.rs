//! Streams of clients and peers, over TCP or a Unix socket, as one type.
//!
//! Not here: the content of streams (`connection`, `transport`), a stream that several threads
//! write (`shared`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

#[cfg(feature = "simulation")]
use super::simulated;

/// The address of a client of a unix socket, which has none, in memcached's words.
pub(crate) const UNIX_PEER: &str = "?:<AF 0>";
/// The local address of a Unix socket without a path, in `stats conns`.
pub(crate) const UNIX_UNNAMED: &str = "unix:unknown";

/// Time without an acknowledgement of sent bytes after which the system ends a peer's stream.
const PEER_SILENCE: Duration = Duration::from_secs(10);
/// Interval of keep-alive probes on a peer's idle stream, and the idle time before the first one.
const PEER_KEEPALIVE: Duration = Duration::from_secs(15);

/// A stream on the runtime that accepted, adopted or connected it.
#[derive(Debug)]
pub enum Stream {
    /// Over TCP, with Nagle's algorithm off.
    Tcp(TcpStream),
    /// Over a unix socket.
    Unix(UnixStream),
    /// In a simulated world.
    #[cfg(feature = "simulation")]
    Simulated(simulated::SimStream),
}

/// A client's stream on its way between two runtimes.
#[derive(Debug)]
pub enum DetachedStream {
    /// Over TCP.
    Tcp(std::net::TcpStream),
    /// Over a unix socket.
    Unix(std::os::unix::net::UnixStream),
    /// In a simulated world, which has only one runtime.
    #[cfg(feature = "simulation")]
    Simulated(simulated::SimStream),
}

impl DetachedStream {
    /// Registers the stream with the current runtime.
    ///
    /// # Errors
    ///
    /// The stream cannot be registered.
    pub fn attach(self) -> io::Result<Stream> {
        Ok(match self {
            Self::Tcp(stream) => Stream::Tcp(TcpStream::from_std(stream)?),
            Self::Unix(stream) => Stream::Unix(UnixStream::from_std(stream)?),
            #[cfg(feature = "simulation")]
            Self::Simulated(stream) => Stream::Simulated(stream),
        })
    }

    /// Connects a stream of the current runtime with one for another runtime, in this process.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub(crate) fn pair() -> io::Result<(Stream, Self)> {
        let (own, other) = std::os::unix::net::UnixStream::pair()?;
        own.set_nonblocking(true)?;
        other.set_nonblocking(true)?;
        Ok((Self::Unix(own).attach()?, Self::Unix(other)))
    }

    /// The file descriptor in `stats conns`.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
            #[cfg(feature = "simulation")]
            Self::Simulated(_) => -1,
        }
    }

    /// The client's address in `stats conns`.
    #[must_use]
    pub fn peer(&self) -> String {
        match self {
            Self::Tcp(stream) => tcp(stream.peer_addr().ok()),
            Self::Unix(_) => UNIX_PEER.to_owned(),
            #[cfg(feature = "simulation")]
            Self::Simulated(stream) => format!("tcp:{}", stream.peer()),
        }
    }

    /// The address that the client connected to, in `stats conns`.
    #[must_use]
    pub fn local(&self) -> String {
        match self {
            Self::Tcp(stream) => tcp(stream.local_addr().ok()),
            Self::Unix(stream) => unix(stream.local_addr().ok().as_ref()),
            #[cfg(feature = "simulation")]
            Self::Simulated(_) => "tcp:simulated".to_owned(),
        }
    }

    /// Writes the bytes that fit into the socket's buffer. For a last reply to a refused client.
    pub fn send(&mut self, reply: &[u8]) {
        use std::io::Write as _;
        // Best effort: the client is refused in any case.
        let _ = match self {
            Self::Tcp(stream) => stream.write(reply),
            Self::Unix(stream) => stream.write(reply),
            #[cfg(feature = "simulation")]
            Self::Simulated(stream) => stream.send(reply),
        };
    }
}

/// Formats an address for `stats conns`.
pub(super) fn tcp(address: Option<SocketAddr>) -> String {
    match address {
        Some(SocketAddr::V4(address)) => format!("tcp:{address}"),
        Some(SocketAddr::V6(address)) => format!("tcp6:{address}"),
        None => "tcp:unknown".to_owned(),
    }
}

/// Formats the path of a Unix socket for `stats conns`.
pub(super) fn unix(address: Option<&std::os::unix::net::SocketAddr>) -> String {
    let path = address.and_then(std::os::unix::net::SocketAddr::as_pathname);
    path.map_or_else(|| UNIX_UNNAMED.to_owned(), |path| format!("unix:{}", path.display()))
}

impl Stream {
    /// Connects to a peer at `host:port`. If a name has several addresses, the first one that
    /// accepts is used.
    ///
    /// # Errors
    ///
    /// The system's error; `ConnectionRefused` if the host is up and no process listens.
    pub async fn connect(address: &str) -> io::Result<Self> {
        #[cfg(feature = "simulation")]
        if crate::net::world::is_on() {
            return simulated::SimStream::connect(address).await.map(Self::Simulated);
        }
        let stream = TcpStream::connect(address).await?;
        prepare_peer(&stream)?;
        Ok(Self::Tcp(stream))
    }

    /// The peer's address, for logs.
    #[must_use]
    pub fn peer(&self) -> String {
        match self {
            Self::Tcp(stream) => {
                stream.peer_addr().map_or_else(|_| "unknown".to_owned(), |peer| peer.to_string())
            }
            Self::Unix(_) => "unix".to_owned(),
            #[cfg(feature = "simulation")]
            Self::Simulated(stream) => stream.peer(),
        }
    }

    /// Takes the stream off its runtime.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub(crate) fn detach(self) -> io::Result<DetachedStream> {
        Ok(match self {
            Self::Tcp(stream) => DetachedStream::Tcp(stream.into_std()?),
            Self::Unix(stream) => DetachedStream::Unix(stream.into_std()?),
            #[cfg(feature = "simulation")]
            Self::Simulated(stream) => DetachedStream::Simulated(stream),
        })
    }

    /// Ready when there are bytes to read, or the stream has ended. Otherwise wakes the task then.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(context),
            Self::Unix(stream) => stream.poll_read_ready(context),
            #[cfg(feature = "simulation")]
            Self::Simulated(stream) => stream.poll_readable(context),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => poll_recv(stream, context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            #[cfg(feature = "simulation")]
            Self::Simulated(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => poll_send(stream, context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            #[cfg(feature = "simulation")]
            Self::Simulated(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            #[cfg(feature = "simulation")]
            Self::Simulated(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// Like `poll_read` of the stream itself, but with a system call that bypasses the C library. In a
/// process with threads the C library surrounds each call with two atomic operations, to support
/// thread cancellation.
pub(super) fn poll_recv(
    stream: &TcpStream,
    context: &mut Context<'_>,
    buffer: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    let room = buffer.initialize_unfilled();
    let max = room.len();
    let call = || recv(stream, &mut *room, RecvFlags::empty()).map(|(count, _)| count);
    let count = ready!(poll_call(stream, context, Interest::READABLE, max, call))?;
    buffer.advance(count);
    Poll::Ready(Ok(()))
}

/// Like `poll_write` of the stream itself, but bypasses the C library like [`poll_recv`].
fn poll_send(
    stream: &TcpStream,
    context: &mut Context<'_>,
    bytes: &[u8],
) -> Poll<io::Result<usize>> {
    let call = || send(stream, bytes, SendFlags::NOSIGNAL);
    poll_call(stream, context, Interest::WRITABLE, bytes.len(), call)
}

/// Makes `call`, which moves at most `max` bytes, once the stream is ready for it. A call that
/// moves fewer bytes has emptied or filled the socket's buffer, so it clears the readiness as a
/// call that would block does, and the next call waits for the system.
#[inline]
fn poll_call(
    stream: &TcpStream,
    context: &mut Context<'_>,
    interest: Interest,
    max: usize,
    mut call: impl FnMut() -> rustix::io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(if interest.is_readable() {
            stream.poll_read_ready(context)
        } else {
            stream.poll_write_ready(context)
        })?;
        let mut moved = None;
        let tried = stream.try_io(interest, || match call() {
            Ok(count) => {
                moved = Some(count);
                if (1..max).contains(&count) {
                    Err(io::ErrorKind::WouldBlock.into())
                } else {
                    Ok(())
                }
            }
            Err(errno) => Err(errno.into()),
        });
        if let Some(count) = moved {
            return Poll::Ready(Ok(count));
        }
        match tried {
            Err(error)
                if !matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return Poll::Ready(Err(error));
            }
            _ => {}
        }
    }
}

/// Sets the options of a peer's socket. No delay, because the transport batches by itself;
/// timeouts, so that a host that vanished is detected within seconds.
pub(super) fn prepare_peer(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_user_timeout(Some(PEER_SILENCE))?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(PEER_KEEPALIVE).with_interval(PEER_KEEPALIVE),
    )
}
