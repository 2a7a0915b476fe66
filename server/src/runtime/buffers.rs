//! Memory that the buffers of connections take beyond the little that each has for nothing.
//!
//! Two budgets: values that are half read, and answers that clients have not read yet. A client that
//! makes no progress holds its part only while nobody else needs it: whoever finds a budget
//! used up takes the part of the one that has stood still for longest, and that one is hung up on. So a
//! client that moves is served, however many others announce values and do not send them, or ask
//! and do not read. Not here: the buffers (`connection`), who is connected (`connections`).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes of a worker's buffer for the input of one round.
pub(crate) const INPUT_BYTES: usize = 256 << 10;

/// A buffer moves while at least so many bytes go through it in each [`STALL_MS`].
pub(crate) const PROGRESS_BYTES: usize = 16 << 10;
/// After so many milliseconds without [`PROGRESS_BYTES`] a buffer may be taken away.
const STALL_MS: u64 = 1_000;

/// A kind of buffer, with a budget of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Buffer {
    /// Of a request that is half read.
    Reading,
    /// Of answers that the client has not read.
    Unwritten,
}

/// A budget: what the connections hold of it in all.
#[derive(Debug, Default)]
pub(crate) struct BufferBudget(AtomicUsize);

impl BufferBudget {
    /// Takes `bytes`; false, and nothing is taken, when it would be more than `max` in all.
    pub(crate) fn take(&self, bytes: usize, max: usize) -> bool {
        let granted = self.0.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) <= max;
        if !granted {
            self.give_back(bytes);
        }
        granted
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What one connection holds of the budgets. Its worker changes it, and any other may take it away.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    reading: AtomicUsize,
    unwritten: AtomicUsize,
    /// Milliseconds on the monotonic clock when one of its buffers last moved.
    moved_ms: AtomicU64,
}

impl Holding {
    fn of(&self, buffer: Buffer) -> &AtomicUsize {
        match buffer {
            Buffer::Reading => &self.reading,
            Buffer::Unwritten => &self.unwritten,
        }
    }

    /// Notes how much it holds, and that it moves.
    pub(crate) fn set(&self, buffer: Buffer, bytes: usize) {
        self.of(buffer).store(bytes, Ordering::Release);
    }

    /// Takes all it holds away from it, and tells how much that was.
    pub(crate) fn clear(&self, buffer: Buffer) -> usize {
        self.of(buffer).swap(0, Ordering::AcqRel)
    }

    /// Notes that a buffer moved at this time.
    pub(crate) fn note_moved(&self, now_ms: u64) {
        self.moved_ms.store(now_ms, Ordering::Relaxed);
    }

    /// For how long no buffer has moved, if it holds any of this kind and may lose it.
    pub(crate) fn stalled_ms(&self, buffer: Buffer, now_ms: u64) -> Option<u64> {
        let stalled_ms = now_ms.saturating_sub(self.moved_ms.load(Ordering::Relaxed));
        let holds = self.of(buffer).load(Ordering::Acquire) > 0;
        (holds && stalled_ms >= STALL_MS).then_some(stalled_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_grants_up_to_its_bound() {
        let memory_cap = BufferBudget::default();
        assert!(memory_cap.take(60, 100) && !memory_cap.take(41, 100) && memory_cap.take(40, 100));
        memory_cap.give_back(40);
        assert!(memory_cap.take(40, 100) && !memory_cap.take(usize::MAX, 100));
    }

    #[test]
    fn only_what_stands_still_can_be_lost() {
        let holding = Holding::default();
        assert_eq!(holding.stalled_ms(Buffer::Reading, 9_000), None, "it holds nothing");
        holding.set(Buffer::Reading, 7);
        holding.note_moved(8_500);
        assert_eq!(holding.stalled_ms(Buffer::Reading, 9_499), None);
        assert_eq!(holding.stalled_ms(Buffer::Reading, 9_500), Some(1_000));
        assert_eq!(holding.stalled_ms(Buffer::Unwritten, 9_500), None);
        assert_eq!((holding.clear(Buffer::Reading), holding.clear(Buffer::Reading)), (7, 0));
        assert_eq!(holding.stalled_ms(Buffer::Reading, 9_500), None);
    }
}
