"""Arguments that belong together: where one has an entry less or more than others, all is refused.

The C++ interface has the same in `cpp/tests/api_tests.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from ntk_alibi.fused.gradients import attention_gradients
from refusals import check_line

BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, DIM = 3, 4, 2, 5, 7, 8
RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


QUERY, KEY = floats(BATCH, HEADS, QUERIES, DIM), floats(BATCH, KEY_HEADS, KEYS, DIM)
OUTPUT, LOG = floats(BATCH, HEADS, QUERIES, DIM), floats(BATCH, HEADS, QUERIES)
MASK = np.ones((BATCH, HEADS, QUERIES, KEYS), bool)
REAL, IDS = np.ones((BATCH, KEYS), np.uint8), np.zeros((BATCH, KEYS), np.int64)
AT_KEYS = np.arange(KEYS)[None].repeat(BATCH, 0)
AT_QUERIES = AT_KEYS[:, KEYS - QUERIES :]
SLOPES, PER_HEAD = abs(floats(BATCH, HEADS, QUERIES)), abs(floats(HEADS)) + 0.5
ROWS = na.QuantizedRows.of(KEY)
INPUTS = {"query": QUERY, "key": KEY, "value": KEY}


def attend(bias: Any = None, **given: Any) -> Any:
    return na.attention(**INPUTS | given, bias=bias)


def two_sided(left: Any, right: Any) -> Any:
    return attend(na.ALiBi(HEADS, slopes=(left, right), sides="two_slopes"), causal=False)


def of_lengths(slopes: Any, lengths: Any) -> Any:
    return na.ALiBi(HEADS, slopes=slopes).tensor(4, 6, lengths=lengths)


def merge(first: Any, second: Any, log: Any, other: Any, output: Any, logsumexp: Any) -> Any:
    return na.merge([first, second], [log, other], out=(output.copy(), logsumexp.copy()))


def module(**arrays: Any) -> Any:
    return na.AlibiAttention(HEADS, DIM)(**{x: torch.tensor(y) for x, y in arrays.items()})


GRADIENTS = {"output": OUTPUT, "output_gradient": OUTPUT}
GRADIENTS |= {"logsumexp": LOG, "logsumexp_gradient": LOG}
PARTS = {"first": OUTPUT, "second": OUTPUT, "log": LOG, "other": LOG}
PARTS |= {"output": OUTPUT, "logsumexp": LOG}
MODULE = {"q": floats(BATCH, QUERIES, DIM), "k": floats(BATCH, KEYS, DIM), "mask": MASK}
MODULE |= {"v": MODULE["k"], "key_padding_mask": REAL}

#: Calls of attention, in which all axes of all arrays agree.
ATTENTION: dict[str, dict[str, Any]] = {
    "masks": {**INPUTS, "mask": MASK, "key_padding_mask": REAL, "causal": False},
    "positions": {**INPUTS, "key_positions": AT_KEYS, "query_positions": AT_QUERIES},
    "segments": {**INPUTS, "segment_ids": IDS, "query_segment_ids": IDS[:, 2:]},
    "a dense bias": {**INPUTS, "bias": floats(BATCH, HEADS, QUERIES, KEYS)},
}

#: Other functions of arrays, names that their errors may begin with, and arrays that agree.
OTHERS: dict[str, tuple[Callable[..., Any], str, dict[str, Any]]] = {
    "BlockMask": (lambda mask: attend(mask=na.BlockMask(mask), causal=False), "", {"mask": MASK}),
    "slopes": (lambda slopes: attend(na.ALiBi(HEADS, slopes=slopes)), "", {"slopes": SLOPES}),
    "sides": (two_sided, "slopes", {"left": SLOPES, "right": SLOPES}),
    "lengths": (of_lengths, "", {"slopes": SLOPES[:, :, 0], "lengths": np.full(BATCH, 5)}),
    "gates": (
        lambda log_gates: attend(na.ForgetGates(log_gates)), "bias",
        {"log_gates": -abs(floats(BATCH, HEADS, KEYS))},
    ),
    "parameters": (
        lambda r1, r2: attend(na.KerpleLog(r1, r2)), "bias", {"r1": PER_HEAD, "r2": PER_HEAD}
    ),
    "strengths": (
        lambda x: attend(log_n=na.LogN(4, x.tolist())), "strength of log_n", {"x": PER_HEAD}
    ),
    "norms": (lambda x: attend(key_norms=na.KeyNorms().update(x)), "key_norms", {"x": KEY}),
    "initial": (
        lambda output, log: attend(initial=(output, log)), "initial", {"output": OUTPUT, "log": LOG}
    ),
    "merge": (merge, "outputs logsumexps out", PARTS),
    "gradients": (partial(attention_gradients, **INPUTS), "", GRADIENTS),
    "module": (module, "", MODULE),
    "rows": (na.QuantizedRows, "", vars(ROWS)),
    "rotate": (na.RoPE(DIM).rotate, "", {"x": QUERY, "positions": AT_QUERIES}),
    "log_n_scale": (
        partial(na.log_n_scale, QUERIES, KEYS, 4), "",
        {"key_padding_mask": REAL, "query_positions": AT_QUERIES},
    ),
    "build_alibi_tensor": (
        partial(na.build_alibi_tensor, num_heads=HEADS, dtype=np.float32), "",
        {"attention_mask": REAL, "out": floats(BATCH * HEADS, 1, KEYS)},
    ),
}  # fmt: skip

#: Axes along which nothing has to agree.
FREE = {("lengths", "slopes", 1), ("rotate", "x", 1)}
FREE |= {("rows", "numbers", 3)}


def check(name: str, call: Callable[..., Any], names: str, given: dict[str, Any]) -> None:
    """Check that each array is refused with an entry less or more along an axis."""
    call(**given)
    for argument, array in given.items():
        for axis in range(getattr(array, "ndim", 0)):
            if (name, argument, axis) in FREE:
                continue
            for entries in (range(1, array.shape[axis]), [0, *range(array.shape[axis])]):
                with pytest.raises(ValueError, match=" must ") as caught:
                    call(**given | {argument: np.take(array, entries, axis)})
                check_line(caught.value, *filter(None, [*given, *names.split(" "), names]))


@pytest.mark.parametrize("name", OTHERS)
def test_what_disagrees_by_one_is_refused(name: str) -> None:
    check(name, *OTHERS[name])


def of_tensors(
    dtype: torch.dtype = torch.float32, device: str = "cpu", *, maps: bool = False, **given: Any
) -> Any:
    """Attend to tensors; if `maps`, vmap maps masks and positions, whose values are not read."""
    tensors = {
        name: torch.tensor(x, device=device) if isinstance(x, np.ndarray) else x
        for name, x in given.items()
    }
    rows = {x: tensors[x].to(dtype).requires_grad_(not maps) for x in INPUTS}
    others = {name: x for name, x in tensors.items() if name not in INPUTS}
    mapped = {name: x[None] for name, x in others.items() if isinstance(x, torch.Tensor)}
    if not maps:
        return na.attention(**rows, **others)
    return torch.func.vmap(lambda given: na.attention(**rows | others | given))(mapped)


#: Ways of computing: arrays in the core, recorded tensors, and tensors whose masks and positions
#: have no values, as on other devices and in traces.
KINDS: dict[str, Callable[..., Any]] = {
    "arrays": na.attention,
    "recorded": of_tensors,
    "float64": partial(of_tensors, torch.float64),
    "meta": partial(of_tensors, device="meta"),
    "mapped": partial(of_tensors, maps=True),
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in KINDS
        for name in ATTENTION
        if name != "segments" or kind not in ("meta", "mapped")  # these need the values
    ],
)
def test_inputs_are_compared_in_every_way(kind: str, name: str) -> None:
    check(name, KINDS[kind], "", ATTENTION[name])


@pytest.mark.parametrize("short", [(-1, 4), (-2, 3)])
def test_a_table_that_is_one_distance_short_is_refused_or_nan(short: tuple[int, int]) -> None:
    """Nobody reads positions that vmap maps or torch traces, so that the output says it."""
    first, last = short
    bias = na.DistanceTable(floats(HEADS, last - first + 1), begin=first)
    rows = torch.from_numpy(floats(3, 1, HEADS, 4, DIM)).double()

    def call(at_queries: Any) -> Any:
        at_keys = np.arange(4)
        return na.attention(
            *rows, bias, causal=False, key_positions=at_keys, query_positions=at_queries
        )

    with pytest.raises(ValueError, match="table must cover the distances -2 to 4"):
        call(np.arange(1, 5))
    outside = torch.func.vmap(call)(torch.arange(1, 5)[None])[0].isnan()
    assert outside.any()
    assert not outside.all()
