//! Changes of limits and overrides while the server runs, and their history.
//!
//! Here: the way of every change, on one store of records: check, change, put in force. Not here:
//! the meaning of each change (`plan`), its attempts and the audit log (`commit`), the records
//! (`book`), putting limits in force (`in_force`), the limits file (`limits_file`), files of
//! overrides (`override_files`), lists for readers (`views`), the stores (`records`).
//!
//! A change is parsed, checked by itself, checked with all other limits, and put: all of it, or
//! none. Then the limits are compiled anew, or the tables of overrides that changed.

mod book;
mod commit;
mod in_force;
mod limits_file;
mod override_files;
mod plan;
mod views;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::time::{sleep, timeout};
use tollgate_http::{ChangedLimit, ImportPlan, ServiceError, Via};
use tollgate_limits::map_text::{self, OrderedLimit};
use tollgate_limits::{Limits, LimitsError};

use self::book::{Book, StoredChange, Touched};
use self::override_files::OverridesFiles;
pub(crate) use self::plan::LimitsRequest;
use self::plan::{ChangePlan, refused};
use super::LimitsHandle;
use crate::records::{Records, RecordsError};

/// The longest time for a change that concurrent changes interfere with; no attempt begins later.
const TRYING_MAX: Duration = Duration::from_secs(5);
/// The wait for records of others that have not arrived here.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest wait until this node has what others changed.
const REACH_MAX: Duration = Duration::from_secs(2);

/// All surfaces, in the order of the counters.
const VIAS: [Via; 6] = [Via::Ui, Via::Api, Via::Cli, Via::File, Via::ClientPort, Via::Expiry];

/// The parsed records, and the parts of them that are not in force yet.
#[derive(Default)]
struct State {
    book: Book,
    touched: Touched,
}

/// A change that is done.
#[derive(Debug)]
pub(crate) struct LimitsChanged {
    /// Version and number, as the API tells them.
    pub(crate) changed: ChangedLimit,
    /// The effect of an import.
    pub(crate) import: ImportPlan,
    /// The number of changes in the history.
    pub(crate) count: usize,
}

/// Limits, overrides and history over a store of records.
pub(crate) struct LimitsStore {
    handle: Arc<LimitsHandle>,
    records: OnceLock<Arc<dyn Records>>,
    state: RwLock<State>,
    /// Locked during a change of this process, so that its changes do not interfere.
    editing: tokio::sync::Mutex<()>,
    /// Locked while the limits file is read and its changes are made, and while files of overrides
    /// are read, so that of two reloads the one that reads the file later wins.
    reloading: tokio::sync::Mutex<()>,
    /// Locked while limits are compiled and put in force.
    applying: Mutex<()>,
    /// The time at which the next thing expires.
    expiry_ms: AtomicU64,
    /// Changes since the start, by surface.
    counts: [AtomicU64; VIAS.len()],
    /// The limits of the file that are ignored, each of which is logged once.
    ignored: Mutex<BTreeSet<String>>,
    /// The files of overrides of the limits in force.
    override_files: Mutex<OverridesFiles>,
}

/// Runs `work` off the runtime's threads: compiling thousands of limits would delay others.
pub(crate) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ServiceError> {
    // The moment at which another thread finishes does not depend on the simulation's seed.
    #[cfg(feature = "simulation")]
    if crate::net::world::is_on() {
        return Ok(work());
    }
    let ended = tokio::task::spawn_blocking(work).await;
    ended.map_err(|_| ServiceError::Unavailable("the change panicked".to_owned()))
}

impl From<RecordsError> for ServiceError {
    fn from(error: RecordsError) -> Self {
        match error {
            RecordsError::Full(reason) => Self::Full(reason),
            RecordsError::OtherVersion | RecordsError::Unavailable(_) => {
                Self::Unavailable(error.to_string())
            }
        }
    }
}

