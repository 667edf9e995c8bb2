"""Types of elsa.py's public names, for type checkers and editors. elsa.py describes the functions."""

from types import TracebackType
from typing import Any, Dict, Iterable, List, Literal, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar, Union

__all__ = [
    "attention", "partial", "merge", "finish", "stream", "linear_attention", "recurrence", "selective", "conv", "sdpa", "patch",
    "gradients", "task", "task_tokens", "gradients_task", "merge_gradients", "Engine", "States", "Certificate",
    "LinearCertificate", "LeftOut", "Shares", "StreamReport", "version", "backends", "ElsaError", "ArgumentError",
    "UnsupportedError", "DeviceError", "OutOfMemoryError", "CancelledError", "StreamError", "LibraryError",
]

# An array of numpy or a tensor of torch; all tensors of a call are of one library.
_T = TypeVar("_T")
_Causal = Union[bool, Literal["top_left", "bottom_right"]]
_Layout = Literal["btc", "bct"]
_Pair = Tuple[int, int]
_WindowsLike = Union[Tuple[_Pair, _Pair], Tuple[_Pair, _Pair, _Pair]]
_Sides = Tuple[Optional[int], Optional[int]]
_Rule = Literal["linear", "gated", "delta", "gated_delta"]
_Direction = Literal["forward", "reverse", "bidirectional", "non_causal"]
_TensorCores = Literal["off", "allow", "always", "f16"]
_Schedule = Literal["exact", "flash", "vfa", "vsa", "blasst"]
_Form = Literal["recurrent", "chunk", "fused_chunk", "parallel", "scan"]

class ElsaError(Exception): ...
class ArgumentError(ElsaError, ValueError): ...
class UnsupportedError(ElsaError, NotImplementedError): ...
class DeviceError(ElsaError, RuntimeError): ...
class OutOfMemoryError(ElsaError, MemoryError): ...
class CancelledError(ElsaError, RuntimeError): ...
class StreamError(ElsaError, RuntimeError):
    finished: int
    units: int
    def resume(self) -> StreamReport: ...

class LibraryError(ElsaError, ImportError): ...

# Tensors of a state; sinks in a call of `stream`.
class States(NamedTuple):
    m: Any
    s: Any
    w: Any

class Certificate(NamedTuple):
    claims: bool
    flags: Tuple[str, ...]
    keys: int
    bound: float
    likely: float
    absolute: float
    channels: Tuple[float, ...]
    query_norm: float
    key_norm: float
    added: float
    value: float
    kernel: str
    reason: str
    refused_blocks: Optional[Tuple[int, int]]

class LinearCertificate(NamedTuple):
    claims: bool
    unclaimed: int
    absolute: float
    channels: Tuple[float, ...]
    state: float
    gain: float

# `share` is an array or a tensor, of the library of the call's tensors.
class LeftOut(NamedTuple):
    tile_rows: int
    block_keys: int
    rows: int
    blocks: int
    skipped_blocks: int
    unseen_blocks: int
    row_blocks: int
    skipped_row_blocks: int
    worst: float
    p99: float
    mean: float
    share: Any

class Shares(NamedTuple):
    d_q: Any
    d_k: Any
    d_v: Any

class StreamReport(NamedTuple):
    units: int
    finished: int
    parts: int
    read_bytes: int
    written_bytes: int
    total_ms: float
    read_ms: float
    compute_ms: float
    wait_ms: float
    overlap: float
    host_bytes: int
    fixed_bytes: int
    resident_rows: int
    chunk_keys: int
    kernel: str
    device_bytes: int

class Engine:
    backend: str
    threads: int
    device: str
    host: Optional[str]
    def __init__(
        self, backend: Optional[str] = None, threads: int = 0, device: int = 0, host: Optional[Literal["openmp"]] = None
    ) -> None: ...
    def cancel(self) -> None: ...

class patch:
    @property
    def calls(self) -> int: ...
    def __init__(self, engine: Optional[Engine] = None, tensor_cores: Union[bool, _TensorCores] = False) -> None: ...
    def __enter__(self) -> patch: ...
    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType], /
    ) -> None: ...

def version() -> str: ...
def backends() -> Dict[str, bool]: ...
def _main() -> None: ...

