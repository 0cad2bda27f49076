#!/usr/bin/env python3
"""Records losses of overlapping windows by nanoGPT's model.py, as tests/figures/generated/nanogpt_stride.json has them.

    stride_figure.py CHECKOUT OUT.json

CHECKOUT is a folder with nanoGPT's model.py. Needs PyTorch and NumPy.
"""
import json, os, sys, types

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
from nanogpt_figure import generated_tokens, made_weights

HOW = """nanoGPT's model.py on the CPU in float64, by tests/parity/stride_figure.py. Weights: made_weights() of nanogpt_figure.py in the
shape of `config`; tokens: the generated ones of README.md, `tokens` of them for training, the next for validation. losses: windows of
`block` tokens begin `stride` tokens after each other; of each the targets that no earlier one had count; the last window is shorter;
`loss` is the mean of -log softmax over all tokens but the first, `windows` their number."""
CONFIG = {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 24, "vocab_size": 65, "bias": True}
TOKENS, ROWS = (200000, 20000), ((24, 5), (24, 16), (24, 23), (24, 24), (13, 4))


def model_of(checkout):
    space = types.ModuleType("model")
    with open(f"{checkout}/model.py", encoding="utf-8") as f:
        exec(compile(f.read(), "model.py", "exec"), space.__dict__)
    model = space.GPT(space.GPTConfig(**CONFIG, dropout=0.0))
    turned = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
    weights = {k: v.t() if k.endswith(turned) else v for k, v in made_weights(CONFIG).items()}
    weights["lm_head.weight"] = weights["transformer.wte.weight"]
    model.load_state_dict(weights)
    return model.double().eval()


@torch.no_grad()
def loss_of(model, tokens, block, stride):
    n = len(tokens)
    starts = [0]
    while starts[-1] + block + 1 < n:
        starts.append(starts[-1] + stride)
    total, counted = 0.0, 1  # targets before this one have been counted
    for group in (starts[:-1][i : i + 256] for i in range(0, len(starts) - 1, 256)):
        inputs = torch.stack([tokens[i : i + block] for i in group])
        targets = torch.stack([tokens[i + 1 : i + block + 1] for i in group])
        losses = losses_of(model, inputs, targets)
        for row, begin in zip(losses, group):
            total += row[counted - begin - 1 :].sum().item()
            counted = begin + block + 1
    begin = starts[-1]
    losses = losses_of(model, tokens[None, begin : n - 1], tokens[None, begin + 1 :])
    total += losses[0, counted - begin - 1 :].sum().item()
    return {"block": block, "stride": stride, "windows": len(starts), "loss": total / (n - 1)}


def losses_of(model, inputs, targets):
    logits, _ = model(inputs, targets)
    return -torch.log_softmax(logits, -1).gather(2, targets[:, :, None])[:, :, 0]


def main():
    checkout, out = sys.argv[1:]
    model = model_of(checkout)
    tokens = torch.from_numpy(generated_tokens(CONFIG["vocab_size"], sum(TOKENS)).astype("int64"))[TOKENS[0] :]
    figure = {"config": CONFIG, "tokens": TOKENS, "losses": [loss_of(model, tokens, *row) for row in ROWS], "how": HOW.replace("\n", " ")}
    with open(out, "w", encoding="utf-8") as f:
        json.dump(figure, f)
        f.write("\n")


main()
