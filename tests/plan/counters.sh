#!/bin/sh
# The bytes that hosts send in a step, as `lockstep plan` counts them, beside the counters of the
# interfaces, within 2 %: hosts are network namespaces of this machine. Without --all two and
# three hosts alone, over Gloo. counters.sh TOOL [--all]. Exit code 77: such hosts can't be made here.
set -eu
. "${0%/*}/../support.sh"
tool=$1
all=${2-}
work=$(mktemp -d)
net=lkp$$
hosts=$(dirname "$0")/../launch/hosts.sh
LOCKSTEP_TOKEN=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
export LOCKSTEP_TOKEN

# shellcheck disable=SC2317 # by trap
remove() {
    "$hosts" remove "$net" a b c d
    rm -rf "$work"
}
trap remove EXIT
trap 'exit 1' INT TERM HUP
[ -f "${tool%/*}/lockstep_gloo.so" ] || lacks gloo 'its module was not built'
if ! "$hosts" make "$net" a b c d >"$work/hosts" 2>&1; then
    lacks namespaces "$(tail -n 1 "$work/hosts")"
fi

cd "$work"
"$tool" prep char --input="$0" --out=data >prep.log
shape='--n_layer=2 --n_head=2 --n_embd=256 --block_size=16 --batch_size=1 --gradient_accumulation_steps=8'

# The bytes that all hosts have sent so far.
sent() { # NAMES
    for host in $1; do
        ip netns exec "$net-$host" cat /sys/class/net/eth0/statistics/tx_bytes
    done | awk '{ sum += $1 } END { printf "%.0f", sum }'
}
run() { # NAMES NAME STEPS MORE...
    names=$1 name=$2 steps=$3
    shift 3
    count=$(echo "$names" | wc -w)
    rank=0
    pids=
    for host in $names; do
        # shellcheck disable=SC2086 # words
        MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 WORLD_SIZE=$count RANK=$rank LOCAL_RANK=0 \
            LOCAL_WORLD_SIZE=1 GROUP_RANK=$rank ip netns exec "$net-$host" \
            timeout "$(patient 100)" "$tool" train --dataset=data --out_dir="$name" $shape \
            --backend=gloo --eval_interval=0 --max_iters="$steps" --threads=1 "$@" \
            >"$name-$host.log" 2>&1 &
        pids="$pids $!"
        rank=$((rank + 1))
    done
    for pid in $pids; do
        wait "$pid" || {
            tail -n 3 "$name"-*.log
            exit 1
        }
    done
}
check() { # NAMES MORE...
    names=$1
    shift
    count=$(echo "$names" | wc -w)
    # shellcheck disable=SC2086 # words
    "$tool" plan --dataset=data $shape --threads=1 --nnodes="$count" --json "$@" >plan.json
    planned=$(grep -o '"mean_bytes_per_step_host":[0-9.e+]*' plan.json | tail -n 1 | cut -d: -f2)
    before=$(sent "$names")
    run "$names" "short$count$*" 5 "$@"
    between=$(sent "$names")
    run "$names" "long$count$*" 25 "$@"
    after=$(sent "$names")
    awk -v p="$planned" -v a="$before" -v b="$between" -v c="$after" -v n="$count" -v what="$*" 'BEGIN {
        measured = (c - b - (b - a)) / 20 / n
        printf "%d hosts %s: planned %.0f bytes a step and host, counted %.0f (%+.2f %%)\n", n, what,
            p, measured, 100 * (p / measured - 1)
        off = p / measured - 1
        exit !((off < 0 ? -off : off) <= 0.02)
    }' || {
        echo FAILED
        exit 1
    }
}

check 'a b'
check 'a b c' --allow_uneven=true
if [ -n "$all" ]; then
    check 'a b c d'
    check 'a b' --wire=bfloat16
    check 'a b' --zero=1
    check 'a b c' --allow_uneven=true --wire=bfloat16
fi