# The result is a tensor, or a tuple of it and what lse, present, certify, error_budget and schedule add.
def attention(
    q: _T,
    k: _T,
    v: _T,
    mask: Optional[_T] = None,
    bias: Optional[_T] = None,
    bias_table: Optional[_T] = None,
    bias_index: Optional[_T] = None,
    windows: Optional[_WindowsLike] = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    causal: _Causal = False,
    window: Optional[_Sides] = None,
    key_lengths: Any = None,
    out: Optional[_T] = None,
    lse: bool = False,
    engine: Optional[Engine] = None,
    past: Optional[Tuple[_T, _T]] = None,
    present: Optional[Union[bool, Tuple[_T, _T]]] = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    certify: bool = False,
    error_budget: float = 0.0,
    schedule: Optional[Union[_Schedule, Tuple[_Schedule, float]]] = None,
    half_scores: bool = False,
    tensor_cores: Union[bool, _TensorCores] = False,
) -> Any: ...
def gradients(
    q: _T,
    k: _T,
    v: _T,
    out: _T,
    d_out: _T,
    lse: Optional[_T] = None,
    states: Optional[Tuple[Any, ...]] = None,
    mask: Optional[_T] = None,
    bias: Optional[_T] = None,
    bias_table: Optional[_T] = None,
    bias_index: Optional[_T] = None,
    windows: Optional[_WindowsLike] = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    causal: _Causal = False,
    window: Optional[_Sides] = None,
    key_lengths: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    engine: Optional[Engine] = None,
) -> Tuple[_T, _T, _T]: ...
def gradients_task(
    q: _T,
    k: _T,
    v: _T,
    out: _T,
    d_out: _T,
    chunks: Union[int, Sequence[int]],
    number: int,
    lse: Optional[_T] = None,
    states: Optional[Tuple[Any, ...]] = None,
    mask: Optional[_T] = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    causal: _Causal = False,
    window: Optional[_Sides] = None,
    key_lengths: Any = None,
    totals: Optional[_Pair] = None,
    engine: Optional[Engine] = None,
) -> Shares: ...
def merge_gradients(
    shares: Iterable[Tuple[Any, Any, Any]], chunks: Union[int, Sequence[int]], queries: int, keys: Optional[int] = None
) -> Tuple[Any, Any, Any]: ...
def task(
    q: _T,
    k: _T,
    v: _T,
    chunks: Union[int, Sequence[int]],
    number: int,
    mask: Optional[_T] = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    causal: _Causal = False,
    window: Optional[_Sides] = None,
    key_lengths: Any = None,
    totals: Optional[_Pair] = None,
    engine: Optional[Engine] = None,
) -> States: ...
def task_tokens(
    chunks: Union[int, Sequence[int]], number: int, queries: int, keys: Optional[int] = None
) -> Tuple[List[int], List[int]]: ...
def partial(
    q: _T,
    k: _T,
    v: _T,
    mask: Optional[_T] = None,
    bias: Optional[_T] = None,
    bias_table: Optional[_T] = None,
    bias_index: Optional[_T] = None,
    windows: Optional[_WindowsLike] = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    causal: _Causal = False,
    window: Optional[_Sides] = None,
    key_lengths: Any = None,
    key_offset: int = 0,
    key_total: Optional[int] = None,
    query_offset: int = 0,
    query_total: Optional[int] = None,
    engine: Optional[Engine] = None,
) -> States: ...
def merge(states: Iterable[Tuple[Any, Any, Any]]) -> States: ...
def finish(states: Tuple[Any, Any, Any]) -> Tuple[Any, Any]: ...

# Sources and sinks are arrays, tensors, or objects with shape, dtype and items.
def stream(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    host_budget: int,
    mask: Any = None,
    bias: Any = None,
    bias_table: Any = None,
    bias_index: Any = None,
    windows: Optional[_WindowsLike] = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    causal: _Causal = False,
    window: Optional[_Sides] = None,
    key_lengths: Any = None,
    lse: Any = None,
    states: Optional[Tuple[Any, Any, Any]] = None,
    past: Optional[Tuple[Any, Any]] = None,
    present: Optional[Tuple[Any, Any]] = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    eta: float = 0.0,
    block: int = 0,
    engine: Optional[Engine] = None,
    device_budget: int = 0,
) -> StreamReport: ...
def sdpa(
    query: _T,
    key: _T,
    value: _T,
    attn_mask: Optional[_T] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> _T: ...

# The results are tensors, or tuples of a tensor and what present_state and certify add.
def linear_attention(
    q: _T,
    k: _T,
    v: _T,
    rule: _Rule = "linear",
    decay: Optional[_T] = None,
    beta: Optional[_T] = None,
    past_state: Optional[_T] = None,
    present_state: Optional[Union[bool, _T]] = None,
    scale: Optional[float] = None,
    normalize: Optional[float] = None,
    direction: _Direction = "forward",
    cu_seqlens: Any = None,
    form: Optional[_Form] = None,
    chunk: int = 0,
    parts: int = 0,
    out: Optional[_T] = None,
    engine: Optional[Engine] = None,
    certify: bool = False,
) -> Any: ...
def recurrence(
    a: _T,
    b: _T,
    log: bool = False,
    past_state: Optional[_T] = None,
    present_state: Optional[Union[bool, _T]] = None,
    reverse: bool = False,
    parts: int = 0,
    layout: _Layout = "btc",
    out: Optional[_T] = None,
    engine: Optional[Engine] = None,
) -> Any: ...
def selective(
    u: _T,
    delta: _T,
    a: _T,
    b: _T,
    c: _T,
    d: Optional[_T] = None,
    z: Optional[_T] = None,
    delta_bias: Optional[_T] = None,
    softplus: bool = False,
    past_state: Optional[_T] = None,
    present_state: Optional[Union[bool, _T]] = None,
    reverse: bool = False,
    layout: _Layout = "btc",
    out: Optional[_T] = None,
    engine: Optional[Engine] = None,
) -> Any: ...
def conv(
    u: _T,
    filter: _T,
    bias: Optional[_T] = None,
    order: Literal["newest_first", "newest_last"] = "newest_first",
    silu: bool = False,
    past_state: Optional[_T] = None,
    present_state: Optional[Union[bool, _T]] = None,
    reverse: bool = False,
    method: Optional[Literal["direct", "fft"]] = None,
    layout: _Layout = "btc",
    out: Optional[_T] = None,
    engine: Optional[Engine] = None,
) -> Any: ...
