//! The limits in force, which a reload replaces as a whole, and the metrics of each limit.
//!
//! Here: replacing limits while requests use them, and counting decisions. Not here: parsing limits
//! (`server/limits`), detecting a changed file (`limits_file`).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use crossbeam::utils::CachePadded;
use engine::{Judged, Judgement, PolicyRef};
use parking_lot::{Mutex, MutexGuard};
use protocol::Policy;
use tollgate_limits::{Limit, Limits, LimitsError};

use crate::counters::Counter;

/// Decisions of one limit that one worker has counted.
#[derive(Debug, Default)]
struct WorkerVerdicts {
    allowed: Counter,
    denied: Counter,
    shadow_denied: Counter,
    units: Counter,
    near: Counter,
}

/// Metrics of a limit, one set per worker, written by that worker only. They belong to the limit's
/// name and survive a reload.
#[derive(Debug)]
pub struct LimitMetrics {
    /// The engine's number for the limit, from 1; never reused.
    number: u32,
    workers: Box<[CachePadded<WorkerVerdicts>]>,
}

/// Metrics of a limit, summed over all workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitTotals {
    /// Attempts that were allowed.
    pub allowed: u64,
    /// Attempts that were denied.
    pub denied: u64,
    /// Attempts that were allowed only because the policy is a shadow.
    pub shadow_denied: u64,
    /// Units of the attempts that passed, those of a shadow's denials included.
    pub units: u64,
    /// Allowed attempts after which at least 80 % of the limit was used.
    pub near: u64,
}

impl LimitMetrics {
    fn new(number: u32, workers: usize) -> Self {
        Self { number, workers: (0..workers.max(1)).map(|_| CachePadded::default()).collect() }
    }

    /// The engine's number for the limit.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Counts a judgement. `worker` is the index of the calling worker.
    #[inline]
    pub fn note(&self, worker: usize, judged: &Judged) {
        let Some(verdicts) = self.workers.get(worker) else { return };
        match judged.judgement {
            Judgement::Nothing => return,
            Judgement::Allowed => verdicts.allowed.add(1),
            Judgement::Denied => return verdicts.denied.add(1),
            Judgement::ShadowDenied => verdicts.shadow_denied.add(1),
        }
        verdicts.units.add(judged.units);
        if judged.is_near {
            verdicts.near.add(1);
        }
    }

    /// Counts an attempt of `units` that was allowed, as [`LimitMetrics::note`] does.
    #[inline]
    pub fn note_allowed(&self, worker: usize, units: u64, is_near: bool) {
        let Some(verdicts) = self.workers.get(worker) else { return };
        verdicts.allowed.add(1);
        verdicts.units.add(units);
        if is_near {
            verdicts.near.add(1);
        }
    }

    /// The sums over all workers.
    #[must_use]
    pub fn sums(&self) -> LimitTotals {
        self.workers.iter().fold(LimitTotals::default(), |sums, verdicts| LimitTotals {
            allowed: sums.allowed + verdicts.allowed.get(),
            denied: sums.denied + verdicts.denied.get(),
            shadow_denied: sums.shadow_denied + verdicts.shadow_denied.get(),
            units: sums.units.wrapping_add(verdicts.units.get()),
            near: sums.near + verdicts.near.get(),
        })
    }

    fn reset(&self) {
        for verdicts in &self.workers {
            let WorkerVerdicts { allowed, denied, shadow_denied, units, near } = &**verdicts;
            for counter in [allowed, denied, shadow_denied, units, near] {
                counter.reset();
            }
        }
    }
}

/// The limits in force, and the metrics of each in the same order.
#[derive(Debug)]
pub struct ActiveLimits {
    limits: Limits,
    metrics: Box<[Arc<LimitMetrics>]>,
    /// The number for the next new limit.
    next_number: u32,
    has_large_tables: bool,
}

impl ActiveLimits {
    fn new(limits: Limits, before: Option<&Self>, workers: usize) -> Self {
        let of = |limit: &Limit| {
            let before = before?;
            // Most limits keep their place.
            let same = before.limits.get(limit.index()).filter(|same| same.name() == limit.name());
            let same = same.or_else(|| before.limits.by_name(limit.name().as_bytes()))?;
            Some(Arc::clone(&before.metrics[same.index()]))
        };
        let mut next_number = before.map_or(1, |before| before.next_number);
        let metrics = limits
            .iter()
            .map(|limit| {
                of(limit).unwrap_or_else(|| {
                    next_number += 1;
                    Arc::new(LimitMetrics::new(next_number - 1, workers))
                })
            })
            .collect();
        let has_large_tables = limits.have_large_tables();
        Self { limits, metrics, next_number, has_large_tables }
    }

