//! A connection between two nodes: the bytes written and read, and resumption on the next
//! connection.
//!
//! The node with the lower id numbers the connections. A newer connection ends the older one, and
//! the remaining bytes of that one are never read. A connection counts from its proof on. The first
//! frame in each direction is a `StreamAck`; until the peer's has arrived, nothing else is sent.

use crate::frames::{FrameError, KeepAlive, RawFrame, StreamAck, StreamDone, cut};
use crate::receive_stream::ReceiveStream;
use crate::rules::{Bug, Rules};
use crate::send_stream::SendStream;

/// A larger buffer is freed once it is empty.
const KEPT_BYTES: usize = 1 << 20;

/// The phase of a connection.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum LinkPhase {
    /// There is no connection.
    #[default]
    Down,
    /// The first ack was sent, the peer's has not arrived.
    AwaitsWord,
    /// All frames may be sent.
    Up,
}

/// The sending end of a link. A lock guards it, which is always taken last.
#[derive(Debug, Default)]
pub struct LinkSender {
    /// The stream of numbered frames.
    pub stream: SendStream,
    /// Frames without numbers, which are lost with the connection.
    loose: Vec<u8>,
    /// Whole frames handed to the connection; the first `written` bytes are written.
    wire: Vec<u8>,
    written: usize,
    phase: LinkPhase,
    number: u64,
    /// When bytes were last sent, on the monotonic clock.
    sent_ns: u64,
    rules: Rules,
}

/// The receiving end of a link. Only the worker that reads the link has it.
#[derive(Debug, Default)]
pub struct LinkReceiver {
    /// The position in the peer's stream.
    pub stream: ReceiveStream,
    /// Received bytes that were not processed yet.
    pub inbound: ReceiveBuffer,
    /// When the peer last sent an ack or answers: proof that it works, not only that it is
    /// connected.
    pub progress_ns: u64,
}

/// Received bytes.
#[derive(Debug, Default)]
pub struct ReceiveBuffer {
    bytes: Vec<u8>,
    at: usize,
}

impl ReceiveBuffer {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.at == self.bytes.len() {
            self.clear();
        } else if self.at > 64 << 10 {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The first whole frame; none while it is incomplete.
    ///
    /// # Errors
    ///
    /// If the bytes are no valid frame: the link must end.
    pub fn frame(&self, body_bytes_max: usize) -> Result<Option<RawFrame<'_>>, FrameError> {
        cut(&self.bytes[self.at..], body_bytes_max)
    }

    /// Removes `bytes` processed bytes.
    pub fn consume(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// Whether no bytes are left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    fn clear(&mut self) {
        if self.bytes.capacity() > KEPT_BYTES {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
        self.at = 0;
    }
}

/// Replaces the connection by a newer one, after its peer has proved its identity. Returns false if
/// `number` is not newer: then the caller closes the new connection. The caller must have stopped
/// reading the older connection.
pub fn connect(number: u64, sender: &mut LinkSender, receiver: &mut LinkReceiver) -> bool {
    if number <= sender.number {
        return false;
    }
    if !sender.rules.lack(Bug::OlderLinkReadOn) {
        receiver.inbound.clear();
    }
    receiver.stream.begin_link();
    sender.number = number;
    sender.loose.clear();
    sender.wire.clear();
    sender.written = 0;
    sender.phase = LinkPhase::AwaitsWord;
    receiver.stream.ack(&[], &mut sender.wire);
    true
}

impl LinkSender {
    /// A link that was never connected.
    #[must_use]
    pub fn new(stream: SendStream, rules: Rules) -> Self {
        Self { stream, rules, ..Self::default() }
    }

    /// The number of the newest connection; 0 before the first.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether frames other than the first ack may be sent.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.phase == LinkPhase::Up
    }

    /// Ends the connection. Its unnumbered frames are lost.
    pub fn disconnect(&mut self) {
        self.phase = LinkPhase::Down;
        self.loose.clear();
        self.wire.clear();
        self.written = 0;
    }

    /// The buffer for unnumbered frames; none while the link is not up, when they would be lost.
    pub fn loose(&mut self) -> Option<&mut Vec<u8>> {
        self.is_up().then_some(&mut self.loose)
    }

    /// Handles an ack. The first ack of a connection sets the stream's sending position behind the
    /// bytes that the peer holds. The caller then processes the refusals of the ack, and then
    /// [acknowledges](SendStream::acknowledge) it. Returns true for the first ack: then the caller
    /// sends unanswered requests again.
    ///
    /// # Errors
    ///
    /// If the position is not in the stream: the link must end.
    pub fn on_ack(&mut self, ack: &StreamAck<'_>) -> Result<bool, FrameError> {
        if self.phase != LinkPhase::AwaitsWord {
            return Ok(false);
        }
        self.stream.resume(ack.held)?;
        self.phase = LinkPhase::Up;
        Ok(true)
    }

    /// The bytes to write now: the rest of the frames handed over before, then the stream, then
    /// unnumbered frames. So answers never overtake the records that they follow.
    pub fn fill(&mut self, now_ns: u64) -> &[u8] {
        if self.written == self.wire.len() {
            self.wire.clear();
            self.written = 0;
            if self.is_up() {
                if self.rules.lack(Bug::AnswersOvertakeRecords) {
                    self.wire.append(&mut self.loose);
                }
                let unsent = self.stream.unsent();
                self.wire.extend_from_slice(unsent);
                let bytes = unsent.len();
                self.stream.sent(bytes);
                self.wire.append(&mut self.loose);
            }
            if !self.wire.is_empty() {
                self.sent_ns = now_ns;
            }
        }
        &self.wire[self.written..]
    }

