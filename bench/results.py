#!/usr/bin/env python3
"""Results that people know, next to the reference's: runs them, keeps their logs, writes the page.

    python3 bench/results.py PART [--seeds=N] [--steps=N] [--minutes=N] [--nanogpt=DIR] [--golf=FILE]

    ranks            one run on 1, 2, 4 and 8 ranks: the same curve, and each one's time
    shakespeare-cpu  nanoGPT's recipe for a CPU, with each seed, and nanoGPT's own train.py
    shakespeare-char the first steps of nanoGPT's recipe for characters, and nanoGPT's own
    golf             the first steps of parameter-golf's script at a recorded figure's shape
    page             write docs/reference/results.md and its pictures from what was kept

Logs and runs are in out/results/PART, and a summary of each part in bench/results/PART.json, from
which `page` writes. A part that was stopped (--minutes, Ctrl-C) continues when it is called again:
runs of lockstep from their last step, a script's run from its beginning. --again forgets the part's
runs first. --nanogpt is a checkout of nanoGPT, --golf parameter-golf's train_gpt.py, and --record
the train_gpt.py of the record with sliding windows. Their Python is the one that runs this file.
Without them the reference's figures are the recorded ones, with their source.
"""
import argparse
import datetime
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import textwrap
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
import compare  # noqa: E402
import sides  # noqa: E402

RANKS = (1, 2, 4, 8)


class Stopped(Exception):
    """The time is over, or a signal came; the part continues when it is called again."""


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("part", choices=list(PARTS))
    p.add_argument("--seeds", type=int, default=3, help="seeds of shakespeare-cpu (3)")
    p.add_argument("--steps", type=int, default=0, help="steps of each run (the part's own number)")
    p.add_argument("--minutes", type=float, default=0, help="stop after that time (never)")
    p.add_argument("--nanogpt", help="checkout of nanoGPT")
    p.add_argument("--golf", help="parameter-golf's train_gpt.py")
    p.add_argument("--record", help="train_gpt.py of the record 2026-03-19_SlidingWindowEval")
    p.add_argument("--golf_data", default=os.path.join(ROOT, "..", "shared", "reference", "golf-data"),
                   help="shards and sp1024.model of the recorded figure (../shared/reference/golf-data)")
    p.add_argument("--text", default=os.path.join(ROOT, "..", "shared", "data", "tinyshakespeare", "input.txt"),
                   help="tinyshakespeare (../shared/data/tinyshakespeare/input.txt)")
    p.add_argument("--lockstep", default=os.path.join(ROOT, "build", "tools", "lockstep"))
    p.add_argument("--out", default=os.path.join(ROOT, "out", "results"), help="logs (out/results)")
    p.add_argument("--kept", default=os.path.join(HERE, "results"), help="summaries (bench/results)")
    p.add_argument("--docs", default=os.path.join(ROOT, "docs"), help="folder of the pages (docs)")
    p.add_argument("--again", action="store_true", help="forget the part's earlier runs")
    a = p.parse_args()
    a.lockstep = os.path.abspath(a.lockstep)
    a.deadline = time.monotonic() + 60 * a.minutes if a.minutes else float("inf")
    a.folder = os.path.join(os.path.abspath(a.out), a.part)
    if not os.access(a.lockstep, os.X_OK):
        p.error(f"{a.lockstep} is not there: ./quickstart builds it")
    return a


# --- commands and their logs ----------------------------------------------------------------------


def shown(command):
    """A command as a reader types it: paths within the repository, and lockstep by its name."""
    words = ["lockstep" if w.endswith("tools/lockstep") else "python3" if w == sys.executable else w for w in command]
    return " ".join(w.replace(ROOT + "/", "") for w in words)


