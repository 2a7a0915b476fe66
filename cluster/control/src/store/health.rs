//! The health of the disk under the control log: fine, slow, full or failed.
//!
//! Here: the durations and results of writes. Not here: the consequences (`handle::disk`).

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::StoreError;

/// A synced write that takes longer is slow. A leader sends nothing while it waits for its disk,
/// and Raft's followers stand for election after half a second without their leader.
const SLOW: Duration = Duration::from_millis(300);
/// A pending write counts as slow after this time.
const PENDING_MAX: Duration = Duration::from_millis(700);
/// A disk with this number of slow writes in a row, or with a write pending for `SICK_PENDING`, is
/// too slow for a leader.
const SICK: u32 = 3;
const SICK_PENDING: Duration = Duration::from_millis(1500);
/// The most fast writes that a slow disk needs to be fine again.
const SLOW_WRITES_MAX: u32 = 5;

/// The number of probes of which the first is thorough: it writes to the control log, and a file
/// even if the system reports free space.
const THOROUGH_EVERY: u64 = 16;
/// The time between two looks at a disk that has failed, or that a write waits for.
const LOOK_AGAIN: Duration = Duration::from_millis(256);

/// The condition of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DiskCondition {
    /// Writes end in time.
    Fine,
    /// The duration of the last write, or of a pending one.
    Slow(Duration),
    /// The system reports that there is no free space. Present files can be written. Carries the
    /// error.
    Full(String),
    /// A write failed. No write succeeds until the file is opened again. Carries the error.
    Failed(String),
}

/// The record of writes, shared by all writers.
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
    probes: u64,
    full: Option<String>,
    failed: Option<String>,
}

impl DiskHealth {
    /// Records that a write begins. Returns none for a write that is not synced, which proves
    /// nothing.
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

    /// Records that a pending write begins only now.
    pub(super) fn begin_again(&self, number: Option<u64>) {
        let mut state = self.state.lock();
        if let Some(begun) = number.and_then(|number| state.pending.get_mut(&number)) {
            *begun = Instant::now();
        }
    }

    pub(super) fn end(&self, number: Option<u64>, error: Option<&StoreError>) {
        let mut state = self.state.lock();
        let begun = number.and_then(|number| state.pending.remove(&number));
        match error {
            Some(StoreError::Interrupted | StoreError::Closed) => return,
            Some(error) => {
                // The first error has the cause; later ones only report that there was one.
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

    /// Counts a probe, and returns whether it is thorough: the first of each
    /// [`THOROUGH_EVERY`] is, and every one while the disk counts as full.
    pub(super) fn begin_probe(&self) -> bool {
        let mut state = self.state.lock();
        let is_due = state.probes.is_multiple_of(THOROUGH_EVERY);
        state.probes += 1;
        is_due || state.full.is_some()
    }

    /// Records whether there is free space beside the file.
    pub(super) fn note_room(&self, room: std::io::Result<()>) {
        self.state.lock().full = room.err().map(|error| error.to_string());
    }

    /// Records that the file was opened again.
    pub(super) fn reset(&self) {
        let mut state = self.state.lock();
        (state.slow, state.failed, state.last) = (0, None, None);
    }

    /// The present condition.
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

    /// Whether another node should lead: the disk is full, or slow repeatedly.
    pub(crate) fn is_sick(&self) -> bool {
        let state = self.state.lock();
        let waits = state.pending.values().next().map(Instant::elapsed);
        let is_slow = state.slow >= SICK || waits.is_some_and(|waits| waits > SICK_PENDING);
        is_slow || state.full.is_some()
    }

    /// The time until a probe may be due: when nothing was written for more than `idle_max`. None
    /// if it is due now.
    pub(crate) fn until_probe(&self, idle_max: Duration) -> Option<Duration> {
        let state = self.state.lock();
        // A disk that has failed is tried by the task that waits for it.
        if !state.pending.is_empty() || state.failed.is_some() {
            return Some(LOOK_AGAIN);
        }
        idle_max.checked_sub(state.last?.0.elapsed())
    }
}

/// The system's error, without the additions of the layers above it.
fn cause(error: &StoreError) -> String {
    match error {
        StoreError::Database(error) => match &**error {
            redb::Error::Io(error) => error.to_string(),
            error => error.to_string(),
        },
        StoreError::Probe(error) => error.to_string(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_probes_are_thorough_and_all_on_a_full_disk() {
        let health = DiskHealth::default();
        let thorough: Vec<usize> = (0..33).filter(|_| health.begin_probe()).collect();
        assert_eq!(thorough, [0, 16, 32]);
        health.note_room(Err(std::io::Error::other("quota")));
        assert!((0..3).all(|_| health.begin_probe()));
        health.note_room(Ok(()));
        assert!(!health.begin_probe());
    }
}
