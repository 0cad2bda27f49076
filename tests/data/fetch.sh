#!/bin/sh
# `lockstep fetch` against a server of this test's own: good files, continued downloads, and every kind of answer
# that must be refused without leaving a file.  fetch.sh LOCKSTEP
set -eu
. "${0%/*}/../support.sh"
lockstep=$1
work_folder
[ -e "${lockstep%/*}/lockstep_curl.so" ] || lacks libcurl libcurl4-openssl-dev
command -v python3 >/dev/null || fail 'there is no python3'
unset http_proxy HTTP_PROXY https_proxy HTTPS_PROXY all_proxy ALL_PROXY
export LOCKSTEP_HOME="$work/home"

# The files that the server has.
mkdir -p "$work/root" "$work/in"
awk 'BEGIN { srand(1); for (n = 0; n < 1115394; n += 44) printf "%.43s\n", "Line " n " says " int(1e9 * rand()) " things, then stops there again." }' |
    head -c 1115394 >"$work/root/input.txt"
printf '{"model_type": "gpt2", "n_layer": 1}\n' >"$work/root/config.json"
python3 "${0%/*}/fetch_server.py" "$work/root" "$work/port" >"$work/requests" 2>"$work/server.log" &
await 'the server has no port' [ -e "$work/port" ]
from=http://127.0.0.1:$(cat "$work/port")
cd "$work/in"

# fetches HOW SET OPTIONS…: it must end well.
fetches() {
    how=$1
    shift
    "$lockstep" fetch "$@" --from="$from/$how" >"$work/log" 2>&1 || fail "fetch $* from $how"
}
# has OUT BYTES: so many of the text have come.
has() {
    [ "$(stat -c %s "$1/input.txt.part")" = "$2" ]
}
# refused HOW SENTENCE SET: it must fail and leave nothing.
refused() {
    ! "$lockstep" fetch "$3" --out=refused --from="$from/$1" >"$work/log" 2>&1 || fail "fetch from $1 ended well"
    grep -qF -- "$2" "$work/log" || fail "fetch from $1 lacks: $2"
    [ ! -e refused ] || { find refused; fail "fetch from $1 left something"; }
}

echo '== a good server'
fetches good shakespeare
cmp data/shakespeare/input.txt "$work/root/input.txt" || fail 'another text'
[ "$(ls -A data/shakespeare | tr '\n' ' ')" = '.sha256sums input.txt ' ] || fail 'other files'
grep -q '^input.txt: complete, SHA-256 [0-9a-f]\{64\} (unverified; recorded for the next time)$' "$work/log" || fail 'no sum'
grep -qx 'next: lockstep train data/shakespeare/input.txt' "$work/log" || fail 'no next command'
(cd data/shakespeare && sha256sum -c --quiet .sha256sums) || fail 'sha256sum reads another sum'
: >"$work/requests"
fetches good shakespeare
grep -q 'input.txt: exists already, .* (as recorded)' "$work/log" || fail 'the second call'
[ ! -s "$work/requests" ] || fail 'the second call asked the server'
"$lockstep" prep char --input=data/shakespeare --out=data/char >"$work/log" 2>&1 || fail 'prep of the folder'
grep -qx 'train has 1003854 tokens' "$work/log" || fail 'prep reads more than the text'

echo '== the recorded sum holds'
rm data/shakespeare/input.txt
! "$lockstep" fetch shakespeare --from="$from/changed" >"$work/log" 2>&1 || fail 'a changed file'
grep -q "but the first download's was" "$work/log" || fail 'why a changed file is refused'
[ "$(ls -A data/shakespeare)" = .sha256sums ] || fail 'a changed file stays'
fetches good shakespeare
printf 'X' | dd of=data/shakespeare/input.txt bs=1 seek=7 conv=notrunc 2>/dev/null
! "$lockstep" fetch shakespeare --from="$from/good" >"$work/log" 2>&1 || fail 'a damaged file'
grep -q 'remove or rename the file to fetch it again' "$work/log" || fail 'a damaged file: the remedy'
for line in nonsense "$(printf %064d 0)  "; do # the second one has no line feed
    printf %s "$line" >data/shakespeare/.sha256sums
    [ "$line" != nonsense ] || echo >>data/shakespeare/.sha256sums
    ! "$lockstep" fetch shakespeare --from="$from/good" --out=data/shakespeare >"$work/log" 2>&1 || fail 'damaged sums'
    grep -q 'remove \(the\|that\) line' "$work/log" || fail 'damaged sums: the remedy'
done
rm -r data

