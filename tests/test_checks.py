"""Error messages name the argument, the expected value and the actual one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na

MASK = np.ones((2, 5), np.int64)
NAN, INF = float("nan"), float("inf")


def build(mask: Any = MASK, heads: Any = 4, dtype: Any = np.float32, *args: Any, **kw: Any) -> Any:
    return na.build_alibi_tensor(mask, heads, dtype, *args, **kw)


WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: na.alibi_slopes(0), ValueError, "num_heads must be between 1 and .*, got 0"),
    (lambda: na.alibi_slopes(-3), ValueError, "num_heads must be between 1 and .*, got -3"),
    (
        lambda: na.alibi_slopes(2**31 - 1),
        ValueError,
        "num_heads must be between 1 and 1048576, got 2147483647",
    ),
    (lambda: na.alibi_slopes(2.5), TypeError, "num_heads must be an integer, got 2.5"),
    (lambda: na.alibi_slopes("8"), TypeError, "num_heads must be an integer, got '8'"),
    (lambda: na.alibi_slopes(True), TypeError, "num_heads must be an integer, got True"),
    (lambda: na.alibi_slopes(8, rule="x"), ValueError, "rule must be one of 'press', 'geometric'"),
    (lambda: na.alibi_slopes(8, 4.0), TypeError, "scaling must be None or an object with .* got 4"),
    (lambda: na.alibi_slopes(8, na.NTK), TypeError, "scaling must be None or an object"),
    (lambda: na.alibi_slopes(8, na.DynamicNTK()), ValueError, "lengths must be given .* got None"),
    (
        lambda: na.alibi_slopes(8, na.DynamicNTK(), lengths=[1.5]),
        TypeError,
        r"lengths must be integers, got \[1.5\]",
    ),
    (
        lambda: na.alibi_slopes(8, na.DynamicNTK(), lengths=[-1]),
        ValueError,
        "lengths must be between 0 and 2147483647",
    ),
    (
        lambda: na.alibi_slopes(8, na.DynamicNTK(), lengths=[2**31]),
        ValueError,
        "lengths must be between 0 and 2147483647, got .2147483648",
    ),
    (
        lambda: na.alibi_slopes(8, na.DynamicNTK(), lengths=[[1]]),
        ValueError,
        r"lengths must have shape \(batch,\), got \(1, 1\)",
    ),
    (
        lambda: na.alibi_slopes(8, na.DynamicNTK(per="query"), lengths=5),
        ValueError,
        r"lengths must have shape \(batch,\) or \(batch, queries\), got \(\)",
    ),
    *[
        (lambda s=s, v=v: s(v), ValueError, f"factor must be a finite number >= 1, got {v}")
        for s in (na.NTK, na.Interpolation)
        for v in (0.0, 0.99, -2.0, NAN, INF)
    ],
    (lambda: na.NTK("4"), TypeError, "factor must be a number, got '4'"),
    (lambda: na.NTK(None), TypeError, "factor must be a number, got None"),
    (lambda: na.NTK(True), TypeError, "factor must be a number, got True"),
    *[
        (lambda v=v: na.DynamicNTK(v), ValueError, f"rate must be a finite number > 0, got {v}")
        for v in (0.0, -1.0, NAN, INF)
    ],
    (
        lambda: na.alibi_slopes(8, na.DynamicNTK(), lengths=[3]),
        ValueError,
        "train_length must be given for .* got None",
    ),
    (lambda: na.DynamicNTK(1.0, 0), ValueError, "train_length must be between 1 and .*, got 0"),
    (lambda: na.DynamicNTK(1.0, 2.5), TypeError, "train_length must be an integer, got 2.5"),
    (lambda: na.DynamicNTK(per="token"), ValueError, "per must be one of 'sequence', 'query'"),
    (lambda: na.DynamicInterpolation(-1), ValueError, "rate must be a finite number > 0, got -1"),
    (lambda: build([[1, 1]]), TypeError, "attention_mask must be a NumPy array or a torch tensor"),
    (lambda: build(np.ones(5)), ValueError, r"attention_mask must have shape \(batch, keys\)"),
    (lambda: build(np.ones((1, 1, 5, 5))), ValueError, r"got \(1, 1, 5, 5\)"),
    (lambda: build(np.array([[0, 2]])), ValueError, "attention_mask must hold only 0 and 1, got 2"),
    (lambda: build(np.array([[1, NAN]])), ValueError, "attention_mask must hold only 0 and 1, got"),
    (lambda: build(torch.tensor([[-1]]), 4, torch.float32), ValueError, "only 0 and 1, got -1"),
    (lambda: build(MASK, 0), ValueError, "num_heads must be between 1"),
    (lambda: build(MASK, 4, np.int32), TypeError, "dtype must be one of float32, .* got int32"),
    (lambda: build(MASK, 4, torch.long), TypeError, "dtype must be one of float32, .* got int64"),
    (lambda: build(MASK, 4, "floot"), TypeError, "dtype must be a NumPy or torch dtype"),
    (lambda: build(MASK, 4, np.complex64), TypeError, "got complex64"),
    (lambda: build(anchor="middle"), ValueError, "anchor must be one of 'first', 'last'"),
    (
        lambda: build(scaling=na.DynamicNTK(per="query")),
        ValueError,
        "scaling must not have per='query' here",
    ),
    (lambda: build(out=np.empty((8, 1, 4), np.float32)), ValueError, r"out must have shape \(8, 1"),
    (
        lambda: build(out=np.empty((8, 1, 5))),
        ValueError,
        "out must have .* float32, got .* float64",
    ),
    (lambda: build(out=torch.empty((8, 1, 5))), TypeError, "out must be a NumPy array, got Tensor"),
    (
        lambda: build(out=np.empty((8, 1, 10), np.float32)[:, :, ::2]),
        ValueError,
        "out must be contiguous, aligned, writable",
    ),
    (lambda: na.ALiBi(4, sides="both"), ValueError, "sides must be one of 'causal'.* got 'both'"),
    (lambda: na.ALiBi(4, sides="two_slopes"), ValueError, "slopes must be a pair .* got None"),
    (lambda: na.ALiBi(4, slopes=np.ones(3)), ValueError, "slopes must have 4 heads, got 3"),
    (
        lambda: na.ALiBi(4, slopes=np.ones((1, 1, 4, 4))),
        ValueError,
        r"slopes must have shape \(hea",
    ),
    (lambda: na.ALiBi(4, slopes=np.ones(4, int)), TypeError, "slopes must be floating, got .*int"),
    (lambda: na.ALiBi(1, slopes=np.array([NAN])), ValueError, "slopes must not hold NaN"),
    (lambda: na.ALiBi(4, na.NTK(2.0), slopes=np.ones(4)), ValueError, "scaling must be None when"),
    (
        lambda: na.ALiBi(2, slopes=(np.ones(2), np.ones(3)), sides="two_slopes"),
        ValueError,
        r"slopes \(right\) must have 2 heads, got 3",
    ),
    (
        lambda: na.ALiBi(2, slopes=(np.ones((2, 2)), np.ones((3, 2))), sides="two_slopes").tensor(
            1, 1
        ),
        ValueError,
        "slopes must have one batch size, got 2 on the left and 3 on the right",
    ),
    (
        lambda: na.ALiBi(2, slopes=np.ones((1, 2, 3))).tensor(4, 4),
        ValueError,
        "slopes must be given for 4 queries, got 3",
    ),
    (
        lambda: na.ALiBi(2, slopes=torch.ones(2, requires_grad=True)).tensor(4, 4),
        ValueError,
        r"slopes must not require grad here.*slopes.detach\(\)",
    ),
    (lambda: na.ALiBi(4).tensor(-1, 4), ValueError, "query_length must be between 0 .* got -1"),
    (lambda: na.ALiBi(4).tensor(1, 2**31), ValueError, "key_length must be between 0 .*2147483648"),
    (lambda: na.ALiBi(4).tensor(1.5, 4), TypeError, "query_length must be an integer, got 1.5"),
    (
        lambda: na.ALiBi(4).tensor(2, 2, np.float64),
        TypeError,
        "dtype must be one of .* got float64",
    ),
    (
        lambda: na.ALiBi(4, na.DynamicNTK()).tensor(2, 2, lengths=[3]),
        ValueError,
        "lengths must be at most key_length 2, got 3",
    ),
    (lambda: na.set_num_threads(-1), ValueError, "num_threads must be between 0 and 4096, got -1"),
    (lambda: na.set_num_threads(1.5), TypeError, "num_threads must be an integer, got 1.5"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG)
def test_bad_input(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
