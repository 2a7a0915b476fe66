#!/bin/sh
# The native verbs through `nc`: full verdicts, limits written in the line, holds, several keys.
#
#     tollgate --limits examples/limits.toml
#     sh examples/native.sh [host:port]
#
# A verdict is: word, limit, remaining, milliseconds to wait, milliseconds until all is back.
set -eu
address=${1:-127.0.0.1:11211}

# Sends one line, shows it with its answer, and checks how that begins.
ask() {
    line=$1 expected=$2
    answer=$(printf '%s\r\nquit\r\n' "$line" | nc -w 10 "${address%:*}" "${address##*:}" | tr -d '\r')
    printf '> %s\n< %s\n' "$line" "$answer"
    case $answer in "$expected"*) ;; *) echo "expected: $expected" >&2 && exit 1 ;; esac
}

# So that this can be run again within the hour.
{
    printf 'delete %s\r\n' sh:mail sh:push sh:log api:sh user:sh:ann user:sh:bob tenant:sh llm:sh
    printf 'quit\r\n'
} | nc -w 10 "${address%:*}" "${address##*:}" >/dev/null

echo '# A limit needs no set-up: the line brings its own.'
ask 'take sh:mail 3 bucket:5/h' 'ALLOW 5 2 0 '
ask 'take sh:mail 3 bucket:5/h' 'DENY 5 2 '
ask 'take sh:mail 3 bucket:5/h part' 'PART 5 0 '
ask 'take sh:mail 6 bucket:5/h' 'DENY 5 0 -1 '

echo '# A queue: waits are granted, and already counted.'
ask 'take sh:push 1 leaky:1/h,capacity=3,wait=2h' 'ALLOW 3 2 0 '
ask 'take sh:push 1 leaky:1/h,capacity=3,wait=2h' 'WAIT 3 1 '
ask 'take sh:push 1 leaky:1/h,capacity=3,wait=30m' 'DENY 3 '

echo '# `-` is the limit that the server bound to the key, `=name` any of its limits.'
ask 'take api:sh 1 -' 'ALLOW 150 149 0 '
ask 'take sh:log 1 =api-key' 'ALLOW 150 149 0 '
ask 'take sh:log 1 -' 'NOT_FOUND'

echo '# Tokens of a language model: hold what a call may need, settle for what it used.'
ask 'take llm:sh 60000 - hold=2m' 'ALLOW 100000 40000 0 '
lease=${answer##*lease=}
ask 'take llm:sh 60000 - hold=2m' 'DENY 100000 4'
ask "settle llm:sh $lease 12500" 'SETTLED 100000 8'
ask "settle llm:sh $lease 12500" 'NOT_FOUND'

echo '# Several keys at once, all or none: two users, and their tenant twice. `at` tells who refused.'
ask 'takem 25 user:sh:ann user:sh:bob' 'ALLOW 30 5 0 '
ask 'takem 6 user:sh:ann user:sh:bob' 'DENY 30 5 '
ask 'take tenant:sh 0 - peek' 'ALLOW 100 50 0 '
