//! All measurements of a seed.
//!
//! Here: which contender meets which traffic, with progress for people who wait. Not here: what the
//! figures mean (`enforced`, `observed`, `adversary`) and how they are shown (`page`).

use super::adversary::{ATTACKS, Haul, best};
use super::contender::{CONTENDERS, Contender, WINDOW_MS};
use super::enforced::Enforced;
use super::observed::Observed;
use super::sources::{MIXES, observe};
use super::traffic::{TRAFFICS, Traffic};
use crate::progress::Progress;

/// Seeds whose spread is shown beside the first.
pub const SEEDS: u64 = 10;
/// The traffics of which it is shown.
pub const SPREAD: [Traffic; 2] = [Traffic::Poisson, Traffic::Bursts];
/// How long an attack goes on.
pub const ATTACK_MS: u64 = 4 * WINDOW_MS;

/// What there is to say of one contender. Lists are in the order of the lists they are about.
#[derive(Debug, Clone)]
pub struct Row {
    /// Who.
    pub contender: Contender,
    /// A figure for each of `TRAFFICS`.
    pub enforced: Vec<Enforced>,
    /// The least and the most of `Enforced::worst` over all seeds, for each of `SPREAD`.
    pub spread: Vec<(u64, u64)>,
    /// A figure for each of `TRAFFICS`, none for what has no meter.
    pub observed: Vec<Observed>,
    /// A figure for each of `MIXES`, none for what has no meter.
    pub mixes: Vec<Observed>,
    /// The worst that an adversary could do.
    pub haul: Haul,
}

/// The figures of all contenders.
#[derive(Debug, Clone)]
pub struct Study {
    /// Where all traffic comes from.
    pub seed: u64,
    /// In the order of `CONTENDERS`.
    pub rows: Vec<Row>,
}

impl Study {
    /// Measures; half a minute or so.
    #[must_use]
    pub fn run(seed: u64, progress: &Progress) -> Self {
        let arrivals = TRAFFICS.map(|traffic| traffic.arrivals(seed));
        let enforced = each("enforced", progress, |contender| {
            arrivals.iter().map(|list| Enforced::run(contender, list, |_| ())).collect::<Vec<_>>()
        });
        let observed = each("observed", progress, |contender| {
            arrivals.iter().filter_map(|list| Observed::run(contender, list)).collect::<Vec<_>>()
        });
        let calls = MIXES.map(|mix| mix.calls(seed));
        let mixes = each("many sources", progress, |contender| {
            calls.iter().filter_map(|list| observe(contender, list)).collect::<Vec<_>>()
        });
        let others: Vec<Vec<Vec<u64>>> = (seed..seed + SEEDS)
            .map(|seed| SPREAD.iter().map(|traffic| traffic.arrivals(seed)).collect())
            .collect();
        let spread = each("other seeds", progress, |contender| {
            (0..SPREAD.len())
                .map(|n| span(contender, others.iter().map(|lists| &lists[n])))
                .collect()
        });
        let hauls = each("adversary", progress, worst_attack);
        let rows = CONTENDERS
            .into_iter()
            .zip(enforced)
            .zip(spread)
            .zip(observed)
            .zip(mixes)
            .zip(hauls)
            .map(|(((((contender, enforced), spread), observed), mixes), haul)| Row {
                contender,
                enforced,
                spread,
                observed,
                mixes,
                haul,
            })
            .collect();
        Self { seed, rows }
    }
}

/// The attack that gets most out of a contender.
#[must_use]
pub fn worst_attack(contender: &Contender) -> Haul {
    let hauls = ATTACKS.iter().map(|attack| attack.run(contender, ATTACK_MS)).collect();
    best(hauls).expect("the list of attacks is not empty")
}

/// Does the same with each contender.
fn each<T>(what: &str, progress: &Progress, mut run: impl FnMut(&Contender) -> T) -> Vec<T> {
    let whole = CONTENDERS.len() as u64;
    let mut done = 0;
    let mut run = |contender: &Contender| {
        let figure = run(contender);
        done += 1;
        progress.part(what, done, whole);
        figure
    };
    CONTENDERS.iter().map(&mut run).collect()
}

/// The least and the most of the worst.
fn span<'a>(contender: &Contender, lists: impl Iterator<Item = &'a Vec<u64>>) -> (u64, u64) {
    lists
        .map(|arrivals| Enforced::run(contender, arrivals, |_| ()).worst)
        .fold((u64::MAX, 0), |(least, most), worst| (least.min(worst), most.max(worst)))
}
