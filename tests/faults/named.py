"""Plants drawn faults in the operations that compute a run's numbers, and checks that trails name them.

    named.py --build=FOLDER [--runs=N] [--seed=S] [--only=I] [--files=A,B] [--keep]

A fault changes an operator, a constant, a condition or a line (tests/mutants/draw.py) in a function of
ROWS. One program holds all faults: the build's own, with the altered files linked before its library. A
fault is on always, or only while one call of an operation runs, such as the third product of a forward
pass. Each fault also draws a family, optimizer, dtype, frozen tensors, dropout and kernel level.

The sound and the faulty program train the same settings, and each writes the trails of its run. In the
first step whose trails differ, `lockstep diff` must name an entry that the operation computes: ROWS has
the operations that a function is part of, and gpt2() and golf() the entries of each operation. A fault
that changes no entry, or that ends the run, isn't counted. For a tenth of the faults `lockstep diff` of
both runs must say that the faulty run's record is false, and blame nothing else.
"""
import argparse
import array
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "mutants"))
from draw import draw  # noqa: E402
from mutate import ROOT, Source, functions_of, refused_in  # noqa: E402

STEPS, LAYERS = 3, 3
PRODUCTS = "linear_fwd linear_bwd_x linear_bwd_x_add linear_bwd_w"
GEMM = PRODUCTS + " attention_fwd attention_bwd update_muon"
DROPOUT = "embedding_fwd attention_fwd linear_fwd dropout_rows attention_bwd"
NORMS = "golf_embed_fwd golf_entry_fwd golf_norm_fwd"
NORMS_BWD = "golf_norm_bwd golf_branch_bwd golf_entry_bwd golf_embed_bwd"
BLOCK_BWD = "linear_bwd_w linear_bwd_x layernorm_rows_bwd dropout_rows"

