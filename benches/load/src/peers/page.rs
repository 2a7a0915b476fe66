//! The page of a run: targets, tables, the figures in which a peer is better, all figures.
//!
//! Here: sentences and columns. Not here: the ratios (`targets`), the pictures (`plots`).

use std::fmt::Write;

use super::targets::{Figure, TARGETS, Target, ratio};
use super::{LATENCIES, plots};
use crate::cell::Measurement;
use crate::lineup::{CONNECTIONS, FLOOR, LIMITS, MEMCACHED, OURS, PLAIN};
use crate::report::Report;
use kit::table::{Ratio, Table, cell, median, micros, percent, ratio_cell, times, whole};

/// The share of time that a server may wait for its core before the page warns.
const WAITED_MAX: f64 = 0.05;

const HEAD: &str = "\
# Beside its peers

`just bench-peers` installs the servers, runs them side by side, checks every reply and writes this page and its
pictures. How it measures and how to read it: `benches/README.md`. Ratios are taken within a
round, then their median; in brackets stands between what it lies with 95 % confidence. Nanoseconds move with the machine.

";

const TARGETED: &str = "\
The last column is what the bare server (`floor`, below) comes to in the same rounds: where that is above *at most*, TCP by itself is.
*Uncertain* is a verdict when the other one is within the brackets.

";

const CELLS: &str = "
`incr`, `get`, `set` of 32 bytes and `get100` (100 counters at once, `MGET` at Redis) are of uniform keys, `incr-hot` of one
key. `take-bucket` is a token bucket, `take-window` a count over two windows: `take <key> 1 <policy>` here, a Lua script
each at Redis (`benches/load/src/redis/`), `CL.THROTTLE` at redis-cell and `THROTTLE` at throttlecrab, which have GCRA and no
windows; a window's target is beside their GCRA. All limits allow all calls and count them.
`floor` is a bare counter server (`benches/load/src/bin/floor.rs`): what TCP and a table of counters cost, without expiry,
eviction, statistics, locks or limits; what it takes of memcached's CPU is the least that anybody can.
redis-cell is a module of the same Redis, in the newest release that crates.io has. throttlecrab writes reply by reply and
leaves Nagle's algorithm on, so that a client which pipelines waits 40 ms for a batch: time, not CPU.
";

/// Renders the page.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut text = HEAD.to_owned();
    text.push_str(&report.head());
    for note in &report.notes {
        let _ = writeln!(text, "- {note}");
    }
    let _ = match report.wrong {
        0 => writeln!(text, "- no reply was wrong"),
        wrong => writeln!(text, "- **{wrong} replies were wrong**"),
    };
    let waited = report.rows.iter().flat_map(|row| row.rounds.iter().flatten());
    let waited = median(waited.map(Measurement::waited)).unwrap_or(0.0);
    if waited > WAITED_MAX {
        let _ = writeln!(
            text,
            "- **other work had the servers' core for {} of the time (median): measure again on a quieter machine**",
            percent(waited)
        );
    }
    let _ = write!(text, "\n## Targets\n\n{TARGETED}{}", targets(report));
    let _ = write!(text, "\n## CPU of an operation\n{CELLS}");
    let _ = write!(text, "\n{}\n{}", cpu(report, &PLAIN), cpu(report, &LIMITS));
    let _ = write!(text, "\n![CPU of an operation by pipeline]({})\n", plots::CPU);
    let _ = write!(text, "\n## Latency in the open loop\n\n{}", latency(report));
    let _ = write!(text, "\n![Latency by load]({})\n", plots::LATENCY);
    let _ = write!(text, "\n## Where others are better\n\n{}", losses(report));
    let _ = write!(text, "\n## All figures\n\n{}", report.details());
    text
}

