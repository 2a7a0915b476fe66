//! What a limit's client hears while nobody who owns the key can be asked.
//!
//! Here: which requests have such an answer, the node's own count, and what it owes the owners for it.
//! Not here: when an owner is out of reach (`front`), charging with the owners (`family`).
//!
//! By its setting a limit then lets everything pass, or nothing, or tells an error, or goes by a count
//! of the node's own: its part of the limit, one in so many as there are active nodes. What was let
//! pass so is charged to the owner as soon as it can be, once, beyond the limit if need be.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cluster::id::Partition;
use cluster::map::NodeState;
use engine::limit::{Ask, Decision, Verdict, take};
use engine::{Budget, Engine, Facts, KeyHasher, Limited, Now, Options, Rule, Take, added, adding};
use engine::{counted, taking};
use protocol::{
    Algorithm, Command, Decoded, Form, Native, Operation, Outcome, Policy, PolicyWord, Rate,
    Request, SetMode, VerdictLine, decode, encode,
};

use super::Node;
use super::delivery::{Delivery, Ending, Kind, Use, Waiter};
use super::front::operation;
use super::front::{Front, Lent};
use super::machine::{Sort, partition_of};
use super::own_holds::{HoldsToTell, OwnHolds};
use super::step::{Asked, Step, StepRule};
use crate::bound::written_policy;
use crate::limiting::{NEVER_WAITS, outcome_of_many, tell_many, units_of, verdict, waits_in_vain};
use crate::limits::{Found, OnUnavailable};
use crate::session::{LookedUp, Round, TakeMany, look_up};
use crate::together::Charged;

/// Most keys that a worker owes for; beyond that nothing passes.
const DEBTS_MAX: usize = 4096;
/// An owner that cannot be reached is told for so long what is owed.
const DEBT_DEADLINE_NS: u64 = 3_600_000_000_000;
/// A client that is denied is told to come again after so long.
const DENY_RETRY_NS: u64 = 1_000_000_000;
/// What the node's own counts may take of memory, as a part of all, and at least.
const LOCAL_PART: usize = 64;
const LOCAL_BYTES_MIN: usize = 1 << 20;

/// The counts of the node's own.
pub(super) struct Local {
    pub(super) engine: Engine,
    pub(super) hasher: KeyHasher,
    pub(super) holds: OwnHolds,
}

impl Local {
    pub(super) fn new(memory_bytes: usize) -> Self {
        use std::hash::{BuildHasher as _, RandomState};
        let seeds = std::array::from_fn(|number| RandomState::new().hash_one(number));
        let hasher = KeyHasher::new(seeds);
        let budget = Arc::new(Budget::new((memory_bytes / LOCAL_PART).max(LOCAL_BYTES_MIN)));
        let engine = Engine::new(hasher.clone(), budget, Options::default());
        Self { engine, hasher, holds: OwnHolds::default() }
    }
}

/// How a key's rule is told to its owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RuleWord {
    Named(Box<[u8]>),
    Written(Box<[u8]>),
}

impl RuleWord {
    pub(super) fn of_step(&self) -> StepRule<'_> {
        match self {
            Self::Named(limit) => StepRule::Named(limit),
            Self::Written(token) => StepRule::Written(token),
        }
    }
}

/// A key that a request charges.
pub(super) struct Charge {
    pub(super) rule: RuleWord,
    pub(super) policy: Policy,
    pub(super) key: Box<[u8]>,
    pub(super) partition: Partition,
    member: usize,
    times: u64,
}

/// What a worker owes for one key.
#[derive(Debug, Default)]
struct Debt {
    /// Units that the owner is being told of.
    told: u64,
    /// And those that came since.
    more: u64,
    partition: Partition,
}

/// What a worker owes, by rule and key.
#[derive(Debug, Default)]
pub(super) struct Debts {
    open: BTreeMap<(RuleWord, Box<[u8]>), Debt>,
    /// Which of them an operation is about.
    numbers: slab::Slab<(RuleWord, Box<[u8]>)>,
    pub(super) holds: HoldsToTell,
}

/// What a request takes, from which keys, and who answers for it.
struct Taking {
    take: Take,
    charges: Vec<Charge>,
    mode: OnUnavailable,
}

