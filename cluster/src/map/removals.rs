//! Removals of backups that would leave a partition with a single copy: they wait for another one.
//!
//! A primary asks to remove a backup that refuses to follow or is silent. That backup still has
//! every acknowledged count, and may be promoted if the primary dies. Here: which removals wait,
//! and for how long. Not here: the copy that comes first (`controller`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Map;
use super::command::{MapChange, Transition};
use crate::id::{CopyId, NodeId, Partition, Term};

/// The longest wait of a removal. The partition acknowledges nothing meanwhile, so a copy that
/// takes longer is not waited for.
pub const REMOVAL_WAIT_MAX: Duration = Duration::from_secs(1);

/// The removals that wait. The leader keeps them in memory: a new leader is asked again.
#[derive(Debug, Default)]
pub struct WaitingRemovals {
    since: BTreeMap<(Partition, CopyId), (Term, Duration)>,
}

impl WaitingRemovals {
    /// Takes the removals that have to wait out of `changes`. Nodes in `silent` may have died, so
    /// their copies do not count. `now` is the leader's monotonic time. A removal that was decided
    /// on an entry newer than this map's is taken out too: its primary repeats it.
    pub fn withhold(
        &mut self,
        map: &Map,
        changes: &mut Vec<MapChange>,
        silent: &BTreeSet<NodeId>,
        now: Duration,
    ) {
        changes.retain(|change| {
            if is_ahead(map, change) {
                return false;
            }
            let Some((copy, term)) = leaves_one(map, change, silent) else { return true };
            let wait = self.since.entry((change.partition, copy)).or_insert((term, now));
            if wait.0 != term {
                *wait = (term, now);
            }
            now.saturating_sub(wait.1) >= REMOVAL_WAIT_MAX
        });
    }

    /// The removals that wait now. Those that are done or no longer due are forgotten.
    pub fn waiting(&mut self, map: &Map, now: Duration) -> BTreeSet<(Partition, CopyId)> {
        self.since.retain(|(partition, copy), (term, _)| {
            map.entry(*partition).is_some_and(|entry| {
                entry.term == *term && entry.in_sync.contains(copy) && map.is_living(*copy)
            })
        });
        let waits = |(_, (_, since)): &(_, &(Term, Duration))| {
            now.saturating_sub(*since) < REMOVAL_WAIT_MAX
        };
        self.since.iter().filter(waits).map(|(removal, _)| *removal).collect()
    }
}

/// Whether a removal was decided on a newer entry. Another voter may have reported that entry to
/// the primary before the leader's own map has it.
fn is_ahead(map: &Map, change: &MapChange) -> bool {
    matches!(change.transition, Transition::RemoveInSync(_))
        && map.entry(change.partition).is_some_and(|entry| change.ver > entry.ver)
}

/// The living backup that a valid change removes, and the term, if at most one living copy is left.
fn leaves_one(map: &Map, change: &MapChange, silent: &BTreeSet<NodeId>) -> Option<(CopyId, Term)> {
    let Transition::RemoveInSync(copy) = change.transition else { return None };
    let entry = map.entry(change.partition)?;
    let is_valid = entry.ver == change.ver
        && entry.in_sync.contains(&copy)
        && entry.primary != Some(copy)
        && map.is_living(copy);
    let stays = |other: &&CopyId| {
        **other != copy && map.is_living(**other) && !silent.contains(&other.node)
    };
    let left = entry.in_sync.iter().filter(stays).count();
    (is_valid && left <= 1).then_some((copy, entry.term))
}
