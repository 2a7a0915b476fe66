//! The prefixes of a token against limits, keys and overrides.

use super::*;
use crate::caller::ClientAddress;
use crate::fake_host::FakeHost;

fn caller(names: &str, keys: &str) -> Caller {
    Caller {
        name: "ann".to_owned(),
        names: names.to_owned(),
        keys: keys.to_owned(),
        ..Caller::anyone(ClientAddress::default())
    }
}

fn refusal(checked: Result<(), Problem>) -> Option<String> {
    let problem = checked.err()?;
    assert_eq!(problem.status, StatusCode::FORBIDDEN);
    Some(problem.detail.replace("the token ann may only change ", ""))
}

#[test]
fn a_limit_matches_counts_and_charges_own_keys() {
    let ann = caller("team-a/", "team-a:");
    let limit = |name: &str, fronts: [&str; 2], parents: &[&str]| LimitView {
        name: name.to_owned(),
        literal_front: fronts[0].to_owned(),
        counted_front: fronts[1].to_owned(),
        parent_fronts: parents.iter().map(|&front| front.to_owned()).collect(),
        ..LimitView::default()
    };
    for (name, fronts, parents, expected) in [
        ("team-a/x", ["team-a:"; 2], &[][..], None),
        ("team-a/x", ["team-a:x:", "team-a:y:"], &["team-a:", "team-a:all"], None),
        ("team-b/x", ["team-a:"; 2], &[], Some("limits whose names begin with team-a/")),
        ("team-a/x", ["team-", "team-a:"], &[], Some("keys that begin with team-a:")),
        (
            "team-a/x",
            ["team-a:", "team-b:"],
            &[],
            Some("limits whose counted keys begin with team-a:"),
        ),
        ("team-a/x", ["team-a:", ""], &[], Some("limits whose counted keys begin with team-a:")),
        (
            "team-a/x",
            ["team-a:"; 2],
            &["team-a:", "all"],
            Some("limits whose parents begin with team-a:"),
        ),
        ("team-a/x", ["team-a:"; 2], &[""], Some("limits whose parents begin with team-a:")),
    ] {
        let limit = limit(name, fronts, parents);
        assert_eq!(refusal(ann.may_limit(&limit)).as_deref(), expected, "{limit:?}");
        assert_eq!(caller("", "").may_limit(&limit), Ok(()));
    }
}

#[test]
fn only_the_version_that_was_checked_may_be_replaced() {
    let present = LimitView { version: 7, ..LimitView::default() };
    let (narrow, all) = (caller("team-a/", "team-a:"), caller("", ""));
    for (present, version, refusal) in [
        (Some(&present), Some(7), None),
        (Some(&present), Some(8), Some(ServiceError::Changed(7))),
        (Some(&present), None, Some(ServiceError::Changed(7))),
        (None, None, None),
        (None, Some(8), Some(ServiceError::NotFound("there is no limit of this name".to_owned()))),
    ] {
        assert_eq!(narrow.may_version(present, version).err(), refusal);
        assert_eq!(all.may_version(present, version), Ok(()));
    }
}

#[test]
fn a_key_is_counted_within_the_prefix() {
    let (open, hashed) =
        (FakeHost::default(), FakeHost { keys_hashed: true, ..FakeHost::default() });
    for (keys, key, expected) in [
        ("login:a", "login:a", [None, None]),
        ("login:a", "login:b", [Some("keys that"); 2]),
        ("login:a", "login:a>login:ab", [None, None]),
        ("login:a", "login:a>login:b", [Some("keys whose counted keys"); 2]),
        ("login:a", "login:a+login:a", [None, None]),
        ("login:a", "login:a+all", [None, Some("keys whose parents")]),
        ("other", "other:a", [None, None]),
    ] {
        let ann = caller("", keys);
        for (change, expected) in
            [ScopedKeyChange::Reset, ScopedKeyChange::Refund].into_iter().zip(expected)
        {
            let expected = expected.map(|things| format!("{things} begin with {keys}"));
            let checked = ann.may_change_key(&open, key.as_bytes(), change);
            assert_eq!(refusal(checked), expected, "{keys} {key} {change:?}");
            let everything = caller("", "").may_change_key(&open, key.as_bytes(), change);
            assert_eq!(everything, Ok(()));
        }
    }
    // A hash tells nothing: the limit must be one whose keys all are the caller's.
    for (keys, key, is_own) in [
        ("login:", "login:a>login#0123456789ab", true),
        ("login:a", "login:a>login:a#0123456789ab", false),
        ("login:a", "login:a", true),
    ] {
        let checked =
            caller("", keys).may_change_key(&hashed, key.as_bytes(), ScopedKeyChange::Reset);
        assert_eq!(checked.is_ok(), is_own, "{keys} {key}");
    }
    let named = caller("log", "").may_change_key(&open, b"plain", ScopedKeyChange::Reset);
    assert_eq!(refusal(named).as_deref(), Some("limits whose names begin with log"));
}

#[test]
fn an_override_holds_for_own_keys_only() {
    let host = FakeHost::default();
    for (keys, key, is_own) in [
        ("login:a", "login:a", true),
        ("login:a", "login:ab*", true),
        ("login:a", "login:*", false),
        // A prefix of a token has no globs.
        ("login:*", "login:*", false),
        // The prefix ends before the address.
        ("login:", "login:0.0.0.0/0", true),
        ("login:", "login:::/0", true),
        ("login:a/", "login:a/2001:db8::/32", true),
        // It ends within the address: all addresses begin with the rest.
        ("login:10.", "login:10.0.0.0/8", true),
        ("login:10.", "login:10.1.2.0/24", true),
        ("login:10", "login:10.0.0.0/8", true),
        ("login:10.1.2.3", "login:10.1.2.3/32", true),
        ("login:10.", "login:10.0.0.0/7", false),
        ("login:10.1", "login:10.16.0.0/12", false),
        ("login:10.1.", "login:10.1.0.0/15", false),
        ("login:1", "login:1.0.0.0/7", false),
        ("login:0", "login:0.0.0.0/0", false),
        ("login:10.0.0.0/8", "login:10.0.0.0/8", false),
        ("login:2001:", "login:2001:db8::/32", false),
        ("login:2001:db8::", "login:2001:db8::/128", false),
    ] {
        let checked = refusal(caller("", keys).may_override(&host, "login", key));
        assert_eq!(checked.is_none(), is_own, "{keys} {key}: {checked:?}");
        assert_eq!(caller("", "").may_override(&host, "login", key), Ok(()));
    }
    // `beef:` is a part of the address, unless all keys of the limit begin so.
    let checked = caller("", "beef:").may_override(&host, "login", "beef:2001:db8::/32");
    let expected = "networks of which all keys begin with beef:";
    assert_eq!(refusal(checked).as_deref(), Some(expected));
    let checked = caller("api", "").may_override(&host, "login", "login:a");
    assert_eq!(refusal(checked).as_deref(), Some("limits whose names begin with api"));
}
