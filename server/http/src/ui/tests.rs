//! Tests of the pages: every page as a snapshot, markup in keys, headers, rights, forms, budgets.
//!
//! Not here: flows in a browser (`tests/ui`).

mod keys;
mod removed;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::request::Builder;
use axum::http::{HeaderMap, Request, StatusCode};
use bytes::Bytes;
use tower::ServiceExt as _;

use crate::access::Access;
use crate::fake_host::{FakeHost, MARKUP, TAKEN, VERSION};
use crate::tokens::{Tokens, new_token};

use super::assets::{ASSETS, hash};
use super::format::encode;

/// Most bytes of templates and assets together.
const UI_BYTES_MAX: usize = 60_000;

/// Every page, with the name of its snapshot.
const PAGES: [(&str, &str); 15] = [
    ("overview", "/ui/"),
    ("limits", "/ui/limits"),
    ("limits_filtered", "/ui/limits?q=log&owner=team-a&source=api"),
    ("limit_new", "/ui/limit/new"),
    ("limit", "/ui/limit?name=login&keys=login:a%0Aother"),
    ("limit_of_file", "/ui/limit?name=api"),
    ("overrides", "/ui/overrides"),
    ("key_none", "/ui/key"),
    ("key", "/ui/key?key=login:a"),
    ("hot", "/ui/hot?what=denied"),
    ("cluster", "/ui/cluster"),
    ("tail", "/ui/tail"),
    ("audit", "/ui/audit"),
    ("config", "/ui/config"),
    ("login", "/ui/login"),
];

struct Site {
    host: Arc<FakeHost>,
    access: Arc<Access>,
}

struct Got {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl Got {
    fn location(&self) -> &str {
        self.headers.get("location").map_or("", |value| value.to_str().expect("it is ASCII"))
    }
}

impl Site {
    fn open() -> Self {
        Self { host: Arc::default(), access: Arc::default() }
    }

    /// A site with a token for each line of `lines`; returns the tokens too.
    fn with_tokens(lines: &[&str]) -> (Self, Vec<String>) {
        let pairs = (1..).zip(lines).map(|(seed, line)| (new_token([seed; 32]), *line));
        let (tokens, text): (Vec<String>, Vec<String>) = pairs
            .map(|((token, hex), line)| {
                let mut words = line.splitn(3, ' ');
                let [name, role] = [words.next(), words.next()].map(Option::unwrap_or_default);
                (token, format!("{name} {role} {hex} {}\n", words.next().unwrap_or_default()))
            })
            .unzip();
        let parsed = Tokens::parse(Path::new("tokens"), &text.concat()).expect("well formed");
        let access = Arc::new(Access::new(Vec::new(), Some(parsed), false));
        (Self { host: Arc::default(), access }, tokens)
    }

    fn send(&self, request: Builder, body: impl Into<Body>) -> Got {
        let router = crate::router(self.host.clone(), self.access.clone());
        let request = request.body(body.into()).expect("tests write requests");
        runtime().block_on(async {
            let response = router.oneshot(request).await.expect("routes do not fail");
            let (parts, body) = response.into_parts();
            let body = to_bytes(body, usize::MAX).await.expect("the body is in memory");
            let text = String::from_utf8(body.to_vec()).expect("replies are UTF-8");
            Got { status: parts.status.as_u16(), headers: parts.headers, text }
        })
    }

    fn get(&self, path: &str) -> Got {
        self.send(Request::get(path), String::new())
    }

    fn get_with(&self, path: &str, token: &str) -> Got {
        let request = Request::get(path).header("authorization", format!("Bearer {token}"));
        self.send(request, String::new())
    }

    fn post(&self, path: &str, fields: &[(&str, &str)]) -> Got {
        self.send(form(path), body(fields))
    }

    fn post_with(&self, path: &str, fields: &[(&str, &str)], token: &str) -> Got {
        let request = form(path).header("authorization", format!("Bearer {token}"));
        self.send(request, body(fields))
    }

    fn changes(&self) -> Vec<String> {
        self.host.changes.lock().expect("no test panics with the lock").clone()
    }
}

/// A runtime whose clock runs ahead when there is nothing to do.
fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().expect("a runtime")
}

