#!/bin/sh
# What --dry_run says that ranks take, beside what the kernel counts (Pss): within 3 % or 5 MB a
# rank. Pages of libraries are left out: other programs of the machine share them. memory.sh TOOL
set -eu
. "${0%/*}/../support.sh"
tool=$1
work=$(mktemp -d)
launcher=
# shellcheck disable=SC2317 # by trap
remove() {
    [ -z "$launcher" ] || kill -9 "$launcher" 2>/dev/null || true
    rm -rf "$work"
}
trap remove EXIT
trap 'exit 1' INT TERM HUP

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
check() { # RANKS SETTINGS...
    ranks=$1
    shift
    set -- train --dataset=data --nproc_per_node="$ranks" --threads=1 --timeout=60 "$@"
    planned=$("$tool" "$@" --dry_run | awk '/^process:/ { libraries = $7 }
        /^total on/ { printf "%.1f", $(NF - 1) - libraries }')
    "$tool" "$@" --out_dir="run$ranks" --max_iters=100000 --eval_interval=0 --log_interval=1 \
        >log 2>&1 &
    launcher=$!
    tries=$(patient 1000)
    until [ "$(grep -c '"loss"' "run$ranks/metrics.jsonl" 2>/dev/null || true)" -ge 3 ] 2>/dev/null; do
        tries=$((tries - 1))
        if [ "$tries" -eq 0 ] || ! kill -0 "$launcher"; then
            echo "FAILED: no third step"
            tail -n 5 log
            exit 1
        fi
        sleep 0.1
    done
    measured=$(pss "$(below "$launcher")")
    kill -9 "$launcher"
    wait "$launcher" 2>/dev/null || true
    launcher=
    awk -v p="$planned" -v m="$measured" -v n="$ranks" 'BEGIN {
        limit = 0.03 * m > 5 * n ? 0.03 * m : 5 * n
        off = p - m
        printf "%d ranks: planned %.1f MB, measured %.1f MB\n", n, p, m
        exit !((off < 0 ? -off : off) <= limit)
    }' || {
        echo "FAILED: $*"
        exit 1
    }
}

shape='--n_layer=2 --n_head=2 --gradient_accumulation_steps=4'
# One rank for four virtual ranks: two arenas and a staging buffer.
# shellcheck disable=SC2086 # words
check 1 $shape --n_embd=448 --block_size=16 --batch_size=1
# shellcheck disable=SC2086
check 4 $shape --n_embd=64 --block_size=64 --batch_size=32 --dropout=0.1
# shellcheck disable=SC2086
check 2 $shape --n_embd=384 --block_size=16 --batch_size=1 --replicas=private
