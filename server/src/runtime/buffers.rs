//! Budgets for the memory of connection buffers beyond each connection's free part.
//!
//! There are two budgets: partly read values, and replies that clients have not read. A client that
//! makes no progress keeps its memory only while no other client needs it: when a budget is used
//! up, the client that has been stalled for longest loses its part and is disconnected. A client
//! that makes progress is therefore served even if many others announce values and do not send
//! them, or send requests and do not read.
//!
//! Here: the budgets, and the bytes that each connection holds. Not here: the buffers
//! (`connection`), the open connections (`connections`).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Size of the buffer that a round reads its connections into.
pub(crate) const INPUT_BYTES: usize = 256 << 10;

/// A buffer makes progress while at least this many bytes pass through it in each [`STALL_MS`].
pub(crate) const PROGRESS_BYTES: usize = 16 << 10;
/// After this many milliseconds with less than [`PROGRESS_BYTES`] of progress, a buffer may be
/// taken away.
const STALL_MS: u64 = 1_000;

/// A kind of buffer, with a budget of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Buffer {
    /// Holds a partly read request.
    Reading,
    /// Holds replies that the client has not read.
    Unwritten,
}

/// One budget: the bytes that all connections hold of it.
#[derive(Debug, Default)]
pub(crate) struct BufferBudget(AtomicUsize);

impl BufferBudget {
    /// Takes `bytes`. Returns false, and takes nothing, if the total would exceed `max`.
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

/// The bytes that one connection holds of each budget. Its worker changes them; any thread may
/// clear them.
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

    /// Records that the buffer holds `bytes`.
    pub(crate) fn set(&self, buffer: Buffer, bytes: usize) {
        self.of(buffer).store(bytes, Ordering::Release);
    }

    /// Sets the held bytes to zero and returns the former value.
    pub(crate) fn clear(&self, buffer: Buffer) -> usize {
        self.of(buffer).swap(0, Ordering::AcqRel)
    }

    /// Records that a buffer moved at `now_ms`.
    pub(crate) fn note_moved(&self, now_ms: u64) {
        self.moved_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Returns the milliseconds since a buffer last moved, if `buffer` holds bytes and may be taken
    /// away.
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