fn form(path: &str) -> Builder {
    Request::post(path).header("content-type", "application/x-www-form-urlencoded")
}

fn body(fields: &[(&str, &str)]) -> String {
    let pairs = fields.iter().map(|(name, value)| format!("{name}={}", encode(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// The form of the limit `login` with a policy, for a version.
fn limit_form<'t>(version: &'t str, policy: &'t str, deed: &'t str) -> Vec<(&'t str, &'t str)> {
    vec![
        ("name", "login"),
        ("pattern", "login:{user}"),
        ("policy", policy),
        ("before_policy", "fixed:5/m"),
        ("version", version),
        ("do", deed),
    ]
}

#[test]
fn every_page_is_as_its_snapshot() {
    let site = Site::open();
    for (name, path) in PAGES {
        let got = site.get(path);
        assert_eq!(got.status, 200, "{path}: {}", got.text);
        insta::assert_snapshot!(name, got.text.replace(hash(), "HASH"));
    }
    let missing = site.get("/ui/limit?name=gone");
    assert_eq!(missing.status, 404);
    insta::assert_snapshot!("refusal", missing.text.replace(hash(), "HASH"));
    let stale = site.post("/ui/limit", &limit_form("6", "fixed:6/m", "save"));
    insta::assert_snapshot!("conflict", stale.text.replace(hash(), "HASH"));
    let question = site.post("/ui/cluster/forget", &[("node", "n2")]);
    insta::assert_snapshot!("confirm", question.text.replace(hash(), "HASH"));
    let tried = site.post("/ui/limit", &limit_form("7", "fixed:6/m", "try"));
    insta::assert_snapshot!("limit_tried", tried.text.replace(hash(), "HASH"));
}

#[test]
fn markup_in_keys_is_escaped_on_each_page() {
    let site = Site::open();
    let query = encode(MARKUP);
    let paths = PAGES.map(|(_, path)| path.to_owned()).into_iter().chain([
        format!("/ui/key?key={query}"),
        format!("/ui/limits?q={query}&owner={query}&source={query}"),
        format!("/ui/limit?name=login&keys={query}&older={query}&minutes={query}"),
        format!("/ui/limit?name={query}"),
        format!("/ui/limit/new?name={query}"),
        format!("/ui/overrides?q=login&limit={query}"),
        format!("/ui/hot?what={query}&limit={query}&scope={query}"),
        format!("/ui/tail?what={query}&limit={query}&prefix={query}"),
        format!("/ui/?did={query}"),
    ]);
    let mut shown = 0;
    for path in paths {
        let got = site.get(&path);
        assert!(!got.text.contains("<script>"), "{path}");
        assert!(!got.text.contains("<b>runbook"), "{path}");
        shown += usize::from(got.text.contains("&#60;script&#62;"));
    }
    assert!(shown > 10, "the key with markup is on {shown} pages only");
    let hostile = [("name", MARKUP), ("key", MARKUP), ("limit", MARKUP), ("pattern", MARKUP)];
    for path in ["/ui/limit", "/ui/overrides", "/ui/overrides/remove", "/ui/key/reset"] {
        let got = site.post(path, &[&hostile[..], &[("policy", MARKUP)]].concat());
        assert!(!got.text.contains("<script>"), "{path}");
    }
}

#[test]
fn pages_have_headers_and_nothing_inline() {
    let site = Site::open();
    for (_, path) in PAGES {
        let got = site.get(path);
        let policy = got.headers["content-security-policy"].to_str().expect("it is ASCII");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"));
        assert_eq!(got.headers["x-content-type-options"], "nosniff");
        assert_eq!(got.headers["referrer-policy"], "no-referrer");
        assert_eq!(got.headers["cross-origin-opener-policy"], "same-origin");
        assert_eq!(got.headers["cache-control"], "no-store");
        for tag in got.text.split('<').skip(1) {
            let tag = tag.split('>').next().unwrap_or_default();
            assert!(!tag.starts_with("style"), "{path}: <{tag}>");
            assert!(!tag.starts_with("script") || tag.contains("src="), "{path}: <{tag}>");
            let is_inline = |attribute: &str| {
                attribute.starts_with("style=")
                    || attribute.starts_with("on") && attribute.contains('=')
                    || attribute.contains("javascript:")
            };
            assert!(!tag.split_whitespace().skip(1).any(is_inline), "{path}: <{tag}>");
        }
    }
    // Pages that refuse have them too.
    for got in [site.get("/ui/none"), site.post("/ui/limit/remove", &[])] {
        assert!(got.headers.contains_key("content-security-policy"));
        assert!(got.status >= 400);
    }
}

#[test]
fn assets_exist_and_are_kept_for_ever() {
    let site = Site::open();
    let text: String = PAGES.iter().map(|(_, path)| site.get(path).text).collect();
    for reference in text.split("\"/assets/").skip(1) {
        let path = reference.split('"').next().unwrap_or_default();
        let name = path.strip_prefix(&format!("{}/", hash())).expect("it has the hash");
        assert!(ASSETS.iter().any(|(known, ..)| *known == name), "{name}");
    }
    for (name, kind, bytes) in ASSETS {
        let got = site.get(&format!("/assets/{}/{name}", hash()));
        assert_eq!((got.status, got.text.as_bytes()), (200, bytes), "{name}");
        assert_eq!(got.headers["content-type"], kind);
        assert_eq!(got.headers["cache-control"], "public, max-age=31536000, immutable");
        assert_eq!(got.headers["x-content-type-options"], "nosniff");
        for import in got.text.split("from \"./").skip(1) {
            let import = import.split('"').next().unwrap_or_default();
            assert!(ASSETS.iter().any(|(known, ..)| *known == import), "{name}: {import}");
        }
    }
    assert_eq!(site.get("/assets/0/app.css").status, 404);
    assert_eq!(site.get(&format!("/assets/{}/none.css", hash())).status, 404);
}

#[test]
fn templates_and_assets_fit_their_budgets() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut bytes, mut lines) = (0, [("html", 0, 900), ("css", 0, 350), ("js", 0, 600)]);
    let mut names = Vec::new();
    for folder in ["templates", "assets"] {
        for entry in fs::read_dir(root.join(folder)).expect("the folder is there").flatten() {
            let text = fs::read_to_string(entry.path()).expect("it is text");
            bytes += text.len();
            let name = entry.file_name().into_string().expect("names are text");
            for (kind, sum, _) in &mut lines {
                *sum += if name.ends_with(&*kind) { text.lines().count() } else { 0 };
            }
            names.extend((folder == "assets").then_some(name));
        }
    }
    names.sort_unstable();
    let mut embedded = ASSETS.map(|(name, ..)| name);
    embedded.sort_unstable();
    assert_eq!(names, embedded, "every file is in the table");
    assert!(bytes < UI_BYTES_MAX, "{bytes} bytes");
    for (kind, sum, most) in lines {
        assert!(sum <= most, "{sum} lines of {kind}");
    }
}

#[test]
fn modules_set_no_markup() {
    for (name, kind, bytes) in ASSETS {
        let text = String::from_utf8_lossy(bytes);
        for banned in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!text.contains(banned), "{name} ({kind}) has {banned}");
        }
    }
}

