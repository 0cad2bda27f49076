"""One rank of ddp.py, by PyTorch DDP over gloo: the same tensors, fills and lines as ddp.c.

    torch_ddp.py default|view TENSORS ELEMENTS
"""
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Fill(torch.autograd.Function):
    """Its backward fills one parameter's gradient. A chain of them runs from the last to the first,
    like the backward of a chain of layers."""

    @staticmethod
    def forward(ctx, before, parameter, value):
        ctx.shape, ctx.value = parameter.shape, value
        return before.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad, torch.full(ctx.shape, ctx.value), None


class Net(torch.nn.Module):
    def __init__(self, tensors, elements, value):
        super().__init__()
        self.value = value
        self.weights = torch.nn.ParameterList(torch.zeros(elements) for _ in range(tensors))

    def forward(self, x):
        for w in self.weights:
            x = Fill.apply(x, w, self.value)
        return x


def main():
    mode, tensors, elements = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    net = Net(tensors, elements, 0.5 * (dist.get_rank() + 1))
    ddp = DistributedDataParallel(net, gradient_as_bucket_view=mode == "view")
    x = torch.zeros(())

    def iterate(model):
        started = time.perf_counter()
        model.zero_grad(set_to_none=True)
        zeroed = time.perf_counter()
        out = model(x)
        backward = time.perf_counter()
        out.backward()
        return (time.perf_counter() - backward + zeroed - started) * 1e3  # forward isn't counted

    print("ready torch", torch.__version__, flush=True)
    for line in sys.stdin:
        verb, k = line.split()
        dist.barrier()
        times = [iterate(ddp if verb == "sync" else net) for _ in range(int(k))]
        if verb == "sync":
            for w in net.weights:
                if w.grad[0] != 0.75 or w.grad[-1] != 0.75:
                    sys.exit(f"a gradient is {w.grad[0]}, not 0.75")
        print(*(f"{t:.3f}" for t in times), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
