"""liblockstep from Python, by ctypes: data-parallel training of NumPy arrays, or of anything that
shares its memory with one, such as a PyTorch tensor on the CPU.

LOCKSTEP_LIBRARY names the library if the system's loader doesn't find it. The C headers of the same
names explain every call. A call that fails raises Error with the library's sentence. The library
works in the arrays' own memory: they must be contiguous and writeable, and stay alive.
"""
import ctypes
import ctypes.util
import json
import os
import signal
import threading

import numpy

try:
    _lib = ctypes.CDLL(os.environ.get("LOCKSTEP_LIBRARY") or ctypes.util.find_library("lockstep") or "liblockstep.so.0")
except OSError as error:
    raise OSError(f"{error}; set LOCKSTEP_LIBRARY to the path of liblockstep.so") from None
_free = ctypes.CDLL(None).free
_free.argtypes = [ctypes.c_void_p]
_TYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 4, "uint8": 5, "float16": 6, "uint64": 8, "int8": 9, "bool": 10}
_NAMES = {number: name for name, number in _TYPES.items()}
_WIRES = {"float32": 0, "bfloat16": 1}
_RULES = {"adamw": 1, "sgd": 2, "muon": 3}
_KINDS = {"vector": 1, "matrix": 2, "embed": 3}
SUM, MIN, MAX, PROD, MEAN = 101, 102, 103, 104, 105


class Error(Exception):
    pass


class _Param(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_void_p), ("grad", ctypes.c_void_p), ("count", ctypes.c_size_t)]


class _Options(ctypes.Structure):
    _fields_ = [("virtual_ranks", ctypes.c_int), ("micro_steps", ctypes.c_int), ("bucket_mb", ctypes.c_double), ("wire", ctypes.c_int),
                ("own_gradients", ctypes.c_bool), ("weight", ctypes.c_double), ("overwrites", ctypes.c_bool)]


class _SamplerOptions(ctypes.Structure):
    _fields_ = [("dataset_size", ctypes.c_uint64), ("replicas", ctypes.c_int), ("in_order", ctypes.c_bool), ("drop_last", ctypes.c_bool),
                ("seed", ctypes.c_uint64)]


class _Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_int), ("n_dims", ctypes.c_int), ("shape", ctypes.c_uint64 * 64),
                ("data", ctypes.c_void_p)]


class _More(ctypes.Structure):
    _fields_ = [("per_rank", ctypes.c_void_p), ("n_per_rank", ctypes.c_size_t), ("json", ctypes.c_char_p)]


class _OptimizerParam(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_void_p), ("grad", ctypes.c_void_p), ("kind", ctypes.c_int),
                ("rows", ctypes.c_size_t), ("cols", ctypes.c_size_t)]


class Rates(ctypes.Structure):
    """The numbers of an optimizer's step, by keyword: Rates(learning_rate=1e-3, beta1=0.9)."""
    __slots__ = ()  # a wrong name is an error
    _fields_ = [(name, ctypes.c_double) for name in ("learning_rate", "weight_decay", "beta1", "beta2", "epsilon", "matrix_rate",
                                                     "matrix_momentum", "matrix_decay")] + [("matrix_steps", ctypes.c_int)]


class Result(ctypes.Structure):
    """A step's sum of weights, mean loss, and norm of the mean gradient."""
    _fields_ = [("weight", ctypes.c_double), ("loss", ctypes.c_double), ("norm", ctypes.c_double)]


