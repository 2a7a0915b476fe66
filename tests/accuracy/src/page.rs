//! The page that shows the figures: `docs/accuracy/README.md`.
//!
//! Here: words and tables. The same seed gives the same bytes. Not here: the figures (`study`).

use crate::contender::LIMIT;
use crate::enforced::Enforced;
use crate::observed::Observed;
use crate::sources::MIXES;
use crate::study::{Row, SEEDS, SPREAD, Study};
use crate::traffic::TRAFFICS;
use kit::table::Table;

/// Indices into `TRAFFICS`.
const POISSON: usize = 0;
const BURSTS: usize = 1;
const DAY: usize = 2;

/// The worst minute that the design expects, for Poisson arrivals and for bursts.
const EXPECTED: [(&str, [u64; 2]); 6] = [
    ("fixed, calendar", [135, 200]),
    ("two-window", [113, 165]),
    ("4+1 slices", [108, 123]),
    ("6+1 slices", [107, 113]),
    ("60+1 slices", [102, 103]),
    ("log", [100, 100]),
];

const HEAD: &str = "\
# Accuracy

<!-- Written by `just accuracy`. Do not edit. -->

How far does each algorithm let a caller go beyond its limit, and how well does it know the count? Every
number here comes out of the server's own engine under a simulated clock that ticks in milliseconds. `just
accuracy` makes this page again, byte for byte; `just accuracy --check` compares. The limit is 100 calls in 60 s. The
truth is the *perfect count*: the calls in `(t − 60 s, t]`, each kept with its instant.

";

const SHORT: &str = "
*Error* and *wrong*: how far the count is off for bursts, and how many calls it would decide wrongly. *Worst 60 s*: the
most calls that passed in any span of 60 s; last, where a caller tries to get as many as possible. The sections
below define each.

";

const ENFORCED: &str = "
## What is let through

A limit is set; refused calls leave no trace. *Worst 60 s* is the most calls that passed in any span of 60 s
whatsoever, not only in those that begin with a window.
";

const EXPECTATIONS: &str = "
*Expected* is what the project's design had found before, with another program whose seed and bursts are not
known; the length of bursts and pauses here was chosen so that both agree about.
";

const DECISIONS: &str = "
*Passed* is the share of all calls that passed. A call is *over* if it passed though 100 calls had passed in the
60 s up to it, and *short* if it was refused though fewer had; both in percent of all calls. Under steady
overload a policy that holds 99 where 100 may pass has each refusal counted as short, so read it with *passed*: the log's
is the perfect share. Buckets promise another thing than a window does (a burst of 100, and 100 more a
minute), so for them these columns only tell how different that is. `strict` is short by design: it counts each call
for up to a slice too long.

";

const OBSERVED: &str = "
## How well the count is known

The same calls, and nothing is refused: a meter counts each call (the verb `slide`, or the policy with a limit that
nobody reaches), and its estimate is held against the perfect count, both with the call itself. *Error* is the
mean over all calls of |estimate − truth| / truth. *Wrong allow*: the estimate is at most 100 and the truth
above; *wrong deny*: the reverse; both in percent of all calls. Estimates are whole numbers, rounded up, as
the server answers them. Buckets count nothing that could be compared.

";

const SOURCES: &str = "
## Many sources

Cloudflare [published](https://blog.cloudflare.com/counting-things-a-lot-of-different-things/) for two windows,
from 400 million requests of 270,000 sources: 0.003 % decided wrongly, estimates 6 % off on average. That is
their production traffic, which nobody else has. These are two made-up mixes: the figures are no measurement of the
same thing. *Wrong* is wrong allow and wrong deny together. It depends on how many sources are near the limit: far below
and far above it, hardly any estimate is bad enough to decide wrongly.

";

const ADVERSARY: &str = "
## A greedy adversary

A caller who knows the algorithm waits for the phase that suits it and then takes whatever it gets, trying at
each millisecond for four minutes. The *bound* is what the algorithm promises against everybody, for calls of one
unit (C capacity, R rate): no attack got more, and each bound is reached. Slices do not help against an
adversary, only against chance: one that spends its 100 calls at the end of a slice gets 99 more while that slice fades,
whether that takes 60 s or 1 s. What helps is `strict`, or a log.

";

/// A share in percent, with `digits` decimals.
fn percent(part: u64, whole: u64, digits: usize) -> String {
    format!("{:.digits$} %", part as f64 * 100.0 / whole as f64)
}

fn error(observed: &Observed) -> String {
    format!("{:.1} %", observed.mean_error() * 100.0)
}

/// The whole page.
#[must_use]
pub fn render(study: &Study) -> String {
    let rows = study.rows.as_slice();
    let (first, last) = (study.seed, study.seed + SEEDS - 1);
    let traffics: String = TRAFFICS.iter().map(|t| bullet(t.name(), &t.about())).collect();
    let mixes: String = MIXES.iter().map(|mix| bullet(mix.name(), &mix.about())).collect();
    [
        HEAD,
        &summary(rows),
        SHORT,
        &format!("Traffic, all from seed {first}:\n\n"),
        &traffics,
        ENFORCED,
        &format!("*Seeds* is the range of it over the seeds {first} to {last}.\n"),
        EXPECTATIONS,
        &outside(rows),
        &worst(rows),
        "\n![What is let through](admitted.svg)\n",
        DECISIONS,
        &decisions(rows),
        OBSERVED,
        &observed(rows),
        "\n![What is counted](count.svg)\n",
        SOURCES,
        &mixes,
        "\n",
        &sources(rows),
        ADVERSARY,
        &adversary(rows),
        "\n![What an adversary gets](adversary.svg)\n",
    ]
    .concat()
}

fn bullet(name: &str, about: &str) -> String {
    format!("* **{name}**: {about}.\n")
}

/// The figures that most readers want; for bursts, unless a heading says otherwise.
fn summary(rows: &[Row]) -> String {
    let head = ["", "policy", "error", "wrong", "worst 60 s: Poisson", "bursts", "adversary"];
    let mut table = Table::new(head, 2);
    for row in rows {
        let observed = row.observed.get(BURSTS);
        let wrong = observed.map(|o| percent(o.wrong_allow + o.wrong_deny, o.calls, 1));
        table.row(vec![
            row.contender.name.to_owned(),
            format!("`{}`", row.contender.token),
            observed.map_or_else(|| "–".to_owned(), error),
            wrong.unwrap_or_else(|| "–".to_owned()),
            row.enforced[POISSON].worst.to_string(),
            row.enforced[BURSTS].worst.to_string(),
            row.haul.worst.to_string(),
        ]);
    }
    table.render()
}

fn expected(row: &Row) -> Option<[u64; 2]> {
    EXPECTED.iter().find(|(name, _)| *name == row.contender.name).map(|(_, worst)| *worst)
}

/// The expected figures that no seed reaches.
fn outside(rows: &[Row]) -> String {
    let mut outside = Vec::new();
    for row in rows {
        for (n, expected) in expected(row).into_iter().flatten().enumerate() {
            let (least, most) = row.spread[n];
            if !(least..=most).contains(&expected) {
                let (name, traffic) = (row.contender.name, SPREAD[n].name());
                outside.push(format!("{name}, {traffic} ({expected} expected, {least}–{most})"));
            }
        }
    }
    match outside.as_slice() {
        [] => "Each lies within the range of the seeds.\n\n".to_owned(),
        some => format!("Each lies within the range of the seeds but: {}.\n\n", some.join("; ")),
    }
}

fn worst(rows: &[Row]) -> String {
    let head = ["worst 60 s", "Poisson", "seeds", "expected", "bursts", "seeds", "expected", "day"];
    let mut table = Table::new(head, 1);
    for row in rows {
        let mut cells = vec![row.contender.name.to_owned()];
        for (n, (least, most)) in row.spread.iter().enumerate() {
            cells.push(row.enforced[n].worst.to_string());
            cells.push(if least == most { least.to_string() } else { format!("{least}–{most}") });
            cells.push(expected(row).map_or_else(String::new, |worst| worst[n].to_string()));
        }
        cells.push(row.enforced[DAY].worst.to_string());
        table.row(cells);
    }
    table.render()
}

/// A head with the same columns for each traffic.
fn per_traffic(first: &str, columns: [&str; 3]) -> Vec<String> {
    let head = TRAFFICS.iter().flat_map(|traffic| {
        columns.iter().enumerate().map(move |(n, column)| match n {
            0 => format!("{}: {column}", traffic.name()),
            _ => (*column).to_owned(),
        })
    });
    std::iter::once(first.to_owned()).chain(head).collect()
}

fn decisions(rows: &[Row]) -> String {
    let mut table = Table::new(per_traffic("", ["passed", "over", "short"]), 1);
    let cells = |enforced: &Enforced| {
        [
            percent(enforced.admitted, enforced.offered, 1),
            percent(enforced.wrong_allow, enforced.offered, 2),
            percent(enforced.wrong_deny, enforced.offered, 2),
        ]
    };
    for row in rows {
        let name = std::iter::once(row.contender.name.to_owned());
        table.row(name.chain(row.enforced.iter().flat_map(cells)).collect());
    }
    table.render()
}

fn observed(rows: &[Row]) -> String {
    let mut table = Table::new(per_traffic("", ["error", "wrong allow", "wrong deny"]), 1);
    let cells = |observed: &Observed| {
        [
            error(observed),
            percent(observed.wrong_allow, observed.calls, 2),
            percent(observed.wrong_deny, observed.calls, 2),
        ]
    };
    for row in rows.iter().filter(|row| !row.observed.is_empty()) {
        let name = std::iter::once(row.contender.name.to_owned());
        table.row(name.chain(row.observed.iter().flat_map(cells)).collect());
    }
    table.render()
}

fn sources(rows: &[Row]) -> String {
    let head = MIXES.iter().flat_map(|mix| [format!("{}: error", mix.name()), "wrong".to_owned()]);
    let mut table = Table::new(std::iter::once(String::new()).chain(head), 1);
    let cells = |observed: &Observed| {
        let wrong = observed.wrong_allow + observed.wrong_deny;
        [error(observed), percent(wrong, observed.calls, 4)]
    };
    for row in rows.iter().filter(|row| !row.mixes.is_empty()) {
        let name = std::iter::once(row.contender.name.to_owned());
        table.row(name.chain(row.mixes.iter().flat_map(cells)).collect());
    }
    table.render()
}

fn adversary(rows: &[Row]) -> String {
    let mut table = Table::new(["", "attack", "because", "bound", "worst 60 s"], 3);
    for row in rows {
        // A contender that never exceeds the limit needs no attack.
        let attack = if row.haul.worst > LIMIT { row.haul.attack.name } else { "any" };
        table.row(vec![
            row.contender.name.to_owned(),
            attack.to_owned(),
            row.contender.because.to_owned(),
            row.contender.bound.to_string(),
            row.haul.worst.to_string(),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_choosing_page_shows_the_accuracy_table() {
        let page = include_str!("../../../docs/accuracy/README.md");
        let choosing = include_str!("../../../docs/concepts/choosing.md");
        let table: Vec<&str> = page
            .lines()
            .skip_while(|l| !l.starts_with('|'))
            .take_while(|l| !l.is_empty())
            .collect();
        assert_eq!(table.len(), crate::contender::CONTENDERS.len() + 2);
        assert!(choosing.contains(&table.join("\n")), "copy the page's first table");
    }
}
