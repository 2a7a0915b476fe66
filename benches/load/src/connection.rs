//! One non-blocking connection: bytes out, bytes in, and the exchange they belong to.
//!
//! Here: partial writes, replies cut by the end of a read. Not here: when to send (`worker`),
//! whether a reply is right (`exchange`).

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;

use mio::net::TcpStream;

use crate::dialect::Request;
use crate::error::LoadError;
use crate::exchange::{Exchange, Tally};
use crate::ledger::Ledger;

/// A connected socket and its outstanding requests.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    out: Vec<u8>,
    written: usize,
    /// The beginning of a reply whose end has not arrived.
    cut: Vec<u8>,
    exchange: Exchange,
}

impl Connection {
    /// Connects, with Nagle's algorithm off.
    ///
    /// # Errors
    ///
    /// The errors of the socket.
    pub fn open(address: SocketAddr, request: Request) -> io::Result<Self> {
        let stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: TcpStream::from_std(stream),
            out: Vec::new(),
            written: 0,
            cut: Vec::new(),
            exchange: Exchange::new(request),
        })
    }

    /// The socket, to be registered for readiness.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Requests not fully answered.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.exchange.outstanding()
    }

    /// Appends a request, sent or due at `at`; [`flush`](Self::flush) sends it.
    pub fn issue(&mut self, at: u64, ledger: &mut Ledger, pick: impl FnMut() -> u32) {
        self.exchange.issue(at, &mut self.out, ledger, pick);
    }

    /// Ends a burst of requests; see [`Exchange::end_burst`].
    pub fn end_burst(&mut self) {
        self.exchange.end_burst(&mut self.out);
    }

    /// Writes as much as the socket accepts; the rest follows when it is writable again.
    ///
    /// # Errors
    ///
    /// [`LoadError::ConnectionLost`].
    pub fn flush(&mut self) -> Result<(), LoadError> {
        while self.written < self.out.len() {
            match self.stream.write(&self.out[self.written..]) {
                Ok(0) => return Err(self.lost(ErrorKind::WriteZero.into())),
                Ok(n) => self.written += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(self.lost(e)),
            }
        }
        self.out.clear();
        self.written = 0;
        Ok(())
    }

    /// Reads all available bytes through `scratch` and checks the replies. Calls `now` once after
    /// each read.
    ///
    /// A read that does not fill `scratch` has emptied the socket, and later bytes raise a new
    /// event, so no second read is made.
    ///
    /// # Errors
    ///
    /// [`LoadError::ConnectionLost`], also at the end of file.
    pub fn read(
        &mut self,
        scratch: &mut [u8],
        mut now: impl FnMut() -> u64,
        ledger: &mut Ledger,
        tally: &mut Tally,
    ) -> Result<(), LoadError> {
        loop {
            let kept = self.cut.len();
            scratch[..kept].copy_from_slice(&self.cut);
            let read = match self.stream.read(&mut scratch[kept..]) {
                Ok(0) => return Err(self.lost(ErrorKind::UnexpectedEof.into())),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(self.lost(e)),
            };
            let bytes = &scratch[..kept + read];
            let used = self.exchange.accept(bytes, now(), ledger, tally);
            self.cut.clear();
            self.cut.extend_from_slice(&bytes[used..]);
            if bytes.len() < scratch.len() {
                return Ok(());
            }
            if used == 0 {
                return Err(self.lost(io::Error::other("a reply longer than the buffer")));
            }
        }
    }

    fn lost(&self, cause: io::Error) -> LoadError {
        LoadError::ConnectionLost { outstanding: self.outstanding(), cause }
    }
}
