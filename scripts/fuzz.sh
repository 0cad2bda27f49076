#!/bin/sh
# Long fuzzing runs: see --help.
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

usage() {
    cat <<'END'
Usage: scripts/fuzz.sh [--inputs=1000000] [--seed=1] [--build=build-check] [TARGET ...]

Gives each reader (tests/fuzz: config files, settings, meta.json, token files, safetensors,
checkpoints, records of runs and their reports, seals, artifacts, pickles, files of torch.save, texts, SentencePiece models,
lists of hosts, the launcher's environment, the messages of launchers, both ends of the store) that
many mutated inputs, under the address and undefined-behaviour sanitizers. It fails if one crashes, hangs, leaks, or takes more
memory than twice its length and 64 MB; the input is kept in BUILD/fuzz.
`./check` makes the build, and a short run of each. With clang, libFuzzer drives the same targets:

  CC=clang CXX=clang++ cmake -S . -B build-fuzz -G Ninja -DLKS_FUZZ=ON && cmake --build build-fuzz
  mkdir seeds && build-check/tests/fuzz/fuzz_meta --seeds=seeds && build-fuzz/tests/fuzz/fuzz_meta seeds
END
}

inputs=1000000 seed=1 build=build-check targets=
for arg; do
    case $arg in
    --inputs=?*) inputs=${arg#*=} ;;
    --seed=?*) seed=${arg#*=} ;;
    --build=?*) build=${arg#*=} ;;
    --help | -h) usage; exit 0 ;;
    -*) usage >&2; die "can't read the argument $arg" ;;
    *) targets="$targets $arg" ;;
    esac
done

[ -x "$build/tests/fuzz/fuzz_meta" ] || die "$build/tests/fuzz has no targets: ./check -R fuzz makes them"
if [ -z "$targets" ]; then
    for target in "$build"/tests/fuzz/fuzz_*; do
        [ ! -x "$target" ] || targets="$targets ${target##*/fuzz_}"
    done
fi
mkdir -p "$build/fuzz"
bin=$(cd "$build/tests/fuzz" && pwd)
failed=
cd "$build/fuzz"
for target in $targets; do
    "$bin/fuzz_$target" --inputs="$inputs" --seed="$seed" || {
        [ $? -eq 77 ] && echo "fuzz_$target: skipped, since this machine lacks something that it needs" || failed="$failed $target"
    }
done
[ -z "$failed" ] || die "failed:$failed"
