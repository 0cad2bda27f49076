#!/bin/sh
# nanoGPT goes on with what `lockstep export --format=nanogpt` writes, and its sample.py loads it.
# nanogpt_torch.sh TOOL. Exit code 77: there is no PyTorch, or no checkout of nanoGPT.
set -eu
here=$(cd "${0%/*}" && pwd)
. "$here/../support.sh"
tool=$1
work_folder
find_python pytorch 'torch, numpy'
nanogpt=${LOCKSTEP_TEST_NANOGPT-}
[ -e "$nanogpt/model.py" ] || lacks nanogpt 'LOCKSTEP_TEST_NANOGPT names no checkout of it'

mkdir "$work/data"
# Not of this repository, whose changes would change the run.
seq 1 4000 | sed "s/\$/ apples and pears/" >"$work/text"
settings='batch_size=4 gradient_accumulation_steps=2 learning_rate=1e-2 min_lr=1e-3 warmup_iters=3
    lr_decay_iters=20 grad_clip=1.0 seed=1337'
given=$(printf -- ' --%s' $settings)
train() {
    # shellcheck disable=SC2086 # a list of settings
    "$tool" train --dataset="$work/data" --out_dir="$work/run" --sampler=nanogpt --virtual_ranks=1 \
        --n_layer=2 --n_head=2 --n_embd=32 --block_size=16 --bias=true --eval_interval=0 --beta2=0.95 \
        --log_interval=1 $given "$@" >>"$work/log" 2>&1 || fail "train $*"
}
"$tool" prep char --input="$work/text" --out="$work/data" >"$work/log" 2>&1 || fail prep
train --max_iters=5
"$tool" export --format=nanogpt --out_dir="$work/run" --out="$work/ckpt.pt" >>"$work/log" 2>&1 || fail export
train --max_iters=13 --init_from=resume
# shellcheck disable=SC2086
"$python" "$here/nanogpt_resume.py" "$nanogpt" "$work/ckpt.pt" "$work/data" 14 $settings | grep "^[0-9]" >"$work/theirs"
sed -n 's/.*"kind":"train","iter":\([0-9]*\),"loss":\([-0-9.e]*\),.*/\1 \2/p' "$work/run/metrics.jsonl" >"$work/ours"
awk 'NR == FNR { ours[$1] = $2; next }
    { n++; if (!($1 in ours) || $2 - ours[$1] > 1e-5 || ours[$1] - $2 > 1e-5) { print "iteration " $1 ": " $2 ", not " ours[$1]; bad = 1 } }
    END { print n " losses of nanoGPT beside ours"; exit bad || n != 8 }' "$work/ours" "$work/theirs"

mkdir "$work/out"
cp "$work/ckpt.pt" "$work/out/"
if "$python" -c 'import tiktoken' 2>/dev/null; then
    cp "$nanogpt"/*.py "$work/"
    mkdir -p "$work/data/text"
    "$python" - "$work" <<'END'
import json, pickle, sys
with open(sys.argv[1] + "/data/meta.json", encoding="utf-8") as f:
    chars = json.load(f)["chars"]
with open(sys.argv[1] + "/data/text/meta.pkl", "wb") as f:
    pickle.dump({"vocab_size": len(chars), "stoi": {c: i for i, c in enumerate(chars)}, "itos": dict(enumerate(chars))}, f)
END
    "$tool" export --format=nanogpt --out_dir="$work/run" --out="$work/out/ckpt.pt" --dataset=text >>"$work/log" 2>&1 || fail 'export for a dataset'
    (cd "$work" && "$python" sample.py --out_dir=out --device=cpu --dtype=float32 --num_samples=1 --max_new_tokens=20) >"$work/sample.log" 2>&1 ||
        fail sample.py
    grep -q 'Loading meta from data/text/meta.pkl' "$work/sample.log" || fail 'sample.py reads another vocabulary'
    echo "sample.py wrote $(wc -c <"$work/sample.log") bytes"
fi
