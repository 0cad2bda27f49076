"""A plain GPT in PyTorch, to compare its speed with lockstep: the same shapes and the same work per step.

GPT-2's structure without biases and without dropout: learned positions, pre-norm blocks, exact GELU,
fused attention, an output layer tied to the token embedding. Nothing is hand-tuned, and nothing is
left out that PyTorch offers for speed on a CPU: scaled_dot_product_attention, fused AdamW, compile.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        split = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, C // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, shape):
        super().__init__()
        C = shape["n_embd"]
        self.tokens = nn.Embedding(shape["vocab_size"], C)
        self.positions = nn.Embedding(shape["block_size"], C)
        self.blocks = nn.ModuleList(Block(C, shape["n_head"]) for _ in range(shape["n_layer"]))
        self.norm = nn.LayerNorm(C, bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def from_nanogpt(folder, shape):
    """nanoGPT's own model, from a checkout of it."""
    import importlib.util
    import os

    spec = importlib.util.spec_from_file_location("nanogpt_model", os.path.join(folder, "model.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.GPT(module.GPTConfig(dropout=0.0, bias=False, **shape))

    class LossOnly(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, targets):
            return self.model(ids, targets)[1]

    return LossOnly()


class Trainer:
    """One optimizer step at a time: batch, forward, backward, clipping, AdamW."""

    def __init__(self, shape, batch, compiled, nanogpt=None):
        torch.manual_seed(1337)
        self.T, self.B = shape["block_size"], batch
        self.model = from_nanogpt(nanogpt, shape) if nanogpt else GPT(shape)
        matrices = [p for p in self.model.parameters() if p.dim() >= 2]
        vectors = [p for p in self.model.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
        self.loss = torch.compile(self.model) if compiled else self.model
        self.data = torch.randint(shape["vocab_size"], (1 << 16,))

    def step(self):
        at = torch.randint(len(self.data) - self.T, (self.B,)).tolist()
        ids = torch.stack([self.data[i : i + self.T] for i in at])
        targets = torch.stack([self.data[i + 1 : i + 1 + self.T] for i in at])
        loss = self.loss(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()
