#!/bin/sh
# The short path: `lockstep train TEXT`, `sample RUN`, `resume RUN`, in an empty folder, next to the longer
# commands that it prints; and what it refuses.  train_text.sh LOCKSTEP GENERATE_GPT2
set -eu
. "${0%/*}/../support.sh"
lockstep=$1 generate=$2
work_folder
mkdir "$work/bin" "$work/a" "$work/b" "$work/c"
ln -s "$lockstep" "$work/bin/lockstep"
export PATH="$work/bin:$PATH"
awk 'BEGIN { for (i = 0; i < 900; i++) print "Line", i, "says", (i * 7919) % 1009, "things." }' >"$work/my text.txt"
small='--n_layer=1 --n_embd=16 --block_size=16 --eval_iters=1 --keep=0'

# refused CODE SENTENCE ARGUMENT...: `lockstep train ARGUMENT...` in $work/c, which stays as it is.
refused() {
    code=$1 sentence=$2
    shift 2
    (cd "$work/c" && find . | sort) >"$work/before"
    # shellcheck disable=SC2086 # `as` is a command with its arguments
    if (cd "$work/c" && ${as-} lockstep train "$@" >"$work/log" 2>&1); then fail "train $* went well"; else rc=$?; fi
    [ $rc = "$code" ] || fail "train $*: exit code $rc, not $code"
    grep -qF -- "$sentence" "$work/log" || fail "train $*: lacks: $sentence"
    [ "$(grep -c '^lockstep train' "$work/log")" = 1 ] || fail "train $*: more than one message"
    (cd "$work/c" && find . | sort) | diff "$work/before" - || fail "train $* left something"
}

echo '== the three lines'
cp "$work/my text.txt" "$work/a/my.txt"
cd "$work/a"
# shellcheck disable=SC2086 # a list of words
lockstep train my.txt $small --block_size=512 --max_iters=1 --out_dir=long >"$work/log" 2>&1 || fail 'a long context'
lockstep sample long --max_new_tokens=512 >"$work/log" 2>&1 || fail 'sample of a long context'
full='lockstep sample: each new token takes longer once the context of 512 tokens is full'
[ "$(grep -cxF "$full" "$work/log")" = 1 ] || fail 'that the context will be full'
grep -qx 'lockstep sample: 10 samples of up to 512 tokens; --num_samples=1 writes one' "$work/log" || fail 'the number of samples'
# shellcheck disable=SC2086
lockstep train my.txt $small --max_iters=12 --checkpoint_interval=4 >"$work/log" 2>"$work/err" || fail 'train TEXT'
cat "$work/err" >>"$work/log"
grep -q '^next: lockstep sample out/my$' "$work/log" || fail 'the next command'
grep -qx 'found vocab_size = 23 (inside out/my/data/meta.json)' "$work/log" || fail 'the size of the vocabulary'
grep -q ', 13 steps of ' "$work/err" && grep -q '^done: 13 steps in ' "$work/log" || fail 'the number of steps'
grep -q '^lockstep train: my.txt has [0-9]* characters, 23 different' "$work/err" || fail 'what the text has'
[ "$(cut -c 1-200 out/my/data/source.json)" = "{\"text\":\"$(realpath my.txt)\",\"kind\":\"char\"}" ] || fail source.json
lockstep sample out/my --num_samples=1 --max_new_tokens=20 >"$work/log" 2>&1 || fail 'sample RUN'
! grep -q 'the context\|samples of' "$work/log" || fail 'lines that a small sample has no use for'
mkfifo "$work/pipe" # its reader has left, as after `| head -1`
code=0
(exec 3<>"$work/pipe" 4>"$work/pipe" 3<&- && lockstep sample out/my >&4) 2>"$work/log" || code=$?
[ $code = 141 ] && ! grep -q pipe "$work/log" || fail "sample without a reader: $code, $(cat "$work/log")"
lockstep resume out/my --max_iters=16 >"$work/log" 2>&1 || fail 'resume RUN'
lockstep info out/my >"$work/log" 2>&1 || fail 'info RUN'
tr -s ' ' <"$work/log" >"$work/told"
for line in 'run out/my' 'loss [0-9.]* at iteration 16' 'model family=gpt2 n_layer=1 n_head=4 n_embd=16 block_size=16' "data $PWD/out/my/data" \
    'validation [0-9.]* at iteration 17, the lowest [0-9.]* at iteration [0-9]*' 'checkpoints latest is ckpt-00000017, best is ckpt-[0-9]*' \
    'state complete: `lockstep sample out/my` writes text'; do
    grep -qx "$line" "$work/told" || fail "info RUN lacks: $line"
