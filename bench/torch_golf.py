"""A plain parameter-golf model and its optimizers in PyTorch, to compare its speed with lockstep.

RMSNorm without weight, rotary positions, grouped queries with a gain per head, squared ReLU, a
learned mix of the stream with the embedding before each block, learned scales behind attention and
MLP, skip connections from the first half of the blocks to the second, capped logits, a tied head.
Muon updates the blocks' matrices, Adam the rest. Parameters stay float32; with `bf16` products are
made under autocast and Newton-Schulz runs in bfloat16, as parameter-golf's script has it.
"""
import time
from contextlib import nullcontext

import torch
import torch.nn as nn
import torch.nn.functional as F


def unit(x):
    return F.rms_norm(x, (x.shape[-1],))


def rotate(x, cosine, sine):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cosine + b * sine, b * cosine - a * sine), dim=-1)


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        C, self.heads, self.kv = shape["n_embd"], shape["n_head"], shape["num_kv_heads"]
        hidden, kv_width = shape["mlp_mult"] * C, C // self.heads * self.kv
        self.q = nn.Linear(C, C, bias=False)
        self.k = nn.Linear(C, kv_width, bias=False)
        self.v = nn.Linear(C, kv_width, bias=False)
        self.out = nn.Linear(C, C, bias=False)
        self.up = nn.Linear(C, hidden, bias=False)
        self.down = nn.Linear(hidden, C, bias=False)
        self.gain = nn.Parameter(torch.full((self.heads,), 1.5))
        self.attention_scale = nn.Parameter(torch.ones(C))
        self.mlp_scale = nn.Parameter(torch.ones(C))
        self.mix = nn.Parameter(torch.stack((torch.ones(C), torch.zeros(C))))

    def heads_of(self, x, n):
        B, T, C = x.shape
        return x.view(B, T, n, C // n).transpose(1, 2)

    def forward(self, x, x0, cosine, sine):
        x = self.mix[0] * x + self.mix[1] * x0
        y = unit(x)
        q = rotate(unit(self.heads_of(self.q(y), self.heads)), cosine, sine)
        k = rotate(unit(self.heads_of(self.k(y), self.kv)), cosine, sine)
        v = self.heads_of(self.v(y), self.kv)
        q = (q * self.gain.view(1, -1, 1, 1)).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k.to(v.dtype), v, is_causal=True, enable_gqa=True)
        x = x + self.attention_scale * self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp_scale * self.down(F.relu(self.up(unit(x))).square())


class Golf(nn.Module):
    def __init__(self, shape):
        super().__init__()
        C, n = shape["n_embd"], shape["n_layer"]
        self.tokens = nn.Embedding(shape["vocab_size"], C)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(n))
        self.half = n // 2
        self.skips = nn.Parameter(torch.ones(self.half, C))
        nn.init.normal_(self.tokens.weight, std=0.005)
        half_head = C // shape["n_head"] // 2
        angles = torch.outer(torch.arange(shape["block_size"]).float(),
                             10000.0 ** (-torch.arange(half_head) / half_head))
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, ids, targets):
        x = x0 = unit(self.tokens(ids))
        kept = []
        for i, block in enumerate(self.blocks):
            if i >= self.half and kept:
                x = x + self.skips[i - self.half] * kept.pop()
            x = block(x, x0, self.cosine, self.sine)
            if i < self.half:
                kept.append(x)
        logits = F.linear(unit(x).flatten(0, 1), self.tokens.weight)
        logits = 30.0 * torch.tanh(logits / 30.0)
        return F.cross_entropy(logits.float(), targets.flatten())


def orthogonal(g, dtype, steps=5):
    """Newton-Schulz with Muon's quintic."""
    x = g.to(dtype)
    x = x / (x.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + torch.addmm(a, a, a, beta=-4.7750, alpha=2.0315) @ x
    return (x.T if tall else x).to(g.dtype)


class Muon:
    def __init__(self, matrices, dtype):
        self.matrices, self.dtype = matrices, dtype
        self.momentum = [torch.zeros_like(p) for p in matrices]

    @torch.no_grad()
    def step(self):
        for p, m in zip(self.matrices, self.momentum):
            m.mul_(0.95).add_(p.grad)
            g = orthogonal(p.grad.add(m, alpha=0.95), self.dtype)
            p.add_(g, alpha=-0.04 * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def from_checkout(folder, shape):
    """parameter-golf's own model and optimizer, from a checkout of it; its main() isn't run, as it
    asks for CUDA."""
    import importlib.util
    import os

    spec = importlib.util.spec_from_file_location("golf", os.path.join(folder, "train_gpt.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.GPT(
        vocab_size=shape["vocab_size"], num_layers=shape["n_layer"], model_dim=shape["n_embd"],
        num_heads=shape["n_head"], num_kv_heads=shape["num_kv_heads"], mlp_mult=shape["mlp_mult"],
        tie_embeddings=True, tied_embed_init_std=0.005, logit_softcap=30.0, rope_base=10000.0,
        qk_gain_init=1.5)
    return module, model


class Trainer:
    """One step: forward and backward of one micro-batch, Muon and Adam."""

    def __init__(self, shape, batch, compiled, checkout=None, bf16=False):
        torch.manual_seed(1337)
        self.T, self.B = shape["block_size"], batch
        self.bf16 = bf16
        if checkout:
            module, self.model = from_checkout(checkout, shape)
            if bf16:  # as its main() does
                self.model = self.model.bfloat16()
                for m in self.model.modules():
                    if isinstance(m, module.CastedLinear):
                        m.float()
                module.restore_low_dim_params_to_fp32(self.model)
            else:
                module.zeropower_via_newtonschulz5 = lambda g, steps: orthogonal(g, g.dtype, steps)
        else:
            self.model = Golf(shape)
        inside = [p for name, p in self.model.named_parameters() if "blocks." in name]
        matrices = [p for p in inside if p.ndim == 2 and p.shape[0] > 2]
        ids = {id(p) for p in matrices}
        rest = [p for p in self.model.parameters() if id(p) not in ids]
        if checkout:
            muon = module.Muon(matrices, lr=0.04, momentum=0.95, backend_steps=5)
        else:
            muon = Muon(matrices, torch.bfloat16 if bf16 else torch.float32)
        adam = torch.optim.Adam(rest, lr=0.04, betas=(0.9, 0.95), fused=True)
        self.optimizers = [muon, adam]
        self.loss = torch.compile(self.model) if compiled else self.model
        self.data = torch.randint(shape["vocab_size"], (1 << 16,))
        self.at = 0
        self.optimizer_s = 0.0

    def step(self):
        n = self.B * self.T
        chunk = self.data[self.at : self.at + n + 1]
        self.at = (self.at + n) % (len(self.data) - n - 1)
        context = torch.autocast("cpu", dtype=torch.bfloat16) if self.bf16 else nullcontext()
        with context:
            loss = self.loss(chunk[:-1].view(self.B, self.T), chunk[1:].view(self.B, self.T))
        loss.backward()
        started = time.perf_counter()
        for o in self.optimizers:
            o.step()
        self.optimizer_s = time.perf_counter() - started
        self.model.zero_grad(set_to_none=True)
        return loss.item()
