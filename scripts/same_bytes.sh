#!/bin/sh
# Trains small but wide models in float32 at every kernel level: see --help.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

usage() {
    cat <<'END'
Usage: scripts/same_bytes.sh [--short] [--out=out/same_bytes] [NAME=COMMAND...]

Shows that the processor doesn't change a run in float32. Trains each model below at every kernel
level that this processor supports, with oneDNN and without it, on 1, 2 and 4 ranks (processes).
Prints a row for each with the first 12 digits of the SHA-256 of its checkpoints and metrics. All
rows must be equal, on this machine and on any other.

  NAME=COMMAND  a build to try, 'here=build/tools/lockstep' by default. Other compilers:
                'clang=build-clang/tools/lockstep'. ARM64, under an emulator:
                'arm64=qemu-aarch64-static build-arm64/tools/lockstep'
  --short       only the models gpt2 (with a context of 64) and golf, on 1 and 2 ranks
  --out=…       folder for data, runs and logs

Models: gpt2 (width 384, context 256, dropout, biases, AdamW), wide (width 768, 50,304 tokens, one step),
frozen (width 512, half of it frozen, recomputation, SGD), golf (width 512, Muon), and text: samples of
gpt2. A build without libzip has no row of golf. The exit code is 1 if a hash differs.
END
}

short=false out=out/same_bytes
for arg; do
    shift
    case $arg in
    --short) short=true ;;
    --out=?*) out=${arg#*=} ;;
    --help | -h) usage; exit 0 ;;
    [!-]*=?*) set -- "$@" "$arg" ;;
    *) usage >&2; die "can't read the argument $arg" ;;
    esac
done
[ $# -gt 0 ] || set -- here=build/tools/lockstep

own_folder "$out"
logs=$out/logs data=$out/data
rm -rf "${out:?}/data" "${out:?}"/*.first
mkdir -p "$logs" "$data/char" "$data/wide" "$out/no_dnnl"
no_dnnl=$(cd "$out/no_dnnl" && pwd)
# A file that is no library hides the machine's.
for version in 2 3 $(seq -f 3.%g 0 31); do echo >"$out/no_dnnl/libdnnl.so.$version"; done

# The same text on every machine: words drawn by a congruential generator.
awk 'BEGIN {
    letters = "etaoinshrdlucmfwypvbgkjqxzETAOINSHRDLUCMFWYPVBGKJQXZ.,;:!?'"'"'-  "
    for (x = 1; n < 4000; n++) {
        x = (x * 1103 + 12345) % 1048576
        y = (y + x % 97) % 64
        printf "%s%s", substr(letters, 1 + (x + y) % length(letters), 1), n % 71 == 70 ? "\n" : ""
    }
}' >"$out/text.txt"

few='--gradient_accumulation_steps=4 --virtual_ranks=4 --keep=0 --bucket_mb=1'
context=256
! $short || context=64
settings_of() { # MODEL
    case $1 in
    gpt2) echo "--n_layer=1 --n_head=6 --n_embd=384 --block_size=$context --batch_size=1 --bias --dropout=0.2
        --max_iters=1 --eval_interval=2 --eval_iters=1 --warmup_iters=1 --dataset=$data/char $few" ;;
    wide) echo "--n_layer=1 --n_head=12 --n_embd=768 --block_size=16 --batch_size=1 --vocab_size=50304
        --max_iters=0 --eval_interval=2 --eval_iters=1 --dataset=$data/wide $few" ;;
    frozen) echo "--n_layer=2 --n_head=4 --n_embd=512 --block_size=32 --batch_size=1 --freeze=h[.]0 --recompute=block
        --optimizer=sgd --max_iters=1 --eval_interval=2 --eval_iters=1 --warmup_iters=1 --dataset=$data/char $few" ;;
    golf) echo "--family=golf --n_layer=2 --n_head=8 --num_kv_heads=4 --n_embd=512
        --block_size=32 --train_batch_tokens=128 --iterations=2 --eval_interval=2 --val_batch_size=128
        --max_wallclock_seconds=0 --dataset=$data/char $few" ;;
    esac
}

# train RUN RANKS LAUNCH SETTING... : an emulator can't start ranks, so they are started here.
train() {
    run=$1 ranks=$2
    shift 2
    rm -rf "$run"
    if [ "$ranks" -eq 1 ] || [ "$emulated" = false ]; then
        $program train --out_dir="$run" --nproc_per_node="$ranks" --threads=1 "$@"
        return
    fi
    others=''
    for rank in $(seq $((ranks - 1)) -1 0); do
        # shellcheck disable=SC2086
        env RANK="$rank" LOCAL_RANK="$rank" WORLD_SIZE="$ranks" LOCAL_WORLD_SIZE="$ranks" MASTER_ADDR=127.0.0.1 \
            MASTER_PORT=29517 $program train --out_dir="$run" --threads=1 "$@" &
        others="$others $!"
    done
    # shellcheck disable=SC2064 # programs in the background ignore Ctrl-C
    trap "kill -9 $others; exit 130" INT TERM
    for other in $others; do wait "$other" || return 1; done
    trap - INT TERM
}

hash_of() { # RUN
    (
        cd "$1"
        find ckpt-* -type f | LC_ALL=C sort | xargs cat
        sed -E -e '/"kind":"host"/d' -e 's/,"(ms|tok_per_s|mfu|comm_exposed_ms)":[^,}]*//g' metrics.jsonl
    ) | sha256sum | cut -c 1-12
}

