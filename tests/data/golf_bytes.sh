#!/bin/sh
# `prep bytes` writes the shards of parameter-golf's own data script, byte for byte: golf_bytes.py.
# golf_bytes.sh TOOL. Exit code 77: there is no NumPy, or no parameter-golf.
set -eu
here=${0%/*}
. "$here/../support.sh"
tool=$1
work_folder
find_python numpy numpy
golf=${LOCKSTEP_TEST_GOLF-none/train_gpt.py}
script=${golf%/*}/data/download_hf_docs_and_tokenize.py
[ -e "$script" ] || lacks golf-data "LOCKSTEP_TEST_GOLF names no train_gpt.py with data/ beside it"

"$python" "$here/golf_bytes.py" "$script" "$work" >"$work/log" 2>&1 || fail 'the script ends with an error'
"$tool" prep bytes --input="$work/docs_selected.jsonl" --out="$work/ours" --num_val_docs=7 --shards=1000 \
    >>"$work/log" 2>&1 || fail 'prep bytes ends with an error'
for theirs in "$work"/theirs/*.bin; do
    cmp "$theirs" "$work/ours/${theirs##*/}" || fail "${theirs##*/} is another file"
done
n=$(ls "$work"/theirs | wc -l)
[ "$n" -gt 3 ] && [ "$(ls "$work"/ours | wc -l)" -eq $((n + 1)) ] || fail 'the folders have other files'
echo "$n shards are the same"
DATA_PATH="$work/theirs" TOKENIZER_PATH="$work/tokenizer.json" VOCAB_SIZE=260 NUM_LAYERS=1 MODEL_DIM=16 NUM_HEADS=1 \
    NUM_KV_HEADS=1 TRAIN_SEQ_LEN=16 TRAIN_BATCH_TOKENS=128 VAL_BATCH_SIZE=512 ITERATIONS=1 MAX_WALLCLOCK_SECONDS=0 \
    "$tool" train --family=golf --out_dir="$work/out" >>"$work/log" 2>&1 || fail 'no run on the shards of the script'
grep -q 'tokenizer_kind=byte' "$work/log" && grep -q 'val_bpb:[0-9]' "$work/log" || fail 'there is no val_bpb'
