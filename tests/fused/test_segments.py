"""Packed segments: attention equals one call per segment, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import each_number_of_threads, inputs, random

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH, HEADS, KEY_HEADS, TOKENS, DIM = 2, 4, 2, 230, 8

#: Lengths of segments; the queries of the last columns belong to some of them.
LENGTHS = ([70, 1, 130, 29], [100, 66, 63, 1])
IDS = np.array([np.repeat([4, 0, -7, 2], lengths) for lengths in LENGTHS])


class SegmentPart(NamedTuple):
    """The part of a call's arrays that belongs to one segment."""

    row: int
    queries: slice
    keys: slice

    def __call__(self, x: Any, *axes: str) -> Any:
        """Cut an array whose axes are named "row", "queries" or "keys", or are left whole."""
        index = tuple(slice(None) if name == "all" else self._of(name) for name in axes)
        return x[index]

    def _of(self, name: str) -> slice:
        return slice(self.row, self.row + 1) if name == "row" else getattr(self, name)


def segments(queries: int) -> Iterator[SegmentPart]:
    """Yield the segments that have some of the last queries."""
    first = TOKENS - queries
    for row, lengths in enumerate(LENGTHS):
        ends = np.cumsum(lengths)
        for begin, end in zip(ends - lengths, ends, strict=True):
            if end > first:
                yield SegmentPart(row, slice(max(begin - first, 0), end - first), slice(begin, end))


def flat_and_steep(segment: SegmentPart | None) -> na.ALiBi:
    return na.ALiBi(HEADS, slopes=np.float32([0.0, 0.01, 0.2, 1.0]), sides="symmetric")


def dense(segment: SegmentPart | None) -> Any:
    entries = random(7, BATCH, HEADS, TOKENS, TOKENS)
    return entries if segment is None else segment(entries, "row", "all", "queries", "keys")


def gates(segment: SegmentPart | None) -> na.ForgetGates:
    entries = -np.round(abs(random(10, BATCH, HEADS, TOKENS)), 2)
    return na.ForgetGates(entries if segment is None else segment(entries, "row", "all", "keys"))


#: Functions of a segment, or of None for all of them together.
BIASES: dict[str, Any] = {
    "none": lambda segment: None,
    "ALiBi": lambda segment: na.ALiBi(HEADS),
    "flat and steep": flat_and_steep,
    "dynamic": lambda segment: na.ALiBi(HEADS, na.DynamicNTK(2.0, 32)),
    "exempt": lambda segment: na.ALiBi(HEADS, sides="symmetric", exempt=3),
    "table": lambda segment: na.KerplePower([0.5, 0.1, 1.0, 0.2], [1.0, 0.5, 0.3, 2.0]),
    "gates": gates,
    "dense": dense,
}

PADDING = np.arange(TOKENS) % 37 > np.array([[2], [0]])
RISING = np.cumsum(np.arange(TOKENS) % 3, dtype=np.int32)[None].repeat(BATCH, 0)

#: Options, and the axes of those that are cut.
OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {},
    "on both sides": {"causal": False},
    "window and sinks": {"window": 20, "sink": 3},
    "window and sinks on both sides": {"window": 20, "sink": 3, "causal": False},
    "blocks": {"causal_block": 16, "sink": 1},
    "log n": {"log_n": 8},
    "padding": {"key_padding_mask": PADDING},
    "positions": {"key_positions": RISING, "window": 20, "sink": 5},
    "positions of both": {"key_positions": RISING, "query_positions": RISING + 3, "causal": False},
    "skipping": {"skip_tolerance": 0.01},
    "XPOS": {"rotary": na.XPOS(DIM, scale_base=16.0)},
}
AXES = {
    "key_padding_mask": ("row", "keys"),
    "key_positions": ("row", "keys"),
    "query_positions": ("row", "queries"),
}


#: Biases for causal attention only.
CAUSAL = ("ALiBi", "dynamic", "gates")


