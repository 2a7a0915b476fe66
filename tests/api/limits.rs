//! Limits and overrides of one server over the API, from their creation to their end.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Operated, TestedApi, limit_text, write_limits};
use crate::live::Client;

const STORE: [&str; 2] = ["--limits-store", "{folder}/store"];
/// Longest time until the server has removed what has expired.
const SOON: Duration = Duration::from_secs(10);

/// A limit of `count` a day.
fn login(count: u64) -> String {
    limit_text("login", "login:{ip}", &format!("fixed:{count}/d"), "")
}

fn names(list: &Value) -> Vec<&str> {
    let list = list["limits"].as_array().expect("a list");
    list.iter().map(|limit| limit["name"].as_str().expect("a name")).collect()
}

/// Takes one unit and returns whether it was allowed.
fn passes(client: &mut Client, key: &str) -> bool {
    client.ask_until(format!("take {key} 1 -\r\n"), "\r\n").starts_with("ALLOW")
}

/// Sends a limits file.
fn import(api: &TestedApi, query: &str, toml: &str) -> super::ApiReply {
    let path = format!("/api/v1/limits.toml{query}");
    api.send("PUT", &path, &["Content-Type: application/toml"], toml)
}

#[test]
fn limit_is_created_changed_and_taken_back() {
    let Operated { server, api } = Operated::start(&STORE);
    let mut client = server.connect();
    let put = |version: Option<&str>, toml: &str| {
        api.ask("PUT", "limits/login", version, Some(&json!({ "toml": toml, "note": "why" })))
    };
    assert_eq!(put(None, &login(1)).status, 428);
    assert_eq!(put(Some("\"1\""), &login(1)).status, 404, "there is none to replace");
    let created = put(Some("*"), &login(1));
    assert_eq!((created.status, created.version.is_some()), (201, true), "{created:?}");
    assert_eq!((passes(&mut client, "login:a"), passes(&mut client, "login:a")), (true, false));
    let taken = put(Some("*"), &login(2));
    assert_eq!((taken.status, &taken.version), (412, &created.version), "{taken:?}");
    let first = created.version.as_deref().expect("a version");

    // A check changes nothing, needs no version, and says where a mistake is.
    let path = "limits/login?dry_run=true";
    let checked = api.ask("PUT", path, None, Some(&json!({ "toml": login(2) })));
    assert_eq!((checked.status, &checked.body), (200, &json!({ "version": 0, "seq": 0 })));
    let wrong = login(2).replace("fixed:2/d", "fixed:2/x");
    for path in [path, "limits/login"] {
        let refused = api.ask("PUT", path, Some(first), Some(&json!({ "toml": wrong })));
        assert_eq!((refused.status, &refused.body["line"]), (422, &json!(4)), "{refused:?}");
    }
    assert_eq!(api.version("login"), first);

    let changed = put(Some(first), &login(3));
    assert_eq!(changed.status, 200, "{changed:?}");
    assert!(passes(&mut client, "login:a"), "a change is in force once it is answered");
    let stale = put(Some(first), &login(4));
    assert_eq!((stale.status, &stale.version), (412, &changed.version), "{stale:?}");
    assert_eq!(stale.body["version"], changed.body["version"]);
    let second = changed.version.as_deref().expect("a version");

    let seq = created.seq();
    let back = api.ask("POST", "limits/login/revert", Some(second), Some(&json!({ "seq": seq })));
    assert_eq!(back.status, 200, "{back:?}");
    assert!(!passes(&mut client, "login:a"));
    let third = api.version("login");
    assert_eq!(api.ask("DELETE", "limits/login", None, None).status, 428);
    assert_eq!(api.ask("DELETE", "limits/login", Some(second), None).status, 412);
    let gone = api.ask("DELETE", "limits/login?note=over", Some(&third), None);
    assert_eq!((gone.status, &gone.body["version"]), (200, &json!(0)), "{gone:?}");
    client.ask("incr login:b 1\r\n", "NOT_FOUND\r\n");
    assert_eq!(api.ask("GET", "limits/login", None, None).status, 404);

    // A limit that was removed comes back too.
    let back = api.ask("POST", "limits/login/revert", Some("*"), Some(&json!({ "seq": seq })));
    assert_eq!(back.status, 201, "{back:?}");
    client.ask("incr login:b 1\r\n", "1\r\n");
    let none = api.ask("POST", "limits/login/revert", Some("*"), Some(&json!({ "seq": 999 })));
    assert_eq!(none.status, 404, "{none:?}");
    let history = api.get("limits/login/history");
    let rows = history["changes"].as_array().expect("a list");
    let reverts: Vec<&Value> = rows.iter().map(|row| &row["reverts"]).collect();
    assert_eq!(reverts, [&json!(seq), &Value::Null, &json!(seq), &Value::Null, &Value::Null]);
    assert_eq!(rows[3]["diff"][3], json!("-policy = \"fixed:1/d\""), "{history}");
    assert_eq!((&rows[1]["note"], &rows[1]["to"]), (&json!("over"), &json!(0)));
    let page = api.get("limits/login/history?limit=2");
    assert_eq!(page["next"], rows[1]["seq"]);
    let page = api.get(&format!("limits/login/history?before={}", page["next"]));
    assert_eq!(page["changes"].as_array().map(Vec::len), Some(3), "{page}");
}

