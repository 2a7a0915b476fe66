#!/usr/bin/env bash
# The checks that a change must pass: formatting, lints, licences and sources of the dependencies, documentation,
# the build of the fuzz targets, all tests, a short run of the load generator, the accuracy study and the
# instruction counts.
# Installs the programs that the tests need (tests/setup.sh); some 25 minutes on two cores. Each step prints a
# line when it begins; the last line counts the tests, or names the step that failed.
set -euo pipefail
cd "$(dirname "$0")/.."

step=start
step() {
    step=$1
    printf '\n=== %d:%02d %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$step"
}
log=$(mktemp)
is_complete=no
end() {
    code=$?
    # A script that a signal ends comes here with the code of the command before.
    if [ $code -eq 0 ] && [ $is_complete = no ]; then code=1; fi
    passed=$(awk '/^test result:/ { sum += $4 } END { print sum + 0 }' "$log")
    failed=$(awk '/^test result:/ { sum += $6 } END { print sum + 0 }' "$log")
    rm -f "$log"
    printf '\n=== %d:%02d ' $((SECONDS / 60)) $((SECONDS % 60))
    if [ $code -eq 0 ]; then
        printf 'all steps passed\n%d passed, 0 failed\n' "$passed"
    else
        # A step without failed tests counts as one failure.
        printf 'failed: %s\n%d passed, %d failed\n' "$step" "$passed" $((failed > 0 ? failed : 1))
    fi
    exit $code
}
trap end EXIT

step 'packages and clients for the tests (tests/setup.sh)'
tests/setup.sh
PATH="${CARGO_TARGET_DIR:-$PWD/target}/tools/bin:$PATH"
step 'format'
cargo fmt --all --check
step 'lints of the workspace'
cargo clippy --workspace --all-targets --locked -- -D warnings
# Not advisories: their database is on the network. The workflow `deny` compares those.
step 'licences, sources and duplicates of the dependencies'
cargo deny --locked check bans licenses sources
step 'documentation'
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked
# A separate workspace, with a lock file of its own.
step 'build of the fuzz targets'
cargo check --manifest-path tests/fuzz/Cargo.toml --target-dir target --locked
# All at once: a package built alone has other features than beside its tests, and is built twice.
step 'build of server and tests'
cargo build --workspace --lib --bins --tests --examples --locked
step 'tests'
# Without backtraces, which hide the messages of failed tests. All suites run, also after one that fails.
export RUST_BACKTRACE=0
cargo test --workspace --locked --no-fail-fast 2>&1 | tee "$log"
# The command of the README. It builds the server of the next steps too.
step 'installing, as the README does'
cargo install --locked --path server/program --root target/installed --no-track --force
step 'build of the measuring programs'
cargo build --release --locked -p tollgate-program -p load -p accuracy -p benches --bin tollgate --bin load --bin accuracy --bin instructions
# Every reply is checked; the figures of this short run mean nothing.
step 'load generator, short'
target/release/load --quick
# The figures and pictures of docs/accuracy are those of this engine.
step 'accuracy study'
target/release/accuracy --check
# No command takes over 5 % more instructions than benches/instructions.toml says.
step 'instructions of each command'
target/release/instructions
is_complete=yes
