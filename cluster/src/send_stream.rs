//! The sending end of a link's stream: bytes that the peer has not acknowledged, and their
//! positions.
//!
//! Positions count the bytes of numbered frames since the first connection of the two incarnations.
//! They outlive connections.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::frames::FrameError;
use crate::rules::{Bug, Rules};

/// The most unacknowledged bytes.
pub const UNACKED_BYTES_MAX: usize = 4 << 20;
/// The least time between two marks.
const MARK_NS: u64 = 250_000;
/// Acknowledged bytes are moved out of the buffer from this size on.
const SLACK_BYTES: usize = 64 << 10;

/// The acknowledged position, for threads that do not hold the stream.
#[derive(Debug, Clone, Default)]
pub struct Acked(Arc<AtomicU64>);

impl Acked {
    /// The acknowledged position.
    #[must_use]
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// The unacknowledged bytes of a link, guarded by a lock that is always taken last.
#[derive(Debug)]
pub struct SendStream {
    /// Some acknowledged bytes, then all unacknowledged ones.
    bytes: Vec<u8>,
    /// The number of acknowledged bytes at the front of `bytes`.
    head: usize,
    /// The acknowledged position: the position of `bytes[head]`.
    base: u64,
    /// The position up to which bytes were handed to the connection.
    sent: u64,
    /// Some positions, with the times at which they were appended.
    marks: VecDeque<(u64, u64)>,
    /// When the peer last acknowledged bytes.
    progress_ns: u64,
    acked: Acked,
    bytes_max: usize,
    rules: Rules,
}

impl Default for SendStream {
    fn default() -> Self {
        Self::new(UNACKED_BYTES_MAX, Rules::default())
    }
}

impl SendStream {
    /// An empty stream. `bytes_max` unacknowledged bytes make it full.
    #[must_use]
    pub fn new(bytes_max: usize, rules: Rules) -> Self {
        Self {
            bytes: Vec::new(),
            head: 0,
            base: 0,
            sent: 0,
            marks: VecDeque::new(),
            progress_ns: 0,
            acked: Acked::default(),
            bytes_max,
            rules,
        }
    }

    /// The acknowledged position, readable without the stream.
    #[must_use]
    pub fn acked(&self) -> &Acked {
        &self.acked
    }

    /// The position where the next frame begins.
    #[must_use]
    #[inline]
    pub fn end(&self) -> u64 {
        self.base + self.unacked() as u64
    }

    /// The number of unacknowledged bytes.
    #[must_use]
    #[inline]
    pub fn unacked(&self) -> usize {
        self.bytes.len() - self.head
    }

    /// The number of unacknowledged bytes at which the stream is full.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Whether the stream is full. Then operations that need it are refused as *busy*.
    #[must_use]
    #[inline]
    pub fn is_full(&self) -> bool {
        self.unacked() >= self.bytes_max
    }

    /// Appends a whole frame. Returns the position where it ends.
    #[inline]
    pub fn append(&mut self, frame: &[u8], now_ns: u64) -> u64 {
        self.append_with(now_ns, |out| out.extend_from_slice(frame))
    }

    /// Appends the whole frames that `write` writes. Returns the position where the last one ends.
    #[inline]
    pub fn append_with(&mut self, now_ns: u64, write: impl FnOnce(&mut Vec<u8>)) -> u64 {
        let is_due = |&(_, ns): &(u64, u64)| now_ns.saturating_sub(ns) >= MARK_NS;
        if self.marks.back().is_none_or(is_due) {
            self.marks.push_back((self.end(), now_ns));
        }
        write(&mut self.bytes);
        self.end()
    }

    /// The bytes to send next: whole frames.
    #[must_use]
    pub fn unsent(&self) -> &[u8] {
        let place = (self.sent - self.base) as usize;
        &self.bytes[self.head + place..]
    }

    /// Records that `bytes` unsent bytes were handed to the connection.
    pub fn sent(&mut self, bytes: usize) {
        self.sent = (self.sent + bytes as u64).min(self.end());
    }

    /// Resumes the stream on a new connection: the peer holds everything before `held`, and the
    /// rest is sent again. Call it before processing the refusals of the same ack, for that may
    /// append.
    ///
    /// # Errors
    ///
    /// If the stream has no such position: the peer refers to another stream.
    pub fn resume(&mut self, held: u64) -> Result<(), FrameError> {
        if held < self.base || held > self.end() {
            return Err(FrameError::Position);
        }
        self.sent = held;
        if self.rules.lack(Bug::ResumeOneBehind)
            && let Ok(Some(frame)) = super::frames::cut(self.unsent(), usize::MAX)
        {
            self.sent += frame.bytes() as u64;
        }
        Ok(())
    }

