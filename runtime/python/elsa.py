"""Exact softmax and linear attention, and scans, for arrays of numpy and tensors of torch, through libelsa.so.

    import elsa
    out = elsa.attention(q, k, v, causal=True)      # [batch, heads, tokens, dim], numpy or torch
    out, state = elsa.linear_attention(q, k, v, "gated", decay=g, past_state=state, present_state=True)
    y = elsa.selective(u, delta, a, b, c, softplus=True)   # Mamba's scan; and elsa.recurrence, elsa.conv
    states = [elsa.partial(q, *part) for part in parts]    # parts of the keys: k, v of each
    out, lse = elsa.finish(elsa.merge(states))
    d_q, d_k, d_v = elsa.gradients(q, k, v, out, d_out, lse)
    elsa.stream(q, k, v, out, 1 << 30)              # memory maps or your own classes, within 1 GiB of memory
    with elsa.patch():                              # torch's scaled_dot_product_attention, until the block ends
        answer = model(pictures)

One file for Python 3.6 and later without dependencies: it uses numpy or torch only for tensors of that library. Tensors
are read and written in place, strides included. The CPU computes tensors in host memory; a CUDA device computes tensors
in its memory, in torch's current stream. The compiled module _elsa, for CPython 3.8 and later, is optional: it makes
calls faster over arrays of numpy, and over tensors of a torch that publishes DLPack's table, as 2.11 does.

The library is the one that the environment variable ELSA_LIBRARY names, else libelsa.so.1 next to this file, as in a
wheel, or in ../../lib relative to it, else the one that the system's loader finds. At import the module compares the
library's ABI with its own and computes a small problem with a known answer. `python3 elsa.py`, or `python3 -m elsa`,
prints the library, its version and its back ends.

Errors are ElsaError: ArgumentError, UnsupportedError, DeviceError, OutOfMemoryError, CancelledError, StreamError,
LibraryError.
Messages name the argument, the value found and the values allowed. Any thread may call any function.

Ctrl-C, or any other signal whose handler raises, ends a long call of the main thread: the call cancels its engine
(`Engine.cancel`) and raises the handler's exception, KeyboardInterrupt. The outputs are then incomplete; the next call
computes normally. A GPU finishes the kernels already launched. Engines with host="openmp" finish their calls.
"""

import _thread
import collections
import ctypes
import functools
import operator
import os
import sys
import threading

try:
    import _elsa
except ImportError:
    _elsa = None

__all__ = [
    "attention", "partial", "merge", "finish", "stream", "linear_attention", "recurrence", "selective", "conv", "sdpa", "patch",
    "gradients", "task", "task_tokens", "gradients_task", "merge_gradients", "Engine", "States", "Certificate",
    "LinearCertificate", "LeftOut", "Shares", "StreamReport", "version", "backends", "ElsaError", "ArgumentError",
    "UnsupportedError", "DeviceError", "OutOfMemoryError", "CancelledError", "StreamError", "LibraryError",
]  # fmt: skip

# In a wheel, elsa is a package, whose folder contains elsa.distributed; elsewhere, elsa_modules next to this file does.
if "__path__" not in globals():
    __path__ = [os.path.join(os.path.dirname(os.path.realpath(__file__)), "elsa_modules")]

ABI_MAJOR, ABI_MINOR = 1, 0
# Version of _elsa.
INTERFACE = 7
if getattr(_elsa, "INTERFACE", None) != INTERFACE:
    _elsa = None
# Number of plans that an engine keeps, and of prepared calls that each of its threads keeps.
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


class StreamError(ElsaError, RuntimeError):
    """A source or a sink of `stream` raised the exception in __cause__. `finished` of `units` units are written."""

    finished, units, _stream = 0, 0, None

    def resume(self):
        """Writes the other units. Returns a StreamReport, or raises StreamError again."""
        return self._stream.run(self.finished)


class LibraryError(ElsaError, ImportError):
    """libelsa.so is missing or does not match this file."""


# Structs of elsa.h. A newer library may extend a struct that begins with `size`, and reads missing fields as zeros.


_U32, _SIZE = ctypes.c_uint32, ctypes.c_size_t


def _each(kind, names):
    """Returns the ctypes fields `names`, all of type `kind`."""
    return [(name, kind) for name in names.split()]


class _View(ctypes.Structure):
    _fields_ = _each(_SIZE * 4, "shape strides")


class _Mask(ctypes.Structure):
    _fields_ = _each(_U32, "kind rank") + [("dims", _SIZE * 4)]


class _Table(ctypes.Structure):
    _fields_ = _each(_U32, "dtype has_index") + _each(_SIZE, "entries heads")


class _Windows(ctypes.Structure):
    _fields_ = _each(_SIZE * 2, "picture size shift")


class _Handle(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint64)]


class _Memory(ctypes.Structure):
    """elsa_input, elsa_output: an address and a number of bytes."""

    _fields_ = [("data", ctypes.c_void_p), ("bytes", _SIZE)]


class _Integers(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("count", _SIZE)]


class _Sized(ctypes.Structure):
    """A struct that begins with its size."""

    _fields_ = [("size", _SIZE)]

    def __init__(self):
        super().__init__()
        self.size = ctypes.sizeof(self)


class _EngineOptions(_Sized):
    _fields_ = (
        _each(_U32, "backend fallback")
        + _each(_SIZE, "threads cuda_device")
        + [("cuda_context", _U32), ("priority", ctypes.c_int32), ("spin_us", ctypes.c_int64)]
        + [("cores", ctypes.c_void_p), ("core_count", _SIZE)]
        + _each(ctypes.c_void_p, "parallel_for parallel_user thread_name")
    )


class _EngineInfo(_Sized):
    _fields_ = (
        _each(_U32, "backend fallback")
        + _each(_SIZE, "threads device_memory")
        + _each(_U32, "driver_major driver_minor capability_major capability_minor integrated absent")
        + [("device", ctypes.c_char * 128), ("reason", ctypes.c_char * 256)]
    )


class _Report(_Sized):
    _fields_ = (
        _each(_U32, "backend fallback")
        + _each(_SIZE, "workers copied_bytes")
        + [("kernel", ctypes.c_char_p), ("reason", ctypes.c_char * 256)]
    )


class _PlanInfo(_Sized):
    _fields_ = (
        _each(_U32, "backend fallback")
        + _each(_SIZE, "workspace_bytes staging_bytes")
        + [("kernel", ctypes.c_char_p), ("state_workspace_bytes", _SIZE), ("reason", ctypes.c_char * 256)]
        + _each(_U32, "tensor_cores reserved")
    )


class _PlanOptions(_Sized):
    _fields_ = (
        _each(_U32, "method half_scores")
        + _each(_SIZE, "block budget")
        + [("certify", _U32), ("error_budget", ctypes.c_float)]
        + _each(_U32, "schedule norm_gate")
        + _each(ctypes.c_float, "lambda rescale_threshold")
        + _each(_U32, "tensor_cores reserved")
    )


class _Certified(_Sized):
    _fields_ = (
        _each(_U32, "claims flags")
        + _each(_SIZE, "keys channels")
        + _each(ctypes.c_double, "bound likely absolute query_norm key_norm added value")
        + [("kernel", ctypes.c_char_p), ("reason", ctypes.c_char * 256)]
    )


class _LeftOut(_Sized):
    _fields_ = (
        _each(_SIZE, "tile_rows block_keys")
        + _each(ctypes.c_uint64, "rows blocks skipped_blocks unseen_blocks row_blocks skipped_row_blocks")
        + _each(ctypes.c_double, "worst p99 mean")
    )


class _Chunk(_Sized):
    _fields_ = _each(_SIZE, "key_offset key_total query_offset query_total")


class _States(ctypes.Structure):
    """elsa_states_in, elsa_states_out."""

    _fields_ = _each(ctypes.c_void_p, "m s w")


class _Problem(_Sized):
    prefix = "elsa_"
    _fields_ = (
        _each(_U32, "dtype causal")
        + _each(_View, "q k v out past_k past_v present_k present_v")
        + _each(_U32, "has_past has_present append has_key_lengths has_scale")
        + _each(ctypes.c_float, "scale softcap")
        + _each(_U32, "has_window_left has_window_right reserved")
        + _each(ctypes.c_int64, "window_left window_right")
        + [("mask", _Mask), ("packed", _SIZE), ("bias", _Mask), ("bias_table", _Table), ("windows", _Windows)]
    )


class _Inputs(_Sized):
    _fields_ = (
        _each(_Memory, "q k v past_k past_v mask")
        + _each(_Integers, "key_lengths cu_seqlens_q cu_seqlens_k")
        + [("bias", _Memory), ("bias_index", _Integers), ("ready_event", ctypes.c_void_p)]
    )


class _Outputs(_Sized):
    _fields_ = _each(_Memory, "out lse state_m state_s state_w present_k present_v") + [("done_event", ctypes.c_void_p)]


class _GradientsProblem(_Problem):
    prefix = "elsa_gradients_"


class _GradientsOptions(_Sized):
    _fields_ = _each(_SIZE, "budget") + _each(_U32, "out_is_f32 d_out_is_f32")


class _GradientsInputs(_Sized):
    _fields_ = (
        _each(_Memory, "q k v mask")
        + _each(_Integers, "key_lengths cu_seqlens_q cu_seqlens_k")
        + [("bias", _Memory), ("bias_index", _Integers)]
        + _each(_Memory, "out d_out lse state_m state_s")
    )


class _GradientsOutputs(_Sized):
    _fields_ = _each(_Memory, "d_q d_k d_v")


class _GradientsShares(_Sized):
    _fields_ = _each(_Memory, "d_q d_k d_v")


class _TaskOptions(_Sized):
    _fields_ = (
        [("chunks", _SIZE * 12), ("number", ctypes.c_uint64)]
        + _each(_SIZE, "queries keys")
        + _each(_U32, "gathered reserved")
    )


class _TaskInfo(_Sized):
    _fields_ = (
        [("tasks", ctypes.c_uint64)]
        + _each(_SIZE, "queries keys query_total key_total")
        + [("pairs", ctypes.c_uint64), ("workspace_bytes", _SIZE)]
    )


class _StreamOptions(_Sized):
    _fields_ = (
        [("host_budget", _SIZE), ("eta", ctypes.c_double), ("block", _SIZE)]
        + _each(_U32, "outputs reserved")
        + [("device_budget", _SIZE), ("sizes", _SIZE * 5)]
    )


class _StreamInfo(_Sized):
    _fields_ = (
        _each(_U32, "backend fallback")
        + [("kernel", ctypes.c_char_p)]
        + _each(_SIZE, "resident_rows chunk_keys units host_bytes fixed_bytes query_bytes key_bytes added_bytes")
        + _each(_SIZE, "output_bytes state_bytes resident_bytes workspace_bytes device_bytes")
        + [("sizes", _SIZE * 5)]
    )


class _Rows(_Sized):
    _fields_ = (
        _each(_U32, "operand element_bytes")
        + _each(_SIZE * 3, "first count")
        + _each(_SIZE, "start length")
        + [("strides", _SIZE * 3)]
    )


# Parameters: user, rows, data, bytes.
_Callback = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(_Rows), ctypes.c_void_p, _SIZE)


class _StreamData(_Sized):
    _fields_ = (
        _each(_Callback, "read write")
        + [("user", ctypes.c_void_p)]
        + _each(_Integers, "key_lengths cu_seqlens_q cu_seqlens_k")
        + [("first_unit", _SIZE), ("unit_finished", ctypes.c_void_p)]
    )


class _StreamReport(_Sized):
    _fields_ = (
        [("code", ctypes.c_int32), ("operand", _U32)]
        + _each(_SIZE, "units finished")
        + _each(ctypes.c_uint64, "parts read_bytes written_bytes")
        + _each(ctypes.c_double, "total_ms read_ms compute_ms wait_ms overlap")
    )


class _LinearProblem(_Sized):
    prefix = "elsa_linear_"
    _fields_ = (
        _each(_U32, "dtype gate_dtype rule direction")
        + _each(_View, "q k v out decay beta past_state present_state")
        + _each(_U32, "has_decay has_beta has_past_state has_present_state in_place has_scale")
        + [("scale", ctypes.c_float), ("has_normalize", _U32), ("normalize", ctypes.c_float)]
        + [("reserved", _U32), ("packed", _SIZE)]
    )


class _LinearOptions(_Sized):
    _fields_ = _each(_U32, "form reserved") + _each(_SIZE, "chunk parts budget")


class _LinearInputs(_Sized):
    _fields_ = _each(_Memory, "q k v decay beta past_state") + [("cu_seqlens", _Integers)]


class _LinearCertified(_Sized):
    _fields_ = (
        _each(_U32, "claims reserved")
        + [("channels", _SIZE), ("unclaimed", ctypes.c_uint64)]
        + _each(ctypes.c_double, "absolute state gain")
    )


class _StateOutputs(_Sized):
    """elsa_linear_outputs, elsa_series_outputs."""

    _fields_ = _each(_Memory, "out present_state")


class _RecurrenceProblem(_Sized):
    prefix = "elsa_recurrence_"
    _fields_ = _each(_U32, "dtype gate_dtype gate reverse in_place reserved") + _each(_View, "a b out")


class _SelectiveProblem(_Sized):
    prefix = "elsa_selective_"
    _fields_ = (
        _each(_U32, "dtype gate_dtype softplus reverse in_place fixed_b fixed_c has_z")
        + [("states", _SIZE)]
        + _each(_View, "u delta b c z out")
    )


class _ConvolutionProblem(_Sized):
    prefix = "elsa_convolution_"
    _fields_ = _each(_U32, "dtype order shared silu reverse in_place") + [("taps", _SIZE)] + _each(_View, "u out")


class _SeriesOptions(_Sized):
    _fields_ = _each(_SIZE, "parts budget") + _each(_U32, "method reserved")


class _RecurrenceInputs(_Sized):
    _fields_ = _each(_Memory, "a b past_state")


class _SelectiveInputs(_Sized):
    _fields_ = _each(_Memory, "u delta a b c d z delta_bias past_state")


class _ConvolutionInputs(_Sized):
    _fields_ = _each(_Memory, "u filter bias past_state")