#[test]
fn list_has_pages_and_filters() {
    let Operated { server: _server, api } = Operated::start(&STORE);
    for name in ["a", "b", "team/c", "d"] {
        let owner = if name == "d" { "owner = \"shop\"\n" } else { "" };
        let pattern = format!("{name}:{{x}}");
        api.put(name, &limit_text(name, &pattern, "fixed:1/d", owner), "*");
    }
    let first = api.get("limits?limit=3");
    assert_eq!((names(&first), &first["next"]), (vec!["a", "b", "team/c"], &json!("team/c")));
    let last = api.get("limits?limit=3&after=team%2Fc");
    assert_eq!((names(&last), &last["next"]), (vec!["d"], &Value::Null));
    assert_eq!(names(&api.get("limits?q=sho")), ["d"]);
    assert_eq!(names(&api.get("limits?q=team%2F")), ["team/c"]);
    assert_eq!(names(&api.get("limits?owner=shop")), ["d"]);
    assert_eq!(names(&api.get("limits?source=api")).len(), 4);
    assert!(names(&api.get("limits?source=file")).is_empty());
    assert_eq!(api.get("limits/team%2Fc")["name"], json!("team/c"));
    for (path, status) in [("limits?after=gone", 409), ("limits?limit=0", 400), ("limits?x=1", 400)]
    {
        assert_eq!(api.ask("GET", path, None, None).status, status, "{path}");
    }
    // A limit is put before another one, and keeps its place afterwards.
    let moved = json!({ "toml": limit_text("d", "d:{x}", "fixed:2/d", ""), "before": "a" });
    let moved = api.ask("PUT", "limits/d", Some(&api.version("d")), Some(&moved));
    assert_eq!(moved.status, 200, "{moved:?}");
    api.put("d", &limit_text("d", "d:{x}", "fixed:3/d", ""), &api.version("d"));
    assert_eq!(names(&api.get("limits")), ["d", "a", "b", "team/c"]);
}

