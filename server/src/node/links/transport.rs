//! One data link: bytes out from any thread, TLS, signs of life.
//!
//! Here: the output buffer and its bound, the one sender at a time, the state of the connection. Not
//! here: reading (`worker`), the connection's beginning (`crate::lanes`), the choice of the link for a
//! frame (`super`).
//!
//! ```text
//! append: any thread ──► appended ──► unsent ──► socket      flush: one thread at a time
//! ```
//!
//! The lock is the innermost of the process and is not held during system calls. A thread that finds
//! another one sending leaves its bytes to it: the sender looks again before it stops. What a full
//! socket leaves is sent by the worker that reads the link, when the socket is writable.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{BufMut as _, BytesMut};
use cluster::id::Incarnation;
use cluster::message::{Bounds, Fault, Frame};
use parking_lot::{Mutex, MutexGuard};

use crate::lanes::TlsConnection;
use crate::lanes::ping::{Due, Pings};
use crate::net::shared::SharedStream;

/// A buffer that was longer than this is not kept.
const KEPT_BYTES: usize = 1 << 20;

/// A connection in a certain order among those of its link: the peer's life, then the link's number.
pub(super) type Number = (Incarnation, u64);

/// Why a frame was not appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotAppended {
    /// There is no connection, or nothing is heard over it.
    Down,
    /// The output has reached the bound.
    Full,
    /// No peer would take the frame.
    Fault(Fault),
}

/// One data link of two nodes. It stays; its connections come and go.
#[derive(Debug, Default)]
pub(super) struct Transport {
    output: Mutex<Output>,
}

#[derive(Debug, Default)]
struct Output {
    connection: Option<Connection>,
    /// The newest connection there was.
    last: Number,
    /// Frames that no sender has taken.
    appended: BytesMut,
    /// Bytes for the socket, before those of `appended`; encrypted where there is TLS.
    unsent: BytesMut,
    /// Bytes that a sender has taken.
    in_flight: usize,
    /// A thread sends.
    is_sending: bool,
    /// The socket takes no more.
    is_blocked: bool,
    /// A blocked socket took bytes since the last tick.
    has_moved: bool,
}

#[derive(Debug)]
struct Connection {
    stream: Arc<SharedStream>,
    tls: Option<Box<TlsConnection>>,
    /// Wakes the worker that reads the link.
    waker: Waker,
    pings: Pings,
    /// The peer gives no sign of life.
    is_silent: bool,
    /// The connection has to end: its worker is told.
    failure: Option<io::ErrorKind>,
}

/// What the worker of a link finds out about its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// Nothing new.
    Known,
    /// The peer gives no sign of life from now on.
    Silent,
    /// The peer has given none for so long that the connection has to end.
    Lost,
}

impl Transport {
    /// Makes a connection the current one, if it is newer than each before it. True if it is.
    pub(super) fn install(
        &self,
        number: Number,
        stream: Arc<SharedStream>,
        tls: Option<Box<TlsConnection>>,
        waker: Waker,
        pings: Pings,
    ) -> bool {
        let mut output = self.output.lock();
        if number <= output.last {
            return false;
        }
        output.last = number;
        output.clear();
        output.connection =
            Some(Connection { stream, tls, waker, pings, is_silent: false, failure: None });
        true
    }

    /// Ends a connection if it is the current one. True if it was.
    pub(super) fn end(&self, number: Number) -> bool {
        let mut output = self.output.lock();
        let is_current = output.last == number && output.connection.is_some();
        if is_current {
            output.connection = None;
            output.clear();
        }
        is_current
    }

    /// Whether frames can be appended.
    pub(super) fn is_up(&self) -> bool {
        let output = self.output.lock();
        output.connection.as_ref().is_some_and(|connection| !connection.is_silent)
    }

