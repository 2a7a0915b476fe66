//! The properties that must hold when all faults are over and no work is left.
//!
//! The surviving state names its last step, and each step the one before. Counters give unique
//! replies, so linearizability is a matter of sorting.

use std::collections::{BTreeMap, BTreeSet};

use cluster::Partition;

use super::payload::{KEYS, KeyKind};
use super::world::{Call, Counters, Ended, World};
use crate::control::End;
use crate::journal::Step;

/// A step's time may lag by a pause within a round, so the next step may seem to jump by this much.
const PAUSE_NS: u64 = 3_000_000_000;

/// Checks a run that has come to rest.
pub(super) fn check(world: &mut World) {
    if !world.report.violations.is_empty() {
        return;
    }
    let mut found = Vec::new();
    for at in 0..world.control.entries().len() {
        let partition = Partition(at as u16);
        world.report.counters.checked_copies += equal_copies(world, partition, &mut found);
        for key in (0..KEYS).filter(|key| KeyKind::of(*key) != KeyKind::Plain) {
            let mut keyed = Keyed::new(world, partition, key);
            keyed.check();
            found.append(&mut keyed.found);
            let counters = keyed.counters;
            world.report.counters.add(&counters);
        }
    }
    if world.profile.base.is_gentle {
        let is_unknown = |call: &&Call| call.ended == Ended::Unknown;
        let count = world.calls.iter().filter(is_unknown).count();
        if count > 0 {
            found.push(format!("{count} clients do not know, though nothing failed"));
        }
    }
    for what in found {
        world.violation(what);
    }
}

/// Returns the number of compared pairs.
fn equal_copies(world: &World, partition: Partition, found: &mut Vec<String>) -> u64 {
    let entry = world.control.entry(partition);
    let copies: Vec<_> = entry
        .in_sync
        .iter()
        .filter_map(|copy| {
            let node = world.nodes.get(&copy.node)?;
            let digest = node.payloads[partition.index()].digest();
            Some((*copy, node.position(partition), digest))
        })
        .collect();
    let wanted = world.control.replicas().min(world.nodes.len());
    if copies.len() != wanted {
        found.push(format!("{partition}: {} copies, {wanted} are wanted", copies.len()));
    }
    for pair in copies.windows(2) {
        if (pair[0].1, pair[0].2) != (pair[1].1, pair[1].2) {
            found.push(format!("{partition}: {} and {} differ", pair[0].0, pair[1].0));
        }
    }
    copies.len().saturating_sub(1) as u64
}

/// The operations on one key, and its history.
struct Keyed<'a> {
    world: &'a World,
    name: String,
    partition: Partition,
    is_early: bool,
    calls: Vec<(u32, Call)>,
    history: Vec<u32>,
    found: Vec<String>,
    counters: Counters,
}

impl<'a> Keyed<'a> {
    fn new(world: &'a World, partition: Partition, key: u8) -> Self {
        let entry = world.control.entry(partition);
        let node = entry.primary.and_then(|primary| world.nodes.get(&primary.node));
        let head = node.map_or(0, |node| node.payloads[partition.index()].head(key));
        let calls = world.calls.iter().enumerate();
        let calls = calls.filter(|(_, call)| call.partition == partition && call.key == key);
        Self {
            world,
            name: format!("{partition} k{key} ({:?})", KeyKind::of(key)),
            partition,
            is_early: KeyKind::of(key) == KeyKind::Early,
            calls: calls.map(|(number, call)| (number as u32, *call)).collect(),
            history: world.journal.history(head),
            found: Vec::new(),
            counters: Counters::default(),
        }
    }

    fn may_lose(&self) -> bool {
        self.world.profile.base.may_lose || self.world.lost.contains(&self.partition)
    }

    fn step(&self, number: u32) -> Step {
        self.world.journal.step(number)
    }

    fn check(&mut self) {
        self.counters.steps += self.history.len() as u64;
        self.answered();
        self.once();
        self.time();
    }

    /// Everything that was answered is in the history, and in the order of real time.
    fn answered(&mut self) {
        let root = self.history.first().copied().unwrap_or(0);
        let places: BTreeMap<u32, usize> =
            self.history.iter().enumerate().map(|(place, step)| (*step, place + 1)).collect();
        let mut early_lost: BTreeMap<u32, Vec<Step>> = BTreeMap::new();
        let mut seen = Vec::new();
        for &(number, call) in &self.calls {
            let Ended::Done(answer) = call.ended else { continue };
            let step = self.step(answer.head);
            self.counters.checked_answers += 1;
            if answer.changed && step.call != number {
                self.found.push(format!("{}: call {number} got another's answer", self.name));
            }
            if answer.head == 0 {
                if !self.may_lose() {
                    seen.push((0, answer.changed, call, number));
                }
            } else if let Some(&place) = places.get(&answer.head) {
                seen.push((place, answer.changed, call, number));
            } else if self.is_early {
                if answer.changed && (step.root == root || !self.may_lose()) {
                    early_lost.entry(step.term).or_default().push(step);
                }
            } else if step.root == root || !self.may_lose() {
                self.counters.lost += 1;
                let what = if answer.changed { "is lost" } else { "saw what never was" };
                let term = step.term;
                self.found.push(format!("{}: call {number} of term {term} {what}", self.name));
            }
        }
        if self.is_early {
            self.early(&early_lost);
        } else if !self.may_lose() {
            self.order(&seen);
        }
    }

