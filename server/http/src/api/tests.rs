//! The API over a host with fixed answers: replies, roles, bounds, and its description.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::request::Builder;
use axum::http::{HeaderMap, Request, header};
use serde_json::{Value, json};
use tower::ServiceExt as _;

mod questions;
mod scope;

use super::*;
use crate::access::Access;
use crate::fake_host::{FakeHost, MARKUP, VERSION};
use crate::streams::STREAMS_MAX;
use crate::tokens::{Tokens, new_token};

/// The least role of each route, as docs/reference/http.md lists them.
const ROLES: [(&str, &str, &str); 29] = [
    ("GET", "/api/v1/openapi.json", "viewer"),
    ("GET", "/api/v1/status", "viewer"),
    ("GET", "/api/v1/limits", "viewer"),
    ("GET", "/api/v1/limits/{name}", "viewer"),
    ("PUT", "/api/v1/limits/{name}", "editor"),
    ("DELETE", "/api/v1/limits/{name}", "editor"),
    ("GET", "/api/v1/limits/{name}/history", "viewer"),
    ("POST", "/api/v1/limits/{name}/revert", "editor"),
    ("GET", "/api/v1/limits/{name}/report", "viewer"),
    ("POST", "/api/v1/limits/{name}/try", "editor"),
    ("GET", "/api/v1/overrides", "viewer"),
    ("PUT", "/api/v1/limits/{name}/overrides/{key}", "support"),
    ("DELETE", "/api/v1/limits/{name}/overrides/{key}", "support"),
    ("GET", "/api/v1/limits.toml", "viewer"),
    ("PUT", "/api/v1/limits.toml", "editor"),
    ("GET", "/api/v1/match", "viewer"),
    ("GET", "/api/v1/explain", "viewer"),
    ("GET", "/api/v1/keys/{key}", "viewer"),
    ("DELETE", "/api/v1/keys/{key}", "support"),
    ("POST", "/api/v1/keys/{key}/refund", "support"),
    ("GET", "/api/v1/hotkeys", "viewer"),
    ("GET", "/api/v1/tail", "viewer"),
    ("GET", "/api/v1/live", "viewer"),
    ("GET", "/api/v1/nodes", "viewer"),
    ("POST", "/api/v1/nodes/{node}/drain", "admin"),
    ("POST", "/api/v1/nodes/{node}/forget", "admin"),
    ("PUT", "/api/v1/settings/{name}", "admin"),
    ("GET", "/api/v1/audit", "admin"),
    ("PUT", "/api/v1/log-level", "admin"),
];

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime")
}

/// The tokens of a name each, by number.
fn token(number: u8) -> (String, String) {
    new_token([number; 32])
}

/// A server with a fake host.
struct Server {
    host: Arc<FakeHost>,
    routes: Router,
}

impl Server {
    fn new(tokens: Option<&str>) -> Self {
        Self::of(FakeHost::default(), tokens)
    }

    fn of(host: FakeHost, tokens: Option<&str>) -> Self {
        let tokens = tokens
            .map(|text| Tokens::parse(Path::new("tokens"), text).expect("the lines are right"));
        let host = Arc::new(host);
        let access = Arc::new(Access::new(Vec::new(), tokens, false));
        let routes = crate::routes::router(Arc::clone(&host) as _, access);
        Self { host, routes }
    }

    async fn send(&self, request: Builder, body: Body) -> (u16, HeaderMap, Body) {
        let request = request.body(body).expect("the test writes requests");
        let response = self.routes.clone().oneshot(request).await.expect("routes do not fail");
        let (parts, body) = response.into_parts();
        (parts.status.as_u16(), parts.headers, body)
    }

    async fn ask(&self, request: Builder, body: impl Into<Body>) -> (u16, HeaderMap, Value) {
        let (status, headers, body) = self.send(request, body.into()).await;
        let bytes = to_bytes(body, usize::MAX).await.expect("the body is in memory");
        let value = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into());
        (status, headers, value)
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let (status, _, value) = self.ask(Request::get(path), Body::empty()).await;
        (status, value)
    }

    fn changes(&self) -> Vec<String> {
        std::mem::take(&mut *self.host.changes.lock().expect("no test panics with it"))
    }
}

