#!/usr/bin/env python3
"""Whole training steps: lockstep compared with PyTorch and other programs, in one run.

    python3 bench/compare.py [--quick] [--only=WORDS] [--nanogpt=DIR] [--parameter_golf=DIR]
                             [--llmc=DIR] [--write]

A step is a batch, forward, backward and update. The sides take turns (A B A B ...), so that a
machine that slows down or speeds up does so to all; a turn's time is the median of its steps, a
ratio the median over the turns. PyTorch runs plain models of ours (torch_gpt.py, torch_golf.py),
eager and compiled, and, given their checkouts, the programs of others with their own timing.
`share` is the part of the machine's measured peak of multiply-adds (`lockstep bench peak`; of
bfloat16's in a row in bfloat16, as lockstep measures them there) that the model's arithmetic makes
up, counted alike for all sides. Memory is the sum of Pss over a side's processes while it trains;
`first step` is the time from the command to its beginning (lockstep) and end,
compilation included.

PyTorch is that of the Python which runs this file. Programs that can't run are left out and named. Other
programs on the machine spoil the figures, PyTorch's most of all: they are noticed and named. --write
replaces the measured part of docs/reference/performance.md. The part from its heading
"## Other processors" on is kept.
"""
import argparse
import datetime
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
import sides  # noqa: E402
from sides import Skipped  # noqa: E402

PAGE = os.path.join(HERE, "..", "docs", "reference", "performance.md")
KEPT = "## Other processors"


class Work:
    def __init__(self, name, family, batch, shape, bf16=False, llmc=False, slow=False):
        self.name, self.family, self.batch, self.shape = name, family, batch, shape
        self.bf16, self.llmc, self.slow = bf16, llmc, slow
        self.tokens = batch * shape["block_size"]


def gpt(layers, heads, width, block, vocab):
    return {"n_layer": layers, "n_head": heads, "n_embd": width, "block_size": block,
            "vocab_size": vocab}


GOLF = dict(gpt(9, 8, 512, 1024, 1024), num_kv_heads=4, mlp_mult=2)
WORK = [  # the rows of README's table come first
    Work("nanoGPT's CPU recipe: 4 layers, 128 wide, block 64, batch 12", "gpt2", 12,
         gpt(4, 4, 128, 64, 65)),
    Work("shakespeare_char: 10.6M, block 256, batch 4", "gpt2", 4, gpt(6, 6, 384, 256, 65)),
    Work("parameter-golf's default: 17M, 2,048 tokens, float32", "golf", 2, GOLF, slow=True),
    Work("parameter-golf's default in bfloat16, as its script has it", "golf", 2, GOLF, bf16=True, slow=True),
    Work("llm.c's batch: 6 layers, 384 wide, 4 x 64 tokens, biases, vocabulary 1,024", "gpt2", 4,
         dict(gpt(6, 6, 384, 64, 1024), bias="True"), llmc=True),
    Work("GPT-2's shape: 124M, 4 x 64 tokens, biases", "gpt2", 4,
         dict(gpt(12, 12, 768, 64, 50257), bias="True"), llmc=True, slow=True),
]


TWO_RANKS = "Two ranks on two cores"


def chosen(a, name):
    return not a.only or any(words.lower() in name.lower() for words in a.only)