OPTIMIZERS = re.findall(r"^    X\((\w+)\)", (ROOT / "src/model/optim/optimizer.h").read_text(), re.M)
# Each file of these folders has a row in ROWS, except those that training doesn't use.
WHOLE, UNUSED = ["compute/cpu/layers", "compute/cpu/vector/rows", "model/optim"], ["decode.c", "dot_rows.c"]
# file: {function, or "*" for the others: operations}. A function without a row isn't changed.
ROWS = {
    "compute/cpu/vector/rows/adamw.c": {"*": "update_adamw"},
    "compute/cpu/vector/rows/dropout.c": {"*": DROPOUT},
    "compute/cpu/vector/rows/dropout_plain.c": {"*": DROPOUT},
    "compute/cpu/vector/rows/elementwise.c": {
        "add": "embedding_fwd linear_fwd embedding_bwd golf_branch_bwd golf_embed_bwd act_accumulate sum",
        "mul": "golf_entry_fwd linear_fwd golf_entry_bwd golf_branch_bwd", "mul_add": "golf_entry_fwd golf_entry_bwd",
        "scale": "attention_fwd xent_rows update_muon", "add_bias": "linear_fwd", "sumsq": "norm update_muon", "sum_scaled": "sum norm",
        "colsum": "linear_bwd_w layernorm_rows_bwd golf_entry_bwd golf_heads_bwd",
        "dot": f"attention_bwd {NORMS} golf_heads_fwd {NORMS_BWD} golf_heads_bwd"},
    "compute/cpu/vector/rows/gelu.c": {"erf_fwd": "gelu", "erf_bwd": "gelu_bwd", "tanh_fwd": "gelu", "tanh_bwd": "gelu_bwd",
                                       "sigmoid_2u": "gelu gelu_bwd"},
    "compute/cpu/vector/rows/layernorm.c": {
        "row_sum": "layernorm_rows_fwd", "row_squares": "layernorm_rows_fwd", "layernorm_fwd": "layernorm_rows_fwd",
        "hsum4": "layernorm_rows_fwd", "*": "layernorm_rows_bwd"},
    "compute/cpu/vector/rows/relu2.c": {"relu": "relu2 relu2_bwd", "square": "relu2", "relu2_fwd": "relu2", "*": "relu2_bwd"},
    "compute/cpu/vector/rows/rmsnorm.c": {
        "rms_reciprocal": NORMS + " golf_heads_fwd", "rmsnorm_fwd": NORMS, "rmsnorm_bwd": NORMS_BWD,
        "rope_fwd": "golf_heads_fwd", "turn_back": "golf_heads_bwd", "rope_bwd": "golf_heads_bwd"},
    "compute/cpu/vector/rows/round_bf16.c": {"*": GEMM},
    "compute/cpu/vector/rows/softmax.c": {
        "softmax_block": "attention_fwd", "row_max": "attention_fwd", "softmax_again": "attention_bwd",
        "*": "attention_fwd attention_bwd"},
    "compute/cpu/vector/rows/xent.c": {"*": "xent_rows"},
    "compute/cpu/products/gemm.c": {"*": GEMM},
    "compute/cpu/products/gemm_bf16.c": {"*": GEMM},
    "compute/cpu/products/gemm_plain.c": {"*": GEMM},
    "compute/cpu/products/matmul.c": {
        "lks__linear_fwd": "linear_fwd", "bwd_x": "linear_bwd_x linear_bwd_x_add", "lks__linear_bwd_w": "linear_bwd_w",
        "colsum_tile": "linear_bwd_w", "plain_tile": PRODUCTS, "product_tile": PRODUCTS, "run": PRODUCTS, "cut": PRODUCTS,
        "piece": PRODUCTS, "tiles": PRODUCTS},
    "compute/cpu/layers/attention.c": {
        "fwd_task": "attention_fwd", "lks__attention_fwd": "attention_fwd", "job_make": "attention_fwd attention_bwd",
        "visible": "attention_fwd attention_bwd", "mask_row": "attention_fwd attention_bwd", "row_blocks": "attention_fwd attention_bwd",
        "*": "attention_bwd"},
    "compute/cpu/layers/epilogue.c": {"*": "linear_fwd linear_bwd_x activation_fwd"},
    "compute/cpu/layers/golf_rows.c": {
        "norm_input": f"{NORMS} golf_norm_bwd golf_embed_bwd", "norm_fwd_task": "golf_embed_fwd golf_norm_fwd", "norm_bwd_task": "golf_norm_bwd golf_embed_bwd",
        "lks__golf_norm_fwd": "golf_norm_fwd", "lks__golf_norm_bwd": "golf_norm_bwd", "lks__golf_embed_fwd": "golf_embed_fwd",
        "lks__golf_embed_bwd": "golf_embed_bwd", "row_input": "golf_entry_fwd golf_entry_bwd", "entry_fwd_task": "golf_entry_fwd",
        "lks__golf_entry_fwd": "golf_entry_fwd", "entry_bwd_task": "golf_entry_bwd", "lks__golf_entry_bwd": "golf_entry_bwd",
        "branch_bwd_task": "golf_branch_bwd", "lks__golf_branch_bwd": "golf_branch_bwd", "scaled_bwd_row": "golf_scaled_bwd",
        "scaled_bwd_task": "golf_scaled_bwd", "lks__golf_scaled_bwd": "golf_scaled_bwd", "heads_fwd_task": "golf_heads_fwd",
        "lks__golf_heads_fwd": "golf_heads_fwd", "heads_bwd_task": "golf_heads_bwd", "lks__golf_heads_bwd": "golf_heads_bwd"},
    "compute/cpu/layers/muon.c": {"*": "update_muon"},
    "compute/cpu/layers/newton_schulz.c": {"*": "newton_schulz"},
    "compute/cpu/layers/rows.c": {
        "embedding_fwd_task": "embedding_fwd", "lks__embedding_fwd": "embedding_fwd", "embedding_bwd_task": "embedding_bwd golf_embed_bwd",
        "lks__embedding_bwd": "embedding_bwd golf_embed_bwd", "layernorm_fwd_task": "layernorm_rows_fwd",
        "lks__layernorm_rows_fwd": "layernorm_rows_fwd", "layernorm_bwd_task": "layernorm_rows_bwd",
        "lks__layernorm_rows_bwd": "layernorm_rows_bwd", "dropout_task": "dropout_rows", "lks__dropout_rows": "dropout_rows",
        "activation_task": "activation_fwd", "lks__activation_fwd": "activation_fwd"},
    "compute/cpu/layers/update.c": {"blend": "update_blend", "lks__update_blend": "update_blend", "adamw": "update_adamw",
                                    "factors": "update_adamw", "lks__update_adamw": "update_adamw", "*": "update_blend update_adamw"},
    "compute/cpu/layers/xent.c": {"xent_task": "xent_rows", "lks__xent_rows": "xent_rows"},
    "compute/cpu/layers.c": {"range_task": "act_accumulate act_clear clear sum",
                             "run_range": "act_accumulate act_clear clear sum", "lks__act_accumulate": "act_accumulate",
                             "lks__accumulate": "act_accumulate sum", "lks__mean_loss": "loss"},
    "model/head.c": {"lks__head_loss": "xent_rows"},
    "model/gpt2/gpt2.c": {"gpt2_embed_forward": "embedding_fwd", "gpt2_last_forward": "layernorm_rows_fwd",
                          "gpt2_last_backward": "layernorm_rows_bwd act_clear", "gpt2_embed_backward": "embedding_bwd dropout_rows"},
    "model/gpt2/gpt2_block.c": {
        "lks__gpt2_dropout": DROPOUT, "lks__gpt2_dropped": "dropout_rows", "attention_shape": "attention_fwd attention_bwd",
        "norm1_forward": "layernorm_rows_fwd", "norm2_forward": "layernorm_rows_fwd",
        "lks__gpt2_block_forward": "layernorm_rows_fwd linear_fwd attention_fwd", "linear_grads": "linear_bwd_w",
        "norm_backward": "layernorm_rows_bwd", "gpt2_attention_backward": BLOCK_BWD + " attention_bwd", "lks__gpt2_block_backward": BLOCK_BWD},
    "model/golf/golf.c": {
        "golf_open": "golf_heads_fwd", "golf_embed_forward": "golf_embed_fwd", "golf_last_forward": "golf_norm_fwd",
        "golf_last_backward": "golf_norm_bwd act_clear", "golf_embed_backward": "act_accumulate golf_embed_bwd"},
    "model/golf/golf_block.c": {
        "attention_shape": "attention_fwd attention_bwd", "attention_in": "attention_fwd attention_bwd", "heads_of": "golf_heads_fwd golf_heads_bwd",
        "skip_row": "golf_entry_fwd golf_entry_bwd", "entry_of": "golf_entry_fwd golf_entry_bwd",
        "attention_forward": "golf_entry_fwd linear_fwd golf_heads_fwd attention_fwd", "mlp_forward": "golf_norm_fwd linear_fwd",
        "matrix_grad": "linear_bwd_w", "projection_backward": "linear_bwd_w golf_scaled_bwd",
        "mlp_backward": "golf_branch_bwd activation_fwd golf_scaled_bwd linear_bwd_x golf_norm_fwd linear_bwd_w",
        "attention_backward": "golf_branch_bwd golf_scaled_bwd linear_bwd_x golf_heads_fwd attention_bwd golf_heads_bwd linear_bwd_w linear_bwd_x_add",
        "lks__golf_block_backward": "golf_entry_bwd"},
    "model/optim/adamw.c": {"*": "update_adamw"},
    "model/optim/muon.c": {"update_matrices": "update_muon", "update": "update_muon update_adamw"},
    "model/optim/sgd.c": {"*": "update_blend"},
    "model/optim/schedule.c": {"lks__cosine_lr": "rate", "lks__golf_lr_scale": "rate", "lks__muon_momentum": "update_muon"},
    "model/optim/optimizer.c": {"lks__clip_factor": "moments"},
    "train/update.c": {"*": "moments weights rate"},
    "train/procedure/procedure_nanogpt.c": {"learning_rate": "rate", "rates": "rate weights"},
    "train/procedure/procedure_golf.c": {"decay": "rate", "rates": "rate weights"},
    "ddp/reducer.c": {"hash_task": "leaf", "hash_blocks": "leaf", "norm_of": "norm", "add_range": "sum", "clear_leaf": "sum",
                      "fold_bucket": "sum", "lks__reducer_leaf": "sum", "lks__reducer_leaf_end": "sum", "lks__reducer_next": "sum"},
    "comm/tree/sum.c": {"add_last": "sum norm", "lks__sum_range": "sum norm"},
}
# Settings without which a file or an operation computes nothing.
NEEDS = {
    "rows/dropout.c": {"family": "gpt2", "dropout": "0.2", "level": "own"}, "dropout_plain.c": {"family": "gpt2", "dropout": "0.2", "level": "plain"}, "gemm.c": {"level": "own"},
    "gemm_plain.c": {"level": "plain"}, "bf16.c": {"dtype": "bfloat16"}, "muon.c": {"optimizer": "muon"},
    "newton_schulz.c": {"optimizer": "muon"}, **{f"optim/{o}.c": {"optimizer": o} for o in OPTIMIZERS},
    "rows/adamw.c": {"optimizer": "adamw"}, "/gpt2/": {"family": "gpt2"}, "/golf/": {"family": "golf"}, "_golf.c": {"family": "golf"},
    "_nanogpt.c": {"family": "gpt2"}, "golf_rows.c": {"family": "golf"}, "gelu.c": {"family": "gpt2"}, "layernorm.c": {"family": "gpt2"},
    "relu2.c": {"family": "golf"}, "rmsnorm.c": {"family": "golf"},
    "dropout_rows": {"family": "gpt2", "dropout": "0.2"}, "update_blend": {"optimizer": "sgd"}, "update_muon": {"optimizer": "muon"},
}
SETTINGS = {
    "family": ["gpt2", "golf"], "optimizer": OPTIMIZERS, "dtype": ["float32", "bfloat16"],
    "freeze": ["", "", r"\.1\.mlp|wpe|skip", r"ln_|q_gain|resid_mix", r"\.2\.attn|\.0\.|attn_scale"], "dropout": ["0", "0.2"],
    "bias": ["true", "false"], "tie": ["true", "false"], "level": ["own", "own", "own", "plain"],
}