fn with_json(request: Builder) -> Builder {
    request.header(header::CONTENT_TYPE, "application/json")
}

fn matching(request: Builder, version: u64) -> Builder {
    request.header(header::IF_MATCH, format!("\"{version}\""))
}

const LOGIN: &str = "name = \"login\"\nmatch = \"login:{user}\"\npolicy = \"fixed:5/m\"\n";

#[test]
fn each_route_requires_its_role() {
    let listed: BTreeSet<_> = ROLES.into_iter().collect();
    let routes = routes();
    let role_words: Vec<String> = routes.iter().map(|route| route.role.to_string()).collect();
    let built = routes.iter().zip(&role_words);
    let built: BTreeSet<_> =
        built.map(|(route, role)| (route.method, route.path, role.as_str())).collect();
    assert_eq!(built, listed);
    let words = ["metrics", "check", "viewer", "support", "editor", "admin"];
    let line = |(number, word): (u8, &&str)| format!("{word} {word} {}\n", token(number).1);
    let server = Server::new(Some(&(1..).zip(&words).map(line).collect::<String>()));
    runtime().block_on(async {
        for (method, path, least) in ROLES {
            let path = path.replace("{name}", "login").replace("{key}", "login:a");
            let path = path.replace("{node}", "n2");
            let request = || Request::builder().method(method).uri(&path);
            let (status, headers, _) = server.send(request(), Body::empty()).await;
            assert_eq!((status, headers["www-authenticate"].as_bytes()), (401, &b"Bearer"[..]));
            for (number, word) in (1..).zip(words) {
                let role = TokenRole::of(word).expect("it is a role");
                let least = TokenRole::of(least).expect("it is a role");
                let bearer = format!("Bearer {}", token(number).0);
                let request = request().header(header::AUTHORIZATION, bearer);
                let (status, ..) = server.send(request, Body::empty()).await;
                assert_eq!(status == 403, role < least, "{method} {path} by {word}: {status}");
                assert!(status != 401 && status != 500 && status != 404, "{method} {path}");
            }
        }
    });
}

#[test]
fn the_description_names_the_routes_and_roles() {
    let document: Value = serde_json::from_str(OPENAPI).expect("it is JSON");
    let mut described = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            if method != "parameters" {
                let role = operation["x-role"].as_str().expect("a role").to_owned();
                described.insert((method.to_uppercase(), path.clone(), role));
            }
        }
    }
    let listed = ROLES.map(|(method, path, role)| (method.into(), path.into(), role.into()));
    assert_eq!(described, BTreeSet::from(listed));
}

#[test]
fn limits_are_listed_in_pages() {
    runtime().block_on(async {
        let server = Server::new(None);
        let (status, page) = server.get("/api/v1/limits?limit=1").await;
        assert_eq!((status, &page["next"]), (200, &json!("login")));
        let first = &page["limits"][0];
        assert_eq!(first["minute"]["denied"], 50);
        assert_eq!(
            (&first["at"], &first["toml"]),
            (&json!("2026-09-21T14:13:20.000Z"), &json!(null))
        );
        let (_, page) = server.get("/api/v1/limits?limit=1&after=login").await;
        assert_eq!((&page["limits"][0]["name"], &page["next"]), (&json!("api"), &json!(null)));
        for (query, names) in [
            ("source=file", json!(["api"])),
            ("q=team", json!(["login", "api"])),
            ("q=log", json!(["login"])),
            ("owner=team-b", json!([])),
        ] {
            let (_, page) = server.get(&format!("/api/v1/limits?{query}")).await;
            let limits = page["limits"].as_array().expect("limits").iter();
            assert_eq!(limits.map(|limit| limit["name"].clone()).collect::<Value>(), names);
        }
        for query in ["limit=0", "limit=1001", "limit=x", "source=x", "x=1", "limit=1&limit=2"] {
            let (status, problem) = server.get(&format!("/api/v1/limits?{query}")).await;
            assert_eq!((status, &problem["status"]), (400, &json!(400)), "{query}");
        }
        assert_eq!(server.get("/api/v1/limits?after=gone").await.0, 409);
    });
}