fn targets(report: &Report) -> String {
    let head =
        ["figure", "op", "conns×pipeline or load", "beside", "at most", "measured", "", FLOOR];
    let mut table = Table::new(head, 4);
    for target in TARGETS {
        let Target { figure, kind, peer, peer_kind, most } = target;
        let ratio = target.ratio(report, OURS);
        let verdict = match ratio {
            None => "not measured",
            Some(Ratio { bounds: [_, high], .. }) if high <= most => "met",
            Some(Ratio { bounds: [low, _], .. }) if low > most => "**missed**",
            Some(Ratio { median, .. }) if median <= most => "met, uncertain",
            Some(_) => "**missed**, uncertain",
        };
        table.row(vec![
            figure.name().to_owned(),
            kind.to_owned(),
            figure.shape(),
            if kind == peer_kind { peer.to_owned() } else { format!("{peer}'s {peer_kind}") },
            times(most),
            ratio_cell(ratio),
            verdict.to_owned(),
            ratio_cell(target.ratio(report, FLOOR)),
        ]);
    }
    table.render()
}

/// The median of a figure over the rounds of a server; `None` if it does not have the verb.
fn of(report: &Report, kind: &str, shape: &str, server: &str, figure: Figure) -> Option<f64> {
    median(report.rounds(kind, shape, server)?.iter().filter_map(|rounds| figure.of(rounds)))
}

/// Nanoseconds of each server that has one of `kinds`, and the ratios of ours to each other one.
fn cpu(report: &Report, kinds: &[&str]) -> String {
    let pipelines = report.pipelines(CONNECTIONS);
    let shapes: Vec<_> = pipelines.iter().map(|&n| (Figure::Cpu(n).shape(), n)).collect();
    let has_any = |server: &&str| {
        let has =
            |kind: &&str| shapes.iter().any(|(s, _)| report.rounds(kind, s, server).is_some());
        kinds.iter().any(has)
    };
    let servers: Vec<&str> = report.names().filter(has_any).collect();
    let peers: Vec<&str> = servers.iter().copied().filter(|server| *server != OURS).collect();
    let columns = servers.iter().map(|server| format!("{server} ns"));
    let ratios = peers.iter().map(|peer| format!("{OURS} to {peer}"));
    // The ratio of the lower bound.
    let least = servers.contains(&FLOOR).then(|| format!("{FLOOR} to {MEMCACHED}"));
    let head = ["op".to_owned(), "pipeline".to_owned()].into_iter();
    let mut table = Table::new(head.chain(columns).chain(ratios).chain(least.clone()), 1);
    for kind in kinds {
        for (shape, pipeline) in &shapes {
            let figure = Figure::Cpu(*pipeline);
            let mut row = vec![(*kind).to_owned(), pipeline.to_string()];
            row.extend(servers.iter().map(|s| cell(of(report, kind, shape, s, figure), whole)));
            let beside = |own, peer| {
                ratio_cell(ratio(report, shape, (kind, own), (kind, peer), |rounds| {
                    figure.of(rounds)
                }))
            };
            row.extend(peers.iter().map(|peer| beside(OURS, peer)));
            row.extend(least.iter().map(|_| beside(FLOOR, MEMCACHED)));
            table.row(row);
        }
    }
    table.render()
}

fn latency(report: &Report) -> String {
    let head = [
        "op",
        "load",
        "server",
        "ops/s",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "disturbed",
        "p99 µs of all",
        "busy",
        "waited",
    ];
    let mut table = Table::new(head, 3);
    let open = report.rows.iter().filter(|row| row.shape.contains('@'));
    for row in open {
        for (server, rounds) in report.names().zip(&row.rounds).filter(|(_, r)| !r.is_empty()) {
            let of = |figure: &dyn Fn(&Measurement) -> f64| median(rounds.iter().map(figure));
            let mut cells = vec![row.kind.to_owned(), row.shape.clone(), server.to_owned()];
            cells.push(cell(of(&Measurement::ops_per_second), whole));
            let undisturbed = |n| median(rounds.iter().filter_map(|m| m.undisturbed_ns(n)));
            cells.extend((0..3).map(|n| cell(undisturbed(n), micros)));
            cells.push(cell(of(&Measurement::disturbed), percent));
            cells.push(cell(of(&|m| m.latency_ns[1] as f64), micros));
            cells.push(cell(of(&Measurement::busy), percent));
            cells.push(cell(of(&Measurement::waited), percent));
            table.row(cells);
        }
    }
    format!(
        "Requests fall due by a Poisson clock, answered or not, and latency counts from when one was due. *Own* is of\n\
         what this server came to in the closed loop at pipeline 1, *the slowest* of what the slowest did: the same\n\
         load for all. There is one generator, on a core as quick as the server's: the more requests, the longer its own queue,\n\
         which is in these figures. Who bears more has more of it at *own*, the floor too.\n\
         Percentiles are of the time in which neither a thread of the server nor the generator had waited for a core for more\n\
         than 250 µs of four milliseconds (`benches/README.md` says how); *disturbed* is the share of replies that is left out\n\
         for it, whatever their latency, and *of all* leaves out nothing.\n\n{}",
        table.render()
    )
}

