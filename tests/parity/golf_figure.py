#!/usr/bin/env python3
"""A figure for tests/figures: parameter-golf's own train_gpt.py, run by one process on the CPU in fp32, and what it did.

    NUM_LAYERS=3 MODEL_DIM=96 … python3 tests/parity/golf_figure.py SCRIPT TOKENIZER FIGURE.json

Settings come from the environment, as the script takes them; the data are the generated tokens of tests/figures/README.md.
SCRIPT is the path of parameter-golf's train_gpt.py, TOKENIZER a SentencePiece model of 1,024 tokens. Needs PyTorch and the
sentencepiece package. With GOLF_FIGURE_FLOAT64=1 everything is computed in float64 (parameters drawn in fp32).
GOLF_FIGURE_VAL=N takes the first N of the 20,000 generated validation tokens.

    LKS_TEST_GOLF_FIGURES=FIGURE.json[:…] ctest --test-dir build -R parity_golf

then holds lockstep to it, beside the figures that are there.

    python3 tests/parity/golf_figure.py --spread SCRIPT TOKENIZER FIGURE.json

runs a recorded figure's settings again, in fp32 and in float64, and writes into it how far the three are apart.
"""
import contextlib, io, json, os, sys, tempfile

import numpy as np
import torch

sys.dont_write_bytecode = True
from nanogpt_figure import generated_tokens, signs, sums

HOW = """parameter-golf's train_gpt.py run by one process on the CPU, by tests/parity/golf_figure.py. Changed: everything in
fp32 (no autocast, the model is not cast to bf16; Newton-Schulz and the flat buffer of Muon's updates are fp32), no
torch.compile, Adam not fused, no_grad in place of inference_mode; recording added. Data: the generated tokens of README.md.
train_loss[i]: mean over step i's micro-batches, before the update; micro_losses has each. lr_scale[i], muon_momentum[i]: used in
step i. grad_norm[i]: of all gradients before clipping. vals: eval_val after `step` updates. init, final: parameters: shape, sums
in float64, of init the first and last 8 values. grad0, grad3: gradients of steps 0 and 3 before clipping; dots as in the other
golf figures. val_tokens in config: the number of validation tokens, 20,000 without it. quant: the int8 export; for each quantized tensor sums of q, of |q| and of the scales. roundtrip: eval_val of the
dequantized weights. spread: largest difference of train_loss from a run in float64, over the first k steps, and of the gradients of steps 0 and 3,
each relative to its tensor's norm: of whole tensors, and of what is recorded of them."""


PATTERNS = "CONTROL_TENSOR_NAME_PATTERNS", "INT8_KEEP_FLOAT_FP32_NAME_PATTERNS"


def write_shards(folder, n_val, vocab=1024):
    sizes = ("train_000000", 120000), ("train_000001", 80000), ("val_000000", n_val)
    tokens, at = generated_tokens(vocab, sum(n for _, n in sizes)), 0
    for name, n in sizes:
        header = np.zeros(256, "<i4")
        header[:3] = 20240520, 1, n
        with open(f"{folder}/fineweb_{name}.bin", "wb") as f:
            f.write(header.tobytes() + tokens[at:at + n].astype("<u2").tobytes())
        at += n


def with_ends(t):
    x = t.detach().double().reshape(-1)
    return sums(t) | {"first8": x[:8].tolist(), "last8": x[-8:].tolist() if len(x) > 8 else []}


def gradient(t, p):
    t = torch.zeros_like(p) if t is None else t
    x = t.detach().double().reshape(-1)
    dots = [torch.dot(x, signs(len(x), o)).item() for o in (0, 0x9E3779B9)]
    return sums(t) | {"first8": x[:8].tolist(), "dots": dots}


