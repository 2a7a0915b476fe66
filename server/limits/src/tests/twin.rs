//! A naive twin: tries every limit in file order, with a matcher that only backtracks.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::networks::Network;
use super::super::override_id::OverrideSource;
use super::super::overrides::{OverrideKeys, OverrideTableBuilder, Overrides};
use super::*;

/// One element of a pattern.
#[derive(Debug, Clone)]
enum Letter {
    Byte(u8),
    One,
    Any,
    /// A capture of this class.
    Capture(&'static str),
}

impl Letter {
    fn takes(&self, text: &[u8]) -> bool {
        match self {
            Self::Byte(byte) => text == [*byte],
            Self::One => text.len() == 1,
            Self::Capture(_) if text.is_empty() => false,
            Self::Capture("digits") => text.iter().all(u8::is_ascii_digit),
            Self::Capture("hex") => text.iter().all(u8::is_ascii_hexdigit),
            Self::Capture("alnum") => text.iter().all(u8::is_ascii_alphanumeric),
            Self::Capture("ip") => {
                String::from_utf8_lossy(text).parse::<std::net::IpAddr>().is_ok()
            }
            Self::Any | Self::Capture(_) => true,
        }
    }
}

/// The pattern as text, and a template of all its captures.
fn written(pattern: &[Letter]) -> (String, String) {
    let (mut text, mut template) = (String::new(), String::from("k"));
    for (at, letter) in pattern.iter().enumerate() {
        match letter {
            Letter::Byte(byte) => text.push(char::from(*byte)),
            Letter::One => text.push('?'),
            Letter::Any => text.push('*'),
            Letter::Capture(class) => {
                let class = prefixed(class);
                text.extend(["{c", &at.to_string(), &class, "}"]);
                template.extend(["/{c", &at.to_string(), "}"]);
            }
        }
    }
    (text, template)
}

fn prefixed(class: &str) -> String {
    if class.is_empty() { String::new() } else { format!(":{class}") }
}

/// The text of each capture: the shortest that allow a match, earlier captures first.
fn matched<'k>(pattern: &[Letter], key: &'k [u8]) -> Option<Vec<&'k [u8]>> {
    let Some((letter, others)) = pattern.split_first() else {
        return key.is_empty().then(Vec::new);
    };
    (0..=key.len()).find_map(|len| {
        let (text, rest) = key.split_at(len);
        let mut captures = letter.takes(text).then(|| matched(others, rest)).flatten()?;
        if matches!(letter, Letter::Capture(_)) {
            captures.insert(0, text);
        }
        Some(captures)
    })
}

/// A key that the pattern mostly matches: its variables are filled with `texts` in turn.
fn filled(pattern: &[Letter], texts: &[String]) -> Vec<u8> {
    let mut texts = texts.iter().cycle();
    let letter = |letter: &Letter| match letter {
        Letter::Byte(byte) => vec![*byte],
        Letter::One => b"z".to_vec(),
        _ => texts.next().map_or_else(Vec::new, |text| text.clone().into_bytes()),
    };
    pattern.iter().flat_map(letter).collect()
}

