//! Tests of whole files: the limit found for a key, and refusals with their lines.

use super::*;

mod exempt;
mod mistake_rows;
mod mistakes;
mod twin;
mod wheres;

fn parse(text: &str) -> Limits {
    Limits::parse("l.toml", text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn one(pattern: &str, more: &str) -> String {
    let field = if pattern.starts_with('^') { "regex" } else { "match" };
    format!("[[limit]]\nname = 'one'\n{field} = '{pattern}'\npolicy = 'fixed:5/s'\n{more}\n")
}

/// The limit's name and the counted key, if a limit matches.
fn find(limits: &Limits, key: &str) -> Option<(String, String)> {
    let mut scratch = Vec::new();
    let found = limits.find(key.as_bytes(), &mut scratch).expect("a short key")?;
    let counted = String::from_utf8(found.key().to_vec()).expect("a key of the test");
    Some((found.limit().name().to_owned(), counted))
}

/// Checks the keys that a pattern matches, and its captures.
fn check(pattern: &str, template: &str, keys: &[(&str, Option<&str>)]) {
    let limits = parse(&one(pattern, &format!("key = '{template}'")));
    for (key, expected) in keys {
        let found = find(&limits, key).map(|(_, counted)| counted);
        assert_eq!(found.as_deref(), *expected, "{pattern} on {key}");
    }
}

#[test]
fn a_capture_goes_up_to_the_next_literal() {
    check(
        "login:{ip}",
        "c/{ip}",
        &[
            ("login:1.2.3.4", Some("c/1.2.3.4")),
            ("login:::1", Some("c/::1")),
            ("login:", None),
            ("login", None),
            ("xlogin:1", None),
            ("", None),
        ],
    );
    check(
        "{a}:{b}:end",
        "{b}/{a}",
        &[
            ("x:y:end", Some("y/x")),
            ("x:y:z:end", Some("y:z/x")),
            ("x:y:end:end", Some("y:end/x")),
            ("::y:end", Some("y/:")),
            ("x:end", None),
            ("x::end", None),
        ],
    );
}

#[test]
fn a_typed_capture_takes_only_its_bytes() {
    check("w:{n:digits}:{r}", "{r}", &[("w:12:x", Some("x")), ("w:1a:x", None), ("w::x", None)]);
    check("{a}:{n:digits}", "{a}", &[("x:y:5", Some("x:y")), ("x:5", Some("x")), ("x:y", None)]);
    check("h:{x:hex}", "{x}", &[("h:0aF", Some("0aF")), ("h:0g", None)]);
    check("h:{x:alnum}", "{x}", &[("h:0gZ", Some("0gZ")), ("h:0-", None)]);
    check(
        "{i:ip}:x",
        "{i}",
        &[
            ("10.0.0.1:x", Some("10.0.0.1")),
            ("::1:x", Some("::1")),
            ("10.0.0:x", None),
            ("2001:db8::1:x", Some("2001:db8::1")),
        ],
    );
    check("{a}:{i:ip}:{b}", "{a}/{i}/{b}", &[("a:b:::1:c:d", Some("a/b::/1:c:d"))]);
}

#[test]
fn globs_and_escapes() {
    check("a*c?", "k", &[("acx", Some("k")), ("abbcx", Some("k")), ("abc", None), ("a", None)]);
    check("*", "k", &[("x", Some("k"))]);
    check("?", "k", &[("x", Some("k")), ("xy", None)]);
    check("*:{x}:*", "{x}", &[(":a:", Some("a")), ("b:a:c", Some("a")), ("::a", None)]);
    check(r"a\*\{\}{x}\\", r"\?\*{x}", &[(r"a*{}q\", Some("?*q")), ("ab{}q", None)]);
    check("exact", "k", &[("exact", Some("k")), ("exactly", None), ("exac", None)]);
}

#[test]
fn a_regex_means_the_whole_key() {
    check(
        r"^login:(?P<ip>.+)$",
        "c/{ip}",
        &[("login:1", Some("c/1")), ("login:", None), ("xlogin:1", None)],
    );
    check(
        "^(?:(?<a>x+)|(?<b>y+))(?i:z)",
        "k{a}{b}",
        &[("xxz", Some("kxx")), ("yZ", Some("ky")), ("xxzz", None), ("z", None)],
    );
}

#[test]
fn keys_need_not_be_text() {
    let limits = parse(&one("b:{x}", "key = 'c:{x}'"));
    let mut scratch = Vec::new();
    let found = limits.find(b"b:\xff\x00", &mut scratch).expect("a short key");
    assert_eq!(found.expect("it is bound").key(), b"c:\xff\x00");
}

#[test]
fn the_first_in_file_order_wins() {
    let rows = [("a", "u:1:{x}"), ("b", "u:*"), ("c", "u{x}"), ("d", "*")];
    let file: String = rows
        .map(|(name, text)| {
            format!("[[limit]]\nname='{name}'\nmatch='{text}'\npolicy='fixed:1/s'\n")
        })
        .concat();
    let limits = parse(&file);
    for (key, name) in [("u:1:2", "a"), ("u:1:", "b"), ("u:2", "b"), ("ux", "c"), ("u", "d")] {
        assert_eq!(find(&limits, key).expect(key).0, name, "{key}");
    }
    assert_eq!(limits.by_name(b"c").map(Limit::index), Some(2));
    assert!(limits.by_name(b"e").is_none());
}

#[test]
fn a_counted_key_over_250_bytes_is_an_error() {
    let limits = parse(&one("k:{x}", "key = 'longer:{x}'"));
    let mut scratch = Vec::new();
    let (good, long) = (format!("k:{}", "x".repeat(243)), format!("k:{}", "x".repeat(244)));
    let found = limits.find(good.as_bytes(), &mut scratch).expect("it fits");
    assert_eq!(found.expect("it is bound").key().len(), 250);
    let found = limits.find(long.as_bytes(), &mut scratch);
    assert_eq!(found.expect_err("one byte more"), LimitedKeyError::TooLong);
    let limits = parse(&one("^k(?<x>.*)", "key = '{x}'"));
    assert_eq!(limits.find(b"k", &mut scratch).expect_err("nothing"), LimitedKeyError::Empty);
    assert!(limits.find(&[b'k'; 251], &mut scratch).expect("no key").is_none());
}

#[test]
fn companions_are_found_beside_their_key() {
    let on = "companions = ['#limit', '#reset', '/expires', '_expire']\nkey = 'c:{x}'";
    let limits = parse(&one("k:{x}", on));
    let mut scratch = Vec::new();
    for (key, companion, counted) in [
        ("k:1#limit", Some(Companion::Limit), "c:1"),
        ("k:1#reset", Some(Companion::Reset), "c:1"),
        ("k:1/expires", Some(Companion::Expires), "c:1"),
        ("k:1_expire", Some(Companion::Expire), "c:1"),
        ("k:1#retry", None, "c:1#retry"),
        ("k:#limit", None, "c:#limit"),
    ] {
        let found = limits.find(key.as_bytes(), &mut scratch).expect(key).expect(key);
        assert_eq!(found.companion(), companion, "{key}");
        assert_eq!(found.key(), counted.as_bytes(), "{key}");
    }
    assert!(limits.find(b"plain#limit", &mut scratch).expect("short").is_none());
}

#[test]
fn overrides_are_of_the_counted_key() {
    let limits = parse(&one(
        "r:{w:digits}:{ip}",
        "key = 'r:{ip}'\noverrides = [
          { key = 'r:10.0.0.0/8', policy = 'unlimited' },
          { key = 'r:192.0.2.*', policy = 'fixed:9/s' },
          { key = 'r:10.0.0.1', policy = 'block' },
          { key = 'r:2001:db8::/32', policy = 'fixed:8/s' },
        ]",
    ));
    let mut scratch = Vec::new();
    for (key, policy, overridden) in [
        ("r:77:10.0.0.1", "block", Some(2)),
        ("r:78:10.0.0.2", "unlimited", Some(0)),
        ("r:78:192.0.2.7", "fixed:9/s", Some(1)),
        ("r:78:2001:db8::7", "fixed:8/s", Some(3)),
        ("r:78:198.51.100.7", "fixed:5/s", None),
    ] {
        let found = limits.find(key.as_bytes(), &mut scratch).expect(key).expect(key);
        assert_eq!(found.policy().to_string(), policy, "{key}");
        assert_eq!(found.overridden().map(|id| id.index), overridden, "{key}");
        assert_eq!(found.limit().policy_of(found.key()), found.policy());
    }
}

#[test]
fn a_network_begins_where_the_capture_does() {
    let limits = parse(&one(
        "t:{tenant}:{ip}",
        "overrides = [{ key = 't:beef:2001:db8::/32', policy = 'block' }]",
    ));
    let mut scratch = Vec::new();
    let found = limits.find(b"t:beef:2001:db8::9", &mut scratch).expect("short").expect("bound");
    assert_eq!(found.overridden().map(|id| id.index), Some(0));
    let found = limits.find(b"t:2001:db8::9", &mut scratch).expect("short").expect("bound");
    assert_eq!(found.overridden(), None);
}

#[test]
fn flags_of_a_limit_hold_for_its_overrides() {
    let more = "over = true\nshadow = true\noverrides = [
        { key = 'k:1', policy = 'block' }, { key = 'k:2', policy = 'unlimited' },
        { key = 'k:3', policy = 'fixed:1/s' }]";
    let limits = parse(&one("k:{x}", more));
    let mut scratch = Vec::new();
    for (key, over, shadow) in
        [("k:0", true, true), ("k:1", false, true), ("k:2", false, false), ("k:3", true, true)]
    {
        let found = limits.find(key.as_bytes(), &mut scratch).expect(key).expect(key);
        assert_eq!((found.policy().over, found.policy().shadow), (over, shadow), "{key}");
    }
}

fn file_of(rows: &[(&str, &str, &str)]) -> String {
    let row = |(name, pattern, parents): &(&str, &str, &str)| {
        format!(
            "[[limit]]\nname='{name}'\nmatch='{pattern}'\npolicy='fixed:5/s'\nparents=[{parents}]\n"
        )
    };
    rows.iter().map(row).collect()
}

#[test]
fn parents_bring_their_parents_each_once() {
    let limits = parse(&file_of(&[
        ("user", "user:{t}:{u}", "'tenant:{t}', 'global', 'none:{t}'"),
        ("tenant", "tenant:{t}", "'global'"),
        ("global", "global", ""),
        ("none", "none:{x:digits}", ""),
    ]));
    let (mut scratch, mut parents) = (Vec::new(), Parents::default());
    for _ in 0..2 {
        let found = limits.find(b"user:acme:7", &mut scratch).expect("short").expect("bound");
        assert!(found.has_parents());
        limits.parents(&found, &mut parents).expect("few");
        let all: Vec<_> = parents.iter().map(|parent| (parent.limit, parent.key)).collect();
        assert_eq!(all, [(1, &b"tenant:acme"[..]), (2, &b"global"[..])]);
    }
}

#[test]
fn parents_without_end_are_an_error_not_a_hang() {
    // No sample key of the check begins with the `w` of the cycle.
    let up = file_of(&[("up", "^up:w(?<y>.*)", "'to:ww{y}'")]).replace("match", "regex");
    let limits = parse(&format!("{up}{}", file_of(&[("to", "to:{x}", "'up:{x}'")])));
    let (mut scratch, mut parents) = (Vec::new(), Parents::default());
    let found = limits.find(b"up:w", &mut scratch).expect("short").expect("bound");
    let endless = limits.parents(&found, &mut parents);
    assert_eq!((endless, parents.len()), (Err(LimitedKeyError::TooManyParents), 0));
}

/// Checks that the file is refused at `line`, with a text that begins with `reason`.
fn refused(text: &str, line: usize, reason: &str) {
    let error = Limits::parse("l.toml", text.as_bytes()).expect_err(text).to_string();
    let expected = format!("l.toml:{line}: {reason}");
    assert!(error.starts_with(&expected), "{error}\nexpected {expected}\n{text}");
}

#[test]
fn what_is_wrong_in_one_limit_is_refused_at_its_line() {
    let good = one("k:{x}", "");
    refused("[[limit]]\nname = \n", 2, "");
    refused("limits = 1\n", 1, "unknown field `limits`");
    refused("\nlimit = 1\n", 2, "write it as `[[limit]]`");
    refused(&format!("{good}# {}\n[[limit]]\n", '\u{1}'), 6, "");
    refused(&format!("{good}\n[[limit]]\nname='b'\n"), 7, "the limit lacks its `match`");
    for (more, line, reason) in [
        ("wrong = 1", 5, "unknown field `wrong`"),
        ("regex = 'x'", 5, "a limit has either `match` or `regex`"),
        ("key = 7", 5, "`key` takes text"),
        ("key = ''", 5, "``: it is never a key"),
        ("key = 'a b'", 5, "`a b`: a key has neither blanks"),
        ("key = 'a:{y}'", 5, "`a:{y}`: the pattern captures no `{y}`"),
        ("key = 'a:{x'", 5, "`a:{x`: a `{` is not closed"),
        ("key = 'a*'", 5, "`a*`: a template has no globs"),
        ("parents = 'a'", 5, "`parents` takes a list"),
        ("parents = [\n'a',\n]", 6, "`a`: the parent matches no limit"),
        ("parents = ['k:1']", 5, "`k:1`: the parent is of this same limit"),
        ("parents = ['k:{x}']", 5, "`k:{x}`: the parent is of this same limit"),
        ("on_unavailable = 'no'", 5, "`no`: `on_unavailable` is one of local, allow"),
        ("deny = 'no'", 5, "`no`: `deny` is one of count, ns"),
        ("shadow = 'yes'", 5, "`shadow` is true or false"),
        ("companions = ['#x']", 5, "`#x`: a companion is one of #limit, #remaining"),
        ("overrides = ['x']", 5, "an override is `{ key"),
        ("overrides = [{ key = 'k:1' }]", 5, "the override lacks its `policy`"),
    ] {
        refused(&one("k:{x}", more), line, reason);
    }
    let shadow = "[[limit]]\nname='a'\nmatch='a'\npolicy='fixed:1/s,shadow'\nshadow = false";
    refused(shadow, 5, "`shadow = false`, but the policy says `shadow`");
    let policy = "[[limit]]\nname='a'\nmatch='a'\npolicy='fixed:1/x'\n";
    refused(policy, 4, "`fixed:1/x`: bad policy: ");
    refused("[[limit]]\nname='a b'\nmatch='a'\npolicy='block'\n", 2, "a name is");
    let long = "x".repeat(251);
    refused(&one("k", &format!("key = '{long}'")), 5, &format!("`{long}`: it is never a key"));
}

#[test]
fn bad_patterns_are_refused_at_their_line() {
    for (pattern, reason) in [
        ("", "no key matches it"),
        ("a b", "a key has neither blanks"),
        ("{a}{b}", "between two of captures and `*`"),
        ("{a}?*", "between two of captures and `*`"),
        ("**", "between two of captures and `*`"),
        ("{a", "a `{` is not closed"),
        ("a}", "a `}` without its `{`"),
        ("{}", "`{}`: a capture's name"),
        ("{a:int}", "`{a:int}`: a capture is one of"),
        ("{a}:{a}", "`{a}` stands in the pattern twice"),
        ("a\\", "a `\\` at the end"),
        ("^a(", "bad regex: unclosed group"),
        ("^a[^\\x00-\\xff]", "no key matches the regex"),
        ("^a{251}", "no key matches it"),
        ("^(a{1000}){1000}", ""),
    ] {
        refused(&one(pattern, ""), 3, &format!("`{pattern}`: {reason}"));
    }
    refused(&one(&"x".repeat(251), ""), 3, "`x");
    let many = (0..17).map(|n| format!("{{c{n}}}:")).collect::<Vec<_>>().concat();
    refused(&one(&many, ""), 3, &format!("`{many}`: a pattern has at most 16"));
}

#[test]
fn a_limit_that_is_never_reached_is_refused() {
    for (first, second) in [
        ("*", "a:{x}"),
        ("a:{x}", "a:{y}"),
        ("a:{x}", "a:{y:digits}"),
        ("a:*", "a:b:{y}"),
        ("a:{x}", "a:b"),
        ("*:{x}", "a:b:{y}"),
        ("{x}", "^a+$"),
        ("a:*", "^a:(b|c)$"),
        ("^a(b|c)$", "^a(b|c)$"),
        ("a:{x:ip}", "a:{x:ip}"),
    ] {
        let second = one(second, "").replace("'one'", "'two'");
        let file = format!("{}{second}", one(first, ""));
        refused(&file, 8, "never reached: `one` of line 1 takes all its keys");
    }
    for (first, second) in [("a:{x}", "a:*"), ("a:{x:digits}", "a:{x}"), ("a:{x}", "^a:.*$")] {
        parse(&format!("{}{}", one(first, ""), one(second, "").replace("'one'", "'two'")));
    }
    let twice = one("b:{x}", "");
    refused(&format!("{}{twice}", one("a:{x}", "")), 7, "the name `one` is taken by line 2");
}

#[test]
fn an_override_that_cannot_match_is_refused() {
    let file = |pattern: &str, key: &str| {
        let row = format!("overrides = [\n{{ key = '{key}', policy = 'block' }}\n]");
        one(pattern, &row)
    };
    for (pattern, key) in [
        ("login:{ip}", "logout:1.2.3.4"),
        ("login:{ip}", "login:"),
        ("login:{ip}", "logout*"),
        ("login:{ip}", "logout:10.0.0.0/8"),
        ("login:{ip}", "10.0.0.0/8"),
        ("login:{n:digits}", "login:10.0.0.0/8"),
        ("login:{ip}:x", "login:10.0.0.0/8"),
        ("login:{n:digits}", "login:a*"),
        ("^login:[0-9]+$", "login:a"),
        ("^login:[0-9]+$", "lox*"),
    ] {
        refused(&file(pattern, key), 6, &format!("`{key}`: it cannot match: the limit counts"));
    }
    for (pattern, key) in [
        ("login:{ip}", "l*"),
        ("login:{ip}", "*"),
        ("login:{ip}", "login:1*"),
        ("login:{ip}", "login:::/0"),
        ("{ip}", "10.0.0.0/8"),
        ("^login:(?<ip>.+)$", "login:10.0.0.0/8"),
        ("path:{p}", "path:/8"),
        ("path:{p}", "path:a/8"),
    ] {
        parse(&file(pattern, key));
    }
    refused(&file("l:{x}", "l:10.0.0.1/8"), 6, "`l:10.0.0.1/8`: 10.0.0.1 has bits set");
    let twice = "overrides = [{ key = 'k:1', policy = 'block' },
        { key = 'k:1', policy = 'unlimited' }]";
    refused(&one("k:{x}", twice), 6, "`k:1`: there is an override of it already");
    let taken = "overrides = [{ key = 'k:1', policy = 'block' }]";
    let second = one("k:{x}", taken).replace("'one'", "'two'");
    let both = format!("{}{second}", one("k:1", ""));
    refused(&both, 10, "`k:1`: it cannot match: `one` of line 1 takes that key");
}

#[test]
fn parents_must_end() {
    refused(
        &file_of(&[
            ("a", "a:{x}", "'b:{x}'"),
            ("b", "b:{x}", "'c:{x}'"),
            ("c", "c:{x}", "'a:{x}'"),
        ]),
        5,
        "the parents of `a` of line 1 lead back to it",
    );
    let rows: Vec<_> = (0..17)
        .map(|n| {
            let parent = if n < 16 { format!("'l{}:{{x}}'", n + 1) } else { String::new() };
            (format!("l{n}"), format!("l{n}:{{x}}"), parent)
        })
        .collect();
    let rows: Vec<_> = rows.iter().map(|(a, b, c)| (&**a, &**b, &**c)).collect();
    refused(&file_of(&rows), 5, "with its parents' parents it has more than 15");
    parse(&file_of(&rows[1..]));
    let many: Vec<_> = (0..16).map(|n| format!("'p:{n}'")).collect();
    let many = file_of(&[("a", "a", &many.join(",")), ("p", "p:{x}", "")]);
    refused(&many, 5, "`p:15`: a limit has at most 15 parents");
}

#[test]
fn every_field_at_once() {
    let limits = parse(
        r##"
        [[limit]]
        name    = "login-ip"
        match   = "login:{ip}"
        policy  = "sliding:5/60s"
        on_unavailable = "deny"
        deny = "ns"
        companions = ["#info"]
        parents = ["login-tenant:{ip}"]
        shadow = true
        over = true
        overrides = [
          { key = "login:10.0.0.0/8",   policy = "unlimited" },
          { key = "login:203.0.113.9",  policy = "block" },
        ]

        [[limit]]
        name = "tenant"
        match = "login-tenant:{tenant}"
        policy = "fixed:5/m"
        "##,
    );
    let limit = limits.by_name(b"login-ip").expect("it is there");
    assert_eq!((limit.on_unavailable(), limit.deny()), (Some(OnUnavailable::Deny), Deny::Ns));
    assert!(limit.companions().has(Companion::Info) && !limit.companions().has(Companion::Limit));
    assert!(limit.policy().over && limit.policy().shadow);
    assert_eq!((limits.len(), limits.iter().len()), (2, 2));
}