    /// Records that the peer has processed everything before `held`. Call it after processing all
    /// refusals of the same ack.
    ///
    /// # Errors
    ///
    /// If `held` lies beyond the sent bytes, or before the acknowledged position.
    pub fn acknowledge(&mut self, held: u64, now_ns: u64) -> Result<(), FrameError> {
        if held < self.base || held > self.end() {
            return Err(FrameError::Position);
        }
        if held == self.base {
            return Ok(());
        }
        self.head += (held - self.base) as usize;
        self.base = held;
        self.sent = self.sent.max(held);
        self.progress_ns = now_ns;
        while self.marks.get(1).is_some_and(|&(position, _)| position <= held) {
            self.marks.pop_front();
        }
        if self.head == self.bytes.len() {
            self.bytes.clear();
            self.head = 0;
            self.marks.clear();
        } else if self.head >= SLACK_BYTES && self.head >= self.bytes.len() / 2 {
            self.bytes.drain(..self.head);
            self.head = 0;
        }
        self.acked.0.store(held, Ordering::Release);
        Ok(())
    }

    /// The age of the oldest unacknowledged byte; 0 if there is none.
    #[must_use]
    pub fn age_ns(&self, now_ns: u64) -> u64 {
        self.marks.front().map_or(0, |&(_, ns)| now_ns.saturating_sub(ns))
    }

    /// The time without an acknowledgement while bytes were outstanding.
    #[must_use]
    pub fn silence_ns(&self, now_ns: u64) -> u64 {
        self.age_ns(now_ns).min(now_ns.saturating_sub(self.progress_ns))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn resumed_stream_repeats_what_the_peer_lacks() {
        let mut stream = SendStream::new(8, Rules::default());
        assert_eq!(stream.append(b"abc", 1), 3);
        assert_eq!(stream.append(b"de", 2), 5);
        assert_eq!(stream.unsent(), b"abcde");
        stream.sent(4);
        assert_eq!(stream.unsent(), b"e");
        stream.acknowledge(3, 3).expect("it was sent");
        assert_eq!((stream.acked().get(), stream.unacked()), (3, 2));
        stream.resume(3).expect("it is acknowledged");
        assert_eq!(stream.unsent(), b"de");
        assert_eq!(stream.resume(2), Err(FrameError::Position));
        assert_eq!(stream.resume(6), Err(FrameError::Position));
        assert_eq!(stream.acknowledge(2, 4), Err(FrameError::Position));
        stream.resume(5).expect("the peer has all");
        assert_eq!(stream.unsent(), b"");
        stream.append(b"123456", 5);
        assert!(stream.is_full());
    }

    #[test]
    fn age_is_that_of_the_oldest_unacknowledged_byte() {
        const MS: u64 = 1_000_000;
        let mut stream = SendStream::default();
        assert_eq!(stream.age_ns(5 * MS), 0);
        stream.append(b"a", 10 * MS);
        stream.append(b"b", 20 * MS);
        assert_eq!(stream.age_ns(30 * MS), 20 * MS);
        stream.acknowledge(1, 30 * MS).expect("it was sent");
        assert_eq!(stream.age_ns(30 * MS), 10 * MS);
        assert_eq!(stream.silence_ns(32 * MS), 2 * MS);
        stream.acknowledge(2, 40 * MS).expect("it was sent");
        assert_eq!((stream.age_ns(90 * MS), stream.silence_ns(90 * MS)), (0, 0));
    }

    proptest! {
        #[test]
        fn peer_gets_each_byte_once(steps in prop::collection::vec((0_u8..4, 0_usize..9), 1..200)) {
            let mut stream = SendStream::default();
            let (mut sent, mut received, mut under_way) = (Vec::new(), Vec::new(), Vec::new());
            for (op_flags, count) in steps {
                match op_flags {
                    0 => {
                        let bytes: Vec<u8> = (0..count).map(|at| (sent.len() + at) as u8).collect();
                        sent.extend_from_slice(&bytes);
                        prop_assert_eq!(stream.append(&bytes, 0), sent.len() as u64);
                    }
                    1 => {
                        let count = count.min(stream.unsent().len());
                        under_way.extend_from_slice(&stream.unsent()[..count]);
                        stream.sent(count);
                    }
                    2 => {
                        let count = count.min(under_way.len());
                        received.extend(under_way.drain(..count));
                        stream.acknowledge(received.len() as u64, 0).expect("it was sent");
                    }
                    _ => {
                        // The connection is lost with the bytes in flight.
                        let count = count.min(under_way.len());
                        received.extend(under_way.drain(..count));
                        under_way.clear();
                        stream.resume(received.len() as u64).expect("it was sent");
                    }
                }
            }
            under_way.extend_from_slice(stream.unsent());
            received.append(&mut under_way);
            prop_assert_eq!(received, sent);
        }
    }
}