fn letter() -> impl Strategy<Value = Letter> {
    prop_oneof![
        6 => select(&b"ab:1"[..]).prop_map(Letter::Byte),
        1 => Just(Letter::One),
        1 => Just(Letter::Any),
        3 => select(vec!["", "", "digits", "hex", "alnum", "ip"]).prop_map(Letter::Capture),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[ab:1]{0,6}", Just("::1".to_owned()), Just("1.1.1.1".to_owned())]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn the_twin_finds_the_same_limit_and_captures(
        patterns in vec(vec(letter(), 1..8), 1..40),
        texts in vec(text(), 1..6),
        keys in vec("[ab:1]{1,12}", 0..40),
        shared in "(ab:)?",
    ) {
        let shared: Vec<_> = shared.bytes().map(Letter::Byte).collect();
        let patterns = patterns.into_iter().map(|pattern| [&shared[..], &pattern].concat());
        let patterns: Vec<_> = patterns
            .filter(|pattern| super::super::pattern::Glob::parse(&written(pattern).0).is_ok())
            .collect();
        // A limit that is refused as never reached is left out; the twin keeps it.
        let mut left: Vec<usize> = (0..patterns.len()).collect();
        let limits = loop {
            let entry = |at: &usize| {
                let (text, key) = written(&patterns[*at]);
                format!("[[limit]]\nname='{at}'\nmatch='{text}'\nkey='{key}'\npolicy='block'\n")
            };
            let file: String = left.iter().map(entry).collect();
            match Limits::parse("", file.as_bytes()) {
                Ok(limits) => break limits,
                Err(LimitsError::Refused { line, reason, .. }) => {
                    prop_assert!(reason.starts_with("never reached"), "{reason}\n{file}");
                    left.remove((line - 1) / 5);
                }
                Err(error) => panic!("{error}"),
            }
        };
        let keys = keys.into_iter().map(String::into_bytes);
        let mut scratch = Vec::new();
        for key in keys.chain(patterns.iter().map(|pattern| filled(pattern, &texts))) {
            let naive = (!key.is_empty()).then(|| {
                let mut all = patterns.iter().enumerate();
                all.find_map(|(at, pattern)| Some((at, matched(pattern, &key)?)))
            });
            let naive = naive.flatten().map(|(at, captures)| {
                let counted: Vec<_> = [&b"k"[..]].into_iter().chain(captures).collect();
                (at.to_string(), counted.join(&b'/'))
            });
            let found = limits.find(&key, &mut scratch).expect("short keys");
            let found = found.map(|found| (found.limit().name().to_owned(), found.key().to_vec()));
            prop_assert_eq!(found, naive, "{:?}", String::from_utf8_lossy(&key));
        }
    }

    #[test]
    fn whatever_a_file_says_nothing_panics(
        patterns in vec(r"(login:)?[ab1:{}*?.\\/é^()|+~-]{0,10}", 1..4),
        key in r"[ab1:{}*?\\]{0,8}",
        parent in r"[ab1:{}\\]{0,6}",
        overridden in r"(login:)?[ab1:.*é]{0,8}(/[0-9]{1,3})?",
        looked_up in "(login:)?[ab1:é.]{0,9}(#info)?",
    ) {
        let mut lines = Vec::new();
        for (at, pattern) in patterns.iter().enumerate() {
            let field = if pattern.contains('^') { "regex" } else { "match" };
            lines.extend([
                "[[limit]]".to_owned(),
                format!("name='{at}'"),
                format!("{field}='{pattern}'"),
                "policy='block'".to_owned(),
                "companions=['#info']".to_owned(),
                format!("key='{key}'"),
                format!("parents=['{parent}']"),
                format!("overrides=[{{key='{overridden}',policy='unlimited'}}]"),
            ]);
        }
        // Most files are refused; with fewer fields more are valid.
        for without in ["none", "key=", "parents=", "overrides="] {
            lines.retain(|line| !line.starts_with(without));
            let file = lines.join("\n");
            if let Ok(limits) = Limits::parse("", file.as_bytes()) {
                let (mut scratch, mut parents) = (Vec::new(), Parents::default());
                if let Ok(Some(found)) = limits.find(looked_up.as_bytes(), &mut scratch) {
                    let _ = limits.parents(&found, &mut parents);
                }
            }
        }
    }

    #[test]
    fn the_twin_finds_the_same_override(
        overrides in vec(override_key(), 1..40),
        keys in vec((select(vec!["", "l:", "a", "a:"]), address()), 1..40),
    ) {
        let policy = Policy::parse(b"block").expect("a policy");
        let mut distinct = Vec::<TwinKeys>::new();
        let mut table = OverrideTableBuilder::default();
        for keys in overrides {
            let is_new = !distinct.contains(&keys);
            prop_assert_eq!(table.push(&keys.text(), keys.parts(), (policy, None)), is_new, "{:?}", keys);
            if is_new {
                distinct.push(keys);
            }
        }
        let mut clever = Overrides::default();
        clever.set(OverrideSource::Api, table.build());
        for (literal, address) in keys {
            let key = format!("{literal}{address}");
            let found = clever.find(key.as_bytes()).map(|(id, _)| id.index as usize);
            prop_assert_eq!(found, naive_override(&distinct, key.as_bytes()), "{}", key);
        }
    }
}

