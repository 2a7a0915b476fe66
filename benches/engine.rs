//! The engine alone: nanoseconds per command on a million keys, one shard, no locks.
//!
//! Keys are uniform, so nearly every command misses the processor's caches; `prefetched` fetches
//! sixteen keys at a time first, as the server does for a batch. Not here: locks and sockets.

use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use engine::{Engine, EngineOptions, KeyHasher, MemoryCap, Now, PolicyRef, TakeParams, TakeResult};
use protocol::{Arithmetic, Command, Exptime, Get, Key, Operation, Outcome, Policy, Set, SetMode};

const KEYS: u64 = 1_000_000;
const BATCH: usize = 16;

fn key(number: u64) -> String {
    format!("user:{number:015}")
}

fn incr() -> Operation<'static> {
    Operation::Arithmetic(Arithmetic::plain(1, false))
}

fn set(value: &[u8]) -> Operation<'_> {
    Operation::Set(Set::plain(SetMode::Set, 0, Exptime(3600), value))
}

/// An engine full of counters, and random keys of it with their hashes.
fn filled() -> (Engine, Vec<(String, u64)>) {
    let hasher = KeyHasher::new([1, 2, 3, 4]);
    let budget = Arc::new(MemoryCap::new(1 << 30));
    let mut engine = Engine::new(hasher.clone(), budget, EngineOptions::default());
    for number in 0..KEYS {
        let key = key(number);
        let hash = hasher.hash(key.as_bytes());
        let key = Key::plain(key.as_bytes()).expect("a short word is a key");
        engine.apply(Now::at_ms(1000), hash, &Command { key, operation: set(b"1") });
    }
    let mut state = 42_u64;
    let keys = (0..1 << 16)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = key((state >> 33) % KEYS);
            let hash = hasher.hash(key.as_bytes());
            (key, hash)
        })
        .collect();
    (engine, keys)
}

fn commands(criterion: &mut Criterion) {
    let (mut engine, keys) = filled();
    let now = Now::at_ms(2000);
    let mut group = criterion.benchmark_group("engine");
    group.throughput(Throughput::Elements(1));
    let operations =
        [("incr", incr()), ("get", Operation::Get(Get::default())), ("set", set(b"2"))];
    for (name, operation) in operations {
        let mut next = keys.iter().cycle();
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let (key, hash) = next.next().expect("a cycle has no end");
                let key = Key::plain(key.as_bytes()).expect("a short word is a key");
                let command = Command { key, operation: operation.clone() };
                matches!(engine.apply(now, *hash, &command), Outcome::Number(_))
            });
        });
    }
    group.throughput(Throughput::Elements(BATCH as u64));
    let mut batches = keys.chunks_exact(BATCH).cycle();
    group.bench_function("incr, 16 prefetched", |bencher| {
        bencher.iter(|| {
            let batch = batches.next().expect("a cycle has no end");
            for (_, hash) in batch {
                engine.prefetch_line(*hash);
            }
            for (_, hash) in batch {
                if !engine.prefetch_item(*hash) {
                    engine.prefetch_item_behind(*hash);
                }
            }
            for (key, hash) in batch {
                let key = Key::plain(key.as_bytes()).expect("a short word is a key");
                let command = Command { key, operation: incr() };
                assert!(matches!(engine.apply(now, *hash, &command), Outcome::Number(_)));
            }
        });
    });
    group.finish();
}

/// Measures `take`s that pass, on keys that all have a state.
fn takes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("engine, take");
    group.throughput(Throughput::Elements(1));
    for token in [
        "bucket:1/1d,capacity=1000000",
        "gcra:1/1d,burst=1000000",
        "fixed:1000000/1d",
        "sliding:1000000/1d",
        "log:1000000/1d,entries=65536",
    ] {
        let policy = Policy::parse(token.as_bytes()).expect("a good policy");
        let rule = Some(PolicyRef::from(&policy));
        let take = TakeParams { cost: 1, ..TakeParams::default() };
        let (mut engine, keys) = filled();
        let now = Now::at_ms(2000);
        for (key, hash) in &keys {
            engine.take(now, *hash, key.as_bytes(), rule, &take);
        }
        let mut next = keys.iter().cycle();
        group.bench_function(token, |bencher| {
            bencher.iter(|| {
                let (key, hash) = next.next().expect("a cycle has no end");
                let taken = engine.take(now, *hash, key.as_bytes(), rule, &take);
                matches!(taken, TakeResult::Decided(_))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, commands, takes);
criterion_main!(benches);
