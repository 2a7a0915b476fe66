//! One link: reading and writing on a stream that both sides have authenticated.
//!
//! Here: batches in both directions, and the end of a link. Not here: the handshake (`handshake`),
//! opening links (`dialer`, `acceptor`).
//!
//! One task serves both directions. A write contains all frames that were pushed during the
//! previous write: the busier the link, the larger the batch, without a timer. A peer that does not
//! read stalls the writes to it, which fills its outbox and nothing else. If that peer opened the
//! link, its frames are not read either.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{BufMut as _, BytesMut};
use cluster::message::handshake::CloseReason;
use cluster::message::{DecodedFrame, Frame, FrameBounds, MessageError, decode};
use control::{GridTicks, WakeGrid};
use tokio::io::{AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _};
use tokio::time::{sleep, timeout};

use super::outbox::{FrameClass, Outbox, WrittenFrames, weight};
use super::ping::{PingAction, Pings};
use super::security::SecuredStream;
use super::{FrameHandler, LinkEnd, LinkEvent, RemotePeer, Timing};

/// Target size of a write; a single frame may be longer.
const WRITE_BYTES: usize = 64 << 10;
/// A larger buffer for writes, which only a large frame needs, is not kept.
const OUTPUT_BYTES_KEPT: usize = 2 * WRITE_BYTES;
/// Size of a read while the peer sends little.
const READ_BYTES_MIN: usize = 4 << 10;
/// Size of a read while the peer sends much. It is bounded so that the answers to the shortest
/// operations in one read fit into half of their window.
const READ_BYTES_MAX: usize = 256 << 10;
/// Number of reads per poll, after which other tasks run.
const TURNS: usize = 8;
/// Interval of the checks for idle and stalled links.
const TICK: Duration = Duration::from_millis(1024);
/// Longer waits for the next ping of an idle link, or for the end of a silent one, end on the grid.
const LONG_WAIT: Duration = Duration::from_millis(500);
const LONG_WAIT_SLACK: Duration = Duration::from_millis(128);
/// Timeout for the pending frames and the farewell of a closing link.
const FAREWELL_TIME: Duration = Duration::from_secs(1);

pub(super) struct TransportLink {
    pub(super) peer: RemotePeer,
    wire: SecuredStream,
    handler: Arc<dyn FrameHandler>,
    outbox: Arc<Outbox>,
    bounds: FrameBounds,
    timing: Timing,
    grid: WakeGrid,
    input: BytesMut,
    /// Size of the next read.
    read_bytes: usize,
    /// The frames of one read.
    frames: Vec<Frame>,
    /// Frames taken from the outbox and not encoded yet.
    taken: VecDeque<Frame>,
    output: BytesMut,
    /// Number of bytes of `output` that were written.
    written: usize,
    is_unflushed: bool,
    /// The load of the frames in `output`, to be released once they are written.
    room: WrittenFrames,
    /// The sender is closed: the link ends when everything is written.
    is_closed: bool,
    /// A write is waiting for space in the socket's buffer.
    is_blocked: bool,
    pings: Pings,
    /// The pong waits until the tasks that handle the frames beside the ping had a turn, so that
    /// their answers leave with it.
    is_pong_waiting: bool,
    /// Number of a ping to be written.
    pending_ping: Option<u64>,
    /// Time of the next liveness check, and its timer.
    alarm_ns: u64,
    alarm: Pin<Box<dyn Future<Output = ()> + Send>>,
    ticks: GridTicks,
    age_ticks: u64,
    idle_ticks: u64,
    stalled_ticks: u64,
}

impl TransportLink {
    pub(super) fn new(
        peer: RemotePeer,
        wire: SecuredStream,
        handler: Arc<dyn FrameHandler>,
        bounds: FrameBounds,
        timing: Timing,
        grid: &WakeGrid,
        rest: BytesMut,
    ) -> Self {
        let ticks = grid.ticks(TICK);
        let pings = Pings::new(peer.is_dialled, timing, handler.now_ns());
        Self {
            outbox: Arc::clone(&peer.sender.outbox),
            peer,
            wire,
            handler,
            bounds,
            timing,
            grid: grid.clone(),
            input: rest,
            read_bytes: READ_BYTES_MIN,
            frames: Vec::new(),
            taken: VecDeque::new(),
            output: BytesMut::new(),
            written: 0,
            is_unflushed: false,
            room: WrittenFrames::default(),
            is_closed: false,
            is_blocked: false,
            pings,
            is_pong_waiting: false,
            pending_ping: None,
            alarm_ns: 0,
            alarm: Box::pin(sleep(Duration::ZERO)),
            ticks,
            age_ticks: 0,
            idle_ticks: 0,
            stalled_ticks: 0,
        }
    }

