#!/usr/bin/env python3
"""Copies a run's metrics.jsonl to Weights & Biases, offline:

    scripts/to_wandb.py out/my [PROJECT]

writes a folder ./wandb/offline-run-…, which `wandb sync` sends when you want that. Nothing is sent
here. It takes Python's package wandb. A rollback's repeated steps are left out: of each iteration
the last line counts.
"""
import json
import os
import sys

OFFSET = {"train": "train/", "eval": "eval/", "final": "final/"}


def read(path):
    """The settings, and for each iteration its values."""
    config, values = {}, {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if not line.endswith("\n"):
                break  # the run is still writing it
            record = json.loads(line)
            kind = record.pop("kind")
            if kind == "config":
                config = record
            elif kind == "host":
                config.update(record.get("changed", {}))
            elif kind in OFFSET:
                row = values.setdefault(record.pop("iter"), {})
                for key in [key for key in row if key.startswith(OFFSET[kind])]:
                    del row[key]
                row.update({OFFSET[kind] + key: value for key, value in record.items() if value is not None})
    return config, values


def main():
    if not 2 <= len(sys.argv) <= 3 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = sys.argv[1]
    config, values = read(os.path.join(folder, "metrics.jsonl"))
    os.environ["WANDB_MODE"] = "offline"
    try:
        import wandb
    except ImportError:
        sys.exit("to_wandb.py needs Python's package wandb: pip install wandb")
    run = wandb.init(project=sys.argv[2] if len(sys.argv) > 2 else "lockstep", name=os.path.basename(os.path.normpath(folder)), config=config, mode="offline")
    for step in sorted(values):
        run.log(values[step], step=step)
    run.finish()
    print(f"{len(values)} iterations; wandb sync sends them")


main()
