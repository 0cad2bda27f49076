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
    timeout "$(patient 120)" "$source/scripts/$name" --lockstep="$tool" --out="$work/result.json" "$@" \
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

# A process that isn't started by gpu.py's start() may outlive a signal.
! grep -n 'subprocess\.Popen' "$source/scripts/gpu-check" "$source/scripts/gpu-bench" "$source/scripts/gpu-first" >"$work/log" ||
    fail "scripts start processes by other means than start()"

script gpu-check 0 --short
found 'r["complete"] and not r["whole"] and r["gpus"] and "muon.cu" in r["sources"]' \
    '[n for n, x in e.items() if x["outcome"] == "passed"] == ["GPU", "kernels", "starts", "cpu starts", "losses", "gradients", "ranks", "nccl",
       "repeated", "crossing", "evaluation"]' \
    'all(e[n]["outcome"] == "left out" and "--nanogpt is not given" in e[n]["why"] for n in ("torch", "autograd"))' \
    '"cuda" in e["evaluation"]["figures"] and max(e["losses"]["figures"].values()) <= 1e-4'
cp "$work/result.json" "$work/passed.json"

# Starts that take longer than the time are fewer.
python3 -B - "$source/scripts" >"$work/log" 2>&1 <<'X' || fail "starts without time"
import sys, types
sys.path.insert(0, sys.argv[1])
script = {"__name__": "gpu-check"}
exec(open(sys.argv[1] + "/gpu-check").read().replace("sys.exit(main())", ""), script)
script["parts_of"] = lambda out: {"fingerprint": "one"}
for left, rounds in (([90, 60, 5e-9], 3), ([90] * 6, 6), ([0], 1)):
    nothing = types.SimpleNamespace(new_folder=str, run_together=lambda commands: None)
    checks = types.SimpleNamespace(a=types.SimpleNamespace(short=False), dtypes=["float32", "bfloat16"], command=lambda *words: words, tool=nothing,
                                   result=types.SimpleNamespace(left=iter(left).__next__))
    found = script["Checks"].start_together(checks, "cuda", 6)
    assert [f["starts"] for f in found.values()] == [4 * rounds] * 2, (left, found)
X

# Wrong products fail by name, and so does a machine without a GPU.
CUDA_STANDIN_OFF=20000 script gpu-check 1 --short --only=losses,gradients
found 'e["losses"]["outcome"] == e["gradients"]["outcome"] == "failed" and "differ from the CPU" in e["losses"]["why"]' \
    '"is off by" in e["gradients"]["why"] and len(e) == 3'
CUDA_STANDIN_ALGORITHMS=-1 script gpu-check 1 --short --only=starts
found 'e["starts"]["outcome"] == "failed" and "float32: 2 starts have 2 fingerprints" in e["starts"]["why"]'
CUDA_STANDIN_GPUS=none script gpu-check 1 --short
found 'list(e) == ["GPU"] and "shows no GPU" in e["GPU"]["why"]'

# One that has no time left isn't whole.
script gpu-check 0 --minutes=0
found 'r["complete"] and not r["whole"] and all(x["outcome"] == "left out" and "the time is over" in x["why"] for x in e.values())'

# What can't be meant is refused before anything is written, or, of names, at the end.
rm "$work/result.json"
for wrong in --lockstep=none --golf=none --nanogpt=none --libraries="$work:none" --minutes=nan --minutes=-1 --out=/dev/full --out=none/a; do
    script gpu-check 2 "$wrong"
    grep -q "^gpu-check: error: ${wrong%%=*}=" "$work/log" || fail "what is wrong with $wrong"
done
script gpu-bench 2 --llmc=none
[ -c /dev/full ] && [ ! -e "$work/result.json" ] || fail 'a refused command has written'
script gpu-check 2 --short --only=losses,loses
grep -q '^--only=losses,loses: ' "$work/log" || fail 'that a name is wrong'
script gpu-check 1 --kept="$work/none"

# A run that is cut off has what it had.
rm "$work/result.json"
"$source/scripts/gpu-check" --lockstep="$tool" --short --out="$work/result.json" >"$work/log" 2>&1 &
pid=$!
for _ in $(seq "$(patient 600)"); do
    ! grep -qs '"kernels"' "$work/result.json" || break
    sleep 0.1
done
kill -HUP "$pid"
wait "$pid" && code=0 || code=$?
[ $code = 129 ] || fail "a run that is asked to end ends with $code"
found 'not r["complete"] and "kernels" in e'
[ -z "$(find "$work" -maxdepth 1 -name 'lockstep-gpu-*')" ] || fail 'its folder is left'

