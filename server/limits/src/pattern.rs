//! Patterns: they select the keys of a limit, and capture parts of a key.
//!
//! Here: globs. `login:{ip}`: a capture takes at least one byte and as few as allow a match, so it
//! ends before the next literal. `{x:digits}`, `{x:alnum}` and `{x:hex}` take only such bytes,
//! `{x:ip}` takes a whole address, `{x:ip/64}` too, and counts by its network. `{x:any}` is the
//! last part of a pattern and takes the rest. `*` takes any number of bytes, `?` one byte, and `\`
//! makes the next byte a literal. A literal must separate captures and `*`, so that the end of each
//! is unambiguous. A pattern matches the whole key. Not here: the types of captures (`capture`),
//! regexes (`regex`), choosing the limits to test (`index`).

use std::sync::Arc;

use protocol::KEY_BYTES_MAX;

use super::capture::{CaptureClass, REST};
use super::regex::Regex;

/// Maximum number of captures and `*` in one pattern.
pub(super) const VARIABLES_MAX: usize = 16;

/// Slot of a `*`: its bytes are not kept.
const NO_SLOT: u8 = u8::MAX;

/// Start and end of each capture in the key, by slot. A key has at most 250 bytes, so a byte
/// suffices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Captures([(u8, u8); VARIABLES_MAX]);

impl Captures {
    #[inline]
    pub(super) fn get<'k>(&self, key: &'k [u8], slot: u8) -> &'k [u8] {
        let Some((start, end)) = self.0.get(usize::from(slot)) else { return &[] };
        key.get(usize::from(*start)..usize::from(*end)).unwrap_or_default()
    }

    #[inline]
    pub(super) fn set(&mut self, slot: u8, start: usize, end: usize) {
        if let Some(span) = self.0.get_mut(usize::from(slot)) {
            *span = (start as u8, end as u8);
        }
    }

    /// Start and end of the capture `slot`.
    pub(super) fn span(&self, slot: u8) -> (usize, usize) {
        let (start, end) = self.0[usize::from(slot)];
        (usize::from(start), usize::from(end))
    }
}

/// Literal bytes and `?`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LiteralChunk {
    /// `None` is a `?`.
    pub(super) bytes: Vec<Option<u8>>,
    /// The same bytes, if there is no `?`.
    plain: Option<Box<[u8]>>,
}

impl LiteralChunk {
    fn new(bytes: Vec<Option<u8>>) -> Self {
        let plain = bytes.iter().copied().collect::<Option<Vec<u8>>>().map(Into::into);
        Self { bytes, plain }
    }

    /// Whether `key` contains the chunk at offset `at`.
    #[inline]
    fn stands(&self, key: &[u8], at: usize) -> bool {
        let Some(text) = key.get(at..at + self.bytes.len()) else { return false };
        match &self.plain {
            Some(plain) => text == &**plain,
            None => text.iter().zip(&self.bytes).all(|(byte, own)| own.is_none_or(|o| o == *byte)),
        }
    }

    fn has_literal(&self) -> bool {
        self.bytes.iter().any(Option::is_some)
    }
}

/// A capture or a `*`, and the literal after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GlobStep {
    pub(super) class: CaptureClass,
    /// Minimum number of bytes: 1 for a capture, 0 for a `*`.
    pub(super) least: usize,
    pub(super) slot: u8,
    /// Empty only in the last step.
    pub(super) then: LiteralChunk,
}

/// A compiled pattern, unless it is a regex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Glob {
    pub(super) first: LiteralChunk,
    pub(super) steps: Vec<GlobStep>,
    /// Minimum length of a matching key.
    least: usize,
    /// Whether ending each step but the last at the first possible place never misses a match.
    greedy: bool,
    /// Whether a step is an address that is counted by its network, which ends at the last possible
    /// place.
    has_networks: bool,
}

/// A limit's `match` or `regex`, compiled.
#[derive(Debug, Clone)]
pub(super) enum Pattern {
    Glob(Glob),
    /// Shared by copies of the limits, and so are the caches of its threads.
    Regex(Arc<Regex>),
}

impl Pattern {
    /// Whether the pattern matches the whole key. If it does, sets `captures`.
    #[inline]
    pub(super) fn matches(&self, key: &[u8], captures: &mut Captures) -> bool {
        match self {
            Self::Glob(glob) => glob.matches(key, captures),
            Self::Regex(regex) => regex.matches(key, captures),
        }
    }

    /// Whether the pattern is written as another one.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Glob(one), Self::Glob(other)) => one == other,
            (Self::Regex(one), Self::Regex(other)) => one.text() == other.text(),
            _ => false,
        }
    }

    /// The bytes that every matching key begins with.
    pub(super) fn prefix(&self) -> Vec<u8> {
        match self {
            Self::Glob(glob) => glob.first.bytes.iter().map_while(|byte| *byte).collect(),
            Self::Regex(regex) => regex.prefix().to_vec(),
        }
    }

    /// Literals after the prefix that every matching key contains.
    pub(super) fn literals(&self) -> Vec<&[u8]> {
        let Self::Glob(glob) = self else { return Vec::new() };
        let steps = glob.steps.iter().filter_map(|step| step.then.plain.as_deref());
        steps.filter(|literal| !literal.is_empty()).collect()
    }

    pub(super) fn least(&self) -> usize {
        match self {
            Self::Glob(glob) => glob.least,
            Self::Regex(regex) => regex.least(),
        }
    }
}

