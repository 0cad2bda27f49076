#!/bin/sh
# Doxygen's page of the public headers: no warning, every function described, every example shown.
# api.sh SOURCE BUILD. (library_installed compiles and runs the examples.)
set -eu
. "${0%/*}/../support.sh"
source=$1 build=$2
command -v doxygen >/dev/null || lacks doxygen 'it makes the page'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
[ -f "$build/api/Doxyfile" ] || fail 'the build has no target docs'
sed "s,^OUTPUT_DIRECTORY .*,OUTPUT_DIRECTORY = $work," "$build/api/Doxyfile" >"$work/Doxyfile"
doxygen "$work/Doxyfile" >"$work/log" 2>&1 || fail "$(cat "$work/log")"
[ ! -s "$work/log" ] || fail "doxygen warns: $(cat "$work/log")"
found=0
for header in "$source"/include/lockstep/*.h; do
    page=$work/html/$(basename "$header" .h)_8h.html
    [ -f "$page" ] || fail "no page of $header"
    for name in $(grep -ohE '^[a-z].*lks_[a-z][a-z0-9_]*\(' "$header" | grep -oE 'lks_[a-z0-9_]*\($' | tr -d '('); do
        grep -q ">$name<" "$page" || fail "$header: no entry of $name"
        found=$((found + 1))
    done
done
[ $found -gt 60 ] || fail "only $found functions"
for words in 'Copy rank 0.s parameters, frozen ones included' 'at least the number of ranks, at most 1024'; do
    grep -rq "$words" "$work/html" || fail "no description: $words"
done
for example in "$source"/examples/*.c "$source"/examples/*.cc; do
    name=${example##*/}
    grep -q "$name" "$work/html/index.html" || fail "$example isn't shown"
    grep -q "[ ;]${name%.*}" "$source/examples/CMakeLists.txt" || fail "$example isn't compiled"
done
