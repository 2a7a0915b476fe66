//! One data link, as all threads of the node see it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use cluster::LinkIndex;
use cluster::id::{Incarnation, NodeId};
use cluster::link::LinkReceiver;
use cluster::message::{BEHIND_RECORDS_VERSION, LIMIT_STATES_VERSION};
use cluster::send_stream::Acked;
use engine::StepCount;
use parking_lot::Mutex;

use super::writer::LinkWriter;

/// Appends to the streams of links: one lock of a link each.
pub static LINK_APPENDS: StepCount = StepCount::new();

/// State that all links to one incarnation of a node share.
#[derive(Debug, Default)]
pub(super) struct PeerTime {
    /// The newest time that the node has sent, on its own monotonic clock; 0: none.
    pub(super) time_ns: AtomicU64,
}

/// One data link to one incarnation of a node. It lasts as long as both incarnations; connections
/// come and go.
#[derive(Debug)]
pub(crate) struct PeerLink {
    /// Its row in the table of links.
    pub(crate) index: LinkIndex,
    /// The node at the other end.
    pub(crate) peer: NodeId,
    /// The node's incarnation.
    pub(crate) incarnation: Incarnation,
    /// The number of the link among those between the two nodes.
    pub(crate) k: u16,
    /// The position up to which its stream is acknowledged.
    pub(crate) acked: Acked,
    /// The end position of its stream.
    end: AtomicU64,
    /// Most unacknowledged bytes of the stream.
    bytes_max: u64,
    pub(super) writer: LinkWriter,
    /// Only the worker that reads the link locks it.
    pub(super) receiver: Mutex<LinkReceiver>,
    pub(super) time: Arc<PeerTime>,
    /// When the peer last sent an ack or answers.
    pub(super) progress_ns: AtomicU64,
    /// The newest version of the peer protocol that both incarnations know; 0 before the first
    /// handshake.
    pub(super) version: AtomicU16,
}

impl PeerLink {
    pub(super) fn new(
        index: LinkIndex,
        peer: NodeId,
        incarnation: Incarnation,
        k: u16,
        life: &Arc<PeerTime>,
    ) -> Self {
        let writer = LinkWriter::default();
        let output = writer.lock();
        let (acked, bytes_max) =
            (output.sender.stream.acked().clone(), output.sender.stream.bytes_max() as u64);
        drop(output);
        Self {
            index,
            peer,
            incarnation,
            k,
            acked,
            end: AtomicU64::new(0),
            bytes_max,
            writer,
            receiver: Mutex::default(),
            time: Arc::clone(life),
            progress_ns: AtomicU64::new(0),
            version: AtomicU16::new(0),
        }
    }

    /// Appends a complete numbered frame to the stream and returns its end position. While the link
    /// is down, the frame waits.
    pub(crate) fn append(&self, now_ns: u64, frame: &[u8]) -> u64 {
        self.append_with(now_ns, |out| out.extend_from_slice(frame))
    }

    /// Appends the complete numbered frames that `write` writes, and returns the end position of
    /// the last.
    pub(crate) fn append_with(&self, now_ns: u64, write: impl FnOnce(&mut Vec<u8>)) -> u64 {
        LINK_APPENDS.add(1);
        let mut output = self.writer.lock();
        output.used();
        let end = output.sender.stream.append_with(now_ns, write);
        self.end.store(end, Ordering::Release);
        end
    }

    /// Sends the unnumbered frames that `write` writes. Returns false if the link is down, and
    /// drops them.
    pub(crate) fn send(&self, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut output = self.writer.lock();
        if !output.is_up() {
            return false;
        }
        output.used();
        output.sender.loose().map(write).is_some()
    }

    /// Sends the appended bytes and the unnumbered frames. Called once per round for each touched
    /// link, without locks.
    pub(crate) fn flush(&self, now_ns: u64) {
        self.writer.flush(now_ns);
    }

    /// Whether unnumbered frames can be sent.
    pub(crate) fn is_up(&self) -> bool {
        self.writer.lock().is_up()
    }

    /// Whether operations that need the stream must be answered *busy*.
    pub(crate) fn is_full(&self) -> bool {
        self.unacked() >= self.bytes_max
    }

    /// Whether clients whose operations need the stream should not be read.
    pub(crate) fn is_over_half(&self) -> bool {
        self.unacked() >= self.bytes_max / 2
    }

    fn unacked(&self) -> u64 {
        self.end().saturating_sub(self.acked.get())
    }

    /// The unacknowledged bytes, in quarters of `bytes_max`.
    pub(crate) fn quarters(&self) -> usize {
        let output = self.writer.lock();
        let stream = &output.sender.stream;
        stream.unacked() * 4 / stream.bytes_max()
    }

    /// The position at which the next frame of the stream begins.
    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// The age of the oldest unacknowledged byte; 0 if there is none.
    pub(crate) fn age_ns(&self, now_ns: u64) -> u64 {
        self.writer.lock().sender.stream.age_ns(now_ns)
    }

    /// The time since the last acknowledgement while some byte is unacknowledged.
    pub(crate) fn silence_ns(&self, now_ns: u64) -> u64 {
        self.writer.lock().sender.stream.silence_ns(now_ns)
    }

    /// Whether the peer takes answers behind their records.
    pub(crate) fn takes_answers_behind_records(&self) -> bool {
        self.version.load(Ordering::Relaxed) >= BEHIND_RECORDS_VERSION
    }

    /// Whether the peer takes the short form of limit states in records.
    pub(crate) fn takes_limit_states(&self) -> bool {
        self.version.load(Ordering::Relaxed) >= LIMIT_STATES_VERSION
    }

    /// When the peer last sent an ack or answers, which show that it works. On this node's
    /// monotonic clock.
    pub(crate) fn progress_ns(&self) -> u64 {
        self.progress_ns.load(Ordering::Acquire)
    }
}
