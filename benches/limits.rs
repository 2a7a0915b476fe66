//! The lookup of a key's limit: nanoseconds per key with 1, 100 and 10 000 limits in the file.
//!
//! Keys are drawn from a list that exceeds the processor's caches, so parts of the trie are cold.
//! One further limit has 10 000 overrides. Not here: the limit's decision (`engine`).

use std::fmt::Write as _;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use protocol::Policy;
use tollgate_limits::{Limits, OverrideSource};

const KEYS: u64 = 1 << 14;
const OVERRIDES: u64 = 10_000;

/// Makes `count` limits, each of a literal and a capture, and one more with overrides of every
/// kind.
fn limits(count: u64) -> Limits {
    let mut file = String::new();
    for number in 0..count {
        writeln!(
            file,
            "[[limit]]\nname = 'limit-{number}'\nmatch = 'service-{number}:user:{{id}}'"
        )
        .and_then(|()| writeln!(file, "policy = 'sliding:{}/60s'", number + 1))
        .expect("writing to a String cannot fail");
    }
    let last = count;
    writeln!(file, "[[limit]]\nname = 'last'\nmatch = 'service-{last}:user:{{id}}'")
        .and_then(|()| writeln!(file, "policy = 'fixed:5/s'"))
        .expect("writing to a String cannot fail");
    let mut limits = Limits::parse("bench", file.as_bytes()).expect("a good file");
    let keys = (0..OVERRIDES).map(|number| match number % 4 {
        0 | 1 => format!("service-{last}:user:{number}"),
        2 => format!("service-{last}:user:prefix-{number}*"),
        _ => format!("service-{last}:user:10.{}.{}.0/24", number / 256, number % 256),
    });
    let keys: Vec<String> = keys.collect();
    let block = Policy::parse(b"block").expect("a policy");
    let rows = keys.iter().map(|key| (key.as_str(), (block, None)));
    assert_eq!(limits.set_overrides("last", OverrideSource::File, rows), []);
    limits
}

/// A limit whose counted key leaves a part of the key out.
const REWRITTEN: &str = "[[limit]]\nname = 'r'\nmatch = 'rack::attack:{w:digits}:req/ip:{ip}'\n\
                         key = 'rack::attack:req/ip:{ip}'\npolicy = 'fixed:300/5m'\n";

fn random(count: u64, key: impl Fn(u64) -> String) -> Vec<String> {
    let mut state = 42_u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        key((state >> 33) % count)
    };
    (0..KEYS).map(next).collect()
}

fn find(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("limits");
    for count in [1, 100, 10_000] {
        let limits = limits(count);
        let last = count;
        let keys = [
            ("unbound", random(1 << 30, |n| format!("user:{n:015}"))),
            ("almost", random(count, |n| format!("service-{n}:session:{n}"))),
            ("bound", random(count, |n| format!("service-{n}:user:x{n}"))),
            ("missed", random(1 << 30, |n| format!("service-{last}:user:x{n}"))),
            ("exact", random(2500, |n| format!("service-{last}:user:{}", n * 4))),
            ("prefix", random(2500, |n| format!("service-{last}:user:prefix-{}:x", n * 4 + 2))),
            (
                "network",
                random(2500, |n| {
                    let n = n * 4 + 3;
                    format!("service-{last}:user:10.{}.{}.7", n / 256, n % 256)
                }),
            ),
        ];
        for (name, keys) in keys {
            let bound = !matches!(name, "unbound" | "almost");
            let overridden = bound && !matches!(name, "bound" | "missed");
            bench(&mut group, BenchmarkId::new(name, count), &limits, &keys, (bound, overridden));
        }
    }
    let limits = Limits::parse("bench", REWRITTEN.as_bytes()).expect("a good file");
    let keys = random(1 << 20, |n| format!("rack::attack:{n}:req/ip:192.0.2.{}", n % 256));
    bench(&mut group, BenchmarkId::new("rewritten", 1), &limits, &keys, (true, false));
    group.finish();
}

/// Measures limits with a common prefix or a leading capture: the literal behind it decides.
fn alike(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("limits");
    for (shape, prefix) in [("alike", "api:"), ("headless", "")] {
        let mut file = String::new();
        for number in 0..10_000 {
            writeln!(file, "[[limit]]\nname = 'limit-{number}'\npolicy = 'fixed:5/s'")
                .and_then(|()| writeln!(file, "match = '{prefix}{{tenant}}:plan-{number}:{{id}}'"))
                .expect("writing to a String cannot fail");
        }
        let limits = Limits::parse("bench", file.as_bytes()).expect("a good file");
        let bound = random(10_000, |n| format!("{prefix}acme:plan-{n}:x{n}"));
        let unbound = random(1 << 30, |n| format!("{prefix}user:{n:015}"));
        let id = |name| BenchmarkId::new(format!("{shape}-{name}"), 10_000);
        bench(&mut group, id("unbound"), &limits, &unbound, (false, false));
        bench(&mut group, id("bound"), &limits, &bound, (true, false));
    }
    group.finish();
}

/// Finds each key in turn. Either all keys are limited and overridden, or none is.
fn bench(
    group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>,
    id: BenchmarkId,
    limits: &Limits,
    keys: &[String],
    expected: (bool, bool),
) {
    let mut scratch = Vec::new();
    for key in keys {
        let found = limits.find(key.as_bytes(), &mut scratch).expect("a short key");
        let overridden = found.is_some_and(|found| found.overridden().is_some());
        assert_eq!((found.is_some(), overridden), expected, "{key}");
    }
    let mut next = keys.iter().cycle();
    group.bench_function(id, |bencher| {
        bencher.iter(|| {
            let key = next.next().expect("a cycle has no end");
            let found = limits.find(black_box(key.as_bytes()), &mut scratch);
            black_box(found.is_ok_and(|found| found.is_some()))
        });
    });
}

fn load(criterion: &mut Criterion) {
    criterion.bench_function("limits/load/10000", |bencher| bencher.iter(|| limits(10_000)));
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(500))
        .measurement_time(std::time::Duration::from_secs(2));
    targets = find, alike, load
}
criterion_main!(benches);
