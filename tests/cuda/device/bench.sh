#!/bin/sh
# lockstep bench on a device besides the CPU, on stand-ins: ceilings, operations of both families beside the CPU's,
# a step. And each launch has its count. argv: SOURCE, lockstep_cuda_standin, a tool with a device that doesn't count.
set -eu
. "$(dirname "$0")/../../support.sh"
source=$1 tool=$2 other=$3
work_folder
small='--device=cuda --n_layer=1 --n_head=2 --n_embd=16 --block_size=8 --batch_size=2 --vocab_size=64 --iters=1 --dropout=0.2'

# expect STATUS COMMAND...: its output is in $work/out and $work/err.
expect() {
    want=$1
    shift
    timeout "$(patient 60)" "$@" >"$work/out" 2>"$work/err" && code=0 || code=$?
    [ "$code" = "$want" ] || { cat "$work/out" "$work/err"; fail "exit code $code of $*"; }
}

expect 0 "$tool" bench peak --device=cuda
for dtype in fp32 bf16; do
    grep -Eqx "peak of cuda: copies of [0-9.]+ GB/s, read and written; products in $dtype of [0-9.]+ GFLOP/s" \
        "$work/out" || fail "$(cat "$work/out")"
done

# table NAME LINES: each line has its time, rates, a share, and its distance from the CPU.
table() {
    grep -c 'off by' "$work/out" | grep -qx "$2" || { cat "$work/out"; fail "$1: not $2 operations"; }
    awk '/off by/ && !/ us +[0-9.]+ GB\/s +[0-9.]+ GFLOP\/s +[0-9]+% of (copies|products) +off by [0-9.]+e[-+][0-9]+$/' \
        "$work/out" >"$work/bad"
    [ ! -s "$work/bad" ] || fail "$1: $(cat "$work/bad")"
}
# shellcheck disable=SC2086 # a list of settings
{
    expect 0 "$tool" bench kernels $small
    grep -q 'products in bf16' "$work/out" || fail "$(cat "$work/out")"
    table gpt2 20
    expect 0 "$tool" bench kernels $small --family=golf --num_kv_heads=1 --dtype=float32
    table golf 26
    # A width whose matrices are padded to whole vectors; and a head that can't be rotated.
    expect 0 "$tool" bench kernels $small --family=golf --num_kv_heads=1 --n_head=1 --n_embd=18 --dtype=float32
    expect 2 "$tool" bench kernels $small --family=golf --num_kv_heads=1 --n_embd=18
    grep -q 'n_embd / n_head = 9 is odd' "$work/err" || fail "$(cat "$work/err")"
    # Products that are wrong by a ten thousandth are noticed, and the table is there all the same.
    expect 1 env CUDA_STANDIN_OFF=100 "$tool" bench kernels $small --family=golf --num_kv_heads=1 --dtype=float32
    grep -q '^product, MLP down .* off by 1.0e-04: WRONG$' "$work/out" || { cat "$work/out"; fail 'a wrong product'; }
    grep -q '^rmsnorm backward .*[0-9]$' "$work/out" || fail 'an operation beside a wrong one'
    grep -q 'results of product, attention in differ from the CPU.s by more than 1e-05' "$work/err" ||
        fail "$(cat "$work/err")"
    expect 0 "$tool" bench step $small
    grep -q 'mfu [0-9.]*% of' "$work/out" || fail "$(cat "$work/out")"
    expect 1 "$other" bench kernels --device=deferred
    grep -q "the device deferred doesn't count its operations" "$work/err" || fail "$(cat "$work/err")"
    expect 2 "$tool" bench comm --device=cuda
    grep -q 'bench comm measures the host' "$work/err" || fail "$(cat "$work/err")"
}

# What has no exec isn't put on the compute stream, and no operation.
awk '
FNR == 1 { exec = launches = counts = 0 }
/^#define|\\$/ { next }
/lks__exec \*ex/ { exec = 1 }
/LKS_LAUNCH(_[A-Z]+)?\(|LAUNCH_TILES\(/ { launches++; line = FILENAME ":" FNR }
/lks__cuda_count\(|^ +count\(/ { counts++ }
/^}/ { n += launches; if (exec && launches > 0 && counts == 0) { print line ": a launch without lks__cuda_count()"; bad = 1 }
       exec = launches = counts = 0 }
END { if (n < 30) { print "only " n " launches"; bad = 1 } exit bad }' "$source"/src/compute/cuda/*/*.cu ||
    fail 'each launch counts its bytes and operations'