/// Whether a command has an answer while its owner cannot be asked.
pub(super) fn is_taking(command: &Command<'_>, form: &Form<'_>, looked: &LookedUp<'_>) -> bool {
    let is_bound = matches!(&looked.bound, Ok(Some(found)) if found.companion().is_none());
    match &command.operation {
        Operation::Native(Native::Take(take)) => {
            is_bound || !matches!(take.policy, PolicyWord::Bound)
        }
        Operation::Arithmetic(arithmetic) => {
            let has_policy = is_bound || written_policy(&command.operation, form).is_some();
            !arithmetic.decrement && arithmetic.delta > 0 && has_policy
        }
        Operation::Set(set) => set.mode == SetMode::Add && is_bound,
        _ => false,
    }
}

/// One in `nodes` parts of a policy; every node may let one unit pass.
fn share(policy: &Policy, nodes: u64) -> Policy {
    let part = |units: u64| (units / nodes).max(1);
    let slower = |rate: Rate| Rate { period: rate.period.saturating_mul(nodes), ..rate };
    let fewer = |rate: Rate| Rate { count: part(rate.count), ..rate };
    let algorithm = match policy.algorithm {
        Algorithm::Bucket { rate, capacity, init, debt, warm, interval } => Algorithm::Bucket {
            rate: slower(rate),
            capacity: part(capacity),
            init: (init / nodes).max(u64::from(init > 0)),
            debt: debt / nodes,
            warm,
            interval,
        },
        Algorithm::Gcra { rate, burst } => {
            Algorithm::Gcra { rate: slower(rate), burst: part(burst.saturating_add(1)) - 1 }
        }
        Algorithm::Leaky { rate, capacity, wait } => {
            Algorithm::Leaky { rate: slower(rate), capacity: part(capacity), wait }
        }
        Algorithm::Fixed { count, window } => Algorithm::Fixed { count: part(count), window },
        Algorithm::Sliding { rate, slices, oldest } => {
            Algorithm::Sliding { rate: fewer(rate), slices, oldest }
        }
        Algorithm::Log { rate, entries } => {
            Algorithm::Log { rate: fewer(rate), entries: part(entries) }
        }
        Algorithm::Concurrency { max, hold } => Algorithm::Concurrency { max: part(max), hold },
        other @ (Algorithm::Unlimited | Algorithm::Block) => other,
    };
    Policy { algorithm, ..*policy }
}

impl Charge {
    /// Whether what is taken of it is held, and given back when that ends.
    fn holds(&self, take: &Take) -> bool {
        take.hold.is_some() || matches!(self.policy.algorithm, Algorithm::Concurrency { .. })
    }

    /// How long that lasts.
    fn hold_ns(&self, take: &Take) -> u64 {
        match self.policy.algorithm {
            Algorithm::Concurrency { hold, .. } => take.hold.unwrap_or(hold),
            _ => take.hold.unwrap_or(0),
        }
    }
}

impl Node {
    /// One part in so many is what this node may let pass by itself.
    fn parts(&self) -> u64 {
        let Some(control) = self.control() else { return 1 };
        let map = control.map();
        let is_active = |node: &&cluster::map::Node| {
            node.state != NodeState::Dead && node.description.weight > 0
        };
        (map.nodes().values().filter(is_active).count() as u64).max(1)
    }

    /// Takes from the node's own counts: all or nothing.
    fn take_local(&self, now: Now, charges: &[Charge], ask: &Take) -> Charged {
        let parts = self.parts();
        // A name that no other node gives: the owner takes the hold over under it.
        let lease = charges.iter().any(|charge| charge.holds(ask)).then(|| self.name_hold());
        let ask = &Take { lease, ..*ask };
        let mut local = self.local.lock();
        let Local { engine, hasher, .. } = &mut *local;
        let mut facts = Vec::with_capacity(charges.len());
        for (number, charge) in charges.iter().enumerate() {
            let policy = share(&charge.policy, parts);
            let hash = hasher.hash(&charge.key);
            let units = Take {
                cost: ask.cost.saturating_mul(charge.times).min(protocol::COUNT_MAX),
                part: ask.part && charges.len() == 1,
                compare_cas: ask.compare_cas.filter(|_| number == 0),
                ..*ask
            };
            let taken = engine.take(now, hash, &charge.key, Some(Rule::from(&policy)), &units);
            if let Limited::Decided(decided) = taken
                && !decided.refuses()
            {
                facts.push(decided);
                continue;
            }
            for (before, facts) in charges.iter().zip(&facts).filter(|_| !ask.peek) {
                let (hash, key) = (hasher.hash(&before.key), &before.key);
                match facts.decision.lease {
                    Some(hold) => engine.settle(now, hash, key, hold, 0),
                    None => engine.put_back(now, hash, key, None, facts.decision.granted),
                };
            }
            let Limited::Decided(decided) = taken else { return Charged::undecided(taken) };
            facts.push(decided);
            return Charged::refused(&facts, number, charge.member);
        }
        let granted = facts.iter().map(|facts| facts.decision.granted).min();
        let granted = if ask.part { granted.unwrap_or(ask.cost).min(ask.cost) } else { ask.cost };
        Charged::allowed(&facts, granted, ask.cost)
    }
}

