"""Shared by gpu-first, gpu-check and gpu-bench: results that are written as they come, runs of the program, and
the sources that a kept result covers. Python's own library is enough.

A result is a JSON file. It has the GPU, the versions, a hash of the code of each source in `cuda`, by name, and one
entry for each check or measurement: name, outcome ("passed", "failed", "left out"), why, seconds, figures.
"complete": it came to its end. "whole": it wasn't asked for less (--only, --short), and the time sufficed.
"""
import argparse
import concurrent.futures
import datetime
import glob
import hashlib
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
KEPT = os.path.join(ROOT, "tests", "cuda", "results")
STANDIN = "Stand-in"  # the name of a GPU that is none (tests/cuda/device/standins.cc)


class LeftOut(Exception):
    """It can't be done here; the text is the reason."""


class OutOfTime(LeftOut):
    """All of the time is over, so the result isn't whole."""


class Failed(Exception):
    """It was done, and the result is wrong. Figures may tell more."""

    def __init__(self, why, figures=None):
        super().__init__(why)
        self.figures = figures or {}


# --- sources --------------------------------------------------------------------------------------


TEXTS = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''


def code_hash(text):
    """A hash of C's tokens, without comments, #include lines and the header's guard: moving a file changes those."""
    text = re.sub(rf"{TEXTS}|/\*.*?\*/|//[^\n]*", lambda m: " " if m[0][0] == "/" else m[0], text.replace("\\\n", " "), flags=re.S)
    parts = []
    for line in text.split("\n"):
        tokens = re.findall(rf"{TEXTS}|\w+|[-+*/%&|^=<>!?:.#]+|[^\s\w]", line)
        if not tokens or tokens[0] != "#":
            parts += tokens
        elif tokens[1:2] != ["include"] and not re.match(r"(?:ifndef|define) LKS_\w+_H$", " ".join(tokens[1:])):
            parts += ["\n", *tokens, "\n"]  # a directive ends with its line
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def cuda_sources():
    """{name: path} of all that a GPU compiles or is driven by: the sources of the folder `cuda`, in whichever folder of src that is."""
    found = {}
    for path in sorted(glob.glob(os.path.join(ROOT, "src", "*", "cuda", "**", "*.[ch]*"), recursive=True)):
        if found.setdefault(os.path.basename(path), path) != path:
            raise ValueError(f"{path} and {found[os.path.basename(path)]}: results know a source by its name, so there may be only one")
    return found


def sources():
    """{name: hash of its code}: a source may move, and its comments may change."""
    found = {}
    for name, path in cuda_sources().items():
        with open(path, encoding="utf-8") as f:
            found[name] = code_hash(f.read())
    return found


def unshown(folder):
    """Sentences: sources that no kept gpu-check has run as they are now. ValueError: a file that is no result."""
    if not os.path.isdir(folder):
        raise ValueError(f"{folder}: there is no such folder")
    kept = []
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        try:
            with open(path) as f:
                result = json.load(f)
            fine = result["complete"] and result["whole"] and all(e["outcome"] != "failed" for e in result["entries"])
            if STANDIN in str(result["gpus"]):
                raise ValueError("a run on stand-ins, which shows nothing of a GPU")
            if result["what"] == "gpu-check" and fine:
                kept.append((result["begun"], result["sources"]))
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise ValueError(f"{path}: not a result of gpu-check or gpu-bench: {e}") from e
    if not kept:
        return ["no whole gpu-check in tests/cuda/results has passed"]
    now, paths = sources(), cuda_sources()
    stale = [os.path.relpath(paths[name], ROOT) for name in now if all(of.get(name) != now[name] for _, of in kept)]
    return [f"{path}: changed since the last GPU ran it, {max(kept)[0]}" for path in stale]


# --- results --------------------------------------------------------------------------------------


