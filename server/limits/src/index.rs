//! Finds the limits that a key may match, without testing every limit.
//!
//! Here: a trie that finds the patterns whose literal prefix begins the key. If many patterns share
//! a prefix (or have none), one automaton finds those whose next literal occurs in the key, and
//! another one finds the first matching regex. The remaining candidates are tested in file order.
//! Not here: matching one pattern (`pattern`).

use std::sync::Arc;

use aho_corasick::automaton::OverlappingState;
use aho_corasick::{AhoCorasick, Input};
use hashbrown::HashMap;

use super::pattern::{Captures, Glob, Pattern};
use super::regex_set::{FirstMatch, RegexSet};
use super::trie::Trie;

/// Maximum number of limits with one prefix that are tested one by one.
const FEW: usize = 8;
/// Maximum memory of a thread's states for the regexes of one prefix.
const CACHE_BYTES_MAX: usize = 4 << 20;
/// Maximum memory of a thread's states for the regexes of all prefixes.
const CACHES_BYTES_MAX: usize = 32 << 20;

/// The patterns of all limits, indexed for the search.
#[derive(Debug, Clone, Default)]
pub(super) struct PatternIndex {
    trie: Trie,
    /// Indexed by the trie's number.
    buckets: Vec<PrefixBucket>,
}

/// A limit that may match, and its test. Small and usually sufficient, so that most keys need no
/// pattern.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// The index of the limit.
    pub(super) limit: u32,
    test: Test,
}

/// The test that remains after the literal prefix, which the key is known to have.
#[derive(Debug, Clone, Copy)]
enum Test {
    /// The prefix is the whole key.
    Whole { len: u8 },
    /// At least one byte follows, and the capture `slot` takes the whole rest.
    Tail { from: u8, slot: u8 },
    /// The pattern must be matched.
    Pattern,
}

/// Candidates in file order.
#[derive(Debug, Clone)]
enum List {
    One(Candidate),
    Many(Box<[Candidate]>),
}

/// The limits with one literal prefix.
#[derive(Debug, Clone)]
struct PrefixBucket {
    /// Candidates for every key with the prefix.
    always: List,
    /// Candidates for keys that contain one of the literals.
    held: Option<Arc<LiteralSet>>,
    /// Regexes, if there are many.
    regexes: Option<Arc<Regexes>>,
}

/// Regexes that are matched in one pass.
#[derive(Debug)]
struct Regexes {
    set: RegexSet,
    /// Indexed by the set's number of a regex.
    candidates: Box<[Candidate]>,
}

#[derive(Debug)]
struct LiteralSet {
    /// Length of the prefix; the literals follow it.
    skip: usize,
    literals: AhoCorasick,
    /// Indexed by the automaton's number of a literal.
    lists: Vec<List>,
}

impl PatternIndex {
    /// Indexes the patterns of all limits, in file order. `None` is a limit that no key finds.
    pub(super) fn new<'p>(patterns: impl Iterator<Item = Option<&'p Pattern>>) -> Self {
        let mut by_prefix = HashMap::<Vec<u8>, Vec<(u32, &Pattern)>>::new();
        for (number, pattern) in (0..).zip(patterns) {
            let Some(pattern) = pattern else { continue };
            by_prefix.entry(pattern.prefix()).or_default().push((number, pattern));
        }
        let sets = by_prefix.values().filter(|patterns| has_many_regexes(patterns)).count();
        let cache_bytes_max = (CACHES_BYTES_MAX / sets.max(1)).min(CACHE_BYTES_MAX);
        let (mut strings, mut buckets) = (Vec::new(), Vec::new());
        for (prefix, patterns) in &by_prefix {
            strings.push((prefix.as_slice(), buckets.len() as u32));
            buckets.push(PrefixBucket::new(prefix.len(), patterns, cache_bytes_max));
        }
        Self { trie: Trie::new(strings), buckets }
    }

    /// Calls `visit` with lists of limits that may match `key`, each list in file order. All other
    /// limits do not match; a limit may occur twice.
    #[inline]
    pub(super) fn candidates<'i>(&'i self, key: &[u8], mut visit: impl FnMut(&'i [Candidate])) {
        self.trie.walk(key, |number| {
            let bucket = &self.buckets[number as usize];
            visit(bucket.always.as_slice());
            if let Some(held) = &bucket.held {
                held.candidates(key, &mut visit);
            }
            if let Some(regexes) = &bucket.regexes {
                visit(regexes.candidates(key));
            }
        });
    }
}

impl Candidate {
    fn new(limit: u32, pattern: &Pattern) -> Self {
        let test = match pattern {
            Pattern::Glob(glob) => Test::new(glob),
            Pattern::Regex(_) => Test::Pattern,
        };
        Self { limit, test }
    }

    /// Like [`Pattern::matches`], for a key that led to this candidate.
    #[inline]
    pub(super) fn matches<'p>(
        self,
        key: &[u8],
        captures: &mut Captures,
        pattern: impl FnOnce() -> &'p Pattern,
    ) -> bool {
        match self.test {
            Test::Whole { len } => key.len() == usize::from(len),
            Test::Tail { from, slot } => {
                captures.set(slot, from.into(), key.len());
                key.len() > from.into()
            }
            Test::Pattern => pattern().matches(key, captures),
        }
    }
}

