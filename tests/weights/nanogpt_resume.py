"""Goes on with a ckpt.pt that lockstep wrote, by nanoGPT's own model, optimizer and checkpoint keys, and prints the mean loss of each iteration.

    nanogpt_resume.py CHECKOUT CKPT DATA_FOLDER ITERS SETTING=VALUE …

The batches are those of a run with --sampler=nanogpt that was never interrupted and doesn't evaluate: random numbers are drawn and dropped up to the
file's iteration. SETTINGs: seed, batch_size, gradient_accumulation_steps, learning_rate, min_lr, warmup_iters, lr_decay_iters, grad_clip. It also
loads the file with weights_only=False, and with optimizer.load_state_dict() as train.py does. Needs PyTorch and NumPy.
"""
import math
import sys

import numpy as np
import torch

checkout, path, data, iters = sys.argv[1:5]
given = {k: float(v) for k, v in (a.split("=") for a in sys.argv[5:])}
sys.path.insert(0, checkout)
from model import GPT, GPTConfig  # noqa: E402

tokens = np.memmap(f"{data}/train.bin", dtype=np.uint16, mode="r")
B, A = int(given["batch_size"]), int(given["gradient_accumulation_steps"])
checkpoint = torch.load(path, map_location="cpu")
assert torch.load(path, weights_only=False)["iter_num"] == checkpoint["iter_num"]


def get_batch(T):
    ix = torch.randint(len(tokens) - T, (B,))
    x = torch.stack([torch.from_numpy(tokens[i:i + T].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(tokens[i + 1:i + 1 + T].astype(np.int64)) for i in ix])
    return x, y


def get_lr(it):
    if it < given["warmup_iters"]:
        return given["learning_rate"] * (it + 1) / (given["warmup_iters"] + 1)
    if it > given["lr_decay_iters"]:
        return given["min_lr"]
    ratio = (it - given["warmup_iters"]) / (given["lr_decay_iters"] - given["warmup_iters"])
    return given["min_lr"] + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (given["learning_rate"] - given["min_lr"])


torch.manual_seed(int(given["seed"]))
args = checkpoint["model_args"]
model = GPT(GPTConfig(**args))
model.load_state_dict(checkpoint["model"])
assert model.lm_head.weight is model.transformer.wte.weight
optimizer = model.configure_optimizers(0.5, 1.0, (0.5, 0.5), "cpu")  # replaced by the file's
optimizer.load_state_dict(checkpoint["optimizer"])
T, at = args["block_size"], checkpoint["iter_num"]
X, Y = get_batch(T)
for _ in range(at * A):
    X, Y = get_batch(T)
for it in range(at, int(iters)):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    losses = []
    for _ in range(A):
        _, loss = model(X, Y)
        losses.append(loss.item())
        X, Y = get_batch(T)
        (loss / A).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), given["grad_clip"])
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"{it} {sum(losses) / A:.9g}")
