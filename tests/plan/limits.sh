#!/bin/sh
# Runs in a control group for memory: one that plans 95 % of the group's limit runs; one that plans
# 105 % is refused, however it begins and whoever starts its ranks, and fails if it is forced;
# --batch_size=auto runs. With --all at ten limits, and
# two ranks as well. limits.sh TOOL [--all]. Exit code 77: no such group can be made here.
set -eu
. "${0%/*}/../support.sh"
tool=$1
all=${2-}
group=
work=$(mktemp -d)
# shellcheck disable=SC2317 # by trap
remove() {
    tries=100
    until [ -z "$group" ] || rmdir "$group" 2>/dev/null || [ "$tries" -eq 0 ]; do
        tries=$((tries - 1)) # processes that were killed leave it soon
        sleep 0.1
    done
    rm -rf "$work"
}
trap remove EXIT
trap 'exit 1' INT TERM HUP
plain_build "${tool%/tools/*}" 'its shadow memory counts, too'

# Inside this process's own group: version 2, or 1 with memory of its own.
for parent in "/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)" \
    "/sys/fs/cgroup/memory$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)"; do
    mkdir "$parent/lksplan$$" 2>/dev/null || continue
    for name in memory.max memory.limit_in_bytes; do
        if [ -e "$parent/lksplan$$/$name" ]; then
            group=$parent/lksplan$$
            limit=$group/$name
        fi
    done
    [ -z "$group" ] || break
    rmdir "$parent/lksplan$$"
done
[ -n "$group" ] || lacks cgroups 'no group for memory can be made inside of this one'
for swap in memory.swap.max memory.swappiness; do
    [ ! -e "$group/$swap" ] || echo 0 >"$group/$swap"
done

cd "$work"
seq 1 9000 >text
"$tool" prep char --input=text --out=data >prep.log
shape='--n_layer=8 --n_head=2 --n_embd=64 --block_size=64 --threads=1'

# limited BYTES COMMAND...: in the group, with that limit; the exit code.
limited() {
    echo "$1" >"$limit"
    shift
    sh -c "echo \$\$ >'$group/cgroup.procs' && exec \"\$@\"" sh timeout "$(patient 200)" "$@" >log 2>&1
}
share() { # BYTES PERCENT: the limit of which BYTES are so many percent
    awk -v b="$1" -v p="$2" 'BEGIN { printf "%.0f", b * 100 / p }'
}

both_sides() { # RANKS BATCH
    # shellcheck disable=SC2086 # words
    set -- train --dataset=data $shape --nproc_per_node="$1" --gradient_accumulation_steps="$1" \
        --virtual_ranks="$1" --batch_size="$2" --max_iters=0 --eval_interval=0
    planned=$("$tool" "$@" --dry_run | awk '/^total on/ { printf "%.0f", $(NF - 1) * ($NF == "GB" ? 1e9 : 1e6) }')
    limited "$(share "$planned" 95)" "$tool" "$@" --out_dir=fits || fail "95 % doesn't run: $*"
    echo "$planned bytes planned, 95 % of the limit: runs"
    ! limited "$(share "$planned" 105)" "$tool" "$@" --out_dir=refused || fail "105 % isn't refused"
    grep -q 'the run takes' log || fail 'another refusal at 105 %'
    [ ! -e refused ] || fail 'the refused run has left a folder'
    ! limited "$(share "$planned" 105)" "$tool" "$@" --out_dir=forced --skip_fit_check ||
        fail 'forced at 105 %, it runs'
    echo "$planned bytes planned, 105 % of the limit: refused, and fails if forced"
}
# After both_sides 1: the checks of the ranks themselves.
refused() { # WHAT COMMAND...
    what=$1
    shift
    ! limited "$(share "$planned" 105)" "$@" || fail "$what isn't refused at 105 %"
    grep -q 'the run takes' log || fail "$what: another refusal"
    echo "$what, 105 % of the limit: refused"
}
all_ways() { # BATCH
    # shellcheck disable=SC2086
    set -- "$tool" train --dataset=data $shape --gradient_accumulation_steps=1 --virtual_ranks=1 \
        --batch_size="$1" --max_iters=1 --eval_interval=0
    refused 'a rank of another launcher' env RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 "$@" --out_dir=other
    refused 'a resume' "$@" --out_dir=fits --init_from=resume
    refused 'a run that begins with weights' "$@" --out_dir=begun --init_from=fits
    limited "$(share "$planned" 95)" "$@" --out_dir=fits --init_from=resume || fail "a resume at 95 %"
    # shellcheck disable=SC2086
    limited "$(share "$planned" 105)" "$tool" train --dataset=data $shape --dry_run --batch_size=120 \
        --gradient_accumulation_steps=8 --virtual_ranks=1 --batch_size=auto || fail "--dry_run with auto"
    grep -q '^batch_size=auto: *[0-9]*, for at most' log || fail "--dry_run doesn't print the choice"
}
# A rank must not allocate the order of all samples before it refuses: the kernel would kill it.
long_order() {
    cp -r data long
    truncate -s 160M long/train.bin
    # shellcheck disable=SC2086
    ! limited 300000000 "$tool" train --dataset=long --out_dir=ordered $shape --block_size=1 --batch_size=1 \
        --gradient_accumulation_steps=1 --max_iters=0 --eval_interval=0 --sampler=epoch || fail "a long order isn't refused"
    grep -q 'the run takes' log || fail "a long order: another end: $(cat log)"
    echo 'an order of 336 MB, a limit of 300 MB: refused'
}
chooses() { # MEGABYTES...
    for megabytes; do
        rm -rf auto
        # shellcheck disable=SC2086
        limited "${megabytes}000000" "$tool" train --dataset=data --out_dir=auto $shape --batch_size=30 \
            --gradient_accumulation_steps=8 --virtual_ranks=1 --batch_size=auto --max_iters=1 \
            --eval_interval=0 || fail "batch_size=auto in $megabytes MB"
        grep -o 'batch_size=auto: .*' log | head -n 1
    done
}

both_sides 1 240
all_ways 240
long_order
if [ -n "$all" ]; then
    both_sides 2 160
    chooses 100 150 220 320 450 600 850 1200 1600 2000
else
    chooses 150
fi