impl Test {
    fn new(glob: &Glob) -> Self {
        let literal = glob.first.bytes.iter().all(Option::is_some);
        let Ok(len) = u8::try_from(glob.first.bytes.len()) else { return Self::Pattern };
        match &glob.steps[..] {
            [] if literal => Self::Whole { len },
            [step] if literal && step.takes_the_rest() && step.least == 1 => {
                Self::Tail { from: len, slot: step.slot }
            }
            _ => Self::Pattern,
        }
    }
}

impl List {
    #[inline]
    fn as_slice(&self) -> &[Candidate] {
        match self {
            Self::One(candidate) => std::slice::from_ref(candidate),
            Self::Many(candidates) => candidates,
        }
    }
}

impl FromIterator<Candidate> for List {
    fn from_iter<I: IntoIterator<Item = Candidate>>(candidates: I) -> Self {
        let candidates: Box<[Candidate]> = candidates.into_iter().collect();
        match *candidates {
            [candidate] => Self::One(candidate),
            _ => Self::Many(candidates),
        }
    }
}

/// Whether `patterns` have enough regexes for a set.
fn has_many_regexes(patterns: &[(u32, &Pattern)]) -> bool {
    let is_regex = |(_, pattern): &&(u32, &Pattern)| matches!(pattern, Pattern::Regex(_));
    patterns.iter().filter(is_regex).count() > FEW
}

impl Regexes {
    /// The set of the regexes among `patterns`. `None` if they are few, or too many for one
    /// automaton.
    fn new(patterns: &[(u32, &Pattern)], cache_bytes_max: usize) -> Option<Self> {
        if !has_many_regexes(patterns) {
            return None;
        }
        let regexes = || {
            patterns.iter().filter_map(|(number, pattern)| match pattern {
                Pattern::Regex(regex) => Some((Candidate::new(*number, pattern), regex)),
                Pattern::Glob(_) => None,
            })
        };
        let set = RegexSet::new(regexes().map(|(_, regex)| &**regex), cache_bytes_max)?;
        Some(Self { set, candidates: regexes().map(|(candidate, _)| candidate).collect() })
    }

    /// The first regex that matches, or all of them if the set cannot decide.
    fn candidates(&self, key: &[u8]) -> &[Candidate] {
        match self.set.first(key) {
            FirstMatch::None => &[],
            FirstMatch::Number(index) => self.candidates.get(index..=index).unwrap_or_default(),
            FirstMatch::Unknown => &self.candidates,
        }
    }
}

impl PrefixBucket {
    fn new(skip: usize, patterns: &[(u32, &Pattern)], cache_bytes_max: usize) -> Self {
        let Some(regexes) = Regexes::new(patterns, cache_bytes_max) else {
            return Self::of(skip, patterns);
        };
        let is_glob = |(_, pattern): &&(u32, &Pattern)| matches!(pattern, Pattern::Glob(_));
        let globs: Vec<(u32, &Pattern)> = patterns.iter().filter(is_glob).copied().collect();
        Self { regexes: Some(Arc::new(regexes)), ..Self::of(skip, &globs) }
    }

    fn of(skip: usize, patterns: &[(u32, &Pattern)]) -> Self {
        let all = || patterns.iter().map(|(number, pattern)| Candidate::new(*number, pattern));
        if patterns.len() <= FEW {
            return Self { always: all().collect(), held: None, regexes: None };
        }
        let mut uses = HashMap::<&[u8], usize>::new();
        for literal in patterns.iter().flat_map(|(_, pattern)| pattern.literals()) {
            *uses.entry(literal).or_default() += 1;
        }
        // Choose the most selective literal of each pattern: the rarest one, then the longest.
        let mut always = Vec::new();
        let mut by_literal = HashMap::<&[u8], Vec<Candidate>>::new();
        for ((_, pattern), candidate) in patterns.iter().zip(all()) {
            let literals = pattern.literals().into_iter();
            let best = literals.min_by_key(|literal| (uses[literal], usize::MAX - literal.len()));
            match best {
                Some(literal) => by_literal.entry(literal).or_default().push(candidate),
                None => always.push(candidate),
            }
        }
        let (literals, lists): (Vec<_>, Vec<_>) = by_literal.into_iter().unzip();
        match AhoCorasick::new(literals) {
            Ok(literals) if !lists.is_empty() => {
                let lists = lists.into_iter().map(List::from_iter).collect();
                let held = Some(Arc::new(LiteralSet { skip, literals, lists }));
                Self { always: always.into_iter().collect(), held, regexes: None }
            }
            // More literals than the automaton can number with 32 bits.
            _ => Self { always: all().collect(), held: None, regexes: None },
        }
    }
}

impl LiteralSet {
    fn candidates<'i>(&'i self, key: &[u8], visit: &mut impl FnMut(&'i [Candidate])) {
        let rest = key.get(self.skip..).unwrap_or_default();
        let mut state = OverlappingState::start();
        loop {
            self.literals.find_overlapping(Input::new(rest), &mut state);
            let Some(found) = state.get_match() else { return };
            visit(self.lists[found.pattern().as_usize()].as_slice());
        }
    }
}
