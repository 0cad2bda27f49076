#!/usr/bin/env python3
"""Records a reference figure from nanoGPT's own train.py, as tests/figures/generated/ has them.

    nanogpt_figure.py CHECKOUT OUT.json [--vocab=65] [--tokens=200000,20000] [--seed=1337] [--processes=1] [--freeze=REGEX]
        [--SETTING=VALUE ...] [--weights=made|FOLDER] [--source_block=N] [--data=FOLDER] [--gelu=exact|tanh]
        [--change=ITERATION:SETTING=VALUE,...]

CHECKOUT is a folder with nanoGPT's train.py, model.py and configurator.py; SETTING any setting of train.py. Needs PyTorch and NumPy.
REGEX is searched for in the parameters' names: those get requires_grad=False.
--weights begins with given weights, as init_from='gpt2' does: those of Hugging Face's model.safetensors and config.json in FOLDER, or
made ones, of the settings' shape and N positions, which tests/weights/forge.c makes, too. --data reads train.bin and val.bin there. FOLDER: an absolute path.
--change stops after the checkpoint of that iteration, a multiple of eval_interval, and goes on with train.py's --init_from=resume and other settings.
With dropout the masks are not PyTorch's but those that docs/reference/numerics.md defines, made here by a Philox of its own.
"""
import contextlib, io, json, os, pickle, re, socket, subprocess, sys, tempfile, types

import numpy as np
import torch

HOW = """nanoGPT's train.py and model.py run on the CPU in fp32 by tests/parity/nanogpt_figure.py; changed: device, seed, Gloo between
processes, no compilation; recording added. Data: the generated tokens of README.md for vocab_size, the first of `tokens` for training,
the next for validation. With dropout > 0 attention is model.py's explicit form, and each nn.Dropout multiplies by the mask of
docs/reference/numerics.md (NumPy). With `freeze` the parameters whose names contain a match have requires_grad=False
and no gradient. micro_losses[v][i][m]: of process v (if there are several), iteration i, micro-step m; loss_mean[i]: their mean in double.
lr[i]; grad_norm[i]: before clipping, in double. evals: estimate_loss. gradI: gradients of iteration I before clipping, the mean over
processes: shape, sums in float64, dots as in the other figures, the first 8 values. final: weights after the last iteration. spread:
largest difference from the same run in float64 (weights drawn in fp32): of losses and evaluations, of norms relative to the norm, of each section's
tensors relative to the tensor's norm, keys' biases left out: their gradient is zero but for rounding. With `change` iterations from
`change.at` on are those of a second start of train.py, --init_from=resume with the settings of `change.then`."""

SECTIONS = (0, 3)  # iterations of which gradients are kept


def generated_tokens(vocab, count):
    tokens, x, t = np.zeros(count, np.uint16), 12345, 0
    for i in range(1, count):
        x ^= x << 13 & 0xFFFFFFFF
        x ^= x >> 17
        x ^= x << 5 & 0xFFFFFFFF
        t = (5 * t + 17 + i % 7 if x & 3 else x >> 8) % vocab
        tokens[i] = t
    return tokens


# ---- weights to begin with ------------------------------------------------------------------------


CONV = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


def made_weights(config):
    """Multiples of 1/64 by PyTorch's generator, as forge_open_as() of tests/weights/forge.c draws them."""
    C, g = config["n_embd"], torch.Generator().manual_seed(5)
    shapes = {"wte.weight": (config["vocab_size"], C), "wpe.weight": (config["block_size"], C)}
    for l in range(config["n_layer"]):
        for name, shape in (("ln_1", (C,)), ("attn.c_attn", (3 * C, C)), ("attn.c_proj", (C, C)), ("ln_2", (C,)), ("mlp.c_fc", (4 * C, C)),
                            ("mlp.c_proj", (C, 4 * C))):
            shapes |= {f"h.{l}.{name}.weight": shape, f"h.{l}.{name}.bias": shape[:1]}
    shapes |= {"ln_f.weight": (C,), "ln_f.bias": (C,)}
    tensors = {}
    for name, shape in shapes.items():
        gain = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
        t = (torch.randint(0, 64, shape, generator=g).float() - 32) / 64 + gain
        tensors["transformer." + name] = t.t().contiguous() if name.endswith(CONV) else t
    return tensors


