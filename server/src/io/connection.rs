//! One client: its partly sent requests and unread replies, and the steps of its turn.
//!
//! A connection is a state machine that a worker drives in rounds (`worker`): [`Connection::read`]
//! for all ready connections, then [`Connection::run`] for each. The worker owns the buffers; a
//! connection keeps only partly sent requests and unread replies, so an idle one holds no buffer.
//! Not here: the meaning of requests (`session`), reading (`connection/read`), replies that the
//! socket does not take at once (`connection/write`).

mod read;
mod write;

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::commands::context::ExecContext;
use crate::commands::scratch::Scratch;
use crate::counters::Counters;
use crate::limits::ActiveLimits;
use crate::net::Stream;
use crate::node::pending::{Completion, ReplyRun};
use crate::runtime::buffers::Buffer;
use crate::runtime::connections::{Activity, ConnectionInfo, HangUp, Registration};
use crate::runtime::service::Service;
use crate::session::{ClusterContext, LARGE_BYTES, Pause, Session, SessionContext};

/// Least and most bytes read at once into the connection's own buffer.
const READ_BYTES: usize = 16 << 10;
const READ_BYTES_MAX: usize = 128 << 10;
/// A request buffer larger than this counts against the service's reading budget.
const FREE_REQUEST_BYTES: usize = 32 << 10;

/// A client's connection.
pub(crate) struct Connection {
    registration: Registration,
    stream: Stream,
    session: Session,
    /// Bytes read and not yet consumed.
    pending: Vec<u8>,
    /// `pending` is reserved from the reading budget.
    is_reserved: bool,
    /// Bytes read plus bytes written when progress was last recorded.
    noted: usize,
    /// The reading budget is used up: the request at the front of `pending` is refused.
    starves: bool,
    /// Replies; the bytes from `written` on are not yet written.
    unwritten: Vec<u8>,
    written: usize,
    /// The session does not run before `pending` holds this many bytes.
    needed: usize,
    /// The session does not run before this time, in milliseconds on the monotonic clock; 0 for no
    /// delay.
    delayed_until_ms: u64,
    /// `pending` may hold whole requests: run them before reading more.
    unfinished: bool,
    /// The session does not run before other nodes have answered.
    blocked: bool,
    /// Close the connection once all replies are written.
    closing: bool,
}

/// The context of a connection's turn, besides its own state.
pub(crate) struct ConnContext<'a> {
    pub(crate) service: &'a Service,
    pub(crate) counters: &'a Counters,
    pub(crate) now: engine::Now,
    pub(crate) worker: usize,
    pub(crate) active_limits: &'a ActiveLimits,
    pub(crate) scratch: &'a mut Scratch,
    /// Bytes of large values that this round may still transfer.
    pub(crate) large_left: &'a mut usize,
    /// The way to other nodes, in a cluster.
    pub(crate) cluster: Option<ClusterContext<'a>>,
    /// Requests that were run.
    pub(crate) requests: usize,
    /// Collects the replies, which are written before the turn ends.
    pub(crate) output: &'a mut Vec<u8>,
}

impl ConnContext<'_> {
    /// Returns the session's context, and the buffer for the replies.
    fn session_context<'t>(
        &'t mut self,
        client: &'t ConnectionInfo,
    ) -> (SessionContext<'t>, &'t mut Vec<u8>) {
        let exec = ExecContext {
            service: self.service,
            counters: self.counters,
            now: self.now,
            worker: self.worker,
            active_limits: self.active_limits,
            scratch: &mut *self.scratch,
            client: Some(client),
            alone: false,
            observed: None,
        };
        let ctx = SessionContext {
            exec,
            requests: self.service.config().requests_per_event,
            large_left: *self.large_left,
            cluster: self.cluster.as_mut().map(ClusterContext::reborrow),
        };
        (ctx, &mut *self.output)
    }
}

/// The result of reading.
pub(crate) enum ReadResult {
    /// Nothing to do before the stream is ready again.
    Wait,
    /// This many bytes are in the given buffer.
    Bytes(usize),
    /// The connection's own buffer holds bytes to run.
    Held,
    /// The client has left, or must be disconnected.
    Close,
}

/// The result of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnEnd {
    /// Wait until the stream is ready.
    Wait,
    /// There is more to do: run again after the other connections.
    Again,
    /// Close the connection.
    Close,
}

