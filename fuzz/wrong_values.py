"""Values that are wrong for every argument of a type, and values of all types."""

from __future__ import annotations

import warnings
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch


def ones(*shape: int) -> Any:
    """Return ones in float32."""
    return np.ones(shape, np.float32)


MASKED = np.ma.masked_array(ones(2, 4, 3, 8), ones(2, 4, 3, 8) > 0)

#: Values that are wrong for any argument of a type.
NO_INTEGER = ("3", 1.5, True, [1], np.nan, np.float32(2.0), 1j, 2**40, -5, np.ones(2, int))
NO_COUNT = (*NO_INTEGER, None, 0)
NO_NUMBER = ("x", np.nan, np.inf, -np.inf, True, [1.0, 2.0], 1j, object(), np.ones(3))
NO_BOOLEAN = (1, 0, None, "True", [True], np.ones(2, bool))
NO_CHOICE = ("middle", None, 3, ["end"], np.ones(2))
NO_ARRAY = (
    None, "x", 3, [[[[1.0]]]], object(), ones(3), ones(2, 3, 8), np.array("x"), np.array(None),
    np.ones((2, 4, 3, 8), int), np.ones((2, 4, 3, 8), complex), np.ones((2, 4, 3, 8), bool),
    np.ones((2, 4, 3, 8), object), ones(2, 4, 3, 8).astype(">f4"), MASKED,
    torch.ones(2, 4, 3, 8, dtype=torch.int64), torch.ones(2, 4, 3, 8).to_sparse(),
    torch.ones(2, 4, 3, 8, dtype=torch.complex64),
)  # fmt: skip
NO_POSITIONS = (
    "x", 3, object(), np.ones(9, int), np.ones((2, 9), int), np.ones((3, 1, 3), int),
    np.full(3, -1), np.full(3, 2**31), np.array([0.5, 1, 2]), np.array([np.nan, 1, 2]),
    np.array(["a", "b", "c"]), np.array([1j, 2, 3]), np.array([True, False, True]),
    np.array([None, 1, 2]),
)  # fmt: skip
NO_SEGMENTS = (
    "x", 3, object(), np.ones(9, int), np.ones((3, 3), int), np.ones((3, 1, 3), int), np.zeros(3),
    np.array(["a", "b", "c"]), np.array([True, False, False]), np.array([None, 1, 2]), [0, 1, 0],
    np.array([[0, 0, 1], [7, 8, 7]]), np.ma.masked_array([0, 0, 1]),
    torch.ones(3, dtype=torch.int64, device="meta"),
)  # fmt: skip
NO_MASK = (
    "x", 3, object(), np.ones(3), np.ones((2, 9)), np.full((2, 3), 2), np.full((2, 3), -1.0),
    np.full((2, 3), np.nan), np.array([["a"] * 3] * 2), np.full((2, 3), 0.5),
    np.ma.masked_array(np.ones((2, 3)), np.ones((2, 3), bool)),
)  # fmt: skip
NO_HEADS = (
    "x",
    None,
    [[1.0]],
    [np.nan] * 4,
    [np.inf] * 4,
    ones(3),
    np.ones(4, complex),
    ["a"] * 4,
    object(),
)


def _nested() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its interface may change
        return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])


#: Values beyond every range, texts that cannot be written, and what describes itself in lines.
HOSTILE: tuple[Any, ...] = (
    10**400, -(10**400), 10**5000, Fraction(10**400), Decimal("1e400"), 1e39, -1e39, 1e308, 1e-320,
    "\ud800", "two\nlines", "long " * 1000, [10**400], [1e39] * 4,
    torch.nn.Sequential(torch.nn.Linear(1, 1)), [np.ones((2, 2))], np.array(["a\nb"] * 4),
    _nested(), torch.nn.Linear,
    {"a": np.ones((2, 2))}, np.full((2, 4, 3, 8), 1e39), np.full(4, 1e39), np.float64(1e39),
)  # fmt: skip

#: Anything that somebody might pass.
ANYTHING: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, np.nan, np.inf, -0.0, 10**30, 1j, "text", "", b"bytes", [], [1],
    [[1.0]], (), (1.0, 2.0), {}, {1}, object(), range(3), slice(3), np.abs, Ellipsis,
    Decimal(1), np.float16(1.0), np.int8(1), np.zeros(()), np.zeros(0), ones(3), ones(2, 3),
    ones(2, 4, 3, 8),
    np.array("x"), np.array(None), np.ones((2, 3), object), np.ones(3, complex),
    np.array(["2020"], "datetime64[D]"), np.zeros(2, [("a", float)]), np.ma.masked,
    torch.ones(3), torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.bool),
    torch.ones(3, device="meta"), torch.ones(2, 3).to_sparse(), torch.float32, np.float32,
    torch.tensor(1.0, requires_grad=True), torch.ones(3, dtype=torch.complex64), *HOSTILE,
)  # fmt: skip
