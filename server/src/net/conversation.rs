//! A blocking stream, for a program that waits for each reply.
//!
//! Here: sending and receiving lines over TCP or a Unix socket, and whether an address is in reach.
//! Not here: the content of the lines (`server/cli`).

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A conversation with a server by lines, for a program that waits for each reply.
#[derive(Debug)]
pub struct Conversation(BufReader<BlockingSocket>);

/// A connected socket with blocking calls.
#[derive(Debug)]
enum BlockingSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Read for BlockingSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for BlockingSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Conversation {
    /// Maximum length of a line of a reply, in bytes.
    const LINE_BYTES_MAX: u64 = 64 << 10;

    /// Connects to `host:port`, or to a Unix socket if `server` contains a slash. If a name has
    /// several addresses, the first one that accepts is used. `patience` is the timeout of each
    /// call.
    ///
    /// # Errors
    ///
    /// The system's error; of the last address if there are several.
    pub fn open(server: &str, patience: Duration) -> io::Result<Self> {
        if server.contains('/') {
            let stream = UnixStream::connect(server)?;
            stream.set_read_timeout(Some(patience))?;
            stream.set_write_timeout(Some(patience))?;
            return Ok(Self(BufReader::new(BlockingSocket::Unix(stream))));
        }
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in server.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, patience) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(patience))?;
                    stream.set_write_timeout(Some(patience))?;
                    return Ok(Self(BufReader::new(BlockingSocket::Tcp(stream))));
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Sends a line.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn send(&mut self, line: &str) -> io::Result<()> {
        self.0.get_mut().write_all(format!("{line}\r\n").as_bytes())
    }

    /// Receives a line, without its line end. Keys are any bytes: those that are not UTF-8 become
    /// U+FFFD.
    ///
    /// # Errors
    ///
    /// The system's error, a timeout, or a line without line end.
    pub fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        let read = (&mut self.0).take(Self::LINE_BYTES_MAX).read_until(b'\n', &mut line);
        read.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
            }
            _ => error,
        })?;
        match line.strip_suffix(b"\n") {
            Some(line) => {
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                Ok(String::from_utf8_lossy(line).into_owned())
            }
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it hung up")),
        }
    }
}

/// Connects to an address over TCP and closes the connection again. Blocks the thread.
///
/// # Errors
///
/// The system's error, or a timeout after `patience`.
pub fn try_connect(address: SocketAddr, patience: Duration) -> io::Result<()> {
    TcpStream::connect_timeout(&address, patience).map(drop)
}

/// Returns whether an address belongs to this machine: it is a loopback address, or a socket can be
/// bound to it.
#[must_use]
pub fn is_local(address: IpAddr) -> bool {
    address.is_loopback() || TcpListener::bind((address, 0)).is_ok()
}
