//! Weights, constant costs and holds of parents, lists of policies, and a cost for each key of
//! `takem`: a lone server, several owners and a node without its owners against an exact twin.
//!
//! The twin keeps a count for each key, and derives the cost of a key by walking its parents. Time
//! stands still, so a window never ends and a hold neither.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;

/// The keys, and the limit of each.
const KEYS: [(&str, usize); 5] = [("k:0", 0), ("k:1", 0), ("a", 1), ("b", 2), ("c", 3)];

/// A rule of the edge to a parent.
#[derive(Debug, Clone, Copy)]
struct Edge {
    to: usize,
    cost: Option<u64>,
    hold: bool,
}

#[derive(Debug, Clone)]
struct TwinLimit {
    max: u64,
    /// The count of a second window.
    second: Option<u64>,
    counts_holders: bool,
    weight: u64,
    edges: Vec<Edge>,
}

impl TwinLimit {
    fn tightest(&self) -> u64 {
        self.second.unwrap_or(self.max).min(self.max)
    }

    /// The units that a peek shows as left. If both windows refuse, the second one does for longer.
    fn left(&self, used: u64) -> i64 {
        let max = self.second.filter(|second| used > *second).unwrap_or_else(|| self.tightest());
        max.cast_signed() - used.cast_signed()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Take { key: usize, cost: u64, hold: bool, peek: bool, debit: bool, part: bool },
    Many { costs: Vec<u64>, keys: Vec<usize>, peek: bool },
    Incr { key: usize, cost: u64 },
    Decr { key: usize, cost: u64 },
    Settle { key: usize, nth: usize, actual: u64 },
}

fn edge(to: usize) -> impl Strategy<Value = Option<Edge>> {
    option::of((option::of(0_u64..4), any::<bool>())).prop_map(move |rule| {
        let (cost, hold) = rule?;
        Some(Edge { to, cost, hold: hold && cost != Some(0) })
    })
}

/// Limits without a cycle: `k` has the parents `a` and `b`, both have `c`. A limit that counts
/// holders has a constant cost, for giving back in proportion would end any of its holders.
fn all_limits() -> impl Strategy<Value = (Vec<TwinLimit>, Option<u64>)> {
    let edges = vec((edge(1), edge(2), edge(3)), 3);
    let numbers = vec((4_u64..40, any::<bool>(), 1_u64..4, option::of(4_u64..40)), 4);
    (numbers, edges, option::of(1_u64..6)).prop_map(|(numbers, edges, overridden)| {
        let mut all: Vec<_> = numbers
            .into_iter()
            .map(|(max, counts_holders, weight, second)| TwinLimit {
                max,
                second: second.filter(|_| !counts_holders),
                counts_holders,
                weight,
                edges: Vec::new(),
            })
            .collect();
        all[0].counts_holders = false;
        for (from, (to_a, to_b, to_c)) in edges.into_iter().enumerate() {
            let later = [to_a, to_b, to_c].into_iter().flatten().filter(|edge| edge.to > from);
            all[from].edges = later.collect();
        }
        let holders: Vec<bool> = all.iter().map(|limit| limit.counts_holders).collect();
        for edge in all.iter_mut().flat_map(|limit| &mut limit.edges) {
            if holders[edge.to] {
                edge.cost = Some(edge.cost.unwrap_or(1));
            }
        }
        (all, overridden)
    })
}

fn step() -> impl Strategy<Value = Step> {
    let keys = || 0..KEYS.len();
    prop_oneof![
        4 => (0_usize..2, 0_u64..9, any::<[bool; 2]>(), 0..8).prop_map(
            |(key, cost, [hold, part], kind)| {
                let (peek, debit) = (kind == 0, kind == 1 && !hold && !part);
                Step::Take { key, cost, hold: hold && !debit, peek, debit, part }
            }
        ),
        2 => (vec((0_u64..6, keys()), 1..5), any::<bool>(), 0..6).prop_map(|(rows, one, kind)| {
            let (mut costs, keys): (Vec<u64>, Vec<usize>) = rows.into_iter().unzip();
            if one {
                costs.truncate(1);
            }
            Step::Many { costs, keys, peek: kind == 0 }
        }),
        1 => (0_usize..2, 1_u64..9).prop_map(|(key, cost)| Step::Incr { key, cost }),
        1 => (0_usize..2, 1_u64..9).prop_map(|(key, cost)| Step::Decr { key, cost }),
        3 => (0_usize..2, 0_usize..4, 0_u64..9)
            .prop_map(|(key, nth, actual)| Step::Settle { key, nth, actual }),
    ]
}

/// A charge of one key: its units, whether they grow with the request, and whether they are held.
#[derive(Debug, Clone, Copy)]
struct TwinCharge {
    key: usize,
    units: u64,
    scaled: bool,
    held: bool,
    named: bool,
}

/// Units that were taken from a key, or given back (negative); with the id of a hold.
#[derive(Debug)]
struct TwinChange {
    key: usize,
    units: i64,
    id: Option<u64>,
}

#[derive(Debug)]
struct Twin {
    limits: Vec<TwinLimit>,
    overridden: Option<u64>,
    used: [u64; KEYS.len()],
    /// All changes; a settled hold has its true cost, as if it had been taken with that.
    changes: Vec<TwinChange>,
    holds: BTreeMap<(u64, usize), u64>,
}

impl Twin {
    fn weight(&self, key: usize) -> u64 {
        let of_override = self.overridden.filter(|_| KEYS[key].0 == "k:1");
        of_override.unwrap_or(self.limits[KEYS[key].1].weight)
    }

