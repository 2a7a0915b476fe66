#!/bin/sh
# Installs the servers that `load --peers` compares with, by package name, and runs it with these flags.
#
# Here: packages, and the folder of those built here. Not here: the start of each server and its
# requests (src/peers). Runs as root on Debian, does nothing twice. The report names a server that
# cannot be installed.
set -eu
cd "$(dirname "$0")/.."
peers="$PWD/target/peers"
throttlecrab=0.4.40
redis_cell=0.2.2

absent() { echo "peers.sh: $1 could not be installed and is left out" >&2; }

# One by one, so that a missing package affects no other. throttlecrab is built with `protoc`.
for package in memcached redis-server protobuf-compiler; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] && continue
    [ -n "${updated:-}" ] || apt-get update || true
    updated=yes
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$package" ||
        absent "$package"
done

if [ ! -x "$peers/bin/throttlecrab-server" ]; then
    cargo install --locked --version "$throttlecrab" --root "$peers" \
        --target-dir "$peers/build" throttlecrab-server || absent throttlecrab-server
fi

# A module of Redis is a library, which cargo does not install; it builds it as a dependency.
if [ ! -f "$peers/redis-cell-$redis_cell/libredis_cell.so" ]; then
    folder="$peers/redis-cell-$redis_cell"
    mkdir -p "$folder/src"
    : >"$folder/src/lib.rs"
    cat >"$folder/Cargo.toml" <<END
[package]
name = "builds-redis-cell"
edition = "2021"

[dependencies]
redis-cell = "=$redis_cell"

[workspace]
END
    { cargo build --release -p redis-cell --manifest-path "$folder/Cargo.toml" \
        --target-dir "$peers/build" && cp "$peers/build/release/libredis_cell.so" "$folder"; } ||
        absent redis-cell
fi

cargo build --release --locked -p tollgate-program -p load
# The figures of a quick run mean nothing.
case " $* " in
*" --quick "*) folder=target/peers ;;
*) folder=docs/performance ;;
esac
exec target/release/load --peers "$folder" --pin "$@"
