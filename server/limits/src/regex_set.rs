//! A set of regexes: finds the first one that matches a key, in one pass over the key.
//!
//! Here: one automaton of all regexes, whose states are built when keys need them, within a memory
//! bound. Not here: captures, and single regexes (`regex`).

use std::fmt;
use std::sync::Arc;

use regex_automata::hybrid::dfa::{Cache, Config, DFA};
use regex_automata::nfa::thompson::{self, WhichCaptures};
use regex_automata::util::pool::Pool;
use regex_automata::{Anchored, Input, MatchKind};

use super::regex::Regex;

/// Maximum size of the automaton's description. A larger set is not built, and its regexes are
/// matched one by one.
const NFA_BYTES_MAX: usize = 16 << 20;

/// Number of times that a thread clears its states before it stops building new ones. Keys that
/// need a missing state are then matched against each regex.
const CLEARS_MAX: usize = 4;
/// Number of such keys after which the thread clears its states and builds new ones again.
const UNKNOWN_MAX: u32 = 100_000;

/// The states of one thread.
#[derive(Debug)]
struct RegexCache {
    states: Cache,
    /// Keys that needed a missing state since the thread stopped building states.
    unknown: u32,
}

type MakeCache =
    Box<dyn Fn() -> RegexCache + Send + Sync + std::panic::UnwindSafe + std::panic::RefUnwindSafe>;

/// The regexes, in file order.
pub(super) struct RegexSet {
    automaton: Arc<DFA>,
    /// One cache per thread.
    kept: Pool<RegexCache, MakeCache>,
}

impl fmt::Debug for RegexSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("RegexSet")
            .field("regexes", &self.automaton.pattern_len())
            .finish_non_exhaustive()
    }
}

/// The result of one pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FirstMatch {
    /// No regex matches.
    None,
    /// The index of the first regex that matches.
    Number(usize),
    /// The pass needed a state beyond the memory bound.
    Unknown,
}