/// What a look at a key finds that has no state.
fn fresh(policy: &Policy, now: Now) -> Decision {
    take(policy, &mut Vec::new(), now, &Ask { cost: 0, peek: true, ..Ask::default() })
}

/// The most units that a policy lets pass at once.
fn whole_limit(policy: &Policy, now: Now) -> u64 {
    fresh(policy, now).limit
}

/// The same result of another limit.
fn with_limit(limited: Limited, limit: u64) -> Limited {
    match limited {
        Limited::Decided(facts) => {
            Limited::Decided(Facts { decision: Decision { limit, ..facts.decision }, ..facts })
        }
        other => other,
    }
}

/// What everybody is told, whatever was counted.
fn told(now: Now, policy: &Policy, ask: &Take, passes: bool) -> Charged {
    let fresh = fresh(policy, now);
    let decision = Decision {
        verdict: if passes { Verdict::Allow } else { Verdict::Deny },
        remaining: if passes { fresh.remaining } else { 0 },
        used: 0,
        granted: if passes { ask.cost } else { 0 },
        retry: Some(if passes { 0 } else { DENY_RETRY_NS }),
        reset: 0,
        changed: false,
        counted: false,
        lease: None,
        ..fresh
    };
    let facts =
        Facts { decision, cas: 0, client_flags: 0, has_state: false, shadow: policy.shadow };
    if facts.refuses() {
        Charged::refused(&[facts], 0, 0)
    } else {
        Charged::allowed(&[facts], ask.cost, ask.cost)
    }
}

impl Round<'_> {
    /// What a request takes; none if it has no answer without its owner.
    fn taking(
        &mut self,
        request: &Request<'_>,
        default: OnUnavailable,
        place: impl Fn(u64) -> Partition,
    ) -> Option<Taking> {
        let mut counted = Vec::new();
        match request {
            Request::TakeMany { cost, keys, peek, id, .. } => {
                let many = TakeMany { cost: *cost, keys: *keys, peek: *peek, id: *id };
                let is_listed = self.list_all(many.keys, &mut counted).ok()?;
                let take = Take { cost: many.cost, peek: many.peek, ..Take::default() };
                is_listed.then(|| self.listed(take, default, place))?
            }
            Request::Command { command, form } => {
                let own = command.key.as_bytes();
                let looked = look_up(self, own, &mut counted);
                if !is_taking(command, form, &looked) {
                    return None;
                }
                let hash = looked.hash;
                let found = looked.bound.as_ref().ok()?.as_ref();
                let bound = found.filter(|found| found.companion().is_none());
                let key = bound.map_or(own, Found::key);
                let (take, word) = match &command.operation {
                    Operation::Native(Native::Take(take)) => (units_of(take).0, take.policy),
                    Operation::Arithmetic(arithmetic) => (
                        taking(arithmetic),
                        written_policy(&command.operation, form)
                            .map_or(PolicyWord::Bound, PolicyWord::Written),
                    ),
                    Operation::Set(set) => (adding(set)?, PolicyWord::Bound),
                    _ => return None,
                };
                let (rule, policy, mode) = match word {
                    PolicyWord::Written(token) => {
                        let policy = Policy::parse(token).ok()?;
                        (RuleWord::Written(token.into()), policy, default)
                    }
                    PolicyWord::Named(name) => {
                        let limit = self.in_force.limits().by_name(name)?;
                        let mode = limit.on_unavailable().unwrap_or(default);
                        (RuleWord::Named(name.into()), *limit.policy_of(key), mode)
                    }
                    PolicyWord::Bound => {
                        let found = bound?;
                        if found.has_parents() {
                            self.list(found).ok()?;
                            return self.listed(take, default, place);
                        }
                        let limit = found.limit();
                        let mode = limit.on_unavailable().unwrap_or(default);
                        (RuleWord::Named(limit.name().as_bytes().into()), *found.policy(), mode)
                    }
                };
                let partition = place(hash);
                let charge =
                    Charge { rule, policy, key: key.into(), partition, member: 0, times: 1 };
                Some(Taking { take, charges: vec![charge], mode })
            }
            _ => None,
        }
    }

    /// The same of the keys that are listed.
    fn listed(
        &self,
        take: Take,
        default: OnUnavailable,
        place: impl Fn(u64) -> Partition,
    ) -> Option<Taking> {
        let limits = self.in_force.limits();
        let mut mode = None;
        let mut charges = Vec::new();
        for row in self.scratch.charges.rows() {
            let limit = limits.get(row.limit)?;
            mode = mode.or(limit.on_unavailable());
            charges.push(Charge {
                rule: RuleWord::Named(limit.name().as_bytes().into()),
                policy: *limit.policy_of(row.key),
                key: row.key.into(),
                partition: place(row.hash),
                member: row.member,
                times: row.times,
            });
        }
        Some(Taking { take, charges, mode: mode.unwrap_or(default) })
    }

    /// Tells a client what was decided without the owner. `policy` is the whole policy of the first key.
    fn tell_degraded(
        &mut self,
        request: &Request<'_>,
        policy: &Policy,
        charged: Charged,
        out: &mut Vec<u8>,
    ) {
        let degraded = |outcome| match outcome {
            Outcome::Verdict(line) => Outcome::Verdict(VerdictLine { degraded: true, ..line }),
            other => other,
        };
        let mut counted_key = Vec::new();
        match request {
            Request::TakeMany { quiet: false, .. } => {
                tell_many(&degraded(outcome_of_many(charged)), out);
            }
            Request::Command { command, form } => {
                let looked = look_up(self, command.key.as_bytes(), &mut counted_key);
                let found = looked.bound.as_ref().ok().and_then(Option::as_ref);
                let outcome = match &command.operation {
                    Operation::Native(Native::Take(take)) => {
                        degraded(verdict(charged.all, units_of(take).1))
                    }
                    Operation::Arithmetic(arithmetic) => {
                        // A plain client compares with the whole limit, not with this node's part.
                        let first = with_limit(charged.first, whole_limit(policy, self.now));
                        counted(first, taking(arithmetic).cost)
                    }
                    _ => added(charged.first),
                };
                match found {
                    Some(found) if !matches!(command.operation, Operation::Native(_)) => {
                        self.tell_bound(found, command, form, outcome, out);
                    }
                    _ => encode(out, command, form, &outcome),
                }
            }
            _ => {}
        }
    }
}

