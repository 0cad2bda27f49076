#!/bin/sh
# A run that `lockstep watch` follows, and a browser through it, makes no system call of another kind than
# one that nobody looks at, and as many instructions, within 1 %; its numbers are the same. Valgrind counts
# both. watched.sh TOOL
set -eu
. "${0%/*}/../support.sh"
tool=$1
work_folder
command -v valgrind >/dev/null || lacks valgrind 'it is not installed'
export LOCKSTEP_CPU=avx2 # valgrind knows no later instructions
LOCKSTEP_CPU=avx2 "$tool" info >"$work/log" 2>&1 || lacks avx2 "$(cat "$work/log")"
awk 'BEGIN { x = 7; for (i = 0; i < 4000; i++) { x = (x * 75 + 74) % 65537; printf "%s", substr("abcdefghijkl", x % 12 + 1, 1) } }' >"$work/text"
"$tool" prep char --input="$work/text" --out="$work/data" >"$work/log" 2>&1 || fail prep

# train NAME: in the same folder each time. Instructions of steps, evaluations, checkpoints and their records are counted,
# but not those that measure the processor's peak, because the clock ends a measurement.
train() {
    valgrind --tool=callgrind --trace-syscalls=yes --log-file="$work/$1.calls" --callgrind-out-file="$work/$1.out" \
        --toggle-collect=lks__train_step --toggle-collect=lks__report_train --toggle-collect=lks__report_eval \
        --toggle-collect=lks__state_save --toggle-collect=lks__report_checkpoint \
        "$tool" train --dataset="$work/data" --out_dir="$work/run" --n_layer=1 --n_head=2 --n_embd=16 --block_size=16 --batch_size=2 \
        --gradient_accumulation_steps=2 --max_iters=12 --eval_interval=4 --eval_iters=1 --threads=1 >"$work/$1.log" 2>&1 ||
        fail "the run under valgrind ($1)"
    grep -v '"kind":"host"' "$work/run/metrics.jsonl" | sed -E 's/,"(ms|tok_per_s|mfu|comm_exposed_ms)":[^,}]*//g' >"$work/$1.numbers"
    sed -n 's/.*SYSCALL\[[^]]*\]([ 0-9]*) \([a-z_0-9]*\).*/\1/p' "$work/$1.calls" | sort -u >"$work/$1.kinds"
    awk '/fn=/ && $2 == "lks__peak_avx2" { peak = $1; sub("cfn", "fn", peak) } # a name is given once, then its number
        /^fn=/ { measures = $1 == peak }
        /^calls=/ { getline; next }
        /^[-+*0-9]/ && !measures { n += $2 }
        END { print n }' "$work/$1.out" >"$work/$1.count"
}

train alone
rm -rf "$work/run"
train watched &
run=$!
tries=0
until grep -q '"kind":"train"' "$work/run/metrics.jsonl" 2>/dev/null; do
    tries=$((tries + 1))
    [ $tries -lt "$(patient 1200)" ] || fail 'no step'
    sleep 0.05
done
"$tool" watch --port=0 "$work/run" >"$work/url" 2>"$work/watch.log" &
watch=$!
answered() { [ -s "$work/url" ] || grep -q "can't serve the page" "$work/watch.log"; }
await 'no page' answered
[ -s "$work/url" ] || { wait $run; lacks libmicrohttpd libmicrohttpd-dev; }
python3 -c 'import sys, urllib.request
for line in urllib.request.urlopen(sys.argv[1] + "events"):
    sys.stdout.write(line.decode())
    sys.stdout.flush()' "$(cat "$work/url")" >"$work/seen" 2>"$work/client.log" &
client=$!
wait $run || fail 'the watched run'
await 'the page has not got the last step' grep -q '\[12,' "$work/seen" # all of it was seen
kill $client $watch
[ "$(wc -l <"$work/alone.kinds")" -gt 10 ] || fail 'no system calls were seen'
diff "$work/alone.kinds" "$work/watched.kinds" >"$work/log" || fail 'a watched run makes system calls of another kind'
cmp "$work/alone.numbers" "$work/watched.numbers" || fail 'a watched run has other numbers'
awk -v a="$(cat "$work/alone.count")" -v b="$(cat "$work/watched.count")" 'BEGIN {
    printf "%d and %d instructions, alone and watched: %.5f times; ", a, b, b / a
    exit !(a > 1000000 && b / a < 1.01 && b / a > 0.99) }' || fail instructions
echo "$(wc -l <"$work/alone.kinds") kinds of system calls, the same"
