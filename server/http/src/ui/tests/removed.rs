//! Tests of the page of a removed limit, and of the rows of overrides that a token may remove.

use super::*;

const BACK: [(&str, &str); 3] = [("name", "cm"), ("seq", "4"), ("version", "")];

#[test]
fn a_removed_limit_has_a_page_and_comes_back() {
    let site = Site::open();
    let got = site.get("/ui/limit?name=cm");
    assert_eq!(got.status, 404);
    insta::assert_snapshot!("removed", got.text.replace(hash(), "HASH"));
    assert_eq!(got.text.matches("/ui/limit/revert").count(), 1, "one change has a text");
    let question = site.post("/ui/limit/revert", &BACK);
    assert_eq!(question.status, 200);
    assert!(question.text.contains("Bring the limit back") && site.changes().is_empty());
    let confirmed = [&BACK[..], &[("confirm", "yes")]].concat();
    let got = site.post("/ui/limit/revert", &confirmed);
    assert_eq!((got.status, got.location()), (303, "/ui/limit?name=cm&did=brought-back"));
    assert_eq!(site.changes(), ["revert cm to 4 by -"]);
    let removal = [("name", "cm"), ("seq", "5"), ("version", ""), ("confirm", "yes")];
    assert_eq!(site.post("/ui/limit/revert", &removal).status, 404, "a removal has no text");
}

#[test]
fn a_limit_of_the_name_is_not_overwritten() {
    let site = Site::open();
    let again = [("name", "login"), ("seq", "1"), ("version", ""), ("confirm", "yes")];
    let got = site.post("/ui/limit/revert", &again);
    assert_eq!(got.status, 412);
    assert!(got.text.contains("Replace version 7"), "{}", got.text);
    // A form of a version that is removed by now.
    let stale = [("name", "cm"), ("seq", "4"), ("version", "4"), ("confirm", "yes")];
    let got = site.post("/ui/limit/revert", &stale);
    assert_eq!(got.status, 412);
    assert!(got.text.contains("Create it again"), "{}", got.text);
    assert!(site.changes().is_empty());
}

#[test]
fn bringing_back_checks_the_rights() {
    let lines = ["v viewer", "e editor names=other", "k editor keys=cm:a", "o editor keys=cm:"];
    let (site, tokens) = Site::with_tokens(&lines);
    let confirmed = [&BACK[..], &[("confirm", "yes")]].concat();
    for (token, may) in tokens.iter().zip([false, false, false, true]) {
        let page = site.get_with("/ui/limit?name=cm", token).text;
        assert!(page.contains("was removed"), "everyone reads it");
        assert_eq!(page.contains("/ui/limit/revert"), may);
        let got = site.post_with("/ui/limit/revert", &confirmed, token);
        assert_eq!(got.status, if may { 303 } else { 403 }, "{}", got.text);
    }
}

#[test]
fn the_removal_tells_whether_the_text_is_kept() {
    let site = Site::open();
    let got = site.post("/ui/limit/remove", &[("name", "login"), ("version", "7")]).text;
    assert!(got.contains("copy it") && got.contains("fixed:5/m"), "{got}");
}

#[test]
fn only_overrides_of_the_token_can_be_removed() {
    let lines = ["a support", "b support names=log", "c support names=x", "d support keys=login:b"];
    let (site, tokens) = Site::with_tokens(&lines);
    for path in ["/ui/overrides", "/ui/limit?name=login"] {
        for (token, may) in tokens.iter().zip([true, true, false, false]) {
            let page = site.get_with(path, token).text;
            assert_eq!(page.contains("/ui/overrides/remove"), may, "{path}");
        }
    }
}

#[test]
fn a_save_of_a_removed_limit_shows_its_text() {
    let site = Site::open();
    let mut form = limit_form("7", "fixed:6/m", "save");
    form[0] = ("name", "gone");
    form.extend([("before", "api"), ("reason", "why not")]);
    let got = site.post("/ui/limit", &form);
    assert_eq!(got.status, 412, "{}", got.text);
    for text in ["It is gone.", "fixed:6/m", "Create it again", "why not"] {
        assert!(got.text.contains(text), "{text}: {}", got.text);
    }
}

#[test]
fn a_text_with_a_mistake_stays_on_the_page() {
    let site = Site::open();
    let toml = "[[limit]]\nname = \"login\"\npolicy = = \"fixed:6/m\" # mine";
    let form = [("name", "login"), ("version", "7"), ("toml", toml)];
    let got = site.post("/ui/limit/text", &form);
    assert_eq!(got.status, 422);
    assert!(got.text.contains("# mine") && got.text.contains("Your text is below"), "{}", got.text);
    let other = toml.replace("\"login\"", "\"other\"").replace("= =", "=");
    let got = site.post("/ui/limit/text", &[form[0], form[1], ("toml", &*other)]);
    assert_eq!(got.status, 422);
    assert!(got.text.contains("cannot be changed") && got.text.contains("# mine"), "{}", got.text);
}
