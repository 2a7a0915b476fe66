//! A host whose limits and overrides change, around the fake host that answers all else.

use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use tollgate_http::{
    Actor, AdminHost, Answer, ChangeView, ChangedLimit, Check, ExplainView, HotKeys, HotKind,
    ImportMode, ImportPlan, LatencyView, LimitActivity, LimitChange, LimitReport, LimitView,
    LimitsService, LivenessFuture, MatchView, MetricFamily, NodesView, Observer, Operator,
    OverrideChange, OverrideView, Scope, SeriesPoint, ServerRates, ServerStatus, ServiceError,
    TailStream, TryResult, Via,
};

use crate::fake_host::FakeHost;

/// The state that changes.
#[derive(Debug)]
struct Steered {
    limits: Vec<LimitView>,
    history: Vec<ChangeView>,
    overrides: Vec<OverrideView>,
}

/// A host with limits `login` and `api`, as the fake host, that can be changed.
#[derive(Debug)]
pub(crate) struct SteeredHost {
    fake: FakeHost,
    state: Mutex<Steered>,
}

impl Default for SteeredHost {
    fn default() -> Self {
        let fake = FakeHost::default();
        let state = Mutex::new(Steered {
            limits: fake.limits(),
            history: fake.history(None),
            overrides: fake.overrides(None, None),
        });
        Self { fake, state }
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is set");
    u64::try_from(since.as_millis()).expect("the clock is set")
}

fn invalid(detail: &str) -> ServiceError {
    ServiceError::Invalid { detail: detail.to_owned(), line: Some(2) }
}

/// Reads the fields that tests look at.
fn parse(text: &str) -> Result<LimitView, ServiceError> {
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| invalid(&error.to_string()))?;
    let limit = table["limit"][0].as_table().ok_or_else(|| invalid("no limit"))?;
    let text = |name: &str| limit.get(name).and_then(|value| value.as_str()).map(str::to_owned);
    let policy = text("policy").filter(|policy| policy.contains(':') || policy == "block");
    Ok(LimitView {
        name: text("name").ok_or_else(|| invalid("the limit lacks its `name`"))?,
        pattern: text("match").or_else(|| text("regex")).unwrap_or_default(),
        policy: policy.ok_or_else(|| invalid("bad policy: an algorithm and a rate"))?,
        shadow: limit.get("shadow").and_then(toml::Value::as_bool).unwrap_or_default(),
        owner: text("owner"),
        note: text("note"),
        source: "api".to_owned(),
        ..LimitView::default()
    })
}

impl SteeredHost {
    pub(crate) fn changes(&self) -> Vec<String> {
        self.fake.changes.lock().expect("no test panics with the lock").clone()
    }

    fn note(&self, change: String) {
        self.fake.changes.lock().expect("no test panics with the lock").push(change);
    }

    fn with<T>(&self, change: impl FnOnce(&mut Steered) -> T) -> T {
        change(&mut self.state.lock().expect("no test panics with the lock"))
    }

    /// Puts a text and its change, or removes the limit.
    fn put(
        &self,
        name: &str,
        toml: Option<String>,
        version: Option<u64>,
        actor: &Actor,
        reverts: Option<u64>,
    ) -> Result<ChangedLimit, ServiceError> {
        let parsed = toml.as_deref().map(parse).transpose()?;
        self.with(|state| {
            let place = state.limits.iter().position(|limit| limit.name == name);
            let present = place.map(|place| state.limits[place].clone());
            let present_version = present.as_ref().map(|limit| limit.version);
            if present_version != version {
                return Err(ServiceError::Changed(present_version.unwrap_or_default()));
            }
            let from = version.unwrap_or_default();
            let seq = state.history[0].seq + 1;
            state.history.insert(
                0,
                ChangeView {
                    seq,
                    at_ms: now_ms(),
                    by: actor.name.clone(),
                    via: actor.via.word().to_owned(),
                    what: "limit".to_owned(),
                    name: name.to_owned(),
                    key: None,
                    from,
                    to: parsed.as_ref().map_or(0, |_| from + 1),
                    note: None,
                    reverts,
                    body: toml.clone(),
                    body_before: present.map(|limit| limit.toml),
                },
            );
            let Some(limit) = parsed else {
                state.limits.retain(|limit| limit.name != name);
                return Ok(ChangedLimit { version: 0, seq });
            };
            let (by, at_ms) = (Some(actor.name.clone()), Some(now_ms()));
            let toml = toml.unwrap_or_default();
            let limit = LimitView { version: from + 1, toml, by, at_ms, ..limit };
            match place {
                Some(place) => state.limits[place] = limit,
                None => state.limits.push(limit),
            }
            Ok(ChangedLimit { version: from + 1, seq })
        })
    }
}