impl Glob {
    /// Parses a pattern. Also returns the names of its captures, by slot.
    pub(super) fn parse(text: &str) -> Result<(Self, Vec<String>), String> {
        let (mut chunk, mut steps, mut names) = (Vec::new(), Vec::<GlobStep>::new(), Vec::new());
        let mut first: Option<LiteralChunk> = None;
        let mut rest = text.as_bytes();
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            let (class, least, slot) = match byte {
                b'*' => (CaptureClass::Any, 0, NO_SLOT),
                b'{' => {
                    let (name, class, is_rest, after) = capture(rest)?;
                    if names.contains(&name) {
                        return Err(format!("`{{{name}}}` stands in the pattern twice"));
                    }
                    if is_rest && !after.is_empty() {
                        return Err(format!("`{{{name}:{REST}}}` is the last part of a pattern"));
                    }
                    rest = after;
                    names.push(name);
                    (class, 1, names.len() as u8 - 1)
                }
                b'?' => {
                    chunk.push(None);
                    continue;
                }
                byte => {
                    chunk.push(Some(literal(byte, &mut rest)?));
                    continue;
                }
            };
            let before = LiteralChunk::new(std::mem::take(&mut chunk));
            if first.is_none() {
                first = Some(before);
            } else if let Some(last) = steps.last_mut() {
                if !before.has_literal() {
                    return Err("between two of captures and `*` there must be a literal".into());
                }
                last.then = before;
            }
            if steps.len() == VARIABLES_MAX {
                return Err(format!("a pattern has at most {VARIABLES_MAX} captures and `*`"));
            }
            steps.push(GlobStep { class, least, slot, then: LiteralChunk::default() });
        }
        let chunk = LiteralChunk::new(chunk);
        let first = match steps.last_mut() {
            Some(last) => {
                last.then = chunk;
                first.unwrap_or_default()
            }
            None => chunk,
        };
        let glob = Self::new(first, steps);
        if !(1..=KEY_BYTES_MAX).contains(&glob.least.max(usize::from(!text.is_empty()))) {
            return Err(format!("no key matches it: a key has 1 to {KEY_BYTES_MAX} bytes"));
        }
        Ok((glob, names))
    }

    pub(super) fn new(first: LiteralChunk, steps: Vec<GlobStep>) -> Self {
        let least = |step: &GlobStep| step.least + step.then.bytes.len();
        let least = first.bytes.len() + steps.iter().map(least).sum::<usize>();
        // Without backtracking each step but the last ends at the first place of its literal. For a
        // class that contains all prefixes of its texts this loses nothing: if the shortest text
        // does not belong to the class, no longer one does. The later steps must then accept any
        // bytes.
        let greedy = match steps.split_first() {
            None | Some((_, [])) => true,
            Some((one, others)) => {
                !one.class.is_address() && others.iter().all(|step| step.class == CaptureClass::Any)
            }
        };
        let has_networks = steps.iter().any(|step| matches!(step.class, CaptureClass::Net(_)));
        Self { first, steps, least, greedy, has_networks }
    }

    /// The pattern that matches exactly one key, without captures.
    pub(super) fn literal(text: &[u8]) -> Self {
        Self::new(LiteralChunk::new(text.iter().copied().map(Some).collect()), Vec::new())
    }

    /// The same pattern with one more step at its end.
    pub(super) fn push(&mut self, class: CaptureClass, slot: u8, then: &[u8]) {
        let then = LiteralChunk::new(then.iter().copied().map(Some).collect());
        let mut steps = std::mem::take(&mut self.steps);
        steps.push(GlobStep { class, least: 1, slot, then });
        *self = Self::new(std::mem::take(&mut self.first), steps);
    }

    #[inline]
    pub(super) fn matches(&self, key: &[u8], captures: &mut Captures) -> bool {
        if key.len() < self.least || !self.first.stands(key, 0) {
            return false;
        }
        let at = self.first.bytes.len();
        if self.steps.is_empty() {
            return key.len() == at;
        }
        if self.greedy {
            return self.match_first_places(key, at, captures);
        }
        let mut failed = [[0; 4]; VARIABLES_MAX];
        if self.has_networks {
            return self.search::<true>(0, key, at, captures, &mut failed);
        }
        self.search::<false>(0, key, at, captures, &mut failed)
    }

    /// Ends each step at the first place of its following literal, and the last step at the key's
    /// end.
    #[inline]
    fn match_first_places(&self, key: &[u8], mut at: usize, captures: &mut Captures) -> bool {
        let Some((last, steps)) = self.steps.split_last() else { return false };
        for step in steps {
            let mut end = at + step.least;
            loop {
                if end + step.then.bytes.len() > key.len() {
                    return false;
                }
                if step.then.stands(key, end) {
                    break;
                }
                end += 1;
            }
            if !step.class.takes(&key[at..end]) {
                return false;
            }
            captures.set(step.slot, at, end);
            at = end + step.then.bytes.len();
        }
        last.ends(key, at, captures)
    }

    /// Tries every end for the steps from `index` on, shortest first. With `NETWORKS` those that
    /// are counted by networks are tried longest first: whoever chooses an IPv6 address could move
    /// a part of it into the capture behind it.
    ///
    /// `failed` has a bit for each place where a step failed. Nothing is tried twice, so the work
    /// is bounded by steps × bytes × bytes. The recursion is at most [`VARIABLES_MAX`] deep.
    fn search<const NETWORKS: bool>(
        &self,
        index: usize,
        key: &[u8],
        at: usize,
        captures: &mut Captures,
        failed: &mut [[u64; 4]; VARIABLES_MAX],
    ) -> bool {
        let (word, bit) = (at >> 6 & 3, 1 << (at & 63));
        if failed[index][word] & bit != 0 {
            return false;
        }
        let step = &self.steps[index];
        if index + 1 == self.steps.len() {
            if step.ends(key, at, captures) {
                return true;
            }
        } else {
            let room = key.len().saturating_sub(step.then.bytes.len());
            if NETWORKS && matches!(step.class, CaptureClass::Net(_)) {
                let bytes = key.get(at..room).unwrap_or_default();
                let longest = bytes.iter().take_while(|byte| step.class.has(**byte)).count();
                for end in (at + step.least..=at + longest).rev() {
                    if step.then.stands(key, end)
                        && step.class.takes(&key[at..end])
                        && self.search::<NETWORKS>(
                            index + 1,
                            key,
                            end + step.then.bytes.len(),
                            captures,
                            failed,
                        )
                    {
                        captures.set(step.slot, at, end);
                        return true;
                    }
                }
                failed[index][word] |= bit;
                return false;
            }
            for end in at..=room {
                if end > at && !step.class.has(key[end - 1]) {
                    break;
                }
                if end >= at + step.least
                    && step.then.stands(key, end)
                    && (!step.class.is_address() || step.class.takes(&key[at..end]))
                    && self.search::<NETWORKS>(
                        index + 1,
                        key,
                        end + step.then.bytes.len(),
                        captures,
                        failed,
                    )
                {
                    captures.set(step.slot, at, end);
                    return true;
                }
            }
        }
        failed[index][word] |= bit;
        false
    }
}