def pairs() -> Iterator[Any]:
    """Yield every bias with every option that it supports."""
    for bias, make in BIASES.items():
        for name, options in OPTIONS.items():
            ahead, placed = not options.get("causal", True), "query_positions" in options
            if not (ahead and bias in CAUSAL) and not (placed and bias == "gates"):
                yield pytest.param(make, options, id=f"{bias}: {name}")


def parts(segment: SegmentPart, arrays: Any) -> list[Any]:
    """Return query, key and value, or more queries, of one segment."""
    names = "queries", "keys", "keys"
    return [segment(x, "row", "all", name) for x, name in zip(arrays, names, strict=True)]


def segment_options(segment: SegmentPart, options: dict[str, Any]) -> dict[str, Any]:
    return {n: segment(x, *AXES[n]) if n in AXES else x for n, x in options.items()}


@pytest.mark.parametrize(("bias", "options"), [*pairs()])
def test_it_is_one_call_for_each_text(bias: Any, options: dict[str, Any]) -> None:
    arrays = inputs(BATCH, HEADS, KEY_HEADS, TOKENS, TOKENS, DIM)
    both: dict[str, Any] = {"return_logsumexp": True, "return_stats": True}
    packed = na.attention(*arrays, bias(None), segment_ids=IDS, **both, **options)
    counted = np.zeros((3, BATCH, HEADS), np.int64)
    for segment in segments(TOKENS):
        alone = na.attention(
            *parts(segment, arrays), bias(segment), **both, **segment_options(segment, options)
        )
        for whole, part in zip(packed[:2], alone[:2], strict=True):
            np.testing.assert_array_equal(segment(whole, "row", "all", "queries"), part)
        counted[:, segment.row] += [x[0] for x in vars(alone[2]).values()]
    np.testing.assert_array_equal(counted, [*vars(packed[2]).values()])


@pytest.mark.parametrize("queries", [1, 2, 31, 140, TOKENS])
def test_queries_are_the_last_keys_on_every_instruction_set(isa: str, queries: int) -> None:
    """One query decodes; texts of one block and of several have kernels of their segment."""
    arrays = inputs(BATCH, HEADS, KEY_HEADS, queries, TOKENS, DIM)
    packed = na.attention(*arrays, na.ALiBi(HEADS), segment_ids=IDS)
    for segment in segments(queries):
        alone = na.attention(*parts(segment, arrays), na.ALiBi(HEADS))
        np.testing.assert_array_equal(segment(packed, "row", "all", "queries"), alone)


@pytest.mark.parametrize("name", ["ALiBi", "flat and steep", "exempt", "dense", "gates", "table"])
def test_gradients_are_those_of_one_call_for_each_text(isa: str, name: str) -> None:
    arrays = [torch.from_numpy(x) for x in inputs(BATCH, HEADS, KEY_HEADS, TOKENS, TOKENS, DIM)]
    do = torch.from_numpy(random(5, *arrays[0].shape))

    def gradients(sources: Any, bias: Any, do: Any, **options: Any) -> Any:
        leaves = [x.clone().requires_grad_() for x in sources]
        return torch.autograd.grad(na.attention(*leaves, bias, **options), leaves, do)

    packed = gradients(arrays, BIASES[name](None), do, segment_ids=torch.from_numpy(IDS))
    for segment in segments(TOKENS):
        alone = gradients(
            parts(segment, arrays), BIASES[name](segment), segment(do, "row", "all", "queries")
        )
        for whole, part in zip(parts(segment, packed), alone, strict=True):
            assert torch.equal(whole, part)