    /// Lists the charges of a request for `cost` units of `key`, each key once.
    fn charges(&self, key: usize, cost: u64, hold: bool) -> Vec<TwinCharge> {
        let units = cost * self.weight(key);
        let own = TwinCharge { key, units, scaled: true, held: hold, named: false };
        let mut charges = vec![own];
        self.add_parents(own, hold, &mut charges);
        for charge in &mut charges {
            charge.held |= self.limits[KEYS[charge.key].1].counts_holders;
        }
        charges
    }

    fn add_parents(&self, of: TwinCharge, is_hold: bool, charges: &mut Vec<TwinCharge>) {
        for edge in &self.limits[KEYS[of.key].1].edges {
            let key = edge.to + 1;
            if charges.iter().any(|charge| charge.key == key) {
                continue;
            }
            let units = edge.cost.unwrap_or(of.units) * self.weight(key);
            let scaled = edge.cost.is_none() && of.scaled;
            let held = edge.hold || (scaled && is_hold);
            let charge = TwinCharge { key, units, scaled, held, named: edge.hold };
            charges.push(charge);
            self.add_parents(charge, is_hold, charges);
        }
    }

    /// Adds up the charges of each key, in order.
    fn merged(&self, members: &[(usize, u64)]) -> Vec<TwinCharge> {
        let mut all: Vec<TwinCharge> = Vec::new();
        for (key, cost) in members {
            for charge in self.charges(*key, *cost, false) {
                match all.iter_mut().find(|other| other.key == charge.key) {
                    Some(other) => {
                        other.units += charge.units;
                        other.held |= charge.held;
                        other.named |= charge.named;
                    }
                    None => all.push(charge),
                }
            }
        }
        all
    }

    fn fits(&self, charges: &[TwinCharge]) -> bool {
        let max = |charge: &TwinCharge| self.limits[KEYS[charge.key].1].tightest();
        charges.iter().all(|charge| self.used[charge.key] + charge.units <= max(charge))
    }

    fn charge(&mut self, charges: &[TwinCharge], id: Option<u64>) {
        for charge in charges {
            // Who holds nothing is no holder.
            let is_nobody = charge.units == 0 && self.limits[KEYS[charge.key].1].counts_holders;
            let id = id.filter(|_| charge.held && !is_nobody);
            if let Some(id) = id {
                self.holds.insert((id, charge.key), charge.units);
            }
            self.change(charge.key, charge.units.cast_signed(), id);
        }
    }

    fn change(&mut self, key: usize, units: i64, id: Option<u64>) {
        self.changes.push(TwinChange { key, units, id });
        self.count(key);
    }

    /// Computes the usage of a key from all its changes. A refund beyond the usage makes it 0.
    fn count(&mut self, key: usize) {
        let changes = self.changes.iter().filter(|change| change.key == key);
        self.used[key] = changes.fold(0, |used, change| used.saturating_add_signed(change.units));
    }