_P, _INT, _SIZE, _U64, _DOUBLE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_double
for _name, _result, *_arguments in (
        ("last_error", ctypes.c_char_p), ("comm_init", _INT, _P), ("comm_close", None, _P), ("comm_rank", _INT, _P), ("comm_world_size", _INT, _P),
        ("comm_backend", ctypes.c_char_p, _P), ("comm_split", _INT, _P, _INT, _INT, _P), ("comm_barrier", _INT, _P), ("comm_beat", None, _P),
        ("comm_note", None, _P, _U64, ctypes.c_char_p), ("comm_abort", None, _P, ctypes.c_char_p),
        ("comm_broadcast", _INT, _P, _P, _SIZE, _INT, _INT), ("comm_all_gather", _INT, _P, _P, _P, _SIZE, _INT),
        ("comm_all_gather_v", _INT, _P, _P, _P, _P, _INT), ("comm_all_reduce", _INT, _P, _P, _SIZE, _INT, _INT),
        ("comm_reduce_scatter", _INT, _P, _P, _P, _SIZE, _INT, _INT), ("comm_all_reduce_start", _INT, _P, _P, _SIZE, _INT, _INT, _P),
        ("work_test", _INT, _P, _P), ("work_wait", _INT, _P), ("ddp_open", _INT, _P, _P, _SIZE, _P, _P), ("ddp_close", None, _P),
        ("ddp_broadcast", _INT, _P), ("ddp_verify", _INT, _P), ("ddp_first", _INT, _P), ("ddp_end", _INT, _P), ("ddp_begin", _INT, _P, _INT),
        ("ddp_mark_ready", _INT, _P, _SIZE), ("ddp_add_loss", _INT, _P, _DOUBLE), ("ddp_accumulate", _INT, _P, _DOUBLE), ("ddp_step", _INT, _P, _P),
        ("ddp_clip", _INT, _P, _DOUBLE, _P), ("ddp_used", ctypes.c_bool, _P, _SIZE), ("ddp_gradient", _P, _P, _SIZE),
        ("sampler_open", _INT, _P, _P), ("sampler_close", None, _P),
        ("sampler_set_epoch", None, _P, _U64), ("sampler_count", _U64, _P), ("sampler_index", _U64, _P, _INT, _U64),
        ("checkpoint_save_more", _INT, _P, ctypes.c_char_p, _U64, _P, _SIZE, _P, _INT),
        ("checkpoint_load_more", _INT, _P, ctypes.c_char_p, _P, _SIZE, _P, _P, _P), ("checkpoint_list", _INT, _P, ctypes.c_char_p, _P, _P, _P),
        ("checkpoint_json", _INT, _P, ctypes.c_char_p, _P, _P), ("optimizer_open", _INT, _P, _INT, _P, _SIZE, _P), ("optimizer_close", None, _P),
        ("optimizer_step", _INT, _P, _P), ("optimizer_state", _INT, _P, _P, _P), ("lr_cosine", _DOUBLE, _DOUBLE, _DOUBLE, _U64, _U64, _U64),
        ("lr_warmdown", _DOUBLE, _U64, _U64, _U64)):
    getattr(_lib, "lks_" + _name).restype, getattr(_lib, "lks_" + _name).argtypes = _result, _arguments
lr_cosine, lr_warmdown = _lib.lks_lr_cosine, _lib.lks_lr_warmdown


def _failure():
    return Error(_lib.lks_last_error().decode(errors="replace"))


def _check(status):
    if status != 0:
        raise _failure()


def _memory(array, types=_TYPES, writes=True):
    """An array's address, number of elements and type."""
    if not (array.flags.c_contiguous and (array.flags.writeable or not writes) and array.dtype.name in types and array.dtype.isnative):
        raise Error(f"an array of {array.dtype.name}: it must be contiguous, writeable, in this machine's byte order and one of {', '.join(types)}")
    return array.ctypes.data, array.size, _TYPES[array.dtype.name]


def _check_names(argument, names, params, where="in params"):
    for name in names:
        if name not in params:
            raise Error(f"{argument}: {name} isn't {where}")


def _word(argument, word, words):
    """The number of a word."""
    _check_names(argument, [word], words, f"one of {', '.join(words)}")
    return words[word]


def _view(address, dtype, shape):
    """An array in memory of the library."""
    size = int(numpy.prod(shape, dtype=int)) * numpy.dtype(dtype).itemsize
    return numpy.frombuffer((ctypes.c_char * size).from_address(address or 0), dtype).reshape(shape)