def _open():
    """Opens the library; returns it and its path."""
    named = os.environ.get("ELSA_LIBRARY")
    here = os.path.dirname(os.path.realpath(__file__))
    places = [os.path.join(here, "libelsa.so.1"), os.path.join(here, "..", "..", "lib", "libelsa.so.1")]
    path = named or next((os.path.realpath(place) for place in places if os.path.exists(place)), "libelsa.so.1")
    try:
        library = ctypes.CDLL(path)
        library.elsa_version.restype = ctypes.c_char_p
        library.elsa_last_error.restype = ctypes.c_char_p
        library.elsa_abi_version.restype = ctypes.c_uint32
        pointer, handle = ctypes.c_void_p, _Handle
        functions = [
            ("elsa_backend_present", [ctypes.c_uint32, pointer]),
            ("elsa_engine_create", [pointer, pointer]),
            ("elsa_engine_describe", [handle, pointer]),
            ("elsa_engine_destroy", [handle]),
            ("elsa_engine_cancel", [handle]),
            ("elsa_plan_describe", [handle, pointer]),
            ("elsa_plan_destroy", [handle]),
            ("elsa_workspace_create", [handle, pointer]),
            ("elsa_workspace_create_on_device", [handle, pointer, _SIZE, pointer]),
            ("elsa_workspace_trust", [handle, _U32]),
            ("elsa_workspace_destroy", [handle]),
            ("elsa_workspace_certified", [handle, pointer, pointer, _SIZE]),
            ("elsa_workspace_left_out", [handle, pointer, pointer, _SIZE]),
            ("elsa_workspace_refused_blocks", [handle, pointer, pointer]),
            ("elsa_linear_certify", [handle, _U32, pointer, pointer, pointer, _SIZE]),
            ("elsa_partial", [handle, handle, pointer, pointer, pointer, pointer]),
            ("elsa_states_merge", [_SIZE, _SIZE, pointer, pointer, pointer]),
            ("elsa_states_finish", [_SIZE, _SIZE, pointer, pointer, pointer]),
            ("elsa_task_create", [handle, pointer, pointer, pointer, pointer]),
            ("elsa_task_describe", [handle, pointer]),
            ("elsa_task_tokens", [handle, pointer, _SIZE, pointer, _SIZE]),
            ("elsa_task_run", [handle, pointer, pointer, pointer]),
            ("elsa_task_spread", [handle, pointer, pointer]),
            ("elsa_task_destroy", [handle]),
            ("elsa_gradients_plan_create", [handle, pointer, pointer, pointer]),
            ("elsa_gradients_run", [handle, handle, pointer, pointer, pointer]),
            ("elsa_gradients_task_create", [handle, pointer, pointer, pointer, pointer]),
            ("elsa_gradients_task_describe", [handle, pointer]),
            ("elsa_gradients_task_run", [handle, pointer, pointer, pointer]),
            ("elsa_gradients_task_destroy", [handle]),
            ("elsa_gradients_merge_create", [pointer, pointer, pointer]),
            ("elsa_gradients_merge_add", [handle, ctypes.c_uint64, pointer]),
            ("elsa_gradients_merge_finish", [handle, pointer]),
            ("elsa_gradients_merge_destroy", [handle]),
            ("elsa_stream_create", [handle, pointer, pointer, pointer]),
            ("elsa_stream_describe", [handle, pointer]),
            ("elsa_stream_run", [handle, pointer, pointer]),
            ("elsa_stream_destroy", [handle]),
        ]
        for problem in (_Problem, _LinearProblem, _RecurrenceProblem, _SelectiveProblem, _ConvolutionProblem):
            functions += [
                (problem.prefix + "plan_create", [handle, pointer, pointer, pointer]),
                (problem.prefix + "run", [handle, handle, pointer, pointer, pointer]),
                (problem.prefix + "run_device", [handle, handle, pointer, pointer, pointer, pointer]),
            ]
        for name, arguments in functions:
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int32
    except (OSError, AttributeError) as error:
        raise LibraryError(
            f"libelsa.so: {error}; allowed: ELSA_LIBRARY=/path/to/libelsa.so.1, this file next to libelsa.so.1 or in the "
            "share/python of a folder that holds lib/libelsa.so.1, or a library that the loader finds"
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
# Upper bounds of operations per second for a thread of a back end or for a GPU, and the seconds from which a call is long.
_RATES = {"scalar": 1e10, "neon": 5e10, "avx2": 1.5e11, "avx512": 3e11, "cuda": 5e13}
_LONG = 0.02
# Number of operations that take as long as reading or writing an element.
_ELEMENT = 40
_DTYPES = {"float32": (0, 4), "float16": (1, 2), "bfloat16": (2, 2)}
_FLOATS = {"float32": (2, 4), "float16": (3, 2), "bfloat16": (4, 2), "float64": (2, 4)}
_MASKS = dict(_FLOATS, bool=(1, 1), uint8=(1, 1), int32=(1, 1), int64=(1, 1))
# Target types of the mask types that are converted.
_CONVERTED = {"float64": "float32", "int32": "bool", "int64": "bool"}
# Allowed types with their number and size in bytes in the library, and allowed numbers of axes.
_ADDITIONS = {
    "mask": (_MASKS, (1, 2, 3, 4)),
    "bias": (_FLOATS, (1, 2, 3, 4)),
    "bias_table": (_DTYPES, (2,)),
    # elsa_integers holds a number of entries, not of bytes: an entry has size 1.
    "bias_index": ({"int64": (0, 1)}, (2,)),
}
# Names of the bits of ELSA_CERTIFIED_*.
_CERTIFIED = (
    "q_nan q_infinite k_nan k_infinite v_nan v_infinite mask_nan mask_infinite out_nan out_infinite underflow fallback"
).split()
# Names of ELSA_OPERAND_*, and bits of ELSA_STREAM_*.
_OPERANDS = (
    "q k v past_k past_v mask bias bias_index out present_k present_v lse state_m state_s state_w"
).split()
_WANTED = {"out": 1, "lse": 2, "state_w": 4}
_CAUSAL = {None: 0, False: 0, True: 1, "top_left": 1, "bottom_right": 2}
_RULES = ["linear", "gated", "delta", "gated_delta"]
_DIRECTIONS = ["forward", "reverse", "bidirectional", "non_causal"]
_FORMS = [None, "recurrent", "chunk", "fused_chunk", "parallel", "scan"]
_LAYOUTS = ["btc", "bct"]
_TAPS = ["newest_first", "newest_last"]
_SCHEDULES = ["exact", "flash", "vfa", "vsa", "blasst"]
_TENSOR_CORES = ["off", "allow", "always", "f16"]
_METHODS = [None, "direct", "fft"]
# Most workers of a call.
_MOST_WORKERS = 1024
_TRUST_ADDRESSES = 1
_WORD = ctypes.sizeof(ctypes.c_size_t)
# The word after the head of an object is element `id(object) // _WORD`.
_first_words = ctypes.cast(object.__basicsize__, ctypes.POINTER(ctypes.c_size_t))


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


class Engine(object):
    """A back end with its threads, and the plans of the shapes that came last.

    `backend` is the name of a back end; None selects the one that the environment variable ELSA_BACKEND names, else the
    best of the CPU. `threads` is the number of CPU threads that compute, including the caller's; 0 is one for each core
    that the process may use. `device` is the number of the GPU for "cuda", which must be present.

    Any number of threads may use an engine; each has its own workspace. After os.fork, calls of the child compute on the
    calling thread.

    Calls on CUDA tensors have a workspace for each stream, which torch allocates. The workspace of a call that is captured
    as a CUDA graph is in the graph's memory pool. A captured call with key_lengths or cu_seqlens keeps its lengths and its
    workspace as long as the engine.
    """

    def __init__(self, backend=None, threads=0, device=0, host=None):
        if backend is not None and backend not in _BACKENDS:
            raise ArgumentError(f"backend: {backend!r}; allowed: None, {', '.join(_BACKENDS)}")
        if backend is None and not os.environ.get("ELSA_BACKEND"):
            present = backends()
            backend = next(name for name in ("avx512", "avx2", "neon", "scalar") if present[name])
        options = _EngineOptions()
        options.backend = _BACKENDS.index(backend or "auto")
        options.fallback = int(backend == "cuda")
        options.threads, options.cuda_device = _count("threads", threads), _count("device", device)
        if _one_of("host", host, [None, "openmp"]):
            options.parallel_for, options.parallel_user, options.threads = _openmp(options.threads)
        self._handle = _Handle()
        _check(_lib.elsa_engine_create(ctypes.byref(options), ctypes.byref(self._handle)))
        info = _EngineInfo()
        _check(_lib.elsa_engine_describe(self._handle, ctypes.byref(info)))
        self.backend = _BACKENDS[info.backend]
        self.threads, self.host = info.threads, host
        self.device = info.device.decode("utf-8", "replace")
        self._plans = {}
        self._local = _Local()
        # Workspaces with lengths that CUDA graphs read.
        self._captured = []

    # At the end of the process, the module's names may be gone before its last objects; hence the default argument.
    def __del__(self, destroy=_lib.elsa_engine_destroy):
        handle = self.__dict__.get("_handle")
        if handle is not None and handle.id:
            destroy(handle)

    def cancel(self):
        """Cancels the running calls of this engine on all threads: each raises CancelledError. It does not wait, and later
        calls compute normally."""
        _check(_lib.elsa_engine_cancel(self._handle))

    def __repr__(self):
        return f"elsa.Engine(backend={self.backend!r}, threads={self.threads})"

    def _plan(self, key, problem, options):
        """Returns the plan of a call's key."""
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans.setdefault(key, _Plan(self, problem, options))
            _bound(self._plans)
        return plan

    def _place(self, *key):
        """Returns the place of the calling thread for an operator's prefix and a stream."""
        places = self._local.places
        place = places.setdefault(key, _Place())
        _bound(places)
        return place

    def _workspace(self, place, plan, memory):
        """Returns a workspace of the calling thread that serves a plan. `memory` allocates on a CUDA device, else is None."""
        workspace = place.workspace
        if workspace is None or not workspace.serves(plan):
            # The known calls hold the previous workspace, whose memory is freed first.
            for prepared in list(self._local.prepared.values()):
                prepared.known = None
            workspace = place.workspace = None
            workspace = place.workspace = _Workspace(plan, memory)
        return workspace


# Structs OpenMp of _elsa, by their words. Engines of the process may use them until it ends.
_teams = {}


def _openmp(threads):
    """Returns the hook of _elsa, the address of its OpenMp and the number of threads: those of the OpenMP library that torch
    uses, else of one that the process has loaded. 0 threads are as many as the library's own loops have."""
    if _calls is None:
        raise UnsupportedError("host: 'openmp' without the compiled module _elsa; allowed: None, or build _elsa")
    names = "GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"
    for path in _loaded():
        try:
            # The library is loaded, so this loads nothing, and finds the names also in what it was linked to.
            library = ctypes.CDLL(path)
            found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names]
            threads = threads or min(library.omp_get_max_threads(), _MOST_WORKERS)
        except (OSError, AttributeError):
            continue
        words = tuple(found) + (threads,)
        team = _teams.setdefault(words, (ctypes.c_size_t * len(words))(*words))
        return _elsa.OPENMP, ctypes.addressof(team), threads
    raise UnsupportedError("host: 'openmp', but no OpenMP library is loaded; allowed: None, or import torch first")


def _loaded():
    """Returns the paths of loaded libraries that may have OpenMP's functions: torch's first."""
    with open("/proc/self/maps") as maps:
        paths = [line.split(None, 5)[5].rstrip("\n") for line in maps if line.count("/")]
    return [path for part in ("libtorch_cpu.so", "libgomp", "libiomp5", "libomp") for path in dict.fromkeys(paths)
            if os.path.basename(path).startswith(part)]  # fmt: skip


class _Local(threading.local):
    """State of a thread for an engine: its prepared calls by key, those of `sdpa` also as _elsa finds them, and its places by
    operator and stream."""

    def __init__(self):
        self.prepared, self.places = {}, {}
        self.seen = None if _elsa is None else _elsa.Seen()


class _Place(object):
    """The workspace of a thread for the calls of an operator, on a CUDA device in one stream."""

    workspace = None


class _Plan(object):
    """The plan of a problem of any operator, with its options."""

    def __init__(self, engine, problem, options=None):
        self.handle, info = _Handle(), _PlanInfo()
        reference = None if options is None else ctypes.byref(options)
        create = getattr(_lib, problem.prefix + "plan_create")
        _check(create(engine._handle, ctypes.byref(problem), reference, ctypes.byref(self.handle)))
        _check(_lib.elsa_plan_describe(self.handle, ctypes.byref(info)))
        self.bytes, self.state_bytes = info.workspace_bytes, info.state_workspace_bytes
        self.gpu = info.backend == _CUDA
        self.long = _is_long(problem, _BACKENDS[info.backend], engine)
        # Holds the handle, not the engine, which itself owns its plans.
        self.engine = engine._handle

    def __del__(self, destroy=_lib.elsa_plan_destroy):
        if self.handle.id:
            destroy(self.handle)


def _is_long(problem, backend, engine):
    """Returns whether a call is long enough to check for signals during it. A thread for such a call would get a team of its
    own from an OpenMP library."""
    return engine.host is None and _operations(problem) > _LONG * _RATES[backend] * (1 if backend == "cuda" else engine.threads)


def _operations(problem):
    """Estimates the operations of a problem; each memory access counts as `_ELEMENT` operations."""
    most = elements = 1
    for name, kind in problem._fields_:
        if kind is _View:
            size = 1
            for n in getattr(problem, name).shape:
                size *= n
            most, elements = max(most, size), elements + size
    if isinstance(problem, _Problem):
        for_each = (10 if isinstance(problem, _GradientsProblem) else 4) * (problem.k.shape[2] + problem.past_k.shape[2])
    elif isinstance(problem, _LinearProblem):
        for_each = 6 * problem.v.shape[3]
    else:
        for_each = 20 * getattr(problem, "states", 0) + 2 * getattr(problem, "taps", 0)
    return most * for_each + _ELEMENT * elements


class _Workspace(object):
    """A workspace of one thread, for all plans of its `_Place` that need no more memory: in memory of the library, or in a
    tensor that `memory` makes."""

    def __init__(self, plan, memory=None):
        self.bytes, self.gpu, self.handle = plan.bytes, plan.gpu, _Handle()
        if memory is None:
            _check(_lib.elsa_workspace_create(plan.handle, ctypes.byref(self.handle)))
        else:
            self.tensor = memory(plan.bytes)
            place = self.tensor.data_ptr(), plan.bytes
            _check(_lib.elsa_workspace_create_on_device(plan.handle, *place, ctypes.byref(self.handle)))
            # Torch has allocated each tensor for its shape, on the device of the engine's plan.
            _check(_lib.elsa_workspace_trust(self.handle, _TRUST_ADDRESSES))

    def serves(self, plan):
        return plan.bytes <= self.bytes and plan.gpu == self.gpu

    def __del__(self, destroy=_lib.elsa_workspace_destroy):
        if self.handle.id:
            destroy(self.handle)


def _whole(name, value, least, most, allowed="a whole number"):
    """Returns a whole number within bounds: from an int, a numpy integer, or an array or tensor without axes. Every number
    for the library is checked here, because ctypes drops the bits that do not fit."""
    number = value
    if type(value) is not int:
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


def _bound(kept):
    """Drops the oldest entries beyond MOST_PLANS of a dict that other threads may change."""
    for key in list(kept)[:-MOST_PLANS]:
        kept.pop(key, None)


def _product(shape):
    count = 1
    for n in shape:
        count *= n
    return count


