#!/bin/sh
# Counts the instructions of one forward and backward with each --recompute: `rows` may take 1.05 times
# those without it, `block` 1.36 times. The counts don't depend on the load of the machine.
#
#     recompute.sh PROGRAM [LAYERS WIDTH HEADS TOKENS]     PROGRAM: build/tests/model/count_recompute
set -eu
. "${0%/*}/../support.sh"
program=$1
shift
[ $# -eq 4 ] || set -- 4 64 2 32

command -v valgrind >/dev/null || lacks valgrind 'it is not installed'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$program" "$@" 2>"$work/log" || lacks avx2 "$(cat "$work/log")"
valgrind --tool=callgrind --callgrind-out-file="$work/out" --compress-strings=no --compress-pos=no \
    "$program" "$@" >"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
}
# All costs in the block of count_NAME: its own, and what its call took.
awk '
    /^fn=/ { name = $0; sub(/^fn=/, "", name) }
    name ~ /^count_/ && /^[0-9]/ { sum[substr(name, 7)] += $2 }
    function limit(name, none, most) {
        ratio = sum[none] == 0 ? 0 : sum[name] / sum[none]
        printf "%s: %.3f times the instructions of %s, %d\n", name, ratio, none, sum[none]
        if (!(ratio >= 0.999 && ratio <= most)) { print "FAILED: at most " most; bad = 1 }
    }
    END {
        limit("gpt2_rows", "gpt2_none", 1.05)
        limit("gpt2_block", "gpt2_none", 1.36)
        limit("golf_rows", "golf_none", 1.05)
        limit("golf_block", "golf_none", 1.36)
        exit bad
    }' "$work/out"
