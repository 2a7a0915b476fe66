//! Tests of exemptions: the keys that no limit applies to, refused entries, and bounds.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::networks::Network;
use super::*;
use crate::Parents;
use crate::exempt::EXEMPTIONS_MAX;

/// Two limits, the first with a parent and a companion.
const LIMITS: &str = "
[[limit]]
name = 'login'
match = 'login:{ip:ip/64}/{user}'
policy = 'fixed:5/s'
parents = ['user:{user}']
companions = ['#retry']
[[limit]]
name = 'user'
match = 'user:{user}'
policy = 'fixed:5/s'
";

fn with(entries: &str) -> Limits {
    parse(&format!("exempt = [{entries}]\n{LIMITS}"))
}

#[test]
fn no_limit_applies_to_an_exempt_key() {
    let limits = with("'10.0.0.0/8', '2001:db8::7', 'user:root', 'user:*-bot'");
    for (key, entry) in [
        ("login:10.1.2.3/ann", Some("10.0.0.0/8")),
        ("login:::ffff:10.1.2.3/ann", Some("10.0.0.0/8")),
        ("login:10.1.2.3/ann#retry", Some("10.0.0.0/8")),
        ("login:2001:DB8:0::7/ann", Some("2001:db8::7")),
        ("login:2001:db8::8/ann", None),
        ("login:11.1.2.3/ann", None),
        ("user:root", Some("user:root")),
        ("user:root2", None),
        ("user:crawl-bot", Some("user:*-bot")),
        // Keys are exempt from limits that they do not have, too.
        ("login:10.1.2.3", None),
        ("", None),
    ] {
        assert_eq!(limits.exemption(key.as_bytes()), entry, "{key}");
        if entry.is_some() {
            assert_eq!(find(&limits, key), None, "{key}");
            assert_eq!(limits.explain(key.as_bytes()), Ok(None), "{key}");
        }
    }
    assert_eq!(find(&limits, "login:11.1.2.3/ann").expect("limited").0, "login");
    assert_eq!(find(&limits, "login:11.1.2.3/ann#retry").expect("limited").0, "login");
    assert_eq!(find(&limits, &"k".repeat(251)), None);
    assert!(limits.exemption(&[b'k'; 251]).is_none());
}

#[test]
fn an_exempt_parent_is_not_charged() {
    let limits = with("'user:root'");
    for (key, count) in [("login:10.0.0.1/ann", 1), ("login:10.0.0.1/root", 0)] {
        let (mut scratch, mut parents) = (Vec::new(), Parents::default());
        let found = limits.find(key.as_bytes(), &mut scratch).expect("short").expect("a limit");
        limits.parents(&found, &mut parents).expect("few parents");
        assert_eq!(parents.len(), count, "{key}");
        let explained = limits.explain(key.as_bytes()).expect("short").expect("a limit");
        assert_eq!(explained.parents.len(), count, "{key}");
    }
}

#[test]
fn a_capture_without_a_type_and_a_regex_have_addresses_too() {
    for pattern in ["login:{ip}", "^login:(?<ip>.+)$"] {
        let limits = parse(&format!("exempt = ['10.0.0.0/8']\n{}", one(pattern, "")));
        assert_eq!(find(&limits, "login:10.0.0.1"), None, "{pattern}");
        for key in ["login:11.0.0.1", "login:10.0.0.0/8", "login:x"] {
            assert!(find(&limits, key).is_some(), "{pattern} {key}");
        }
    }
}

#[test]
fn without_exemptions_no_lookup_looks_for_them() {
    let limits = parse(LIMITS);
    assert_eq!(limits.direct_bytes, protocol::KEY_BYTES_MAX);
    assert_eq!(limits.exemptions().count(), 0);
    let limits = with("'user:root'");
    assert_eq!(limits.direct_bytes, 0);
    // A limit that is tried on recorded traffic keeps the exemptions.
    let trial = limits.with_trial("new", &one("new:{x}", "").replace("'one'", "'new'"));
    let trial = trial.expect("a good limit");
    assert_eq!(find(&trial, "user:root"), None);
    assert_eq!(trial.exemptions().collect::<Vec<&str>>(), ["user:root"]);
}

