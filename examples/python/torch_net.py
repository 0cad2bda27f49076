"""A PyTorch model whose gradients go through liblockstep. Any number of ranks up to 8 prints the
same losses and the same hash of the weights:

    lockstep run --standalone --nproc-per-node=4 python3 examples/python/torch_net.py

With --ddp, DistributedDataParallel trains the same model on the same samples. Its losses agree to
some digits, but its hash depends on the number of ranks.
"""
import hashlib
import sys

import torch
from torch.nn import functional

import lockstep

V, BATCH, STEPS, SAMPLES = 8, 4, 30, 512
torch.set_num_threads(1)
draw = torch.Generator().manual_seed(1)
images = torch.randn(SAMPLES, 1, 8, 8, generator=draw)
labels = (images.mean(dim=(1, 2, 3)) > 0).long()
comm = lockstep.Comm()
sampler = lockstep.Sampler(SAMPLES, V, seed=1)
torch.manual_seed(comm.rank)  # each rank begins with other weights; rank 0's are copied
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Dropout(0.2), torch.nn.Linear(8 * 6 * 6, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def loss_of(net, step, v):
    """The sum over the samples of virtual rank v."""
    torch.manual_seed(step * V + v)  # dropout's mask depends on the step and the virtual rank, not on the rank
    mine = [sampler.index(v, (step * BATCH + i) % len(sampler)) for i in range(BATCH)]
    return functional.cross_entropy(net(images[mine]), labels[mine], reduction="sum")


def train_with_lockstep():
    ddp = lockstep.DDP(comm, {name: p.detach().numpy() for name, p in model.named_parameters()}, virtual_ranks=V)
    for name, p in model.named_parameters():
        p.grad = torch.from_numpy(ddp.grads[name])  # backward adds to the library's gradients
        p.register_post_accumulate_grad_hook(lambda _, name=name: ddp.mark_ready(name))
    for step in range(STEPS):
        for v in ddp.virtual_ranks():  # zeroes the gradients, so optimizer.zero_grad() isn't called
            loss = loss_of(model, step, v)
            loss.backward()
            ddp.accumulate(BATCH, loss.item())
        yield ddp.step().loss
        optimizer.step()
    ddp.close()


def train_with_ddp():
    torch.distributed.init_process_group("gloo", rank=comm.rank, world_size=comm.world_size)
    net = torch.nn.parallel.DistributedDataParallel(model)
    if V % comm.world_size != 0:
        raise SystemExit(f"--ddp: {V} virtual ranks can't be divided among {comm.world_size} ranks: use 1, 2, 4 or 8")
    share = V // comm.world_size
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = sum(loss_of(net, step, comm.rank * share + i) for i in range(share)) / (share * BATCH)
        loss.backward()
        mean = loss.detach().double().reshape(1).numpy().copy()
        comm.all_reduce(mean, lockstep.MEAN)
        yield float(mean[0])
        optimizer.step()
    torch.distributed.destroy_process_group()


for step, loss in enumerate(train_with_ddp() if "--ddp" in sys.argv else train_with_lockstep()):
    if comm.rank == 0 and step % 10 == 9:
        print(f"step {step + 1}: loss {loss:.9g}", flush=True)
if comm.rank == 0:
    print("weights", hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:16], flush=True)
comm.close()
