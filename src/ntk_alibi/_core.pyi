from typing import Any

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
def relative_bias(
    left: NDArray[np.float32], right: NDArray[np.float32], dtype: DType, out: NDArray[Any]
) -> None: ...