#[test]
fn a_limit_is_put_with_its_version_only() {
    runtime().block_on(async {
        let server = Server::new(None);
        let (status, headers, limit) =
            server.ask(Request::get("/api/v1/limits/login"), Body::empty()).await;
        assert_eq!((status, headers[header::ETAG].as_bytes()), (200, &b"\"7\""[..]));
        assert!(limit["toml"].as_str().is_some_and(|toml| toml.starts_with("[[limit]]")));
        let put = || with_json(Request::put("/api/v1/limits/login"));
        let body = json!({ "toml": LOGIN, "note": "more" }).to_string();
        let (status, headers, done) = server.ask(matching(put(), VERSION), body.clone()).await;
        assert_eq!((status, headers[header::ETAG].as_bytes()), (200, &b"\"8\""[..]));
        assert_eq!(done, json!({ "version": 8, "seq": 3 }));
        assert_eq!(server.changes(), ["put login by -"]);
        let created = put().header(header::IF_NONE_MATCH, "*");
        assert_eq!(server.ask(created, body.clone()).await.0, 201);
        assert_eq!(server.ask(put(), body.clone()).await.0, 428);
        let (status, headers, problem) = server.ask(matching(put(), 6), body.clone()).await;
        assert_eq!((status, &problem["version"]), (412, &json!(VERSION)));
        assert_eq!(headers[header::ETAG], "\"7\"");
        let dry = with_json(Request::put("/api/v1/limits/login?dry_run=true"));
        assert_eq!(server.ask(dry, body).await.0, 200);
        for (body, status) in [
            (json!({ "toml": LOGIN, "colour": 1 }), 400),
            (json!({}), 400),
            (json!({ "toml": "name = \"other\"\npolicy = \"x\"\n" }), 422),
            (json!({ "toml": "name = \"login\"\n" }), 422),
        ] {
            let (got, headers, problem) =
                server.ask(matching(put(), VERSION), body.to_string()).await;
            assert_eq!((got, &problem["status"]), (status, &json!(status)), "{body}");
            assert_eq!(headers[header::CONTENT_TYPE], "application/problem+json");
            assert_eq!(problem["line"].as_u64(), (status == 422).then_some(1));
        }
        let plain = matching(Request::put("/api/v1/limits/login"), VERSION);
        assert_eq!(server.ask(plain, "{}").await.0, 415);
        let path = "/api/v1/limits/login?note=old";
        assert_eq!(server.ask(Request::delete(path), Body::empty()).await.0, 428);
        let delete = matching(Request::delete(path), VERSION);
        let (status, headers, done) = server.ask(delete, Body::empty()).await;
        assert_eq!((status, done), (200, json!({ "version": 0, "seq": 4 })));
        assert!(!headers.contains_key(header::ETAG));
        assert_eq!(server.get("/api/v1/limits/gone").await.0, 404);
    });
}

#[test]
fn bodies_are_bounded() {
    runtime().block_on(async {
        let server = Server::new(None);
        let put = matching(with_json(Request::put("/api/v1/limits/login")), VERSION);
        assert_eq!(server.ask(put, vec![b' '; (1 << 20) + 1]).await.0, 413);
        for (size, status) in [(8 << 20, 200), ((8 << 20) + 1, 413)] {
            let put =
                Request::put("/api/v1/limits.toml").header(header::CONTENT_TYPE, "text/plain");
            assert_eq!(server.ask(put, vec![b' '; size]).await.0, status);
        }
    });
}