# A script that isn't there, isn't as it was, or fails, is left out with the reason.
cat >"$work/train_gpt.py" <<'SCRIPT'
import os
for step in range(1, int(os.environ["ITERATIONS"]) + 1):
    print(f"step:{step}/9 train_loss:4.1 train_time:{step * 1e9}ms step_avg:1.00ms", flush=True)
SCRIPT
mkdir "$work/nanogpt"
echo 'raise SystemExit("CUDA is required")' >"$work/nanogpt/train.py"
touch "$work/nanogpt/model.py" "$work/nanogpt/configurator.py"
script gpu-bench 0 --short --golf="$work/train_gpt.py" --nanogpt="$work/nanogpt"
found 'r["complete"] and not r["whole"] and all(x["outcome"] == "passed" for x in e.values())' \
    'e["peak"]["figures"]["copies_gb_s"] > 0 and e["peak"]["figures"]["products_fp32_gflop_s"] > 0' \
    'all(len(of[name]["tokens_per_s"]) == 2 for of in (golf, gpt2) for name in ("lockstep", "lockstep, one virtual rank"))' \
    'golf["ratio to train_gpt.py"]["figure"] > 1 and "ratio to llm.c" not in gpt2' \
    '"0 times enable_cudnn_sdp(False)" in golf["left out"]["train_gpt.py with cuDNN\x27s attention"]' \
    '"CUDA is required" in gpt2["left out"]["nanoGPT\x27s train.py"] and gpt2["left out"]["llm.c"] == "--llmc is not given"' \
    '"muon" in e["float32 operations, golf"]["figures"] and "layernorm" in e["float32 operations, gpt2"]["figures"]'

# All of gpu-bench, with programs that only print, lockstep too. uses N: N MiB of the GPU's memory until they have been seen.
mkdir "$work/bin"
cat >"$work/bin/nvidia-smi" <<SCRIPT
#!/bin/sh
cat "$work/memory" && echo >>"$work/asked"
SCRIPT
cat >"$work/bin/uses" <<SCRIPT
#!/bin/sh
echo "\$1" >"$work/memory.new" && mv "$work/memory.new" "$work/memory"
asked=\$(wc -l <"$work/asked")
while [ "\$(wc -l <"$work/asked")" -lt \$((asked + 2)) ]; do sleep 0.05; done
echo 0 >"$work/memory.new" && mv "$work/memory.new" "$work/memory"
SCRIPT
cat >"$work/bin/lockstep" <<'SCRIPT'
#!/bin/sh
case "$1 $2" in
info*) echo 'device       cuda:0: a GPU' ;;
'bench peak') echo 'copies of 3000.0 GB/s, products in bf16 of 600000.0 GFLOP/s' ;;
'bench kernels') for i in 1 2 3 4 5 6 7 8 9 10; do echo "op $i 1.0 us 1.0 GB/s 1.0 GFLOP/s 5% of copies off by 1e-7"; done ;;
train*)
    case "$*" in
    *family=golf*accumulation_steps=16*virtual_ranks=1*) ms=760 ;;
    *family=golf*accumulation_steps=16*) ms=800 ;;
    *family=golf*accumulation_steps=32*) ms=900 ;;
    *family=golf*) uses 5000 && ms=1000 ;;
    *) ms=500 ;;
    esac
    for i in 1 2 3 4 5 6 7 8 9 10; do
        case "$*" in
        *family=golf*) echo "step:$i/11 train_loss:4.1 train_time:$((i * ms))ms" ;;
        *) echo "iter $i: loss 4.1, time $ms.00ms" ;;
        esac
    done
    sleep 60 ;;
esac
SCRIPT
cat >"$work/train_gpt.py" <<'SCRIPT'
import subprocess
import time
enable_cudnn_sdp = enable_flash_sdp = bool
cudnn = enable_cudnn_sdp(False) and not enable_flash_sdp(True)
if not cudnn:
    subprocess.run(["uses", "10000"], check=True)
for step in range(1, 11):
    print(f"step:{step}/11 train_loss:4.1 train_time:{step * (840 if cudnn else 1040)}ms step_avg:1.00ms", flush=True)
time.sleep(60)
SCRIPT
cat >"$work/train_gpt2cu" <<'SCRIPT'
#!/bin/sh
case "$*" in *"-b 24 -t 1024 -d 98304 "*) ms=530 ;; *"-t 1024 -d 98304 "*) ms=600 ;; esac
{ # a program that keeps its lines until it ends, as llm.c's
    for i in 1 2 3 4 5 6 7 8 9 10; do
        echo "step    $i/11 | loss 10.9 (+nanz)| norm 1.0 (+nanz)| lr 6.00e-04 | $ms.00 ms | 1.0% bf16 MFU | 5 tok/s"
    done
    sleep 60
} | cut -c1-200
SCRIPT
cat >"$work/nanogpt/train.py" <<'SCRIPT'
import time
for i in range(10):
    print(f"iter {i}: loss 10.9, time 700.00ms, mfu 1.00%", flush=True)
