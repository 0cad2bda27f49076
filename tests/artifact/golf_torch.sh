#!/bin/sh
# parameter-golf's own functions give our model files the val_bpb that we print: golf_eval.py.
# golf_torch.sh TOOL. Exit code 77: there is no PyTorch, or no train_gpt.py.
set -eu
here=${0%/*}
. "$here/../support.sh"
tool=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for python in "${LOCKSTEP_TEST_PYTHON-}" python3; do
    [ -z "$python" ] || ! "$python" -c 'import torch, sentencepiece' 2>/dev/null || break
    python=
done
[ -n "$python" ] || lacks pytorch 'no Python has it and sentencepiece (LOCKSTEP_TEST_PYTHON names one)'
[ -e "${LOCKSTEP_TEST_GOLF-}" ] || lacks golf-script 'LOCKSTEP_TEST_GOLF names no train_gpt.py'

export DATA_PATH="$work/data" TOKENIZER_PATH="$work/data/sp.model" VOCAB_SIZE=512 NUM_LAYERS=2 \
    MODEL_DIM=144 NUM_HEADS=2 NUM_KV_HEADS=1 TRAIN_SEQ_LEN=64 TRAIN_BATCH_TOKENS=1024 \
    VAL_BATCH_SIZE=8192 ITERATIONS=2
cat "$here"/*.c >"$work/text"
"$tool" prep sentencepiece --input="$work/text" --out="$work/data" --vocab_size=512 >"$work/log" 2>&1 &&
    "$tool" train "$here/../../config/golf_baseline.conf" --out_dir="$work/run" >>"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
}
ours=$(sed -n 's/.*final_int8_zlib_roundtrip_exact //p' "$work/log")
theirs=$("$python" "$here/golf_eval.py" "$LOCKSTEP_TEST_GOLF" "$TOKENIZER_PATH" "$DATA_PATH" \
    "$work/run/final_model.int8.ptz")
echo "lockstep:     $ours"
echo "train_gpt.py: $theirs"
# val_loss and val_bpb, each within 1e-5: the sums are of fp32 in another order
echo "$ours $theirs" | sed 's/[a-z_]*://g' | awk '
    { for (i = 1; i <= 2; i++) if (NF != 4 || $i - $(i + 2) > 1e-5 || $(i + 2) - $i > 1e-5) exit 1 }'