echo '== broken connections are continued'
: >"$work/requests"
fetches cut shakespeare --out=cut
cmp cut/input.txt "$work/root/input.txt" || fail 'continued: another text'
grep -qx '/cut/input.txt bytes=557697-' "$work/requests" || fail 'the rest was not asked for'
fetches edited shakespeare --out=edited
cmp -i 1 "$work/root/input.txt" edited/input.txt || fail 'edited: another text'
[ "$(head -c 1 edited/input.txt)" = X ] || fail 'a mixture of two versions'
fetches norange shakespeare --out=norange
cmp norange/input.txt "$work/root/input.txt" || fail 'without ranges: another text'
fetches lying shakespeare --out=lying
cmp lying/input.txt "$work/root/input.txt" || fail 'a false range: another text'
yes '{"text": "a"}' | head -c 8000000 >"$work/root/openwebtext.jsonl"
fetches pieces openwebtext --out=pieces # more of them than tries that bring nothing
cmp pieces/openwebtext.jsonl "$work/root/openwebtext.jsonl" || fail 'pieces: another text'
! "$lockstep" fetch shakespeare --out=dead --from="$from/dead" >"$work/log" 2>&1 || fail 'half a file'
grep -q 'continues after the 557697 bytes that are in .*; or download the file by hand and save it as dead/input.txt' "$work/log" ||
    fail 'how to continue'
[ "$(ls -A dead | tr '\n' ' ')" = 'input.txt.part input.txt.part.tag ' ] || fail 'the rest of a broken download'
cp -r dead shrunk
! "$lockstep" fetch shakespeare --out=shrunk --from="$from/empty" >"$work/log" 2>&1 || fail 'a text that became shorter'
grep -q 'it has 0 bytes there' "$work/log" || fail 'a part longer than the text'
fetches good shakespeare --out=dead
grep -qx '/good/input.txt bytes=557696-' "$work/requests" || fail 'a later call began again'
[ "$(ls -A dead | tr '\n' ' ')" = '.sha256sums input.txt ' ] || fail 'a continued download left something'
"$lockstep" fetch shakespeare --out=stopped --from="$from/stalls" >"$work/log" 2>&1 &
first=$!
await 'half of the text has not come' has stopped 557697
code=0
kill -TERM $first
wait $first || code=$?
[ $code -eq 143 ] || fail "exit code $code after SIGTERM"
grep -q 'stopped by SIGTERM: the same command continues' "$work/log" || fail 'how a stopped fetch continues'
: >"$work/requests"
fetches stalls shakespeare --out=stopped
[ "$(cat "$work/requests")" = '/stalls/input.txt bytes=557696-' ] || fail 'a stopped fetch began again'
cmp stopped/input.txt "$work/root/input.txt" || fail 'stopped: another text'
LOCKSTEP_FAULT=rename:2:hang "$lockstep" fetch shakespeare --out=late --from="$from/good" >"$work/log" 2>&1 &
first=$!
await 'the text has not come' has late 1115394
sleep 1
! "$lockstep" fetch shakespeare --out=late --from="$from/good" >"$work/log" 2>&1 || fail 'two at once'
grep -q 'another lockstep fetch writes the same file' "$work/log" || fail 'the first one has no lock while it verifies'
kill -9 $first
wait $first || :
: >"$work/requests"
fetches good/ shakespeare --out=late
[ "$(cat "$work/requests")" = '/good/input.txt bytes=1115393-' ] || fail 'a complete part is downloaded again'
cmp late/input.txt "$work/root/input.txt" || fail 'a complete part: another text'
LOCKSTEP_FAULT=lock:1:EOPNOTSUPP "$lockstep" fetch shakespeare --out=unlocked --from="$work/root" >"$work/log" 2>&1 || fail 'without locks'

echo '== refused, and nothing stays'
refused short 'it has 1115387 bytes there; 1115394 are expected' shakespeare
refused empty 'it has 0 bytes there' gpt2
refused huge 'it has 1125899906842624 bytes there; 1 to 100000 are expected' gpt2
refused endless "the server doesn't announce its size" shakespeare
refused unannounced "the server doesn't announce its size" gpt2
refused page 'it is not JSON' gpt2
refused part 'the server answers 206' shakespeare
refused missing 'the server answers 404 (not found). Or download the file by hand and save it as refused/input.txt' shakespeare
refused file 'not supported or disabled in libcurl' shakespeare
refused ftp 'not supported or disabled in libcurl' shakespeare
refused loop 'redirects' shakespeare
for address in file:///etc ftp://127.0.0.1 "$work/none"; do
    ! "$lockstep" fetch shakespeare --out=refused --from="$address" >"$work/log" 2>&1 || fail "$address"
    grep -q 'neither a folder nor an http:// or https:// address' "$work/log" || fail "$address: the message"
done
[ ! -e refused ] || fail 'an address left something'
mkdir refused
! LOCKSTEP_FAULT=fsync:1:EIO "$lockstep" fetch shakespeare --out=refused --from="$work/root" >"$work/log" 2>&1 || fail 'a failed sync'
[ -z "$(ls -A refused)" ] || fail 'a text that is not synced has its name'
! "$lockstep" fetch shakespeare --out=refused --from="$from/missing" >"$work/log" 2>&1 || fail missing
[ -d refused ] || fail 'the folder of the user is gone'

