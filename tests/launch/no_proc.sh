#!/bin/sh
# Without /proc, as in a plain chroot: a run starts its ranks, TEXT its longer command, and sample
# states no memory.
#
#     no_proc.sh LOCKSTEP BUILD
set -eu
. "${0%/*}/../support.sh"
tool=$1 build=$2
if [ "${3-}" != inside ]; then
    grep -Eq '^LKS_(SANITIZE:STRING=.|COVERAGE:BOOL=ON)' "$build/CMakeCache.txt" && lacks plain-build 'sanitizers read /proc'
    for how in '-m' '-rm'; do
        if unshare $how umount -l /proc 2>/dev/null; then
            exec unshare $how "$0" "$tool" "$build" inside
        fi
    done
    lacks namespaces '/proc can'\''t be unmounted'
fi

work_folder
umount -l /proc
awk 'BEGIN { for (i = 0; i < 3000; i++) printf "%c%s", 97 + i * i % 23, i % 11 ? "" : "\n" }' >"$work/text"
code=0
"$tool" train "$work/text" --out_dir="$work/out" --nproc_per_node=2 --n_layer=1 --n_head=1 --n_embd=8 \
    --block_size=8 --batch_size=1 --gradient_accumulation_steps=2 --max_iters=2 --eval_iters=1 \
    >"$work/log" 2>&1 || code=$?
[ $code -eq 0 ] && [ -e "$work/out/latest" ] || {
    cat "$work/log"
    exit 1
}
"$tool" sample "$work/out" --num_samples=1 --max_new_tokens=2 >"$work/sampled" 2>&1
grep -q '2 new tokens' "$work/sampled" && ! grep 'of memory' "$work/sampled"