    fn settle(&mut self, key: usize, id: u64, actual: u64) -> bool {
        let mut found = false;
        for charge in self.charges(key, actual, true) {
            let Some(units) = self.holds.remove(&(id, charge.key)) else { continue };
            found = true;
            let is_holder = self.limits[KEYS[charge.key].1].counts_holders;
            let spent = if is_holder || actual == 0 { 0 } else { charge.units };
            let of_hold =
                |change: &&mut TwinChange| (change.id, change.key) == (Some(id), charge.key);
            let hold = self.changes.iter_mut().find(of_hold).expect("it was taken");
            hold.units = spent.min(units).cast_signed();
            self.change(charge.key, spent.saturating_sub(units).cast_signed(), None);
        }
        found
    }
}

/// The limits as a file.
fn file(limits: &[TwinLimit], overridden: Option<u64>) -> Limits {
    let mut text = String::new();
    for (at, limit) in limits.iter().enumerate() {
        let name = ["k", "a", "b", "c"][at];
        let pattern = if at == 0 { "k:{n}" } else { name };
        let policy = match limit.second {
            _ if limit.counts_holders => format!("'concurrency:{},hold=1h'", limit.max),
            Some(second) => format!("['fixed:{}/1h', 'fixed:{second}/2h']", limit.max),
            None => format!("'fixed:{}/1h'", limit.max),
        };
        let edge = |edge: &Edge| {
            let key = ["k", "a", "b", "c"][edge.to];
            let cost = edge.cost.map_or_else(String::new, |cost| format!(", cost = {cost}"));
            let hold = if edge.hold { ", hold = '2m'" } else { "" };
            format!("{{ key = '{key}'{cost}{hold} }}")
        };
        let parents: Vec<_> = limit.edges.iter().map(edge).collect();
        writeln!(
            text,
            "[[limit]]\nname = '{name}'\nmatch = '{pattern}'\npolicy = {policy}\nweight = {}\n\
             parents = [{}]",
            limit.weight,
            parents.join(", ")
        )
        .expect("a String takes every write");
        if let (0, Some(weight)) = (at, overridden) {
            let row = format!("{{ key = 'k:1', policy = {policy}, weight = {weight} }}");
            writeln!(text, "overrides = [{row}]").expect("a String takes every write");
        }
    }
    Limits::parse("l.toml", text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Plays the steps to one way and to the twin. A node without the owners takes no part of a charge
/// of several keys, or of one with a weight; and it only takes, and settles its own holds.
fn play(
    name: &str,
    (limits, overridden): &(Vec<TwinLimit>, Option<u64>),
    steps: &[Step],
    mut ask: impl FnMut(&[u8]) -> String,
) -> Result<(), TestCaseError> {
    let (limits, overridden) = (limits.clone(), *overridden);
    let (changes, holds) = (Vec::new(), BTreeMap::new());
    let mut twin = Twin { limits, overridden, used: [0; KEYS.len()], changes, holds };
    let mut ids: Vec<u64> = Vec::new();
    for step in steps {
        let (line, mut expected) = decide(&mut twin, step, &ids);
        if let (true, Some((charges, word @ "PART"))) = (name == "away", &mut expected)
            && (charges.len() > 1 || twin.weight(charges[0].key) > 1)
        {
            *word = "DENY";
        }
        let reply = ask(format!("{line}\r\n").as_bytes());
        if reply == "away" {
            prop_assert!(matches!(step, Step::Decr { .. } | Step::Settle { .. }), "{}", line);
            continue;
        }
        let reply = reply.trim_start_matches("own: ").to_owned();
        let words: Vec<&str> = reply.split_ascii_whitespace().collect();
        let id = words.iter().find_map(|word| word.strip_prefix("lease=")?.parse().ok());
        let allows = matches!(words.first(), Some(&"ALLOW" | &"PART"));
        if let Some((charges, may)) = &expected {
            prop_assert_eq!(words[0], *may, "{}: {} → {}", name, line, reply);
            let named: BTreeSet<String> = charges
                .iter()
                .filter(|charge| charge.named && allows && !line.ends_with("peek"))
                .map(|charge| KEYS[charge.key].0.to_owned())
                .collect();
            let shown = words.iter().filter_map(|word| word.strip_prefix("hold=")?.split_once(':'));
            let shown: BTreeSet<String> = shown
                .filter(|(_, number)| number.parse().ok() == id)
                .map(|(limit, _)| limit.to_owned())
                .collect();
            prop_assert_eq!(shown, named, "{}: {} → {}", name, line, reply);
        }
        finish(&mut twin, step, expected, (allows, id), &reply, &ids)?;
        ids.extend(id.filter(|_| allows));
        for (key, (text, limit)) in KEYS.into_iter().enumerate() {
            let reply = ask(format!("take {text} 0 - peek\r\n").as_bytes());
            let words: Vec<&str> = reply.split_ascii_whitespace().collect();
            let own = twin.limits[limit].left(twin.used[key]);
            // A peek at `k` shows the tightest of its keys.
            if twin.limits[limit].edges.is_empty() {
                prop_assert_eq!(words[2], own.to_string(), "{}: {} after {}", name, text, line);
            }
        }
    }
    Ok(())
}

type Expected = Option<(Vec<TwinCharge>, &'static str)>;

/// The line of a step, and for a take its charges and the verdict.
fn decide(twin: &mut Twin, step: &Step, ids: &[u64]) -> (String, Expected) {
    match step {
        Step::Take { key, cost, hold, peek, debit, part } => {
            let mut charges = twin.charges(*key, *cost, *hold);
            let holder =
                charges.iter().any(|charge| twin.limits[KEYS[charge.key].1].counts_holders);
            // A debit of holders is refused, and a hold is never a part.
            let debit = *debit && !holder;
            // Work that is done is not held.
            for charge in charges.iter_mut().filter(|_| debit) {
                (charge.held, charge.named) = (false, false);
            }
            let part = *part && !debit && !charges.iter().any(|charge| charge.held);
            let mut line = format!("take {} {cost} -", KEYS[*key].0);
            for (option, is_on) in [
                (" hold=1h", *hold),
                (" debit", debit),
                (" part", part),
                (" peek", *peek && !debit),
            ] {
                line.push_str(if is_on { option } else { "" });
            }
            if twin.fits(&charges) {
                return (line, Some((charges, "ALLOW")));
            }
            let fitting = (1..*cost).rev().map(|cost| twin.charges(*key, cost, false));
            match fitting.filter(|_| part).find(|charges| twin.fits(charges)) {
                Some(charges) => (line, Some((charges, "PART"))),
                None => (line, Some((charges, "DENY"))),
            }
        }
        Step::Many { costs, keys, peek } => {
            let costs_of = costs.iter().copied().chain(std::iter::repeat(costs[0]));
            let members: Vec<_> = keys.iter().copied().zip(costs_of).collect();
            let charges = twin.merged(&members);
            let costs: Vec<_> = costs.iter().map(u64::to_string).collect();
            let keys: Vec<_> = keys.iter().map(|key| KEYS[*key].0).collect();
            let peek = if *peek { " peek" } else { "" };
            let line = format!("takem {} {}{peek}", costs.join(","), keys.join(" "));
            let word = if twin.fits(&charges) { "ALLOW" } else { "DENY" };
            (line, Some((charges, word)))
        }
        Step::Incr { key, cost } => (format!("incr {} {cost}", KEYS[*key].0), None),
        Step::Decr { key, cost } => (format!("decr {} {cost}", KEYS[*key].0), None),
        Step::Settle { key, nth, actual } => {
            let id = ids.iter().rev().nth(*nth).copied().unwrap_or(77);
            (format!("settle {} {id} {actual}", KEYS[*key].0), None)
        }
    }
}

/// Changes the twin, and checks the replies that are no verdicts.
fn finish(
    twin: &mut Twin,
    step: &Step,
    expected: Expected,
    (allows, id): (bool, Option<u64>),
    reply: &str,
    ids: &[u64],
) -> Result<(), TestCaseError> {
    match (step, expected) {
        (Step::Take { peek, debit, .. }, Some((charges, _))) => {
            let holder =
                charges.iter().any(|charge| twin.limits[KEYS[charge.key].1].counts_holders);
            let is_debit = *debit && !holder;
            if is_debit || (allows && !*peek) {
                twin.charge(&charges, id.filter(|_| !is_debit));
            }
        }
        (Step::Many { peek, .. }, Some((charges, _))) if allows && !peek => {
            twin.charge(&charges, id);
        }
        (Step::Incr { key, cost }, _) => {
            let charges = twin.charges(*key, *cost, false);
            let number: u64 = reply.trim_end().parse().expect("a number");
            let max = twin.limits[KEYS[*key].1].max;
            let fits = twin.fits(&charges);
            prop_assert_eq!(number <= max, fits, "{} of {:?}", reply, charges);
            if fits {
                twin.charge(&charges, None);
                prop_assert_eq!(number, twin.used[*key]);
            }
        }
        (Step::Decr { key, cost }, _) => {
            for charge in twin.charges(*key, *cost, false).iter().filter(|charge| charge.scaled) {
                twin.change(charge.key, -charge.units.cast_signed(), None);
            }
        }
        (Step::Settle { key, nth, actual }, _) => {
            let id = ids.iter().rev().nth(*nth).copied().unwrap_or(77);
            let found = twin.settle(*key, id, *actual);
            prop_assert_eq!(reply.starts_with("SETTLED "), found, "{}", reply);
        }
        _ => {}
    }
    Ok(())
}

proptest! {
    #[test]
    fn charges_are_those_of_the_twin(all in all_limits(), steps in vec(step(), 1..40)) {
        let limits = || file(&all.0, all.1);
        play("one", &all, &steps, lone_server(limits()))?;
        let mut owners = LoneNode::new(limits());
        play("owners", &all, &steps, |raw| owners.by_owners(raw))?;
        let mut away = LoneNode::new(limits());
        play("away", &all, &steps, |raw| away.while_away(raw))?;
    }
}
