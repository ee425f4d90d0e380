from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__version__: str

class SlopeRule:
    press: SlopeRule
    geometric: SlopeRule

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
def alibi_exponents(num_heads: int, rule: SlopeRule) -> NDArray[np.float64]: ...
def key_bias(
    mask: NDArray[np.uint8],
    slopes: NDArray[np.float32],
    anchor: Anchor,
    dtype: DType,
    out: NDArray[Any],
) -> None: ...

class AttentionBias: ...

def no_bias() -> AttentionBias: ...
def linear_bias(left: NDArray[np.float32], right: NDArray[np.float32]) -> AttentionBias: ...
def knee_bias(
    left: NDArray[np.float32],
    right: NDArray[np.float32],
    far_left: NDArray[np.float32],
    far_right: NDArray[np.float32],
    knee: int,
) -> AttentionBias: ...
def table_bias(table: NDArray[np.float32], begin: int) -> AttentionBias: ...
def sums_bias(sums: NDArray[np.float64]) -> AttentionBias: ...
def dense_bias(dense: NDArray[np.float32]) -> AttentionBias: ...

class BlockMask:
    def __init__(self, mask: NDArray[np.bool_]) -> None: ...

class CallRule:
    def __init__(
        self, scale: float, skip_tolerance: float | None, mask_options: Sequence[int]
    ) -> None: ...

class Tokens:
    def __init__(
        self,
        query_positions: NDArray[np.int32] | None,
        key_positions: NDArray[np.int32] | None,
        key_mask: NDArray[np.uint8] | None,
        factors: NDArray[np.float32] | None = None,
        pairs: BlockMask | None = None,
        segments: NDArray[np.int64] | None = None,
    ) -> None: ...

class KeyScales:
    def __init__(self, key: NDArray[np.float32], value: NDArray[np.float32]) -> None: ...

class Dropout:
    def __init__(
        self, least_kept: int, seed: int, row: int, head: int, query: int, key: int
    ) -> None: ...

def random_numbers(dropout: Dropout, shape: tuple[int, int, int, int]) -> NDArray[np.uint16]: ...

class BiasGradients:
    def __init__(
        self,
        left: NDArray[np.float32] | None = None,
        right: NDArray[np.float32] | None = None,
        far_left: NDArray[np.float32] | None = None,
        far_right: NDArray[np.float32] | None = None,
        table: NDArray[np.float64] | None = None,
        sums: NDArray[np.float64] | None = None,
        dense: NDArray[np.float32] | None = None,
    ) -> None: ...

def attention(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    bias: AttentionBias,
    rule: CallRule,
    tokens: Tokens | None,
    output: NDArray[Any],
    logsumexp: NDArray[np.float64] | None = None,
    block_counts: NDArray[np.int64] | None = None,
    key_norms: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
    known_logsumexps: NDArray[np.float64] | None = None,
    scales: KeyScales | None = None,
    dropout: Dropout | None = None,
) -> None: ...
def attention_gradients(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    bias: AttentionBias,
    rule: CallRule,
    tokens: Tokens | None,
    output: NDArray[Any],
    logsumexp: NDArray[np.float64],
    output_gradient: NDArray[Any],
    logsumexp_gradient: NDArray[np.float32] | None,
    query_gradient: NDArray[Any],
    key_gradient: NDArray[Any],
    value_gradient: NDArray[Any],
    of_bias: BiasGradients,
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