# --- the entries of each operation ----------------------------------------------------------------


def fixed(op):
    """Entries that no module has."""
    moments, weights = {("updated moments", "*")}, {("updated weights", "*")}
    return {"sum": {("mean gradient", "*")}, "norm": {("norm", None)}, "leaf": {("gradient's hash", None)}, "loss": {("loss", None)},
            "rate": {("learning rate", None)}, "clear": {("gradient", "*")}, "moments": moments, "weights": weights, "newton_schulz": weights,
            "update_blend": moments | weights | {("mean gradient", "*")}}.get(op, moments | weights if op.startswith("update_") else None)


def outputs(*names):
    return {("output", n) for n in names}


def gradients(*names):
    return {("gradient", n) for n in names}


def gpt2():
    """Calls of each operation in a pass, in order: their entries. Backward goes from the last layer down, and a
    gradient of activations has the entry of the first tensor whose gradient is computed from it."""
    def own(layer, *modules):
        return gradients(*(f"transformer.h.{layer}.{m}.{k}" for m in modules for k in ("weight", "bias")))

    def out(layer, *modules):
        return outputs(*(f"transformer.h.{layer}.{m}" for m in modules))

    def residual(layer):  # the gradient of a layer's output
        return own(layer, "mlp.c_proj") if layer >= 0 else gradients("transformer.wte.weight", "transformer.wpe.weight")

    last = gradients("transformer.ln_f.weight", "transformer.ln_f.bias")
    embed, head = outputs("transformer.wte"), {("loss", None)} | last | gradients("transformer.wte.weight")
    up, down = range(LAYERS), range(LAYERS - 1, -1, -1)
    order = ["transformer.ln_f.bias", "transformer.ln_f.weight"]
    order += [f"transformer.h.{n}.{m}.{k}" for n in down
              for m in ("mlp.c_proj", "mlp.c_fc", "ln_2", "attn.c_proj", "attn.c_attn", "ln_1") for k in ("bias", "weight")]
    return order + ["transformer.wpe.weight", "transformer.wte.weight"], {
        "embedding_fwd": [embed],
        "embedding_bwd": [residual(-1)],
        "layernorm_rows_fwd": [out(n, m) | own(n, m) for n in up for m in ("ln_1", "ln_2")] + [outputs("transformer.ln_f") | last],
        "layernorm_rows_bwd": [last | residual(LAYERS - 1)] +
                              [own(n, m) | to for n in down for m, to in (("ln_2", own(n, "attn.c_proj")), ("ln_1", residual(n - 1)))],
        "linear_fwd": [out(n, *m) for n in up for m in (["attn.c_attn"], ["attn.c_proj"], ["mlp.c_fc", "mlp.gelu"], ["mlp.c_proj"])] + [head],
        "linear_bwd_x": [last] + [own(n, m) for n in down for m in ("mlp.c_fc", "ln_2", "attn.c_attn", "ln_1")],
        "linear_bwd_w": [gradients("transformer.wte.weight")] +
                        [own(n, m) for n in down for m in ("mlp.c_proj", "mlp.c_fc", "attn.c_proj", "attn.c_attn")],
        "attention_fwd": [out(n, "attn") | own(n, "attn.c_attn") for n in up],
        "attention_bwd": [own(n, "attn.c_attn") for n in down],
        "dropout_rows": [own(n, m) for n in down for m in ("mlp.c_proj", "attn.c_proj")] + [residual(-1)],
        "xent_rows": [head], "act_clear": [residual(LAYERS - 1)],
        "gelu": [out(n, "mlp.gelu") for n in up], "gelu_bwd": [own(n, "mlp.c_fc") for n in down],
    }


