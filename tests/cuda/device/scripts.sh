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

# found EXPRESSION...: of `r`, the result, `e`, its entries by their names, and `golf` and `gpt2`, figures of gpu-bench.
found() {
    python3 -c '
import json, sys
r = json.load(open(sys.argv[1]))
e = {x["name"]: x for x in r["entries"]}
golf, gpt2 = (e.get("whole steps, " + family, {}).get("figures") for family in ("golf", "gpt2"))
for text in sys.argv[2:]:
    assert eval(text), (text, r["entries"])' "$work/result.json" "$@" 2>>"$work/log" || fail "not so: $*"
}

script gpu-check 0
found 'r["complete"] and not r["whole"] and r["gpus"] and "src/device/cuda/muon.cu" in r["sources"]' \
    '[n for n, x in e.items() if x["outcome"] == "passed"] == ["GPU", "kernels", "losses", "gradients", "ranks", "nccl", "repeated",
       "crossing", "evaluation"]' \
    'all(e[n]["outcome"] == "left out" and "--nanogpt is not given" in e[n]["why"] for n in ("torch", "autograd"))' \
    '"cuda" in e["evaluation"]["figures"] and max(e["losses"]["figures"].values()) <= 1e-4'
cp "$work/result.json" "$work/passed.json"

# Wrong products fail by name, and so does a machine without a GPU.
CUDA_STANDIN_OFF=20000 script gpu-check 1 --only=losses,gradients
found 'e["losses"]["outcome"] == e["gradients"]["outcome"] == "failed" and "differ from the CPU" in e["losses"]["why"]' \
    '"is off by" in e["gradients"]["why"] and len(e) == 3'
CUDA_STANDIN_GPUS=none script gpu-check 1
found 'list(e) == ["GPU"] and "shows no GPU" in e["GPU"]["why"]'

# One that has no time left isn't whole.
"$source/scripts/gpu-check" --lockstep="$tool" --minutes=0 --out="$work/result.json" >"$work/log" 2>&1 || fail 'no time is a failure'
found 'r["complete"] and not r["whole"] and all(x["outcome"] == "left out" and "the time is over" in x["why"] for x in e.values())'

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

# Programs that pretend to train, and a GPU that has more memory in use each time that it is asked.
mkdir "$work/nanogpt" "$work/bin"
cat >"$work/train_gpt.py" <<'SCRIPT'
import os
import time
enable_cudnn_sdp = enable_flash_sdp = bool
attention = "flash"
if enable_cudnn_sdp(False) and not enable_flash_sdp(True):
    attention = "cuDNN"
time.sleep(0.4)
for step in range(1, int(os.environ["ITERATIONS"]) + 1):
    print(f"step:{step}/9 train_loss:4.1 train_time:{step * (1e9 if attention == 'flash' else 0.001)}ms step_avg:1.00ms", flush=True)
SCRIPT
cat >"$work/train_gpt2cu" <<'SCRIPT'
#!/bin/sh
case "$*" in *"-b 2 -t 8 -d 16 "*) ;; *) echo "options: $*" && exit 1 ;; esac
for step in 1 2 3 4; do echo "step    $step/5 | loss 10.9 (+nanz)| norm 1.0 (+nanz)| lr 6.00e-04 | 1000000.00 ms | 1.0% bf16 MFU | 5 tok/s"; done
sleep 60
SCRIPT
cat >"$work/bin/nvidia-smi" <<SCRIPT
#!/bin/sh
echo 100 >>"$work/asked"
wc -l <"$work/asked"
SCRIPT
chmod +x "$work/train_gpt2cu" "$work/bin/nvidia-smi"
echo 'raise SystemExit("CUDA is required")' >"$work/nanogpt/train.py"
touch "$work/nanogpt/model.py" "$work/nanogpt/configurator.py"

# Their lines are read; one that isn't there, or fails, is left out with what it says. A target beside a figure is met or not.
PATH="$work/bin:$PATH" script gpu-bench 0 --golf="$work/train_gpt.py" --nanogpt="$work/nanogpt" --llmc="$work/train_gpt2cu"
found 'r["complete"] and all(x["outcome"] == "passed" for x in e.values())' \
    'e["peak"]["figures"]["copies_gb_s"] > 0 and e["peak"]["figures"]["products_fp32_gflop_s"] > 0' \
    'set(golf) == {"lockstep", "lockstep, one virtual rank", "train_gpt.py", "train_gpt.py with cuDNN\x27s attention",
       "ratio to train_gpt.py", "ratio to train_gpt.py with cuDNN\x27s attention", "cost of equal bits", "GB of lockstep",
       "first step, ratio to train_gpt.py", "memory of lockstep, ratio to train_gpt.py"}' \
    'set(gpt2) == {"lockstep", "lockstep, one virtual rank", "llm.c", "ratio to llm.c", "cost of equal bits", "left out"}' \
    'all(len(side["tokens_per_s"]) == 2 for side in [*golf.values(), *gpt2.values()] if "tokens_per_s" in side)' \
    'golf["ratio to train_gpt.py"]["met"] and gpt2["ratio to llm.c"]["met"] and golf["GB of lockstep"]["met"]' \
    'not golf["ratio to train_gpt.py with cuDNN\x27s attention"]["met"]' \
    'gpt2["ratio to llm.c"]["target"] == "at least 1.08" and golf["cost of equal bits"]["target"] == "at most 0.03"' \
    '"CUDA is required" in gpt2["left out"]["nanoGPT\x27s train.py"]' \
    '"muon" in e["operations, golf, float32"]["figures"] and "layernorm" in e["operations, gpt2, float32"]["figures"]'

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
