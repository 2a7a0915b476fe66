//! Captures that stand for networks, overrides with `where`, and `order`, on whole files.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::networks::Network;

/// The policy of a key.
fn policy(limits: &Limits, key: &str) -> String {
    let mut scratch = Vec::new();
    let found = limits.find(key.as_bytes(), &mut scratch).expect("a short key");
    let found = found.unwrap_or_else(|| panic!("{key} has a limit"));
    // A node that has only the counted key finds the same policy.
    assert_eq!(found.limit().policy_of(found.key()), found.policy(), "{key}");
    found.policy().to_string()
}

#[test]
fn one_household_is_one_key() {
    check(
        "login:{net:ip/64}:{user}",
        "c/{net}/{user}",
        &[
            ("login:2001:db8:1:2:3:4:5:6:ann", Some("c/2001:db8:1:2::/ann")),
            ("login:2001:DB8:1:2::9:ann", Some("c/2001:db8:1:2::/ann")),
            ("login:192.0.2.7:ann", Some("c/192.0.2.7/ann")),
            ("login:::ffff:192.0.2.7:ann", Some("c/192.0.2.7/ann")),
            ("login:2001:db8:1:2::9:8:ann", Some("c/2001:db8:1:2::/ann")),
            ("login:x:ann", None),
        ],
    );
    // Without `key` the rest of the key stays as it is.
    let limits = parse(&one("a:{a:ip/48}:b*:{b:ip/32}?", ""));
    for (key, counted) in [
        ("a:2001:db8:1:2::3:bxy:2001:db8:ffff::1!", "a:2001:db8:1:::bxy:2001:db8::!"),
        ("a:10.0.0.1:b:10.0.0.2!", "a:10.0.0.1:b:10.0.0.2!"),
    ] {
        assert_eq!(find(&limits, key).map(|(_, counted)| counted).as_deref(), Some(counted));
    }
}

#[test]
fn several_captures_split_as_the_reference_says() {
    check("user:{tenant}:{user}", "{tenant}/{user}", &[("user:acme:ann:x", Some("acme/ann:x"))]);
    check(
        "job:{name}-{number:digits}",
        "{name}/{number}",
        &[("job:a-1-7", Some("a-1/7")), ("job:a-1-x", None)],
    );
    let key = "login:2001:db8::1:2:ann";
    check("login:{x:ip}:{y}", "{x}/{y}", &[(key, Some("2001:db8::1/2:ann"))]);
    check("login:{x:ip/128}:{y}", "{x}/{y}", &[(key, Some("2001:db8::1:2/ann"))]);
    check(
        "login:{x:ip/64}:{y}",
        "{x}/{y}",
        &[
            (key, Some("2001:db8::/ann")),
            // Letters of the next part that may belong to an address do.
            ("login:2001:db8::1:be:ef", Some("2001:db8::/ef")),
            ("login:2001:db8:1:2:3:4:5:6:7", Some("2001:db8:1:2::/7")),
            ("login:2001:db8:1:2:3:4:5:6:7:8", Some("2001:db8:1:2::/7:8")),
            ("login:::ffff:192.0.2.1:ann", Some("192.0.2.1/ann")),
            ("login:192.0.2.1:2:ann", Some("192.0.2.1/2:ann")),
        ],
    );
    check(
        "{a:ip/48}:{b:ip/64}:{c}",
        "{a}/{b}/{c}",
        &[
            ("192.0.2.1:2001:db8:1:2::3:ann", Some("192.0.2.1/2001:db8:1:2::/ann")),
            ("2001:db8:1:2::3:192.0.2.1:ann", Some("2001:db8:1::/192.0.2.1/ann")),
        ],
    );
}

#[test]
fn a_parent_is_charged_by_its_network() {
    let user = one("user:{net:ip/48}:{id}", "parents = ['net:{net}']");
    let limits = parse(&format!("{user}{}", one("net:{x}", "").replace("'one'", "'net'")));
    let (mut scratch, mut parents) = (Vec::new(), Parents::default());
    let found = limits.find(b"user:2001:db8:1:2::3:7", &mut scratch).expect("short");
    limits.parents(&found.expect("a limit"), &mut parents).expect("few");
    let keys: Vec<_> = parents.iter().map(|parent| parent.key.to_vec()).collect();
    assert_eq!(keys, [b"net:2001:db8:1::"]);
}

#[test]
fn any_takes_the_rest_of_a_key() {
    check(
        "path:{host}:{rest:any}",
        "{host}|{rest}",
        &[("path:h:/a:b/c", Some("h|/a:b/c")), ("path:h:", None)],
    );
    for pattern in ["{rest:any}:x", "{rest:any}*", "{rest:any}?"] {
        refused(&one(pattern, ""), 3, &format!("`{pattern}`: `{{rest:any}}` is the last part"));
    }
    refused(&one("{n:ip/129}", ""), 3, "`{n:ip/129}`: `{n:ip/129}`: a prefix is 1 to 128 bits");
}

