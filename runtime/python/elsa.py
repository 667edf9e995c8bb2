"""Exact softmax and linear attention, and scans, for arrays of numpy and tensors of torch, through libelsa.so.

    import elsa
    out = elsa.attention(q, k, v, causal=True)      # [batch, heads, tokens, dim], numpy or torch
    out, state = elsa.linear_attention(q, k, v, "gated", decay=g, past_state=state, present_state=True)
    y = elsa.selective(u, delta, a, b, c, softplus=True)   # Mamba's scan; and elsa.recurrence, elsa.conv
    with elsa.patch():                              # torch's scaled_dot_product_attention, until the block ends
        answer = model(pictures)

One file for Python 3.6 and later without dependencies: it uses numpy or torch only for tensors of that library. Tensors
are read and written in place, strides included. The CPU computes tensors in host memory; a CUDA device computes tensors
in its memory, in torch's current stream.

The library is the one that the environment variable ELSA_LIBRARY names, else ../../lib relative to this file, else the one
that the system's loader finds. At import the module compares the library's ABI with its own and computes a small problem
with a known answer. `python3 elsa.py` prints the library, its version and its back ends.

Errors are ElsaError: ArgumentError, UnsupportedError, DeviceError, OutOfMemoryError, CancelledError, LibraryError.
Messages name the argument, the value found and the values allowed. Any thread may call any function.

Ctrl-C, or any other signal whose handler raises, ends a long call of the main thread: the call cancels its engine
(`Engine.cancel`) and raises the handler's exception, KeyboardInterrupt. The outputs are then incomplete; the next call
computes normally. A GPU finishes the kernels already launched.
"""

import _thread
import collections
import ctypes
import operator
import os
import sys
import threading

__all__ = [
    "attention", "linear_attention", "recurrence", "selective", "conv", "sdpa", "patch", "Engine", "version", "backends",
    "ElsaError", "ArgumentError", "UnsupportedError", "DeviceError", "OutOfMemoryError", "CancelledError",
    "LibraryError",
]  # fmt: skip

ABI_MAJOR, ABI_MINOR = 1, 0
# Number of plans that an engine keeps, for the shapes used last.
MOST_PLANS = 64


class ElsaError(Exception):
    """Base class of all errors of this module."""


class ArgumentError(ElsaError, ValueError):
    """An argument is not allowed; the message names it, the value found and the values allowed."""


class UnsupportedError(ElsaError, NotImplementedError):
    """The library, the machine or this module cannot compute the request, such as gradients or dropout."""


class DeviceError(ElsaError, RuntimeError):
    """The GPU, the system or the library failed. Outputs may be incomplete."""


class OutOfMemoryError(ElsaError, MemoryError):
    """Memory is not available."""


class CancelledError(ElsaError, RuntimeError):
    """Engine.cancel ended the call. Outputs are incomplete; the next call computes normally."""


class LibraryError(ElsaError, ImportError):
    """libelsa.so is missing or does not match this file."""


# Structs of elsa.h. A newer library may extend a struct that begins with `size`, and reads missing fields as zeros.


class _View(ctypes.Structure):
    _fields_ = [("shape", ctypes.c_size_t * 4), ("strides", ctypes.c_size_t * 4)]


class _Mask(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_uint32), ("rank", ctypes.c_uint32), ("dims", ctypes.c_size_t * 4)]


class _Table(ctypes.Structure):
    _fields_ = [
        ("dtype", ctypes.c_uint32),
        ("has_index", ctypes.c_uint32),
        ("entries", ctypes.c_size_t),
        ("heads", ctypes.c_size_t),
    ]


class _Windows(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t * 2) for name in ("picture", "size", "shift")]


class _Handle(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint64)]


class _Sized(ctypes.Structure):
    """A struct that records its size."""

    def __init__(self):
        super().__init__()
        self.size = ctypes.sizeof(self)


class _EngineOptions(_Sized):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("backend", ctypes.c_uint32),
        ("fallback", ctypes.c_uint32),
        ("threads", ctypes.c_size_t),
        ("cuda_device", ctypes.c_size_t),
        ("cuda_context", ctypes.c_uint32),
        ("priority", ctypes.c_int32),
        ("spin_us", ctypes.c_int64),
        ("cores", ctypes.c_void_p),
        ("core_count", ctypes.c_size_t),
        ("parallel_for", ctypes.c_void_p),
        ("parallel_user", ctypes.c_void_p),
    ]


class _EngineInfo(_Sized):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("backend", ctypes.c_uint32),
        ("fallback", ctypes.c_uint32),
        ("threads", ctypes.c_size_t),
        ("device_memory", ctypes.c_size_t),
        ("driver_major", ctypes.c_uint32),
        ("driver_minor", ctypes.c_uint32),
        ("capability_major", ctypes.c_uint32),
        ("capability_minor", ctypes.c_uint32),
        ("integrated", ctypes.c_uint32),
        ("absent", ctypes.c_uint32),
        ("device", ctypes.c_char * 128),
        ("reason", ctypes.c_char * 256),
    ]


class _Problem(_Sized):
    prefix = "elsa_"
    _fields_ = (
        [("size", ctypes.c_size_t), ("dtype", ctypes.c_uint32), ("causal", ctypes.c_uint32)]
        + [(name, _View) for name in ("q", "k", "v", "out", "past_k", "past_v", "present_k", "present_v")]
        + [(name, ctypes.c_uint32) for name in ("has_past", "has_present", "append", "has_key_lengths", "has_scale")]
        + [
            ("scale", ctypes.c_float),
            ("softcap", ctypes.c_float),
            ("has_window_left", ctypes.c_uint32),
            ("has_window_right", ctypes.c_uint32),
            ("reserved", ctypes.c_uint32),
            ("window_left", ctypes.c_int64),
            ("window_right", ctypes.c_int64),
            ("mask", _Mask),
            ("packed", ctypes.c_size_t),
            ("bias", _Mask),
            ("bias_table", _Table),
            ("windows", _Windows),
        ]
    )


class _PlanInfo(_Sized):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("backend", ctypes.c_uint32),
        ("fallback", ctypes.c_uint32),
        ("workspace_bytes", ctypes.c_size_t),
        ("staging_bytes", ctypes.c_size_t),
        ("kernel", ctypes.c_char_p),
        ("state_workspace_bytes", ctypes.c_size_t),
        ("reason", ctypes.c_char * 256),
    ]


class _Memory(ctypes.Structure):
    """elsa_input, elsa_output: an address and a number of bytes."""

    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


class _Integers(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("count", ctypes.c_size_t)]


class _Inputs(_Sized):
    _fields_ = (
        [("size", ctypes.c_size_t)]
        + [(name, _Memory) for name in ("q", "k", "v", "past_k", "past_v", "mask")]
        + [(name, _Integers) for name in ("key_lengths", "cu_seqlens_q", "cu_seqlens_k")]
        + [("bias", _Memory), ("bias_index", _Integers)]
    )


class _Outputs(_Sized):
    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, _Memory) for name in ("out", "lse", "state_m", "state_s", "state_w", "present_k", "present_v")
    ]


class _LinearProblem(_Sized):
    prefix = "elsa_linear_"
    _fields_ = (
        [("size", ctypes.c_size_t)]
        + [(name, ctypes.c_uint32) for name in ("dtype", "gate_dtype", "rule", "direction")]
        + [(name, _View) for name in ("q", "k", "v", "out", "decay", "beta", "past_state", "present_state")]
        + [(f"has_{name}", ctypes.c_uint32) for name in ("decay", "beta", "past_state", "present_state")]
        + [
            ("in_place", ctypes.c_uint32),
            ("has_scale", ctypes.c_uint32),
            ("scale", ctypes.c_float),
            ("has_normalize", ctypes.c_uint32),
            ("normalize", ctypes.c_float),
            ("reserved", ctypes.c_uint32),
            ("packed", ctypes.c_size_t),
        ]
    )


class _LinearOptions(_Sized):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("form", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("chunk", ctypes.c_size_t),
        ("parts", ctypes.c_size_t),
        ("budget", ctypes.c_size_t),
    ]


class _LinearInputs(_Sized):
    _fields_ = (
        [("size", ctypes.c_size_t)]
        + [(name, _Memory) for name in ("q", "k", "v", "decay", "beta", "past_state")]
        + [("cu_seqlens", _Integers)]
    )


class _LinearOutputs(_Sized):
    _fields_ = [("size", ctypes.c_size_t), ("out", _Memory), ("present_state", _Memory)]


class _RecurrenceProblem(_Sized):
    prefix, packed = "elsa_recurrence_", 0
    _fields_ = (
        [("size", ctypes.c_size_t)]
        + [(name, ctypes.c_uint32) for name in ("dtype", "gate_dtype", "gate", "reverse", "in_place", "reserved")]
        + [(name, _View) for name in ("a", "b", "out")]
    )


