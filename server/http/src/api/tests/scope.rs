//! Tokens with `keys=` over the API: every way to a limit, a key or an override.

use super::*;
use crate::fake_host::OVERRIDE_CHANGE;

/// Sends a request with token 1 and returns its status and reply.
async fn ask(server: &Server, method: &str, path: &str, body: Value) -> (u16, Value) {
    let (version, value) = match method {
        "PUT" => (header::IF_NONE_MATCH, "*".to_owned()),
        _ => (header::IF_MATCH, format!("\"{VERSION}\"")),
    };
    let request = with_json(Request::builder().method(method).uri(format!("/api/v1/{path}")));
    let request = request.header(version, value);
    let request = request.header(header::AUTHORIZATION, format!("Bearer {}", token(1).0));
    let (status, _, value) = server.ask(request, body.to_string()).await;
    (status, value)
}

/// A server with an editor, whose line ends with `rest`.
fn narrowed(host: FakeHost, rest: &str) -> Server {
    Server::of(host, Some(&format!("ann editor {} {rest}\n", token(1).1)))
}

#[test]
fn a_limit_cannot_reach_other_keys() {
    let server = narrowed(FakeHost::default(), "names=team-a/ keys=team-a:");
    let text = |fields: &str| {
        let toml = format!(
            "[[limit]]\nname = \"team-a/x\"\nmatch = \"team-a:{{x}}\"\npolicy = \"block\"\n{fields}"
        );
        json!({ "toml": toml })
    };
    runtime().block_on(async {
        for (fields, expected) in [
            ("", None),
            ("key = \"team-a:{x}\"\n", None),
            ("parents = [\"team-a:all\", \"team-a:y:{x}\"]\n", None),
            ("key = \"team-b:{x}\"\n", Some("limits whose counted keys")),
            ("key = \"{x}\"\n", Some("limits whose counted keys")),
            ("key = \"team-\"\n", Some("limits whose counted keys")),
            ("parents = [\"team-b:{x}\"]\n", Some("limits whose parents")),
            ("parents = [\"team-a:all\", \"{x}\"]\n", Some("limits whose parents")),
        ] {
            for (path, right) in [("limits/team-a%2Fx", 201), ("limits/team-a%2Fx?dry_run", 201)] {
                let (status, problem) = ask(&server, "PUT", path, text(fields)).await;
                assert_eq!(status, expected.map_or(right, |_| 403), "{path} {fields}: {problem}");
                let detail = expected.map(|things| {
                    format!("the token ann may only change {things} begin with team-a:")
                });
                assert_eq!(problem["detail"].as_str(), detail.as_deref());
            }
        }
    });
}

#[test]
fn a_counted_key_outside_is_not_changed() {
    let server = narrowed(FakeHost::default(), "keys=login:a");
    runtime().block_on(async {
        for (key, reset, refund) in [
            ("login:a", 200, 204),
            ("login:a%3Elogin:ab", 200, 204),
            ("login:a%3Elogin:b", 403, 403),
            ("login:a%2Blogin:ab", 200, 204),
            ("login:a%2Ball", 200, 403),
        ] {
            let (status, _) = ask(&server, "DELETE", &format!("keys/{key}"), json!(null)).await;
            assert_eq!(status, reset, "{key}");
            let path = format!("keys/{key}/refund");
            let (status, problem) = ask(&server, "POST", &path, json!({ "units": 1 })).await;
            assert_eq!(status, refund, "{key}: {problem}");
        }
    });
}

#[test]
fn a_network_outside_is_not_overridden() {
    let server = narrowed(FakeHost::default(), "keys=login:10.");
    runtime().block_on(async {
        for (key, right) in [
            ("login:10.0.0.0%2F8", 201),
            ("login:10.1.0.0%2F16", 201),
            ("login:10.0.0.0%2F7", 403),
            ("login:10.*", 201),
            ("login:10*", 403),
        ] {
            let path = format!("limits/login/overrides/{key}");
            let (status, problem) = ask(&server, "PUT", &path, json!({ "policy": "block" })).await;
            assert_eq!(status, right, "{key}: {problem}");
            let (status, _) = ask(&server, "DELETE", &path, json!(null)).await;
            assert_eq!(status == 403, right == 403, "{key}");
        }
    });
}

#[test]
fn a_change_of_an_override_is_not_reverted() {
    for rest in ["", "names=log", "keys=login:"] {
        let host = FakeHost { has_override_change: true, ..FakeHost::default() };
        let server = narrowed(host, rest);
        runtime().block_on(async {
            let body = json!({ "seq": OVERRIDE_CHANGE });
            let (status, problem) = ask(&server, "POST", "limits/login/revert", body).await;
            let expected = "change 3 of login is one of the override of login:a: put or remove \
                            that override";
            assert_eq!((status, &problem["detail"]), (409, &json!(expected)), "{rest}");
            assert!(server.changes().is_empty());
        });
    }
}