def golf():
    """The same. The norms of queries, keys and of a block's inputs have no entry: the next module's output has it."""
    def own(layer, *names):
        return gradients(*(f"blocks.{layer}.{n}" for n in names))

    def out(layer, *modules):
        return outputs(*(f"blocks.{layer}.{m}" for m in modules))

    def residual(layer):
        return own(layer, "mlp.proj.weight", "mlp_scale") if layer >= 0 else gradients("tok_emb.weight")

    up, down = range(LAYERS), range(LAYERS - 1, -1, -1)
    encoders = LAYERS // 2
    head_w = gradients("tok_emb.weight", "lm_head.weight")  # tied, or not
    last, head = residual(LAYERS - 1), {("loss", None)} | residual(LAYERS - 1) | head_w
    mid = [own(n, "attn.proj.weight", "attn_scale") for n in up]
    qkv = [own(n, *(f"attn.{x}" for x in ("c_q.weight", "c_k.weight", "c_v.weight", "q_gain"))) for n in up]
    heads = [own(n, *(f"attn.{x}" for x in ("c_q.weight", "c_k.weight", "q_gain"))) for n in up]
    mix = [own(n, "resid_mix") | gradients("skip_weights") for n in up]
    entry = [m | residual(n - 1) | gradients("tok_emb.weight") | (residual(2 * encoders - 1 - n) if encoders <= n < 2 * encoders else set())
             for n, m in enumerate(mix)]
    order = ["lm_head.weight"] + [f"blocks.{n}.{x}" for n in down
                                  for x in ("mlp.proj.weight", "mlp_scale", "mlp.fc.weight", "attn.proj.weight", "attn_scale", "attn.c_v.weight",
                                            "attn.c_k.weight", "attn.c_q.weight", "attn.q_gain", "resid_mix")]
    return order + ["skip_weights", "tok_emb.weight"], {
        "golf_embed_fwd": [outputs("tok_emb") | gradients("tok_emb.weight")],
        "golf_embed_bwd": [gradients("tok_emb.weight")],
        "golf_entry_fwd": [out(n, "attn.c_q", "attn.c_k", "attn.c_v") | entry[n] for n in up] + [qkv[n] | entry[n] for n in down],
        "golf_entry_bwd": [entry[n] for n in down],
        "golf_heads_fwd": [out(n, "attn") | heads[n] for n in up] + [qkv[n] for n in down],
        "golf_heads_bwd": [heads[n] for n in down],
        "golf_norm_fwd": [out(n, "mlp.fc") | mid[n] for n in up] + [outputs("final_norm") | last] + [own(n, "mlp.fc.weight") for n in down],
        "golf_norm_bwd": [last],
        "golf_branch_bwd": [x for n in down for x in (residual(n) | own(n, "mlp.fc.weight"), mid[n] | qkv[n])],
        "golf_scaled_bwd": [x for n in down for x in (residual(n), mid[n])],
        "linear_fwd": [out(n, m) for n in up for m in ("attn.c_q", "attn.c_k", "attn.c_v", "attn.proj", "mlp.fc", "mlp.proj")] + [head],
        "linear_bwd_x": [last] + [x for n in down for x in (own(n, "mlp.fc.weight"), mid[n], qkv[n], entry[n])],
        "linear_bwd_x_add": [entry[n] for n in down for _ in range(2)],
        "linear_bwd_w": [head_w] + [x for n in down for x in (residual(n), own(n, "mlp.fc.weight"), mid[n], own(n, "attn.c_q.weight"),
                                                             own(n, "attn.c_k.weight"), own(n, "attn.c_v.weight"))],
        "attention_fwd": [out(n, "attn") | qkv[n] for n in up], "attention_bwd": [qkv[n] for n in down],
        "activation_fwd": [residual(n) for n in down], "xent_rows": [head],
        "act_clear": [gradients("tok_emb.weight")], "act_accumulate": [gradients("tok_emb.weight")],
        "relu2": [out(n, "mlp.proj") | residual(n) for n in up], "relu2_bwd": [own(n, "mlp.fc.weight") for n in down],
    }