# Only the text: standard error has times.
sample() { # RUN
    $program sample --threads=1 --out_dir="$1" --num_samples=2 --max_new_tokens=40 >"$1.txt"
}

models='gpt2 wide frozen golf text'
! $short || models='gpt2 golf text'
differs=0
row() { # LEVEL LIBRARY_PATH RANKS
    hashes='' mark=''
    export LOCKSTEP_CPU="$1" LD_LIBRARY_PATH="$2"
    products=$($program info | sed -n 's/^gemm *\([^ ]*\( [0-9.]*\)\{0,1\}\).*/\1/p')
    prefix=$out/$label-$1-$(echo "$products" | tr ' ' -)-$3
    for model in $models; do
        if [ "$model" = golf ] && $program info | grep -q '^zip.*not in this build'; then
            hash=- # it couldn't write golf's artifact
        elif [ "$model" = text ]; then
            step "${prefix##*/}-text" sample "$prefix-gpt2"
            hash=$(sha256sum <"$prefix-gpt2.txt" | cut -c 1-12)
        else
            # shellcheck disable=SC2046
            step "${prefix##*/}-$model" train "$prefix-$model" "$3" $(settings_of "$model")
            hash=$(hash_of "$prefix-$model")
        fi
        hashes="$hashes $(printf '%-12s' "$hash")"
        [ "$hash" != - ] || continue
        [ -e "$out/$model.first" ] || echo "$hash" >"$out/$model.first"
        [ "$hash" = "$(cat "$out/$model.first")" ] || mark=' differs' differs=1
    done
    unset LOCKSTEP_CPU LD_LIBRARY_PATH
    printf '%-8s%-13s%-14s%5s %s%s\n' "$label" "$1" "$products" "$3" "$hashes" "$mark"
}

# The compiler's own note in the program. Parts of the C library may name gcc, too.
compiler_of() { # PROGRAM
    {
        grep -aoE 'clang version [0-9.]+' "$1" || grep -aoE 'GCC: \([^)]*\) [0-9.]+' "$1" || echo 'unknown compiler'
    } | head -n 1
}

echo "processor: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
for build; do echo "${build%%=*}: ${build#*=}, $(compiler_of "${build##*[= ]}")"; done
# shellcheck disable=SC2046,SC2086
printf '%-8s%-13s%-14s%5s %s\n' build level products ranks "$(printf ' %-12s' $models)"
for build; do
    label=${build%%=*} program=${build#*=} emulated=false best=''
    case $program in *\ *) emulated=true ;; esac
    # shellcheck disable=SC2086
    step "$label-prep" $program prep char --input="$out/text.txt" --out="$data/char"
    cp "$data/char/train.bin" "$data/char/val.bin" "$data/wide"
    for level in plain avx2 avx512 avx512_bf16 amx neon; do
        LOCKSTEP_CPU=$level $program info >"$logs/info.log" 2>&1 || continue
        best=$level
        row "$level" "$no_dnnl" 1
        ! LOCKSTEP_CPU=$level $program info | grep -q '^gemm *oneDNN' || row "$level" '' 1
    done
    row "$best" '' 2
    $short || row "$best" '' 4
done
[ $differs = 0 ] || die 'rows differ'
echo 'All rows are equal.'
