#!/bin/sh
# scripts/to_wandb.py, with a package wandb of our own that writes down what it is given.
# wandb.sh SOURCE
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/wandb" "$work/run"
cat >"$work/wandb/__init__.py" <<'END'
import json, os
class Run:
    def log(self, values, step):
        print(json.dumps([step, values]))
    def finish(self):
        print("finished")
def init(project, name, config, mode):
    assert os.environ["WANDB_MODE"] == mode == "offline"
    print(project, name, json.dumps(config))
    return Run()
END
cat >"$work/run/metrics.jsonl" <<'END'
{"kind":"config","n_layer":1,"seed":7}
{"kind":"host","world_size":1,"changed":{"seed":8}}
{"kind":"eval","iter":0,"val_loss":4.5}
{"kind":"train","iter":0,"loss":4.25,"lr":0.1}
{"kind":"train","iter":1,"loss":9}
{"kind":"rollback","iter":1,"to":1}
{"kind":"train","iter":1,"loss":null,"lr":0.2}
END
printf '{"kind":"train","iter":2,"lo' >>"$work/run/metrics.jsonl"
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$work "$1/scripts/to_wandb.py" "$work/run/" >"$work/got"
cat >"$work/want" <<'END'
lockstep run {"n_layer": 1, "seed": 8}
[0, {"eval/val_loss": 4.5, "train/loss": 4.25, "train/lr": 0.1}]
[1, {"train/lr": 0.2}]
finished
2 iterations; wandb sync sends them
END
diff "$work/want" "$work/got"
! PYTHONPATH= python3 -S "$1/scripts/to_wandb.py" "$work/run" 2>"$work/err" || exit 1
[ "$(cat "$work/err")" = "to_wandb.py needs Python's package wandb: pip install wandb" ]
