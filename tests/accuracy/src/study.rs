//! All measurements of a seed.
//!
//! Here: which contender meets which traffic, with progress on standard error. Not here: the
//! meaning of the figures (`enforced`, `observed`, `adversary`) and their presentation (`page`).

use crate::adversary::{ATTACKS, Haul, best};
use crate::contender::{CONTENDERS, Contender, WINDOW_MS};
use crate::enforced::Enforced;
use crate::observed::Observed;
use crate::sources::{MIXES, observe};
use crate::traffic::{TRAFFICS, Traffic};
use kit::progress::Progress;

/// Seeds whose spread is shown beside the first.
pub const SEEDS: u64 = 10;
/// The traffics whose spread is shown.
pub const SPREAD: [Traffic; 2] = [Traffic::Poisson, Traffic::Bursts];
/// The duration of an attack.
pub const ATTACK_MS: u64 = 4 * WINDOW_MS;

/// All results of one contender. Each list has the order of the list that its field names.
#[derive(Debug, Clone)]
pub struct Row {
    /// The contender.
    pub contender: Contender,
    /// One figure for each of `TRAFFICS`.
    pub enforced: Vec<Enforced>,
    /// The minimum and the maximum of `Enforced::worst` over all seeds, for each of `SPREAD`.
    pub spread: Vec<(u64, u64)>,
    /// One figure for each of `TRAFFICS`; empty for a contender without a meter.
    pub observed: Vec<Observed>,
    /// One figure for each of `MIXES`; empty for a contender without a meter.
    pub mixes: Vec<Observed>,
    /// The result of the worst attack.
    pub haul: Haul,
}

/// The figures of all contenders.
#[derive(Debug, Clone)]
pub struct Study {
    /// The seed of all traffic.
    pub seed: u64,
    /// One row for each of `CONTENDERS`, in their order.
    pub rows: Vec<Row>,
}

impl Study {
    /// Runs all measurements; takes about half a minute.
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

/// The attack that admits the most calls in any 60 seconds.
#[must_use]
pub fn worst_attack(contender: &Contender) -> Haul {
    let hauls = ATTACKS.iter().map(|attack| attack.run(contender, ATTACK_MS)).collect();
    best(hauls).expect("the list of attacks is not empty")
}

/// Calls `run` for each contender and reports progress.
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

/// The minimum and the maximum of the worst minutes.
fn span<'a>(contender: &Contender, lists: impl Iterator<Item = &'a Vec<u64>>) -> (u64, u64) {
    lists
        .map(|arrivals| Enforced::run(contender, arrivals, |_| ()).worst)
        .fold((u64::MAX, 0), |(least, most), worst| (least.min(worst), most.max(worst)))
}