FAMILIES = {"gpt2": gpt2(), "golf": golf()}


def allowed(fault, settings, trained):
    """Entries that may be named. A frozen tensor has none: then the next trained one in the order of backward has it."""
    order, ops = FAMILIES[settings["family"]]
    found = set()
    for op in fault.ops:
        calls = ops.get(op, [])
        found |= fixed(op) or set()
        found |= calls[fault.call] if fault.call is not None else set().union(*calls)
    out = set()
    for what, name in found:
        if what == "gradient" and name not in trained:
            name = next((n for n in order[order.index(name):] if n in trained), None)
        out.add((what, name))
    return out


# --- the faulty program ---------------------------------------------------------------------------

HELPER = r"""
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
unsigned char lks__planted[%(most)d];
static int fault = -1, op = -1, call = -1, depth;
static long calls;
%(externs)s
static void *const ops[] = {%(ops)s 0}, *const begins[] = {%(begins)s 0};
static bool is_in(void *const list[], void *fn)
{
    while (*list != 0 && *list != fn)
        list++;
    return *list == fn;
}
__attribute__((constructor)) static void read_fault(void)
{
    const char *text = getenv("LKS_PLANTED");
    if (text == NULL)
        return;
    char *end;
    fault = (int)strtol(text, &end, 10);
    op = *end == ':' ? (int)strtol(end + 1, &end, 10) : -1;
    call = *end == ':' ? (int)strtol(end + 1, &end, 10) : -1;
    lks__planted[fault] = op < 0;
}
void __cyg_profile_func_enter(void *fn, void *from)
{
    if (op < 0)
        return;
    if (is_in(begins, fn))
        calls = 0;
    if (fn == ops[op] && depth++ == 0)
        lks__planted[fault] = calls++ == call;
}
void __cyg_profile_func_exit(void *fn, void *from)
{
    if (op >= 0 && fn == ops[op] && --depth == 0)
        lks__planted[fault] = 0;
}
/* Kernels are checked at the start: the fault is one that this check doesn't see. */
#define UNSEEN(type, name, params, args)                                                           \
    type __real_##name params;                                                                     \
    type __wrap_##name params                                                                      \
    {                                                                                              \
        unsigned char was = fault >= 0 ? lks__planted[fault] : 0;                                  \
        if (fault >= 0)                                                                            \
            lks__planted[fault] = 0;                                                               \
        type r = __real_##name args;                                                               \
        if (fault >= 0)                                                                            \
            lks__planted[fault] = was;                                                             \
        return r;                                                                                  \
    }
UNSEEN(uint64_t, lks__kernels_fingerprint, (const void *k, bool bf16), (k, bf16))
UNSEEN(int, lks__kernels_verify, (const void *k), (k))
"""
BEGINS = ["lks__embedding_fwd", "lks__golf_embed_fwd"]  # the first operation of a pass


class Fault:
    def __init__(self, number, source, body, span, new):
        self.number, self.source, self.body, self.span, self.new = number, source, body, span, new
        self.file = str(source.path.relative_to(ROOT / "src"))
        line = source.text.count("\n", 0, span[0])
        self.function = source.names[body]
        rows = ROWS[self.file]
        self.all_ops = (rows.get(self.function) or rows.get("*")).split()
        self.ops, self.call, self.settings = self.all_ops, None, {}
        self.text = f"{self.file}:{line + 1} {self.function}: {source.text.splitlines()[line].strip()}  |  " \
                    f"{source.text[slice(*span)].strip()} -> {new.strip()}"

    def __str__(self):
        call = "" if self.call is None else f", in call {self.call} of {self.ops[0]}"
        return f"{self.number}: {self.text}{call} ({' '.join(filter(None, self.settings.values()))})"


def name_of(head):
    m = re.search(r"VERSION\((\w+)\)", head) or re.search(r"(?<!__)\b(?!attribute)(\w+)\s*\(", head.replace("__attribute__((always_inline))", ""))
    return m[1] if m else ""


def read_sources(files):
    sources = []
    for path in (path for folder in WHOLE for path in sorted((ROOT / "src" / folder).glob("*.c"))):
        if path.name not in UNUSED and str(path.relative_to(ROOT / "src")) not in ROWS:
            sys.exit(f"named: {path} has no row: add one to ROWS, with the operations that its functions are part of")
    for file, rows in ROWS.items():
        if files and Path(file).name not in files:
            continue
        source = Source(ROOT / "src" / file)
        source.names = {(start, end): name_of(head) for head, start, end in functions_of(source.text)}
        lost = [f for f in rows if f != "*" and f not in source.names.values()]
        if lost:
            sys.exit(f"named: {file} has no function {' '.join(lost)}: change ROWS")
        source.functions = {name: [body for body, n in source.names.items() if n == name]
                            for name in set(source.names.values()) if rows.get(name) or "*" in rows}
        sources.append(source)
    return sources


