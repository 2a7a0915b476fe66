//! Decoding and encoding alone: nanoseconds per request.
//!
//! Not here: executing requests (`engine.rs`), sockets (`src/bin/load.rs`).

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use protocol::{Bounds, Decoded, Outcome, Policy, Request, decode, encode};

fn requests() -> [(&'static str, &'static [u8]); 10] {
    [
        ("incr", b"incr user:00000000000042 1\r\n"),
        ("get", b"get user:00000000000042\r\n"),
        ("get10", b"get k0 k1 k2 k3 k4 k5 k6 k7 k8 k9\r\n"),
        ("set32", b"set user:00000000000042 0 3600 32\r\n01234567890123456789012345678901\r\n"),
        ("touch", b"touch user:00000000000042 60\r\n"),
        ("mg", b"mg user:00000000000042 v t f c k\r\n"),
        ("ma", b"ma user:00000000000042 N60 J1 D1 v\r\n"),
        ("take", b"take user:00000000000042 1 bucket:100/60s,capacity=200\r\n"),
        ("incrx", b"incrx user:00000000000042 1 60 max=5\r\n"),
        ("refused", b"incr user:00000000000042 x\r\n"),
    ]
}

fn decoding(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode");
    for (name, wire) in requests() {
        group.throughput(Throughput::Elements(1));
        group.bench_function(name, |bencher| {
            bencher.iter(|| decode(black_box(wire), 0, Bounds::default()).is_ok());
        });
    }
    group.finish();
}

fn encoding(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("encode");
    for (name, wire) in requests() {
        let decoded = decode(wire, 0, Bounds::default());
        let Ok(Decoded::Request { request: Request::Command { command, form }, .. }) = decoded
        else {
            continue;
        };
        group.bench_function(name, |bencher| {
            let mut out = Vec::with_capacity(256);
            bencher.iter(|| {
                out.clear();
                encode(&mut out, black_box(&command), &form, &Outcome::number(1234));
                out.len()
            });
        });
    }
    group.finish();
}

fn policies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("policy");
    for (name, token) in [
        ("bucket", &b"bucket:100/60s,capacity=200"[..]),
        ("sliding", b"sliding:300/5m,slices=10,strict"),
        ("refused", b"bucket:100/60s,capcity=200"),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| Policy::parse(black_box(token)).is_ok());
        });
    }
    group.finish();
}

criterion_group!(benches, decoding, encoding, policies);
criterion_main!(benches);
