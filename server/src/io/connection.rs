//! One client: what it left half sent or half read, and the steps of its turn.
//!
//! A connection is a state machine that a worker moves in rounds (`worker`): [`Connection::read`]
//! all that are ready, then [`Connection::run`] each. Buffers are the worker's; only what a client
//! leaves half sent or half read is kept here, so an idle one holds no buffer. Not here: what
//! requests mean (`session`), answers that the client does not take at once (`connection/write`).

mod write;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead as _, ReadBuf};

use crate::commands::scratch::Scratch;
use crate::counters::Counters;
use crate::limits::ActiveLimits;
use crate::net::Stream;
use crate::node::pending::{Completion, ReplyRun};
use crate::node::router::Router;
use crate::runtime::buffers::{Buffer, PROGRESS_BYTES};
use crate::runtime::connections::{Activity, ConnectionInfo, HangUp, Registration};
use crate::runtime::service::Service;
use crate::session::{ExecContext, LARGE_BYTES, Pause, Session};

/// Bytes read at once into a buffer of the connection's own, at least and at most.
const READ_BYTES: usize = 16 << 10;
const READ_BYTES_MAX: usize = 128 << 10;
/// A buffer with more of a request than this is paid for from the service's reading budget.
const FREE_REQUEST_BYTES: usize = 32 << 10;

/// A client's connection.
pub(crate) struct Connection {
    registration: Registration,
    stream: Stream,
    session: Session,
    /// Read and not yet consumed.
    pending: Vec<u8>,
    /// `pending` is paid for.
    is_reserved: bool,
    /// What was read and written of its buffers when it was last noted that they move.
    noted: usize,
    /// There is no memory to read on: what `pending` begins is to be refused.
    starves: bool,
    /// Answered, and not yet written from `written` on.
    unwritten: Vec<u8>,
    written: usize,
    /// `pending` is of no use before it holds so many bytes.
    needed: usize,
    /// Nothing is run before this time, in milliseconds on the monotonic clock; 0 for no such time.
    delayed_until_ms: u64,
    /// `pending` may hold whole requests: run it before reading more.
    unfinished: bool,
    /// Nothing more is run before other nodes have answered.
    blocked: bool,
    /// Hang up as soon as everything is written.
    closing: bool,
}

/// What a connection's turn has to work with besides its own state.
pub(crate) struct ConnContext<'a> {
    pub(crate) service: &'a Service,
    pub(crate) counters: &'a Counters,
    pub(crate) now: engine::Now,
    pub(crate) worker: usize,
    pub(crate) active_limits: &'a ActiveLimits,
    pub(crate) scratch: &'a mut Scratch,
    /// Bytes of large values that this round may still move.
    pub(crate) large_left: &'a mut usize,
    /// The way to other nodes, in a cluster.
    pub(crate) router: Option<&'a mut Router>,
    /// Answers are collected here, and written before the turn ends.
    pub(crate) output: &'a mut Vec<u8>,
}

impl ConnContext<'_> {
    /// What the session works with, and where the answers go.
    fn exec_context<'t>(
        &'t mut self,
        client: &'t ConnectionInfo,
    ) -> (ExecContext<'t>, &'t mut Vec<u8>) {
        let ctx = ExecContext {
            service: self.service,
            counters: self.counters,
            now: self.now,
            requests: self.service.config().requests_per_event,
            worker: self.worker,
            active_limits: self.active_limits,
            scratch: &mut *self.scratch,
            client: Some(client),
            large_left: *self.large_left,
            alone: false,
            router: self.router.as_deref_mut(),
        };
        (ctx, &mut *self.output)
    }
}

/// What came of reading.
pub(crate) enum ReadResult {
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
pub(crate) enum TurnEnd {
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
            is_reserved: false,
            noted: 0,
            starves: false,
            unwritten: Vec::new(),
            written: 0,
            needed: 1,
            delayed_until_ms: 0,
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
    pub(crate) fn complete(&mut self, completion: Completion) -> bool {
        completion.complete(&mut self.session.replies);
        self.session.replies.is_ready()
    }

