//! A host with fixed answers, for tests of routes and pages.

// The tests of pages read this file from another folder.
#[path = "fake_host/texts.rs"]
mod texts;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;

use crate::host::{
    Actor, AdminHost, Answer, ChangeView, ChangedLimit, Check, ExplainView, HotKey, HotKeys,
    HotKind, ImportMode, ImportPlan, KeyStanding, KeyVerdict, LatencyView, LimitActivity,
    LimitChange, LimitReport, LimitView, LimitsService, LivenessFuture, MatchView, NodeView,
    NodesView, Observer, Operator, OverrideChange, OverrideView, Scope, ServerRates, ServerStatus,
    ServiceError, TailEvent, TailStream, TryResult, TryShare, Via,
};
use crate::metrics::MetricFamily;

use self::texts::{change, limit};

/// The version of every limit and override.
pub(crate) const VERSION: u64 = 7;

/// A key that is explained as if its limit was in shadow.
pub(crate) const SHADOW_KEY: &str = "login:watched";

/// The name of a disabled limit, which no list has.
pub(crate) const DISABLED: &str = "off";

/// The name of a limit that another editor creates first.
pub(crate) const TAKEN: &str = "taken";

/// The change of an override in history, if there is one.
pub(crate) const OVERRIDE_CHANGE: u64 = 3;

/// A key with markup, which pages must escape.
pub(crate) const MARKUP: &str = "login:<script>alert(1)</script>";

/// A server with the limits `login` of the API and `api` of a file.
#[derive(Debug, Default)]
pub(crate) struct FakeHost {
    /// The fault of every check.
    pub(crate) fault: Option<String>,
    /// Whether history has the change of an override.
    pub(crate) has_override_change: bool,
    /// More keys of lists, as they are shown; with them the tail has all kinds of events.
    pub(crate) shown_keys: Vec<String>,
    /// Whether there is a limit whose counted keys are not those of clients.
    pub(crate) has_page_limit: bool,
    /// Whether counted keys are shown as hashes.
    pub(crate) keys_hashed: bool,
    /// The number of limits more.
    pub(crate) more_limits: usize,
    /// The number of reports that were asked for.
    pub(crate) reports: AtomicUsize,
    /// The changes that were asked for, as text.
    pub(crate) changes: Mutex<Vec<String>>,
}

impl FakeHost {
    fn note(&self, change: String) {
        self.changes.lock().expect("no test panics while it holds the lock").push(change);
    }

    fn check(version: Option<u64>) -> Result<ChangedLimit, ServiceError> {
        match version {
            Some(VERSION) | None => Ok(ChangedLimit { version: VERSION + 1, seq: 3 }),
            Some(_) => Err(ServiceError::Changed(VERSION)),
        }
    }
}

fn hot(key: &str) -> HotKey {
    HotKey { key: key.to_owned(), limit: Some("login".to_owned()), rate: 12.5, rate_at_least: 11.0 }
}

impl AdminHost for FakeHost {
    fn liveness(&self) -> LivenessFuture<'_> {
        Box::pin(async { vec![Check::new("worker-0", self.fault.clone())] })
    }

    fn readiness(&self) -> Vec<Check> {
        vec![Check::new("listeners", None), Check::new("cluster", self.fault.clone())]
    }

    fn metrics(&self) -> Vec<MetricFamily> {
        vec![MetricFamily::counter("tollgate_samples", "Samples", 1)]
    }

    fn memcached_metrics(&self) -> Vec<MetricFamily> {
        vec![MetricFamily::gauge("memcached_up", "Up", true)]
    }
}

impl LimitsService for FakeHost {
    fn limits(&self) -> Vec<LimitView> {
        let mut all = vec![limit("login", "api"), limit("api", "file")];
        all.extend(self.has_page_limit.then(texts::page_limit));
        all.extend((0..self.more_limits).map(|number| limit(&format!("more{number}"), "api")));
        all
    }

    fn limit(&self, name: &str) -> Option<LimitView> {
        if name == DISABLED {
            return Some(LimitView { disabled: true, ..limit(name, "api") });
        }
        LimitsService::limits(self).into_iter().find(|limit| limit.name == name)
    }

    fn read_only(&self) -> Option<String> {
        None
    }