#[test]
fn keys_come_before_the_first_where() {
    let limits = parse(&one(
        "login:{ip:ip/128}:{user}",
        "overrides = [
            { where = { ip = ['10.0.0.0/8', '2001:db8::/32'], user = 'root' }, policy = 'fixed:1/s' },
            { key = 'login:10.0.0.1:root', policy = 'fixed:2/s' },
            { where = { user = ['adm*', 'root'] }, policy = 'fixed:3/s' },
            { where = { ip = '192.0.2.1' }, policy = 'fixed:4/s' },
            { key = 'login:10.0.0.2*', policy = 'fixed:6/s' },
        ]",
    ));
    for (key, expected) in [
        ("login:10.0.0.1:root", "fixed:2/s"),
        ("login:10.0.0.2:root", "fixed:6/s"),
        ("login:10.0.0.3:root", "fixed:1/s"),
        ("login:2001:db8::7:root", "fixed:1/s"),
        ("login:::ffff:10.9.9.9:root", "fixed:1/s"),
        ("login:10.0.0.3:admin", "fixed:3/s"),
        ("login:11.0.0.3:root", "fixed:3/s"),
        ("login:192.0.2.1:admin", "fixed:3/s"),
        ("login:192.0.2.1:ann", "fixed:4/s"),
        ("login:::ffff:192.0.2.1:ann", "fixed:4/s"),
        ("login:10.0.0.3:ann", "fixed:5/s"),
    ] {
        assert_eq!(policy(&limits, key), expected, "{key}");
    }
}

#[test]
fn where_sees_the_captures_of_the_counted_key() {
    let entry =
        |captures: &str| format!("overrides = [{{ where = {{ {captures} }}, policy = 'block' }}]");
    for (pattern, key, captures, blocked, other) in [
        ("w:{w:digits}:{ip:ip}/{user}", "{ip}/{user}", "user = 'a'", "w:1:::1/a", "w:1:::1/b"),
        ("w:{net:ip/64}/{user}", "{net}/{user}", "net = '1::/32'", "w:1:0:2::3/a", "w:2::3/a"),
        ("w:{net:ip/64}/{user}", "", "net = '1::/32'", "w:1:0:2::3/a", "w:2::3/a"),
        ("^w:(?<a>[a-z]+)-(?<b>.*)$", "", "b = 'x*', a = 'k'", "w:k-xy", "w:l-xy"),
    ] {
        let key = if key.is_empty() { String::new() } else { format!("key = '{key}'\n") };
        let limits = parse(&one(pattern, &format!("{key}{}", entry(captures))));
        assert_eq!(policy(&limits, blocked), "block", "{pattern}");
        assert_eq!(policy(&limits, other), "fixed:5/s", "{pattern}");
    }
}

#[test]
fn flags_hold_for_where_and_text_is_kept() {
    let text = one(
        "k:{x}",
        "shadow = true\norder = -3\noverrides = [\n
            { where = { x = ['a', 'b*'] }, policy = 'block' },
            { where = { x = 'c' }, policy = 'fixed:2/s' }, { key = 'k:d', policy = 'unlimited' }]",
    );
    let limits = parse(&text);
    assert_eq!(policy(&limits, "k:c"), "fixed:2/s,shadow");
    let mut scratch = Vec::new();
    let found = limits.find(b"k:bb", &mut scratch).expect("short").expect("a limit");
    assert!(found.policy().shadow);
    let file = map_text::LimitText::of_file("l.toml", text.as_bytes()).expect("a good file");
    let again = map_text::LimitText::of_one("one", file.limits[0].toml.as_bytes());
    assert_eq!(again.expect("it was written"), file.limits[0]);
    assert!(parse(&file.limits[0].toml).by_name(b"one").expect("it").reads_like(found.limit()));
}

#[test]
fn more_entries_than_the_bound_are_refused() {
    let entries = |count: usize| -> String {
        let entries =
            (0..count).map(|n| format!("{{ where = {{ x = '{n}' }}, policy = 'block' }},"));
        format!("overrides = [{}]", entries.collect::<String>())
    };
    let limits = parse(&one("k:{x}", &entries(512)));
    assert_eq!(
        (policy(&limits, "k:511"), policy(&limits, "k:512")),
        ("block".into(), "fixed:5/s".into())
    );
    refused(&one("k:{x}", &entries(513)), 5, "a limit has at most 512 entries with `where`");
}

