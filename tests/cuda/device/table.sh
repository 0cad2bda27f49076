#!/bin/sh
# The table of docs/cuda.md is what `lockstep plan --device=cuda` says. table.sh TOOL PAGE
set -eu
. "$(dirname "$0")/../../support.sh"
tool=$1 page=$2
cd "$(dirname "$page")/.."
plan() { # MEMORY CONFIG SETTINGS...: "BATCH: GB"
    memory=$1 config=$2
    shift 2
    "$tool" plan "config/$config.conf" --device=cuda --memory="$memory" --batch_size=auto "$@" 2>&1 | awk '
        /^batch_size=auto:/ { batch = $2 + 0 }
        /^a rank.s GPU:/ { gb = $4 / (($5 ~ /^GB/) ? 1 : 1000) }
        END { if (batch == 0) print "–"; else printf "%d: %.1f", batch, gb }'
}
row() { # MODEL CONFIG SETTINGS...
    model=$1
    shift
    for recompute in none block; do
        row="| $model | $recompute |"
        for memory in 16G 24G 80G; do
            row="$row $(plan $memory "$@" --recompute=$recompute) |"
        done
        grep -qxF "$row" "$page" || fail "docs/cuda.md lacks: $row"
    done
}
row 'golf 17M' golf_baseline
row 'GPT-2 124M' train_gpt2
row 'GPT-2 350M' train_gpt2 --n_layer=24 --n_head=16 --n_embd=1024
row 'GPT-2 774M' train_gpt2 --n_layer=36 --n_head=20 --n_embd=1280
row 'GPT-2 1.5B' train_gpt2 --n_layer=48 --n_head=25 --n_embd=1600