    fn put_limit(&self, change: LimitChange) -> Answer<'_, ChangedLimit> {
        Box::pin(async move {
            if change.name == "api" && !change.adopt {
                return Err(ServiceError::Conflict("managed by a file: limits.toml".to_owned()));
            }
            if !change.toml.contains("policy") {
                let detail = "missing field `policy`".to_owned();
                return Err(ServiceError::Invalid { detail, line: Some(1) });
            }
            texts::check_gone(&change)?;
            let stale = (change.name == TAKEN).then_some(0);
            let done = Self::check(stale.or(change.version))?;
            self.note(format!("put {} by {}", change.name, change.actor.name));
            Ok(done)
        })
    }

    fn remove_limit(
        &self,
        name: String,
        version: u64,
        _note: Option<String>,
        actor: Actor,
    ) -> Answer<'_, ChangedLimit> {
        Box::pin(async move {
            Self::check(Some(version))?;
            self.note(format!("remove {name} by {}", actor.name));
            Ok(ChangedLimit { version: 0, seq: 4 })
        })
    }

    fn revert_limit(
        &self,
        name: String,
        seq: u64,
        version: Option<u64>,
        actor: Actor,
    ) -> Answer<'_, ChangedLimit> {
        Box::pin(async move {
            if version.is_none() && LimitsService::limit(self, &name).is_some() {
                return Err(ServiceError::Changed(VERSION));
            }
            let done = Self::check(version)?;
            self.note(format!("revert {name} to {seq} by {}", actor.name));
            Ok(done)
        })
    }

    fn history(&self, name: Option<&str>) -> Vec<ChangeView> {
        if name == Some("cm") {
            return texts::removed();
        }
        let of_override = ChangeView {
            what: "override".to_owned(),
            key: Some("login:a".to_owned()),
            body: Some("block".to_owned()),
            ..change(OVERRIDE_CHANGE, "abuse")
        };
        let mut changes = vec![change(2, "more"), change(1, "new")];
        if self.has_override_change {
            changes.insert(0, of_override);
        }
        changes.retain(|change| name.is_none_or(|name| change.name == name));
        changes
    }

    fn overrides(&self, limit: Option<&str>, query: Option<&str>) -> Vec<OverrideView> {
        let mut all = vec![OverrideView {
            limit: "login".to_owned(),
            key: MARKUP.to_owned(),
            policy: "block".to_owned(),
            source: "api".to_owned(),
            expires_ms: Some(1_790_000_600_000),
            note: Some("abuse".to_owned()),
            by: Some("alice".to_owned()),
            at_ms: Some(1_790_000_000_000),
            version: VERSION,
        }];
        all.retain(|row| limit.is_none_or(|limit| row.limit == limit));
        all.retain(|row| query.is_none_or(|query| row.key.contains(query)));
        all
    }

    fn put_override(&self, change: OverrideChange) -> Answer<'_, ChangedLimit> {
        Box::pin(async move {
            if change.limit != "login" {
                return Err(ServiceError::NotFound(format!("there is no limit {}", change.limit)));
            }
            let done = Self::check(change.version)?;
            let policy = change.policy.as_deref().unwrap_or("nothing");
            self.note(format!("override {} is {policy} by {}", change.key, change.actor.name));
            Ok(done)
        })
    }

    fn export(&self) -> String {
        LimitsService::limits(self).into_iter().map(|limit| limit.toml).collect()
    }

    fn import(
        &self,
        toml: String,
        mode: ImportMode,
        dry_run: bool,
        actor: Actor,
    ) -> Answer<'_, ImportPlan> {
        Box::pin(async move {
            if !dry_run {
                self.note(format!("import {} bytes {mode:?} by {}", toml.len(), actor.name));
            }
            Ok(ImportPlan { put: vec!["login".to_owned()], ..ImportPlan::default() })
        })
    }

    fn match_key(&self, key: &[u8]) -> Result<MatchView, ServiceError> {
        Ok(texts::matched(key))
    }

    fn check_limit(&self, toml: &str) -> Result<LimitView, ServiceError> {
        texts::checked(toml)
    }

    fn change_counts(&self) -> Vec<(Via, u64)> {
        vec![(Via::Api, 2)]
    }
}

impl Observer for FakeHost {
    fn hot_keys(
        &self,
        _kind: HotKind,
        _limit: Option<String>,
        count: usize,
        _scope: Scope,
    ) -> Answer<'_, HotKeys> {
        Box::pin(async move {
            let mut keys = vec![hot("login:alice")];
            keys.extend(self.shown_keys.iter().map(|key| hot(key)));
            keys.push(hot(MARKUP));
            keys.truncate(count);
            Ok(HotKeys { keys, span_ms: 90_000, dropped: 0, missing: vec!["n3".to_owned()] })
        })
    }

    fn report(&self, limit: &str, minutes: u64) -> Option<LimitReport> {
        self.reports.fetch_add(1, Ordering::Relaxed);
        LimitsService::limit(self, limit).filter(|limit| !limit.disabled)?;
        Some(LimitReport {
            limit: limit.to_owned(),
            minutes,
            allowed: 100,
            denied: 50,
            near: 3,
            units: 100,
            active_keys: 2,
            top_denied: vec![hot(MARKUP)],
            series: texts::series(),
            ..LimitReport::default()
        })
    }

    fn activity(&self, limit: &str) -> Option<LimitActivity> {
        LimitsService::limit(self, limit).filter(|limit| !limit.disabled)?;
        Some(texts::activity())
    }

    fn rates(&self) -> ServerRates {
        ServerRates {
            requests: vec![1.0, 2.0, 3.0],
            allowed: vec![1.0, 1.0, 2.0],
            denied: vec![0.0, 1.0, 1.0],
        }
    }

    fn latency(&self) -> LatencyView {
        LatencyView { count: 1000, p50_us: 40, p99_us: 90, p999_us: 200, max_us: 1500 }
    }

    fn tail(&self) -> TailStream {
        let (sender, events) = mpsc::channel(1);
        let event = TailEvent {
            kind: "denied",
            at_ms: 1_790_000_000_000,
            key: MARKUP.to_owned(),
            limit: Some("login".to_owned()),
            cost: 1,
            retry_ms: Some(500),
            weight: 1,
        };
        // The channel has a place.
        let _ = sender.try_send((0, texts::more_events(event, &self.shown_keys)));
        TailStream { events }
    }

    fn try_limit(
        &self,
        _name: String,
        _toml: String,
        _minutes: u64,
        _scope: Scope,
    ) -> Answer<'_, TryResult> {
        Box::pin(async {
            Ok(TryResult {
                span_ms: 3_600_000,
                keys: 40,
                requests: 4000,
                scale: 64.0,
                now: TryShare { denied: 0.1, standard_error: Some(0.01) },
                then: TryShare { denied: 0.3, standard_error: Some(0.02) },
                newly_denied: vec![MARKUP.to_owned()],
                fidelity: 1.0,
                ..TryResult::default()
            })
        })
    }
}

