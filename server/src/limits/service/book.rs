//! The records of limits, overrides and history, parsed.
//!
//! Here: names and bodies of records, and a parsed copy that follows the store. Not here: changes
//! (`plan`), the store itself (`records`).
//!
//! | name | body |
//! |---|---|
//! | the limit's | order, origin and TOML (`map_text`) |
//! | `@exempt` | the same, of the exemptions |
//! | `@o/` and a hash of limit and key | an override as JSON |
//! | `@c/` and the number modulo [`CHANGES_KEPT`] | a change as JSON |

use std::collections::{BTreeMap, BTreeSet};

use cluster::map::{MapLimit, Put};
use hashbrown::HashMap;
use serde::{Deserialize, Serialize};
use tollgate_limits::map_text::{self, LimitSummary, OrderedLimit, Origin};
use xxhash_rust::xxh3::xxh3_128;

use crate::records::Records;

/// The first bytes of the names of overrides.
const OVERRIDE: &str = "@o/";
/// The first bytes of the names of changes.
const CHANGE: &str = "@c/";

/// Most overrides of the API, over all limits.
pub(crate) const OVERRIDES_MAX: usize = 10_000;
/// The changes that the history keeps.
pub(crate) const CHANGES_KEPT: u64 = 1_024;

/// A limit of the store.
#[derive(Debug, Clone)]
pub(super) struct StoredLimit {
    pub(super) version: u64,
    pub(super) entry: OrderedLimit,
    /// `None` for a text that this version cannot read.
    pub(super) summary: Option<LimitSummary>,
}

/// An override of the API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredOverride {
    /// The record's version; not part of the body.
    #[serde(skip)]
    pub(super) version: u64,
    pub(super) limit: String,
    pub(super) key: String,
    /// A policy, `allow` or `block`.
    pub(super) policy: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expires_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
    pub(super) by: String,
    pub(super) at: u64,
}

impl StoredOverride {
    /// Reads the body of a record; `None`: it is no override, or of another version.
    pub(super) fn of(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }
}

/// A change in the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredChange {
    /// The record's version, which is also that of the thing after the change; not part of the
    /// body.
    #[serde(skip)]
    pub(super) version: u64,
    pub(super) seq: u64,
    pub(super) at: u64,
    pub(super) by: String,
    pub(super) via: String,
    pub(super) what: String,
    pub(super) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    pub(super) from: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reverts: Option<u64>,
    /// The text after the change; none for a removal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) body: Option<String>,
    /// The number of the place that a removal has freed; earlier versions did not store it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) place: Option<i64>,
}

impl StoredChange {
    /// The word for a change of a limit.
    pub(super) const LIMIT: &'static str = "limit";
    /// The word for a change of an override.
    pub(super) const OVERRIDE: &'static str = "override";

    /// The version of the thing after the change; 0 after a removal.
    pub(super) fn to(&self) -> u64 {
        if self.body.is_some() { self.version } else { 0 }
    }

    pub(super) fn is_of(&self, what: &str, name: &str, key: Option<&str>) -> bool {
        self.what == what && self.name == name && self.key.as_deref() == key
    }
}

/// Returns the name of an override's record.
pub(super) fn override_name(limit: &str, key: &str) -> String {
    let text = [limit.as_bytes(), b"\0", key.as_bytes()].concat();
    format!("{OVERRIDE}{:032x}", xxh3_128(&text))
}

/// Whether a record of this name is a change of the history.
pub(super) fn is_change(name: &str) -> bool {
    name.starts_with(CHANGE)
}

fn change_name(seq: u64) -> String {
    format!("{CHANGE}{}", seq % ring_places())
}

/// The places of the ring of changes.
fn ring_places() -> u64 {
    #[cfg(feature = "simulation")]
    if crate::net::world::rules().lack(cluster::Bug::RingTooShort) {
        return CHANGES_KEPT - 1;
    }
    CHANGES_KEPT
}

/// The parts of a book that a change of the store has touched.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Touched {
    /// Whether limits changed.
    pub(super) limits: bool,
    /// The limits whose overrides changed.
    pub(super) overrides: BTreeSet<String>,
}

impl Touched {
    pub(super) fn is_nothing(&self) -> bool {
        !self.limits && self.overrides.is_empty()
    }
}

/// The parsed records.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// The mark of the records that were read.
    mark: Option<u64>,
    /// The highest version of a record, to find what has changed.
    newest: u64,
    /// The version of each record, to find what is gone.
    versions: HashMap<String, u64>,
    pub(super) limits: HashMap<String, StoredLimit>,
    /// By the name of the record.
    overrides: HashMap<String, StoredOverride>,
    /// The names of these records, by limit and key.
    of_limits: BTreeMap<String, BTreeMap<String, String>>,
    /// By number.
    pub(super) changes: BTreeMap<u64, StoredChange>,
    /// Whether the server runs without a limits file. What an earlier file said is in force then,
    /// and the API may remove or adopt it.
    pub(super) is_without_file: bool,
}

