//! Tests of files of overrides: lines, bounds, tables that stay, and a naive twin.

use std::fs;
use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

const LIMIT: &str = "[[limit]]\nname = 'a'\nmatch = 'a:{x}'\npolicy = 'fixed:5/s'\n\
                     overrides_file = 'list.txt'\n";

/// A folder with a limits file, and files of overrides.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(limits: &str, list: &[u8]) -> Self {
        let folder = Self(tempfile::tempdir().expect("a directory for a few files"));
        folder.write("limits.toml", limits.as_bytes());
        folder.write("list.txt", list);
        folder
    }

    fn write(&self, name: &str, text: &[u8]) {
        fs::write(self.0.path().join(name), text).expect("the directory is ours");
    }

    fn load(&self) -> Result<Limits, String> {
        let place = self.0.path().join("limits.toml");
        let name = format!("{}/", self.0.path().display());
        Limits::load(&place).map_err(|error| error.to_string().replace(&name, ""))
    }
}

fn policy_of(limits: &Limits, key: &str) -> (String, Option<&'static str>) {
    let mut scratch = Vec::new();
    let found = limits.find(key.as_bytes(), &mut scratch).expect("a short key").expect("a limit");
    (found.policy().to_string(), found.overridden().map(|id| id.source.word()))
}

#[test]
fn relative_path_in_no_file_is_refused() {
    let refused = Limits::parse("limits.toml", LIMIT.as_bytes()).expect_err("no place");
    assert!(refused.to_string().starts_with("limits.toml:5: `overrides_file`: "), "{refused}");
}

#[test]
fn lines_have_keys_policies_and_comments() {
    let list = b"# a list\n\n  a:1 block\r\na:2\tallow  # for good\na:9* fixed:7/s\n\
                 a:10.0.0.0/8 fixed:8/s weight=3 #";
    let limits = Folder::new(LIMIT, list).load().expect("a good file");
    for (key, policy) in
        [("a:1", "block"), ("a:2", "unlimited"), ("a:91", "fixed:7/s"), ("a:10.1.1.1", "fixed:8/s")]
    {
        assert_eq!(policy_of(&limits, key), (policy.to_owned(), Some("file")), "{key}");
    }
    assert_eq!(policy_of(&limits, "a:3"), ("fixed:5/s".to_owned(), None));
    for (key, weight) in [("a:1", 1), ("a:10.1.1.1", 3), ("a:3", 1)] {
        let mut scratch = Vec::new();
        let found = limits.find(key.as_bytes(), &mut scratch).expect("short").expect("a limit");
        assert_eq!((found.weight(), found.charges_more()), (weight, true), "{key}");
    }
    let limit = limits.by_name(b"a").expect("a limit");
    assert_eq!(limit.override_table_len(OverrideSource::File), 4);
    assert!(Folder::new(LIMIT, b"").load().is_ok(), "no override is fine");
}

