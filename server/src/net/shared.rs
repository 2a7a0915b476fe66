//! A stream that one thread reads and several threads write.
//!
//! Here: calls that never block, and readiness for the reading thread. Not here: choosing the
//! thread that writes (`crate::node::links`).

use std::io;
use std::task::{Context, Poll};

use rustix::net::{SendFlags, send};
use tokio::io::{Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::stream::{DetachedStream, Stream, poll_recv};

/// A stream on the runtime of the thread that attached it. Only that thread may wait for readiness.
#[derive(Debug)]
pub(crate) struct SharedStream(SharedSocket);

#[derive(Debug)]
enum SharedSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "simulation")]
    Simulated(parking_lot::Mutex<super::simulated::SimStream>),
}

impl SharedStream {
    /// Registers the stream with the current runtime.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub(crate) fn attach(stream: DetachedStream) -> io::Result<Self> {
        Ok(Self(match stream.attach()? {
            Stream::Tcp(stream) => SharedSocket::Tcp(stream),
            Stream::Unix(stream) => SharedSocket::Unix(stream),
            #[cfg(feature = "simulation")]
            Stream::Simulated(stream) => SharedSocket::Simulated(parking_lot::Mutex::new(stream)),
        }))
    }

    /// Reads into `room` with one system call. Returns 0 at the end of the stream.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub(crate) fn poll_recv(
        &self,
        context: &mut Context<'_>,
        room: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(room);
        let polled = match &self.0 {
            SharedSocket::Tcp(stream) => poll_recv(stream, context, &mut buffer),
            SharedSocket::Unix(stream) => loop {
                match stream.poll_read_ready(context)? {
                    Poll::Ready(()) => {}
                    Poll::Pending => break Poll::Pending,
                }
                match stream.try_read(buffer.initialize_unfilled()) {
                    Ok(count) => {
                        buffer.advance(count);
                        break Poll::Ready(Ok(()));
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => break Poll::Ready(Err(error)),
                }
            },
            #[cfg(feature = "simulation")]
            SharedSocket::Simulated(stream) => {
                use tokio::io::AsyncRead as _;
                std::pin::Pin::new(&mut *stream.lock()).poll_read(context, &mut buffer)
            }
        };
        polled.map_ok(|()| buffer.filled().len())
    }

    /// Ready when there are bytes to read, or the stream has ended. Otherwise wakes the task then.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub(crate) fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.0 {
            SharedSocket::Tcp(stream) => stream.poll_read_ready(context),
            SharedSocket::Unix(stream) => stream.poll_read_ready(context),
            #[cfg(feature = "simulation")]
            SharedSocket::Simulated(stream) => stream.lock().poll_readable(context),
        }
    }

    /// Writes the front of `bytes` with one system call, from any thread. Returns the number of
    /// bytes that the socket accepted.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if the socket's buffer is full; else the system's error.
    pub(crate) fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        match &self.0 {
            SharedSocket::Tcp(stream) => {
                stream.try_io(Interest::WRITABLE, || Ok(send(stream, bytes, SendFlags::NOSIGNAL)?))
            }
            SharedSocket::Unix(stream) => stream.try_write(bytes),
            #[cfg(feature = "simulation")]
            SharedSocket::Simulated(stream) => stream.lock().try_send(bytes),
        }
    }

    /// Ready when the socket accepts bytes. Otherwise wakes the task then.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub(crate) fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.0 {
            SharedSocket::Tcp(stream) => stream.poll_write_ready(context),
            SharedSocket::Unix(stream) => stream.poll_write_ready(context),
            #[cfg(feature = "simulation")]
            SharedSocket::Simulated(stream) => stream.lock().poll_writable(context),
        }
    }
}