impl Debts {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.holds.is_empty()
    }

    fn len(&self) -> usize {
        self.open.len() + self.holds.len()
    }
}

impl Front {
    /// Answers a request whose owner cannot be asked; `error` where it has no other answer.
    pub(super) fn answer_degraded(
        &mut self,
        lent: &mut Lent<'_>,
        words: &[u8],
        error: &'static str,
    ) -> Bytes {
        let error = Bytes::from_static(error.as_bytes());
        let node = Arc::clone(self.node());
        let Some(space) = node.space() else { return error };
        let Some(default) = lent.service.config().cluster.as_ref().map(|c| c.on_unavailable) else {
            return error;
        };
        let bounds = lent.service.shards().bounds();
        let Ok(Decoded::Request { request, .. }) = decode(words, 0, bounds) else { return error };
        let mut round = lent.round();
        let place = |hash| partition_of(space, hash);
        let Some(Taking { take, charges, mode }) = round.taking(&request, default, place) else {
            return error;
        };
        let Some(first) = charges.first() else { return error };
        if waits_in_vain(take.wait, charges.iter().map(|charge| &charge.policy)) {
            let told = if error.is_empty() { String::new() } else { format!("{NEVER_WAITS}\r\n") };
            return Bytes::from(told);
        }
        let now = round.now;
        let charged = match mode {
            OnUnavailable::Error => return error,
            OnUnavailable::Allow => told(now, &first.policy, &take, true),
            OnUnavailable::Deny => told(now, &first.policy, &take, false),
            OnUnavailable::Local if self.debts.len() + charges.len() > DEBTS_MAX => {
                told(now, &first.policy, &take, false)
            }
            OnUnavailable::Local => node.take_local(now, &charges, &take),
        };
        let mut text = Vec::new();
        round.tell_degraded(&request, &first.policy, charged, &mut text);
        if let Limited::Decided(facts) = charged.all
            && !facts.refuses()
            && !take.peek
        {
            let granted = facts.decision.granted;
            node.figures.degraded.fetch_add(granted, Ordering::Relaxed);
            for (row, charge) in charges.into_iter().enumerate() {
                let units = granted.saturating_mul(charge.times).min(protocol::COUNT_MAX);
                if mode != OnUnavailable::Local || units == 0 {
                    continue;
                }
                match facts.decision.lease {
                    Some(lease) if charge.holds(&take) => {
                        let for_ns = charge.hold_ns(&take);
                        self.owe_hold(lent, (lease, row), charge, (units, for_ns));
                    }
                    _ => self.owe(lent, (charge.rule, charge.key), charge.partition, units),
                }
            }
        }
        Bytes::from(text)
    }

