#!/bin/sh
# scripts/gpu-check and gpu-bench on stand-ins, in their short form: what they find, what they leave out, what is left
# of a run that is cut off, and of which sources a kept result speaks. argv: SOURCE, lockstep_cuda_standin.
set -eu
. "$(dirname "$0")/../../support.sh"
source=$1 tool=$2
work_folder
export TMPDIR="$work"

# script NAME STATUS OPTIONS...: run it into $work/result.json.
script() {
    name=$1 want=$2
    shift 2
    timeout "$(patient 120)" "$source/scripts/$name" --lockstep="$tool" --short --out="$work/result.json" "$@" \
        >"$work/log" 2>&1 && code=0 || code=$?
    [ "$code" = "$want" ] || fail "$name $* ends with $code"
}

# found EXPRESSION: of `r`, the result, and `e`, its entries by their names.
found() {
    python3 -c '
import json, sys
r = json.load(open(sys.argv[1]))
e = {x["name"]: x for x in r["entries"]}
assert eval(sys.argv[2]), (sys.argv[2], r)' "$work/result.json" "$1" 2>>"$work/log" || fail "not so: $1"
}

script gpu-check 0
found 'r["complete"] and not r["whole"] and r["gpus"] and "src/device/cuda/muon.cu" in r["sources"]'
found '[n for n, x in e.items() if x["outcome"] == "passed"] == ["GPU", "kernels", "losses", "gradients", "ranks", "nccl", "repeated",
       "crossing", "evaluation"]'
found 'e["torch"]["outcome"] == "left out" and "--nanogpt is not given" in e["torch"]["why"]'
found '"cuda" in e["evaluation"]["figures"] and max(e["losses"]["figures"].values()) <= 1e-4'
cp "$work/result.json" "$work/passed.json"

# Wrong products fail by name, and so does a machine without a GPU.
CUDA_STANDIN_OFF=20000 script gpu-check 1 --only=losses,gradients
found 'e["losses"]["outcome"] == e["gradients"]["outcome"] == "failed" and "differ from the CPU" in e["losses"]["why"]'
found '"is off by" in e["gradients"]["why"] and len(e) == 3'
CUDA_STANDIN_GPUS=none script gpu-check 1
found 'list(e) == ["GPU"] and "shows no GPU" in e["GPU"]["why"]'

# A run that is cut off has what it had.
rm "$work/result.json"
"$source/scripts/gpu-check" --lockstep="$tool" --short --out="$work/result.json" >"$work/log" 2>&1 &
pid=$!
for _ in $(seq "$(patient 600)"); do
    ! grep -qs '"kernels"' "$work/result.json" || break
    sleep 0.1
done
kill "$pid"
wait "$pid" && code=0 || code=$?
[ $code = 143 ] || fail "a run that is asked to end ends with $code"
found 'not r["complete"] and "kernels" in e'
[ -z "$(find "$work" -maxdepth 1 -name 'lockstep-gpu-*')" ] || fail 'its folder is left'

# Of a script that trains, its lines are read; one that isn't there, or fails, is left out with what it says.
cat >"$work/train_gpt.py" <<'SCRIPT'
import os
print("compiling")
for step in range(1, int(os.environ["ITERATIONS"]) + 1):
    print(f"step:{step}/9 train_loss:4.1 train_time:{step * 1e9}ms step_avg:1.00ms", flush=True)
SCRIPT
mkdir "$work/nanogpt"
echo 'raise SystemExit("CUDA is required")' >"$work/nanogpt/train.py"
touch "$work/nanogpt/model.py" "$work/nanogpt/configurator.py"
script gpu-bench 0 --golf="$work/train_gpt.py" --nanogpt="$work/nanogpt"
found 'r["complete"] and all(x["outcome"] == "passed" for x in e.values())'
found 'e["peak"]["figures"]["copies_gb_s"] > 0 and e["peak"]["figures"]["products_fp32_gflop_s"] > 0'
found 'e["whole steps, golf"]["figures"]["ratio to train_gpt.py"] > 1'
found 'len(e["whole steps, golf"]["figures"]["train_gpt.py"]["tokens_per_s"]) == 2'
found '"CUDA is required" in e["whole steps, gpt2"]["figures"]["left out"]'
found 'len(e["whole steps, gpt2"]["figures"]["lockstep"]["tokens_per_s"]) == 2'
found '"muon" in e["operations, golf, float32"]["figures"] and "layernorm" in e["operations, gpt2, float32"]["figures"]'

# kept STATUS EDIT: a result changed so, as the only one that is kept.
kept() {
    mkdir -p "$work/kept"
    python3 -c '
import json, sys
r = json.load(open(sys.argv[1]))
r.update(gpus=["cuda:0: a GPU"], whole=True)
exec(sys.argv[3])
json.dump(r, open(sys.argv[2], "w"))' "$work/passed.json" "$work/kept/a.json" "$2"
    "$source/scripts/gpu-check" --kept="$work/kept" >"$work/log" 2>&1 && code=0 || code=$?
    [ "$code" = "$1" ] || fail "gpu-check --kept ends with $code after $2"
}
kept 0 ''
kept 3 'r["sources"]["src/device/cuda/muon.cu"] = "0"'
grep -qx 'src/device/cuda/muon.cu: changed since the last GPU ran it, .*' "$work/log" || fail 'which source is stale'
for edit in 'r["entries"][1]["outcome"] = "failed"' 'r["whole"] = False' 'r["complete"] = False' 'r["what"] = "gpu-bench"'; do
    kept 3 "$edit"
    grep -q '^no GPU has run it' "$work/log" || fail "what $edit says"
done
kept 1 'r["gpus"] = ["cuda:0: Stand-in"]'
kept 1 'del r["entries"]'
