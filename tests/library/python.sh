#!/bin/sh
# examples/python: the binding by ctypes, and the examples on 1, 2, 4 and 8 ranks.
# python.sh regression|binding|torch SOURCE LIBRARY TOOL.
set -eu
. "${0%/*}/../support.sh"
part=$1 source=$2 library=$3 tool=$4
work_folder
grep -Eq '^LKS_(SANITIZE:STRING=.|COVERAGE:BOOL=ON)' "${tool%/tools/*}/CMakeCache.txt" &&
    lacks plain-build 'Python would need the runtime of the sanitizer or of gcov'
case $part in
torch) find_python pytorch 'torch, numpy' ;;
*) find_python numpy numpy ;;
esac
export LOCKSTEP_LIBRARY="$library" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
export PYTHONPATH="$source/examples/python"

# run RANKS SCRIPT [ARGS]: its lines are in $work/RANKS.
run() {
    ranks=$1
    shift
    timeout "$(patient 120)" "$tool" run --standalone --nproc-per-node="$ranks" "$python" "$@" >"$work/out" || fail "on $ranks ranks"
    sed 's/^\[[^]]*\] //' "$work/out" >"$work/$ranks"
}

# same_on_ranks LINES SCRIPT: one process without a launcher, and 2, 4 and 8 ranks, print the same.
same_on_ranks() {
    "$python" "$2" >"$work/1" || fail 'on one rank'
    [ "$(wc -l <"$work/1")" = "$1" ] || fail "lines: $(cat "$work/1")"
    for ranks in 2 4 8; do
        run $ranks "$2"
        cmp "$work/$ranks" "$work/1" || fail "$ranks ranks print something else"
    done
}

case $part in
regression)
    same_on_ranks 4 "$source/examples/python/regression.py"
    awk '/^step 40: loss / { if ($4 + 0 < 1e-6) ok = 1 } END { exit !ok }' "$work/1" || fail "it hasn't learned: $(cat "$work/1")"
    # Ctrl-C ends a rank that waits for another one, which never starts.
    code=0
    RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_PORT=$$ timeout -s INT -k "$(patient 10)" "$(patient 2)" "$python" \
        "$source/examples/python/regression.py" >"$work/out" 2>&1 || code=$?
    [ $code -eq 124 ] || fail "a rank that waits ends with code $code after Ctrl-C: $(cat "$work/out")"
    ;;
binding)
    version=$("$tool" --version | sed 's/^lockstep //; s/-.*//')
    grep -q "^version = \"$version\"$" "$source/examples/python/pyproject.toml" || fail "pyproject.toml isn't of version $version"
    LOCKSTEP_LIBRARY=$work/none "$python" -c 'import lockstep' 2>"$work/out" && fail 'a missing library is loaded'
    grep -q 'none: .*; set LOCKSTEP_LIBRARY' "$work/out" || fail "a missing library: $(cat "$work/out")"
    for ranks in 1 2 3 8; do run $ranks "$source/tests/library/binding.py" "$work/state-$ranks"; done
    ;;
torch)
    same_on_ranks 4 "$source/examples/python/torch_net.py"
    # DistributedDataParallel's losses agree to the rounding of float32.
    run 2 "$source/examples/python/torch_net.py" --ddp
    paste -d ' ' "$work/1" "$work/2" | awk '/^step/ { n++; d = $4 - $8; if (d < -1e-4 || d > 1e-4) exit 1 } END { if (n != 3) exit 1 }' ||
        fail "DDP's losses differ: $(cat "$work/1" "$work/2")"
    ;;
esac