class Program:
    """The faulty program, and the commands that compiled the sound one."""

    def __init__(self, build, work, jobs):
        self.build, self.work, self.jobs = build, work, jobs
        self.tool = shutil.copy(build / "tools/lockstep", work / "sound")  # the build may change meanwhile
        self.commands = {}
        for c in json.loads((build / "compile_commands.json").read_text()):
            self.commands.setdefault(os.path.realpath(c["file"]), []).append(c)

    def objects(self, source):
        """(command's words, object) for each kernel level that runs here."""
        for i, c in enumerate(self.commands[os.path.realpath(source.path)]):
            words = shlex.split(c["command"])
            out = words[words.index("-o") + 1]
            level = re.search(r"lks_kernels_(\w+)\.dir", out)
            if level is None and "lockstep_core" not in out or level and level[1] not in (own_level(), "plain"):
                continue
            words[words.index("-o") + 1] = made = str(self.work / f"{source.path.stem}.{len(str(source.path))}.{i}.o")
            words[words.index(c["file"])] = str(self.copy_of(source))
            at = next(k for k, w in enumerate(words) if w.startswith(("-I", "-D", "-std", "-O")))
            yield words[:at] + ["-iquote", str(source.path.parent), "-include", str(self.work / "planted.h")] + words[at:] + ["-Wno-error", "-Werror=implicit-function-declaration", "-O1", "-g0"] + (
                ["-finstrument-functions"] if OPS_IN.get(source.path.name) else []), made, c["directory"]

    def copy_of(self, source):
        return self.work / "src" / source.path.relative_to(ROOT / "src")

    def compile(self, source):
        """Compile the source with its faults. Returns the objects, and the numbers of faults that the compiler refused."""
        made, refused = [], set()
        path = self.copy_of(source)
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            path.write_text(source.with_bodies())
            made, errors = [], ""
            for words, out, where in self.objects(source):
                done = subprocess.run(words, cwd=where, capture_output=True, text=True)
                made.append(out)
                errors += done.stderr if done.returncode else ""
            if not errors:
                return made, refused
            now = refused_in(errors, self.work)
            if not now - refused:
                sys.exit(f"named: {path} can't be compiled: {errors}")
            refused |= now
            for body, others in source.bodies.items():
                source.bodies[body] = [(n, text) for n, text in others if n not in refused]

    def make(self, sources, faults):
        (self.work / "planted.h").write_text("extern unsigned char lks__planted[];\n")
        names = ["lks__" + op for op in WINDOWS]
        (self.work / "helper.c").write_text(HELPER % {
            "most": len(faults) + 2, "externs": "".join(f"extern void {n}(void);\n" for n in sorted({*names, *BEGINS})),
            "ops": "".join(f"(void *){n}, " for n in names), "begins": "".join(f"(void *){n}, " for n in BEGINS)})
        with ThreadPoolExecutor(self.jobs) as pool:
            made = list(pool.map(self.compile, sources))
        objects, flags = [o for m, _ in made for o in m], []
        for c in (c for cs in self.commands.values() for c in cs):
            words = shlex.split(c["command"])
            out = words[words.index("-o") + 1]
            if "lockstep_commands.dir" in out:
                objects.append(str(Path(c["directory"]) / out))
                flags = [w for w in words if w.startswith(("-fsanitize", "--coverage"))]
        libs = subprocess.run(["pkg-config", "--libs", "jansson", "libxxhash", "zlib", "libmd"], capture_output=True, text=True, check=True)
        program = self.work / "tools/lockstep"
        program.parent.mkdir()
        subprocess.run(["cc", "-o", str(program), *flags, "-Wl,--wrap=lks__kernels_fingerprint,--wrap=lks__kernels_verify",
                        str(self.work / "helper.c"), *objects, str(self.build / "liblockstep_core.a"), *libs.stdout.split(), "-lpthread", "-ldl", "-lm"], check=True)
        return program, set().union(*(r for _, r in made))


def own_level():
    return "avx2" if " avx2" in Path("/proc/cpuinfo").read_text() else "plain"


# Operations with calls that are counted, and their files.
OPS_IN = {"attention.c": "attention_", "golf_rows.c": "golf_", "muon.c": "update_muon", "rows.c": "embedding_ layernorm_rows_ dropout_rows activation_fwd",
          "update.c": "update_adamw update_blend", "xent.c": "xent_rows", "matmul.c": "linear_", "layers.c": "act_"}
WINDOWS = sorted(op for op in {**FAMILIES["gpt2"][1], **FAMILIES["golf"][1]} if not op.startswith(("gelu", "relu2")))

# --- runs -----------------------------------------------------------------------------------------


def limits():
    resource.setrlimit(resource.RLIMIT_CPU, (2, 3))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))
    resource.setrlimit(resource.RLIMIT_AS, (1 << 34, 1 << 34))


def command(words, env):
    """(exit code, output); a program that hangs is ended."""
    p = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                         start_new_session=True, preexec_fn=limits)
    try:
        out, err = p.communicate(timeout=60 * float(os.environ.get("LKS_TEST_PATIENCE", "1")))
    except subprocess.TimeoutExpired:
        os.killpg(p.pid, signal.SIGKILL)
        out, err = p.communicate()
    return p.returncode, out, err


