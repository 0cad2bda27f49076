#!/bin/sh
# Counts the instructions of each row kernel and compares them with the recorded figures: a regression test
# that doesn't depend on the load of the machine. 2 % more is a failure; --record writes new figures.
#
#     instructions.sh PROGRAM [--record]     PROGRAM: build/tests/kernels/count_kernels
set -eu
. "${0%/*}/../support.sh"
program=$1 record=${2-}
figures=$(dirname "$0")/instructions.txt

command -v valgrind >/dev/null || lacks valgrind 'it is not installed'
compiler=$("$program" --compiler)
[ -n "$record" ] || grep -qx "# $compiler" "$figures" ||
    lacks gcc-12 "the figures are another compiler's than $compiler"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$program" avx2 2>"$work/log" || lacks avx2 "$(cat "$work/log")"
for level in plain avx2; do
    out=$work/$level.out
    valgrind --tool=callgrind --callgrind-out-file="$out" --compress-strings=no --compress-pos=no \
        "$program" "$level" >"$work/log" 2>&1 || {
        cat "$work/log"
        exit 1
    }
    # All costs in the block of count_NAME: its own, and what its call took.
    awk -v level="$level" '
        /^fn=/ { name = $0; sub(/^fn=/, "", name) }
        name ~ /^count_/ && /^[0-9]/ { sum[name] += $2 }
        END { for (name in sum) print level, substr(name, 7), sum[name] }' "$out"
done | LC_ALL=C sort >"$work/counts"

if [ -n "$record" ]; then
    { echo "# $compiler"; cat "$work/counts"; } >"$figures"
    exit 0
fi
awk -v program="$program" '
    NR == FNR { if ($1 != "#") want[$1 " " $2] = $3; next }
    {
        name = $1 " " $2
        seen[name] = 1
        if (!(name in want)) { print name ": there is no figure"; bad = 1 }
        else if ($3 > want[name] * 1.02) { print name ": " $3 " instructions, not " want[name]; bad = 1 }
        else if ($3 < want[name] * 0.98) { print name ": only " $3 " instructions, not " want[name] }
    }
    END {
        for (name in want) if (!(name in seen)) { print name ": was not counted"; bad = 1 }
        if (bad) print "if that is meant: tests/kernels/instructions.sh " program " --record"
        exit bad
    }' "$figures" "$work/counts"
echo "$(wc -l <"$work/counts") kernels counted"
