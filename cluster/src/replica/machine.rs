//! The state machine that a copy keeps equal: it alone knows what keys and operations mean.

use bytes::{Bytes, BytesMut};

use super::event::Write;
use crate::id::Term;

/// When, and where in the history, an operation is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// The partition's time, nanoseconds since 1970; the only time a state may hold.
    pub pt_ns: u64,
    /// The term.
    pub term: Term,
    /// The record that a change will be. With the term it makes a number that is never given twice,
    /// so cas uniques and leases can be made of both.
    pub lsn: u64,
}

/// What an operation did: filled by [`Machine::apply`].
///
/// One buffer takes key, state and result of many operations; what leaves it shares its memory.
#[derive(Debug, Default)]
pub struct Effect {
    buffer: BytesMut,
    written: Option<Written>,
}

/// A change as it lies in the buffer: key, then state, then the result.
#[derive(Debug, Clone, Copy)]
struct Written {
    key_bytes: usize,
    /// None: the key is gone.
    state_bytes: Option<usize>,
}

/// Bytes taken from the allocator at once.
const BUFFER_BYTES: usize = 16 << 10;

impl Effect {
    /// The key has this state now, or this changed of it. At most one change per operation, and before
    /// the result.
    pub fn put(&mut self, key: &[u8], state: &[u8]) {
        self.write(key, Some(state));
    }

    /// The key is gone. As [`Effect::put`].
    pub fn delete(&mut self, key: &[u8]) {
        self.write(key, None);
    }

    /// Appends to the result.
    pub fn answer(&mut self, result: &[u8]) {
        self.reserve(result.len());
        self.buffer.extend_from_slice(result);
    }

    fn write(&mut self, key: &[u8], state: Option<&[u8]>) {
        debug_assert!(self.buffer.is_empty(), "one change, and before the result");
        self.reserve(key.len() + state.map_or(0, <[u8]>::len));
        self.buffer.extend_from_slice(key);
        self.buffer.extend_from_slice(state.unwrap_or_default());
        self.written = Some(Written { key_bytes: key.len(), state_bytes: state.map(<[u8]>::len) });
    }

    fn reserve(&mut self, bytes: usize) {
        if self.buffer.capacity() - self.buffer.len() < bytes {
            self.buffer.reserve(bytes.max(BUFFER_BYTES));
        }
    }

    /// What was filled in, and an empty effect again.
    pub fn take(&mut self) -> (Option<Write>, Bytes) {
        let mut rest = self.buffer.split().freeze();
        let write = self.written.take().map(|written| {
            let key = rest.split_to(written.key_bytes);
            let state = written.state_bytes.map(|bytes| rest.split_to(bytes));
            Write { key, state }
        });
        (write, rest)
    }
}

/// The keys of one copy.
///
/// States and results are its own bytes. Everything it decides must follow from the state, `at` and
/// the operation: never from a clock or from chance.
pub trait Machine {
    /// Applies an operation. Without a change in `effect` the state must be as it was.
    fn apply(&mut self, at: At, op: &[u8], effect: &mut Effect);

    /// Makes the state of a key what it is at the primary; none: removes it. All writes of a key come in
    /// order, but some may come again after a piece that was made later: once all up to that piece have
    /// come, the key must be what it is at the primary.
    fn install(&mut self, pt_ns: u64, key: &[u8], state: Option<&[u8]>);

    /// Appends about `bytes_max` bytes of keys and states, from `cursor` on (none: from the start),
    /// and answers where to go on; none at the end. A key that is there from the first call to the
    /// last must be among them; one that comes, goes or changes meanwhile need not.
    fn export(
        &mut self,
        pt_ns: u64,
        cursor: Option<&[u8]>,
        bytes_max: usize,
        out: &mut Vec<(Bytes, Bytes)>,
    ) -> Option<Bytes>;

    /// Forgets everything.
    fn clear(&mut self);
}