#[test]
fn bad_line_is_named_and_not_cited() {
    let limits = format!("[[limit]]\nname = 'v'\nmatch = 'a:vip'\npolicy = 'block'\n{LIMIT}");
    let long = [&b"a:"[..], &[b'x'; 249], b" allow"].concat();
    for (line, reason) in [
        (&b"a:1"[..], "a line is a key or a network, and its policy, `allow` or `block`"),
        (b"a:1 # allow", "a line is a key or a network, and its policy, `allow` or `block`"),
        (b"a:1 allow block", "a line is a key or a network, and its policy, `allow` or `block`"),
        (b"a:\xff allow", "it is not UTF-8"),
        (b"b:1 allow", "it cannot match: the limit counts no such key"),
        (b"b:* allow", "it cannot match: the limit counts no such key"),
        (b"a:vip allow", "it cannot match: `v` takes that key"),
        (b"a:0 block", "there is an override of it already"),
        (b"a:p* block", "there is an override of it already"),
        (b"a:10.0.0.0/08 block", "there is an override of it already"),
        (b"a:10.0.0.1/8 block", "10.0.0.1 has bits set behind the first 8: write 10.0.0.0/8"),
        (b"a:1 allow weight=0", "a weight is weight= and a number from 1 to 9007199254740991"),
        (
            b"a:1 allow weight=2 3",
            "a line is a key or a network, and its policy, `allow` or `block`",
        ),
        (&long, "it cannot match: the limit counts no such key"),
        (&[b'#'; LINE_BYTES_MAX + 1], "a line has at most 1024 bytes"),
    ] {
        let list = [b"a:0 allow\na:p* allow\na:10.0.0.0/8 allow\n#\n", line, b"\n"].concat();
        let error = Folder::new(&limits, &list).load().expect_err("a mistake");
        assert_eq!(error, format!("list.txt:5: {reason}"));
    }
    let error = Folder::new(LIMIT, b"a:1 fixed:secret").load().expect_err("a mistake");
    assert!(error.starts_with("list.txt:1: bad policy") && !error.contains("secret"), "{error}");
    let most = [b'#'; LINE_BYTES_MAX];
    assert!(Folder::new(LIMIT, &most).load().is_ok());
}

#[test]
fn file_that_cannot_be_read_is_refused() {
    let folder = Folder::new(LIMIT, b"");
    fs::remove_file(folder.0.path().join("list.txt")).expect("it is there");
    let error = folder.load().expect_err("no file");
    assert!(error.starts_with("cannot read list.txt: "), "{error}");
    folder.write("list.txt", b"");
    let list = fs::OpenOptions::new().write(true).open(folder.0.path().join("list.txt"));
    let list = list.expect("it is there");
    list.set_len(ONE_BYTES_MAX + 1).expect("a hole needs no room");
    let error = folder.load().expect_err("it is too large");
    assert_eq!(error, format!("cannot read list.txt: it has more than {ONE_BYTES_MAX} bytes"));
}

#[test]
fn files_and_their_overrides_are_bounded() {
    let lines = (0..=FILE_OVERRIDES_MAX).map(|n| format!("a:{n} allow\n"));
    let lines = lines.collect::<Vec<_>>().concat();
    let last = lines.trim_end().rfind('\n').expect("many lines");
    let folder = Folder::new(LIMIT, &lines.as_bytes()[..=last]);
    let limits = folder.load().expect("as many as may be");
    let limit = limits.by_name(b"a").expect("a limit");
    assert_eq!(limit.override_table_len(OverrideSource::File), FILE_OVERRIDES_MAX);
    folder.write("list.txt", lines.as_bytes());
    let error = folder.load().expect_err("one too many");
    assert_eq!(error, "list.txt:1000001: a file has at most 1000000 overrides");

    let mut limits: String = (0..=FILES_MAX)
        .map(|n| LIMIT.replace("'a'", &format!("'{n}'")).replace("a:", &format!("{n}:")))
        .collect();
    folder.write("list.txt", b"");
    folder.write("limits.toml", limits.as_bytes());
    let error = folder.load().expect_err("one too many");
    let line = FILES_MAX * 5 + 5;
    assert_eq!(error, format!("limits.toml:{line}: at most 256 limits have an `overrides_file`"));
    limits.truncate(limits.rfind("overrides_file").expect("many"));
    folder.write("limits.toml", limits.as_bytes());
    assert!(folder.load().is_ok());
}

