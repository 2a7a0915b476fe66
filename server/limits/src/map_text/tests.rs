//! Tests of bodies and texts: a round trip keeps a limit, and an edit changes only its own limits.

use proptest::prelude::*;

use super::*;

const FILE: &str = r##"
# Of no account.
[[limit]]
name = "api"
match = "api:{tenant}:{user}"   # nor this
policy = "sliding:300/5m,slices=10"
key = "api:{user}:{tenant}"
parents = ["tenant:{tenant}"]
overrides = [
  { key = "api:bob:*", policy = "unlimited" },
  { key = "api:\"eve\\:x", policy = "block" },
]
companions = ["#limit", "/expires"]
on_unavailable = "deny"
deny = "ns"
shadow = true

[[limit]]
name = "tenant"
regex = '^tenant:\d+$'
policy = "bucket:100/60s,capacity=200,debt=5"
over = true

[[limit]]
name = "rest"
match = "x:{any}"
policy = "concurrency:5,hold=2m"
"##;

fn texts(file: &str) -> Vec<LimitText> {
    let file = LimitText::of_file("l.toml", file.as_bytes());
    file.unwrap_or_else(|error| panic!("{error}")).limits
}

fn text(name: &str, policy: &str) -> LimitText {
    let toml = format!("[[limit]]\nname = '{name}'\nmatch = '{name}:{{x}}'\npolicy = '{policy}'");
    LimitText::of_one(name, toml.as_bytes()).unwrap_or_else(|error| panic!("{error}"))
}

/// Parses limits: `a1 b2` are the limits `a` and `b` of one and two per second.
fn list(words: &str) -> Vec<LimitText> {
    let one = |word: &str| text(&word[..1], &format!("fixed:{}/s", &word[1..]));
    words.split(' ').filter(|word| !word.is_empty()).map(one).collect()
}

fn shared(texts: Vec<LimitText>) -> Vec<OrderedLimit> {
    let mut entries: Vec<OrderedLimit> = texts.into_iter().map(OrderedLimit::new).collect();
    number(&mut entries);
    entries
}

