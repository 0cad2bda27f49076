#!/bin/sh
# nanoGPT's README with our commands, from end to end and without a network: the lines of "Its README,
# command by command" in docs/start/nanogpt.md, with small shapes, few steps, a generated model and vocabulary,
# and paths in the place of names. A line that isn't in the table of run_line() is a failure.
#
#     nanogpt.sh SOURCE TOOL GENERATE_GPT2
set -eu
. "${0%/*}/../support.sh"
source=$1 tool=$2 generate=$3
work_folder
mkdir "$work/bin" "$work/run"
ln -s "$tool" "$work/bin/lockstep"
PATH="$work/bin:$PATH"
text=$work/text err=$work/err # standard output and error of the last command
: >"$text" >"$err"
lockstep info | grep -q 'libzip: ready' || lacks libzip 'its module was not built'
cd "$work/run"

fail() {
    echo "FAILED: $*"
    tail -n 30 "$text" "$err"
    exit 1
}

run() {
    timeout "$(patient 60)" sh -c "$1" >"$text" 2>"$err" </dev/null || fail "exit code $?: $1"
}

# What the reader has: texts, the recipes, and a GPT-2 with its vocabulary.
ln -s "$source/config" config
cat "$source"/docs/*/*.md >input.txt
awk '{ gsub(/[\\"\t]/, " "); printf "{\"text\": \"%s\"}\n", $0 }' input.txt >openwebtext.jsonl
printf 'A run is the same on any number of ranks' >prompt.txt
mkdir models
"$generate" models

small='--n_layer=2 --n_head=2 --n_embd=32 --block_size=32 --batch_size=4'
# The line to run; fails if the line is not in this table.
run_line() {
    case $1 in
    'lockstep prep char '* | 'lockstep export '*) echo "$1" ;;
    'lockstep prep openwebtext '*) # of few documents a larger part
        echo "$1 --val_fraction=0.05" | sed 's,--tokenizer=[^ ]*,--tokenizer=models,' ;;
    'lockstep prep '*) echo "$1" | sed 's,--tokenizer=[^ ]*,--tokenizer=models,' ;;
    'lockstep train config/train_shakespeare_char.conf') echo "$1 $small --max_iters=4 --eval_iters=2" ;;
    'lockstep train config/train_shakespeare_char.conf '*) echo "$1 --max_iters=12 --warmup_iters=12" ;;
    'lockstep train config/train_gpt2.conf --nproc_per_node=8')
        echo "${1%8}2 $small --max_iters=2 --eval_iters=2 --warmup_iters=0" ;;
    'lockstep train config/eval_gpt2'*) echo "$1 --init_from=models --dataset=openwebtext --eval_iters=2" ;;
    'lockstep train config/finetune_shakespeare.conf')
        echo "$1 --init_from=models --eval_iters=8 --max_iters=5 --gradient_accumulation_steps=8 --learning_rate=1e-2" ;;
    'lockstep sample --init_from=gpt2-xl '*)
        echo "$1 --num_samples=2 --max_new_tokens=8" | sed 's,=gpt2-xl,=models,' ;;
    'lockstep sample'*) echo "$1 --num_samples=2 --max_new_tokens=20" ;;
    'lockstep bench step config/train_gpt2.conf') echo "$1 $small --iters=1" ;;
    *) return 1 ;;
    esac
}

# The validation losses of the run in the folder fall.
assert_learns() {
    sed -n 's/.*"kind":"\(eval\|final\)".*"val_loss":\([0-9.]*\).*/\2/p' "$1/metrics.jsonl" >"$work/losses"
    awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(NR > 1 && last < first) }' "$work/losses" ||
        fail "the validation losses of $1: $(tr '\n' ' ' <"$work/losses")"
}

# What must be there after the line.
check_line() {
    case $1 in
    'lockstep prep '*)
        folder=${1#*--out=}
        folder=${folder%% *}
        for file in train.bin val.bin meta.json; do
            [ -s "$folder/$file" ] || fail "no $folder/$file"
        done ;;
    *train_shakespeare_char.conf*--n_embd=128*) assert_learns out-shakespeare-char ;;
    'lockstep train config/train_gpt2.conf'*) # the same run on one rank
        run "$(echo "$1" | sed 's/--nproc_per_node=2/--out_dir=alone/')"
        for file in model optimizer; do
            cmp out/latest/$file.safetensors alone/latest/$file.safetensors || fail 'two ranks give other bytes than one'
        done ;;
    *eval_gpt2*)
        grep -q '^step 0: train loss [0-9.]*, val loss [0-9.]*$' "$text" || fail 'no losses of the model'
        grep 'step 0' "$text" >>"$work/baselines" ;;
    *finetune_shakespeare.conf*)
        assert_learns out-shakespeare
        [ -d out-shakespeare/best ] || fail 'no best checkpoint' ;;
    *--start=FILE:*)
        head -c "$(wc -c <prompt.txt)" "$text" | cmp - prompt.txt || fail "the text doesn't begin with the prompt" ;;
    *'--start="What'*)
        [ "$(grep -c '^What is the answer to life, the universe, and everything?' "$text")" -eq 2 ] || fail 'no two answers' ;;
    'lockstep sample'*) [ "$(grep -c '^---------------$' "$text")" -eq 2 ] || fail 'no two samples' ;;
    'lockstep bench step'*) grep -q 'tokens/s' "$text" || fail 'no speed' ;;
    esac
}

awk '/^## / { on = $0 == "## Its README, command by command" } /^```/ { block = $0 == "```sh"; next }
    on && block && sub(/\\$/, "") { sub(/^ +/, ""); line = line $0; next }
    on && block && !/^ *#/ { sub(/^ +/, ""); print line $0; line = "" }' "$source/docs/start/nanogpt.md" >"$work/lines"
[ "$(wc -l <"$work/lines")" -ge 15 ] || fail 'docs/start/nanogpt.md has no such section'
while read -r line <&3; do
    now=$(run_line "$line") || fail "docs/start/nanogpt.md has a line that this test doesn't know: $line"
    echo "$now"
    run "$now"
    check_line "$now"
done 3<"$work/lines"
[ "$(sort -u "$work/baselines" | wc -l)" -eq 1 ] || fail 'the same weights have different losses'

# What was exported is taken back: the run goes on from ckpt.pt, and the folder writes the run's own text.
mkdir on
mv ckpt.pt on
run "lockstep train --dataset=shakespeare_char --out_dir=on --init_from=resume --max_iters=14 --eval_iters=2 --log_interval=1 --gradient_accumulation_steps=1"
grep -q '^iter 14: loss' "$text" || fail "the exported ckpt.pt doesn't go on"
draw='--start=FILE:prompt.txt --num_samples=1 --max_new_tokens=20 --top_k=1'
run "lockstep sample --out_dir=out-shakespeare $draw"
mv "$text" "$work/own"
run "lockstep sample --init_from=hf $draw"
cmp "$text" "$work/own" || fail 'the exported folder writes another text than the run'
