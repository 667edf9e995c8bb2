"""A module in torch's place, for tests over tensors of a CUDA device without torch: the parts of torch that elsa.py uses. Its
tensors are in memory that the driver allocates. That is NVIDIA's driver or the stand-in, whose log counts calls. It publishes
DLPack's table, as torch does, so that repeated calls are those of _elsa. Python 3.6 and later.
"""

import collections
import ctypes
import os
import sys
import tempfile
import types

import numpy as np

# The stand-in driver writes a line for each call.
LOG = tempfile.NamedTemporaryFile()
os.environ["ELSA_STANDIN_LOG"] = LOG.name
driver = ctypes.CDLL("libcuda.so.1")
CONTEXT = ctypes.c_void_p()


def call(name, *arguments):
    status = getattr(driver, name)(*arguments)
    if status:
        raise OSError(f"{name}: {status}")


Place = collections.namedtuple("Place", "type index")


class Tensor(object):
    """Device memory with a shape and strides, or host memory for `device` None."""

    layout, is_quantized, requires_grad = "strided", False, False

    def __init__(self, array, device=0, whole=None):
        # Device elements are copied to this array when they are requested.
        self.array, self.place, self.whole = np.array(array) if whole is None else array, device, whole
        self.shape, self.dtype = self.array.shape, f"torch.{self.array.dtype}"
        self.is_cuda, self.device = device is not None, Place("cpu" if device is None else "cuda", device)
        self.sizes = (ctypes.c_int64 * (2 * self.array.ndim))(*self.shape + self.stride())
        if whole is None:
            self.address, self.pool = Pool.take(max(self.array.nbytes, 1))
            if not STREAM.captured:
                self.write(self.array)

    def stride(self):
        return tuple(n // self.array.itemsize for n in self.array.strides)

    def is_neg(self):
        return False

    def data_ptr(self):
        return (self.whole or self).address.value + (self.array.ctypes.data - (self.whole or self).array.ctypes.data)

    def view(self, of):
        """Returns the elements that `of` selects from an array, in place."""
        return Tensor(of(self.array), self.place, self.whole or self)

    def reshape(self, shape):
        return self.view(lambda array: array.reshape(shape))

    def contiguous(self):
        return self if self.array.flags.c_contiguous else Tensor(self.numpy().copy(), self.place)

    def write(self, array):
        assert self.whole is None
        array = np.ascontiguousarray(array)
        call("cuMemcpyHtoD_v2", self.address, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes))

    def numpy(self):
        """Returns the content of the device memory."""
        owner = self.whole or self
        call("cuStreamSynchronize", ctypes.c_void_p(STREAM.cuda_stream))
        call("cuMemcpyDtoH_v2", ctypes.c_void_p(owner.array.ctypes.data), owner.address, ctypes.c_size_t(owner.array.nbytes))
        return self.array.copy()

    def __del__(self):
        if self.whole is None and hasattr(self, "address"):
            Pool.give(self.pool, self.address, max(self.array.nbytes, 1))


class Host(Tensor):
    """Host memory that the library writes."""

    def data_ptr(self):
        return self.array.ctypes.data

    def numpy(self):
        return self.array