/// The fields of a form.
type FormFields = &'static [(&'static str, &'static str)];

/// The forms that change something: path, fields, and the least role that may send it.
const DEEDS: [(&str, FormFields, usize); 12] = [
    ("/ui/overrides", &[("limit", "login"), ("key", "login:a"), ("policy", "block")], 1),
    (
        "/ui/overrides/remove",
        &[("limit", "login"), ("key", "login:a"), ("version", "7"), ("confirm", "yes")],
        1,
    ),
    ("/ui/key/reset", &[("key", "login:a"), ("confirm", "yes")], 1),
    ("/ui/key/refund", &[("key", "login:a"), ("units", "2")], 1),
    (
        "/ui/limit",
        &[
            ("name", "login"),
            ("pattern", "login:{user}"),
            ("policy", "fixed:6/m"),
            ("version", "7"),
            ("do", "save"),
        ],
        2,
    ),
    ("/ui/limit/shadow", &[("name", "login"), ("version", "7"), ("shadow", "on")], 2),
    ("/ui/limit/remove", &[("name", "login"), ("version", "7"), ("confirm", "yes")], 2),
    ("/ui/limit/adopt", &[("name", "api"), ("version", "7"), ("confirm", "yes")], 3),
    ("/ui/cluster/drain", DRAIN, 3),
    ("/ui/cluster/forget", DRAIN, 3),
    (
        "/ui/cluster/setting",
        &[("name", "replicas"), ("was", "2"), ("value", "3"), ("confirm", "yes")],
        3,
    ),
    ("/ui/config/log-level", &[("level", "1")], 3),
];

