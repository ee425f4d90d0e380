"""Rows that are apart in memory, as models pass them: the same bits as adjacent rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import ntk_alibi as na
from attention_checks import random

Layout = Callable[[NDArray[Any]], NDArray[Any]]


def heads_beside(x: NDArray[Any]) -> NDArray[Any]:
    """Return x with the heads of a token beside each other in memory."""
    return np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)


def fused(x: NDArray[Any]) -> NDArray[Any]:
    """Return x with its rows between others, as in a product of queries, keys and values."""
    return np.stack([x, x, x], axis=-2)[..., 1, :]


def padded(x: NDArray[Any]) -> NDArray[Any]:
    """Return x with rows that are longer than head_dim."""
    return np.concatenate([x, x], axis=-1)[..., : x.shape[-1]]


DTYPES = [np.float32, ml_dtypes.bfloat16, np.float16]


@pytest.mark.parametrize("layout", [heads_beside, fused, padded])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("key_heads", [4, 1])
@pytest.mark.usefixtures("isa")
def test_layouts(layout: Layout, dtype: Any, key_heads: int) -> None:
    query = random(0, 2, 4, 300, 24).astype(dtype)
    key, value = random(1, 2, 2, key_heads, 450, 24).astype(dtype)
    options: dict[str, Any] = {"bias": na.ALiBi(4), "return_logsumexp": True}
    plain = na.attention(query, key, value, **options)
    apart = na.attention(layout(query), layout(key), layout(value), **options)
    mixed = na.attention(query, layout(key), value, **options)
    for adjacent, *others in zip(plain, apart, mixed, strict=True):
        for other in others:
            assert other.tobytes() == adjacent.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_blocks_than_are_stored(dtype: Any) -> None:
    key, value = random(0, 2, 1, 1, 9000, 256).astype(dtype)
    query = random(1, 1, 1, 700, 256).astype(dtype)
    options: dict[str, Any] = {"bias": na.ALiBi(1), "skip_tolerance": None}
    both = [
        na.attention(query, layout(key), layout(value), **options)
        for layout in (np.ascontiguousarray, padded)
    ]
    assert both[0].tobytes() == both[1].tobytes()
    last = na.attention(query[:, :, -20:], key, value, **options)  # its tile stores no blocks
    assert both[0][:, :, -20:].tobytes() == last.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_rows_that_share_keys_and_differ_in_padding(dtype: Any) -> None:
    key, value = (
        np.broadcast_to(padded(x), (3, 2, 400, 16))
        for x in random(0, 2, 1, 2, 400, 16).astype(dtype)
    )
    query = random(1, 3, 2, 400, 16).astype(dtype)
    mask = random(2, 3, 400) > 0
    together = na.attention(query, key, value, na.ALiBi(2), key_padding_mask=mask)
    for b in range(3):
        row = slice(b, b + 1)
        alone = na.attention(
            query[row], np.ascontiguousarray(key[row]), np.ascontiguousarray(value[row]),
            na.ALiBi(2), key_padding_mask=mask[row],
        )  # fmt: skip
        assert together[row].tobytes() == alone.tobytes()
