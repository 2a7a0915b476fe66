//! Overrides by captures: `where = { ip = ["10.0.0.0/8"], user = "root" }`.
//!
//! Here: the entries of a limit, compiled, and finding the first one in file order whose captures
//! all match. Not here: reading them (`file`), checking them (`where_rules`), overrides by key
//! (`overrides`).
//!
//! The captures are those of the counted key, so a counted key has one policy, whichever node looks
//! at it. An entry is a bit. Each capture has the entries of each of its values; the entries that
//! all captures allow remain.

use std::sync::Arc;

use hashbrown::HashMap;
use protocol::Policy;

use super::capture::ip;
use super::networks::{Network, Networks};
use super::pattern::{Captures, Pattern};
use super::trie::Trie;
use super::with_line::WithLine;

/// Most entries with `where` of one limit.
pub(super) const WHERES_MAX: usize = 512;

/// The words of a set of entries.
const WORDS: usize = WHERES_MAX / u64::BITS as usize;

/// An entry as written.
#[derive(Debug, Clone)]
pub(super) struct WhereText {
    pub(super) line: usize,
    /// The names of captures, each with its values.
    pub(super) captures: Vec<(WithLine<String>, Vec<WithLine<String>>)>,
    pub(super) policy: Policy,
    /// Multiplies the cost of a request, in place of the limit's weight.
    pub(super) weight: Option<u64>,
}

impl std::fmt::Display for WhereText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("where ")?;
        for (at, (name, values)) in self.captures.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            let values: Vec<&str> = values.iter().map(|value| value.value.as_str()).collect();
            write!(f, "{comma}{} = {}", name.value, values.join(" | "))?;
        }
        Ok(())
    }
}

/// A value of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WhereValue {
    Exact(String),
    /// Every text that begins so.
    Prefix(String),
    Network(Network),
}

impl WhereValue {
    /// Whether every text of `other` is one of this value.
    pub(super) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(own), Self::Exact(other)) => own == other,
            (Self::Prefix(own), Self::Exact(other) | Self::Prefix(other)) => other.starts_with(own),
            (Self::Network(own), Self::Network(other)) => own.contains(*other),
            _ => false,
        }
    }
}

/// A set of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct EntrySet([u64; WORDS]);

impl EntrySet {
    const NONE: Self = Self([0; WORDS]);
    const ALL: Self = Self([u64::MAX; WORDS]);

    fn put(&mut self, entry: usize) {
        self.0[entry / 64] |= 1 << (entry % 64);
    }

    fn remove(&mut self, entry: usize) {
        self.0[entry / 64] &= !(1 << (entry % 64));
    }

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own |= other);
    }

    fn keep(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own &= other);
    }

    fn first(&self) -> Option<usize> {
        let word = self.0.iter().position(|word| *word != 0)?;
        Some(word * 64 + self.0[word].trailing_zeros() as usize)
    }
}

/// The values of one capture, each with the entries that have it.
#[derive(Debug)]
struct WhereCapture {
    /// The slot in the pattern of the counted key.
    slot: u8,
    /// The entries that do not name the capture.
    free: EntrySet,
    exact: HashMap<Box<[u8]>, EntrySet>,
    prefixes: Trie,
    prefix_entries: Vec<EntrySet>,
    networks: Networks,
    /// The entries of each network and of those around it.
    network_entries: Vec<EntrySet>,
}

impl WhereCapture {
    fn entries(&self, text: &[u8]) -> EntrySet {
        let mut entries = self.free;
        if let Some(exact) = self.exact.get(text) {
            entries.add(exact);
        }
        self.prefixes.walk(text, |number| entries.add(&self.prefix_entries[number as usize]));
        if !self.network_entries.is_empty()
            && let Some(number) = ip(text).and_then(|address| self.networks.find(address))
        {
            entries.add(&self.network_entries[number as usize]);
        }
        entries
    }
}

/// The entries with `where` of one limit, in file order.
#[derive(Debug)]
pub(super) struct WhereTable {
    /// The pattern of the counted keys.
    pattern: Pattern,
    captures: Vec<WhereCapture>,
    rows: Vec<WhereRow>,
}

/// An entry, compiled.
#[derive(Debug, Clone, PartialEq)]
struct WhereRow {
    /// The entry as written.
    text: String,
    policy: Policy,
    weight: Option<u64>,
}