const DRAIN: FormFields =
    &[("node", "n2"), ("typed", "n2"), ("incarnation", "0"), ("confirm", "yes")];

#[test]
fn every_form_checks_the_role() {
    let (site, tokens) =
        Site::with_tokens(&["v viewer", "s support", "e editor", "a admin", "m metrics"]);
    for (path, fields, least) in DEEDS {
        for (level, token) in tokens.iter().take(4).enumerate() {
            let got = site.post_with(path, fields, token);
            let status = if level >= least { 303 } else { 403 };
            assert_eq!(got.status, status, "{path} at level {level}: {}", got.text);
        }
        assert_eq!(site.post_with(path, fields, &tokens[4]).status, 403);
        assert_eq!(site.post(path, fields).status, 401, "{path} without a token");
    }
    // One line for each form and each role that may send it.
    let expected: usize = DEEDS.iter().map(|(.., least)| 4 - least).sum();
    assert_eq!(site.changes().len(), expected, "{:?}", site.changes());
}

#[test]
fn every_page_checks_the_role_and_shows_only_deeds_allowed() {
    let (site, tokens) = Site::with_tokens(&["v viewer", "s support", "a admin", "c check"]);
    for (name, path) in PAGES.into_iter().filter(|(name, _)| *name != "login") {
        let viewer = site.get_with(path, &tokens[0]);
        let is_closed = ["audit", "limit_new"].contains(&name);
        assert_eq!(viewer.status, if is_closed { 403 } else { 200 }, "{path}");
        let forms = viewer.text.matches("method=\"post\"").count();
        let ends = viewer.text.matches("action=\"/ui/logout\"").count();
        assert_eq!(forms, ends, "{path}: a viewer sees a form that it may not send");
        assert_eq!(site.get_with(path, &tokens[2]).status, 200, "{path}");
        assert_eq!(site.get_with(path, &tokens[3]).status, 403, "{path}");
        let login = format!("/ui/login?next={}", encode(path));
        assert_eq!(site.get(path).location(), login, "{path} without a token");
    }
    let support = site.get_with("/ui/limit?name=login", &tokens[1]).text;
    assert!(support.contains("/ui/overrides/remove") && !support.contains("action=\"/ui/limit\""));
}

