//! Changes of limits: whole or not made, in a history without gaps, once, and equal on all nodes.
//!
//! Here: the records of each map that a node shows, the complete history, the answers to editors,
//! and the number of times that each property was tested. Not here: the edits (`editors`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tollgate::simulation::{self, Map, SimulatedNode};

use crate::editors::{Edit, Editors, KEYS, LIMITS, Outcome};
use crate::records::{CHANGES_KEPT, ChangeRow, Records, Thing, ThingState};

/// The versions of the map that are kept for comparisons.
const MAPS_KEPT: usize = 200;

/// The number of tests of each property in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChangeCounts {
    /// Maps that were compared with another node's map of the same version.
    pub equal_maps: u64,
    /// Limits and overrides that were compared with their last change.
    pub whole: u64,
    /// Maps whose history was searched for gaps.
    pub gapless: u64,
    /// Changes in the complete history.
    pub changes: u64,
    /// Changes that were acknowledged.
    pub acknowledged: u64,
    /// Edits that were refused, none of which may be in the history.
    pub refused: u64,
    /// Edits whose outcome is not known.
    pub unknown: u64,
    /// Versions that two editors or more wanted to replace.
    pub contests: u64,
    /// Removals of what has expired.
    pub expiries: u64,
    /// Overrides that were renewed within a second of their end.
    pub renewals: u64,
    /// Leaders of the control plane that all nodes agreed on, one after the other.
    pub leaders: u64,
}

impl ChangeCounts {
    /// The properties with the least number of tests in a run of 20 seconds of faults.
    #[must_use]
    pub fn too_rare(&self) -> Vec<String> {
        let least = [
            ("equal maps", self.equal_maps, 100),
            ("whole changes", self.whole, 500),
            ("histories without gaps", self.gapless, 60),
            ("changes", self.changes, 60),
            ("acknowledged changes", self.acknowledged, 20),
            ("refused edits", self.refused, 3),
            ("contests", self.contests, 1),
            ("expiries", self.expiries, 2),
        ];
        let rare = least.iter().filter(|(_, count, least)| count < least);
        rare.map(|(what, count, least)| format!("{what}: {count} tests, at least {least} wanted"))
            .collect()
    }
}

/// The observations of a run.
#[derive(Default)]
pub(crate) struct ChangeWatch {
    pub(crate) counts: ChangeCounts,
    nodes: BTreeMap<IpAddr, Records>,
    maps: BTreeMap<u64, Arc<Map>>,
    /// The complete history.
    history: BTreeMap<u64, ChangeRow>,
    /// Whether changes may be made without a record in the history: before the feature version.
    pub(crate) may_lack_history: bool,
    leader: Option<u32>,
}

impl ChangeWatch {
    /// Observes all running nodes.
    pub(crate) fn look(&mut self, sights: &[(IpAddr, SimulatedNode)], found: &mut Vec<String>) {
        let leaders: BTreeSet<u32> =
            sights.iter().filter_map(|(_, sight)| Some(sight.status.leader?.0)).collect();
        if let Some(leader) = leaders.first().copied().filter(|_| leaders.len() == 1)
            && self.leader.replace(leader) != Some(leader)
        {
            self.counts.leaders += 1;
        }
        for (address, sight) in sights {
            let is_known =
                self.nodes.get(address).is_some_and(|records| records.ver == sight.map.ver());
            if !is_known {
                self.look_at(*address, &sight.map, found);
            }
        }
    }

    fn look_at(&mut self, address: IpAddr, map: &Arc<Map>, found: &mut Vec<String>) {
        let ver = map.ver();
        if let Some(other) = self.maps.get(&ver) {
            self.counts.equal_maps += 1;
            if other != map {
                let names = map
                    .limits()
                    .iter()
                    .filter(|(name, record)| other.limits().get(*name) != Some(*record));
                let names: Vec<_> = names.map(|(name, _)| name.as_str()).take(5).collect();
                found.push(format!("map {ver} of {address} differs from another's: {names:?}"));
            }
        }
        self.maps.insert(ver, Arc::clone(map));
        if self.maps.len() > MAPS_KEPT {
            self.maps.pop_first();
        }
        let mut records = self.nodes.remove(&address).unwrap_or_default();
        if records.ver > ver {
            // A process that starts again may be behind the one before it.
            records = Records::default();
        }
        for change in records.follow(map, found) {
            let seq = change.seq;
            match self.history.insert(seq, change.clone()) {
                Some(before) if before != change => {
                    found.push(format!("change {seq} was {before:?}, and is {change:?}"));
                }
                _ => {}
            }
        }
        self.check_records(address, &records, found);
        self.nodes.insert(address, records);
    }

    fn check_records(&mut self, address: IpAddr, records: &Records, found: &mut Vec<String>) {
        let changes = records.changes();
        let Some((&last, _)) = changes.last_key_value() else { return };
        self.counts.gapless += 1;
        let first = last - last.min(CHANGES_KEPT) + 1;
        if !changes.keys().copied().eq(first..=last) {
            let missing = (first..=last).find(|seq| !changes.contains_key(seq));
            found.push(format!(
                "map {} of {address}: {} changes up to {last}, without {missing:?}",
                records.ver,
                changes.len()
            ));
        }
        let mut newest = BTreeMap::<&Thing, &ChangeRow>::new();
        newest.extend(changes.values().map(|change| (&change.thing, *change)));
        let mut present = BTreeMap::<&Thing, &ThingState>::new();
        present.extend(records.things().map(|(thing, state)| (thing, state)));
        for (thing, change) in &newest {
            self.counts.whole += 1;
            let state = present.get(*thing);
            let (policy, version) =
                state.map_or((None, 0), |state| (Some(&state.policy), state.version));
            if policy != change.policy.as_ref() || version != change.to() {
                found.push(format!(
                    "map {} of {address}: {thing:?} is {state:?}, and its last change {change:?}",
                    records.ver
                ));
            }
        }
        let is_full = last >= CHANGES_KEPT || self.may_lack_history;
        let unmade = present.keys().find(|thing| !newest.contains_key(*thing) && !is_full);
        if let Some(thing) = unmade {
            found.push(format!("map {} of {address}: no change made {thing:?}", records.ver));
        }
    }

