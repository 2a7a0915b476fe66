//! One link: reading and writing on a stream that both sides have greeted on.
//!
//! Here: batches, out and in; how a link ends. Not here: how it begins (`handshake`), who opened it
//! (`dialer`, `acceptor`).
//!
//! One task does both directions. What is to be written is what was put into the outbox while the
//! last write was under way: the busier the link, the larger the batch, and no timer anywhere. A
//! peer that does not read stalls its writing, which fills its outbox, and nothing else; one that has
//! opened the link is then not read from either.

use std::collections::VecDeque;
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::BytesMut;
use cluster::message::handshake::CloseReason;
use cluster::message::{DecodedFrame, Frame, FrameBounds, MessageError, decode};
use tokio::io::{AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _};
use tokio::time::{Interval, MissedTickBehavior, Sleep, interval, sleep, timeout};

use super::outbox::{FrameClass, Outbox, WrittenFrames, weight};
use super::ping::{PingAction, Pings};
use super::security::SecuredStream;
use super::{FrameHandler, LinkEnd, LinkEvent, RemotePeer, Timing};

/// Written at once, a longer frame aside.
const WRITE_BYTES: usize = 64 << 10;
/// Read at once from a peer that says little.
const READ_BYTES_MIN: usize = 4 << 10;
/// And from one that says much. The shortest operations in it are fewer than half of the window of
/// the answers to them.
const READ_BYTES_MAX: usize = 256 << 10;
/// Batches before other tasks have their turn.
const TURNS: usize = 8;
/// How often idleness and stalls are looked at.
const TICK: Duration = Duration::from_secs(1);
/// The last word, and what still waits before it, may take so long.
const FAREWELL_TIME: Duration = Duration::from_secs(1);

pub(super) struct TransportLink {
    pub(super) peer: RemotePeer,
    wire: SecuredStream,
    handler: Arc<dyn FrameHandler>,
    outbox: Arc<Outbox>,
    bounds: FrameBounds,
    timing: Timing,
    input: BytesMut,
    /// How much to make room for.
    read_bytes: usize,
    /// Of one read.
    frames: Vec<Frame>,
    /// Out of the outbox, not yet encoded.
    taken: VecDeque<Frame>,
    output: BytesMut,
    /// Of `output`.
    written: usize,
    is_unflushed: bool,
    /// What `output` makes room for once it is written.
    room: WrittenFrames,
    /// The lane takes nothing more: the link goes when all is written.
    is_closed: bool,
    /// A write waits for the peer's host to take more.
    is_blocked: bool,
    pings: Pings,
    /// An ask that is to be written.
    pending_ping: Option<u64>,
    /// When signs of life are looked at again, and the timer that says so.
    alarm_ns: u64,
    alarm: Pin<Box<Sleep>>,
    ticks: Interval,
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
        rest: BytesMut,
    ) -> Self {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let pings = Pings::new(peer.is_dialled, timing, handler.now_ns());
        Self {
            outbox: Arc::clone(&peer.sender.outbox),
            peer,
            wire,
            handler,
            bounds,
            timing,
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
            pending_ping: None,
            alarm_ns: 0,
            alarm: Box::pin(sleep(Duration::ZERO)),
            ticks,
            age_ticks: 0,
            idle_ticks: 0,
            stalled_ticks: 0,
        }
    }

    /// It lasted for some time, at least a second.
    pub(super) fn has_lasted(&self) -> bool {
        self.age_ticks > 2
    }

    /// Reads and writes until the link ends. May be dropped and called again.
    pub(super) async fn run(&mut self) -> LinkEnd {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<LinkEnd> {
        // What came behind the greeting is here already.
        if let Err(result) = self.hand_over() {
            return Poll::Ready(result);
        }
        for _ in 0..TURNS {
            let has_read = match self.read(context) {
                Poll::Ready(Ok(())) => true,
                Poll::Ready(Err(result)) => return Poll::Ready(result),
                Poll::Pending => false,
            };
            // All that the read led to, before the next read leads to more.
            while let Poll::Ready(result) = self.write(context) {
                if let Err(error) = result {
                    return Poll::Ready(link_end(&error));
                }
            }
            if !has_read {
                return self.tick(context);
            }
        }
        context.waker().wake_by_ref();
        self.tick(context)
    }

    /// One read, and what it completes. Pending: there is nothing to read, or too much to write.
    fn read(&mut self, context: &mut Context<'_>) -> Poll<Result<(), LinkEnd>> {
        // Who does not read its answers is not listened to. On a link that we opened we always
        // listen: so of two that write much, one goes on.
        if !self.peer.is_dialled && self.outbox.is_half_full() {
            return Poll::Pending;
        }
        self.input.reserve(self.read_bytes);
        let count = match ready!(pin!(self.wire.read_buf(&mut self.input)).poll(context)) {
            Ok(0) => return Poll::Ready(Err(LinkEnd::Lost(io::ErrorKind::UnexpectedEof))),
            Ok(count) => count,
            Err(error) => return Poll::Ready(Err(link_end(&error))),
        };
        if count >= self.read_bytes {
            self.read_bytes = (self.read_bytes * 4).min(READ_BYTES_MAX);
        }
        self.outbox.metrics().bytes_in.fetch_add(count as u64, Relaxed);
        Poll::Ready(self.hand_over())
    }

    /// Decodes what is whole and hands it over in one batch.
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
            // A large frame is complete: the next ones are as before.
            self.read_bytes = self.read_bytes.min(READ_BYTES_MAX);
        }
        result.map_or(Ok(()), Err)
    }

    /// Writes a batch. Pending: nothing is left to write, or the peer takes no more.
    fn write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written == self.output.len() && !self.is_unflushed {
            self.output.clear();
            self.written = 0;
            let outbox = Arc::clone(&self.outbox);
            self.is_closed = outbox.take(&mut self.room, &mut self.taken, context.waker());
            if self.taken.is_empty() && self.pending_ping.is_none() && !self.pings.owes() {
                return Poll::Pending;
            }
            // It may come to nothing: then there is more to take.
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

    /// Encodes the next batch of what was taken, and what signs of life are due.
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
            match frame.encode(self.bounds, &mut self.output) {
                Ok(()) => frames += 1,
                Err(fault) => {
                    tracing::error!(peer = %self.peer, %fault, "a frame cannot be sent");
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

    /// Asks for a sign of life where that is due, and sets the alarm.
    fn check_liveness(&mut self, now_ns: u64) -> Option<LinkEnd> {
        let at_ns = loop {
            match self.pings.due(now_ns) {
                PingAction::Nothing(at_ns) => break at_ns,
                PingAction::Ask => self.pending_ping = Some(self.pings.next(now_ns)),
                PingAction::Silence => self.handler.link(LinkEvent::Silent(self.peer.clone())),
                PingAction::End => return Some(LinkEnd::Silent),
            }
        };
        // One that rings early is set again then.
        if at_ns < self.alarm_ns {
            self.alarm_ns = at_ns;
            self.alarm.set(sleep(Duration::from_nanos(at_ns.saturating_sub(now_ns))));
        }
        None
    }

    /// Looks whether anything has moved for long.
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
                // It is to be written.
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
            // Who opened a link closes it. The other side waits longer: for one whose host is gone.
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

    /// Says the last word, and before it, in an orderly end, what still waits. Then listens for a
    /// moment: closing on something unread would take our word back.
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
                // First what was taken before, then what waits; no more than that.
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

    /// Frames taken that were not even encoded.
    fn left(&self) -> usize {
        self.taken.len()
    }
}

fn link_end(error: &io::Error) -> LinkEnd {
    LinkEnd::Lost(error.kind())
}
