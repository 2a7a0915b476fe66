//! The properties that must hold, one per file.
//!
//! `terms`, `bounds` and `changes` look at nodes while they run, `liveness` at the cluster after
//! all faults, the others at the replies to clients at the end.

mod acknowledged;
mod admitted;
pub(crate) mod answered;
mod bounds;
pub(crate) mod changes;
mod copies;
mod holds;
mod linear;
pub(crate) mod liveness;
mod terms;
mod unique;

use std::net::IpAddr;
use std::time::Duration;

use tollgate::simulation::SimulatedNode;

use crate::history::History;

/// Observations of running nodes.
#[derive(Default)]
pub(crate) struct Watch {
    terms: terms::Terms,
    /// The highest era of each partition.
    eras: Vec<u32>,
}

/// The state at the end of a run.
pub(crate) struct Evidence {
    pub(crate) unix_ms: u64,
    pub(crate) sights: Vec<(IpAddr, SimulatedNode)>,
}

impl Watch {
    /// Observes all running nodes.
    pub(crate) fn look(
        &mut self,
        now: Duration,
        sights: &[(IpAddr, SimulatedNode)],
        history: &mut History,
    ) {
        let mut found = Vec::new();
        for (address, sight) in sights {
            let entries = sight.map.partitions();
            self.eras.resize(self.eras.len().max(entries.len()), 0);
            for (era, entry) in self.eras.iter_mut().zip(entries) {
                *era = (*era).max(entry.era);
            }
            self.terms.look(*address, sight, history, now, &mut found);
            bounds::look(*address, sight, &mut found);
        }
        for what in found {
            history.violation(now, what);
        }
    }
}

/// The input of the checks at the end.
struct Case<'a> {
    history: &'a History,
    watch: &'a Watch,
    evidence: &'a Evidence,
}

impl Case<'_> {
    /// Whether all copies of a key were lost at some time, so that it started empty.
    fn was_lost(&self, key: &str) -> bool {
        let Some((_, sight)) = self.evidence.sights.first() else { return true };
        let Some(head) = sight.map.head() else { return true };
        let partition = usize::from(head.placement.partition(key.as_bytes()).0);
        self.watch.eras.get(partition).is_some_and(|era| *era > 0)
    }
}

/// The violations at the end.
pub(crate) fn check(history: &History, watch: &Watch, evidence: &Evidence) -> Vec<String> {
    let case = Case { history, watch, evidence };
    let mut found = Vec::new();
    acknowledged::check(&case, &mut found);
    unique::check(&case, &mut found);
    linear::check(&case, &mut found);
    copies::check(&case, &mut found);
    admitted::check(&case, &mut found);
    holds::check(&case, &mut found);
    found
}
