#!/bin/sh
# The folder of `lockstep export --format=hf` in Hugging Face's transformers: logits and characters.
# transformers.sh TOOL. Exit code 77: there are no transformers.
set -eu
. "${0%/*}/../support.sh"
tool=$1
work_folder
find_python transformers 'torch, transformers'

awk 'BEGIN { x = 7; for (i = 0; i < 4000; i++) { x = (x * 75 + 74) % 65537; printf "%s", substr("abc \n\"d\\e<fg", x % 12 + 1, 1) } }' >"$work/text"
"$tool" prep char --input="$work/text" --out="$work/data" >"$work/log" 2>&1 || fail prep
for kind in "true tanh" "false exact"; do
    set -- $kind
    rm -rf "$work/run" "$work/hf"
    "$tool" train --dataset="$work/data" --out_dir="$work/run" --n_layer=2 --n_head=2 --n_embd=32 --block_size=24 --batch_size=4 \
        --gradient_accumulation_steps=2 --max_iters=20 --eval_interval=0 --learning_rate=0.01 --warmup_iters=0 --bias="$1" --gelu="$2" >"$work/log" 2>&1 || fail train
    "$tool" export --format=hf --out_dir="$work/run" --out="$work/hf" >"$work/log" 2>&1 || fail export
    HF_HUB_OFFLINE=1 "$python" - "$work" "$1" "$2" "$tool" <<'END'
import json, math, subprocess, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
work, bias, gelu, tool = sys.argv[1:]
model, info = AutoModelForCausalLM.from_pretrained(work + "/hf", output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
model.eval()
text = open(work + "/text", encoding="utf-8", newline="").read()
tokenizer = AutoTokenizer.from_pretrained(work + "/hf")
ids = tokenizer(text, add_special_tokens=False)["input_ids"]
chars = json.load(open(work + "/data/meta.json", encoding="utf-8"))["chars"]
assert ids == [chars.index(c) for c in text.replace("\r\n", "\n").replace("\r", "\n")]
assert tokenizer.decode(ids) == text, "decoding"
# The same model in nanoGPT's form, written out here, from the checkpoint.
from safetensors.torch import load_file
w = load_file(work + "/run/latest/model.safetensors")
F = torch.nn.functional
def norm(x, name):
    return F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w.get(name + ".bias"), 1e-5)
def linear(x, name):
    return F.linear(x, w[name + ".weight"], w.get(name + ".bias"))
x = torch.tensor([ids[:24], ids[100:124]])
h = w["transformer.wte.weight"][x] + w["transformer.wpe.weight"][:24]
for l in range(2):
    p = f"transformer.h.{l}."
    q, k, v = (t.view(2, 24, 2, 16).transpose(1, 2) for t in linear(norm(h, p + "ln_1"), p + "attn.c_attn").split(32, 2))
    a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 24, 32)
    h = h + linear(a, p + "attn.c_proj")
    h = h + linear(F.gelu(linear(norm(h, p + "ln_2"), p + "mlp.c_fc"), approximate="tanh" if gelu == "tanh" else "none"), p + "mlp.c_proj")
want = F.linear(norm(h, "transformer.ln_f"), w["transformer.wte.weight"])
with torch.no_grad():
    got = model(x).logits
far = (got - want).abs().max().item()
print(f"bias {bias}, gelu {gelu}: logits differ by at most {far:.3g}, of {want.abs().max().item():.3g}")
assert far < 1e-4
END
done