class _Numpy(object):
    """Access to numpy arrays. They are in host memory: their device is None."""

    library, module, densely, known = "numpy", None, "numpy.ascontiguousarray", None
    float32 = operator.methodcaller("astype", "float32")
    writable = operator.attrgetter("flags.writeable")
    description = operator.attrgetter("dtype", "shape", "strides")
    # Makes an array of float32 in host memory.
    host = staticmethod(lambda shape: _Numpy.module.empty(shape, "float32"))
    # `of` checks the description, so a call needs no further check of the array.
    check = device = staticmethod(lambda name, array: None)

    @staticmethod
    def descriptions(arrays):
        """Returns the description of each array."""
        return tuple(map(_Numpy.description, arrays))

    # Returns the properties of all arrays on which a prepared call depends, except the classes.
    describe = descriptions
    layouts = staticmethod(lambda makers: b"")

    @staticmethod
    def of(name, found, description):
        """Checks a description. Returns the name of the type, shape, strides in elements and device."""
        dtype, shape, strides = description
        size = dtype.itemsize or 1
        # A type of another byte order has the same name.
        if not dtype.isnative:
            raise ArgumentError(f"{name}: {found.__name__} of {dtype}; allowed: this machine's byte order")
        if hasattr(found, "mask"):
            raise ArgumentError(
                f"{name}: {found.__name__} of {dtype}; allowed: an array without a mask, as numpy.ma.filled makes"
            )
        # The stride of an axis of one element is arbitrary.
        if any(stride % size for n, stride in zip(shape, strides) if n > 1):
            raise ArgumentError(f"{name}: strides {strides} bytes; allowed: multiples of {size}")
        return dtype.name, shape, tuple([stride // size for stride in strides]), None

    @staticmethod
    def address(array):
        """Returns the address of the first element."""
        return array.__array_interface__["data"][0]

    @staticmethod
    def write(words, order, arrays):
        """Writes the addresses of the first elements: the first field of numpy's struct after the object's head, which every
        compiled extension reads there too. `address` takes longer."""
        for at, array in zip(order, arrays):
            words[at] = _first_words[id(array) // _WORD]

    @staticmethod
    def maker(description, dtype, shape, strides):
        """Returns a function that makes a dense array of type `dtype`, by default that of `description`."""
        numpy = _Numpy.module
        return functools.partial(numpy.empty, shape, description[0] if dtype is None else numpy.dtype(dtype))

    @staticmethod
    def dense(array):
        return _Numpy.module.ascontiguousarray(array)


def _write(address, words, order, tensors):
    """Writes the address of the i-th tensor, read by `address`, to word `order[i]`."""
    for at, tensor in zip(order, tensors):
        words[at] = address(tensor)


class _Torch(object):
    """Access to torch tensors."""

    library, module, densely, known, operators = "torch", None, "Tensor.contiguous", None, None
    address = operator.methodcaller("data_ptr")
    write = functools.partial(_write, address)
    dense = operator.methodcaller("contiguous")
    float32 = operator.methodcaller("float")
    gradients = operator.attrgetter("requires_grad")
    writable = staticmethod(lambda tensor: True)
    autocasts = staticmethod(lambda device: False)
    # Return whether a tensor is a negated view, what `_calls` describes, and the layouts of the tensors that makers make.
    negative, read = staticmethod(lambda tensor: False), staticmethod(lambda tensors: None)
    layouts = staticmethod(lambda makers: b"")
    # Makes a tensor of float32 in host memory.
    host = staticmethod(lambda shape: _Torch.module.empty(shape, dtype=_Torch.module.float32, device="cpu"))
    description = operator.attrgetter("dtype", "shape", "device", "layout")

    @staticmethod
    def describe(tensors):
        """Returns the properties of each tensor on which a prepared call depends, except the class. Raises if `check`
        refuses one."""
        torch = _Torch.module
        if torch.is_grad_enabled() and any(map(_Torch.gradients, tensors)) or any(map(_Torch.negative, tensors)):
            raise UnsupportedError
        return _Torch.read(tensors) or _Torch.descriptions(tensors)

    @staticmethod
    def descriptions(tensors):
        """Returns the description of each tensor."""
        return tuple(zip(map(_Torch.description, tensors), map(_Torch.module.Tensor.stride, tensors)))

    @staticmethod
    def check(name, tensor):
        """Refuses a tensor because of a property that its description does not contain."""
        if tensor.requires_grad and _Torch.module.is_grad_enabled():
            raise UnsupportedError(
                f"{name}: requires gradients; allowed: inference, under torch.no_grad() or torch.inference_mode()"
            )
        if _Torch.negative(tensor):
            raise ArgumentError(f"{name}: a view that negates its elements; allowed: Tensor.resolve_neg() of it")
        if tensor.layout is not _Torch.module.strided:
            raise ArgumentError(f"{name}: layout {tensor.layout}; allowed: a dense tensor that is not quantised")

    @staticmethod
    def of(name, found, description):
        """Checks a description. Returns the name of the type, shape, strides in elements and device."""
        (dtype, shape, device, _), strides = description
        if device.type not in ("cpu", "cuda"):
            raise UnsupportedError(f"{name}: device {device}; allowed: cpu, cuda")
        return str(dtype).replace("torch.", ""), tuple(shape), strides, device.index if device.type == "cuda" else None

    @staticmethod
    def use(torch):
        """Sets the module and the functions that return its state: for "cpu" and "cuda" whether torch.autocast is on, and
        its type."""
        _Torch.module, _Torch.tracing = torch, torch.jit.is_tracing
        capturing = torch.cuda.is_current_stream_capturing
        _Torch.capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", capturing)
        _Torch.stream_of = getattr(torch._C, "_cuda_getCurrentRawStream", _Torch.stream_of)
        _Torch.negative = getattr(torch.Tensor, "is_neg", _Torch.negative)
        if hasattr(torch, "get_autocast_dtype"):
            _Torch.autocasts, _Torch.autocast = torch.is_autocast_enabled, torch.get_autocast_dtype
        elif hasattr(torch, "is_autocast_cpu_enabled"):
            # Before torch 2.4.
            on = {"cpu": torch.is_autocast_cpu_enabled, "cuda": torch.is_autocast_enabled}
            types = {"cpu": torch.get_autocast_cpu_dtype, "cuda": torch.get_autocast_gpu_dtype}
            _Torch.autocasts, _Torch.autocast = lambda device: on[device](), lambda device: types[device]()
        table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        if _calls is not None and table is not None:
            classes = torch.Tensor, torch.nn.Parameter
            casts = lambda: _Torch.autocasts("cpu") or _Torch.autocasts("cuda")
            states = torch.is_grad_enabled, torch._C._is_tracing, _Torch.capturing
            states += (getattr(torch._C, "_is_any_autocast_enabled", casts),)
            states += (getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", _transform),)
            _, capturing = _functions("libcuda.so.1", "cuStreamIsCapturing")
            library, *makers = _functions(torch._C.__file__, *_MAKERS)
            if _calls.reads_torch(table, classes, states, (capturing, *makers)):
                _Torch.read, _Torch.known = _calls.describe, _known
                if makers[0]:
                    _Torch.layouts = functools.partial(_layouts, library)

    @staticmethod
    def device(name, tensor):
        """Returns the number of the tensor's CUDA device, None for other devices."""
        if _Torch.tracing():
            # A recorded graph would not contain the call of this function.
            raise UnsupportedError(f"{name}: recorded by torch.jit.trace; allowed: a call that computes")
        return tensor.device.index if tensor.is_cuda else None

    @staticmethod
    def stream_of(device):
        """Returns the handle of the current stream of a CUDA device."""
        return _Torch.module.cuda.current_stream(device).cuda_stream

    @staticmethod
    def memory(device, size):
        """Allocates bytes on a CUDA device: of the capture's pool during the capture of a graph."""
        torch = _Torch.module
        return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))

    @staticmethod
    def maker(description, dtype, shape, strides):
        """Returns a function that makes a tensor, by default dense and of the type of `description`."""
        torch, (like, _, device, _) = _Torch.module, description[0]
        dtype = like if dtype is None else getattr(torch, dtype)
        return functools.partial(torch.empty_strided, shape, strides or _dense(shape), dtype=dtype, device=device)


# Torch's functions that `_calls` makes tensors with: C functions for compiled models, and the C++ function
# THPVariable_Wrap(at::TensorBase&&), which returns the object of a handle's tensor.
_MAKERS = (
    "aoti_torch_empty_strided", "aoti_torch_get_data_ptr", "aoti_torch_delete_tensor_object",
    "_Z16THPVariable_WrapON2at10TensorBaseE",
)  # fmt: skip


def _functions(path, *names):
    """Returns a library of the process and the addresses of its functions, zeros if one of them is absent."""
    try:
        library = ctypes.CDLL(path)
        return (library, *[ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names])
    except (OSError, AttributeError):
        return (None,) + (0,) * len(names)


def _layouts(library, makers):
    """Returns the type, type of device, device, axes, shape and strides of the tensors that functions of `_Torch.maker` make, as
    the functions in _MAKERS read them."""
    words = []
    for make in makers:
        (shape, strides), device = make.args, make.keywords["device"]
        dtype = str(make.keywords["dtype"]).replace("torch.", "")
        codes = getattr(library, "aoti_torch_dtype_" + dtype)(), getattr(library, "aoti_torch_device_type_" + device.type)()
        words += (*codes, device.index or 0, len(shape), *shape, *strides)
    return bytes((ctypes.c_int64 * len(words))(*words))


def _converted(kind, dtype, tensor):
    """Converts integers to bool, and float64 to float32, so that finite numbers stay finite."""
    if dtype == "bool":
        return tensor != 0
    library = kind.module
    most = float(library.finfo(library.float32).max)
    return kind.float32(library.where(library.isinf(tensor), tensor, tensor.clip(-most, most)))


# Maps a class of tensors to the class that reads them.
_KINDS = {}


def _kind(name, found):
    """Returns the class that reads tensors of the class `found`."""
    kind = _KINDS.get(found)
    if kind is None:
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None and issubclass(found, torch.Tensor):
            kind = _Torch
            kind.use(torch)
        elif numpy is not None and issubclass(found, numpy.ndarray):
            kind, kind.module = _Numpy, numpy
            array, words = numpy.zeros(3)[1:], [0]
            if sys.implementation.name == "cpython":
                kind.write(words, [0], [array])
            if words != [kind.address(array)]:
                kind.write = functools.partial(_write, kind.address)
            elif _calls is not None:
                _read_by_calls(kind, array)
        else:
            raise ArgumentError(f"{name}: {found.__name__}; allowed: an array of numpy or a tensor of torch")
        _KINDS[found] = kind
        _bound(_KINDS)
    return kind


def _read_by_calls(kind, array):
    """Lets `_calls` compute calls over numpy arrays, if the fields that it reads from `array` equal the attributes."""
    array = array.reshape(1, 2)[:, ::-1]
    fields = (ctypes.c_ssize_t * 5)(2, *array.shape + array.strides)
    _calls.reads(type(array))
    if _calls.describe((array,)) == (array.dtype, bytes(fields)):
        kind.describe, kind.known = _calls.describe, _known
    else:
        _calls.reads(None)


def _dense(shape):
    """Returns the strides of a dense array."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


class _Array(object):
    """Description of a tensor of a call: type, shape and strides in elements. The library reads the caller's memory. If
    `copied` is true, it reads the result of `steps` instead, which each call applies to the caller's tensor."""

    __slots__ = ("name", "kind", "dtype", "shape", "strides", "device", "steps", "copied")

    def __init__(self, name, kind, dtype, shape, strides, device):
        self.name, self.kind, self.dtype, self.shape, self.device = name, kind, dtype, shape, device
        # Strides of an array without elements are arbitrary.
        self.strides = (0,) * len(shape) if 0 in shape else strides
        self.steps, self.copied = [], False

    def type(self, types):
        """Returns the number and the size of the type."""
        if self.dtype not in types:
            raise ArgumentError(f"{self.name}: {self.dtype}; allowed: {', '.join(types)}")
        return types[self.dtype]

    def span(self):
        """Returns the number of elements from the first to the last one in memory."""
        last = 0
        for n, stride in zip(self.shape, self.strides):
            if n > 1:
                if stride < 0:
                    raise ArgumentError(f"{self.name}: strides {self.strides}; allowed: not negative, as {self.kind.densely} makes them")
                last += (n - 1) * stride
        return 0 if 0 in self.shape else last + 1

    def view(self, *axes):
        """Returns the library's view of four axes; None is an axis of one element."""
        view = _View()
        for to, axis in enumerate(axes):
            n = 1 if axis is None else self.shape[axis]
            view.shape[to] = n
            # The stride of an axis of one element is arbitrary; the last one must be 1.
            view.strides[to] = 1 if to == 3 else self.strides[axis] if n > 1 else 0
        return view

    def dense(self):
        """Returns whether the elements are contiguous, the last axis fastest."""
        steps = _dense(self.shape)
        return 0 in self.shape or all(n == 1 or a == b for n, a, b in zip(self.shape, self.strides, steps))

    def copy(self):
        """Makes the elements contiguous, in a copy."""
        self.steps.append(self.kind.dense)
        self.strides, self.copied = _dense(self.shape), True

    def expand(self, shape):
        """Broadcasts a tensor of torch to a shape."""
        new = len(shape) - len(self.shape)
        found, strides = (1,) * new + self.shape, (0,) * new + self.strides
        self.strides = tuple([stride if n == m else 0 for n, m, stride in zip(found, shape, strides)])
        self.shape = shape
        self.steps.append(operator.methodcaller("expand", shape))

    def merge(self, start, end):
        """Merges the axes from `start` to before `end` into one, in a copy if no single stride reaches their elements."""
        count = stride = 1
        for n, step in zip(reversed(self.shape[start:end]), reversed(self.strides[start:end])):
            if n == 1:
                continue
            if count == 1:
                stride = step
            elif step != stride * count:
                self.copy()
                stride = self.strides[end - 1]
                break
            count *= n
        self.strides = self.strides[:start] + (stride,) + self.strides[end:]
        self.shape = self.shape[:start] + (_product(self.shape[start:end]),) + self.shape[end:]
        self.steps.append(operator.methodcaller("reshape", self.shape))

    def narrow(self, dtype):
        """Keeps one element of each broadcast axis, and converts to `dtype` unless it is None. Copies the tensor if it is
        then not dense."""
        shared = [stride == 0 and n > 1 for n, stride in zip(self.shape, self.strides)]
        if 0 in self.shape:
            return
        if any(shared):
            self.shape = tuple([1 if axis else n for axis, n in zip(shared, self.shape)])
            self.steps.append(operator.itemgetter(tuple([slice(0, 1) if axis else slice(None) for axis in shared])))
        if dtype is not None:
            self.steps.append(functools.partial(_converted, self.kind, dtype))
        if dtype is not None or not self.dense():
            self.copy()


# Tensors that calls return, in this order, unless `returned` of a call lists others.
_RESULTS = "out", "lse", "state_m", "state_s", "state_w", "present_k", "present_v", "present_state"


class _State(object):
    """What `_calls` reads of a prepared call."""

    known, busy = None, False


class _Prepared(_State if _elsa is None else _elsa.Prepared):
    """A prepared call: a plan, and structs that are complete except for addresses. All calls with equal keys use them.

    A subclass checks the call and fills the structs. It reads only the key: the names, classes and descriptions of the
    tensors and the checked options. The library checks addresses, alignment and overlap in every call. A prepared call
    belongs to one thread. `busy` is true while it runs, so that a signal handler or a finalizer that makes the same call
    gets a prepared call of its own.
    """

    # The operator's ctypes structs, and the names of the input fields with lists of integers.
    Problem = Options = Inputs = Outputs = None
    lengths = ()
    # Maps names of arguments to the library's names, where they differ.
    fields = {}
    runs, plan, returned = True, None, _RESULTS

    def __init__(self, engine, kind, key, descriptions):
        types, _, _, names, options, stream = key
        start, size = ctypes.sizeof(self.Inputs), ctypes.sizeof(self.Outputs)
        # The last word takes the addresses of tensors without elements, which the library does not read.
        self.sink = (start + size) // _WORD
        self.words = (ctypes.c_size_t * (self.sink + 1))()
        self.words[0], self.words[start // _WORD] = start, size
        self.structs = ctypes.byref(self.words), ctypes.byref(self.words, start)
        self.problem, self.options = self.Problem(), self.Options and self.Options()
        self.kind, self.like, self.arrays, self.makers, self.index = kind, descriptions[0], {}, [], {}
        for name, found, description in zip(names, types, descriptions):
            array = _Array(name, kind, *kind.of(name, found, description))
            self.arrays[self.fields.get(name, name)] = array
            self.device = array.device if name is names[0] else self.device
            if array.device != self.device:
                raise ArgumentError(f"{name}: another device than {names[0]}; allowed: the same")
        self.fill(*options)
        given = list(self.arrays)
        self.copies = [(n, array.steps) for n, array in enumerate(self.arrays.values()) if array.copied]
        self.order = [self.index.get(name, self.sink) for name in given]
        results = [given.index(name) for name in self.returned if name in given]
        # Selects the function's result from the tensors: one of them, or a tuple of several.
        self.results, self.only = operator.itemgetter(*results), results[0] if len(results) == 1 else -1
        self.memory = None if self.device is None else functools.partial(kind.memory, self.device)
        if self.runs is not None:
            prefix = self.problem.prefix
            # Plans serve every stream.
            self.plan = engine._plan(key[:-1], self.problem, self.options)
            self.place = engine._place(prefix, stream)
            self.run, self.run_device = getattr(_lib, prefix + "run"), getattr(_lib, prefix + "run_device", None)
        # Calls do not need these.
        del self.arrays, self.index, self.problem, self.options

    def at(self, field):
        """Returns the index of the word with the address of `field`; the next word is its size."""
        start, struct = (0, self.Inputs) if hasattr(self.Inputs, field) else (self.words[0], self.Outputs)
        return (start + getattr(struct, field).offset) // _WORD

    def memory(self, name, size, field=None):
        """Sets the size of a tensor, in bytes; for bias_index, in entries."""
        at = self.at(field or name)
        self.words[at + 1] = size
        self.index[name] = at if size else self.sink

    def make(self, name, dtype, shape, strides=None):
        """Adds an output that each call allocates. Its type is that of the first tensor if `dtype` is None."""
        self.makers.append(self.kind.maker(self.like, dtype, shape, strides))
        dtype = dtype or next(iter(self.arrays.values())).dtype
        self.arrays[name] = _Array(name, self.kind, dtype, shape, strides or _dense(shape), self.device)

    def drop(self, name):
        """Removes the output that `make` has added last. The problem keeps its view; the call does not compute it."""
        self.makers.pop()
        del self.arrays[name], self.index[name]
        self.words[self.at(name) + 1] = 0

    def take(self, lists):
        """Writes the addresses and numbers of entries of the C arrays of a call's integers."""
        for field, numbers in zip(self.lengths, lists):
            at = self.at(field)
            self.words[at], self.words[at + 1] = ctypes.addressof(numbers), len(numbers)

    def optional(self, **values):
        """Sets the problem's fields, with their has_... flags, whose values are not None."""
        for name, value in values.items():
            if value is not None:
                setattr(self.problem, name, value)
                setattr(self.problem, "has_" + name, 1)

    def rows(self, name):
        """Adds a tensor [..., tokens, dim], whose rows must be contiguous. Returns its ELSA_DTYPE_*."""
        array = self.arrays[name]
        number, size = array.type(_DTYPES)
        rank = len(array.shape)
        if not 2 <= rank <= 4:
            raise ArgumentError(
                f"{array.name}: {rank} axes; allowed: [batch, heads, tokens, dim], [heads, tokens, dim] or [tokens, dim]"
            )
        span = array.span()
        if span and array.shape[-1] > 1 and array.strides[-1] != 1:
            raise ArgumentError(
                f"{array.name}: strides {array.strides}; allowed: 1 along the last axis, as {array.kind.densely} makes it"
            )
        setattr(self.problem, name, array.view(*(None,) * (4 - rank) + tuple(range(rank))))
        self.memory(name, span * size)
        return number

    def addition(self, name, field=None):
        """Adds a mask, a bias, a table or an index. Returns its type's number in `_ADDITIONS`."""
        array, (types, ranks) = self.arrays[name], _ADDITIONS[name]
        number, size = array.type(types)
        if len(array.shape) not in ranks:
            raise ArgumentError(f"{array.name}: {len(array.shape)} axes; allowed: {', '.join(map(str, ranks))}")
        array.narrow(None if name == "bias_index" else _CONVERTED.get(array.dtype))
        self.memory(name, _product(array.shape) * size, field)
        return number

    def copied(self, tensors):
        """Returns the tensors that the library reads."""
        tensors = list(tensors)
        for n, steps in self.copies:
            for step in steps:
                tensors[n] = step(tensors[n])
        return tuple(tensors)


def _side(name, value):
    """Returns the number of keys on a side of a window; None if `value` is None or -1, for no limit."""
    keys = -1 if value is None else _whole(name, value, -1, sys.maxsize)
    return None if keys == -1 else keys


def _diagonal(causal):
    """Returns ELSA_CAUSAL_* of the argument `causal`."""
    try:
        return _CAUSAL[causal]
    except (KeyError, TypeError):
        raise ArgumentError(f"causal: {causal!r:.60}; allowed: False, True, 'top_left', 'bottom_right'")


def _sides(window):
    """Returns the numbers of keys on both sides of a window, None for no limit."""
    if window is None:
        return None, None
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise ArgumentError(f"window: {window!r:.60}; allowed: (left, right)")
    return _side("window", window[0]), _side("window", window[1])


def _lengths(values, name="key_lengths"):
    """Returns the integers of a sequence, an array or a tensor as a C array."""
    allowed = "a whole number for each sequence" if name == "key_lengths" else "whole numbers"
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, (str, bytes, dict)) or not hasattr(values, "__len__"):
        raise ArgumentError(f"{name}: {values!r:.60}; allowed: {allowed}")
    numbers = [_whole(f"{name}[{n}]", value, 0, sys.maxsize, allowed) for n, value in enumerate(values)]
    return (ctypes.c_int64 * len(numbers))(*numbers)


def _packed(values, name):
    """Returns the number of packed sequences, which the library compares with the bounds, and the list of these."""
    bounds = _lengths(values, name)
    return max(len(bounds) - 1, 1), (bounds,)


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


# The engines by CUDA device; that of the host has the key None. Those on torch's threads, by their number.
_engines, _on_threads = {}, {}


def _engine_for(device):
    """Returns the engine of the host or of a CUDA device."""
    engine = _engines.get(device)
    if engine is None:
        # Threads that race here all use the engine that is stored first.
        engine = _engines.setdefault(device, Engine() if device is None else Engine("cuda", device=device))
    return engine


def _engine_on_threads_of(torch):
    """Returns the engine on the threads of torch's OpenMP library, as many as torch uses now; None without this library or
    without _elsa."""
    threads = torch.get_num_threads()
    if threads not in _on_threads:
        try:
            engine = Engine(host="openmp")
        except UnsupportedError:
            engine = None
        _on_threads.setdefault(threads, engine)
    return _on_threads[threads]


def _one_of(name, value, allowed):
    """Returns the index of `value` in the list `allowed`."""
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
            outcome.append(_check(run()))
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
                    return _check(run())
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


def _of_one_library(kind, names, tensors):
    """Refuses the first tensor of a class that `kind` does not read."""
    for name, tensor in zip(names, tensors):
        if _kind(name, type(tensor)) is not kind:
            raise ArgumentError(f"{name}: of another library than {names[0]}; allowed: {kind.library}")
        kind.check(name, tensor)


def _call(made_by, names, tensors, options, engine, written=0, lengths=None):
    """Calls the operator of `made_by`, a subclass of `_Prepared`. The last `written` tensors are outputs; `lengths` are the
    C arrays of its integers.

    Every call takes this path: one dictionary look-up, an address for each tensor, and the library's call. The first call
    with a key prepares it.
    """
    kind = _KINDS.get(type(tensors[0])) or _kind(names[0], type(tensors[0]))
    device = kind.device(names[0], tensors[0])
    # Torch calls the device's default stream 0, which in elsa.h selects the library's own stream.
    stream = None if device is None else kind.stream_of(device) or 1
    try:
        key = tuple(map(type, tensors)), kind.describe(tensors), made_by, names, options, stream
    except Exception:
        _of_one_library(kind, names, tensors)
        raise
    if engine is None:
        engine = _engine_for(device)
    calls = engine._local.prepared
    prepared = calls.get(key)
    if prepared is None:
        _of_one_library(kind, names, tensors)
    if written:
        for name, tensor in zip(names[-written:], tensors[-written:]):
            if not kind.writable(tensor):
                raise ArgumentError(f"{name}: read-only; allowed: an array that can be written")
    if prepared is None or prepared.busy:
        prepared = calls[key] = made_by(engine, kind, key, kind.descriptions(tensors))
        _bound(calls)
    prepared.busy = True
    if prepared.copies:
        tensors = prepared.copied(tensors)
    for make in prepared.makers:
        tensors += (make(),)
    words = prepared.words
    kind.write(words, prepared.order, tensors)
    if lengths is not None:
        prepared.take(lengths)
    if prepared.known is not None and _calls is None:
        status = prepared.known()
        if status:
            _check(status)
    elif prepared.runs:
        plan, workspace = prepared.plan, prepared.place.workspace
        captured = device is not None and kind.capturing()
        if captured:
            # Later work in the graph may reuse its memory, as that of any tensor.
            workspace = _Workspace(plan, prepared.memory)
            if lengths is not None:
                engine._captured.append(workspace)
        elif workspace is None or not workspace.serves(plan):
            workspace = engine._workspace(prepared.place, plan, prepared.memory)
        inputs, outputs = prepared.structs
        if device is not None:
            _check(prepared.run_device(plan.handle, workspace.handle, inputs, outputs, stream, None))
        elif plan.long and threading.current_thread() is threading.main_thread():
            run = functools.partial(prepared.run, plan.handle, workspace.handle, inputs, outputs, None)
            _run_long(plan.engine, run, (prepared, workspace, tensors, lengths))
        else:
            _check(prepared.run(plan.handle, workspace.handle, inputs, outputs, None))
        if lengths is None and not (prepared.copies or captured or plan.long and device is None):
            if kind.known:
                prepared.known = kind.known(prepared, workspace, stream)
            elif _calls is None and device is None:
                prepared.known = _foreign(prepared, workspace)
    prepared.busy = False
    return prepared.results(tensors)


def _foreign(prepared, workspace):
    """Returns the library's call of a prepared call with tensors in host memory, whose arguments need no conversion. Without
    _elsa, later calls only write addresses and call it."""
    words = ctypes.addressof(prepared.words)
    structs = ctypes.c_void_p(words), ctypes.c_void_p(words + prepared.words[0])
    # A function without types of arguments takes objects of ctypes as they are.
    run = ctypes.CFUNCTYPE(ctypes.c_int32)(ctypes.cast(prepared.run, ctypes.c_void_p).value)
    return functools.partial(run, prepared.plan.handle, workspace.handle, *structs, None)


def _known(prepared, workspace, stream):
    """Returns the parts of a prepared call that `_calls` needs."""
    run = ctypes.cast(prepared.run if stream is None else prepared.run_device, ctypes.c_void_p).value
    words, handles = ctypes.addressof(prepared.words), (prepared.plan.handle.id, workspace.handle.id)
    structs = words, words + prepared.words[0]
    parts = prepared.order, prepared.makers, prepared.results
    only = prepared.only if isinstance(prepared.results, operator.itemgetter) else -1
    return _elsa.Known(run, stream or 0, *handles, *structs, *parts, workspace, only, prepared.kind.layouts(prepared.makers))


# Replaces `_call` if _elsa is present: computes known calls, and else calls it. `_known_sdpa` is its form of `sdpa`.
_calls = _known_sdpa = None
if _elsa is not None:
    _call = _calls = _elsa.Calls(_call, _engines, _check)
    _known_sdpa = _calls.sdpa


def _with(names, tensors, *optional):
    """Appends the optional tensors that are not None, and their names."""
    for name, tensor in optional:
        if tensor is not None:
            names, tensors = names + (name,), tensors + (tensor,)
    return names, tensors


# States (m, S, W) of rows over some keys: references m in natural logarithms and sums S, float32 [batch, heads, queries], and
# weighted sums W, float32 [batch, heads, queries, dim of v].
States = collections.namedtuple("States", "m s w")

# A bound on the error of an output, and the facts that it uses; see elsa_certified in elsa.h. Each element is within
# bound * sum_j p_j |v_j| of the exact result, with the exact probabilities p, and within `absolute`. `channels` holds this
# bound for each channel of the output. If `claims` is False, there is no bound, and `reason` says why. `refused_blocks` is None
# unless Tensor Cores computed; then it holds the number of blocks of rows that they refused, and the number of all blocks.
Certificate = collections.namedtuple(
    "Certificate",
    "claims flags keys bound likely absolute channels query_norm key_norm added value kernel reason refused_blocks",
)


# Keys that a call left out within its error budget or by its schedule; see elsa_left_out in elsa.h. `share` is float32 [batch,
# heads, queries] in host memory: an upper bound on the share of each row's weights that was left out. `worst`, `p99` and
# `mean` summarize it.
LeftOut = collections.namedtuple(
    "LeftOut",
    "tile_rows block_keys rows blocks skipped_blocks unseen_blocks row_blocks skipped_row_blocks worst p99 mean share",
)


def _more(packed=0, states=False, cache=(False, False), certify=False, budget=0.0, schedule=(0, 0.0), half=False, cores=0):
    """Returns `more` of `_Attention.fill`."""
    return cache + (packed, certify, states, budget, schedule, half, cores)


# What `fill` of `_Attention` uses for `more` if it is None.
_NOTHING_MORE = _more()


class _Attention(_Prepared):
    Problem, Options, Inputs, Outputs = _Problem, _PlanOptions, _Inputs, _Outputs
    # The number of channels of a certified output, and the shape of the shares that a call left out.
    lengths, channels, shares = ("key_lengths",), None, None
    # Names of the tensors that may be float32 in a call of another type.
    wide = ()

    def __init__(self, *arguments):
        super().__init__(*arguments)
        if self.channels is not None:
            self.results = functools.partial(_certified, self.results, self.place, self.runs, self.channels)
        if self.shares is not None:
            self.results = functools.partial(_left_out, self.results, self.place, self.runs, self.kind, self.shares)

    def fill(self, scale, softcap, diagonal, sides, pairs, lengths, lse, more=None):
        """`more` is None, or contains whether the past is in the present's memory, whether the call allocates the present, the
        number of packed sequences, whether to certify, whether to write states instead of the output, the error budget, the
        results of `_scheduled`, whether a GPU may sum in float16, and ELSA_TENSOR_CORES_*."""
        arrays, problem = self.arrays, self.problem
        append, present, packed, certify, states, budget, schedule, half, cores = more or _NOTHING_MORE
        problem.dtype, queries = self.rows("q"), arrays["q"]
        for name in ("k", "v", "out", "past_k", "past_v", "present_k", "present_v"):
            if name == "out" and name not in arrays:
                self.make(name, None, queries.shape[:-1] + (arrays["v"].shape[-1],))
            if name not in arrays:
                continue
            number = self.rows(name)
            if number != problem.dtype and not (number == 0 and name in self.wide):
                found = "another type than q"
            elif len(arrays[name].shape) != len(queries.shape):
                found = f"{len(arrays[name].shape)} axes, q has {len(queries.shape)}"
            else:
                continue
            raise ArgumentError(f"{name}: {found}; allowed: the same")
        shape = arrays["out"].shape
        if states:
            self.drop("out")
            for name, size in (("state_m", shape[:-1]), ("state_s", shape[:-1]), ("state_w", shape)):
                self.numbers(name, size)
        for name in ("mask", "bias"):
            if name in arrays:
                kind, dims = self.addition(name), arrays[name].shape
                mask = _Mask(kind, len(dims))
                mask.dims[: len(dims)] = dims
                setattr(problem, name, mask)
        if "bias_table" in arrays:
            if "bias" in arrays:
                raise ArgumentError("bias_table: given beside bias; allowed: one of them")
            indexed = "bias_index" in arrays
            problem.bias_table = _Table(self.addition("bias_table", "bias"), indexed, *arrays["bias_table"].shape)
        if "bias_index" in arrays:
            if "bias_table" not in arrays:
                raise ArgumentError("bias_index: given without bias_table; allowed: both")
            self.addition("bias_index")
        problem.softcap, problem.causal, problem.has_key_lengths = softcap, diagonal, lengths
        self.optional(scale=scale, window_left=sides[0], window_right=sides[1])
        if pairs is not None:
            problem.windows.picture[:], problem.windows.size[:], problem.windows.shift[:] = pairs
        if lse:
            self.numbers("lse", queries.shape[:-1])
        self.runs = 0 not in shape
        if more is not None:
            if packed:
                problem.packed, self.lengths = packed, ("cu_seqlens_q", "cu_seqlens_k")
            if certify:
                self.options.certify, self.channels = 1, shape[-1]
            if half:
                self.options.half_scores = 1
            self.options.tensor_cores = cores
            if budget or schedule != (0, 0.0):
                self.options.error_budget, self.shares = budget, shape[:-1]
                self.options.schedule = schedule[0]
                setattr(self.options, "lambda", schedule[1])
            self.cache(append, present)

    def numbers(self, name, shape):
        """Adds an output of float32."""
        self.make(name, "float32", shape)
        self.memory(name, 4 * _product(shape))

    def cache(self, append, make):
        """Adds past and present. `append` says whether the past is in the present's memory, `make` whether the call
        allocates the present."""
        arrays, problem = self.arrays, self.problem
        problem.has_past = "past_k" in arrays
        if make:
            for new, name, past in (("k", "present_k", "past_k"), ("v", "present_v", "past_v")):
                shape = list(arrays[new].shape)
                shape[-2] += arrays[past].shape[-2] if past in arrays else 0
                self.make(name, None, tuple(shape))
                self.rows(name)
        problem.has_present, problem.append = "present_k" in arrays, append
        self.runs = self.runs or any(name in arrays and 0 not in arrays[name].shape for name in ("present_k", "present_v"))


def _certified(select, place, runs, channels, tensors):
    """Returns what `select` selects from a call's tensors, and the certificate of the call."""
    found, certificate = select(tensors), None
    if runs:
        value, absolute = _Certified(), (ctypes.c_double * channels)()
        _check(_lib.elsa_workspace_certified(place.workspace.handle, ctypes.byref(value), absolute, channels))
        fields = {name: getattr(value, name, None) for name in Certificate._fields}
        refused, blocks = _SIZE(), _SIZE()
        given = ctypes.byref(refused), ctypes.byref(blocks)
        _check(_lib.elsa_workspace_refused_blocks(place.workspace.handle, *given))
        fields["refused_blocks"] = (refused.value, blocks.value) if blocks.value else None
        fields["claims"], fields["channels"] = bool(value.claims), tuple(absolute)
        fields["flags"] = tuple([name for bit, name in enumerate(_CERTIFIED) if value.flags >> bit & 1])
        fields["kernel"], fields["reason"] = value.kernel.decode(), value.reason.decode("utf-8", "replace")
        certificate = Certificate(**fields)
    return (found if isinstance(found, tuple) else (found,)) + (certificate,)


def _left_out(select, place, runs, kind, shape, tensors):
    """Returns what `select` selects from a call's tensors, and the report of the keys that the call left out."""
    found, report = select(tensors), None
    if runs:
        value, share = _LeftOut(), kind.host(shape)
        given = ctypes.byref(value), kind.address(share), _product(shape)
        _check(_lib.elsa_workspace_left_out(place.workspace.handle, *given))
        fields = {name: getattr(value, name) for name in LeftOut._fields if name != "share"}
        report = LeftOut(share=share, **fields)
    return (found if isinstance(found, tuple) else (found,)) + (report,)


def _aliased(names, a, b):
    """Returns whether two tensors begin at the same address."""
    kind = _kind(names[0], type(a))
    try:
        return _kind(names[1], type(b)) is kind and kind.address(a) == kind.address(b)
    except RuntimeError:
        # A tensor without an address is refused where it is described.
        return False


def _pair(name, value):
    """Returns keys and values, given as a pair."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ArgumentError(f"{name}: {value!r:.60}; allowed: a pair, ({name}_k, {name}_v)")
    return tuple(value)


def _bounds(cu_seqlens_q, cu_seqlens_k):
    """Returns the number of packed sequences and the lists of their bounds; 0 and None if sequences are not packed."""
    if cu_seqlens_q is None:
        if cu_seqlens_k is not None:
            raise ArgumentError("cu_seqlens_k: given without cu_seqlens_q; allowed: both, or cu_seqlens_q alone")
        return 0, None
    packed, lists = _packed(cu_seqlens_q, "cu_seqlens_q")
    return packed, lists + (lists if cu_seqlens_k is None else (_lengths(cu_seqlens_k, "cu_seqlens_k"),))


def _cached(names, tensors, out, past, present):
    """Appends a cache and the output. Returns names, tensors, the number of tensors that the call writes, and whether the past
    is in the present's memory and whether the call allocates the present."""
    make, append = present is True, False
    if past is not None:
        past = _pair("past", past)
        names, tensors = names + ("past_k", "past_v"), tensors + past
    names, tensors = _with(names, tensors, ("out", out))
    written = int(out is not None)
    if present is not None and not isinstance(present, bool):
        present = _pair("present", present)
        names, tensors, written = names + ("present_k", "present_v"), tensors + present, written + 2
        if past is not None:
            shared = [_aliased(("past_" + x, "present_" + x), *pair) for x, pair in zip("kv", zip(past, present))]
            append = all(shared)
    return names, tensors, written, (append, make)


def _scheduled(schedule):
    """Returns ELSA_SCHEDULE_* and lambda of the argument `schedule`."""
    name, threshold = schedule if isinstance(schedule, tuple) and len(schedule) == 2 else (schedule or "exact", 0.0)
    return _one_of("schedule", name, _SCHEDULES), _number("schedule", threshold) or 0.0


def _cores(value):
    """Returns ELSA_TENSOR_CORES_* of the argument `tensor_cores`."""
    if isinstance(value, bool):
        return int(value)
    return _one_of("tensor_cores", "off" if value is None else value, _TENSOR_CORES)


def _waits(name, value, q):
    """Refuses an option that waits for the result, if a CUDA graph is being captured."""
    kind = _kind("q", type(q))
    if value and kind.device("q", q) is not None and kind.capturing():
        raise UnsupportedError(f"{name}: {value} while a CUDA graph is captured; allowed: a call that computes")


def _in_host_memory(name, q):
    """Refuses an argument that tensors of a GPU cannot have."""
    if _kind("q", type(q)).device("q", q) is not None:
        raise UnsupportedError(f"{name}: given for tensors of a GPU; allowed: tensors in host memory")


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
    past=None,
    present=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    certify=False,
    error_budget=0.0,
    schedule=None,
    half_scores=False,
    tensor_cores=False,
):
    """Computes softmax(scale q k^T, masked) v for every head. Returns the output, or a tuple of the output and what `lse`,
    `present`, `certify`, and `error_budget` or `schedule` add, in this order.

    q, k, v   [batch, heads, tokens, dim], [heads, tokens, dim] or [tokens, dim] of float32, float16 or bfloat16, all of
              one library, type and device. Strides must not be negative and must end in 1: slices of packed tensors
              and transposed views are read in place. k and v may have fewer heads, which then serve groups of query
              heads; v may have another dim.
    mask      bool, uint8, int32 or int64 (zero masks the key, other numbers do not) or float16, bfloat16, float32, float64,
              added to the scores; broadcast over [batch, heads, queries, keys] from the right. -inf masks the key.
              float64 is rounded to float32, and finite numbers stay finite. The last axis has length 1 or the number
              of keys; use `key_lengths` for fewer keys.
    bias      a second tensor with the rules of mask, of floating-point numbers; added to the scores too.
    bias_table   [entries, heads] of float32, float16 or bfloat16, relative position biases as in Swin; its entries are
              selected by bias_index, int64 [queries, keys], or by windows.
    windows   ((H, W), (h, w)) or ((H, W), (h, w), (down, right)): the batch is the windows of pictures of H x W tokens,
              each of h x w, after the picture was rolled by (-down, -right).
    scale     multiplies q k^T, before softcap; None is 1 / sqrt(dim).
    softcap   X in X tanh(s / X), applied before mask and bias; 0 is off.
    causal    True or "top_left", as in torch: query i attends keys 0 to i; "bottom_right": the last query attends the last
              key, for queries that continue a cache.
    window    (left, right): number of keys before and after its diagonal that a query attends; None or -1 is open.
    key_lengths   number of valid keys of each sequence, [batch] integers in host memory, 0 to the number of keys. A device
              tensor is copied to the host, which waits for the device.
    out       tensor for the output, any strides that end in 1; it must not overlap an input. None makes a dense tensor.
    lse       True adds the log-sum-exp, float32 [batch, heads, queries] in natural logarithms.
    engine    an Engine; None selects a shared one of the CPU for host tensors, else of the tensors' device.
    past      (past_k, past_v), keys and values of earlier calls with the axes of k and v, which the queries attend first. The
              diagonals of causal="top_left" and window then begin after the past.
    present   True adds past and new keys, and past and new values, to the result; (present_k, present_v) are written
              and returned. If these begin with the memory of the past, only the new rows are written: a cache in place.
    cu_seqlens_q, cu_seqlens_k   bounds of sequences packed along the tokens of q, and of k and v: n + 1 integers in host
              memory, batch 1. None for cu_seqlens_k means those of cu_seqlens_q.
    certify   True adds a Certificate, a proven bound on the error of the output; None if the output has no elements. The
              call measures its tensors and waits for a GPU.
    error_budget   largest share of a row's weights that the call may leave out, between 0 and 1; 0 means that every key counts.
              Blocks of keys are skipped while the sum of their weights stays within this share. Adds a LeftOut, or None
              if the output has no elements; the call waits for a GPU.
    schedule  "flash", "vfa", "vsa" or "blasst", or ("vsa", lambda) or ("blasst", lambda): another order of the keys and other
              references than those of "exact", for research, computed slowly on the CPU. The last two skip blocks of keys
              whose weights, relative to a reference, are below lambda, by default 0.001. Adds a LeftOut, as error_budget.
    half_scores   True lets a GPU sum short chains of products of float16 tensors in float16: faster, less accurate, and NaN if
              such a sum is beyond 65504. A CPU and calls of other types ignore it.
    tensor_cores   True or "allow" lets a GPU compute on Tensor Cores where they are faster and as exact as float32 products;
              "always", where they are as exact. "f16" takes one f16 product for each product of float32 tensors without
              masks and biases: faster, with relative errors of about 1e-3, like those of TF32. A guard decides for each
              block of rows, and the bits also depend on whether rows are aligned to four elements. False is "off". A CPU
              ignores it. `refused_blocks` of a Certificate counts the blocks that the guard refused.

    Every axis except dim may be empty. A row that attends no key is zero, and its log-sum-exp is -inf. A call over tensors
    of a GPU enqueues its work in torch's current stream and does not wait.
    """
    names, tensors = ("q", "k", "v"), (q, k, v)
    written, lengths, more = 0, None, None
    if (
        mask is not None
        or bias is not None
        or bias_table is not None
        or bias_index is not None
        or out is not None
        or past is not None
        or present is not None
        or cu_seqlens_q is not None
        or cu_seqlens_k is not None
        or certify
        or error_budget
        or schedule
        or half_scores
        or tensor_cores
    ):
        added = ("mask", mask), ("bias", bias), ("bias_table", bias_table), ("bias_index", bias_index)
        names, tensors = _with(names, tensors, *added)
        plain = past is present is cu_seqlens_q is cu_seqlens_k is None
        if not plain or certify or error_budget or schedule or half_scores or tensor_cores:
            names, tensors, written, cache = _cached(names, tensors, out, past, present)
            packed, lengths = _bounds(cu_seqlens_q, cu_seqlens_k)
            proved, budget = bool(certify), _number("error_budget", error_budget) or 0.0
            cores = _cores(tensor_cores)
            more = _more(packed, False, cache, proved, budget, _scheduled(schedule), bool(half_scores), cores)
            if packed and key_lengths is not None:
                raise ArgumentError("key_lengths: given with cu_seqlens_q; allowed: one of them")
            _waits("certify", proved, q)
            _waits("error_budget", budget, q)
        elif out is not None:
            names, tensors, written = names + ("out",), tensors + (out,), 1
    try:
        diagonal = _CAUSAL[causal]
    except (KeyError, TypeError):
        diagonal = _diagonal(causal)
    sides = (None, None)
    if window is not None:
        sides = _sides(window)
    if key_lengths is not None:
        lengths = (_lengths(key_lengths),)
    if windows is not None:
        windows = _pairs(windows)
    if scale is not None and type(scale) is not float:
        scale = _number("scale", scale)
    if type(softcap) is not float:
        softcap = 0.0 if softcap is None else _number("softcap", softcap)
    options = scale, softcap, diagonal, sides, windows, key_lengths is not None, not not lse, more
    return _call(_Attention, names, tensors, options, engine, written, lengths)


class _Linear(_Prepared):
    Problem, Options, Inputs, Outputs = _LinearProblem, _LinearOptions, _LinearInputs, _StateOutputs
    lengths = ("cu_seqlens",)

    def fill(self, numbers, sizes, scale, normalize, in_place, packed, present):
        arrays, problem, options = self.arrays, self.problem, self.options
        rank = len(arrays["q"].shape)

        def operand(name, *axes):
            array = arrays[name]
            found = len(array.shape)
            if found not in axes:
                raise ArgumentError(f"{name}: {found} axes; allowed: {' or '.join(map(str, axes))}")
            if found < rank:
                # One number per token is a row of one element.
                array.shape, array.strides = array.shape + (1,), array.strides + (0,)
            return self.rows(name)

        problem.dtype = operand("q", 2, 3, 4)
        types = [operand(name, rank) for name in ("k", "v")]
        tokens, keys, values = arrays["q"].shape[-2], arrays["q"].shape[-1], arrays["v"].shape[-1]
        batch, heads, states = problem.q.shape[0], problem.q.shape[1], problem.v.shape[1]
        if "out" not in arrays:
            shape = arrays["q"].shape[:-3] + (max(heads, states),) * (rank > 2) + (tokens, values)
            self.make("out", None, shape)
        for name, number in zip(("k", "v", "out"), types + [operand("out", rank)]):
            if number != problem.dtype:
                raise ArgumentError(f"{name}: another type than q; allowed: the same")
        gates = [operand("decay", rank - 1, rank)] if "decay" in arrays else []
        gates += [operand("beta", rank - 1)] if "beta" in arrays else []
        if len(set(gates)) > 1:
            raise ArgumentError("beta: another type than decay; allowed: the same")
        problem.gate_dtype = gates[0] if gates else 0
        if present:
            self.make("present_state", "float32", (packed or batch, states, keys, values)[4 - rank :])
        for name in ("past_state", "present_state"):
            if name in arrays and operand(name, rank) != 0:
                raise ArgumentError(f"{name}: not float32; allowed: float32")
        for name in ("decay", "beta", "past_state", "present_state"):
            setattr(problem, "has_" + name, name in arrays)
        problem.in_place, problem.packed = in_place and 0 not in arrays["past_state"].shape, packed
        problem.rule, problem.direction, options.form = numbers
        options.chunk, options.parts = sizes
        self.optional(scale=scale, normalize=normalize)
        self.runs = any(name in arrays and 0 not in arrays[name].shape for name in ("out", "present_state"))


# Bounds on the errors of a call of linear attention; see elsa_linear_certified in elsa.h. Each element of the output is
# within `absolute` of the exact result, and `channels` holds this bound for each channel. Each element of the present
# states is within `state`. `gain` is the largest factor by which tokens may have amplified an earlier error of a state. If
# `claims` is False, `unclaimed` elements have no finite bound.
LinearCertificate = collections.namedtuple("LinearCertificate", "claims unclaimed absolute channels state gain")


class _CertifiedLinear(_Linear):
    """Linear attention over tensors in host memory, with a certificate."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        compute, words, channels, in_place, at = self.run, self.words, self.channels, self.in_place, self.at("past_state")
        found = [None]

        def run(plan, workspace, inputs, outputs, _):
            report, value, absolute = _Report(), _LinearCertified(), (ctypes.c_double * channels)()
            if in_place:
                # The call overwrites the states that the certificate needs.
                before = ctypes.create_string_buffer(ctypes.string_at(words[at], words[at + 1]))
            status = compute(plan, workspace, inputs, outputs, ctypes.byref(report))
            if status:
                return status
            if in_place:
                words[at] = ctypes.addressof(before)
            given = inputs, ctypes.byref(value), absolute, channels
            status = _lib.elsa_linear_certify(plan, report.backend, *given)
            fields = {name: getattr(value, name) for name in LinearCertificate._fields}
            fields["claims"], fields["channels"] = bool(value.claims), tuple(absolute)
            found[0] = LinearCertificate(**fields)
            return status

        self.run, self.results = run, functools.partial(_with_certificate, self.results, found)

    def fill(self, *options):
        super().fill(*options)
        self.in_place, self.channels = self.problem.in_place, self.arrays["v"].shape[-1]


def _with_certificate(select, found, tensors):
    """Returns what `select` selects from a call's tensors, and the certificate of the call."""
    selected = select(tensors)
    return (selected if isinstance(selected, tuple) else (selected,)) + (found[0],)


def _states(names, tensors, past, present, out):
    """Appends states and the output. Returns names, tensors, whether the call allocates the present states, whether they
    are the past ones in place, and the number of tensors that it writes."""
    make = present is True
    if make or present is False:
        present = None
    names, tensors = _with(names, tensors, ("past_state", past), ("out", out), ("present_state", present))
    in_place = past is not None and past is present
    if not in_place and past is not None and present is not None:
        in_place = _aliased(("past_state", "present_state"), past, present)
    return names, tensors, make, in_place, (out is not None) + (present is not None)


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
    certify=False,
):
    """Computes attention whose memory is a state S [d_k, d_v] of each head of v. Returns the output; with `present_state`
    also the states after the last token; with `certify` also a LinearCertificate. A token updates its state with its key k,
    value v, gate a = exp(decay) and rate beta, and reads it with its query q: the output is scale S'q.

        linear        S <- S + k v'
        gated         S <- a S + k v'                       a scales rows of S
        delta         S <- S + beta k (v - S'k)'
        gated_delta   S <- a S, then as delta

    q, k, v   as of `attention`; k and v have the same number of tokens as q. The heads of k divide those of v. The heads of q are a
              multiple of those of v, or divide them; the output has the larger number of both.
    rule      "linear", "gated", "delta" or "gated_delta".
    decay     natural logarithms of the gates, [batch, heads of v, tokens], or [batch, heads of v, tokens, d_k] with a gate
              for each row; float32 or the type of q. -inf clears the state.
    beta      [batch, heads of v or 1, tokens], of the type of decay.
    past_state   float32 [batch, heads of v, d_k, d_v], the states before the first token; None means zeros.
    present_state   True returns (output, states); an array or tensor is written and returned, and may be past_state.
    scale     multiplies the output; None is 1 / sqrt(d_k).
    normalize    makes queries and keys unit vectors first, x / sqrt(sum of x^2 + normalize); None leaves them.
    direction    "forward", "reverse", "bidirectional" (the sum of both, without states), or "non_causal": every token
              reads the last state.
    cu_seqlens   bounds of sequences packed along the tokens, n + 1 integers in host memory, batch 1;
              states are then [n, heads of v, d_k, d_v].
    form      None, "recurrent", "chunk", "fused_chunk", "parallel" or "scan": the order of operations. Forms
              differ in rounding and speed only. `chunk` is the tokens of a chunk, `parts` the parts of a scan.
    out, engine   as in `attention`. A call over tensors of a GPU does not wait.
    certify   True adds proven bounds on the errors of the output and the states; None if the call computes nothing. The calling
              thread computes the bounds in float64, which takes far longer than the call. Tensors must be in host memory.
    """
    names, tensors = _with(("q", "k", "v"), (q, k, v), ("decay", decay), ("beta", beta))
    names, tensors, make, in_place, written = _states(names, tensors, past_state, present_state, out)
    packed, lengths = 0, None
    if cu_seqlens is not None:
        packed, lengths = _packed(cu_seqlens, "cu_seqlens")
    numbers = _one_of("rule", rule, _RULES), _one_of("direction", direction, _DIRECTIONS), _one_of("form", form, _FORMS)
    options = (
        numbers,
        (_count("chunk", chunk), _count("parts", parts)),
        _number("scale", scale),
        _number("normalize", normalize),
        in_place,
        packed,
        make,
    )
    if certify:
        _in_host_memory("certify", q)
        # `_calls` leaves a call with lists, even empty ones, to the interpreter.
        return _call(_CertifiedLinear, names, tensors, options, engine, written, lengths or ())
    return _call(_Linear, names, tensors, options, engine, written, lengths)


