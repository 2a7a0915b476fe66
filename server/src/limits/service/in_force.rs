//! Records to limits in force: all limits compiled anew, or the tables of overrides that changed.
//!
//! Not here: the changes of records (`super`).

use std::collections::BTreeSet;

use tollgate_limits::map_text::{self, OrderedLimit};
use tollgate_limits::{Limits, OverrideSource, parse_weighted_policy};

use super::LimitsStore;
use crate::limits::FaultOf;

impl LimitsStore {
    /// Puts limits of a cluster's map in force, with the overrides of the map; without limits what
    /// has changed.
    pub(crate) fn follow(&self, limits: Option<Limits>) {
        let Ok(records) = self.records() else { return };
        self.follow_records(&**records);
        self.put_in_force(limits, false);
    }

    /// Puts in force what has changed in the records. `compiled` are all limits, if they are known
    /// and the records are still those that they were made from.
    pub(super) fn put_in_force(&self, compiled: Option<Limits>, is_start: bool) {
        let _one = self.applying.lock();
        let (touched, entries, rows) = {
            let mut state = self.state.write();
            let touched = std::mem::take(&mut state.touched);
            let is_all = touched.limits || compiled.is_some();
            let entries = (touched.limits && compiled.is_none()).then(|| state.book.entries());
            let names: BTreeSet<String> = if is_all {
                state.book.overridden_limits().map(str::to_owned).collect()
            } else {
                touched.overrides.clone()
            };
            let rows: Vec<_> = names
                .into_iter()
                .map(|name| {
                    let rows = state.book.overrides_of(&name);
                    let rows: Vec<_> =
                        rows.map(|row| (row.key.clone(), row.policy.clone())).collect();
                    (name, rows)
                })
                .collect();
            (touched, entries, rows)
        };
        if touched.is_nothing() && compiled.is_none() {
            return;
        }
        let limits = match (compiled, entries) {
            (Some(limits), _) => Some(limits),
            (None, Some(entries)) => self.compile(entries, is_start),
            (None, None) => Some(self.handle.load().limits().clone()),
        };
        let Some(mut limits) = limits else { return };
        let reads = limits.give_override_files(self.handle.load().limits());
        self.note_override_files(&limits, reads);
        for (name, rows) in &rows {
            let policies = rows.iter().filter_map(|(key, policy)| {
                Some((key.as_str(), parse_weighted_policy(policy).ok()?))
            });
            for (key, reason) in limits.set_overrides(name, OverrideSource::Api, policies) {
                tracing::warn!(limit = name, key, reason, "an override has no effect");
            }
        }
        if is_start {
            self.handle.start(limits);
        } else {
            self.handle.replace(limits);
        }
        self.renew_fault();
    }

    /// Compiles all limits. If they do not agree, those in force stay; at start, where there are
    /// none, as many as possible are compiled.
    fn compile(&self, entries: Vec<OrderedLimit>, is_start: bool) -> Option<Limits> {
        let error = match map_text::stored_limits(&entries) {
            Ok(limits) => return Some(limits),
            Err(error) => error,
        };
        self.handle.refuse_of(FaultOf::InForce, &error);
        tracing::error!(%error, "the limits do not agree: correct this limit");
        if is_start {
            return Some(map_text::limits_that_agree(entries).0);
        }
        // The next change tries again.
        self.state.write().touched.limits = true;
        None
    }
}
