"""The programs that compare.py times. A side has a name, turn(n) -> (seconds per step, seconds of it
in the optimizer or None), memory() in bytes (sum of Pss while it trains; None: not known), first()
in seconds (from the command to where the first step begins, None: not known, and to its end; or
None), and close().

`Skipped` is raised by what can't run here, with the reason.
"""
import atexit
import json
import os
import re
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))


class Skipped(Exception):
    pass


def patience(a):
    """Seconds to wait for an answer: the limit, and not much beyond the end of the whole run."""
    return max(10.0, min(a.limit, a.deadline + 45 - time.perf_counter()))


# --- memory ---------------------------------------------------------------------------------------


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            return [int(c) for c in f.read().split()]
    except OSError:
        return []


def tree(pid):
    found = [pid]
    for child in children(pid):
        found += tree(child)
    return found


def pss(pid):
    """Proportional set size of a process and all below it, in bytes: shared pages count once."""
    total = 0
    for p in tree(pid):
        try:
            with open(f"/proc/{p}/smaps_rollup") as f:
                total += 1024 * int(re.search(r"^Pss:\s+(\d+)", f.read(), re.M).group(1))
        except (OSError, AttributeError):
            pass  # the process has ended
    return total


def peak_pss(command, env=None):
    """The largest sum of Pss during a command, which must end well."""
    p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    most = 0
    while p.poll() is None:
        most = max(most, pss(p.pid))
        time.sleep(0.05)
    if p.returncode != 0:
        raise Skipped(f"{' '.join(command)} ended with {p.returncode}")
    return most


leaders = []


def lead(command, **how):
    """Start a process as the leader of a new group, which ends with end() or with this process."""
    process = subprocess.Popen(command, start_new_session=True, **how)
    leaders.append(process)
    return process


def folder(prefix):
    """A new folder, which the end of this process removes."""
    path = tempfile.mkdtemp(prefix=prefix)
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@atexit.register
def end_all():
    for process in leaders:
        end(process)


