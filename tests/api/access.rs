//! The rights of a request of the API: roles, narrowed tokens, wrong tokens, hosts and origins.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use super::{Operated, TestedApi, limit_text, make_token, write_limits};

/// Wrong tokens of an address in a minute, after which it is refused (`server/http`).
const WRONG_TOKENS_MAX: usize = 10;

/// A server with these lines of a tokens file, each `name role more`, and a client for each.
fn guarded(lines: &[&str]) -> (Operated, Vec<TestedApi>) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let made = lines.iter().map(|line| {
        let (words, more) = line.split_once(" names=").unwrap_or((line, ""));
        let (name, role) = words.split_once(' ').expect("a name and a role");
        let (token, made) = make_token(name, role);
        let more = if more.is_empty() { String::new() } else { format!(" names={more}") };
        (token, format!("{made}{more}\n"))
    });
    let (tokens, text): (Vec<_>, Vec<_>) = made.unzip();
    let path = folder.path().join("tokens");
    fs::write(&path, text.concat()).expect("the folder is ours");
    let path = path.to_string_lossy().into_owned();
    let flags = ["--limits-store", "{folder}/store", "--tokens", &path];
    let operated = Operated::start_in(&flags, folder);
    let clients = tokens.iter().map(|token| operated.api.with_token(token)).collect();
    (operated, clients)
}

#[test]
fn each_role_may_what_it_says() {
    let lines = ["v viewer", "s support", "e editor", "a admin", "m metrics"];
    let (operated, clients) = guarded(&lines);
    let [viewer, support, editor, admin, metrics] = clients.as_slice() else { unreachable!() };
    let toml = limit_text("login", "login:{ip}", "fixed:1/d", "");
    let limit = json!({ "toml": toml });
    editor.put("login", &toml, "*");
    let (block, units) = (json!({ "policy": "block" }), json!({ "units": 1 }));
    let level = json!({ "level": 1 });
    let version = editor.version("login");
    // The least role of each request, by its place in the list of clients.
    for (method, path, condition, body, least) in [
        ("GET", "limits", None, None, 0),
        ("GET", "overrides", None, None, 0),
        ("GET", "explain?key=login:a", None, None, 0),
        ("GET", "hotkeys", None, None, 0),
        ("PUT", "limits/login/overrides/login:a", Some("*"), Some(&block), 1),
        ("DELETE", "keys/login:a", None, None, 1),
        ("POST", "keys/login:a/refund", None, Some(&units), 1),
        ("PUT", "limits/login", Some(version.as_str()), Some(&limit), 2),
        ("POST", "limits/login/try", None, Some(&limit), 2),
        ("GET", "audit", None, None, 3),
        ("PUT", "log-level", None, Some(&level), 3),
        ("POST", "nodes/n1/drain", None, None, 3),
        ("PUT", "settings/replicas", None, Some(&json!({ "value": "1" })), 3),
    ] {
        for (rank, client) in [viewer, support, editor, admin].into_iter().enumerate() {
            let reply = client.ask(method, path, condition, body);
            let is_refused = matches!(reply.status, 401 | 403);
            assert_eq!(is_refused, rank < least, "{method} {path} as {rank}: {reply:?}");
            assert!(reply.status < 500, "{method} {path}: {reply:?}");
        }
        assert_eq!(operated.api.ask(method, path, condition, body).status, 401, "{path}");
        assert_eq!(metrics.ask(method, path, condition, body).status, 403, "{path}");
    }
    assert_eq!(metrics.send("GET", "/metrics", &[], "").status, 200);
    assert_eq!(operated.api.send("GET", "/metrics", &[], "").status, 401);
    // Audit lines are written at the lowest log level too.
    let log = operated.server.log();
    for part in ["tollgate::audit", "by=\"s\"", "by=\"a\"", "log level 1", "reset login:a"] {
        assert!(log.replace("by=s ", "by=\"s\" ").replace("by=a ", "by=\"a\" ").contains(part));
    }
    let audit = admin.get("audit");
    let rows = audit["changes"].as_array().expect("a list");
    assert_eq!((&rows[0]["by"], &rows[0]["via"]), (&json!("s"), &json!("api")), "{audit}");
    assert!(rows.iter().all(|row| row.get("body").is_none()), "{audit}");
}