done

cp -r out/my/data bare && rm bare/meta.json
# shellcheck disable=SC2086
lockstep train --dataset=bare $small --n_head=2 --gradient_accumulation_steps=1 --out_dir=out/bare --max_iters=0 >"$work/log" 2>&1 || fail 'tokens without meta.json'
grep -qx "vocab_size is GPT-2's 50304, as bare has no meta.json or meta.pkl; --vocab_size=N sets another" "$work/log" || fail 'the vocabulary'
# shellcheck disable=SC2086
lockstep train --dataset=bare $small --n_head=2 --gradient_accumulation_steps=1 --out_dir=out/bare --max_iters=0 --vocab_size=23 >"$work/log" 2>&1 || fail '--vocab_size'
! grep -q "GPT-2's" "$work/log" || fail 'a vocabulary that was given'

echo '== the longer commands that it printed give the same bytes, on another number of ranks'
sed -n 's/^  \(lockstep .*\)/\1/p' "$work/err" >"$work/longer"
[ "$(wc -l <"$work/longer")" = 2 ] || fail 'the longer commands'
cp my.txt "$work/b/my.txt"
cd "$work/b"
sed 's/--nproc_per_node=[0-9]*/--nproc_per_node=4/' "$work/longer" >"$work/four"
# shellcheck disable=SC1091 # made above
(set -e && . "$work/four") >"$work/log" 2>&1 || fail 'the longer commands'
cmp "$work/a/out/my/ckpt-00000012/model.safetensors" out/my/ckpt-00000012/model.safetensors || fail 'other bytes'
lockstep train --out_dir=out/my --init_from=resume --max_iters=16 >"$work/log" 2>&1 || fail resume
cmp "$work/a/out/my/ckpt-00000017/model.safetensors" out/my/ckpt-00000017/model.safetensors || fail 'other bytes after the resume'

echo '== killed in the middle, and resumed from elsewhere'
cp "$work/my text.txt" "$work/b/"
# shellcheck disable=SC2086
LOCKSTEP_FAULT=rename:9:die LOCKSTEP_FAULT_RANK=0 lockstep train 'my text.txt' $small --max_iters=12 --eval_interval=3 --checkpoint_interval=4 --log_interval=1 >"$work/log" 2>&1 &&
    fail 'it was to be killed'
[ -e 'out/my text/latest' ] && [ ! -e 'out/my text/ckpt-00000013' ] || fail 'it was not killed in the middle'
lockstep info 'out/my text/ckpt-00000003' >"$work/log" 2>&1 || fail 'info of a checkpoint'
grep -q "^state  *stopped: .lockstep resume 'out/my text'. continues it from iteration 6, and repeats the steps up to iteration 7$" "$work/log" || fail 'info of a run that was killed'
cp -R 'out/my text' less && rm -r less/ckpt-00000006
lockstep info less >"$work/log" 2>&1 || fail 'info without the newest checkpoint'
grep -q '^checkpoints  latest is ckpt-00000004$' "$work/log" && grep -q ' continues it from iteration 4, ' "$work/log" ||
    fail "info without the newest checkpoint: $(cat "$work/log")"
echo >less/ckpt-00000004/state.json
lockstep info less >"$work/log" 2>&1 || fail 'info of a damaged checkpoint'
grep -q '^checkpoints  less/ckpt-00000004/state.json is not .* the newest good checkpoint is ckpt-00000003' "$work/log" ||
    fail "info of a damaged checkpoint: $(cat "$work/log")"
(cd .. && lockstep resume 'b/out/my text' --max_iters=16) >"$work/log" 2>&1 || fail 'resume from elsewhere'
cmp "$work/a/out/my/ckpt-00000017/model.safetensors" 'out/my text/ckpt-00000017/model.safetensors' || fail 'other bytes after the death'