impl Book {
    /// Reads the records that have changed.
    pub(super) fn follow(&mut self, records: &dyn Records) -> Touched {
        let (mut touched, mut count) = (Touched::default(), 0);
        // Before the records: what changes meanwhile is read next time.
        let mark = records.mark();
        if self.mark.replace(mark) == Some(mark) {
            return touched;
        }
        let newest = self.newest;
        records.scan("", &mut |name, record| {
            count += 1;
            // A record that changes gets a version above all others.
            if record.version > newest {
                self.newest = self.newest.max(record.version);
                self.versions.insert(name.to_owned(), record.version);
                self.forget(name, &mut touched);
                self.read(name, record, &mut touched);
            }
        });
        if count < self.versions.len() {
            let is_gone = |name: &&String| records.get(name).is_none();
            let gone: Vec<String> = self.versions.keys().filter(is_gone).cloned().collect();
            for name in gone {
                self.versions.remove(&name);
                self.forget(&name, &mut touched);
            }
        }
        touched
    }

    fn read(&mut self, name: &str, record: &MapLimit, touched: &mut Touched) {
        let MapLimit { version, body } = record;
        if map_text::is_text(name) {
            let entry = OrderedLimit::of_body(name, body);
            let summary = LimitSummary::of(name, &entry.text.toml).ok();
            let limit = StoredLimit { version: *version, entry, summary };
            self.limits.insert(name.to_owned(), limit);
            touched.limits = true;
        } else if name.starts_with(OVERRIDE) {
            // A body that this version cannot read stays in the store and has no effect.
            let Some(mut row) = StoredOverride::of(body) else { return };
            row.version = *version;
            touched.overrides.insert(row.limit.clone());
            let keys = self.of_limits.entry(row.limit.clone()).or_default();
            keys.insert(row.key.clone(), name.to_owned());
            self.overrides.insert(name.to_owned(), row);
        } else if name.starts_with(CHANGE) {
            let Ok(mut change) = serde_json::from_slice::<StoredChange>(body) else { return };
            change.version = *version;
            // A slot has one change: the one before is too old now.
            if let Some(old) = change.seq.checked_sub(CHANGES_KEPT) {
                self.changes.remove(&old);
            }
            self.changes.insert(change.seq, change);
        }
    }

    fn forget(&mut self, name: &str, touched: &mut Touched) {
        touched.limits |= self.limits.remove(name).is_some();
        if let Some(row) = self.overrides.remove(name) {
            if let Some(keys) = self.of_limits.get_mut(&row.limit) {
                keys.remove(&row.key);
                if keys.is_empty() {
                    self.of_limits.remove(&row.limit);
                }
            }
            touched.overrides.insert(row.limit);
        }
    }

    /// Whether a limit is of a limits file that the server runs without.
    pub(super) fn lacks_file(&self, limit: &StoredLimit) -> bool {
        self.is_without_file && limit.entry.origin.source() == Origin::FILE
    }

    /// Returns the number of the place that the last removal of a limit has freed, if it is known.
    pub(super) fn place_of_removed(&self, name: &str) -> Option<i64> {
        let of_limit = |change: &&StoredChange| change.is_of(StoredChange::LIMIT, name, None);
        self.changes.values().rev().find(of_limit)?.place
    }

    /// Returns the number of limits.
    pub(super) fn limit_count(&self) -> usize {
        map_text::limit_count(self.limits.values().map(|limit| &limit.entry.text))
    }

    /// Returns the exemptions, if there are any, and the limits in the order in which a key is
    /// matched against them.
    pub(super) fn ordered(&self) -> Vec<&StoredLimit> {
        let mut limits: Vec<&StoredLimit> = self.limits.values().collect();
        limits.sort_by(|one, other| one.entry.place().cmp(&other.entry.place()));
        limits
    }

    /// Returns the texts of all limits, in order.
    pub(super) fn entries(&self) -> Vec<OrderedLimit> {
        self.ordered().into_iter().map(|limit| limit.entry.clone()).collect()
    }

    /// Returns an override.
    pub(super) fn override_of(&self, limit: &str, key: &str) -> Option<&StoredOverride> {
        self.overrides.get(self.of_limits.get(limit)?.get(key)?)
    }

    /// Returns the overrides of a limit, by key.
    pub(super) fn overrides_of(&self, limit: &str) -> impl Iterator<Item = &StoredOverride> {
        let names = self.of_limits.get(limit).into_iter().flat_map(BTreeMap::values);
        names.filter_map(|name| self.overrides.get(name))
    }

    /// Returns the names of all limits that have overrides, in force or not.
    pub(super) fn overridden_limits(&self) -> impl Iterator<Item = &str> {
        self.of_limits.keys().map(String::as_str)
    }

    pub(super) fn overrides(&self) -> impl Iterator<Item = &StoredOverride> {
        self.overrides.values()
    }

    pub(super) fn override_count(&self) -> usize {
        self.overrides.len()
    }

    /// Returns the time at which the next limit or override expires.
    pub(super) fn next_expiry_ms(&self) -> u64 {
        let limits = self.limits.values().filter_map(|limit| limit.summary.as_ref()?.expires_ms);
        let overrides = self.overrides.values().filter_map(|row| row.expires_ms);
        limits.chain(overrides).min().unwrap_or(u64::MAX)
    }

    /// Returns the number of the last change; 0 if there was none.
    pub(super) fn last_seq(&self) -> u64 {
        self.changes.last_key_value().map_or(0, |(seq, _)| *seq)
    }

    /// Returns the record of a change. The slot's present version makes two changes with one number
    /// impossible.
    pub(super) fn put_of_change(&self, change: &StoredChange) -> Put {
        let name = change_name(change.seq);
        let version = self.versions.get(&name).copied().unwrap_or(0);
        let body = serde_json::to_vec(change).ok();
        Put { name, version, body }
    }
}
