//! One data link as all threads of the node see it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cluster::LinkIndex;
use cluster::id::{Incarnation, NodeId};
use cluster::link::LinkReceiver;
use cluster::send_stream::Acked;
use parking_lot::Mutex;

use super::writer::LinkWriter;

/// What all links to one life of a node share.
#[derive(Debug, Default)]
pub(super) struct PeerTime {
    /// The newest time that the node has said, on its monotonic clock; 0: none.
    pub(super) time_ns: AtomicU64,
}

/// One data link to one life of a node. It lasts as long as both lives; connections come and go.
#[derive(Debug)]
pub(crate) struct PeerLink {
    /// Its row in the table of links.
    pub(crate) index: LinkIndex,
    /// The node at the other end.
    pub(crate) peer: NodeId,
    /// Which life of it.
    pub(crate) incarnation: Incarnation,
    /// Which of the links between the two nodes.
    pub(crate) k: u16,
    /// Up to where its stream is acknowledged.
    pub(crate) acked: Acked,
    /// Where its stream ends.
    end: AtomicU64,
    /// Most bytes of it that are not acknowledged.
    bytes_max: u64,
    pub(super) transport: LinkWriter,
    /// Only the worker that reads the link locks it.
    pub(super) receiver: Mutex<LinkReceiver>,
    pub(super) time: Arc<PeerTime>,
    /// When the peer last said a word or answers.
    pub(super) progress_ns: AtomicU64,
}

impl PeerLink {
    pub(super) fn new(
        index: LinkIndex,
        peer: NodeId,
        incarnation: Incarnation,
        k: u16,
        life: &Arc<PeerTime>,
    ) -> Self {
        let transport = LinkWriter::default();
        let output = transport.lock();
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
            transport,
            receiver: Mutex::default(),
            time: Arc::clone(life),
            progress_ns: AtomicU64::new(0),
        }
    }

    /// Appends a whole numbered frame to the stream; answers where it ends. While the link is down, the frame waits.
    pub(crate) fn append(&self, now_ns: u64, frame: &[u8]) -> u64 {
        self.append_with(now_ns, |out| out.extend_from_slice(frame))
    }

    /// Appends the whole numbered frames that `write` writes; answers where the last one ends.
    pub(crate) fn append_with(&self, now_ns: u64, write: impl FnOnce(&mut Vec<u8>)) -> u64 {
        let mut output = self.transport.lock();
        output.used();
        let end = output.sender.stream.append_with(now_ns, write);
        self.end.store(end, Ordering::Release);
        end
    }

    /// Says the frames that `write` writes; they are not numbered. False: the link is not up, and they are lost.
    pub(crate) fn send(&self, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut output = self.transport.lock();
        if !output.is_up() {
            return false;
        }
        output.used();
        output.sender.loose().map(write).is_some()
    }

    /// Sends what was appended and said. Called once a round for each link that was touched, without locks.
    pub(crate) fn flush(&self, now_ns: u64) {
        self.transport.flush(now_ns);
    }

    /// Whether frames that are not numbered can be said.
    pub(crate) fn is_up(&self) -> bool {
        self.transport.lock().is_up()
    }

    /// Whether operations that need the stream are to be answered *busy*.
    pub(crate) fn is_full(&self) -> bool {
        self.unacked() >= self.bytes_max
    }

    /// Whether clients whose operations need the stream are not to be read on.
    pub(crate) fn is_over_half(&self) -> bool {
        self.unacked() >= self.bytes_max / 2
    }

    fn unacked(&self) -> u64 {
        self.end().saturating_sub(self.acked.get())
    }

    /// Bytes that are not acknowledged, in quarters of what there may be.
    pub(crate) fn quarters(&self) -> usize {
        let output = self.transport.lock();
        let stream = &output.sender.stream;
        stream.unacked() * 4 / stream.bytes_max()
    }

    /// Where the next frame of the stream begins.
    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// How long ago the oldest byte that is not acknowledged was appended; 0 if there is none.
    pub(crate) fn age_ns(&self, now_ns: u64) -> u64 {
        self.transport.lock().sender.stream.age_ns(now_ns)
    }

    /// For how long nothing was acknowledged though something should be.
    pub(crate) fn silence_ns(&self, now_ns: u64) -> u64 {
        self.transport.lock().sender.stream.silence_ns(now_ns)
    }

    /// When the peer last said something that shows that it works: a word or answers. On this node's monotonic clock.
    pub(crate) fn progress_ns(&self) -> u64 {
        self.progress_ns.load(Ordering::Acquire)
    }
}