#[test]
fn all_files_together_are_bounded() {
    let count = ALL_BYTES_MAX / ONE_BYTES_MAX;
    let limits: String = (0..=count)
        .map(|n| LIMIT.replace("'a'", &format!("'{n}'")).replace("a:", &format!("{n}:")))
        .collect();
    let folder = Folder::new(&limits, b"");
    let mut limits = folder.load().expect("files without overrides");
    for index in 0..limits.len() {
        let mut mark = FileMark::of(&folder.0.path().join("list.txt")).expect("it is there");
        mark.bytes = ONE_BYTES_MAX - 1;
        let table = OverrideTableBuilder::default().build_of_file(Some(mark));
        limits.limits[index].set_table(OverrideSource::File, Some(table));
    }
    folder.write("list.txt", b"#####");
    let read = |limits: &Limits| limits.read_override_file(&limits.limits[0]).0.map(drop);
    let error = read(&limits).expect_err("too much").to_string();
    assert!(error.contains("with it all files of overrides have 268435457 bytes"), "{error}");
    folder.write("list.txt", b"####");
    assert!(read(&limits).is_ok());
}

#[test]
fn tables_stay_with_limits_that_stay() {
    let folder = Folder::new(LIMIT, b"a:1 allow\n");
    let before = folder.load().expect("a good file");
    let table = |limits: &Limits| limits.limits[0].table(OverrideSource::File).cloned();
    let reload = |text: &str| {
        folder.write("limits.toml", text.as_bytes());
        let place = folder.0.path().join("limits.toml");
        let text = fs::read(&place).expect("it is there");
        let file = super::super::file::File::new("l", &text).at(&place);
        let (mut limits, _) = Limits::compile(&file, &text).expect("good limits");
        let read = limits.read_override_files(&before);
        read.map(|()| limits).map_err(|error| error.to_string())
    };
    // Nothing is read again while the limit is the same.
    folder.write("list.txt", b"no override\n");
    let same = reload(&LIMIT.replace("fixed:5/s", "fixed:6/s")).expect("the table of before");
    let is_same = table(&same).zip(table(&before)).is_some_and(|(a, b)| Arc::ptr_eq(&a, &b));
    assert!(is_same);
    for other in ["fixed:5/s,over", "fixed:5/s,shadow"] {
        assert!(reload(&LIMIT.replace("fixed:5/s", other)).is_err(), "{other}: other policies");
    }
    assert!(reload(&LIMIT.replace("a:{x}", "a:{x:digits}")).is_err(), "other keys");
    // A limit that comes first may not take a key of the table.
    let first = "[[limit]]\nname = 'f'\nmatch = 'a:?'\npolicy = 'block'\n";
    let error = reload(&format!("{first}{LIMIT}")).expect_err("it takes a:1");
    assert!(error.ends_with("list.txt: `a:1` cannot match: `f` takes that key"), "{error}");
    assert!(reload(&format!("{}{LIMIT}", first.replace("a:?", "a:2?"))).is_ok());

    // Limits in force keep their table, even beside a bad file; others go without.
    let mut next = same.clone();
    next.limits[0].set_table(OverrideSource::File, None);
    assert!(next.give_override_files(&before).is_empty());
    assert!(table(&next).is_some());
    next.limits[0].set_table(OverrideSource::File, None);
    let reads = next.give_override_files(&Limits::default());
    assert!(reads.len() == 1 && reads[0].fault.is_some() && reads[0].mark.is_some(), "{reads:?}");
    assert!(table(&next).is_none());
}

/// A line of a file, in three forms.
#[derive(Debug, Clone)]
struct TwinLine {
    literal: &'static str,
    address: IpAddr,
    form: usize,
    policy: &'static str,
}

impl TwinLine {
    fn key(&self) -> String {
        let Self { literal, address, form, .. } = self;
        match form {
            0 => format!("{literal}{address}"),
            1 => {
                let text = format!("{literal}{address}");
                format!("{}*", &text[..text.len() - 1])
            }
            _ => {
                let bits = [8, 16, 32][form - 2];
                let IpAddr::V4(address) = address else { return format!("{literal}{address}/128") };
                let whole = address.to_bits() & (u32::MAX << (32 - bits));
                format!("{literal}{}/{bits}", std::net::Ipv4Addr::from_bits(whole))
            }
        }
    }
}