def run(a, command, log, cwd=None, env=None):
    """Run a command, and append its output to `log`. Returns seconds and the largest sum of Pss.
    When the time is over it gets SIGTERM, after which lockstep saves and ends."""
    os.makedirs(os.path.dirname(log), exist_ok=True)
    print(f"$ {shown(command)}", flush=True)
    busy = compare.others() is not None
    started, most, asked = time.monotonic(), 0, False
    if started > a.deadline:
        raise Stopped(f"before `{shown(command)}`")
    with open(log, "a") as f:
        f.write(f"$ {shown(command)}\n")
        f.flush()
        process = sides.lead(command, stdout=f, stderr=subprocess.STDOUT, cwd=cwd, env=env)
        try:
            while process.poll() is None:
                most = max(most, sides.pss(process.pid))
                if time.monotonic() > a.deadline and not asked:
                    asked = True
                    os.kill(process.pid, signal.SIGTERM)
                time.sleep(1 if time.monotonic() - started > 5 else 0.1)  # reading Pss takes some of a core
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            asked, a.deadline = True, 0
    seconds = time.monotonic() - started
    if process.returncode != 0 and not asked:
        with open(log) as f:
            sys.exit(f"`{shown(command)}` failed; {log} ends with:\n{f.read()[-2000:]}")
    return {"seconds": round(seconds, 2), "memory": most, "stopped": asked, "busy": busy}


def lines(folder, kind):
    try:
        with open(os.path.join(folder, "metrics.jsonl")) as f:
            return [o for o in map(json.loads, f) if o["kind"] == kind]
    except FileNotFoundError:
        return []


def steps_of(folder):
    train = lines(folder, "train")
    return train[-1]["iter"] + 1 if train else 0


def times(folder, more=None):
    """What each start of a run took; `more` is added."""
    path, kept = os.path.join(folder, "times.json"), []
    if os.path.exists(path):
        with open(path) as f:
            kept = json.load(f)
    if more:
        kept.append(more)
        os.makedirs(folder, exist_ok=True)  # a run that was stopped may not have made it
        with open(path, "w") as f:
            json.dump(kept, f)
    return kept


def train(a, name, settings, steps):
    """A run of lockstep in out/results/PART/NAME up to `steps`: begun, continued, or found complete."""
    folder = os.path.join(a.folder, name)
    command = [a.lockstep, "train"] + settings + [f"--out_dir={folder}"]
    if os.path.exists(os.path.join(folder, "latest")):
        command.append("--init_from=resume")
    if not lines(folder, "final") or steps_of(folder) < steps:
        took = run(a, command, os.path.join(a.folder, name + ".log"))
        times(folder, took)
        if took["stopped"]:
            raise Stopped(f"in `{shown(command)}`")
    spent = times(folder)
    row = {"name": name, "command": shown(command), "steps": steps_of(folder),
           "seconds": round(sum(t["seconds"] for t in spent), 1), "memory": max(t["memory"] for t in spent),
           "busy": any(t["busy"] for t in spent), "step_ms": median_ms(folder), "evals": [(e["iter"], e["val_loss"]) for e in lines(folder, "eval")],
           "params_hash": next((c["params_hash"] for c in reversed(lines(folder, "checkpoint"))), "")}
    final = lines(folder, "final")
    row["final"] = final[-1]["val_loss"] if final else None
    return row


def median_ms(folder):
    ms = [line["ms"] for line in lines(folder, "train") if line.get("ms")]
    return round(statistics.median(ms), 1) if ms else None


def summary(a, **content):
    """Write the part's summary."""
    os.makedirs(a.kept, exist_ok=True)
    content |= {"date": datetime.date.today().isoformat(), "machine": machine(a)}
    with open(os.path.join(a.kept, a.part + ".json"), "w") as f:
        json.dump(content, f, indent=1)
        f.write("\n")


def machine(a):
    with open("/proc/cpuinfo") as f:
        model = re.search(r"model name\s*: (.*)", f.read())
    version = subprocess.run([a.lockstep, "--version"], capture_output=True, text=True).stdout.strip()
    return f"{model.group(1) if model else os.uname().machine}, {len(os.sched_getaffinity(0))} cores, {version}"


def plot(a, picture, runs):
    """A picture in docs/pictures, of (name, folder)."""
    path = os.path.join(a.docs, "pictures", picture)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    done = subprocess.run([a.lockstep, "plot", f"--out={path}"] + [f"{name}={folder}" for name, folder in runs],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)


def characters(a):
    """tinyshakespeare as characters, as nanoGPT's prepare.py makes them."""
    data = os.path.join(os.path.dirname(a.folder), "data", "shakespeare_char")
    if not os.path.exists(os.path.join(data, "meta.json")):
        run(a, [a.lockstep, "prep", "char", f"--input={a.text}", f"--out={data}"], data + ".log")
    return data


# --- nanoGPT --------------------------------------------------------------------------------------


