#!/bin/sh
# TensorBoard shows the numbers of metrics.jsonl, after a resume too: its reader, and its server.
# tensorboard.sh TOOL. Exit code 77: there is no TensorBoard.
set -eu
. "${0%/*}/../support.sh"
tool=$1
work_folder
find_python tensorboard tensorboard

awk 'BEGIN { x = 7; for (i = 0; i < 4000; i++) { x = (x * 75 + 74) % 65537; printf "%s", substr("abc \n\"d\\e<fg", x % 12 + 1, 1) } }' >"$work/text"
"$tool" prep char --input="$work/text" --out="$work/data" >"$work/log"
train() {
    "$tool" train --dataset="$work/data" --out_dir="$work/run" --n_layer=1 --n_head=2 --n_embd=16 --block_size=8 --batch_size=2 \
        --gradient_accumulation_steps=2 --sample_tokens=20 --eval_interval=4 --eval_iters=2 --checkpoint_interval=4 "$@" >"$work/log" 2>&1 || fail "train $*"
}
train --max_iters=9
# Killed between checkpoints: go on from 8, whose evaluation isn't made again.
rm -r "$work/run/ckpt-00000010" "$work/run/latest"
ln -s ckpt-00000008 "$work/run/latest"
train --max_iters=13 --init_from=resume
"$python" - "$work/run" <<'END'
import json, logging, struct, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
logging.disable(logging.CRITICAL)
run = sys.argv[1]
events = EventAccumulator(run, size_guidance={"scalars": 0, "tensors": 0})
events.Reload()
want, samples = {}, []
for line in open(run + "/metrics.jsonl", encoding="utf-8"):
    record = json.loads(line)
    groups = {"train": {"loss": "train", "lr": "train", "grad_norm": "train", "ms": "speed", "tok_per_s": "speed", "mfu": "speed",
                        "comm_exposed_ms": "speed"}}.get(record["kind"])
    if record["kind"] in ("eval", "final"):
        groups = {"train_loss": record["kind"], "val_loss": record["kind"]}
    if "sample" in record:
        samples.append((record["iter"], "".join("    " + line for line in record["sample"].splitlines(keepends=True))))
    for name, group in (groups or {}).items():
        want.setdefault(f"{group}/{name}", []).append((record["iter"], struct.unpack("f", struct.pack("f", record[name]))[0]))
for tag, points in want.items():
    got = [(e.step, e.value) for e in events.Scalars(tag)]
    # metrics.jsonl has fewer digits than the double that was rounded for TensorBoard.
    same = len(got) == len(points) and all(a[0] == b[0] and abs(a[1] - b[1]) <= 2e-7 * abs(b[1]) for a, b in zip(got, points))
    assert same, f"{tag}: {got} instead of {points}"
text = events.Tensors("settings")[-1].tensor_proto.string_val[0].decode()
assert "    n_embd = 16\n" in text, text
got = [(e.step, e.tensor_proto.string_val[0].decode()) for e in events.Tensors("sample")]
assert got == samples and [s[0] for s in samples] == [0, 4, 8, 12], f"samples: {got} instead of {samples}"
assert events.SummaryMetadata("sample").plugin_data.plugin_name == "text"
print(f"TensorBoard's reader: {len(samples)} samples, {len(want)} tags, {sum(map(len, want.values()))} values as in metrics.jsonl")
END