    /// Whether the link has been up for more than a second.
    pub(super) fn has_lasted(&self) -> bool {
        self.age_ticks > 1
    }

    /// Reads and writes until the link ends. Cancel-safe.
    pub(super) async fn run(&mut self) -> LinkEnd {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<LinkEnd> {
        // Bytes after the peer's proof may have been read already.
        if let Err(result) = self.hand_over() {
            return Poll::Ready(result);
        }
        for _ in 0..TURNS {
            let has_read = match self.read(context) {
                Poll::Ready(Ok(())) => true,
                Poll::Ready(Err(result)) => return Poll::Ready(result),
                Poll::Pending => false,
            };
            // Write all results of this read before the next read adds more.
            while let Poll::Ready(result) = self.write(context) {
                if let Err(error) = result {
                    return Poll::Ready(link_end(&error));
                }
            }
            if !has_read {
                if std::mem::take(&mut self.is_pong_waiting) {
                    context.waker().wake_by_ref();
                }
                return self.tick(context);
            }
        }
        self.is_pong_waiting = false;
        context.waker().wake_by_ref();
        self.tick(context)
    }

    /// Reads once and hands over the complete frames. Pending: there is nothing to read, or the
    /// outbox is too full.
    fn read(&mut self, context: &mut Context<'_>) -> Poll<Result<(), LinkEnd>> {
        // Do not read from a peer that does not read its answers. A link that this side opened is
        // always read: if both sides write much, one of them must go on reading.
        if !self.peer.is_dialled && self.outbox.is_half_full() {
            return Poll::Pending;
        }
        // The buffer of a large frame is not kept.
        if self.input.is_empty() && self.input.capacity() > 4 * self.read_bytes {
            self.input = BytesMut::new();
        }
        self.input.reserve(self.read_bytes);
        // A read zeroes its room first, so the room is not all of the buffer.
        let mut room = (&mut self.input).limit(self.read_bytes);
        let count = match ready!(pin!(self.wire.read_buf(&mut room)).poll(context)) {
            Ok(0) => return Poll::Ready(Err(LinkEnd::Lost(io::ErrorKind::UnexpectedEof))),
            Ok(count) => count,
            Err(error) => return Poll::Ready(Err(link_end(&error))),
        };
        if count >= self.read_bytes {
            self.read_bytes = (self.read_bytes * 4).min(READ_BYTES_MAX);
        } else if count < self.read_bytes / 4 {
            self.read_bytes = (self.read_bytes / 4).max(READ_BYTES_MIN);
        }
        self.outbox.metrics().bytes_in.fetch_add(count as u64, Relaxed);
        self.pings.received(count);
        Poll::Ready(self.hand_over())
    }

    /// Decodes the complete frames and hands them over in one batch.
    fn hand_over(&mut self) -> Result<(), LinkEnd> {
        if self.input.is_empty() {
            return Ok(());
        }
        let result = loop {
            match decode(&mut self.input, self.bounds) {
                Ok(DecodedFrame::Frame(Frame::Farewell(why))) => break Some(LinkEnd::Theirs(why)),
                Ok(DecodedFrame::Frame(Frame::Hello(_) | Frame::Proof(_))) => {
                    break Some(LinkEnd::Fault(MessageError::Range("a second greeting")));
                }
                Ok(DecodedFrame::Frame(Frame::Ping(number))) => self.pings.on_ping(number),
                Ok(DecodedFrame::Frame(Frame::Pong(number))) => {
                    if self.pings.answer(number) {
                        self.handler.link(LinkEvent::Heard(self.peer.clone()));
                    }
                    // The timer no longer waits for the answer.
                    self.alarm_ns = u64::MAX;
                    if let Some(end) = self.check_liveness(self.handler.now_ns()) {
                        break Some(end);
                    }
                }
                Ok(DecodedFrame::Frame(frame)) => self.frames.push(frame),
                Ok(DecodedFrame::Incomplete { needed }) => {
                    if !self.input.is_empty() {
                        self.idle_ticks = 0;
                    }
                    self.read_bytes = self.read_bytes.max(needed.saturating_sub(self.input.len()));
                    break None;
                }
                Err(fault) => break Some(LinkEnd::Fault(fault)),
            }
        };
        if !self.frames.is_empty() {
            self.idle_ticks = 0;
            let metrics = self.outbox.metrics();
            metrics.frames_in.fetch_add(self.frames.len() as u64, Relaxed);
            metrics.batches_in.fetch_add(1, Relaxed);
            self.handler.frames(&self.peer, &mut self.frames);
            self.frames.clear();
            self.is_pong_waiting = self.pings.owes();
            // A large frame is complete: go back to the usual size.
            self.read_bytes = self.read_bytes.min(READ_BYTES_MAX);
        }
        result.map_or(Ok(()), Err)
    }

    /// Writes a batch. Pending: nothing is left to write, or the socket's buffer is full.
    fn write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written == self.output.len() && !self.is_unflushed {
            self.output.clear();
            if self.output.capacity() > OUTPUT_BYTES_KEPT {
                self.output = BytesMut::new();
            }
            self.written = 0;
            let outbox = Arc::clone(&self.outbox);
            self.is_closed = outbox.take(&mut self.room, &mut self.taken, context.waker());
            let owes = self.pings.owes() && !self.is_pong_waiting;
            if self.taken.is_empty() && self.pending_ping.is_none() && !owes {
                return Poll::Pending;
            }
            // The batch may be empty, if no frame could be encoded. The loop then takes more.
            self.fill();
        }
        while self.written < self.output.len() {
            let bytes = &self.output[self.written..];
            let Poll::Ready(count) = Pin::new(&mut self.wire).poll_write(context, bytes)? else {
                self.is_blocked = true;
                return Poll::Pending;
            };
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
            if std::mem::take(&mut self.is_blocked) {
                self.pings.moved(self.handler.now_ns());
            }
            self.is_unflushed = true;
            self.stalled_ticks = 0;
        }
        if self.is_unflushed {
            ready!(Pin::new(&mut self.wire).poll_flush(context))?;
            self.is_unflushed = false;
            self.stalled_ticks = 0;
        }
        Poll::Ready(Ok(()))
    }

