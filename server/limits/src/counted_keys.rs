//! The keys that a limit counts, and the keys of its overrides.
//!
//! Here: reading the key of an override, and whether it can match. Not here: the overrides of a
//! request's key (`overrides`), the other rules (`rules`).

use protocol::KEY_BYTES_MAX;

use super::Limit;
use super::capture::{CaptureClass, cut, ip};
use super::networks::Network;
use super::overrides::OverrideKeys;
use super::pattern::{Captures, Glob, Pattern, VARIABLES_MAX};
use super::regex::Regex;
use super::shape::{Bytes, Shape};
use super::where_rules::{bad_prefix, network_in};

/// The reason against a key that the limit does not count.
const CANNOT: &str = "it cannot match: the limit counts no such key";

/// The keys that a limit counts, for deciding whether an override can match.
pub(super) struct CountedKeys<'l> {
    shape: Shape,
    /// The counted keys as a glob, if possible; its last capture locates the address of a network.
    glob: Option<Glob>,
    regex: Option<&'l Regex>,
    prefix_len: usize,
    limit: &'l Limit,
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
        Self { shape, glob, regex, prefix_len: first, limit }
    }

    /// Parses and checks the key of an override.
    pub(super) fn keys<'t>(&self, text: &'t str) -> Result<OverrideKeys<'t>, String> {
        if text.is_empty() || text.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
            return Err("a key is not empty and has neither blanks nor control bytes".into());
        }
        if text.len() > KEY_BYTES_MAX + "*".len() + "/128".len() {
            return Err(format!("a key has at most {KEY_BYTES_MAX} bytes"));
        }
        if self.limit.is_fallback {
            return Err("it cannot match: the limit is a fallback, whose keys are plain".into());
        }
        let cannot = CANNOT;
        if let Some(prefix) = text.strip_suffix('*') {
            let mut shape = Shape::default();
            shape.text(prefix.as_bytes());
            shape.many(Bytes::of(|_| true));
            let fits = prefix.len() <= KEY_BYTES_MAX && shape.meets(&self.shape);
            return if fits { Ok(OverrideKeys::Prefix(prefix)) } else { Err(cannot.into()) };
        }
        if let Some((at, network)) = self.network(text) {
            network.check()?;
            self.check_size(network)?;
            let (literal, _) = text.split_at(at);
            let fits = around(literal.as_bytes(), network).meets(&self.shape);
            return if fits {
                Ok(OverrideKeys::Network(literal, network))
            } else {
                Err(cannot.into())
            };
        }
        self.check_exact(text).map(|()| OverrideKeys::Exact(text))
    }

    /// Checks that the limit counts this key.
    fn check_exact(&self, text: &str) -> Result<(), String> {
        self.check_form(text)?;
        let key = text.as_bytes();
        let captures = &mut Captures::default();
        let fits = key.len() <= KEY_BYTES_MAX
            && match (&self.glob, &self.regex) {
                (Some(glob), _) => glob.matches(key, captures),
                (None, Some(regex)) => regex.matches(key, captures),
                (None, None) => Shape::of_glob(&Glob::literal(key)).meets(&self.shape),
            };
        if !fits {
            return Err(self.other_class(key).unwrap_or_else(|| CANNOT.to_owned()));
        }
        let Some(glob) = &self.glob else { return Ok(()) };
        for step in &glob.steps {
            let CaptureClass::Net(bits) = step.class else { continue };
            let written = captures.get(key, step.slot);
            let counted = ip(written).map(|address| cut(address, bits).to_string());
            if let Some(counted) = counted.filter(|counted| counted.as_bytes() != written) {
                return Err(format!("it cannot match: the limit counts that address as {counted}"));
            }
        }
        Ok(())
    }

    /// Refuses the forms that have a meaning elsewhere, and none in a whole key: globs, captures,
    /// networks before another part, networks with a bad prefix.
    fn check_form(&self, text: &str) -> Result<(), String> {
        if text.contains('*') && !self.has_literal(b'*') {
            let other = "for a part before the end write `where = { … }`";
            return Err(format!("`*` stands at the end of a key only: {other}"));
        }
        let is_capture = |part: &str| {
            let name = part.split_once('}').map(|(name, _)| name);
            name.is_some_and(|name| {
                let name = name.split(':').next().unwrap_or_default();
                let names = self.limit.pattern.capture_names(&self.limit.text);
                names.iter().any(|known| known == name)
            })
        };
        if !self.has_literal(b'{') && text.split('{').skip(1).any(is_capture) {
            return Err("a key has no captures: write `where = { … }`".to_owned());
        }
        match network_in(text) {
            _ if self.glob.as_ref().is_some_and(|glob| glob.steps.is_empty()) => Ok(()),
            Some((word, true)) => Err(bad_prefix(word)),
            Some((word, false)) => {
                let other = "write `where = { … }` for a part before it";
                Err(format!("the network `{word}` stands at the end of a key only: {other}"))
            }
            None => Ok(()),
        }
    }

    /// Whether the counted keys have the literal `byte`.
    fn has_literal(&self, byte: u8) -> bool {
        if let Some(key) = &self.limit.key
            && key.slots().is_some()
        {
            return key.has_byte(byte);
        }
        match &self.limit.pattern {
            Pattern::Glob(glob) => {
                let then = glob.steps.iter().map(|step| &step.then);
                then.chain([&glob.first]).any(|chunk| chunk.bytes.contains(&Some(byte)))
            }
            Pattern::Regex(regex) => regex.text().contains(&format!("\\{}", char::from(byte))),
        }
    }

    /// Refuses a network that is smaller than those that the limit counts.
    fn check_size(&self, network: Network) -> Result<(), String> {
        let last = self.glob.as_ref().and_then(|glob| glob.steps.last());
        match last.map(|step| step.class) {
            Some(CaptureClass::Net(bits)) if network.address.is_ipv6() && network.bits > bits => {
                let whole = Network { bits, ..network }.whole();
                Err(format!("the limit counts networks of {bits} bits: write {whole}"))
            }
            _ => Ok(()),
        }
    }

    /// The reason, if the key has the literals of the limit, and a capture refuses its text.
    fn other_class(&self, key: &[u8]) -> Option<String> {
        let glob = self.glob.as_ref()?;
        let mut any = glob.clone();
        any.steps.iter_mut().for_each(|step| step.class = CaptureClass::Any);
        let any = Glob::new(any.first, any.steps);
        let mut captures = Captures::default();
        if !any.matches(key, &mut captures) {
            return None;
        }
        let step = glob.steps.iter().find(|step| {
            usize::from(step.slot) < VARIABLES_MAX
                && !step.class.takes(captures.get(key, step.slot))
        })?;
        let text = String::from_utf8_lossy(captures.get(key, step.slot)).into_owned();
        let class = step.class.described();
        Some(format!("{CANNOT}: it captures {class}, and `{text}` is none"))
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
