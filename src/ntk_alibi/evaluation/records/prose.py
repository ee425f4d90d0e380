"""Windows of tokens from running prose."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ntk_alibi.evaluation.records.record import Encode


def prose_windows(
    encode: Encode, chapters: list[str], length: int, count: int
) -> list[NDArray[np.int64]]:
    """Cut the first `count` windows of `length` tokens from the chapters.

    Raises:
        ValueError: the chapters hold fewer tokens.
    """
    tokens = np.array([t for chapter in encode(chapters) for t in chapter], np.int64)
    if len(tokens) < count * length:
        raise ValueError(f"prose must hold {count} windows of {length} tokens, has {len(tokens)}")
    return [tokens[i * length : (i + 1) * length] for i in range(count)]