#[test]
fn history_has_differences_and_is_reverted() {
    runtime().block_on(async {
        let server = Server::new(None);
        let (status, page) = server.get("/api/v1/limits/login/history?limit=1").await;
        assert_eq!((status, &page["next"]), (200, &json!(2)));
        let change = &page["changes"][0];
        let diff = json!(["-policy = \"fixed:1/m\"", "+policy = \"fixed:2/m\""]);
        assert_eq!((&change["diff"], &change["seq"]), (&diff, &json!(2)));
        let (_, page) = server.get("/api/v1/limits/login/history?before=2").await;
        assert_eq!((&page["changes"][0]["seq"], &page["next"]), (&json!(1), &json!(null)));
        assert_eq!(server.get("/api/v1/limits/gone/history").await.0, 404);
        let (_, page) = server.get("/api/v1/audit").await;
        assert_eq!(
            (&page["changes"][1]["via"], &page["changes"][1]["body"]),
            (&json!("api"), &json!(null))
        );
        let revert = || matching(with_json(Request::post("/api/v1/limits/login/revert")), VERSION);
        assert_eq!(server.ask(revert(), "{\"seq\": 1}").await.0, 200);
        assert_eq!(server.changes(), ["revert login to 1 by -"]);
        assert_eq!(server.ask(revert(), "{\"seq\": 9}").await.0, 404);
    });
}

#[test]
fn overrides_and_keys_are_changed() {
    runtime().block_on(async {
        let server = Server::new(None);
        let (_, page) = server.get("/api/v1/overrides?q=script&n=1").await;
        assert_eq!((&page["overrides"][0]["key"], &page["total"]), (&json!(MARKUP), &json!(1)));
        let path = "/api/v1/limits/login/overrides/login%3Aa%2Fb";
        let put = with_json(Request::put(path)).header(header::IF_NONE_MATCH, "*");
        let body = json!({ "policy": "block", "for_ms": 5000, "note": "abuse" });
        assert_eq!(server.ask(put, body.to_string()).await.0, 201);
        let delete = matching(Request::delete(path), VERSION);
        assert_eq!(server.ask(delete, Body::empty()).await.0, 200);
        let key = "/api/v1/keys/login%3A%20a";
        let (status, _, value) = server.ask(Request::delete(key), Body::empty()).await;
        assert_eq!((status, value), (200, json!({ "existed": true })));
        let refund = || with_json(Request::post(format!("{key}/refund")));
        assert_eq!(server.ask(refund(), "{\"units\": 3}").await.0, 204);
        for body in ["{\"units\": 0}", "{\"units\": 9007199254740992}", "{\"units\": -1}", "{}"] {
            assert_eq!(server.ask(refund(), body).await.0, 400, "{body}");
        }
        let expected = [
            "override login:a/b is block by -",
            "override login:a/b is nothing by -",
            "reset login: a by -",
            "refund 3 login: a by -",
        ];
        assert_eq!(server.changes(), expected);
    });
}

#[test]
fn questions_have_their_figures() {
    runtime().block_on(async {
        let server = Server::new(None);
        let (_, found) = server.get("/api/v1/match?key=login:a").await;
        assert_eq!(found["captures"], json!([{ "name": "user", "value": "a" }]));
        assert_eq!(server.get("/api/v1/match").await.0, 400);
        let (_, explained) = server.get("/api/v1/explain?key=login:a&cost=2").await;
        assert_eq!((&explained["cost"], &explained["retry_ms"]), (&json!(2), &json!(500)));
        assert_eq!(explained["matched"]["captures"][0]["name"], "user");
        assert_eq!(server.get("/api/v1/explain?key=a&cost=9007199254740992").await.0, 400);
        assert_eq!(server.get("/api/v1/keys/login:a").await.1["refused_by"], json!(["login"]));
        let (_, report) = server.get("/api/v1/limits/login/report?minutes=30").await;
        assert_eq!(report["series"][1]["at"], "2026-09-21T14:14:20.000Z");
        assert_eq!(server.get("/api/v1/limits/gone/report").await.0, 404);
        let (_, hot) = server.get("/api/v1/hotkeys?what=denied&n=1&scope=cluster").await;
        assert_eq!(
            (hot["keys"].as_array().map(Vec::len), &hot["span_ms"]),
            (Some(1), &json!(90_000))
        );
        let (_, nodes) = server.get("/api/v1/nodes").await;
        assert_eq!(nodes["settings"], json!({ "replicas": "2" }));
        assert_eq!(server.get("/api/v1/status").await.1["uptime_s"], 60);
        let attempt = || with_json(Request::post("/api/v1/limits/login/try"));
        let body = json!({ "toml": LOGIN, "minutes": 60, "scope": "cluster" }).to_string();
        let (status, _, tried) = server.ask(attempt(), body).await;
        assert_eq!((status, &tried["then"]["denied"]), (200, &json!(0.3)));
        let body = json!({ "toml": LOGIN, "minutes": 61 }).to_string();
        assert_eq!(server.ask(attempt(), body).await.0, 400);
    });
}