def end(process):
    """End a process and its group."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


# --- data -----------------------------------------------------------------------------------------


class Data:
    """Random tokens in the forms that the programs read, in a temporary folder."""

    N = 1 << 17

    def __init__(self, vocab_size):
        import random

        self.dir = folder("lockstep-compare-")
        rng = random.Random(1337)
        ids = struct.pack(f"<{self.N}H", *(rng.randrange(vocab_size) for _ in range(self.N)))
        header = struct.pack("<256i", 20240520, 1, self.N, *([0] * 253))
        for split in ("train", "val"):
            self.write(f"{split}.bin", ids)
            self.write(f"fineweb_{split}_000000.bin", header + ids)

    def write(self, name, data):
        with open(os.path.join(self.dir, name), "wb") as f:
            f.write(data)

    def close(self):
        shutil.rmtree(self.dir, ignore_errors=True)


# --- lockstep -------------------------------------------------------------------------------------


class Lockstep:
    def __init__(self, a, work, ranks):
        if work.batch % ranks != 0:
            raise Skipped(f"batch {work.batch} isn't a multiple of {ranks} ranks")
        self.a, self.work, self.ranks = a, work, ranks
        self.threads = max(1, a.threads // ranks)
        self.name = f"lockstep, {ranks} x {self.threads}"
        self.gflop, self.peak = None, 0.0
        settings = dict(work.shape, family=work.family, batch_size=work.batch // ranks,
                        nproc_per_node=ranks, threads=self.threads)
        if work.bf16:
            settings["dtype"] = "bfloat16"
        self.command = [a.lockstep, "bench", "step"] + [f"--{k}={v}" for k, v in settings.items()]

    def turn(self, n):
        done = subprocess.run(self.command + [f"--iters={n}"], capture_output=True, text=True)
        found = re.search(r"median ([\d.]+) ms.*, ([\d.]+) GFLOP/s, mfu [\d.]+% of ([\d.]+)",
                          done.stdout)
        if done.returncode != 0 or not found:
            raise Skipped(f"{' '.join(self.command)}: {done.stderr.strip()}")
        seconds = float(found.group(1)) / 1e3
        self.gflop = float(found.group(2)) * seconds
        self.peak = max(self.peak, float(found.group(3)))
        update = [float(x) / 1e3 for x in re.findall(r" update ([\d.]+)", done.stdout)]
        return seconds, max(update)

    def memory(self):
        return peak_pss(self.command + ["--iters=3"])

    def first(self):
        """`lockstep train` until its first step's line; the dataset is there, the run is new. The
        line that says how many ranks there are comes just before the first step."""
        data, out = Data(self.work.shape["vocab_size"]), folder("lockstep-out-")
        shape = [f"--{k}={v}" for k, v in self.work.shape.items()]
        command = [self.a.lockstep, "train", f"--dataset={data.dir}", f"--out_dir={out}/run",
                   f"--family={self.work.family}", f"--nproc_per_node={self.ranks}",
                   f"--gradient_accumulation_steps={self.ranks}",
                   "--eval_interval=0", "--log_interval=1"] + shape
        if self.work.family == "golf":
            command += ["--sampler=stream", "--iterations=100",
                        f"--train_batch_tokens={self.work.tokens}"]
        else:
            command += [f"--batch_size={self.work.batch // self.ranks}", "--max_iters=100"]
        started = time.perf_counter()
        p = lead(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        begins = ends = None
        for line in p.stdout:
            if re.match(r"\d+ ranks? x \d+ thread", line):
                begins = time.perf_counter() - started
            if re.match(r"iter 0:|step:1/", line):
                ends = time.perf_counter() - started
                break
        end(p)
        reason = p.stderr.read().strip()
        data.close()
        shutil.rmtree(out, ignore_errors=True)
        if begins is None or ends is None:
            raise Skipped(f"{' '.join(command)}: {reason}")
        return begins, ends

    def close(self):
        pass


# --- PyTorch --------------------------------------------------------------------------------------


class Torch:
    """A child with a model of ours or of a checkout; see torch_side.py."""

    def __init__(self, a, work, compiled, checkout=None, name="PyTorch"):
        self.name = f"{name} {'compiled' if compiled else 'eager'}"
        self.a = a
        spec = {"family": work.family, "shape": work.shape, "batch": work.batch,
                "threads": a.threads, "compiled": compiled, "checkout": checkout, "bf16": work.bf16}
        self.errors = tempfile.TemporaryFile("w+")
        started = time.perf_counter()
        self.p = lead([sys.executable, "-B", os.path.join(HERE, "torch_side.py"), json.dumps(spec)],
                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        answer = self.answer()
        self.first_s = time.perf_counter() - started
        # the first step may include a compilation
        slow = answer["first_step_s"] > 20 and not compiled
        self.only_s = answer["first_step_s"] if slow else None
        self.version = answer["torch"]
        self.peak = 0

    def answer(self):
        limit = patience(self.a)
        ready, _, _ = select.select([self.p.stdout], [], [], limit)
        line = self.p.stdout.readline() if ready else ""
        if not line:
            end(self.p)
            self.errors.seek(0)
            lines = self.errors.read().strip().splitlines()
            raise Skipped(f"{self.name}: no step within {limit:.0f} s" if not ready
                          else lines[-1][:160] if lines else "it ended")
        return json.loads(line)

    def sample(self, ended):
        while not ended.wait(0.25):
            self.peak = max(self.peak, pss(self.p.pid))

    def turn(self, n):
        if self.only_s is not None:  # one step of that length is enough
            return self.only_s, None
        ended = threading.Event()
        sampler = threading.Thread(target=self.sample, args=[ended])
        sampler.start()  # between turns it has no gradients and activations
        try:
            self.p.stdin.write(f"{n}\n")
            self.p.stdin.flush()
            answer = self.answer()
        finally:
            ended.set()
            sampler.join()
        time.sleep(0.3)  # let its threads sleep, so that the other side has the cores
        return answer["median"], answer["optimizer"] or None

    def memory(self):
        return self.peak or pss(self.p.pid)

    def first(self):
        return None, self.first_s

    def close(self):
        end(self.p)


# --- other programs, with their own timing --------------------------------------------------------


class Script:
    """A program that is started for each turn and prints each step's time."""

    def run(self, n, command, pattern, skip, cwd, env=None):
        started = time.perf_counter()
        p = lead(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd,
                 env=env)
        timer = threading.Timer(patience(self.a), end, [p])
        timer.start()
        times, first, last, most = [], None, "", 0
        for line in p.stdout:
            last = line.strip() or last
            found = re.search(pattern, line)
            if not found:
                continue
            first = first or time.perf_counter() - started
            times.append(float(found.group(1)) / 1e3)
            if len(times) == skip + n - 1:
                most = pss(p.pid)
            if len(times) == skip + n:
                break
        timer.cancel()
        end(p)
        if len(times) < skip + n:
            raise Skipped(f"{self.name}: it ended after {len(times)} steps: {last[:160]}")
        self.first_s, self.pss = first, most
        return statistics.median(times[skip:]), None

    def memory(self):
        return self.pss

    def first(self):
        return None, self.first_s


