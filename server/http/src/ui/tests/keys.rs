//! Links to keys and forms about keys: they name the key itself, or nothing.

use crate::fake_host::FakeHost;

use super::Site;

/// The texts of four keys of which only the first is the key itself.
const SHOWN: [&str; 4] = ["x:ä…", "k…ba9876543210", "a%20b", "x:\u{fffd}"];

/// A site whose lists have the keys above, and a limit with a counted key of its own.
fn odd_site(keys_hashed: bool) -> Site {
    let shown_keys = SHOWN.map(str::to_owned).to_vec();
    let host = FakeHost { shown_keys, has_page_limit: true, keys_hashed, ..FakeHost::default() };
    Site { host: host.into(), ..Site::open() }
}

/// The part of a page below its head and its navigation.
fn main_part(text: &str) -> &str {
    text.split_once("<main").map_or("", |(_, rest)| rest)
}

#[test]
fn only_a_certain_key_is_a_link() {
    let site = odd_site(false);
    for path in ["/ui/", "/ui/hot", "/ui/tail"] {
        let page = site.get(path).text;
        assert!(page.contains("<a href=\"/ui/key?key=x%3A%C3%A4%E2%80%A6\">x:ä…</a>"), "{path}");
        for key in &SHOWN[1..] {
            assert!(page.contains(&format!("<td class=\"code\">{key}</td>")), "{path} {key}");
        }
    }
}

#[test]
fn hashes_are_no_links() {
    let site = odd_site(true);
    for path in ["/ui/", "/ui/hot", "/ui/tail", "/ui/limit?name=login"] {
        let page = site.get(path).text;
        assert!(!page.contains("/ui/key?key="), "{path}");
        assert!(page.contains(" data-hashed>"), "{path}");
    }
    let form = super::limit_form("7", "fixed:6/m", "try");
    let tried = site.post("/ui/limit", &form).text;
    assert!(tried.contains("Newly denied") && !tried.contains("/ui/key?key="));
}

#[test]
fn events_without_a_key_link_to_their_subject() {
    let page = odd_site(false).get("/ui/tail").text;
    assert!(page.contains("<td class=\"code\"><a href=\"/ui/limit?name=api\">api</a></td>"));
    assert!(page.contains("<td class=\"code\">n2 is dead</td>"));
}

#[test]
fn page_of_a_key_keeps_its_bytes() {
    let site = odd_site(false);
    let page = site.get("/ui/key?key=login:%FF%FE").text;
    insta::assert_snapshot!("key_bytes", main_part(&page));
    let fields = [("exact", "login%3A%FF%FE"), ("confirm", "yes")];
    let got = site.post("/ui/key/reset", &fields);
    assert_eq!(got.location(), "/ui/key?key=login%3A%FF%FE&did=reset");
    let question = site.post("/ui/key/reset", &fields[..1]).text;
    assert!(question.contains("name=\"exact\" value=\"login%3A%FF%FE\""));
    let blank = [("key", "login:a\u{a0}"), ("units", "2")];
    assert_eq!(site.post("/ui/key/refund", &blank).status, 303);
    let changes = site.changes();
    assert_eq!(changes, ["reset login:\\xff\\xfe by -", "refund 2 login:a\\xc2\\xa0 by -"]);
}

#[test]
fn override_returns_to_the_page_of_its_form() {
    let site = odd_site(false);
    let page = site.get("/ui/key?key=login:a%3Elogin:b").text;
    assert!(page.contains("name=\"key\" value=\"login:b\""));
    assert!(page.contains("name=\"page_key\" value=\"login%3Aa%3Elogin%3Ab\""));
    let fields = [
        ("limit", "login"),
        ("key", "login:b"),
        ("policy", "block"),
        ("back", "key"),
        ("page_key", "login%3Aa%3Elogin%3Ab"),
    ];
    let got = site.post("/ui/overrides", &fields);
    assert_eq!(got.location(), "/ui/key?key=login%3Aa%3Elogin%3Ab&did=override");
    assert_eq!(site.changes(), ["override login:b is block by -"]);
    let question = site.post("/ui/overrides/remove", &fields).text;
    assert!(question.contains("name=\"page_key\" value=\"login%3Aa%3Elogin%3Ab\""));
    assert!(question.contains("href=\"/ui/key?key=login%3Aa%3Elogin%3Ab\""));
}

#[test]
fn counted_key_names_the_limits_that_may_count_it() {
    let site = odd_site(false);
    let hint = "<a href=\"/ui/limit?name=page\">page</a>";
    assert!(site.get("/ui/key?key=page:bob").text.contains(hint));
    for other in ["other", "login:a"] {
        assert!(!site.get(&format!("/ui/key?key={other}")).text.contains(hint), "{other}");
    }
}

#[test]
fn wrong_cost_is_refused_beside_its_field() {
    let site = Site::open();
    for cost in ["1k", "abc", "0", "-1", "1.5", "9007199254740992"] {
        let got = site.get(&format!("/ui/key?key=login:a&cost={cost}"));
        assert_eq!(got.status, 400, "{cost}");
        assert!(got.text.contains("id=\"wrong\">✕ The cost is a whole number from 1"), "{cost}");
        assert!(got.text.contains(&format!("value=\"{cost}\"")) && !got.text.contains("Verdict"));
    }
    for cost in ["", "1", "9007199254740991"] {
        assert_eq!(site.get(&format!("/ui/key?key=login:a&cost={cost}")).status, 200, "{cost}");
    }
}