    /// Records that `bytes` of the bytes of [`LinkSender::fill`] were written.
    pub fn wrote(&mut self, bytes: usize) {
        self.written += bytes;
    }

    /// Moves the bytes of [`LinkSender::fill`] out, for a caller that writes them without the
    /// sender's lock. `memory` is an unused buffer that takes their place.
    #[must_use]
    pub fn take(&mut self, now_ns: u64, mut memory: Vec<u8>) -> Vec<u8> {
        self.fill(now_ns);
        memory.clear();
        let mut wire = std::mem::replace(&mut self.wire, memory);
        wire.drain(..std::mem::take(&mut self.written));
        wire
    }

    /// When bytes were last sent.
    #[must_use]
    pub fn sent_ns(&self) -> u64 {
        self.sent_ns
    }

    /// Appends a `KeepAlive` if no bytes were sent for `every_ns`.
    pub fn keep_alive(&mut self, now_ns: u64, every_ns: u64, done: &[StreamDone]) {
        if self.is_up() && now_ns.saturating_sub(self.sent_ns) >= every_ns {
            KeepAlive::encode(now_ns, done, &mut self.loose);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{FrameKind, TermCheck};
    use crate::id::{Partition, Term};

    #[derive(Default)]
    struct End {
        sender: LinkSender,
        receiver: LinkReceiver,
    }

    impl End {
        fn send(&mut self, lsn: u32) {
            let check = TermCheck { partition: Partition(0), term: Term(lsn) };
            self.sender.stream.append_with(0, |out| check.encode(out));
        }

        /// The bytes that were written and not yet read.
        fn write(&mut self) -> Vec<u8> {
            let bytes = self.sender.fill(0).to_vec();
            self.sender.wrote(bytes.len());
            bytes
        }

        /// Reads `bytes`, sends an ack, and returns the numbers of the frames received.
        fn read(&mut self, bytes: &[u8]) -> Vec<u32> {
            let mut received = Vec::new();
            self.receiver.inbound.push(bytes);
            while let Some(frame) = self.receiver.inbound.frame(1 << 20).expect("all is right") {
                let length = frame.bytes();
                if frame.kind == FrameKind::Ack {
                    let ack = StreamAck::decode(frame.body).expect("it is a word");
                    self.sender.on_ack(&ack).expect("it fits");
                    self.sender.stream.acknowledge(ack.held, 0).expect("it fits");
                } else {
                    received.push(TermCheck::decode(frame.body).expect("it is a round").term.0);
                    self.receiver.stream.advance(length);
                }
                self.receiver.inbound.consume(length);
            }
            if self.receiver.stream.owes_ack()
                && let Some(out) = self.sender.loose()
            {
                self.receiver.stream.ack(&[], out);
            }
            received
        }
    }

    fn connect_both(number: u64, left: &mut End, right: &mut End) {
        assert!(connect(number, &mut left.sender, &mut left.receiver));
        assert!(connect(number, &mut right.sender, &mut right.receiver));
        let (from_left, from_right) = (left.write(), right.write());
        assert_eq!(right.read(&from_left), []);
        assert_eq!(left.read(&from_right), []);
    }

    #[test]
    fn nothing_comes_twice_or_is_missed_over_many_links() {
        let (mut left, mut right, mut received) = (End::default(), End::default(), Vec::new());
        let mut sent = 0;
        for number in 1..50 {
            connect_both(number, &mut left, &mut right);
            assert!(!connect(number, &mut left.sender, &mut left.receiver), "it is not newer");
            for _ in 0..number % 4 {
                sent += 1;
                left.send(sent);
            }
            let bytes = left.write();
            // A part of the bytes arrives, often cut within a frame; sometimes the ack returns.
            let arrived = &bytes[..bytes.len() * (number as usize % 5) / 4];
            received.extend(right.read(arrived));
            if number % 3 == 0 {
                let bytes = right.write();
                left.read(&bytes);
            }
        }
        connect_both(50, &mut left, &mut right);
        let bytes = left.write();
        received.extend(right.read(&bytes));
        assert_eq!(received, (1..=sent).collect::<Vec<_>>());
        let bytes = right.write();
        left.read(&bytes);
        assert_eq!(left.sender.stream.unacked(), 0);
    }

    #[test]
    fn frames_without_numbers_follow_the_stream() {
        let (mut left, mut right) = (End::default(), End::default());
        connect_both(1, &mut left, &mut right);
        KeepAlive::encode(7, &[], left.sender.loose().expect("it is up"));
        left.send(1);
        let bytes = left.write();
        let first = cut(&bytes, 1 << 20).expect("it is right").expect("it is whole");
        assert_eq!(first.kind, FrameKind::TermCheck);
        let rest = &bytes[first.bytes()..];
        let second = cut(rest, 1 << 20).expect("it is right").expect("it is whole");
        assert_eq!((second.kind, second.bytes()), (FrameKind::KeepAlive, rest.len()));
    }

    #[test]
    fn link_sends_only_an_ack_before_the_peers_ack() {
        let mut end = End::default();
        end.send(1);
        assert_eq!(end.write(), [], "there is no connection");
        assert!(connect(1, &mut end.sender, &mut end.receiver));
        assert!(end.sender.loose().is_none());
        let bytes = end.write();
        let frame = cut(&bytes, 1 << 20).expect("it is right").expect("it is whole");
        assert_eq!((frame.kind, frame.bytes()), (FrameKind::Ack, bytes.len()));
    }
}