echo '== an earlier run is moved aside with its data, and goes on with them'
cd "$work/a"
sed 's/things/thoughts/' "$work/my text.txt" >my.txt
# shellcheck disable=SC2086
lockstep train my.txt $small --max_iters=4 >"$work/log" 2>&1 || fail 'a second run'
grep -q '^lockstep train: an earlier run was moved to out/my/earlier-1; to continue it: lockstep resume out/my/earlier-1$' "$work/log" || fail 'nothing was said of the earlier run'
! cmp -s out/my/data/train.bin out/my/earlier-1/data/train.bin || fail "the earlier run's data"
mv bare gone
lockstep info out/bare | grep -q "^data  *the data of the run in out/bare was in $PWD/bare, but that folder doesn't exist now: " || fail 'info of a run without its data'
lockstep info out/my/earlier-1 | grep -q '^data .*/out/my/earlier-1/data$' || fail 'info names other data than the earlier run uses'
lockstep info out/my | grep -q '^data .*/out/my/data$' || fail "info doesn't name the run's data"
lockstep resume out/my/earlier-1 --max_iters=17 >"$work/log" 2>&1 || fail 'resume of the earlier run'
grep -q 'inside out/my/earlier-1/data/meta.json' "$work/log" || fail 'the earlier run has the new data'
# The longer commands over the run that they stand for.
. "$work/longer" >"$work/log" 2>&1 || fail 'the longer commands again'
grep -q 'an earlier run was moved to out/my/earlier-2' "$work/log" || fail 'the run before'
[ -e out/my/data/source.json ] || fail 'the data in use have moved'
# A command that is refused leaves the run in its place.
for wrong in --nproc_per_node=5 '--n_layer=64 --n_embd=8192' --dropout=2 --n_head=3 --eval_only; do
    # shellcheck disable=SC2086
    ! lockstep train my.txt $small $wrong >"$work/log" 2>&1 || fail "$wrong"
    [ -e out/my/latest ] && [ ! -e out/my/earlier-3 ] || fail "$wrong moved the earlier run"
