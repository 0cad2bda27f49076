#!/bin/sh
# parameter-golf's own functions give our model files the val_bpb that we print: golf_eval.py.
# golf_torch.sh TOOL. Exit code 77: there is no PyTorch, or no train_gpt.py.
set -eu
here=${0%/*}
. "$here/../support.sh"
tool=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
find_python pytorch 'torch, sentencepiece'
[ -e "${LOCKSTEP_TEST_GOLF-}" ] || lacks golf-script 'LOCKSTEP_TEST_GOLF names no train_gpt.py'

export DATA_PATH="$work/data" TOKENIZER_PATH="$work/data/sp.model" VOCAB_SIZE=512 NUM_LAYERS=2 \
    MODEL_DIM=144 NUM_HEADS=2 NUM_KV_HEADS=1 TRAIN_SEQ_LEN=64 TRAIN_BATCH_TOKENS=1024 \
    VAL_BATCH_SIZE=8192 ITERATIONS=2 MAX_WALLCLOCK_SECONDS=0
cat "$here"/*.c >"$work/text"
"$tool" prep sentencepiece --input="$work/text" --out="$work/data" --vocab_size=512 >"$work/log" 2>&1 &&
    "$tool" train "$here/../../config/golf_baseline.conf" --out_dir="$work/run" >>"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
}
# check WHAT OURS THEIRS: val_loss and val_bpb, each within 1e-5, as the sums are of fp32 in another order.
check() {
    echo "$1: lockstep $2, train_gpt.py $3"
    echo "$2 $3" | sed 's/[a-z_]*://g' | awk '
        { for (i = 1; i <= 2; i++) if (NF != 4 || $i - $(i + 2) > 1e-5 || $(i + 2) - $i > 1e-5) exit 1 }'
}
theirs() {
    "$python" "$here/golf_eval.py" "$LOCKSTEP_TEST_GOLF" "$TOKENIZER_PATH" "$DATA_PATH" "$@"
}
ours=$(sed -n 's/.*final_int8_zlib_roundtrip_exact //p' "$work/log")
check artifact "$ours" "$(theirs "$work/run/final_model.int8.ptz")"

"$tool" export --format=golf --out_dir="$work/run" --out="$work/final_model.pt" >>"$work/log" 2>&1
ours=$(sed -n 's/.*"kind":"final".*"val_loss":\([0-9.]*\),"val_bpb":\([0-9.]*\).*/\1 \2/p' "$work/run/metrics.jsonl")
check 'raw model' "$ours" "$(theirs "$work/final_model.pt" "$work/script.ptz")"

# The script's own artifact of that model holds the weights that ours does.
begin() {
    "$tool" train "$here/../../config/golf_baseline.conf" --out_dir="$work/begin" --init_from="$1" --iterations=0 >>"$work/log" 2>&1 || {
        cat "$work/log"
        exit 1
    }
    sed -n 's/.*"kind":"config".*"init_hash":"\([0-9a-f]*\)".*/\1/p' "$work/begin/metrics.jsonl"
}
ours=$(begin "$work/run/final_model.int8.ptz")
theirs=$(begin "$work/script.ptz")
echo "weights of the artifacts: $ours, $theirs"
[ -n "$ours" ] && [ "$ours" = "$theirs" ]

# The same with other tensors that stay fp32; a run that keeps the default ones has other weights.
export INT8_KEEP_FLOAT_FP32_NAME_PATTERNS=mlp.fc,1.attn,q_gain
"$tool" train "$here/../../config/golf_baseline.conf" --out_dir="$work/parts" >>"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
}
theirs "$work/final_model.pt" "$work/script.ptz" >>"$work/log"
other=$(begin "$work/parts/final_model.int8.ptz")
theirs=$(begin "$work/script.ptz")
echo "with other parts of names: $other, $theirs"
[ -n "$other" ] && [ "$other" = "$theirs" ] && [ "$other" != "$ours" ]