impl RegexSet {
    /// Builds the set of `regexes`. `None` if it would be too large. Each thread keeps about
    /// `cache_bytes_max` bytes of states.
    pub(super) fn new<'r>(
        regexes: impl Iterator<Item = &'r Regex>,
        cache_bytes_max: usize,
    ) -> Option<Self> {
        let all: Vec<_> = regexes.map(Regex::hir).collect::<Option<_>>()?;
        let config = thompson::Config::new()
            .utf8(false)
            .which_captures(WhichCaptures::None)
            .nfa_size_limit(Some(NFA_BYTES_MAX));
        let nfa = thompson::Compiler::new().configure(config).build_many_from_hir(&all).ok()?;
        let config = Config::new()
            // Report all regexes that match, rather than the one that a leftmost search prefers.
            .match_kind(MatchKind::All)
            .minimum_cache_clear_count(Some(CLEARS_MAX))
            .cache_capacity(cache_bytes_max)
            .skip_cache_capacity_check(true);
        let automaton = DFA::builder().configure(config).build_from_nfa(nfa).ok()?;
        let automaton = Arc::new(automaton);
        let of = Arc::clone(&automaton);
        let make: MakeCache =
            Box::new(move || RegexCache { states: of.create_cache(), unknown: 0 });
        Some(Self { automaton, kept: Pool::new(make) })
    }

    /// Returns the first regex that matches `key`. Allocates only for states that no earlier key
    /// needed.
    pub(super) fn first(&self, key: &[u8]) -> FirstMatch {
        let mut kept = self.kept.get();
        let first_match = self.walk(&mut kept.states, key).unwrap_or(FirstMatch::Unknown);
        if first_match == FirstMatch::Unknown {
            kept.unknown += 1;
            if kept.unknown >= UNKNOWN_MAX {
                kept.states.reset(&self.automaton);
                kept.unknown = 0;
            }
        }
        first_match
    }

    fn walk(&self, cache: &mut Cache, key: &[u8]) -> Option<FirstMatch> {
        let input = Input::new(key).anchored(Anchored::Yes);
        let mut state = self.automaton.start_state_forward(cache, &input).ok()?;
        for &byte in key {
            state = self.automaton.next_state(cache, state, byte).ok()?;
            if state.is_dead() {
                return Some(FirstMatch::None);
            }
            if state.is_quit() {
                return None;
            }
        }
        state = self.automaton.next_eoi_state(cache, state).ok()?;
        if !state.is_match() {
            return Some(FirstMatch::None);
        }
        let count = self.automaton.match_len(cache, state);
        let numbers =
            (0..count).map(|at| self.automaton.match_pattern(cache, state, at).as_usize());
        Some(numbers.min().map_or(FirstMatch::None, FirstMatch::Number))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::pattern::Captures;
    use super::*;

    fn regexes(texts: &[String]) -> Vec<Regex> {
        texts.iter().map(|text| Regex::parse(text).expect("a good regex").0).collect()
    }

    /// The result of matching the regexes one by one.
    fn twin(regexes: &[Regex], key: &[u8]) -> FirstMatch {
        let matches = |regex: &Regex| regex.matches(key, &mut Captures::default());
        regexes.iter().position(matches).map_or(FirstMatch::None, FirstMatch::Number)
    }

    proptest! {
        #[test]
        fn a_set_finds_what_each_regex_finds(
            texts in prop::collection::vec(
                prop::sample::select(vec![
                    "a", "ab?", "[ab]+", "(a|bc)*", ".*b", "a.*", "(?i)A{2,3}", "\\w\\d", "a\\b.*", "^ab$",
                    "(?P<x>.+)c", "b{0,4}", "", "c|", "[^a]*", "(?s).+\\x00",
                ]),
                1..12,
            ),
            key in prop::collection::vec(prop::sample::select(b"abcA1\x00\n-".to_vec()), 0..9),
        ) {
            let texts: Vec<String> = texts.into_iter().map(str::to_owned).collect();
            let all: Vec<Regex> =
                texts.iter().filter_map(|text| Some(Regex::parse(text).ok()?.0)).collect();
            let set = RegexSet::new(all.iter(), 1 << 20).expect("a small set");
            prop_assert_eq!(set.first(&key), twin(&all, &key), "{:?}", texts);
        }
    }

    #[test]
    fn a_thousand_regexes_are_one_pass() {
        let texts: Vec<String> =
            (0..1000).map(|number| format!("^.*:(?P<user>\\w+):route{number}$")).collect();
        let all = regexes(&texts);
        let set = RegexSet::new(all.iter(), 1 << 20).expect("it has its bound");
        for (key, expected) in [
            ("api:ann:route999", FirstMatch::Number(999)),
            ("x:y:ann:route0", FirstMatch::Number(0)),
            ("x:y:ann:route1000", FirstMatch::None),
            ("counter-17", FirstMatch::None),
        ] {
            assert_eq!(set.first(key.as_bytes()), expected);
            assert_eq!(twin(&all, key.as_bytes()), expected);
        }
    }

    #[test]
    fn states_begin_anew_when_their_memory_is_used_up() {
        // The automaton must remember the positions of the last letters, which needs more states
        // than the memory bound allows.
        let texts: Vec<String> =
            (0..12).map(|number| format!("^.*a.{{{}}}b$", number + 6)).collect();
        let all = regexes(&texts);
        let set = RegexSet::new(all.iter(), 256 << 10).expect("it has its bound");
        let (mut state, mut unknown) = (7_u64, Vec::new());
        for _ in 0..2_000 {
            let key: Vec<u8> = (0..60)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    b"aabx"[(state >> 60) as usize % 4]
                })
                .collect();
            match set.first(&key) {
                FirstMatch::Unknown => unknown = key,
                first_match => assert_eq!(first_match, twin(&all, &key)),
            }
        }
        assert!(!unknown.is_empty(), "the memory was used up");
        // After enough unknown keys the states are built again.
        for _ in 0..UNKNOWN_MAX {
            if set.first(&unknown) != FirstMatch::Unknown {
                break;
            }
        }
        assert_eq!(set.first(&unknown), twin(&all, &unknown));
    }
}
