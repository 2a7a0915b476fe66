//! The outbox of a peer: pending frames, within bounds.
//!
//! Here: the window of each class of frames, the weight of a frame, the single wake of a burst. Not
//! here: writing (`link`).
//!
//! Frames are kept as values rather than as bytes, because the protocol version is only known once
//! there is a link.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use cluster::message::Frame;
use cluster::message::tunnel::{TunnelEvent, TunnelFrame};
use parking_lot::Mutex;

use super::metrics::LinkMetrics;

/// The class of a frame. Each class has a window, so that one full class does not delay the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrameClass {
    /// Frames of data links through another node.
    Tunnel,
    /// Heartbeats, map updates, commands for the map.
    Control,
}

impl FrameClass {
    /// All classes.
    pub const ALL: [Self; 2] = [Self::Tunnel, Self::Control];

    /// The class of `frame`.
    #[must_use]
    pub fn of(frame: &Frame) -> Self {
        match frame {
            Frame::Relay { frame, .. } => Self::of(frame),
            Frame::Tunnel(_) => Self::Tunnel,
            Frame::Hello(_)
            | Frame::Proof(_)
            | Frame::Farewell(_)
            | Frame::Call(_)
            | Frame::Answer(_)
            | Frame::Query(_)
            | Frame::QueryReply(_)
            | Frame::Ping(_)
            | Frame::Pong(_) => Self::Control,
        }
    }
}

/// Bounds on the pending frames of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendWindow {
    /// Maximum number of frames.
    pub frames: u32,
    /// Maximum number of bytes. An empty window accepts one frame of any size.
    pub bytes: usize,
}

/// The windows of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendWindows {
    /// By class, in the order of [`FrameClass::ALL`].
    pub of: [SendWindow; 2],
}

impl Default for SendWindows {
    fn default() -> Self {
        let window = |frames, mebibytes: usize| SendWindow { frames, bytes: mebibytes << 20 };
        Self { of: [window(8192, 4), window(1024, 8)] }
    }
}

/// The reason why a frame was refused. No part of it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Shed {
    /// The window of the frame's class is full.
    #[error("the window of the lane is full")]
    Full(FrameClass),
    /// The peer had opened the link and it has ended, or the peer has another address now.
    #[error("the lane is gone")]
    Gone,
}

/// The load of a class's window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Load {
    frames: u32,
    bytes: usize,
}

/// The load of frames that were written, to be released from the windows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WrittenFrames {
    of: [Load; 2],
}

impl WrittenFrames {
    pub(super) fn add(&mut self, class: FrameClass, weight: usize) {
        let load = &mut self.of[class as usize];
        load.frames += 1;
        load.bytes += weight;
    }
}

/// The pending frames of one peer. Any thread pushes; the task of the link takes.
#[derive(Debug)]
pub(super) struct Outbox {
    windows: SendWindows,
    metrics: Arc<LinkMetrics>,
    state: Mutex<OutboxState>,
}

#[derive(Debug, Default)]
struct OutboxState {
    queue: VecDeque<Frame>,
    /// The load of the frames in `queue`, and of taken frames that are not written yet.
    loads: [Load; 2],
    /// The waker of the task that waits for frames. The first frame of a burst takes it, so that
    /// the other frames cost no wake.
    waker: Option<Waker>,
    /// A link is requested although no frame is pending.
    is_probed: bool,
    is_closed: bool,
}

impl Outbox {
    pub(super) fn new(windows: SendWindows, metrics: Arc<LinkMetrics>) -> Self {
        Self { windows, metrics, state: Mutex::default() }
    }

    pub(super) fn metrics(&self) -> &Arc<LinkMetrics> {
        &self.metrics
    }

    /// Pushes one frame.
    pub(super) fn push(&self, frame: Frame) -> Result<(), Shed> {
        let mut state = self.state.lock();
        let is_closed = state.is_closed;
        admit(&mut state.loads, is_closed, &self.windows, &frame)
            .inspect_err(|why| self.metrics.note_shed(*why))?;
        state.queue.push_back(frame);
        let waker = state.waker.take();
        drop(state);
        wake(waker);
        Ok(())
    }

    /// Releases the load of written frames, and takes all pending frames. If there are none,
    /// `waker` is woken when there are. Returns whether the sender is closed.
    pub(super) fn take(
        &self,
        written_frames: &mut WrittenFrames,
        into: &mut VecDeque<Frame>,
        waker: &Waker,
    ) -> bool {
        let mut state = self.state.lock();
        // The requested link is up.
        state.is_probed = false;
        state.make_room(written_frames);
        if into.is_empty() {
            std::mem::swap(&mut state.queue, into);
        }
        if into.is_empty() {
            state.waker = Some(waker.clone());
        }
        state.is_closed
    }

