#!/bin/sh
# Installs the servers that `load --cluster` compares with, by package name, and runs it with these flags.
#
# Runs as root on Debian, does nothing twice. A server that cannot be installed is left out of the table.
set -eu
cd "$(dirname "$0")/.."
for package in redis-server valkey-server; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] && continue
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$package" ||
        echo "cluster.sh: $package could not be installed and is left out" >&2
done
cargo build --release --locked -p tollgate-program -p load --bin tollgate --bin load --bin cluster_floor
exec target/release/load --cluster "$@"
