//! The replies that a client waits for, in the order of its requests.
//!
//! Not here: producing them (`router`), writing them (`connection`).

use std::collections::VecDeque;
use std::iter;
use std::ops::Range;

use bytes::Bytes;

/// A client with this many unanswered requests is not read.
const WAITING_MAX: usize = 1024;
/// A client with this many bytes of replies behind a missing one is not read either.
const BYTES_MAX: usize = 1 << 20;
/// A client without open requests keeps this much memory for its next replies.
const READY_BYTES_KEPT: usize = 4 << 10;

/// Most reused memory for replies before their turn, in bytes. It is cleared only when it holds no
/// reply, which may never happen for a client that sends without a pause; further replies are
/// allocated.
const LATER_BYTES_MAX: usize = 64 << 10;

/// A reply, or the place of one.
#[derive(Debug)]
enum ReplySlot {
    /// The reply has not arrived.
    Waiting,
    /// The part of one key of a retrieval.
    Part(Bytes),
    /// The end of a retrieval: replaced by an error if one of its keys failed.
    End(&'static str),
    Ready(Bytes),
    /// The bytes are in `later`.
    Later(Range<usize>),
    /// One reply to several operations: `left` of them are missing.
    Counted {
        left: usize,
        done: &'static str,
        failed: Option<&'static str>,
    },
    /// A key of a retrieval without an answer.
    Failed(&'static str),
}

/// The replies of one connection.
#[derive(Debug, Default)]
pub(crate) struct ReplyQueue {
    /// The number of the first of `slots`.
    first: u64,
    slots: VecDeque<ReplySlot>,
    /// Replies that precede all `slots`.
    ready: Vec<u8>,
    /// Replies before their turn. The memory is reused, because most batches have some.
    later: Vec<u8>,
    /// The number of `slots` whose bytes are in `later`.
    laters: usize,
    /// Bytes of ready replies in `slots`.
    bytes: usize,
    /// The error of the retrieval at the front.
    failed: Option<&'static str>,
}

impl ReplyQueue {
    /// Whether no reply is open or unsent.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.ready.is_empty()
    }

    /// Whether further requests must wait for replies.
    pub(crate) fn is_full(&self) -> bool {
        self.slots.len() >= WAITING_MAX || self.bytes + self.ready.len() >= BYTES_MAX
    }

    /// Whether some reply can be sent.
    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty() || self.is_first_ready()
    }

    fn is_first_ready(&self) -> bool {
        match self.slots.front() {
            None | Some(ReplySlot::Waiting) => false,
            Some(ReplySlot::Counted { left, .. }) => *left == 0,
            Some(_) => true,
        }
    }

    fn push(&mut self, slot: ReplySlot) -> u64 {
        self.slots.push_back(slot);
        self.first + self.slots.len() as u64 - 1
    }

    /// Reserves the place of a future reply, and returns its number.
    pub(crate) fn reserve(&mut self) -> u64 {
        self.push(ReplySlot::Waiting)
    }

    /// Reserves `count` places of future replies, and returns the number of the first.
    pub(crate) fn reserve_run(&mut self, count: usize) -> u64 {
        let first = self.first + self.slots.len() as u64;
        self.slots.extend(iter::repeat_with(|| ReplySlot::Waiting).take(count));
        first
    }

    /// Reserves the place of a reply that is `done` after `count` operations.
    pub(crate) fn reserve_counted(&mut self, count: usize, done: &'static str) -> u64 {
        self.push(ReplySlot::Counted { left: count, done, failed: None })
    }

    /// Adds a reply that is ready.
    pub(crate) fn push_ready(&mut self, text: &[u8], out: &mut Vec<u8>) {
        if self.is_empty() {
            out.extend_from_slice(text);
        } else {
            self.bytes += text.len();
            self.push(ReplySlot::Ready(Bytes::copy_from_slice(text)));
        }
    }

    /// Adds a ready reply that is at the end of `out`, from `start` on.
    pub(crate) fn push_written(&mut self, start: usize, out: &mut Vec<u8>) {
        if !self.is_empty() && out.len() > start {
            let slot = self.later(&out[start..]);
            out.truncate(start);
            self.push(slot);
        }
    }

    /// Adds the end of a retrieval.
    pub(crate) fn push_end(&mut self, text: &'static str, out: &mut Vec<u8>) {
        if self.is_empty() && self.failed.is_none() {
            out.extend_from_slice(text.as_bytes());
        } else {
            self.push(ReplySlot::End(text));
        }
    }

    fn slot(&mut self, number: u64) -> Option<&mut ReplySlot> {
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.slots.get_mut(place)
    }

    /// Completes a reply; `is_part`: the part of a key in a retrieval.
    pub(crate) fn complete(&mut self, number: u64, text: Bytes, is_part: bool) {
        let bytes = text.len();
        let Some(slot) = self.slot(number) else { return };
        match slot {
            ReplySlot::Counted { left, .. } => *left = left.saturating_sub(1),
            slot => {
                *slot = if is_part { ReplySlot::Part(text) } else { ReplySlot::Ready(text) };
                self.bytes += bytes;
            }
        }
    }

    /// Completes the replies of `count` places by one text. Those at the front are ready at once
    /// and not allocated.
    pub(crate) fn complete_run(&mut self, number: u64, count: usize, text: &[u8]) {
        if number == self.first && count <= self.slots.len() {
            self.slots.drain(..count);
            self.first += count as u64;
            self.ready.extend_from_slice(text);
            return;
        }
        for place in number + 1..number + count as u64 {
            self.complete(place, Bytes::new(), false);
        }
        if self.slot(number).is_some() {
            let later = self.later(text);
            if let Some(slot) = self.slot(number) {
                *slot = later;
            }
        }
    }

