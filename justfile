# `just` lists these. All but `check` may take long; CI runs their short forms through the tests.

# What tests/tools.sh installs.
export PATH := env_var_or_default("CARGO_TARGET_DIR", justfile_directory() / "target") / "tools/bin:" + env_var("PATH")

_list:
    @just --list

# Exactly what CI runs
check:
    tests/check.sh

# All tests, or those whose name contains NAME
test NAME="":
    cargo build --workspace --lib --bins --tests --examples
    cargo test --workspace {{NAME}}

# The transcripts against a real memcached
oracle:
    cargo test -p tests oracle

# Fuzz each target for SECONDS
fuzz SECONDS="600":
    tests/fuzz.sh {{SECONDS}}

# Random cases in every property test: all of the engine's, then the others
prop CASES="100000":
    PROPTEST_CASES={{CASES}} cargo test --release -p tollgate-engine --lib --tests
    PROPTEST_CASES={{CASES}} cargo test --release --workspace --exclude tollgate-engine --lib --tests -- garbage twin decode ways

# Requests made from openapi.json to a real server, SECONDS for each role
api-fuzz SECONDS="120":
    cargo build -p tollgate-program
    API_FUZZ_SECONDS={{SECONDS}} cargo test -p tests api::description -- --nocapture

# The pictures of docs/operations anew: ten minutes of traffic on three real nodes
pictures:
    cargo build -p tollgate-program
    PICTURES=1 cargo test -p tests pictures -- --nocapture

# Eight clients at a log of 100 a second for SECONDS: no second admits more
hammer SECONDS="30":
    cargo build -p tollgate-program
    HAMMER_SECONDS={{SECONDS}} cargo test -p tests no_second_admits -- --nocapture

# KEYS keys meet a memory cap that is far too small: offenders stay refused
flood KEYS="10000000":
    cargo build -p tollgate-program
    FLOOD_KEYS={{KEYS}} cargo test -p tests an_offender -- --nocapture

# kill -9 of a server at random moments during CHANGES changes of limits over its API
limits-crash CHANGES="1000":
    cargo build -p tollgate-program
    CRASH_CHANGES={{CHANGES}} cargo test -p tests limits_crash -- --nocapture

# Five real nodes under load: every fault of the suite mixed at random for SECONDS, then each by itself
nodes SECONDS="600":
    cargo build -p tollgate-program
    NODES_SECONDS={{SECONDS}} cargo test -p tests cluster::mixed -- --nocapture
    cargo test -p tests cluster::five -- --nocapture --test-threads 1
    cargo test -p tests cluster::cut -- --nocapture --test-threads 1

# Every set of nodes that may die at once, then each pair of five processes: all keys answer within 3 s
pairs:
    cargo build -p tollgate-program
    SETS=all cargo test -p tollgate-control survival
    PAIRS=all cargo test -p tests cluster::pairs -- --nocapture --test-threads 1

# Each cell of the table of faults and settings in docs/operations/cluster.md, on real nodes; times are held to it
promises:
    cargo build --release -p tollgate-program
    cargo build -p tests --tests
    PROGRAM=$PWD/target/release/tollgate PROMISES=strict cargo test -p tests promises -- --nocapture --test-threads 1

# Five nodes restarted one after the other under load, RESTARTS times: no error, no pause of 500 ms
rolling RESTARTS="20":
    cargo build --release -p tollgate-program
    cargo build -p tests --tests
    PROGRAM=$PWD/target/release/tollgate ROLLING_RESTARTS={{RESTARTS}} cargo test -p tests rolling -- --nocapture

# Ten thousand overrides put through the API of one node and of three, the most that they keep
overrides:
    cargo build -p tollgate-program
    OVERRIDES=10000 cargo test -p tests many_overrides -- --nocapture --test-threads 1

# Three nodes of an earlier COMMIT, built for it, replaced by the present version one after the other under load
update COMMIT="8ff0a8a":
    test -d target/earlier/{{COMMIT}} || git worktree add --detach target/earlier/{{COMMIT}} {{COMMIT}}
    cd target/earlier/{{COMMIT}} && cargo build --target-dir target --locked
    cargo build -p tollgate-program
    OLD_PROGRAM=$PWD/target/earlier/{{COMMIT}}/target/debug/tollgate cargo test -p tests cluster::update -- --nocapture --test-threads 1

# Real nodes whose wall clocks step and differ, for SECONDS each, with steps of an hour to ten years at every node
clocks SECONDS="300":
    cargo build -p tollgate-program
    CLOCKS_SECONDS={{SECONDS}} cargo test -p tests cluster::clocks -- --nocapture --test-threads 1

# Each single link of three and of five nodes cut for SECONDS, in both directions and in each; and a node alone
cuts SECONDS="20":
    cargo build -p tollgate-program
    CUT_SECONDS={{SECONDS}} cargo test -p tests cluster::links -- --nocapture --test-threads 1

# Disks that fail, fill or are slow under each role, while another node restarts: no acknowledged count is lost
disks:
    cargo build -p tollgate-program
    DISKS=all cargo test -p tests cluster::disks -- --nocapture --test-threads 1

# What a take costs at a million holders of one key; CI runs the same and counts its steps
holders:
    cargo test --release -p tollgate-engine --lib a_million_holders -- --nocapture

# A million written policies of one client: how long others wait, beside as many takes under one policy
policies:
    POLICIES=1000000 cargo test --release -p tests policies -- --nocapture

