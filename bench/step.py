#!/usr/bin/env python3
"""Time of whole training steps: lockstep beside PyTorch, on this machine, in one run.

    python3 bench/step.py [-n 20] [--pairs 5] [--threads N] [--nanogpt CHECKOUT] [--lockstep PATH]

A step is a batch, forward, backward, clipping and AdamW in fp32. The sides take turns (A B A B), so
that a machine that slows down or speeds up does so to both; each turn's time is the median of its
steps, and the ratio is the median over the pairs. PyTorch is taken eager and compiled, and the faster
of the two counts. `share` is the part of the machine's own measured peak of multiply-adds
(`lockstep bench peak`) that the model's arithmetic makes up; it is counted alike for both sides.

PyTorch is that of the Python which runs this file; where it has none, its columns say so.
"""
import argparse
import os
import re
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = [
    ("nanoGPT's CPU recipe", 12,
     {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64, "vocab_size": 65}),
    ("shakespeare_char, 10.6M", 4,
     {"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256, "vocab_size": 65}),
]


def read_arguments():
    p = argparse.ArgumentParser(description="Whole training steps: lockstep beside PyTorch.")
    p.add_argument("-n", type=int, default=20, help="steps in a turn (20)")
    p.add_argument("--pairs", type=int, default=5, help="turns of each side (5)")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)),
                   help="threads of each side (all cores)")
    p.add_argument("--nanogpt", help="time nanoGPT's own model.py, from this checkout")
    p.add_argument("--lockstep", default=os.path.join(HERE, "..", "build", "tools", "lockstep"),
                   help="the program (build/tools/lockstep)")
    a = p.parse_args()
    if min(a.n, a.pairs, a.threads) < 1:
        p.error("-n, --pairs and --threads are at least 1")
    if not os.access(a.lockstep, os.X_OK):
        p.error(f"{a.lockstep} is not there: ./quickstart builds it")
    return a


def lockstep(a, what, settings, pattern):
    """Run `lockstep bench WHAT`; the numbers in its line."""
    command = [a.lockstep, "bench", what, f"--threads={a.threads}"] + settings
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(pattern, done.stdout)
    if done.returncode != 0 or not found:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return [float(x) for x in found.groups()]


def lockstep_turn(a, batch, shape):
    """(seconds, GFLOP) of a step."""
    settings = [f"--{k}={v}" for k, v in shape.items()]
    ms, gflops = lockstep(a, "step", settings + [f"--batch_size={batch}", f"--iters={a.n}"],
                          r"median ([\d.]+) ms.*, ([\d.]+) GFLOP/s, mfu")
    return ms / 1e3, gflops * ms / 1e3


def peak_turn(a):
    return lockstep(a, "peak", [], r"([\d.]+) GFLOP/s on one thread, ([\d.]+) on")[1]


def torch_turn(trainer, n):
    times = []
    for _ in range(3):
        trainer.step()
    for _ in range(n):
        t0 = time.perf_counter()
        trainer.step()
        times.append(time.perf_counter() - t0)
    time.sleep(0.3)  # its threads go to sleep, and leave the cores to the other side
    return statistics.median(times)


def torch_sides(a, batch, shape):
    """{name: trainer}; what can't be had is reported, never silent."""
    try:
        import torch
    except ImportError:
        print("  PyTorch     skipped: no torch in this Python")
        return {}
    sys.path.insert(0, HERE)
    import torch_gpt

    torch.set_num_threads(a.threads)
    sides = {"eager": torch_gpt.Trainer(shape, batch, False, a.nanogpt)}
    try:
        compiled = torch_gpt.Trainer(shape, batch, True, a.nanogpt)
        compiled.step()  # compiles here
        sides["compiled"] = compiled
    except Exception as e:  # whatever the compiler lacks
        print(f"  compiled    skipped: {str(e).splitlines()[0][:120]}")
    return sides


def measure(a, name, batch, shape):
    print(f"{name}: {shape['n_layer']} layers, {shape['n_head']} heads, {shape['n_embd']} wide, "
          f"block {shape['block_size']}, batch {batch}, vocabulary {shape['vocab_size']}")
    sides = torch_sides(a, batch, shape)
    ours, theirs, peaks = [], {side: [] for side in sides}, []
    for _ in range(a.pairs):
        peaks.append(peak_turn(a))
        seconds, gflop = lockstep_turn(a, batch, shape)
        ours.append(seconds)
        for side, trainer in sides.items():
            theirs[side].append(torch_turn(trainer, a.n))
    peak = max(peaks)  # whatever disturbs the measurement only lowers it
    print(f"  peak      {peak:9.1f} GFLOP/s")
    for side, times in [("lockstep", ours), *theirs.items()]:
        median = statistics.median(times)
        print(f"  {side:<10}{median * 1e3:9.2f} ms a step ({min(times) * 1e3:.2f} to "
              f"{max(times) * 1e3:.2f}), {batch * shape['block_size'] / median:,.0f} tokens/s, "
              f"share {gflop / median / peak:.1%}")
    if theirs:
        best = min(theirs, key=lambda side: statistics.median(theirs[side]))
        ratios = [t / o for t, o in zip(theirs[best], ours)]
        print(f"  lockstep is {statistics.median(ratios):.2f} times as fast as PyTorch {best} "
              f"(pairs: {', '.join(f'{r:.2f}' for r in ratios)})")


def main():
    a = read_arguments()
    try:
        import torch
        version = f", PyTorch {torch.__version__}"
    except ImportError:
        version = ""
    print(f"{a.threads} threads{version}, {a.n} steps a turn, {a.pairs} pairs")
    for name, batch, shape in MODELS:
        measure(a, name, batch, shape)


if __name__ == "__main__":
    main()