class _SelectiveProblem(_Sized):
    prefix, packed = "elsa_selective_", 0
    _fields_ = (
        [("size", ctypes.c_size_t)]
        + [(name, ctypes.c_uint32) for name in ("dtype", "gate_dtype", "softplus", "reverse", "in_place")]
        + [(name, ctypes.c_uint32) for name in ("fixed_b", "fixed_c", "has_z")]
        + [("states", ctypes.c_size_t)]
        + [(name, _View) for name in ("u", "delta", "b", "c", "z", "out")]
    )


class _ConvolutionProblem(_Sized):
    prefix, packed = "elsa_convolution_", 0
    _fields_ = (
        [("size", ctypes.c_size_t)]
        + [(name, ctypes.c_uint32) for name in ("dtype", "order", "shared", "silu", "reverse", "in_place")]
        + [("taps", ctypes.c_size_t), ("u", _View), ("out", _View)]
    )


class _SeriesOptions(_Sized):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("parts", ctypes.c_size_t),
        ("budget", ctypes.c_size_t),
        ("method", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class _RecurrenceInputs(_Sized):
    _fields_ = [("size", ctypes.c_size_t)] + [(name, _Memory) for name in ("a", "b", "past_state")]


class _SelectiveInputs(_Sized):
    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, _Memory) for name in ("u", "delta", "a", "b", "c", "d", "z", "delta_bias", "past_state")
    ]


class _ConvolutionInputs(_Sized):
    _fields_ = [("size", ctypes.c_size_t)] + [(name, _Memory) for name in ("u", "filter", "bias", "past_state")]


class _SeriesOutputs(_Sized):
    _fields_ = [("size", ctypes.c_size_t), ("out", _Memory), ("present_state", _Memory)]


def _open():
    """Opens the library; returns it and its path."""
    named = os.environ.get("ELSA_LIBRARY")
    beside = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "lib", "libelsa.so.1")
    path = named or (os.path.realpath(beside) if os.path.exists(beside) else "libelsa.so.1")
    try:
        library = ctypes.CDLL(path)
        library.elsa_version.restype = ctypes.c_char_p
        library.elsa_last_error.restype = ctypes.c_char_p
        library.elsa_abi_version.restype = ctypes.c_uint32
        pointer, handle = ctypes.c_void_p, _Handle
        for name, arguments in (
            ("elsa_backend_present", [ctypes.c_uint32, pointer]),
            ("elsa_engine_create", [pointer, pointer]),
            ("elsa_engine_describe", [handle, pointer]),
            ("elsa_engine_destroy", [handle]),
            ("elsa_engine_cancel", [handle]),
            ("elsa_plan_create", [handle, pointer, pointer, pointer]),
            ("elsa_plan_describe", [handle, pointer]),
            ("elsa_plan_destroy", [handle]),
            ("elsa_workspace_create", [handle, pointer]),
            ("elsa_workspace_destroy", [handle]),
            ("elsa_run", [handle, handle, pointer, pointer, pointer]),
            ("elsa_run_device", [handle, handle, pointer, pointer, pointer, pointer]),
            ("elsa_linear_plan_create", [handle, pointer, pointer, pointer]),
            ("elsa_linear_run", [handle, handle, pointer, pointer, pointer]),
            ("elsa_linear_run_device", [handle, handle, pointer, pointer, pointer, pointer]),
            ("elsa_recurrence_plan_create", [handle, pointer, pointer, pointer]),
            ("elsa_recurrence_run", [handle, handle, pointer, pointer, pointer]),
            ("elsa_recurrence_run_device", [handle, handle, pointer, pointer, pointer, pointer]),
            ("elsa_selective_plan_create", [handle, pointer, pointer, pointer]),
            ("elsa_selective_run", [handle, handle, pointer, pointer, pointer]),
            ("elsa_selective_run_device", [handle, handle, pointer, pointer, pointer, pointer]),
            ("elsa_convolution_plan_create", [handle, pointer, pointer, pointer]),
            ("elsa_convolution_run", [handle, handle, pointer, pointer, pointer]),
            ("elsa_convolution_run_device", [handle, handle, pointer, pointer, pointer, pointer]),
        ):
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int32
    except (OSError, AttributeError) as error:
        raise LibraryError(
            f"libelsa.so: {error}; allowed: ELSA_LIBRARY=/path/to/libelsa.so.1, this file in the share/python of a "
            "folder that holds lib/libelsa.so.1, or a library that the loader finds"
        )
    abi = library.elsa_abi_version()
    if abi >> 16 != ABI_MAJOR or abi & 0xFFFF < ABI_MINOR:
        raise LibraryError(
            f"{path}: ABI {abi >> 16}.{abi & 0xFFFF}; allowed: {ABI_MAJOR}.{ABI_MINOR} or a later minor number"
        )
    return library, path


_lib, _path = _open()

_ERRORS = {1: ArgumentError, 3: DeviceError, 4: UnsupportedError, 5: OutOfMemoryError, 9: CancelledError}
_BACKENDS = ["auto", "scalar", "neon", "avx2", "avx512", "cuda"]
_CUDA = _BACKENDS.index("cuda")
# Upper bounds of operations per second of a back end's thread or of a GPU, and the seconds that make a call long.
_RATES = {"scalar": 1e10, "neon": 5e10, "avx2": 1.5e11, "avx512": 3e11, "cuda": 5e13}
_LONG = 0.02
# Operations that take as long as reading or writing an element.
_ELEMENT = 40
_DTYPES = {"float32": (0, 4), "float16": (1, 2), "bfloat16": (2, 2)}
_FLOATS = {"float32": (2, 4), "float16": (3, 2), "bfloat16": (4, 2), "float64": (2, 4)}
_MASKS = dict(_FLOATS, bool=(1, 1), uint8=(1, 1), int32=(1, 1), int64=(1, 1))
# Types that are converted, and their target types.
_CONVERTED = {"float64": "float32", "int32": "bool", "int64": "bool"}
# Types with their numbers and sizes in the library, and numbers of axes.
_ADDITIONS = {
    "mask": (_MASKS, (1, 2, 3, 4)),
    "bias": (_FLOATS, (1, 2, 3, 4)),
    "bias_table": (_DTYPES, (2,)),
    "bias_index": ({"int64": (0, 8)}, (2,)),
}
_CAUSAL = {None: 0, False: 0, True: 1, "top_left": 1, "bottom_right": 2}
_RULES = ["linear", "gated", "delta", "gated_delta"]
_DIRECTIONS = ["forward", "reverse", "bidirectional", "non_causal"]
_FORMS = [None, "recurrent", "chunk", "fused_chunk", "parallel", "scan"]
_LAYOUTS = ["btc", "bct"]
_TAPS = ["newest_first", "newest_last"]
_METHODS = [None, "direct", "fft"]


def _check(status):
    if status:
        raise _ERRORS.get(status, DeviceError)(_lib.elsa_last_error().decode("utf-8", "replace"))


def version():
    """Returns the version of the library, "major.minor.patch"."""
    return _lib.elsa_version().decode()


def backends():
    """Returns a dict: for each back end, whether the library contains it and this machine can execute it."""
    found = {}
    for number, name in enumerate(_BACKENDS[1:], 1):
        present = ctypes.c_uint32()
        _check(_lib.elsa_backend_present(number, ctypes.byref(present)))
        found[name] = bool(present.value)
    return found


def _capturing(name, device):
    """Returns `name`, the name of the first tensor, if torch's current stream is being captured as a CUDA graph, else None."""
    return name if device is not None and sys.modules["torch"].cuda.is_current_stream_capturing() else None


def _not_captured(name):
    return UnsupportedError(f"{name}: captured as a CUDA graph; allowed: after a call of the same shapes on this thread")


