#!/usr/bin/env python3
"""Time from a launcher's start to the end of two ranks that met at one barrier: `lockstep run`
and torchrun, in turns.

    python3 bench/launch.py [--pairs 5] [--nproc 2] [--build build]

lockstep's ranks are a C program on liblockstep (tests/launch/test_launch --rank fine: open the group,
barrier, close); torchrun's are a script that makes a gloo group and calls barrier(). torchrun also
runs /bin/true, which measures only the launcher. PyTorch is that of the Python which runs this file.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = """import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""


def seconds(command):
    start = time.perf_counter()
    r = subprocess.run(command, capture_output=True, text=True)
    if r.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {r.returncode}: {r.stderr}")
    return time.perf_counter() - start


def main():
    p = argparse.ArgumentParser(description="Start of ranks by lockstep run and torchrun.")
    p.add_argument("--pairs", type=int, default=5, help="turns of each side (5)")
    p.add_argument("--nproc", type=int, default=2, help="ranks (2)")
    p.add_argument("--build", default=os.path.join(HERE, "..", "build-check"), help="a build with tests: ./check makes one")
    a = p.parse_args()
    n = f"--nproc-per-node={a.nproc}"
    body = os.path.join(a.build, "tests", "launch", "test_launch")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", n]
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(SCRIPT)
        script.flush()
        sides = {"lockstep run, barrier": [os.path.join(a.build, "tools", "lockstep"), "run", n, body,
                                           "--rank", "fine"]}
        if subprocess.run([sys.executable, "-c", "import torch.distributed"],
                          capture_output=True).returncode == 0:
            sides["torchrun, barrier"] = torchrun + [script.name]
            sides["torchrun, true"] = torchrun + ["--no-python", "/bin/true"]
        else:
            print("torchrun: no PyTorch in this Python")
        times = {side: [] for side in sides}
        for _ in range(a.pairs):
            for side, command in sides.items():
                times[side].append(seconds(command))
    for side, t in times.items():
        print(f"{side:24} median {statistics.median(t) * 1e3:7.0f} ms, least {min(t) * 1e3:7.0f} ms")


main()