time.sleep(60)
SCRIPT
chmod +x "$work"/bin/* "$work/train_gpt2cu"
echo 0 >"$work/memory"
: >"$work/asked"
PATH="$work/bin:$PATH" tool="$work/bin/lockstep" script gpu-bench 0 --golf="$work/train_gpt.py" --nanogpt="$work/nanogpt" \
    --llmc="$work/train_gpt2cu"
found 'r["complete"] and r["whole"] and all(x["outcome"] == "passed" for x in e.values()) and "left out" not in {**golf, **gpt2}' \
    'golf["ratio to train_gpt.py"] == {"figure": 1.3, "target": "at least 1.25", "met": True}' \
    'golf["ratio to train_gpt.py with cuDNN\x27s attention"] == {"figure": 1.05, "target": "at least 1.1", "met": False}' \
    'gpt2["ratio to nanoGPT\x27s train.py"] == {"figure": 1.4, "target": "at least 1.25", "met": True}' \
    'gpt2["ratio to llm.c"] == {"figure": 1.06, "target": "at least 1.08", "met": False}' \
    'golf["cost of equal bits"] == {"figure": 0.0526, "target": "at most 0.03", "met": False} and gpt2["cost of equal bits"]["met"]' \
    'golf["memory of lockstep, 64 sequences, ratio to train_gpt.py"] == {"figure": 0.5, "target": "at most 0.55", "met": True}' \
    'golf["GB of lockstep, 64 sequences"] == {"figure": 5.2429, "target": "at most 16", "met": True}' \
    'golf["first step, ratio to train_gpt.py"]["target"] == "at most 0.05" and "lockstep, 32 sequences" in golf'

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
kept 3 'r["sources"]["muon.cu"] = "0"'
grep -qx 'src/compute/cuda/kernels/muon.cu: changed since the last GPU ran it, .*' "$work/log" || fail 'which source is stale'
# Sources that move, with other includes, guards, comments and line breaks, are the same; other code isn't.
kept 0 ''
python3 -B - "$source" "$work" >"$work/log" 2>&1 <<'X' || fail "sources that move or change"
import os, shutil, sys
source, work = sys.argv[1:]
sys.path.insert(0, source + "/scripts")
import gpu
old, new = source + "/src/compute/cuda", work + "/tree/src/other/cuda"
shutil.copytree(old, new)
gpu.ROOT = work + "/tree"
kept, path = work + "/kept", new + "/kernels/epilogue.h"
sound = open(path).read()
for change in (lambda t: "/* Another\n * comment. */\n" + t, lambda t: t.replace("#include \"", "#include \"other/"),
               lambda t: t.replace("_EPILOGUE_H", "_KERNELS_H"), lambda t: t.replace(", ", ",\n    ").replace("#define", "# define")):
    assert change(sound) != sound
    open(path, "w").write(change(sound))
    assert gpu.unshown(kept) == [], gpu.unshown(kept)
for now, then in (("+", "-"), ("{", "{;"), ("#define", "#undef"), ("LKS_", "LKT_")):
    assert now in sound
    open(path, "w").write(sound.replace(now, then, 1))
    found = gpu.unshown(kept)
    assert len(found) == 1 and found[0].startswith("src/other/cuda/kernels/epilogue.h: changed since"), (then, found)
assert gpu.code_hash('f("a  b");') != gpu.code_hash('f("a b");') and gpu.code_hash("a - -b") != gpu.code_hash("a --b")
assert gpu.code_hash("#define A b\nc") != gpu.code_hash("#define A b c") and gpu.code_hash('"//"; a') != gpu.code_hash('"//"; b')
open(path, "w").write(sound)
shutil.copy(path, work + "/tree/src/other/cuda")
try:
    gpu.unshown(kept)
    assert False
except ValueError as e:
    assert "there may be only one" in str(e)
X
for edit in 'r["entries"][1]["outcome"] = "failed"' 'r["whole"] = False' 'r["complete"] = False' 'r["what"] = "gpu-bench"'; do
    kept 3 "$edit"
    grep -q '^no whole gpu-check in ' "$work/log" || fail "what $edit says"
done
kept 1 'r["gpus"] = ["cuda:0: Stand-in"]'
kept 1 'del r["entries"]'