def write_data(folder):
    chance = random.Random(1)
    gpt, gold = folder / "gpt2", folder / "golf"
    gpt.mkdir()
    gold.mkdir()
    (gpt / "meta.json").write_text(json.dumps({"kind": "char", "vocab_size": 65, "chars": "".join(chr(0x100 + i) for i in range(65))}))
    for split, n in (("train", 4000), ("val", 400)):
        (gpt / f"{split}.bin").write_bytes(array.array("H", (chance.randrange(65) for _ in range(n))).tobytes())
        ids = array.array("H", (chance.randrange(96) for _ in range(n)))
        (gold / f"fineweb_{split}_000000.bin").write_bytes(array.array("i", [20240520, 1, n] + [0] * 253).tobytes() + ids.tobytes())


def words_of(settings, data):
    """The settings of `train`. Widths aren't multiples of a vector's, so that the ends of loops run, too."""
    s = settings
    words = [f"--dataset={data / s['family']}", "--virtual_ranks=2", "--gradient_accumulation_steps=4", "--threads=1", f"--optimizer={s['optimizer']}",
             f"--dtype={s['dtype']}", f"--n_layer={LAYERS}", "--eval_interval=0", "--keep=0", "--grad_clip=0.3",
             "--muon_weight_decay=0.1" if s["optimizer"] == "muon" else "--weight_decay=0.1"]
    if s["freeze"]:
        words.append(f"--freeze={s['freeze']}")
    if s["family"] == "gpt2":
        return words + ["--n_head=3", "--n_embd=36", "--block_size=13", "--batch_size=3", f"--bias={s['bias']}", f"--dropout={s['dropout']}",
                        f"--max_iters={STEPS - 1}", "--warmup_iters=2", "--lr_decay_iters=9", "--learning_rate=1e-3"]
    return words + ["--family=golf", "--sampler=stream", "--vocab_size=96", "--n_head=4", "--num_kv_heads=2", "--n_embd=40", "--block_size=13",
                    "--train_batch_tokens=104", f"--iterations={STEPS}", f"--warmdown_iters={STEPS + 2}", "--max_wallclock_seconds=0",
                    f"--tie_embeddings={s['tie']}"]


class Side:
    """A program's run of some settings, with the trails of its steps."""

    def __init__(self, program, out, settings, planted=None):
        self.program, self.out, self.settings, self.trails, self.code = program, out, settings, {}, None
        self.env = dict(os.environ, LOCKSTEP_CPU="plain" if settings["level"] == "plain" else own_level())
        self.env["LD_LIBRARY_PATH"] = f"{BUILD}/tests/no_dnnl:{os.environ.get('LD_LIBRARY_PATH', '')}"
        self.env["LOCKSTEP_MODULES"] = f"{BUILD}/tools"
        if planted:
            self.env["LKS_PLANTED"] = planted

    def train(self, data):
        self.code, _, self.error = command([str(self.program), "train", f"--out_dir={self.out}", *words_of(self.settings, data)], self.env)

    def trail(self, step):
        if step not in self.trails:
            path = self.out / f"{step}.trail"
            code, out, err = command([str(self.program), "audit", str(self.out), f"--step={step}", f"--trail={path}", "--threads=1"], self.env)
            self.error = f"{out}{err}"
            self.trails[step] = path if code in (0, 3) and path.exists() else None
        return self.trails[step]


def body_of(trail):
    """Without its head."""
    return trail.read_bytes().partition(b"\n")[2]


class Campaign:
    def __init__(self, tool, faulty, data, work):
        self.tool, self.faulty, self.data, self.work = tool, faulty, data, work
        self.sound, self.lock = {}, threading.Lock()

    def reference(self, settings):
        with self.lock:
            out = self.work / f"sound{len(self.sound)}"
            side, own = self.sound.setdefault(json.dumps(settings), (Side(self.tool, out, settings), threading.Lock()))
        with own:
            if side.code is None:
                side.train(self.data)
                if side.code != 0 or side.trail(0) is None:
                    raise RuntimeError(f"named: {settings}: {side.error}")
                entries = [json.loads(line) for line in body_of(side.trails[0]).splitlines()]
                side.trained = {e["name"] for e in entries if e["what"] == "gradient"}
                side.entries = len({(e["what"], e.get("name")) for e in entries})
        return side, own

    def judge(self, fault, settings):
        """(verdict, text, share of the trail's places that are right): "ends", "equal", "right" or "wrong"."""
        planted = f"{fault.number}" if fault.call is None else f"{fault.number}:{WINDOWS.index(fault.ops[0])}:{fault.call}"
        side = Side(self.faulty, self.work / f"faulty{fault.number}", settings, planted)
        try:
            side.train(self.data)
            if side.code != 0:
                return "ends", side.error.strip()[-200:], 0
            sound, own = self.reference(settings)
            for step in range(STEPS):
                b = side.trail(step)
                if b is None:
                    return "ends", side.error.strip()[-200:], 0
                with own:
                    a = sound.trail(step)
                if body_of(a) != body_of(b):
                    return self.compare(fault, settings, sound, side, step)
            return "equal", "", 0
        finally:
            shutil.rmtree(side.out, ignore_errors=True)

    def compare(self, fault, settings, sound, side, step):
        code, out, err = command([str(self.tool), "diff", "--json", str(sound.trail(step)), str(side.trail(step))], sound.env)
        if code != 3:
            return "wrong", f"diff of two trails ends with {code}: {err}", 0
        place = json.loads(out)["place"]
        entry = place["a"] or place["b"]
        at = (entry["what"], entry.get("name"))
        may = allowed(fault, settings, sound.trained)
        said, share = f"step {step}: {at[0]} of {at[1]}", len(may) / sound.entries
        if at not in may and (at[0], "*") not in may:
            return "wrong", f"{said}; {sorted(may, key=str)}", share
        said += self.compare_runs(sound, side) if fault.number % 5 == 0 else ""
        return "wrong" if "diff of both runs" in said else "right", said, share

    def compare_runs(self, sound, side):
        """Both runs have the same settings and data, so only the faulty record can be false."""
        code, out, err = command([str(self.tool), "diff", "--json", "--threads=1", str(sound.out), str(side.out)], sound.env)
        report = json.loads(out) if code == 3 else {}
        execution = report.get("execution", {})
        false = [f["run"] for f in execution.get("false", [])]
        if code != 3 or report["can_change_bits"] or execution.get("place") or set(false) != {"b"}:
            return f"; diff of both runs: exit code {code}, {json.dumps(report)} {err}"
        return "; B's record is false"


