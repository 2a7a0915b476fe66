//! The keys that a limit counts, and the keys of its overrides.
//!
//! Here: reading the key of an override, and whether it can match. Not here: the overrides of a
//! request's key (`overrides`), the other rules (`rules`).

use protocol::KEY_BYTES_MAX;

use super::Limit;
use super::networks::Network;
use super::overrides::OverrideKeys;
use super::pattern::{CaptureClass, Captures, Glob, Pattern, VARIABLES_MAX};
use super::regex::Regex;
use super::shape::{Bytes, Shape};

/// The keys that a limit counts, for deciding whether an override can match.
pub(super) struct CountedKeys<'l> {
    shape: Shape,
    /// The counted keys as a glob, if possible; its last capture locates the address of a network.
    glob: Option<Glob>,
    regex: Option<&'l Regex>,
    prefix_len: usize,
}

impl<'l> CountedKeys<'l> {
    pub(super) fn of(limit: &'l Limit) -> Self {
        let (shape, glob) = match (&limit.key, &limit.pattern) {
            (Some(key), pattern) => (key.shape(pattern), key.glob(pattern)),
            (None, pattern @ Pattern::Glob(glob)) => (Shape::of(pattern), Some(glob.clone())),
            (None, pattern) => (Shape::of(pattern), None),
        };
        let regex = match (&limit.key, &limit.pattern) {
            (None, Pattern::Regex(regex)) => Some(&**regex),
            _ => None,
        };
        let first = glob.as_ref().map_or(0, |glob| glob.first.bytes.len());
        Self { shape, glob, regex, prefix_len: first }
    }

    /// Parses and checks the key of an override.
    pub(super) fn keys<'t>(&self, text: &'t str) -> Result<OverrideKeys<'t>, String> {
        if text.is_empty() || text.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
            return Err("a key is not empty and has neither blanks nor control bytes".into());
        }
        if text.len() > KEY_BYTES_MAX + "*".len() + "/128".len() {
            return Err(format!("a key has at most {KEY_BYTES_MAX} bytes"));
        }
        let cannot = "it cannot match: the limit counts no such key";
        if let Some(prefix) = text.strip_suffix('*') {
            let mut shape = Shape::default();
            shape.text(prefix.as_bytes());
            shape.many(Bytes::of(|_| true));
            let fits = prefix.len() <= KEY_BYTES_MAX && shape.meets(&self.shape);
            return if fits { Ok(OverrideKeys::Prefix(prefix)) } else { Err(cannot.into()) };
        }
        if let Some((at, network)) = self.network(text) {
            if !network.is_whole() {
                let bits = network.bits;
                return Err(format!("{} has bits set behind the first {bits}", network.address));
            }
            let (literal, _) = text.split_at(at);
            let fits = around(literal.as_bytes(), network).meets(&self.shape);
            return if fits {
                Ok(OverrideKeys::Network(literal, network))
            } else {
                Err(cannot.into())
            };
        }
        let key = text.as_bytes();
        let captures = &mut Captures::default();
        let fits = key.len() <= KEY_BYTES_MAX
            && match (&self.glob, &self.regex) {
                (Some(glob), _) => glob.matches(key, captures),
                (None, Some(regex)) => regex.matches(key, captures),
                (None, None) => Shape::of_glob(&Glob::literal(key)).meets(&self.shape),
            };
        if fits { Ok(OverrideKeys::Exact(text)) } else { Err(cannot.into()) }
    }

    /// The network at the end of an override's key and the offset where it begins, if there is one.
    ///
    /// `beef:2001:db8::/32` has two candidates: the start, and the position after `beef:`. Prefer
    /// the position of the pattern's last capture, else the first position after the pattern's
    /// leading literal.
    fn network(&self, text: &str) -> Option<(usize, Network)> {
        if !text.contains('/') {
            return None;
        }
        let starts = (0..text.len()).filter(|at| text.is_char_boundary(*at));
        let all: Vec<_> =
            starts.filter_map(|at| Some((at, Network::parse(&text[at..])?))).collect();
        let captured = |(at, network): &&(usize, Network)| {
            let key = format!("{}{}", &text[..*at], network.address);
            let glob = self.glob.as_ref()?;
            let last = glob.steps.last().filter(|step| step.then.bytes.is_empty())?;
            let mut captures = Captures::default();
            let kept = usize::from(last.slot) < VARIABLES_MAX;
            let matches = kept && glob.matches(key.as_bytes(), &mut captures);
            (matches && captures.span(last.slot).0 == *at).then_some(())
        };
        let found = all.iter().find(|one| captured(one).is_some());
        let found = found.or_else(|| all.iter().find(|(at, _)| *at >= self.prefix_len));
        found.or(all.first()).copied()
    }
}

/// The keys that end with an address of `network`.
fn around(literal: &[u8], network: Network) -> Shape {
    let mut shape = Shape::default();
    shape.text(literal);
    let digits = Bytes::of(|byte| byte.is_ascii_digit());
    let hex = Bytes::of(|byte| CaptureClass::Ip.has(byte));
    if network.address.is_ipv4() {
        for part in 0..4 {
            if part > 0 {
                shape.text(b".");
            }
            shape.one(digits);
            shape.many(digits);
        }
    } else {
        shape.many(hex);
        shape.text(b":");
        shape.many(hex);
    }
    shape
}