class _Series(_Prepared):
    """An operator on separate channels. Its first option is the index of the layout in `_LAYOUTS`."""

    Options, Outputs = _SeriesOptions, _StateOutputs

    def series(self, name, layout, like=None):
        """Adds a tensor in a layout, whose type must be that of `like`, if given. Returns its ELSA_DTYPE_*."""
        array, layout = self.arrays[name], _LAYOUTS[layout]
        number, size = array.type(_DTYPES)
        shift = len(array.shape) - 3
        if shift not in (-1, 0):
            raise ArgumentError(f"{name}: {len(array.shape)} axes; allowed: {' or '.join((layout, layout[1:]))}")
        if like is not None and array.dtype != self.arrays[like].dtype:
            raise ArgumentError(f"{name}: another type than {like}; allowed: the same")
        axes = layout.index("c") + shift, layout.index("t") + shift
        setattr(self.problem, name, array.view(None if shift else 0, *axes + (None,)))
        self.memory(name, array.span() * size)
        return number

    def numbers(self, name, *shapes):
        """Adds dense float32 of one of the given shapes, copied if necessary."""
        array = self.arrays.get(name)
        if array is None:
            return
        array.type({"float32": (0, 4)})
        if array.shape not in shapes:
            raise ArgumentError(f"{name}: {list(array.shape)}; allowed: {' or '.join(str(list(x)) for x in shapes)}")
        if not array.dense():
            array.copy()
        self.memory(name, 4 * _product(array.shape))

    def results(self, like, layout, shape, in_place, present):
        """Adds the output, with the shape and type of `like`, and the states."""
        if "out" not in self.arrays:
            self.make("out", None, self.arrays[like].shape)
        self.series("out", layout, like)
        if present:
            self.make("present_state", "float32", shape)
        self.numbers("past_state", shape)
        states = self.arrays.get("present_state")
        if states is not None:
            if states.dtype != "float32" or states.shape != shape or not states.dense():
                raise ArgumentError(
                    f"present_state: {states.dtype} {list(states.shape)}; allowed: dense float32 {list(shape)}"
                )
            self.numbers("present_state", shape)
        self.problem.in_place = in_place and 0 not in shape
        self.runs = states is not None or 0 not in self.arrays["out"].shape


