#!/bin/sh
# What --dry_run and plan say that ranks take, beside what the kernel counts (Pss), also while
# checkpoints are written: within 3 % or 5 MB a rank. Pages of libraries are left out: other programs of the machine share them. memory.sh TOOL
set -eu
. "${0%/*}/../support.sh"
tool=$1
work_folder
plain_build "${tool%/tools/*}" "a sanitizer's own memory counts, too"

cd "$work"
seq 1 9000 >text
"$tool" prep char --input=text --out=data >prep.log

below() { # PID: itself and all processes that it has started
    echo "$1"
    for child in $(cat "/proc/$1/task/$1/children"); do
        below "$child"
    done
}
pss() { # PIDS: their megabytes together
    # shellcheck disable=SC2086 # a list
    for pid in $1; do
        cat "/proc/$pid/smaps_rollup"
    done | awk '$1 == "Pss_Anon:" || $1 == "Pss_Shmem:" { kb += $2 } END { printf "%.1f", kb * 1024 / 1e6 }'
}
# The most megabytes that some samples find.
most_of() { # PIDS SAMPLES
    for _ in $(seq "$2"); do
        pss "$1"
        echo
        sleep 0.05
    done | sort -n | tail -n 1
}
wait_for_steps() { # METRICS PID
    tries=$(patient 1000)
    until [ "$(grep -c '"loss"' "$1" 2>/dev/null || true)" -ge 3 ] 2>/dev/null; do
        tries=$((tries - 1))
        if [ "$tries" -eq 0 ] || ! kill -0 "$2"; then
            fail 'no third step'
        fi
        sleep 0.1
    done
}
compare() { # RANKS PLANNED MEASURED WHAT
    awk -v p="$2" -v m="$3" -v n="$1" -v what="$4" 'BEGIN {
        limit = 0.03 * m > 5 * n ? 0.03 * m : 5 * n
        off = p - m
        printf "%d ranks %s: planned %.1f MB, measured %.1f MB\n", n, what, p, m
        exit !((off < 0 ? -off : off) <= limit)
    }' || fail "$4"
}
samples=1
check() { # RANKS SETTINGS...
    ranks=$1
    shift
    shown="$*"
    set -- train --dataset=data --nproc_per_node="$ranks" --threads=1 --timeout=60 --eval_interval=0 "$@"
    planned=$("$tool" "$@" --dry_run | awk '/^process:/ { libraries = $7 }
        /^total on/ { printf "%.1f", $(NF - 1) * ($NF == "GB" ? 1e3 : 1) - libraries }')
    "$tool" "$@" --out_dir="run$ranks" --max_iters=100000 --log_interval=1 \
        >log 2>&1 &
    launcher=$!
    wait_for_steps "run$ranks/metrics.jsonl" "$launcher"
    measured=$(most_of "$(below "$launcher")" "$samples")
    kill -9 "$launcher"
    wait "$launcher" 2>/dev/null || true
    # Its ranks end after it, and may still write a checkpoint.
    rm -rf "run$ranks" || { sleep 1; rm -rf "run$ranks"; }
    compare "$ranks" "$planned" "$measured" "$shown"
}
# The first of two hosts, with one rank each, gathers all moments while it writes a checkpoint.
check_gathered() { # SETTINGS...
    "$tool" plan --dataset=data --nnodes=2 --threads=1 --json "$@" >plan.json
    part() {
        sed "s/.*\"memory\":{//; s/.*\"$1\":\([0-9.e+]*\).*/\1/" plan.json | tail -n 1
    }
    planned=$(for kind in host_bytes checkpoint libraries untouched control; do
        part "$kind"
    done | paste -sd' ' | awk '{ printf "%.1f", ($1 + $2 - $3 - $4 - $5) / 1e6 }')
    LOCKSTEP_TOKEN=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
    export LOCKSTEP_TOKEN
    port=$("${tool%/*}/../tests/free_port")
    for rank in 0 1; do
        MASTER_ADDR=127.0.0.1 MASTER_PORT=$port WORLD_SIZE=2 RANK=$rank LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 \
            GROUP_RANK=$rank TORCHELASTIC_RUN_ID="host$rank" "$tool" train --dataset=data --out_dir=gathered \
            --threads=1 --timeout=60 --max_iters=100000 --eval_interval=0 --log_interval=1 \
            --checkpoint_interval=1 --keep=1 "$@" >"host$rank.log" 2>&1 &
        [ "$rank" -eq 1 ] || launcher=$!
    done
    wait_for_steps gathered/metrics.jsonl "$launcher"
    measured=$(most_of "$launcher" 30)
    kill -9 "$launcher" $!
    wait "$launcher" $! 2>/dev/null || true
    compare 1 "$planned" "$measured" "of the first of two hosts, at checkpoints: $*"
}

shape='--n_layer=2 --n_head=2 --gradient_accumulation_steps=4'
# One rank for four virtual ranks: two arenas and a staging buffer.
# shellcheck disable=SC2086 # words
check 1 $shape --n_embd=448 --block_size=16 --batch_size=1
# shellcheck disable=SC2086
check 4 $shape --n_embd=64 --block_size=64 --batch_size=32 --dropout=0.1
# shellcheck disable=SC2086
check 2 $shape --n_embd=384 --block_size=16 --batch_size=1 --replicas=private
# Samples are drawn.
# shellcheck disable=SC2086
check 1 $shape --n_layer=18 --n_embd=96 --block_size=1000 --batch_size=1 --recompute=block --sample_tokens=999 \
    --gradient_accumulation_steps=1 --eval_interval=1000 --eval_iters=1
for recompute in rows block; do
    # shellcheck disable=SC2086
    check 2 $shape --n_layer=6 --n_embd=64 --block_size=64 --batch_size=32 --recompute=$recompute
done
# Each rank keeps the order of 6 million samples.
cp -r data long
truncate -s 200M long/train.bin
# shellcheck disable=SC2086
check 2 $shape --n_embd=64 --block_size=16 --batch_size=1 --sampler=epoch --dataset=long
samples=20
# shellcheck disable=SC2086
check 2 $shape --n_embd=384 --block_size=16 --batch_size=1 --checkpoint_interval=1 --keep=1
if [ -f "${tool%/*}/lockstep_gloo.so" ]; then
    # shellcheck disable=SC2086
    check_gathered $shape --n_embd=384 --block_size=16 --batch_size=1 --zero=1
fi