#[test]
fn a_lower_order_is_tried_first() {
    let limit = |name: &str, pattern: &str, more: &str| {
        one(pattern, more).replace("'one'", &format!("'{name}'"))
    };
    let file = [
        limit("all", "a:{x}", "order = 1"),
        limit("late", "a:{x:digits}", ""),
        limit("early", "a:7{x}", "order = -1"),
        limit("second", "a:8{x}", "order = -1"),
    ];
    let limits = parse(&file.concat());
    for (key, name) in
        [("a:77", "early"), ("a:78", "early"), ("a:6", "late"), ("a:88", "second"), ("a:x", "all")]
    {
        assert_eq!(find(&limits, key).expect(key).0, name, "{key}");
    }
    let names: Vec<&str> = limits.iter().map(Limit::name).collect();
    assert_eq!(names, ["early", "second", "late", "all"]);
    let hidden = format!("{}{}", limit("x", "a:{x}", ""), limit("y", "a:{z}", "order = -1"));
    refused(&hidden, 3, "never reached: `y` of line 6 takes all its keys");
    for bad in ["1000001", "-1000001", "'1'", "1.5", "true"] {
        refused(
            &limit("x", "a", &format!("order = {bad}")),
            5,
            "`order` is a number from -1000000",
        );
    }
}

#[test]
fn a_fallback_leaves_plain_keys_plain() {
    let fallback = "[[limit]]\nname = 'rest'\nmatch = '*'\npolicy = 'unlimited'\n";
    for file in
        [format!("{}{fallback}", one("a:{x}", "")), format!("{fallback}{}", one("a:{x}", ""))]
    {
        let limits = parse(&file);
        assert_eq!(find(&limits, "b:1"), None);
        assert_eq!(find(&limits, "a:1").expect("its own").0, "one");
        assert_eq!(limits.fallback().map(Limit::name), Some("rest"));
        let rest = limits.by_name(b"rest").expect("it is there");
        let error = limits.check_override(rest, "b:1").expect_err("nothing finds it");
        assert!(error.contains("the limit is a fallback"), "{error}");
    }
    let twice = format!("{fallback}{}", fallback.replace("rest", "other"));
    refused(&twice, 7, "never reached: `rest` of line 1 takes all its keys");
    for more in ["overrides = [{ key = 'x', policy = 'block' }]", "companions = ['#limit']"] {
        let limits = parse(&format!("{fallback}{more}\n"));
        assert!(limits.fallback().is_none() && find(&limits, "b:1").is_some(), "{more}");
    }
}

/// A value of a capture as text.
fn value() -> impl Strategy<Value = &'static str> {
    select(vec!["a", "b", "ab*", "a*", "abc", "aa*"])
}

fn network() -> impl Strategy<Value = &'static str> {
    select(vec!["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "0.0.0.0/0", "1::/16", "1:2::/32", "::/0"])
}

/// Whether a value has a text, decided as the reference says it.
fn has(value: &str, text: &str) -> bool {
    let address = text.parse::<std::net::IpAddr>();
    match (Network::parse(value), value.parse::<std::net::IpAddr>(), address) {
        (Some(network), _, Ok(address)) => network.contains(Network::of_one(address)),
        (None, Ok(own), Ok(address)) => address == own,
        _ => match value.strip_suffix('*') {
            Some(front) => text.starts_with(front),
            None => text == value,
        },
    }
}

proptest! {
    /// The twin tries one entry after the other.
    #[test]
    fn the_first_entry_whose_captures_match_applies(
        entries in vec((vec(network(), 0..3), vec(value(), 0..3)), 1..6),
        ip in select(vec!["10.1.2.3", "10.1.9.9", "10.9.9.9", "9.9.9.9", "1:2::3", "1:3::3", "2::"]),
        user in select(vec!["a", "b", "ab", "abc", "abd", "c", "aab"]),
    ) {
        let list = |values: &[&str]| {
            let values: Vec<String> = values.iter().map(|value| format!("'{value}'")).collect();
            format!("[{}]", values.join(", "))
        };
        let rows = entries.iter().enumerate().map(|(number, (ips, users))| {
            let mut captures = Vec::new();
            if !ips.is_empty() {
                captures.push(format!("ip = {}", list(ips)));
            }
            if !users.is_empty() {
                captures.push(format!("user = {}", list(users)));
            }
            format!("{{ where = {{ {} }}, policy = 'fixed:{}/h' }},\n", captures.join(", "), number + 1)
        });
        let overrides = format!("overrides = [\n{}]", rows.collect::<String>());
        let text = one("l:{ip:ip}/{user}", &overrides);
        // Entries that are hidden or empty are refused; the others are compared.
        if let Ok(limits) = Limits::parse("l.toml", text.as_bytes()) {
            let first = entries.iter().position(|(ips, users)| {
                (ips.is_empty() || ips.iter().any(|value| has(value, ip)))
                    && (users.is_empty() || users.iter().any(|value| has(value, user)))
            });
            let expected = first.map_or("fixed:5/s".to_owned(), |at| format!("fixed:{}/h", at + 1));
            prop_assert_eq!(policy(&limits, &format!("l:{ip}/{user}")), expected);
        }
    }
}
