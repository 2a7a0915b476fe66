#!/bin/sh
# Installs the named cargo tools from crates.io into target/tools/bin. Does nothing if the right version is there,
# or comes first in PATH.
#
#     tests/tools.sh cargo-deny cargo-fuzz
#
# Here: the versions of those tools. Not here: packages of other ecosystems (tests/setup.sh).
set -eu
cd "$(dirname "$0")/.."
tools="${CARGO_TARGET_DIR:-$PWD/target}/tools"
PATH="$tools/bin:$PATH"

for tool in "$@"; do
    case $tool in
    cargo-deny) version=0.20.2 ;;
    cargo-fuzz) version=0.13.2 ;;
    *) echo "tools.sh: no version of $tool is written here" >&2 && exit 2 ;;
    esac
    found=$("$tool" --version 2>/dev/null || true)
    [ "$found" != "$tool $version" ] || continue
    # Built for a few runs, so without the release optimizations, which take several times as long.
    cargo install --locked --root "$tools" --target-dir "$tools/build" \
        --config 'profile.release.lto=false' --config 'profile.release.codegen-units=16' \
        --config 'profile.release.opt-level=1' "$tool@$version"
    rm -rf "$tools/build"
done