    /// Checks the complete history and all answers at the end.
    pub(crate) fn check(
        &mut self,
        editors: &Editors,
        sights: &[(IpAddr, SimulatedNode)],
        found: &mut Vec<String>,
    ) {
        let last = self.history.last_key_value().map_or(0, |(seq, _)| *seq);
        if !self.history.keys().copied().eq(1..=last) {
            found
                .push(format!("{} changes of {last} were ever in the history", self.history.len()));
        }
        self.counts.changes = last;
        let edits = editors.edits.borrow();
        let by_number: BTreeMap<u64, &Edit> =
            edits.iter().map(|edit| (edit.number, edit)).collect();
        self.check_chains(&by_number, found);
        self.check_answers(&edits, found);
        let Some((first_address, first)) = sights.first() else { return };
        for (address, sight) in sights {
            if sight.map != first.map {
                let vers = (first.map.ver(), sight.map.ver());
                found.push(format!("{first_address} and {address} end with other maps: {vers:?}"));
            }
            check_in_force(*address, &sight.map, found);
        }
    }

    /// Each change of a thing replaces the version that the change before it made. So two changes
    /// of one version cannot both be made, and nothing is removed twice.
    fn check_chains(&mut self, edits: &BTreeMap<u64, &Edit>, found: &mut Vec<String>) {
        let mut states = BTreeMap::<&Thing, (u64, Option<u64>)>::new();
        for (seq, change) in &self.history {
            let edit = change.edit.and_then(|number| edits.get(&number));
            let (version, expires_ms) = states.get(&change.thing).copied().unwrap_or_default();
            if change.from != version && !(self.may_lack_history && version == 0) {
                found.push(format!("change {seq} replaces {}, not {version}", change.from));
            }
            if change.via == "expiry" {
                self.counts.expiries += 1;
                if expires_ms.is_none_or(|end_ms| change.at_ms < end_ms) {
                    found.push(format!("{change:?} removes what ends at {expires_ms:?}"));
                }
            } else if expires_ms.is_some_and(|end_ms| change.at_ms + 1000 > end_ms) {
                self.counts.renewals += u64::from(change.policy.is_some());
            }
            let ends = edit.and_then(|edit| edit.expires_ms);
            states.insert(&change.thing, (change.to(), ends));
        }
    }

    fn check_answers(&mut self, edits: &[Edit], found: &mut Vec<String>) {
        let mut noted = BTreeMap::<u64, u64>::new();
        for number in self.history.values().filter_map(|change| change.edit) {
            *noted.entry(number).or_default() += 1;
        }
        let mut contests = BTreeMap::<(&Thing, u64), (u64, u64)>::new();
        for edit in edits {
            let times = noted.get(&edit.number).copied().unwrap_or(0);
            if times > 1 {
                found.push(format!("{edit:?} was made {times} times"));
            }
            let decided = contests.entry((&edit.thing, edit.base)).or_default();
            match &edit.outcome {
                Outcome::Done(done) if done.seq == 0 => {}
                Outcome::Done(done) => {
                    self.counts.acknowledged += 1;
                    *decided = (decided.0 + 1, decided.1 + 1);
                    let change = self.history.get(&done.seq);
                    let is_it = |change: &&ChangeRow| {
                        change.thing == edit.thing
                            && change.to() == done.version
                            && (change.edit == Some(edit.number) || !edit.is_noted)
                    };
                    if change.as_ref().is_none_or(|change| !is_it(change)) {
                        found
                            .push(format!("{edit:?} was acknowledged, and history has {change:?}"));
                    }
                }
                Outcome::Refused(_) => {
                    self.counts.refused += 1;
                    decided.0 += 1;
                    if times > 0 {
                        found.push(format!("{edit:?} was refused, and made"));
                    }
                }
                Outcome::Unknown => self.counts.unknown += 1,
            }
        }
        for ((thing, base), (all, won)) in contests.into_iter().filter(|((_, base), _)| *base > 0) {
            self.counts.contests += u64::from(all > 1);
            if won > 1 {
                found.push(format!("{won} editors replaced version {base} of {thing:?}"));
            }
        }
    }
}

/// A node decides by the limits and overrides of its map.
fn check_in_force(address: IpAddr, map: &Map, found: &mut Vec<String>) {
    let policy = |limit: &str, key: Option<&str>| {
        let thing = Thing { limit: limit.to_owned(), key: key.map(str::to_owned) };
        crate::records::state_of(map, &thing).map(|state| state.policy)
    };
    for number in 0..LIMITS {
        let limit = format!("l{number}");
        let own = policy(&limit, None);
        let keys = (0..KEYS).map(|key| format!("{limit}:x{key}"));
        for key in keys.chain([format!("{limit}:other")]) {
            let wanted = own.clone().map(|own| policy(&limit, Some(&key)).unwrap_or(own));
            let in_force = simulation::policy_in_force(address, &key);
            if in_force != Some(wanted.clone().unwrap_or_default()) {
                found.push(format!("{address} decides {key} by {in_force:?}, not {wanted:?}"));
            }
        }
    }
}
