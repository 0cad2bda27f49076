#!/usr/bin/env python3
"""Records tests/figures/nanogpt_ckpt.pt and .json: a ckpt.pt of nanoGPT's own train.py, and how that run went on.

    nanogpt_record.py CHECKOUT FOLDER

CHECKOUT has nanoGPT's train.py, model.py and configurator.py. At the iteration of the checkpoint the random numbers of batches begin anew, as they
do in a run that is resumed: so the run that stays at home, which this is, and one that goes on elsewhere see the same batches. Needs PyTorch and NumPy.
"""
import contextlib
import io
import json
import os
import shutil
import sys
import tempfile

import numpy as np
import torch

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "parity"))
from nanogpt_figure import generated_tokens  # noqa: E402

checkout, folder = sys.argv[1:]
AT, END = 6, 14
SETTINGS = dict(n_layer=2, n_head=2, n_embd=16, block_size=16, bias=True, dropout=0.0, batch_size=4, gradient_accumulation_steps=2,
                learning_rate=1e-2, min_lr=1e-3, warmup_iters=3, lr_decay_iters=20, max_iters=END, weight_decay=0.2, beta1=0.8, beta2=0.95,
                grad_clip=1.0, eval_interval=AT, eval_iters=2, log_interval=1, always_save_checkpoint=True)


losses, evals = {}, {}


def patched(source):
    def change(old, new):
        nonlocal source
        assert source.count(old) == 1, f"train.py has not once: {old}"
        source = source.replace(old, new)
    change("X, Y = get_batch('train') # fetch the very first batch", "keep = torch.get_rng_state()\nX, Y = get_batch('train')")
    change("    # determine and set the learning rate for this iteration\n",
           f"    if iter_num == {AT}:\n        torch.set_rng_state(keep)\n        X, Y = get_batch('train')\n    losses[iter_num] = []\n")
    change("            loss = loss / gradient_accumulation_steps", "            losses[iter_num].append(loss.item())\n            loss = loss / gradient_accumulation_steps")
    change("        losses = estimate_loss()\n", "        losses_of = estimate_loss()\n        evals[iter_num] = {k: v.item() for k, v in losses_of.items()}\n")
    source = source.replace("losses['train']", "losses_of['train']").replace("losses['val']", "losses_of['val']")
    change("    losses_of = {}" if "    losses_of = {}" in source else "    out = {}\n", "    out = {}\n")
    return source.replace("losses = torch.zeros(eval_iters)", "each = torch.zeros(eval_iters)").replace("losses[k] = loss.item()", "each[k] = loss.item()").replace("losses.mean()", "each.mean()")


with tempfile.TemporaryDirectory() as work:
    data = f"{work}/data/generated"
    os.makedirs(data)
    tokens = generated_tokens(65, 220000)
    tokens[:200000].tofile(f"{data}/train.bin")
    tokens[200000:].tofile(f"{data}/val.bin")
    with open(f"{checkout}/train.py") as f:
        source = patched(f.read())
    args = dict(SETTINGS, dataset="generated", out_dir=f"{work}/out", device="cpu", compile=False, dtype="float32")
    os.chdir(work)
    sys.path.insert(0, checkout)
    shutil.copy(f"{checkout}/configurator.py", work)
    import pickle
    with open(f"{data}/meta.pkl", "wb") as f:
        pickle.dump({"vocab_size": 65}, f)
    sys.argv = ["train.py"] + [f"--{k}={v}" for k, v in args.items()]
    here = {"__name__": "__main__", "__file__": "train.py", "losses": losses, "evals": evals}
    first = {}

    def save(what, path, save=torch.save):
        if what["iter_num"] == AT:
            what["config"] = {k: v for k, v in what["config"].items() if k != "out_dir"}
            save(what, f"{folder}/nanogpt_ckpt.pt")

    torch.save = save
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(source, "train.py", "exec"), here)

figure = {
    "how": "nanoGPT's train.py on the CPU in fp32 by tests/weights/nanogpt_record.py: nanogpt_ckpt.pt is what it saved at iteration `at`; losses[i]: the "
           "mean loss of iteration at + i of the run that stayed at home; evals: estimate_loss at `at` and later.",
    "config": SETTINGS, "at": AT,
    "losses": [float(np.mean(losses[i])) for i in range(AT, END)],
    "evals": {str(k): v for k, v in evals.items() if k >= AT},
}
with open(f"{folder}/nanogpt_ckpt.json", "w") as f:
    json.dump(figure, f, indent=1)