    /// Puts a run of answers into its places; true when there is something to tell.
    pub(crate) fn complete_run(&mut self, run: &ReplyRun, text: &[u8]) -> bool {
        self.session.replies.complete_run(run.place, run.count as usize, text);
        self.session.replies.is_ready()
    }

    /// Gives back what it reserved; call it before dropping.
    pub(crate) fn release(&self, service: &Service) {
        self.reserve(service, Buffer::Reading, 0);
        self.reserve(service, Buffer::Unwritten, 0);
    }

    fn reserve(&self, service: &Service, buffer: Buffer, bytes: usize) -> bool {
        service.reserve(&self.registration.info, buffer, bytes)
    }

    /// Puts a large value that has come off until others had their turn; false if it has none.
    pub(crate) fn puts_off(&mut self) -> bool {
        let has_come = self.pending.len() > LARGE_BYTES && self.pending.len() >= self.needed;
        self.unfinished |= has_come;
        has_come
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
    ) -> io::Result<ReadResult> {
        if self.registration.info.ending() == HangUp::Now {
            return Ok(ReadResult::Close);
        }
        if !self.unwritten.is_empty() {
            self.write_on(context, service, counters)?;
            if !self.unwritten.is_empty() {
                // The client does not read: nothing more is run for it until it does.
                return Ok(ReadResult::Wait);
            }
        }
        if self.delayed_until_ms > 0 {
            if self.is_leaving() {
                return Ok(ReadResult::Close);
            }
            if service.clock().now().mono.millis() < self.delayed_until_ms {
                return Ok(ReadResult::Wait);
            }
            self.delayed_until_ms = 0;
            if self.has_left(context, counters)? {
                // What it wanted to know is nobody's any more.
                return Ok(ReadResult::Close);
            }
        }
        if self.session.replies.is_ready() {
            return Ok(ReadResult::Held);
        }
        if self.closing {
            return Ok(if self.session.replies.is_empty() {
                ReadResult::Close
            } else {
                ReadResult::Wait
            });
        }
        if self.blocked && !self.session.replies.is_empty() {
            return Ok(ReadResult::Wait);
        }
        if self.unfinished || self.blocked {
            return Ok(ReadResult::Held);
        }
        if self.pending.is_empty() {
            let mut buffer = ReadBuf::new(buffer);
            return Ok(match Pin::new(&mut self.stream).poll_read(context, &mut buffer)? {
                Poll::Pending if self.is_leaving() && self.session.replies.is_empty() => {
                    ReadResult::Close
                }
                Poll::Pending => ReadResult::Wait,
                Poll::Ready(()) if buffer.filled().is_empty() => self.hung_up(),
                Poll::Ready(()) => {
                    counters.bytes_read.add(buffer.filled().len() as u64);
                    ReadResult::Bytes(buffer.filled().len())
                }
            });
        }
        self.read_on(context, service, counters)
    }

    /// Whether a client that was kept waiting has hung up; what it sent meanwhile is read, in part.
    fn has_left(&mut self, context: &mut Context<'_>, counters: &Counters) -> io::Result<bool> {
        let mut bytes = [0; 256];
        let mut buffer = ReadBuf::new(&mut bytes);
        if self.pending.len() > READ_BYTES {
            return Ok(false);
        }
        let polled = Pin::new(&mut self.stream).poll_read(context, &mut buffer)?;
        counters.bytes_read.add(buffer.filled().len() as u64);
        self.pending.extend_from_slice(buffer.filled());
        Ok(polled.is_ready() && buffer.filled().is_empty())
    }

