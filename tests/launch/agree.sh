#!/bin/bash
# Two and three hosts as network namespaces of this machine, each with a folder and a name of its
# own. Whatever differs between them, a run either has the bytes of one process or ends on all hosts
# with a sentence that names host and checkpoint.
#     agree.sh TOOL FIXTURE [RUNS [SEED]]
# Exit code 77: such hosts can't be made here.
set -eu
. "${0%/*}/../support.sh"
tool=$1 fixture=$2 runs=${3:-8} seed=${4:-1}
RANDOM=$seed
if [ ! -f "${tool%/*}/lockstep_gloo.so" ]; then
    echo 'FAILED: there is no module for gloo: ./check installs what it is built with'
    exit 1
fi
make_hosts a b c

what=start
fail() {
    echo "FAILED: $what: $*"
    for log in "$work"/now/*.log; do
        echo "--- $log"
        tail -n 20 "$log"
    done
    exit 1
}

train="train --family=golf --dataset=$work/data --sampler=stream --vocab_size=64 --n_layer=2
    --n_head=2 --num_kv_heads=1 --n_embd=16 --block_size=16 --tie_embeddings=false
    --train_batch_tokens=128 --gradient_accumulation_steps=8 --virtual_ranks=4
    --val_batch_size=256 --max_wallclock_seconds=0 --eval_interval=0 --checkpoint_interval=2
    --keep=0 --threads=1 --allow_uneven --timeout=30"

# The runs of one process that all others are held to: `base` ends with checkpoint 4, `whole` goes
# on from there to 8; `fresh` does all 8 at once; `bad` ends with checkpoint 2, in which there is a NaN that iterations 5 and 6
# meet, and `back` goes on from there to 10, twice back to 4. Its end can't be exported.
alone() { # FOLDER ITERATIONS OPTIONS...
    out=$1
    shift
    # shellcheck disable=SC2086 # words
    "$tool" $train --out_dir="$work/$out" --iterations="$@" >"$work/$out.log" 2>&1
}
copy() { # FROM TO
    mkdir -p "$work/$2"
    cp -a "$work/$1/." "$work/$2"
}
mkdir "$work/data" "$work/now"
"$fixture" data "$work/data"
alone base 4 || fail 'the first run'
copy base whole
alone whole 8 --init_from=resume || fail 'its resume'
alone fresh 8 || fail 'the run that nobody disturbs'
alone bad 2 || fail 'the run to be altered'
"$fixture" nan "$work/bad"
copy bad back
alone back 10 --init_from=resume --on_nan=rollback && fail 'a NaN was exported'
[ -d "$work/back/ckpt-00000010" ] || fail 'no rollback'

# on N OPTIONS...: on the first N hosts, host h in its folder now/h; their exit codes in now/h.code.
# Ranks: 2 on the first, 1 on each other.
on() {
    n=$1
    shift
    rm -f "$work"/now/*.code "$work"/now/*.log
    for h in $(echo a b c | cut -d ' ' -f "1-$n"); do
        (
            code=0
            # shellcheck disable=SC2086 # words
            ip netns exec "$net-$h" unshare --uts sh -c 'hostname "$0"; exec "$@"' "host-$h" \
                timeout "$(patient 60)" "$tool" run --master-addr=10.77.0.1 --nnodes="$n" \
                --node-rank="$(echo "$h" | tr abc 012)" \
                --nproc-per-node="$([ "$h" = a ] && echo 2 || echo 1)" $launch -- \
                sh -c "[ \$TORCHELASTIC_RESTART_COUNT != 0 ] || $first; exec \"\$@\"" sh \
                "$tool" $train --out_dir="$work/now/$h" "$@" \
                >"$work/now/$h.log" 2>&1 </dev/null || code=$?
            echo "$code" >"$work/now/$h.code"
        ) &
    done
    wait
}
used() {
    echo a b c | cut -d ' ' -f "1-$n"
}
# All hosts ended badly within seconds, and before a step; the first one's log has each TEXT.
refused() { # TEXT...
    [ "$seconds" -le "$(patient 20)" ] || fail "it took $seconds s"
    for h in $(used); do
        read -r code <"$work/now/$h.code"
        [ "$code" != 0 ] && [ "$code" != 124 ] || fail "host $h ended with $code"
    done
    for text in "$@"; do
        grep -qF -- "$text" "$work/now/a.log" || fail "nobody says \"$text\""
    done
}
# The same checkpoints as one process alone, and no others.
same() { # FOLDER
    for ckpt in "$work/$1"/ckpt-*; do
        for file in model.safetensors optimizer.safetensors state.json; do
            cmp "$ckpt/$file" "$work/now/a/${ckpt##*/}/$file" || fail "${ckpt##*/}/$file differs"
        done
    done
    [ "$(cd "$work/$1" && echo ckpt-*)" = "$(cd "$work/now/a" && echo ckpt-*)" ] ||
        fail 'other checkpoints'
}
ended() { # CODE
    for h in $(used); do
        read -r code <"$work/now/$h.code"
        [ "$code" = "$1" ] || fail "host $h ended with $code, not $1"
    done
}
hash_of() { # CHECKPOINT
    sed -n 's/.*"state_hash": *"\([0-9a-f]*\)".*/\1/p' "$1/state.json"
}
# Both sides of a difference, as the sentence has them.
side() { # HOST RANK ITERATION
    ckpt=$work/now/$1/ckpt-0000000$3
    echo "rank $2 (host host-$1) has $ckpt (iteration $3, state_hash $(hash_of "$ckpt"))"
}

