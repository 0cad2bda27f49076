"""One PyTorch program being timed: `python torch_side.py '{"family": …}'`, driven by compare.py.

It builds the model, makes one step, and says so; then for each number read from standard input it
makes that many steps and answers with their times, as JSON. Between turns it sleeps.
"""
import json
import os
import statistics
import sys
import time


def main():
    spec = json.loads(sys.argv[1])
    import torch

    torch.set_num_threads(spec["threads"])
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    if spec["family"] == "golf":
        from torch_golf import Trainer

        trainer = Trainer(spec["shape"], spec["batch"], spec["compiled"], spec.get("checkout"),
                          spec.get("bf16", False))
    else:
        from torch_gpt import Trainer

        trainer = Trainer(spec["shape"], spec["batch"], spec["compiled"], spec.get("checkout"))
    started = time.perf_counter()
    trainer.step()
    print(json.dumps({"first_step_s": time.perf_counter() - started, "torch": torch.__version__}),
          flush=True)
    for line in sys.stdin:
        times, optimizer = [], []
        for _ in range(int(line)):
            started = time.perf_counter()
            trainer.step()
            times.append(time.perf_counter() - started)
            optimizer.append(getattr(trainer, "optimizer_s", 0.0))
        answer = {"median": statistics.median(times), "optimizer": statistics.median(optimizer)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