impl AdminHost for SteeredHost {
    fn liveness(&self) -> LivenessFuture<'_> {
        self.fake.liveness()
    }

    fn readiness(&self) -> Vec<Check> {
        self.fake.readiness()
    }

    fn metrics(&self) -> Vec<MetricFamily> {
        self.fake.metrics()
    }

    fn memcached_metrics(&self) -> Vec<MetricFamily> {
        self.fake.memcached_metrics()
    }
}

impl LimitsService for SteeredHost {
    fn limits(&self) -> Vec<LimitView> {
        self.with(|state| state.limits.clone())
    }

    fn limit(&self, name: &str) -> Option<LimitView> {
        self.limits().into_iter().find(|limit| limit.name == name)
    }

    fn read_only(&self) -> Option<String> {
        None
    }

    fn put_limit(&self, change: LimitChange) -> Answer<'_, ChangedLimit> {
        let LimitChange { name, toml, version, actor, .. } = change;
        let done = self.put(&name, Some(toml), version, &actor, None);
        if done.is_ok() {
            self.note(format!("put {name} by {}", actor.name));
        }
        Box::pin(async { done })
    }

    fn remove_limit(
        &self,
        name: String,
        version: u64,
        _note: Option<String>,
        actor: Actor,
    ) -> Answer<'_, ChangedLimit> {
        self.note(format!("remove {name} by {}", actor.name));
        let done = self.put(&name, None, Some(version), &actor, None);
        Box::pin(async { done })
    }

    fn revert_limit(
        &self,
        name: String,
        seq: u64,
        version: Option<u64>,
        actor: Actor,
    ) -> Answer<'_, ChangedLimit> {
        let old = self.history(Some(&name)).into_iter().find(|change| change.seq == seq);
        let body = old.and_then(|change| change.body).unwrap_or_default();
        // The bodies of the fake host are a policy alone.
        let is_whole = body.contains("[[limit]]");
        let front = format!("[[limit]]\nname = \"{name}\"\nmatch = \"{name}:{{user}}\"\n");
        let body = if is_whole { body } else { front + &body };
        self.note(format!("revert {name} to {seq} by {}", actor.name));
        let done = self.put(&name, Some(body), version, &actor, Some(seq));
        Box::pin(async { done })
    }

    fn history(&self, name: Option<&str>) -> Vec<ChangeView> {
        let mut changes = self.with(|state| state.history.clone());
        changes.retain(|change| name.is_none_or(|name| change.name == name));
        changes
    }

    fn overrides(&self, limit: Option<&str>, query: Option<&str>) -> Vec<OverrideView> {
        let mut rows = self.with(|state| state.overrides.clone());
        let now = now_ms();
        rows.retain(|row| row.expires_ms.is_none_or(|end| end > now || end == 1_790_000_600_000));
        rows.retain(|row| limit.is_none_or(|limit| row.limit == limit));
        rows.retain(|row| query.is_none_or(|query| row.key.contains(query)));
        rows
    }

    fn put_override(&self, change: OverrideChange) -> Answer<'_, ChangedLimit> {
        let policy = change.policy.as_deref().unwrap_or("nothing");
        self.note(format!("override {} is {policy} by {}", change.key, change.actor.name));
        self.with(|state| {
            state.overrides.retain(|row| row.key != change.key);
            state.overrides.extend(change.policy.map(|policy| OverrideView {
                limit: change.limit,
                key: change.key,
                policy,
                source: "api".to_owned(),
                expires_ms: change.expires_ms,
                note: change.note,
                by: Some(change.actor.name),
                at_ms: Some(now_ms()),
                version: 1,
            }));
        });
        Box::pin(async { Ok(ChangedLimit { version: 1, seq: 1 }) })
    }

    fn export(&self) -> String {
        self.limits().into_iter().map(|limit| limit.toml).collect()
    }

    fn import(
        &self,
        toml: String,
        mode: ImportMode,
        dry: bool,
        by: Actor,
    ) -> Answer<'_, ImportPlan> {
        self.fake.import(toml, mode, dry, by)
    }

    fn match_key(&self, key: &[u8]) -> Result<MatchView, ServiceError> {
        let mut view = self.fake.match_key(key)?;
        let row = self.overrides(None, None).into_iter().find(|row| row.key == view.key);
        if let Some(row) = row.filter(|_| view.limit.is_some()) {
            view.policy = Some(row.policy);
            view.override_key = Some(row.key);
            view.override_source = Some(row.source);
        }
        Ok(view)
    }

    fn check_limit(&self, toml: &str) -> Result<LimitView, ServiceError> {
        parse(toml)
    }

    fn change_counts(&self) -> Vec<(Via, u64)> {
        self.fake.change_counts()
    }
}