#[test]
fn prefixes_narrow_pages_and_forms() {
    let (site, tokens) = Site::with_tokens(&["e editor names=log keys=login:a"]);
    let token = &tokens[0];
    // The literal front of the limit is `login:`, which the prefix of keys excludes.
    assert!(!site.get_with("/ui/limit?name=login", token).text.contains("value=\"save\""));
    let save = limit_form("7", "fixed:6/m", "save");
    assert_eq!(site.post_with("/ui/limit", &save, token).status, 403);
    let own = [("name", "login-a"), ("pattern", "login:a{x}"), ("policy", "block"), ("do", "save")];
    assert_eq!(site.post_with("/ui/limit", &own, token).status, 303);
    // Further lines cannot smuggle another pattern in.
    let rest = "regex = 'x'";
    let both = [&own[..], &[("rest", rest)]].concat();
    assert_eq!(site.post_with("/ui/limit", &both, token).status, 403);
    // Neither the counted key nor a parent may be of others.
    for rest in ["key = \"login:b{x}\"", "parents = [\"login:b{x}\"]"] {
        let both = [&own[..], &[("rest", rest)]].concat();
        assert_eq!(site.post_with("/ui/limit", &both, token).status, 403, "{rest}");
        let toml = "[[limit]]\nname = \"login-a\"\nmatch = \"login:a{x}\"\npolicy = \"block\"";
        let toml = format!("{toml}\n{rest}\n");
        let text = [("name", "login-a"), ("toml", &toml)];
        assert_eq!(site.post_with("/ui/limit/text", &text, token).status, 403, "{rest}");
    }
    let refund = |key| [("key", key), ("units", "1")];
    for (key, reset, refunded) in
        [("login:a+all", 303, 403), ("login:a>login:b", 403, 403), ("login:ab", 303, 303)]
    {
        let fields = [("key", key), ("confirm", "yes")];
        assert_eq!(site.post_with("/ui/key/reset", &fields, token).status, reset, "{key}");
        assert_eq!(site.post_with("/ui/key/refund", &refund(key), token).status, refunded);
    }
    for (key, status) in [("login:a", 303), ("login:b", 403)] {
        let fields = [("key", key), ("confirm", "yes")];
        assert_eq!(site.post_with("/ui/key/reset", &fields, token).status, status, "{key}");
        let block = [("limit", "login"), ("key", key), ("policy", "block")];
        assert_eq!(site.post_with("/ui/overrides", &block, token).status, status, "{key}");
    }
}

#[test]
fn networks_outside_of_the_prefix_are_refused() {
    let (site, tokens) = Site::with_tokens(&["s support keys=login:10."]);
    for (key, status) in [("login:10.0.0.0/8", 303), ("login:10.0.0.0/7", 403)] {
        let block = [("limit", "login"), ("key", key), ("policy", "block")];
        assert_eq!(site.post_with("/ui/overrides", &block, &tokens[0]).status, status, "{key}");
    }
}

#[test]
fn a_form_of_another_site_is_refused() {
    let site = Site::open();
    let fields = body(&[("key", "login:a"), ("confirm", "yes")]);
    for (headers, is_served) in [
        (&[][..], true),
        (&[("sec-fetch-site", "same-origin")], true),
        (&[("sec-fetch-site", "none")], true),
        (&[("sec-fetch-site", "cross-site")], false),
        (&[("sec-fetch-site", "same-site")], false),
        (&[("origin", "http://localhost:31211")], true),
        (&[("origin", "http://localhost:1")], false),
        (&[("origin", "null")], false),
        (&[("origin", "")], false),
    ] {
        for path in ["/ui/key/reset", "/ui/logout"] {
            let mut request = form(path).header("host", "localhost:31211");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let status = site.send(request, fields.clone()).status;
            assert_eq!(status, if is_served { 303 } else { 403 }, "{path} {headers:?}");
        }
    }
}

#[test]
fn a_form_that_does_not_arrive_is_refused() {
    let site = Site::open();
    for path in ["/ui/key/reset", "/ui/login"] {
        let silent = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
        let got = site.send(form(path), Body::from_stream(silent));
        assert_eq!(got.status, 408, "{path}");
        assert!(got.text.contains("The form took longer than 10 s to arrive."), "{}", got.text);
    }
    assert!(site.changes().is_empty());
}

#[test]
fn a_destructive_form_asks_again_and_changes_nothing() {
    let site = Site::open();
    for (path, fields, _) in DEEDS {
        let asks = fields.iter().any(|(name, _)| *name == "confirm");
        let fields: Vec<_> =
            fields.iter().copied().filter(|(name, _)| *name != "confirm").collect();
        let got = site.post(path, &fields);
        assert_eq!(got.status, if asks { 200 } else { 303 }, "{path}");
        assert_eq!(got.text.contains("name=\"confirm\" value=\"yes\""), asks, "{path}");
    }
    let revert = [("name", "login"), ("seq", "1"), ("version", "7")];
    assert_eq!(site.post("/ui/limit/revert", &revert).status, 200);
    let changes = site.changes();
    assert!(!changes.iter().any(|change| change.contains("remove") || change.contains("revert")));
    assert!(!changes.iter().any(|change| change.contains("drain") || change.contains("reset")));
    // The typed name must be the node's.
    let wrong = [("node", "n2"), ("typed", "n1"), ("incarnation", "0"), ("confirm", "yes")];
    assert_eq!(site.post("/ui/cluster/forget", &wrong).status, 422);
    assert_eq!(site.changes(), changes);
}