    /// Units were let pass that the owner of a key does not know of.
    pub(super) fn owe(
        &mut self,
        lent: &mut Lent<'_>,
        name: (RuleWord, Box<[u8]>),
        partition: Partition,
        units: u64,
    ) {
        self.node().figures.debt.fetch_add(units, Ordering::Relaxed);
        let debt = self.debts.open.entry(name.clone()).or_default();
        debt.more = debt.more.saturating_add(units);
        debt.partition = partition;
        self.tell_debt(lent, name);
    }

    /// Tells an owner what is owed for a key, unless it is being told already.
    fn tell_debt(&mut self, lent: &mut Lent<'_>, name: (RuleWord, Box<[u8]>)) {
        let Some(debt) = self.debts.open.get_mut(&name) else { return };
        if debt.told > 0 || debt.more == 0 {
            return;
        }
        debt.told = std::mem::take(&mut debt.more);
        let mut bytes = Vec::new();
        Step { rule: name.0.of_step(), key: &name.1, asked: Asked::Debt(debt.told) }
            .encode(&mut bytes);
        let partition = debt.partition;
        let used = Use::Debt(self.debts.numbers.insert(name));
        let op = operation(Sort::Step, &bytes);
        self.submit_until(lent, DEBT_DEADLINE_NS, partition, Kind::Write, &op, 0, used);
    }

    /// An owner has been told what was owed, or never will be.
    pub(super) fn debt_ended(&mut self, lent: &mut Lent<'_>, number: usize, ending: &Ending) {
        let Some(name) = self.debts.numbers.try_remove(number) else { return };
        let Some(debt) = self.debts.open.get_mut(&name) else { return };
        let told = std::mem::take(&mut debt.told);
        if matches!(ending, Ending::NotApplied(_)) {
            debt.more = debt.more.saturating_add(told);
        } else {
            self.node().figures.debt.fetch_sub(told, Ordering::Relaxed);
        }
        let Some(debt) = self.debts.open.get(&name) else { return };
        if debt.more == 0 {
            self.debts.open.remove(&name);
        } else if matches!(ending, Ending::Done(_)) {
            self.tell_debt(lent, name);
        }
    }

    /// What could not be told is tried again now and then, where the owner may be in reach.
    pub(super) fn tell_debts(&mut self, lent: &mut Lent<'_>) {
        self.tell_holds(lent);
        let waiting: Vec<_> = self
            .debts
            .open
            .iter()
            .filter(|(_, debt)| debt.told == 0 && debt.more > 0)
            .filter(|(_, debt)| !self.is_resting(lent.now, debt.partition))
            .map(|(name, _)| name.clone())
            .collect();
        for name in waiting {
            self.tell_debt(lent, name);
        }
    }

    /// Whoever waits for an answer that its owner did not give gets one of this node's.
    pub(super) fn answer_failed(
        &mut self,
        lent: &mut Lent<'_>,
        waiter: &Waiter,
        words: &[u8],
        quiet: bool,
        error: &'static str,
    ) {
        let text = self.answer_degraded(lent, words, if quiet { "" } else { error });
        self.deliveries.push(Delivery::said(waiter.client, waiter.place, text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_all_nodes_are_no_more_than_the_whole() {
        let limit = |policy: &Policy| {
            let look = Ask { cost: 0, peek: true, ..Ask::default() };
            take(policy, &mut Vec::new(), Now::at_ms(1), &look).limit
        };
        for token in [
            "bucket:100/60s,capacity=200",
            "gcra:30/60s,burst=15",
            "leaky:10/s,capacity=60",
            "fixed:100/60s",
            "sliding:100/60s",
            "log:100/60s",
            "concurrency:10",
        ] {
            let policy = Policy::parse(token.as_bytes()).expect("a good policy");
            for nodes in 1..=10 {
                let part = share(&policy, nodes);
                assert!(limit(&part) * nodes <= limit(&policy), "{token} {nodes}");
                assert!(limit(&part) > 0, "{token} {nodes}");
            }
            assert_eq!(share(&policy, 1), policy);
        }
        let one = Policy::parse(b"fixed:1/60s").expect("a good policy");
        assert_eq!(limit(&share(&one, 5)), 1);
    }
}
