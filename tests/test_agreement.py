"""Arguments that belong together: where two of them disagree by one, the call is refused.

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

BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, DIM = 3, 4, 2, 5, 7, 8
RANDOM = np.random.default_rng(0)

#: Changes an axis of an array by one entry.
Change = Callable[[Any, int], Any]


def floats(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


QUERY, KEY = floats(BATCH, HEADS, QUERIES, DIM), floats(BATCH, KEY_HEADS, KEYS, DIM)
OUTPUT, LOG = floats(BATCH, HEADS, QUERIES, DIM), floats(BATCH, HEADS, QUERIES)
MASK = np.ones((BATCH, HEADS, QUERIES, KEYS), bool)
REAL, IDS = np.ones((BATCH, KEYS), np.uint8), np.zeros((BATCH, KEYS), np.int64)
AT_KEYS, AT_QUERIES = (
    np.arange(KEYS)[None].repeat(BATCH, 0),
    np.arange(2, KEYS)[None].repeat(BATCH, 0),
)
SLOPES, GATES = abs(floats(BATCH, HEADS, QUERIES)), -abs(floats(BATCH, HEADS, KEYS))
DENSE, PER_HEAD = floats(BATCH, HEADS, QUERIES, KEYS), abs(floats(HEADS)) + 0.5
ROWS = na.QuantizedRows.of(KEY)


#: One entry less or more along an axis.
CHANGES: dict[str, Change] = {
    "less": lambda array, axis: np.take(array, range(1, array.shape[axis]), axis),
    "more": lambda array, axis: np.take(array, [0, *range(array.shape[axis])], axis),
}


def attend(*bias: Any, query: Any = QUERY, key: Any = KEY, value: Any = KEY, **options: Any) -> Any:
    return KINDS[KIND](query, key, value, *bias, **options)


def of_tensors(
    *inputs: Any, dtype: Any = torch.float32, device: str = "cpu", maps: bool = False, **given: Any
) -> Any:
    """Attend to tensors; if `maps`, vmap maps masks and positions, whose values are not read."""
    rows = [torch.tensor(x, dtype=dtype, device=device, requires_grad=not maps) for x in inputs[:3]]

    def tensor(x: Any) -> Any:
        if isinstance(x, na.BlockMask):
            return x if maps else na.BlockMask(tensor(x.mask))
        return torch.tensor(x, device=device) if isinstance(x, np.ndarray) else x

    bias = tuple(map(tensor, inputs[3:]))
    options = {name: tensor(x) for name, x in given.items()}
    mapped = {name: x[None] for name, x in options.items() if isinstance(x, torch.Tensor)}
    if not maps or not mapped:
        return na.attention(*rows, *bias, **options)
    return torch.func.vmap(lambda given: na.attention(*rows, *bias, **options | given))(mapped)


#: Ways of computing: arrays in the core, recorded tensors, and tensors whose masks and positions
#: have no values, as on other devices and in traces.
KINDS = {
    "arrays": na.attention,
    "recorded": of_tensors,
    "float64": partial(of_tensors, dtype=torch.float64),
    "meta": partial(of_tensors, device="meta"),
    "mapped": partial(of_tensors, maps=True),
}
KIND = "arrays"

#: Those that read no masks and positions. They read segment ids, or refuse them.
UNREAD = ("meta", "mapped")


#: Arguments of attention, with a right value, its number of axes, what the error says, and options.
ARGUMENTS: list[tuple[str, Any, int, str, dict[str, Any]]] = [
    ("value", KEY, 4, "value must have key's shape", {}),
    ("mask", MASK, 4, "mask must have shape", {"causal": False}),
    ("key_padding_mask", REAL, 2, "key_padding_mask must have shape", {}),
    ("key_positions", AT_KEYS, 2, "key_positions must have", {"query_positions": AT_QUERIES}),
    ("query_positions", AT_QUERIES, 2, "query_positions must have shape", {}),
    ("segment_ids", IDS, 2, "^segment_ids must have shape", {}),
    ("query_segment_ids", IDS[:, 2:], 2, "query_segment_ids must have", {"segment_ids": IDS}),
]

#: By name, a call with one argument changed, and what its error says; the call is right unchanged.
PAIRS: dict[str, tuple[Callable[[Change], Any], str]] = {
    f"{name}, axis {axis}": (
        lambda c, name=name, right=right, axis=axis, options=options: attend(
            **{name: c(right, axis)}, **options
        ),
        message,
    )
    for name, right, axes, message, options in ARGUMENTS
    for axis in range(axes)
}


def pair(name: str, call: Callable[[Change], Any], message: str) -> None:
    PAIRS[name] = call, message


def pairs(name: str, axes: int, call: Callable[[Change, int], Any], message: str) -> None:
    for axis in range(axes):
        PAIRS[f"{name}, axis {axis}"] = partial(lambda axis, c: call(c, axis), axis), message


pair("query, batch", lambda c: attend(query=c(QUERY, 0)), "key must have batch")
pair("query, heads", lambda c: attend(query=c(QUERY, 1)), "query must have a multiple of key's")
pair("query, head_dim", lambda c: attend(query=c(QUERY, 3)), "key must have batch .* and head_dim")
pair("positions of a row", lambda c: attend(key_positions=c(AT_KEYS[0], 0)), "key_positions must")
pairs(
    "BlockMask",
    4,
    lambda c, i: attend(mask=na.BlockMask(c(MASK, i)), causal=False),
    "mask must have shape",
)


def slopes(change: Change, axis: int) -> Any:
    return attend(na.ALiBi(HEADS, slopes=change(SLOPES, axis)))


def two_sided(change: Change) -> Any:
    sides = SLOPES, change(SLOPES, 0)
    return attend(na.ALiBi(HEADS, slopes=sides, sides="two_slopes"), causal=False)


def of_heads(change: Change) -> Any:
    return attend(na.KerpleLog(change(PER_HEAD, 0), change(PER_HEAD, 0)))


def lengths(change: Change) -> Any:
    bias = na.ALiBi(HEADS, slopes=SLOPES[:, :, 0])
    return bias.tensor(4, 6, lengths=change(np.full(BATCH, 5), 0))


OTHER_HEADS = "bias must have query's 4 heads"
pairs("a dense bias", 4, lambda c, i: attend(c(DENSE, i)), "bias must be broadcastable")
pair("slopes and batch", lambda c: slopes(c, 0), "slopes must be for 1 row or the batch of 3")
pair("slopes and heads", lambda c: slopes(c, 1), "slopes must have 4 heads")
pair("slopes and queries", lambda c: slopes(c, 2), "slopes must be given for 5 queries")
pair("slopes of both sides", two_sided, "slopes must have one batch size")
pair("slopes and lengths", lengths, "slopes must be for 1 row or the batch")
pair("gates and batch", lambda c: attend(na.ForgetGates(c(GATES, 0))), "log_gates must have shape")
pair("gates and heads", lambda c: attend(na.ForgetGates(c(GATES, 1))), OTHER_HEADS)
pair("gates and keys", lambda c: attend(na.ForgetGates(c(GATES, 2))), "log_gates must have shape")
pair("parameters and heads", of_heads, OTHER_HEADS)
pair("parameters", lambda c: na.KerplePower(c(PER_HEAD, 0), PER_HEAD), r"must have \d heads, got")
pair("a table and heads", lambda c: attend(na.T5(c(floats(HEADS, 32), 0))), OTHER_HEADS)
pair(
    "strengths and heads",
    lambda c: attend(log_n=na.LogN(4, c(PER_HEAD, 0).tolist())),
    "strength of log_n must be one number, or one for each of 4 heads",
)


def norms(change: Change, axis: int) -> Any:
    return attend(key_norms=na.KeyNorms().update(change(KEY, axis)))


def gradients(change: Change, name: str, axis: int) -> Any:
    given = {"output": OUTPUT, "logsumexp": LOG, "output_gradient": OUTPUT}
    given["logsumexp_gradient"] = LOG
    given[name] = change(given[name], axis)
    return attention_gradients(QUERY, KEY, KEY, **given)


def into(change: Change, axis: int) -> Any:
    return na.merge([OUTPUT], [LOG], out=(change(OUTPUT, axis), LOG.copy()))


pairs(
    "initial output", 4, lambda c, i: attend(initial=(c(OUTPUT, i), LOG)), "initial's output must"
)
pairs(
    "initial log", 3, lambda c, i: attend(initial=(OUTPUT, c(LOG, i))), "initial's logsumexp must"
)
pairs("norms and key", 4, norms, "key_norms must be of key's")
pairs("parts", 4, lambda c, i: na.merge([OUTPUT, c(OUTPUT, i)], [LOG] * 2), "outputs must have")
pairs("logs", 3, lambda c, i: na.merge([OUTPUT], [c(LOG, i)]), "logsumexps must have shape")
pairs("buffers of merge", 4, into, "out must have shape")
for name, axes in (
    ("output", 4),
    ("logsumexp", 3),
    ("output_gradient", 4),
    ("logsumexp_gradient", 3),
):
    call = partial(lambda name, c, i: gradients(c, name, i), name)
    pairs(f"gradients of {name}", axes, call, f"{name} must have shape")


def module(change: Change, name: str, axis: int) -> Any:
    given = {"q": floats(BATCH, QUERIES, 8), "k": floats(BATCH, KEYS, 8)}
    given |= {"v": given["k"], "mask": MASK, "key_padding_mask": REAL}
    given[name] = change(given[name], axis)
    tensors = {name: torch.from_numpy(x.copy()) for name, x in given.items()}
    return na.AlibiAttention(HEADS, 8)(**tensors)


def key_bias(change: Change) -> Any:
    out = change(floats(BATCH * HEADS, 1, KEYS), 2)
    return na.build_alibi_tensor(REAL, HEADS, np.float32, out=out)


def factors(change: Change, axis: int) -> Any:
    real = change(REAL, axis)
    at = AT_QUERIES if axis == 0 else None
    return na.log_n_scale(QUERIES, KEYS, 4, key_padding_mask=real, query_positions=at)


pair("q and k", lambda c: module(c, "q", 0), "k must have q's batch")
pair("q and embed_dim", lambda c: module(c, "q", 2), r"q must have shape \(batch, length, 8\)")
pairs("v and k", 2, lambda c, i: module(c, "v", i), "v must have k's shape")
pairs("module's mask", 4, lambda c, i: module(c, "mask", i), "mask must have shape")
pairs(
    "module's padding", 2, lambda c, i: module(c, "key_padding_mask", i), "padding_mask must have"
)
pair("attention_mask and out", key_bias, "out must have shape")
pair("rows", lambda c: na.QuantizedRows(ROWS.numbers, c(ROWS.scales, 2)), "scales must have shape")
pair("rotate", lambda c: na.RoPE(DIM).rotate(QUERY, c(AT_QUERIES, 1)), "positions must have shape")
pairs("log_n_scale", 2, factors, "(key_padding_mask|query_positions) must have shape")


@pytest.mark.parametrize("name", PAIRS)
def test_what_disagrees_by_one_is_refused(name: str) -> None:
    call, message = PAIRS[name]
    call(lambda array, _: array)
    for change in CHANGES.values():
        with pytest.raises(ValueError, match=message):
            call(change)


OF_TENSORS = {
    kind: [
        name
        for name in PAIRS
        if name.startswith((*(row[0] for row in ARGUMENTS), "query", "BlockMask", "a dense bias"))
        and not (kind in UNREAD and "segment_ids" in name)
        and not ("mapped" in kind and name.startswith("BlockMask"))
    ]
    for kind in list(KINDS)[1:]
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in OF_TENSORS.items() for name in names]
)
def test_tensors_are_compared_in_every_way(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "KIND", kind)
    test_what_disagrees_by_one_is_refused(name)


@pytest.mark.parametrize("short", [(-1, 4), (-2, 3)])
def test_a_table_that_is_one_distance_short_is_refused_or_nan(short: tuple[int, int]) -> None:
    """Nobody reads positions that vmap maps or torch traces, so that the output says it."""
    first, last = short
    bias = na.DistanceTable(floats(HEADS, last - first + 1), begin=first)
    at_keys, at_queries = np.arange(4), np.arange(1, 5)
    rows = torch.from_numpy(floats(3, 1, HEADS, 4, DIM)).double()
    with pytest.raises(ValueError, match="table must cover the distances -2 to 4"):
        na.attention(*rows, bias, causal=False, key_positions=at_keys, query_positions=at_queries)

    def call(at_queries: torch.Tensor) -> torch.Tensor:
        return na.attention(
            *rows, bias, causal=False, key_positions=at_keys, query_positions=at_queries
        )

    outside = torch.func.vmap(call)(torch.tensor(at_queries)[None])[0].isnan()
    assert outside.any()
    assert not outside.all()