class _Recurrence(_Series):
    Problem, Inputs = _RecurrenceProblem, _RecurrenceInputs

    def fill(self, layout, log, reverse, parts, *states):
        problem = self.problem
        problem.dtype = self.series("b", layout)
        problem.gate_dtype = self.series("a", layout)
        problem.gate, problem.reverse, self.options.parts = log, reverse, parts
        self.results("b", layout, (problem.b.shape[0], problem.b.shape[1]), *states)


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
    names, tensors, make, in_place, written = _states(("b", "a"), (b, a), past_state, present_state, out)
    options = _one_of("layout", layout, _LAYOUTS), bool(log), bool(reverse), _count("parts", parts), in_place, make
    return _call(_Recurrence, names, tensors, options, engine, written)


class _Selective(_Series):
    Problem, Inputs = _SelectiveProblem, _SelectiveInputs

    def fill(self, layout, softplus, reverse, *states):
        arrays, problem = self.arrays, self.problem
        problem.dtype = self.series("u", layout)
        problem.gate_dtype = self.series("delta", layout)
        problem.has_z = "z" in arrays
        if problem.has_z:
            self.series("z", layout, "u")
        batch, channels = problem.u.shape[0], problem.u.shape[1]
        if len(arrays["a"].shape) != 2:
            raise ArgumentError(f"a: {list(arrays['a'].shape)}; allowed: [channels, N]")
        parameters = channels, arrays["a"].shape[1]
        self.numbers("a", parameters)
        for name in ("b", "c"):
            axes = len(arrays[name].shape)
            setattr(problem, "fixed_" + name, axes == 2)
            if axes == 2:
                self.numbers(name, parameters)
                continue
            if axes == 4:
                # The library reads groups and their N coefficients as one axis of channels.
                arrays[name].merge(*((1, 3) if _LAYOUTS[layout] == "bct" else (2, 4)))
            self.series(name, layout, "u")
        self.numbers("d", (channels,))
        self.numbers("delta_bias", (channels,))
        problem.softplus, problem.reverse, problem.states = softplus, reverse, parameters[1]
        self.results("u", layout, (batch,) + parameters, *states)


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
    d, delta_bias   float32 [channels]; None means zeros.
    past_state   float32 [batch, channels, N], the states before the first token; None means zeros.
    present_state, reverse, out, engine   as in `recurrence`.
    """
    names, tensors = ("u", "delta", "a", "b", "c"), (u, delta, a, b, c)
    names, tensors = _with(names, tensors, ("d", d), ("z", z), ("delta_bias", delta_bias))
    names, tensors, make, in_place, written = _states(names, tensors, past_state, present_state, out)
    options = _one_of("layout", layout, _LAYOUTS), bool(softplus), bool(reverse), in_place, make
    return _call(_Selective, names, tensors, options, engine, written)


class _Convolution(_Series):
    Problem, Inputs = _ConvolutionProblem, _ConvolutionInputs

    def fill(self, layout, order, method, silu, reverse, *states):
        problem = self.problem
        problem.dtype = self.series("u", layout)
        batch, channels = problem.u.shape[0], problem.u.shape[1]
        shape = self.arrays["filter"].shape
        if len(shape) not in (1, 2, 3) or not shape[-1]:
            raise ArgumentError(f"filter: {list(shape)}; allowed: [K], [channels, K] or [channels, 1, K]")
        taps = shape[-1]
        self.numbers("filter", (taps,), (channels, taps), (channels, 1, taps))
        self.numbers("bias", (channels,))
        problem.order, self.options.method, problem.silu, problem.reverse = order, method, silu, reverse
        problem.shared, problem.taps = len(shape) == 1, taps
        self.results("u", layout, (batch, channels, taps - 1), *states)


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
    bias      float32 [channels], added to the sums; None means zeros.
    order     "newest_first": the first weight applies to the token itself; "newest_last": the last weight does, as in
              the convolutions of ONNX and torch.
    silu      returns x / (1 + exp(-x)) of each sum x.
    past_state   float32 [batch, channels, K - 1], the inputs before the first token, oldest first; None means zeros.
    method    None, "direct" or "fft".
    present_state, reverse, out, engine   as in `recurrence`.
    """
    names, tensors = _with(("u", "filter"), (u, filter), ("bias", bias))
    names, tensors, make, in_place, written = _states(names, tensors, past_state, present_state, out)
    numbers = _one_of("order", order, _TAPS), _one_of("method", method, _METHODS)
    options = (_one_of("layout", layout, _LAYOUTS),) + numbers + (bool(silu), bool(reverse), in_place, make)
    return _call(_Convolution, names, tensors, options, engine, written)