class NanoGPT(Script):
    """nanoGPT's train.py itself, in float32 on the CPU."""

    def __init__(self, a, work, compiled):
        self.name = f"nanoGPT train.py {'compiled' if compiled else 'eager'}"
        self.a, self.threads = a, a.threads
        self.dir = folder("lockstep-nanogpt-")
        for name in ("train.py", "model.py", "configurator.py"):
            shutil.copy(os.path.join(a.nanogpt, name), self.dir)
        self.data = Data(work.shape["vocab_size"])
        os.makedirs(os.path.join(self.dir, "data"))
        os.symlink(self.data.dir, os.path.join(self.dir, "data", "bench"))
        import pickle

        with open(os.path.join(self.data.dir, "meta.pkl"), "wb") as f:
            pickle.dump({"vocab_size": work.shape["vocab_size"]}, f)
        shape = {k: v for k, v in work.shape.items() if k != "vocab_size"}
        settings = dict(shape, device="cpu", dtype="float32", compile=compiled, dataset="bench",
                        batch_size=work.batch, gradient_accumulation_steps=1, eval_iters=1,
                        eval_interval=1000000, log_interval=1, max_iters=100000, out_dir="out",
                        always_save_checkpoint=False)
        self.command = [sys.executable, "-u", "train.py"]
        self.command += [f"--{k}={v}" for k, v in settings.items()]

    def turn(self, n):
        env = dict(os.environ, OMP_NUM_THREADS=str(self.threads))
        return self.run(n, self.command, r"^iter \d+: .* time ([\d.]+)ms", 3, self.dir, env)

    def close(self):
        self.data.close()
        shutil.rmtree(self.dir, ignore_errors=True)


class LlmC(Script):
    """llm.c's train_gpt2, built by its own Makefile, on random weights of the row's shape."""

    def __init__(self, a, work):
        if work.shape["block_size"] != 64 or work.batch != 4:
            raise Skipped("train_gpt2 is made for a batch of 4 of 64 tokens")
        self.name = "llm.c train_gpt2"
        self.a, self.threads = a, a.threads
        self.dir = folder("lockstep-llmc-")
        for name in ("train_gpt2.c", "Makefile", "llmc"):
            source = os.path.join(a.llmc, name)
            copy = shutil.copytree if os.path.isdir(source) else shutil.copy
            copy(source, os.path.join(self.dir, name))
        built = subprocess.run(["make", "train_gpt2"], cwd=self.dir, capture_output=True, text=True)
        if built.returncode != 0:
            self.close()
            raise Skipped(f"make train_gpt2: {built.stderr.strip().splitlines()[-1][:160]}")
        self.write_weights(work.shape)
        self.data = Data(work.shape["vocab_size"])
        os.makedirs(os.path.join(self.dir, "dev", "data", "tinyshakespeare"))
        for split in ("train", "val"):
            os.symlink(os.path.join(self.data.dir, f"fineweb_{split}_000000.bin"),
                       os.path.join(self.dir, "dev", "data", "tinyshakespeare",
                                    f"tiny_shakespeare_{split}.bin"))

    def write_weights(self, shape):
        import random
        from array import array

        L, C, T = shape["n_layer"], shape["n_embd"], shape["block_size"]
        V = shape["vocab_size"]
        padded = (V + 127) // 128 * 128
        rng = random.Random(1)
        noise = array("f", (rng.gauss(0, 0.02) for _ in range(1 << 16)))

        def values(n, constant=None):
            if constant is not None:
                return array("f", [constant]) * n
            return (noise * (n // len(noise) + 1))[:n]

        with open(os.path.join(self.dir, "gpt2_124M.bin"), "wb") as f:
            header = [20240326, 3, T, V, L, shape["n_head"], C, padded]
            f.write(struct.pack("<256i", *(header + [0] * (256 - len(header)))))
            for n, constant in [(padded * C, None), (T * C, None), (L * C, 1), (L * C, 0),
                                (3 * L * C * C, None), (3 * L * C, 0), (L * C * C, None),
                                (L * C, 0), (L * C, 1), (L * C, 0), (4 * L * C * C, None),
                                (4 * L * C, 0), (4 * L * C * C, None), (L * C, 0), (C, 1), (C, 0)]:
                values(n, constant).tofile(f)

    def turn(self, n):
        env = dict(os.environ, OMP_NUM_THREADS=str(self.threads))
        return self.run(n, ["stdbuf", "-oL", "./train_gpt2"], r"took ([\d.]+) ms", 2, self.dir, env)

    def close(self):
        if hasattr(self, "data"):
            self.data.close()
        shutil.rmtree(self.dir, ignore_errors=True)
