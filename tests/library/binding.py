"""examples/python/lockstep.py: each call once, on any number of ranks. binding.py FOLDER"""
import copy
import os
import sys
import weakref

import numpy

import lockstep
from lockstep import MAX, MEAN, PROD, SUM

folder = sys.argv[1]
comm = lockstep.Comm()
rank, W = comm.rank, comm.world_size


def fails(words, call, *arguments):
    try:
        call(*arguments)
    except lockstep.Error as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no error with {words}")


def check_collectives():
    count = numpy.array([1, rank], numpy.int64)
    comm.all_reduce(count)
    assert count.tolist() == [W, W * (W - 1) // 2]
    most = numpy.array([rank + 0.5])
    comm.all_reduce(most, MAX)
    assert most[0] == W - 0.5
    product = numpy.array([2.0], numpy.float32)
    comm.all_reduce(product, PROD)
    assert product[0] == 2**W
    works = [comm.all_reduce_start(numpy.full(1000, rank + i, numpy.float32), MEAN) for i in range(3)]
    for i, work in enumerate(works):
        assert (work.wait() == numpy.float32((W - 1) / 2 + i)).all()
    fails("lks_work", works[0].wait)
    work = comm.all_reduce_start(numpy.ones(4))
    while not work.done():
        pass
    assert work.wait().tolist() == [W] * 4
    assert not lockstep.Work.in_flight  # so their memory is freed
    left = weakref.ref(comm.all_reduce_start(numpy.ones(4)).array)  # no one waits, so the library still writes to it
    comm.barrier()
    assert left() is not None
    rows = numpy.arange(2 * W, dtype=numpy.float64).reshape(W, 2)
    assert (comm.reduce_scatter(rows) == W * rows[rank:rank + 1]).all()
    assert comm.all_gather(numpy.array([rank], numpy.int8)).tolist() == [[r] for r in range(W)]
    counts = [r % 3 for r in range(W)]
    parts = comm.all_gather_v(numpy.full(counts[rank], rank, numpy.uint64), counts)
    assert parts.tolist() == [r for r in range(W) for _ in range(r % 3)]
    last = numpy.array([rank == W - 1])
    comm.broadcast(last, root=W - 1)
    assert last[0]
    comm.barrier()
    comm.beat()
    fails("contiguous", comm.all_reduce, numpy.zeros((4, 4))[:, 0])
    fails("one of float32", comm.all_reduce, numpy.zeros(4, numpy.complex64))
    fails("counts is", comm.all_gather_v, numpy.zeros(5), [1] * W)
    if W > 1:
        fails("can't divide", comm.reduce_scatter, numpy.zeros(W + 1))


def check_split():
    with comm.split(rank % 2, -rank) as part:
        members = part.all_gather(numpy.array([rank]))[:, 0].tolist()
        assert members == [r for r in range(W - 1, -1, -1) if r % 2 == rank % 2] and part.backend == "shm"
    assert comm.split(-1) is None
    with comm.split(0) as part:
        if rank == 0:
            part.abort("the disk is gone")
        fails("the disk is gone", part.barrier)
    with comm.split(0) as part:
        part.note(7, "binding")
        if W > 1:
            fails("rank 0 called lks_comm_barrier at step 7", part.barrier if rank == 0 else lambda: part.broadcast(numpy.zeros(3)))


def check_ddp():
    params = {"w": numpy.full((3, 2), rank, numpy.float32), "fixed": numpy.full(2, rank, numpy.float32), "b": numpy.zeros(2, numpy.float32)}
    ddp = lockstep.DDP(comm, params, virtual_ranks=8, micro_steps=2, bucket_mb=1, frozen=["fixed"])
    assert (params["fixed"] == 0).all() and list(ddp.grads) == ["w", "b"]
    for v in ddp.virtual_ranks():
        for _ in range(2):
            ddp.grads["b"] += v
            ddp.mark_ready("b")
            ddp.accumulate(2, 3.0)
    result = ddp.step()
    assert (result.weight, result.loss, result.norm) == (32, 1.5, numpy.sqrt(2 * 1.75**2))
    assert ddp.grads["b"].tolist() == [1.75, 1.75] and not ddp.used("w") and ddp.used("b")
    assert abs(ddp.clip(1.0) - 1 / result.norm) < 1e-6
    ddp.verify()
    fails("lks_ddp_", ddp.accumulate, 1)
    fails("mark_ready: typo isn't in params", ddp.mark_ready, "typo")
    fails("used: typo isn't in params", ddp.used, "typo")
    fails("wire: typo isn't one of float32, bfloat16", lockstep.DDP, comm, params, 0, 1, 0, "typo")
    fails("change it in place", ddp.grads.__setitem__, "b", numpy.zeros(2, numpy.float32))
    copy.deepcopy(ddp.grads)["b"] = None  # a copy may be changed
    grads = {name: grad.tobytes() for name, grad in ddp.grads.items()}
    ddp.close()
    del params["fixed"]
    with lockstep.DDP(comm, params, virtual_ranks=8, micro_steps=2, own_gradients=True) as ddp:
        for v in ddp.virtual_ranks():
            for _ in range(2):
                ddp.grads["b"] += v
                ddp.accumulate(2)
        ddp.step()
        ddp.clip(1.0)
        assert {name: grad.tobytes() for name, grad in ddp.grads.items()} == grads
    fails("typo isn't in params", lockstep.DDP, comm, params, 0, 1, 0, "float32", ["typo"])
    fails("can't be frozen", lockstep.DDP, comm, params, 0, 1, 0, "float32", ["b"], True)


def check_sampler():
    sampler = lockstep.Sampler(10, 4)
    dealt = [sampler.index(r, i) for i in range(len(sampler)) for r in range(4)]
    assert len(sampler) == 3 and sorted(set(dealt)) == list(range(10)) and dealt[:2] == dealt[10:]
    sampler.set_epoch(1)
    assert dealt != [sampler.index(r, i) for i in range(3) for r in range(4)]
    assert lockstep.Sampler(10, 2, shuffle=False).index(1, 2) == 5
    fails("sampler", sampler.index, 4, 0)


def check_state():
    """An optimizer and a checkpoint: after a load, a step has the bits that it has without."""
    draw = numpy.random.default_rng(3)
    grads = {"w": draw.standard_normal((4, 3)).astype(numpy.float32), "b": draw.standard_normal(5).astype(numpy.float32)}
    rates = lockstep.Rates(learning_rate=lockstep.lr_cosine(1e-2, 1e-3, 2, 10, 1), beta1=0.9, beta2=0.95, epsilon=1e-8, matrix_rate=0.02,
                           matrix_momentum=0.95, matrix_steps=5)
    assert 0 < rates.learning_rate < 1e-2 and lockstep.lr_warmdown(10, 4, 8) == 0.5
    fails("the gradient of w has 5 elements, and the parameter 12", lockstep.Optimizer, "sgd", {"w": grads["w"]}, {"w": grads["b"]})
    fails("typo isn't in params", lockstep.Optimizer, "sgd", grads, grads, None, {"typo": "embed"})
    fails("kinds: typo isn't one of vector, matrix, embed", lockstep.Optimizer, "sgd", grads, grads, None, {"b": "typo"})
    fails("rule: typo isn't one of adamw, sgd, muon", lockstep.Optimizer, "typo", grads, grads)
    fails("w isn't in grads", lockstep.Optimizer, "sgd", grads, {"b": grads["b"]})
    try:
        lockstep.Rates(lr=1)
    except AttributeError:
        pass
    else:
        raise AssertionError("a rate that doesn't exist")
    for rule in "adamw", "sgd", "muon":
        params = {name: numpy.ones_like(grad) for name, grad in grads.items()}
        optimizer = lockstep.Optimizer(rule, params, grads, comm)
        optimizer.step(rates)
        assert all((value != 1).any() for value in params.values())
        lockstep.save(comm, os.path.join(folder, rule), 7, {**params, **optimizer.state()})
        optimizer.step(rates)
        optimizer.close()
        again = {name: numpy.zeros_like(grad) for name, grad in grads.items()}
        optimizer = lockstep.Optimizer(rule, again, grads, comm)
        assert lockstep.load(comm, os.path.join(folder, rule), {**again, **optimizer.state()}) == 7
        optimizer.step(rates)
        for name in params:
            assert again[name].tobytes() == params[name].tobytes(), (rule, name)
        optimizer.close()
    listed = lockstep.tensors_of(comm, os.path.join(folder, "adamw"))
    assert listed["w"] == ("float32", (4, 3)) and "w.exp_avg" in listed
    assert lockstep.load(comm, os.path.join(folder, "none"), again) is None
    assert lockstep.data_of(comm, os.path.join(folder, "none")) is None and lockstep.data_of(comm, os.path.join(folder, "adamw")) is None
    assert lockstep.tensors_of(comm, os.path.join(folder, "none")) == {}


def check_more():
    """A checkpoint with many dimensions, an array of each rank, and data."""
    path, deep = os.path.join(folder, "more"), numpy.arange(6.0).reshape((1,) * 20 + (2, 3))
    mine = numpy.arange(rank + 1, dtype=numpy.int64)
    data = {"names": ["a", "\u00e4"], "rate": 0.1, "on": True}
    lockstep.save(comm, path, 3, {"deep": deep}, per_rank={"mine": mine}, data=data)
    deep_again, mine_again = numpy.zeros_like(deep), numpy.full_like(mine, -1)
    assert lockstep.load(comm, path, {"deep": deep_again}, {"mine": mine_again}) == 3
    assert (deep_again == deep).all() and (mine_again == mine).all() and lockstep.data_of(comm, path) == data
    listed = lockstep.tensors_of(comm, path)
    assert listed["deep"] == ("float64", deep.shape) and [listed[f"mine@{r}"][1] for r in range(W)] == [(r + 1,) for r in range(W)]


check_collectives()
check_split()
check_ddp()
check_sampler()
check_state()
check_more()
comm.close()
