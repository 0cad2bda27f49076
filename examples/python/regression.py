"""A linear model in NumPy, on any number of ranks, with the same losses:

    lockstep run --standalone --nproc-per-node=4 python3 examples/python/regression.py
"""
import numpy

import lockstep

V, SAMPLES, IN = 8, 512, 6
comm = lockstep.Comm()
draw = numpy.random.default_rng(1)
x = draw.standard_normal((SAMPLES, IN)).astype(numpy.float32)
y = x @ numpy.arange(1, IN + 1, dtype=numpy.float32) + 3

# Each rank begins with different values; DDP copies rank 0's.
params = {"w": numpy.full(IN, comm.rank, numpy.float32), "b": numpy.full(1, comm.rank, numpy.float32)}
ddp = lockstep.DDP(comm, params, virtual_ranks=V)
for step in range(40):
    for v in ddp.virtual_ranks():
        mine = slice(v * SAMPLES // V, (v + 1) * SAMPLES // V)
        error = x[mine] @ params["w"] + params["b"] - y[mine]
        ddp.grads["w"] += error @ x[mine]
        ddp.grads["b"] += error.sum()
        ddp.accumulate(len(error), float(0.5 * (error.astype(float) ** 2).sum()))
    result = ddp.step()
    for name, value in params.items():
        value -= 0.3 * ddp.grads[name]
    if comm.rank == 0 and step % 10 == 9:
        print(f"step {step + 1}: loss {result.loss:.9g}, norm {result.norm:.9g}", flush=True)

# Collectives without DDP.
count = numpy.array([1, comm.rank], numpy.int64)
comm.all_reduce(count)
assert count[0] == comm.world_size and count[1] == comm.world_size * (comm.world_size - 1) // 2
most = numpy.array([comm.rank + 0.5])
comm.all_reduce(most, lockstep.MAX)
assert most[0] == comm.world_size - 0.5
last = params["w"].copy() if comm.rank == comm.world_size - 1 else numpy.zeros(IN, numpy.float32)
comm.broadcast(last, root=comm.world_size - 1)
assert (last == params["w"]).all()
try:
    comm.all_reduce(numpy.zeros((4, 4))[:, 0])
except lockstep.Error as error:
    assert "contiguous" in str(error)
else:
    raise AssertionError("a strided array was taken")
ddp.close()
comm.close()
