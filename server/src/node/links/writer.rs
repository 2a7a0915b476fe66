//! One data link: output from any thread, TLS, signs of life.
//!
//! Here: the sender with its stream, the one thread at a time that writes, the state of the
//! connection. Not here: reading (`worker`), opening a connection (`crate::transport`), the link of
//! a frame (`cluster::replica_set`).
//!
//! ```text
//! append: any thread ──► LinkSender ──► unsent ──► socket      flush: one thread at a time
//! ```
//!
//! The lock is the innermost of the process and is not held during system calls. A thread that
//! finds another one writing leaves its bytes to it: the writer checks again before it stops. The
//! worker that reads the link sends the rest that a full socket refused, once the socket is
//! writable.

use std::io;
use std::task::{Context, Poll, Waker};

use cluster::frames::{FrameError, Ping, StreamAck, StreamDone};
use cluster::link::{LinkReceiver, LinkSender, connect};
use cluster::receive_stream::ReceiveStream;
use parking_lot::{Mutex, MutexGuard};

use super::stream::LinkStream;
use crate::transport::TlsConnection;
use crate::transport::ping::{PingAction, Pings};

/// A longer buffer is not kept.
const KEPT_BYTES: usize = 1 << 20;

/// The sending half of a data link. It stays while its connections come and go.
#[derive(Debug, Default)]
pub(super) struct LinkWriter {
    output: Mutex<LinkOutput>,
}

#[derive(Debug, Default)]
pub(super) struct LinkOutput {
    pub(super) sender: LinkSender,
    connection: Option<LinkConnection>,
    /// Bytes for the socket, encrypted if there is TLS; those before `unsent_at` were written.
    unsent: Vec<u8>,
    unsent_at: usize,
    /// Memory for plain text.
    plain: Vec<u8>,
    /// A thread is writing.
    is_sending: bool,
    /// The socket is full.
    is_blocked: bool,
    /// A blocked socket has accepted bytes since the last tick.
    has_moved: bool,
}

#[derive(Debug)]
struct LinkConnection {
    wire: LinkStream,
    tls: Option<Box<TlsConnection>>,
    /// Wakes the worker that reads the link.
    waker: Waker,
    pings: Pings,
    /// The peer gives no sign of life.
    is_silent: bool,
    /// The connection must end for this reason; its worker is woken.
    failure: Option<io::ErrorKind>,
}

/// A connection to install.
pub(super) struct NewConnection {
    pub(super) number: u64,
    pub(super) wire: LinkStream,
    pub(super) tls: Option<Box<TlsConnection>>,
    /// Wakes the worker that reads the link.
    pub(super) waker: Waker,
    pub(super) pings: Pings,
}

/// The liveness of a link's peer, as its worker finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerLiveness {
    /// Unchanged.
    Known,
    /// The peer has become silent.
    Silent,
    /// The peer has been silent for long enough to end the connection.
    Lost,
}

impl LinkWriter {
    /// Makes a connection the current one if it is newer than all before it, and returns whether it
    /// did. Called by the worker that reads the link; it then no longer reads the older connection.
    pub(super) fn install(&self, receiver: &mut LinkReceiver, fresh: NewConnection) -> bool {
        let mut output = self.output.lock();
        if !connect(fresh.number, &mut output.sender, receiver) {
            return false;
        }
        output.clear();
        let NewConnection { wire, tls, waker, pings, .. } = fresh;
        let connection =
            LinkConnection { wire, tls, waker, pings, is_silent: false, failure: None };
        if let Some(older) = output.connection.replace(connection) {
            older.wire.close();
        }
        true
    }

    /// Ends a connection if it is the current one, and returns whether it was.
    pub(super) fn end(&self, number: u64) -> bool {
        let mut output = self.output.lock();
        let is_current = output.is_current(number);
        if is_current {
            output.disconnect();
        }
        is_current
    }