    /// Ready when a link is needed: frames are pending, a link was requested, or the sender was
    /// closed.
    pub(super) fn poll_wanted(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if !state.queue.is_empty() || state.is_probed || state.is_closed {
            state.is_probed = false;
            return Poll::Ready(());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Requests a link even if no frame is pending.
    pub(super) fn probe(&self) {
        let mut state = self.state.lock();
        state.is_probed = true;
        let waker = state.waker.take();
        drop(state);
        wake(waker);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().queue.is_empty()
    }

    /// Whether the window of some class is more than half full. The other half is reserved for
    /// answers to the next read.
    pub(super) fn is_half_full(&self) -> bool {
        let state = self.state.lock();
        state
            .loads
            .iter()
            .zip(&self.windows.of)
            .any(|(load, window)| load.frames > window.frames / 2 || load.bytes > window.bytes / 2)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Closes the outbox: further frames are refused.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let waker = state.waker.take();
        drop(state);
        wake(waker);
    }

    /// Drops all pending frames, because the link ended or none could be opened. The event that
    /// follows informs the callers, which resend the frames that still matter.
    pub(super) fn clear(&self, taken: usize) {
        let mut state = self.state.lock();
        self.metrics.note_lost(state.queue.len() + taken);
        let dropped = std::mem::take(&mut state.queue);
        state.loads = Default::default();
        drop(state);
        drop(dropped);
    }
}

impl OutboxState {
    fn make_room(&mut self, written_frames: &mut WrittenFrames) {
        for (load, written) in self.loads.iter_mut().zip(&mut written_frames.of) {
            let Load { frames, bytes } = std::mem::take(written);
            load.frames = load.frames.saturating_sub(frames);
            load.bytes = load.bytes.saturating_sub(bytes);
        }
    }
}

fn admit(
    loads: &mut [Load; 2],
    is_closed: bool,
    windows: &SendWindows,
    frame: &Frame,
) -> Result<(), Shed> {
    if is_closed {
        return Err(Shed::Gone);
    }
    let class = FrameClass::of(frame);
    let (load, window) = (&mut loads[class as usize], windows.of[class as usize]);
    let bytes = load.bytes.saturating_add(weight(frame));
    if load.frames >= window.frames || (load.frames > 0 && bytes > window.bytes) {
        return Err(Shed::Full(class));
    }
    *load = Load { frames: load.frames + 1, bytes };
    Ok(())
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// The weight of a frame in its window: about its size in memory while it is pending.
pub(super) fn weight(frame: &Frame) -> usize {
    let variable = match frame {
        Frame::Call(call) | Frame::Answer(call) => call.rpc.len(),
        Frame::Query(query) | Frame::QueryReply(query) => query.body.len(),
        Frame::Relay { frame, .. } => weight(frame),
        Frame::Tunnel(TunnelFrame { event: TunnelEvent::Bytes { bytes, .. }, .. }) => bytes.len(),
        Frame::Hello(_)
        | Frame::Proof(_)
        | Frame::Farewell(_)
        | Frame::Ping(_)
        | Frame::Pong(_)
        | Frame::Tunnel(_) => 0,
    };
    const { assert!(size_of::<Frame>() <= 256, "full windows of short frames are full of frames") };
    size_of::<Frame>() + variable
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use cluster::message::control::ControlCall;
    use cluster::message::handshake::DataLinkId;

    use super::*;

    fn outbox(frames: u32, bytes: usize) -> Outbox {
        let windows = SendWindows { of: [SendWindow { frames, bytes }; 2] };
        Outbox::new(windows, Arc::default())
    }

    fn call() -> Frame {
        Frame::Call(ControlCall { id: 1, wall_ns: 0, rpc: Bytes::new() })
    }

    fn tunnel_frame(bytes: usize) -> Frame {
        let part = TunnelEvent::Bytes { at: 0, taken: 0, bytes: vec![0; bytes].into() };
        Frame::Tunnel(TunnelFrame { id: DataLinkId { index: 0, number: 1 }, event: part })
    }

    fn taken(outbox: &Outbox, written_frames: &mut WrittenFrames) -> VecDeque<Frame> {
        let mut into = VecDeque::new();
        outbox.take(written_frames, &mut into, Waker::noop());
        into
    }

    #[test]
    fn a_full_class_does_not_hold_up_another() {
        let outbox = outbox(2, 1 << 20);
        assert_eq!(outbox.push(tunnel_frame(1)), Ok(()));
        assert_eq!(outbox.push(tunnel_frame(1)), Ok(()));
        assert_eq!(outbox.push(tunnel_frame(1)), Err(Shed::Full(FrameClass::Tunnel)));
        assert_eq!(outbox.push(call()), Ok(()), "calls have a window of their own");
        assert_eq!(outbox.push(call()), Ok(()));
        assert_eq!(outbox.push(call()), Err(Shed::Full(FrameClass::Control)));
        assert_eq!(taken(&outbox, &mut WrittenFrames::default()).len(), 4);
    }

    #[test]
    fn written_frames_make_room_taken_ones_do_not() {
        let outbox = outbox(1, 1 << 20);
        outbox.push(call()).expect("it is empty");
        let mut written_frames = WrittenFrames::default();
        assert_eq!(taken(&outbox, &mut written_frames).len(), 1);
        assert_eq!(outbox.push(call()), Err(Shed::Full(FrameClass::Control)));
        written_frames.add(FrameClass::Control, weight(&call()));
        assert_eq!(taken(&outbox, &mut written_frames).len(), 0);
        assert_eq!(written_frames, WrittenFrames::default());
        assert_eq!(outbox.push(call()), Ok(()));
    }

    #[test]
    fn bytes_count_but_one_frame_always_fits() {
        let outbox = outbox(100, 1000);
        assert_eq!(outbox.push(tunnel_frame(5000)), Ok(()));
        assert_eq!(outbox.push(tunnel_frame(1)), Err(Shed::Full(FrameClass::Tunnel)));
        outbox.clear(0);
        assert_eq!(outbox.push(tunnel_frame(1)), Ok(()));
        assert_eq!(outbox.push(tunnel_frame(1000)), Err(Shed::Full(FrameClass::Tunnel)));
    }

    #[test]
    fn a_closed_lane_takes_nothing() {
        let outbox = outbox(100, 1000);
        outbox.close();
        assert_eq!(outbox.push(call()), Err(Shed::Gone));
        assert!(outbox.poll_wanted(&Context::from_waker(Waker::noop())).is_ready());
    }
}