#[test]
fn a_changed_version_is_refused_with_both_texts() {
    let site = Site::open();
    let stale = (VERSION - 1).to_string();
    let got = site.post("/ui/limit", &limit_form(&stale, "fixed:6/m", "save"));
    assert_eq!(got.status, 412);
    for text in ["fixed:5/m", "fixed:6/m", "name=\"version\" value=\"7\""] {
        assert!(got.text.contains(text), "{text}");
    }
    for (path, fields) in [
        ("/ui/limit/remove", &[("name", "login"), ("version", &*stale), ("confirm", "yes")][..]),
        ("/ui/limit/remove", &[("name", "login"), ("version", &stale)]),
        ("/ui/limit/revert", &[("name", "login"), ("version", &stale), ("seq", "1")]),
        ("/ui/limit/adopt", &[("name", "api"), ("version", &stale)]),
        ("/ui/limit/shadow", &[("name", "login"), ("version", &stale), ("shadow", "on")]),
        (
            "/ui/overrides",
            &[("limit", "login"), ("key", MARKUP), ("policy", "allow"), ("version", &stale)],
        ),
        (
            "/ui/cluster/setting",
            &[("name", "replicas"), ("was", "1"), ("value", "3"), ("confirm", "yes")],
        ),
        (
            "/ui/cluster/drain",
            &[("node", "n2"), ("typed", "n2"), ("incarnation", "9"), ("confirm", "yes")],
        ),
    ] {
        assert_eq!(site.post(path, fields).status, 412, "{path} {fields:?}");
    }
    assert_eq!(site.post("/ui/limit/remove", &[("name", "login")]).status, 428);
    let mut new = limit_form("", "fixed:6/m", "save");
    new[0] = ("name", TAKEN);
    let taken = site.post("/ui/limit", &new);
    assert_eq!(taken.status, 409);
    assert!(taken.text.contains("another limit has this name"), "{}", taken.text);
    assert_eq!(site.changes(), Vec::<String>::new());
}

#[test]
fn forms_lead_to_a_page_with_a_fixed_message() {
    let site = Site::open();
    for (path, fields, _) in DEEDS {
        let got = site.post(path, fields);
        assert_eq!(got.status, 303, "{path}");
        let to = got.location().to_owned();
        let page = site.get(&to);
        assert_eq!(page.status, 200, "{to}");
        assert!(page.text.contains("class=\"flash\""), "{to}");
    }
    let mut disabled = limit_form("7", "fixed:6/m", "save");
    disabled.push(("disabled", "on"));
    let saved = site.post("/ui/limit", &disabled);
    assert!(site.get(saved.location()).text.contains("It is disabled"), "{}", saved.location());
    assert!(!site.get("/ui/?did=hello").text.contains("hello"));
}

#[test]
fn token_and_fields_of_a_policy_write_each_other() {
    let site = Site::open();
    let check = |policy: &str, algorithm: &str, count: &str| {
        let mut fields = limit_form("7", policy, "check");
        fields.extend([("p.algorithm", algorithm), ("p.count", count), ("p.per", "m")]);
        site.post("/ui/limit", &fields)
    };
    let token = check("fixed:9/m", "fixed", "5").text;
    assert!(token.contains("name=\"p.count\" value=\"9\""), "the field follows the token");
    let field = check("fixed:5/m", "fixed", "8").text;
    assert!(field.contains("name=\"policy\" value=\"fixed:8/m\""), "the token follows the field");
    assert_eq!(check("fixed:9/m", "fixed", "8").status, 422);
}