class _Gradients(_Attention):
    Problem, Options, Inputs, Outputs = _GradientsProblem, _GradientsOptions, _GradientsInputs, _GradientsOutputs
    returned, wide = ("d_q", "d_k", "d_v"), ("out",)

    def fill(self, *options):
        arrays = self.arrays
        if arrays["d_out"].shape != arrays["out"].shape:
            raise ArgumentError(f"d_out: {list(arrays['d_out'].shape)}; allowed: {list(arrays['out'].shape)}, the shape of out")
        for name in ("q", "k", "v", "out", "d_out"):
            # The library returns gradients in the views of q, k and v, and reads d_out in that of out.
            if not arrays[name].dense():
                arrays[name].copy()
        super().fill(*options)
        for name in ("out", "d_out"):
            array = arrays[name]
            number, size = array.type(_DTYPES)
            if number not in (0, self.problem.dtype):
                raise ArgumentError(f"{name}: {array.dtype}; allowed: float32, or the type of q")
            self.memory(name, _product(array.shape) * size)
            setattr(self.options, name + "_is_f32", number == 0)
        rows = arrays["q"].shape[:-1]
        for name in ("lse", "state_m", "state_s"):
            if name not in arrays:
                continue
            array = arrays[name]
            array.type(_STATE)
            if array.shape != rows:
                raise ArgumentError(f"{array.name}: {list(array.shape)}; allowed: {list(rows)}")
            if not array.dense():
                array.copy()
            self.memory(name, 4 * _product(rows))
        for name in ("q", "k", "v"):
            self.numbers("d_" + name, self.of(name))
        self.runs = any(0 not in arrays[name].shape for name in self.returned)

    def of(self, name):
        """Returns the shape of the gradient of a tensor."""
        return self.arrays[name].shape


def gradients(
    q,
    k,
    v,
    out,
    d_out,
    lse=None,
    states=None,
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
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    engine=None,
):
    """Computes the gradients of a loss with respect to queries, keys and values. Returns (d_q, d_k, d_v), float32 with the
    shapes of q, k and v. Rows of queries that attend no key, and of keys that no query attends, are zero.

    out       the output of the forward pass over the same tensors: a result of `attention` or `finish`.
    d_out     the gradient of the loss with respect to the output, with the shape of out. Both are float32 or of the type of q.
    lse       the log-sum-exp of the forward pass.
    states    its States, or (m, s), in place of lse: more accurate if scores are large.
    The other arguments are those of `attention`. Tensors must be in host memory; a copy is made of those that are not dense.
    A mask and a bias get no gradients.
    """
    statistics = _statistics(lse, states)
    _in_host_memory("gradients", q)
    added = ("mask", mask), ("bias", bias), ("bias_table", bias_table), ("bias_index", bias_index)
    names, tensors = _with(("q", "k", "v", "out", "d_out"), (q, k, v, out, d_out), *statistics + added)
    packed, lengths = _bounds(cu_seqlens_q, cu_seqlens_k)
    if key_lengths is not None:
        if packed:
            raise ArgumentError("key_lengths: given with cu_seqlens_q; allowed: one of them")
        lengths = (_lengths(key_lengths),)
    options = _rules(scale, softcap, causal, window, windows)
    options += (key_lengths is not None, False, _more(packed))
    return _call(_Gradients, names, tensors, options, engine, 0, lengths)


def _statistics(lse, states):
    """Returns the log-sum-exp or the states of a forward pass, with their names."""
    if (lse is None) == (states is None):
        raise ArgumentError(f"lse: {'None, as is' if lse is None else 'given with'} states; allowed: one of them")
    if states is None:
        return (("lse", lse),)
    if not isinstance(states, (tuple, list)) or len(states) not in (2, 3):
        raise ArgumentError(f"states: {states!r:.60}; allowed: States, or (m, s)")
    return tuple(zip(("state_m", "state_s"), states))


class _Partial(_Attention):
    """Attention over a part of the keys, which returns states. The first list of a call is its _Chunk, or None."""

    def __init__(self, engine, kind, key, descriptions):
        super().__init__(engine, kind, key, descriptions)
        # Runs that return states may need more memory.
        self.plan.bytes, self.place = self.plan.state_bytes, engine._place("elsa_partial", key[-1])
        given = self.chunk = [None]

        def run(plan, workspace, *tensors):
            chunk = None if given[0] is None else ctypes.byref(given[0])
            return _lib.elsa_partial(plan, workspace, chunk, *tensors)

        self.run = run

    def take(self, lists):
        self.chunk[:] = lists[:1]
        super().take(lists[1:])


def partial(
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
    key_offset=0,
    key_total=None,
    query_offset=0,
    query_total=None,
    engine=None,
):
    """Computes attention of q over a part of the keys. Returns States, which `merge` merges with those of the other parts and
    `finish` converts to the output.

    key_offset, key_total       k and v are the keys key_offset, key_offset + 1, ... of key_total keys; None is the last of
              them plus 1. causal, window and key_lengths refer to these positions; a mask and a bias cover only k.
    query_offset, query_total   the same for the queries.
    The other arguments are those of `attention`. Tensors of a GPU can have no offsets and no totals.
    """
    added = ("mask", mask), ("bias", bias), ("bias_table", bias_table), ("bias_index", bias_index)
    names, tensors = _with(("q", "k", "v"), (q, k, v), *added)
    chunk = None
    if key_offset != 0 or query_offset != 0 or key_total is not None or query_total is not None:
        if _kind("q", type(q)).device("q", q) is not None:
            raise UnsupportedError("key_offset: given for tensors of a GPU; allowed: tensors in host memory, or a mask")
        chunk = _Chunk()
        for tensor, name in ((k, "key"), (q, "query")):
            offset, total = (key_offset, key_total) if name == "key" else (query_offset, query_total)
            offset = _count(name + "_offset", offset)
            tokens = tensor.shape[-2] if len(getattr(tensor, "shape", ())) > 1 else 0
            total = _count(name + "_total", min(offset + tokens, sys.maxsize) if total is None else total)
            setattr(chunk, name + "_offset", offset)
            setattr(chunk, name + "_total", total)
    options = _rules(scale, softcap, causal, window, windows)
    lengths = (chunk,) if key_lengths is None else (chunk, _lengths(key_lengths))
    options += (key_lengths is not None, False, _more(states=True))
    return States(*_call(_Partial, names, tensors, options, engine, 0, lengths))


def _rules(scale, softcap, causal, window, windows):
    """Returns the first options of `_Attention.fill`."""
    numbers = _number("scale", scale), 0.0 if softcap is None else _number("softcap", softcap)
    return numbers + (_diagonal(causal), _sides(window), None if windows is None else _pairs(windows))


class _TaskPlan(object):
    """A task of the library. Its workspace is a part of it. A task of gradients has the options `plan`."""

    def __init__(self, engine, problem, task, plan=None):
        self.handle, self.info = _Handle(), _TaskInfo()
        prefix, given = "elsa_task_", None
        if plan is not None:
            prefix, given = "elsa_gradients_task_", ctypes.byref(plan)
        given = ctypes.byref(problem), given, ctypes.byref(task)
        create, describe, self.destroy = [getattr(_lib, prefix + name) for name in ("create", "describe", "destroy")]
        _check(create(engine._handle, *given, ctypes.byref(self.handle)))
        _check(describe(self.handle, ctypes.byref(self.info)))
        self.long, self.engine = _is_long(problem, engine.backend, engine), engine._handle

    def serves(self, plan):
        """Returns whether the task is the workspace of `plan`, as `_Workspace` does."""
        return plan is self

    def __del__(self):
        if self.handle.id:
            self.destroy(self.handle)


def _divided(chunks, number, totals):
    """Returns the levels of a division, the number of a task, and None or the numbers of all queries and keys."""
    levels = tuple(chunks) if isinstance(chunks, (tuple, list)) else (chunks,)
    if not 1 <= len(levels) <= 12:
        raise ArgumentError(f"chunks: {len(levels)} levels; allowed: 1 to 12")
    levels = tuple([_whole("chunks", n, 1, sys.maxsize) for n in levels])
    if totals is not None:
        if not isinstance(totals, (tuple, list)) or len(totals) != 2:
            raise ArgumentError(f"totals: {totals!r:.60}; allowed: (queries, keys)")
        totals = _count("totals", totals[0]), _count("totals", totals[1])
    return levels, _whole("number", number, 0, 2**64 - 1), totals


def _task_options(levels, number, totals):
    """Returns the library's options of a task, from the results of `_divided`."""
    options = _TaskOptions()
    options.chunks[: len(levels)], options.number = levels, number
    if totals is not None:
        options.gathered, (options.queries, options.keys) = 1, totals
    return options


class _Task(_Attention):
    """A task of a division, which returns states of all queries."""

    def __init__(self, engine, kind, key, descriptions):
        super().__init__(engine, kind, key, descriptions)
        problem, options, heads, dim, runs = self.task
        plan, words, at = _TaskPlan(engine, problem, options), self.words, [self.at("state_" + x) for x in "msw"]
        rows = heads * plan.info.queries
        states = [(ctypes.c_float * n)() for n in (rows, rows, rows * dim)]

        def run(handle, workspace, inputs, *_):
            part, whole = _States(*map(ctypes.addressof, states)), _States(*[words[n] for n in at])
            part, whole = ctypes.byref(part), ctypes.byref(whole)
            return _lib.elsa_task_run(handle, inputs, part, None) or _lib.elsa_task_spread(handle, part, whole)

        self.plan, self.run, self.runs, self.place = plan, run, runs, _Place()
        self.place.workspace = plan

    def fill(self, levels, number, totals, *rules):
        super().fill(*rules)
        shape, dim = self.arrays["out"].shape[:-1], self.arrays["out"].shape[-1]
        self.drop("out")
        rows = shape if totals is None else shape[:-1] + totals[:1]
        for name, size in (("state_m", rows), ("state_s", rows), ("state_w", rows + (dim,))):
            self.numbers(name, size)
        self.task = self.problem, _task_options(levels, number, totals), _product(shape[:-1]), dim, 0 not in rows
        # The library plans a task in another way than a call.
        self.runs = None


def task(
    q,
    k,
    v,
    chunks,
    number,
    mask=None,
    scale=None,
    softcap=0.0,
    causal=False,
    window=None,
    key_lengths=None,
    totals=None,
    engine=None,
):
    """Computes one task of a division of attention among boards: some pairs of queries and keys. Every pair belongs to
    exactly one task. Returns States of all queries; rows that the task does not have are the states of no keys. `merge`
    merges the States of all tasks, and `finish` converts them to the output.

    chunks    number of chunks of the tokens: 1, 3, or x * x + x + 1 for a prime power x of at most 32; [7, 3] divides each of
              7 chunks into 3. There are as many tasks as chunks, 21 in this example.
    number    number of the task, from 0.
    totals    (queries, keys), the numbers of all tokens, if q, k, v and the mask contain only the tokens of the task, which
              `task_tokens` lists. None means that they contain all tokens.
    The other arguments are those of `attention`; key_lengths refers to all tokens. Tensors must be in host memory.
    """
    _in_host_memory("task", q)
    names, tensors = _with(("q", "k", "v"), (q, k, v), ("mask", mask))
    options = _divided(chunks, number, totals) + _rules(scale, softcap, causal, window, None)
    options += (key_lengths is not None, False)
    # `_calls` leaves a call with lists, even empty ones, to the interpreter.
    lengths = () if key_lengths is None else (_lengths(key_lengths),)
    return States(*_call(_Task, names, tensors, options, engine, 0, lengths))


def task_tokens(chunks, number, queries, keys=None):
    """Returns the positions of the queries and of the keys of a `task`: two lists. `queries` and `keys` are the numbers of all
    tokens; None for keys means as many as queries."""
    queries = _count("queries", queries)
    totals = queries, queries if keys is None else _count("keys", keys)
    levels, number, _ = _divided(chunks, number, None)
    problem = _Problem()
    for name, tokens in zip(("q", "k", "v", "out"), totals + totals[::-1]):
        view = getattr(problem, name)
        view.shape[:], view.strides[:] = (1, 1, tokens, 1), (0, 0, 1, 1)
    plan = _TaskPlan(_engine_for(None), problem, _task_options(levels, number, None))
    lists = [(_SIZE * n)() for n in (plan.info.queries, plan.info.keys)]
    given = [part for numbers in lists for part in (numbers, len(numbers))]
    _check(_lib.elsa_task_tokens(plan.handle, *given))
    return tuple([list(numbers) for numbers in lists])


