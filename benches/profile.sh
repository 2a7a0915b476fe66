#!/bin/sh
# Profiles the server's CPU in one cell, and counts the system calls of an operation.
#
#     benches/profile.sh CELL PIPELINE [SERVER]
#
# Here: `load` against one server, `perf` (Debian: linux-perf) beside it, as root. CELL and PIPELINE are
# those of `load`; SERVER is `tollgate`, `memcached` or `floor`. Not here: ratios (`load`), instruction counts
# (`instructions`), the build (`just profile`, with the profile `profiling`, which keeps line numbers).
set -eu
cd "$(dirname "$0")/.."
cell=$1 pipeline=$2 server=${3:-tollgate}
case $server in
tollgate) recipe="tollgate=target/profiling/tollgate -t 1 -m 1024 -c 20000 -l 127.0.0.1 -p {port}" ;;
memcached) recipe="memcached=memcached:/usr/bin/memcached -u root -t 1 -m 1024 -c 20000 -l 127.0.0.1 -p {port} -U 0" ;;
floor) recipe="floor=floor:target/profiling/floor {port}" ;;
*) echo "profile.sh: no server is called $server" >&2 && exit 2 ;;
esac
folder=target/profile
mkdir -p "$folder"
target/profiling/load --server "$recipe" --reference "$server" --pin --cells "$cell" --connections 50 \
    --pipelines "$pipeline" --rounds 1 --seconds 12 --out "$folder/load.md" >"$folder/load.log" 2>&1 &
load=$!
# The keys exist as soon as the first connections of the cell do.
program=
while [ -z "$program" ]; do
    kill -0 "$load" 2>/dev/null || { cat "$folder/load.log" >&2 && exit 1; }
    sleep 0.2
    program=$(ps -o pid= --ppid "$load" | tr -d ' ')
done
while [ "$(ls "/proc/$program/fd" | wc -l)" -lt 50 ]; do sleep 0.2; done
sleep 3
perf stat -e syscalls:sys_enter_recvfrom,syscalls:sys_enter_read,syscalls:sys_enter_sendto,syscalls:sys_enter_sendmsg,syscalls:sys_enter_write \
    -e syscalls:sys_enter_epoll_wait,raw_syscalls:sys_enter,sched:sched_switch \
    -o "$folder/calls.txt" -p "$program" -- sleep 2
perf record -q -F 5000 -o "$folder/perf.data" -p "$program" -- sleep 4
wait "$load"
grep "^| $cell " "$folder/load.md"
grep -E "syscalls|sched" "$folder/calls.txt"
perf report -i "$folder/perf.data" --sort dso --stdio 2>/dev/null | grep -v "^#" | grep -v "^$" | head -5
perf report -i "$folder/perf.data" --stdio 2>/dev/null | grep -v "^#" | grep -v "^$" | head -40
