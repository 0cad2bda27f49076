#!/bin/sh
# The file of `lockstep export --format=gguf`, by a reader of its own: the checkpoint's bits, and the tokens.
# gguf.sh TOOL FIGURES
set -eu
. "${0%/*}/../support.sh"
tool=$1 figures=$2
work_folder

# A vocabulary of 641 ids, one of them unused, for models of 700 whose data have none or a padded one, and characters of 1 to 4 bytes.
python3 - "$figures/bpe_small.json" "$work/tokenizer.json" <<'PYTHON'
import json, sys
tokenizer = json.load(open(sys.argv[1]))["tokenizer"]
vocabulary = tokenizer["model"]["vocab"]
vocabulary[max(vocabulary, key=vocabulary.get)] += 1
json.dump(tokenizer, open(sys.argv[2], "w"))
PYTHON
awk 'BEGIN { x = 7; for (i = 0; i < 4000; i++) { x = (x * 75 + 74) % 65537; printf "%s", substr("abc \n\"d\\e<fg", x % 12 + 1, 1) } print "é€🙂" }' >"$work/text"
"$tool" prep char --input="$work/text" --out="$work/char" >"$work/log" 2>&1
"$tool" prep gpt2 --input="$work/text" --tokenizer="$work/tokenizer.json" --out="$work/bpe" --val_fraction=0.1 >"$work/log" 2>&1
mkdir "$work/padded"
cp "$work/bpe"/* "$work/padded"
sed -i 's/"vocab_size": *641/"vocab_size": 700/' "$work/padded/meta.json"
rm "$work/bpe/meta.json"
for kind in "char false exact" "bpe true tanh --vocab_size=700" "padded true tanh"; do
    # shellcheck disable=SC2086
    set -- $kind
    "$tool" train --dataset="$work/$1" --out_dir="$work/run-$1" --n_layer=2 --n_head=3 --n_embd=30 --block_size=24 --batch_size=2 --learning_rate=0.05 \
        --gradient_accumulation_steps=1 --max_iters=2 --eval_interval=0 --warmup_iters=0 --threads=1 --bias="$2" --gelu="$3" ${4-} >"$work/log" 2>&1 ||
        fail "no run of $1"
    "$tool" export "$work/run-$1" --format=gguf --out="$work/$1.gguf" ${4+--tokenizer="$work"} 2>"$work/notes.log" || fail "no export of $1"
    "$tool" export "$work/run-$1" --format=safetensors --out="$work/$1.safetensors" 2>"$work/log" || fail "no safetensors of $1"
    [ "$(grep -c "GELU by its tanh form" "$work/notes.log")" = "$(echo "$3" | grep -c exact)" ] || fail "a wrong note about GELU"
    grep -q "may have at most 24 tokens together" "$work/notes.log" || fail "no note about the context"
    python3 - "$work" "$1" <<'PYTHON' || fail "wrong file of $1"
import json, struct, sys
work, kind = sys.argv[1:]
data = open(f"{work}/{kind}.gguf", "rb").read()
at = 0
def take(form):
    global at
    values = struct.unpack_from("<" + form, data, at)
    at += struct.calcsize("<" + form)
    return values if len(values) > 1 else values[0]
def text():
    return take(f"{take('Q')}s").decode()
def value(kind):
    if kind == 9:
        kind, n = take("IQ")
        return [value(kind) for _ in range(n)]
    return text() if kind == 8 else take({4: "I", 5: "i", 6: "f"}[kind])
magic, version, n_tensors, n_values = take("4sIQQ")
assert (magic, version) == (b"GGUF", 3)
values = {}
for _ in range(n_values):
    name = text()
    assert name not in values, name
    values[name] = value(take("I"))
tensors, end = {}, 0
for _ in range(n_tensors):
    name, n_dims = text(), take("I")
    dims = [take("Q") for _ in range(n_dims)]
    form, offset = take("IQ")
    count = dims[0] * (dims[1] if n_dims == 2 else 1)
    assert form == 0 and offset == end and name not in tensors
    tensors[name] = dims, offset, 4 * count
    end = (offset + 4 * count + 31) // 32 * 32
start = (at + 31) // 32 * 32
assert len(data) == start + end

near = dict(values)
tokens, types, merges = (near.pop("tokenizer.ggml." + name, None) for name in ("tokens", "token_type", "merges"))
epsilon = near.pop("gpt2.attention.layer_norm_epsilon")
assert abs(epsilon - 1e-5) < 1e-12
shape = {"general.architecture": "gpt2", "general.file_type": 0, "gpt2.context_length": 24, "gpt2.embedding_length": 30,
         "gpt2.feed_forward_length": 120, "gpt2.block_count": 2, "gpt2.attention.head_count": 3}
if kind == "char":
    chars = json.load(open(f"{work}/char/meta.json", encoding="utf-8"))["chars"]
    assert near == shape | {"tokenizer.ggml.model": "rwkv"}, near
    assert tokens == ["\\\\" if c == "\\" else c for c in chars] and "\n" in tokens and "🙂" in tokens
    assert types is None and merges is None
else:
    vocabulary = json.load(open(f"{work}/tokenizer.json", encoding="utf-8"))
    by_id, added = {}, {t["id"]: t["content"] for t in vocabulary["added_tokens"]}
    for word, i in vocabulary["model"]["vocab"].items():
        by_id[i] = word
    by_id |= added
    last = max(by_id)
    end_id, = (i for i, word in added.items() if word == "<|endoftext|>")
    assert near == shape | {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.bos_token_id": end_id,
                            "tokenizer.ggml.eos_token_id": end_id}, near
    assert tokens == [by_id.get(i, f"[UNUSED{i}]") for i in range(last + 1)]
    assert types == [3 if i in added else 1 if i in by_id else 5 for i in range(last + 1)]
    assert merges == [m if isinstance(m, str) else " ".join(m) for m in vocabulary["model"]["merges"]]

file = open(f"{work}/{kind}.safetensors", "rb").read()
length, = struct.unpack_from("<Q", file)
header = json.loads(file[8:8 + length])
header.pop("__metadata__")
names = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
         "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
left = set(tensors)
for name, entry in header.items():
    layer, rest = "", name.removeprefix("transformer.")
    if rest.startswith("h."):
        _, number, rest = rest.split(".", 2)
        layer = f"blk.{number}."
    part, ending = rest.rsplit(".", 1)
    new = f"{layer}{names[part]}.{ending}"
    dims, offset, bytes = tensors[new]
    shape = entry["shape"]
    if part == "wte":
        shape = [len(tokens)] + shape[1:]
    first = 8 + length + entry["data_offsets"][0]
    assert dims == shape[::-1], (name, dims, shape)
    assert data[start + offset:start + offset + bytes] == file[first:first + bytes], name
    left.remove(new)
assert len(left) == (2 * 6 + 1 if kind == "char" else 0), left
for name in left:  # the biases of a model without them
    dims, offset, bytes = tensors[name]
    assert name.endswith(".bias") and not any(data[start + offset:start + offset + bytes]), name
PYTHON
done

# Without a tokenizer: all rows, and the reason.
"$tool" export "$work/run-bpe" --format=gguf --out="$work/none.gguf" 2>"$work/notes.log" || fail "no file of the weights"
grep -q "no tokenizer is written: " "$work/notes.log" || fail "no reason"
grep -aq "tokenizer.ggml.model.*none.*gpt2.vocab_size" "$work/none.gguf" || fail "no vocabulary size"
[ "$(stat -c %s "$work/none.gguf")" -gt $((4 * 700 * 30)) ] || fail "rows are missing"

# A vocabulary without <|endoftext|>, given or in place of the run's own, also in a folder for Hugging Face.
mkdir "$work/endless"
python3 -c 'import json, sys; t = json.load(sys.stdin); del t["added_tokens"][0], t["model"]["vocab"]["<|endoftext|>"]; json.dump(t, sys.stdout)' <"$work/tokenizer.json" >"$work/endless/tokenizer.json"
"$tool" export "$work/run-bpe" --format=gguf --out="$work/endless.gguf" --tokenizer="$work/endless" 2>"$work/notes.log" || fail "no file without an end"
grep -q "no tokenizer is written: the vocabulary has no <|endoftext|>" "$work/notes.log" || fail "no reason about the end"
cmp "$work/endless.gguf" "$work/none.gguf" || fail "another file than without a tokenizer"
"$tool" export "$work/run-bpe" --format=hf --out="$work/hf-endless" --tokenizer="$work/endless" 2>"$work/log" || fail "no folder without an end"
"$tool" export "$work/run-padded" --format=hf --out="$work/hf" 2>"$work/log" || fail "no folder"
python3 - "$work" <<'PYTHON' || fail "wrong ends of texts"
import json, sys
def load(name):
    return json.load(open(f"{sys.argv[1]}/{name}"))
end_id, = (t["id"] for t in load("tokenizer.json")["added_tokens"] if t["content"] == "<|endoftext|>")
for folder, end, number in ("hf", "<|endoftext|>", end_id), ("hf-endless", None, None):
    assert all(load(folder + "/config.json")[f"{name}_token_id"] == number for name in ("bos", "eos")), folder
    assert all(load(folder + "/tokenizer_config.json").get(f"{name}_token") == end for name in ("bos", "eos", "unk")), folder
PYTHON
cp "$work/endless/tokenizer.json" "$work/run-padded"
"$tool" export "$work/run-padded" --format=hf --out="$work/hf" 2>"$work/notes.log" || fail "no folder with another vocabulary"
grep -q "is not the vocabulary that it was trained with" "$work/notes.log" || fail "no reason about another vocabulary"
[ ! -e "$work/hf/tokenizer.json" ] || fail "another vocabulary"
rm "$work/run-padded/tokenizer.json"
"$tool" export "$work/run-padded" --format=gguf --out="$work/lost.gguf" 2>"$work/notes.log" || fail "no file of a run without its vocabulary"
grep -q "no tokenizer is written: there is no tokenizer.json next to" "$work/notes.log" || fail "no reason about the vocabulary"

# A meta.json, and so a model, with a token less than the tokenizer.
sed -i 's/"vocab_size": 700/"vocab_size": 640/' "$work/padded/meta.json"
"$tool" train --dataset="$work/padded" --out_dir="$work/run-few" --n_layer=1 --n_head=1 --n_embd=8 --block_size=24 --batch_size=2 \
    --gradient_accumulation_steps=1 --max_iters=1 --eval_interval=0 --threads=1 >"$work/log" 2>&1 || fail "no run of few tokens"
"$tool" export "$work/run-few" --format=gguf --out="$work/few.gguf" 2>"$work/notes.log" && fail "a file of too few rows"
grep -q "its tokenizer has 641 tokens, but its model only 640" "$work/notes.log" || fail "no size in the message"
