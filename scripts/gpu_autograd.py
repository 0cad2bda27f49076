"""Gradients of lockstep beside those that PyTorch's autograd gives the original models; gpu-check runs it with
the Python of --python, which needs PyTorch, and NumPy for parameter-golf's script.

    python3 scripts/gpu_autograd.py JOBS.json

JOBS.json is a list of objects. `script` is nanoGPT's model.py or parameter-golf's train_gpt.py, and `config` what its
class GPT takes. `before` and `after` are the model.safetensors on both sides of one step of SGD at the rate `rate`:
their difference is lockstep's gradient. `tokens` is a file of 16-bit tokens: `batches` batches, one after another, each
of `rows` sequences of `block` tokens and one more token, the last target. All is computed in float32, on a GPU if
PyTorch has one. It prints a list with an object for each job: `loss`, and of each tensor `cosine`, `off` (how far
lockstep's gradient is from PyTorch's) and `norm` of PyTorch's.
"""
import array
import importlib.util
import json
import sys
import types

import torch


def model_of(job, device):
    """The script's own model; importing it runs nothing on a GPU."""
    try:
        import sentencepiece  # noqa: F401
    except ImportError:  # parameter-golf's script imports it, but its model doesn't use it
        sys.modules["sentencepiece"] = types.ModuleType("sentencepiece")
    spec = importlib.util.spec_from_file_location("script", job["script"])
    script = sys.modules["script"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    model = script.GPT(script.GPTConfig(**job["config"])) if hasattr(script, "GPTConfig") else script.GPT(**job["config"])
    return model.float().to(device)


def tensors_of(path):
    """{name: tensor} of a model.safetensors in float32."""
    with open(path, "rb") as f:
        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = bytearray(f.read())
    return {name: torch.frombuffer(data, dtype=torch.float32, count=(t["data_offsets"][1] - t["data_offsets"][0]) // 4,
                                   offset=t["data_offsets"][0]).reshape(t["shape"])
            for name, t in head.items() if name != "__metadata__"}


def batches_of(job):
    """Pairs of inputs and targets."""
    rows, block = job["rows"], job["block"]
    tokens = array.array("H")
    with open(job["tokens"], "rb") as f:
        tokens.frombytes(f.read())
    for k in range(job["batches"]):
        span = torch.tensor(tokens[k * (rows * block + 1):(k + 1) * (rows * block + 1)].tolist())
        yield span[:-1].reshape(rows, block), span[1:].reshape(rows, block)


def compare(job):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, before, after = model_of(job, device), tensors_of(job["before"]), tensors_of(job["after"])
    theirs = dict(model.named_parameters())
    if theirs.keys() != before.keys():
        raise ValueError(f"other tensors in {job['script']}: {sorted(theirs.keys() ^ before.keys())}")
    with torch.no_grad():
        for name, p in theirs.items():
            p.copy_(before[name])
    total = 0.0
    for x, y in batches_of(job):
        loss = model(x.to(device), y.to(device))
        loss = (loss[1] if isinstance(loss, tuple) else loss) / job["batches"]  # nanoGPT's model returns logits, too
        loss.backward()
        total += loss.item()
    found = {"loss": total, "device": device, "cosine": {}, "off": {}, "norm": {}}
    for name, p in theirs.items():
        b = before[name].double()
        want, got = p.grad.cpu().double(), (b - after[name].double()) / job["rate"]
        norms = want.norm().item(), got.norm().item()
        # SGD's step rounds each parameter to float32.
        far = max(0.0, (got - want).norm().item() - 6e-8 * b.norm().item() / job["rate"])
        found["norm"][name] = norms[0]
        found["off"][name] = far / norms[0] if norms[0] > 0 else far
        found["cosine"][name] = (got * want).sum().item() / (norms[0] * norms[1]) if min(norms) > 0 else float(max(norms) == 0)
    return found


with open(sys.argv[1]) as f:
    print("\n" + json.dumps([compare(job) for job in json.load(f)]))
