#!/bin/sh
# Shows the promise on this machine: see --help.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

usage() {
    cat <<'END'
Usage: scripts/prove.sh [--dataset=DIR] [--lockstep=build/tools/lockstep] [--out=out/prove]

Shows that neither the number of ranks (processes) nor the processor changes a run. Trains a small
GPT with dropout and 8 virtual ranks (parts of each step) on 1, 2, 4 and 8 ranks, then on 2 ranks
with the instructions of a lesser processor (AVX2). Trains it once more on 4 ranks, kills
them halfway and resumes on 2. Then prints the first 12 digits of the SHA-256 of each run's
checkpoints and metrics, without the fields about time and machine, and whether all are equal.

  --dataset=DIR  folder with token files; default: made from this repository's sources
  --lockstep=…   program to run; --out=… folder for the runs
END
}

dataset='' lockstep=build/tools/lockstep out=out/prove
for arg; do
    case $arg in
    --dataset=?*) dataset=${arg#*=} ;;
    --lockstep=?*) lockstep=${arg#*=} ;;
    --out=?*) out=${arg#*=} ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; die "can't read the argument $arg" ;;
    esac
done
[ -x "$lockstep" ] || die "no program $lockstep: build it with ./quickstart"

own_folder "$out"
logs=$out/logs
mkdir -p "$logs"
if [ -z "$dataset" ]; then
    dataset=$out/data
    step corpus scripts/corpus.sh "$out/corpus.txt"
    step prep "$lockstep" prep char --input="$out/corpus.txt" --out="$dataset"
fi

settings='--n_layer=2 --n_head=4 --n_embd=64 --block_size=64 --batch_size=4
    --gradient_accumulation_steps=8 --dropout=0.1 --learning_rate=1e-3 --warmup_iters=10
    --lr_decay_iters=120 --max_iters=119 --eval_interval=40 --eval_iters=4 --keep=0 --log_interval=20'

train() { # RUN RANKS [SETTING]
    # shellcheck disable=SC2086
    "$lockstep" train --dataset="$dataset" --out_dir="$out/$1" --nproc_per_node="$2" $settings ${3-}
}

train_at_level() { # LEVEL
    LOCKSTEP_CPU=$1 train "$1" 2
}

# SIGKILL for the launcher, which takes its ranks along, once the checkpoint of iteration 40 is there.
train_killed() { # RUN RANKS
    # shellcheck disable=SC2086
    "$lockstep" train --dataset="$dataset" --out_dir="$out/$1" --nproc_per_node="$2" $settings &
    trap 'kill -9 $!; exit 130' INT TERM # a program in the background ignores Ctrl-C
    while kill -0 $! 2>/dev/null && [ ! -e "$out/$1/ckpt-00000040" ]; do sleep 0.02; done
    kill -9 $! || return 1
    trap - INT TERM
    wait $! || killed=$?
    # Rank 0, which locks the folder, ends a moment later.
    rank=$(sed -n 's/^pid \([0-9]*\) .*/\1/p' "$out/$1/.lock")
    for _ in $(seq 500); do
        grep -qs '^State:.[^ZX]' "/proc/$rank/status" || break
        sleep 0.02
    done
    [ "${killed-0}" -eq 137 ] && [ ! -e "$out/$1/ckpt-00000120" ]
}

# A level below this processor's best. (scripts/same_bytes.sh has them all; `plain` takes minutes here.)
levels='' runs=6
case $("$lockstep" info | sed -n 's/^kernels *\([a-z0-9_]*\).*/\1/p') in
avx512* | amx) levels=avx2 runs=7 ;;
esac

# A step that the progress line calls "run 2 of 7, on 2 ranks".
run_number=0
train_step() { # RANKS STEP COMMAND...
    run_number=$((run_number + 1))
    progress_label="run $run_number of $runs, on $1 rank$([ "$1" -eq 1 ] || echo s)"
    shift
    step "$@"
}

# What must be the same: all bytes of all checkpoints, and every metric that isn't about time or place.
hashes() { # RUN
    (
        cd "$out/$1"
        find ckpt-* -type f | LC_ALL=C sort | xargs cat | sha256sum | cut -c 1-64
        sed -E -e '/"kind":"host"/d' -e 's/,"(ms|tok_per_s|mfu|comm_exposed_ms)":[^,}]*//g' \
            metrics.jsonl | sha256sum | cut -c 1-64
    )
}

for run in 1 2 4 8 $levels killed; do rm -rf "${out:?}/$run"; done
for ranks in 1 2 4 8; do train_step "$ranks" "train-$ranks" train "$ranks" "$ranks"; done
for level in $levels; do train_step 2 "train-$level" train_at_level "$level"; done
train_step 4 train-killed train_killed killed 4
train_step 2 resume train killed 2 --init_from=resume

printf '%-34s  %-22s  %s\n' 'run' 'SHA-256 of checkpoints' 'of metrics'
first=
same=yes
for run in 1 2 4 8 $levels killed; do
    case $run in
    1) name='1 rank' ;;
    avx2) name='2 ranks, AVX2 only' ;;
    killed) name='4 ranks, killed, resumed on 2' ;;
    *) name="$run ranks" ;;
    esac
    # shellcheck disable=SC2046 # two words
    set -- $(hashes "$run")
    printf '%-34s  %.12s...         %.12s...\n' "$name" "$1" "$2"
    [ -n "$first" ] || first="$1 $2"
    [ "$first" = "$1 $2" ] || same=no
done
[ "$same" = yes ] || die "the runs are not the same: this breaks the promise; please report it"
echo 'All runs are the same, byte for byte.'
