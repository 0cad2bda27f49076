"""Times of PyTorch's causal attention in bfloat16 on a GPU; gpu-first runs it with the Python of --python, which needs PyTorch.

    python3 scripts/gpu_attention.py SHAPES

SHAPES is a JSON list of shapes [batch, heads, tokens, head size]. It prints an object: for each shape, and for flash attention and
cuDNN's, the microseconds of `forward` and `backward` (medians of 20), or `left out` with the reason.
"""
import json
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

TURNS = 20


def microseconds(work):
    """The median of the turns, after three that aren't counted."""
    times = []
    for turn in range(3 + TURNS):
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        work()
        ended.record()
        ended.synchronize()
        if turn >= 3:
            times.append(begun.elapsed_time(ended) * 1e3)
    return round(statistics.median(times), 1)


def measure(shape, backend):
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    attend = torch.nn.functional.scaled_dot_product_attention
    with sdpa_kernel(backend):
        forward = microseconds(lambda: attend(q, k, v, is_causal=True))
        y = attend(q, k, v, is_causal=True)
        dy = torch.randn_like(y)
        backward = microseconds(lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True))
    return {"forward": forward, "backward": backward}


found = {}
for shape in json.loads(sys.argv[1]):
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)):
        try:
            found[f"{name} {tuple(shape)}"] = measure(shape, backend)
        except RuntimeError as e:
            found[f"{name} {tuple(shape)}"] = {"left out": str(e)[-300:]}
print("\n" + json.dumps({"PyTorch": torch.__version__, "GPU": torch.cuda.get_device_name(), **found}))
