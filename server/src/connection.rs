//! One client: what it left half sent or half read, and the steps of its turn.
//!
//! A connection is a state machine that a worker moves in rounds (`worker`): [`Connection::read`]
//! all that are ready, then [`Connection::run`] each. Buffers are the worker's; only what a client
//! leaves half sent or half read is kept here, so an idle one holds no buffer. Not here: what
//! requests mean (`session`).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

use crate::connections::{Activity, Ending, Registration};
use crate::counters::Counters;
use crate::limits::InForce;
use crate::net::Stream;
use crate::node::delivery::Delivery;
use crate::node::front::Front;
use crate::scratch::Scratch;
use crate::service::Service;
use crate::session::{Pause, REPLY_BYTES_HIGH, Round, Session};

/// Bytes read at once into a buffer of the connection's own.
const READ_BYTES: usize = 16 << 10;
/// A request that needs more than this many bytes is paid for from the service's reading budget.
const FREE_REQUEST_BYTES: usize = 32 << 10;

/// Answers that wait beyond so many bytes are paid for from the service's unwritten budget. A batch
/// of small answers is less.
const FREE_UNWRITTEN_BYTES: usize = 2 * REPLY_BYTES_HIGH;

/// A client's connection.
pub(crate) struct Connection {
    registration: Registration,
    stream: Stream,
    session: Session,
    /// Read and not yet consumed.
    pending: Vec<u8>,
    /// Answered and not yet written.
    unwritten: Vec<u8>,
    /// `pending` is of no use before it holds so many bytes.
    needed: usize,
    /// Bytes reserved of the reading budget.
    reserved: usize,
    /// Bytes reserved of the unwritten budget.
    owed: usize,
    /// `pending` may hold whole requests: run it before reading more.
    unfinished: bool,
    /// Nothing more is run before other nodes have answered.
    blocked: bool,
    /// Hang up as soon as everything is written.
    closing: bool,
}

/// What a connection's turn has to work with besides its own state.
pub(crate) struct Turn<'a> {
    pub(crate) service: &'a Service,
    pub(crate) counters: &'a Counters,
    pub(crate) now: engine::Now,
    pub(crate) worker: usize,
    pub(crate) in_force: &'a InForce,
    pub(crate) scratch: &'a mut Scratch,
    /// The way to other nodes, in a cluster.
    pub(crate) front: Option<&'a mut Front>,
    /// Answers are collected here, and written before the turn ends.
    pub(crate) output: &'a mut Vec<u8>,
}

/// What came of reading.
pub(crate) enum Read {
    /// Nothing to do before the stream is ready again.
    Wait,
    /// So many bytes are in the buffer that was given.
    Bytes(usize),
    /// There is something to run in the connection's own buffer.
    Held,
    /// The client is gone, or is to go.
    Close,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Wait until the stream is ready.
    Wait,
    /// There is more to do: another turn, after the others.
    Again,
    /// Hang up.
    Close,
}

impl Connection {
    pub(crate) fn new(registration: Registration, stream: Stream) -> Self {
        let mut session = Session::default();
        // The mode of the admin socket is its password.
        session.authenticated = registration.info.is_admin;
        Self {
            registration,
            stream,
            session,
            pending: Vec::new(),
            unwritten: Vec::new(),
            needed: 1,
            reserved: 0,
            owed: 0,
            unfinished: false,
            blocked: false,
            closing: false,
        }
    }

    /// Whether the client may change the cluster.
    pub(crate) fn is_operator(&self) -> bool {
        self.registration.info.is_operator
    }

    /// Puts an answer of another node into its place; true when there is something to tell.
    pub(crate) fn give(&mut self, delivery: Delivery) -> bool {
        delivery.give(&mut self.session.replies);
        self.session.replies.is_ready()
    }

    /// Gives back what it reserved; call it before dropping.
    pub(crate) fn release(&self, service: &Service) {
        service.reading().give_back(self.reserved);
        service.unwritten().give_back(self.owed);
    }