impl Connection {
    pub(crate) fn new(registration: Registration, stream: Stream) -> Self {
        let mut session = Session::default();
        // The admin socket needs no password: its file mode protects it.
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

    /// Returns the number of the listener that the client came through, below 3.
    pub(crate) fn listener(&self) -> usize {
        self.registration.info.listener()
    }

    /// Returns the file descriptor if the client may change the cluster.
    pub(crate) fn operator_fd(&self) -> Option<i32> {
        let info = &self.registration.info;
        info.is_operator.then_some(info.fd)
    }

    /// Puts another node's answer into the reply queue. Returns true if a reply is ready to be
    /// written.
    pub(crate) fn complete(&mut self, completion: Completion) -> bool {
        completion.complete(&mut self.session.replies);
        self.session.replies.is_ready()
    }

    /// Puts a run of answers into the reply queue. Returns true if a reply is ready to be written.
    pub(crate) fn complete_run(&mut self, run: &ReplyRun, text: &[u8]) -> bool {
        self.session.replies.complete_run(run.place, run.count as usize, text);
        self.session.replies.is_ready()
    }

    /// Releases the reserved memory; call this before dropping.
    pub(crate) fn release(&self, service: &Service) {
        self.reserve(service, Buffer::Reading, 0);
        self.reserve(service, Buffer::Unwritten, 0);
    }

    fn reserve(&self, service: &Service, buffer: Buffer, bytes: usize) -> bool {
        service.reserve(&self.registration.info, buffer, bytes)
    }

    /// Defers a large value that has arrived in full until other connections had their turn.
    /// Returns false if there is none.
    pub(crate) fn puts_off(&mut self) -> bool {
        let has_come = self.pending.len() > LARGE_BYTES && self.pending.len() >= self.needed;
        self.unfinished |= has_come;
        has_come
    }

    /// Handles the end of the client's input. The client may have closed only its sending half, so
    /// outstanding requests are still answered.
    fn hung_up(&mut self) -> ReadResult {
        if self.session.replies.is_empty() {
            return ReadResult::Close;
        }
        self.closing = true;
        ReadResult::Wait
    }

    /// Runs bytes that were read into the worker's buffer.
    ///
    /// # Errors
    ///
    /// An I/O error of the stream.
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

    /// Runs the bytes in the connection's own buffer.
    ///
    /// # Errors
    ///
    /// An I/O error of the stream.
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
                    // A buffer sized for a large value must not stay allocated for the front of the
                    // next request.
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

    /// Runs the session over `input` and returns the number of bytes consumed.
    fn step(&mut self, conn_ctx: &mut ConnContext<'_>, input: &[u8]) -> usize {
        conn_ctx.output.clear();
        self.session.replies.collect(conn_ctx.output);
        if self.closing || (input.len() < self.needed && !input.is_empty()) {
            return 0;
        }
        let (mut ctx, output) = conn_ctx.session_context(&self.registration.info);
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
                ctx.exec.service.delays().add(at_ms, Arc::clone(&self.registration.info));
            }
            Pause::Close => {
                self.closing = true;
                done = input.len();
            }
        }
        let requests = ctx.exec.service.config().requests_per_event - ctx.requests;
        if let Some(ClusterContext { router, .. }) = &mut ctx.cluster {
            router.deliver_to(router.client, &mut self.session.replies);
            self.session.replies.collect(output);
        }
        conn_ctx.requests += requests;
        if input.len() > LARGE_BYTES || conn_ctx.output.len() > LARGE_BYTES {
            *conn_ctx.large_left =
                conn_ctx.large_left.saturating_sub(done.max(conn_ctx.output.len()));
        }
        done
    }

    /// Refuses the request that begins with `front`: there is no memory to read the rest.
    fn refuse_value(&mut self, conn_ctx: &mut ConnContext<'_>, front: &[u8]) {
        let (mut ctx, output) = conn_ctx.session_context(&self.registration.info);
        self.closing = !self.session.refuse_value(&mut ctx, front, self.needed, output);
        self.needed = 1;
    }

    /// Writes the replies and returns the next step.
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
            // The stream wakes the worker when it can take more.
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

    /// Returns the current activity.
    fn activity(&self) -> Activity {
        if !self.unwritten.is_empty() {
            Activity::Writing
        } else if self.session.drops_input() {
            Activity::Swallowing
        } else if self.session.scanned < self.pending.len() {
            // The whole command line is here, so a value follows.
            Activity::ReadingValue
        } else {
            Activity::Waiting
        }
    }

    /// Returns whether the connection closes once all is read and written.
    fn is_leaving(&self) -> bool {
        self.registration.info.ending() != HangUp::Never
    }
}