for run in $(seq 1 "$runs"); do
    n=$((2 + RANDOM % 2)) launch='' first=:
    odd=b rank=2 # the host that differs, and its first rank
    if [ "$n" = 3 ] && [ $((RANDOM % 2)) = 0 ]; then
        odd=c rank=3
    fi
    kind=$((run % 8))
    rm -rf "$work/now"
    from=base
    [ "$kind" -lt 4 ] || [ "$kind" = 7 ] || from=bad
    for h in $(used); do
        copy "$from" "now/$h"
    done
    mine=$work/now/$odd
    part=$(echo weight moment value | cut -d ' ' -f $((1 + RANDOM % 3)))
    started=$(date +%s)
    case $kind in
    7)
        what="run $run, $n hosts: the same on all"
        on "$n" --init_from=resume --iterations=8 --check_interval=1
        ;;
    1)
        what="run $run, $n hosts: $part altered on $odd"
        "$fixture" "$part" "$mine"
        on "$n" --init_from=resume --iterations=8 --check_interval=0
        ;;
    2)
        what="run $run, $n hosts: no checkpoint on $odd"
        rm -r "$mine"/*
        on "$n" --init_from=resume --iterations=8 --check_interval=0
        ;;
    3)
        what="run $run, $n hosts: another latest on $odd"
        ln -sfn ckpt-00000002 "$mine/latest"
        [ $((RANDOM % 2)) = 0 ] || {
            what="$what, an older checkpoint"
            rm -r "$mine/ckpt-00000004"
        }
        on "$n" --init_from=resume --iterations=8 --check_interval=0
        ;;
    4)
        what="run $run, $n hosts: rollback, the checkpoint is missing on $odd"
        for h in $(used); do
            [ "$h" = "$odd" ] || cp -a "$work/back/ckpt-00000004" "$work/now/$h"
        done
        on "$n" --init_from=resume --iterations=10 --on_nan=rollback
        ;;
    5)
        what="run $run, $n hosts: rollback, $part altered on $odd"
        for h in $(used); do
            cp -a "$work/back/ckpt-00000004" "$work/now/$h"
        done
        ln -sfn ckpt-00000004 "$mine/latest"
        "$fixture" "$part" "$mine"
        for h in $(used); do
            ln -sfn ckpt-00000002 "$work/now/$h/latest"
        done
        on "$n" --init_from=resume --iterations=10 --on_nan=rollback
        ;;
    6)
        what="run $run, $n hosts: rollback, another latest on $odd"
        for h in $(used); do
            cp -a "$work/back/ckpt-00000004" "$work/now/$h"
        done
        on "$n" --init_from=resume --iterations=10 --on_nan=rollback --check_interval=1
        ;;
    0)
        launch=--max-restarts=1
        for h in $(used); do
            rm -r "$work/now/$h"
        done
        shared=$((RANDOM % 2))
        what="run $run, $n hosts: a restart, with a folder each"
        if [ "$shared" = 1 ]; then
            what="run $run, $n hosts: a restart, with one folder"
            mkdir "$work/now/a"
            for h in $(used); do
                [ "$h" = a ] || ln -s a "$work/now/$h"
            done
        fi
        # Rank 0 dies in one of four saves, at the first start alone.
        first="export LOCKSTEP_FAULT=rename:$((1 + RANDOM % 8)):die LOCKSTEP_FAULT_RANK=0"
        on "$n" --iterations=8 --check_interval=1
        ;;
    esac
    seconds=$(($(date +%s) - started))
    case $kind in
    1) refused "$(side a 0 4)" "$(side "$odd" "$rank" 4)" ;;
    2) refused "rank $rank (host host-$odd): there is no checkpoint in $mine" "$(side a 0 4)" ;;
    3) refused "$(side a 0 4)" "$(side "$odd" "$rank" 2)" ;;
    4)
        refused 'on_nan=rollback at iteration 5: ' "$mine/ckpt-00000004: No such file" \
            "$(side a 0 4)"
        ;;
    5)
        refused 'on_nan=rollback at iteration 5: ' "$(side a 0 4)" "$(side "$odd" "$rank" 4)"
        ;;
    6)
        ended 1
        same back
        ;;
    7)
        ended 0
        same whole
        ;;
    0)
        grep -q 'restart 1 of 1' "$work/now/a.log" || fail 'nobody died'
        read -r code <"$work/now/a.code"
        if [ "$code" = 0 ] || [ "$shared" = 1 ]; then # or died before the first checkpoint
            ended 0
            same fresh
        else
            refused "host-b) has no checkpoint to continue from in $work/now/b, but rank 0 (host host-a"
        fi
        ;;
    esac
    end=refused
    ! grep -qx 0 "$work/now/a.code" || end='the right bytes'
    [ "$kind" != 6 ] || end='the right bytes'
    echo "$what: $end, $seconds s"
done
