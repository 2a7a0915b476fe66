//! Answers kept for a while, so that a request with an `id` may be sent again.
//!
//! Bounded: when so many are kept that another has no place, a request that carries an `id` is
//! refused instead of being applied without the promise. Not here: which answer it was.

use std::collections::VecDeque;

use hashbrown::HashMap;
use protocol::{CountLine, VerdictLine};

use crate::time::Now;

/// How long an answer is kept, in milliseconds: the protocol design, `id=`.
const KEPT_MS: u64 = 60_000;

/// Most answers kept in one shard.
const ANSWERS_MAX: usize = 4096;

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
    answers: HashMap<Box<[u8]>, RepeatedAnswer>,
    /// In the order they were given: when each is forgotten, and its name.
    order: VecDeque<(u64, Box<[u8]>)>,
    name: Vec<u8>,
}

impl Repeats {
    fn forget_old(&mut self, now: Now) {
        while self.order.front().is_some_and(|(at, _)| *at <= now.mono.millis()) {
            if let Some((_, name)) = self.order.pop_front() {
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

    /// Whether another answer can be kept.
    pub(crate) fn has_room(&self) -> bool {
        self.order.len() < ANSWERS_MAX
    }

    /// Keeps an answer.
    pub(crate) fn keep(&mut self, now: Now, key: &[u8], id: &[u8], answer: RepeatedAnswer) {
        self.name(key, id);
        let name: Box<[u8]> = self.name.as_slice().into();
        self.order.push_back((now.mono.millis() + KEPT_MS, name.clone()));
        self.answers.insert(name, answer);
    }
}