class Lent(ctypes.Structure):
    """DLTensor of DLPack."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device", ctypes.c_int32), ("axes", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64),
    ]  # fmt: skip


def lend(tensor, lent):
    """Describes a tensor. Its address is split, as DLPack allows."""
    codes = {"i": 0, "u": 1, "f": 2, "b": 6}
    sizes, kind = ctypes.addressof(tensor.sizes), tensor.array.dtype
    lent[0] = Lent(
        tensor.data_ptr() - 8, 2 if tensor.is_cuda else 1, tensor.place or 0, tensor.array.ndim, codes[kind.kind],
        8 * kind.itemsize, 1, sizes, sizes + 8 * tensor.array.ndim, 8,
    )  # fmt: skip
    return 0


def lend_stream(kind, device, stream):
    stream[0] = current_stream(device).cuda_stream
    return 0


class Table(ctypes.Structure):
    """DLPackExchangeAPI of DLPack."""

    READ = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Lent))
    STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
    _fields_ = [
        ("version", ctypes.c_uint32 * 2), ("others", ctypes.c_void_p * 4), ("read", READ), ("stream", STREAM),
    ]  # fmt: skip


TABLE = Table((1, 3), (None,) * 4, Table.READ(lend), Table.STREAM(lend_stream))


class Pool(object):
    """Replaces torch's allocator. `bytes` counts those of tensors. The pool of a capture reuses its memory and never frees
    it."""

    bytes, capture = 0, None

    def __init__(self):
        self.free, self.taken = {}, 0

    @staticmethod
    def take(size):
        """Returns an address, and the pool of a capture that it is from, or None."""
        pool, address, mode = Pool.capture, ctypes.c_uint64(), ctypes.c_int(2)
        Pool.bytes += size
        if pool is not None:
            pool.taken += 1
            if pool.free.get(size):
                return pool.free[size].pop(), pool
        call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        return address, pool

    @staticmethod
    def give(pool, address, size):
        Pool.bytes -= size
        if pool is None:
            driver.cuMemFree_v2(address)
        else:
            pool.free.setdefault(size, []).append(address)


class STREAM(object):
    """Replaces torch's current stream, and records the devices for which it was requested."""

    cuda_stream, asked, captured = 0, [], False


class Graph(object):
    """A CUDA graph of the calls in the block, captured in the mode that forbids every thread to disturb it."""

    def __enter__(self):
        self.graph, self.launched = ctypes.c_void_p(), ctypes.c_void_p()
        Pool.capture, STREAM.captured = Pool(), True
        call("cuStreamBeginCapture_v2", ctypes.c_void_p(STREAM.cuda_stream), 0)
        return self

    def __exit__(self, *failed):
        self.pool, Pool.capture, STREAM.captured = Pool.capture, None, False
        ended = driver.cuStreamEndCapture(ctypes.c_void_p(STREAM.cuda_stream), ctypes.byref(self.graph))
        if failed == (None, None, None):
            if ended:
                raise OSError(f"cuStreamEndCapture: {ended}")
            call("cuGraphInstantiate", ctypes.byref(self.launched), self.graph, None, None, ctypes.c_size_t(0))

    def replay(self):
        call("cuGraphLaunch", self.launched, ctypes.c_void_p(STREAM.cuda_stream))


def current_stream(device):
    STREAM.asked.append(device)
    return STREAM


# Tensors that are returned instead of new ones of their shape and type.
READY = []


def empty_strided(shape, strides, dtype, device):
    for n, tensor in enumerate(READY):
        if tensor.shape == tuple(shape) and tensor.dtype == dtype:
            return READY.pop(n)
    return Tensor(np.full(shape, 7, dtype.replace("torch.", "")), device.index)


def empty(size, dtype, device):
    """Makes a tensor of a CUDA device with one axis, or one of any shape in host memory."""
    if device != "cpu":
        return empty_strided((size,), None, dtype, device)
    return Host(np.full(size, 7, dtype.replace("torch.", "")), None)


def stand_for_torch():
    torch = types.ModuleType("torch")
    torch.Tensor, torch.strided = Tensor, "strided"
    torch.float32, torch.float16, torch.uint8 = "torch.float32", "torch.float16", "torch.uint8"
    torch.device = Place
    torch.empty = empty
    torch.empty_strided = empty_strided
    torch.is_grad_enabled = lambda: True
    torch.get_num_threads = lambda: 1
    torch.jit = types.SimpleNamespace(is_tracing=lambda: False)
    torch.cuda = types.SimpleNamespace(
        current_stream=current_stream, is_current_stream_capturing=lambda: STREAM.captured
    )
    # No library, so the functions of this module make the tensors.
    torch._C = types.SimpleNamespace(_is_tracing=lambda: False, __file__=LOG.name)
    torch.nn = types.SimpleNamespace(Parameter=Tensor)
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    Tensor.__dlpack_c_exchange_api__ = capsule(ctypes.addressof(TABLE), b"dlpack_exchange_api", None)
    sys.modules["torch"] = torch
