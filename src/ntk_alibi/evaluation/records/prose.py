"""Windows of tokens from running prose."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ntk_alibi.evaluation.records.record import Encode


def prose_windows(
    encode: Encode, texts: list[list[str]], length: int, count: int
) -> list[NDArray[np.int64]]:
    """Cut the first `count` windows of `length` tokens from texts, each window from one text.

    Args:
        encode: function that encodes pieces of text.
        texts: lists of paragraphs that follow each other.
        length: number of tokens in a window.
        count: number of windows.

    Raises:
        ValueError: the texts hold fewer windows.
    """
    windows: list[NDArray[np.int64]] = []
    for paragraphs in texts:
        tokens = np.array([t for paragraph in encode(paragraphs) for t in paragraph], np.int64)
        whole = len(tokens) // length
        windows += [tokens[i * length : (i + 1) * length] for i in range(whole)]
    if len(windows) < count:
        raise ValueError(f"prose must hold {count} windows of {length} tokens, got {len(windows)}")
    return windows[:count]