/// Compiles all limits of a plan. `None` if they do not agree, and did not before: then an operator
/// may correct them one by one.
fn compile_plan(
    plan: &ChangePlan,
    entries: &[OrderedLimit],
    before: &[OrderedLimit],
    name: Option<&str>,
) -> Result<Option<Limits>, ServiceError> {
    // A limit may go although exemptions were made for it.
    let compiled = if map_text::exemptions_of(entries) == map_text::exemptions_of(before) {
        map_text::limits_beside_exemptions(entries)
    } else {
        map_text::limits(entries)
    };
    let error = match compiled {
        Ok(limits) => return Ok(Some(limits)),
        Err(error) => error,
    };
    let wrong = |error| Err(refused(error, name.unwrap_or_default()));
    if !plan.is_by_time && map_text::limits_beside_exemptions(before).is_ok() {
        return wrong(error);
    }
    // Stored limits may have parts that match nothing. Time may add one, a hand may not.
    match (map_text::stored_limits(entries), map_text::stored_limits(before)) {
        (Ok(limits), _) if plan.is_by_time => Ok(Some(limits)),
        (Ok(limits), Ok(before)) if limits.left_out() <= before.left_out() => Ok(Some(limits)),
        (Ok(_), Ok(_)) => wrong(error),
        (Ok(limits), Err(_)) => Ok(Some(limits)),
        (Err(error), Ok(_)) => wrong(error),
        (Err(_), Err(_)) => Ok(None),
    }
}

impl LimitsStore {
    /// Creates the changer of the limits in force. It has no records yet.
    pub(crate) fn new(handle: Arc<LimitsHandle>) -> Self {
        Self {
            handle,
            records: OnceLock::new(),
            state: RwLock::default(),
            editing: tokio::sync::Mutex::new(()),
            reloading: tokio::sync::Mutex::new(()),
            applying: Mutex::new(()),
            expiry_ms: AtomicU64::new(u64::MAX),
            counts: Default::default(),
            ignored: Mutex::default(),
            override_files: Mutex::default(),
        }
    }

    /// Sets the store, once.
    pub(crate) fn set_records(&self, records: Arc<dyn Records>) {
        let _ = self.records.set(records);
    }

    fn records(&self) -> Result<&Arc<dyn Records>, ServiceError> {
        let starting = || ServiceError::Unavailable("the server is starting".to_owned());
        self.records.get().ok_or_else(starting)
    }

    /// Returns the reason why API and operators cannot change limits here; `None`: they can.
    pub(crate) fn read_only(&self) -> Option<String> {
        self.records.get().and_then(|records| records.read_only())
    }

    /// Returns the error of the last change if it could not be stored.
    pub(crate) fn store_fault(&self) -> Option<String> {
        self.records.get().and_then(|records| records.fault())
    }

    fn is_shared(&self) -> bool {
        self.records.get().is_some_and(|records| records.is_shared())
    }

    /// Returns the changes since the start, by surface.
    pub(crate) fn change_counts(&self) -> Vec<(Via, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        VIAS.into_iter().zip(counts).collect()
    }

    /// Reads the records that have changed.
    fn follow_records(&self, records: &dyn Records) {
        let mut state = self.state.write();
        let touched = state.book.follow(records);
        if touched.is_nothing() {
            return;
        }
        state.touched.limits |= touched.limits;
        state.touched.overrides.extend(touched.overrides);
        self.expiry_ms.store(state.book.next_expiry_ms(), Ordering::Relaxed);
    }

    /// Makes a change and puts it in force.
    ///
    /// # Errors
    ///
    /// The reason why nothing has changed; for a change of several commands, why not all of it.
    pub(crate) async fn change(
        self: &Arc<Self>,
        request: LimitsRequest,
        now_ms: u64,
        address: Option<IpAddr>,
    ) -> Result<LimitsChanged, ServiceError> {
        let is_file = matches!(request, LimitsRequest::File { .. });
        self.reach(request.version(), request.overridden()).await;
        let committed = {
            let _one = self.editing.lock().await;
            let committed = self.commit(&request, now_ms).await;
            if let Ok(plan) = &committed {
                self.tell(plan, address);
            }
            let compiled = match &committed {
                Ok(plan) if plan.batches.is_empty() && !is_file => None,
                Ok(plan) => Some(plan.compiled.clone()),
                // Some of its commands may have been applied.
                Err(_) => Some(None),
            };
            // In a cluster a task follows the records, on every node.
            if let Some(compiled) = compiled.filter(|_| !self.is_shared()) {
                let this = Arc::clone(self);
                off_thread(move || this.put_in_force(compiled, false)).await?;
            }
            committed?
        };
        let last = committed.changes.last();
        let version = last.map_or(committed.present, StoredChange::to);
        Ok(LimitsChanged {
            changed: ChangedLimit { version, seq: last.map_or(0, |change| change.seq) },
            count: committed.changes.len(),
            import: committed.import,
        })
    }

