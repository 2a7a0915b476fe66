//! Counts of costly steps, by which tests hold how many of them an operation takes.
//!
//! Here: one count, and that of the lookups. Not here: the other counts, which lie beside their
//! steps (`server`).

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of times that all threads of the process took a step. Only builds with debug
/// assertions count; in others it stays 0.
#[derive(Debug, Default)]
pub struct StepCount(AtomicU64);

/// Searches for the item of a key. Fetching an item ahead of its command is none, and finding one
/// again after room was made for it.
pub static LOOKUPS: StepCount = StepCount::new();

impl StepCount {
    /// Returns a count of 0.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Counts `steps` more.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "nothing is left of it in a release build")]
    pub fn add(&self, steps: usize) {
        if cfg!(debug_assertions) {
            self.0.fetch_add(steps as u64, Ordering::Relaxed);
        }
    }

    /// Returns the steps counted since the start of the process.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