    /// Writes what is owed and reads what has come, into `buffer` where nothing is held.
    ///
    /// # Errors
    ///
    /// What the system says of the stream.
    pub(crate) fn read(
        &mut self,
        context: &mut Context<'_>,
        service: &Service,
        counters: &Counters,
        buffer: &mut [u8],
    ) -> io::Result<Read> {
        if self.registration.info.ending() == Ending::Now {
            return Ok(Read::Close);
        }
        if !self.unwritten.is_empty() {
            let unwritten = std::mem::take(&mut self.unwritten);
            self.write(context, counters, &unwritten)?;
            self.pay_for_unwritten(service)?;
            if !self.unwritten.is_empty() {
                // The client does not read: nothing more is run for it until it does.
                return Ok(Read::Wait);
            }
        }
        if self.session.replies.is_ready() {
            return Ok(Read::Held);
        }
        if self.closing {
            return Ok(if self.session.replies.is_empty() { Read::Close } else { Read::Wait });
        }
        if self.blocked && !self.session.replies.is_empty() {
            return Ok(Read::Wait);
        }
        if self.unfinished || self.blocked {
            return Ok(Read::Held);
        }
        if self.pending.is_empty() {
            let mut buffer = ReadBuf::new(buffer);
            return Ok(match Pin::new(&mut self.stream).poll_read(context, &mut buffer)? {
                Poll::Pending if self.is_leaving() && self.session.replies.is_empty() => {
                    Read::Close
                }
                Poll::Pending => Read::Wait,
                Poll::Ready(()) if buffer.filled().is_empty() => self.hung_up(),
                Poll::Ready(()) => {
                    counters.bytes_read.add(buffer.filled().len() as u64);
                    Read::Bytes(buffer.filled().len())
                }
            });
        }
        self.read_on(context, counters)
    }

    /// Reads behind the front of a request that is held already.
    fn read_on(&mut self, context: &mut Context<'_>, counters: &Counters) -> io::Result<Read> {
        let held = self.pending.len();
        // A large value is read in steps that grow with it: a client that only promises one gets
        // no memory for it.
        let step = self.needed.saturating_sub(held).clamp(READ_BYTES, held.max(READ_BYTES));
        self.pending.resize(held + step, 0);
        let mut buffer = ReadBuf::new(&mut self.pending[held..]);
        let polled = Pin::new(&mut self.stream).poll_read(context, &mut buffer);
        let count = buffer.filled().len();
        self.pending.truncate(held + count);
        counters.bytes_read.add(count as u64);
        Ok(match polled? {
            Poll::Pending => Read::Wait,
            Poll::Ready(()) if count == 0 => self.hung_up(),
            Poll::Ready(()) => Read::Held,
        })
    }

    /// The client sends no more. What it has asked is still answered: it may have closed its half only.
    fn hung_up(&mut self) -> Read {
        if self.session.replies.is_empty() {
            return Read::Close;
        }
        self.closing = true;
        Read::Wait
    }

    /// Runs what was read into a buffer of the worker's.
    ///
    /// # Errors
    ///
    /// What the system says of the stream.
    pub(crate) fn run(
        &mut self,
        context: &mut Context<'_>,
        turn: &mut Turn<'_>,
        input: &[u8],
    ) -> io::Result<After> {
        let done = self.step(turn, input);
        self.pending.extend_from_slice(&input[done..]);
        self.end_turn(context, turn)
    }

    /// Runs what the connection itself holds.
    ///
    /// # Errors
    ///
    /// What the system says of the stream.
    pub(crate) fn run_held(
        &mut self,
        context: &mut Context<'_>,
        turn: &mut Turn<'_>,
    ) -> io::Result<After> {
        if self.pending.len() >= self.needed || self.session.replies.is_ready() {
            let mut pending = std::mem::take(&mut self.pending);
            let done = self.step(turn, &pending);
            pending.drain(..done);
            if !pending.is_empty() {
                if pending.capacity() > FREE_REQUEST_BYTES && pending.len() < self.needed {
                    // The buffer of a large value must not wait with the front of what follows.
                    pending.shrink_to_fit();
                }
                self.pending = pending;
            }
        }
        self.end_turn(context, turn)
    }

