//! A planned change to its records: the attempts, and the audit log.
//!
//! Not here: the plan itself (`plan`), putting limits in force (`in_force`).

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hashbrown::HashSet;
use tokio::time::{sleep, timeout};
use tollgate_http::{ImportPlan, ServiceError, Via};

use super::book::{self, StoredChange};
use super::plan::{ChangePlan, LimitsRequest};
use super::{LimitsStore, PAUSE, TRYING_MAX, VIAS};
use crate::AUDIT;
use crate::records::RecordsError;

/// Adds the effect of an attempt at an import, of which these records were put, to that of the
/// attempts before it. A later attempt finds their limits the same.
fn add_effect(whole: &mut ImportPlan, attempt: ImportPlan, names: &HashSet<String>) {
    let ImportPlan { put, moved, removed, same } = attempt;
    for (list, more) in
        [(&mut whole.put, put), (&mut whole.moved, moved), (&mut whole.removed, removed)]
    {
        list.extend(more.into_iter().filter(|name| names.contains(name)));
    }
    let known: HashSet<&String> = whole.put.iter().chain(&whole.moved).collect();
    whole.same = same.into_iter().filter(|name| !known.contains(name)).collect();
}

impl LimitsStore {
    /// Makes a change in the store, repeatedly while others interfere. Returns the plan with the
    /// changes that were made, of which the caller tells.
    ///
    /// # Errors
    ///
    /// The reason why not all commands are applied. Those that are have been told of, and their
    /// records are read.
    pub(super) async fn commit(
        self: &Arc<Self>,
        request: &LimitsRequest,
        now_ms: u64,
    ) -> Result<ChangePlan, ServiceError> {
        let mut done = Vec::new();
        let committed = self.commit_batches(request, now_ms, &mut done).await;
        if committed.is_err() && !done.is_empty() {
            self.follow_records(&**self.records()?);
            let applied = ChangePlan { changes: std::mem::take(&mut done), ..Default::default() };
            self.tell(&applied, request.address());
        }
        committed.map(|plan| ChangePlan { changes: done, ..plan })
    }

    /// Puts the batches of a change, and adds the changes of those that are put to `done`.
    async fn commit_batches(
        self: &Arc<Self>,
        request: &LimitsRequest,
        now_ms: u64,
        done: &mut Vec<StoredChange>,
    ) -> Result<ChangePlan, ServiceError> {
        let records = Arc::clone(self.records()?);
        #[cfg(feature = "simulation")]
        let mut expired = None;
        let mut late = pin!(sleep(TRYING_MAX));
        let mut imported = ImportPlan::default();
        loop {
            let mark = records.mark();
            let mut plan = self.prepare(request, now_ms).await?;
            #[cfg(feature = "simulation")]
            if matches!(request, LimitsRequest::Expire) {
                plan = self.insist_on(plan, &mut expired, now_ms);
            }
            let mut changes = std::mem::take(&mut plan.changes).into_iter();
            let (mut is_whole, mut names) = (true, HashSet::new());
            for puts in &plan.batches {
                let count = puts.iter().filter(|put| book::is_change(&put.name)).count();
                match records.change(puts.clone()).await {
                    Ok(version) => {
                        names.extend(puts.iter().map(|put| put.name.clone()));
                        let made = changes.by_ref().take(count);
                        done.extend(made.map(|change| StoredChange { version, ..change }));
                    }
                    Err(RecordsError::OtherVersion) => {
                        is_whole = false;
                        break;
                    }
                    Err(error) => {
                        for change in changes.take(count) {
                            self.tell_of_failure(&change, request.address(), &error);
                        }
                        return Err(error.into());
                    }
                }
            }
            self.follow_records(&*records);
            add_effect(&mut imported, std::mem::take(&mut plan.import), &names);
            if is_whole {
                plan.import = imported;
                return Ok(plan);
            }
            if !names.is_empty() {
                // An import of many batches gets on.
                late.set(sleep(TRYING_MAX));
            }
            // Who pauses although the change of another has arrived loses the next race too.
            let pause = if records.mark() == mark { PAUSE } else { Duration::ZERO };
            if timeout(pause, &mut late).await.is_ok() {
                return Err(RecordsError::OtherVersion.into());
            }
        }
    }

    /// Plans the removal of what the first attempt found expired, renewed or not, if the simulation
    /// lacks the rule against it.
    #[cfg(feature = "simulation")]
    fn insist_on(
        &self,
        plan: ChangePlan,
        expired: &mut Option<Vec<StoredChange>>,
        now_ms: u64,
    ) -> ChangePlan {
        if !crate::net::world::rules().lack(cluster::Bug::ExpiryUncompared) {
            return plan;
        }
        let Some(first) = expired else {
            *expired = Some(plan.changes.clone());
            return plan;
        };
        super::plan::expire_again(&self.state.read().book, first, now_ms)
    }

    /// Writes to the audit log that a change failed: in a cluster it may come yet.
    fn tell_of_failure(
        &self,
        change: &StoredChange,
        address: Option<IpAddr>,
        error: &RecordsError,
    ) {
        // An expiry is tried each second, and has no author.
        let is_unknown = self.is_shared() && matches!(error, RecordsError::Unavailable(_));
        if !is_unknown || change.via == Via::Expiry.word() {
            return;
        }
        audit(change, address, Some(error));
    }

    /// Counts changes, and writes the audit log.
    pub(super) fn tell(&self, plan: &ChangePlan, address: Option<IpAddr>) {
        for change in &plan.changes {
            if let Some(place) = VIAS.iter().position(|via| via.word() == change.via) {
                self.counts[place].fetch_add(1, Ordering::Relaxed);
            }
            audit(change, address, None);
        }
    }
}

/// Writes a line of the audit log. A change that failed has neither a version nor a number.
fn audit(change: &StoredChange, address: Option<IpAddr>, error: Option<&RecordsError>) {
    let is_made = error.is_none();
    tracing::info!(
        target: AUDIT,
        by = change.by,
        via = change.via,
        address = address.map(|address| address.to_string()),
        name = change.name,
        key = change.key,
        from = change.from,
        to = is_made.then(|| change.to()),
        seq = is_made.then_some(change.seq),
        reverts = change.reverts,
        note = change.note,
        error = error.map(ToString::to_string),
        "{} {}",
        change.what,
        if change.body.is_some() { "put" } else { "removed" }
    );
}