def saved_weights(folder):
    with open(f"{folder}/model.safetensors", "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = f.read()
    with open(f"{folder}/config.json", encoding="utf-8") as f:
        theirs = json.load(f)
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32"
        x = np.frombuffer(data[slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"])
        tensors[name] = torch.from_numpy(x.copy())
    config = {k: theirs[k] for k in ("n_layer", "n_head", "n_embd", "vocab_size")} | {"block_size": theirs["n_positions"]}
    return config, tensors


def given_weights(ours, settings):
    """The shape and the tensors that model.py's from_pretrained() is to find."""
    if ours["weights"] != "made":
        return saved_weights(ours["weights"])
    config = {k: int(settings[k]) for k in ("n_layer", "n_head", "n_embd")}
    config |= {"vocab_size": ours["vocab"], "block_size": ours["source_block"]}
    return config, made_weights(config)


class Pretrained:
    """In the place of transformers' GPT2LMHeadModel; draws nothing from PyTorch's generator."""
    tensors = None

    @classmethod
    def from_pretrained(cls, name):
        return cls()

    def state_dict(self):
        return self.tensors | {"lm_head.weight": self.tensors["transformer.wte.weight"]}


def with_weights(source, config, tensors):
    """model.py, which finds a model of that config under the name gpt2."""
    for old, new in (("config_args['vocab_size'] = 50257", f"config_args.update({config})"), ("config_args['block_size'] = 1024", "pass")):
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    Pretrained.tensors = tensors
    sys.modules["transformers"] = types.ModuleType("transformers")
    sys.modules["transformers"].GPT2LMHeadModel = Pretrained
    return source


# ---- dropout -------------------------------------------------------------------------------------


def philox(counter, key):
    """Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); four uint64 arrays below 2^32."""
    low = np.uint64(0xFFFFFFFF)
    c, k = [np.asarray(x, np.uint64) for x in counter], list(key)
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [p1 >> np.uint64(32) ^ c[1] ^ np.uint64(k[0]), p1 & low, p0 >> np.uint64(32) ^ c[3] ^ np.uint64(k[1]), p0 & low]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def check_philox():
    """The known answers that its authors publish with Random123."""
    for counter, key, want in (
        ((0,) * 4, (0,) * 2, "6627e8d5e169c58dbc57ac4c9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d41c83b0ea20bc7c66d5451fd"),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), "d16cfe0994fdcceb5001e42024126ea1"),
    ):
        assert "".join(f"{int(w):08x}" for w in philox(counter, key)) == want


def mask(p, seed, step, vm, site, shape):
    n = int(np.prod(shape))
    quads = np.arange((n + 3) // 4, dtype=np.uint64)
    words = philox((step, vm, site, quads), (seed & 0xFFFFFFFF, seed >> 32))
    words = np.stack([np.broadcast_to(w, quads.shape) for w in words], axis=1).reshape(-1)[:n]
    return np.where(words >= np.uint64(int(p * 2**32)), 1 / (1 - p), 0.0).reshape(shape)


class KeyedDropout(torch.nn.Module):
    def __init__(self, record, site, p):
        super().__init__()
        self.record, self.site, self.p = record, site, p

    def forward(self, x):
        if not self.training or self.p == 0:
            return x
        r = self.record
        vm = r.rank << 16 | r.micro_step
        return x * torch.from_numpy(mask(self.p, r.seed, r.step, vm, self.site, tuple(x.shape))).to(x.dtype)


# ---- recording -----------------------------------------------------------------------------------


def rounded(x):
    return float(f"{x:.9g}")


def sums(t):
    x = t.detach().double().reshape(-1)
    return {"shape": list(t.shape), "sum": x.sum().item(), "sumsq": (x * x).sum().item()}


def signs(n, offset):
    with np.errstate(over="ignore"):
        h = (np.arange(n, dtype=np.uint32) + np.uint32(offset)) * np.uint32(2654435761)
        h ^= h >> np.uint32(15)
        h *= np.uint32(2246822519)
        h ^= h >> np.uint32(13)
    return torch.from_numpy(np.where(h & 1, -1.0, 1.0))


def described(t):
    x = t.detach().double().reshape(-1)
    dots = [torch.dot(x, signs(len(x), o)).item() for o in (0, 0x9E3779B9)]
    return sums(t) | {"first8": [rounded(v) for v in x[:8].tolist()], "dots": dots}


class Record:
    """What train.py calls at the places that `patched` adds."""

    def __init__(self, seed, real, freeze):
        self.freeze = freeze
        self.seed, self.real, self.rank, self.processes = seed, real, int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.figure = {k: [] for k in ("loss_mean", "micro_losses", "lr", "grad_norm", "evals")}
        self.tensors = {}

    def built(self, model):
        if self.real == "float64":
            model.double()
        for name, p in model.named_parameters():
            p.requires_grad_(not (self.freeze and re.search(self.freeze, name)))
        L = model.config.n_layer
        for l, block in enumerate(model.transformer.h):
            for place, (where, name) in enumerate(((block.attn, "attn_dropout"), (block.attn, "resid_dropout"), (block.mlp, "dropout"))):
                setattr(where, name, KeyedDropout(self, l * 8 + place, getattr(where, name).p))
        model.transformer.drop = KeyedDropout(self, L * 8, model.transformer.drop.p)
        left = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Dropout)]
        assert not left, left

    def begin(self, step, micro_step, lr):
        self.step, self.micro_step = step, micro_step
        if micro_step == 0:
            self.losses = []
            self.figure["lr"].append(lr)

    def micro(self, loss):
        self.losses.append(loss.item())

    def keep(self, section, named):
        self.figure[section] = {n.removeprefix("transformer."): described(t) for n, t in named}
        for n, t in named:
            t = t.detach().double()
            if n.endswith("c_attn.bias"):
                t = torch.cat([t[:len(t) // 3], t[len(t) // 3 * 2:]])
            self.tensors[f"{section}/{n}"] = t.numpy().copy()

    def grads(self, model):
        rows, f = [self.losses], self.figure
        if self.processes > 1:
            rows = [None] * self.processes
            torch.distributed.all_gather_object(rows, self.losses)
        f["micro_losses"] = f["micro_losses"] or [[] for _ in rows]
        for losses, row in zip(f["micro_losses"], rows):
            losses.append(row)
        f["loss_mean"].append(float(np.mean(rows)))
        named = [(n, p.grad) for n, p in model.named_parameters() if p.grad is not None]
        f["grad_norm"].append(torch.stack([g.double().norm() for _, g in named]).norm().item())
        if self.step in SECTIONS:
            self.keep(f"grad{self.step}", named)

    def resume(self, at):
        """The script repeats iteration `at` from its checkpoint."""
        for rows in (self.figure["loss_mean"], self.figure["lr"], self.figure["grad_norm"], *self.figure["micro_losses"]):
            del rows[at:]
        self.figure["evals"] = [e for e in self.figure["evals"] if e["iter"] < at]

    def evaluated(self, step, losses):
        self.figure["evals"].append({"iter": step} | {k: v.item() for k, v in losses.items()})

    def ended(self, model):
        self.keep("final", list(model.named_parameters()))


def patched(source, seed):
    def change(old, new):
        nonlocal source
        if source.count(old) != 1:
            sys.exit(f"nanogpt_figure: train.py has {source.count(old)} of: {old}")
        source = source.replace(old, new)
    change("torch.manual_seed(1337 + seed_offset)", f"torch.manual_seed({seed} + seed_offset)")
    change("    device = f'cuda:{ddp_local_rank}'\n    torch.cuda.set_device(device)\n", "    device = 'cpu'\n")
    change("DDP(model, device_ids=[ddp_local_rank])", "DDP(model)")
    change("model.to(device)\n", "model.to(device)\nrecord.built(model)\n")
    change("        if ddp:\n            # in DDP", "        record.begin(iter_num, micro_step, lr)\n        if ddp:\n            # in DDP")
    change("            loss = loss / grad", "            record.micro(loss)\n            loss = loss / grad")
    change("    # clip the gradient\n", "    record.grads(raw_model)\n    # clip the gradient\n")
    change('        print(f"step {iter_num}', '        record.evaluated(iter_num, losses)\n        print(f"step {iter_num}')
    return source


def run_script(checkout, settings, ours, real, record):

    def read(name):
        with open(f"{checkout}/{name}", encoding="utf-8") as f:
            return f.read()
    model = types.ModuleType("model")
    source = read("model.py")
    if float(settings.get("dropout", 0)) > 0:
        attention = "hasattr(torch.nn.functional, 'scaled_dot_product_attention')"
        assert source.count(attention) == 1
        source = source.replace(attention, "False")
    if ours["gelu"] == "tanh":
        assert source.count("nn.GELU()") == 1
        source = source.replace("nn.GELU()", "nn.GELU(approximate='tanh')")
    if ours["weights"]:
        source = with_weights(source, *given_weights(ours, settings))
        settings = settings | {"init_from": "gpt2"}
    exec(compile(source, "model.py", "exec"), model.__dict__)
    sys.modules["model"] = model
    with open("configurator.py", "w", encoding="utf-8") as f:
        f.write(read("configurator.py"))
    sys.argv = ["train.py"] + [f"--{k}={v}" for k, v in settings.items()]
    space = {"__name__": "__main__", "record": record}
    exec(compile(patched(read("train.py"), ours["seed"]), "train.py", "exec"), space)
    return space


def flat(rows):
    return np.concatenate([flat(r) for r in rows]) if isinstance(rows, list) else np.array([rows])


def spread(figure, tensors, exact, exact_tensors):
    far = {"grad_norm": 0.0}
    far["loss"] = float(np.abs(flat(figure["micro_losses"]) - flat(exact["micro_losses"])).max())
    far["eval"] = max((abs(a[k] - b[k]) for a, b in zip(figure["evals"], exact["evals"]) for k in ("train", "val")), default=0.0)
    for a, b in zip(figure["grad_norm"], exact["grad_norm"]):
        far["grad_norm"] = max(far["grad_norm"], abs(a - b) / b)
    for name, t in exact_tensors.items():
        section, norm = name.split("/")[0], np.linalg.norm(t)
        if norm > 0:
            far[section] = max(far.get(section, 0.0), float(np.linalg.norm(tensors[name] - t) / norm))
    return far


def options(arguments):
    ours = {"vocab": 65, "tokens": "200000,20000", "seed": 1337, "processes": 1, "freeze": "", "weights": "", "source_block": 0,
            "data": "", "gelu": "exact", "change": ""}
    settings = {"device": "cpu", "dtype": "float32", "compile": False, "backend": "gloo", "dataset": "generated", "out_dir": "out"}
    for argument in arguments:
        key, value = argument.removeprefix("--").split("=", 1)
        if key in ours:
            ours[key] = type(ours[key])(value)
        else:
            settings[key] = value
    return ours, settings


def prepare(ours):
    if ours["data"]:
        os.makedirs("data")
        os.symlink(ours["data"], "data/generated")
        return
    n_train, n_val = (int(x) for x in ours["tokens"].split(","))
    tokens = generated_tokens(ours["vocab"], n_train + n_val).astype("<u2")
    os.makedirs("data/generated")
    tokens[:n_train].tofile("data/generated/train.bin")
    tokens[n_train:].tofile("data/generated/val.bin")
    with open("data/generated/meta.pkl", "wb") as f:
        pickle.dump({"vocab_size": ours["vocab"]}, f)


def change_of(ours):
    at, then = ours["change"].split(":")
    return int(at), dict(s.split("=") for s in then.split(","))


def child(checkout, ours, settings, real, out):
    """One process of a run; the first writes what it recorded."""
    record = Record(ours["seed"], real, ours["freeze"])
    with contextlib.redirect_stdout(io.StringIO()):
        if ours["change"]:
            at, then = change_of(ours)
            run_script(checkout, settings | {"max_iters": at}, ours, real, record)
            record.resume(at)
            settings = settings | then | {"init_from": "resume"}
        space = run_script(checkout, settings, ours, real, record)
        record.ended(space["raw_model"])
    if record.rank == 0:
        config = {k: v for k, v in space["config"].items() if not isinstance(v, str) and not k.startswith("wandb")}
        with open(out, "wb") as f:
            pickle.dump((record.figure, record.tensors, config), f)


def run_all(ours, real, out):
    """The run in processes of its own; what the first recorded."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = os.environ | {"NANOGPT_FIGURE_REAL": real, "NANOGPT_FIGURE_OUT": out}
    if ours["processes"] > 1:
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ours["processes"])}
    ranks = []
    for r in range(ours["processes"]):
        env |= {"RANK": str(r), "LOCAL_RANK": str(r)} if ours["processes"] > 1 else {}
        ranks.append(subprocess.Popen([sys.executable, THIS] + ARGUMENTS, env=dict(env)))
    if any([r.wait() for r in ranks]):
        sys.exit("nanogpt_figure: a process failed")
    with open(out, "rb") as f:
        return pickle.load(f)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    check_philox()
    ours, settings = options(sys.argv[3:])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if "NANOGPT_FIGURE_REAL" in os.environ:
        child(ARGUMENTS[0], ours, settings, os.environ["NANOGPT_FIGURE_REAL"], os.environ["NANOGPT_FIGURE_OUT"])
        return
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        prepare(ours)
        figure, tensors, config = run_all(ours, "float32", "single")
        exact, exact_tensors, _ = run_all(ours, "float64", "double")
    far = spread(figure, tensors, exact, exact_tensors)
    config |= {"vocab_size": ours["vocab"], "tokens": [int(x) for x in ours["tokens"].split(",")], "seed": ours["seed"],
               "torch": torch.__version__, "cpu_capability": torch.backends.cpu.get_cpu_capability()}
    if ours["change"]:
        at, then = change_of(ours)
        config |= {"change": {"at": at, "then": {k: int(v) for k, v in then.items()}}} | {k: int(settings[k]) for k in then}
    if ours["freeze"]:
        config["freeze"] = ours["freeze"]
    if ours["weights"]:
        config |= {"weights": "made" if ours["weights"] == "made" else "saved", "source_block": ours["source_block"], "gelu": ours["gelu"]}
    if ours["processes"] > 1:
        config["world_size"] = ours["processes"]
    else:
        figure["micro_losses"] = figure["micro_losses"][0]
    figure = {"config": config} | figure | {"spread": far, "how": " ".join(HOW.split())}
    with open(ARGUMENTS[1], "w", encoding="utf-8") as f:
        json.dump(figure, f)
        f.write("\n")


THIS = os.path.abspath(__file__)
ARGUMENTS = [os.path.abspath(a) for a in sys.argv[1:3]] + sys.argv[3:]
if __name__ == "__main__":
    main()
