#!/usr/bin/env bash
# Everything a change must pass: formatting, lints, all tests, a short run of the load generator, the
# accuracy study and the instruction counts.
# Installs what the tests need (tests/setup.sh); minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."
tests/setup.sh
cargo fmt --all --check
cargo clippy --workspace --all-targets --locked -- -D warnings
# All at once: what is built alone has other features than beside its tests, and is built twice.
cargo build --workspace --lib --bins --tests --examples --locked
cargo test --workspace --locked
# Every reply is checked; the figures of so short a run mean nothing.
cargo build --release --locked -p tollgate -p benches --bin tollgate --bin load --bin accuracy --bin instructions
target/release/load --quick
# The figures and pictures of docs/accuracy are those of this engine.
target/release/accuracy --check
# No command takes over 5 % more instructions than benches/instructions.toml says.
target/release/instructions