#[test]
fn files_nodes_and_settings_are_changed() {
    runtime().block_on(async {
        let server = Server::new(None);
        let (_, headers, file) =
            server.ask(Request::get("/api/v1/limits.toml"), Body::empty()).await;
        assert_eq!(headers[header::CONTENT_TYPE], "application/toml");
        let file = file.as_str().expect("it is TOML").to_owned();
        let put = |query: &str| {
            let request = Request::put(format!("/api/v1/limits.toml{query}"));
            request.header(header::CONTENT_TYPE, "application/toml; charset=utf-8")
        };
        let (_, _, plan) = server.ask(put("?dry_run=true"), file.clone()).await;
        let expected = json!({ "put": ["login"], "moved": [], "removed": [], "same": [] });
        assert_eq!(plan, expected);
        assert_eq!(server.ask(put("?mode=replace"), file).await.0, 200);
        assert_eq!(server.ask(put("?mode=x"), "").await.0, 400);
        assert_eq!(server.ask(put(""), vec![0xff]).await.0, 400);
        for (request, body) in [
            (Request::post("/api/v1/nodes/n2/drain"), ""),
            (Request::post("/api/v1/nodes/n2/forget"), ""),
            (with_json(Request::put("/api/v1/settings/replicas")), "{\"value\": \"3\"}"),
            (with_json(Request::put("/api/v1/log-level")), "{\"level\": 2}"),
        ] {
            assert_eq!(server.ask(request, body).await.0, 204);
        }
        let level = with_json(Request::put("/api/v1/log-level"));
        assert_eq!(server.ask(level, "{\"level\": 4}").await.0, 400);
        let changes = server.changes();
        assert!(changes[0].contains("Replace by -"), "{changes:?}");
        let expected =
            ["drain n2 by -", "forget n2 by -", "set replicas 3 by -", "log level 2 by -"];
        assert_eq!(changes[1..], expected);
    });
}

#[test]
fn a_narrowed_token_changes_its_own_only() {
    let narrow = |name: &str, number, rest: &str| format!("{name} {rest} {}", token(number).1);
    let lines = [
        narrow("a", 1, "editor") + " names=team-a/ keys=team-a:\n",
        narrow("b", 2, "support") + " keys=login:a\n",
        narrow("c", 3, "support") + " names=login\n",
        narrow("d", 4, "editor") + " names=api\n",
    ];
    let server = Server::new(Some(&lines.concat()));
    runtime().block_on(async {
        let limit = |name: &str, pattern: &str| {
            let toml = format!("name = \"{name}\"\nmatch = \"{pattern}\"\npolicy = \"x\"\n");
            json!({ "toml": toml }).to_string()
        };
        let own = limit("team-a/login", "team-a:{x}");
        let block = || json!({ "policy": "block" }).to_string();
        let adopt = json!({ "toml": "name = \"api\"\npolicy = \"x\"\n", "adopt": true });
        let cases = [
            (1, "PUT", "/api/v1/limits/team-a%2Flogin", own.clone(), 201),
            (1, "PUT", "/api/v1/limits/team-a%2Flogin", limit("team-a/login", "team-{x}"), 403),
            (1, "PUT", "/api/v1/limits/team-b%2Flogin", limit("team-b/login", "team-a:{x}"), 403),
            (1, "PUT", "/api/v1/limits/login", limit("login", "team-a:{x}"), 403),
            (1, "PUT", "/api/v1/limits/team-a%2Flogin?dry_run", limit("team-a/login", "b{x}"), 403),
            (1, "PUT", "/api/v1/limits.toml", own, 403),
            (2, "PUT", "/api/v1/limits/login/overrides/login:a", block(), 201),
            (2, "PUT", "/api/v1/limits/login/overrides/login:*", block(), 403),
            (2, "DELETE", "/api/v1/keys/login:ab", String::new(), 200),
            (2, "DELETE", "/api/v1/keys/login:b", String::new(), 403),
            (3, "DELETE", "/api/v1/keys/login:b", String::new(), 200),
            (3, "DELETE", "/api/v1/keys/plain", String::new(), 403),
            (3, "POST", "/api/v1/keys/plain/refund", "{\"units\": 1}".to_owned(), 403),
            (3, "PUT", "/api/v1/limits/api/overrides/api:x", block(), 403),
            (4, "PUT", "/api/v1/limits/api", adopt.to_string(), 403),
            (4, "POST", "/api/v1/limits/login/revert", "{\"seq\": 1}".to_owned(), 403),
        ];
        for (number, method, path, body, status) in cases {
            let request = with_json(Request::builder().method(method).uri(path));
            let request = request.header(header::IF_NONE_MATCH, "*");
            let request =
                request.header(header::AUTHORIZATION, format!("Bearer {}", token(number).0));
            let (got, _, value) = server.ask(request, body).await;
            assert_eq!(got, status, "{number} {method} {path}: {value}");
        }
    });
}