class _GradientsTask(_Gradients):
    """A task of the gradients of a division, which returns shares for its tokens."""

    def __init__(self, engine, kind, key, descriptions):
        super().__init__(engine, kind, key, descriptions)
        problem, options, plan, runs = self.task
        plan = _TaskPlan(engine, problem, options, plan)

        def run(handle, workspace, inputs, outputs, report):
            return _lib.elsa_gradients_task_run(handle, inputs, outputs, report)

        self.plan, self.run, self.runs, self.place = plan, run, runs, _Place()
        self.place.workspace = plan

    def fill(self, levels, number, totals, *rules):
        self.division = levels, number, totals
        super().fill(*rules)
        self.task = self.problem, _task_options(levels, number, totals), self.options, self.runs
        # The library plans a task in another way than a call.
        self.runs = None

    def of(self, name):
        levels, number, totals = self.division
        shape = self.arrays[name].shape
        if totals is not None:
            return shape
        tokens = task_tokens(levels, number, self.arrays["q"].shape[-2], self.arrays["k"].shape[-2])
        return shape[:-2] + (len(tokens[name != "q"]),) + shape[-1:]


# Shares of the gradients of queries, keys and values that a task has computed: float32, for the tokens of the task.
Shares = collections.namedtuple("Shares", "d_q d_k d_v")


def gradients_task(
    q,
    k,
    v,
    out,
    d_out,
    chunks,
    number,
    lse=None,
    states=None,
    mask=None,
    scale=None,
    softcap=0.0,
    causal=False,
    window=None,
    key_lengths=None,
    totals=None,
    engine=None,
):
    """Computes one task of a division of `gradients` among boards, over the pairs of queries and keys of `task` with the same
    chunks and number. Returns Shares for the tokens of the task, in the order of `task_tokens`. `merge_gradients` adds the
    Shares of all tasks.

    out, d_out, lse, states   as for `gradients`, of attention of all pairs, such as a result of `merge` and `finish`.
    The other arguments are those of `task`; with `totals`, out, d_out, lse and states contain only the queries of the task.
    """
    statistics = _statistics(lse, states)
    _in_host_memory("gradients_task", q)
    names, tensors = ("q", "k", "v", "out", "d_out"), (q, k, v, out, d_out)
    names, tensors = _with(names, tensors, *statistics + (("mask", mask),))
    options = _divided(chunks, number, totals) + _rules(scale, softcap, causal, window, None)
    options += (key_lengths is not None, False)
    # `_calls` leaves a call with lists, even empty ones, to the interpreter.
    lengths = () if key_lengths is None else (_lengths(key_lengths),)
    return Shares(*_call(_GradientsTask, names, tensors, options, engine, 0, lengths))


def merge_gradients(shares, chunks, queries, keys=None):
    """Adds the Shares of all tasks of a division, in the order of their numbers. Returns (d_q, d_k, d_v), float32. `queries` and
    `keys` are the numbers of all tokens; None for keys means as many as queries. Tensors must be in host memory."""
    shares, levels = list(shares), _divided(chunks, 0, None)[0]
    totals = _count("queries", queries), _count("keys", queries if keys is None else keys)
    if not shares:
        raise ArgumentError("shares: none; allowed: those of every task")
    merge, problem, results = None, _Problem(), []
    try:
        for number, share in enumerate(shares):
            name = f"shares[{number}]"
            if not isinstance(share, (tuple, list)) or len(share) != 3:
                raise ArgumentError(f"{name}: {share!r:.60}; allowed: Shares, (d_q, d_k, d_v)")
            held = [_held(f"{name}.{of}", tensor) for of, tensor in zip(Shares._fields, share)]
            if merge is None:
                for view, (_, kind, described, array), tokens in zip("qkv", held, totals + totals[1:]):
                    shape = array.shape
                    if not 2 <= len(shape) <= 4:
                        raise ArgumentError(f"{array.name}: {len(shape)} axes; allowed: 2, 3, 4")
                    shape = shape[:-2] + (tokens, shape[-1])
                    whole = _Array(array.name, kind, "float32", shape, _dense(shape), None)
                    setattr(problem, view, whole.view(*(None,) * (4 - len(shape)) + tuple(range(len(shape)))))
                    results.append(kind.maker(described, "float32", shape, None)())
                problem.out = problem.q
                view = problem.out
                view.shape[3] = problem.v.shape[3]
                view.strides[:] = [_product(view.shape[n + 1 :]) for n in range(4)]
                handle, options = _Handle(), _task_options(levels, 0, None)
                given = ctypes.byref(problem), ctypes.byref(options), ctypes.byref(handle)
                _check(_lib.elsa_gradients_merge_create(*given))
                merge = handle
            part = _GradientsShares()
            for of, (tensor, kind, _, array) in zip(Shares._fields, held):
                setattr(part, of, _Memory(kind.address(tensor), 4 * _product(array.shape)))
            _check(_lib.elsa_gradients_merge_add(merge, number, ctypes.byref(part)))
        outputs = _GradientsOutputs()
        for of, result, (_, kind, _, _) in zip(Shares._fields, results, held):
            setattr(outputs, of, _Memory(kind.address(result), 4 * _product(tuple(result.shape))))
        _check(_lib.elsa_gradients_merge_finish(merge, ctypes.byref(outputs)))
    finally:
        if merge is not None:
            _lib.elsa_gradients_merge_destroy(merge)
    return tuple(results)


_STATE = {"float32": (0, 4)}


def _held(label, tensor):
    """Checks a float32 tensor in host memory. Returns it, dense, the class that reads it, its description and its _Array."""
    kind = _kind(label, type(tensor))
    kind.check(label, tensor)
    described = kind.descriptions((tensor,))[0]
    array = _Array(label, kind, *kind.of(label, type(tensor), described))
    array.type(_STATE)
    if array.device is not None:
        raise ArgumentError(f"{label}: in memory of a GPU; allowed: host memory, as Tensor.cpu() makes it")
    return tensor if array.dense() else kind.dense(tensor), kind, described, array


def _state(name, state):
    """Checks a state. Returns its tensors, dense, the class that reads them, and a function that makes such tensors."""
    if not isinstance(state, (tuple, list)) or len(state) != 3:
        raise ArgumentError(f"{name}: {state!r:.60}; allowed: States, (m, s, w)")
    tensors, makers = [], []
    for part, tensor in zip("msw", state):
        label = f"{name}.{part}"
        kind = _kind(label, type(tensor))
        if tensors and kind is not _kind(name, type(tensors[0])):
            raise ArgumentError(f"{label}: of another library than {name}.m; allowed: the same")
        tensor, _, described, array = _held(label, tensor)
        tensors.append(tensor)
        makers.append(kind.maker(described, "float32", array.shape, None))
    rows, sums, weighted = [tuple(tensor.shape) for tensor in tensors]
    if sums != rows or weighted[:-1] != rows or not weighted:
        found = f"{list(rows)}, {list(sums)}, {list(weighted)}"
        raise ArgumentError(f"{name}: shapes {found}; allowed: m and s [..., rows] and w [..., rows, dim]")
    return tensors, kind, makers


def _pointers(kind, tensors):
    """Returns the library's struct with the addresses of a state."""
    return ctypes.byref(_States(*map(kind.address, tensors)))


def merge(states):
    """Merges states of disjoint sets of keys, in the given order, which determines the bits. Returns States of all these keys.
    `states` is a sequence of States of the same shapes, in host memory, from `partial`, `task`, `stream` or a file."""
    states = list(states)
    if not states:
        raise ArgumentError("states: none; allowed: at least one")
    merged = None
    for n, state in enumerate(states):
        name = f"states[{n}]"
        tensors, kind, makers = _state(name, state)
        shape = tuple(tensors[2].shape)
        if merged is None:
            merged, first, whole = tensors, kind, shape
            continue
        if shape != whole or kind is not first:
            found = f"{list(shape)} of {kind.library}"
            raise ArgumentError(f"{name}: {found}; allowed: {list(whole)} of {first.library}, as states[0]")
        # The first state belongs to the caller.
        into = [make() for make in makers] if n == 1 else merged
        pointers = [_pointers(kind, x) for x in (merged, tensors, into)]
        _check(_lib.elsa_states_merge(_product(whole[:-1]), whole[-1], *pointers))
        merged = into
    return States(*merged)


def finish(states):
    """Converts States to the output, float32 [batch, heads, queries, dim of v], and the log-sum-exp, float32 [batch, heads,
    queries]. Returns both. A row that attends no key is zero, and its log-sum-exp is -inf."""
    tensors, kind, makers = _state("states", states)
    out, lse = makers[2](), makers[0]()
    shape = tuple(tensors[2].shape)
    pointers = _pointers(kind, tensors), kind.address(out), kind.address(lse)
    _check(_lib.elsa_states_finish(_product(shape[:-1]), shape[-1], *pointers))
    return out, lse


class _Helper(object):
    """A thread that calls functions for a thread of the library, whose stack is too small for any Python code."""

    def __init__(self):
        self.asked, self.answered = threading.Lock(), threading.Lock()
        self.asked.acquire()
        self.answered.acquire()
        self.function = self.answer = None
        _thread.start_new_thread(self.work, ())

    def work(self):
        while True:
            self.asked.acquire()
            if self.function is None:
                return
            self.answer = self.function()
            self.answered.release()

    def call(self, function):
        """Returns the result of a function that raises nothing."""
        self.function = function
        self.asked.release()
        self.answered.acquire()
        return self.answer

    def end(self):
        self.function = None
        self.asked.release()


class _Streamed(_Attention):
    """A problem whose tensors are supplied in pieces."""

    def __init__(self, stores, options):
        self.arrays, self.problem, self.options = {}, self.Problem(), self.Options()
        for name, store in stores.items():
            if name in ("lse", "state_m", "state_s", "state_w"):
                continue
            # Only the shapes count.
            shape = tuple(store.shape)
            self.arrays[name] = _Array(name, _Numpy, store.name, shape, _dense(shape), None)
        self.fill(*options)
        for name, array in self.arrays.items():
            if array.copied:
                raise ArgumentError(f"{name}: {array.dtype}; allowed: bool, uint8, float32, float16, bfloat16")

    def make(self, name, dtype, shape, strides=None):
        self.arrays[name] = _Array(name, _Numpy, dtype or self.arrays["q"].dtype, shape, _dense(shape), None)

    def memory(self, name, size, field=None):
        pass


class _Store(object):
    """Tensor of a stream: a source or a sink, and how its axes correspond to [batch, heads, tokens, elements]."""

    def __init__(self, name, given, numpy):
        torch, self.name = sys.modules.get("torch"), None
        if torch is not None and isinstance(given, torch.Tensor):
            _kind(name, type(given)).check(name, given)
            if given.device.type != "cpu":
                raise ArgumentError(f"{name}: device {given.device}; allowed: cpu")
            self.name = str(given.dtype).replace("torch.", "")
            # Numpy has no bfloat16; a copy of elements needs only their size.
            given = (given.view(torch.int16) if self.name == "bfloat16" else given).detach().numpy()
        try:
            self.shape, self.dtype = tuple([int(n) for n in given.shape]), numpy.dtype(given.dtype)
        except (AttributeError, TypeError, ValueError):
            allowed = "an array, a memory map, or an object with shape, dtype, and items by slices"
            raise ArgumentError(f"{name}: {type(given).__name__}; allowed: {allowed}")
        if not self.dtype.isnative:
            raise ArgumentError(f"{name}: {self.dtype}; allowed: this machine's byte order")
        self.given, self.name = given, self.name or self.dtype.name
        # Log-sum-exp and sums have no axis of elements.
        self.numbers = name in ("lse", "state_m", "state_s")
        self.numpy, self.plain = numpy, isinstance(given, numpy.ndarray)

    def place(self, rows, data, size):
        """Returns the slices of the tensor that `rows` describes, and its elements in the library's memory."""
        box = [slice(first, first + count) for first, count in zip(rows.first, rows.count)]
        box.append(slice(rows.start, rows.start + rows.length))
        shape = tuple(rows.count) + (rows.length,)
        strides = tuple([step * rows.element_bytes for step in rows.strides]) + (rows.element_bytes,)
        memory = (ctypes.c_char * size).from_address(data)
        piece = self.numpy.ndarray(shape, self.dtype, memory, 0, strides)
        if self.numbers:
            box, piece = box[:3], piece[..., 0]
        missing = len(box) - len(self.shape)
        return tuple(box[missing:]), piece[(0,) * missing]

    def read(self, rows, data, size):
        box, piece = self.place(rows, data, size)
        found = self.numpy.asarray(self.given[box])
        if found.shape != piece.shape or found.dtype != piece.dtype:
            raise ArgumentError(
                f"{found.dtype} {list(found.shape)}; allowed: {piece.dtype} {list(piece.shape)} for the slices {box}"
            )
        piece[...] = found

    def write(self, rows, data, size):
        box, piece = self.place(rows, data, size)
        # The library's memory is reused, and another class might keep it.
        self.given[box] = piece if self.plain else self.numpy.array(piece)


# Report of a stream: its units, those written, what moved and how long it took, and the choices for the budget; see
# elsa_stream_report and elsa_stream_info in elsa.h.
StreamReport = collections.namedtuple(
    "StreamReport",
    "units finished parts read_bytes written_bytes total_ms read_ms compute_ms wait_ms overlap "
    "host_bytes fixed_bytes resident_rows chunk_keys kernel device_bytes",
)


def stream(
    q,
    k,
    v,
    out,
    host_budget,
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
    lse=None,
    states=None,
    past=None,
    present=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    eta=0.0,
    block=0,
    engine=None,
    device_budget=0,
):
    """Computes attention over tensors that may be larger than memory, piece by piece, and waits. Returns a StreamReport. The
    output has the bits of `attention` on the CPU, unless a GPU computes.

    q, k, v, mask, bias, bias_table, bias_index, past   sources: arrays of numpy or tensors of torch in host memory, above all
              memory maps; or other objects with `shape`, `dtype` and `source[slices]`, which returns a new or existing
              array of these elements. Integer masks and float64 are not converted.
    out, lse, states, present   sinks: arrays, tensors, or objects with `shape`, `dtype` and `sink[slices] = array`. Only those
              that are not None are computed; `states` are States of sinks.
    host_budget   most bytes of memory of the process during the call, with all that it uses at the start.
    eta       length of a chunk of keys as a multiple of the default; 0 is 1.
    block     keys of a block: 64, 128 or 256; 0 is 64.
    device_budget   most bytes of GPU memory; 0 means that the CPU computes. Otherwise the GPU of `engine`, by default the first
              one, computes, with `block` 0. `host_budget` then limits the page-locked memory too.
    The other arguments are those of `attention`.

    One thread reads the sources and another writes the sinks, at the same time; for a GPU, one thread does both in turn. What
    they raise ends the call, as the cause of a StreamError, whose method `resume` writes the rest. Numpy is required.
    """
    try:
        import numpy
    except ImportError as error:
        raise UnsupportedError(f"stream: {error}; allowed: Python with numpy")
    given = [("q", q), ("k", k), ("v", v), ("mask", mask), ("bias", bias), ("bias_table", bias_table)]
    given += [("bias_index", bias_index), ("out", out), ("lse", lse)]
    for name, pair in (("past", past), ("present", present)):
        if pair is not None:
            given += zip((name + "_k", name + "_v"), _pair(name, pair))
    if states is not None:
        if not isinstance(states, (tuple, list)) or len(states) != 3:
            raise ArgumentError(f"states: {states!r:.60}; allowed: States, (m, s, w)")
        given += zip(("state_m", "state_s", "state_w"), states)
    stores = {name: _Store(name, x, numpy) for name, x in given if x is not None or name in ("q", "k", "v")}
    for name in _RESULTS:
        if name in stores and stores[name].plain and not stores[name].given.flags.writeable:
            raise ArgumentError(f"{name}: read-only; allowed: an array that can be written")
    packed, bounds = _bounds(cu_seqlens_q, cu_seqlens_k)
    options = _rules(scale, softcap, causal, window, windows)
    options += (key_lengths is not None, False, _more(packed))
    described = _Streamed(stores, options)
    shape = described.arrays["out"].shape
    for name in ("lse", "state_m", "state_s", "state_w"):
        allowed = shape if name == "state_w" else shape[:-1]
        if name in stores and (stores[name].name, stores[name].shape) != ("float32", allowed):
            found = f"{stores[name].name} {list(stores[name].shape)}"
            raise ArgumentError(f"{name}: {found}; allowed: float32 {list(allowed)}")
    settings = _StreamOptions()
    settings.host_budget, settings.block = _count("host_budget", host_budget), _count("block", block)
    settings.eta, settings.device_budget = _number("eta", eta) or 0.0, _count("device_budget", device_budget)
    settings.outputs = sum([bit for name, bit in _WANTED.items() if name in stores])
    if not settings.outputs:
        raise ArgumentError("out: None; allowed: a sink for the output, the log-sum-exp or the states")
    data = _StreamData()
    lists = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), bounds or ()))
    if key_lengths is not None:
        lists["key_lengths"] = _lengths(key_lengths)
    for name, numbers in lists.items():
        setattr(data, name, _Integers(ctypes.addressof(numbers), len(numbers)))
    engine = engine or _engine_for(0 if settings.device_budget else None)
    return _Stream(engine, described.problem, settings, data, stores, lists).run()