#[test]
fn a_mistake_returns_the_form_as_it_was_filled_in() {
    let site = Site::open();
    let fields = [&limit_form("7", "fixed:6/m", "save")[..], &[("rest", "a = = b")]].concat();
    let got = site.post("/ui/limit", &fields);
    assert_eq!(got.status, 422);
    assert!(got.text.contains("a = = b") && got.text.contains("fixed:6/m"));
    let file = [("name", "api"), ("pattern", "api:{x}"), ("policy", "block"), ("do", "save")];
    let got = site.post("/ui/limit", &[&file[..], &[("version", "7")]].concat());
    assert_eq!(got.status, 409);
    for duration in ["5", "x", "-1s", "400d"] {
        let fields = [("limit", "login"), ("key", "login:a"), ("policy", "block")];
        let fields = [&fields[..], &[("for", duration)]].concat();
        assert_eq!(site.post("/ui/overrides", &fields).status, 422, "{duration}");
    }
    for units in ["0", "-1", "x", "9007199254740992"] {
        let fields = [("key", "login:a"), ("units", units)];
        assert_eq!(site.post("/ui/key/refund", &fields).status, 422, "{units}");
    }
    assert_eq!(site.changes(), Vec::<String>::new());
}

#[test]
fn a_session_opens_with_a_token_and_ends() {
    let (site, tokens) = Site::with_tokens(&["alice admin"]);
    let wrong = site.post("/ui/login", &[("token", "tg_wrong")]);
    assert_eq!(wrong.status, 401);
    assert!(!wrong.headers.contains_key("set-cookie"));
    // The sessions belong to one router.
    let router = crate::router(site.host.clone(), site.access.clone());
    runtime().block_on(async {
        let send = async |request: Builder, body: String| {
            let request = request.body(Body::from(body)).expect("tests write requests");
            let response = router.clone().oneshot(request).await.expect("routes do not fail");
            (response.status(), response.headers().clone())
        };
        let (status, headers) = send(form("/ui/login"), body(&[("token", &tokens[0])])).await;
        assert_eq!(status, StatusCode::SEE_OTHER);
        let cookie = headers["set-cookie"].to_str().expect("it is ASCII");
        assert!(cookie.contains("; Path=/; HttpOnly; SameSite=Strict"), "{cookie}");
        let cookie = cookie.split(';').next().unwrap_or_default();
        let (status, _) =
            send(Request::get("/ui/audit").header("cookie", cookie), String::new()).await;
        assert_eq!(status, StatusCode::OK);
        let (status, headers) =
            send(form("/ui/logout").header("cookie", cookie), String::new()).await;
        assert_eq!(
            (status, &headers["location"]),
            (StatusCode::SEE_OTHER, &"/ui/login".parse().expect("it is ASCII"))
        );
        let (status, _) =
            send(Request::get("/ui/audit").header("cookie", cookie), String::new()).await;
        assert_eq!(status, StatusCode::SEE_OTHER);
    });
}

#[test]
fn a_login_leads_to_the_page_that_was_asked_for_and_to_no_other_site() {
    let (site, tokens) = Site::with_tokens(&["alice admin"]);
    for (next, page) in [
        ("/ui/limit?name=a%20b&did=saved", "/ui/limit?name=a%20b&did=saved"),
        ("", "/ui/"),
        ("/ui/login", "/ui/"),
        ("/ui/logout", "/ui/"),
        ("//example.com/ui/", "/ui/"),
        ("https://example.com/", "/ui/"),
        ("/ui/\r\nset-cookie: a=b", "/ui/"),
        ("/ui/\u{e9}", "/ui/"),
    ] {
        let login = format!("/ui/login?next={}", encode(next));
        let got = site.post(&login, &[("token", &tokens[0])]);
        assert_eq!((got.status, got.location()), (303, page), "{next:?}");
    }
    let ended = site.post("/ui/limit", &limit_form("7", "fixed:6/m", "save"));
    assert_eq!(ended.status, 401);
    assert!(ended.text.contains("reload this page"), "{}", ended.text);
    assert_eq!(site.changes(), Vec::<String>::new());
}

#[test]
fn a_form_has_a_bound() {
    let site = Site::open();
    let large = "x".repeat(super::FORM_MAX + 1);
    assert_eq!(site.post("/ui/limit", &[("name", &large)]).status, 413);
}
