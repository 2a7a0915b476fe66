//! How well the disk under the control log does: fine, slow, or failed.
//!
//! Here: what writes took and how they ended. Not here: what follows from it (`handle::disk`).

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::StoreError;

/// A synced write that takes longer is slow. Raft's followers stand for election after half a second
/// without their leader, which cannot speak while it waits for its disk.
const SLOW: Duration = Duration::from_millis(300);
/// A write that has not ended after this time counts as slow before it ends.
const PENDING_MAX: Duration = Duration::from_millis(700);
/// A disk with so many slow writes in a row, or a write that waits so long, is too slow to lead with.
const SICK: u32 = 3;
const SICK_PENDING: Duration = Duration::from_millis(1500);
/// Quick writes that it takes, at most, to be well again.
const SLOW_WRITES_MAX: u32 = 5;

/// What is known of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DiskCondition {
    /// Writes end in time.
    Fine,
    /// The last write took this long, or one has waited so long.
    Slow(Duration),
    /// What is there can be written, but there is no room for more, said the system.
    Full(String),
    /// A write failed: nothing is written until the file was opened again.
    Failed(String),
}

/// Looks at writes. Shared by all who write.
#[derive(Debug, Default)]
pub(crate) struct DiskHealth {
    state: Mutex<DiskHealthState>,
}

#[derive(Debug, Default)]
struct DiskHealthState {
    next: u64,
    pending: BTreeMap<u64, Instant>,
    slow: u32,
    last: Option<(Instant, Duration)>,
    full: Option<String>,
    failed: Option<String>,
}

impl DiskHealth {
    /// A write begins; none for one that is not synced, which says nothing.
    pub(super) fn begin(&self, is_synced: bool) -> Option<u64> {
        if !is_synced {
            return None;
        }
        let mut state = self.state.lock();
        state.next += 1;
        let number = state.next;
        state.pending.insert(number, Instant::now());
        Some(number)
    }

    pub(super) fn end(&self, number: Option<u64>, error: Option<&StoreError>) {
        let mut state = self.state.lock();
        let begun = number.and_then(|number| state.pending.remove(&number));
        match error {
            Some(StoreError::Interrupted | StoreError::Closed) => return,
            Some(error) => {
                // The first says why; those after it, that there was one.
                state.failed.get_or_insert_with(|| cause(error));
                return;
            }
            None => {}
        }
        let Some(begun) = begun else { return };
        let took = begun.elapsed();
        state.last = Some((Instant::now(), took));
        state.slow = if took > SLOW {
            (state.slow + 1).min(SLOW_WRITES_MAX)
        } else {
            state.slow.saturating_sub(1)
        };
    }

    /// Whether there was room for more beside the file.
    pub(super) fn note_room(&self, room: std::io::Result<()>) {
        self.state.lock().full = room.err().map(|error| error.to_string());
    }

    /// The file was opened again.
    pub(super) fn reset(&self) {
        let mut state = self.state.lock();
        (state.slow, state.failed, state.last) = (0, None, None);
    }

    /// How it does now.
    pub(crate) fn condition(&self) -> DiskCondition {
        let state = self.state.lock();
        if let Some(why) = &state.failed {
            return DiskCondition::Failed(why.clone());
        }
        let waits = state.pending.values().next().map(Instant::elapsed);
        if let Some(why) = &state.full {
            return DiskCondition::Full(why.clone());
        }
        match (waits, state.last) {
            (Some(waits), _) if waits > PENDING_MAX => DiskCondition::Slow(waits),
            (_, Some((_, took))) if state.slow > 0 => DiskCondition::Slow(took.max(SLOW)),
            _ => DiskCondition::Fine,
        }
    }

    /// Whether another node should lead: the disk is full, or slow again and again.
    pub(crate) fn is_sick(&self) -> bool {
        let state = self.state.lock();
        let waits = state.pending.values().next().map(Instant::elapsed);
        let is_slow = state.slow >= SICK || waits.is_some_and(|waits| waits > SICK_PENDING);
        is_slow || state.full.is_some()
    }

    /// How long ago a write ended well, with none on its way; none: one is, or there was none.
    pub(crate) fn idle(&self) -> Option<Duration> {
        let state = self.state.lock();
        if !state.pending.is_empty() {
            return None;
        }
        Some(state.last.map_or(Duration::MAX, |(at, _)| at.elapsed()))
    }
}

/// What the system said, without what the layers above it add.
fn cause(error: &StoreError) -> String {
    match error {
        StoreError::Database(error) => match &**error {
            redb::Error::Io(error) => error.to_string(),
            error => error.to_string(),
        },
        error => error.to_string(),
    }
}