#[test]
fn more_exemptions_than_the_bounds_are_refused() {
    let entries = |count: usize, width: usize| -> String {
        let entries: Vec<String> = (0..count).map(|n| format!("'user:{n:0width$}',\n")).collect();
        entries.concat()
    };
    let file = |count, width| format!("exempt = [\n{}]\n{LIMITS}", entries(count, width));
    let limits = parse(&file(EXEMPTIONS_MAX, 1));
    assert_eq!(limits.exemptions().count(), EXEMPTIONS_MAX);
    assert_eq!(find(&limits, "user:999"), None);
    refused(&file(EXEMPTIONS_MAX + 1, 1), 1_002, "`exempt` has at most 1000 entries");
    refused(&file(200, 200), 2, "`exempt` has 41810 bytes, and may have 32768");
}

fn entry() -> impl Strategy<Value = &'static str> {
    select(vec![
        "10.0.0.0/8",
        "10.1.0.0/16",
        "10.1.2.3",
        "1::/16",
        "1:2::/32",
        "user:*",
        "user:a",
        "user:?b",
        "user:{x}b*",
        "login:{x}/ab",
        "login:*/b",
        "*b*",
        "user:{n:digits}",
        "*#retry",
    ])
}

/// Whether a pattern of these entries matches a text, tried byte by byte.
fn matches(pattern: &str, text: &str) -> bool {
    let Some(first) = pattern.chars().next() else { return text.is_empty() };
    let front = if first == '{' { pattern.find('}').expect("closed") + 1 } else { 1 };
    let (word, rest) = pattern.split_at(front);
    let takes = |len: usize| matches(rest, &text[len..]);
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    match word {
        "*" => (0..=text.len()).any(takes),
        "{n:digits}" => (1..=digits).any(takes),
        _ if first == '{' => (1..=text.len()).any(takes),
        "?" => !text.is_empty() && takes(1),
        _ => text.starts_with(word) && takes(1),
    }
}

proptest! {
    /// The twin tries one entry after the other.
    #[test]
    fn a_key_is_exempt_if_an_entry_matches_it(
        entries in vec(entry(), 1..5),
        ip in select(vec!["10.1.2.3", "10.1.9.9", "10.9.9.9", "9.9.9.9", "1:2::3", "1:3::3", "2::"]),
        user in select(vec!["a", "b", "ab", "abc", "xb", "7", "77", "#retry"]),
        is_login in any::<bool>(), suffix in select(vec!["", "#retry"]),
    ) {
        let list: Vec<String> = entries.iter().map(|entry| format!("'{entry}'")).collect();
        let text = format!("exempt = [{}]\n{LIMITS}", list.join(", "));
        // Entries that an earlier one hides are refused; the others are compared.
        let Ok(limits) = Limits::parse("l.toml", text.as_bytes()) else { return Ok(()) };
        let base = if is_login { format!("login:{ip}/{user}") } else { format!("user:{user}") };
        let key = format!("{base}{suffix}");
        let has = |entry: &&str| {
            let network = Network::parse(entry);
            let network = network.or_else(|| entry.parse().ok().map(Network::of_one));
            match network {
                Some(network) => {
                    is_login && network.contains(Network::of_one(ip.parse().expect("an address")))
                }
                // The companion of an exempt key is exempt, where the limit has one.
                None => matches(entry, &key) || is_login && matches(entry, &base),
            }
        };
        let expected = entries.iter().any(has);
        prop_assert_eq!(limits.exemption(key.as_bytes()).is_some(), expected, "{}", &key);
        let is_companion_of_another = is_login && !suffix.is_empty() && expected;
        let found = find(&limits, &key);
        // A companion is found before its own text is looked at.
        if !is_companion_of_another {
            prop_assert_eq!(found.is_none(), expected, "{}", &key);
        }
    }
}
