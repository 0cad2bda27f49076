#!/usr/bin/env python3
"""Times of steps that `lockstep plan` predicts for two hosts, beside those of runs.

    python3 tests/plan/times.py BUILD [--models=small,wide] [--delays=0,10,50] [--rates=0,1000,200] [--steps=N]

BUILD is the build folder (build-check). Hosts are network namespaces of this machine with one core each, if it has two,
and TCP's usual congestion control (cubic). Delays are one way, in milliseconds; rates in Mbit/s, 0 without a limit
(tc tbf). For every point `lockstep bench machine` runs on both hosts, `lockstep plan` predicts the step from what it
measured, the prediction is printed, and then the run is started. Needs root. The last line has the median and the
worst error, and how many steps lay in their intervals. Exit code 77: such hosts can't be made here.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

MODELS = {
    "tiny": "--n_layer=1 --n_head=2 --n_embd=16 --block_size=16 --batch_size=1",
    "small": "--n_layer=4 --n_head=4 --n_embd=128 --block_size=64 --batch_size=8",
    "wide": "--n_layer=4 --n_head=4 --n_embd=256 --block_size=64 --batch_size=8",
}
HERE = os.path.dirname(os.path.abspath(__file__))
NET = f"lkt{os.getpid()}"
HOSTS = [f"{NET}-a", f"{NET}-b"]


def sh(command, **more):
    return subprocess.run(command.split(), check=True, stdout=subprocess.PIPE, text=True, **more).stdout


class Link:
    """Two hosts, and their address and device of a link."""

    def __init__(self, distance, delay_ms, rate_mbit):
        self.relay = None
        device = "eth0" if delay_ms == 0 else "t0"
        sh(f"{HERE}/../launch/hosts.sh make {NET} a b")
        for i, host in enumerate(HOSTS):
            if delay_ms > 0:  # and no other way
                sh(f"ip -n {host} link set eth0 down")
                sh(f"ip -n {host} tuntap add dev t0 mode tun")
                sh(f"ip -n {host} addr add 10.79.0.{i + 1}/24 dev t0")
                sh(f"ip -n {host} link set t0 mtu 9000 txqueuelen 10000 up")
            sh(f"ip -n {host} route replace 10.{77 if delay_ms == 0 else 79}.0.0/24 dev {device} congctl cubic")
            if rate_mbit > 0:
                sh(f"ip netns exec {host} tc qdisc add dev {device} root tbf rate {rate_mbit}mbit burst 256kb latency 400ms")
        if delay_ms > 0:
            self.relay = subprocess.Popen([distance, str(delay_ms / 1e3)] + HOSTS, stdout=subprocess.PIPE, text=True)
            if self.relay.stdout.readline() != "ready\n":
                raise OSError("no relay")
        self.address = "10.77.0.1" if delay_ms == 0 else "10.79.0.1"

    def close(self):
        if self.relay is not None:
            self.relay.kill()
            self.relay.wait()
        subprocess.run([f"{HERE}/../launch/hosts.sh", "remove", NET, "a", "b"], check=False)

    def both(self, command, log):
        cores, started = os.cpu_count(), []
        for rank, host in enumerate(HOSTS):
            env = dict(os.environ, MASTER_ADDR=self.address, MASTER_PORT="29500", WORLD_SIZE="2", RANK=str(rank), LOCAL_RANK="0",
                       LOCAL_WORLD_SIZE="1", GROUP_RANK=str(rank), LOCKSTEP_TOKEN="0123456789abcdef" * 2)
            pin = ["taskset", "-c", str(rank)] if cores >= 2 else []
            with open(f"{log}-{rank}.log", "w", encoding="utf-8") as out:
                started.append(subprocess.Popen(["ip", "netns", "exec", host] + pin + ["timeout", "600"] + command,
                                                env=env, stdout=out, stderr=subprocess.STDOUT))
        if any([p.wait() for p in started]):
            with open(f"{log}-0.log", encoding="utf-8") as f:
                sys.exit(f.read()[-2000:])


def steps_of(out):
    """Milliseconds of the steps that count: the first two are slower."""
    with open(f"{out}/metrics.jsonl", encoding="utf-8") as f:
        times = [json.loads(line) for line in f if '"loss"' in line]
    return [t["ms"] for t in times][2:]


def point(tool, distance, work, name, delay, rate, steps):
    shape, file = MODELS[name].split(), f"{work}/{name}-{delay}-{rate}.json"
    same, n = ["--threads=1", "--backend=gloo", "--timeout=120"], "--gradient_accumulation_steps=8"
    link = Link(distance, delay, rate)
    try:
        link.both([tool, "bench", "machine", f"--out={file}", "--vocab_size=11"] + shape + same, f"{work}/bench")
        plan = subprocess.run([tool, "plan", f"--machine={file}", f"--dataset={work}/data", "--nnodes=2", "--threads=1", n, "--json"] + shape,
                              check=True, stdout=subprocess.PIPE)
        planned = json.loads(plan.stdout)["points"][-1]
        time, delays = planned["time"], planned["network"]["delays"]
        print(f"{name:6} {delay:4} ms {rate or 'no limit':>8} {delays:4} delays: planned {time['step_ms']:8.1f} ms "
              f"({time['low_ms']:.0f} .. {time['high_ms']:.0f})", end="", flush=True)
        out = f"{work}/{name}-{delay}-{rate}"
        link.both([tool, "train", f"--dataset={work}/data", f"--out_dir={out}", f"--max_iters={steps + 1}", "--eval_interval=0",
                   "--log_interval=1", n] + shape + same, f"{work}/train")
    finally:
        link.close()
    real = statistics.median(steps_of(out))
    error = time["step_ms"] / real - 1
    print(f", median of {steps} steps {real:8.1f} ms, {100 * error:+6.1f} %, load {os.getloadavg()[0]:.1f}", flush=True)
    return error, time["low_ms"] <= real <= time["high_ms"]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build")
    parser.add_argument("--models", default="small,wide")
    parser.add_argument("--delays", default="0,10,50")
    parser.add_argument("--rates", default="0,1000,200")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    tool, distance = (os.path.abspath(f"{args.build}/{p}") for p in ("tools/lockstep", "tests/plan/plan_distance"))
    work, rows = tempfile.mkdtemp(), []
    if os.getuid() != 0 or shutil.which("ip") is None or not os.path.exists("/dev/net/tun"):
        print("SKIP: lacks namespaces: needs root, ip and /dev/net/tun")
        sys.exit(77)
    try:
        with open(f"{work}/text", "w", encoding="ascii") as f:
            f.write("\n".join(map(str, range(40000))))
        sh(f"{tool} prep char --input={work}/text --out={work}/data")
        for delay in map(int, args.delays.split(",")):
            for rate in map(int, args.rates.split(",")):
                for name in args.models.split(","):
                    rows.append(point(tool, distance, work, name, delay, rate, args.steps))
        errors = [abs(e) for e, _ in rows]
        print(f"{len(rows)} points: median error {100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} %, "
              f"{sum(inside for _, inside in rows)} in their intervals")
    finally:
        if os.environ.get("KEEP") is None:
            shutil.rmtree(work)


main()
