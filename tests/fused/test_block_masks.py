"""Masks of pairs, against dense float64 and equal calls without one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import ntk_alibi as na
from attention_checks import (
    check,
    distances,
    each_isa,
    each_number_of_threads,
    inputs,
    masked_bias,
    visible,
)
from gradient_checks import check_gradients, check_linear, expected, run
from pair_masks import KINDS, LAYOUTS, laid_out_mask, pair_mask, shared_over

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, DIM = 2, 4, 2, 150, 200, 16
SHAPE = (BATCH, HEADS, QUERIES, KEYS)
BIAS = na.ALiBi(HEADS, sides="symmetric")


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


BIASES: dict[str, Any] = {
    "none": None,
    "ALiBi": BIAS,
    "knee": na.ALiBi(HEADS, na.Knee(40, 8.0), sides="symmetric"),
    "two slopes": na.ALiBi(
        HEADS, slopes=(np.float32([0.0, 0.1, 1.0, np.inf]), np.float32([0.3, 0.0, np.inf, 0.2])),
        sides="two_slopes",
    ),
    "exempt": na.ALiBi(HEADS, sides="symmetric", exempt=70),
    "BiALiBi": na.BiALiBi(*np.float32([[0.5, 0.1, 0.2, 1], [0.1, 0.2, 0.3, 0], [1, 2, 3, 4]])),
    "table": na.KerplePower([0.5, 0.1, 1.0, 0.2], [1.0, 0.5, 0.3, 2.0]),
    "gates": na.ForgetGates(-np.abs(np.random.default_rng(5).random((2, 4, KEYS))).astype("f4")),
    "dense": np.random.default_rng(6).standard_normal(SHAPE).astype(np.float32),
}  # fmt: skip

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"causal": True},
    "window and sinks": {"window": 40, "sink": 3},
    "blocks": {"causal": True, "causal_block": 32, "sink": 1},
    "left padding": {"key_padding_mask": np.arange(KEYS) >= np.array([[77], [0]])},
    "holes": {"key_padding_mask": np.arange(KEYS) % 7 > np.array([[2], [0]])},
    "positions": {"key_positions": np.cumsum(np.arange(KEYS) % 3)},
    "unsorted": {
        "key_positions": np.random.default_rng(1).permutation(KEYS),
        "query_positions": np.random.default_rng(2).permutation(KEYS)[:QUERIES],
    },
    "segments": {"segment_ids": np.repeat([4, 0, 9, 2], [70, 1, 100, 29])},
    "dropout": {"dropout": 0.3, "seed": 5},
    "skipping": {"skip_tolerance": 2.0**-5},
    "every block": {"skip_tolerance": None},
    "log n": {"log_n": 8},
    "RoPE": {"rotary": na.RoPE(DIM)},
    "XPOS": {"rotary": na.XPOS(DIM, scale_base=16.0), "causal": True},
}


def combinations() -> Iterator[Any]:
    """Yield every bias with every option that it supports."""
    for bias, of_bias in BIASES.items():
        for name, options in OPTIONS.items():
            sides = getattr(of_bias, "sides", "causal")
            causal = sides == "causal" and bias not in ("none", "table", "dense")
            moved = bias == "gates" and "query_positions" in options
            given = {"causal": causal, **options}
            if not moved and not (causal and not given["causal"]):
                yield pytest.param(of_bias, given, id=f"{bias}: {name}")


def tensors(values: Any) -> Any:
    """Return a bias, options or arrays with float64 tensors."""
    if isinstance(values, dict):
        return {name: tensors(value) for name, value in values.items()}
    if isinstance(values, np.ndarray):
        tensor = torch.tensor(values)
        return tensor.double() if tensor.is_floating_point() else tensor
    return values


@pytest.mark.parametrize(("bias", "options"), combinations())
def test_every_bias_with_every_option(bias: Any, options: dict[str, Any]) -> None:
    """The core's results are near those of torch's operations in float64."""
    arrays = inputs(BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, DIM)
    given = {**options, "mask": pair_mask("empty rows", SHAPE, 4)}
    found = na.attention(*arrays, bias, return_logsumexp=True, **given)
    wide = na.attention(*map(tensors, arrays), tensors(bias), return_logsumexp=True, **tensors(given))
    share = max(options.get("skip_tolerance") or 0.0, 1e-5)
    for mine, exact in zip(found, wide, strict=True):
        np.testing.assert_allclose(mine, exact.numpy(), rtol=share, atol=6 * share)
    assert np.isneginf(found[1]).any()