    /// Encodes the next batch of taken frames, and pings and pongs that are due.
    fn fill(&mut self) {
        let now_ns = self.handler.now_ns();
        if let Some(number) = self.pings.take_owed() {
            let _ = Frame::Pong(number).encode(self.bounds, &mut self.output);
        }
        let mut frames = 0_u64;
        while self.output.len() < WRITE_BYTES
            && let Some(frame) = self.taken.pop_front()
        {
            self.room.add(FrameClass::of(&frame), weight(&frame));
            if frame.version_min() > self.peer.version {
                // The peer would end the link. The sender waits for an answer in vain, as for one
                // of a silent node.
                self.outbox.metrics().unsendable.fetch_add(1, Relaxed);
                continue;
            }
            match frame.encode(self.bounds, &mut self.output) {
                Ok(()) => frames += 1,
                Err(fault) => {
                    let peer = &self.peer;
                    tracing::error!(%peer, %fault, "dropped a frame that cannot be encoded");
                    self.outbox.metrics().unsendable.fetch_add(1, Relaxed);
                }
            }
        }
        let metrics = self.outbox.metrics();
        if frames > 0 {
            self.idle_ticks = 0;
            self.pings.used();
            metrics.frames_out.fetch_add(frames, Relaxed);
            metrics.bytes_out.fetch_add(self.output.len() as u64, Relaxed);
            metrics.writes.fetch_add(1, Relaxed);
            self.check_liveness(now_ns);
        }
        if let Some(number) = self.pending_ping.take() {
            let _ = Frame::Ping(number).encode(self.bounds, &mut self.output);
        }
    }