    /// Runs the session over `input` and answers how much of it is done with.
    fn step(&mut self, turn: &mut Turn<'_>, input: &[u8]) -> usize {
        let service = turn.service;
        let mut round = Round {
            service,
            counters: turn.counters,
            now: turn.now,
            requests: service.config().requests_per_event,
            worker: turn.worker,
            in_force: turn.in_force,
            scratch: turn.scratch,
            client_fd: self.registration.info.fd,
            alone: false,
            front: turn.front.as_deref_mut(),
        };
        turn.output.clear();
        self.session.replies.collect(turn.output);
        if self.closing || (input.len() < self.needed && !input.is_empty()) {
            return 0;
        }
        let (mut done, pause) = self.session.run(&mut round, input, turn.output);
        self.needed = 1;
        self.unfinished = false;
        self.blocked = false;
        match pause {
            Pause::Peers => self.blocked = true,
            Pause::Input(needed) if self.reserve(service, needed) => self.needed = needed,
            Pause::Input(needed) => {
                let front = &input[done..];
                self.session.refuse_value(&mut round, front, needed - front.len(), turn.output);
                done = input.len();
            }
            Pause::Replies | Pause::Turn => self.unfinished = done < input.len(),
            Pause::Close => {
                self.closing = true;
                done = input.len();
            }
        }
        if let Some(front) = &mut round.front {
            front.give_to(front.client, &mut self.session.replies);
            self.session.replies.collect(turn.output);
        }
        done
    }

    /// Writes the answers and tells what is next.
    fn end_turn(&mut self, context: &mut Context<'_>, turn: &mut Turn<'_>) -> io::Result<After> {
        self.write(context, turn.counters, turn.output)?;
        self.pay_for_unwritten(turn.service)?;
        turn.output.clear();
        let is_owed = !self.session.replies.is_empty();
        let busy = !self.pending.is_empty() || !self.unwritten.is_empty() || is_owed;
        self.registration.info.note(turn.now.mono.millis(), busy, self.activity());
        if !self.unwritten.is_empty() {
            // The write that did not fit has left word with the stream.
            return Ok(After::Wait);
        }
        if self.session.replies.is_ready() {
            return Ok(After::Again);
        }
        if self.closing {
            return Ok(if is_owed { After::Wait } else { After::Close });
        }
        if self.blocked && is_owed {
            return Ok(After::Wait);
        }
        if self.unfinished || self.blocked {
            return Ok(After::Again);
        }
        Ok(match self.stream.poll_readable(context)? {
            Poll::Ready(()) => After::Again,
            Poll::Pending if !busy && self.is_leaving() => After::Close,
            Poll::Pending => After::Wait,
        })
    }

    /// What it is in the middle of.
    fn activity(&self) -> Activity {
        if !self.unwritten.is_empty() {
            Activity::Writing
        } else if self.session.drops_input() {
            Activity::Swallowing
        } else if self.session.scanned < self.pending.len() {
            // The line of what is half here has its end: a value follows it.
            Activity::ReadingValue
        } else {
            Activity::Waiting
        }
    }

    /// Hang up as soon as nothing is left to read or write.
    fn is_leaving(&self) -> bool {
        self.registration.info.ending() != Ending::Never
    }

    /// Pays for a large request; what the last one cost is given back.
    fn reserve(&mut self, service: &Service, needed: usize) -> bool {
        let reading = service.reading();
        reading.give_back(std::mem::take(&mut self.reserved));
        let granted = needed <= FREE_REQUEST_BYTES || reading.take(needed, service.buffered_max());
        if granted && needed > FREE_REQUEST_BYTES {
            self.reserved = needed;
        }
        granted
    }

    /// Pays for answers that the client does not read.
    ///
    /// # Errors
    ///
    /// When too many of them wait, over all clients: this one is to be hung up on.
    fn pay_for_unwritten(&mut self, service: &Service) -> io::Result<()> {
        let unwritten = service.unwritten();
        unwritten.give_back(std::mem::take(&mut self.owed));
        let waiting = self.unwritten.len();
        if waiting > FREE_UNWRITTEN_BYTES {
            if !unwritten.take(waiting, service.buffered_max()) {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            self.owed = waiting;
        }
        Ok(())
    }

    /// Writes what the socket takes at once; the rest is kept.
    fn write(
        &mut self,
        context: &mut Context<'_>,
        counters: &Counters,
        output: &[u8],
    ) -> io::Result<()> {
        let mut written = 0;
        while written < output.len() {
            match Pin::new(&mut self.stream).poll_write(context, &output[written..])? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(count) => written += count,
                Poll::Pending => {
                    self.unwritten.extend_from_slice(&output[written..]);
                    break;
                }
            }
        }
        counters.bytes_written.add(written as u64);
        Ok(())
    }
}
