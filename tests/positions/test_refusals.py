"""Error messages for wrong arguments of rotary embeddings and log-n scaling, each made to happen.

`tests/test_fuzz.py` passes many wrong values for every argument and checks the name; here each
sentence is written once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na

QUERY = np.ones((1, 2, 5, 8), np.float32)


def attend(**options: Any) -> Any:
    return na.attention(QUERY, QUERY, QUERY, **options)


class WithFactors:
    """An object with the method of `LogN` that attention calls."""

    factors = None


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: na.RoPE(7), ValueError, "head_dim must be even for rotary positions, got 7"),
    (lambda: na.RoPE(8, rotary_dim=3), ValueError, "rotary_dim must be even .* got 3"),
    (lambda: na.RoPE(8, rotary_dim=10), ValueError, "rotary_dim must be between 1 and 8, got 10"),
    (lambda: na.RoPE(8, 1.0), ValueError, "base must be a finite number > 1, got 1.0"),
    (lambda: na.RoPE(8, layout="neox"), ValueError, "layout must be one of 'pairs', 'halves'"),
    (lambda: na.XPOS(8, scale_base=0), ValueError, "scale_base must be a finite number > 0, got 0"),
    (lambda: na.RoPE(8, factor=0.5), ValueError, "factor must be a finite number >= 1, got 0.5"),
    (
        lambda: na.RoPE(8).stretched(na.DynamicNTK()),
        TypeError,
        "scaling must be an Interpolation or an NTK, got DynamicNTK",
    ),
    (lambda: na.RoPE(2).stretched(na.NTK(2.0)), ValueError, "for one pair of channels, got an NTK"),
    (lambda: attend(rotary=na.RoPE(16)), ValueError, "rotary must have query's head_dim 8, got"),
    (lambda: attend(rotary=na.RoPE), TypeError, "rotary must be None, a RoPE or an XPOS, got"),
    (
        lambda: attend(rotary=na.XPOS(8), causal=False),
        ValueError,
        "causal must be True.* with XPOS",
    ),
    (lambda: na.RoPE(8).rotate(QUERY.astype(int)), TypeError, "dtype of x must be one of float32"),
    (lambda: na.LogN(1), ValueError, "train_length must be between 2 and"),
    (lambda: na.LogN(8, -1.0), ValueError, "strength must be a finite number >= 0, got -1.0"),
    (lambda: na.LogN(8, (1.0, 1e37)), ValueError, r"strength must be at most 1e\+36, got 1e\+37"),
    (
        lambda: na.LogN(8, []),
        ValueError,
        r"strength must be a number, or one for each head, got",
    ),
    (lambda: na.LogN(8, biased=1), TypeError, "biased must be True or False, got 1"),
    (
        lambda: attend(log_n=na.LogN(8, (1.0, 2.0, 3.0))),
        ValueError,
        "strength of log_n must be one number, or one for each of 2 heads, got 3",
    ),
    (
        lambda: attend(log_n={"strength": 1}),
        ValueError,
        "log_n must have the keys train_length",
    ),
    (lambda: attend(log_n=na.LogN), TypeError, "log_n must be None, a training length or a LogN"),
    (lambda: attend(log_n=WithFactors()), TypeError, "log_n must be None, .*, got <"),
    (
        lambda: attend(rotary=na.RoPE(8), key_positions=np.arange(5) + 0.5),
        ValueError,
        "key_positions must be integers, got 0.5",
    ),
    (
        lambda: attend(rotary=na.RoPE(8), key_norms=na.KeyNorms().update(QUERY)),
        ValueError,
        "key_norms must be None when rotary is given",
    ),
    (lambda: na.RoPE(8).rotate(QUERY[0]), ValueError, "x must have shape"),
    (lambda: na.RoPE(4).rotate(QUERY), ValueError, "x must have head_dim 4"),
    (lambda: na.RoPE(8).rotate(QUERY, np.arange(4)), ValueError, r"positions must have shape \(5,"),
    (
        lambda: na.log_n_scale(5, 4, 8, key_positions=np.arange(4)),
        ValueError,
        "query_positions must be given for more queries than keys",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_bad_input_is_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.needs("torch >= 2.12", "Dynamo of older ones reads no arrays of a bias")
def test_traced_xpos_refuses_positions_that_it_cannot_see() -> None:
    compiled = torch.compile(
        lambda x, at: na.attention(x, x, x, rotary=na.XPOS(8), query_positions=at),
        backend="eager",
        fullgraph=True,
    )
    with pytest.raises(Exception, match="query_positions and key_positions must be None with XPOS"):
        compiled(torch.ones(1, 2, 5, 8), torch.arange(5))
