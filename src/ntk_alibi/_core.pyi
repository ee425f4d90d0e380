from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__version__: str

class DType:
    float32: DType
    bfloat16: DType
    float16: DType

class Anchor:
    first: Anchor
    last: Anchor

def available_isas() -> list[str]: ...
def active_isa() -> str: ...
def select_isa(name: str) -> None: ...
def cpu_vendor() -> Literal["intel", "amd", "other"]: ...
def num_threads() -> int: ...
def set_num_threads(threads: int) -> None: ...
def after_fork_in_child() -> None: ...
def forked() -> bool: ...
def key_bias(
    mask: NDArray[np.uint8],
    slopes: NDArray[np.float32],
    anchor: Anchor,
    dtype: DType,
    out: NDArray[Any],
) -> None: ...

class Bias:
    def __init__(
        self,
        left: NDArray[np.float32] | None = None,
        right: NDArray[np.float32] | None = None,
        table: NDArray[np.float32] | None = None,
        table_begin: int = 0,
        sums: NDArray[np.float64] | None = None,
        dense: NDArray[np.float32] | None = None,
    ) -> None: ...

class BlockMask:
    def __init__(self, mask: NDArray[np.bool_]) -> None: ...

class Problem:
    def __init__(
        self,
        shape: Sequence[int],
        mask: Sequence[int],
        bias: Bias,
        scale: float,
        skip_tolerance: float | None,
        factors: NDArray[np.float32] | None = None,
        query_positions: NDArray[np.int32] | None = None,
        key_positions: NDArray[np.int32] | None = None,
        key_mask: NDArray[np.uint8] | None = None,
        pairs: BlockMask | None = None,
        segments: NDArray[np.int64] | None = None,
    ) -> None: ...

class Dropout:
    def __init__(
        self, least_kept: int, seed: int, row: int, head: int, query: int, key: int
    ) -> None: ...

def random_numbers(dropout: Dropout, shape: tuple[int, int, int, int]) -> NDArray[np.uint16]: ...
def attention(
    problem: Problem,
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    output: NDArray[Any],
    logsumexp: NDArray[np.float64] | None = None,
    block_counts: NDArray[np.int64] | None = None,
    key_norms: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
    known_logsumexps: NDArray[np.float64] | None = None,
    scales: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
    dropout: Dropout | None = None,
) -> None: ...
def attention_gradients(
    problem: Problem,
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    output: NDArray[Any],
    logsumexp: NDArray[np.float64],
    output_gradient: NDArray[Any],
    logsumexp_gradient: NDArray[np.float32] | None,
    query_gradient: NDArray[Any],
    key_gradient: NDArray[Any],
    value_gradient: NDArray[Any],
    bias_gradients: dict[str, NDArray[Any]],
    dropout: Dropout | None = None,
) -> None: ...
def merge(
    outputs: list[NDArray[Any]],
    logsumexps: list[NDArray[np.float64]],
    output: NDArray[Any],
    logsumexp: NDArray[np.float64],
) -> None: ...

keys_per_block: int

def measure_key_norms(
    key: NDArray[Any],
    known: int,
    norms: NDArray[np.float32],
    centres: NDArray[np.float32],
    scales: NDArray[np.float32] | None = None,
) -> None: ...
def relative_bias(
    left: NDArray[np.float32], right: NDArray[np.float32], dtype: DType, out: NDArray[Any]
) -> None: ...