#[test]
fn override_holds_until_its_end() {
    let Operated { server, api } = Operated::start(&STORE);
    api.put("login", &login(1), "*");
    let mut client = server.connect();
    let path = "limits/login/overrides/login:a";
    let body = json!({ "policy": "block", "for_ms": 4000, "note": "abuse" });
    let put = api.ask("PUT", path, Some("*"), Some(&body));
    assert_eq!(put.status, 201, "{put:?}");
    assert!(!passes(&mut client, "login:a"));
    let list = api.get("overrides?limit=login&q=login:");
    assert_eq!((&list["total"], &list["overrides"][0]["note"]), (&json!(1), &json!("abuse")));
    let explained = api.get("explain?key=login:a");
    assert_eq!(explained["matched"]["override_source"], json!("api"), "{explained}");
    assert_eq!(explained["allowed"], json!(false));
    // The server removes the override when it expires, and history records that.
    api.until("overrides", SOON, |list| list["total"] == json!(0));
    assert!(passes(&mut client, "login:a"));
    let changes = api.get("audit");
    let newest = &changes["changes"][0];
    assert_eq!(
        (&newest["via"], &newest["key"]),
        (&json!("expiry"), &json!("login:a")),
        "{changes}"
    );

    // Without an end it stays until it is removed.
    let put = api.ask("PUT", path, Some("*"), Some(&json!({ "policy": "allow" })));
    let version = put.version.expect("a version");
    assert!(passes(&mut client, "login:a") && passes(&mut client, "login:a"));
    let stricter = api.ask("PUT", path, Some(&version), Some(&json!({ "policy": "fixed:9/d" })));
    assert_eq!(stricter.status, 200, "{stricter:?}");
    assert_eq!(api.ask("DELETE", path, Some(&version), None).status, 412);
    let version = stricter.version.expect("a version");
    assert_eq!(api.ask("DELETE", path, Some(&version), None).status, 200);
    assert_eq!(api.ask("DELETE", path, Some(&version), None).status, 404);
    for (path, body, status) in [
        ("limits/none/overrides/a", json!({ "policy": "block" }), 404),
        ("limits/login/overrides/other:a", json!({ "policy": "block" }), 400),
        ("limits/login/overrides/login:a", json!({ "policy": "never" }), 400),
        ("limits/login/overrides/login:a", json!({ "policy": "block", "until": 1 }), 400),
    ] {
        let refused = api.ask("PUT", path, Some("*"), Some(&body));
        assert_eq!(refused.status, status, "{path} {body}: {refused:?}");
    }
}

#[test]
fn limits_file_is_put_as_a_whole() {
    let Operated { server: _server, api } = Operated::start(&STORE);
    let of = |name: &str, count: u64| {
        limit_text(name, &format!("{name}:{{x}}"), &format!("fixed:{count}/d"), "")
    };
    let all = [of("a", 1), of("b", 1), of("c", 1)].join("\n");
    let planned = import(&api, "?dry_run=true", &all);
    let plan = json!({ "put": ["a", "b", "c"], "moved": [], "removed": [], "same": [] });
    assert_eq!((planned.status, &planned.body), (200, &plan));
    assert!(names(&api.get("limits")).is_empty());
    assert_eq!(import(&api, "", &all).body, plan);

    // A mistake in the third limit changes nothing.
    let wrong = [of("a", 2), of("d", 2), of("c", 2).replace("fixed:2/d", "fixed:0/d")].join("\n");
    let refused = import(&api, "", &wrong);
    assert_eq!((refused.status, &refused.body["line"]), (422, &json!(14)), "{refused:?}");
    assert_eq!(names(&api.get("limits")), ["a", "b", "c"]);
    assert_eq!(api.get("limits/a")["policy"], json!("fixed:1/d"));

    let some = [of("c", 1), of("a", 2)].join("\n");
    let merged = import(&api, "?mode=merge", &some);
    let merged_plan = json!({ "put": ["a"], "moved": ["c"], "removed": [], "same": [] });
    assert_eq!((merged.status, &merged.body), (200, &merged_plan), "{merged:?}");
    let replaced = import(&api, "?mode=replace", &some);
    assert_eq!(replaced.body["removed"], json!(["b"]), "{replaced:?}");
    assert_eq!(names(&api.get("limits")), ["c", "a"]);
    // The export is a limits file that changes nothing.
    let exported = api.send("GET", "/api/v1/limits.toml", &[], "");
    let again = import(&api, "?mode=replace", &exported.text);
    assert_eq!(again.body, json!({ "put": [], "moved": [], "removed": [], "same": ["c", "a"] }));
    for (query, kind, status) in [
        ("", "application/json", 415),
        ("?mode=all", "application/toml", 400),
        ("?dry_run=maybe", "application/toml", 400),
    ] {
        let kind = format!("Content-Type: {kind}");
        let path = format!("/api/v1/limits.toml{query}");
        assert_eq!(api.send("PUT", &path, &[&kind], &some).status, status, "{query} {kind}");
    }
}