class Engine(object):
    """A back end with its threads, and the plans of the shapes used last.

    `backend` is the name of a back end; None selects the one that the environment variable ELSA_BACKEND names, else the
    best of the CPU. `threads` is the number of CPU threads that compute, including the caller's; 0 is one for each core
    that the process may use. `device` is the number of the GPU for "cuda", which must be present.

    Any number of threads may use an engine; each has its own workspace. After os.fork, calls of the child compute on the
    calling thread.

    A call may be captured as a CUDA graph after a call of the same shapes on the same thread. Its workspace then belongs to
    the graph and lives as long as the engine. Captured calls of a thread that share a workspace must be replayed one
    after another.
    """

    def __init__(self, backend=None, threads=0, device=0):
        if backend is not None and backend not in _BACKENDS:
            raise ArgumentError(f"backend: {backend!r}; allowed: None, {', '.join(_BACKENDS)}")
        if backend is None and not os.environ.get("ELSA_BACKEND"):
            present = backends()
            backend = next(name for name in ("avx512", "avx2", "neon", "scalar") if present[name])
        options = _EngineOptions()
        options.backend = _BACKENDS.index(backend or "auto")
        options.fallback = int(backend == "cuda")
        options.threads, options.cuda_device = _count("threads", threads), _count("device", device)
        self._handle = _Handle()
        _check(_lib.elsa_engine_create(ctypes.byref(options), ctypes.byref(self._handle)))
        info = _EngineInfo()
        _check(_lib.elsa_engine_describe(self._handle, ctypes.byref(info)))
        self.backend = _BACKENDS[info.backend]
        self.threads = info.threads
        self.device = info.device.decode("utf-8", "replace")
        self._plans = collections.OrderedDict()
        self._lock = threading.Lock()
        self._local = threading.local()
        # Workspaces of CUDA graphs.
        self._captured = []

    def __del__(self):
        handle = self.__dict__.get("_handle")
        if handle is not None and handle.id:
            _lib.elsa_engine_destroy(handle)

    def cancel(self):
        """Cancels the running calls of this engine on all threads: each raises CancelledError. It does not wait, and later
        calls compute normally."""
        _check(_lib.elsa_engine_cancel(self._handle))

    def __repr__(self):
        return f"elsa.Engine(backend={self.backend!r}, threads={self.threads})"

    def _plan(self, key, problem, capturing=None):
        """Returns the plan of a shape. If it does not exist yet, `problem` makes its problem, or its problem and options.
        `capturing` is the result of `_capturing`."""
        with self._lock:
            plan = self._plans.get(key)
            if plan is not None:
                self._plans.move_to_end(key)
                return plan
        if capturing:
            raise _not_captured(capturing)
        plan = _Plan(self, *problem())
        with self._lock:
            self._plans[key] = plan
            while len(self._plans) > MOST_PLANS:
                self._plans.popitem(last=False)
        return plan

    def _workspace(self, plan, capturing=None):
        """Returns the calling thread's workspace, which grows with the plans of its operator."""
        place = self._local.__dict__.setdefault(plan.prefix, _Place())
        workspace = place.workspace
        if capturing:
            # Nothing can be allocated now: use the workspace of the last call, or of the capture's earlier calls.
            if place.captured is not None and (workspace is None or not workspace.serves(plan)):
                workspace = place.captured
            if workspace is None or not workspace.serves(plan):
                raise _not_captured(capturing)
            if workspace is not place.captured:
                place.captured, place.workspace = workspace, None
                with self._lock:
                    self._captured.append(workspace)
            return workspace
        if workspace is None or not workspace.serves(plan):
            workspace = place.workspace = _Workspace(plan)
        return workspace


class _Place(object):
    """The workspaces of a thread for an operator: one for its calls and one for its captured calls."""

    def __init__(self):
        self.workspace = self.captured = None


class _Plan(object):
    """The plan of a problem of any operator, with its options."""

    def __init__(self, engine, problem, options=None):
        self.handle, info = _Handle(), _PlanInfo()
        # Prefix of the operator's function names.
        self.prefix = problem.prefix
        reference = None if options is None else ctypes.byref(options)
        create = getattr(_lib, self.prefix + "plan_create")
        _check(create(engine._handle, ctypes.byref(problem), reference, ctypes.byref(self.handle)))
        _check(_lib.elsa_plan_describe(self.handle, ctypes.byref(info)))
        self.bytes = info.workspace_bytes
        self.gpu = info.backend == _CUDA
        # True if the call is long enough to check for signals during it.
        rate = _RATES[_BACKENDS[info.backend]] * (1 if self.gpu else engine.threads)
        self.long = _operations(problem) > _LONG * rate
        # Only the handle: the engine itself owns its plans.
        self.engine = engine._handle

    def __del__(self):
        if self.handle.id:
            _lib.elsa_plan_destroy(self.handle)


def _operations(problem):
    """Estimates the operations of a problem, including those that stand for memory accesses."""
    most = elements = 1
    for name, kind in problem._fields_:
        if kind is _View:
            size = 1
            for n in getattr(problem, name).shape:
                size *= n
            most, elements = max(most, size), elements + size
    if isinstance(problem, _Problem):
        for_each = 4 * (problem.k.shape[2] + problem.past_k.shape[2])
    elif isinstance(problem, _LinearProblem):
        for_each = 6 * problem.v.shape[3]
    else:
        for_each = 20 * getattr(problem, "states", 0) + 2 * getattr(problem, "taps", 0)
    return most * for_each + _ELEMENT * elements


class _Workspace(object):
    """Memory of one thread for all plans of its place that fit into it."""

    def __init__(self, plan):
        self.bytes, self.gpu, self.handle = plan.bytes, plan.gpu, _Handle()
        _check(_lib.elsa_workspace_create(plan.handle, ctypes.byref(self.handle)))

    def serves(self, plan):
        return plan.bytes <= self.bytes and plan.gpu == self.gpu

    def __del__(self):
        if self.handle.id:
            _lib.elsa_workspace_destroy(self.handle)


def _whole(name, value, least, most, allowed="a whole number"):
    """Returns a whole number within bounds: from an int, a numpy integer, or an array or tensor without axes. Every number
    for the library is checked here, because ctypes drops the bits that do not fit."""
    try:
        if isinstance(value, bool) or getattr(value, "ndim", 0) or str(getattr(value, "dtype", "")).endswith("bool"):
            raise TypeError
        number = operator.index(value)
    except Exception:
        # Arrays and tensors raise their own errors.
        raise ArgumentError(f"{name}: {value!r:.60}; allowed: {allowed}")
    if not least <= number <= most:
        raise ArgumentError(f"{name}: {_shown(number)}; allowed: {least} to {most}")
    return number


def _shown(number):
    """Formats a whole number of any length for an error message."""
    return str(number) if abs(number) < 1 << 70 else f"a number of {number.bit_length()} bits"


def _count(name, value):
    """Returns a size as a number for ctypes."""
    return _whole(name, value, 0, sys.maxsize)


def _product(shape):
    count = 1
    for n in shape:
        count *= n
    return count


