//! One client: read, run the session, write once per batch.
//!
//! Here: buffers and their bounds, back-pressure, turns. A batch is read into a buffer that all
//! connections of a worker share, and its answers are collected in another; only what a client
//! leaves half sent or half read is kept by its connection, so an idle one holds no buffer. Not
//! here: what requests mean (`session`).

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead as _, AsyncWrite as _, AsyncWriteExt as _, ReadBuf};
use tokio::task::yield_now;

use crate::connections::Registration;
use crate::net::Stream;
use crate::session::{Pause, REPLY_BYTES_HIGH, Round, Session};
use crate::worker::Worker;

/// Bytes read at once.
pub(crate) const READ_BYTES: usize = 64 << 10;
/// A request that needs more than this many bytes is paid for from the service's reading budget.
const FREE_REQUEST_BYTES: usize = 32 << 10;

/// The buffers that a worker's connections share, each while it runs a batch.
pub(crate) struct Scratch {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self { input: vec![0; READ_BYTES], output: Vec::with_capacity(2 * REPLY_BYTES_HIGH) }
    }
}

/// A client's connection.
pub(crate) struct Connection {
    worker: Rc<Worker>,
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
}

/// What to do after a batch.
enum Next {
    /// Read on.
    Read,
    /// Read on when others have had their turn.
    ReadLater,
    /// `pending` holds more to run, once the answers are written.
    Run,
    /// Likewise, when others have had their turn.
    RunLater,
    /// Write the answers and hang up.
    Close,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.worker.service.release_reading(self.reserved);
    }
}

impl Connection {
    pub(crate) fn new(worker: Rc<Worker>, registration: Registration, stream: Stream) -> Self {
        Self {
            worker,
            registration,
            stream,
            session: Session::default(),
            pending: Vec::new(),
            unwritten: Vec::new(),
            needed: 1,
            reserved: 0,
        }
    }

    /// Serves the client until it leaves, or must.
    ///
    /// # Errors
    ///
    /// What the system says of the stream; it is only worth a trace.
    pub(crate) async fn serve(mut self) -> io::Result<()> {
        loop {
            let mut next = poll_fn(|context| self.poll_read(context)).await?;
            loop {
                if !self.unwritten.is_empty() {
                    // The client does not read: nothing more is run for it until it does.
                    let unwritten = std::mem::take(&mut self.unwritten);
                    self.stream.write_all(&unwritten).await?;
                    self.worker.counters().bytes_written.add(unwritten.len() as u64);
                }
                match next {
                    Next::Read => break,
                    Next::ReadLater => {
                        yield_now().await;
                        break;
                    }
                    Next::RunLater => yield_now().await,
                    Next::Run => {}
                    Next::Close => return self.stream.shutdown().await,
                }
                next = poll_fn(|context| Poll::Ready(self.run_pending(context))).await?;
            }
            if self.worker.service.is_stopping() && self.pending.is_empty() {
                return self.stream.shutdown().await;
            }
        }
    }

    /// Reads once and runs what was read.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Next>> {
        let worker = Rc::clone(&self.worker);
        let mut scratch = worker.scratch.borrow_mut();
        let Scratch { input, output } = &mut *scratch;
        let (count, asked) = if self.pending.is_empty() {
            let mut buffer = ReadBuf::new(input);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
            (buffer.filled().len(), READ_BYTES)
        } else {
            // The front of a request is here: read on behind it.
            let held = self.pending.len();
            let asked = self.needed.saturating_sub(held).max(READ_BYTES / 4);
            self.pending.resize(held + asked, 0);
            let mut buffer = ReadBuf::new(&mut self.pending[held..]);
            let polled = Pin::new(&mut self.stream).poll_read(context, &mut buffer);
            let count = buffer.filled().len();
            self.pending.truncate(held + count);
            ready!(polled)?;
            (count, asked)
        };
        if count == 0 {
            self.pending.clear();
            return Poll::Ready(Ok(Next::Close));
        }
        worker.counters().bytes_read.add(count as u64);
        if !self.pending.is_empty() {
            drop(scratch);
            return Poll::Ready(self.run_pending(context));
        }
        let next = self.run(context, &input[..count], output, |connection, rest| {
            connection.pending.extend_from_slice(rest);
        })?;
        Poll::Ready(Ok(match next {
            // A full buffer: more is waiting, and others may be too.
            Next::Read if count == asked => Next::ReadLater,
            next => next,
        }))
    }

    /// Runs what is held.
    fn run_pending(&mut self, context: &mut Context<'_>) -> io::Result<Next> {
        if self.pending.len() < self.needed {
            return Ok(Next::Read);
        }
        let worker = Rc::clone(&self.worker);
        let mut scratch = worker.scratch.borrow_mut();
        let mut pending = std::mem::take(&mut self.pending);
        let held = pending.len();
        let mut kept = 0;
        let next = self.run(context, &pending, &mut scratch.output, |_, rest| kept = rest.len())?;
        pending.drain(..held - kept);
        if pending.is_empty() {
            // Give the memory back: a connection between two requests holds no buffer.
            pending = Vec::new();
        }
        self.pending = pending;
        Ok(next)
    }

    /// Runs the session over `input`, hands what it leaves to `keep`, and writes the answers.
    fn run(
        &mut self,
        context: &mut Context<'_>,
        input: &[u8],
        output: &mut Vec<u8>,
        keep: impl FnOnce(&mut Self, &[u8]),
    ) -> io::Result<Next> {
        let worker = Rc::clone(&self.worker);
        let service = &*worker.service;
        let now = service.clock().now();
        let mut round = Round {
            service,
            counters: worker.counters(),
            now,
            requests: service.config().requests_per_event,
        };
        output.clear();
        let (mut done, pause) = self.session.run(&mut round, input, output);
        self.needed = 1;
        let mut next = match pause {
            Pause::Input(needed) => {
                if !self.reserve(needed) {
                    self.session.refuse_value(needed - (input.len() - done), output);
                    done = input.len();
                }
                self.needed = needed;
                Next::Read
            }
            Pause::Replies => Next::Run,
            Pause::Turn => Next::RunLater,
            Pause::Close => Next::Close,
        };
        let rest = if pause == Pause::Close { &[] } else { &input[done..] };
        if rest.is_empty() {
            self.needed = 1;
        } else {
            keep(self, rest);
        }
        if matches!(next, Next::Run | Next::RunLater) && rest.is_empty() {
            next = Next::Read;
        }
        self.registration.info.note(now.mono.millis(), !rest.is_empty());
        self.write(context, output)?;
        if output.capacity() > 8 * REPLY_BYTES_HIGH {
            *output = Vec::with_capacity(2 * REPLY_BYTES_HIGH);
        }
        Ok(next)
    }

    /// Pays for a large request; what the last one cost is given back.
    fn reserve(&mut self, needed: usize) -> bool {
        let service = &self.worker.service;
        service.release_reading(self.reserved);
        self.reserved = 0;
        if needed <= FREE_REQUEST_BYTES {
            return true;
        }
        let granted = service.reserve_reading(needed);
        if granted {
            self.reserved = needed;
        }
        granted
    }

    /// Writes what the socket takes at once; the rest is kept.
    fn write(&mut self, context: &mut Context<'_>, output: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < output.len() {
            match Pin::new(&mut self.stream).poll_write(context, &output[written..]) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => written += count,
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {
                    self.unwritten.extend_from_slice(&output[written..]);
                    break;
                }
            }
        }
        self.worker.counters().bytes_written.add(written as u64);
        Ok(())
    }
}