#[test]
fn narrowed_token_changes_its_own_things() {
    let (operated, clients) = guarded(&["a admin", "t editor names=team-a/ keys=team-a:"]);
    let [admin, team] = clients.as_slice() else { unreachable!() };
    admin.put("login", &limit_text("login", "login:{ip}", "fixed:1/d", ""), "*");
    let own = limit_text("team-a/api", "team-a:{user}", "fixed:1/d", "");
    team.put("team-a/api", &own, "*");
    let put = |name: &str, pattern: &str, version: &str| {
        let toml = limit_text(&name.replace("%2F", "/"), pattern, "fixed:2/d", "");
        team.ask("PUT", &format!("limits/{name}"), Some(version), Some(&json!({ "toml": toml })))
    };
    let refused = [
        put("other", "team-a:x:{user}", "*"),
        put("team-a%2Fall", "{all}", "*"),
        put("team-a%2Fother", "login:{ip}", "*"),
        put("login", "team-a:{user}", &admin.version("login")),
        team.ask("DELETE", "limits/login", Some(&admin.version("login")), None),
        team.ask("DELETE", "keys/login:a", None, None),
        team.ask(
            "PUT",
            "limits/login/overrides/login:a",
            Some("*"),
            Some(&json!({ "policy": "allow" })),
        ),
        team.send(
            "PUT",
            "/api/v1/limits.toml?dry_run=true",
            &["Content-Type: application/toml"],
            &own,
        ),
    ];
    for reply in refused {
        assert_eq!(reply.status, 403, "{reply:?}");
    }
    let changed = put("team-a%2Fapi", "team-a:{user}", &admin.version("team-a%2Fapi"));
    assert_eq!(changed.status, 200, "{changed:?}");
    let path = "limits/team-a%2Fapi/overrides/team-a:x";
    let exempt = team.ask("PUT", path, Some("*"), Some(&json!({ "policy": "allow" })));
    assert_eq!(exempt.status, 201, "{exempt:?}");
    assert_eq!(team.ask("DELETE", "keys/team-a:x", None, None).status, 200);
    assert_eq!(team.get("limits")["limits"].as_array().map(Vec::len), Some(2), "it reads all");
    drop(operated);
}

#[test]
fn narrowed_token_replaces_no_version_that_was_not_checked() {
    let (operated, clients) = guarded(&["a admin", "t editor names=team-a/ keys=team-a:"]);
    let [admin, team] = clients.as_slice() else { unreachable!() };
    let text = |pattern: &str, policy: &str| limit_text("team-a/api", pattern, policy, "");
    team.put("team-a/api", &text("team-a:{user}", "fixed:1/d"), "*");
    // Versions count up, so the next one can be guessed.
    let version = admin.version("team-a%2Fapi");
    let number: u64 = version.trim_matches('"').parse().expect("a number");
    let next = format!("\"{}\"", number + 1);
    let body = json!({ "toml": text("team-a:{user}", "fixed:9/d") }).to_string();
    let mut stream = TcpStream::connect(team.address).expect("the listener is bound");
    let head = format!(
        "PUT /api/v1/limits/team-a%2Fapi HTTP/1.1\r\nHost: localhost\r\n\
         Authorization: Bearer {}\r\nIf-Match: {next}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        team.token.as_deref().unwrap_or_default(),
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("the listener reads");
    // The request is under way when the limit becomes one of other keys.
    std::thread::sleep(Duration::from_millis(300));
    let other = json!({ "toml": text("pay:{user}", "fixed:1/d") });
    let changed = admin.ask("PUT", "limits/team-a%2Fapi", Some(&version), Some(&other));
    assert_eq!((changed.status, changed.version.as_deref()), (200, Some(next.as_str())));
    stream.write_all(body.as_bytes()).expect("the listener reads");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("the listener answers");
    assert!(reply.starts_with("HTTP/1.1 403 "), "{reply}");
    assert_eq!(admin.version("team-a%2Fapi"), next);
    drop(operated);
}

#[test]
fn tokens_change_while_the_server_runs() {
    let (operated, clients) = guarded(&["a admin"]);
    let path = operated.server.folder().join("tokens");
    let (token, line) = make_token("b", "viewer");
    let newer = operated.api.with_token(&token);
    assert_eq!(newer.ask("GET", "status", None, None).status, 401);
    let is_known = |client: &TestedApi| client.ask("GET", "status", None, None).status == 200;
    let first = fs::read_to_string(&path).expect("it was written");
    fs::write(&path, format!("{first}{line}\n")).expect("the folder is ours");
    operated.server.signal(Signal::SIGHUP);
    let start = Instant::now();
    while !is_known(&newer) {
        // Each wrong token counts.
        std::thread::sleep(Duration::from_millis(500));
        assert!(start.elapsed() < Duration::from_secs(4), "{}", operated.server.log());
    }
    assert!(is_known(&clients[0]));
    // Without a signal too.
    fs::write(&path, format!("{line}\n")).expect("the folder is ours");
    let start = Instant::now();
    while is_known(&clients[0]) {
        std::thread::sleep(Duration::from_millis(200));
        assert!(start.elapsed() < Duration::from_secs(10), "{}", operated.server.log());
    }
    // A file with a mistake leaves the last good one in force.
    fs::write(&path, "b viewer nonsense\n").expect("the folder is ours");
    operated.server.signal(Signal::SIGHUP);
    std::thread::sleep(Duration::from_millis(1500));
    assert!(is_known(&newer), "{}", operated.server.log());
}

#[test]
fn wrong_tokens_shut_an_address_out() {
    let (operated, clients) = guarded(&["a admin"]);
    let wrong = operated.api.with_token("tg_wrong");
    for _ in 0..WRONG_TOKENS_MAX {
        assert_eq!(wrong.ask("GET", "status", None, None).status, 401);
    }
    let refused = wrong.ask("GET", "status", None, None);
    assert_eq!(refused.status, 429, "{refused:?}");
    let wait = refused.head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("retry-after").then(|| value.parse::<u64>())
    });
    assert!(wait.is_some_and(|wait| (1..=61).contains(&wait.expect("seconds"))), "{refused:?}");
    assert_eq!(clients[0].ask("GET", "status", None, None).status, 429, "its right token too");
    assert_eq!(operated.api.send("GET", "/readyz", &[], "").status, 200, "probes need none");
}

