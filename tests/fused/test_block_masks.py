"""Masks of pairs, against dense float64 and equal calls without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ntk_alibi as na
from attention_checks import (
    check,
    distances,
    each_isa,
    each_number_of_threads,
    inputs,
    masked_bias,
    pair_mask,
    visible,
)
from gradient_checks import check_gradients, check_linear, expected, run

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, DIM = 2, 4, 2, 150, 200, 16
SHAPE = (BATCH, HEADS, QUERIES, KEYS)
BIAS = na.ALiBi(HEADS, sides="symmetric")

#: The kinds of `pair_mask`.
KINDS = (
    "half", "few", "causal", "prefix", "documents", "tree", "global", "empty rows", "empty blocks",
    "none", "all",
)  # fmt: skip

#: The layouts of `laid_out_mask`.
LAYOUTS = ("plain", "transposed", "reversed", "spread", "odd", "fortran")


def laid_out_mask(mask: NDArray[np.bool_], layout: str) -> NDArray[np.bool_]:
    """Return an equal mask with other strides."""
    if layout == "transposed":
        return np.ascontiguousarray(mask.swapaxes(2, 3)).swapaxes(2, 3)
    if layout == "reversed":
        return np.ascontiguousarray(mask[::-1, ::-1, ::-1, ::-1])[::-1, ::-1, ::-1, ::-1]
    if layout == "spread":
        whole = np.zeros((*mask.shape[:2], *(2 * n for n in mask.shape[2:])), np.bool_)
        whole[:, :, ::2, 1::2] = mask
        return whole[:, :, ::2, 1::2]
    if layout == "odd":
        whole = np.zeros(mask.size + 1, np.bool_)[1:].reshape(mask.shape)
        whole[:] = mask
        return whole
    if layout == "fortran":
        return np.asfortranarray(mask)
    return mask


def shared_over(mask: NDArray[np.bool_], axes: tuple[int, ...], *, expand: bool) -> Any:
    """Return the mask of the first entry along some axes, as an axis of 1 or expanded."""
    index = tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(4))
    return np.broadcast_to(mask[index], mask.shape) if expand else mask[index]


def attend(arrays: list[Any], mask: Any, bias: Any = BIAS, **options: Any) -> Any:
    options = {"causal": False, **options}
    return na.attention(*arrays, bias, mask=mask, return_logsumexp=True, **options)


def dense(mask: Any, bias: na.ALiBi | None = BIAS, **rule: Any) -> Any:
    queries, keys = mask.shape[2:]
    return np.where(mask, masked_bias(bias, queries, keys, **{"causal": False, **rule}), -np.inf)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_on_every_instruction_set(kind: str) -> None:
    arrays, mask = inputs(BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, DIM), pair_mask(kind, SHAPE)
    for _ in each_isa():
        check(*arrays, dense(mask), attend(arrays, mask))
        check(*arrays, dense(mask, None), attend(arrays, mask, None))
        check(*arrays, dense(mask, causal=True), attend(arrays, mask, causal=True))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_every_kind_on_every_instruction_set(kind: str) -> None:
    arrays, mask = inputs(BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, DIM), pair_mask(kind, SHAPE)
    distance = distances(np.arange(KEYS - QUERIES, KEYS), np.arange(KEYS))
    for _ in each_isa():
        result, do, dl = run(arrays, BIAS, {"causal": False, "mask": mask})
        what = expected(arrays, dense(mask), do, dl)
        check_gradients(what, result)
        check_linear(what, result, distance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("queries", [1, 2, 3, 40])
@pytest.mark.parametrize("keys", [1, 60, 700])
def test_short_calls_and_single_queries(kind: str, queries: int, keys: int) -> None:
    arrays = inputs(2, 2, 1, queries, keys, 24)
    mask = pair_mask(kind, (2, 2, queries, keys), 3)
    bias = na.ALiBi(2, sides="symmetric")
    for _ in each_isa():
        check(*arrays, dense(mask, bias), attend(arrays, mask, bias))


def test_single_query_of_many_parts() -> None:
    arrays, mask = inputs(1, 2, 1, 1, 20_000, 16), pair_mask("half", (1, 2, 1, 20_000))
    mask[..., 100:12_000] = False
    bias = na.ALiBi(2, sides="symmetric")
    for tolerance in (None, 0.0, 2.0**-6):
        result = attend(arrays, mask, bias, skip_tolerance=tolerance)
        check(*arrays, dense(mask, bias), result, tolerance=tolerance)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axes", [(), (0,), (1,), (0, 1), (0, 1, 2), (2,), (3,), (0, 1, 3)])
def test_strides_do_not_matter(layout: str, axes: tuple[int, ...]) -> None:
    arrays, mask = inputs(BATCH, HEADS, KEY_HEADS, 70, 130, 8), pair_mask("half", (2, 4, 70, 130))
    shared = shared_over(mask, axes, expand=True)
    whole = attend(arrays, np.array(shared))
    views = [laid_out_mask(np.array(shared), layout)]
    if layout == "plain":
        views.append(shared)
        if max(axes, default=0) < 2:
            views.append(shared_over(mask, axes, expand=False))
    for view in views:
        for one, other in zip(attend(arrays, view), whole, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_dtypes(dtype: str) -> None:
    arrays = inputs(BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, 32, dtype)
    mask = pair_mask("half", SHAPE)
    for _ in each_isa():
        check(*arrays, dense(mask), attend(arrays, mask))
        result, do, dl = run(arrays, BIAS, {"causal": False, "mask": mask})
        check_gradients(expected(arrays, dense(mask), do, dl), result)


def test_hidden_keys_take_part_in_no_arithmetic() -> None:
    arrays, mask = inputs(BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, DIM), pair_mask("half", SHAPE)
    mask[..., 30:35] = mask[..., 64:128] = False
    spoiled = [x.copy() for x in arrays]
    for x, value in zip(spoiled[1:], (np.nan, np.inf), strict=True):
        x[:, :, 30:35] = x[:, :, 64:128] = value
    for _ in each_isa():
        for one, other in zip(attend(arrays, mask), attend(spoiled, mask), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        mine, theirs = (run(x, BIAS, {"causal": False, "mask": mask})[0] for x in (arrays, spoiled))
        for name in ("query", "key", "value", "left", "right"):
            one, other = getattr(mine, name), getattr(theirs, name)
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_a_spoiled_key_stays_with_the_queries_that_see_it() -> None:
    arrays, mask = inputs(BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, DIM), pair_mask("half", SHAPE)
    arrays[1][:, :, 50] = np.nan
    for _ in each_isa():
        output, _ = attend(arrays, mask)
        np.testing.assert_array_equal(np.isnan(output).any(-1), mask[..., 50])


def test_counts_are_of_blocks_that_mask_and_rule_show() -> None:
    mask = pair_mask("documents", (1, 1, 500, 500), 3)
    arrays = inputs(1, 2, 2, 500, 500, 16)
    for causal in (False, True):
        seen = visible(np.arange(500), np.arange(500), causal=causal) & mask
        for _ in each_isa():
            _, _, stats = attend(arrays, mask, None, causal=causal, return_stats=True)
            tile = next(
                n for n in (32, 24, 20, 12)
                if stats.visible[0, 0] == _visible_blocks(seen[0, 0], n)
            )  # fmt: skip
            assert (stats.visited == _visible_blocks(seen[0, 0], tile)).all()


def _visible_blocks(seen: Any, tile: int) -> int:
    queries = np.maximum(np.arange(-(-500 % tile), 500, tile), 0)  # the first tile is the short one
    keys = np.arange(0, 500, 64)
    rows = np.logical_or.reduceat(seen, queries, axis=0)
    return int(np.logical_or.reduceat(rows, keys, axis=1).sum())


@pytest.mark.parametrize("queries", [1, 2, 40, 300])
def test_threads_do_not_change_a_bit(queries: int) -> None:
    arrays = inputs(2, 4, 2, queries, 300, 16)
    mask = pair_mask("half", (2, 4, queries, 300))
    options = {"causal": False, "key_padding_mask": np.arange(300) % 9 > np.array([[2], [-1]])}
    results = [
        attend(arrays, na.BlockMask(mask), **options) for _ in each_number_of_threads(1, 2, 3)
    ]
    for result in results[1:]:
        for one, other in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(one, other)


def test_goes_on_from_other_keys() -> None:
    arrays, mask = inputs(BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, DIM), pair_mask("half", SHAPE)
    places = {"query_positions": np.arange(KEYS - QUERIES, KEYS)}
    parts = [slice(0, 90), slice(90, KEYS)]
    before = None
    for part in parts:
        cut = [arrays[0], *(x[:, :, part] for x in arrays[1:])]
        options = {**places, "key_positions": np.arange(KEYS)[part], "initial": before}
        before = attend(cut, mask[..., part], **options)
    check(*arrays, dense(mask), before)


def test_quantized_rows_and_kept_norms() -> None:
    query, key, value = inputs(BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, DIM)
    rows = [na.QuantizedRows.of(x) for x in (key, value)]
    wide = [x.dequantized() for x in rows]
    for queries in (1, 2, QUERIES):
        mask = pair_mask("empty rows", SHAPE)[:, :, -queries:]
        found = attend([query[:, :, -queries:], *rows], mask)
        check(query[:, :, -queries:], *wide, dense(mask), found)
    norms = na.KeyNorms()
    norms.update(key)
    mask = pair_mask("half", SHAPE)
    check(query, key, value, dense(mask), attend([query, key, value], mask, key_norms=norms))


@pytest.mark.parametrize("side", ["behind", "ahead"])
@pytest.mark.parametrize("queries", [1, 40])
def test_keys_that_are_all_far_have_exact_weights(side: str, queries: int) -> None:
    """As if the keys between were not there: distances count from the nearest visible key."""
    keys, near = 4000, 3000
    arrays = inputs(1, 2, 1, queries, keys, 16)
    bias = na.ALiBi(2, slopes=np.float32([0.5, 0.03]), sides="symmetric")
    at_queries = np.arange(keys - queries, keys) if side == "behind" else np.arange(queries)
    seen = slice(0, keys - near) if side == "behind" else slice(near, keys)
    mask = np.zeros((1, 1, queries, keys), np.bool_)
    mask[..., seen] = True
    found = attend(arrays, mask, bias, query_positions=at_queries, skip_tolerance=None)
    other = attend(
        [arrays[0], *(x[:, :, seen] for x in arrays[1:])], None, bias,
        query_positions=at_queries, key_positions=np.arange(keys)[seen], skip_tolerance=None,
    )  # fmt: skip
    np.testing.assert_allclose(found[0], other[0], atol=2e-6)
    np.testing.assert_allclose(found[1], other[1], rtol=1e-6)
