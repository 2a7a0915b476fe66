//! A table of overrides that is being made.
//!
//! Here: each key once, each different policy once. Not here: the search in a table (`super`).

use std::sync::Arc;

use hashbrown::hash_table::Entry;
use hashbrown::{HashMap, HashTable};
use protocol::Policy;

use super::super::key_hash::key_hash;
use super::super::networks::{Network, Networks};
use super::super::texts::Texts;
use super::super::trie::Trie;
use super::{OverrideKeys, OverrideTable};
use crate::files::FileMark;

/// A table that is being made.
#[derive(Debug, Default)]
pub(in super::super) struct OverrideTableBuilder {
    table: OverrideTable,
    /// The place of each policy.
    known: HashMap<Policy, u32>,
    /// The numbers of the exact keys, found by their texts.
    exact: HashTable<u32>,
    /// The numbers of the prefixes, found by their texts.
    prefixes: HashTable<u32>,
    networks: HashMap<Box<[u8]>, HashMap<Network, u32>>,
}

impl OverrideTableBuilder {
    /// The number of overrides.
    pub(in super::super) fn len(&self) -> usize {
        self.table.rows.len()
    }

    /// Adds the override that is written as `text`, whose keys are `keys`, with its policy and its
    /// weight if it has one. False: there is one of these keys already.
    pub(in super::super) fn push(
        &mut self,
        text: &str,
        keys: OverrideKeys<'_>,
        (policy, weight): (Policy, Option<u64>),
    ) -> bool {
        let Self { table, known, exact, prefixes, networks } = self;
        let texts = &mut table.texts;
        let number = texts.len() as u32;
        let is_new = match keys {
            OverrideKeys::Exact(_) => insert(exact, texts, text, number),
            OverrideKeys::Prefix(_) => insert(prefixes, texts, text, number),
            OverrideKeys::Network(literal, network) => {
                let same_literal = match networks.get_mut(literal.as_bytes()) {
                    Some(same_literal) => same_literal,
                    None => networks.entry(literal.as_bytes().into()).or_default(),
                };
                same_literal.try_insert(network, number).is_ok()
            }
        };
        if !is_new {
            return false;
        }
        let policies = &mut table.policies;
        let place = *known.entry(policy).or_insert_with(|| {
            policies.push(policy);
            policies.len() as u32 - 1
        });
        table.rows.push(place);
        texts.push(text);
        table.weights.extend(weight.map(|weight| (number, weight)));
        true
    }

    /// Returns the table; `None`: it has no override.
    pub(in super::super) fn build(self) -> Option<Arc<OverrideTable>> {
        (self.len() > 0).then(|| Arc::new(self.table()))
    }

    /// Returns the table with the policies that `flagged` makes of those that were added. The
    /// table keeps both. `None`: it has no override.
    pub(in super::super) fn build_flagged(
        mut self,
        flagged: impl Fn(Policy) -> Policy,
    ) -> Option<Arc<OverrideTable>> {
        let policies = self.table.policies.iter().copied().map(flagged).collect();
        self.table.written = std::mem::replace(&mut self.table.policies, policies);
        self.build()
    }

    /// Returns the table of a file of this version, which may have no override.
    pub(in super::super) fn build_of_file(self, mark: Option<FileMark>) -> Arc<OverrideTable> {
        Arc::new(OverrideTable { mark, ..self.table() })
    }

    fn table(self) -> OverrideTable {
        let Self { mut table, exact, prefixes, networks, .. } = self;
        table.policies.shrink_to_fit();
        table.rows.shrink_to_fit();
        table.texts.shrink_to_fit();
        table.exact = table.index(exact);
        let texts = &table.texts;
        let prefix = |number: &u32| {
            let text = texts.get(*number as usize).unwrap_or_default();
            (text.strip_suffix('*').unwrap_or(text).as_bytes(), *number)
        };
        table.prefixes = Trie::new(prefixes.iter().map(prefix).collect());
        table.literal_lens = networks.keys().map(|literal| literal.len()).collect();
        table.literal_lens.sort_unstable_by(|one, other| other.cmp(one));
        table.literal_lens.dedup();
        let ranges = networks.into_iter().map(|(literal, of)| {
            let of: Vec<(Network, u32)> = of.into_iter().collect();
            (literal, Networks::new(&of))
        });
        table.networks = ranges.collect();
        table
    }
}

/// Adds the number of `text`, which is put into `texts` later. False: the same text is there.
fn insert(numbers: &mut HashTable<u32>, texts: &Texts, text: &str, number: u32) -> bool {
    let hash_of = |text: &str| key_hash(text.as_bytes());
    let rehash = |number: &u32| hash_of(texts.get(*number as usize).unwrap_or_default());
    match numbers.entry(hash_of(text), |one| texts.is(*one, text.as_bytes()), rehash) {
        Entry::Occupied(_) => false,
        Entry::Vacant(place) => {
            place.insert(number);
            true
        }
    }
}
