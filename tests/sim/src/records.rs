//! The limits, overrides and changes of a map, read by code of the tests' own.
//!
//! Here: the names and bodies of the records, and a copy that follows a map. Not here: the
//! properties that must hold (`invariants::changes`).

use std::collections::BTreeMap;

use serde_json::Value;
use tollgate::simulation::Map;

/// The changes that the history keeps.
pub(crate) const CHANGES_KEPT: u64 = 1_024;
/// The names of overrides, and of changes.
const OVERRIDE: &str = "@o/";
const CHANGE: &str = "@c/";

/// A limit, or an override of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Thing {
    pub(crate) limit: String,
    /// The key of the override; none for the limit itself.
    pub(crate) key: Option<String>,
}

/// The present state of a thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ThingState {
    pub(crate) version: u64,
    pub(crate) policy: String,
    /// The end of an override, in milliseconds since 1970.
    pub(crate) expires_ms: Option<u64>,
}

/// A change in the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChangeRow {
    pub(crate) seq: u64,
    pub(crate) at_ms: u64,
    pub(crate) via: String,
    pub(crate) thing: Thing,
    pub(crate) from: u64,
    /// The version of the record, and of the thing unless it is removed.
    pub(crate) version: u64,
    /// The number of the edit.
    pub(crate) edit: Option<u64>,
    /// The policy after the change; none for a removal.
    pub(crate) policy: Option<String>,
}

impl ChangeRow {
    /// The version of the thing after the change; 0 after a removal.
    pub(crate) fn to(&self) -> u64 {
        if self.policy.is_some() { self.version } else { 0 }
    }
}

/// The value of `policy` in a limit's TOML.
fn policy_of(toml: &str) -> String {
    let line = toml.lines().find_map(|line| line.strip_prefix("policy = \""));
    line.unwrap_or_default().trim_end_matches('"').to_owned()
}

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

fn read_override(version: u64, body: &[u8]) -> Option<(Thing, ThingState)> {
    let value: Value = serde_json::from_slice(body).ok()?;
    let thing = Thing { limit: text(&value, "limit"), key: Some(text(&value, "key")) };
    let (policy, expires_ms) = (text(&value, "policy"), value["expires_ms"].as_u64());
    Some((thing, ThingState { version, policy, expires_ms }))
}

fn read_change(version: u64, body: &[u8]) -> Option<ChangeRow> {
    let value: Value = serde_json::from_slice(body).ok()?;
    let is_limit = value["what"] == "limit";
    let body = value["body"].as_str();
    Some(ChangeRow {
        seq: value["seq"].as_u64()?,
        at_ms: value["at"].as_u64()?,
        via: text(&value, "via"),
        thing: Thing { limit: text(&value, "name"), key: value["key"].as_str().map(str::to_owned) },
        from: value["from"].as_u64()?,
        version,
        edit: value["note"].as_str().and_then(|note| note.parse().ok()),
        policy: body.map(|body| if is_limit { policy_of(body) } else { body.to_owned() }),
    })
}

/// The present state of a thing in a map.
pub(crate) fn state_of(map: &Map, thing: &Thing) -> Option<ThingState> {
    if thing.key.is_none() {
        let record = map.limits().get(&thing.limit)?;
        let policy = policy_of(&String::from_utf8_lossy(&record.body));
        return Some(ThingState { version: record.version, policy, expires_ms: None });
    }
    let rows = map.limits().range(OVERRIDE.to_owned()..).take_while(is_override);
    let mut rows = rows.filter_map(|(_, record)| read_override(record.version, &record.body));
    rows.find(|(other, _)| other == thing).map(|(_, state)| state)
}

fn is_override<T>((name, _): &(&String, &T)) -> bool {
    name.starts_with(OVERRIDE)
}

/// The records of a node's map.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) ver: u64,
    versions: BTreeMap<String, u64>,
    things: BTreeMap<String, (Thing, ThingState)>,
    /// By the name of the place in the ring.
    ring: BTreeMap<String, ChangeRow>,
}

impl Records {
    /// Reads what has changed. Returns the changes that are new here.
    pub(crate) fn follow(&mut self, map: &Map, found: &mut Vec<String>) -> Vec<ChangeRow> {
        self.ver = map.ver();
        let mut new = Vec::new();
        for (name, record) in map.limits() {
            if self.versions.insert(name.clone(), record.version) == Some(record.version) {
                continue;
            }
            if name.starts_with(CHANGE) {
                let Some(change) = read_change(record.version, &record.body) else {
                    found.push(format!("{name} cannot be read"));
                    continue;
                };
                new.push(change.clone());
                self.ring.insert(name.clone(), change);
            } else if name.starts_with(OVERRIDE) {
                match read_override(record.version, &record.body) {
                    Some(state) => _ = self.things.insert(name.clone(), state),
                    None => found.push(format!("{name} cannot be read")),
                }
            } else {
                let thing = Thing { limit: name.clone(), key: None };
                let policy = policy_of(&String::from_utf8_lossy(&record.body));
                let state = ThingState { version: record.version, policy, expires_ms: None };
                self.things.insert(name.clone(), (thing, state));
            }
        }
        if self.versions.len() > map.limits().len() {
            let has = |name: &String| map.limits().contains_key(name);
            self.versions.retain(|name, _| has(name));
            self.things.retain(|name, _| has(name));
            self.ring.retain(|name, _| has(name));
        }
        new
    }

    /// All limits and overrides.
    pub(crate) fn things(&self) -> impl Iterator<Item = &(Thing, ThingState)> {
        self.things.values()
    }

    /// The changes of the ring by number.
    pub(crate) fn changes(&self) -> BTreeMap<u64, &ChangeRow> {
        self.ring.values().map(|change| (change.seq, change)).collect()
    }
}
