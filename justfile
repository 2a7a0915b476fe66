# `just` lists these. All but `check` may take long; CI runs their short forms through the tests.

_list:
    @just --list

# Exactly what CI runs
check:
    tests/check.sh

# All tests, or those whose name contains NAME
test NAME="":
    cargo build --workspace
    cargo test --workspace {{NAME}}

# The transcripts against a real memcached
oracle:
    cargo test -p tests oracle

# Fuzz each target for SECONDS
fuzz SECONDS="600":
    tests/fuzz.sh {{SECONDS}}

# Random cases in every property test
prop CASES="100000":
    PROPTEST_CASES={{CASES}} cargo test --release --workspace --lib --tests -- proptest garbage twin decode

# Micro-benchmarks, then the server beside memcached; the table lands in target/bench.md
bench:
    cargo bench -p benches
    cargo build --release -p tollgate -p benches
    target/release/load --pin --out target/bench.md

# Memory per counter beside memcached
bench-memory:
    cargo build --release -p tollgate -p benches
    target/release/load --memory

# Clusters of real replica cores under faults from SEEDS seeds, then without each rule in turn
model SEEDS="2000":
    cargo run --release -p model -- --seeds {{SEEDS}}
    cargo run --release -p model -- --bugs

# Licences and advisories of the dependencies
deny:
    cargo deny check

# Build and run with these FLAGS
run *FLAGS:
    cargo run --release -- {{FLAGS}}
