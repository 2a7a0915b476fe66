//! Tests of changes on each kind of store: checks, provenance, versions, history, expiry.

use std::path::PathBuf;

use cluster::map::command::Setting;
use cluster::map::{LIMITS_VERSION, MapCommand, RECORDS_VERSION};
use control::Control;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use tollgate_http::{Actor, ImportMode, LimitChange, OverrideChange};
use tollgate_limits::map_text::LimitText;

use super::lone_control::control;
use super::*;
use crate::records::{FileRecords, MapRecords};

mod contended;
mod costs;
mod crash;
mod ended_parents;
mod exempt;
mod files;
#[path = "../../../limits/src/tests/mistake_rows.rs"]
mod mistake_rows;
mod orphans;
mod partial;
mod reverts;

const NOW: u64 = 1_800_000_000_000;

struct World {
    /// Removed at the end, if it is the world's own.
    _own: Option<TempDir>,
    folder: PathBuf,
    /// `None`: the store is a file.
    control: Option<Control>,
    store: Arc<LimitsStore>,
}

fn limit(name: &str, policy: &str, more: &str) -> String {
    format!("[[limit]]\nname = \"{name}\"\nmatch = \"{name}:{{x}}\"\npolicy = \"{policy}\"\n{more}")
}

fn actor(is_admin: bool) -> Actor {
    Actor { name: "ann".to_owned(), via: Via::Api, address: None, is_admin }
}

impl World {
    /// Starts a server with a limits file of this text, or without one.
    async fn start(file: Option<&str>) -> Self {
        let folder = tempfile::tempdir().expect("a directory for a few files");
        let path = folder.path().to_owned();
        let mut world = Self { _own: Some(folder), ..Self::at(&path) };
        world.restart(file).await;
        world
    }

    /// Starts a server on the store in a folder.
    async fn open(folder: &std::path::Path) -> Self {
        let mut world = Self::at(folder);
        world.restart(None).await;
        world
    }

    fn at(folder: &std::path::Path) -> Self {
        let store = Arc::new(LimitsStore::new(Arc::new(LimitsHandle::new(Limits::default(), 1))));
        Self { _own: None, folder: folder.to_owned(), control: None, store }
    }

    /// Starts a node of a cluster whose map takes records.
    async fn on_map() -> Self {
        let control = control().await;
        let mut world = Self::at(std::path::Path::new("-"));
        world.control = Some(control.clone());
        world.restart(None).await;
        let early = world.put("a", &limit("a", "block", ""), 0).await;
        let expected = ServiceError::Unavailable("the cluster is being updated".to_owned());
        assert_eq!(early, Err(expected.clone()));
        let plain = LimitsRequest::Put(Box::new(wanted("a", &limit("a", "block", ""), 0)));
        assert_eq!(world.store.check(plain, NOW).await.map(|_| ()), Err(expected));
        let part = wanted("a", &limit("a", "block", "order = 1"), 0);
        for (version, is_put) in [(RECORDS_VERSION, false), (LIMITS_VERSION, true)] {
            let version = MapCommand::Set(Setting::Version(version));
            let proposed = control.propose(version, Duration::from_secs(5)).await;
            proposed.expect("it leads").answer.expect("a version");
            let request = LimitsRequest::Put(Box::new(part.clone()));
            let checked = world.store.check(request, NOW).await;
            assert_eq!(checked.is_ok(), is_put, "{checked:?}");
        }
        world
    }

    /// Returns a server with each kind of store.
    async fn both() -> [Self; 2] {
        [Self::start(None).await, Self::on_map().await]
    }