    /// Asks the worker that reads the link to end its connection.
    pub(super) fn fail(&self, why: io::ErrorKind) {
        self.output.lock().fail(why);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LinkOutput> {
        self.output.lock()
    }

    /// Sends the appended bytes, in one call unless other threads append meanwhile. Returns at once
    /// if another thread is sending or the socket is full.
    pub(super) fn flush(&self, now_ns: u64) {
        let mut output = self.output.lock();
        while let Some((mut bytes, at, wire)) = output.take(now_ns) {
            let number = output.sender.number();
            drop(output);
            let sent = wire.try_send(&bytes[at..]);
            output = self.output.lock();
            output.is_sending = false;
            if !output.is_current(number) {
                // A newer connection begins with its own output.
                continue;
            }
            match sent {
                Ok(count) if at + count == bytes.len() => {
                    bytes.clear();
                    if bytes.capacity() <= KEPT_BYTES {
                        output.unsent = bytes;
                    }
                }
                Ok(count) => output.block(bytes, at + count),
                Err(error) if is_passing(error.kind()) => output.block(bytes, at),
                Err(error) => output.fail(error.kind()),
            }
        }
    }

    /// Called by the worker that reads the link: clears `is_blocked` if the socket is writable, or
    /// else registers the worker's waker. Returns true if there is output to flush.
    pub(super) fn poll_unblocked(&self, context: &mut Context<'_>) -> bool {
        let mut output = self.output.lock();
        if !output.is_blocked {
            return false;
        }
        let Some(connection) = &output.connection else { return false };
        match connection.wire.poll_writable(context) {
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

    /// The reason for which a connection must end, if there is one.
    pub(super) fn failure(&self, number: u64) -> Option<io::ErrorKind> {
        let output = self.output.lock();
        match &output.connection {
            Some(connection) if output.is_current(number) => connection.failure,
            _ => Some(io::ErrorKind::ConnectionAborted),
        }
    }

    /// Decrypts `bytes` and appends the plain text to `plain`.
    ///
    /// # Errors
    ///
    /// TLS failed; `UnexpectedEof` if the peer has ended it.
    pub(super) fn decrypt(
        &self,
        number: u64,
        mut bytes: &[u8],
        plain: &mut Vec<u8>,
    ) -> io::Result<()> {
        let mut output = self.output.lock();
        if !output.is_current(number) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let Some(LinkConnection { tls: Some(tls), .. }) = &mut output.connection else {
            return Err(io::ErrorKind::ConnectionAborted.into());
        };
        loop {
            let state = tls.process_new_packets().map_err(io::Error::other)?;
            let (length, has_ended) = (state.plaintext_bytes_to_read(), state.peer_has_closed());
            let start = plain.len();
            plain.resize(start + length, 0);
            io::Read::read_exact(&mut tls.reader(), &mut plain[start..])?;
            if has_ended {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if bytes.is_empty() {
                return Ok(());
            }
            tls.read_tls(&mut bytes)?;
        }
    }

    /// Sets the stream to the position that the peer holds, if this is the first ack of a
    /// connection. Returns whether it is.
    ///
    /// # Errors
    ///
    /// The ack does not fit the stream.
    pub(super) fn on_ack(
        &self,
        ack: &StreamAck<'_>,
        fresh_pings: Pings,
    ) -> Result<bool, FrameError> {
        let mut output = self.output.lock();
        let is_first = output.sender.on_ack(ack)?;
        if is_first && let Some(connection) = &mut output.connection {
            // Pings could not be sent before.
            connection.pings = fresh_pings;
            connection.is_silent = false;
        }
        Ok(is_first)
    }

    /// Records the peer's answer to a ping. Returns true if the peer was silent before.
    pub(super) fn answered(&self, number: u64) -> bool {
        let mut output = self.output.lock();
        let Some(connection) = &mut output.connection else { return false };
        let was_silent = connection.pings.answer(number);
        connection.is_silent &= !was_silent;
        was_silent
    }

    /// Records `count` received bytes. Writes the frames that are due after a read: answers to
    /// pings and a ping with them, the ack, and a keep-alive if `is_report_due` is set and there is
    /// no ack. Returns false if there is no connection to take them.
    pub(super) fn settle(
        &self,
        now_ns: u64,
        count: usize,
        pings: &mut Vec<u64>,
        stream: &mut ReceiveStream,
        done: &[StreamDone],
        is_report_due: bool,
    ) -> bool {
        let mut output = self.output.lock();
        let LinkOutput { sender, connection, .. } = &mut *output;
        let Some(connection) = connection else { return false };
        connection.pings.received(count);
        let Some(out) = sender.loose() else { return false };
        if !pings.is_empty() && connection.pings.may_join_answer(now_ns) {
            Ping(connection.pings.next(now_ns)).encode(out);
        }
        pings.drain(..).for_each(|number| Ping(number).encode_answer(out));
        if stream.owes_ack() {
            stream.ack(done, out);
        } else if is_report_due {
            cluster::frames::KeepAlive::encode(now_ns, done, out);
        }
        true
    }

    /// Writes a ping if one is due, and returns true if the output needs a flush. If an answer is
    /// overdue, wakes the worker instead: only the worker knows whether the answer is in the
    /// socket.
    pub(super) fn tick(&self, now_ns: u64) -> bool {
        let mut output = self.output.lock();
        let LinkOutput { sender, connection, has_moved, .. } = &mut *output;
        let Some(connection) = connection else { return false };
        connection.wire.retry();
        if std::mem::take(has_moved) {
            connection.pings.moved(now_ns);
        }
        if connection.pings.is_overdue(now_ns) {
            connection.waker.wake_by_ref();
            return false;
        }
        let is_due = connection.pings.due(now_ns) == PingAction::Ask;
        if is_due {
            let ping = Ping(connection.pings.next(now_ns));
            if let Some(out) = sender.loose() {
                ping.encode(out);
            }
        }
        is_due
    }

    /// Called by the worker of the link after it has read everything that was available.
    pub(super) fn check_liveness(&self, now_ns: u64) -> PeerLiveness {
        let mut output = self.output.lock();
        let Some(connection) = &mut output.connection else { return PeerLiveness::Known };
        if !connection.pings.is_overdue(now_ns) {
            return PeerLiveness::Known;
        }
        match connection.pings.due(now_ns) {
            // A tunnel is replaced at once, and its silence says nothing about the direct path.
            PingAction::Silence if connection.wire.is_tunnel() => PeerLiveness::Lost,
            PingAction::Silence => {
                connection.is_silent = true;
                PeerLiveness::Silent
            }
            PingAction::End => PeerLiveness::Lost,
            PingAction::Nothing(_) | PingAction::Ask => PeerLiveness::Known,
        }
    }
}

impl LinkOutput {
    /// Whether unnumbered frames reach the peer, as far as is known.
    pub(super) fn is_up(&self) -> bool {
        let takes =
            |connection: &LinkConnection| !connection.is_silent && connection.failure.is_none();
        self.sender.is_up() && self.connection.as_ref().is_some_and(takes)
    }

    /// Whether the connection goes through another node.
    pub(super) fn is_tunnelled(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.wire.is_tunnel())
    }

    /// Records that the link is used: pings are then sent more often.
    pub(super) fn used(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.pings.used();
        }
    }

    fn is_current(&self, number: u64) -> bool {
        self.sender.number() == number && self.connection.is_some()
    }

    /// Takes the bytes to send next, if this thread may send them.
    fn take(&mut self, now_ns: u64) -> Option<(Vec<u8>, usize, LinkStream)> {
        if self.is_sending || self.is_blocked {
            return None;
        }
        let connection = self.connection.as_mut()?;
        if connection.failure.is_some() {
            return None;
        }
        if self.unsent.len() == self.unsent_at {
            self.unsent_at = 0;
            self.unsent.clear();
            if let Some(tls) = &mut connection.tls {
                let mut plain = self.sender.take(now_ns, std::mem::take(&mut self.plain));
                let encrypted = encrypt(tls, &plain, &mut self.unsent);
                plain.clear();
                if plain.capacity() <= KEPT_BYTES {
                    self.plain = plain;
                }
                if let Err(error) = encrypted {
                    self.fail(error.kind());
                    return None;
                }
            } else {
                self.unsent = self.sender.take(now_ns, std::mem::take(&mut self.unsent));
            }
        }
        if self.unsent.is_empty() {
            return None;
        }
        let wire = self.connection.as_ref()?.wire.clone();
        self.is_sending = true;
        Some((std::mem::take(&mut self.unsent), std::mem::take(&mut self.unsent_at), wire))
    }

    /// Keeps the bytes that a full socket did not accept: those from `at` on.
    fn block(&mut self, bytes: Vec<u8>, at: usize) {
        self.unsent = bytes;
        self.unsent_at = at;
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

    fn disconnect(&mut self) {
        self.sender.disconnect();
        if let Some(connection) = self.connection.take() {
            connection.wire.close();
        }
        self.clear();
    }

    fn clear(&mut self) {
        self.unsent = Vec::new();
        self.unsent_at = 0;
        self.is_blocked = false;
        self.has_moved = false;
    }
}

/// Encrypts `plain`, and the records that TLS itself has to send, to the end of `out`.
fn encrypt(tls: &mut TlsConnection, plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    let mut rest = plain;
    while !rest.is_empty() || tls.wants_write() {
        // TLS accepts a bounded part of it at a time.
        let count = io::Write::write(&mut tls.writer(), rest)?;
        rest = &rest[count..];
        while tls.wants_write() {
            tls.write_tls(out)?;
        }
    }
    Ok(())
}

fn is_passing(error: io::ErrorKind) -> bool {
    matches!(error, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
