"""Errors that say what to do: who does it gets the right result, or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ntk_alibi as na
from ntk_alibi.reference import attention as reference

BATCH, HEADS, TOKENS, DIM = 2, 4, 5, 8
RANDOM = np.random.default_rng(0)
INPUTS = tuple(RANDOM.standard_normal((3, BATCH, HEADS, TOKENS, DIM)).astype(np.float32))
PREFIX = np.tri(TOKENS, dtype=bool) | (np.arange(TOKENS) < 3)


def attend(*bias: Any, arrays: Any = INPUTS, **options: Any) -> Any:
    return na.attention(*arrays, *bias, **options)


def expected(bias: Any = 0.0, seen: Any = True, **options: Any) -> Any:
    return reference(*INPUTS, bias, mask=seen, **options)[0]


DISTANCE = abs(np.arange(TOKENS)[:, None] - np.arange(TOKENS))
SLOPES = na.alibi_slopes(HEADS)[:, None, None]

#: What is asked, the advice in its error, what obeys it, and the right result.
ADVICE: dict[str, tuple[Callable[[], Any], str, Callable[[], Any], Callable[[], Any]]] = {
    "a mask that shows keys ahead of a causal bias": (
        lambda: attend(na.ALiBi(HEADS), causal=False, mask=PREFIX[None, None]),
        r"\(sides='symmetric' of ALiBi\) .*; causal=True hides all keys ahead",
        lambda: attend(na.ALiBi(HEADS, sides="symmetric"), causal=False, mask=PREFIX[None, None]),
        lambda: expected(-SLOPES * DISTANCE, PREFIX),
    ),
}


@pytest.mark.parametrize("name", ADVICE)
def test_who_does_what_an_error_says_gets_the_right_result(name: str) -> None:
    asked, advice, obeyed, right = ADVICE[name]
    with pytest.raises((TypeError, ValueError), match=advice):
        asked()
    result, want = obeyed(), right()
    np.testing.assert_allclose(np.asarray(result, np.float64), want, rtol=1e-5, atol=2e-6)
