//! The stream of a program that waits for each answer.
//!
//! Here: lines to a server and back, over TCP or a Unix socket. Not here: what they mean (`cli`).

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A conversation by lines with a server, for a program that waits for each answer.
#[derive(Debug)]
pub struct Conversation(BufReader<BlockingSocket>);

/// A connected socket whose calls wait.
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
    /// Longest line of an answer, in bytes.
    const LINE_BYTES_MAX: u64 = 64 << 10;

    /// Connects to `host:port`, or to a Unix socket if `server` has a slash. Of a name with several
    /// addresses the first that takes the connection does. Each wait is `patience` at most.
    ///
    /// # Errors
    ///
    /// What the system says, of the last address if there are several.
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
    /// What the system says.
    pub fn send(&mut self, line: &str) -> io::Result<()> {
        self.0.get_mut().write_all(format!("{line}\r\n").as_bytes())
    }

    /// The next line, without its end.
    ///
    /// # Errors
    ///
    /// What the system says; a line without an end is an error too.
    pub fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        let read = (&mut self.0).take(Self::LINE_BYTES_MAX).read_line(&mut line);
        read.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
            }
            _ => error,
        })?;
        match line.strip_suffix('\n') {
            Some(line) => Ok(line.strip_suffix('\r').unwrap_or(line).to_owned()),
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it hung up")),
        }
    }
}