/// The keys of one override.
#[derive(Debug, Clone, PartialEq)]
enum TwinKeys {
    Exact(String),
    Prefix(String),
    Network(String, Network),
}

impl TwinKeys {
    fn text(&self) -> String {
        match self {
            Self::Exact(key) => key.clone(),
            Self::Prefix(prefix) => format!("{prefix}*"),
            Self::Network(literal, Network { address, bits }) => {
                format!("{literal}{address}/{bits}")
            }
        }
    }

    fn parts(&self) -> OverrideKeys<'_> {
        match self {
            Self::Exact(key) => OverrideKeys::Exact(key),
            Self::Prefix(prefix) => OverrideKeys::Prefix(prefix),
            Self::Network(literal, network) => OverrideKeys::Network(literal, *network),
        }
    }
}

fn address() -> impl Strategy<Value = String> {
    prop_oneof![
        (0..4_u32, 0..4_u32).prop_map(|(high, low)| {
            std::net::Ipv4Addr::from_bits(high << 30 | low).to_string()
        }),
        (0..4_u128, 0..4_u128).prop_map(|(high, low)| {
            std::net::Ipv6Addr::from_bits(high << 126 | low).to_string()
        }),
    ]
}

fn override_key() -> impl Strategy<Value = TwinKeys> {
    let literal = || select(vec!["", "l:", "a:"]);
    let network = |(literal, address, bits): (&str, String, u8)| {
        let network = |bits: u8| Network::parse(&format!("{address}/{bits}"));
        let whole = network(bits).filter(|network| network.is_whole());
        let network = whole.or_else(|| network(32)).filter(|network| network.is_whole());
        let network = network.or_else(|| Network::parse(&format!("{address}/128")));
        TwinKeys::Network(literal.into(), network.expect("an address is a network of one"))
    };
    let bits = select(vec![0_u8, 1, 2, 30, 31, 32, 126, 127, 128]);
    prop_oneof![
        (literal(), address()).prop_map(|(l, address)| TwinKeys::Exact(format!("{l}{address}"))),
        (literal(), address(), 0..6_usize).prop_map(|(l, address, len)| {
            let text = format!("{l}{address}");
            TwinKeys::Prefix(text[..len.min(text.len())].into())
        }),
        (literal(), address(), bits).prop_map(network),
    ]
}

fn naive_override(all: &[TwinKeys], key: &[u8]) -> Option<usize> {
    let rank = |keys: &TwinKeys| match keys {
        TwinKeys::Exact(exact) => (exact.as_bytes() == key).then_some((2, exact.len(), 0)),
        TwinKeys::Prefix(prefix) => {
            key.starts_with(prefix.as_bytes()).then_some((1, prefix.len(), 0))
        }
        TwinKeys::Network(literal, network) => {
            let address = str::from_utf8(key.strip_prefix(literal.as_bytes())?).ok()?;
            let address: std::net::IpAddr = address.parse().ok()?;
            let masked = Network::parse(&format!("{address}/{}", network.bits))?;
            let same = match (masked.address.to_canonical(), network.address) {
                (std::net::IpAddr::V4(one), std::net::IpAddr::V4(other)) => {
                    leading(one.to_bits().into(), 32, network.bits)
                        == leading(other.to_bits().into(), 32, network.bits)
                }
                (std::net::IpAddr::V6(one), std::net::IpAddr::V6(other)) => {
                    leading(one.to_bits(), 128, network.bits)
                        == leading(other.to_bits(), 128, network.bits)
                }
                _ => false,
            };
            same.then_some((0, literal.len(), network.bits))
        }
    };
    let ranked = all.iter().enumerate().filter_map(|(at, keys)| Some((rank(keys)?, at)));
    ranked.max().map(|(_, at)| at)
}

/// The leading bits of an address of `width` bits.
fn leading(address: u128, width: u32, bits: u8) -> u128 {
    address.checked_shr(width - u32::from(bits)).unwrap_or(0)
}
