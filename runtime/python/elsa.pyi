"""Types of elsa.py's public names, for type checkers and editors. elsa.py describes the functions."""

from types import TracebackType
from typing import Any, Dict, Literal, Optional, Tuple, Type, TypeVar, Union

__all__ = [
    "attention", "linear_attention", "recurrence", "selective", "conv", "sdpa", "patch", "Engine", "version", "backends",
    "ElsaError", "ArgumentError", "UnsupportedError", "DeviceError", "OutOfMemoryError", "CancelledError",
    "LibraryError",
]

# An array of numpy or a tensor of torch; all tensors of a call are of one library.
_T = TypeVar("_T")
_Causal = Union[bool, Literal["top_left", "bottom_right"]]
_Layout = Literal["btc", "bct"]
_Pair = Tuple[int, int]
_Rule = Literal["linear", "gated", "delta", "gated_delta"]
_Direction = Literal["forward", "reverse", "bidirectional", "non_causal"]
_Form = Literal["recurrent", "chunk", "fused_chunk", "parallel", "scan"]

class ElsaError(Exception): ...
class ArgumentError(ElsaError, ValueError): ...
class UnsupportedError(ElsaError, NotImplementedError): ...
class DeviceError(ElsaError, RuntimeError): ...
class OutOfMemoryError(ElsaError, MemoryError): ...
class CancelledError(ElsaError, RuntimeError): ...
class LibraryError(ElsaError, ImportError): ...

class Engine:
    backend: str
    threads: int
    device: str
    def __init__(self, backend: Optional[str] = None, threads: int = 0, device: int = 0) -> None: ...
    def cancel(self) -> None: ...

class patch:
    calls: int
    def __init__(self, engine: Optional[Engine] = None) -> None: ...
    def __enter__(self) -> patch: ...
    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType], /
    ) -> None: ...

def version() -> str: ...
def backends() -> Dict[str, bool]: ...
def _main() -> None: ...

# The result is a tensor, or (tensor, log-sum-exp).
def attention(
    q: _T,
    k: _T,
    v: _T,
    mask: Optional[_T] = None,
    bias: Optional[_T] = None,
    bias_table: Optional[_T] = None,
    bias_index: Optional[_T] = None,
    windows: Optional[Union[Tuple[_Pair, _Pair], Tuple[_Pair, _Pair, _Pair]]] = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    causal: _Causal = False,
    window: Optional[Tuple[Optional[int], Optional[int]]] = None,
    key_lengths: Any = None,
    out: Optional[_T] = None,
    lse: bool = False,
    engine: Optional[Engine] = None,
) -> Any: ...
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

# The results are tensors, or (tensor, states) with present_state.
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