#[test]
fn pages_of_other_sites_change_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let limits = write_limits(folder.path(), &limit_text("a", "a:{x}", "fixed:1/d", ""));
    let flags = ["--limits", &limits, "--http-host", "limits.example"];
    let Operated { server: _server, api } = Operated::start_in(&flags, folder);
    for (headers, status) in [
        (&["Host: evil.example"][..], 421),
        (&["Host: limits.example", "Origin: http://limits.example"], 200),
        (&["Host: limits.example", "Origin: http://evil.example"], 403),
        (&["Origin: null"], 403),
        (&["Sec-Fetch-Site: cross-site"], 403),
        (&["Sec-Fetch-Site: same-site"], 403),
        (&["Sec-Fetch-Site: same-origin"], 200),
        (&["Sec-Fetch-Site: none"], 200),
        (&[], 200),
    ] {
        let reply = api.send("DELETE", "/api/v1/keys/a:b", headers, "");
        assert_eq!(reply.status, status, "{headers:?}: {reply:?}");
        let read = api.send("GET", "/api/v1/status", headers, "");
        assert_eq!(read.status, if status == 421 { 421 } else { 200 }, "{headers:?}");
        assert!(!read.head.to_lowercase().contains("access-control"), "{}", read.head);
    }
}

#[test]
fn log_level_changes_while_the_server_runs() {
    let Operated { mut server, api } = Operated::start(&[]);
    let set = |level: u32| api.ask("PUT", "log-level", None, Some(&json!({ "level": level })));
    assert_eq!(set(4).status, 400);
    let said = "SIGHUP: ";
    assert_eq!(set(0).status, 204);
    server.signal(Signal::SIGHUP);
    // A signal is handled within this time, also on a busy machine.
    std::thread::sleep(Duration::from_secs(2));
    assert!(!server.log().contains(said), "{}", server.log());
    assert_eq!(set(1).status, 204);
    server.signal(Signal::SIGHUP);
    server.until("the signal is logged", |server| server.log().contains(said));
    for level in ["log level 0", "log level 1"] {
        assert!(server.log().contains(level), "changes are logged at every level");
    }
    // Settings are those of a cluster.
    let setting = api.ask("PUT", "settings/replicas", None, Some(&json!({ "value": "1" })));
    assert_eq!(setting.status, 404, "{setting:?}");
    assert_eq!(api.ask("GET", "nodes", None, None).status, 404);
}