class _Stream(object):
    """A stream of the library and its stores, by operand. `kept` owns the lists of `data`."""

    def __init__(self, engine, problem, settings, data, stores, kept):
        self.handle, self.info = _Handle(), _StreamInfo()
        self.engine, self.data, self.stores, self.kept = engine, data, stores, kept
        given = ctypes.byref(problem), ctypes.byref(settings), ctypes.byref(self.handle)
        _check(_lib.elsa_stream_create(engine._handle, *given))
        _check(_lib.elsa_stream_describe(self.handle, ctypes.byref(self.info)))

    def __del__(self, destroy=_lib.elsa_stream_destroy):
        if self.handle.id:
            destroy(self.handle)

    def run(self, first_unit=0):
        """Runs the units from `first_unit` on. Returns the report."""
        report, failed, helper = _StreamReport(), [], _Helper()
        self.data.first_unit = first_unit
        self.data.read, self.data.write = _callbacks(self.stores, helper, failed)
        run = functools.partial(_lib.elsa_stream_run, self.handle, ctypes.byref(self.data), ctypes.byref(report))
        try:
            if threading.current_thread() is threading.main_thread():
                _run_long(self.engine._handle, run, (self, report, helper))
            else:
                _check(run())
        except ElsaError:
            if not failed:
                raise
            name, cause = failed[0]
            stopped = StreamError(
                f"{name}: {type(cause).__name__}: {cause}; allowed: no exception. {report.finished} of {report.units} units "
                "are written; resume() of this error writes the others"
            )
            stopped.finished, stopped.units, stopped._stream = report.finished, report.units, self
            raise stopped from cause
        finally:
            helper.end()
        found = {name: getattr(report if hasattr(report, name) else self.info, name) for name in StreamReport._fields}
        return StreamReport(**dict(found, kernel=self.info.kernel.decode()))


def _callbacks(stores, helper, failed):
    """Returns the read and write callbacks of a stream. `failed` gets the name of the tensor and the first exception."""

    def attempt(method, rows, data, size):
        name = _OPERANDS[rows.contents.operand]
        name = "bias_table" if name == "bias" and name not in stores else name
        try:
            method(stores[name], rows.contents, data, size)
            return 0
        except BaseException as error:
            failed.append((name, error))
            return 1

    def read(_, rows, data, size):
        return helper.call(functools.partial(attempt, _Store.read, rows, data, size))

    def write(_, rows, data, size):
        return attempt(_Store.write, rows, data, size)

    return _Callback(read), _Callback(write)


class _Sdpa(_Attention):
    """Attention by the rules of torch: leading axes, heads and masks are broadcast."""

    fields = {"query": "q", "key": "k", "value": "v", "attn_mask": "mask"}

    def fill(self, scale, causal, grouped, cores):
        arrays = self.arrays
        tensors = q, k, v = [arrays[name] for name in ("q", "k", "v")]
        rank = max([len(x.shape) for x in tensors])
        for x in tensors:
            axes = len(x.shape)
            if axes < 2:
                raise ArgumentError(f"{x.name}: {axes} axes; allowed: 2 or more, [..., tokens, dim]")
            if axes < 4:
                x.expand((1,) * (4 - axes) + x.shape)
            # The library reads rows of contiguous elements.
            if x.strides[-1] != 1 and x.shape[-1] > 1:
                x.copy()
        heads, kv_heads = q.shape[-3], k.shape[-3]
        if v.shape[-3] != kv_heads and not grouped and 1 in (v.shape[-3], kv_heads):
            kv_heads = max(kv_heads, v.shape[-3])
            for x in (k, v):
                x.expand(x.shape[:-3] + (kv_heads,) + x.shape[-2:])
        if heads == 1 and kv_heads > 1 and not grouped:
            heads = kv_heads
            q.expand(q.shape[:-3] + (heads,) + q.shape[-2:])
        if not grouped and kv_heads not in (1, heads):
            raise ArgumentError(f"key: {kv_heads} heads; allowed: 1 or {heads}, those of query, or enable_gqa=True")
        axes = ()
        for sizes in zip(*[(1,) * (rank - len(x.shape)) + x.shape[:-3] for x in tensors]):
            wide = set(sizes) - {1}
            if len(wide) > 1:
                found = ", ".join(str(list(x.shape[:-3])) for x in tensors)
                raise ArgumentError(f"query, key, value: leading axes: {found}; allowed: those that can be broadcast")
            axes += (wide.pop() if wide else 1,)
        for x in tensors:
            if x.shape[:-3] != axes:
                x.expand(axes + x.shape[-3:])
            if len(axes) > 1:
                x.merge(0, len(axes))
        tokens, values = q.shape[2], v.shape[3]
        if "mask" in arrays:
            mask, full = arrays["mask"], axes + (heads, tokens, k.shape[2])
            if causal:
                raise ArgumentError("is_causal: True beside attn_mask; allowed: one of them")
            found = mask.shape
            mask.type(dict(_FLOATS, bool=()))
            if len(found) > len(full) or any(n not in (1, m) for n, m in zip(found[::-1], full[::-1])):
                raise ArgumentError(f"attn_mask: {list(found)}; allowed: what can be broadcast to {list(full)}")
            if not found:
                mask.expand((1,))
            if len(axes) > 1 and len(found) > 3:
                mask.expand(axes + found[-3:])
                mask.merge(0, len(axes))
        # The output is stored as [batch, tokens, heads, dim].
        step = tokens * heads * values
        strides = tuple([n * step for n in _dense(axes)]) + (values, heads * values, 1)
        self.make("out", None, (axes + (heads, tokens, values))[-rank:], strides[-rank:])
        out = arrays["out"]
        out.shape, out.strides = (_product(axes), heads, tokens, values), (step,) + strides[-3:]
        if 0 in out.shape:
            self.runs = None
            return
        super().fill(scale, 0.0, int(causal), (None, None), None, False, False)
        self.options.tensor_cores = cores


def sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    """Computes torch.nn.functional.scaled_dot_product_attention for inference: same arguments, defaults and meaning.

    Tensors are [..., tokens, dim] of float32, float16 or bfloat16, on the CPU or a CUDA device; leading axes are
    broadcast. A mask is bool or of any of these types. The output is stored as [batch, tokens, heads, dim], so a model merges
    the heads without a copy. A tensor whose last axis is not dense is copied. torch.autocast converts the tensors as it does
    for torch's function.

    dropout_p above 0 and tensors that require gradients raise UnsupportedError, float64 raises ArgumentError.
    """
    if dropout_p:
        raise UnsupportedError(f"dropout_p: {dropout_p}; allowed: 0, inference")
    recorded = _compiling() or _transform() is not None
    if not recorded and _kind("query", type(query)) is not _Torch:
        raise ArgumentError(f"query: {type(query).__name__}; allowed: a tensor of torch")
    device = "cuda" if query.is_cuda else "cpu"
    if _Torch.autocasts(device):
        query, key, value, attn_mask = [_autocast(x, device) for x in (query, key, value, attn_mask)]
    if recorded:
        return _Torch.module.ops.elsa.sdpa(query, key, value, attn_mask, bool(is_causal), scale, bool(enable_gqa))
    return _sdpa(query, key, value, attn_mask, is_causal, scale, enable_gqa)


def _autocast(tensor, device):
    """Converts a tensor as torch.autocast does: floating-point numbers on its device, except float64."""
    torch = _Torch.module
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
        return tensor
    return tensor if tensor.device.type != device or tensor.dtype is torch.float64 else tensor.to(_Torch.autocast(device))


def _sdpa(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Computes `sdpa`: the kernel of the operator elsa::sdpa. The innermost patch counts the call, and has the engine and the
    use of Tensor Cores."""
    patches = _patches
    names, tensors = ("query", "key", "value"), (query, key, value)
    if attn_mask is not None:
        names, tensors = names + ("attn_mask",), tensors + (attn_mask,)
    cores, engine = _innermost.cores, _innermost.engine
    options = _number("scale", scale), bool(is_causal), bool(enable_gqa), cores
    out = _call(_Sdpa, names, tensors, options, None if query.is_cuda else engine)
    if patches:
        with patches[-1]._lock:
            patches[-1]._calls += 1
    return out


def _stored(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """Stores the prepared call of `sdpa` where `_calls` finds it, if `_calls` can make such a call."""
    found = _calls.sdpa_key(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if found is None:
        return
    key_of_call, seen = found
    names, tensors = ("query", "key", "value"), (query, key, value)
    if attn_mask is not None:
        names, tensors = names + ("attn_mask",), tensors + (attn_mask,)
    cores, engine = _innermost.cores, _innermost.engine
    device = query.device.index if query.is_cuda else None
    stream = None if device is None else _Torch.stream_of(device) or 1
    engine = _engine_for(device) if engine is None or query.is_cuda else engine
    options = scale, is_causal, enable_gqa, cores
    known = tuple(map(type, tensors)), _Torch.describe(tensors), _Sdpa, names, options, stream
    prepared = engine._local.prepared.get(known)
    if prepared is not None:
        seen[key_of_call] = prepared
        _bound(seen)


def _passed_on(*arguments, **named):
    """Computes `sdpa` for `_calls.sdpa`."""
    out = sdpa(*arguments, **named)
    _stored(*arguments, **named)
    return out


def _operated(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Computes the kernel of elsa::sdpa for `_calls.operate`."""
    out = _sdpa(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    _stored(query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa)
    return out


def _without_gradients(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Refuses tensors that require gradients, where torch would otherwise drop them; else computes elsa::sdpa."""
    torch = _Torch.module
    for name, tensor in (("query", query), ("key", key), ("value", value), ("attn_mask", attn_mask)):
        if tensor is not None:
            _Torch.check(name, tensor)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.elsa.sdpa(query, key, value, attn_mask, is_causal, scale, enable_gqa)


def _sdpa_like(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Returns an empty tensor with the shape and strides of the result of elsa::sdpa, whose sizes may be symbols."""
    tensors = query, key, value
    axes = _Torch.module.broadcast_shapes(*[x.shape[:-3] for x in tensors])
    rows = (query.shape[-2],), (value.shape[-1],)
    if max([x.dim() for x in tensors]) == 2:
        return query.new_empty(rows[0] + rows[1])
    heads = 1
    for x in tensors[:1] if enable_gqa else tensors:
        if heads == 1 and x.dim() > 2:
            heads = x.shape[-3]
    return query.new_empty(tuple(axes) + rows[0] + (heads,) + rows[1]).transpose(-2, -3)


def _sdpa_mapped(info, axes, query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Computes elsa::sdpa under torch.func.vmap: the mapped axis becomes the first one."""
    # Torch leaves out arguments that have their defaults.
    tensors, axes = (query, key, value, attn_mask), (tuple(axes) + (None,))[:4]
    ranks = [x.dim() - (axis is not None) for x, axis in zip(tensors[:3], axes)]
    wide = max(3, *ranks)

    def first(tensor, axis):
        tensor = tensor.unsqueeze(0) if axis is None else tensor.movedim(axis, 0)
        return tensor[(slice(None),) + (None,) * (wide + 1 - tensor.dim())]

    tensors = [None if x is None else first(x, axis) for x, axis in zip(tensors, axes)]
    tensors[0] = tensors[0].expand((info.batch_size,) + (-1,) * wide)
    out = _Torch.module.ops.elsa.sdpa(*tensors, is_causal, scale, enable_gqa)
    return out.squeeze(1) if max(ranks) == 2 else out, 0


# Torch's functions that return whether it is compiling or exporting, and the active transform of torch.func, or None.
# Calls that it records must use the operator. Without the operator, both functions return None.
_compiling = _transform = lambda: None
# The patches whose blocks are open, the innermost last, and the function that they replace.
_patches, _replaced = (), None
_patching = threading.Lock()


class _Block(object):
    """What a call of `sdpa` uses: the use of Tensor Cores and the engine. `calls` is the number of calls that `_known_sdpa` has
    computed."""

    calls = 0

    def __init__(self, cores, engine):
        self.cores, self.engine = cores, engine


_Block = _Block if _elsa is None else _elsa.Block
# That of the innermost patch, or of no patch.
_innermost = _outside = _Block(0, None)
_COMPILER = "torch._dynamo"
# Whether torch's compiler reads `sdpa` where it finds `_known_sdpa`.
_substituted = False


def _register(torch):
    """Registers the operator elsa::sdpa, which torch.compile, torch.export and torch.func.vmap use. Needs torch 2.5."""
    global _compiling, _transform
    with _patching:
        if _Torch.operators is not None or not hasattr(torch.library, "register_vmap"):
            return
        # The operator lives as long as this object.
        library = _Torch.operators = torch.library.Library("elsa", "DEF")
        optional = "Tensor? attn_mask=None, bool is_causal=False, float? scale=None, bool enable_gqa=False"
        library.define(f"sdpa(Tensor query, Tensor key, Tensor value, {optional}) -> Tensor")
        kernel = _sdpa if _calls is None else _calls.operate
        for key, function in (("CPU", kernel), ("CUDA", kernel), ("Autograd", _without_gradients)):
            library.impl("sdpa", function, key)
        torch.library.register_fake("elsa::sdpa", _sdpa_like, lib=library)
        torch.library.register_vmap("elsa::sdpa", _sdpa_mapped, lib=library)
        _Torch.use(torch)
        _compiling, _transform = torch.compiler.is_compiling, torch._C._functorch.peek_interpreter_stack


class _Importing(object):
    """On sys.meta_path, lets a patch use `sdpa` from the import of torch's compiler on, which cannot read `_known_sdpa`."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == _COMPILER and _patches:
            sys.modules["torch"].nn.functional.scaled_dot_product_attention = sdpa


def _replacement(torch):
    """Returns the function that replaces torch's: `_known_sdpa` if torch's compiler is absent or can be told to read `sdpa`
    instead. Importing the compiler takes a second, so it is not imported for this."""
    global _substituted
    if _known_sdpa is None or _Torch.known is None:
        return sdpa
    if _COMPILER in sys.modules and not _substituted:
        try:
            torch.compiler.substitute_in_graph(_known_sdpa, skip_signature_check=True)(sdpa)
        except (AttributeError, TypeError, ValueError):
            return sdpa
        _substituted = True
    return _known_sdpa


def _use(innermost):
    """Sets `_innermost`."""
    global _innermost
    _innermost = innermost
    if _calls is not None:
        _calls.innermost(innermost, _passed_on, _operated)


_use(_outside)


class patch(object):
    """Replaces torch.nn.functional.scaled_dot_product_attention by elsa.sdpa until the `with` block ends, also by an exception.

        with elsa.patch() as patched:
            answer = model(pictures)
        print(patched.calls)                # number of calls that elsa.sdpa computed

    It applies to all threads of the process and to code that calls the function through its module, as torch, timm and
    transformers do; names imported from there earlier do not change. Blocks may be nested, and overlap in threads; the one
    that began last computes. `engine` is an Engine for host tensors. None selects one on the threads of torch's own loops,
    as many as torch uses now; without _elsa or OpenMP, it selects the shared one of the CPU.
    `tensor_cores` is that of elsa.attention, for every call in the block, those of elsa.sdpa and of compiled models too.

    With torch 2.5 or later, torch.compile, torch.export and torch.func.vmap see one operator, elsa::sdpa, so compiled models
    are one graph. Call them in a block; outside, torch compiles them again with its own function. An exported program
    computes anywhere.
    """

    def __init__(self, engine=None, tensor_cores=False):
        self._calls, self._lock = 0, threading.Lock()
        cores = _cores(tensor_cores)
        if engine is None:
            import torch

            engine = _engine_on_threads_of(torch)
        self._block = _Block(cores, engine)

    @property
    def calls(self):
        """Number of calls that elsa.sdpa has computed."""
        return self._calls + self._block.calls

    def __enter__(self):
        global _patches, _replaced
        import torch

        functional = torch.nn.functional
        if not hasattr(functional, "scaled_dot_product_attention"):
            raise UnsupportedError(
                f"torch {torch.__version__}: has no scaled_dot_product_attention; allowed: 2.0 or later, or calls of "
                "elsa.sdpa and elsa.attention"
            )
        _register(torch)
        with _patching:
            if not _patches:
                _replaced = functional.scaled_dot_product_attention
                functional.scaled_dot_product_attention = _replacement(torch)
                if _COMPILER not in sys.modules:
                    sys.meta_path.insert(0, _Importing)
            _patches += (self,)
            _use(self._block)
        return self

    def __exit__(self, *_):
        global _patches
        with _patching:
            last = max(n for n, patched in enumerate(_patches) if patched is self)
            _patches = _patches[:last] + _patches[last + 1 :]
            _use(_patches[-1]._block if _patches else _outside)
            if not _patches:
                sys.modules["torch"].nn.functional.scaled_dot_product_attention = _replaced
                if _Importing in sys.meta_path:
                    sys.meta_path.remove(_Importing)


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
    plan = _Plan(engine, problem)
    workspace = _Workspace(plan)
    _check(_lib.elsa_run(plan.handle, workspace.handle, ctypes.byref(inputs), ctypes.byref(outputs), None))
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