impl Operator for FakeHost {
    fn status(&self) -> ServerStatus {
        ServerStatus {
            version: "0.1.0".to_owned(),
            uptime_s: 60,
            role: "node",
            node: Some("n1".to_owned()),
            listeners: vec!["127.0.0.1:11211".to_owned()],
            memory_used_bytes: 1 << 20,
            memory_limit_bytes: 64 << 20,
            items: 3,
            connections: 2,
            connections_max: 1024,
            requests_per_s: 100.0,
            requests_per_s_minute: 90.0,
            denied_per_s_minute: 5.0,
            faults: self.fault.iter().cloned().collect(),
            keys_hashed: self.keys_hashed,
        }
    }

    fn explain(&self, key: Vec<u8>, cost: u64) -> Answer<'_, ExplainView> {
        Box::pin(async move {
            let matched = self.match_key(&key)?;
            let shadow = key == SHADOW_KEY.as_bytes();
            let verdict = KeyVerdict {
                allowed: shadow,
                would_refuse: true,
                remaining: 0,
                limit: 5,
                retry_ms: (!shadow).then_some(500),
                reset_ms: 60_000,
            };
            let standing = KeyStanding {
                limit: "login".to_owned(),
                key: matched.key.clone(),
                policy: "fixed:5/m".to_owned(),
                shadow,
                cost,
                hold_ms: None,
                verdict: Some(verdict),
                fault: None,
                owner: Some("n1".to_owned()),
                copies: vec!["n2".to_owned()],
            };
            let (mut refused_by, mut shadow_refused_by) = (vec!["login".to_owned()], Vec::new());
            if shadow {
                std::mem::swap(&mut refused_by, &mut shadow_refused_by);
            }
            Ok(ExplainView {
                cost,
                matched,
                standings: vec![standing],
                allowed: Some(shadow),
                refused_by,
                shadow_refused_by,
                retry_ms: (!shadow).then_some(500),
                ban: None,
                value: None,
            })
        })
    }

    fn reset_key(&self, key: Vec<u8>, actor: Actor) -> Answer<'_, bool> {
        self.note(format!("reset {} by {}", key.escape_ascii(), actor.name));
        Box::pin(async { Ok(true) })
    }

    fn refund_key(&self, key: Vec<u8>, units: u64, actor: Actor) -> Answer<'_, ()> {
        self.note(format!("refund {units} {} by {}", key.escape_ascii(), actor.name));
        Box::pin(async { Ok(()) })
    }

    fn nodes(&self) -> Option<NodesView> {
        let node = |id: &str, is_self| NodeView {
            id: id.to_owned(),
            ring_name: format!("{id}.example:11211"),
            client_address: format!("{id}.example:11211"),
            weight: 1,
            state: "active".to_owned(),
            primaries: 8192,
            backups: 8192,
            is_self,
            is_leader: is_self,
            ..NodeView::default()
        };
        Some(NodesView {
            nodes: vec![node("n1", true), node("n2", false)],
            partitions: 16384,
            settings: vec![("replicas".to_owned(), "2".to_owned())],
            ..NodesView::default()
        })
    }

    fn drain_node(&self, node: String, actor: Actor) -> Answer<'_, ()> {
        self.note(format!("drain {node} by {}", actor.name));
        Box::pin(async { Ok(()) })
    }

    fn forget_node(&self, node: String, actor: Actor) -> Answer<'_, ()> {
        self.note(format!("forget {node} by {}", actor.name));
        Box::pin(async { Ok(()) })
    }

    fn put_setting(&self, name: String, value: String, actor: Actor) -> Answer<'_, ()> {
        self.note(format!("set {name} {value} by {}", actor.name));
        Box::pin(async { Ok(()) })
    }

    fn set_log_level(&self, level: u32, actor: Actor) -> Answer<'_, ()> {
        self.note(format!("log level {level} by {}", actor.name));
        Box::pin(async { Ok(()) })
    }

    fn configuration(&self) -> String {
        "port = 11211\n".to_owned()
    }
}