class Result:
    def __init__(self, what, a):
        self.path, self.begin, self.only, self.at_once = a.out, time.monotonic(), a.only, getattr(a, "at_once", 1)
        self.on_entry = lambda entry: None
        self.deadline = self.begin + 60 * a.minutes
        self.entry, self.lock = threading.local(), threading.Lock()  # entry.until: of the one that this thread is doing
        self.data = {"what": what, "begun": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                     "seconds": 0.0, "complete": False, "whole": not (a.short or a.only), "gpus": [], "software": [], "sources": sources(), "entries": []}

    def write(self):
        """All or nothing, so that a run that is cut off leaves what it has."""
        self.data["seconds"] = round(time.monotonic() - self.begin, 1)
        with open(self.path + ".new", "w") as f:
            json.dump(self.data, f, indent=1)
            f.write("\n")
        os.replace(self.path + ".new", self.path)

    def left(self):
        """Seconds of the entry that is under way."""
        return getattr(self.entry, "until", self.deadline) - time.monotonic()

    def over(self):
        """Is all of the time over, and not just that of an entry?"""
        return time.monotonic() > self.deadline - 1

    def add(self, name, work, seconds=120):
        """work() returns figures, or raises LeftOut or Failed; it has so many seconds. What --only doesn't name isn't done."""
        if self.only and name != "GPU" and not any(name.startswith(word) for word in self.only.split(",")):
            return
        start = time.monotonic()
        entry = {"name": name, "outcome": "passed", "why": "", "figures": {}}
        self.entry.until = min(start + seconds, self.deadline)
        try:
            if self.over():
                raise OutOfTime("the time is over (--minutes)")
            entry["figures"] = work() or {}
        except LeftOut as e:
            entry["outcome"], entry["why"] = "left out", str(e)
            self.data["whole"] = self.data["whole"] and not isinstance(e, OutOfTime)
        except (Failed, OSError, ValueError, KeyError, IndexError) as e:
            entry["outcome"], entry["why"] = "failed", str(e) if isinstance(e, Failed) else repr(e)
            entry["figures"] = getattr(e, "figures", {})
        entry["seconds"] = round(time.monotonic() - start, 2)
        with self.lock:
            if not signals["came"]:
                self.keep(entry)

    def side_by_side(self, jobs):
        """Do all, --at_once of them at a time. A signal ends their processes."""
        until = getattr(self.entry, "until", self.deadline)

        def one(job):
            self.entry.until = until
            return job()

        if self.at_once == 1:
            for job in jobs:
                job()
            return
        with concurrent.futures.ThreadPoolExecutor(self.at_once) as pool:
            try:
                list(pool.map(one, jobs))
            finally:
                if signals["came"]:
                    for p in signals["started"]:
                        if p.poll() is None:
                            end(p)

    def keep(self, entry):
        shown = json.dumps(entry["figures"]) if entry["figures"] else ""
        print(f"{entry['outcome']:8} {entry['name']}: {entry['why'] or shown[:300]} ({entry['seconds']:.1f} s)", flush=True)
        self.on_entry(entry)
        self.data["entries"].append(entry)
        self.write()

    def finish(self):
        """The exit code."""
        self.data["complete"] = True
        self.write()
        names = [e["name"] for e in self.data["entries"]]
        if self.only and names != ["GPU"] and not all(any(n.startswith(word) for n in names) for word in self.only.split(",")):
            print(f"--only={self.only}: it names an entry that doesn't exist")
            return 2
        return 1 if any(e["outcome"] == "failed" for e in self.data["entries"]) else 0


# --- programs -------------------------------------------------------------------------------------