def read_arguments():
    p = argparse.ArgumentParser(description="Whole training steps of lockstep and of other programs.")
    p.add_argument("--quick", action="store_true", help="3 turns of fewer steps: some minutes")
    p.add_argument("--only", action="append", default=[], metavar="WORDS",
                   help="parts whose name contains this; may be given several times")
    p.add_argument("--list", action="store_true", help="print the names of all parts, and stop")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)),
                   help="cores for each side (all)")
    p.add_argument("--limit", type=float, default=90,
                   help="seconds after which a side that gives no answer is left out (90)")
    p.add_argument("--minutes", type=float, default=0,
                   help="begin nothing more after that time (60; 6 with --quick)")
    p.add_argument("--nanogpt", help="checkout of nanoGPT: its train.py")
    p.add_argument("--parameter_golf", help="checkout of parameter-golf: its model and optimizer")
    p.add_argument("--llmc", help="checkout of llm.c: its train_gpt2, built by its Makefile")
    p.add_argument("--write", action="store_true", help="write docs/reference/performance.md")
    p.add_argument("--lockstep", default=os.path.join(HERE, "..", "build", "tools", "lockstep"),
                   help="the program (build/tools/lockstep)")
    a = p.parse_args()
    names = [TWO_RANKS] + [work.name for work in WORK]
    if a.list:
        print("\n".join(names))
        sys.exit()
    if not any(chosen(a, name) for name in names):
        p.error("no part's name contains the words of --only: --list prints the names")
    a.turns = 3 if a.quick else 5
    a.minutes = a.minutes or (6 if a.quick else 60)
    a.deadline = time.perf_counter() + 60 * a.minutes
    a.late = []  # names of parts for which the time was too short
    for name in ("nanogpt", "parameter_golf", "llmc"):
        folder = getattr(a, name)
        if folder and not os.path.isdir(folder):
            p.error(f"--{name}: {folder} is no folder")
    if not os.access(a.lockstep, os.X_OK):
        p.error(f"{a.lockstep} does not exist: ./quickstart builds it")
    a.lockstep = os.path.abspath(a.lockstep)
    return a


def in_time(a, name):
    if time.perf_counter() <= a.deadline:
        return
    if name not in a.late:
        a.late.append(name)
    raise Skipped("the time is over (--minutes)")


def say_late(a):
    if not a.late:
        return
    quick = "--quick " if a.quick else ""
    print(f"\nNot measured, because --minutes={a.minutes:g} were over: {'; '.join(a.late)}.\n"
          f"To measure one of them: python3 bench/compare.py {quick}--only={shlex.quote(a.late[0])}\n"
          f"For all: python3 bench/compare.py {quick}--minutes={max(1, 4 * a.minutes):g}")