/// Tries every line of every list, best form first.
fn naive(lists: [&[(String, &'static str)]; 3], key: &str) -> Option<(usize, &'static str)> {
    let rank = |pattern: &str| {
        if let Some(prefix) = pattern.strip_suffix('*') {
            return key.starts_with(prefix).then_some((1, prefix.len()));
        }
        let Some((network, bits)) = pattern.split_once('/') else {
            return (pattern == key).then_some((2, 0));
        };
        let (literal, network) = network.split_at(2);
        let bits: u32 = bits.parse().ok()?;
        let (network, address): (IpAddr, IpAddr) =
            (network.parse().ok()?, key.strip_prefix(literal)?.parse().ok()?);
        let is_in = match (network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                (network.to_bits() ^ address.to_bits()) >> (32 - bits) == 0
            }
            _ => network == address,
        };
        is_in.then_some((0, bits as usize))
    };
    lists.into_iter().enumerate().find_map(|(source, list)| {
        let ranked = list.iter().filter_map(|(pattern, policy)| Some((rank(pattern)?, policy)));
        ranked.max_by_key(|(rank, _)| *rank).map(|(_, policy)| (source, *policy))
    })
}

fn twin_line() -> impl Strategy<Value = TwinLine> {
    let address = prop_oneof![
        4 => (0..3_u32, 0..3_u32, 0..3_u32).prop_map(|(a, b, c)| {
            IpAddr::from(std::net::Ipv4Addr::from_bits(a << 24 | b << 16 | c))
        }),
        1 => (0..3_u128).prop_map(|a| IpAddr::from(std::net::Ipv6Addr::from_bits(a << 64 | 7))),
    ];
    let policies = vec!["block", "allow", "fixed:1/s", "fixed:2/s"];
    (select(vec!["a:", "b:"]), address, 0..5_usize, select(policies))
        .prop_map(|(literal, address, form, policy)| TwinLine { literal, address, form, policy })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn the_twin_finds_the_same_line(
        lines in vec((twin_line(), 0..3_usize), 1..60),
        keys in vec(twin_line(), 1..60),
    ) {
        let mut lists: [Vec<(String, &'static str)>; 3] = Default::default();
        for (line, source) in &lines {
            let key = line.key();
            if lists[*source].iter().all(|(other, _)| *other != key) {
                lists[*source].push((key, line.policy));
            }
        }
        let file = lists[2].iter().map(|(key, policy)| format!("{key}  {policy}\n# {key}\n"));
        let file = file.collect::<Vec<_>>().concat();
        let inline = |(key, policy): &(String, &str)| {
            let policy = if *policy == "allow" { "unlimited" } else { policy };
            format!("{{ key = '{key}', policy = '{policy}' }}, ")
        };
        let inline: String = lists[1].iter().map(inline).collect();
        let limit = format!(
            "[[limit]]\nname = 'a'\nregex = '(a|b):.+'\npolicy = 'fixed:9/s'\n\
             overrides_file = 'list.txt'\noverrides = [{inline}]\n"
        );
        let mut limits = match Folder::new(&limit, file.as_bytes()).load() {
            Ok(limits) => limits,
            Err(error) => panic!("{error}\n{file}"),
        };
        let rows = lists[0].iter().map(|(key, policy)| {
            (key.as_str(), (parse_policy(policy).expect("a policy"), None))
        });
        prop_assert_eq!(limits.set_overrides("a", OverrideSource::Api, rows), []);
        for key in keys {
            let key = format!("{}{}", key.literal, key.address);
            let expected = naive([&lists[0], &lists[1], &lists[2]], &key).map_or(
                ("fixed:9/s".to_owned(), None),
                |(source, policy)| {
                    let policy = if policy == "allow" { "unlimited" } else { policy };
                    (policy.to_owned(), Some(["api", "inline", "file"][source]))
                },
            );
            prop_assert_eq!(policy_of(&limits, &key), expected, "{}", key);
        }
    }
}
