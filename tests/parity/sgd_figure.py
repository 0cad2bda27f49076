#!/usr/bin/env python3
"""tests/figures/sgd_optim.json: torch.optim.SGD with momentum and decay on a small quadratic, on the CPU in fp32.

    python3 tests/parity/sgd_figure.py tests/figures/sgd_optim.json

Needs PyTorch."""
import json, math, sys

import torch

HOW = """torch.optim.SGD (momentum, coupled weight_decay; dampening 0, no Nesterov, foreach=False), %s, one thread, fp32, by
tests/parity/sgd_figure.py. Start, targets and gradients are made as those of golf_optim.json: values(n, seed)[i] =
((i * (2 * seed + 37) + 11 * seed) * 7919 %% 1009) / 1009 - 0.5; tensor i begins at values(n, i), its gradient is
(p - values(n, i + 50)) * (values(n, i + 90) + 1). Each kind has its rate, SCALAR no decay. grad_norm[t]: of all gradients of
step t before clip_grad_norm_ (grad_clip_norm 0: none). after: parameters after `step`."""

CONFIG = {"embed_lr": 0.05, "head_lr": 0.08, "scalar_lr": 0.1, "matrix_lr": 0.03, "momentum": 0.8, "weight_decay": 0.2, "steps": 10}
TENSORS = [{"name": name, "kind": kind, "shape": shape} for name, kind, shape in (
    ("embed", "EMBED", [9, 5]), ("q", "MATRIX", [8, 8]), ("fc", "MATRIX", [12, 5]), ("scale", "SCALAR", [7]), ("head", "HEAD", [6, 5]))]


def values(n, seed):
    return torch.tensor([((i * (2 * seed + 37) + 11 * seed) * 7919 % 1009) / 1009 - 0.5 for i in range(n)], dtype=torch.float32)


def record(clip):
    params = [torch.nn.Parameter(values(math.prod(t["shape"]), i).reshape(t["shape"])) for i, t in enumerate(TENSORS)]
    groups = [{"params": [p], "lr": CONFIG[t["kind"].lower() + "_lr"], "weight_decay": 0.0 if t["kind"] == "SCALAR" else CONFIG["weight_decay"]}
              for p, t in zip(params, TENSORS)]
    sgd = torch.optim.SGD(groups, momentum=CONFIG["momentum"], foreach=False)
    norms, after = [], []
    for step in range(CONFIG["steps"]):
        for i, p in enumerate(params):
            n = p.numel()
            p.grad = (p.detach() - values(n, i + 50).reshape(p.shape)) * (values(n, i + 90).reshape(p.shape) + 1)
        norms.append(torch.nn.utils.clip_grad_norm_(params, clip or math.inf).item())
        sgd.step()
        if step in (0, 1, CONFIG["steps"] - 1):
            after.append({"step": step, "params": [p.detach().reshape(-1).tolist() for p in params]})
    return {"grad_clip_norm": clip, "grad_norm": norms, "after": after}


torch.set_num_threads(1)
figure = {"config": CONFIG, "how": HOW % ("PyTorch " + torch.__version__) , "tensors": TENSORS, "runs": [record(0), record(0.5)]}
with open(sys.argv[1], "w") as f:
    json.dump(figure, f, indent=0)
    f.write("\n")
