#!/bin/sh
# A run in float32 has the same bytes on ARM64, with plain C and with NEON, on one rank and on two. An emulator
# runs the program; it can't show stores that a processor reorders.
# arm64.sh SOURCE BUILD TOOL FREE_PORT
set -eu
source=$1 build=$2/build tool=$3 free_port=$4
. "$source/tests/support.sh"
emulator=$(command -v qemu-aarch64-static || command -v qemu-aarch64) ||
    lacks qemu-aarch64 'it runs programs for ARM64: qemu-user-static'
command -v aarch64-linux-gnu-gcc >/dev/null || lacks aarch64-gcc 'a compiler for ARM64: gcc-aarch64-linux-gnu'
for library in jansson libxxhash zlib libmd; do
    [ -e "/usr/lib/aarch64-linux-gnu/pkgconfig/$library.pc" ] || lacks arm64-libraries "packages for arm64, at least $library"
done
work_folder

mkdir -p "$build"
{
    cmake -S "$source" -B "$build" -G Ninja -DLKS_TESTS=OFF -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake \
        -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS_RELEASE=-O0 && # kernels have -O3 all the same
        cmake --build "$build" --target lockstep
} >"$work/log" 2>&1 || fail 'no program for ARM64'
# An optimizing compiler for ARM64 joins a product and a sum in one instruction, with other bits, unless told.
[ "$(grep -ce -std=gnu11 "$build/build.ninja")" = "$(grep -ce -ffp-contract=off "$build/build.ninja")" ] ||
    fail 'a file is compiled without -ffp-contract=off'
arm64="timeout -s KILL $(patient 300) $emulator $build/tools/lockstep"

# Inner dimensions must be longer than a block of 256 terms.
settings="--n_layer=1 --n_head=6 --n_embd=288 --block_size=16 --batch_size=1 --bias --dropout=0.2 --max_iters=1
    --gradient_accumulation_steps=2 --virtual_ranks=2 --eval_interval=2 --eval_iters=1 --warmup_iters=1 --bucket_mb=1
    --threads=1 --dataset=$work/data"
yes 'To be, or not to be, that is the question: ' | head -c 20000 >"$work/text.txt"
"$tool" prep char --input="$work/text.txt" --out="$work/data" >"$work/log" 2>&1 || fail 'the text'

# train RUN RANK RANKS COMMAND...
train() {
    run=$1
    export RANK="$2" LOCAL_RANK="$2" WORLD_SIZE="$3" LOCAL_WORLD_SIZE="$3"
    shift 3
    # shellcheck disable=SC2086
    "$@" train --out_dir="$work/$run" $settings >"$work/$run.$RANK.log" 2>&1
}

hash_of() { # RUN
    (cd "$work/$1" && cat ckpt-00000002/*.safetensors && grep '"kind":"\(train\|eval\)"' metrics.jsonl |
        sed -E 's/,"(ms|tok_per_s|mfu|comm_exposed_ms)":[^,}]*//g') | sha256sum
}

(train here 0 1 "$tool") || fail 'this build'
expected=$(hash_of here)
for level in plain neon; do
    export LOCKSTEP_CPU=$level
    # shellcheck disable=SC2086
    (train "$level" 0 1 $arm64) || fail "ARM64, $level"
    [ "$(hash_of "$level")" = "$expected" ] || fail "ARM64, $level: other bytes"
done

# Two ranks. The emulator can't start them. The first one has NEON, the other one is of this build.
MASTER_ADDR=127.0.0.1 MASTER_PORT=$("$free_port")
export MASTER_ADDR MASTER_PORT
(unset LOCKSTEP_CPU && train mixed 1 2 "$tool") &
# shellcheck disable=SC2086
(train mixed 0 2 $arm64) || fail 'two ranks'
wait $! || fail 'the second of two ranks'
[ "$(hash_of mixed)" = "$expected" ] || fail 'two ranks: other bytes'
