#!/bin/sh
# A PyTorch script under `lockstep run`, unchanged. torch.sh TOOL [PYTHON]. Exit code 77: there is
# no PyTorch.
set -eu
. "${0%/*}/../support.sh"
tool=$1
work_folder
find_python pytorch torch.distributed "${2-}"

cat >"$work/script.py" <<'END'
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
assert rank == int(os.environ["RANK"]) and world == int(os.environ["WORLD_SIZE"])
dist.barrier()
x = torch.tensor([float(rank + 1)])
dist.all_reduce(x)
print(f"rank {rank} of {world}: {x.item():g}", flush=True)
dist.destroy_process_group()
END

"$tool" run --standalone --nproc-per-node=3 "$python" "$work/script.py" >"$work/one.log" 2>&1 ||
    fail 'three ranks on one node'
for rank in 0 1 2; do
    grep -q "rank $rank of 3: 6\$" "$work/one.log" || fail "no line of rank $rank"
done

LOCKSTEP_TOKEN=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
export LOCKSTEP_TOKEN
port=$("${tool%/*}/../tests/free_port")
"$tool" run --nnodes=2 --node-rank=1 --master-port=$port "$python" "$work/script.py" \
    >"$work/b.log" 2>&1 &
"$tool" run --nnodes=2 --node-rank=0 --master-port=$port "$python" "$work/script.py" \
    >"$work/a.log" 2>&1 || fail 'first node'
wait $! || fail 'second node'
grep -q 'rank 0 of 2: 3$' "$work/a.log" || fail 'no line of rank 0'
grep -q 'rank 1 of 2: 3$' "$work/b.log" || fail 'no line of rank 1'