def nanogpt(a, name, settings, seed, data):
    """nanoGPT's train.py, unchanged but for the seed, as a run that `lockstep plot` reads."""
    folder = os.path.join(a.folder, name)
    command = [sys.executable, "-u", "train.py"] + [f"--{k}={v}" for k, v in settings.items()]
    if not a.nanogpt and not lines(folder, "train"):
        return None
    if not lines(folder, "train"):
        work = os.path.join(folder, "work")
        shutil.rmtree(work, ignore_errors=True)
        os.makedirs(os.path.join(work, "data"))
        for file in ("model.py", "configurator.py"):
            shutil.copy(os.path.join(a.nanogpt, file), work)
        with open(os.path.join(a.nanogpt, "train.py")) as f:
            source = f.read().replace("torch.manual_seed(1337 + seed_offset)", f"torch.manual_seed({seed} + seed_offset)")
        with open(os.path.join(work, "train.py"), "w") as f:
            f.write(source)
        os.symlink(data, os.path.join(work, "data", "shakespeare_char"))
        write_meta(data)
        log = os.path.join(a.folder, name + ".log")
        open(log, "w").close()
        took = run(a, command, log, cwd=work, env=dict(os.environ, OMP_NUM_THREADS=str(os.cpu_count())))
        shutil.rmtree(work)
        if took["stopped"]:
            raise Stopped(f"nanoGPT's run {name} was discarded")
        times(folder, took)
        convert(log, folder, settings)
    spent = times(folder)[-1]
    return {"name": name, "command": shown(command), "steps": steps_of(folder), "seconds": spent["seconds"], "memory": spent["memory"],
            "busy": spent["busy"], "step_ms": median_ms(folder), "evals": [(e["iter"], e["val_loss"]) for e in lines(folder, "eval")],
            "final": None}


def write_meta(data):
    """nanoGPT reads the vocabulary's size from meta.pkl."""
    import pickle

    with open(os.path.join(data, "meta.json")) as f:
        size = json.load(f)["vocab_size"]
    with open(os.path.join(data, "meta.pkl"), "wb") as f:
        pickle.dump({"vocab_size": size}, f)


def convert(log, folder, settings):
    """The lines that train.py printed, as metrics.jsonl."""
    rows = [{"kind": "config"} | settings, {"kind": "host", "world_size": 1}]
    tokens = settings["batch_size"] * settings["block_size"] * settings["gradient_accumulation_steps"]
    with open(log) as f:
        for line in f:
            step = re.match(r"step (\d+): train loss ([\d.]+), val loss ([\d.]+)", line)
            iteration = re.match(r"iter (\d+): loss ([\d.]+), time ([\d.]+)ms", line)
            if step:
                rows.append({"kind": "eval", "iter": int(step[1]), "train_loss": float(step[2]), "val_loss": float(step[3])})
            if iteration:
                ms = float(iteration[3])
                rows.append({"kind": "train", "iter": int(iteration[1]), "loss": float(iteration[2]), "ms": ms,
                             "tokens": tokens * (int(iteration[1]) + 1), "tok_per_s": 1e3 * tokens / ms})
    with open(os.path.join(folder, "metrics.jsonl"), "w") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows)


# --- the parts ------------------------------------------------------------------------------------


def ranks(a):
    steps, data = a.steps or 400, characters(a)
    rows = []
    for n in RANKS:
        settings = ["config/quickstart.conf", f"--dataset={data}", f"--nproc_per_node={n}", f"--max_iters={steps - 1}",
                    f"--lr_decay_iters={steps - 1}", "--eval_interval=50", "--threads=1"]
        rows.append(train(a, str(n), settings, steps))
    plot(a, "results-ranks.svg", [(f"{n} rank{'s' * (n > 1)}", os.path.join(a.folder, str(n))) for n in RANKS])
    summary(a, rows=rows, steps=steps)


CPU = {"eval_interval": 250, "eval_iters": 20, "log_interval": 1, "block_size": 64, "batch_size": 12, "n_layer": 4,
       "n_head": 4, "n_embd": 128, "dropout": 0.0, "gradient_accumulation_steps": 1, "learning_rate": 1e-3, "min_lr": 1e-4,
       "beta2": 0.99, "warmup_iters": 100, "dataset": "shakespeare_char", "out_dir": "out", "device": "cpu",
       "dtype": "float32", "compile": False, "always_save_checkpoint": False}


