//! What must be true when all faults are over and nothing is left to do.
//!
//! Histories come from the journal: the state that survives names its last step, a step the one
//! before. Counters give unique answers, so linearizability is a matter of sorting.

use std::collections::{BTreeMap, BTreeSet};

use cluster::Partition;

use crate::control::End;
use crate::journal::Step;
use crate::payload::{Answer, Borrower, CAPACITY, Deed, Payload, REFILL, Sort, Verb};
use crate::world::{Call, Ended, World};

/// Checks a run that has come to rest.
pub(crate) fn check(world: &mut World) {
    if !world.report.violations.is_empty() {
        return;
    }
    let mut found = Vec::new();
    for at in 0..world.control.entries().len() {
        let partition = Partition(at as u16);
        equal_copies(world, partition, &mut found);
        let keys: BTreeSet<u8> = world
            .calls
            .iter()
            .filter(|call| call.partition == partition)
            .map(|call| call.key)
            .collect();
        for key in keys.into_iter().filter(|key| Sort::of(*key) != Sort::Plain) {
            let mut keyed = Keyed::new(world, partition, key);
            keyed.check();
            found.append(&mut keyed.found);
            let figures = keyed.figures;
            world.report.figures.add(&figures);
        }
    }
    for call in &world.calls {
        let figures = &mut world.report.figures;
        match call.ended {
            Ended::Done(_) => figures.done += 1,
            Ended::NotApplied => figures.not_applied += 1,
            Ended::Unknown | Ended::Pending => figures.unknown += 1,
        }
    }
    if world.profile.is_gentle {
        let is_error = |call: &&Call| matches!(call.ended, Ended::NotApplied | Ended::Unknown);
        let errors = world.calls.iter().filter(is_error).count();
        if errors > 0 {
            found.push(format!("{errors} clients noticed joins, drains and handoffs"));
        }
    }
    for what in found {
        world.violation(what);
    }
}

/// All copies are equal, their results too, and there are as many as wanted.
fn equal_copies(world: &World, partition: Partition, found: &mut Vec<String>) {
    let entry = world.control.entry(partition);
    let at = partition.index();
    let copies: Vec<_> = entry
        .in_sync
        .iter()
        .filter_map(|copy| {
            let node = world.nodes.get(&copy.node)?;
            let replica = &node.replicas[at];
            // The same time for all: what is past its deadline by then is gone everywhere.
            let states = node.payloads[at].states(LATE_NS);
            // And a time at which no id is over.
            let ids = node.payloads[at].all_ids(0);
            Some((*copy, node.position(partition), states, replica.results(), ids))
        })
        .collect();
    let wanted = world.control.replicas().min(world.nodes.len());
    if copies.len() != wanted {
        found.push(format!("{partition}: {} copies, {wanted} are wanted", copies.len()));
    }
    for pair in copies.windows(2) {
        let (left, right) = (&pair[0], &pair[1]);
        if left.1 != right.1 || left.2 != right.2 {
            found.push(format!("{partition}: {} and {} differ", left.0, right.0));
        }
        if left.3 != right.3 {
            found.push(format!("{partition}: results of {} and {} differ", left.0, right.0));
        }
        if left.4 != right.4 {
            found.push(format!("{partition}: ids of {} and {} differ", left.0, right.0));
        }
    }
}

/// A time after every deadline but those of holds.
const LATE_NS: u64 = 700_000_000_000_000_000;