impl Observer for SteeredHost {
    fn hot_keys(
        &self,
        kind: HotKind,
        limit: Option<String>,
        count: usize,
        scope: Scope,
    ) -> Answer<'_, HotKeys> {
        self.fake.hot_keys(kind, limit, count, scope)
    }

    fn report(&self, limit: &str, minutes: u64) -> Option<LimitReport> {
        let report = self.fake.report(limit, minutes)?;
        let wave = |at: u64, of: u64| 40 + (at * 7 + of * 13) % 23;
        let point = |at: u64| SeriesPoint {
            at_ms: 1_790_000_000_000 + at * 60_000,
            allowed: wave(at, 3),
            denied: wave(at, 1) / 4 + if (20..32).contains(&at) { 18 } else { 0 },
            shadow_denied: 0,
            units: wave(at, 3),
        };
        Some(LimitReport { series: (0..60).map(point).collect(), ..report })
    }

    fn activity(&self, limit: &str) -> Option<LimitActivity> {
        let (minutes, fake) = (self.report(limit, 60)?.series, self.fake.activity(limit)?);
        Some(LimitActivity { minutes, ..fake })
    }

    fn rates(&self) -> ServerRates {
        let wave = |seed: u64, scale: f64| {
            let value = |at: u64| f64::from((at * seed % 17) as u32 + 60) * scale;
            (0..60).map(value).collect()
        };
        ServerRates { requests: wave(5, 21.0), allowed: wave(5, 20.0), denied: wave(3, 1.5) }
    }

    fn latency(&self) -> LatencyView {
        self.fake.latency()
    }

    fn tail(&self) -> TailStream {
        self.fake.tail()
    }

    fn try_limit(
        &self,
        name: String,
        toml: String,
        minutes: u64,
        scope: Scope,
    ) -> Answer<'_, TryResult> {
        self.fake.try_limit(name, toml, minutes, scope)
    }
}

impl Operator for SteeredHost {
    fn status(&self) -> ServerStatus {
        ServerStatus { requests_per_s: 1840.0, denied_per_s_minute: 104.0, ..self.fake.status() }
    }

    fn explain(&self, key: Vec<u8>, cost: u64) -> Answer<'_, ExplainView> {
        Box::pin(async move {
            let matched = self.match_key(&key)?;
            Ok(ExplainView { matched, ..self.fake.explain(key, cost).await? })
        })
    }

    fn reset_key(&self, key: Vec<u8>, actor: Actor) -> Answer<'_, bool> {
        self.fake.reset_key(key, actor)
    }

    fn refund_key(&self, key: Vec<u8>, units: u64, actor: Actor) -> Answer<'_, ()> {
        self.fake.refund_key(key, units, actor)
    }

    fn nodes(&self) -> Option<NodesView> {
        self.fake.nodes()
    }

    fn drain_node(&self, node: String, actor: Actor) -> Answer<'_, ()> {
        self.fake.drain_node(node, actor)
    }

    fn forget_node(&self, node: String, actor: Actor) -> Answer<'_, ()> {
        self.fake.forget_node(node, actor)
    }

    fn put_setting(&self, name: String, value: String, actor: Actor) -> Answer<'_, ()> {
        self.fake.put_setting(name, value, actor)
    }

    fn set_log_level(&self, level: u32, actor: Actor) -> Answer<'_, ()> {
        self.fake.set_log_level(level, actor)
    }

    fn configuration(&self) -> String {
        self.fake.configuration()
    }
}