@pytest.mark.parametrize("name", ["ALiBi", "table"])
def test_threads_share_small_texts_and_change_nothing(name: str) -> None:
    """Gradients of a table are sums over segments, in a fixed order."""
    lengths = [*range(1, 40, 3), 500, *range(40, 1, -3)]
    ids = np.repeat(np.arange(len(lengths)), lengths)
    arrays = inputs(1, HEADS, KEY_HEADS, len(ids), len(ids), DIM)
    bias = {
        "ALiBi": na.ALiBi(HEADS),
        "table": na.DistanceTable(torch.from_numpy(random(2, HEADS, 500)).requires_grad_()),
    }[name]
    results = []
    for _ in each_number_of_threads(1, 2, 3):
        leaves = [torch.from_numpy(x).requires_grad_() for x in arrays]
        output = na.attention(*leaves, bias, segment_ids=ids)
        sources = [*leaves, *(x for x in bias.parameters if torch.is_tensor(x))]
        results.append([output, *torch.autograd.grad(output.square().sum(), sources)])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


INITIAL = random(3, BATCH, HEADS, TOKENS, DIM), random(4, BATCH, HEADS, TOKENS)

#: Kinds of arrays, and results to go on from.
KINDS: dict[str, tuple[Any, Any]] = {
    "bfloat16": (lambda x: [y.astype(ml_dtypes.bfloat16) for y in x], None),
    "float16": (lambda x: [y.astype(np.float16) for y in x], None),
    "quantized": (lambda x: [x[0], *map(na.QuantizedRows.of, x[1:])], None),
    "initial": (list, INITIAL),
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_arrays(kind: str) -> None:
    made, initial = KINDS[kind]
    arrays = inputs(BATCH, HEADS, KEY_HEADS, TOKENS, TOKENS, DIM)
    packed = na.attention(*made(arrays), na.ALiBi(HEADS), segment_ids=IDS, initial=initial)
    for segment in segments(TOKENS):
        before = initial and tuple(segment(x, "row", "all", "queries") for x in initial)
        alone = na.attention(*made(parts(segment, arrays)), na.ALiBi(HEADS), initial=before)
        np.testing.assert_array_equal(segment(packed, "row", "all", "queries"), alone)


def test_texts_of_queries_may_lie_in_other_columns_and_have_no_keys() -> None:
    query, key, value = inputs(1, HEADS, KEY_HEADS, 12, 9, DIM)
    packed, log = na.attention(
        query, key, value, na.ALiBi(HEADS), return_logsumexp=True,
        segment_ids=[3, 3, 3, 3, 8, 8, 1, 1, 1],
        query_segment_ids=[1, 1, 5, 5, 3, 3, 3, 8, 8, 8, 8, 8],
    )  # fmt: skip
    for queries, keys in ((slice(0, 2), slice(6, 9)), (slice(4, 7), slice(0, 4)),
                          (slice(7, 12), slice(4, 6))):  # fmt: skip
        segment = SegmentPart(0, queries, keys)
        last = max(queries.stop - queries.start, keys.stop - keys.start)
        at_queries, at_keys = (np.arange(last - (x.stop - x.start), last) for x in (queries, keys))
        alone = na.attention(
            *parts(segment, (query, key, value)), na.ALiBi(HEADS),
            query_positions=at_queries, key_positions=at_keys,
        )  # fmt: skip
        np.testing.assert_array_equal(packed[:, :, queries], alone)
    assert (packed[:, :, 2:4] == 0).all()
    assert np.isneginf(log[:, :, 2:4]).all()


def test_gates_of_queries_in_other_columns() -> None:
    query, key, value = inputs(1, HEADS, KEY_HEADS, 4, 9, DIM)
    gates = na.ForgetGates(-abs(random(1, 1, HEADS, 9)))
    ids = {"segment_ids": [3, 3, 3, 3, 8, 8, 1, 1, 1], "query_segment_ids": [1, 1, 3, 3]}
    packed = na.attention(query, key, value, gates, **ids)
    for queries, keys in ((slice(0, 2), slice(6, 9)), (slice(2, 4), slice(0, 4))):
        segment = na.ForgetGates(gates.log_gates[:, :, keys])
        alone = na.attention(query[:, :, queries], key[:, :, keys], value[:, :, keys], segment)
        np.testing.assert_allclose(packed[:, :, queries], alone, rtol=1e-6)


def test_values_of_one_segment_reach_no_other() -> None:
    arrays = inputs(1, HEADS, KEY_HEADS, TOKENS, TOKENS, DIM)
    clean = na.attention(*arrays, na.ALiBi(HEADS), segment_ids=IDS[0])
    begin, end = 71, 201
    for x in arrays:
        x[:, :, begin:end] = np.nan
    packed = na.attention(*arrays, na.ALiBi(HEADS), segment_ids=IDS[0])
    for other in (slice(0, begin), slice(end, None)):
        np.testing.assert_array_equal(packed[:, :, other], clean[:, :, other])
    assert np.isnan(packed[:, :, begin:end]).all()


@pytest.mark.parametrize(
    "ids",
    [
        np.repeat([0, 1, 2], [2, 3, 1]),
        np.repeat([[5, -1, 9]], [2, 3, 1], axis=1),
        np.repeat([[3, 0, 255]] * 2, [2, 3, 1], axis=1).astype(np.uint8),
        [1, 1, 0, 0, 0, 7],
        torch.tensor([1, 1, 0, 0, 0, 7], dtype=torch.int32),
        na.segment_ids_from_cu_seqlens(np.array([0, 2, 2, 5, 6])),
    ],
    ids=["columns", "a row", "rows of bytes", "a list", "a tensor", "cu_seqlens"],
)
def test_forms_of_numbers(ids: Any) -> None:
    arrays = inputs(2, HEADS, KEY_HEADS, 6, 6, DIM)
    packed = na.attention(*arrays, segment_ids=ids)
    for segment in (slice(0, 2), slice(2, 5), slice(5, 6)):
        alone = na.attention(*(x[:, :, segment] for x in arrays))
        np.testing.assert_array_equal(packed[:, :, segment], alone)


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 3, 5), (2, 0, 5), (2, 0, 0)])
@pytest.mark.parametrize("double", [False, True])
def test_nothing_to_attend(batch: int, queries: int, keys: int, double: bool) -> None:
    arrays = inputs(batch, HEADS, KEY_HEADS, queries, keys, DIM)
    assert na.attention(*arrays, segment_ids=np.zeros(keys, int)).shape == arrays[0].shape
    leaves = [torch.tensor(x, dtype=torch.double if double else torch.float32) for x in arrays]
    leaves = [x.requires_grad_() for x in leaves]
    output = na.attention(*leaves, segment_ids=np.zeros(keys, int))
    assert output.shape == arrays[0].shape
    for x, gradient in zip(leaves, torch.autograd.grad(output.sum(), leaves), strict=True):
        assert torch.equal(gradient, torch.zeros_like(x))


@pytest.mark.parametrize("of", [np.array, torch.tensor])
def test_ids_of_cumulative_lengths(of: Any) -> None:
    assert na.segment_ids_from_cu_seqlens(of([0, 2, 2, 5])).tolist() == [0, 0, 2, 2, 2]
    assert na.segment_ids_from_cu_seqlens(of([0])).tolist() == []


@pytest.mark.slow
def test_a_trace_refuses_what_needs_the_ids() -> None:
    torch.compiler.reset()
    tensors = [torch.from_numpy(x) for x in inputs(2, 4, 2, 3, 5, 8)]
    ids, other_ids = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 1, 1])
    compiled = torch.compile(na.attention, fullgraph=True, backend="eager")
    for given, options in (
        (tensors, {"log_n": 8}),
        (tensors, {"rotary": na.XPOS(8)}),
        (tensors, {"query_segment_ids": other_ids}),
        ([*tensors, na.KerplePower([1.0] * 4, [1.0] * 4)], {}),
        ([x.double() for x in tensors], {}),
    ):
        with pytest.raises(Exception, match="segment_ids must"):
            compiled(*given, segment_ids=ids, **options)