/// Every figure in which a peer's median over the rounds is lower than ours.
fn losses(report: &Report) -> String {
    let mut lines = String::new();
    let peers = || report.names().filter(|name| *name != OURS && *name != FLOOR);
    for row in &report.rows {
        for peer in peers() {
            let (own, other) = ((row.kind, OURS), (row.kind, peer));
            let mut lost = |what: &str, figure: &dyn Fn(&Measurement) -> Option<f64>| {
                let ratio = ratio(report, &row.shape, own, other, figure);
                // A ratio that would be shown as 1.00 is no loss.
                if let Some(ratio) = ratio.filter(|ratio| ratio.median >= 1.005) {
                    let (kind, shape, factor) = (row.kind, &row.shape, ratio.to_string());
                    let _ = writeln!(lines, "- `{kind}` {shape}, {what}: {factor} {peer}'s");
                }
            };
            if row.shape.contains('@') {
                for (n, name) in LATENCIES.into_iter().enumerate() {
                    lost(name, &|measurement| measurement.undisturbed_ns(n));
                }
                lost("p99 of all", &|measurement| Some(measurement.latency_ns[1] as f64));
            } else {
                lost("CPU", &|measurement| Some(measurement.server_ns_per_op()));
            }
        }
    }
    if lines.is_empty() { "Nowhere in this run.\n".to_owned() } else { lines }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::render;
    use crate::cell::Measurement;
    use crate::cpu::CpuUse;
    use crate::disturbance::Undisturbed;
    use crate::machine::Machine;
    use crate::peers::plots;
    use crate::report::{Report, Row};

    fn measurement(ns_per_op: u64) -> Measurement {
        Measurement {
            replies: 1_000,
            elapsed: Duration::from_secs(1),
            latency_ns: [1_000, 1_000_000_000 / ns_per_op, 100_000],
            undisturbed: Some(Undisturbed {
                replies: 900,
                latency_ns: [1_000, 10 * ns_per_op, 100_000],
            }),
            server: CpuUse { ran_ns: 1_000 * ns_per_op, waited_ns: 0 },
            ..Measurement::default()
        }
    }

    /// Three servers: memcached without limits, redis-cell with nothing else, and ours.
    fn report() -> Report {
        let mut report = Report::new(Machine::sample(), 0);
        for name in ["memcached", "redis-cell", "tollgate"] {
            report.servers.push((name.to_owned(), "1.2".to_owned(), name.to_owned()));
        }
        let mut row = |kind, shape: &str, rounds: [&[u64]; 3]| {
            let of = |costs: &[u64]| costs.iter().map(|&cost| measurement(cost)).collect();
            report.rows.push(Row { kind, shape: shape.to_owned(), rounds: rounds.map(of).into() });
        };
        row("incr", "50×1", [&[5_000, 10_000], &[], &[3_000, 6_000]]);
        row("incr", "50×16", [&[1_000], &[], &[400]]);
        row("set", "50×1", [&[1_000], &[], &[1_100]]);
        row("set", "50×16", [&[1_000; 3], &[], &[300, 400, 500]]);
        row("set", "50×64", [&[1_000; 3], &[], &[300, 400, 500]]);
        row("take-bucket", "50×16", [&[], &[4_000], &[400]]);
        row("take-window", "50×16", [&[], &[], &[800]]);
        row("incr", "50 @ 70 % of own", [&[1_000], &[], &[900]]);
        report
    }

    #[test]
    fn targets_are_met_missed_or_not_measured() {
        let page = render(&report());
        let verdict = |words: [&str; 3]| {
            let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
            let line = page.lines().find(has_all).unwrap_or_default();
            line.split('|').nth(7).unwrap_or_default().trim().to_owned()
        };
        assert_eq!(verdict(["| CPU ", "| incr ", "| 50×1 "]), "met", "{page}");
        assert_eq!(verdict(["| CPU ", "| incr ", "| 50×16 "]), "**missed**");
        assert_eq!(verdict(["| CPU ", "| incr ", "| 50×64 "]), "not measured");
        assert_eq!(verdict(["| take-bucket ", "| 50×16 ", "| redis-cell "]), "met");
        assert_eq!(verdict(["| take-bucket ", "| 50×16 ", "| redis "]), "not measured");
        assert_eq!(
            verdict(["| take-window ", "| 50×16 ", "redis-cell's take-bucket"]),
            "**missed**"
        );
        assert_eq!(verdict(["| p99, undisturbed ", "| incr ", "of own"]), "met");
        assert_eq!(verdict(["| p99 of all ", "| incr ", "of own"]), "**missed**");
        assert!(page.contains("0.60× (0.60 to 0.60)"), "{page}");
        assert_eq!(verdict(["| CPU ", "| set ", "| 50×16 "]), "met, uncertain");
        assert_eq!(verdict(["| CPU ", "| set ", "| 50×64 "]), "**missed**, uncertain");
    }

    #[test]
    fn beside_each_target_stands_what_the_floor_comes_to() {
        let mut report = report();
        report.servers.push(("floor".to_owned(), "1.2".to_owned(), "floor".to_owned()));
        report.rows[0].rounds.push(vec![measurement(4_000), measurement(8_000)]);
        report.rows[1..].iter_mut().for_each(|row| row.rounds.push(Vec::new()));
        let page = render(&report);
        let cells = |words: [&str; 2]| {
            let is_it = |line: &&str| words.iter().all(|word| line.contains(word));
            let line = page.lines().find(is_it).unwrap_or_default();
            line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()[6..9].join(" ")
        };
        assert_eq!(cells(["| CPU ", "| 50×1 "]), "0.60× (0.60 to 0.60) met 0.80× (0.80 to 0.80)");
        assert_eq!(cells(["| CPU ", "redis-cell"]), "– not measured –");
    }

    #[test]
    fn percentiles_are_those_of_undisturbed_stretches() {
        let latency = |report: &Report| {
            let page = render(report);
            let (_, table) = page.split_once("## Latency in the open loop").expect("a section");
            let line = table.lines().find(|line| line.contains("| tollgate")).unwrap_or_default();
            line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()[4..10].join(" ")
        };
        let mut report = report();
        assert_eq!(latency(&report), "1,000 1.0 9.0 100 10 % 1,111");
        for measurement in report.rows.iter_mut().flat_map(|row| &mut row.rounds).flatten() {
            measurement.undisturbed = None;
        }
        assert_eq!(latency(&report), "1,000 – – – 100 % 1,111");
        let page = render(&report);
        let is_own = |line: &&str| line.contains("| p99, undisturbed ") && line.contains("of own");
        let line = page.lines().find(is_own).unwrap_or_default();
        assert!(line.contains(" not measured |"), "{page}");
    }

    #[test]
    fn figures_of_better_peers_are_named() {
        let page = render(&report());
        let (_, losses) = page.split_once("## Where others are better").expect("a section");
        assert!(losses.contains("- `set` 50×1, CPU: 1.10× (1.10 to 1.10) memcached's"), "{losses}");
        let late = "- `incr` 50 @ 70 % of own, p99 of all: 1.11× (1.11 to 1.11) memcached's";
        assert!(losses.contains(late), "{losses}");
        assert_eq!(losses.lines().filter(|line| line.starts_with("- ")).count(), 2, "{losses}");
    }

    #[test]
    fn pictures_need_no_peer() {
        let mut report = report();
        let drawn = plots::all(&report).expect("there is room");
        assert!(drawn.iter().all(|(_, svg)| svg.contains("tollgate")));
        report.rows.clear();
        assert!(plots::all(&report).is_ok());
    }
}