    /// Checks a change without making it.
    ///
    /// # Errors
    ///
    /// As [`Self::change`].
    pub(crate) async fn check(
        self: &Arc<Self>,
        request: LimitsRequest,
        now_ms: u64,
    ) -> Result<LimitsChanged, ServiceError> {
        self.reach(request.version(), request.overridden()).await;
        let plan = self.prepare(&request, now_ms).await?;
        let changed = ChangedLimit { version: 0, seq: 0 };
        Ok(LimitsChanged { changed, import: plan.import, count: 0 })
    }

    /// Waits until this node has what a sender has read, maybe through another node: the version of
    /// a limit, and the limit in force that an override belongs to. Without it, the sender would be
    /// told of a conflict.
    pub(crate) async fn reach(&self, version: Option<u64>, limit: Option<&str>) {
        let Some(records) = self.records().ok().filter(|records| records.is_shared()) else {
            return;
        };
        let is_behind = || {
            version.is_some_and(|version| records.mark() < version)
                || limit.is_some_and(|limit| self.is_coming(&**records, limit))
        };
        let reached = async {
            while is_behind() {
                sleep(PAUSE).await;
            }
        };
        let _ = timeout(REACH_MAX, reached).await;
    }

    /// Whether a limit that others put is not in force here yet.
    fn is_coming(&self, records: &dyn Records, limit: &str) -> bool {
        if self.handle.load().limits().by_name(limit.as_bytes()).is_some() {
            return false;
        }
        self.follow_records(records);
        let state = self.state.read();
        let stored = state.book.limits.get(limit);
        stored.is_some_and(|stored| !stored.summary.as_ref().is_some_and(|one| one.disabled))
    }

    /// Plans a change on the present records, and checks all limits together.
    async fn prepare(
        self: &Arc<Self>,
        request: &LimitsRequest,
        now_ms: u64,
    ) -> Result<ChangePlan, ServiceError> {
        let (this, request) = (Arc::clone(self), request.clone());
        let records = Arc::clone(self.records()?);
        off_thread(move || this.prepare_here(&*records, &request, now_ms)).await?
    }

    fn prepare_here(
        &self,
        records: &dyn Records,
        request: &LimitsRequest,
        now_ms: u64,
    ) -> Result<ChangePlan, ServiceError> {
        self.follow_records(records);
        let active = self.handle.load();
        let (mut plan, before) = {
            let state = self.state.read();
            let plan = plan::plan(&state.book, request, active.limits(), now_ms)?;
            let before = plan.entries.as_ref().map(|_| state.book.entries());
            (plan, before.unwrap_or_default())
        };
        plan.check_new_parts(records.feature_version())?;
        plan.check_new_overrides(records.feature_version())?;
        if let (Some(entries), None) = (&plan.entries, &plan.compiled) {
            plan.compiled = compile_plan(&plan, entries, &before, request.name())?;
        }
        // A change by a limits file or by time must not fail by the file of another limit.
        if let (Some(limits), true) = (&mut plan.compiled, request.is_checked()) {
            limits
                .read_override_files(active.limits())
                .map_err(|error| ServiceError::Invalid { detail: error.to_string(), line: None })?;
        }
        Ok(plan)
    }

    /// Whether a limit or an override has expired.
    pub(crate) fn has_expired(&self, now_ms: u64) -> bool {
        now_ms >= self.expiry_ms.load(Ordering::Relaxed)
    }

    /// Removes what has expired, at most [`plan::EXPIRED_MAX`] things.
    pub(crate) async fn expire(self: &Arc<Self>, now_ms: u64) {
        if let Err(error) = self.change(LimitsRequest::Expire, now_ms, None).await {
            tracing::warn!(%error, "expired limits or overrides are not removed yet");
        }
    }
}

/// Turns a refused limits file into the answer about it.
pub(crate) fn refused_file(error: LimitsError) -> ServiceError {
    match error {
        LimitsError::Refused { line, reason, .. } => {
            ServiceError::Invalid { detail: reason, line: Some(line) }
        }
        other => ServiceError::Invalid { detail: other.to_string(), line: None },
    }
}

#[cfg(test)]
pub(crate) mod lone_control;
#[cfg(test)]
mod tests;
