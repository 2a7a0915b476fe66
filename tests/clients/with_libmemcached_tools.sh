#!/bin/sh
# libmemcached's own tools: its conformance checks of the text protocol, and copying files.
# Arguments: host, port, and the names of the checks that may fail.
set -eu
host=$1 port=$2 allowed=${3-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

fail() {
    echo "$*" >&2
    exit 1
}

equal() { [ "$2" = "$3" ] || fail "$1: expected '$3', found '$2'"; }

# Lines are `ascii delete noreply    [pass]`. The exit status reports failed checks.
memccapable -a -h "$host" -p "$port" >capable 2>&1 && status=0 || status=$?
names() { sed -n "s/^\(ascii .*[^ ]\)  *\[$1\]\$/\1/p" capable | paste -s -d ,; }
[ "$(grep -c '\[pass\]\|\[FAIL\]' capable)" = 27 ] || fail "not all checks ran: $(cat capable)"
equal "failed checks of memccapable" "$(names FAIL)" "$allowed"
[ "$status" = 0 ] || [ -n "$allowed" ] || fail "memccapable: $(cat capable)"

export MEMCACHED_SERVERS="$host:$port"
memcping || fail "memcping"
memcstat >stats || fail "memcstat"
grep -q '^[[:blank:]]*curr_items: [0-9]' stats || fail "memcstat: $(cat stats)"
memcstat --server-version >version 2>&1 || fail "memcstat --server-version"
grep -q '[0-9]\.[0-9]*\.[0-9]' version || fail "memcstat --server-version: $(cat version)"

memcflush || fail "memcflush"
printf 'one\r\ntwo' >text
: >empty
head -c 1000000 /dev/urandom >large
head -c 2000000 /dev/urandom >too-large
memccp text empty large || fail "memccp"
! memccp --quiet too-large 2>/dev/null || fail "memccp of a too large file succeeded"
for name in text empty large; do
    memccat --file="$name.copy" "$name" || fail "memccat of $name"
    cmp "$name" "$name.copy" || fail "$name came back different"
    memcexist "$name" || fail "memcexist of $name"
done
equal "memccat" "$(memccat text | tr -d '\r')" "$(printf 'one\ntwo')"
memctouch --expire=1000 text || fail "memctouch"
! memccp --add text 2>/dev/null || fail "memccp --add over an item succeeded"
memccp --replace text || fail "memccp --replace"
memcrm text || fail "memcrm"
! memcexist --quiet text || fail "text is there after memcrm"
! memccat text >/dev/null 2>&1 || fail "memccat after memcrm succeeded"
! memcrm --quiet text || fail "memcrm of nothing succeeded"
memcflush || fail "memcflush"
! memcexist --quiet large || fail "large is there after memcflush"
