//! Reports of limits without figures, lists without reports, bodies that are no objects, and the
//! answer of `explain`.

use std::sync::atomic::Ordering;

use super::*;
use crate::fake_host::DISABLED;

#[test]
fn a_report_says_why_there_is_none() {
    runtime().block_on(async {
        let server = Server::new(None);
        let path = format!("/api/v1/limits/{DISABLED}");
        assert_eq!(server.get(&path).await.0, 200);
        let (status, problem) = server.get(&format!("{path}/report")).await;
        let expected = "limit off is disabled and has no figures";
        assert_eq!((status, &problem["detail"]), (409, &json!(expected)));
        let (status, problem) = server.get("/api/v1/limits/gone/report").await;
        assert_eq!((status, &problem["detail"]), (404, &json!("there is no limit gone")));
    });
}

#[test]
fn lists_of_limits_ask_for_no_report() {
    runtime().block_on(async {
        let server = Server::of(FakeHost { more_limits: 998, ..FakeHost::default() }, None);
        let (status, page) = server.get("/api/v1/limits?limit=1000").await;
        let limits = page["limits"].as_array().expect("limits");
        assert_eq!((status, limits.len()), (200, 1000));
        let minute = json!({ "allowed": 100, "denied": 50, "shadow_denied": 0, "units": 0 });
        assert!(limits.iter().all(|limit| limit["minute"] == minute), "{}", limits[0]);
        let (status, page) = server.get("/ui/limits?page=2").await;
        let page = page.as_str().expect("a page");
        assert_eq!((status, page.matches("<polyline").count()), (200, 100));
        assert_eq!(server.host.reports.load(Ordering::Relaxed), 0);
        assert_eq!(server.get("/api/v1/limits/login/report").await.0, 200);
        assert_eq!(server.host.reports.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_body_that_is_no_object_is_refused() {
    runtime().block_on(async {
        let server = Server::new(None);
        let limit = json!([LOGIN, null, null, false]);
        let over = json!(["block", null, null, null]);
        for (method, path, body) in [
            ("PUT", "/api/v1/limits/login", limit.to_string()),
            ("PUT", "/api/v1/limits/login", format!(" \r\n\t{limit}")),
            ("PUT", "/api/v1/limits/login/overrides/login:a", over.to_string()),
            ("POST", "/api/v1/limits/login/revert", "[1]".to_owned()),
            ("POST", "/api/v1/limits/login/try", json!([LOGIN, 60, "node"]).to_string()),
            ("POST", "/api/v1/keys/login:a/refund", "[3]".to_owned()),
            ("PUT", "/api/v1/settings/replicas", "[\"3\"]".to_owned()),
            ("PUT", "/api/v1/log-level", "[2]".to_owned()),
            ("PUT", "/api/v1/log-level", "null".to_owned()),
            ("PUT", "/api/v1/log-level", String::new()),
        ] {
            let request = matching(with_json(Request::builder().method(method).uri(path)), VERSION);
            let (status, _, problem) = server.ask(request, body).await;
            let expected = json!("the body must be a JSON object, {...}");
            assert_eq!((status, &problem["detail"]), (400, &expected), "{method} {path}");
        }
        assert!(server.changes().is_empty());
        let level = with_json(Request::put("/api/v1/log-level"));
        assert_eq!(server.ask(level, " \r\n\t{\"level\": 2}\n").await.0, 204);
    });
}

#[test]
fn the_description_has_the_fields_of_explain() {
    let document: Value = serde_json::from_str(OPENAPI).expect("it is JSON");
    let schemas = &document["components"]["schemas"];
    let names = |value: &Value| -> BTreeSet<String> {
        value.as_object().expect("an object").keys().cloned().collect()
    };
    runtime().block_on(async {
        let server = Server::new(None);
        let (_, explained) = server.get("/api/v1/explain?key=login:a").await;
        let standing = &explained["standings"][0];
        let verdict = &schemas["Standing"]["properties"]["verdict"];
        for (schema, value) in [
            (&schemas["Explain"], &explained),
            (&schemas["Standing"], standing),
            (verdict, &standing["verdict"]),
        ] {
            assert_eq!(names(&schema["properties"]), names(value));
            let required = schema["required"].as_array().expect("a list").iter();
            let required = required.map(|name| name.as_str().expect("a name").to_owned());
            assert_eq!(required.collect::<BTreeSet<_>>(), names(value));
        }
    });
}