def output(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


# --- other programs -------------------------------------------------------------------------------

BUSY = 0.1  # of the cores


def busy_share(stat_before, stat_after):
    """Used share of the cores' time between two first lines of /proc/stat."""
    before, after = ([int(x) for x in text.split()[1:9]] for text in (stat_before, stat_after))
    spent = [b - a for a, b in zip(before, after)]
    idle = spent[3] + spent[4]
    return 1 - idle / max(1, sum(spent))


def cpu_times():
    with open("/proc/stat") as f:
        return f.readline()


def others(seconds=1.0):
    """A sentence if other programs use the cores while ours wait; else None."""
    before = cpu_times()
    time.sleep(seconds)
    share = busy_share(before, cpu_times())
    if share < BUSY:
        return None
    return (f"Other programs use {share:.0%} of the cores: these figures are too high, PyTorch's most of all "
            "(its threads wait for each other)")


def say_others(page, seconds=1.0):
    text = others(seconds)
    if text:
        print(f"BUSY: {text}", flush=True)
        page += [f"**{text}.**", ""]


# --- the machine -----------------------------------------------------------------------------------


def peak(a):
    """GFLOP/s of all cores: the best of three, because disturbances only lower it."""
    found = [re.search(r"thread, ([\d.]+) on", output([a.lockstep, "bench", "peak",
                                                        f"--threads={a.threads}"]))
             for _ in range(3)]
    return max(float(f.group(1)) for f in found)


# --- one row --------------------------------------------------------------------------------------


def wanted(a, work):
    """The programs to start for a row, lockstep first."""
    yield lambda: sides.Lockstep(a, work, 1)
    if a.threads > 1:
        yield lambda: sides.Lockstep(a, work, a.threads)
    if work.llmc:  # in addition to the programs themselves
        if a.llmc:
            yield lambda: sides.LlmC(a, work)
        if a.nanogpt:
            yield lambda: sides.NanoGPT(a, work, False)
        return
    if not (work.bf16 and a.parameter_golf):  # the script itself is enough: it may take minutes
        yield lambda: sides.Torch(a, work, False)
    if not (a.quick and work.bf16):
        yield lambda: sides.Torch(a, work, True)
    if work.family == "gpt2" and a.nanogpt:
        yield lambda: sides.NanoGPT(a, work, False)
        if not a.quick:
            yield lambda: sides.NanoGPT(a, work, True)
    if work.family == "golf" and a.parameter_golf:
        yield lambda: sides.Torch(a, work, False, a.parameter_golf, "parameter-golf")


def measure(a, work):
    """[(name, seconds by turn, optimizer seconds, memory, first)], the model's GFLOP per step, the
    peak of a bfloat16 row (else 0), and reasons for missing sides."""
    print(f"\n{work.name}", flush=True)
    running, rows, lacking, gone = [], [], [], set()
    for make in wanted(a, work):
        try:
            in_time(a, work.name)
            side = make()
            side.turn(1)  # warm up, and check that it works
            running.append(side)
        except Skipped as e:
            print(f"  left out: {e}", flush=True)
            lacking.append(str(e))
    times = {s: [] for s in running}
    optimizer = {s: [] for s in running}
    for turn in range(a.turns):
        if turn > 0 and time.perf_counter() > a.deadline:
            break
        for s in [s for s in running if s not in gone]:
            n = 2 if work.slow else 10
            if min(times[s], default=0.0) > 2:
                n = 1
            try:
                seconds, update = s.turn(n)
            except Skipped as e:
                print(f"  {s.name}: {e}", flush=True)
                gone.add(s)
                continue
            times[s].append(seconds)
            if update is not None:
                optimizer[s].append(update)
    for s in running:
        first = memory = None
        try:
            if times[s]:
                memory = s.memory()
                first = s.first()
        except Skipped as e:
            print(f"  {s.name}, memory and first step: {e}", flush=True)
        if times[s]:
            rows.append((s.name, times[s], optimizer[s], memory, first))
        s.close()
    ours = [s for s in running if isinstance(s, sides.Lockstep)]
    gflop = next((s.gflop for s in ours), None)
    top = max((s.peak for s in ours), default=0.0) if work.bf16 else 0.0
    return rows, gflop, top, lacking


def ratio(row, best):
    pairs = [theirs / ours for theirs, ours in zip(row[1], best[1])]
    return statistics.median(pairs)


def seconds_of(first):
    """Beginning and end of the first step, as far as they are known."""
    if first is None:
        return ""
    begins, ends = first
    return f"{ends:.2f} s" if begins is None else f"{begins:.2f} to {ends:.2f} s"


def table(work, rows, gflop, lacking, top):
    ours = [r for r in rows if r[0].startswith("lockstep")]
    if not ours:
        return []
    best = min(ours, key=lambda r: statistics.median(r[1]))
    lines = [f"**{work.name}**", "",
             "| | time per step | of it the update | tokens/s | share of peak | memory | first step | relative time |",
             "|---|---|---|---|---|---|---|---|"]
    for r in rows:
        name, times, optimizer, memory, first = r
        t = statistics.median(times)
        update = f"{statistics.median(optimizer) * 1e3:.1f} ms" if optimizer else ""
        lines.append(
            f"| {name} | {t * 1e3:.1f} ms ({min(times) * 1e3:.1f} to {max(times) * 1e3:.1f}) | {update} | "
            f"{work.tokens / t:,.0f} | {gflop / t / top:.0%} | "
            f"{f'{memory / 1e6:,.0f} MB' if memory else ''} | {seconds_of(first)} | "
            f"{'1' if r is best else f'{ratio(r, best):.2f}'} |")
    return lines + [""] + [f"Left out: {why}.\n" for why in lacking]


# --- two ranks and two runs -----------------------------------------------------------------------


def train(a, threads, ranks, iters, data, out):
    command = [a.lockstep, "train", f"--dataset={data}", f"--out_dir={out}", "--eval_interval=0",
               "--vocab_size=65", "--n_layer=6", "--n_head=6", "--n_embd=384", "--block_size=256",
               "--batch_size=4", "--gradient_accumulation_steps=8", f"--max_iters={iters - 1}",
               f"--threads={threads}", f"--nproc_per_node={ranks}", "--log_interval=1"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def iteration_times(p):
    times = [float(t) / 1e3 for t in re.findall(r"^iter \d+: .* time ([\d.]+)ms", p.stdout.read(), re.M)]
    if p.wait() != 0 or len(times) < 2:
        raise Skipped("lockstep train failed; its message is above")
    return times[1:]


def two_ranks(a):
    """Tokens per second: two ranks with a thread each, and two runs of one rank at once."""

    data, out = sides.Data(65), sides.folder("lockstep-out-")
    together, apart = [], []
    n = 4 if a.quick else 6
    for turn in range(a.turns):
        times = iteration_times(train(a, 1, 2, n + 1, data.dir, f"{out}/{turn}"))
        together.append(1 / statistics.median(times))
        runs = [train(a, 1, 1, n // 2 + 1, data.dir, f"{out}/{turn}-{i}") for i in range(2)]
        apart.append(sum(1 / statistics.median(iteration_times(p)) for p in runs))
    data.close()
    sides.shutil.rmtree(out, ignore_errors=True)
    share = statistics.median(t / s for t, s in zip(together, apart))
    tokens = 8 * 4 * 256
    return (f"10.6M, 8 micro-batches per step: two ranks of one core each {statistics.median(together) * tokens:,.0f} "
            f"tokens/s, two runs of one core each at the same time {statistics.median(apart) * tokens:,.0f} "
            f"together:\n**{share:.1%}** (median of {a.turns} pairs).")


# --- the page -------------------------------------------------------------------------------------


def machine():
    with open("/proc/cpuinfo") as f:
        model = re.search(r"model name\s*:\s*(.*)", f.read())
    with open("/proc/meminfo") as f:
        memory = int(re.search(r"MemTotal:\s+(\d+)", f.read()).group(1)) / 1e6
    return f"{model.group(1) if model else 'a CPU'}, {os.cpu_count()} cores, {memory:.0f} GB"


def torch_version():
    try:
        import torch
        return f"PyTorch {torch.__version__}"
    except ImportError:
        return "no PyTorch in this Python"


def kept_part():
    try:
        with open(PAGE) as f:
            text = f.read()
    except OSError:
        return f"{KEPT}\n"
    at = text.find(KEPT)
    if at < 0:
        sys.exit(f'{PAGE} has no heading "{KEPT}", and --write would lose the part below it')
    return text[at:]


def main():
    a = read_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the children, too
    started = time.perf_counter()
    kept = kept_part() if a.write else ""
    top = peak(a)
    info = output([a.lockstep, "info"])
    level = re.search(r"^kernels +(\w+)", info, re.M)
    page = ["# Performance", "",
            f"Measured by `python3 bench/compare.py` on {datetime.date.today()}: {machine()}; {torch_version()}; "
            f"lockstep's kernels: {level.group(1) if level else '?'}; {top:.0f} GFLOP/s of\n"
            f"float32 multiply-adds on {a.threads} cores.", "",
            f"- Sides take turns; a figure is the median of {a.turns} turns (smallest to largest).",
            "- `relative time` is the median of the turns' ratios to lockstep's best.",
            "- Memory is the sum of Pss over a side's processes.",
            "- `first step` is the time from the command to the beginning (lockstep) and end of the first step.",
            "- `share of peak` of a bfloat16 row refers to the peak of bfloat16's multiply-adds.", "",
            "This command writes the page up to its last part, which it keeps:",
            "", "```sh", "python3 bench/compare.py --nanogpt=DIR --parameter_golf=DIR --llmc=DIR --write", "```", ""]
    print("\n".join(page[2:3]))
    say_others(page)
    page += ["## Whole steps", ""]
    for work in WORK:
        if not chosen(a, work.name):
            continue
        if work.llmc and not a.llmc:
            print(f"\n{work.name}\n  left out: it needs --llmc=DIR", flush=True)
            continue
        say_others(page)
        rows, gflop, top_bf16, lacking = measure(a, work)
        lines = table(work, rows, gflop, lacking, top_bf16 or top)
        print("\n".join(lines), flush=True)
        page += lines
    if chosen(a, TWO_RANKS):
        try:
            in_time(a, TWO_RANKS)
            if a.threads < 2:
                raise Skipped("it needs two cores")
            text = two_ranks(a)
        except Skipped as e:
            text = f"Left out: {e}."
        page += [f"## {TWO_RANKS}", "", text, ""]
        print(f"\n{TWO_RANKS}\n{text}", flush=True)
    if a.write:
        text = "\n".join(page) + "\n" + kept
        with open(PAGE, "w") as f:
            f.write(text)
    say_late(a)
    print(f"\n{time.perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
    main()