class Tool:
    """lockstep, from wherever it was built."""

    def __init__(self, a, result):
        self.path, self.result = os.path.abspath(a.lockstep), result
        self.folder = tempfile.mkdtemp(prefix="lockstep-gpu-")
        self.env = dict(os.environ)
        if a.libraries:
            self.env["LD_LIBRARY_PATH"] = ":".join(filter(None, [a.libraries, self.env.get("LD_LIBRARY_PATH")]))
        self.n = 0

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_folder(self):
        with self.result.lock:
            self.n += 1
            return os.path.join(self.folder, str(self.n))

    def run(self, *words, before=(), env=None, limit=120):
        """Its output; Failed with the end of what it wrote, or if it takes longer than it, or the entry, may."""
        command = [*before, self.path, *words]
        limit = min(limit, self.result.left())
        done = finished(command, dict(self.env, **(env or {})), limit)
        if done is None:
            raise (OutOfTime if self.result.over() else Failed)(f"{' '.join(command)}: not done after {limit:.0f} s")
        if done.returncode != 0:
            found = [line for line in done.stdout.splitlines() if line.startswith("=========")]  # compute-sanitizer's
            text = "\n".join(found[:20]) or done.stderr or done.stdout
            raise Failed(f"{' '.join(command)}: exit code {done.returncode}: {text[-1500:].strip()}")
        return done.stdout

    def run_together(self, commands, limit=60):
        """All at once; Failed if one fails, or if they take too long."""
        running, until = [], time.monotonic() + min(limit, self.result.left())
        try:
            for words in commands:
                start(running, [self.path, *words], env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            for p in running:
                err = p.communicate(timeout=max(until - time.monotonic(), 1))[1]
                if p.returncode != 0:
                    raise Failed(f"{' '.join(p.args)}: exit code {p.returncode}: {err[-1500:].strip()}")
        except subprocess.TimeoutExpired as e:
            raise Failed(f"{len(running)} at once: not done after {limit:.0f} s: {' '.join(e.cmd)}") from e
        finally:
            for p in running:
                end(p)

    def look(self):
        """GPUs and versions; Failed if there is no GPU."""
        lines = self.run("info").splitlines()
        self.result.data["software"] = lines
        self.result.data["gpus"] = [line.split(None, 1)[1] for line in lines if re.match(r"device +cuda:\d+: ", line)]
        if not self.result.data["gpus"]:
            raise Failed("lockstep info shows no GPU: " + "; ".join(line for line in lines if line.startswith("device")))
        return {"gpus": self.result.data["gpus"]}


signals = {"held": 0, "came": 0, "started": []}
holding = threading.Lock()


def hold(more):
    with holding:
        signals["held"] += more


def on_signal(signo, _):
    """End with what the run has. A process that is being started would be left, so that is completed first."""
    signals["came"] = signo
    if not signals["held"]:
        sys.exit(128 + signo)


def start(running, command, **how):
    """A process in a group of its own. It is in `running` before a signal ends this run."""
    hold(1)
    try:
        running.append(subprocess.Popen(command, text=True, start_new_session=True, **how))
        signals["started"].append(running[-1])
    finally:
        hold(-1)
    if signals["came"]:
        sys.exit(128 + signals["came"])
    return running[-1]


def finished(command, env, limit, **how):
    """As subprocess.run(), in a group of its own, which ends with it; None: it took too long."""
    running = []
    try:
        p = start(running, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, **how)
        out, err = p.communicate(timeout=max(limit, 1))
    except BaseException as e:
        for p in running:
            end(p)
        if isinstance(e, subprocess.TimeoutExpired):
            return None
        raise
    return subprocess.CompletedProcess(command, p.returncode, out, err)


def end(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    with process:  # closes its pipes
        process.wait()


# --- data -----------------------------------------------------------------------------------------


def tokens(n, vocab):
    """n random tokens, 16 bits each: the same ones each time, so that bounds hold for what was seen."""
    data = bytearray(random.Random(n).randbytes(2 * n))
    low = bytes(i if vocab >= 256 else i % vocab for i in range(256))
    high = bytes(i * (vocab // 256) // 256 for i in range(256))
    data[0::2] = data[0::2].translate(low)
    data[1::2] = data[1::2].translate(high)
    return bytes(data)


def write_data(folder, n, n_val, vocab):
    """The files that nanoGPT and parameter-golf read."""
    os.makedirs(folder)
    for split, count in (("train", n), ("val", n_val)):
        ids = tokens(count, vocab)
        with open(os.path.join(folder, f"{split}.bin"), "wb") as f:
            f.write(ids)
        with open(os.path.join(folder, f"fineweb_{split}_000000.bin"), "wb") as f:
            f.write(struct.pack("<256i", 20240520, 1, count, *([0] * 253)) + ids)
    return folder


# --- whole steps ----------------------------------------------------------------------------------

SHAPES = {"golf": dict(vocab_size=1024, num_layers=9, model_dim=512, num_heads=8, num_kv_heads=4, mlp_mult=2,
                       train_seq_len=1024, train_batch_tokens=524288, val_batch_size=524288),
          "gpt2": dict(n_layer=12, n_head=12, n_embd=768, block_size=1024, batch_size=12, gradient_accumulation_steps=8)}
TINY = {"golf": dict(vocab_size=64, num_layers=2, model_dim=16, num_heads=2, num_kv_heads=1, mlp_mult=2,
                     train_seq_len=4, train_batch_tokens=32, val_batch_size=32),
        "gpt2": dict(n_layer=1, n_head=2, n_embd=16, block_size=8, batch_size=2, gradient_accumulation_steps=1)}
SETTINGS = dict(num_layers="n_layer", model_dim="n_embd", num_heads="n_head", train_seq_len="block_size")  # lockstep's names


def whole_steps(family, shape, steps, short):
    """Settings of `lockstep train` for so many steps on the GPU, without evaluations and checkpoints."""
    settings = [f"--{SETTINGS.get(k, k)}={v}" for k, v in shape.items()]
    if family == "golf":
        settings += ["--family=golf", "--sampler=stream", f"--iterations={steps}", "--warmdown_iters=0", "--max_wallclock_seconds=0"]
    else:
        settings += [f"--max_iters={steps - 1}", "--warmup_iters=0"]
    if short:
        settings += ["--vocab_size=64"]
    return [*settings, "--log_interval=1", "--eval_interval=0", "--checkpoint_interval=0", "--device=cuda"]


# --- arguments ------------------------------------------------------------------------------------


def arguments(description, what, minutes):
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lockstep", default=os.path.join(ROOT, "build", "tools", "lockstep"),
                   help="the program, with its modules in its folder (build/tools/lockstep)")
    p.add_argument("--libraries", help="folders of CUDA's libraries, for LD_LIBRARY_PATH")
    p.add_argument("--python", default="python3", help="the Python of the other programs (python3)")
    p.add_argument("--nanogpt", help="checkout of nanoGPT: its train.py and model.py")
    p.add_argument("--golf", metavar="FILE", help="parameter-golf's train_gpt.py")
    p.add_argument("--llmc", metavar="FILE", help="llm.c's train_gpt2cu, compiled (gpu-bench)")
    p.add_argument("--out", default=f"{what}.json", help=f"the result ({what}.json)")
    p.add_argument("--minutes", type=float, default=minutes, help=f"begin nothing more after that time ({minutes})")
    p.add_argument("--only", metavar="NAMES", help="only those whose name begins so, with commas between")
    p.add_argument("--short", action="store_true", help="the least of each: for a test without a GPU")
    return p


def begin(what, p, a):
    """The result and the tool; exit code 2 for arguments that can't be meant. A signal ends a run with what it has."""
    if not os.access(a.lockstep, os.X_OK) or os.path.isdir(a.lockstep):
        p.error(f"--lockstep={a.lockstep}: there is no such program")
    for option in ("golf", "llmc"):
        if getattr(a, option, None) and not os.path.isfile(getattr(a, option)):
            p.error(f"--{option}={getattr(a, option)}: there is no such file")
    for option, folders in (("nanogpt", a.nanogpt), ("libraries", a.libraries)):
        for folder in (folders or "").split(":"):
            if folder and not os.path.isdir(folder):
                p.error(f"--{option}={folder}: there is no such folder")
    if not 0 <= a.minutes <= 1440:
        p.error(f"--minutes={a.minutes}: a number from 0 to 1440")
    if os.path.exists(a.out) and not os.path.isfile(a.out):
        p.error(f"--out={a.out}: that is no file")
    for signo in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signo, on_signal)
    result = Result(what, a)
    try:
        result.write()
    except OSError as e:
        p.error(f"--out={a.out}: {e.strerror}")
    return result, Tool(a, result)
