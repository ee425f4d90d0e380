"""Error messages for wrong scalings and configs: each one made to happen.

`tests/test_fuzz.py` passes many wrong values for every argument and checks the name; here each
sentence is written once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ntk_alibi as na

KNEE = na.Knee(4, 2.0)
SOME_LAYERS = na.NTK(4.0, layers=[1])
KEYS = np.ones((1, 9), np.int64)


def key_only(scaling: Any) -> Any:
    return na.build_alibi_tensor(KEYS, 4, np.float32, scaling)


def read(alibi_type: Any, **keys: Any) -> Any:
    return na.scaling_from_config({"alibi_type": alibi_type, **keys})


def read_type(**keys: Any) -> Any:
    return na.scaling_from_config(keys)


class Returns:
    """A user's scaling, which returns anything."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def scale_exponents(self, exponents: Any, lengths: Any = None) -> Any:
        return self.result


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    # values
    *[
        (lambda s=s, v=v: s(v), ValueError, f"factor must be a finite number >= 1, got {v}")
        for s in (na.NTK, na.Interpolation)
        for v in (0.99, math.nan, math.inf)
    ],
    (lambda: na.NTK("4"), TypeError, "factor must be a number, got '4'"),
    (lambda: na.DynamicNTK(0.0), ValueError, "rate must be a finite number > 0, got 0.0"),
    (
        lambda: na.alibi_slopes(8, na.DynamicNTK(), lengths=[3]),
        ValueError,
        "train_length must be given for .* got None",
    ),
    (lambda: na.DynamicNTK(1.0, 0), ValueError, "train_length must be between 1 and .*, got 0"),
    (lambda: na.DynamicNTK(per="token"), ValueError, "per must be one of 'sequence', 'query', got"),
    (lambda: na.DynamicFlatHeads(2.0, share=1.5), ValueError, "share must be above 0 and at most"),
    (lambda: na.Knee(-1, 2.0), ValueError, "start must be between 0"),
    (lambda: na.Knee(4, 0.0), ValueError, "factor must be a finite number > 0, got 0.0"),
    # layers
    (lambda: na.NTK(4.0, layers=[]), ValueError, "layers must hold at least one layer index, got"),
    (lambda: na.NTK(4.0, layers=[-1]), ValueError, "a number in layers must be between 0"),
    (lambda: na.NTK(4.0, layers=[1.5]), TypeError, "a number in layers must be an integer, got 1."),
    (lambda: na.NTK(4.0, layers="12"), TypeError, "layers must be None or an iterable of layer in"),
    *[
        (call, ValueError, r"scaling must be for one layer here, got .*layers=\(1,\)\): pass i")
        for call in (
            lambda: na.ALiBi(4, SOME_LAYERS),
            lambda: na.ALiBi(4, na.Knee(4, 2.0, layers=[1])),
            lambda: na.alibi_slopes(4, SOME_LAYERS),
            lambda: key_only(SOME_LAYERS),
            lambda: na.AlibiAttention(4, 16, scaling=SOME_LAYERS),
            lambda: na.RoPE(8).stretched(SOME_LAYERS),
        )
    ],
    # what is no scaling, or none that a call can take
    (lambda: na.alibi_slopes(8, 4.0), TypeError, "scaling must be None or an object with .* got 4"),
    (lambda: na.ALiBi(8, na.NTK), TypeError, "scaling must be None or an object"),
    (lambda: na.alibi_slopes(8, na.DynamicNTK()), ValueError, "lengths must be given .* got None"),
    *[
        (call, ValueError, r"scaling must act on slopes here, got Knee\(start=4")
        for call in (
            lambda: na.alibi_slopes(4, KNEE),
            lambda: na.plots.slopes(4, KNEE),
            lambda: KNEE.scale_exponents(np.ones(4)),
        )
    ],
    (lambda: key_only(KNEE), ValueError, r"scaling must not be a knee here.*got Knee\(start=4"),
    (
        lambda: key_only(na.DynamicNTK(per="query")),
        ValueError,
        "scaling must not have per='query' here, .*; got DynamicNTK",
    ),
    *[
        (lambda x=x: na.alibi_slopes(4, Returns(x)), ValueError, r"scale_exponents must return \(4")
        for x in (np.zeros(3), np.zeros((2, 3)), np.zeros(()))
    ],
    (
        lambda: na.alibi_slopes(4, Returns(np.full(4, np.nan))),
        ValueError,
        "scale_exponents must return finite values",
    ),
    # configs
    (lambda: na.scaling_from_config("ntk"), TypeError, "config must be a mapping, got 'ntk'"),
    (lambda: na.scaling_from_config({}), ValueError, "or of another type; 'alibi_type' is missing"),
    (lambda: read("yarn"), ValueError, "alibi_type must be one of 'default', 'linear'.*got 'yarn'"),
    (lambda: read("ntk"), ValueError, "'factor' is missing"),
    (lambda: read("knee", factor=2.0), ValueError, "'start' is missing"),
    (lambda: read("ntk", factor=2.0, rate=1), ValueError, "'rate' is unknown"),
    (lambda: read_type(type="linear"), ValueError, "one of factor and train_seq_len besides type"),
    (
        lambda: read_type(type="linear", factor=2, train_seq_len=9),
        ValueError,
        "one of factor and train_seq_len besides type, as BTLM and JAIS",
    ),
    (lambda: read_type(type="linear", scale=2), ValueError, "'scale' is unknown"),
    (lambda: read_type(type="ntk", factor=2), ValueError, "type must be one of 'linear', got 'ntk"),
    (
        lambda: read("ntk", type="linear", factor=2),
        ValueError,
        "config must have alibi_type, as ntk_alibi has it, or type, as BTLM .* have it, got both",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("attempt", "error", "message"), REFUSED, ids=[x[2] for x in REFUSED])
def test_wrong_arguments_get_a_sentence(
    attempt: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        attempt()


def test_a_number_is_told_the_method_that_takes_it() -> None:
    for number in (4.0, 4):
        with pytest.raises(TypeError, match=r'got 4.*: did you mean NTK\(4\), or "ntk:4"'):
            na.alibi_slopes(8, number)  # type: ignore[arg-type]
