//! Regexes as patterns: `regex = '^login:(?P<ip>.+)$'`, always matched against the whole key.
//!
//! Here: one regex on bytes, not characters: `.` is any byte, `\w` is ASCII. The engine is
//! `regex-automata`, which the `regex` crate uses too; its interface reads captures without
//! allocating. Not here: many regexes in one pass (`regex_set`).

use regex_automata::meta;
use regex_automata::util::primitives::NonMaxUsize;
use regex_syntax::hir::literal::{ExtractKind, Extractor};
use regex_syntax::hir::{Hir, Look};
use regex_syntax::{Error, ParserBuilder};

use super::pattern::{Captures, VARIABLES_MAX};

/// Maximum number of groups: named ones, unnamed ones, and the whole match.
const GROUPS_MAX: usize = 32;

/// Maximum size of a compiled regex.
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// The regex of one limit.
#[derive(Debug, Clone)]
pub(super) struct Regex {
    /// The regex as written. Equal texts match the same keys.
    text: String,
    compiled: meta::Regex,
    /// The group of each capture, by slot.
    groups: Vec<usize>,
    /// Number of slots of `compiled` up to the last named group; 0 if there is none.
    slots: usize,
    prefix: Vec<u8>,
    least: usize,
}

impl Regex {
    /// Compiles a regex. Also returns the names of its named groups, by slot.
    pub(super) fn parse(text: &str) -> Result<(Self, Vec<String>), String> {
        let own = parse(text).map_err(|error| match *error {
            Error::Parse(error) => format!("bad regex: {}", error.kind()),
            Error::Translate(error) => format!("bad regex: {}", error.kind()),
            _ => "bad regex".to_owned(),
        })?;
        let least = own.properties().minimum_len().ok_or("no key matches the regex")?;
        let whole = whole(own);
        let literals = Extractor::new().kind(ExtractKind::Prefix).extract(&whole);
        let prefix = literals.longest_common_prefix().unwrap_or_default().to_vec();
        let config = meta::Config::new().utf8_empty(false).nfa_size_limit(Some(COMPILED_BYTES_MAX));
        let compiled = meta::Builder::new()
            .configure(config)
            .build_from_hir(&whole)
            .map_err(|_| format!("the regex compiles to more than {COMPILED_BYTES_MAX} bytes"))?;
        let info = compiled.group_info();
        let (mut names, mut groups) = (Vec::new(), Vec::new());
        let all = info.pattern_names(regex_automata::PatternID::ZERO);
        for (group, name) in all.enumerate() {
            if let Some(name) = name {
                names.push(name.to_owned());
                groups.push(group);
            }
        }
        if names.len() > VARIABLES_MAX
            || info.group_len(regex_automata::PatternID::ZERO) > GROUPS_MAX
        {
            let max = GROUPS_MAX - 1;
            return Err(format!(
                "a regex has at most {VARIABLES_MAX} named groups and {max} groups in all"
            ));
        }
        let slots = groups.last().map_or(0, |group| 2 * group + 2);
        Ok((Self { text: text.to_owned(), compiled, groups, slots, prefix, least }, names))
    }

    pub(super) fn matches(&self, key: &[u8], captures: &mut Captures) -> bool {
        if key.len() < self.least {
            return false;
        }
        if self.slots == 0 {
            return self.compiled.is_match(key);
        }
        let mut slots = [None::<NonMaxUsize>; 2 * GROUPS_MAX];
        let slots = &mut slots[..self.slots];
        if self.compiled.search_slots(&key.into(), slots).is_none() {
            return false;
        }
        for (slot, group) in (0..).zip(&self.groups) {
            match (slots[2 * group], slots[2 * group + 1]) {
                (Some(start), Some(end)) => captures.set(slot, start.get(), end.get()),
                // A group in an alternative that was not taken is empty.
                _ => captures.set(slot, 0, 0),
            }
        }
        true
    }

    /// The regex anchored to the whole key, for compiling it into a set.
    pub(super) fn hir(&self) -> Option<Hir> {
        parse(&self.text).map(whole).ok()
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    pub(super) fn least(&self) -> usize {
        self.least
    }
}

fn parse(text: &str) -> Result<Hir, Box<Error>> {
    ParserBuilder::new().unicode(false).utf8(false).build().parse(text).map_err(Box::new)
}

fn whole(regex: Hir) -> Hir {
    Hir::concat(vec![Hir::look(Look::Start), regex, Hir::look(Look::End)])
}