    /// Early replies may be lost with their primary: no more than the lag, and none where it handed
    /// over.
    fn early(&mut self, lost: &BTreeMap<u32, Vec<Step>>) {
        for (term, steps) in lost {
            self.counters.early_lost += steps.len() as u64;
            self.counters.checked_early += 1;
            let begin = steps.iter().map(|step| step.true_ns).min().unwrap_or(0);
            let end = steps.iter().map(|step| step.true_ns).max().unwrap_or(0);
            // Marks of time are 250 us apart, and a clock is read before the shards are locked.
            let lag_ns = self.world.profile.options.owner_lag_ns + 1_000_000;
            if end - begin > lag_ns {
                let span = (end - begin) / 1_000_000;
                self.found.push(format!("{}: {span} ms of early answers are lost", self.name));
            }
            let ended = self.world.control.ends.get(&(self.partition, *term));
            if matches!(ended, Some((End::Transfer, _))) {
                self.found.push(format!("{}: a handover lost early answers", self.name));
            }
        }
    }

    /// In the order of the history, no operation ends before an earlier one has begun.
    fn order(&mut self, seen: &[(usize, bool, Call, u32)]) {
        let count = self.history.len();
        let mut begun = vec![0; count + 1];
        let mut later = vec![u64::MAX; count + 2];
        for (place, step) in self.history.iter().enumerate() {
            let call = self.world.calls[self.step(*step).call as usize];
            begun[place + 1] = call.invoked_ns;
            later[place + 1] = call.ended_ns;
        }
        for place in 1..=count {
            begun[place] = begun[place].max(begun[place - 1]);
        }
        for place in (0..=count).rev() {
            later[place] = later[place + 1].min(later[place]);
        }
        for &(place, _, call, number) in seen {
            self.counters.checked_order += 1;
            if call.ended_ns < begun[place] {
                self.found.push(format!("{}: call {number} saw what began later", self.name));
            }
            if later[place + 1] < call.invoked_ns {
                self.found.push(format!("{}: call {number} missed what had ended", self.name));
            }
        }
        let mut looks: Vec<_> = seen.iter().filter(|one| !one.1).collect();
        looks.sort_by_key(|one| one.2.invoked_ns);
        let mut by_end = looks.clone();
        by_end.sort_by_key(|one| one.2.ended_ns);
        let (mut next, mut highest) = (0, 0);
        self.counters.checked_reads += looks.len() as u64;
        for look in looks {
            while next < by_end.len() && by_end[next].2.ended_ns < look.2.invoked_ns {
                highest = highest.max(by_end[next].0);
                next += 1;
            }
            if look.0 < highest {
                self.found.push(format!("{}: call {} saw less than one before", self.name, look.3));
            }
        }
    }

    /// No operation is in the history twice, and none that was certainly not applied.
    fn once(&mut self) {
        let mut calls = BTreeSet::new();
        self.counters.checked_once += self.history.len() as u64;
        let is_refused = |(_, call): &&(u32, Call)| call.ended == Ended::NotApplied;
        self.counters.checked_refused += self.calls.iter().filter(is_refused).count() as u64;
        for number in self.history.clone() {
            let call = self.step(number).call;
            if !calls.insert(call) {
                self.counters.double += 1;
                let mut steps = self.history.iter().map(|number| self.step(*number));
                let first = steps.find(|step| step.call == call).unwrap_or_default();
                let second = self.step(number);
                self.found.push(format!(
                    "{}: call {call} is done twice, in term {} at {} us and in term {} at {} us",
                    self.name,
                    first.term,
                    first.true_ns / 1000,
                    second.term,
                    second.true_ns / 1000,
                ));
            }
            match self.world.calls[call as usize].ended {
                Ended::NotApplied => {
                    self.found.push(format!("{}: call {call} was applied after all", self.name));
                }
                Ended::Done(answer) if answer.head != number && !self.is_early => {
                    self.found.push(format!("{}: call {call} was done again", self.name));
                }
                Ended::Done(_) | Ended::Unknown | Ended::Pending => {}
            }
        }
    }

    /// The partition's time never runs back, and is no faster than clocks may be.
    fn time(&mut self) {
        let rate_ppm = self.world.profile.base.rate_ppm;
        for pair in self.history.windows(2) {
            let (first, second) = (self.step(pair[0]), self.step(pair[1]));
            self.counters.checked_clock += 1;
            if second.pt_ns < first.pt_ns {
                let back = first.pt_ns - second.pt_ns;
                self.found.push(format!("{}: the time ran back by {back} ns", self.name));
                return;
            }
            let passed = second.true_ns - first.true_ns;
            let most = passed + passed * 2 * rate_ppm / 1_000_000 + PAUSE_NS;
            if second.pt_ns - first.pt_ns > most {
                let ahead = (second.pt_ns - first.pt_ns - passed) / 1_000_000;
                self.found.push(format!("{}: the time jumped by {ahead} ms", self.name));
                return;
            }
        }
    }
}
