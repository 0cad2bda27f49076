"""Records tests/figures/pickle: what PyTorch and Python's pickle write.

    python3 tests/pickle/record.py tests/figures/pickle

It needs PyTorch. The files are small; the tests know what is in them.
"""
import collections
import pickle
import sys

import torch

folder = sys.argv[1]


def plain(protocol):
    """Every kind of plain value, some of them twice."""
    shared = ("twice", [1, 2, 3])
    value = {
        "none": None, "yes": True, "no": False, "text": "a\u00e9\u20ac\U0001f600\0b", "empty": "",
        "long": "x" * 300, "bytes": b"\x00\x7f\x80\xff", "no_bytes": b"", "many_bytes": bytes(range(256)) * 2,
        "ints": [0, 1, 255, 256, 65535, 65536, -1, -128, -129, 2**31 - 1, -2**31, 2**31, 2**62, -2**63, 2**63 - 1],
        "floats": [0.0, -0.5, 1e300, 5e-324, float("inf")],
        "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
        "lists": [[], [[]], list(range(1005))],
        "dicts": [{}, {5: "five", -1: "minus"}, {str(i): i for i in range(1005)}],
        "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
        "shared": [shared, shared],
    }
    with open(f"{folder}/plain{protocol}.pkl", "wb") as f:
        pickle.dump(value, f, protocol)


def meta():
    """As nanoGPT's data/shakespeare_char/prepare.py does."""
    chars = sorted(set("\n !abcXYZ\u00e9\u20ac"))
    stoi = {ch: i for i, ch in enumerate(chars)}
    itos = {i: ch for i, ch in enumerate(chars)}
    with open(f"{folder}/meta.pkl", "wb") as f:
        pickle.dump({"vocab_size": len(chars), "itos": itos, "stoi": stoi}, f)


def tensors():
    """Every type, views of one storage, strides, a parameter, a state dict."""
    count = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    linear = torch.nn.Linear(3, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.arange(6).reshape(2, 3) / 4)
        linear.bias.copy_(torch.tensor([-1.0, 2.0]))
    value = {
        "types": {
            str(t).removeprefix("torch."): torch.tensor([0, 1, 2, 100], dtype=t)
            for t in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
                      torch.int16, torch.int8, torch.uint8)
        } | {"bool": torch.tensor([True, False, True])},
        "whole": count, "part": count[1], "turned": count.permute(2, 0, 1), "steps": count[:, 1, ::2],
        "scalar": torch.tensor(1.5), "nothing": torch.zeros(0, 3), "one": torch.tensor([[7.0]]),
        "parameter": torch.nn.Parameter(torch.tensor([0.5, 0.25])),
        "state": linear.state_dict(), "bytes": b"\x01\xff", "name": "x",
    }
    torch.save(value, f"{folder}/tensors.pt")
    torch.save({"a": torch.tensor([1.0])}, f"{folder}/legacy.pt", _use_new_zipfile_serialization=False)


for p in range(2, 6):
    plain(p)
meta()
tensors()