    /// Reads behind the front of a request that is held already.
    fn read_on(
        &mut self,
        context: &mut Context<'_>,
        service: &Service,
        counters: &Counters,
    ) -> io::Result<ReadResult> {
        let held = self.pending.len();
        // A large value is read in steps that grow with it, and its memory is reserved as it
        // comes: a client that only promises one takes none.
        let max = held.clamp(READ_BYTES, READ_BYTES_MAX);
        let step = self.needed.saturating_sub(held).clamp(READ_BYTES, max);
        if !self.make_room(service, step) {
            self.starves = true;
            return Ok(ReadResult::Held);
        }
        self.pending.resize(held + step, 0);
        let mut buffer = ReadBuf::new(&mut self.pending[held..]);
        let polled = Pin::new(&mut self.stream).poll_read(context, &mut buffer);
        let count = buffer.filled().len();
        self.pending.truncate(held + count);
        counters.bytes_read.add(count as u64);
        self.note_moved(service);
        Ok(match polled? {
            Poll::Pending => ReadResult::Wait,
            Poll::Ready(()) if count == 0 => self.hung_up(),
            Poll::Ready(()) => ReadResult::Held,
        })
    }

    /// Makes room for `step` bytes behind what is pending; false if there is no memory for it.
    fn make_room(&mut self, service: &Service, step: usize) -> bool {
        let wanted = self.pending.len() + step;
        if wanted <= self.pending.capacity() {
            return true;
        }
        // Twice as much, so that little is moved, but no more than the value.
        let capacity = (2 * self.pending.capacity()).min(self.needed).max(wanted);
        if capacity > FREE_REQUEST_BYTES {
            if !self.is_reserved {
                let now_ms = service.clock().now().mono.millis();
                self.registration.info.holding.note_moved(now_ms);
            }
            self.is_reserved = self.reserve(service, Buffer::Reading, capacity);
            if !self.is_reserved {
                return false;
            }
        }
        self.pending.reserve_exact(capacity - self.pending.len());
        true
    }

    /// Notes that a buffer moves, where much has moved since that was noted last.
    fn note_moved(&mut self, service: &Service) {
        let moved = self.pending.len() + self.written;
        if moved.abs_diff(self.noted) >= PROGRESS_BYTES {
            self.noted = moved;
            let now_ms = service.clock().now().mono.millis();
            self.registration.info.holding.note_moved(now_ms);
        }
    }

    /// The client sends no more. What it has asked is still answered: it may have closed its half only.
    fn hung_up(&mut self) -> ReadResult {
        if self.session.replies.is_empty() {
            return ReadResult::Close;
        }
        self.closing = true;
        ReadResult::Wait
    }

    /// Runs what was read into a buffer of the worker's.
    ///
    /// # Errors
    ///
    /// What the system says of the stream.
    pub(crate) fn run(
        &mut self,
        context: &mut Context<'_>,
        conn_ctx: &mut ConnContext<'_>,
        input: &[u8],
    ) -> io::Result<TurnEnd> {
        let done = self.step(conn_ctx, input);
        let rest = &input[done..];
        if self.needed > rest.len() && !self.make_room(conn_ctx.service, rest.len()) {
            self.refuse_value(conn_ctx, rest);
        } else {
            self.pending.extend_from_slice(rest);
        }
        self.end_turn(context, conn_ctx)
    }

    /// Runs what the connection itself holds.
    ///
    /// # Errors
    ///
    /// What the system says of the stream.
    pub(crate) fn run_held(
        &mut self,
        context: &mut Context<'_>,
        conn_ctx: &mut ConnContext<'_>,
    ) -> io::Result<TurnEnd> {
        if std::mem::take(&mut self.starves) {
            conn_ctx.output.clear();
            let pending = std::mem::take(&mut self.pending);
            self.refuse_value(conn_ctx, &pending);
        } else if self.pending.len() >= self.needed || self.session.replies.is_ready() {
            let mut pending = std::mem::take(&mut self.pending);
            let done = self.step(conn_ctx, &pending);
            pending.drain(..done);
            if !pending.is_empty() {
                if pending.capacity() > FREE_REQUEST_BYTES && pending.len() < self.needed {
                    // The buffer of a large value must not wait with the front of what follows.
                    pending.shrink_to_fit();
                }
                self.pending = pending;
            }
        }
        if self.is_reserved && self.pending.capacity() <= FREE_REQUEST_BYTES {
            self.reserve(conn_ctx.service, Buffer::Reading, 0);
            self.is_reserved = false;
        }
        self.end_turn(context, conn_ctx)
    }

