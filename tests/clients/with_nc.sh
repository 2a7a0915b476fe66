#!/bin/sh
# Plain lines through nc: typed commands, whole pipelines at once, and the lines of clients that are
# not installed. nc closes its sending side at the end of its input and continues to read.
# Arguments: host, port.
set -eu
host=$1 port=$2

# Sends its input, with `\n` as CRLF, and checks the reply.
talk() {
    what=$1 request=$2 expected=$3
    found=$(printf "$request" | sed 's/$/\r/' | nc -N -w 10 "$host" "$port" | tr -d '\r')
    [ "$found" = "$(printf "$expected")" ] && return
    printf '%s: expected:\n%b\nfound:\n%s\n' "$what" "$expected" "$found" >&2
    exit 1
}

talk "flush" 'flush_all\n' 'OK\n'
talk "set and get" 'set k 5 0 3\nabc\nget k\nget nothing\n' 'STORED\nVALUE k 5 3\nabc\nEND\nEND\n'
talk "quit" 'get nothing\nquit\nget nothing\n' 'END\n'
talk "an unknown word" 'hello\nget nothing\n' 'ERROR\nEND\n'
talk "trailing blanks" 'set k 0 0 1 \n1\nget k  k \nincr k 1 \nflush_all \n' \
    'STORED\nVALUE k 0 1\n1\nVALUE k 0 1\n1\nEND\n2\nOK\n'
talk "storing" \
    'add k 0 0 1\n1\nadd k 0 0 1\n2\nreplace k 0 0 1\n3\nappend k 0 0 1\n4\nprepend k 0 0 1\n2\nget k\n' \
    'STORED\nNOT_STORED\nSTORED\nSTORED\nSTORED\nVALUE k 0 3\n234\nEND\n'
talk "a counter" 'incr n 1\nadd n 0 60 1\n1\nincr n 1\ndecr n 5\ndelete n\ndelete n\n' \
    'NOT_FOUND\nSTORED\n2\n0\nDELETED\nNOT_FOUND\n'
talk "touch" 'set t 0 2 1\n1\ntouch t 100\ntouch nothing 1\ngat 100 t nothing\ntouch t -1\nget t\n' \
    'STORED\nTOUCHED\nNOT_FOUND\nVALUE t 0 1\n1\nEND\nTOUCHED\nEND\n'
talk "quiet commands" \
    'set k 0 0 1 noreply\n1\nadd k 0 0 1 noreply\n9\nincr k 4 noreply\ndelete x noreply\ntouch k 0 noreply\nget k\nflush_all noreply\nget k\n' \
    'VALUE k 0 1\n5\nEND\nEND\n'
# Requests of Dalli, the Ruby client, whose Debian package lacks the meta protocol.
talk "Dalli's storing" \
    'ms k 3 F7 T10 MS\nabc\nmg k v f k s\nms k 1 T10 ME\nx\nms nothing 1 T10 MR\nx\nms k 1 MA\nd\nmg k v\n' \
    'HD\nVA 3 f7 kk s3\nabc\nNS\nNS\nHD\nVA 4\nabcd\n'
talk "Dalli's multi-get" 'ms a 1 T0 MS q\n1\nms b 1 T0 MS q\n2\nmg a v f k q s\nmg nothing v f k q s\nmg b v f k q s\nmn\n' \
    'VA 1 f0 ka s1\n1\nVA 1 f0 kb s1\n2\nMN\n'
talk "Dalli's counters" 'ma n v D1 J5 N60 MI\nma n v D1 J5 N60 MI\nma n v D10 MD\nma nothing v\n' \
    'VA 1\n5\nVA 1\n6\nVA 1\n0\nNF\n'
talk "Dalli's deleting" 'md a q\nmd a\nmg b v T10\nmd b q\nmn\n' 'NF\nVA 1\n2\nMN\n'

version=$(printf 'version\r\n' | nc -N -w 10 "$host" "$port" | tr -d '\r')
echo "$version" | grep -qx 'VERSION [0-9]*\.[0-9]*\.[0-9]*' || {
    echo "version: '$version' has not three numbers" >&2
    exit 1
}

# Ten thousand increments at once, sent before a reply is read.
last=$(yes 'incr pipeline 1' | head -n 10000 | {
    printf 'set pipeline 0 0 1\r\n0\r\n'
    sed 's/$/\r/'
} | nc -N -w 10 "$host" "$port" | tail -n 1 | tr -d '\r')
[ "$last" = 10000 ] || {
    echo "pipeline: expected 10000 at the end, found '$last'" >&2
    exit 1
}
