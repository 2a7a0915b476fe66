//! Answers kept for a while, so that a request with an `id` may be sent again.
//!
//! Bounded in bytes by a share of the memory cap: when another has no place, a request that carries
//! an `id` is refused instead of being applied without the promise. Not here: which answer it was.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use protocol::{CountLine, VerdictLine};

use crate::time::Now;

/// How long an answer is kept, in milliseconds: the protocol design, `id=`.
const KEPT_MS: u64 = 60_000;

/// What an answer takes beside its name: itself, its places in table and queue, their slack.
const ANSWER_BYTES: usize = 320;

/// An answer that can be given again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepeatedAnswer {
    /// Of `take` and `takem`.
    Verdict(VerdictLine),
    /// Of `incrx`.
    Counted(CountLine),
}

/// Answers by key and `id`.
#[derive(Default)]
pub(crate) struct Repeats {
    answers: HashMap<Arc<[u8]>, RepeatedAnswer>,
    /// In the order they were given: when each is forgotten, and its name.
    order: VecDeque<(u64, Arc<[u8]>)>,
    bytes: usize,
    name: Vec<u8>,
}

impl Repeats {
    fn forget_old(&mut self, now: Now) {
        while self.order.front().is_some_and(|(at, _)| *at <= now.mono.millis()) {
            if let Some((_, name)) = self.order.pop_front() {
                self.bytes -= name.len() + ANSWER_BYTES;
                self.answers.remove(&name);
            }
        }
    }

    /// A blank is in no key and in no id.
    fn name(&mut self, key: &[u8], id: &[u8]) {
        self.name.clear();
        self.name.extend_from_slice(key);
        self.name.push(b' ');
        self.name.extend_from_slice(id);
    }

    /// The answer that was given before.
    pub(crate) fn find(&mut self, now: Now, key: &[u8], id: &[u8]) -> Option<RepeatedAnswer> {
        self.forget_old(now);
        self.name(key, id);
        self.answers.get(self.name.as_slice()).copied()
    }

    /// Whether another answer can be kept within `bytes_max`.
    pub(crate) fn has_room(&self, bytes_max: usize) -> bool {
        self.bytes < bytes_max
    }

    /// Keeps an answer.
    pub(crate) fn keep(&mut self, now: Now, key: &[u8], id: &[u8], answer: RepeatedAnswer) {
        self.name(key, id);
        let name: Arc<[u8]> = self.name.as_slice().into();
        self.bytes += name.len() + ANSWER_BYTES;
        self.order.push_back((now.mono.millis() + KEPT_MS, Arc::clone(&name)));
        self.answers.insert(name, answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(value: i64) -> RepeatedAnswer {
        let ttl_ms = None;
        RepeatedAnswer::Counted(CountLine { exists: false, value, applied: 1, ttl_ms, cas: None })
    }

    #[test]
    fn an_answer_is_given_again_for_a_minute() {
        let mut repeats = Repeats::default();
        repeats.keep(Now::at_ms(1000), b"k", b"id", answer(1));
        assert_eq!(repeats.find(Now::at_ms(60_999), b"k", b"id"), Some(answer(1)));
        assert_eq!(repeats.find(Now::at_ms(60_999), b"k", b"other"), None);
        assert_eq!(repeats.find(Now::at_ms(60_999), b"kid", b""), None);
        assert_eq!(repeats.find(Now::at_ms(61_000), b"k", b"id"), None);
        assert_eq!((repeats.bytes, repeats.order.len(), repeats.answers.len()), (0, 0, 0));
    }

    #[test]
    fn answers_have_a_bound_in_bytes() {
        let mut repeats = Repeats::default();
        let mut kept = 0;
        while repeats.has_room(100_000) {
            repeats.keep(Now::at_ms(1000), b"key", kept.to_string().as_bytes(), answer(kept));
            kept += 1;
        }
        assert!((200..400).contains(&kept), "{kept}");
        repeats.find(Now::at_ms(61_000), b"key", b"0");
        assert!(repeats.has_room(1));
    }
}