done
# Nor does one whose setting only the ranks refuse, in one process or several.
find out/my | sort >"$work/before"
cksum out/my/data/* out/my/metrics.jsonl >"$work/bytes"
for wrong in --vocab_size=20 '--vocab_size=20 --nproc_per_node=2' --trace=none/y; do
    # shellcheck disable=SC2086
    ! lockstep train my.txt $small $wrong >"$work/log" 2>&1 || fail "$wrong"
    grep -q '^lockstep train: nothing was trained, and the earlier run is back in out/my$' "$work/log" || fail "$wrong: $(cat "$work/log")"
    find out/my | sort | diff "$work/before" - || fail "$wrong changed the folder"
    cksum out/my/data/* out/my/metrics.jsonl | diff "$work/bytes" - || fail "$wrong changed the run"
done
# shellcheck disable=SC2086
! lockstep train my.txt $small --vocab_size=20 --out_dir=new >"$work/log" 2>&1 || fail 'a small vocabulary'
[ ! -e new/data ] || fail 'tokens of a run that was refused'
# … and if it is killed while it removes them, the next one isn't hindered.
# shellcheck disable=SC2086
! LOCKSTEP_FAULT=unlink:2:die-after lockstep train my.txt $small --vocab_size=20 --out_dir=new >"$work/log" 2>&1 || fail 'it was to be killed'
[ -e new/data.tmp ] || fail "it was not killed while it removed the tokens: $(ls new)"
# shellcheck disable=SC2086
lockstep train my.txt $small --max_iters=0 --out_dir=new >"$work/log" 2>&1 || fail "after it: $(cat "$work/log")"

echo '== texts of other kinds'
cd "$work/b"
awk 'BEGIN { for (i = 0; i < 90; i++) printf "caf\351 %d\n\n\n \t indented\r\n\f\n", i }' >latin.txt
awk 'BEGIN { for (i = 0; i < 200; i++) printf "%d ", i }' >line.txt
mkdir texts && cp my.txt texts/ && cp line.txt ..txt
for text in line.txt texts/ ..txt latin.txt; do
    # shellcheck disable=SC2086
    lockstep train $text $small --max_iters=1 >"$work/log" 2>&1 || fail "$text"
done
grep -q '^lockstep train: note: the tokens are bytes: latin.txt is not valid UTF-8: byte 0xe9 at offset 3; it looks like LATIN1: `iconv ' "$work/log" ||
    fail "latin.txt: $(cat "$work/log")"
od -An -v -tu1 -w1 latin.txt | awk '{ print $1 + 4 }' >"$work/ids"
cat out/latin/data/*train*.bin out/latin/data/*val*.bin | od -An -v -tu2 -w2 | awk '{ print $1 + 0 }' | cmp - "$work/ids" || fail 'Latin-1 is not kept byte for byte'
lockstep sample out/line --num_samples=1 --max_new_tokens=5 >"$work/log" 2>&1 || fail 'a text in one line'
grep -q 'samples begin with " "' "$work/log" || fail 'how samples of a text in one line begin'
[ -e out/texts/data/train.bin ] || fail 'a folder of texts'
[ -e out/..txt/data/train.bin ] || fail 'a name without letters before its suffix'
# Of a link, the name is used.
ln -s line.txt link.txt
# shellcheck disable=SC2086
lockstep train link.txt $small --max_iters=0 >"$work/log" 2>&1 || fail 'a link to a text'
[ -e out/link/data/train.bin ] && grep -q ', 1 step of ' "$work/log" || fail "a link: $(cat "$work/log")"
# A folder of texts in which OUT is, and a text with a NUL after the bytes by which binary files are known.
{ cat my.txt && printf 'late\0'; } >texts/zero.txt
(cd texts && lockstep train . $small --max_iters=1) >"$work/log" 2>&1 || fail 'train .'
grep -q '^lockstep train: note: left out 1 entry of folders: ./out/texts (folder of a run)$' "$work/log" || fail 'OUT in the folder of texts'
grep -q '^lockstep train: note: ./zero.txt contains NUL characters, which are kept: ' "$work/log" || fail "a late NUL: $(cat "$work/log")"
printf 'max_iters = 3\nn_head = 4\ngradient_accumulation_steps = 1\n' >own.conf
# shellcheck disable=SC2086
lockstep train my.txt own.conf $small --out_dir=own >"$work/log" 2>&1 || fail 'a text and a config file'
grep -q '^  lockstep train --dataset=own/data own.conf .* --out_dir=own --nproc_per_node=1$' "$work/log" || fail 'the longer command of a config file'

echo '== weights, with their tokens'
mkdir -p "$work/d/models/gpt2" "$work/e" && cd "$work/d"
"$generate" models/gpt2
cp "$work/my text.txt" my.txt
lockstep train my.txt --init_from=models/gpt2 --max_iters=2 --eval_iters=1 >"$work/log" 2>"$work/err" || fail "weights: $(cat "$work/err")"
grep -q "^lockstep train: my.txt has [0-9]* of GPT-2's tokens. 2 layers of width 32, 3 steps of 2048 tokens" "$work/err" || fail 'what the text has'
grep -q '"learning_rate":0.001' out/my/metrics.jsonl || fail 'the rate for a model smaller than GPT-2'
lockstep sample out/my --start=Line --num_samples=1 --max_new_tokens=3 >"$work/log" 2>&1 || fail 'sample of the fine-tuned weights'
sed -n 's/^  \(lockstep .*\)/\1/p' "$work/err" >"$work/longer"
cp -R my.txt models "$work/e/" && cd "$work/e"
# shellcheck disable=SC1091 # made above
(set -e && . "$work/longer") >"$work/log" 2>&1 || fail "the longer commands: $(cat "$work/log")"
cmp "$work/d/out/my/latest/model.safetensors" out/my/latest/model.safetensors || fail 'other bytes'
head -c 300 my.txt >short.txt # shorter than the weights' context
lockstep train short.txt --init_from=models/gpt2 --max_iters=0 --eval_iters=1 >"$work/log" 2>&1 || fail "a short text: $(cat "$work/log")"
grep -q '^  lockstep train finetune_shakespeare .* --block_size=[0-9]' "$work/log" || fail 'a smaller context'

# Weights on characters: another text gets their ids, and the printed commands give the same bytes.
sed 's/ says / s /' my.txt >second.txt
cp -R "$work/b/out/my" chars
lockstep train second.txt --init_from=chars --max_iters=2 --eval_iters=1 >"$work/log" 2>"$work/err" || fail "characters: $(cat "$work/err")"
grep -q '^lockstep train: second.txt has [0-9]* characters\. 1 layer of width 16, 3 steps of 512 tokens' "$work/err" || fail 'what the second text has'
grep -q '^  lockstep train finetune_shakespeare .* --learning_rate=1e-3 ' "$work/err" || fail 'the rate for characters'
lockstep sample out/second --start=ay --num_samples=1 --max_new_tokens=3 >"$work/log" 2>&1 || fail 'a character that only the first text has'
mv out/second first
sed -n 's/^  \(lockstep .*\)/\1/p' "$work/err" >"$work/longer"
# shellcheck disable=SC1091 # made above
(set -e && . "$work/longer") >"$work/log" 2>&1 || fail "the longer commands with characters: $(cat "$work/log")"
cmp first/latest/model.safetensors out/second/latest/model.safetensors || fail 'other bytes with characters'
lockstep eval chars --dataset=out/second/data >"$work/log" 2>&1 || fail "a second text's loss: $(cat "$work/log")"
lockstep export chars --format=safetensors --out="$work/plain/model.safetensors" >"$work/log" 2>&1 || fail 'weights without their characters'

echo '== refused, with nothing left behind'
cd "$work/c"
mkdir -p none tokens run out/text/data
: >empty.txt && : >tokens/train.bin && : >run/metrics.jsonl
printf 'short' >short.txt
cp "$work/b/my.txt" text.txt
gzip -k text.txt
head -c 3000 "$lockstep" >program
printf '\351' >byte.txt
touch "$work/c/file"
refused 2 '"no.txt" is neither a text' no.txt
refused 1 'empty.txt is empty' empty.txt
ln -s loop loop
refused 1 'train: cannot read loop/a.txt: Too many levels of symbolic links' loop/a.txt
refused 1 'train: can'\''t read the data in loop/a: Too many levels of symbolic links' --dataset=loop/a
refused 1 'none has no text in it' none
refused 2 'both need more than 8; give a text of about 90 characters or more' short.txt --out_dir=o
refused 1 'text.txt.gz is a gzip file: unpack it first with `gzip -dc text.txt.gz > unpacked.txt`, or ' text.txt.gz
cp text.txt ./-text.txt
refused 2 '-text.txt begins as settings do: write ./-text.txt' -text.txt
refused 1 'program is not a text: byte ' program
for encoding in 16LE 16BE 32LE 32BE 32; do
    iconv -f UTF-8 -t UTF-$encoding text.txt >wide.txt
    refused 1 "it looks like UTF-$encoding: \`iconv -f UTF-$encoding -t UTF-8 wide.txt > utf8.txt\`" wide.txt
done
{ printf '\0\0\376\377' && iconv -f UTF-8 -t UTF-32BE text.txt; } >wide.txt
refused 1 'byte 0 is 0; it looks like UTF-32: `iconv' wide.txt
echo 'Schöne Grüße – für “uns” alle' | iconv -f UTF-8 -t UTF-16LE >wide.txt
refused 1 'it looks like UTF-16LE: `iconv' wide.txt
refused 1 'train: byte.txt isn'\''t UTF-8. If it is Latin-1, `iconv -f latin1 -t utf8 byte.txt > utf8.txt`' byte.txt
refused 2 'tokens is a folder of tokens, and not of texts: `lockstep train quickstart --dataset=tokens --out_dir=out/tokens`' tokens
refused 2 'run is the folder of a run: `lockstep resume run` continues the run' run
mkdir -m 400 locked
[ "$(id -u)" -ne 0 ] || as='setpriv --bounding-set=-dac_override,-dac_read_search' # root without its rights
refused 1 'cannot read locked: Permission denied' locked
for command in report audit 'diff locked'; do
    # shellcheck disable=SC2086
    ! (cd "$work/c" && ${as-} lockstep $command locked) >"$work/log" 2>&1 || fail "$command of a folder that may not be read"
    grep -q "^lockstep ${command%% *}: can.*t read locked: Permission denied\$" "$work/log" || fail "$command: $(cat "$work/log")"
done
install -m 0 text.txt old.trail
! ${as-} lockstep audit "$work/e/out/my" --step=1 --trail=old.trail >"$work/log" 2>&1 || fail 'audit writes over a file that it may not read'
grep -q '^lockstep audit: cannot read old.trail: Permission denied$' "$work/log" || fail "old.trail: $(cat "$work/log")"
as=
chmod 700 locked && rmdir locked
mkdir texts && cp text.txt texts/latest
cp text.txt ./--dry_run # a setting also if there is such a file
refused 2 '--dry_run needs prepared data' texts --dry_run
rm ./--dry_run
refused 2 'out/text/data exists, and `lockstep train TEXT` has not made it' text.txt
refused 1 'cannot make the folder file: Not a directory; --out_dir=FOLDER trains in another folder' text.txt --out_dir=file/x
refused 2 'both need more than that; give a text of about 90010 characters or more, or a smaller --block_size' text.txt --block_size=9000 --out_dir=o
refused 2 'give one text, or one folder of texts, and not also "10"; settings are written --key=value' text.txt 10
cp text.txt 'a new text.txt'
refused 2 '`lockstep train '"'a new text.txt'"'` trains on this text' --input='a new text.txt'
refused 2 'a name with spaces needs quotes: '"'a new text.txt'" a new text.txt --max_iters=1
refused 2 'text.txt and --dataset both name the data' text.txt --dataset=tokens
refused 2 'a resumed run has its data: `lockstep resume out/text` continues it' text.txt --init_from=resume
refused 2 'come without GPT-2'\''s vocabulary: prepare text.txt with the tokens' text.txt --init_from="$work/plain/model.safetensors" --n_head=4
printf 'A word of \351t\351\n' | iconv -f LATIN1 -t UTF-8 >accent.txt
refused 1 'accent.txt has 7 different characters not in the vocabulary of 23 characters, for example U+0041 "A"' accent.txt --init_from="$work/e/chars" --out_dir=o
refused 2 'init_from and out_dir are the same folder' text.txt --init_from="$work/e/out/my" --out_dir="$work/e/out/my"
refused 2 'lockstep prep gpt2 --input=text.txt --out=o/data --tokenizer=' text.txt --init_from="$work/e/models/gpt2" --out_dir=o --dry_run
refused 2 '--family=golf needs its own tokens' text.txt --family=golf
refused 2 '--dry_run needs prepared data: `lockstep prep char --input=text.txt ' text.txt --dry_run
printf 'A word of \351t\351\n' >latin.txt
refused 2 '--dry_run needs prepared data: `lockstep prep raw --input=latin.txt ' latin.txt --dry_run
printf '\022\000\057\000\061\000' >ids.txt # tokens
refused 2 'ids.txt and --dataset both name the data' ids.txt --dataset=tokens
refused 1 '`lockstep train --dataset=FOLDER` trains on tokens' ids.txt
echo 'n_layer = 1' >own.conf
refused 2 'then `lockstep train own.conf --dataset=new/data --out_dir=new`, with --dry_run' text.txt own.conf --dry_run --out_dir=new
refused 2 'there is no config file no.py' no.py
refused 2 'n_layer must be' text.txt --n_layer=x
RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 refused 2 'prepare it first' text.txt
RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 refused 2 'lockstep prep raw --input=latin.txt' latin.txt
LOCKSTEP_FAULT=write:2:term refused 143 'stopped by SIGTERM: the text was not prepared' text.txt --out_dir=o
for write in 1 2; do
    LOCKSTEP_FAULT=write:$write:ENOSPC refused 1 'No space left' text.txt --out_dir=o
done

echo '== two texts of one name at once, and a preparation that is killed'
mkdir empty
refused 2 'the text is too short' short.txt --out_dir=empty/o
refused 2 'the text is too short' short.txt --out_dir=empty/a/b/o
mkdir two && sed 's/things/thoughts/' text.txt >two/text.txt
LOCKSTEP_FAULT=rename:1:hang lockstep train text.txt --out_dir=o >"$work/hang" 2>&1 &
first=$! refused=yes
hangs() { ls o/data.tmp/meta.json.new-*.tmp-* >/dev/null; } # the file that it hangs with
await "the first one doesn't begin" hangs
# shellcheck disable=SC2086
(refused 2 "o is the folder of a run that is still in progress (pid $first " two/text.txt $small --max_iters=1 --out_dir=o) || refused=no
for data in data/ data.tmp; do # a folder that doesn't exist, and one that does
    ! lockstep prep char --input=text.txt --out=o/$data >"$work/log" 2>&1 || refused=no
    grep -q "^lockstep prep: o is the folder of a run that is still in progress (pid $first " "$work/log" || refused=no
done
kill -9 $first
wait $first 2>/dev/null || :
[ $refused = yes ] || exit 1
# shellcheck disable=SC2086
lockstep train two/text.txt $small --max_iters=1 --out_dir=o >"$work/log" 2>&1 || fail 'after a preparation that was killed'
[ "$(cd o/data && echo *)" = 'meta.json source.json train.bin val.bin' ] || fail "OUT/data has $(cd o/data && echo *)"

echo '== a limit on file sizes, and a run whose record is lost'
mkdir few
# Counts of ./check --coverage and its log would exceed the limit, too.
{ (ulimit -f 1 && GCOV_PREFIX=/dev/null exec lockstep train text.txt --out_dir=few/o) 2>&1 || echo "code $?"; } | cat >"$work/log"
grep -q '^code 1$' "$work/log" && grep -q 'File too large' "$work/log" && [ -z "$(ls few)" ] || fail "ulimit -f: $(cat "$work/log")"
rm o/metrics.jsonl
lockstep resume o --max_iters=2 >"$work/log" 2>&1 || fail "without metrics.jsonl: $(cat "$work/log")"
grep -q '^lockstep train: metrics.jsonl in o was missing or empty: the record of this run begins at iteration 2 now$' "$work/log" &&
    grep -q '^{"kind":"config",' o/metrics.jsonl || fail "without metrics.jsonl: $(cat "$work/log")"
# While it trains, or while it writes a checkpoint: it ends, isn't started again, and keeps its own files and the earlier
# run's.
has_both() { [ -e o/latest ] && [ -e o/earlier-$n/latest ]; }
is_saving() { has_both && ls -d o/ckpt-*.tmp >/dev/null 2>&1; }
n=0
for when in has_both is_saving; do
    n=$((n + 1)) fault=
    [ $when = has_both ] || fault=fsync:*:slow
    # shellcheck disable=SC2086
    LOCKSTEP_FAULT=$fault lockstep train text.txt $small --out_dir=o --nproc_per_node=2 --max_restarts=1 \
        --max_iters=100000000 --eval_interval=50 >"$work/hang" 2>&1 &
    await 'no checkpoint' $when
    mv o moved
    code=0
    wait $! || code=$?
    [ ! -e o ] && mv moved o || fail "a folder that is moved: $(cat "$work/hang")"
    [ $code = 1 ] &&
        grep -q "isn't this run's file any more: .*; not restarted, as it would fail again: put that right" "$work/hang" ||
        fail "a record that is moved, $when: $code, $(cat "$work/hang")"
    ! grep -q 'restart 1 of 1\|is back in\|there is no checkpoint' "$work/hang" || fail "after it: $(cat "$work/hang")"
    [ -e o/latest ] && [ -e o/data/train.bin ] && [ -e o/earlier-1/latest ] || fail "after it: $(ls o)"
done
# While it reads its checkpoint, and another run's folder gets the name.
# shellcheck disable=SC2086
lockstep train text.txt $small --seed=2 --out_dir=theirs --max_iters=1 >"$work/log" 2>&1 || fail "another run"
cp -r theirs kept
LOCKSTEP_FAULT=fallocate:2:slower lockstep resume o --nproc_per_node=1 >"$work/hang" 2>&1 &
reads() { readlink /proc/$!/fd/* | grep -q /data/val.bin; }
await "it reads no data" reads
await "it reads no data" reads # the first may have seen how it looks whether the file is there
mv o moved
mv theirs o
code=0
wait $! || code=$?
[ $code = 1 ] && grep -q "isn't .* any more: .* moved, removed or replaced" "$work/hang" && diff -r kept o >"$work/log" ||
    fail "a folder that is replaced: $code, $(cat "$work/hang" "$work/log")"
# Another resume is faster, and deletes that checkpoint.
was=$(readlink -f moved/latest)
LOCKSTEP_FAULT=fallocate:2:slower lockstep resume moved --nproc_per_node=1 >"$work/hang" 2>&1 &
slow=$!
await "it reads no data" reads && kill -STOP $slow
lockstep resume moved --nproc_per_node=1 --max_iters=100000000 --eval_interval=50 --keep=1 >"$work/log" 2>&1 &
deleted() { [ ! -e "$was" ]; }
await "$was isn't deleted" deleted
kill -CONT $slow
code=0
wait $slow || code=$?
kill -9 $!
[ $code != 0 ] && grep -q "moved is the folder of a run that is still in progress (pid $! " "$work/hang" ||
    fail "a slower resume: $code, $(cat "$work/hang" "$work/log")"
echo 'all as it should be'
