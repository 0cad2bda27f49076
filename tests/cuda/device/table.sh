#!/bin/sh
# The table of docs/guides/cuda.md is what `lockstep plan --device=cuda` says. table.sh TOOL PAGE
set -eu
. "$(dirname "$0")/../../support.sh"
work_folder
tool=$1 page=$2
cd "$(dirname "$page")/.."
plan() { # MEMORY CONFIG SETTINGS...: "BATCH: GB"
    memory=$1 config=$2
    shift 2
    batch=$("$tool" plan "config/$config.conf" --device=cuda --memory="$memory" --batch_size=auto "$@" 2>/dev/null |
        sed -n 's/^batch_size=auto: *\([0-9]*\),.*/\1/p')
    if [ -z "$batch" ]; then printf '–'; return; fi
    bytes=$("$tool" plan "config/$config.conf" --device=cuda --memory="$memory" --batch_size=auto --json "$@" |
        sed 's/.*"device":{"bytes":\([0-9]*\).*/\1/')
    awk -v batch="$batch" -v bytes="$bytes" 'BEGIN { printf "%d: %.1f", batch, bytes / 1e9 }'
}
row() { # MODEL CONFIG SETTINGS...
    model=$1
    shift
    for recompute in none block; do
        row="| $model | $recompute |"
        for memory in 16G 24G 80G; do
            row="$row $(plan $memory "$@" --recompute=$recompute) |"
        done
        grep -qxF "$row" "$page" || fail "docs/guides/cuda.md lacks: $row"
    done
}
row 'golf 17M' golf_baseline
row 'GPT-2 124M' train_gpt2
row 'GPT-2 350M' train_gpt2 --n_layer=24 --n_head=16 --n_embd=1024
row 'GPT-2 774M' train_gpt2 --n_layer=36 --n_head=20 --n_embd=1280
row 'GPT-2 1.5B' train_gpt2 --n_layer=48 --n_head=25 --n_embd=1600