    /// Keeps a reply until its turn.
    fn later(&mut self, text: &[u8]) -> ReplySlot {
        self.bytes += text.len();
        let from = self.later.len();
        if from + text.len() > LATER_BYTES_MAX {
            return ReplySlot::Ready(Bytes::copy_from_slice(text));
        }
        self.later.extend_from_slice(text);
        self.laters += 1;
        ReplySlot::Later(from..from + text.len())
    }

    /// Fails a part of a reply: of a retrieval, or of several operations.
    pub(crate) fn fail(&mut self, number: u64, why: &'static str) {
        match self.slot(number) {
            Some(ReplySlot::Counted { left, failed, .. }) => {
                *left = left.saturating_sub(1);
                *failed = Some(why);
            }
            Some(slot) => *slot = ReplySlot::Failed(why),
            None => {}
        }
    }

    /// Moves the ready prefix to `out`.
    pub(crate) fn collect(&mut self, out: &mut Vec<u8>) {
        if !self.ready.is_empty() {
            out.extend_from_slice(&self.ready);
            self.ready.clear();
            self.ready.shrink_to(READY_BYTES_KEPT);
        }
        while self.is_first_ready() {
            let Some(slot) = self.slots.pop_front() else { return };
            self.first += 1;
            match slot {
                // A quiet request has no reply to a failure either.
                ReplySlot::Waiting | ReplySlot::Counted { done: "", .. } => {}
                ReplySlot::Ready(text) | ReplySlot::Part(text) => {
                    self.bytes -= text.len();
                    out.extend_from_slice(&text);
                }
                ReplySlot::Later(range) => {
                    self.bytes -= range.len();
                    out.extend_from_slice(&self.later[range]);
                    self.laters -= 1;
                    if self.laters == 0 {
                        self.later.clear();
                        self.later.shrink_to(READY_BYTES_KEPT);
                    }
                }
                ReplySlot::Failed(why) => self.failed = Some(why),
                ReplySlot::End(text) => {
                    let reply = self.failed.take().unwrap_or(text);
                    out.extend_from_slice(reply.as_bytes());
                }
                ReplySlot::Counted { done, failed, .. } => {
                    out.extend_from_slice(failed.unwrap_or(done).as_bytes());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collected(replies: &mut ReplyQueue) -> String {
        let mut out = Vec::new();
        replies.collect(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn answers_are_told_in_the_order_of_requests() {
        let (mut replies, mut out) = (ReplyQueue::default(), Vec::new());
        replies.push_ready(b"0 ", &mut out);
        assert_eq!(out, b"0 ");
        let (first, second) = (replies.reserve(), replies.reserve());
        replies.push_ready(b"3 ", &mut out);
        replies.complete(second, Bytes::from_static(b"2 "), false);
        assert!(!replies.is_ready());
        assert_eq!(collected(&mut replies), "");
        replies.complete(first, Bytes::from_static(b"1 "), false);
        assert_eq!(collected(&mut replies), "1 2 3 ");
        assert!(replies.is_empty());
    }

    #[test]
    fn a_retrieval_that_lacks_a_key_ends_in_an_error() {
        let mut replies = ReplyQueue::default();
        let keys = [replies.reserve(), replies.reserve()];
        let mut out = Vec::new();
        replies.push_end("END ", &mut out);
        let last = replies.reserve();
        replies.push_end("END ", &mut out);
        assert!(out.is_empty());
        replies.fail(keys[1], "ERROR ");
        replies.complete(keys[0], Bytes::from_static(b"one "), true);
        replies.complete(last, Bytes::new(), true);
        assert_eq!(collected(&mut replies), "one ERROR END ");
    }

    #[test]
    fn many_operations_have_one_answer() {
        let mut replies = ReplyQueue::default();
        let number = replies.reserve_counted(2, "OK ");
        replies.complete(number, Bytes::from_static(b"ignored"), false);
        assert_eq!(collected(&mut replies), "");
        replies.fail(number, "ERROR ");
        assert_eq!(collected(&mut replies), "ERROR ");
        // A second answer to an operation finds no place.
        replies.complete(number, Bytes::new(), false);
    }

    #[test]
    fn a_run_of_answers_is_given_at_once_wherever_it_lies() {
        let mut replies = ReplyQueue::default();
        let (first, second) = (replies.reserve_run(2), replies.reserve_run(3));
        let (third, mut out) = (replies.reserve(), Vec::new());
        replies.complete_run(second, 3, b"3 4 5 ");
        assert!(!replies.is_ready());
        replies.complete_run(first, 2, b"1 2 ");
        replies.complete(third, Bytes::from_static(b"6 "), false);
        replies.push_ready(b"7 ", &mut out);
        assert!(out.is_empty() && !replies.is_empty());
        assert_eq!(collected(&mut replies), "1 2 3 4 5 6 7 ");
        assert!(replies.is_empty());
    }

    #[test]
    fn client_with_too_many_open_requests_is_full() {
        let mut replies = ReplyQueue::default();
        for _ in 0..WAITING_MAX {
            assert!(!replies.is_full());
            replies.reserve();
        }
        assert!(replies.is_full());
    }
}