    /// Schedules a ping if one is due, and sets the timer of the next check.
    fn check_liveness(&mut self, now_ns: u64) -> Option<LinkEnd> {
        let at_ns = loop {
            match self.pings.due(now_ns) {
                PingAction::Nothing(at_ns) => break at_ns,
                PingAction::Ask => self.pending_ping = Some(self.pings.next(now_ns)),
                PingAction::Silence => self.handler.link(LinkEvent::Silent(self.peer.clone())),
                PingAction::End => return Some(LinkEnd::Silent),
            }
        };
        // Only move the timer earlier. If it expires too early, it is set again then.
        if at_ns < self.alarm_ns {
            let wait = Duration::from_nanos(at_ns.saturating_sub(now_ns));
            if wait < LONG_WAIT {
                self.alarm_ns = at_ns;
                self.alarm = Box::pin(sleep(wait));
            } else {
                // The latest end, so that an earlier check sets the timer again.
                self.alarm_ns = at_ns.saturating_add(LONG_WAIT_SLACK.as_nanos() as u64);
                let grid = self.grid.clone();
                self.alarm = Box::pin(async move { grid.wait_about(wait, LONG_WAIT_SLACK).await });
            }
        }
        None
    }

    /// Ends the link if it is closed, silent, stalled or idle.
    fn tick(&mut self, context: &mut Context<'_>) -> Poll<LinkEnd> {
        if self.is_closed && self.output.is_empty() {
            return Poll::Ready(LinkEnd::Ours(CloseReason::Idle));
        }
        while self.peer.is_dialled && self.alarm.as_mut().poll(context).is_ready() {
            self.alarm_ns = u64::MAX;
            if let Some(result) = self.check_liveness(self.handler.now_ns()) {
                return Poll::Ready(result);
            }
            if self.pending_ping.is_some() {
                // Poll again to write the ping.
                context.waker().wake_by_ref();
            }
        }
        while self.ticks.poll_tick(context).is_ready() {
            let is_writing = self.written < self.output.len() || self.is_unflushed;
            self.age_ticks += 1;
            self.idle_ticks += 1;
            self.stalled_ticks = if is_writing { self.stalled_ticks + 1 } else { 0 };
            if self.stalled_ticks > self.timing.stall.as_secs() {
                return Poll::Ready(LinkEnd::Stalled);
            }
            // The side that opened a link closes it. The other side waits longer, in case that host
            // is gone.
            let idle = self.timing.idle.as_secs() * if self.peer.is_dialled { 1 } else { 3 };
            if self.idle_ticks > idle && !is_writing && self.outbox.is_empty() {
                return Poll::Ready(LinkEnd::Ours(CloseReason::Idle));
            }
            self.read_bytes = READ_BYTES_MIN.max(self.read_bytes / 4);
            if self.input.is_empty() && self.idle_ticks > 1 {
                self.input = BytesMut::new();
            }
            if self.output.capacity() > 4 * WRITE_BYTES && !is_writing {
                self.output = BytesMut::new();
            }
        }
        Poll::Pending
    }

    /// Sends a farewell, and before it, in an orderly end, the pending frames. Then reads to the
    /// end of the stream for a moment: closing a socket with unread bytes resets it, which could
    /// discard the farewell.
    pub(super) async fn end(mut self, result: &LinkEnd) -> usize {
        let reason = match result {
            LinkEnd::Ours(reason) => *reason,
            LinkEnd::Fault(_) => CloseReason::BadFrame,
            LinkEnd::Theirs(_)
            | LinkEnd::Lost(_)
            | LinkEnd::Stalled
            | LinkEnd::Silent
            | LinkEnd::Replaced => return self.left(),
        };
        let is_orderly = matches!(result, LinkEnd::Ours(_));
        let _ = timeout(FAREWELL_TIME, async {
            self.wire.write_all(&self.output[self.written..]).await?;
            self.output.clear();
            self.written = 0;
            if is_orderly {
                // Frames taken before, then those pending now. Frames pushed later are not written.
                self.write_taken().await?;
                self.outbox.take(&mut self.room, &mut self.taken, Waker::noop());
                self.write_taken().await?;
            }
            let frame = Frame::Farewell(reason);
            let _ = frame.encode(self.bounds, &mut self.output);
            self.wire.write_all(&self.output).await?;
            self.output.clear();
            self.wire.shutdown().await?;
            let mut unread = [0; 4096];
            while self.wire.read(&mut unread).await? > 0 {}
            io::Result::Ok(())
        })
        .await;
        self.left()
    }

    async fn write_taken(&mut self) -> io::Result<()> {
        while !self.taken.is_empty() {
            self.fill();
            self.wire.write_all(&self.output).await?;
            self.output.clear();
        }
        Ok(())
    }

    /// The number of frames that were taken and not encoded.
    fn left(&self) -> usize {
        self.taken.len()
    }
}

fn link_end(error: &io::Error) -> LinkEnd {
    LinkEnd::Lost(error.kind())
}