echo '== words'
! "$lockstep" fetch shakespear >"$work/log" 2>&1 || fail 'an unknown name'
grep -q 'the names are shakespeare, openwebtext, fineweb-sp1024, gpt2-vocab, gpt2' "$work/log" || fail 'the names'
! "$lockstep" fetch openwebtext >"$work/log" 2>&1 || fail parquet
grep -q "parquet.*load_dataset.*--from" "$work/log" || fail 'how to convert parquet'
! "$lockstep" fetch shakespeare --shards=2 --from="$from/good" >"$work/log" 2>&1 || fail 'shards of a text'

echo '== GPT-2, and golf, from a folder of small files of the same form'
awk 'BEGIN { for (i = 0; i < 900; i++) print "Line", i, "says", (i * 7919) % 1009, "things.\n" }' >text.txt
"$lockstep" train text.txt --n_layer=1 --n_embd=16 --n_head=4 --block_size=16 --eval_iters=1 --max_iters=2 --out_dir=run >"$work/log" 2>&1 ||
    fail 'a small run'
"$lockstep" export run --format=hf --out="$work/root/hf" >"$work/log" 2>&1 || fail 'a small GPT-2'
fetches good/hf gpt2
cmp "$LOCKSTEP_HOME/gpt2/model.safetensors" "$work/root/hf/model.safetensors" || fail 'other weights'
grep -qx 'next: lockstep sample --init_from=gpt2 --start=Hello --num_samples=1' "$work/log" || fail 'the next command of gpt2'
"$lockstep" fetch gpt2 --from="$work/root/hf" --out=small >"$work/log" 2>&1 || fail 'from a folder'
grep -qx 'next: lockstep sample --init_from=small --start=Hello --num_samples=1' "$work/log" || fail 'the next command of a folder'
cp -r "$work/root/hf" half
head -c 100 "$work/root/hf/model.safetensors" >half/model.safetensors
! "$lockstep" fetch gpt2 --from=half --out=halved >"$work/log" 2>&1 || fail 'half a header of weights'
grep -q 'it is not a safetensors file' "$work/log" || fail 'why half a header is refused'
"$lockstep" train --dataset=run/data --init_from=small --max_iters=1 --eval_iters=1 --out_dir=tuned >"$work/log" 2>&1 || fail 'training of fetched weights'
if [ -e "${lockstep%/*}/lockstep_sentencepiece.so" ]; then
    "$lockstep" prep sentencepiece --input=text.txt --out=sp --vocab_size=300 --shards=4000 >"$work/log" 2>&1 || fail 'golf data'
    mirror=$work/root/golf data=datasets/fineweb10B_sp1024
    mkdir -p "$mirror/$data" "$mirror/tokenizers"
    cp sp/fineweb_*.bin "$mirror/$data"
    cp sp/sp.model "$mirror/tokenizers/fineweb_1024_bpe.model"
    fetches good/golf fineweb-sp1024 --shards=2
    [ "$(ls data/$data | tr '\n' ' ')" = 'fineweb_train_000000.bin fineweb_train_000001.bin fineweb_val_000000.bin ' ] || fail shards
    sed -n 's/^next: lockstep train //p' "$work/log" >"$work/next"
    # shellcheck disable=SC2046 # the words that it printed
    VOCAB_SIZE=300 NUM_LAYERS=1 MODEL_DIM=32 NUM_HEADS=2 NUM_KV_HEADS=1 TRAIN_SEQ_LEN=32 TRAIN_BATCH_TOKENS=256 VAL_BATCH_SIZE=256 \
        ITERATIONS=1 MAX_WALLCLOCK_SECONDS=0 "$lockstep" train "${0%/*}/../../config/golf_baseline.conf" \
        $(cut -d ' ' -f 2- "$work/next") --out_dir=golf >"$work/log" 2>&1 || fail 'training of fetched shards'
    head -c 3000 "$mirror/$data/fineweb_train_000002.bin" >"$work/half" && cp "$work/half" "$mirror/$data/fineweb_train_000002.bin"
    ! "$lockstep" fetch fineweb-sp1024 --shards=3 --from="$from/good/golf" >"$work/log" 2>&1 || fail 'a cut shard'
    grep -q 'it is not a complete shard of tokens' "$work/log" || fail 'why a cut shard is refused'
    [ ! -e "data/$data/fineweb_train_000002.bin" ] || fail 'a cut shard stays'
    echo '<html>' >"$mirror/tokenizers/fineweb_1024_bpe.model"
    ! "$lockstep" fetch fineweb-sp1024 --from="$mirror" --out=page >"$work/log" 2>&1 || fail 'a page as the tokenizer'
    grep -q 'it is not a SentencePiece model' "$work/log" || fail 'why a page is refused'
fi