class Record:
    """What the script calls at the places that `patched` adds."""

    def __init__(self):
        self.figure = {k: [] for k in ("train_loss", "micro_losses", "lr_scale", "muon_momentum", "grad_norm", "vals")}
        self.evals, self.tensors = [], {}

    def built(self, args, model):
        self.args, self.model = args, model
        self.figure["config"] = {k.upper(): v for k, v in vars(type(args)).items()
                                 if not k.startswith("_") and not isinstance(v, str)}
        self.figure["config"] |= {k: os.environ[k] for k in PATTERNS if k in os.environ}
        if "GOLF_FIGURE_VAL" in os.environ:
            self.figure["config"]["val_tokens"] = int(os.environ["GOLF_FIGURE_VAL"])
        self.figure["init"] = {n: with_ends(p) for n, p in model.named_parameters()}
        self.figure["config"]["model_params"] = sum(p.numel() for p in model.parameters())
        self.keep("init", model)

    def keep(self, what, model, grads=False):
        for name, p in model.named_parameters():
            t = p.grad if grads else p
            self.tensors[f"{what}/{name}"] = (torch.zeros_like(p) if t is None else t).detach().numpy().copy()

    def micro(self, loss, step, micro_step):
        rows = self.figure["micro_losses"]
        rows += [[]] * 0 if len(rows) > step else [[]]
        rows[step].append(loss.item())

    def step(self, step, loss, scale, momentum):
        f, params = self.figure, dict(self.model.named_parameters())
        f["train_loss"].append(loss.item())
        f["lr_scale"].append(scale)
        f["muon_momentum"].append(momentum)
        norms = [p.grad.double().norm() for p in params.values() if p.grad is not None]
        f["grad_norm"].append(torch.stack(norms).norm().item())
        if step in (0, 3):
            f[f"grad{step}"] = {n: gradient(p.grad, p) for n, p in params.items()}
            self.keep(f"grad{step}", self.model, grads=True)

    def validated(self, step, val_loss, val_bpb):
        self.figure["vals"].append({"step": step, "val_loss": val_loss, "val_bpb": val_bpb})

    def quantized(self, obj, stats, blob):
        self.figure["final"] = {n: sums(p) for n, p in self.model.named_parameters()}
        self.keep("final", self.model)
        q = {n: {"sum": int(t.long().sum()), "abs_sum": int(t.long().abs().sum()),
                 "scale_sum": obj["scales"][n].double().sum().item()} for n, t in obj["quantized"].items()}
        self.figure["quant"] = {"stats": stats, "int8_zlib_bytes": len(blob), "quantized_names": sorted(q),
                                "passthrough_names": sorted(obj["passthrough"]), "tensors": q}
        for n, t in obj["quantized"].items():
            self.tensors[f"q/{n}"], self.tensors[f"scale/{n}"] = t.numpy(), obj["scales"][n].numpy()

    def roundtrip(self, val_loss, val_bpb):
        self.figure["roundtrip"] = {"val_loss": val_loss, "val_bpb": val_bpb}


def patched(source, real):
    """The script for the CPU, in the floating-point type `real`, telling `record` what it does."""
    def change(old, new, count=1):
        nonlocal source
        if source.count(old) < count:
            sys.exit(f"golf_figure: the script has no longer {count} of: {old}")
        source = source.replace(old, new)
    change("G.bfloat16()", f"G.to({real})")
    change("dtype=torch.bfloat16)", f"dtype={real})")
    change(".to(device).bfloat16()", f".to(device).to({real})")
    change("            module.float()\n", "            pass\n")
    change("    restore_low_dim_params_to_fp32(base_model)\n", "    record.built(args, base_model)\n")
    change('torch.autocast(device_type="cuda", dtype=torch.bfloat16, enabled=True)', "contextlib.nullcontext()", 2)
    change("torch.compile(base_model, dynamic=False, fullgraph=True)", "base_model")
    change("    zeropower_via_newtonschulz5 = torch.compile(zeropower_via_newtonschulz5)\n", "")
    change("fused=True", "fused=False", 3)
    change('raise RuntimeError("CUDA is required")', "pass")
    change('torch.device("cuda", local_rank)', 'torch.device("cpu")')
    change("    torch.cuda.set_device(device)\n", "")
    change("    enable_flash_sdp(True)\n    enable_mem_efficient_sdp(False)\n    enable_math_sdp(False)\n", "")
    change("torch.cuda.synchronize()", "pass")
    change("torch.cuda.max_memory_allocated()", "0")
    change("torch.cuda.max_memory_reserved()", "0")
    change('subprocess.run(["nvidia-smi"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False).stdout', '""')
    change("torch.inference_mode()", "torch.no_grad()")
    change("F.rms_norm(x, (x.size(-1),), eps=self.eps)", "F.rms_norm(x, (x.size(-1),), eps=EPS)")
    for x in "xqk":
        change(f"F.rms_norm({x}, ({x}.size(-1),))", f"F.rms_norm({x}, ({x}.size(-1),), eps=EPS)")
    if real == "torch.float64":
        change("logits.float()", "logits.double()")
        change("train_loss = torch.zeros((), device=device)", "train_loss = torch.zeros((), device=device, dtype=torch.float64)")
    change("            train_loss += loss.detach()\n",
           "            train_loss += loss.detach()\n            record.micro(loss, step, micro_step)\n")
    change("        if args.grad_clip_norm > 0:\n",
           "        record.step(step, train_loss, scale, muon_momentum)\n        if args.grad_clip_norm > 0:\n")
    change('            log0(\n                f"step:{step}/{args.iterations} val_loss',
           '            record.validated(step, val_loss, val_bpb)\n            log0(\n                f"step:{step}/{args.iterations} val_loss')
    change("    quant_raw_bytes = len(quant_raw)\n",
           "    quant_raw_bytes = len(quant_raw)\n    record.quantized(quant_obj, quant_stats, quant_blob)\n")
    change('    log0(\n        f"final_int8_zlib_roundtrip val_loss',
           '    record.roundtrip(q_val_loss, q_val_bpb)\n    log0(\n        f"final_int8_zlib_roundtrip val_loss')
    return source


def run_script(script, real):
    record = Record()
    with open(script, encoding="utf-8") as f:
        source = patched(f.read(), real)
    path = "patched_train_gpt.py"
    with open(path, "w", encoding="utf-8") as f:
        f.write(source)
    space = {"__name__": "golf", "__file__": path, "record": record, "contextlib": contextlib, "EPS": 1.1920928955078125e-07}
    exec(compile(source, path, "exec"), space)
    space["main"]()
    return record


