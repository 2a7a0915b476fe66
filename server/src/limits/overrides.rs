//! Overrides: other policies for some keys of a limit.
//!
//! Here: finding the override of a counted key: an exact key, else the longest prefix (`acme:*`),
//! else the smallest network (`login:10.0.0.0/8`: a literal, then an address up to the key's end).
//! None of the three searches is linear. Not here: checking that an override can match (`rules`).

use std::sync::Arc;

use hashbrown::HashMap;
use protocol::Policy;

use super::networks::{Network, Networks};
use super::pattern::{CaptureClass, ip};
use super::trie::Trie;

/// Maximum length of an address as text: IPv6 with an IPv4 tail.
const ADDRESS_BYTES_MAX: usize = 45;

/// The keys of one override.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum OverrideKeys {
    Exact(Vec<u8>),
    Prefix(Vec<u8>),
    Network(Vec<u8>, Network),
}

/// The origin of an override. In this order they apply to a key: the first one that has an override
/// of it wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OverrideSource {
    /// Set by an operator or a program while the server runs.
    Api,
    /// Written in the limit itself.
    Inline,
    /// Read from the limit's `overrides_file`.
    File,
}

impl OverrideSource {
    const ALL: [Self; 3] = [Self::Api, Self::Inline, Self::File];

    /// Returns the word for the origin.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Inline => "inline",
            Self::File => "file",
        }
    }
}

/// An override in force: its origin, and its number in the table of this origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverrideId {
    /// The origin.
    pub source: OverrideSource,
    /// The number, from 0.
    pub index: u32,
}

/// One override.
#[derive(Debug, Clone)]
pub(super) struct OverrideRow {
    /// The key as written.
    pub(super) text: String,
    pub(super) keys: OverrideKeys,
    pub(super) policy: Policy,
}

/// The overrides of one limit, in one table for each origin. The tables are shared, so that a
/// change of one table copies no other.
#[derive(Debug, Clone, Default)]
pub(super) struct Overrides {
    tables: [Option<Arc<OverrideTable>>; 3],
}

impl Overrides {
    /// Replaces the table of an origin.
    pub(super) fn set(&mut self, source: OverrideSource, table: Option<Arc<OverrideTable>>) {
        self.tables[source as usize] = table;
    }

    pub(super) fn table(&self, source: OverrideSource) -> Option<&Arc<OverrideTable>> {
        self.tables[source as usize].as_ref()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tables.iter().all(Option::is_none)
    }

    /// The number of overrides of all origins.
    pub(super) fn len(&self) -> usize {
        self.tables.iter().flatten().map(|table| table.len()).sum()
    }

    /// Returns the override of a counted key.
    // Not inlined: a limit without overrides must pay nothing for those of others.
    #[inline(never)]
    pub(super) fn find(&self, key: &[u8]) -> Option<(OverrideId, &Policy)> {
        OverrideSource::ALL.into_iter().find_map(|source| {
            let table = self.tables[source as usize].as_ref()?;
            let (index, policy) = table.find(key)?;
            Some((OverrideId { source, index }, policy))
        })
    }
}

/// The overrides of one limit and one origin, by number.
#[derive(Debug, Default)]
pub(super) struct OverrideTable {
    /// Different policies only: a million overrides usually have a few.
    policies: Vec<Policy>,
    /// The place of each override's policy.
    rows: Vec<u32>,
    /// The keys as written, one after the other.
    texts: String,
    /// The end of each of them.
    ends: Vec<u32>,
    exact: HashMap<Vec<u8>, u32>,
    prefixes: Trie,
    /// Indexed by the literal before the address.
    networks: HashMap<Vec<u8>, Networks>,
    /// Lengths of these literals, longest first.
    literal_lens: Vec<usize>,
}

