#!/bin/sh
# The hashes in leaves.bin, computed again by leaf_hash.py from gradients that a checkpoint holds. leaf_hash.sh TOOL
set -eu
. "${0%/*}/../support.sh"
tool=$1
work_folder
python3 -c 'import random; r = random.Random(1); open("'"$work"'/text", "w").write("".join(r.choice("abcdefgh \n") for _ in range(20000)))'
"$tool" prep char --input="$work/text" --out="$work/data" >"$work/log" 2>&1 || fail 'prep'
python3 - "$work/golf" <<'END'
import os, struct, sys
os.mkdir(sys.argv[1])
for split, n in (("train", 20000), ("val", 257)):
    with open(f"{sys.argv[1]}/fineweb_{split}_000000.bin", "wb") as f:
        f.write(struct.pack("<256i", 20240520, 1, n, *([0] * 253)) + struct.pack(f"<{n}H", *(i * i // 7 % 96 for i in range(n))))
END

# check SUFFIX N SETTINGS...: one step on one virtual rank, after which the moments are its mean gradient.
check() {
    suffix=$1 n=$2
    shift 2
    rm -rf "$work/run"
    "$tool" train --out_dir="$work/run" --virtual_ranks=1 --gradient_accumulation_steps="$n" --eval_interval=0 --grad_clip=0 \
        --checkpoint_interval=1 --block_size=32 --threads=2 "$@" >"$work/log" 2>&1 || fail "train $*"
    PYTHONDONTWRITEBYTECODE=1 python3 "${0%/*}/leaf_hash.py" "$work/run" "$suffix" "$n" >"$work/log" 2>&1 || fail "the hash of $*"
}
gpt() {
    check .exp_avg "$@" --dataset="$work/data" --batch_size=2 --max_iters=0 --beta1=0 --weight_decay=0
}
gpt 1 --n_layer=2 --n_head=2 --n_embd=24 --bias # tensors of 128 to 16,384 bytes
gpt 2 --n_layer=3 --n_head=3 --n_embd=48 --dropout=0.1 --bucket_mb=0.01
gpt 4 --n_layer=1 --n_head=1 --n_embd=80 --freeze=wpe
check .momentum 2 --dataset="$work/golf" --family=golf --sampler=stream --optimizer=sgd --weight_decay=0 --n_layer=2 --n_head=2 --num_kv_heads=1 --n_embd=32 \
    --vocab_size=96 --train_batch_tokens=128 --iterations=1 --warmdown_iters=0 --max_wallclock_seconds=0

# A changed hash is noticed.
printf 'x' | dd of="$work/run/leaves.bin" bs=1 seek=41 conv=notrunc 2>"$work/log"
! python3 "${0%/*}/leaf_hash.py" "$work/run" .momentum 2 >"$work/log" 2>&1 || fail 'a changed hash was accepted'