/// The entries with `where` of a limit that are being compiled.
#[derive(Debug)]
pub(super) struct WhereBuilder {
    pattern: Pattern,
    /// The values of each capture by its slot, each with the number of its entry.
    values: Vec<(u8, Vec<(WhereValue, usize)>)>,
    rows: Vec<WhereRow>,
}

impl WhereBuilder {
    /// Starts with the pattern of the counted keys.
    pub(super) fn new(pattern: Pattern) -> Self {
        Self { pattern, values: Vec::new(), rows: Vec::new() }
    }

    /// Adds an entry. `captures` has slots of the pattern.
    pub(super) fn push(
        &mut self,
        text: String,
        captures: Vec<(u8, Vec<WhereValue>)>,
        (policy, weight): (Policy, Option<u64>),
    ) {
        let entry = self.rows.len();
        for (slot, values) in captures {
            let at = self.values.iter().position(|(known, _)| *known == slot);
            let at = at.unwrap_or_else(|| {
                self.values.push((slot, Vec::new()));
                self.values.len() - 1
            });
            self.values[at].1.extend(values.into_iter().map(|value| (value, entry)));
        }
        self.rows.push(WhereRow { text, policy, weight });
    }

    /// Returns the table.
    pub(super) fn build(self) -> Arc<WhereTable> {
        let captures = self.values.into_iter().map(|(slot, values)| capture_of(slot, values));
        let captures = captures.collect();
        Arc::new(WhereTable { pattern: self.pattern, captures, rows: self.rows })
    }
}

fn capture_of(slot: u8, values: Vec<(WhereValue, usize)>) -> WhereCapture {
    let mut free = EntrySet::ALL;
    let mut exact = HashMap::<Box<[u8]>, EntrySet>::new();
    let mut prefixes = HashMap::<String, EntrySet>::new();
    let mut networks = HashMap::<Network, EntrySet>::new();
    for (value, entry) in values {
        free.remove(entry);
        let entries = match value {
            WhereValue::Exact(text) => {
                exact.entry(text.into_bytes().into()).or_insert(EntrySet::NONE)
            }
            WhereValue::Prefix(text) => prefixes.entry(text).or_insert(EntrySet::NONE),
            WhereValue::Network(network) => networks.entry(network).or_insert(EntrySet::NONE),
        };
        entries.put(entry);
    }
    let numbered = |count: usize| 0..count as u32;
    let (texts, prefix_entries): (Vec<String>, Vec<EntrySet>) = prefixes.into_iter().unzip();
    let texts = texts.iter().map(String::as_bytes).zip(numbered(texts.len())).collect();
    let own: Vec<(Network, EntrySet)> = networks.into_iter().collect();
    let network_entries = own.iter().map(|(network, _)| {
        let mut entries = EntrySet::NONE;
        let around = own.iter().filter(|(other, _)| other.contains(*network));
        around.for_each(|(_, other)| entries.add(other));
        entries
    });
    let network_entries = network_entries.collect();
    let ranges: Vec<(Network, u32)> =
        own.iter().map(|(network, _)| *network).zip(numbered(own.len())).collect();
    WhereCapture {
        slot,
        free,
        exact,
        prefixes: Trie::new(texts),
        prefix_entries,
        networks: Networks::new(&ranges),
        network_entries,
    }
}

impl WhereTable {
    /// The number of entries.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the text and the policy of the entry with this number.
    pub(super) fn row(&self, number: usize) -> Option<(&str, &Policy)> {
        self.rows.get(number).map(|row| (row.text.as_str(), &row.policy))
    }

    /// Returns the weight of the entry with this number, if it has one.
    pub(super) fn weight(&self, number: u32) -> Option<u64> {
        self.rows.get(number as usize)?.weight
    }

    /// Whether an entry has a weight.
    pub(super) fn has_weights(&self) -> bool {
        self.rows.iter().any(|row| row.weight.is_some())
    }

    /// Whether another table has the same entries.
    pub(super) fn has_rows_of(&self, other: &Self) -> bool {
        self.rows == other.rows && self.pattern.is_same(&other.pattern)
    }

    /// Returns the first entry in file order for a counted key.
    pub(super) fn find(&self, key: &[u8]) -> Option<(u32, &Policy)> {
        let mut captures = Captures::default();
        if !self.pattern.matches(key, &mut captures) {
            return None;
        }
        let mut entries = EntrySet::ALL;
        for capture in &self.captures {
            entries.keep(&capture.entries(captures.get(key, capture.slot)));
        }
        let first = entries.first()?;
        Some((first as u32, &self.rows.get(first)?.policy))
    }
}