#[test]
fn limit_of_a_file_is_read_only_until_adopted() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = write_limits(folder.path(), &login(1));
    let Operated { mut server, api } =
        Operated::start_in(&[&STORE[..], &["--limits", &path]].concat(), folder);
    let put = |adopt: bool| {
        let body = json!({ "toml": login(2), "adopt": adopt });
        api.ask("PUT", "limits/login", Some(&api.version("login")), Some(&body))
    };
    let refused = put(false);
    assert_eq!(refused.status, 409, "{refused:?}");
    assert_eq!(refused.detail(), format!("managed by a file: {path}"));
    let removed = api.ask("DELETE", "limits/login", Some(&api.version("login")), None);
    assert_eq!(removed.status, 409, "{removed:?}");
    assert_eq!(api.get("limits/login")["file"], json!(path));
    // Overrides are not the file's.
    let exempt = json!({ "policy": "allow" });
    let put_override = api.ask("PUT", "limits/login/overrides/login:b", Some("*"), Some(&exempt));
    assert_eq!(put_override.status, 201, "{put_override:?}");
    assert_eq!(put(true).status, 200);
    assert_eq!(api.get("limits/login")["source"], json!("api"));

    // The file's text of this name is ignored now; another name is not.
    fs::write(&path, login(9) + &limit_text("new", "new:{x}", "fixed:1/d", "")).expect("ours");
    server.signal(Signal::SIGHUP);
    server.until("the file is read", |_| api.ask("GET", "limits/new", None, None).status == 200);
    assert_eq!(api.get("limits/login")["policy"], json!("fixed:2/d"));
    assert!(server.log().contains("login"), "one warning names the limit: {}", server.log());
}

#[test]
fn without_a_store_limits_are_read_only() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = write_limits(folder.path(), &login(1));
    let Operated { server: _server, api } = Operated::start_in(&["--limits", &path], folder);
    let toml = limit_text("new", "new:{x}", "fixed:1/d", "");
    let refused = api.ask("PUT", "limits/new", Some("*"), Some(&json!({ "toml": toml })));
    let reason = "no store: start the server with --limits-store FILE";
    assert_eq!((refused.status, refused.detail()), (409, reason));
    assert_eq!(api.get("limits")["read_only"], json!(reason));
    // Checks need no store.
    let checked = api.ask("PUT", "limits/new?dry_run=true", None, Some(&json!({ "toml": toml })));
    assert_eq!(checked.status, 200, "{checked:?}");
}

#[test]
fn restart_keeps_limits_overrides_and_history() {
    let Operated { server, api } = Operated::start(&STORE);
    api.put("login", &login(1), "*");
    api.put("login", &login(2), &api.version("login"));
    let exempt = json!({ "policy": "allow", "for_ms": 3_600_000, "note": "partner" });
    let put = api.ask("PUT", "limits/login/overrides/login:a", Some("*"), Some(&exempt));
    assert_eq!(put.status, 201, "{put:?}");
    let paths = ["limits/login", "overrides", "limits/login/history", "audit"];
    let before = paths.map(|path| api.get(path));
    server.signal(Signal::SIGKILL);
    let (_, folder) = server.ended_leaving();
    let Operated { server, api } = Operated::start_in(&STORE, folder);
    assert_eq!(paths.map(|path| api.get(path)), before);
    let mut client = server.connect();
    assert!((0..5).all(|_| passes(&mut client, "login:a")), "the override holds");
    assert_eq!([(); 3].map(|()| passes(&mut client, "login:b")), [true, true, false]);
    server.signal(Signal::SIGTERM);
    let (status, folder) = server.ended_leaving();
    assert!(status.success());
    let Operated { server: _server, api } = Operated::start_in(&STORE, folder);
    assert_eq!(paths.map(|path| api.get(path)), before);
}
