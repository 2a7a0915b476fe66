#!/usr/bin/env bash
# Builds the archive of a release in target/dist: program, licences, unit, its checksum, and the changelog's section.
#
#     deploy/dist.sh [TAG]
#
# TAG must be `v` and the version of Cargo.toml. Without TAG the section may be `Unreleased`.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)
tag=${1:-}
if [ -n "$tag" ] && [ "$tag" != "v$version" ]; then
    echo "dist.sh: the tag is $tag, Cargo.toml says $version" >&2
    exit 1
fi
# The text between the heading of this version and the next heading.
section() {
    awk -v heading="## $1" '
        /^## / { inside = $0 == heading || index($0, heading " ") == 1; next }
        inside { print }
    ' CHANGELOG.md
}
notes=$(section "$version")
if [ -z "$notes" ]; then
    if [ -n "$tag" ]; then
        echo "dist.sh: CHANGELOG.md has no section $version" >&2
        exit 1
    fi
    notes=$(section Unreleased)
fi
cargo build --release --locked -p tollgate-program
name=tollgate-$version-$(uname -m)-linux
dist=target/dist
rm -rf "$dist"
mkdir -p "$dist/$name"
cp target/release/tollgate LICENSE-APACHE LICENSE-MIT README.md CHANGELOG.md \
    deploy/tollgate.service deploy/tollgate.default "$dist/$name"
tar -C "$dist" -czf "$dist/$name.tar.gz" "$name"
rm -r "${dist:?}/$name"
(cd "$dist" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
printf '%s\n' "$notes" >"$dist/notes.md"
ls -l "$dist"
