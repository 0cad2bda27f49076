"""liblockstep from Python, by ctypes: NumPy arrays as parameters of data-parallel training.

A minimal binding to copy and extend. LOCKSTEP_LIBRARY names the library if the system's loader
doesn't find it. ddp.h and comm.h explain every call. A call that fails raises Error with the
library's sentence.
"""
import ctypes
import ctypes.util
import os
import signal
import threading

import numpy

_lib = ctypes.CDLL(os.environ.get("LOCKSTEP_LIBRARY") or ctypes.util.find_library("lockstep") or "liblockstep.so.0")
_lib.lks_last_error.restype = ctypes.c_char_p
_lib.lks_comm_backend.restype = ctypes.c_char_p
_TYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 4, "uint8": 5, "float16": 6}
SUM, MIN, MAX = 101, 102, 103


class Error(Exception):
    pass


class _Param(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_void_p), ("grad", ctypes.c_void_p), ("count", ctypes.c_size_t)]


class _Options(ctypes.Structure):
    _fields_ = [("virtual_ranks", ctypes.c_int), ("micro_steps", ctypes.c_int), ("bucket_mb", ctypes.c_double)]


class Result(ctypes.Structure):
    _fields_ = [("weight", ctypes.c_double), ("loss", ctypes.c_double), ("norm", ctypes.c_double)]


def _check(status):
    if status != 0:
        raise Error(_lib.lks_last_error().decode(errors="replace"))


def _memory(array, types=_TYPES):
    """An array's address, number of elements and type. The library works in the array's own memory."""
    if not (array.flags.c_contiguous and array.flags.writeable and array.dtype.name in types):
        raise Error(f"an array of {array.dtype.name}: it must be contiguous, writeable and one of {', '.join(types)}")
    return ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.size), _TYPES[array.dtype.name]


class Comm:
    """The group of all ranks that `lockstep run`, torchrun, mpirun or srun has started."""

    def __init__(self):
        self.handle = ctypes.c_void_p()
        # Python handles signals only after this call, which waits for all ranks. Let Ctrl-C end it.
        ends = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ends = ends and threading.current_thread() is threading.main_thread()
        if ends:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            _check(_lib.lks_comm_init(ctypes.byref(self.handle)))
        finally:
            if ends:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        self.rank, self.world_size = _lib.lks_comm_rank(self.handle), _lib.lks_comm_world_size(self.handle)

    def all_reduce(self, array, op=SUM):
        _check(_lib.lks_comm_all_reduce(self.handle, *_memory(array), op))

    def broadcast(self, array, root=0):
        _check(_lib.lks_comm_broadcast(self.handle, *_memory(array), root))

    def barrier(self):
        _check(_lib.lks_comm_barrier(self.handle))

    def close(self):
        _lib.lks_comm_close(self.handle)
        self.handle = ctypes.c_void_p()


class DDP:
    """Parameters {name: float32 array}. Backward adds to the array of the same name in `grads`."""

    def __init__(self, comm, params, virtual_ranks=0, micro_steps=1):
        self.params, self.grads = params, {name: numpy.zeros_like(value) for name, value in params.items()}
        self.list = (_Param * len(params))()
        for slot, (name, value) in zip(self.list, params.items()):
            slot.name = name.encode()
            slot.value, count, _ = _memory(value, ["float32"])
            slot.grad, slot.count = self.grads[name].ctypes.data, count
        self.handle, options = ctypes.c_void_p(), _Options(virtual_ranks, micro_steps, 0)
        _check(_lib.lks_ddp_open(comm.handle, self.list, ctypes.c_size_t(len(params)), ctypes.byref(options), ctypes.byref(self.handle)))
        _check(_lib.lks_ddp_broadcast(self.handle))

    def virtual_ranks(self):
        """Iterate over this rank's virtual ranks. In the loop `grads` is the virtual rank's sum."""
        for v in range(_lib.lks_ddp_first(self.handle), _lib.lks_ddp_end(self.handle)):
            _check(_lib.lks_ddp_begin(self.handle, v))
            yield v

    def accumulate(self, samples, loss=0.0):
        _check(_lib.lks_ddp_add_loss(self.handle, ctypes.c_double(loss)))
        _check(_lib.lks_ddp_accumulate(self.handle, ctypes.c_double(samples)))

    def step(self):
        """Make `grads` the mean over all samples of all ranks. Returns weight, loss and norm."""
        result = Result()
        _check(_lib.lks_ddp_step(self.handle, ctypes.byref(result)))
        return result

    def close(self):
        _lib.lks_ddp_close(self.handle)
        self.handle = ctypes.c_void_p()