    /// Whether the keys of a batch are looked up together, because a limit has very many overrides.
    #[inline]
    pub(crate) fn has_large_tables(&self) -> bool {
        self.has_large_tables
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns `policy` as the engine takes it; `limit` is the index of its limit.
    #[must_use]
    pub fn policy_ref<'p>(&self, limit: usize, policy: &'p Policy) -> PolicyRef<'p> {
        PolicyRef { policy, limit: self.metrics.get(limit).map_or(0, |metrics| metrics.number) }
    }

    /// The metrics of the limit with index `limit`.
    #[must_use]
    pub fn metrics(&self, limit: usize) -> Option<&LimitMetrics> {
        self.metrics.get(limit).map(Arc::as_ref)
    }
}

/// The subject of a refusal. A fault lasts until its own subject is good again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultOf {
    /// The limits file: it is unreadable, has a mistake, or does not agree with other limits.
    File,
    /// The change of a node's limits file, which the cluster refuses.
    FileChange,
    /// The limits of the store or the map, or a file of overrides. Limits that are put in force
    /// clear it.
    InForce,
}

/// The current [`ActiveLimits`]. A worker loads them once per round and uses them until the round
/// ends.
#[derive(Debug)]
pub struct LimitsHandle {
    current: ArcSwap<ActiveLimits>,
    workers: usize,
    /// Incremented after `current` is replaced, never before.
    generation: AtomicU64,
    /// Reloads that were refused.
    refused: AtomicU64,
    /// The faults that last, in the order of [`FaultOf`].
    faults: Mutex<[Option<String>; 3]>,
    /// Locked while replacing, so that of two concurrent reloads the one that reads the file later
    /// wins.
    replacing: Mutex<()>,
}

impl LimitsHandle {
    /// Starts with `limits`, as generation 0.
    #[must_use]
    pub fn new(limits: Limits, workers: usize) -> Self {
        Self {
            current: ArcSwap::from_pointee(ActiveLimits::new(limits, None, workers)),
            workers,
            generation: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            faults: Mutex::default(),
            replacing: Mutex::new(()),
        }
    }

    /// Returns the current limits.
    #[must_use]
    pub fn load(&self) -> Arc<ActiveLimits> {
        self.current.load_full()
    }

