//! The HTTP API of a cluster of three: a change through one node, questions to all of them.
//!
//! Not here: the API of one server (`crate::api`), changes under faults (`tests/sim`).

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::nodes::{Cluster, LONG, Line};
use crate::api::TestedApi;

/// The port of a node's admin listener.
const HTTP: u16 = 31211;
/// The time in which a change is in force on all nodes, and an observation is published.
const SOON: Duration = Duration::from_secs(20);
/// The longest time from the map of a node to its limits.
const IN_FORCE_MAX: Duration = Duration::from_secs(2);
/// Changes of each of three editors.
const EDITS: u64 = 50;
/// Requests on a key that is certainly sampled.
const MANY: usize = 4000;

/// Three nodes with their APIs, once limits can be changed.
pub(super) fn steered() -> (Cluster, Vec<TestedApi>) {
    steered_with(&[], None)
}

/// Like [`steered`], with more flags, and a token of an admin for the APIs.
pub(super) fn steered_with(flags: &[&str], token: Option<&str>) -> (Cluster, Vec<TestedApi>) {
    let http = |_, host| vec!["--http".to_owned(), format!("{host}:{HTTP}")];
    let cluster = Cluster::start_each(3, flags, http);
    let apis = (0..3).map(|node| TestedApi {
        address: (cluster.host(node), HTTP).into(),
        token: token.map(str::to_owned),
    });
    let apis: Vec<TestedApi> = apis.collect();
    // Limits can be changed once the leader has seen the version of all nodes.
    let body = json!({ "toml": limit("first", "first:{x}", "block", "") });
    let start = Instant::now();
    let created = loop {
        let reply = apis[0].ask("PUT", "limits/first", Some("*"), Some(&body));
        if reply.status != 503 || start.elapsed() > SOON {
            break reply;
        }
        assert_eq!(reply.detail(), "the cluster is being updated");
        thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(created.status, 201, "{created:?}: {}", cluster.logs());
    let removed = apis[0].ask("DELETE", "limits/first", created.version.as_deref(), None);
    assert_eq!(removed.status, 200, "{removed:?}");
    (cluster, apis)
}

fn limit(name: &str, pattern: &str, policy: &str, more: &str) -> String {
    format!("[[limit]]\nname = \"{name}\"\nmatch = \"{pattern}\"\npolicy = \"{policy}\"\n{more}")
}

/// Creates a limit through a node, and waits until it is in force on each.
#[track_caller]
fn create(apis: &[TestedApi], node: usize, toml: &str) -> u64 {
    let name = toml.split('"').nth(1).expect("a name");
    let seq = apis[node].put(name, toml, "*");
    for api in apis {
        let is_there = |list: &Value| list["limits"].as_array().is_some_and(|l| !l.is_empty());
        api.until(&format!("limits?q={name}"), SOON, is_there);
    }
    seq
}

/// The id of the node that answers, such as `n1`.
fn id(api: &TestedApi) -> String {
    let status = api.get("status");
    status["node"].as_str().unwrap_or_else(|| panic!("no id: {status}")).to_owned()
}

/// Takes one unit through a node.
#[track_caller]
fn take(cluster: &Cluster, node: u8, key: &str) -> String {
    cluster.ask(node, &format!("take {key} 1 -\r\n"))
}

/// Takes a unit of each key many times through a node.
fn flood(cluster: &Cluster, node: u8, keys: &[String]) {
    let mut line = Line::connect(cluster.address(node)).expect("it listens");
    for some in keys.chunks(100) {
        let lines: Vec<String> = some.iter().map(|key| format!("take {key} 1 -\r\n")).collect();
        let lines = lines.concat();
        line.send(&lines).expect("it reads");
        for _ in some {
            line.receive().expect("it answers").expect("it stays");
        }
    }
}

#[test]
fn change_through_one_node_holds_on_all() {
    let (cluster, apis) = steered();
    let first = create(&apis, 0, &limit("login", "login:{ip}", "fixed:3/d", ""));
    let replies: Vec<String> =
        [0, 1, 2, 0].iter().map(|node| take(&cluster, *node, "login:a")).collect();
    assert!(replies[..3].iter().all(|reply| reply.starts_with("ALLOW")), "{replies:?}");
    assert!(replies[3].starts_with("DENY") && replies[3].ends_with(" by=login"), "{replies:?}");

    // Two editors at two nodes with one version: the second one hears the present one.
    let version = apis[1].version("login");
    let body = |count: u64| json!({ "toml": limit("login", "login:{ip}", &format!("fixed:{count}/d"), "") });
    let won = apis[1].ask("PUT", "limits/login", Some(&version), Some(&body(5)));
    assert_eq!(won.status, 200, "{won:?}");
    let lost = apis[2].ask("PUT", "limits/login", Some(&version), Some(&body(6)));
    assert_eq!((lost.status, &lost.version), (412, &won.version), "{lost:?}");

    // An override through the third node, and its end.
    let path = "limits/login/overrides/login:a";
    let block = json!({ "policy": "block", "for_ms": 6000 });
    let put = apis[2].ask("PUT", path, Some("*"), Some(&block));
    assert_eq!(put.status, 201, "{put:?}");
    for (node, api) in (0..).zip(&apis) {
        api.until("overrides", SOON, |list| list["total"] == json!(1));
        // The list is that of the map, which the node puts in force a moment later.
        let start = Instant::now();
        while !take(&cluster, node, "login:a").starts_with("DENY") {
            assert!(start.elapsed() < IN_FORCE_MAX, "{node}: {}", cluster.logs());
        }
    }
    for (node, api) in (0..).zip(&apis) {
        api.until("overrides", SOON, |list| list["total"] == json!(0));
        assert!(!take(&cluster, node, "login:a").starts_with("DENY 0"), "{node}");
    }
    let version = won.version.expect("a version");
    let back =
        apis[0].ask("POST", "limits/login/revert", Some(&version), Some(&json!({ "seq": first })));
    assert_eq!(back.status, 200, "{back:?}");
    let seq = back.seq();
    let audits: Vec<Value> = apis
        .iter()
        .map(|api| api.until("audit", SOON, |audit| audit["changes"][0]["seq"] == json!(seq)))
        .collect();
    assert!(audits.iter().all(|audit| *audit == audits[0]), "{audits:?}");
    let vias: Vec<&Value> =
        audits[0]["changes"].as_array().expect("a list").iter().map(|row| &row["via"]).collect();
    assert_eq!(vias, ["api", "expiry", "api", "api", "api", "api", "api"], "{audits:?}");
    for api in &apis {
        assert_eq!(api.get("limits/login"), apis[0].get("limits/login"));
    }
}

#[test]
fn editors_at_all_nodes_make_each_of_their_changes() {
    let (cluster, apis) = steered();
    // Each change takes the next place of the history, so all editors compete for it.
    let edit = |editor: usize| -> Vec<u64> {
        let changes = (0..EDITS).map(|number| {
            let name = format!("e{editor}-{number}");
            apis[editor].put(&name, &limit(&name, &format!("{name}:{{x}}"), "block", ""), "*")
        });
        changes.collect()
    };
    let mut seqs: Vec<u64> = thread::scope(|scope| {
        let editors: Vec<_> = (0..apis.len()).map(|one| scope.spawn(move || edit(one))).collect();
        editors.into_iter().flat_map(|editor| editor.join().expect("no panic")).collect()
    });
    seqs.sort_unstable();
    let first = seqs[0];
    let all: Vec<u64> = (first..first + 3 * EDITS).collect();
    assert_eq!(seqs, all, "{}", cluster.logs());
}

#[test]
fn keys_are_explained_and_reset_through_any_node() {
    let (cluster, apis) = steered();
    let user = limit("user", "user:{tenant}:{id}", "fixed:9/d", "parents = [\"tenant:{tenant}\"]");
    create(&apis, 2, &limit("tenant", "tenant:{tenant}", "fixed:2/d", ""));
    create(&apis, 0, &user);
    let ids: Vec<String> = apis.iter().map(id).collect();
    // A key and its parent at two owners, which a third node is asked about.
    let owner = |explained: &Value, place: usize| {
        let owner = &explained["standings"][place]["owner"];
        ids.iter().position(|id| owner == id.as_str()).unwrap_or_else(|| panic!("{explained}"))
    };
    let apart = (0..200).find_map(|number| {
        let key = format!("user:t{number}:u");
        let explained = apis[0].get(&format!("explain?key={key}"));
        let (own, parent) = (owner(&explained, 0), owner(&explained, 1));
        (own != parent).then(|| (key, own, parent, 3 - own - parent))
    });
    let (key, own, parent, third) = apart.expect("two keys in some hundred have two owners");
    let explained: Vec<Value> =
        apis.iter().map(|api| api.get(&format!("explain?key={key}"))).collect();
    assert!(explained.iter().all(|view| *view == explained[0]), "{explained:?}");
    let copies = explained[0]["standings"][0]["copies"].as_array().expect("a list");
    assert!(copies.len() == 1 && copies[0] != ids[own].as_str(), "{explained:?}");
    assert_eq!((&explained[0]["allowed"], owner(&explained[0], 1)), (&json!(true), parent));

    let replies: Vec<String> = (0..3).map(|_| take(&cluster, third as u8, &key)).collect();
    assert!(replies[..2].iter().all(|reply| reply.starts_with("ALLOW")), "{replies:?}");
    assert!(replies[2].starts_with("DENY") && replies[2].ends_with(" by=tenant"), "{replies:?}");
    let api = &apis[third];
    let left =
        |view: &Value, place: usize| view["standings"][place]["verdict"]["remaining"].clone();
    // The key gets its unit back after the reply.
    let explain = format!("explain?key={key}");
    let refused = api.until(&explain, SOON, |view| left(view, 0) == json!(7));
    assert_eq!(refused["refused_by"], json!(["tenant"]), "{refused}");
    assert_eq!((left(&refused, 0), left(&refused, 1)), (json!(7), json!(0)), "{refused}");

    // One unit back, to the key and its parent; then the parent as good as new.
    let path = format!("keys/{key}");
    let refund = api.ask("POST", &format!("{path}/refund"), None, Some(&json!({ "units": 1 })));
    assert_eq!(refund.status, 204, "{refund:?}");
    let after = api.get(&path);
    assert_eq!((left(&after, 0), left(&after, 1)), (json!(8), json!(1)), "{after}");
    let tenant = format!("keys/tenant:{}", key.split(':').nth(1).expect("a tenant"));
    let reset = apis[own].ask("DELETE", &tenant, None, None);
    assert_eq!((reset.status, &reset.body["existed"]), (200, &json!(true)), "{reset:?}");
    let after = apis[parent].get(&path);
    assert_eq!((left(&after, 0), left(&after, 1)), (json!(8), json!(2)), "{after}");
    let again = apis[own].ask("DELETE", &tenant, None, None);
    assert_eq!(again.body["existed"], json!(false), "{again:?}");
}

/// Attempts on keys with parents, and those of `takem`, are recorded by the owner of the key, so
/// that a trial sees all of them, whatever nodes the clients ask.
#[test]
fn trial_replays_attempts_of_all_nodes_on_keys_with_parents() {
    let (cluster, apis) = steered();
    create(&apis, 0, &limit("all", "all", "fixed:1000000/d", ""));
    let child = |policy: &str| limit("api", "api:{user}", policy, "parents = [\"all\"]\n");
    create(&apis, 0, &child("fixed:1000000/d"));
    for api in &apis {
        api.until("limits", SOON, |list| list["limits"].as_array().is_some_and(|l| l.len() == 2));
    }
    let keys: Vec<String> = (0..4000).map(|key| format!("api:{key}")).collect();
    let pairs: Vec<String> = keys.chunks(2).map(|pair| pair.join(" ")).collect();
    for node in 0..3 {
        flood(&cluster, node, &keys);
    }
    let mut line = Line::connect(cluster.address(1)).expect("it listens");
    for pair in &pairs {
        line.send(&format!("takem 1 {pair}\r\n")).expect("it reads");
        let reply = line.receive().expect("it answers").expect("it stays");
        assert!(reply.starts_with("ALLOW "), "{reply}");
    }
    let body = json!({ "toml": child("fixed:3/d"), "minutes": 60, "scope": "cluster" });
    let has_all = |tried: &Value| {
        let counts = tried["keys"].as_u64().zip(tried["requests"].as_u64());
        counts.is_some_and(|(keys, requests)| keys >= 30 && requests == 4 * keys)
    };
    let deadline = Instant::now() + SOON;
    let tried = loop {
        let tried = apis[2].ask("POST", "limits/api/try", None, Some(&body)).body;
        if has_all(&tried) {
            break tried;
        }
        assert!(Instant::now() < deadline, "{tried}");
        std::thread::sleep(Duration::from_millis(20));
    };
    // The fourth attempt on each key is one too many.
    assert_eq!(tried["then"]["denied"], json!(0.25), "{tried}");
    assert_eq!((&tried["fidelity"], &tried["parents"]), (&json!(1.0), &json!("partial")));
}

#[test]
fn observations_cover_all_nodes_and_name_missing() {
    let (mut cluster, apis) = steered();
    create(&apis, 0, &limit("api", "api:{user}", "fixed:1000000/d", ""));
    let ids: Vec<String> = apis.iter().map(id).collect();
    for node in 0..3 {
        flood(&cluster, node, &vec![format!("api:hot{node}"); MANY]);
        // Some of these keys are recorded.
        let keys: Vec<String> = (0..1500).map(|key| format!("api:{node}:{key}")).collect();
        flood(&cluster, node, &keys);
    }
    let hot = |scope: &str| format!("hotkeys?what=taken&n=10&scope={scope}");
    let has = |list: &Value, key: &str| {
        list["keys"].as_array().is_some_and(|rows| rows.iter().any(|row| row["key"] == key))
    };
    let has_all = |list: &Value| (0..3).all(|node| has(list, &format!("api:hot{node}")));
    for api in &apis {
        let list = api.until(&hot("cluster"), SOON, has_all);
        assert_eq!(list["missing"], json!([]), "{list}");
    }
    let own = apis[1].get(&hot("node"));
    assert!(has(&own, "api:hot1") && !has(&own, "api:hot0"), "{own}");

    // A trial adds what each node has decided.
    let toml = limit("api", "api:{user}", "block", "");
    let try_it = |scope: &str| {
        let body = json!({ "toml": toml, "minutes": 60, "scope": scope });
        let tried = apis[0].ask("POST", "limits/api/try", None, Some(&body));
        assert_eq!(tried.status, 200, "{tried:?}");
        tried.body
    };
    let (node, whole) = (try_it("node"), try_it("cluster"));
    let keys = |tried: &Value| tried["keys"].as_u64().expect("a count");
    assert!(keys(&whole) > keys(&node) && keys(&node) > 0, "{node} {whole}");
    assert_eq!((&whole["missing"], &whole["then"]["denied"]), (&json!([]), &json!(1.0)));

    // A node that was killed is named, and the answer comes nevertheless.
    cluster.kill(2);
    let start = Instant::now();
    let list = apis[0].get(&hot("cluster"));
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    let gone = json!([format!("{} ({})", ids[2], cluster.host(2))]);
    assert_eq!(list["missing"], gone, "{list}");
    assert!(has(&list, "api:hot0") && has(&list, "api:hot1"), "{list}");
    assert_eq!(try_it("cluster")["missing"], gone);
    let state = |nodes: &Value, id: &str| {
        let rows = nodes["nodes"].as_array().expect("a list").iter();
        rows.clone().find(|row| row["id"] == id).map(|row| row["state"].clone())
    };
    apis[1].until("nodes", LONG, |nodes| state(nodes, &ids[2]) == Some(json!("dead")));
    assert!(apis[1].get("status")["faults"].to_string().contains(&ids[2]));
    let forget = apis[1].ask("POST", &format!("nodes/{}/forget", ids[2]), None, None);
    assert_eq!(forget.status, 204, "{forget:?}");
    apis[0].until("nodes", SOON, |nodes| state(nodes, &ids[2]).is_none());
    assert_eq!(apis[0].get(&hot("cluster"))["missing"], json!([]));
}

#[test]
fn node_is_drained_through_the_api() {
    let (cluster, apis) = steered();
    let ids: Vec<String> = apis.iter().map(id).collect();
    let set = |value: &str| {
        apis[1].ask("PUT", "settings/replicas", None, Some(&json!({ "value": value })))
    };
    assert_eq!(set("9").status, 409, "there are no nine copies");
    assert_eq!(set("1").status, 204);
    apis[2].until("nodes", SOON, |nodes| nodes["settings"]["replicas"] == json!("1"));
    for path in ["nodes/n99/drain", "nodes/n99/forget"] {
        let unknown = apis[0].ask("POST", path, None, None);
        assert_eq!((unknown.status, unknown.detail()), (404, "there is no node n99"), "{path}");
    }
    let drain = apis[0].ask("POST", &format!("nodes/{}/drain", ids[2]), None, None);
    assert_eq!(drain.status, 204, "{drain:?}: {}", cluster.logs());
    apis[1].until("nodes", LONG, |nodes| {
        let rows = nodes["nodes"].as_array().expect("a list").iter();
        let row = rows.clone().find(|row| row["id"] == ids[2].as_str());
        row.is_none_or(|row| row["primaries"] == json!(0) && row["state"] == json!("draining"))
    });
    // Its keys are served by the others.
    for key in 0..50 {
        let reply = cluster.ask(u8::from(key % 2 == 1), &format!("take k{key} 1 fixed:1/d\r\n"));
        assert!(reply.starts_with("ALLOW"), "{reply}");
    }
}
