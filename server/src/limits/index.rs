//! Which limits a key may be bound to, without asking each.
//!
//! A trie finds the patterns whose literal beginning the key has. Where many share a beginning
//! (or have none), one automaton finds those whose next literal the key holds at all. What is left
//! is asked in file order. Not here: what a pattern means (`pattern`).

use aho_corasick::automaton::OverlappingState;
use aho_corasick::{AhoCorasick, Input};
use hashbrown::HashMap;

use super::pattern::Pattern;
use super::trie::Trie;

/// Limits of one beginning that are simply asked one by one.
const FEW: usize = 8;

/// The limits' patterns, ordered for the search.
#[derive(Debug, Default)]
pub(super) struct Index {
    trie: Trie,
    /// By the trie's number.
    buckets: Vec<Bucket>,
}

/// The limits of one literal beginning. Every list is in file order.
#[derive(Debug)]
struct Bucket {
    /// To be asked for every key that gets here.
    always: Box<[u32]>,
    /// To be asked only when the key holds a literal.
    held: Option<Box<Held>>,
}

#[derive(Debug)]
struct Held {
    /// Bytes of the beginning: the literals stand behind them.
    skip: usize,
    literals: AhoCorasick,
    /// By the automaton's number of the literal.
    lists: Vec<Box<[u32]>>,
}

impl Index {
    pub(super) fn new<'p>(patterns: impl Iterator<Item = &'p Pattern>) -> Self {
        let mut by_prefix = HashMap::<Vec<u8>, Vec<(u32, &Pattern)>>::new();
        for (number, pattern) in (0..).zip(patterns) {
            by_prefix.entry(pattern.prefix()).or_default().push((number, pattern));
        }
        let (mut strings, mut buckets) = (Vec::new(), Vec::new());
        for (prefix, patterns) in &by_prefix {
            strings.push((prefix.as_slice(), buckets.len() as u32));
            buckets.push(Bucket::new(prefix.len(), patterns));
        }
        Self { trie: Trie::new(strings), buckets }
    }

    /// Calls `visit` with lists of the limits that may match `key`, each in file order. No other
    /// limit matches it; one may come twice.
    #[inline]
    pub(super) fn candidates<'i>(&'i self, key: &[u8], mut visit: impl FnMut(&'i [u32])) {
        self.trie.walk(key, |number| {
            let bucket = &self.buckets[number as usize];
            visit(&bucket.always);
            if let Some(held) = &bucket.held {
                held.candidates(key, &mut visit);
            }
        });
    }
}

impl Bucket {
    fn new(skip: usize, patterns: &[(u32, &Pattern)]) -> Self {
        let numbers = |patterns: &[(u32, &Pattern)]| patterns.iter().map(|(n, _)| *n).collect();
        if patterns.len() <= FEW {
            return Self { always: numbers(patterns), held: None };
        }
        let mut uses = HashMap::<&[u8], usize>::new();
        for literal in patterns.iter().flat_map(|(_, pattern)| pattern.literals()) {
            *uses.entry(literal).or_default() += 1;
        }
        // Of a pattern's literals the one that tells most: rare, then long.
        let mut always = Vec::new();
        let mut by_literal = HashMap::<&[u8], Vec<u32>>::new();
        for (number, pattern) in patterns {
            let literals = pattern.literals().into_iter();
            let best = literals.min_by_key(|literal| (uses[literal], usize::MAX - literal.len()));
            match best {
                Some(literal) => by_literal.entry(literal).or_default().push(*number),
                None => always.push(*number),
            }
        }
        let (literals, lists): (Vec<_>, Vec<_>) = by_literal.into_iter().unzip();
        match AhoCorasick::new(literals) {
            Ok(literals) if !lists.is_empty() => {
                let lists = lists.into_iter().map(Into::into).collect();
                let held = Some(Box::new(Held { skip, literals, lists }));
                Self { always: always.into(), held }
            }
            // Too many for the automaton's numbers, which are 32 bits.
            _ => Self { always: numbers(patterns), held: None },
        }
    }
}

impl Held {
    fn candidates<'i>(&'i self, key: &[u8], visit: &mut impl FnMut(&'i [u32])) {
        let rest = key.get(self.skip..).unwrap_or_default();
        let mut state = OverlappingState::start();
        loop {
            self.literals.find_overlapping(Input::new(rest), &mut state);
            let Some(found) = state.get_match() else { return };
            visit(&self.lists[found.pattern().as_usize()]);
        }
    }
}