/// Formats limits in the form that `list` parses.
fn summary(entries: &[OrderedLimit]) -> String {
    let one = |entry: &OrderedLimit| {
        let (_, policy) = entry.text.toml.split_once("fixed:").expect("a policy of the test");
        format!("{}{}", entry.text.name, &policy[..1])
    };
    entries.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn bodies(entries: &[OrderedLimit]) -> Vec<(String, Vec<u8>)> {
    entries.iter().map(|entry| (entry.text.name.clone(), entry.body())).collect()
}

fn read(bodies: &[(String, Vec<u8>)]) -> Vec<OrderedLimit> {
    entries(bodies.iter().map(|(name, body)| (name.as_str(), body.as_slice())))
}

#[test]
fn a_text_says_all_that_the_file_said_and_no_more() {
    let all = texts(FILE);
    insta::assert_snapshot!(as_file(&shared(all.clone())));
    assert_eq!(texts(&as_file(&shared(all.clone()))), all, "written once more it is the same");
    for text in &all {
        assert_eq!(
            LimitText::of_one(&text.name, text.toml.as_bytes()).expect("it stands alone"),
            *text
        );
    }
    let whole = Limits::parse("l.toml", FILE.as_bytes()).expect("a good file");
    let made = limits(&shared(all)).expect("the same limits");
    let says = |limits: &Limits| format!("{:?}", limits.iter().collect::<Vec<_>>());
    assert_eq!(says(&made), says(&whole));
}

#[test]
fn bodies_come_back_in_their_order() {
    let all = shared(list("c1 a2 b3"));
    let mut kept = bodies(&all);
    kept.sort();
    assert_eq!(read(&kept), all);
    assert_eq!(String::from_utf8_lossy(&kept[0].1).lines().next(), Some("order = 8589934592"));
}

#[test]
fn texts_that_do_not_agree_are_told_by_name() {
    let parent = "[[limit]]\nname = 'a'\nmatch = 'a:{x}'\npolicy = 'block'\nparents = ['b:{x}']";
    let mut entries =
        shared(vec![LimitText::of_one("a", parent.as_bytes()).expect("alone it is good")]);
    let error = limits(&entries).expect_err("there is no b").to_string();
    assert_eq!(error, "limit a:5: `b:{x}`: the parent matches no limit");
    put(&mut entries, text("b", "block"), None).expect("it can be put");
    limits(&entries).expect("there is a b");
    let all = "[[limit]]\nname = 'all'\nmatch = '{x}'\npolicy = 'block'";
    let all = LimitText::of_one("all", all.as_bytes()).expect("alone it is good");
    put(&mut entries, all, Some("b")).expect("there is a b");
    let error = limits(&entries).expect_err("b is hidden").to_string();
    assert_eq!(error, "limit b:3: never reached: `all` takes all its keys");
}

#[test]
fn what_is_no_limit_by_itself_is_refused() {
    for (toml, expected) in [
        ("", "limit a:1: it is not one `[[limit]]`"),
        ("[[limit]]\nname = 'a'", "limit a:1: the limit lacks its `match`"),
        (
            "order = 1",
            "limit a:1: unknown field `order`: the fields are limit, exempt, allow_empty",
        ),
        (
            "[[limit]]\nname = 'b'\nmatch = 'b'\npolicy = 'block'",
            "limit a:2: its name is a elsewhere",
        ),
        (
            "[[limit]]\nname = 'a'\nmatch = '{'\npolicy = 'block'",
            "limit a:3: `{`: a `{` is not closed",
        ),
    ] {
        let error = LimitText::of_one("a", toml.as_bytes()).expect_err(toml).to_string();
        assert_eq!(error, expected);
    }
    let two = as_file(&shared(list("a1 b1")));
    assert!(LimitText::of_one("b", two.as_bytes()).is_err(), "two are not one");
    for body in [&b"\xff"[..], b"order = x\n", b"", b"order = 1\n[[limit]]\n"] {
        let entries = entries([("a", body)]);
        assert!(limits(&entries).is_err(), "{body:?}");
        assert_eq!(changes(&entries, &entries), [], "it is left alone");
    }
}

#[test]
fn a_limit_is_put_where_it_is_or_where_it_should_be() {
    let start = shared(list("a1 b1 c1"));
    let check = |word: &str, before: Option<&str>, expected: &str, changed: &[&str]| {
        let mut after = start.clone();
        put(&mut after, list(word).remove(0), before).expect("it can be put");
        number(&mut after);
        assert_eq!(summary(&after), expected);
        let changes = changes(&start, &after);
        assert!(changes.iter().map(|(name, _)| name).eq(changed), "{changes:?}");
        let mut kept = bodies(&after);
        kept.sort();
        assert_eq!(read(&kept), after);
    };
    check("b2", None, "a1 b2 c1", &["b"]);
    check("b1", None, "a1 b1 c1", &[]);
    check("d1", None, "a1 b1 c1 d1", &["d"]);
    check("d1", Some("a"), "d1 a1 b1 c1", &["d"]);
    check("d1", Some("c"), "a1 b1 d1 c1", &["d"]);
    check("a1", Some("c"), "b1 a1 c1", &["a"]);
    check("c2", Some("a"), "c2 a1 b1", &["c"]);
    let mut entries = start.clone();
    let error = put(&mut entries, list("d1").remove(0), Some("x")).expect_err("no x");
    assert_eq!(error.to_string(), "there is no limit x");
    assert_eq!(remove(&mut entries, "x"), Err(EditError::NoLimit("x".to_owned())));
    remove(&mut entries, "b").expect("there is a b");
    assert_eq!(changes(&start, &entries), [("b".to_owned(), None)]);
}

#[test]
fn of_a_file_only_what_it_changed_is_changed() {
    let check = |present: &str, last: &str, now: &str, expected: &str| {
        let mut entries = shared(list(present));
        follow_file(&mut entries, &list(last), &list(now));
        assert_eq!(summary(&entries), expected, "{present} when {last} becomes {now}");
    };
    check("a1 b1", "a1 b1", "a1 b1", "a1 b1");
    check("a1 b1", "a1 b1", "a2 b1", "a2 b1");
    check("a1 b1", "a1 b1", "a1 c1 b1", "a1 c1 b1");
    check("a1 b1", "a1 b1", "c1 a1 b1", "c1 a1 b1");
    check("a1 b1", "a1 b1", "b1", "b1");
    check("a1 b1 c1", "a1 b1 c1", "c1 a1 b1", "c1 a1 b1");
    // Limits that others put stay, and so do their changes and removals.
    check("z1 a9 y1", "a1 b1", "a1 b1 c1", "z1 a9 c1 y1");
    check("a9 b1", "a1 b1", "a1 b2", "a9 b2");
    check("b1", "a1 b1", "a1 b2", "b2");
    check("b1", "a1 b1", "a2 b1", "a2 b1");
    check("x1 a9 y1 b1", "a1 b1", "b1 a1", "x1 b1 a9 y1");
    // Several nodes with the same file, one after the other.
    check("a2 c1", "a1 b1", "a2 c1", "a2 c1");
    check("", "", "a1 b1", "a1 b1");
}

#[test]
fn there_is_always_room_between_two() {
    let mut entries = shared(list("a1 z1"));
    for turn in 0..100_u8 {
        let name = char::from(b'b' + turn % 24).to_string();
        if place_of(&entries, &name).is_some() {
            remove(&mut entries, &name).expect("it is there");
        }
        put(&mut entries, text(&name, "fixed:1/s"), Some("z")).expect("there is a z");
        number(&mut entries);
        assert!(entries.is_sorted_by(|one, other| one.order < other.order), "{turn}");
    }
}

proptest! {
    #[test]
    fn numbers_grow_along_the_list(
        orders in proptest::collection::vec(proptest::option::of(any::<i64>()), 0..40),
    ) {
        let mut orders = orders;
        let mut kept: Vec<i64> = orders.iter().flatten().copied().collect();
        kept.sort_unstable();
        let mut next = kept.into_iter();
        for order in orders.iter_mut().flatten() {
            *order = next.next().expect("as many as before");
        }
        let of = |order| OrderedLimit { order, ..OrderedLimit::new(text("a", "block")) };
        let mut entries: Vec<OrderedLimit> = orders.iter().copied().map(of).collect();
        number(&mut entries);
        let numbers: Vec<i64> = entries.iter().map(|entry| entry.order.expect("all have one")).collect();
        prop_assert!(numbers.is_sorted());
        if orders.iter().any(Option::is_none) && orders.iter().flatten().is_sorted_by(|a, b| a < b) {
            prop_assert!(numbers.is_sorted_by(|a, b| a < b), "{:?} {:?}", orders, numbers);
        }
    }

    #[test]
    fn any_body_is_read_or_refused(body in proptest::collection::vec(any::<u8>(), 0..60)) {
        let _ = limits(&entries([("a", body.as_slice())]));
    }
}

#[test]
fn second_limit_of_one_name_is_refused() {
    let limit = |name: &str| {
        format!("[[limit]]\nname = \"{name}\"\nmatch = \"{name}:{{x}}\"\npolicy = \"block\"\n")
    };
    let checked = |text: String| {
        let texts = LimitText::each("dd.toml", text.as_bytes());
        texts.map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(checked(limit("dd") + &limit("ee")), Ok(()));
    let refused = Err("dd.toml:6: the name `dd` is taken by line 2".to_owned());
    assert_eq!(checked(limit("dd") + &limit("dd")), refused);
    assert_eq!(checked("exempt = []\n".to_owned()), Ok(()));
}

/// Earlier versions accepted networks of IPv4 in IPv6 form, which match nothing.
#[test]
fn stored_networks_that_match_nothing_leave_the_others_in_force() {
    let toml = "[[limit]]\nname = \"one\"\nmatch = \"{user}/{ip:ip}\"\npolicy = \"fixed:5/s\"\n\
                overrides = [\n\
                { key = \"ann/::ffff:10.0.0.0/104\", policy = \"block\" },\n\
                { key = \"ann/10.0.0.0/8\", policy = \"fixed:1/s\" },\n\
                { where = { ip = \"::ffff:10.0.0.0/104\" }, policy = \"block\" },\n\
                { where = { ip = [\"::ffff:a00:0/104\", \"::1\"], user = \"bob\" }, \
                  policy = \"fixed:2/s\" },\n\
                { where = { user = \"bob\", ip = [\"::1\", \"::ffff:b00:0/104\"] }, \
                  policy = \"fixed:3/s\" },\n\
                { where = { user = \"bob\" }, policy = \"fixed:4/s\" },\n]\n";
    let text = LimitText { name: "one".to_owned(), toml: toml.to_owned() };
    let entries = vec![OrderedLimit::new(text)];
    limits(&entries).expect_err("it is refused now");
    let (agree, error) = limits_that_agree(entries.clone());
    assert!(error.is_none(), "{error:?}");
    for limits in [stored_limits(&entries).expect("it was accepted"), agree] {
        let limit = limits.by_name(b"one").expect("in force");
        // The second entry of `bob` has no key of its own without the network.
        let texts: Vec<_> = limit.where_rows().map(|(text, ..)| text).collect();
        assert_eq!(texts, ["where ip = ::ffff:a00:0/104 | ::1, user = bob", "where user = bob"]);
        for (key, policy) in [
            ("ann/10.0.0.1", "fixed:1/s"),
            ("ann/::1", "fixed:5/s"),
            ("bob/::1", "fixed:2/s"),
            ("bob/10.0.0.1", "fixed:4/s"),
        ] {
            assert_eq!(limit.policy_of(key.as_bytes()).to_string(), policy, "{key}");
        }
        assert_eq!(limits.left_out(), 5);
    }
}

#[test]
fn stored_networks_behind_a_prefix_are_counted_as_left_out() {
    let stored = |keys: &[&str]| {
        let rows = keys.iter().map(|key| format!("{{ key = \"{key}\", policy = \"block\" }}"));
        let toml = format!(
            "[[limit]]\nname = \"one\"\nmatch = \"l:{{ip:ip}}\"\npolicy = \"fixed:5/s\"\n\
             overrides = [{}]\n",
            rows.collect::<Vec<_>>().join(", ")
        );
        let entries = vec![OrderedLimit::new(LimitText { name: "one".to_owned(), toml })];
        stored_limits(&entries).expect("it was accepted").left_out()
    };
    assert_eq!(stored(&["l:10.0.0.0/8", "l:192.0.2.*"]), 0);
    assert_eq!(stored(&["l:10.0.0.0/8", "l:*"]), 1);
    assert_eq!(stored(&["l:10.0.0.0/8", "l:*", "l:10.1.0.0/16"]), 2);
}

/// Limits of these names, patterns and further lines, as they are stored.
fn stored(rows: &[(&str, &str, &str)]) -> Vec<OrderedLimit> {
    let rows = rows.iter().map(|(name, pattern, more)| {
        let toml = format!(
            "[[limit]]\nname = '{name}'\nmatch = '{pattern}'\npolicy = 'fixed:9/s'\n{more}"
        );
        LimitText::of_one(name, toml.as_bytes()).unwrap_or_else(|error| panic!("{error}"))
    });
    shared(rows.collect())
}

/// The keys that are charged with a key, each with the units for a request of one.
fn charged(limits: &Limits, key: &str) -> Vec<(String, u64)> {
    let (mut scratch, mut parents) = (Vec::new(), crate::Parents::default());
    let found = limits.find(key.as_bytes(), &mut scratch).expect("a short key").expect("a limit");
    assert_eq!(found.has_parents(), found.charges_more(), "{key}");
    limits.parents(&found, &mut parents).expect("few parents");
    let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    parents.iter().map(|row| (text(row.key), row.cost.capped(1))).collect()
}

/// Checks that limits without an ended one charge the others, and count what they leave out.
fn check_ended(entries: &[OrderedLimit], mistake: &str, left_out: usize) -> Limits {
    let error = limits(entries).expect_err("it is refused in a change").to_string();
    assert!(error.ends_with(mistake), "{error}");
    let (agree, error) = limits_that_agree(entries.to_vec());
    assert!(error.is_none(), "{error:?}");
    let limits = stored_limits(entries).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((limits.len(), limits.left_out()), (entries.len(), left_out));
    assert!(limits.iter().zip(&agree).all(|(one, other)| one.reads_like(other)));
    limits
}

#[test]
fn parent_that_its_own_child_takes_is_left_out() {
    let parents = "parents = [{ key = 'org:total', cost = 3 }, { key = 'all:1', cost = 2 }]\n";
    let mut entries = stored(&[
        ("total", "org:total", ""),
        ("org", "org:{user}", parents),
        ("all", "all:{x}", ""),
    ]);
    let whole = limits(&entries).expect("all of them agree");
    let rows = |rows: &[(&str, u64)]| -> Vec<(String, u64)> {
        rows.iter().map(|(key, units)| ((*key).to_owned(), *units)).collect()
    };
    assert_eq!(charged(&whole, "org:ann"), rows(&[("org:total", 3), ("all:1", 2)]));
    remove(&mut entries, "total").expect("it is there");
    let ended = check_ended(&entries, "`org:total`: the parent is of this same limit", 1);
    for key in ["org:ann", "org:total"] {
        assert_eq!(charged(&ended, key), rows(&[("all:1", 2)]), "{key}");
    }
    let alone = stored(&[("org", "org:{user}", "parents = ['org:total']\n")]);
    let ended = check_ended(&alone, "`org:total`: the parent is of this same limit", 1);
    assert_eq!(charged(&ended, "org:ann"), []);
    assert!(ended.by_name(b"org").is_some_and(|limit| limit.parent_rules().is_empty()));
}

#[test]
fn parents_that_lead_back_are_left_out() {
    let (to_end, to_user) = ("parents = ['x:1', 'all:end']\n", "parents = ['user:{x}', 'y:1']\n");
    let mut entries = stored(&[
        ("end", "all:end", ""),
        ("user", "user:{x}", to_end),
        ("all", "all:{x}", to_user),
        ("child", "child:{x}", "parents = ['user:{x}']\n"),
        ("x", "x:{x}", ""),
        ("y", "y:{x}", ""),
    ]);
    limits(&entries).expect("all of them agree");
    remove(&mut entries, "end").expect("it is there");
    let mistake = "the parents of `user` lead back to it";
    let ended = check_ended(&entries, mistake, 2);
    let keys = |key| charged(&ended, key).into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    assert_eq!(keys("user:1"), ["x:1"]);
    assert_eq!(keys("all:end"), ["y:1"]);
    assert_eq!(keys("child:1"), ["user:1", "x:1"]);
}

#[test]
fn parents_that_become_too_many_are_left_out() {
    let names: Vec<String> = (0..15).map(|number| format!("'p:{number}'")).collect();
    let all = format!("parents = [{}]\n", names.join(", "));
    let mut entries = stored(&[
        ("end", "all:end", ""),
        ("user", "user:{x}", "parents = ['all:end']\n"),
        ("all", "all:{x}", &all),
        ("p", "p:{x}", ""),
    ]);
    limits(&entries).expect("all of them agree");
    remove(&mut entries, "end").expect("it is there");
    let ended = check_ended(&entries, "with its parents' parents it has more than 15", 1);
    assert_eq!(charged(&ended, "user:1"), []);
    assert_eq!(charged(&ended, "all:1").len(), 15);
}
