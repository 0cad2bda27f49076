#!/usr/bin/env python3
"""Gradients of 25M floats in 50 tensors, filled and made equal: liblockstep next to PyTorch DDP over gloo,
on two hosts of one rank each (network namespaces) and on one host with two ranks.

    sudo PYTHON bench/ddp.py --build=build [--seconds=90] [--smoke]     a PYTHON that has PyTorch

The sides stay alive and take turns of 5 iterations; a turn's time is the median of rank 0's, a ratio the
median over pairs of turns. `fill` is an iteration without the exchange. Nothing else should run."""
import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ITERATIONS = 5
SIDES = {"lks_ddp": "copy", "lks_ddp, weight, overwrites": "copy+", "DDP": "default",
         "lks_ddp, own_gradients": "own", "lks_ddp, own_gradients, weight, overwrites": "own+",
         "DDP, gradient_as_bucket_view": "view"}
PEERS = {"copy": "DDP", "copy+": "DDP", "own": "DDP, gradient_as_bucket_view", "own+": "DDP, gradient_as_bucket_view"}


class Hosts:
    """Two namespaces with a cable between them."""
    names = [f"ddp{os.getpid()}{host}" for host in "ab"]

    @staticmethod
    def ip(*args, check=True):
        subprocess.run(["ip", *args], check=check, stderr=None if check else subprocess.DEVNULL)

    def __enter__(self):
        a, b = self.names
        for name in self.names:
            self.ip("netns", "add", name)
            self.ip("-n", name, "link", "set", "lo", "up")
        self.ip("link", "add", "eth0", "netns", a, "type", "veth", "peer", "name", "eth0", "netns", b)
        for n, name in enumerate(self.names, 1):
            self.ip("-n", name, "addr", "add", f"10.78.0.{n}/24", "dev", "eth0")
            self.ip("-n", name, "link", "set", "eth0", "up")
        return self

    def __exit__(self, *_):
        for name in self.names:
            self.ip("netns", "del", name, check=False)


class Side:
    """Both ranks of one program, which wait for lines on standard input."""

    def __init__(self, name, a, binary, hosts, port):
        mode = SIDES[name]
        program = [sys.executable, os.path.join(HERE, "torch_ddp.py")] if name.startswith("DDP") else [binary]
        self.name, self.mode, self.ranks, self.times = name, mode, [], []
        for rank in range(2):
            env = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0" if hosts else str(rank),
                       LOCAL_WORLD_SIZE="1" if hosts else "2", GROUP_RANK=str(rank if hosts else 0),
                       GROUP_WORLD_SIZE="2" if hosts else "1", MASTER_PORT=str(port),
                       MASTER_ADDR="10.78.0.1" if hosts else "127.0.0.1", GLOO_SOCKET_IFNAME="eth0" if hosts else "lo",
                       OMP_NUM_THREADS="1", LOCKSTEP_MODULES=os.path.join(a.build, "tools"), LD_LIBRARY_PATH=a.build,
                       # malloc keeps its memory, else PyTorch gets new pages for each gradient
                       MALLOC_MMAP_THRESHOLD_="1073741824", MALLOC_TRIM_THRESHOLD_="4294967296")
            inside = ["ip", "netns", "exec", hosts.names[rank]] if hosts else []
            self.ranks.append(subprocess.Popen(inside + program + [mode, str(a.tensors), str(a.elements)], env=env,
                                               text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        self.how = [self.line(rank) for rank in self.ranks][0].removeprefix("ready ")

    def line(self, rank):
        text = rank.stdout.readline()
        if not text:
            sys.exit(f"{self.name}: a rank ended with {rank.wait()}")
        return text.strip()

    def turn(self, verb, k):
        for rank in self.ranks:
            rank.stdin.write(f"{verb} {k}\n")
            rank.stdin.flush()
        return statistics.median([[float(t) for t in self.line(rank).split()] for rank in self.ranks][0])

    def close(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            try:
                rank.wait(20)
            except subprocess.TimeoutExpired:
                rank.kill()


def measure(a, binary, hosts):
    sides = {}
    try:
        for name in SIDES:
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                port = s.getsockname()[1]
            sides[name] = Side(name, a, binary, hosts, port)
        for side in sides.values():  # DDP makes its buckets again after the first iteration
            side.turn("sync", 3)
        end = time.monotonic() + (0 if a.smoke else a.seconds)
        rounds = 0
        while rounds == 0 or time.monotonic() < end:
            for side in list(sides.values())[::1 if rounds % 2 == 0 else -1]:
                side.times.append(side.turn("sync", ITERATIONS))
            rounds += 1
        fills = {name: side.turn("fill", ITERATIONS) for name, side in sides.items()}
    finally:
        for side in sides.values():
            side.close()
    print(f"\n{'two hosts of one rank' if hosts else 'one host, two ranks'}: {rounds} rounds, ms")
    for name, side in sides.items():
        ratio = ""
        if side.mode in PEERS:
            ratios = [x / y for x, y in zip(side.times, sides[PEERS[side.mode]].times)]
            ratio = f"{statistics.median(ratios):.2f} times {PEERS[side.mode]}"
        print(f"{name:44} {statistics.median(side.times):7.1f}  (least {min(side.times):.1f}, fill {fills[name]:.1f})  "
              f"{side.how:18} {ratio}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build", help="a build of lockstep")
    p.add_argument("--seconds", type=float, default=90, help="of each of the two tables")
    p.add_argument("--smoke", action="store_true", help="small and short, to see that it works")
    a = p.parse_args()
    a.build = os.path.abspath(a.build)
    a.tensors, a.elements = (8, 10_000) if a.smoke else (50, 500_000)
    with tempfile.TemporaryDirectory() as work:
        binary = os.path.join(work, "ddp")
        subprocess.run(["cc", "-O3", "-o", binary, os.path.join(HERE, "ddp.c"), f"-I{os.path.join(HERE, '..', 'include')}",
                        f"-L{a.build}", "-llockstep"], check=True)
        print(time.strftime("%F %T"), "load", *os.getloadavg())
        with Hosts() as hosts:
            measure(a, binary, hosts)
        measure(a, binary, None)
        print("load", *os.getloadavg())


if __name__ == "__main__":
    main()
