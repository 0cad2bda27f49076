#!/usr/bin/env python3
"""Memory of ranks as `lockstep plan` counts it, compared with Pss, on some twenty configurations.

    python3 bench/memory.py TOOL [WORD]

TOOL is the program, build/tools/lockstep; with WORD only configurations that contain it. Hosts are groups of processes on this machine, over Gloo. Each row: planned
and measured megabytes of the first host, and the error of a rank, which must be within 3 % or 5 MB. Pages of files are
left out on both sides, because other programs share them; arenas that a rank reserves and never touches are no part of
Pss. tests/plan/memory.sh is the short form.
"""
import argparse
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

GPT2 = "--n_layer=3 --n_head=4 --n_embd=256 --block_size=32 --batch_size=4 --gradient_accumulation_steps=8"
WIDE = "--n_layer=2 --n_head=2 --n_embd=64 --block_size=128 --batch_size=16 --gradient_accumulation_steps=8"
GOLF = ("--family=golf --sampler=stream --vocab_size=512 --n_layer=2 --n_head=4 --num_kv_heads=2 --n_embd=256 --block_size=64 "
        "--train_batch_tokens=2048 --iterations=100000 --max_wallclock_seconds=0 --gradient_accumulation_steps=8")
CONFIGS = [  # hosts (ranks of each), settings
    ("1", GPT2), ("2", GPT2), ("4", GPT2), ("8", GPT2), ("1", WIDE), ("8", WIDE),
    ("3", GPT2 + " --allow_uneven=true"), ("6", GPT2 + " --allow_uneven=true"),
    ("2", GPT2 + " --replicas=private"), ("4", GPT2 + " --replicas=private"), ("2", WIDE + " --dropout=0.2"),
    ("2", GPT2 + " --dtype=bfloat16"), ("1", GPT2 + " --virtual_ranks=1"),
    ("11", GPT2), ("22", GPT2), ("111", GPT2 + " --allow_uneven=true"), ("1111", GPT2), ("11", GPT2 + " --zero=1"),
    ("1111", GPT2 + " --zero=1"), ("11", GPT2 + " --wire=bfloat16"), ("11111111", GPT2),
    ("1", GOLF), ("4", GOLF), ("2", GOLF + " --optimizer=adamw"),
]


def proc(pid):
    kb = 0
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as f:
        for line in f:
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                kb += int(line.split()[1])
    return kb * 1024


def planned(tool, hosts, settings, data):
    plan = subprocess.run([tool, "plan", f"--dataset={data}", "--threads=1", f"--nnodes={len(hosts)}",
                           f"--nproc_per_node={hosts[0]}", "--json"] + settings, check=True, stdout=subprocess.PIPE)
    memory = json.loads(plan.stdout)["points"][-1]["memory"]
    return memory["host_bytes"] - memory["libraries"] - memory["untouched"] - memory["control"]


def ranks(tool, hosts, settings, data, out):
    world, rank, started = sum(map(int, hosts)), 0, []
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    for host, n in enumerate(map(int, hosts)):
        for local in range(n):
            env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(local), LOCAL_WORLD_SIZE=str(n),
                       GROUP_RANK=str(host), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                       TORCHELASTIC_RUN_ID=f"h{host}", LOCKSTEP_TOKEN="0123456789abcdef" * 2)
            started.append(subprocess.Popen(
                [tool, "train", f"--dataset={data}", f"--out_dir={out}", "--max_iters=100000", "--eval_interval=0", "--log_interval=1", "--threads=1"] + settings,
                env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
            rank += 1
    return started


def steps(out):
    try:
        with open(f"{out}/metrics.jsonl", encoding="utf-8") as f:
            return f.read().count('"loss"')
    except OSError:
        return 0


def measured(tool, hosts, settings, data, out):
    started, end = ranks(tool, hosts, settings, data, out), time.time() + 300
    try:
        while steps(out) < 3:
            time.sleep(0.1)
            if time.time() > end or any(p.poll() is not None for p in started):
                raise RuntimeError("no third step")
        for p in started:
            p.send_signal(signal.SIGSTOP)
        return sum(proc(p.pid) for p in started[:int(hosts[0])])
    finally:
        for p in started:
            p.kill()
        for p in started:
            p.wait()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("tool")
    p.add_argument("word", nargs="?", default="")
    args = p.parse_args()
    configs = [config for config in CONFIGS if args.word in config[1]]
    if not configs:
        p.error(f"no configuration contains {args.word}")
    tool, work, bad = os.path.abspath(args.tool), tempfile.mkdtemp(), 0
    try:
        with open(f"{work}/text", "w", encoding="ascii") as f:
            f.write("\n".join(map(str, range(40000))))
        with open(f"{work}/pages", "wb") as f:
            for page in glob.glob(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs", "*", "*.md")):
                with open(page, "rb") as g:
                    f.write(g.read())
        for kind, more in (("char", [f"--input={work}/text"]), ("sentencepiece", [f"--input={work}/pages", "--vocab_size=512"])):
            subprocess.run([tool, "prep", kind, f"--out={work}/{kind}"] + more, check=True, stdout=subprocess.DEVNULL)
        for i, (hosts, text) in enumerate(configs):
            settings = text.split()
            data = f"{work}/{'sentencepiece' if 'golf' in text else 'char'}"
            plan = planned(tool, hosts, settings, data) / 1e6
            real = measured(tool, hosts, settings, data, f"{work}/{i}") / 1e6
            error = (plan - real) / int(hosts[0])
            good = abs(error) <= max(5, 0.03 * real / int(hosts[0]))
            bad += not good
            print(f"{hosts:9} {plan:7.1f} {real:7.1f} MB {error:+5.1f} a rank {'' if good else 'TOO FAR '} {text}", flush=True)
    finally:
        shutil.rmtree(work)
    return bad


sys.exit(main() > 0)
