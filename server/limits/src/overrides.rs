//! Overrides: other policies for some keys of a limit.
//!
//! Here: the tables, and finding the override of a counted key: an exact key, else the longest
//! prefix (`acme:*`), else the smallest network (`login:10.0.0.0/8`: a literal, then an address up
//! to the key's end). None of the three searches is linear. A table keeps each key and each
//! different policy once. Not here: making a table (`builder`), checking that an override can match
//! (`rules`), reading a file (`overrides_file`).

use std::sync::Arc;

use hashbrown::{HashMap, HashTable};
use protocol::Policy;

pub(super) use self::builder::OverrideTableBuilder;
use super::capture::{ADDRESS_BYTES_MAX, CaptureClass, ip};
use super::exact_index::{ExactIndex, ExactKey, IndexedKey};
use super::key_hash::key_hash;
use super::networks::{Network, Networks};
use super::override_id::{OverrideId, OverrideSource};
use super::texts::Texts;
use super::trie::Trie;
use super::wheres::WhereTable;
use crate::files::FileMark;

mod builder;

/// The keys of one override, as parts of its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum OverrideKeys<'t> {
    Exact(&'t str),
    Prefix(&'t str),
    Network(&'t str, Network),
}

/// The overrides of one limit, in one table for each origin. The tables are shared, so that a
/// change of one table copies no other.
#[derive(Debug, Clone, Default)]
pub(super) struct Overrides {
    tables: [Option<Arc<OverrideTable>>; 3],
    /// Entries by captures, which come after those of all tables.
    wheres: Option<Arc<WhereTable>>,
    /// The origin with the largest index of exact keys, if one has an index. What a search in it
    /// reads is prefetched.
    largest: Option<OverrideSource>,
    /// Whether no other table comes before the largest.
    is_largest_first: bool,
    /// Whether the exact keys of the largest table are all overrides.
    is_largest_alone: bool,
}

impl Overrides {
    /// Replaces the table of an origin.
    pub(super) fn set(&mut self, source: OverrideSource, table: Option<Arc<OverrideTable>>) {
        if let Some(own) = self.tables.get_mut(source as usize) {
            *own = table;
        }
        self.note_largest();
    }

    /// Notes which table is the largest, after each change.
    fn note_largest(&mut self) {
        let index_bytes = |source: &OverrideSource| {
            self.tables[*source as usize].as_ref().map_or(0, |table| table.exact.bytes())
        };
        let largest = OverrideSource::ALL.into_iter().max_by_key(index_bytes);
        self.largest = largest.filter(|source| index_bytes(source) > 0);
        let mut sources =
            OverrideSource::ALL.into_iter().filter(|source| self.table(*source).is_some());
        let (first, second) = (sources.next(), sources.next());
        self.is_largest_first = self.largest.is_some() && first == self.largest;
        self.is_largest_alone = self.is_largest_first
            && second.is_none()
            && self.wheres.is_none()
            && self.largest_table().is_some_and(OverrideTable::has_exact_keys_alone);
    }

    pub(super) fn table(&self, source: OverrideSource) -> Option<&Arc<OverrideTable>> {
        self.tables.get(source as usize)?.as_ref()
    }

    /// Replaces the entries by captures.
    pub(super) fn set_wheres(&mut self, wheres: Option<Arc<WhereTable>>) {
        self.wheres = wheres;
        self.note_largest();
    }

    pub(super) fn wheres(&self) -> Option<&WhereTable> {
        self.wheres.as_deref()
    }

    /// Returns the key as written, or the text of the entry, and the policy.
    pub(super) fn row(&self, id: OverrideId) -> Option<(&str, &Policy)> {
        match id.source {
            OverrideSource::Where => self.wheres()?.row(id.index as usize),
            source => self.table(source)?.row(id.index as usize),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.wheres.is_none() && self.tables.iter().all(Option::is_none)
    }

    /// Whether an override has several policies.
    pub(super) fn have_lists(&self) -> bool {
        let mut policies = self.tables.iter().flatten().flat_map(|table| &table.policies);
        policies.any(Policy::is_list)
    }

    /// The number of overrides of all origins.
    pub(super) fn len(&self) -> usize {
        let wheres = self.wheres().map_or(0, WhereTable::len);
        self.tables.iter().flatten().map(|table| table.len()).sum::<usize>() + wheres
    }

    /// Returns the weight of an override, if it has one.
    pub(super) fn weight(&self, id: OverrideId) -> Option<u64> {
        match id.source {
            OverrideSource::Where => self.wheres()?.weight(id.index),
            source => self.table(source)?.weight(id.index),
        }
    }

    /// Whether an override of any origin has a weight.
    pub(super) fn has_weights(&self) -> bool {
        self.tables.iter().flatten().any(|table| table.has_weights())
            || self.wheres().is_some_and(WhereTable::has_weights)
    }

    /// Bytes of the indices of exact keys.
    pub(super) fn index_bytes(&self) -> usize {
        self.tables.iter().flatten().map(|table| table.exact.bytes()).sum()
    }

    /// The table with the largest index of exact keys.
    #[inline]
    pub(super) fn largest_table(&self) -> Option<&OverrideTable> {
        self.table(self.largest?).map(|table| &**table)
    }

    /// Returns the override of a counted key.
    // Not inlined: a limit without overrides must pay nothing for those of others.
    #[inline(never)]
    pub(super) fn find(&self, key: &[u8]) -> Option<(OverrideId, &Policy)> {
        self.find_in(key, |table| table.find(key))
    }

    /// [`Overrides::find`] with the hash of the key.
    #[inline(never)]
    pub(super) fn find_hashed(&self, key: &[u8], hash: u64) -> Option<(OverrideId, &Policy)> {
        self.find_in(key, |table| table.find_hashed(key, hash))
    }

    /// Returns the table with the largest index of exact keys, if no other table comes before it.
    #[inline]
    pub(super) fn largest_first(&self) -> Option<(OverrideSource, &OverrideTable)> {
        let source = self.largest.filter(|_| self.is_largest_first)?;
        Some((source, self.table(source)?))
    }

    /// Whether the exact keys of the largest table are all overrides.
    #[inline]
    pub(super) fn is_largest_alone(&self) -> bool {
        self.is_largest_alone
    }

    #[inline]
    fn find_in<'o>(
        &'o self,
        key: &[u8],
        find: impl Fn(&'o OverrideTable) -> Option<(u32, &'o Policy)>,
    ) -> Option<(OverrideId, &'o Policy)> {
        let found = OverrideSource::ALL.into_iter().find_map(|source| {
            let (index, policy) = find(self.tables[source as usize].as_ref()?)?;
            Some((OverrideId { source, index }, policy))
        });
        found.or_else(|| {
            let (index, policy) = self.wheres.as_ref()?.find(key)?;
            Some((OverrideId { source: OverrideSource::Where, index }, policy))
        })
    }
}

/// The overrides of one limit and one origin, by number.
#[derive(Debug, Default)]
pub struct OverrideTable {
    /// Different policies only: a million overrides usually have a few.
    policies: Vec<Policy>,
    /// The same without the flags of the limit, for a table of the API: they may change.
    written: Vec<Policy>,
    /// The place of each override's policy.
    rows: Vec<u32>,
    /// The weights of the overrides that have one.
    weights: HashMap<u32, u64>,
    /// The keys as written. That of an exact key is the key itself.
    texts: Texts,
    /// The exact keys, found by their texts.
    pub(super) exact: ExactIndex,
    prefixes: Trie,
    /// Indexed by the literal before the address.
    networks: HashMap<Box<[u8]>, Networks>,
    /// Lengths of these literals, longest first.
    literal_lens: Vec<usize>,
    /// The version of the file that the overrides come from, if they come from one.
    pub(super) mark: Option<FileMark>,
}

impl OverrideTable {
    /// Returns the index of the exact keys, which have these numbers.
    fn index(&self, numbers: HashTable<u32>) -> ExactIndex {
        // In their order, so that the texts are read in theirs.
        let mut numbers: Vec<u32> = numbers.into_iter().collect();
        numbers.sort_unstable();
        ExactIndex::new(&numbers.iter().map(|number| {
            let text = self.texts.get(*number as usize).unwrap_or_default().as_bytes();
            let key = ExactKey { number: *number, policy: self.rows[*number as usize] };
            let start = self.texts.place(*number as usize);
            IndexedKey { text, start, hash: key_hash(text), key }
        }))
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether another table has the same overrides in the same order.
    pub(super) fn has_rows_of(&self, other: &Self) -> bool {
        let policies = |table: &Self, place: &u32| table.policies.get(*place as usize).copied();
        self.texts == other.texts
            && self.weights == other.weights
            && self
                .rows
                .iter()
                .map(|place| policies(self, place))
                .eq(other.rows.iter().map(|place| policies(other, place)))
    }

    /// Returns the key as written and the policy of the override with this number.
    pub(super) fn row(&self, number: usize) -> Option<(&str, &Policy)> {
        let policy = self.policies.get(*self.rows.get(number)? as usize)?;
        Some((self.texts.get(number)?, policy))
    }

    /// Returns the overrides in their order with their policies as written, if these are known.
    pub(super) fn written_rows(&self) -> impl Iterator<Item = (&str, (Policy, Option<u64>))> {
        self.rows.iter().enumerate().filter_map(|(number, place)| {
            let policy = *self.written.get(*place as usize)?;
            Some((self.texts.get(number)?, (policy, self.weight(number as u32))))
        })
    }

    /// Returns the overrides, as written, that are `literal` and a spelling of `network`.
    pub(super) fn spellings(&self, literal: &str, network: Network) -> impl Iterator<Item = &str> {
        let texts = self.containing("/").filter_map(|number| self.texts.get(number));
        texts.filter(move |text| {
            let address = text.strip_prefix(literal).and_then(Network::parse);
            address == Some(network)
        })
    }

    /// Returns the longest prefix, as written, that every key beginning with `front` has.
    pub(super) fn prefix_of(&self, front: &[u8]) -> Option<&str> {
        let mut longest = None;
        self.prefixes.walk(front, |number| longest = Some(number));
        self.texts.get(longest? as usize)
    }

    /// Returns a network that never applies, because a prefix takes all keys with its literal: both
    /// as written.
    pub(super) fn hidden_network(&self) -> Option<(&str, &str)> {
        self.networks.iter().find_map(|(literal, networks)| {
            let prefix = self.prefix_of(literal)?;
            Some((self.texts.get(networks.any()? as usize)?, prefix))
        })
    }

    /// Returns a network, as written, whose literal begins with `prefix`, which would hide it.
    pub(super) fn network_behind(&self, prefix: &[u8]) -> Option<&str> {
        let literals = self.networks.iter().filter(|(literal, _)| literal.starts_with(prefix));
        let first = literals.filter_map(|(_, networks)| networks.any()).min()?;
        self.texts.get(first as usize)
    }

    /// Returns the weight of the override with this number, if it has one.
    pub(super) fn weight(&self, number: u32) -> Option<u64> {
        self.weights.get(&number).copied()
    }

    /// Whether an override has a weight.
    pub(super) fn has_weights(&self) -> bool {
        !self.weights.is_empty()
    }

    /// Returns the exact keys, in no order.
    pub(super) fn exact_keys(&self) -> impl Iterator<Item = &str> {
        self.exact.keys().filter_map(|key| self.texts.get(key.number as usize))
    }

    /// Returns the numbers of the overrides whose keys, as written, contain `part`, in their order.
    pub(super) fn containing<'t>(&'t self, part: &'t str) -> impl Iterator<Item = usize> + 't {
        self.texts.containing(part)
    }

    /// Returns the override of a counted key.
    #[inline]
    fn find(&self, key: &[u8]) -> Option<(u32, &Policy)> {
        let hash = if self.exact.is_empty() { 0 } else { key_hash(key) };
        self.find_hashed(key, hash)
    }

    /// [`OverrideTable::find`] with the hash of the key.
    #[inline]
    fn find_hashed(&self, key: &[u8], hash: u64) -> Option<(u32, &Policy)> {
        match self.exact.find(key, hash, |start| self.stands_at(start, key)) {
            Some(one) => self.override_of(one),
            None => self.find_range(key),
        }
    }

    /// Returns the override of the longest prefix of a counted key, else of the smallest network
    /// with its address.
    #[inline]
    fn find_range(&self, key: &[u8]) -> Option<(u32, &Policy)> {
        let mut longest = None;
        self.prefixes.walk(key, |number| longest = Some(number));
        let number = longest.or_else(|| self.network(key))?;
        Some((number, self.policies.get(*self.rows.get(number as usize)? as usize)?))
    }

    /// Whether `key` stands at a place of the texts.
    #[inline]
    pub(super) fn stands_at(&self, start: u32, key: &[u8]) -> bool {
        self.texts.stands_at(start, key)
    }

    /// Prefetches the text of `len` bytes at a place.
    #[inline]
    pub(super) fn prefetch_text(&self, start: u32, len: usize) {
        self.texts.prefetch(start, len);
    }

    /// Whether there are no other overrides than exact keys.
    fn has_exact_keys_alone(&self) -> bool {
        self.prefixes.is_empty() && self.networks.is_empty()
    }

    /// Returns the override of an exact key.
    #[inline]
    pub(super) fn override_of(&self, one: ExactKey) -> Option<(u32, &Policy)> {
        Some((one.number, self.policies.get(one.policy as usize)?))
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

    fn table(rows: &[(&str, OverrideKeys<'_>)]) -> Arc<OverrideTable> {
        let policy = Policy::parse(b"unlimited").expect("a policy");
        let mut builder = OverrideTableBuilder::default();
        for (text, keys) in rows {
            assert!(builder.push(text, *keys, (policy, None)), "{text}");
            assert!(!builder.push(text, *keys, (policy, None)), "{text} a second time");
        }
        builder.build().expect("some overrides")
    }

    fn network<'t>(literal: &'t str, text: &str) -> OverrideKeys<'t> {
        OverrideKeys::Network(literal, Network::parse(text).expect(text))
    }

    #[test]
    fn exact_key_beats_longest_prefix_beats_network() {
        let overrides = table(&[
            ("l:10.0.0.1", OverrideKeys::Exact("l:10.0.0.1")),
            ("l:10.0.0.*", OverrideKeys::Prefix("l:10.0.0.")),
            ("l:10.0.*", OverrideKeys::Prefix("l:10.0.")),
            ("l:10.0.0.0/8", network("l:", "10.0.0.0/8")),
            ("l:10.9.0.0/16", network("l:", "10.9.0.0/16")),
            ("l:2001:db8::/32", network("l:", "2001:db8::/32")),
            ("10.0.0.0/8", network("", "10.0.0.0/8")),
        ]);
        for (key, expected) in [
            ("l:10.0.0.1", Some(0)),
            ("l:10.0.0.2", Some(1)),
            ("l:10.0.0.*", Some(1)),
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