    /// Puts the records in force, as each node of a cluster does.
    fn settle(&self) {
        if self.control.is_some() {
            self.store.follow(None);
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.join("limits.toml")
    }

    async fn restart(&mut self, file: Option<&str>) {
        let handle = Arc::new(LimitsHandle::new(Limits::default(), 1));
        // The file is closed before it is opened again.
        self.store = Arc::new(LimitsStore::new(handle));
        if let Some(control) = &self.control {
            self.store.set_records(Arc::new(MapRecords::new(control.clone())));
            return self.settle();
        }
        let records = FileRecords::open(&self.folder.join("limits.redb"));
        let records = Arc::new(records.expect("nothing else has it"));
        if let Some(text) = file {
            std::fs::write(self.path(), text).expect("the directory is ours");
        }
        let path = self.path();
        let path = file.map(|_| path.as_path());
        self.store.start(records, path, NOW).await.expect("a good file");
    }

    async fn reload(&self, text: &str) -> Result<usize, LimitsError> {
        std::fs::write(self.path(), text).expect("the directory is ours");
        self.store.reload(&self.path(), NOW).await
    }

    async fn change(&self, request: LimitsRequest) -> Result<ChangedLimit, ServiceError> {
        let done = self.store.change(request, NOW, None).await.map(|done| done.changed);
        self.settle();
        done
    }

    async fn put(
        &self,
        name: &str,
        toml: &str,
        version: u64,
    ) -> Result<ChangedLimit, ServiceError> {
        self.change(LimitsRequest::Put(Box::new(wanted(name, toml, version)))).await
    }

    async fn set(
        &self,
        limit: &str,
        key: &str,
        policy: Option<&str>,
        version: u64,
    ) -> Result<ChangedLimit, ServiceError> {
        let change = override_of(limit, key, policy, version);
        self.change(LimitsRequest::Override(Box::new(change))).await
    }

    async fn import(&self, toml: &str, mode: ImportMode) -> Result<ImportPlan, ServiceError> {
        let file = LimitText::of_file("l.toml", toml.as_bytes()).expect("a good file");
        let request = LimitsRequest::Import { file: Arc::new(file), mode, actor: actor(false) };
        let plan = self.store.change(request, NOW, None).await.map(|done| done.import);
        self.settle();
        plan
    }

    /// The policy of a key; empty if it is not limited.
    fn policy(&self, key: &str) -> String {
        let active = self.store.handle.load();
        let mut scratch = Vec::new();
        let found = active.limits().find(key.as_bytes(), &mut scratch).expect("a short key");
        found.map(|found| found.policy().to_string()).unwrap_or_default()
    }

    fn names(&self) -> String {
        let names: Vec<String> = self.store.limits().into_iter().map(|limit| limit.name).collect();
        names.join(" ")
    }
}

fn wanted(name: &str, toml: &str, version: u64) -> LimitChange {
    LimitChange {
        name: name.to_owned(),
        toml: toml.to_owned(),
        before: None,
        note: None,
        version: (version > 0).then_some(version),
        adopt: false,
        dry_run: false,
        actor: actor(false),
    }
}

fn override_of(limit: &str, key: &str, policy: Option<&str>, version: u64) -> OverrideChange {
    OverrideChange {
        limit: limit.to_owned(),
        key: key.to_owned(),
        policy: policy.map(str::to_owned),
        expires_ms: None,
        note: None,
        version: (version > 0).then_some(version),
        actor: actor(false),
    }
}

#[tokio::test]
async fn a_limit_is_put_replaced_removed_reverted() {
    for mut world in World::both().await {
        let first = world.put("a", &limit("a", "fixed:5/s", ""), 0).await.expect("a new limit");
        assert_eq!(first.seq, 1);
        assert_eq!(world.policy("a:1"), "fixed:5/s");
        let again = world.put("a", &limit("a", "fixed:5/s", "# the same\n"), first.version).await;
        assert_eq!(again, Ok(ChangedLimit { seq: 0, ..first }));
        let taken = world.put("a", &limit("a", "block", ""), 0).await;
        assert_eq!(taken, Err(ServiceError::Changed(first.version)));
        let second =
            world.put("a", &limit("a", "block", ""), first.version).await.expect("its version");
        let stale = world.put("a", &limit("a", "unlimited", ""), first.version).await;
        assert_eq!(stale, Err(ServiceError::Changed(second.version)));
        assert_eq!(world.policy("a:1"), "block");
        let revert = |seq, version| LimitsRequest::Revert {
            name: "a".to_owned(),
            seq,
            version: Some(version),
            actor: actor(false),
        };
        let third = world.change(revert(1, second.version)).await.expect("a kept change");
        assert_eq!(world.policy("a:1"), "fixed:5/s");
        let (name, note) = ("a".to_owned(), Some("no more".to_owned()));
        let version = Some(third.version);
        let gone = LimitsRequest::Remove { name, version, note, actor: actor(false) };
        assert_eq!(world.change(gone).await.map(|done| done.version), Ok(0));
        assert_eq!(world.policy("a:1"), "");
        let missing = world.change(revert(9, 1)).await;
        assert!(matches!(missing, Err(ServiceError::NotFound(_))), "{missing:?}");
        world.restart(None).await;
        let history = world.store.history(Some("a"));
        let rows: Vec<_> = history
            .iter()
            .map(|change| (change.seq, change.from, change.to, change.reverts))
            .collect();
        let (one, two, three) = (first.version, second.version, third.version);
        assert_eq!(
            rows,
            [(4, three, 0, None), (3, two, three, Some(1)), (2, one, two, None), (1, 0, one, None)]
        );
        assert_eq!(history[0].note.as_deref(), Some("no more"));
        assert!(history[1].body_before.as_ref().is_some_and(|body| body.contains("block")));
        assert!(history[0].body.is_none() && history[3].body_before.is_none());
    }
}

#[tokio::test]
async fn a_refused_change_changes_nothing() {
    for world in World::both().await {
        world.put("a", &limit("a", "fixed:5/s", ""), 0).await.expect("a new limit");
        let cases = [
            ("b", "[[limit]]\nname = \"b\"\n\nmatch = \"b:{x}\"\npolicy = \"nope\"\n", Some(5)),
            (
                "b",
                "[[limit]]\n# mine\nname = \"b\"\nmatch = \"a:{y}\"\npolicy = \"block\"\n",
                Some(4),
            ),
            ("b", "[[limit]]\nname = \"c\"\nmatch = \"b:{x}\"\npolicy = \"block\"\n", Some(2)),
            ("@b", "[[limit]]\nname = \"@b\"\nmatch = \"b:{x}\"\npolicy = \"block\"\n", Some(2)),
            ("b", "", Some(1)),
        ];
        for (name, toml, expected) in cases {
            let refused = world.put(name, toml, 0).await;
            let Err(ServiceError::Invalid { line, detail }) = refused else {
                panic!("{toml}: {refused:?}")
            };
            assert_eq!(line, expected, "{detail}");
        }
        let past = limit("b", "block", "expires = \"2020-01-01T00:00:00Z\"\n");
        assert!(world.put("b", &past, 0).await.is_err());
        let mut long = wanted("b", &limit("b", "block", ""), 0);
        long.note = Some("x".repeat(201));
        assert!(world.change(LimitsRequest::Put(Box::new(long))).await.is_err());
        assert_eq!((world.names().as_str(), world.store.history(None).len()), ("a", 1));
    }
}

#[tokio::test]
async fn the_file_decides_about_its_own_limits_only() {
    let (a, b) = (limit("a", "fixed:5/s", ""), limit("b", "fixed:6/s", ""));
    let mut world = World::start(Some(&(a.clone() + &b))).await;
    let version = world.store.limit("a").expect("of the file").version;
    let refused = world.put("a", &limit("a", "block", ""), version).await;
    let Err(ServiceError::Conflict(reason)) = refused else { panic!("{refused:?}") };
    assert_eq!(reason, format!("managed by a file: {}", world.path().display()));
    world.put("c", &limit("c", "fixed:7/s", ""), 0).await.expect("a new limit");
    // Adopting needs an admin.
    let mut adopt = wanted("a", &limit("a", "fixed:8/s", ""), version);
    adopt.adopt = true;
    assert!(world.change(LimitsRequest::Put(Box::new(adopt.clone()))).await.is_err());
    adopt.actor = actor(true);
    world.change(LimitsRequest::Put(Box::new(adopt))).await.expect("an admin may");
    assert_eq!(world.policy("a:1"), "fixed:8/s");
    let c = limit("c", "block", "");
    assert_eq!(world.reload(&(a.clone() + &limit("b", "fixed:9/s", "") + &c)).await.ok(), Some(3));
    assert_eq!(
        [world.policy("a:1"), world.policy("b:1"), world.policy("c:1")],
        ["fixed:8/s", "fixed:9/s", "fixed:7/s"]
    );
    let sources = |world: &World| -> String {
        let row = |limit: tollgate_http::LimitView| format!("{}={} ", limit.name, limit.source);
        world.store.limits().into_iter().map(row).collect()
    };
    assert_eq!(sources(&world), "a=api b=file c=api ");
    // A limit that leaves the file goes; the others stay, after a restart too.
    world.restart(Some(&a)).await;
    assert_eq!(sources(&world), "a=api c=api ");
    assert!(matches!(world.reload("").await, Ok(2)), "no limit of the file is in force");
    let conflict = world.reload(&limit("d", "block", "").replace("d:{x}", "c:{y}")).await;
    assert!(conflict.is_err(), "the limit c of the API takes these keys");
    assert_eq!(sources(&world), "a=api c=api ");
}

#[tokio::test]
async fn an_override_of_the_api_holds_at_once() {
    for mut world in World::both().await {
        world.put("a", &limit("a", "fixed:5/s", ""), 0).await.expect("a new limit");
        let index = world.store.handle.load();
        let done = world.set("a", "a:bad", Some("block"), 0).await.expect("a new override");
        assert_eq!([world.policy("a:bad"), world.policy("a:1")], ["block", "fixed:5/s"]);
        assert!(index.metrics(0).is_some(), "the limits before stay usable");
        assert_eq!(
            world.set("a", "a:bad", Some("allow"), 0).await,
            Err(ServiceError::Changed(done.version))
        );
        for (limit, key, policy) in
            [("a", "b:1", "block"), ("a", "a:1", "nope"), ("z", "z:1", "block")]
        {
            assert!(
                world.set(limit, key, Some(policy), 0).await.is_err(),
                "{limit} {key} {policy}"
            );
        }
        world.restart(None).await;
        assert_eq!(world.policy("a:bad"), "block");
        // Overrides belong to the name: they stay when the limit changes.
        let version = world.store.limit("a").expect("stored").version;
        world.put("a", &limit("a", "fixed:6/s", ""), version).await.expect("its version");
        assert_eq!([world.policy("a:bad"), world.policy("a:1")], ["block", "fixed:6/s"]);
        assert_eq!(
            world.set("a", "a:bad", None, done.version).await.map(|done| done.version),
            Ok(0)
        );
        assert_eq!(world.policy("a:bad"), "fixed:6/s");
        assert!(world.set("a", "a:bad", None, 1).await.is_err());
        let whats: Vec<_> =
            world.store.history(Some("a")).into_iter().map(|row| row.what).collect();
        assert_eq!(whats, ["override", "limit", "override", "limit"]);
    }
}

#[tokio::test]
async fn expired_things_go_with_a_change() {
    for world in World::both().await {
        let expires = "expires = \"2027-01-15T08:00:01Z\"\n";
        world.put("a", &limit("a", "fixed:5/s", expires), 0).await.expect("a new limit");
        world
            .put("b", &limit("b", "fixed:5/s", "disabled = true\n"), 0)
            .await
            .expect("a new limit");
        assert_eq!(world.policy("b:1"), "", "a disabled limit is not in force");
        let mut change = override_of("a", "a:1", Some("block"), 0);
        change.expires_ms = Some(NOW + 500);
        world.change(LimitsRequest::Override(Box::new(change))).await.expect("a new override");
        assert!(!world.store.has_expired(NOW + 499) && world.store.has_expired(NOW + 500));
        world.store.expire(NOW + 500).await;
        world.settle();
        assert_eq!(world.policy("a:1"), "fixed:5/s");
        world.store.expire(NOW + 1000).await;
        world.settle();
        assert_eq!((world.names().as_str(), world.policy("a:1").as_str()), ("b", ""));
        let vias: Vec<_> = world.store.history(None).into_iter().map(|row| row.via).collect();
        assert_eq!(vias, ["expiry", "expiry", "api", "api", "api"]);
        let counts = world.store.change_counts();
        assert!(counts.contains(&(Via::Expiry, 2)) && counts.contains(&(Via::Api, 3)));
    }
}

#[tokio::test]
async fn an_import_says_its_effect() {
    let world = World::start(Some(&limit("f", "fixed:1/s", ""))).await;
    let [a, b, c] = ["a", "b", "c"].map(|name| limit(name, "fixed:5/s", ""));
    let f = limit("f", "fixed:1/s", "");
    let plan = world.import(&format!("{a}{b}{f}"), ImportMode::Merge).await.expect("all new");
    assert_eq!((plan.put.join(" "), plan.same.join(" ")), ("a b".to_owned(), "f".to_owned()));
    let changed = limit("a", "fixed:6/s", "");
    let plan = world.import(&format!("{c}{changed}"), ImportMode::Merge).await.expect("a merge");
    assert_eq!((plan.put.join(" "), plan.removed.len()), ("c a".to_owned(), 0));
    let order = world.names();
    let plan =
        world.import(&format!("{b}{changed}"), ImportMode::Replace).await.expect("a replacement");
    assert_eq!(plan.removed, ["c"], "before: {order}");
    assert!(!plan.moved.is_empty() && plan.put.is_empty(), "{plan:?}");
    let names = world.names();
    assert!(names == "f b a" || names == "b a f", "{names}");
    let foreign = world.import(&limit("f", "block", ""), ImportMode::Merge).await;
    assert!(matches!(foreign, Err(ServiceError::Conflict(_))), "{foreign:?}");
    assert!(world.import("", ImportMode::Replace).await.is_err());
    let file = LimitText::of_file("l.toml", world.store.export().as_bytes()).expect("an export");
    assert_eq!(file.limits.len(), 3);
}

#[tokio::test]
async fn more_changes_than_one_command_has_room_for() {
    for world in World::both().await {
        let texts: String = (0..300).map(|n| limit(&format!("l{n:03}"), "fixed:5/s", "")).collect();
        let plan = world.import(&texts, ImportMode::Merge).await.expect("all new");
        assert_eq!((plan.put.len(), world.store.history(None).len()), (300, 300));
        let seqs: Vec<u64> = world.store.history(None).iter().map(|change| change.seq).collect();
        assert_eq!(seqs, (1..=300).rev().collect::<Vec<_>>());
        assert_eq!(world.store.handle.load().limits().len(), 300);
        // More than the history keeps take several attempts.
        let texts: String =
            (0..1200).map(|n| limit(&format!("l{n:04}"), "fixed:5/s", "")).collect();
        let plan = world.import(&texts, ImportMode::Replace).await.expect("all new");
        let counts = [plan.put.len(), plan.removed.len(), plan.moved.len(), plan.same.len()];
        assert_eq!(counts, [1200, 300, 0, 0]);
    }
}

#[tokio::test]
async fn two_editors_with_one_version_do_not_overwrite() {
    for world in World::both().await {
        let done = world.put("a", &limit("a", "fixed:5/s", ""), 0).await.expect("a new limit");
        let edit = |policy: &str| {
            let change = wanted("a", &limit("a", policy, ""), done.version);
            world.change(LimitsRequest::Put(Box::new(change)))
        };
        let (one, other) = tokio::join!(edit("fixed:6/s"), edit("fixed:7/s"));
        let (won, lost) = if one.is_ok() { (one, other) } else { (other, one) };
        let won = won.expect("one of them is first");
        assert_eq!(lost, Err(ServiceError::Changed(won.version)));
        assert_eq!(world.store.history(None).len(), 2);
    }
}

#[tokio::test]
async fn limits_of_a_file_stay_without_the_file() {
    let file = limit("a", "block", "");
    let mut world = World::start(Some(&file)).await;
    world.put("b", &limit("b", "block", ""), 0).await.expect("another limit");
    world.restart(None).await;
    let sources: Vec<(String, String)> =
        world.store.limits().into_iter().map(|limit| (limit.name, limit.source)).collect();
    let pair = |name: &str, source: &str| (name.to_owned(), source.to_owned());
    assert_eq!(sources, [pair("a", "file"), pair("b", "api")]);
    // The file decides again once it is there.
    world.restart(Some(&limit("c", "block", ""))).await;
    let names: Vec<String> = world.store.limits().into_iter().map(|limit| limit.name).collect();
    assert_eq!(names, ["c", "b"]);
}

/// The rows of the page of overrides that cannot match, through the API: a limit, an import, and
/// overrides by key.
#[tokio::test]
async fn overrides_that_cannot_match_are_refused_by_the_api() {
    let vip = "[[limit]]\nname = 'vip'\nmatch = 'login:admin'\npolicy = 'block'\n";
    for world in World::both().await {
        world.put("vip", vip, 0).await.expect("a good limit");
        for (toml, message) in mistake_rows::rows() {
            let message = message.replace(" of line 1", "");
            let refused = world.put("one", &toml, 0).await.expect_err(&toml);
            let ServiceError::Invalid { detail, line } = refused else { panic!("{refused:?}") };
            assert_eq!(detail, message, "{toml}");
            assert!(line.is_some(), "{toml}");
        }
        let one = "[[limit]]\nname = 'one'\nmatch = 'login:{ip:ip}'\npolicy = 'fixed:5/s'\n";
        world.put("one", one, 0).await.expect("a good limit");
        world.set("one", "login:10.*", Some("block"), 0).await.expect("it matches");
        for (key, reason) in [
            ("login:10.0.0.0/33", "`10.0.0.0/33` is no network"),
            ("login:*:root", "`*` stands at the end of a key only"),
            ("login:localhost", "it captures addresses, and `localhost` is none"),
            ("logout:10.0.0.1", "the limit counts no such key"),
            ("login:::ffff:10.0.0.0/104", "write it as IPv4: 10.0.0.0/8"),
        ] {
            let refused = world.set("one", key, Some("block"), 0).await.expect_err(key);
            let ServiceError::Invalid { detail, .. } = refused else { panic!("{refused:?}") };
            assert!(detail.contains(reason), "{detail}");
        }
        let first = world.set("one", "login:2001:0db8::/32", Some("allow"), 0).await;
        let version = first.expect("it matches").version;
        let twice = world.set("one", "login:2001:db8::/32", Some("block"), 0).await;
        let ServiceError::Invalid { detail, .. } = twice.expect_err("it is there") else {
            panic!()
        };
        assert!(detail.ends_with("there is an override of it already: `login:2001:0db8::/32`"));
        let again = world.set("one", "login:2001:0db8::/32", Some("block"), version).await;
        let version = again.expect("it is the same text").version;
        let hides = world.set("one", "login:*", Some("allow"), 0).await;
        let ServiceError::Invalid { detail, .. } = hides.expect_err("it hides") else { panic!() };
        let network = "login:2001:0db8::/32";
        let reason = format!("`login:*`: it hides `{network}`: prefixes come before networks");
        assert_eq!(detail, reason);
        world.set("one", network, None, version).await.expect("its version");
        let prefix = world.set("one", "login:*", Some("allow"), 0).await.expect("it matches");
        let again = world.set("one", "login:*", Some("block"), prefix.version).await;
        again.expect("it is the same text");
        let hidden = world.set("one", "login:192.0.2.0/24", Some("block"), 0).await;
        let ServiceError::Invalid { detail, .. } = hidden.expect_err("hidden") else { panic!() };
        assert!(detail.contains("it is hidden: `login:*` comes before networks"), "{detail}");
    }
}

/// A process makes no more lists of policies than it has room for.
#[test]
fn override_without_room_for_its_policy_is_full() {
    let refused = |error| plan::refused_policy("fixed:1/s", error);
    let full = protocol::PolicyListError::Full;
    assert_eq!(refused(full), ServiceError::Full(full.to_string()));
    let other = protocol::PolicyListError::Repeated(0, 1);
    let detail = format!("`fixed:1/s`: {other}");
    assert_eq!(refused(other), ServiceError::Invalid { detail, line: None });
}

/// An override that an earlier version accepted does not take its limit out of force.
#[test]
fn stored_overrides_that_cannot_match_are_left_out() {
    let toml = "[[limit]]\nname = \"one\"\nmatch = \"login:{ip}:{user}\"\npolicy = \"fixed:5/s\"\n\
                overrides = [\n    { key = \"login:*:root\", policy = \"block\" },\n    \
                { key = \"login:1:root\", policy = \"block\" },\n]\n";
    let text = LimitText { name: "one".to_owned(), toml: toml.to_owned() };
    let entries = vec![OrderedLimit::new(text)];
    map_text::limits(&entries).expect_err("it is refused now");
    let (agree, error) = map_text::limits_that_agree(entries.clone());
    assert!(error.is_none());
    for limits in [map_text::stored_limits(&entries).expect("it was accepted"), agree] {
        let limit = limits.by_name(b"one").expect("in force");
        assert_eq!(limit.override_count(), 1);
        assert_eq!(limit.policy_of(b"login:1:root").to_string(), "block");
    }
}

#[tokio::test]
async fn version_that_is_not_here_yet_is_awaited() {
    let world = World::on_map().await;
    let control = world.control.as_ref().expect("it is a node");
    // The young cluster changes its map.
    let mut ver = 0;
    while control.map().ver() != ver {
        ver = control.map().ver();
        sleep(Duration::from_millis(600)).await;
    }
    let first = world.put("late", &limit("late", "fixed:1/s", ""), 0).await.expect("a new one");
    // The version of the next change, as a client reads it at a node that is ahead.
    let next = first.version + 1;
    let text = limit("late", "fixed:3/s", "");
    let (later, now) = tokio::join!(world.put("late", &text, next), async {
        sleep(Duration::from_millis(100)).await;
        world.put("late", &limit("late", "fixed:2/s", ""), first.version).await
    });
    assert_eq!(now.map(|done| done.version), Ok(next));
    let last = later.expect("it replaces the version that it names").version;
    // No node will have this one.
    let start = Instant::now();
    let never = world.put("late", &limit("late", "fixed:4/s", ""), last + 10).await;
    assert_eq!(never, Err(ServiceError::Changed(last)));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}