    /// The number of replacements. A caller that caches limits reads this **before** it loads them,
    /// and loads again when the number has changed; so it never keeps limits that were stale when
    /// it loaded them.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The number of refused reloads.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The reason why the latest limits are not in force. `None`: they are.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        self.faults.lock().iter().flatten().next().cloned()
    }

    /// Reads the file again and returns the new generation.
    ///
    /// # Errors
    ///
    /// The file is refused or unreadable. The current limits stay in force.
    pub fn reload(&self, path: &Path) -> Result<u64, LimitsError> {
        let only = self.replacing.lock();
        let had_any = !self.current.load().limits.is_empty();
        let loaded = Limits::load(path).and_then(|limits| {
            // A half-written copy of the file must not turn all limits off.
            if limits.is_empty() && had_any && !limits.allow_empty() {
                return Err(LimitsError::Emptied { path: path.to_owned() });
            }
            Ok(limits)
        });
        match loaded {
            Ok(limits) => {
                self.clear_fault();
                Ok(self.store(limits, &only))
            }
            Err(error) => {
                self.refuse(&error);
                Err(error)
            }
        }
    }

    /// Puts `limits` in force and returns the new generation.
    pub fn replace(&self, limits: Limits) -> u64 {
        self.store(limits, &self.replacing.lock())
    }

    /// Sets the limits before any worker has loaded them; the generation stays.
    pub(crate) fn start(&self, limits: Limits) {
        let before = self.current.load();
        self.current.store(Arc::new(ActiveLimits::new(limits, Some(&before), self.workers)));
    }

    /// Records that the limits file is refused.
    pub fn refuse(&self, error: &impl std::fmt::Display) {
        self.refuse_of(FaultOf::File, error);
    }

    /// Records a refusal.
    pub(crate) fn refuse_of(&self, subject: FaultOf, error: &impl std::fmt::Display) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        self.set_fault(subject, Some(error.to_string()));
    }

    /// Sets or clears a fault without counting a refusal.
    pub(crate) fn set_fault(&self, subject: FaultOf, fault: Option<String>) {
        self.faults.lock()[subject as usize] = fault;
    }

    /// Records that the limits file was read and has no mistake.
    pub fn clear_fault(&self) {
        self.set_fault(FaultOf::File, None);
    }

    /// The guard proves that no other thread replaces limits.
    fn store(&self, limits: Limits, _only: &MutexGuard<'_, ()>) -> u64 {
        let next = ActiveLimits::new(limits, Some(&self.current.load()), self.workers);
        self.current.store(Arc::new(next));
        self.set_fault(FaultOf::InForce, None);
        self.generation.fetch_add(1, Ordering::Release) + 1
    }

    /// Resets the metrics, for `stats reset`.
    pub fn reset_metrics(&self) {
        for metrics in &self.current.load().metrics {
            metrics.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_bad_file_keeps_the_last_good_one() {
        let dir = tempfile::tempdir().expect("a directory for one file");
        let path = dir.path().join("limits.toml");
        let limit = "[[limit]]\nname = \"a\"\nmatch = \"a:{x}\"\npolicy = \"fixed:5/s\"\n";
        let handle = LimitsHandle::new(Limits::default(), 1);
        assert!(handle.reload(&path).is_err(), "there is no file yet");
        assert_eq!((handle.generation(), handle.load().limits().len()), (0, 0));
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("the directory is ours");
        assert!(handle.reload(&path).is_err(), "nobody will ever write into it");
        fs::remove_file(&path).expect("it is there");

        fs::write(&path, limit).expect("the directory is ours");
        assert_eq!(handle.reload(&path).expect("a good file"), 1);
        let kept = handle.load();
        fs::write(&path, format!("{limit}wrong = 1\n")).expect("the directory is ours");
        let error = handle.reload(&path).expect_err("a bad file").to_string();
        let expected =
            format!("{}:5: unknown field `wrong`: the fields are name, ", path.display());
        assert!(error.starts_with(&expected), "{error}");
        assert_eq!((handle.generation(), handle.refused()), (1, 3));
        assert_eq!(handle.fault(), Some(error));
        assert!(Arc::ptr_eq(&kept, &handle.load()));

        for empty in ["", "# nothing\n", "allow_empty = false\n"] {
            fs::write(&path, empty).expect("the directory is ours");
            let error = handle.reload(&path).expect_err("it may be half written").to_string();
            assert!(error.ends_with("unless it says `allow_empty = true` at its top"), "{error}");
            assert!(Arc::ptr_eq(&kept, &handle.load()));
        }
        fs::write(&path, "allow_empty = true\n").expect("the directory is ours");
        assert_eq!(handle.reload(&path).expect("no limits are limits too"), 2);
        assert_eq!((handle.load().limits().len(), kept.limits().len()), (0, 1));
        assert_eq!(handle.fault(), None);
    }

    #[test]
    fn fault_lasts_until_its_subject_is_good() {
        let handle = LimitsHandle::new(Limits::default(), 1);
        handle.refuse(&"file");
        handle.refuse_of(FaultOf::FileChange, &"change");
        handle.refuse_of(FaultOf::InForce, &"stored");
        let fault = || handle.fault().unwrap_or_default();
        assert_eq!((fault().as_str(), handle.refused()), ("file", 3));
        handle.replace(Limits::default());
        assert_eq!(fault(), "file", "other limits say nothing about the file");
        handle.clear_fault();
        assert_eq!(fault(), "change");
        handle.set_fault(FaultOf::FileChange, None);
        assert_eq!(fault(), "", "limits were put in force since");
    }

    #[test]
    fn metrics_stay_with_the_name_of_their_limit() {
        let dir = tempfile::tempdir().expect("a directory for one file");
        let path = dir.path().join("limits.toml");
        let limit = |name: &str| {
            format!("[[limit]]\nname = \"{name}\"\nmatch = \"{name}:{{x}}\"\npolicy = \"block\"\n")
        };
        let handle = LimitsHandle::new(Limits::default(), 2);
        fs::write(&path, limit("a")).expect("the directory is ours");
        handle.reload(&path).expect("a good file");
        let before = handle.load();
        let denied = Judged { judgement: Judgement::Denied, ..Judged::NOTHING };
        before.metrics(0).expect("one limit").note(0, &denied);
        fs::write(&path, limit("b") + &limit("a")).expect("the directory is ours");
        handle.reload(&path).expect("a good file");
        // A worker that still uses the former limits is counted too.
        before.metrics(0).expect("one limit").note(1, &denied);
        let now = handle.load();
        assert_eq!(now.metrics(0).expect("two limits").sums(), LimitTotals::default());
        assert_eq!(now.metrics(1).expect("two limits").sums().denied, 2);
        handle.reset_metrics();
        assert_eq!(now.metrics(1).expect("two limits").sums().denied, 0);
    }
}