def shakespeare_cpu(a):
    steps, data = a.steps or 2001, characters(a)
    rows = []
    for seed in range(1337, 1337 + a.seeds):
        settings = ["config/train_shakespeare_char_cpu.conf", f"--dataset={data}", f"--max_iters={steps - 1}",
                    f"--seed={seed}", "--sampler=nanogpt", "--virtual_ranks=1"]
        rows.append(train(a, f"lockstep-{seed}", settings, steps) | {"seed": seed, "program": "lockstep"})
        theirs = nanogpt(a, f"nanogpt-{seed}", CPU | {"max_iters": steps - 1, "lr_decay_iters": 2000}, seed, data)
        if theirs:
            rows.append(theirs | {"seed": seed, "program": "nanoGPT"})
        summary(a, rows=rows, steps=steps)
    first = [r["name"] for r in rows if r["seed"] == 1337]
    plot(a, "results-shakespeare-cpu.svg", [(name.split("-")[0], os.path.join(a.folder, name)) for name in first])


def shakespeare_char(a):
    # Both programs evaluate before step number `last`, so the run makes that step, too.
    last, data = a.steps or 250, characters(a)
    steps, every = last + 1, min(last, 250)
    settings = ["config/train_shakespeare_char.conf", f"--dataset={data}", f"--eval_interval={every}", "--eval_iters=20",
                "--log_interval=1", "--sampler=nanogpt", "--virtual_ranks=1"]
    ours = train(a, "lockstep", settings + [f"--max_iters={last}", "--lr_decay_iters=5000"], steps)
    rows = [ours | {"program": "lockstep"}]
    recipe = CPU | {"block_size": 256, "batch_size": 64, "n_layer": 6, "n_head": 6, "n_embd": 384, "dropout": 0.2,
                    "max_iters": last, "lr_decay_iters": 5000, "eval_interval": every}
    summary(a, rows=rows, steps=steps, plans={}, whole=5001)
    plans = {name: planned(a, *more) for name, more in
             {"this machine": [], "an H100": ["--device=cuda", "--memory=80G"]}.items()}
    summary(a, rows=rows, steps=steps, plans=plans, whole=5001)
    theirs = nanogpt(a, "nanogpt", recipe, 1337, data)
    if theirs:
        rows.append(theirs | {"program": "nanoGPT"})
        summary(a, rows=rows, steps=steps, plans=plans, whole=5001)
    plot(a, "results-shakespeare-char.svg", [(r["program"], os.path.join(a.folder, r["name"])) for r in rows])


def planned(a, *more):
    """The lines of `lockstep plan` for the whole recipe; times only for this machine, which was measured."""
    recipe, file = ["config/train_shakespeare_char.conf", "--vocab_size=65"], os.path.join(a.folder, "machine.json")
    if not more:
        if not os.path.exists(file):
            run(a, [a.lockstep, "bench", "machine", f"--out={file}"] + recipe, os.path.join(a.folder, "machine.log"))
        more = [f"--machine={file}"]
    done = subprocess.run([a.lockstep, "plan"] + recipe + list(more), capture_output=True, text=True, cwd=ROOT)
    return (done.stdout or done.stderr).rstrip()


def golf(a):
    with open(os.path.join(ROOT, "tests", "figures", "golf_small.json")) as f:
        figure = json.load(f)
    source, steps = "`train_gpt.py` in tests/figures/golf_small.json", len(figure["train_loss"])
    if a.golf and a.steps:  # the rates depend on the number of steps, so a recorded figure is compared as a whole
        steps = a.steps
    environment = {k: str(int(v)) if isinstance(v, bool) else str(v) for k, v in figure["config"].items() if k.isupper()}
    environment |= {"ITERATIONS": str(steps), "DATA_PATH": a.golf_data, "VAL_LOSS_EVERY": "100",
                    "TOKENIZER_PATH": os.path.join(a.golf_data, "sp1024.model")}
    os.environ.update(environment)
    ours = train(a, "lockstep", ["config/golf_baseline.conf", "--virtual_ranks=1"], steps)
    variables = " ".join(f"{k}={v}" for k, v in environment.items()).replace(ROOT + "/", "")
    rows = [ours | {"program": "lockstep", "command": f"{variables} {ours['command']}"}]
    folder = os.path.join(a.folder, "lockstep")
    if a.golf:
        theirs = os.path.join(a.folder, "train_gpt.json")
        if not os.path.exists(theirs):
            took = run(a, [sys.executable, os.path.join(ROOT, "tests", "parity", "golf_figure.py"), a.golf,
                           environment["TOKENIZER_PATH"], theirs], os.path.join(a.folder, "train_gpt.log"),
                       env=dict(os.environ, OMP_NUM_THREADS=str(os.cpu_count())))
            times(a.folder, took)
        with open(theirs) as f:
            figure, source = json.load(f), "`train_gpt.py` on this machine"
        rows.append({"program": "train_gpt.py", "steps": steps} | times(a.folder)[-1])
    losses = [line["loss"] for line in lines(folder, "train")]
    far = max(abs(x - y) for x, y in zip(losses, figure["train_loss"]))
    summary(a, rows=rows, steps=len(losses), source=source, far=far, last=(losses[-1], figure["train_loss"][len(losses) - 1]),
            sliding=sliding(a, folder))


