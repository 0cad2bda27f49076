"""A linear model in NumPy, on any number of ranks, with the same losses:

    lockstep run --standalone --nproc-per-node=4 python3 examples/python/regression.py
"""
import numpy

import lockstep

V, SAMPLES, IN, BATCH = 8, 512, 6, 64
comm = lockstep.Comm()
draw = numpy.random.default_rng(1)
x = draw.standard_normal((SAMPLES, IN)).astype(numpy.float32)
y = x @ numpy.arange(1, IN + 1, dtype=numpy.float32) + 3

# Each rank begins with different values; DDP copies rank 0's.
params = {"w": numpy.full(IN, comm.rank, numpy.float32), "b": numpy.full(1, comm.rank, numpy.float32)}
ddp = lockstep.DDP(comm, params, virtual_ranks=V)
sampler = lockstep.Sampler(SAMPLES, V, seed=1)
for step in range(40):
    sampler.set_epoch(step)
    for v in ddp.virtual_ranks():
        mine = [sampler.index(v, i) for i in range(BATCH)]
        error = x[mine] @ params["w"] + params["b"] - y[mine]
        ddp.grads["b"] += error.sum()
        ddp.mark_ready("b")
        ddp.grads["w"] += error @ x[mine]
        ddp.mark_ready("w")
        ddp.accumulate(len(error), float(0.5 * (error.astype(float) ** 2).sum()))
    result = ddp.step()
    for name, value in params.items():
        value -= 0.3 * ddp.grads[name]
    if comm.rank == 0 and step % 10 == 9:
        print(f"step {step + 1}: loss {result.loss:.9g}, norm {result.norm:.9g}", flush=True)
ddp.close()
comm.close()
