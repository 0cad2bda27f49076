#!/bin/sh
# The bytes that hosts send in a step, as `lockstep plan` counts them, beside the counters of the
# interfaces, within 2 %: hosts are network namespaces of this machine. Without --all two and
# three hosts alone, over Gloo; with it up to eight, over Gloo and Open MPI. counters.sh TOOL [--all].
# Exit code 77: such hosts can't be made here.
set -eu
. "${0%/*}/../support.sh"
tool=$1
all=${2-}
letters='a b c d'
[ -z "$all" ] || letters='a b c d e f g h'
[ -f "${tool%/*}/lockstep_gloo.so" ] || lacks gloo 'its module was not built'
# shellcheck disable=SC2086 # words
make_hosts $letters

cd "$work"
"$tool" prep char --input="$0" --out=data >prep.log
shape='--n_layer=2 --n_head=2 --n_embd=256 --block_size=16 --batch_size=1 --gradient_accumulation_steps=4'

# The bytes that all hosts have sent so far.
sent() { # NAMES
    for host in $1; do
        ip netns exec "$net-$host" cat /sys/class/net/eth0/statistics/tx_bytes
    done | awk '{ sum += $1 } END { printf "%.0f", sum }'
}
# Open MPI names shared memory after the host, so each has its own name and /dev/shm.
cat >lks-agent <<END
#!/bin/sh
number=\${1##*.}
shift
host=\$(echo $letters | cut -d' ' -f"\$number")
exec ip netns exec $net-\$host unshare --mount --uts sh -c \
    "hostname lks-\$host && mount -t tmpfs none /dev/shm && \$*"
END
chmod +x lks-agent
run_mpi() { # STEPS NAME MORE...
    steps=$1 name=$2
    shift 2
    list=$(seq "$count" | sed 's/^/10.77.0./; s/$/:1/' | paste -sd,)
    # shellcheck disable=SC2086 # words
    PATH="$work:$PATH" LSAN_OPTIONS=detect_leaks=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        ip netns exec "$net-a" timeout "$(patient 200)" mpirun --oversubscribe --map-by ppr:1:node -n "$count" \
        -H "$list" --mca plm_rsh_agent lks-agent --mca btl_tcp_if_include eth0 \
        --mca oob_tcp_if_include eth0 --mca mpi_yield_when_idle 1 \
        "$tool" train --dataset=data --out_dir="$name" $shape --backend=mpi --eval_interval=0 \
        --max_iters="$steps" --threads=1 "$@" >"$name.log" 2>&1 </dev/null || fail "MPI: $name"
}
run() { # NAMES NAME STEPS MORE...
    names=$1 name=$2 steps=$3
    shift 3
    count=$(echo "$names" | wc -w)
    rank=0
    pids=
    if [ "$engine" = mpi ]; then
        run_mpi "$steps" "$name" "$@"
        return
    fi
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
    run "$names" "$engine-short$count$*" 3 "$@"
    between=$(sent "$names")
    run "$names" "$engine-long$count$*" 13 "$@"
    after=$(sent "$names")
    awk -v p="$planned" -v a="$before" -v b="$between" -v c="$after" -v n="$count" -v what="$engine $*" 'BEGIN {
        measured = (c - b - (b - a)) / 10 / n
        printf "%d hosts %s: planned %.0f bytes a step and host, counted %.0f (%+.2f %%)\n", n, what,
            p, measured, 100 * (p / measured - 1)
        off = p / measured - 1
        exit !((off < 0 ? -off : off) <= 0.02)
    }' || {
        echo FAILED
        exit 1
    }
}

engine=gloo
check 'a b'
check 'a b c' --allow_uneven=true
if [ -n "$all" ]; then
    check 'a b c d'
    check 'a b' --wire=bfloat16
    check 'a b' --zero=1
    check 'a b c' --allow_uneven=true --wire=bfloat16
    check "$letters"
    check "$letters" --wire=bfloat16
    engine=mpi
    [ -f "${tool%/*}/lockstep_mpi.so" ] || lacks mpi 'its module was not built'
    check 'a b'
    check 'a b' --wire=bfloat16
    check 'a b c' --allow_uneven=true
    check 'a b c d'
    check "$letters"
    check "$letters" --wire=bfloat16
fi