    /// Begins to append frames.
    pub(super) fn lock(&self) -> Appending<'_> {
        Appending { output: self.output.lock() }
    }

    /// Sends what was appended, by one call unless other threads append meanwhile. Returns at once if
    /// another thread sends or the socket is full.
    pub(super) fn flush(&self) {
        let mut output = self.output.lock();
        while let Some((mut bytes, stream)) = output.take() {
            let number = output.last;
            drop(output);
            let sent = stream.try_send(&bytes);
            output = self.output.lock();
            output.is_sending = false;
            output.in_flight = 0;
            if output.last != number || output.connection.is_none() {
                // A newer connection begins with an output of its own.
                continue;
            }
            match sent {
                Ok(count) if count == bytes.len() => {
                    bytes.clear();
                    if bytes.capacity() <= KEPT_BYTES {
                        output.unsent = bytes;
                    }
                }
                Ok(count) => {
                    let _ = bytes.split_to(count);
                    output.block(bytes);
                }
                Err(error) if is_passing(error.kind()) => output.block(bytes),
                Err(error) => output.fail(error.kind()),
            }
        }
    }

    /// Called by the worker that reads the link: ends the blockade if the socket is writable, or has
    /// the worker woken when it is. True if there is something to flush.
    pub(super) fn poll_unblocked(&self, context: &mut Context<'_>) -> bool {
        let mut output = self.output.lock();
        if !output.is_blocked {
            return false;
        }
        let Some(connection) = &output.connection else { return false };
        match connection.stream.poll_writable(context) {
            Poll::Pending => false,
            Poll::Ready(Ok(())) => {
                output.is_blocked = false;
                output.has_moved = true;
                true
            }
            Poll::Ready(Err(error)) => {
                output.fail(error.kind());
                false
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_blocked(&self) -> bool {
        self.output.lock().is_blocked
    }

    /// The reason why a connection has to end, if there is one.
    pub(super) fn failure(&self, number: Number) -> Option<io::ErrorKind> {
        let output = self.output.lock();
        match &output.connection {
            Some(connection) if output.last == number => connection.failure,
            _ => Some(io::ErrorKind::ConnectionAborted),
        }
    }

    /// Decrypts `bytes` and appends the plain text to `input`.
    ///
    /// # Errors
    ///
    /// TLS failed; `UnexpectedEof` if the peer has ended it.
    pub(super) fn decrypt(
        &self,
        number: Number,
        mut bytes: &[u8],
        input: &mut BytesMut,
    ) -> io::Result<()> {
        let mut output = self.output.lock();
        if output.last != number {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let Some(Connection { tls: Some(tls), .. }) = &mut output.connection else {
            return Err(io::ErrorKind::ConnectionAborted.into());
        };
        loop {
            let state = tls.process_new_packets().map_err(io::Error::other)?;
            let (plain, has_ended) = (state.plaintext_bytes_to_read(), state.peer_has_closed());
            let start = input.len();
            input.resize(start + plain, 0);
            io::Read::read_exact(&mut tls.reader(), &mut input[start..])?;
            if has_ended {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if bytes.is_empty() {
                return Ok(());
            }
            tls.read_tls(&mut bytes)?;
        }
    }

    /// Notes the peer's answer to a ping. True if it was silent until now.
    pub(super) fn answered(&self, number: u64) -> bool {
        let mut output = self.output.lock();
        let Some(connection) = &mut output.connection else { return false };
        let was_silent = connection.pings.answer(number);
        connection.is_silent &= !was_silent;
        was_silent
    }

    /// Asks for a sign of life if that is due: true if the output is to be flushed. Where an answer is overdue
    /// the worker is woken: only it knows whether one lies in the socket.
    pub(super) fn tick(&self, now_ns: u64, bounds: Bounds) -> bool {
        let mut output = self.output.lock();
        let Output { connection, appended, has_moved, .. } = &mut *output;
        let Some(connection) = connection else { return false };
        if std::mem::take(has_moved) {
            connection.pings.moved(now_ns);
        }
        if connection.pings.is_overdue(now_ns) {
            connection.waker.wake_by_ref();
            return false;
        }
        let is_due = connection.pings.due(now_ns) == Due::Ask;
        if is_due {
            let ping = Frame::Ping(connection.pings.next(now_ns));
            let _ = ping.encode(now_ns, bounds, appended);
        }
        is_due
    }

    /// Called by the worker of the link after it has read.
    pub(super) fn look_for_life(&self, now_ns: u64) -> Life {
        let mut output = self.output.lock();
        let Some(connection) = &mut output.connection else { return Life::Known };
        if !connection.pings.is_overdue(now_ns) {
            return Life::Known;
        }
        match connection.pings.due(now_ns) {
            Due::Silence => {
                connection.is_silent = true;
                Life::Silent
            }
            Due::End => Life::Lost,
            Due::Nothing(_) | Due::Ask => Life::Known,
        }
    }
}

/// A link while frames are appended to it.
pub(super) struct Appending<'a> {
    output: MutexGuard<'a, Output>,
}

impl Appending<'_> {
    /// Appends a frame if less than `most` bytes wait.
    pub(super) fn append(
        &mut self,
        frame: &Frame,
        most: usize,
        now_ns: u64,
        bounds: Bounds,
    ) -> Result<(), NotAppended> {
        let output = &mut *self.output;
        let Some(connection) = &mut output.connection else { return Err(NotAppended::Down) };
        if connection.is_silent || connection.failure.is_some() {
            return Err(NotAppended::Down);
        }
        if output.unsent.len() + output.in_flight + output.appended.len() >= most {
            return Err(NotAppended::Full);
        }
        connection.pings.used();
        frame.encode(now_ns, bounds, &mut output.appended).map_err(NotAppended::Fault)
    }

    /// Appends a frame that is neither bounded nor a use of the link.
    pub(super) fn append_control(&mut self, frame: &Frame, bounds: Bounds) {
        if self.output.connection.is_some() {
            let _ = frame.encode(0, bounds, &mut self.output.appended);
        }
    }
}

impl Output {
    /// Takes what is to be sent next, if this thread is to send it.
    fn take(&mut self) -> Option<(BytesMut, Arc<SharedStream>)> {
        if self.is_sending || self.is_blocked {
            return None;
        }
        let connection = self.connection.as_mut()?;
        if connection.failure.is_some() {
            return None;
        }
        if let Some(tls) = &mut connection.tls {
            if let Err(error) = encrypt(tls, &mut self.appended, &mut self.unsent) {
                self.fail(error.kind());
                return None;
            }
        } else if self.unsent.is_empty() {
            std::mem::swap(&mut self.unsent, &mut self.appended);
        } else {
            self.unsent.extend_from_slice(&self.appended);
            self.appended.clear();
        }
        if self.unsent.is_empty() {
            return None;
        }
        let stream = Arc::clone(&self.connection.as_ref()?.stream);
        self.is_sending = true;
        self.in_flight = self.unsent.len();
        Some((std::mem::take(&mut self.unsent), stream))
    }

    /// The socket took no more than what was before `rest`.
    fn block(&mut self, rest: BytesMut) {
        self.unsent = rest;
        self.is_blocked = true;
        self.wake();
    }

    fn fail(&mut self, why: io::ErrorKind) {
        if let Some(connection) = &mut self.connection {
            connection.failure.get_or_insert(why);
        }
        self.wake();
    }

    fn wake(&self) {
        if let Some(connection) = &self.connection {
            connection.waker.wake_by_ref();
        }
    }

    fn clear(&mut self) {
        self.appended = BytesMut::new();
        self.unsent = BytesMut::new();
        self.is_blocked = false;
        self.has_moved = false;
    }
}

/// Encrypts `plain`, and whatever TLS itself has to say, to the end of `out`.
fn encrypt(tls: &mut TlsConnection, plain: &mut BytesMut, out: &mut BytesMut) -> io::Result<()> {
    let mut rest = &plain[..];
    while !rest.is_empty() || tls.wants_write() {
        // TLS takes a bounded part of it at a time.
        let count = io::Write::write(&mut tls.writer(), rest)?;
        rest = &rest[count..];
        while tls.wants_write() {
            tls.write_tls(&mut out.writer())?;
        }
    }
    plain.clear();
    Ok(())
}

fn is_passing(error: io::ErrorKind) -> bool {
    matches!(error, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