def sliding(a, folder):
    """val_bpb of the artifact with windows that overlap, by lockstep and by the record's script."""
    artifact, tokenizer = os.path.join(folder, "final_model.int8.ptz"), os.environ["TOKENIZER_PATH"]
    if not os.path.exists(artifact):
        return None
    command = [a.lockstep, "eval", f"--artifact={artifact}", "--stride=64", f"--dataset={a.golf_data}",
               f"--tokenizer_path={tokenizer}"]
    done = subprocess.run(command, capture_output=True, text=True)
    found = {"command": shown(command), "lockstep": done.stdout.strip() or done.stderr.strip()}
    if a.record:
        script = os.path.join(ROOT, "tests", "artifact", "golf_eval.py")
        done = subprocess.run([sys.executable, script, a.record, tokenizer, a.golf_data, artifact], capture_output=True,
                              text=True, env=dict(os.environ, GOLF_EVAL_STRIDE="64"))
        found["record"] = (done.stdout.strip() or done.stderr.strip() or "nothing").splitlines()[-1]
    return found


# --- the page -------------------------------------------------------------------------------------


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(map(str, r)) + " |" for r in rows] + [""]


def loss_of(row):
    """The last validation loss on the curve."""
    return f"{row['evals'][-1][1]:.4f}" if row["evals"] else "–"


def paragraph(text):
    return textwrap.wrap(text, 150, break_long_words=False, break_on_hyphens=False) + [""]