/// The calls on one key, and its history.
struct Keyed<'a> {
    world: &'a World,
    name: String,
    partition: Partition,
    key: u8,
    calls: Vec<(u32, Call)>,
    /// The steps that survived, the first one first.
    history: Vec<u32>,
    found: Vec<String>,
    figures: crate::world::Figures,
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
            name: format!("{partition} k{key} ({:?})", Sort::of(key)),
            partition,
            key,
            calls: calls.map(|(number, call)| (number as u32, *call)).collect(),
            history: world.journal.borrow().history(head),
            found: Vec::new(),
            figures: crate::world::Figures::default(),
        }
    }

    /// Whether there was a moment when no in-sync copy was up, or one given up for being out of reach.
    fn may_lose(&self) -> bool {
        self.world.profile.may_lose || self.world.lost.contains(&self.partition)
    }

    fn step(&self, number: u32) -> Step {
        self.world.journal.borrow().step(number)
    }

    fn check(&mut self) {
        let last = std::mem::take(&mut self.history);
        self.figures.steps += last.len() as u64;
        // One history for each time the partition began anew; of those before the last, the part
        // that somebody was told of.
        let mut heads: BTreeMap<u32, u32> = BTreeMap::new();
        for (_, call) in &self.calls {
            if let Ended::Done(Answer { head, .. }) = call.ended
                && head != 0
            {
                let step = self.step(head);
                let known = heads.entry(step.root).or_insert(head);
                if self.step(*known).depth < step.depth {
                    *known = head;
                }
            }
        }
        let final_root = last.first().copied().unwrap_or(0);
        let is_early = Sort::of(self.key).is_early();
        for (root, head) in heads {
            let is_final = root == final_root;
            if is_early && !is_final {
                continue;
            }
            if !is_final && !self.may_lose() {
                self.found.push(format!("{}: a history is gone from step {root} on", self.name));
                self.figures.lost += 1;
                continue;
            }
            let history =
                if is_final { last.clone() } else { self.world.journal.borrow().history(head) };
            self.check_history(root, &history);
        }
        self.history = last;
        self.once();
        self.ids();
        self.replay();
        self.limit();
        self.time();
    }

    /// Everything that was answered is in the history, and in real-time order.
    fn check_history(&mut self, root: u32, history: &[u32]) {
        let place: BTreeMap<u32, usize> =
            history.iter().enumerate().map(|(place, step)| (*step, place + 1)).collect();
        let mut lost: BTreeMap<u32, Vec<Step>> = BTreeMap::new();
        // What each call says: at this place of the history, from then to then.
        let mut seen: Vec<(usize, bool, Call, u32)> = Vec::new();
        for &(number, call) in &self.calls {
            let Ended::Done(answer) = call.ended else { continue };
            let step = self.step(answer.head);
            if answer.head != 0 && step.root != root {
                continue;
            }
            if answer.changed && (step.call != number || step.value != answer.value) {
                self.found.push(format!("{}: call {number} got another's answer", self.name));
            }
            match place.get(&answer.head) {
                Some(&at) => seen.push((at, answer.changed, call, number)),
                None if answer.head == 0 => {
                    if !self.may_lose() {
                        seen.push((0, false, call, number));
                    }
                }
                None if Sort::of(self.key).is_early() => {
                    if answer.changed {
                        lost.entry(step.term).or_default().push(step);
                    }
                }
                None => {
                    self.figures.lost += 1;
                    let what = if answer.changed { "is lost" } else { "saw what never was" };
                    self.found.push(format!("{}: call {number} {what}", self.name));
                }
            }
        }
        if Sort::of(self.key).is_early() {
            self.early(&lost);
        } else {
            self.order(history, &seen);
        }
    }

    /// In the order of the history, nothing ends before something earlier in it has begun.
    fn order(&mut self, history: &[u32], seen: &[(usize, bool, Call, u32)]) {
        let count = history.len();
        // By place: when the last of what is at or before it begins.
        let mut begun = vec![0; count + 1];
        let mut ended = vec![u64::MAX; count + 1];
        for (place, step) in history.iter().enumerate() {
            let call = self.world.calls[self.step(*step).call as usize];
            begun[place + 1] = call.invoked_ns;
            ended[place + 1] = call.ended_ns;
        }
        for place in 1..=count {
            begun[place] = begun[place].max(begun[place - 1]);
        }
        let mut later = vec![u64::MAX; count + 2];
        for place in (0..=count).rev() {
            later[place] = later[place + 1].min(ended[place]);
        }
        for &(place, changed, call, number) in seen {
            if call.ended_ns < begun[place] {
                self.found.push(format!("{}: call {number} saw what began later", self.name));
            }
            // What ended before this began must be at or before its place.
            let _ = changed;
            if later[place + 1] < call.invoked_ns {
                self.found.push(format!("{}: call {number} missed what had ended", self.name));
            }
        }
        let mut looks: Vec<_> = seen.iter().filter(|one| !one.1).collect();
        looks.sort_by_key(|one| one.2.invoked_ns);
        let mut by_end = looks.clone();
        by_end.sort_by_key(|one| one.2.ended_ns);
        let (mut next, mut highest) = (0, 0);
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

    /// What was answered early may be lost with its primary: no more than the lag, and nothing where
    /// the primary handed over.
    fn early(&mut self, lost: &BTreeMap<u32, Vec<Step>>) {
        let Some((_, call)) = self.calls.first() else { return };
        for (term, steps) in lost {
            self.figures.early_lost += steps.len() as u64;
            let begin = steps.iter().map(|step| step.pt_ns).min().unwrap_or(0);
            let end = steps.iter().map(|step| step.pt_ns).max().unwrap_or(0);
            let lag_ns = self.world.profile.options.owner_lag_ns;
            if end - begin > lag_ns {
                let span = (end - begin) / 1_000_000;
                self.found.push(format!("{}: {span} ms of early answers are lost", self.name));
            }
            let ended = self.world.control.ends.get(&(call.partition, *term));
            if matches!(ended, Some((End::Transfer, _))) {
                self.found.push(format!("{}: a handover lost early answers", self.name));
            }
        }
    }

    /// No operation is in the history twice, and none that certainly was not applied.
    fn once(&mut self) {
        let mut steps = BTreeSet::new();
        for number in self.history.clone() {
            let call = self.step(number).call;
            if !steps.insert(call) {
                self.figures.double += 1;
                self.found.push(format!("{}: call {call} is done twice", self.name));
            }
            match self.world.calls[call as usize].ended {
                Ended::NotApplied => {
                    self.found.push(format!("{}: call {call} was applied after all", self.name));
                }
                Ended::Unknown | Ended::Pending => self.figures.unknown_applied += 1,
                Ended::Done(answer) => {
                    let is_early = Sort::of(self.key).is_early();
                    if answer.head != number && !is_early {
                        self.found.push(format!("{}: call {call} was done again", self.name));
                    }
                }
            }
        }
    }

    /// An id is in the history once, and whoever repeats it hears the first answer.
    fn ids(&mut self) {
        let (mut done, mut answers) = (BTreeSet::new(), BTreeMap::new());
        for number in self.history.clone() {
            let call = self.step(number).call;
            let Verb::Once(_, id) = self.world.calls[call as usize].verb else { continue };
            if !done.insert(id) {
                self.figures.double += 1;
                self.found.push(format!("{}: id {id} is counted again by {call}", self.name));
            }
        }
        for (number, call) in &self.calls {
            if let (Verb::Once(_, id), Ended::Done(answer)) = (call.verb, call.ended)
                && !self.may_lose()
            {
                let first = *answers.entry(id).or_insert(answer.value);
                self.figures.ids_repeated += u64::from(id != *number);
                if first != answer.value {
                    let (name, value) = (&self.name, answer.value);
                    let what = format!("call {number} got {value} for id {id}, {first} is right");
                    self.found.push(format!("{name}: {what}"));
                }
            }
        }
    }

    /// A fresh engine that does the same in the same order says the same: nothing of a state was lost
    /// on its way through copies and takeovers.
    fn replay(&mut self) {
        let mut twin = Payload::new(std::rc::Rc::default(), None);
        let mut leases: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
        let mut borrowers: BTreeMap<u32, u32> = BTreeMap::new();
        for number in self.history.clone() {
            let step = self.step(number);
            let verb = match self.world.calls[step.call as usize].verb {
                Verb::Settle(lease, actual) => {
                    let Some((own, term)) = leases.remove(&lease) else {
                        self.found.push(format!("{}: an unknown lease is settled", self.name));
                        return;
                    };
                    self.figures.holds_moved += u64::from(term != step.term);
                    Verb::Settle(own, actual)
                }
                verb => verb,
            };
            if let Verb::Lease(Borrower { client, .. }, _) = verb {
                let before = borrowers.insert(client, step.term);
                self.figures.leases_moved +=
                    u64::from(before.is_some_and(|term| term != step.term));
            }
            let deed = Deed { call: step.call, key: self.key, verb };
            let (value, lease, _) = twin.perform(step.pt_ns, deed, None);
            if value != step.value {
                let (got, call) = (step.value, step.call);
                self.found.push(format!("{}: call {call} got {got}, {value} is right", self.name));
                return;
            }
            if step.lease != 0 {
                leases.insert(step.lease, (lease, step.term));
            }
        }
        for (number, call) in &self.calls {
            let Verb::Settle(lease, _) = call.verb else { continue };
            let is_refused = matches!(call.ended, Ended::Done(answer) if answer.value == 0);
            if is_refused && !self.may_lose() {
                let name = &self.name;
                self.found.push(format!("{name}: call {number} found no hold of lease {lease}"));
            }
        }
    }

    /// By true time, no more was admitted than capacity and refill allow.
    fn limit(&mut self) {
        /// The levels' unit is a millionth of a billionth of a token.
        const TOKEN: u128 = 1_000_000_000_000_000;
        // What is lent is not refilled: leases let no more through than takes.
        if !matches!(
            Sort::of(self.key),
            Sort::Bucket | Sort::EarlyBucket | Sort::Leases | Sort::Ids
        ) {
            return;
        }
        let (mut level, mut before_ns) = (0_u128, 0);
        let capacity = u128::from(CAPACITY) * TOKEN;
        for number in self.history.clone() {
            let step = self.step(number);
            let elapsed = step.true_ns.saturating_sub(before_ns);
            before_ns = step.true_ns;
            let refilled = self.longest(elapsed) * u128::from(REFILL);
            level = level.saturating_sub(refilled) + u128::from(step.value) * TOKEN;
            if level > capacity + TOKEN / 100 {
                self.found.push(format!("{}: call {} is over the limit", self.name, step.call));
                return;
            }
        }
    }

    /// The longest partition time in so much true time, in millionths of nanoseconds: no clock runs
    /// faster, and nothing corrects it.
    fn longest(&self, true_ns: u64) -> u128 {
        let ppm = 1_000_000 + self.world.profile.rate_ppm;
        u128::from(true_ns) * u128::from(ppm)
    }

    /// Time goes on, and never faster than true time but for what clocks may differ.
    fn time(&mut self) {
        let steps: Vec<Step> = self.history.iter().map(|number| self.step(*number)).collect();
        for pair in steps.windows(2) {
            let (before, after) = (pair[0], pair[1]);
            if after.pt_ns < before.pt_ns {
                self.found.push(format!("{}: time runs back at call {}", self.name, after.call));
            }
            let passed = after.pt_ns.saturating_sub(before.pt_ns);
            let really = after.true_ns - before.true_ns;
            if u128::from(passed) * 1_000_000 > self.longest(really) + 1_000_000_000 {
                let what = format!("{passed} ns in {really} ns");
                self.found.push(format!("{}: {what} at call {}", self.name, after.call));
            }
        }
    }
}