# Instructions of each command under callgrind, beside those written down; `--write` writes them down
instructions *FLAGS:
    cargo build --release -p benches --bin instructions
    target/release/instructions {{FLAGS}}

# Micro-benchmarks, where keys go, then the server beside memcached; the table lands in target/bench.md
bench:
    cargo bench -p benches
    cargo build --release -p tollgate-program -p load
    target/release/load --pin --out target/bench.md

# Beside memcached, Redis, redis-cell and throttlecrab, which it installs: writes docs/performance/peers.md
bench-peers *FLAGS:
    benches/peers.sh {{FLAGS}}

# Clusters of one to three nodes, the floor of two nodes, and Redis and Valkey with a replica, which it installs: CPU of an operation
bench-cluster *FLAGS:
    benches/cluster.sh --connections 50 --pipelines 1,16,64 --rounds 3 --seconds 1 --keys 1000000 --out target/bench-cluster.md {{FLAGS}}

# What watching costs: the workers' CPU, and p99 at 70 % of the load, of a server that is scraped and whose page and
# tail are open, beside two servers without an admin listener; the tables land in target/watched-*.md
bench-watched ROUNDS="15":
    cargo build --release -p tollgate-program -p load
    for limits in '' '--limits {limits:1}'; do \
        server="target/release/tollgate -t 1 -m 1024 -c 20000 -p {port} $limits"; \
        cells=$([ -z "$limits" ] && echo incr,get,set,take-bucket || echo incr-bound,take-bound,take-refused); \
        set -- --pin --workers-cpu --server "alone=$server --http off" --server "equal=$server --http off" \
            --server "watched=$server --http 127.0.0.1:{admin}" --reference alone --cells "$cells" --connections 50; \
        target/release/load "$@" --pipelines 1,16,64 --seconds 0.4 --rounds {{ROUNDS}} --out "target/watched-${limits:+limited-}cpu.md"; \
        target/release/load "$@" --pipelines 1 --rate 70% --seconds 1 --rounds {{ROUNDS}} --out "target/watched-${limits:+limited-}p99.md"; \
    done

# 1 to 10,000 connections, 1 to 50 million keys, one worker and two; the tables land in target/scale-*.md
bench-scale:
    cargo build --release -p tollgate-program -p load
    target/release/load --pin --cells incr --connections 1,50,1000,10000 --pipelines 1,16 --out target/scale-connections.md
    target/release/load --pin --cells incr,get --connections 50 --pipelines 1,16 --keys 10000000 --out target/scale-10m.md
    target/release/load --pin --cells incr,get --connections 50 --pipelines 1,16 --keys 50000000 --rounds 3 --seconds 0.6 --out target/scale-50m.md
    target/release/load --server 'one=tollgate:target/release/tollgate -t 1 -m 1024 -p {port}' --server 'two=tollgate:target/release/tollgate -t 2 -m 1024 -p {port}' --reference one --cells incr,get,take-bucket --connections 50 --pipelines 16,64 --rounds 7 --seconds 0.4 --out target/scale-two.md
    python3 benches/two_workers.py target/release/tollgate --rounds 31

# Where the CPU of a cell goes, as root: `just profile incr 1` is incr at pipeline 1, system calls counted and symbols listed
profile CELL PIPELINE:
    cargo build --profile profiling -p tollgate-program -p load
    benches/profile.sh {{CELL}} {{PIPELINE}}

# Memory of a counter, a bucket and an idle connection, and what is given back, beside memcached; memory of each kind of state
bench-memory:
    cargo build --release -p tollgate-program -p load
    target/release/load --memory
    python3 benches/state_sizes.py target/release/tollgate

# What each algorithm lets through, beside the perfect count: writes docs/accuracy; `--check` compares
accuracy *FLAGS:
    cargo build --release -p accuracy
    target/release/accuracy {{FLAGS}}

# Clusters of real replica cores under faults from SEEDS seeds, then without each rule in turn
model SEEDS="2000":
    cargo run --release -p model -- --seeds {{SEEDS}}
    cargo run --release -p model -- --bugs

# Whole nodes in a simulated world under the faults of SEED, twice; FLAGS: --cuts (single links alone), --limits (editors), --update (two versions), --queries, --trace, --bug NoDedupe, --trouble SECONDS
sim SEED *FLAGS:
    cargo run --release -p sim -- {{SEED}} {{FLAGS}}

# As `sim`, one seed after the other for MINUTES
chaos MINUTES="10" *FLAGS:
    cargo run --release -p sim -- --minutes {{MINUTES}} {{FLAGS}}

# The book of docs/, into target/book; mdbook goes to target/tools if it is not installed
book:
    command -v mdbook || test -x target/tools/bin/mdbook || cargo install mdbook --locked --root target/tools
    PATH="$PATH:$PWD/target/tools/bin" mdbook build docs

# Formatting and lints
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --locked -- -D warnings

# Rust documentation, private items too; a warning is an error
docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked

# Licences, sources, duplicates and advisories of the dependencies, or only CHECKS: `just deny bans licenses sources`
deny *CHECKS:
    tests/tools.sh cargo-deny
    cargo deny --locked check {{CHECKS}}

# Type-check the fuzz targets
fuzz-build:
    cargo check --manifest-path tests/fuzz/Cargo.toml --target-dir target --locked

# The archive of a release, in target/dist
dist:
    deploy/dist.sh

# Build and run with these FLAGS
run *FLAGS:
    cargo run --release -- {{FLAGS}}
