"""Types of elsa.distributed's public names. Tensors, groups and meshes are those of torch, which this file does not import."""

from types import TracebackType
from typing import Any, List, Literal, Optional, Sequence, Tuple, Type, Union

from . import Engine

__all__ = ["positions", "ring_attention", "reduce_attention", "sdpa", "patch"]

_Order = Literal["contiguous", "zigzag"]
_Chunks = Optional[Union[int, Sequence[int]]]
_Causal = Union[bool, Literal["top_left", "bottom_right"]]
_Sides = Tuple[Optional[int], Optional[int]]

def positions(tokens: int, rank: int, ranks: int, order: _Order = "contiguous", chunks: _Chunks = None) -> List[int]: ...

# The results are the output, or a tuple of it and the log-sum-exp.
def ring_attention(
    q: Any,
    k: Any,
    v: Any,
    group: Any = None,
    order: _Order = "contiguous",
    chunks: _Chunks = None,
    mask: Any = None,
    bias: Any = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    causal: _Causal = False,
    window: Optional[_Sides] = None,
    key_lengths: Any = None,
    lse: bool = False,
    engine: Optional[Engine] = None,
    timeout: float = 300.0,
) -> Any: ...
def reduce_attention(
    q: Any,
    k: Any,
    v: Any,
    group: Any = None,
    order: _Order = "contiguous",
    chunks: _Chunks = None,
    mask: Any = None,
    bias: Any = None,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    causal: _Causal = False,
    window: Optional[_Sides] = None,
    key_lengths: Any = None,
    lse: bool = False,
    engine: Optional[Engine] = None,
    timeout: float = 300.0,
) -> Any: ...
def sdpa(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Any: ...

class patch:
    calls: int
    def __init__(
        self,
        mesh: Any = None,
        dim: Optional[str] = None,
        order: _Order = "contiguous",
        chunks: _Chunks = None,
        engine: Optional[Engine] = None,
        timeout: float = 300.0,
    ) -> None: ...
    def __enter__(self) -> patch: ...
    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType], /
    ) -> None: ...