    /// Runs the session over `input` and answers how much of it is done with.
    fn step(&mut self, conn_ctx: &mut ConnContext<'_>, input: &[u8]) -> usize {
        conn_ctx.output.clear();
        self.session.replies.collect(conn_ctx.output);
        if self.closing || (input.len() < self.needed && !input.is_empty()) {
            return 0;
        }
        let (mut ctx, output) = conn_ctx.exec_context(&self.registration.info);
        let (mut done, pause) = self.session.run(&mut ctx, input, output);
        self.needed = 1;
        self.unfinished = false;
        self.blocked = false;
        match pause {
            Pause::Peers => self.blocked = true,
            Pause::Input(needed) if self.session.may_ask_for(needed) => self.needed = needed,
            Pause::Input(needed) => {
                let front = &input[done..];
                self.closing = !self.session.refuse_value(&mut ctx, front, needed, output);
                done = input.len();
            }
            Pause::Replies | Pause::Turn => self.unfinished = done < input.len(),
            Pause::Delay(at_ms) => {
                (self.unfinished, self.delayed_until_ms) = (true, at_ms);
                ctx.service.delays().add(at_ms, Arc::clone(&self.registration.info));
            }
            Pause::Close => {
                self.closing = true;
                done = input.len();
            }
        }
        if let Some(router) = &mut ctx.router {
            router.deliver_to(router.client, &mut self.session.replies);
            self.session.replies.collect(output);
        }
        if input.len() > LARGE_BYTES || conn_ctx.output.len() > LARGE_BYTES {
            *conn_ctx.large_left =
                conn_ctx.large_left.saturating_sub(done.max(conn_ctx.output.len()));
        }
        done
    }

    /// Refuses the request that `front` begins: there is no memory to read the rest of it.
    fn refuse_value(&mut self, conn_ctx: &mut ConnContext<'_>, front: &[u8]) {
        let (mut ctx, output) = conn_ctx.exec_context(&self.registration.info);
        self.closing = !self.session.refuse_value(&mut ctx, front, self.needed, output);
        self.needed = 1;
    }

    /// Writes the answers and tells what is next.
    fn end_turn(
        &mut self,
        context: &mut Context<'_>,
        conn_ctx: &mut ConnContext<'_>,
    ) -> io::Result<TurnEnd> {
        self.write(context, conn_ctx)?;
        let is_owed = !self.session.replies.is_empty();
        let is_held = !self.pending.is_empty() && self.delayed_until_ms == 0;
        let busy = is_held || !self.unwritten.is_empty() || is_owed;
        self.registration.info.note(conn_ctx.now.mono.millis(), busy, self.activity());
        if !self.unwritten.is_empty() {
            // The write that did not fit has left word with the stream.
            return Ok(TurnEnd::Wait);
        }
        if self.session.replies.is_ready() {
            return Ok(TurnEnd::Again);
        }
        if self.closing {
            return Ok(if is_owed { TurnEnd::Wait } else { TurnEnd::Close });
        }
        if self.blocked && is_owed {
            return Ok(TurnEnd::Wait);
        }
        if self.delayed_until_ms > 0 {
            return Ok(TurnEnd::Wait);
        }
        if self.unfinished || self.blocked {
            return Ok(TurnEnd::Again);
        }
        Ok(match self.stream.poll_readable(context)? {
            Poll::Ready(()) => TurnEnd::Again,
            Poll::Pending if !busy && self.is_leaving() => TurnEnd::Close,
            Poll::Pending => TurnEnd::Wait,
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
        self.registration.info.ending() != HangUp::Never
    }
}