def block(*lines):
    """Lines as they are, but for long ones, which continue on the next line: commands behind a backslash."""
    def fold(line):
        end = " \\\n" if re.match("lockstep |python3 |[A-Z0-9_]+=", line) else "\n"
        parts = textwrap.wrap(line, 140, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        return end.join(parts) if len(line) > 140 else line

    return ["```"] + [fold(line) for line in "\n".join(lines).splitlines()] + ["```", ""]


def bytes_of(row):
    return f"{row['memory'] / 1e6:,.0f} MB"


def made(part, rows=None):
    busy = ["**Other programs used the cores, so the times are too long.**", ""] if any(r["busy"] for r in part["rows"]) else []
    commands = [r["command"] for r in rows or part["rows"] if "command" in r]
    return busy + [f"Made on {part['date']} with {part['machine']}:", ""] + block(*commands)


def page_ranks(part):
    first = part["rows"][0]
    same = all(r["params_hash"] == first["params_hash"] and r["evals"] == first["evals"] for r in part["rows"])
    return ["## One run on 1, 2, 4 and 8 ranks", ""] + \
        paragraph(f"{part['steps']} steps of `config/quickstart.conf` on tinyshakespeare, one thread per rank. "
                  + ("All losses and weights are equal, so the curves lie on each other."
                     if same else "**The runs differ, which must not happen.**")) + \
        ["![Losses on 1, 2, 4 and 8 ranks: one curve](../pictures/results-ranks.svg)", ""] + \
        table(["ranks", "time", "time per step", "last validation loss", "hash of the weights"],
              [(r["name"], f"{r['seconds']:.0f} s", f"{r['step_ms']} ms", loss_of(r), f"`{r['params_hash']}`")
               for r in part["rows"]]) + made(part, [first])


def page_cpu(part):
    rows = [(r["program"], r["seed"], r["steps"], f"{min((e[1] for e in r['evals']), default=float('nan')):.4f}", loss_of(r),
             f"{r['seconds']:.0f} s", f"{r['step_ms']} ms", bytes_of(r)) for r in part["rows"]]
    return ["## nanoGPT's recipe for a CPU", ""] + \
        paragraph("nanoGPT's [README](https://github.com/karpathy/nanoGPT) gives a validation loss of **1.88** for this recipe. "
                  "lockstep draws nanoGPT's batches here (`--sampler=nanogpt`)." + closeness(part["rows"])) + \
        ["![Losses of lockstep and of nanoGPT](../pictures/results-shakespeare-cpu.svg)", ""] + \
        table(["program", "seed", "steps", "lowest validation loss", "last", "time", "time per step", "memory"], rows) + \
        made(part, [r for r in part["rows"] if r["seed"] == part["rows"][0]["seed"]])


def closeness(rows):
    """How far the programs' validation losses are apart, if both ran."""
    evals = {(r["program"], r["seed"]): dict(r["evals"]) for r in rows}
    apart = [abs(loss - evals["nanoGPT", seed][i]) for (program, seed), losses in evals.items() if program == "lockstep"
             for i, loss in losses.items() if i in evals.get(("nanoGPT", seed), {})]
    return f" Its {len(apart)} validation losses differ from nanoGPT's by at most {max(apart):.0e}; it prints four decimals." if apart else ""


def page_char(part):
    rows = [(r["program"], r["steps"], loss_of(r), f"{r['seconds']:.0f} s", f"{r['step_ms']} ms", bytes_of(r)) for r in part["rows"]]
    text = ["## shakespeare_char: 10.6M parameters", ""] + \
        paragraph("nanoGPT's README gives a lowest validation loss of **1.4697** for the whole recipe, "
                  f"{part['whole']:,} steps. These are the first {part['rows'][0]['steps']}. The programs draw other dropout masks.") + \
        ["![Losses of lockstep and of nanoGPT](../pictures/results-shakespeare-char.svg)", ""] + \
        table(["program", "steps", "last validation loss", "time", "time per step", "memory"], rows) + made(part)
    for name, plan in part["plans"].items():
        text += [f"`lockstep plan` for {name}:", ""] + block(plan)
    return text


def page_golf(part):
    sizes = [(r["program"], r["steps"], f"{r['seconds']:.0f} s", bytes_of(r)) for r in part["rows"]]
    text = ["## parameter-golf's baseline", ""] + \
        paragraph(
            f"{part['steps']} steps at the shape of a recorded figure (592,144 parameters, 8,192 tokens per step). The training losses "
            f"differ by at most {part['far']:.1e} from those of {part['source']}. "
            f"The last one is {part['last'][0]:.6f} and {part['last'][1]:.6f}.") + \
        table(["program", "steps", "time", "memory"], sizes) + made(part)
    if part["sliding"]:
        record = ["the record's script: " + part["sliding"]["record"]] if "record" in part["sliding"] else []
        text += ["With overlapping windows. The record's script scores the last tokens of the text again in each window that reaches its end, "
                 "and lockstep scores each token once.", ""] + block(part["sliding"]["command"], part["sliding"]["lockstep"], *record)
    return text


def page(a):
    pages = {"ranks": page_ranks, "shakespeare-cpu": page_cpu, "shakespeare-char": page_char, "golf": page_golf}
    text = ["# Results next to the reference's", "",
            "`bench/results.py` runs these, keeps their logs, and writes this page. You can repeat each part, for example",
            "`python3 bench/results.py ranks`, then `python3 bench/results.py page`.", ""]
    for name, write in pages.items():
        path = os.path.join(a.kept, name + ".json")
        if not os.path.exists(path):
            print(f"{name}: not measured yet")
            continue
        with open(path) as f:
            text += write(json.load(f))
    path = os.path.join(a.docs, "reference", "results.md")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write("\n".join(text).rstrip() + "\n")
    print(f"wrote {path}")


PARTS = {"ranks": ranks, "shakespeare-cpu": shakespeare_cpu, "shakespeare-char": shakespeare_char, "golf": golf, "page": page}


def main():
    a = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if a.again:
        shutil.rmtree(a.folder, ignore_errors=True)
    os.chdir(ROOT)
    try:
        PARTS[a.part](a)
    except Stopped as e:
        print(f"stopped: {e}; the same command continues")


if __name__ == "__main__":
    main()