class _Numpy(object):
    """Access to numpy arrays. They are in host memory: their device is None."""

    library = "numpy"

    @staticmethod
    def of(name, array):
        """Returns the name of the type, shape, strides in elements, address and device."""
        dtype = array.dtype
        size = dtype.itemsize
        # A type of another byte order has the same name; a masked array hides elements.
        if not dtype.isnative or hasattr(array, "_mask"):
            raise ArgumentError(f"{name}: {type(array).__name__} of {dtype}; allowed: an array of this machine's types")
        if any(stride % size for stride in array.strides):
            raise ArgumentError(f"{name}: strides {array.strides} bytes; allowed: multiples of {size}")
        strides = tuple([stride // size for stride in array.strides])
        return dtype.name, array.shape, strides, array.__array_interface__["data"][0], None

    @staticmethod
    def empty(shape, dtype, like):
        return sys.modules["numpy"].empty(shape, like.dtype if dtype is None else dtype)

    @staticmethod
    def dense(array):
        return sys.modules["numpy"].ascontiguousarray(array)

    @staticmethod
    def converted(array, dtype):
        """Converts integers to bool, and float64 to float32, in which finite numbers stay finite."""
        numpy = sys.modules["numpy"]
        if dtype == "bool":
            return array != 0
        with numpy.errstate(over="ignore"):
            rounded = numpy.asarray(array, "float32")
        most = numpy.copysign(numpy.finfo("float32").max, rounded)
        return numpy.where(numpy.isinf(rounded) & numpy.isfinite(array), most, rounded)

    @staticmethod
    def writable(array):
        return array.flags.writeable


class _Torch(object):
    """Access to torch tensors."""

    library = "torch"
    # Names of the types seen so far.
    names = {}

    @staticmethod
    def of(name, tensor):
        """Returns the name of the type, shape, strides in elements, address and device."""
        if tensor.requires_grad:
            _Torch.inference(name)
        if tensor.layout != sys.modules["torch"].strided or tensor.is_quantized:
            raise ArgumentError(f"{name}: layout {tensor.layout}; allowed: a dense tensor that is not quantised")
        device = None
        if not tensor.is_cpu:
            if not tensor.is_cuda:
                raise UnsupportedError(f"{name}: device {tensor.device}; allowed: cpu, cuda")
            device = tensor.device.index
        dtype = tensor.dtype
        found = _Torch.names.get(dtype)
        if found is None:
            found = _Torch.names[dtype] = str(dtype).replace("torch.", "")
        return found, tuple(tensor.shape), tensor.stride(), tensor.data_ptr(), device

    @staticmethod
    def inference(name):
        """Refuses a tensor that requires gradients if torch would record them."""
        if sys.modules["torch"].is_grad_enabled():
            raise UnsupportedError(
                f"{name}: requires gradients; allowed: inference, under torch.no_grad() or torch.inference_mode()"
            )

    @staticmethod
    def empty(shape, dtype, like):
        torch = sys.modules["torch"]
        dtype = like.dtype if dtype is None else getattr(torch, dtype)
        return torch.empty(shape, dtype=dtype, device=like.device)

    @staticmethod
    def dense(tensor):
        return tensor.contiguous()

    @staticmethod
    def converted(tensor, dtype):
        """Converts integers to bool, and float64 to float32, in which finite numbers stay finite."""
        torch = sys.modules["torch"]
        if dtype == "bool":
            return tensor != 0
        rounded = tensor.to(torch.float32)
        most = torch.sign(rounded) * torch.finfo(torch.float32).max
        return torch.where(torch.isinf(rounded) & torch.isfinite(tensor), most, rounded)

    @staticmethod
    def writable(tensor):
        return True


def _kind(name, tensor):
    """Returns the class that reads a tensor."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _Torch
    if numpy is not None and isinstance(tensor, numpy.ndarray):
        return _Numpy
    raise ArgumentError(f"{name}: {type(tensor).__name__}; allowed: an array of numpy or a tensor of torch")


class _Operand(object):
    """A tensor of a call: the properties that its plan depends on, and the address of its elements."""

    __slots__ = ("dtype", "shape", "strides", "data", "bytes", "device", "rank")

    def __init__(self, name, tensor, kind):
        dtype, shape, strides, self.data, self.device = kind.of(name, tensor)
        if dtype not in _DTYPES:
            raise ArgumentError(f"{name}: {dtype}; allowed: {', '.join(_DTYPES)}")
        self.dtype, size = _DTYPES[dtype]
        rank = len(shape)
        if not 2 <= rank <= 4:
            raise ArgumentError(
                f"{name}: {rank} axes; allowed: [batch, heads, tokens, dim], [heads, tokens, dim] or [tokens, dim]"
            )
        # Strides of an array without elements are arbitrary.
        empty = 0 in shape
        last, strides = 0, (0,) * rank if empty else strides
        for n, stride in zip(shape, strides):
            if n > 1:
                if stride < 0:
                    raise ArgumentError(f"{name}: strides {strides}; allowed: not negative")
                last += (n - 1) * stride
        if shape[-1] > 1 and strides[-1] != 1 and not empty:
            raise ArgumentError(f"{name}: strides {strides}; allowed: 1 along the last axis")
        self.rank, self.shape, self.strides = rank, (1,) * (4 - rank) + shape, (0,) * (4 - rank) + strides
        self.bytes = 0 if empty else (last + 1) * size

    def view(self):
        view = _View()
        view.shape[:] = self.shape
        # The stride of an axis of one element is arbitrary too; the last one must be 1.
        view.strides[:3] = [stride if n > 1 else 0 for n, stride in zip(self.shape[:3], self.strides)]
        view.strides[3] = 1
        return view

    def memory(self):
        return _Memory(self.data if self.bytes else None, self.bytes)


class _Dense(object):
    """A mask, a bias, a table or an index. Broadcast axes keep one element; if the rest is not dense, it is copied."""

    __slots__ = ("tensor", "kind", "dims", "data", "elements", "bytes")

    def __init__(self, name, tensor, kind, device):
        types, ranks = _ADDITIONS[name]
        dtype, shape, strides, data, place = kind.of(name, tensor)
        if dtype not in types:
            raise ArgumentError(f"{name}: {dtype}; allowed: {', '.join(types)}")
        if len(shape) not in ranks:
            raise ArgumentError(f"{name}: {len(shape)} axes; allowed: {', '.join(map(str, ranks))}")
        if place != device:
            raise ArgumentError(f"{name}: another device than q; allowed: the same")
        shared = [stride == 0 and n > 1 for n, stride in zip(shape, strides)]
        if any(shared):
            tensor = tensor[tuple(slice(0, 1) if axis else slice(None) for axis in shared)]
        if dtype in _CONVERTED and name != "bias_index":
            tensor = kind.converted(tensor, _CONVERTED[dtype])
        dense, elements = True, 1
        for n, stride in zip(reversed(tuple(tensor.shape)), reversed(kind.of(name, tensor)[2])):
            dense &= n == 1 or stride == elements
            elements *= n
        if not dense and elements:
            tensor = kind.dense(tensor)
        self.kind, size = types[dtype]
        # The copy lives as long as the call.
        self.tensor, self.dims, self.elements, self.bytes = tensor, tuple(tensor.shape), elements, elements * size
        self.data = kind.of(name, tensor)[3] if elements else None

    def mask(self):
        mask = _Mask(self.kind, len(self.dims))
        mask.dims[: len(self.dims)] = self.dims
        return mask

    def memory(self):
        return _Memory(self.data, self.bytes)


def _side(name, value):
    """Returns a side of a window; None and -1 are open."""
    keys = -1 if value is None else _whole(name, value, -1, sys.maxsize)
    return None if keys == -1 else keys


def _lengths(values, name="key_lengths"):
    """Returns the integers of a sequence, an array or a tensor as a C array."""
    allowed = "a whole number for each sequence" if name == "key_lengths" else "whole numbers"
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, (str, bytes, dict)) or not hasattr(values, "__len__"):
        raise ArgumentError(f"{name}: {values!r:.60}; allowed: {allowed}")
    numbers = [_whole(f"{name}[{n}]", value, 0, sys.maxsize, allowed) for n, value in enumerate(values)]
    return (ctypes.c_int64 * len(numbers))(*numbers)


def _pairs(windows):
    """Returns picture, window and shift, each as rows and columns."""
    try:
        pairs = [tuple(_count("windows", side) for side in pair) for pair in windows]
    except TypeError:
        pairs = []
    if len(pairs) == 2:
        pairs.append((0, 0))
    if len(pairs) != 3 or any(len(pair) != 2 for pair in pairs):
        raise ArgumentError(f"windows: {windows!r:.60}; allowed: ((H, W), (h, w)) or ((H, W), (h, w), (down, right))")
    return tuple(pairs)


_host_engine = None
_device_engines = {}
_engines_lock = threading.Lock()


def _engine_for(device):
    """Returns the engine of the host or of a CUDA device."""
    global _host_engine
    found = _host_engine if device is None else _device_engines.get(device)
    if found is None:
        with _engines_lock:
            if device is None:
                if _host_engine is None:
                    _host_engine = Engine()
                return _host_engine
            if device not in _device_engines:
                _device_engines[device] = Engine("cuda", device=device)
            found = _device_engines[device]
    return found


def _renew_locks():
    """Renews the locks in a child of fork, because another thread of the parent may have held one."""
    global _engines_lock
    _engines_lock = threading.Lock()
    for engine in [_host_engine] + list(_device_engines.values()):
        if engine is not None:
            engine._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


def attention(
    q,
    k,
    v,
    mask=None,
    bias=None,
    bias_table=None,
    bias_index=None,
    windows=None,
    scale=None,
    softcap=0.0,
    causal=False,
    window=None,
    key_lengths=None,
    out=None,
    lse=False,
    engine=None,
):
    """Computes softmax(scale q k^T, masked) v for every head. Returns the output; with `lse` also the log-sum-exp.

    q, k, v   [batch, heads, tokens, dim], [heads, tokens, dim] or [tokens, dim] of float32, float16 or bfloat16, all of
              one library, type and device. Strides must not be negative and must end in 1: slices of packed tensors
              and transposed views are read in place. k and v may have fewer heads, which then serve groups of query
              heads; v may have another dim.
    mask      bool, uint8, int32 or int64 (zero masks the key, other numbers do not) or float16, bfloat16, float32, float64,
              added to the scores; broadcast over [batch, heads, queries, keys] from the right. -inf masks the key.
              float64 is rounded to float32, and finite numbers stay finite. The last axis has length 1 or the number
              of keys; use `key_lengths` for fewer keys.
    bias      the same as a second tensor of floating-point numbers.
    bias_table   [entries, heads], relative positions as in Swin, with bias_index [queries, keys] of int64, or
              with windows.
    windows   ((H, W), (h, w)) or ((H, W), (h, w), (down, right)): the batch is the windows of pictures of H x W tokens,
              each of h x w, after the picture was rolled by (-down, -right).
    scale     factor of the scores; None is 1 / sqrt(dim).
    softcap   X in X tanh(s / X), applied before mask and bias; 0 is off.
    causal    True or "top_left", as in torch: query i attends keys 0 to i; "bottom_right": the last query attends the last
              key, for queries that continue a cache.
    window    (left, right): keys around the diagonal that a query attends; None or -1 is open.
    key_lengths   number of valid keys of each sequence, integers in host memory. A device tensor is copied to the host,
              which waits for the device.
    out       tensor for the output, any strides that end in 1; it must not overlap an input. None makes a dense tensor.
    lse       True returns (output, log-sum-exp), the latter float32 [batch, heads, queries] in natural logarithms.
    engine    an Engine; None selects a shared one of the CPU for host tensors, else of the tensors' device.

    Every axis except dim may be empty. A row that attends no key is zero, and its log-sum-exp is -inf. A call over tensors
    of a GPU enqueues its work in torch's current stream and does not wait.
    """
    kind = _kind("q", q)
    if kind is _Torch and sys.modules["torch"].jit.is_tracing():
        # A recorded graph would not contain the call of this function.
        raise UnsupportedError("q: recorded by torch.jit.trace; allowed: a call that computes")
    added = (("mask", mask), ("bias", bias), ("bias_table", bias_table), ("bias_index", bias_index))
    added = [(name, tensor) for name, tensor in added if tensor is not None]
    for name, tensor in [("k", k), ("v", v)] + added + ([] if out is None else [("out", out)]):
        if _kind(name, tensor) is not kind:
            raise ArgumentError(f"{name}: of another library than q; allowed: {kind.library}")
    queries, keys, values = _Operand("q", q, kind), _Operand("k", k, kind), _Operand("v", v, kind)
    device = queries.device
    shape = tuple(q.shape)
    if out is None:
        out = kind.empty(shape[:-1] + (values.shape[3],), None, q)
    elif not kind.writable(out):
        raise ArgumentError("out: read-only; allowed: an array that can be written")
    output = _Operand("out", out, kind)
    for name, operand in (("k", keys), ("v", values), ("out", output)):
        if operand.dtype != queries.dtype:
            found = "another type than q"
        elif operand.rank != queries.rank:
            found = f"{operand.rank} axes, q has {queries.rank}"
        elif operand.device != device:
            found = "another device than q"
        else:
            continue
        raise ArgumentError(f"{name}: {found}; allowed: the same")

    dense = {}
    for name, tensor in added:
        dense[name] = _Dense(name, tensor, kind, device)
    if bias is not None and bias_table is not None:
        raise ArgumentError("bias_table: given beside bias; allowed: one of them")
    if bias_index is not None and bias_table is None:
        raise ArgumentError("bias_index: given without bias_table; allowed: both")
    try:
        diagonal = _CAUSAL[causal]
    except (KeyError, TypeError):
        raise ArgumentError(f"causal: {causal!r:.60}; allowed: False, True, 'top_left', 'bottom_right'")
    sides = (None, None)
    if window is not None:
        if not isinstance(window, (tuple, list)) or len(window) != 2:
            raise ArgumentError(f"window: {window!r:.60}; allowed: (left, right)")
        sides = (_side("window", window[0]), _side("window", window[1]))
    lengths = None if key_lengths is None else _lengths(key_lengths)
    pairs = None if windows is None else _pairs(windows)
    scale, softcap = _number("scale", scale), _number("softcap", 0.0 if softcap is None else softcap)

    def problem():
        problem = _Problem()
        problem.dtype, problem.causal, problem.softcap = queries.dtype, diagonal, softcap
        problem.q, problem.k, problem.v, problem.out = [x.view() for x in (queries, keys, values, output)]
        if scale is not None:
            problem.has_scale, problem.scale = 1, scale
        if sides[0] is not None:
            problem.has_window_left, problem.window_left = 1, sides[0]
        if sides[1] is not None:
            problem.has_window_right, problem.window_right = 1, sides[1]
        problem.has_key_lengths = int(lengths is not None)
        if "mask" in dense:
            problem.mask = dense["mask"].mask()
        if "bias" in dense:
            problem.bias = dense["bias"].mask()
        if "bias_table" in dense:
            table = dense["bias_table"]
            problem.bias_table = _Table(table.kind, int("bias_index" in dense), *table.dims)
        if pairs is not None:
            problem.windows.picture[:], problem.windows.size[:], problem.windows.shift[:] = pairs
        return (problem,)

    key = (
        tuple([(x.dtype, x.shape, x.strides) for x in (queries, keys, values, output)]),
        tuple([(name, x.kind, x.dims) for name, x in dense.items()]),
        (scale, softcap, diagonal, sides, lengths is not None, pairs),
    )
    if engine is None:
        engine = _engine_for(device)
    capturing = _capturing("q", device)
    plan = engine._plan(key, problem, capturing)
    inputs, outputs = _Inputs(), _Outputs()
    inputs.q, inputs.k, inputs.v = queries.memory(), keys.memory(), values.memory()
    outputs.out = output.memory()
    if "mask" in dense:
        inputs.mask = dense["mask"].memory()
    if "bias" in dense:
        inputs.bias = dense["bias"].memory()
    if "bias_table" in dense:
        inputs.bias = dense["bias_table"].memory()
    if "bias_index" in dense:
        index = dense["bias_index"]
        inputs.bias_index = _Integers(index.data, index.elements)
    if lengths is not None:
        inputs.key_lengths = _Integers(ctypes.addressof(lengths), len(lengths))
    logarithms = None
    if lse:
        logarithms = kind.empty(shape[:-1], "float32", q)
        count = _product(shape[:-1])
        outputs.lse = _Memory(kind.of("lse", logarithms)[3] if count else None, 4 * count)
    if not output.bytes:
        return (out, logarithms) if lse else out
    workspace = engine._workspace(plan, capturing)
    _run(plan, workspace, inputs, outputs, device, (q, k, v, added, lengths, out, logarithms))
    return (out, logarithms) if lse else out


def _run_long(engine, run, kept):
    """Calls `run` in a separate thread, because the main thread handles no signal inside the library. An exception of a
    signal handler cancels the engine's calls and is raised after `run` has returned, when the caller's memory is no
    longer in use. `kept` lives as long as the thread."""
    claim, outcome, ended = [kept], [], threading.Lock()
    ended.acquire()

    def work():
        # The thread that takes the claim decides: this one calls, or the caller returns.
        try:
            claimed = claim.pop()
        except IndexError:
            return
        try:
            outcome.append(run())
        except BaseException as error:
            outcome.append(error)
        del claimed
        ended.release()

    raised, started = None, False
    while not outcome:
        try:
            if not started:
                started = True
                try:
                    _thread.start_new_thread(work, ())
                except _thread.error:
                    return run()
            if raised is None:
                ended.acquire()
                continue
            gone = True
            try:
                claim.pop()
            except IndexError:
                gone = False
            if gone:
                break
            # Repeatedly: a cancel before the start of the call has no effect.
            _lib.elsa_engine_cancel(engine)
            ended.acquire(True, 0.01)
        except BaseException as error:
            raised = raised or error
    if raised is not None:
        raise raised
    if outcome[0] is not None:
        raise outcome[0]


def _run(plan, workspace, inputs, outputs, device, kept=None):
    """Runs a plan over host tensors, or over device tensors in torch's current stream. `kept` holds the tensors."""
    arguments = plan.handle, workspace.handle, ctypes.byref(inputs), ctypes.byref(outputs)
    if device is None:
        run = getattr(_lib, plan.prefix + "run")
        if plan.long and threading.current_thread() is threading.main_thread():
            _run_long(plan.engine, lambda: _check(run(*arguments, None)), (plan, workspace, kept))
        else:
            _check(run(*arguments, None))
    else:
        # Torch calls the device's default stream 0, which in elsa.h selects the library's own stream.
        stream = sys.modules["torch"].cuda.current_stream(device).cuda_stream or 1
        _check(getattr(_lib, plan.prefix + "run_device")(*arguments, stream, None))


def _one_of(name, value, allowed):
    """Returns the number of a name."""
    if (value is None or isinstance(value, str)) and value in allowed:
        return allowed.index(value)
    raise ArgumentError(f"{name}: {value!r:.60}; allowed: {', '.join(map(repr, allowed))}")


def _number(name, value):
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name}: {value!r:.60}; allowed: a number")
    except OverflowError:
        raise ArgumentError(f"{name}: {_shown(value)}; allowed: a number of at most 3.4e38")


def linear_attention(
    q,
    k,
    v,
    rule="linear",
    decay=None,
    beta=None,
    past_state=None,
    present_state=None,
    scale=None,
    normalize=None,
    direction="forward",
    cu_seqlens=None,
    form=None,
    chunk=0,
    parts=0,
    out=None,
    engine=None,
):
    """Computes attention whose memory is a state S [d_k, d_v] of each head of v. Returns the output; with `present_state`
    also the states after the last token. A token updates its state with its key k, value v, gate a = exp(decay) and rate beta, and
    reads it with its query q: the output is scale S'q.

        linear        S <- S + k v'
        gated         S <- a S + k v'                       a scales rows of S
        delta         S <- S + beta k (v - S'k)'
        gated_delta   S <- a S, then as delta

    q, k, v   as of `attention`; k and v have the same number of tokens as q. The heads of k divide those of v. The heads of q are a
              multiple of those of v, or divide them; the output has the larger number of both.
    rule      one of the four.
    decay     natural logarithms of the gates, [batch, heads of v, tokens], or [batch, heads of v, tokens, d_k] with a gate
              for each row; float32 or the type of q. -inf clears the state.
    beta      [batch, heads of v or 1, tokens], of the type of decay.
    past_state   float32 [batch, heads of v, d_k, d_v], the states before the first token; None means zeros.
    present_state   True returns (output, states); an array or tensor is written and returned, and may be past_state.
    scale     factor of the output; None is 1 / sqrt(d_k).
    normalize    makes queries and keys unit vectors first, x / sqrt(sum of x^2 + normalize); None leaves them.
    direction    "forward", "reverse", "bidirectional" (the sum of both, without states), or "non_causal": every token
              reads the last state.
    cu_seqlens   bounds of sequences packed along the tokens, n + 1 integers in host memory, batch 1;
              states are then [n, heads of v, d_k, d_v].
    form      None, "recurrent", "chunk", "fused_chunk", "parallel" or "scan": the order of operations. Forms
              differ in rounding and speed only. `chunk` is the tokens of a chunk, `parts` the parts of a scan.
    out, engine   as in `attention`. A call over tensors of a GPU does not wait.
    """
    kind = _kind("q", q)
    if kind is _Torch and sys.modules["torch"].jit.is_tracing():
        # A recorded graph would not contain the call of this function.
        raise UnsupportedError("q: recorded by torch.jit.trace; allowed: a call that computes")
    rank, operands = len(q.shape), {}

    def operand(name, tensor, *axes):
        if _kind(name, tensor) is not kind:
            raise ArgumentError(f"{name}: of another library than q; allowed: {kind.library}")
        found = len(tensor.shape)
        if found not in axes:
            raise ArgumentError(f"{name}: {found} axes; allowed: {' or '.join(map(str, axes))}")
        # One number per token is a row of one element.
        known = operands[name] = _Operand(name, tensor[..., None] if found < rank else tensor, kind)
        if known.device != operands["q"].device:
            raise ArgumentError(f"{name}: another device than q; allowed: the same")
        return known

    queries = operand("q", q, 2, 3, 4)
    operand("k", k, rank)
    values = operand("v", v, rank)
    if out is None:
        heads = max(queries.shape[1], values.shape[1])
        shape = tuple(q.shape[:-3]) + (heads,) * (rank > 2) + (queries.shape[2], values.shape[3])
        out = kind.empty(shape, None, q)
    elif not kind.writable(out):
        raise ArgumentError("out: read-only; allowed: an array that can be written")
    output = operand("out", out, rank)
    for name in ("k", "v", "out"):
        if operands[name].dtype != queries.dtype:
            raise ArgumentError(f"{name}: another type than q; allowed: the same")
    gates = [operand("decay", decay, rank - 1, rank)] if decay is not None else []
    gates += [operand("beta", beta, rank - 1)] if beta is not None else []
    if len({gate.dtype for gate in gates}) > 1:
        raise ArgumentError("beta: another type than decay; allowed: the same")
    lengths = None if cu_seqlens is None else _lengths(cu_seqlens, "cu_seqlens")
    packed = 0 if lengths is None else max(len(lengths) - 1, 1)
    if past_state is not None:
        operand("past_state", past_state, rank)
    if present_state is True:
        shape = (packed or queries.shape[0], values.shape[1], queries.shape[3], values.shape[3])
        present_state = kind.empty(shape[4 - rank :], "float32", q)
    elif present_state is False:
        present_state = None
    if present_state is not None:
        if not kind.writable(present_state):
            raise ArgumentError("present_state: read-only; allowed: an array that can be written")
        operand("present_state", present_state, rank)
    past, present = operands.get("past_state"), operands.get("present_state")
    for name, state in (("past_state", past), ("present_state", present)):
        if state is not None and state.dtype != 0:
            raise ArgumentError(f"{name}: not float32; allowed: float32")
    in_place = past is not None and present is not None and past.bytes and past.data == present.data
    numbers = _one_of("rule", rule, _RULES), _one_of("direction", direction, _DIRECTIONS), _one_of("form", form, _FORMS)
    sizes = _count("chunk", chunk), _count("parts", parts)
    scale, normalize = _number("scale", scale), _number("normalize", normalize)

    def problem():
        problem, options = _LinearProblem(), _LinearOptions()
        problem.dtype, problem.gate_dtype = queries.dtype, gates[0].dtype if gates else 0
        problem.rule, problem.direction, options.form = numbers
        options.chunk, options.parts = sizes
        for name, known in operands.items():
            setattr(problem, name, known.view())
        for name in ("decay", "beta", "past_state", "present_state"):
            setattr(problem, "has_" + name, int(name in operands))
        problem.in_place, problem.packed = int(in_place), packed
        for name, value in (("scale", scale), ("normalize", normalize)):
            if value is not None:
                setattr(problem, "has_" + name, 1)
                setattr(problem, name, value)
        return problem, options

    shapes = tuple([(name, x.dtype, x.shape, x.strides) for name, x in operands.items()])
    device = queries.device
    if engine is None:
        engine = _engine_for(device)
    capturing = _capturing("q", device)
    plan = engine._plan(
        ("linear", shapes, numbers, sizes, scale, normalize, bool(in_place), packed), problem, capturing
    )
    if not output.bytes and (present is None or not present.bytes):
        return out if present is None else (out, present_state)
    inputs, outputs = _LinearInputs(), _LinearOutputs()
    for name, known in operands.items():
        setattr(outputs if name in ("out", "present_state") else inputs, name, known.memory())
    if lengths is not None:
        inputs.cu_seqlens = _Integers(ctypes.addressof(lengths), len(lengths))
    kept = q, k, v, decay, beta, past_state, present_state, out, lengths
    _run(plan, engine._workspace(plan, capturing), inputs, outputs, device, kept)
    return out if present is None else (out, present_state)


class _Series(object):
    """A tensor of tokens and channels: the properties that its plan depends on, and the address of its elements."""

    __slots__ = ("dtype", "batch", "tokens", "channels", "strides", "data", "bytes", "device")

    def __init__(self, name, tensor, kind, layout):
        dtype, shape, strides, self.data, self.device = kind.of(name, tensor)
        if dtype not in _DTYPES:
            raise ArgumentError(f"{name}: {dtype}; allowed: {', '.join(_DTYPES)}")
        if len(shape) not in (2, 3):
            raise ArgumentError(f"{name}: {len(shape)} axes; allowed: {' or '.join((layout, layout[1:]))}")
        self.dtype, size = _DTYPES[dtype]
        shape, strides = (1,) * (3 - len(shape)) + tuple(shape), (0,) * (3 - len(shape)) + tuple(strides)
        empty = 0 in shape
        last, strides = 0, (0,) * 3 if empty else strides
        for n, stride in zip(shape, strides):
            if n > 1:
                if stride < 0:
                    raise ArgumentError(f"{name}: strides {strides}; allowed: not negative")
                last += (n - 1) * stride
        self.bytes = 0 if empty else (last + 1) * size
        # The stride of an axis of one element is arbitrary.
        strides = [stride if n > 1 else 0 for n, stride in zip(shape, strides)]
        if layout == "bct":
            shape, strides = (shape[0], shape[2], shape[1]), (strides[0], strides[2], strides[1])
        (self.batch, self.tokens, self.channels), self.strides = shape, tuple(strides)

    def key(self):
        return self.dtype, self.batch, self.tokens, self.channels, self.strides

    def view(self):
        view = _View()
        view.shape[:] = self.batch, self.channels, self.tokens, 1
        view.strides[:] = self.strides[0], self.strides[2], self.strides[1], 1
        return view

    def memory(self):
        return _Memory(self.data if self.bytes else None, self.bytes)


class _Call(object):
    """A call of an operator on separate channels: its tensors and their properties."""

    def __init__(self, first, tensor, layout, inputs):
        self.layout = _LAYOUTS[_one_of("layout", layout, _LAYOUTS)]
        self.kind, self.like, self.inputs, self.outputs = _kind(first, tensor), tensor, inputs, _SeriesOutputs()
        if self.kind is _Torch and sys.modules["torch"].jit.is_tracing():
            # A recorded graph would not contain the call of this function.
            raise UnsupportedError(f"{first}: recorded by torch.jit.trace; allowed: a call that computes")
        # Copies live as long as the call: on a device they are freed after it in the stream.
        self.views, self.kept, self.first, self.device = {}, [], first, self.kind.of(first, tensor)[4]

    def check(self, name, tensor):
        if _kind(name, tensor) is not self.kind:
            raise ArgumentError(f"{name}: of another library than {self.first}; allowed: {self.kind.library}")

    def place(self, name, device):
        if device != self.device:
            raise ArgumentError(f"{name}: another device than {self.first}; allowed: the same")

    def series(self, name, tensor, like=None, into=None):
        """Adds a tensor of tokens; its type must be that of `like`."""
        self.check(name, tensor)
        made = self.views[name] = _Series(name, tensor, self.kind, self.layout)
        self.place(name, made.device)
        if like is not None and made.dtype != self.views[like].dtype:
            raise ArgumentError(f"{name}: another type than {like}; allowed: the same")
        setattr(self.inputs if into is None else into, name, made.memory())
        return made

    def numbers(self, name, tensor, *shapes):
        """Adds dense float32 of one of the given shapes, copied if necessary."""
        if tensor is None:
            return
        self.check(name, tensor)
        found, shape, _, _, device = self.kind.of(name, tensor)
        if found != "float32":
            raise ArgumentError(f"{name}: {found}; allowed: float32")
        self.place(name, device)
        if tuple(shape) not in shapes:
            raise ArgumentError(f"{name}: {list(shape)}; allowed: {' or '.join(str(list(x)) for x in shapes)}")
        tensor = self.kind.dense(tensor)
        self.kept.append(tensor)
        setattr(self.inputs, name, self.memory(name, tensor))

    def memory(self, name, tensor):
        count = _product(tensor.shape)
        return _Memory(self.kind.of(name, tensor)[3] if count else None, 4 * count)

    def states(self, past, present, shape):
        """Sets the states; the present may be the past. Returns the present and whether it is the past."""
        if present is True:
            present = self.kind.empty(shape, "float32", self.like)
        if present is None or present is False:
            self.numbers("past_state", past, shape)
            return None, False
        self.check("present_state", present)
        found, given, strides, data, device = self.kind.of("present_state", present)
        dense, step = True, 1
        for n, stride in zip(reversed(tuple(given)), reversed(tuple(strides))):
            dense &= n == 1 or stride == step
            step *= n
        if found != "float32" or tuple(given) != shape or not (dense or not step):
            raise ArgumentError(f"present_state: {found} {list(given)}; allowed: dense float32 {list(shape)}")
        self.place("present_state", device)
        if not self.kind.writable(present):
            raise ArgumentError("present_state: read-only; allowed: an array that can be written")
        self.outputs.present_state = self.memory("present_state", present)
        in_place = past is not None and step > 0 and self.kind.of("past_state", past)[3] == data
        self.numbers("past_state", past, shape)
        if in_place:
            self.inputs.past_state = _Memory()
        return present, bool(in_place)

    def out(self, out, like):
        """Returns the output, of the shape and type of `like`."""
        if out is None:
            out = self.kind.empty(tuple(self.like.shape), None, self.like)
        elif not self.kind.writable(out):
            raise ArgumentError("out: read-only; allowed: an array that can be written")
        self.series("out", out, like, self.outputs)
        return out

    def run(self, engine, key, problem, options, out, present):
        """Runs the problem, whose views it sets, and returns the results of the caller's function."""
        shapes = tuple([(name, view.key()) for name, view in self.views.items()])

        def made():
            for name, view in self.views.items():
                setattr(problem, name, view.view())
            return problem, options

        if engine is None:
            engine = _engine_for(self.device)
        capturing = _capturing(self.first, self.device)
        plan = engine._plan((problem.prefix, shapes, key), made, capturing)
        if self.views["out"].bytes or present is not None:
            _run(plan, engine._workspace(plan, capturing), self.inputs, self.outputs, self.device, (self, out, present))
        return out if present is None else (out, present)


def recurrence(
    a, b, log=False, past_state=None, present_state=None, reverse=False, parts=0, layout="btc", out=None, engine=None
):
    """Computes the recurrence h = a h + b of each channel. Returns h of every token; with `present_state` also the last h.

    a, b      [batch, tokens, channels], or with layout "bct" [batch, channels, tokens]; the batch may be missing. a is
              float32 or of the type of b. A factor of zero clears the state.
    log       a holds natural logarithms of factors; -inf clears the state.
    past_state   float32 [batch, channels], the states before the first token; None means zeros.
    present_state   True returns (output, states); an array is written and returned, and may be past_state.
    reverse   from the last token to the first.
    parts     number of parts of the tokens to compute in parallel, for few channels and many tokens; 0 is one pass.
    out, engine   as in `attention`. All tensors are on one device. A call over tensors of a GPU does not wait.
    """
    call = _Call("b", b, layout, _RecurrenceInputs())
    series = call.series("b", b)
    gates = call.series("a", a)
    out = call.out(out, "b")
    present, in_place = call.states(past_state, present_state, (series.batch, series.channels))
    key = bool(log), bool(reverse), in_place, _count("parts", parts)
    problem, options = _RecurrenceProblem(), _SeriesOptions()
    problem.dtype, problem.gate_dtype = series.dtype, gates.dtype
    problem.gate, problem.reverse, problem.in_place, options.parts = key
    return call.run(engine, key, problem, options, out, present)


def selective(
    u,
    delta,
    a,
    b,
    c,
    d=None,
    z=None,
    delta_bias=None,
    softplus=False,
    past_state=None,
    present_state=None,
    reverse=False,
    layout="btc",
    out=None,
    engine=None,
):
    """Computes the selective scan of Mamba. Returns the output; with `present_state` also the states after the last token.
    Each token and channel has the time step t = delta + delta_bias, or its softplus, and each channel N states x:

        x = exp(t a) x + t b u
        y = c x + d u, times z / (1 + exp(-z))

    u, delta, z   [batch, tokens, channels], or with layout "bct" [batch, channels, tokens]; the batch may be missing. delta is
              float32 or of the type of u.
    a         float32 [channels, N].
    b, c      of each token, [batch, tokens, N] or [batch, tokens, groups, N], with layout "bct" [batch, N, tokens] or
              [batch, groups, N, tokens], of the type of u; or of each channel, float32 [channels, N].
    d, delta_bias   float32 [channels].
    past_state   float32 [batch, channels, N], the states before the first token; None means zeros.
    present_state, reverse, out, engine   as in `recurrence`.
    """
    call = _Call("u", u, layout, _SelectiveInputs())
    series = call.series("u", u)
    steps = call.series("delta", delta)
    if z is not None:
        call.series("z", z, "u")
    if _kind("a", a) is not call.kind or len(a.shape) != 2:
        raise ArgumentError(f"a: {type(a).__name__}; allowed: an array [channels, N] of the library of u")
    parameters = series.channels, a.shape[1]
    call.numbers("a", a, parameters)
    fixed = []
    for name, x in (("b", b), ("c", c)):
        call.check(name, x)
        fixed.append(len(x.shape) == 2)
        if fixed[-1]:
            call.numbers(name, x, parameters)
            continue
        if len(x.shape) == 4:
            # Groups and their numbers are one axis of channels.
            n = tuple(x.shape)
            x = x.reshape((n[0], n[1] * n[2], n[3]) if layout == "bct" else (n[0], n[1], n[2] * n[3]))
            call.kept.append(x)
        call.series(name, x, "u")
    call.numbers("d", d, (series.channels,))
    call.numbers("delta_bias", delta_bias, (series.channels,))
    out = call.out(out, "u")
    present, in_place = call.states(past_state, present_state, (series.batch,) + parameters)
    key = bool(softplus), bool(reverse), in_place, fixed[0], fixed[1], z is not None, parameters[1]
    problem, options = _SelectiveProblem(), _SeriesOptions()
    problem.dtype, problem.gate_dtype = series.dtype, steps.dtype
    problem.softplus, problem.reverse, problem.in_place, problem.fixed_b, problem.fixed_c = key[:5]
    problem.has_z, problem.states = key[5:]
    return call.run(engine, key, problem, options, out, present)


def conv(
    u,
    filter,
    bias=None,
    order="newest_first",
    silu=False,
    past_state=None,
    present_state=None,
    reverse=False,
    method=None,
    layout="btc",
    out=None,
    engine=None,
):
    """Computes the causal convolution of each channel with a filter of K weights (linear attention with a relative decay).
    Returns the output; with `present_state` also the last K - 1 inputs, the past of the next call.

    u         [batch, tokens, channels], or with layout "bct" [batch, channels, tokens]; the batch may be missing.
    filter    float32 [K] for all channels, [channels, K] or [channels, 1, K].
    bias      float32 [channels], added to the sums.
    order     "newest_first": the first weight applies to the token itself; "newest_last": the last weight does, as in
              the convolutions of ONNX and torch.
    silu      returns x / (1 + exp(-x)) of each sum x.
    past_state   float32 [batch, channels, K - 1], the inputs before the first token, oldest first; None means zeros.
    method    None, "direct" or "fft".
    present_state, reverse, out, engine   as in `recurrence`.
    """
    call = _Call("u", u, layout, _ConvolutionInputs())
    series = call.series("u", u)
    call.check("filter", filter)
    shape = tuple(filter.shape)
    if len(shape) not in (1, 2, 3) or not shape[-1]:
        raise ArgumentError(f"filter: {list(shape)}; allowed: [K], [channels, K] or [channels, 1, K]")
    taps = shape[-1]
    call.numbers("filter", filter, *[(taps,), (series.channels, taps), (series.channels, 1, taps)])
    call.numbers("bias", bias, (series.channels,))
    out = call.out(out, "u")
    present, in_place = call.states(past_state, present_state, (series.batch, series.channels, taps - 1))
    numbers = _one_of("order", order, _TAPS), _one_of("method", method, _METHODS)
    key = numbers + (len(shape) == 1, bool(silu), bool(reverse), in_place, taps)
    problem, options = _ConvolutionProblem(), _SeriesOptions()
    problem.dtype = series.dtype
    problem.order, options.method, problem.shared, problem.silu, problem.reverse, problem.in_place, problem.taps = key
    return call.run(engine, key, problem, options, out, present)


def _leading(tensor, axes):
    """Merges the leading axes `axes` of a tensor [..., heads, tokens, dim] into one: [batch, heads, tokens, dim]."""
    shape = tuple(tensor.shape)
    tensor = tensor.expand(axes + shape[-3:])
    return tensor if len(axes) == 1 else tensor.reshape((_product(axes),) + shape[-3:])


def sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    """Computes torch.nn.functional.scaled_dot_product_attention for inference: same arguments, defaults and meaning.

    Tensors are [..., tokens, dim] of float32, float16 or bfloat16, on the CPU or a CUDA device; leading axes are
    broadcast. A mask is bool or of any of these types. The output is stored as [batch, tokens, heads, dim], so a model merges
    the heads without a copy. A tensor whose last axis is not dense is copied.

    dropout_p above 0 and tensors that require gradients raise UnsupportedError, float64 raises ArgumentError.
    """
    return _sdpa(None, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _sdpa(engine, query, key, value, mask, dropout_p, is_causal, scale, enable_gqa):
    import torch

    if dropout_p:
        raise UnsupportedError(f"dropout_p: {dropout_p}; allowed: 0, inference")
    tensors = []
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if _kind(name, tensor) is not _Torch:
            raise ArgumentError(f"{name}: {type(tensor).__name__}; allowed: a tensor of torch")
        axes = tensor.dim()
        if axes < 2:
            raise ArgumentError(f"{name}: {axes} axes; allowed: 2 or more, [..., tokens, dim]")
        if tensor.requires_grad:
            _Torch.inference(name)
        if axes < 4:
            tensor = tensor.expand((1,) * (4 - axes) + tuple(tensor.shape))
        # The library reads rows of contiguous elements.
        tensors.append(tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous())
    q, k, v = tensors
    rank = max(query.dim(), key.dim(), value.dim())
    heads, kv_heads = q.shape[-3], k.shape[-3]
    if v.shape[-3] != kv_heads and not enable_gqa and 1 in (v.shape[-3], kv_heads):
        kv_heads = max(kv_heads, v.shape[-3])
        k, v = [x.expand(x.shape[:-3] + (kv_heads,) + x.shape[-2:]) for x in (k, v)]
    if heads == 1 and kv_heads > 1 and not enable_gqa:
        heads = kv_heads
        q = q.expand(q.shape[:-3] + (heads,) + q.shape[-2:])
    if not enable_gqa and kv_heads not in (1, heads):
        raise ArgumentError(f"key: {kv_heads} heads; allowed: 1 or {heads}, those of query, or enable_gqa=True")
    axes = tuple(q.shape[:-3])
    if len(axes) != 1 or axes != k.shape[:-3] or axes != v.shape[:-3]:
        try:
            axes = tuple(torch.broadcast_tensors(*[torch.empty(x.shape[:-3]) for x in (q, k, v)])[0].shape)
            q, k, v = [_leading(x, axes) for x in (q, k, v)]
        except RuntimeError as error:
            raise ArgumentError(f"query, key, value: leading axes: {error}; allowed: those that can be broadcast")
    batch, _, tokens, _ = q.shape
    if mask is not None:
        if is_causal:
            raise ArgumentError("is_causal: True beside attn_mask; allowed: one of them")
        if _kind("attn_mask", mask) is not _Torch:
            raise ArgumentError(f"attn_mask: {type(mask).__name__}; allowed: a tensor of torch")
        if mask.requires_grad:
            _Torch.inference("attn_mask")
        full = axes + (heads, tokens, k.shape[2])
        found = tuple(mask.shape)
        if len(found) > len(full) or any(n not in (1, m) for n, m in zip(found[::-1], full[::-1])):
            raise ArgumentError(f"attn_mask: {list(found)}; allowed: what can be broadcast to {list(full)}")
        if not found:
            mask = mask.reshape(1)
        if len(axes) > 1 and len(found) > 3:
            mask = mask.expand(axes + found[-3:]).reshape((_product(axes),) + found[-3:])
    out = torch.empty((batch, tokens, heads, v.shape[3]), dtype=q.dtype, device=q.device).transpose(1, 2)
    if out.numel():
        attention(q, k, v, mask=mask, scale=scale, causal=bool(is_causal), out=out, engine=engine)
    out = out.reshape(axes + tuple(out.shape[1:])) if len(axes) > 1 else out
    while out.dim() > rank:
        out = out.squeeze(0)
    return out


class patch(object):
    """Replaces torch.nn.functional.scaled_dot_product_attention by elsa.sdpa until the `with` block ends, also by an exception.

        with elsa.patch() as patched:
            answer = model(pictures)
        print(patched.calls)                # number of calls that elsa.sdpa computed

    It applies to all threads of the process and to code that calls the function through its module, as torch, timm and
    transformers do; names imported from there earlier do not change. Contexts may be nested. `engine` is an Engine for
    host tensors; None selects the default one.
    """

    def __init__(self, engine=None):
        self.calls = 0
        self._engine, self._before, self._lock = engine, [], threading.Lock()

    def _call(
        self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False
    ):
        engine = None if getattr(query, "is_cuda", False) else self._engine
        out = _sdpa(engine, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        with self._lock:
            self.calls += 1
        return out

    def __enter__(self):
        import torch

        functional = torch.nn.functional
        if not hasattr(functional, "scaled_dot_product_attention"):
            raise UnsupportedError(
                f"torch {torch.__version__}: has no scaled_dot_product_attention; allowed: 2.0 or later, or calls of "
                "elsa.sdpa and elsa.attention"
            )
        self._before.append(functional.scaled_dot_product_attention)
        functional.scaled_dot_product_attention = self._call
        return self

    def __exit__(self, *_):
        sys.modules["torch"].nn.functional.scaled_dot_product_attention = self._before.pop()


def _prove():
    """Computes attention of one query over two keys, one of them masked: the answer is the value of the other, which
    structs of a different layout do not produce."""
    engine = Engine("scalar", threads=1)
    numbers = (ctypes.c_float * 8)(1.0, 2.0, 3.0, 7.0, 11.0, float("-inf"), 0.0, 0.0)
    start, problem, inputs, outputs = ctypes.addressof(numbers), _Problem(), _Inputs(), _Outputs()
    for name, tokens, at in (("q", 1, 0), ("k", 2, 1), ("v", 2, 3), ("out", 1, 7)):
        view = getattr(problem, name)
        view.shape[:], view.strides[:] = (1, 1, tokens, 1), (0, 0, 1, 1)
        memory = _Memory(start + 4 * at, 4 * tokens)
        setattr(outputs if name == "out" else inputs, name, memory)
    problem.mask = _Mask(2, 1)
    problem.mask.dims[0] = 2
    inputs.mask = _Memory(start + 20, 8)
    plan = engine._plan((), lambda: (problem,))
    workspace = engine._workspace(plan)
    _run(plan, workspace, inputs, outputs, None)
    if numbers[7] != 11.0:
        raise ArgumentError(f"a masked mean of 7 and 11: {numbers[7]}; allowed: 11")


try:
    _prove()
except ElsaError as _error:
    raise LibraryError(f"{_path}: not as this file was written for: {_error}")


def _main():
    abi = _lib.elsa_abi_version()
    print(f"library   {_path}\nversion   {version()}, ABI {abi >> 16}.{abi & 0xFFFF}")
    for name, present in backends().items():
        print(f"{name:<9} {'present' if present else 'absent'}")
    print(f"default   {Engine()!r}")


if __name__ == "__main__":
    _main()
