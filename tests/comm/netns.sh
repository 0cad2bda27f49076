#!/bin/sh
# Two hosts as network namespaces of this machine, a b: training with two ranks on
# each, over Gloo and MPI, has the bytes of one process alone; and a program of the library's there.
# netns.sh TOOL [LIBRARY_PROGRAM]. Exit code 77: such hosts can't be made here.
set -eu
. "${0%/*}/../support.sh"
tool=$1
make_hosts a b

on() { # HOST COMMAND...
    host=$1
    shift
    ip netns exec "$net-$host" timeout "$(patient 100)" "$@" </dev/null
}

cd "$work" # paths in commands that are split at blanks are relative
"$tool" prep char --input="$0" --out="$work/data" >"$work/prep.log" 2>&1 || fail prep
# shellcheck disable=SC2086 # words
train() { # OUT [MORE]
    out=$1
    shift
    echo train --dataset=data --out_dir="$out" --n_layer=2 --n_head=2 --n_embd=16 \
        --block_size=16 --batch_size=2 --gradient_accumulation_steps=8 --max_iters=20 \
        --eval_interval=10 --eval_iters=1 --threads=1 --timeout=30 "$@"
}
# shellcheck disable=SC2046 # words
"$tool" $(train alone) >"$work/alone.log" 2>&1 || fail 'training alone'
same() { # OUT BACKEND
    for file in model.safetensors optimizer.safetensors; do
        cmp "$work/alone/latest/$file" "$work/$1/latest/$file" || fail "$1: $file differs"
    done
    grep -q "\"backend\":\"$2\"" "$work/$1/metrics.jsonl" || fail "$1 wasn't on $2"
    echo "$1: the bytes of one process"
}
# Both hosts run the same; the first's exit code.
both() { # NAME COMMAND...
    name=$1
    shift
    GROUP_RANK=1 on b "$@" >"$work/$name-b.log" 2>&1 &
    second=$!
    GROUP_RANK=0 on a "$@" >"$work/$name.log" 2>&1 || fail "$name: first host"
    wait $second || fail "$name: second host"
}

[ -f "${tool%/*}/lockstep_gloo.so" ] || lacks gloo 'its module was not built'
if [ ! -f "${tool%/*}/lockstep_mpi.so" ] || ! mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
    lacks mpi 'its module was not built, or there is no mpirun of Open MPI'
fi

gloo_has_the_bytes() {
    # shellcheck disable=SC2046
    both gloo "$tool" run --master-addr=10.77.0.1 --nnodes=2 --nproc-per-node=2 -- \
        "$tool" $(train gloo)
    same gloo gloo
    # What any launcher of that contract sets, torchrun among them.
    cat >"$work/launch" <<'END'
#!/bin/sh
for local in 0 1; do
    RANK=$((GROUP_RANK * 2 + local)) LOCAL_RANK=$local "$@" &
    pids="${pids-} $!"
done
for pid in $pids; do
    wait "$pid" || exit
done
END
    chmod +x "$work/launch"
    # shellcheck disable=SC2046
    both env env -u LOCKSTEP_TOKEN MASTER_ADDR=10.77.0.1 MASTER_PORT=29400 WORLD_SIZE=4 \
        LOCAL_WORLD_SIZE=2 "$work/launch" "$tool" $(train env)
    same env gloo
    if [ -n "$1" ]; then
        both library "$tool" run --master-addr=10.77.0.1 --nnodes=2 --nproc-per-node=2 -- "$1"
        "$1" >"$work/library-alone.log" 2>&1 || fail 'the program alone'
        sed 's/^\[[^]]*\] //' "$work/library.log" | cmp - "$work/library-alone.log" ||
            fail 'the program prints something else on two hosts'
        echo 'library: the lines of one process'
    fi
}

mpi_has_the_bytes() {
    # Open MPI names shared memory after the host, so the second one has its own name and /dev/shm.
    cat >"$work/lks-agent" <<END
#!/bin/sh
host=\$1
shift
[ "\$host" = 10.77.0.2 ] || exit 1
exec ip netns exec $net-b unshare --mount --uts sh -c \
    "hostname lks-b && mount -t tmpfs none /dev/shm && \$*"
END
    chmod +x "$work/lks-agent"
    export PATH="$work:$PATH" # the agent's path would be split at blanks
    # In a sanitizer's build: what Open MPI leaves to the end of a process isn't ours.
    export LSAN_OPTIONS=detect_leaks=0
    # shellcheck disable=SC2046
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 on a mpirun --oversubscribe --map-by ppr:2:node \
        -n 4 -H 10.77.0.1:2,10.77.0.2:2 --mca plm_rsh_agent lks-agent \
        --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 \
        "$tool" $(train mpi) >"$work/mpi.log" 2>&1 || fail 'over MPI'
    same mpi mpi
}

gloo_has_the_bytes "${2-}"
mpi_has_the_bytes