def furthest(pairs, relative=False):
    return max((abs(a - b) / (abs(b) if relative else 1.0) for a, b in pairs), default=0.0)


def by_tensor(figure, exact, what):
    """The largest difference of the tensors' norms ("norm") or sums ("sum") after the run, relative to the norm."""
    far = 0.0
    for name, want in exact["final"].items():
        got, norm = figure["final"][name], want["sumsq"] ** 0.5
        if norm > 0:
            far = max(far, abs(got["sumsq"] ** 0.5 - norm if what == "norm" else got["sum"] - want["sum"]) / norm)
    return far


def spread_of_run(figure, exact):
    """How far one run is from another in all that tests look at after the first steps."""
    return {
        "grad_norm": furthest(zip(figure["grad_norm"], exact["grad_norm"]), relative=True),
        "val_loss": furthest((a["val_loss"], b["val_loss"]) for a, b in zip(figure["vals"], exact["vals"])),
        "roundtrip": furthest([(figure["roundtrip"]["val_loss"], exact["roundtrip"]["val_loss"])]),
        "final_norm": by_tensor(figure, exact, "norm"),
        "final_sum": by_tensor(figure, exact, "sum"),
    }


def of_described(got, want):
    """How far what is recorded of a tensor is off: its sum, dots and single values."""
    pairs = [(got["sum"], want["sum"])] + [pair for key in ("dots", "first8", "last8") for pair in zip(got.get(key, []), want.get(key, []))]
    return furthest(pairs)


def spread(record, exact):
    """How far fp32 is from float64: in the first losses; in each section's gradients, as whole tensors and in what is
    recorded of them, relative to their norms; and at the end."""
    off = [abs(a - b) for a, b in zip(record.figure["train_loss"], exact.figure["train_loss"])]
    result = {f"first_{k}": max(off[:k]) for k in (1, 2, 5, 10, 20, 50, 100, 200) if k <= len(off)}
    result["train_loss"] = max(off)
    for name, t in exact.tensors.items():
        section, norm = name.split("/")[0], np.linalg.norm(t)
        if section in ("grad0", "grad3") and norm > 0:
            tensor = name.split("/", 1)[1]
            described = of_described(record.figure[section][tensor], exact.figure[section][tensor])
            far = max(np.linalg.norm(record.tensors[name] - t), described) / norm
            result[section] = max(result.get(section, 0.0), far)
    return result | spread_of_run(record.figure, exact.figure)


def settings_of(path):
    """A recorded figure, whose settings become those of the script."""
    with open(path, encoding="utf-8") as f:
        figure = json.load(f)
    for key, value in figure["config"].items():
        if key.isupper():
            os.environ[key] = str(int(value)) if isinstance(value, bool) else str(value)
    if "val_tokens" in figure["config"]:
        os.environ["GOLF_FIGURE_VAL"] = str(figure["config"]["val_tokens"])
    return figure


def add_spread(path, script, figure):
    """Runs a recorded figure's settings again, in fp32 and float64, and writes how far those two and the figure are apart into it."""
    record, exact = run_script(script, "torch.float32"), run_script(script, "torch.float64")
    with_exact, again = spread(record, exact), spread_of_run(figure, record.figure)
    again["train_loss"] = furthest(zip(figure["train_loss"], record.figure["train_loss"]))
    figure["spread"] = figure.get("spread", {}) | with_exact | {k: max(v, with_exact[k]) for k, v in again.items()}
    figure["spread"]["again"] = again
    with open(path, "w", encoding="utf-8") as f:
        json.dump(figure, f)
        f.write("\n")


def main():
    add = sys.argv[1:2] == ["--spread"]
    arguments = sys.argv[2:] if add else sys.argv[1:]
    if len(arguments) != 3:
        sys.exit(__doc__)
    script, tokenizer, out = map(os.path.abspath, arguments)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        recorded = settings_of(out) if add else None
        if "DATA_PATH" not in os.environ:
            write_shards(folder, int(os.environ.get("GOLF_FIGURE_VAL", "20000")))
            os.environ["DATA_PATH"] = folder
        os.environ["TOKENIZER_PATH"] = tokenizer
        os.environ["RUN_ID"] = "figure"
        if add:
            with contextlib.redirect_stdout(io.StringIO()):
                add_spread(out, script, recorded)
            return
        record = run_script(script, "torch.float32")
        figure = record.figure
        if os.environ.get("GOLF_FIGURE_FLOAT64") == "1":
            with contextlib.redirect_stdout(io.StringIO()):
                figure["spread"] = spread(record, run_script(script, "torch.float64"))
    figure["config"] |= {"torch": torch.__version__, "cpu_capability": torch.backends.cpu.get_cpu_capability()}
    figure["how"] = " ".join(HOW.split())
    with open(out, "w", encoding="utf-8") as f:
        json.dump(figure, f)
        f.write("\n")
    if "GOLF_FIGURE_TENSORS" in os.environ:
        np.savez(os.environ["GOLF_FIGURE_TENSORS"], **record.tensors)


main()
