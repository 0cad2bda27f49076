#!/bin/sh
# examples/python: the binding by ctypes, on 1, 2, 4 and 8 ranks. python.sh SOURCE LIBRARY TOOL.
set -eu
. "${0%/*}/../support.sh"
source=$1 library=$2 tool=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
grep -Eq '^LKS_(SANITIZE:STRING=.|COVERAGE:BOOL=ON)' "${tool%/tools/*}/CMakeCache.txt" &&
    lacks plain-build 'Python would need the runtime of the sanitizer or of gcov'
find_python numpy numpy
export LOCKSTEP_LIBRARY="$library" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
"$python" "$source/examples/python/regression.py" >"$work/1" || fail 'on one rank'
[ "$(wc -l <"$work/1")" = 4 ] || fail "lines: $(cat "$work/1")"
awk '/^step 40: loss / { if ($4 + 0 < 1e-6) ok = 1 } END { exit !ok }' "$work/1" || fail "it hasn't learned: $(cat "$work/1")"
for ranks in 2 4 8; do
    timeout "$(patient 60)" "$tool" run --standalone --nproc-per-node=$ranks "$python" \
        "$source/examples/python/regression.py" >"$work/out" || fail "on $ranks ranks"
    sed 's/^\[[^]]*\] //' "$work/out" | cmp - "$work/1" || fail "$ranks ranks print something else"
done

# Ctrl-C ends a rank that waits for another one, which never starts.
code=0
RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_PORT=$$ timeout -s INT -k "$(patient 10)" "$(patient 2)" "$python" \
    "$source/examples/python/regression.py" >"$work/out" 2>&1 || code=$?
[ $code -eq 124 ] || fail "a rank that waits ends with code $code after Ctrl-C: $(cat "$work/out")"
