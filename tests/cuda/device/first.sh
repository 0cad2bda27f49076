#!/bin/sh
# scripts/gpu-first on stand-ins, in its short form: each part's entries, what it leaves out, and what a kill leaves.
# argv: SOURCE, lockstep_cuda_standin.
set -eu
. "$(dirname "$0")/../../support.sh"
source=$1 tool=$2
work_folder
export TMPDIR="$work"

# first STATUS OPTIONS...: run it into $work/result.json.
first() {
    want=$1
    shift
    rm -f "$work/result.json"
    timeout "$(patient 120)" "$source/scripts/gpu-first" --lockstep="$tool" --short --out="$work/result.json" "$@" \
        >"$work/log" 2>&1 && code=0 || code=$?
    [ "$code" = "$want" ] || fail "gpu-first $* ends with $code"
}

# found EXPRESSION...: of `r`, the result, `e`, its entries by their names, and `text`, the file.
found() {
    python3 -c '
import json, sys
text = open(sys.argv[1]).read()
r = json.loads(text)
e = {x["name"]: x for x in r["entries"]}
for expression in sys.argv[2:]:
    assert eval(expression), (expression, r["entries"])' "$work/result.json" "$@" 2>>"$work/log" || fail "not so: $*"
}

"$source/scripts/gpu-first" >"$work/log"
[ "$(grep -c '^  --part=[1-5] .* min ' "$work/log")" = 5 ] || fail 'the parts are not listed'

# What the machine lacks is left out with the reason. Predictions come first, on the screen and in the file.
first 0 --part=1
found 'r["complete"] and not r["whole"] and text.index("\"predictions\"") < text.index("\"entries\"")' \
    'list(e) == ["GPU", "starts", "cpu starts", "kernels", "losses", "autograd", "memcheck, heads of 64", "racecheck, heads of 64"]' \
    'all(e[n]["outcome"] == "passed" for n in ("GPU", "starts", "cpu starts", "kernels", "losses"))' \
    'all(e[n]["outcome"] == "left out" for n in ("autograd", "memcheck, heads of 64", "racecheck, heads of 64"))' \
    'e["losses"]["beside predictions"][0]["within"] and e["starts"]["beside predictions"][0]["is"] == 1' \
    'any("id=" in v and "split_k=" in v for p in e["starts"]["figures"]["float32"]["parts"].values() for v in p)' \
    'e["cpu starts"]["figures"]["float32"]["starts"] == 2'
[ "$(sed '/^passed   GPU/q' "$work/log" | grep -c '^         .*: .*: .* (.*)$')" = 14 ] || fail 'predictions do not come first'

# Other algorithms in each process: the parts that differ are named, and the figures stay.
CUDA_STANDIN_ALGORITHMS=-1 first 1 --part=1 --only=starts
found 'e["starts"]["outcome"] == "failed" and "because of: cuBLASLt\x27s algorithms, NT m=8 n=48 k=16 ld=16,16,48" in e["starts"]["why"]' \
    '"CPU" not in e["starts"]["why"] and e["starts"]["figures"]["float32"]["fingerprints"] == 2' \
    'not e["starts"]["beside predictions"][0]["within"] and len(e) == 2'
grep -q '^         float32, fingerprints: 2, predicted 1: NOT as predicted (+100 %)$' "$work/log" || fail 'a missed prediction is not shown'

# With programs that stand in for compute-sanitizer, ncu and PyTorch. ncu's table has products that are measured before
# the step, two steps' beginnings, and names with parentheses.
mkdir "$work/bin"
cat >"$work/bin/compute-sanitizer" <<SCRIPT
#!/bin/sh
echo "\$*" >>"$work/sanitized"
until [ -x "\$1" ]; do shift; done
exec "\$@"
SCRIPT
cat >"$work/bin/ncu" <<'SCRIPT'
#!/bin/sh
log=
for word; do
    [ "$log" != next ] || { log=$word && break; }
    [ "$word" != --log-file ] || log=next