impl OverrideTable {
    /// Makes a table. The texts have less than 4 GiB in total: there are at most a million.
    pub(super) fn new(overrides: impl IntoIterator<Item = OverrideRow>) -> Self {
        let mut new = Self::default();
        let mut prefixes = Vec::new();
        let mut networks = HashMap::<Vec<u8>, Vec<(Network, u32)>>::new();
        let mut known = HashMap::<Policy, u32>::new();
        for (number, OverrideRow { text, keys, policy }) in (0..).zip(overrides) {
            let place = *known.entry(policy).or_insert_with(|| {
                new.policies.push(policy);
                new.policies.len() as u32 - 1
            });
            new.rows.push(place);
            new.texts.push_str(&text);
            new.ends.push(new.texts.len() as u32);
            match keys {
                OverrideKeys::Exact(key) => drop(new.exact.insert(key, number)),
                OverrideKeys::Prefix(prefix) => prefixes.push((prefix, number)),
                OverrideKeys::Network(literal, network) => {
                    networks.entry(literal).or_default().push((network, number));
                }
            }
        }
        new.prefixes = Trie::new(prefixes.iter().map(|(p, n)| (p.as_slice(), *n)).collect());
        new.literal_lens = networks.keys().map(Vec::len).collect();
        new.literal_lens.sort_unstable_by(|one, other| other.cmp(one));
        new.literal_lens.dedup();
        let ranges = networks.into_iter();
        new.networks = ranges.map(|(literal, of)| (literal, Networks::new(&of))).collect();
        new
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the key as written and the policy of the override with this number.
    pub(super) fn row(&self, number: usize) -> Option<(&str, &Policy)> {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        let text = self.texts.get(start as usize..*self.ends.get(number)? as usize)?;
        Some((text, self.policies.get(*self.rows.get(number)? as usize)?))
    }

    /// Returns the override of a counted key.
    #[inline]
    fn find(&self, key: &[u8]) -> Option<(u32, &Policy)> {
        let number = self.number(key)?;
        Some((number, self.policies.get(*self.rows.get(number as usize)? as usize)?))
    }

    fn number(&self, key: &[u8]) -> Option<u32> {
        if !self.exact.is_empty()
            && let Some(number) = self.exact.get(key)
        {
            return Some(*number);
        }
        let mut longest = None;
        self.prefixes.walk(key, |number| longest = Some(number));
        longest.or_else(|| self.network(key))
    }

    fn network(&self, key: &[u8]) -> Option<u32> {
        let (shortest, longest) = (self.literal_lens.last()?, self.literal_lens.first()?);
        // The address ends the key, so the literal includes at least every byte before the trailing
        // run of address bytes.
        let bytes =
            key.iter().rev().take(ADDRESS_BYTES_MAX).take_while(|b| CaptureClass::Ip.has(**b));
        let start = key.len() - bytes.count();
        if start > *longest || key.len() <= *shortest {
            return None;
        }
        let lens = self.literal_lens.iter().filter(|len| (start..key.len()).contains(*len));
        lens.copied().find_map(|len| {
            let (literal, address) = key.split_at(len);
            self.networks.get(literal)?.find(ip(address)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overrides(keys: Vec<OverrideKeys>) -> OverrideTable {
        let policy = Policy::parse(b"unlimited").expect("a policy");
        let row = |keys| OverrideRow { text: String::new(), keys, policy };
        OverrideTable::new(keys.into_iter().map(row))
    }

    fn network(literal: &str, text: &str) -> OverrideKeys {
        OverrideKeys::Network(literal.into(), Network::parse(text).expect(text))
    }

    #[test]
    fn exact_key_beats_longest_prefix_beats_network() {
        let overrides = overrides(vec![
            OverrideKeys::Exact("l:10.0.0.1".into()),
            OverrideKeys::Prefix("l:10.0.0.".into()),
            OverrideKeys::Prefix("l:10.0.".into()),
            network("l:", "10.0.0.0/8"),
            network("l:", "10.9.0.0/16"),
            network("l:", "2001:db8::/32"),
            network("", "10.0.0.0/8"),
        ]);
        for (key, expected) in [
            ("l:10.0.0.1", Some(0)),
            ("l:10.0.0.2", Some(1)),
            ("l:10.0.9.2", Some(2)),
            ("l:10.8.0.1", Some(3)),
            ("l:10.9.0.1", Some(4)),
            ("l:2001:db8::1", Some(5)),
            ("l:::ffff:10.9.0.1", Some(4)),
            ("10.9.0.1", Some(6)),
            ("l:11.0.0.1", None),
            ("l:10.9.0.1x", None),
            ("l:", None),
        ] {
            let found = overrides.find(key.as_bytes()).map(|(index, _)| index);
            assert_eq!(found, expected, "{key}");
        }
    }
}
