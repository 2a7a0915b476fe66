//! The cost of a change of one override with all bounds full.

use cluster::map::LIMITS_MAX;
use cluster::map::Put;
use cluster::map::command::PUTS_MAX;
use nix::time::{ClockId, clock_gettime};

use super::super::book::{OVERRIDES_MAX, StoredOverride, override_name};
use super::*;

/// CPU time of a change on each node, on a machine that reads the limits in [`PARSED`].
const CPU_MAX: Duration = Duration::from_millis(20);
/// Time from the commit until the override is in force, on such a machine.
const IN_FORCE_MAX: Duration = Duration::from_millis(50);
/// CPU time of reading the limits' file on the machine of the target. One that is slower, or that
/// other work disturbs, may take longer for a change too.
const PARSED: Duration = Duration::from_millis(45);
/// Changes, of which the cheapest counts: other tests disturb the rest.
const CHANGES: usize = 20;

/// The CPU time of this thread, and the time of the system.
struct Times([Duration; 2]);

impl Times {
    fn now() -> Self {
        let clocks = [ClockId::CLOCK_THREAD_CPUTIME_ID, ClockId::CLOCK_MONOTONIC];
        Self(clocks.map(|clock| clock_gettime(clock).expect("every system has it").into()))
    }

    fn since(&self) -> [Duration; 2] {
        let Self(now) = Self::now();
        std::array::from_fn(|at| now[at].saturating_sub(self.0[at]))
    }
}

fn row(limit: &str, key: String, policy: &str) -> StoredOverride {
    let (limit, policy, by) = (limit.to_owned(), policy.to_owned(), "ann".to_owned());
    StoredOverride { version: 0, limit, key, policy, expires_ms: None, note: None, by, at: NOW }
}

impl World {
    /// Fills the store with limits and overrides; half of these belong to the first limit. Returns
    /// the CPU time of reading the limits' file.
    async fn fill(&self) -> Duration {
        let limits: String =
            (0..LIMITS_MAX).map(|at| limit(&format!("l{at}"), "fixed:5/m", "")).collect();
        let before = Times::now();
        let file = LimitText::of_file("limits", limits.as_bytes()).expect("good limits");
        let [parsed, _] = before.since();
        let mode = ImportMode::Merge;
        let request = LimitsRequest::Import { file: Arc::new(file), mode, actor: actor(true) };
        self.change(request).await.expect("they are within the bounds");
        let rows: Vec<StoredOverride> = (0..OVERRIDES_MAX - 1)
            .map(|at| {
                let name = format!("l{}", if at % 2 == 0 { 0 } else { at });
                row(&name, format!("{name}:{at}"), "block")
            })
            .collect();
        let records = Arc::clone(self.store.records().expect("it has some"));
        for rows in rows.chunks(PUTS_MAX) {
            let put = |row: &StoredOverride| {
                let body = serde_json::to_vec(row).ok();
                Put { name: override_name(&row.limit, &row.key), version: 0, body }
            };
            records.change(rows.iter().map(put).collect()).await.expect("they have room");
        }
        self.store.follow(None);
        let active = self.store.handle.load();
        let count =
            active.limits().iter().map(tollgate_limits::Limit::override_count).sum::<usize>();
        assert_eq!((active.limits().len(), count), (LIMITS_MAX, OVERRIDES_MAX - 1));
        parsed
    }

    /// Puts an override as the asked node does. Returns its CPU time, the time from the commit
    /// until it is in force, and the CPU time of a node that only follows.
    async fn timed(&self, follower: &LimitsStore, policy: &str) -> [Duration; 3] {
        let key = "l0:x".to_owned();
        let version = self.store.state.read().book.override_of("l0", &key).map(|row| row.version);
        let request = LimitsRequest::Override(Box::new(OverrideChange {
            limit: "l0".to_owned(),
            key,
            policy: Some(policy.to_owned()),
            expires_ms: None,
            note: None,
            version,
            actor: actor(true),
        }));
        let records = Arc::clone(self.store.records().expect("it has some"));
        let before = Times::now();
        let plan = self.store.prepare_here(&*records, &request, NOW).expect("a good override");
        let [planned, _] = before.since();
        for puts in plan.batches {
            records.change(puts).await.expect("it has room");
        }
        let before = Times::now();
        self.store.follow(None);
        let [own, in_force] = before.since();
        let before = Times::now();
        follower.follow(None);
        let [following, _] = before.since();
        for store in [&self.store, follower] {
            let active = store.handle.load();
            let mut scratch = Vec::new();
            let found = active.limits().find(b"l0:x", &mut scratch).expect("short").expect("l0");
            assert_eq!(found.policy().to_string(), policy);
        }
        [planned + own, in_force, following]
    }
}

#[tokio::test]
async fn one_override_of_very_many_costs_little() {
    for world in World::both().await {
        let slowness = world.fill().await.div_duration_f64(PARSED).max(1.0);
        let handle = Arc::new(LimitsHandle::new(Limits::default(), 1));
        let follower = LimitsStore::new(handle);
        follower.set_records(Arc::clone(world.store.records().expect("it has some")));
        follower.follow(None);
        let mut least = [Duration::MAX; 3];
        for change in 0..CHANGES {
            let policy = format!("fixed:{}/m", change + 1);
            let took = world.timed(&follower, &policy).await;
            least = std::array::from_fn(|at| least[at].min(took[at]));
        }
        let [asked, in_force, following] = least;
        println!(
            "one of {OVERRIDES_MAX} overrides in {LIMITS_MAX} limits: {asked:?} of CPU on the \
             asked node, {following:?} on another, in force {in_force:?} after the commit"
        );
        let (cpu_max, in_force_max) = (CPU_MAX.mul_f64(slowness), IN_FORCE_MAX.mul_f64(slowness));
        assert!(asked <= cpu_max && following <= cpu_max, "{asked:?} {following:?} {slowness}");
        assert!(in_force <= in_force_max, "{in_force:?} {slowness}");
    }
}