impl GlobStep {
    /// Whether the step takes all remaining bytes, as the last one of a pattern.
    pub(super) fn takes_the_rest(&self) -> bool {
        self.class == CaptureClass::Any && self.then.bytes.is_empty()
    }

    /// Matches the last step, from `at` to the end of the key.
    #[inline]
    fn ends(&self, key: &[u8], at: usize, captures: &mut Captures) -> bool {
        let Some(end) = key.len().checked_sub(self.then.bytes.len()) else { return false };
        if end < at + self.least || !self.then.stands(key, end) || !self.class.takes(&key[at..end])
        {
            return false;
        }
        captures.set(self.slot, at, end);
        true
    }
}

/// Parses the rest of `{name}` or `{name:class}`. Also returns whether it takes the rest of a key,
/// and the text after it.
fn capture(text: &[u8]) -> Result<(String, CaptureClass, bool, &[u8]), String> {
    let (name, after) = braced(text)?;
    let (name, class, is_rest) = match name.split_once(':') {
        Some((name, REST)) => (name, CaptureClass::Any, true),
        Some((name, class)) => (name, CaptureClass::named(name, class)?, false),
        None => (name, CaptureClass::Any, false),
    };
    if !is_name(name) {
        return Err(format!("`{{{name}}}`: a capture's name is letters, digits and `_`"));
    }
    Ok((name.to_owned(), class, is_rest, after))
}

/// Splits `text` at `}` into the bytes before and after.
pub(super) fn braced(text: &[u8]) -> Result<(&str, &[u8]), String> {
    let end = text.iter().position(|byte| *byte == b'}').ok_or("a `{` is not closed")?;
    let name = str::from_utf8(&text[..end]).map_err(|error| error.to_string())?;
    Ok((name, &text[end + 1..]))
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Reads a literal byte, or the byte after a `\`.
pub(super) fn literal(byte: u8, rest: &mut &[u8]) -> Result<u8, String> {
    let byte = match byte {
        b'}' => return Err("a `}` without its `{`; written `\\}` it is a literal".into()),
        b'\\' => {
            let (byte, after) = rest.split_first().ok_or("a `\\` at the end escapes nothing")?;
            *rest = after;
            *byte
        }
        byte => byte,
    };
    if byte <= b' ' || byte == 0x7f {
        return Err("a key has neither blanks nor control bytes".into());
    }
    Ok(byte)
}