class _Object:
    """An object of the library, which close() releases."""
    _close = None

    def __init__(self):
        self.handle = _P()

    def close(self):
        self._close(self.handle)
        self.handle = _P()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Comm(_Object):
    """The group of all ranks that `lockstep run`, torchrun, mpirun or srun has started."""
    _close = _lib.lks_comm_close

    def __init__(self, part=None):
        super().__init__()
        self._phases = {}  # the library has their addresses
        if part is not None:
            self.handle = part
        else:
            self._join()
        self.rank, self.world_size = _lib.lks_comm_rank(self.handle), _lib.lks_comm_world_size(self.handle)
        self.backend = _lib.lks_comm_backend(self.handle).decode()

    def _join(self):
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

    def split(self, color, key=0):
        """The group of the ranks that give the same color; None for color -1."""
        part = _P()
        _check(_lib.lks_comm_split(self.handle, color, key, ctypes.byref(part)))
        return Comm(part) if part else None

    def all_reduce(self, array, op=SUM):
        _check(_lib.lks_comm_all_reduce(self.handle, *_memory(array), op))

    def all_reduce_start(self, array, op=SUM):
        """Begin an all-reduce. The array belongs to it until wait() of the returned Work returns."""
        work = Work(array)
        _check(_lib.lks_comm_all_reduce_start(self.handle, *_memory(array), op, ctypes.byref(work.handle)))
        Work.in_flight.add(work)
        return work

    def reduce_scatter(self, array, op=SUM):
        """This rank's part of the reduced array, whose first dimension the ranks divide."""
        address, count, dtype = _memory(array, writes=False)
        if array.ndim == 0 or len(array) % self.world_size != 0:
            raise Error(f"reduce_scatter: {self.world_size} ranks can't divide the first dimension of an array of shape {array.shape}")
        mine = numpy.empty((len(array) // self.world_size,) + array.shape[1:], array.dtype)
        _check(_lib.lks_comm_reduce_scatter(self.handle, address, mine.ctypes.data, count // self.world_size, dtype, op))
        return mine

    def all_gather(self, array):
        """The arrays of all ranks, which have one shape: [world_size, ...]."""
        address, count, dtype = _memory(array, writes=False)
        out = numpy.empty((self.world_size,) + array.shape, array.dtype)
        _check(_lib.lks_comm_all_gather(self.handle, address, out.ctypes.data, count, dtype))
        return out

    def all_gather_v(self, array, counts):
        """The elements of all ranks' arrays in one row. `counts` has the number of each rank's."""
        address, count, dtype = _memory(array, writes=False)
        if len(counts) != self.world_size or count != counts[self.rank]:
            raise Error(f"all_gather_v: {count} elements on rank {self.rank}, but counts is {list(counts)}")
        out = numpy.empty(sum(counts), array.dtype)
        _check(_lib.lks_comm_all_gather_v(self.handle, address, out.ctypes.data, (_SIZE * len(counts))(*counts), dtype))
        return out

    def broadcast(self, array, root=0):
        _check(_lib.lks_comm_broadcast(self.handle, *_memory(array), root))

    def barrier(self):
        _check(_lib.lks_comm_barrier(self.handle))

    def beat(self):
        """Tell waiting ranks that this one is alive, during work that lasts."""
        _lib.lks_comm_beat(self.handle)

    def note(self, step, phase=""):
        """Publish this rank's step and phase, which messages about it name. Also a heartbeat."""
        _lib.lks_comm_note(self.handle, step, self._phases.setdefault(phase, phase.encode()))

    def abort(self, why):
        """Report this rank's failure: waits on every rank raise Error with `why`."""
        _lib.lks_comm_abort(self.handle, why.encode())


class Work:
    """An operation in flight."""
    in_flight = set()  # the library writes to their arrays

    def __init__(self, array):
        self.handle, self.array = _P(), array

    def done(self):
        done = ctypes.c_bool()
        _check(_lib.lks_work_test(self.handle, ctypes.byref(done)))
        return done.value

    def wait(self):
        handle, self.handle = self.handle, _P()
        status = _lib.lks_work_wait(handle)
        Work.in_flight.discard(self)
        _check(status)
        return self.array


class _Grads(dict):
    def __setitem__(self, name, array):  # also called by grads[name] += ...
        if array is not self[name]:
            raise Error(f"grads[\"{name}\"]: the library uses the array's memory: change it in place, by grads[\"{name}\"][...] = or +=")

    def __reduce__(self):  # a copy is a plain dict
        return dict, (dict(self),)


class DDP(_Object):
    """Parameters {name: float32 array}, in the order in which forward uses them. Backward adds to the
    array of the same name in `grads`. Parameters named in `frozen` have no gradient. With
    `own_gradients` the library allocates `grads`, which saves a copy of them. They are valid until
    close(), also of the group, and parameters can't be frozen. `weight`: the samples of each micro-step,
    if always the same. `overwrites`: the first micro-step of a virtual rank stores gradients, and they aren't zeroed."""
    _close = _lib.lks_ddp_close

    def __init__(self, comm, params, virtual_ranks=0, micro_steps=1, bucket_mb=0, wire="float32", frozen=(), own_gradients=False,
                 weight=0, overwrites=False):
        super().__init__()
        if own_gradients and frozen:
            raise Error(f"DDP: own_gradients, so {', '.join(frozen)} can't be frozen: leave it out of params")
        _check_names("frozen", frozen, params)
        self.params, self.names = params, {name: i for i, name in enumerate(params)}
        self.grads = _Grads((name, numpy.zeros_like(value)) for name, value in params.items() if name not in frozen and not own_gradients)
        self.list = (_Param * len(params))()
        for slot, (name, value) in zip(self.list, params.items()):
            slot.name = name.encode()
            slot.value, slot.count, _ = _memory(value, ["float32"])
            slot.grad = self.grads[name].ctypes.data if name in self.grads else None
        options = _Options(virtual_ranks, micro_steps, bucket_mb, _word("wire", wire, _WIRES), own_gradients, weight, overwrites)
        _check(_lib.lks_ddp_open(comm.handle, self.list, len(params), ctypes.byref(options), ctypes.byref(self.handle)))
        if own_gradients:
            self.grads = _Grads((name, _view(_lib.lks_ddp_gradient(self.handle, i), numpy.float32, params[name].shape))
                                for name, i in self.names.items())
        self._kept = list(params.values()), list(self.grads.values())  # the library has their addresses
        _check(_lib.lks_ddp_broadcast(self.handle))

    def virtual_ranks(self):
        """Iterate over this rank's virtual ranks. In the loop `grads` is the virtual rank's sum."""
        for v in range(_lib.lks_ddp_first(self.handle), _lib.lks_ddp_end(self.handle)):
            _check(_lib.lks_ddp_begin(self.handle, v))
            yield v

    def mark_ready(self, name):
        """Optional: the parameter's gradient is complete, and may be sent while backward continues."""
        _check_names("mark_ready", [name], self.names)
        _check(_lib.lks_ddp_mark_ready(self.handle, self.names[name]))

    def accumulate(self, samples, loss=0.0):
        """End a micro-step. `loss` is the sum over its samples."""
        _check(_lib.lks_ddp_add_loss(self.handle, loss))
        _check(_lib.lks_ddp_accumulate(self.handle, samples))

    def step(self):
        """Make `grads` the mean over all samples of all ranks. Returns weight, loss and norm."""
        result = Result()
        _check(_lib.lks_ddp_step(self.handle, ctypes.byref(result)))
        return result

    def clip(self, max_norm):
        """Clip the mean gradient, and return the factor."""
        factor = _DOUBLE()
        _check(_lib.lks_ddp_clip(self.handle, max_norm, ctypes.byref(factor)))
        return factor.value

    def used(self, name):
        _check_names("used", [name], self.names)
        return _lib.lks_ddp_used(self.handle, self.names[name])

    def verify(self):
        """Raise Error if a parameter differs between ranks."""
        _check(_lib.lks_ddp_verify(self.handle))


class Optimizer(_Object):
    """"adamw", "sgd" or "muon" with the bits of `lockstep train`. Ranks of `comm` divide the state.
    Kinds are "vector", "matrix" or "embed", by default from an array's number of dimensions."""
    _close = _lib.lks_optimizer_close

    def __init__(self, rule, params, grads, comm=None, kinds=None):
        super().__init__()
        _check_names("kinds", kinds or (), params)
        _check_names("Optimizer", params, grads, "in grads")
        self.params, self.grads, self.list = params, grads, (_OptimizerParam * len(params))()
        for slot, (name, value) in zip(self.list, params.items()):
            kind = (kinds or {}).get(name, "matrix" if value.ndim > 1 else "vector")
            slot.name, slot.kind = name.encode(), _word("kinds", kind, _KINDS)
            slot.value, count, _ = _memory(value, ["float32"])
            slot.grad, in_grad, _ = _memory(grads[name], ["float32"])
            if in_grad != count:
                raise Error(f"Optimizer: the gradient of {name} has {in_grad} elements, and the parameter {count}")
            slot.rows = len(value) if value.ndim > 1 else count
            slot.cols = count // slot.rows
        self._kept = list(params.values()), list(grads.values())  # the library has their addresses
        _check(_lib.lks_optimizer_open(comm and comm.handle, _word("rule", rule, _RULES), self.list, len(params), ctypes.byref(self.handle)))

    def step(self, rates):
        _check(_lib.lks_optimizer_step(self.handle, ctypes.byref(rates)))

    def state(self):
        """The state as arrays in the optimizer's memory, for save() and load(). Call it before each save.
        The arrays are valid until close()."""
        tensors, n = ctypes.POINTER(_Tensor)(), _SIZE()
        _check(_lib.lks_optimizer_state(self.handle, ctypes.byref(tensors), ctypes.byref(n)))
        return {t.name.decode(): _view(t.data, _NAMES[t.dtype], tuple(t.shape[:t.n_dims])) for t in tensors[:n.value]}


class Sampler(_Object):
    """The samples that each replica reads, index by index as torch's DistributedSampler deals them."""
    _close = _lib.lks_sampler_close

    def __init__(self, dataset_size, replicas, shuffle=True, drop_last=False, seed=0):
        super().__init__()
        options = _SamplerOptions(dataset_size, replicas, not shuffle, drop_last, seed)
        _check(_lib.lks_sampler_open(ctypes.byref(options), ctypes.byref(self.handle)))

    def set_epoch(self, epoch):
        _lib.lks_sampler_set_epoch(self.handle, epoch)

    def __len__(self):
        return _lib.lks_sampler_count(self.handle)

    def index(self, replica, i):
        index = _lib.lks_sampler_index(self.handle, replica, i)
        if index == 2**64 - 1:
            raise _failure()
        return index


def _tensors(arrays):
    out = (_Tensor * len(arrays))()
    for slot, (name, array) in zip(out, arrays.items()):
        slot.data, _, slot.dtype = _memory(array)
        slot.name, slot.n_dims, slot.shape = name.encode(), array.ndim, (_U64 * 64)(*array.shape)
    return out


def save(comm, folder, step, arrays, keep=0, per_rank=None, data=None):
    """Save {name: array} as the checkpoint of `step`, and keep the `keep` newest (0: all). `per_rank`
    has arrays that each rank has its own of, and `data` is anything that JSON can express, with integers from
    -2**63 to 2**63 - 1 and in at most 10 MB of indented text."""
    ranks = _tensors(per_rank or {})
    more = _More(ctypes.addressof(ranks), len(ranks), None if data is None else json.dumps(data, allow_nan=False).encode())
    _check(_lib.lks_checkpoint_save_more(comm.handle, os.fsencode(folder), step, _tensors(arrays), len(arrays), ctypes.byref(more), keep))


def load(comm, folder, arrays, per_rank=None):
    """Load the newest checkpoint into {name: array}. Returns its step; None if there is none."""
    step, found, ranks = _U64(), ctypes.c_bool(), _tensors(per_rank or {})
    more = _More(ctypes.addressof(ranks), len(ranks))
    _check(_lib.lks_checkpoint_load_more(comm.handle, os.fsencode(folder), _tensors(arrays), len(arrays), ctypes.byref(more), ctypes.byref(step),
                                         ctypes.byref(found)))
    return step.value if found else None


def data_of(comm, folder):
    """The newest checkpoint's `data`, on every rank; None if it has none."""
    text = _P()
    _check(_lib.lks_checkpoint_json(comm.handle, os.fsencode(folder), ctypes.byref(text), None))
    if not text:
        return None
    data = json.loads(ctypes.string_at(text))
    _free(text)
    return data


def tensors_of(comm, folder):
    """The newest checkpoint's {name: (type, shape)}, on every rank. The type is None if NumPy lacks it."""
    tensors, n, step = ctypes.POINTER(_Tensor)(), _SIZE(), _U64()
    _check(_lib.lks_checkpoint_list(comm.handle, os.fsencode(folder), ctypes.byref(tensors), ctypes.byref(n), ctypes.byref(step)))
    found = {t.name.decode(): (_NAMES.get(t.dtype), tuple(t.shape[:t.n_dims])) for t in tensors[:n.value]}
    _free(ctypes.cast(tensors, _P))
    return found