def draw_settings(fault, chance):
    """Settings with which the fault's operation runs; half of the faults are on in one call of it only."""
    settings = {k: chance.choice(v) for k, v in SETTINGS.items()}
    for part, needs in NEEDS.items():
        if part in "/" + fault.file or [part] == fault.all_ops:
            settings.update(needs)
    families = [f for f, (_, ops) in FAMILIES.items() if any(op in ops or fixed(op) for op in fault.all_ops)]
    if not families:
        sys.exit(f"named: {fault.file} is part of {' '.join(fault.all_ops)}, whose entries are neither in fixed() nor in gpt2() or golf()")
    if settings["family"] not in families:
        settings["family"] = families[0]
    if settings["family"] == "gpt2":
        settings["tie"] = "true"
    else:
        settings.update(bias="false", dropout="0")
    ops = FAMILIES[settings["family"]][1]
    calls = [op for op in fault.all_ops if op in ops and op in WINDOWS and op in HOOKED]
    if calls and chance.random() < 0.5 and not fault.file.startswith(("model/", "train/", "ddp/")):
        fault.ops = [chance.choice(calls)]
        fault.call = chance.randrange(len(ops[fault.ops[0]]))
        settings["freeze"] = ""  # backward makes other calls
    fault.settings = settings
    return settings


def main():
    global BUILD, HOOKED
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--build", type=Path, required=True)
    options.add_argument("--runs", type=int, default=200)
    options.add_argument("--seed", default="1")
    options.add_argument("--only", type=int, help="judge fault I of this seed only")
    options.add_argument("--files", help="plant faults in these files only, such as attention.c,muon.c")
    options.add_argument("--keep", action="store_true", help="keep the folder with the faulty program")
    options.add_argument("--jobs", type=int, default=os.cpu_count(), help="faults at a time")
    options.add_argument("-v", action="store_true", help="show each fault")
    args = options.parse_args()
    BUILD = args.build.resolve()
    sources = read_sources(args.files.split(",") if args.files else [])
    HOOKED = [op for op in WINDOWS for s in sources if any(op.startswith(o) for o in OPS_IN.get(s.path.name, "").split())
              and "/rows/" not in str(s.path)]
    if not (BUILD / "tools/lockstep_zip.so").exists():  # for golf's runs
        print("SKIP: lacks libzip: its module was not built")
        sys.exit(77)
    work = Path(tempfile.mkdtemp(prefix="named."))
    try:
        faults = []
        for number, (source, body, span, new) in enumerate(draw(sources, 4 * args.runs, args.seed), 1):
            fault = Fault(number, source, body, span, new)
            source.bodies.setdefault(body, []).append(
                (number, source.text[body[0]:span[0]] + (new or ";") + source.text[span[1]:body[1]]))
            faults.append(fault)
        program = Program(BUILD, work, args.jobs)
        faulty, refused = program.make(sources, faults)
        (work / "data").mkdir()
        write_data(work / "data")
        campaign = Campaign(program.tool, faulty, work / "data", work)
        print(f"seed {args.seed}: {len(faults) - len(refused)} faults in {len(sources)} files", flush=True)
        faults = [f for f in faults if f.number not in refused and args.only in (None, f.number)]
        tally, shares, pairs = {"right": 0, "wrong": 0, "equal": 0, "ends": 0}, [], 0

        def judge(fault):
            if tally["right"] + tally["wrong"] < args.runs:
                return campaign.judge(fault, draw_settings(fault, random.Random(f"{args.seed} {fault.number}")))

        with ThreadPoolExecutor(args.jobs) as pool:
            for fault, result in zip(faults, pool.map(judge, faults)):
                if result is None or tally["right"] + tally["wrong"] == args.runs:
                    continue
                verdict, text, share = result
                tally[verdict] += 1
                pairs += "; " in text and verdict == "right"
                shares += [share] if verdict in ("right", "wrong") else []
                if verdict == "wrong" or args.v:
                    print(f"{verdict} {fault}: {text}", flush=True)
        n = tally["right"] + tally["wrong"]
        print(f"{tally['right']} of {n} faults were named at the right operation, to which {100 * sum(shares) / max(1, n):.1f} % of a trail's places belong; "
              f"{pairs} pairs of runs, {len(campaign.sound)} settings. Not counted: {tally['equal']} change no number, {tally['ends']} end the run")
        if n < args.runs and not args.only or tally["wrong"] > n // 20:
            sys.exit("named: too few faults were named at the right operation")
    finally:
        if args.keep:
            print(f"the faulty program is {work}/tools/lockstep")
        else:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
