//! Listeners, on TCP addresses and on paths.
//!
//! Not here: the accept loops (`io/listener`, `transport/acceptor`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, UnixListener};

#[cfg(feature = "simulation")]
use super::simulated;
use super::stream::{DetachedStream, Stream, prepare_peer, tcp, unix};

/// A socket that clients come to, for `stats conns`.
#[derive(Debug, Clone)]
pub(crate) struct ListenerInfo {
    /// File descriptor.
    pub(crate) fd: i32,
    /// The address, in the format of [`DetachedStream::local`].
    pub(crate) address: String,
}

/// A bound listener that is not registered with a runtime.
#[derive(Debug)]
pub enum BoundListener {
    /// On a TCP address.
    Tcp(std::net::TcpListener),
    /// On a path.
    Unix(std::os::unix::net::UnixListener),
    /// On a path, for operators.
    Admin(std::os::unix::net::UnixListener),
}

/// A listener on the current runtime.
#[derive(Debug)]
pub enum Listener {
    /// On a TCP address.
    Tcp(TcpListener),
    /// On a path.
    Unix(UnixListener),
    /// On a path, for operators.
    Admin(UnixListener),
    /// In a simulated world.
    #[cfg(feature = "simulation")]
    Simulated(simulated::SimListener),
}

impl BoundListener {
    /// The file descriptor and the address in `stats conns`.
    pub(crate) fn info(&self) -> ListenerInfo {
        match self {
            Self::Tcp(listener) => {
                ListenerInfo { fd: listener.as_raw_fd(), address: tcp(listener.local_addr().ok()) }
            }
            Self::Unix(listener) | Self::Admin(listener) => ListenerInfo {
                fd: listener.as_raw_fd(),
                address: unix(listener.local_addr().ok().as_ref()),
            },
        }
    }

    /// Listens on a TCP address, with memcached's socket options.
    ///
    /// # Errors
    ///
    /// The system's error, usually an address in use.
    pub fn tcp(address: SocketAddr, backlog: u32) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            // Allow 0.0.0.0 and [::] side by side.
            socket.set_only_v6(true)?;
        }
        socket.set_reuse_address(true)?;
        socket.set_keepalive(true)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
        Ok(Self::Tcp(socket.into()))
    }

    /// Listens on a path. As in memcached, removes a socket file that an ended process left there.
    /// `mode` is the file mode of the socket (`-a`).
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn unix(path: &Path, mode: u32, backlog: u32) -> io::Result<Self> {
        listen_on_path(path, mode, backlog).map(Self::Unix)
    }

    /// Listens on a path for operators. Only the owner of the process may connect.
    ///
    /// # Errors
    ///
    /// The system's error; `AddrInUse` if another process listens there, because replacing its
    /// socket would redirect its operators to this server.
    pub fn admin(path: &Path, backlog: u32) -> io::Result<Self> {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another server listens there; give each server an --admin-socket of its own",
            ));
        }
        listen_on_path(path, 0o600, backlog).map(Self::Admin)
    }

    /// The bound address; `None` for a Unix socket.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) | Self::Admin(_) => None,
        }
    }

    /// Registers the listener with the current runtime.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn attach(self) -> io::Result<Listener> {
        Ok(match self {
            Self::Tcp(listener) => Listener::Tcp(TcpListener::from_std(listener)?),
            Self::Unix(listener) => Listener::Unix(UnixListener::from_std(listener)?),
            Self::Admin(listener) => Listener::Admin(UnixListener::from_std(listener)?),
        })
    }
}

/// Listens on a path. Removes a socket file that an ended process left there.
fn listen_on_path(
    path: &Path,
    mode: u32,
    backlog: u32,
) -> io::Result<std::os::unix::net::UnixListener> {
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        std::fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    // Before `listen`, so that no client connects under the default mode.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

impl Listener {
    /// Whether connections to this listener are operators'.
    #[must_use]
    pub fn is_admin(&self) -> bool {
        matches!(self, Self::Admin(_))
    }

    /// The address; `None` for a Unix socket.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) | Self::Admin(_) => None,
            #[cfg(feature = "simulation")]
            Self::Simulated(listener) => Some(listener.address()),
        }
    }

    /// Accepts a peer's stream, on this runtime.
    ///
    /// # Errors
    ///
    /// The errors of [`Listener::accept`].
    pub async fn accept_peer(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                prepare_peer(&stream)?;
                Ok(Stream::Tcp(stream))
            }
            Self::Unix(listener) | Self::Admin(listener) => {
                Ok(Stream::Unix(listener.accept().await?.0))
            }
            #[cfg(feature = "simulation")]
            Self::Simulated(listener) => listener.accept().await.map(Stream::Simulated),
        }
    }

    /// Accepts a client's stream, for any runtime.
    ///
    /// # Errors
    ///
    /// The system's error; a lack of file descriptors is temporary.
    pub async fn accept(&self) -> io::Result<DetachedStream> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(DetachedStream::Tcp(stream.into_std()?))
            }
            Self::Unix(listener) | Self::Admin(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok(DetachedStream::Unix(stream.into_std()?))
            }
            #[cfg(feature = "simulation")]
            Self::Simulated(listener) => listener.accept().await.map(DetachedStream::Simulated),
        }
    }
}