done
head='"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
case "$*" in
*--launch-skip*)
    id=${*#*--launch-skip } id=${id%% *}
    printf '%s\n' '==PROF== Connected' "$head" "\"$id\",\"a kernel\",\"Duration\",\"ns\",\"1,234.5\"" "\"$id\",\"a kernel\",\"\",\"\",\"\"" >"$log"
    exit ;;
*)
    printf '%s\n' '==PROF== Connected' "$head" '"0","gemm(float)","gpu__time_duration.sum","ns","9,000,000"' \
        '"1","void embed_rows<float, (int)4>(float *)","gpu__time_duration.sum","ns","1,000"' \
        '"2","void attention_bwd<(int)4>(a (*)(int))","gpu__time_duration.sum","us","20.5"' \
        '"3","void attention_bwd<(int)4>(a (*)(int))","gpu__time_duration.sum","us","38.5"' \
        '"4","golf_embed_bwd(float *)","gpu__time_duration.sum","ns","40,000"' \
        '"5","void embed_rows<float, (int)4>(float *)","gpu__time_duration.sum","ns","7,000,000"' ;;
esac >"$log"
until [ -x "$1" ]; do shift; done
exec "$@"
SCRIPT
cat >"$work/bin/python" <<'SCRIPT'
#!/bin/sh
echo "$2" | grep -qx '\[\[64, 8, 1024, 64\], \[12, 12, 1024, 64\]\]' || exit 1
echo '{"PyTorch": "2", "flash (64, 8, 1024, 64)": {"forward": 360.0, "backward": 2000.0}, "cuDNN (64, 8, 1024, 64)": {"left out": "none"}}'
SCRIPT
chmod +x "$work"/bin/*
PATH="$work/bin:$PATH" first 0 --part=1 --only=memcheck,racecheck
found 'all(e[n + ", heads of 64"]["figures"] == {"errors": 0} for n in ("memcheck", "racecheck"))'
[ "$(grep -c -e '--tool=memcheck .* train ' "$work/sanitized")" = 2 ] || fail 'memcheck did not see both families'
first 0 --part=2
found 'r["complete"] and all(x["outcome"] == "passed" for x in e.values())' \
    'list(e)[:4] == ["GPU", "peak", "float32 operations, golf", "float32 operations, gpt2"]' \
    'list(e)[4:] == [f"10 steps, {f}{o}" for f in ("golf 64", "gpt2 12", "gpt2 24") for o in ("", ", one virtual rank")]' \
    'all(e[n]["figures"]["ms"] > 0 and e[n]["beside predictions"][0]["is"] > 0 for n in list(e)[4:])'
PATH="$work/bin:$PATH" first 0 --part=3 --python="$work/bin/python"
found 'list(e) == ["GPU", "shares, golf", "shares, gpt2", *(f"details {i}" for i in range(1, 7)), "PyTorch\x27s attention"]' \
    'all(x["outcome"] == "passed" for x in e.values())' \
    'e["shares, gpt2"]["figures"]["ms"] == 0.1 and e["shares, gpt2"]["figures"]["groups"]["attention"] == 0.59' \
    'e["shares, gpt2"]["figures"]["kernels"]["void attention_bwd<(int)4>"]["launch"] == 3' \
    'e["details 1"]["figures"]["launch"] == 3 and e["details 1"]["figures"]["Duration"] == "1,234.5 ns"' \
    'e["details 3"]["figures"]["kernel"] == "golf_embed_bwd" and e["details 6"]["figures"]["launch"] == 1' \
    '[p["within"] for p in e["PyTorch\x27s attention"]["beside predictions"]] == [True, False]'
for part in 4:gpu-check:evaluation 5:gpu-bench:peak; do
    script=${part#*:}
    first 0 --part="${part%%:*}" --only="${script#*:}"
    found "list(e) == ['GPU', '${script#*:}'] and e['${script#*:}']['outcome'] == 'passed'"
    grep -q "\"what\": \"${script%:*}\"" "$work/result-${script%:*}.json" || fail "there is no result of ${script%:*} to keep"
done
first 2 --part=1 --only=losses,loses
CUDA_STANDIN_GPUS=none first 1 --part=2
found 'list(e) == ["GPU"]'

# A part that is killed halfway leaves what it had.
rm -f "$work/result.json"
setsid "$source/scripts/gpu-first" --lockstep="$tool" --short --part=1 --out="$work/result.json" >"$work/log" 2>&1 &
pid=$!
for _ in $(seq "$(patient 600)"); do
    ! grep -qs '"name": "cpu starts"' "$work/result.json" || break
    sleep 0.05
done
kill -KILL "-$pid"
wait "$pid" 2>/dev/null && fail 'it was not killed' || :
found 'not r["complete"] and len(r["predictions"]) == 14 and list(e)[:3] == ["GPU", "starts", "cpu starts"] and "autograd" not in e'
