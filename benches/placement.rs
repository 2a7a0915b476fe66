//! Placement of keys: nanoseconds per lookup, and how evenly the table of targets spreads keys.
//!
//! Here: lookups by Criterion, and before them a table of shares and moves. The table is pure
//! arithmetic and the same on every machine. Not here: forwarding (`server.rs`). `cargo bench -p
//! benches --bench placement -- --table` prints the table alone.

#![expect(clippy::cast_precision_loss, reason = "counts become percentages")]

use std::collections::BTreeMap;
use std::env;
use std::hint::black_box;

use cluster::NodeId;
use cluster::placement::ketama::{self, Circle};
use cluster::placement::{Member, Movement, PartitionOwners, Placement, Scheme};
use criterion::{BatchSize, Criterion, Throughput, criterion_group};

const SIZES: [u32; 4] = [3, 10, 100, 1000];
/// Copies of each partition in the table.
const COPIES: usize = 2;
/// Points drawn to find the share of keys that a ketama client sends elsewhere.
const PLACES: u32 = 1 << 20;

fn members(count: u32) -> Vec<Member> {
    (0..count)
        .map(|n| Member {
            node: NodeId(n),
            ring_name: format!("10.{}.{}.1", n / 250, n % 250),
            weight: 1,
            zone: String::new(),
        })
        .collect()
}

fn circle(members: &[Member]) -> Circle {
    Circle::new(members.iter().map(|member| (&*member.ring_name, member.weight)))
}

/// `PLACES` points, spread evenly around the continuum.
fn places() -> impl Iterator<Item = u32> {
    (0..PLACES).map(|n| n.wrapping_mul(0x9e37_79b1))
}

/// Percent of keys that a ketama client sends to another node than the primary.
fn sent_elsewhere(placement: Placement, members: &[Member], targets: &[PartitionOwners]) -> f64 {
    let circle = circle(members);
    let elsewhere = places().filter(|&place| {
        let owner = circle.owner(place).map(|owner| members[usize::from(owner)].node);
        targets[placement.partition_of_hash(place).index()].primary() != owner
    });
    percent(elsewhere.count(), PLACES as usize)
}

/// The same percentage if the owner of the largest part of a partition's range were its primary.
fn sent_elsewhere_by_largest_part(placement: Placement, members: &[Member]) -> f64 {
    let circle = circle(members);
    let mut counts = vec![BTreeMap::<u16, usize>::new(); placement.partitions()];
    for place in places() {
        let owner = circle.owner(place).expect("there are nodes");
        *counts[placement.partition_of_hash(place).index()].entry(owner).or_default() += 1;
    }
    let agree: usize = counts.iter().filter_map(|counts| counts.values().max()).sum();
    percent(PLACES as usize - agree, PLACES as usize)
}

fn percent(part: usize, whole: usize) -> f64 {
    part as f64 * 100.0 / whole as f64
}

/// The smallest and the largest number of partitions on a node, divided by the mean.
fn load(members: &[Member], targets: &[PartitionOwners], copies: usize) -> (f64, f64) {
    let mut held: BTreeMap<NodeId, usize> = members.iter().map(|one| (one.node, 0)).collect();
    for holders in targets {
        for node in holders.iter().take(copies) {
            *held.get_mut(node).expect("only members hold") += 1;
        }
    }
    let mean = held.values().sum::<usize>() as f64 / members.len() as f64;
    let least = held.values().min().map_or(0.0, |&held| held as f64 / mean);
    let most = held.values().max().map_or(0.0, |&held| held as f64 / mean);
    (least, most)
}

/// One line of the table: shares, and moves when a node joins and when one dies.
fn row(scheme: Scheme, bits: u8, count: u32) -> String {
    let placement = Placement::new(scheme, bits).expect("few bits");
    let (before, after) = (members(count), members(count + 1));
    let targets = placement.targets(&before, COPIES);
    let (least, most) = load(&before, &targets, 1);
    let (_, most_copies) = load(&before, &targets, COPIES);
    let joined = Movement::between(&targets, &placement.targets(&after, COPIES));
    let died = Movement::between(&targets, &placement.targets(&before[1..], COPIES));
    let (elsewhere, largest) = match scheme {
        Scheme::Ketama => (
            format!("{:.1}", sent_elsewhere(placement, &before, &targets)),
            format!("{:.1}", sent_elsewhere_by_largest_part(placement, &before)),
        ),
        Scheme::Xxh3 => ("-".to_owned(), "-".to_owned()),
    };
    let all = placement.partitions();
    format!(
        "| {scheme:?} | {bits} | {count} | {elsewhere} | {largest} | {least:.2} | {most:.2} | \
         {most_copies:.2} | {:.2} | {:.2} | {:.2} | {:.1} |",
        percent(joined.primaries, all),
        100.0 / f64::from(count + 1),
        percent(joined.copies, all),
        percent(died.promoted, died.primaries.max(1)),
    )
}

fn print_table() {
    println!(
        "| scheme | bits | nodes | keys a ketama client sends elsewhere, % | the same by largest \
         part, % | least primaries / mean | most / mean | most copies / mean | primaries moved by \
         a join, % | ideal, % | copies made by a join, % | of a dead node's primaries promoted, % |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    for (scheme, bits) in [(Scheme::Ketama, 14), (Scheme::Xxh3, 14), (Scheme::Ketama, 16)] {
        for count in SIZES {
            println!("{}", row(scheme, bits, count));
        }
    }
}

fn lookups(criterion: &mut Criterion) {
    let keys: Vec<String> = (0..1024).map(|n| format!("user:{n:014}")).collect();
    let mut group = criterion.benchmark_group("placement");
    group.throughput(Throughput::Elements(keys.len() as u64));
    for scheme in [Scheme::Ketama, Scheme::Xxh3] {
        let placement = Placement::new(scheme, 14).expect("few bits");
        let name = format!("{scheme:?}/hash").to_lowercase();
        group.bench_function(name, |bencher| {
            bencher.iter(|| keys.iter().map(|key| placement.hash(key.as_bytes())).max());
        });
        for count in SIZES {
            let targets = placement.targets(&members(count), COPIES);
            let name = format!("{scheme:?}/key to primary/{count}").to_lowercase();
            group.bench_function(name, |bencher| {
                bencher.iter(|| {
                    let owner = |key: &String| {
                        targets[placement.partition(key.as_bytes()).index()].primary()
                    };
                    keys.iter().map(owner).max()
                });
            });
        }
    }
    let hashes: Vec<u32> = keys.iter().map(|key| ketama::hash(key.as_bytes())).collect();
    for count in SIZES {
        let circle = circle(&members(count));
        group.bench_function(format!("ketama/place to owner on the circle/{count}"), |bencher| {
            bencher.iter(|| hashes.iter().map(|&hash| circle.owner(black_box(hash))).max());
        });
    }
    group.finish();
}

fn tables(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("placement/table of targets");
    group.sample_size(10);
    for scheme in [Scheme::Ketama, Scheme::Xxh3] {
        let placement = Placement::new(scheme, 14).expect("few bits");
        for count in SIZES {
            let name = format!("{scheme:?}/{count}").to_lowercase();
            group.bench_function(name, |bencher| {
                bencher.iter_batched(
                    || members(count),
                    |members| placement.targets(&members, COPIES).len(),
                    BatchSize::PerIteration,
                );
            });
        }
    }
    group.finish();
}

criterion_group!(benches, lookups, tables);

fn main() {
    print_table();
    if env::args().any(|word| word == "--table") {
        return;
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