#[test]
fn writes_name_their_surface_and_site() {
    runtime().block_on(async {
        let server = Server::new(None);
        let drain = || Request::post("/api/v1/nodes/n2/drain");
        let cross = drain().header("sec-fetch-site", "cross-site");
        assert_eq!(server.ask(cross, Body::empty()).await.0, 403);
        assert_eq!(server.changes(), [""; 0]);
        assert_eq!(server.ask(drain(), Body::empty()).await.0, 204);
        assert_eq!(server.get("/api/v1/nodes/n2/drain").await.0, 405);
        assert_eq!(server.get("/api/v1/nothing").await.0, 404);
    });
}

/// Reads the first frames of a stream, until `count` bytes are there.
async fn first_bytes(body: Body, count: usize) -> (String, Body) {
    use http_body_util::BodyExt as _;
    let (mut body, mut text) = (body, String::new());
    while text.len() < count {
        let frame = body.frame().await.expect("the stream goes on").expect("it does not fail");
        text.push_str(str::from_utf8(&frame.into_data().expect("data")).expect("text"));
    }
    (text, body)
}

#[test]
fn streams_carry_events_and_are_bounded() {
    runtime().block_on(async {
        let server = Server::new(None);
        let tail = |query: &str| Request::get(format!("/api/v1/tail{query}"));
        let (status, headers, body) = server.send(tail("?what=denied"), Body::empty()).await;
        assert_eq!(
            (status, &headers[header::CONTENT_TYPE]),
            (200, &"text/event-stream".parse().expect("a value"))
        );
        let (text, _) = first_bytes(body, 1).await;
        let (head, data) = text.split_once('\n').expect("two lines");
        assert_eq!(head, "event: denied");
        let data: Value =
            serde_json::from_str(data.trim().trim_start_matches("data: ")).expect("JSON");
        assert_eq!(
            (&data["key"], &data["at"]),
            (&json!(MARKUP), &json!("2026-09-21T14:13:20.000Z"))
        );
        assert_eq!(server.send(tail("?what=x"), Body::empty()).await.0, 400);
        let live = |query: &str| Request::get(format!("/api/v1/live{query}"));
        let (_, _, body) = server.send(live("?topics=status,latency"), Body::empty()).await;
        let (text, _) = first_bytes(body, 400).await;
        assert!(text.starts_with("event: status\ndata: {"), "{text}");
        assert!(text.contains("\n\nevent: latency\ndata: {\"count\":1000,"), "{text}");
        assert_eq!(server.send(live("?topics=x"), Body::empty()).await.0, 400);
        let mut open = Vec::new();
        for _ in 0..STREAMS_MAX {
            let (status, _, body) = server.send(live(""), Body::empty()).await;
            assert_eq!(status, 200);
            open.push(body);
        }
        assert_eq!(server.send(tail(""), Body::empty()).await.0, 503);
        open.pop();
        assert_eq!(server.send(tail(""), Body::empty()).await.0, 200);
    });
}
