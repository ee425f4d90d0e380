"""Inputs, masks, dense biases and error bounds for the tests of attention."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import ntk_alibi as na
from ntk_alibi import _core

#: Relative error of rounding to nearest in each dtype.
ROUNDING = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
UNIT = ROUNDING["float32"]
NUMPY = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}

#: Two parameters of a bias of three heads.
R1, R2 = np.array([0.3, 1.5, 0.01]), np.array([1.9, 0.4, 1.0])


def random(seed: int, *shape: int, dtype: str = "float32") -> NDArray[Any]:
    values: NDArray[Any] = np.random.default_rng(seed).standard_normal(shape)
    return values.astype(NUMPY[dtype])


def inputs(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, dim: int, dtype: str = "float32"
) -> list[NDArray[Any]]:
    shapes = ((heads, queries), (kv_heads, keys), (kv_heads, keys))
    return [random(i, batch, *shape, dim, dtype=dtype) for i, shape in enumerate(shapes)]


def each_isa() -> Iterator[str]:
    """Select every instruction set of this machine in turn, within one test.

    The first one is restored even if the test fails, because the generator is then closed.
    """
    before = _core.active_isa()
    try:
        for isa in _core.available_isas():
            _core.select_isa(isa)
            yield isa
    finally:
        _core.select_isa(before)


def each_number_of_threads(*values: int) -> Iterator[int]:
    """Set each number of threads of the core in turn, and the default again, as `each_isa` does."""
    try:
        for threads in values:
            na.set_num_threads(threads)
            yield threads
    finally:
        na.set_num_threads(0)


def distances(q_positions: NDArray[Any], k_positions: NDArray[Any]) -> NDArray[np.float64]:
    """Return distances (1 or batch, 1, queries, keys) of positions with or without a batch axis."""
    d = q_positions[..., :, None].astype(float) - k_positions[..., None, :]
    return d[None, None] if d.ndim == 2 else d[:, None]


def visible(
    q_positions: NDArray[Any],
    k_positions: NDArray[Any],
    *,
    causal: bool = True,
    window: int | None = None,
    causal_block: int | None = None,
    sink: int = 0,
    mask: NDArray[Any] | None = None,
    **segments: NDArray[Any],
) -> NDArray[np.bool_]:
    """Return the reference's mask of visible pairs, (1 or batch, 1, queries, keys)."""
    rule = {"causal": causal, "window": window, "causal_block": causal_block, "sink": sink}
    rule |= segments
    seen = na.reference.visible(q_positions, k_positions, key_padding_mask=mask, **rule)
    return seen[None, None] if seen.ndim == 2 else seen[:, None]


def dense(
    bias: na.ALiBi | None, q: NDArray[Any], k: NDArray[Any], lengths: Any = None
) -> NDArray[np.float64]:
    """Return the dense bias, (1 or batch, 1 or heads, queries, keys); -inf on a hidden side.

    lengths are the token counts for a dynamic scaling.
    """
    distance = distances(q, k)
    if bias is None:
        return np.zeros_like(distance)
    left, right = (side[..., None] for side in _slopes(bias, lengths))
    with np.errstate(invalid="ignore"):  # infinity times 0, not chosen
        ahead = np.where(distance < 0, right * distance, 0.0)
        return np.where(distance > 0, -left * distance, ahead)


def masked_bias(bias: na.ALiBi | None, queries: int, keys: int, **mask: Any) -> NDArray[np.float64]:
    """Return the dense bias, -inf for hidden pairs too; the last query is at the last key.

    mask has the options of `visible`.
    """
    q, k = np.arange(keys - queries, keys), np.arange(keys)
    return np.where(visible(q, k, **mask), dense(bias, q, k), -np.inf)


def _slopes(bias: na.ALiBi, lengths: Any) -> list[NDArray[np.float64]]:
    """Return left and right slopes, (1 or batch, heads, 1 or queries)."""
    heads = bias.num_heads
    standard = bias.slopes is None
    if standard:
        counts = (heads - heads // 2, heads // 2) if bias.sides == "halves" else (heads,)
        halves = [na.alibi_slopes(n, bias.scaling, lengths) for n in counts if n]
        one = np.concatenate(halves, axis=0 if halves[0].ndim == 1 else 1)
        pair = (one, one)
    else:
        pair = bias.slopes if isinstance(bias.slopes, tuple) else (bias.slopes, bias.slopes)
    left, right = (np.array(side, np.float64) for side in pair)
    left, right = (
        x[None, :, None] if x.ndim == 1 else x[..., None] if x.ndim == 2 else x
        for x in (left, right)
    )
    if bias.sides == "causal":
        right[:] = np.inf
    elif bias.sides == "halves":
        left[:, heads - heads // 2 :] = right[:, : heads - heads // 2] = np.inf
    return [left, right]


def pair_mask(kind: str, shape: tuple[int, int, int, int], seed: int = 0) -> NDArray[np.bool_]:
    """Return a mask (batch, heads, queries, keys); the last query is at the last key."""
    draws = np.random.default_rng(seed)
    batch, heads, queries, keys = shape
    rows, columns = np.arange(keys - queries, keys)[:, None], np.arange(keys)[None]
    mask = draws.random(shape) < (0.02 if kind == "few" else 0.5)
    if kind == "causal":
        mask[:] = columns <= rows
    elif kind == "prefix":
        mask[:] = (columns <= rows) | (columns < draws.integers(keys + 1))
    elif kind == "documents":
        ends = np.sort(draws.integers(0, keys + 1, 3))
        mask[:] = np.searchsorted(ends, rows, "right") == np.searchsorted(ends, columns, "right")
    elif kind == "tree":
        mask[:] = tree(queries, keys, draws)
    elif kind == "global":
        mask[:] = (abs(rows - columns) < 5) | (columns % 50 == 3) | (rows % 50 == 3)
    elif kind == "empty rows":
        mask &= draws.random((batch, heads, queries, 1)) < 0.5
    elif kind == "empty blocks":
        mask &= draws.random((batch, heads, 1, keys // 64 + 1)).repeat(64, -1)[..., :keys] < 0.5
    elif kind in ("none", "all"):
        mask[:] = kind == "all"
    return mask


def tree(queries: int, keys: int, draws: np.random.Generator) -> NDArray[np.bool_]:
    """Return the mask of drafts: a query sees the text before, its ancestors and itself."""
    before = max(keys - queries, 0)
    mask = np.zeros((queries, keys), np.bool_)
    mask[:, :before] = True
    for query in range(min(queries, keys)):
        if query:
            mask[query] = mask[draws.integers(query)]
        mask[query, before + query] = True
    return mask


class Expected(NamedTuple):
    """Results of the reference, and bounds on the difference of the kernels from them."""

    output: NDArray[np.float64]
    logsumexp: NDArray[np.float64]
    output_error: NDArray[np.float64]
    logsumexp_error: NDArray[np.float64]


def of_all_heads(
    query: Any, key: Any, value: Any, bias: NDArray[Any]
) -> tuple[NDArray[np.float64], ...]:
    """Return all in float64 and for all query heads; keys and values that no query sees are 0."""
    group = query.shape[1] // key.shape[1]
    query, key, value, bias = (np.asarray(x, np.float64) for x in (query, key, value, bias))
    key, value = (np.repeat(x, group, axis=1) for x in (key, value))
    bias = np.broadcast_to(bias, (*query.shape[:3], key.shape[2]))
    unseen = np.isneginf(bias).all(axis=2)[..., None]
    key, value = (np.where(unseen, 0.0, x) for x in (key, value))  # padding may hold NaN
    return query, key, value, bias


def score_errors(
    query: Any, key: Any, bias: NDArray[np.float64], scale: float | None, *, turned: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return errors in u of each query's scores, as `expected` says, and the scores' sizes."""
    seen, dim = ~np.isneginf(bias), query.shape[3]

    def greatest(values: NDArray[Any]) -> NDArray[np.float64]:
        return np.where(seen, values, 0.0).max(axis=-1, initial=0.0)

    q_norm, k_norm = (np.sqrt((x**2).sum(-1)) for x in (query, key))
    scale = 1 / math.sqrt(dim) if scale is None else abs(scale)
    size = scale * q_norm * greatest(k_norm[:, :, None, :])
    top = np.abs(bias.max(axis=-1, initial=-np.inf))
    far = np.minimum(greatest(np.abs(bias)), np.where(np.isinf(top), 0.0, top) + 2 * size + 104)
    return (dim + (18 if turned else 8)) * size + 4 * (size + far), size + far


def expected(
    query: Any,
    key: Any,
    value: Any,
    bias: NDArray[Any],
    scale: float | None = None,
    tolerance: float | None = 0.0,
    scores: NDArray[np.float64] | None = None,
    *,
    dropout: float = 0.0,
    seed: int = 0,
) -> Expected:
    """Return reference and bounds; bias is dense, -inf where masked. u = 2^-24.

    Scores of all pairs are passed if they are not scale q.k: q and k were then rotated and
    multiplied, with errors of at most 5 u of each value (sine, cosine, two products and a sum, one
    or two factors), 10 u A of a score. Scale includes the greatest factor.

    Score: with A = |scale| |q| |k| its error is at most (D + 8) u A + 4 u (A + |bias|). Keys whose
    bias is below the row's largest by more than 2 A + 104 weigh less than float32 can represent.
    Weight: its relative error is about its score's error and some u for exp2. Sums: 64 keys at a
    time, then some u a block; numerator and denominator each. Result: rounding to its dtype.
    bfloat16 weights may be rounded to bfloat16 before they meet the values. The bound for skipped
    keys is in docs/exactness.md; with dropout, results are no means of values, and
    may change by twice the largest value times the factor.
    """
    name = "bfloat16" if query.dtype == ml_dtypes.bfloat16 else query.dtype.name
    query, key, value, bias = of_all_heads(query, key, value, bias)
    both = np.concatenate([value, np.abs(value)], axis=-1)
    if scores is None:
        means, logsumexp = na.reference.attention(
            query, key, both, bias, scale, dropout=dropout, seed=seed
        )
    else:
        means, logsumexp = na.reference.attention(
            0.0 * query, key, both, bias + scores, dropout=dropout, seed=seed
        )
    output, mean_size = np.split(means, 2, axis=-1)

    score_error, _ = score_errors(query, key, bias, scale, turned=scores is not None)
    relative = np.expm1(2 * UNIT * (score_error + 72 + key.shape[2] / 16))
    share = max(tolerance or 0.0, UNIT)
    spread = (value.max(axis=2, initial=-np.inf) - value.min(axis=2, initial=np.inf))[:, :, None]
    if dropout:
        spread = 2 / (1 - dropout) * np.abs(value).max(axis=2, initial=0.0)[:, :, None]
    error = (relative[..., None] + (ROUNDING[name] if name == "bfloat16" else 0.0)) * mean_size
    error += share * np.maximum(spread, 0.0) + 2.0**-100 * np.abs(value).max(initial=0.0)
    error += ROUNDING[name] * (np.abs(output) + error) + 2.0**-25 * (name == "float16")
    size_of_log = np.abs(np.where(np.isneginf(logsumexp), 0.0, logsumexp))
    return Expected(output, logsumexp, error, relative + math.log1p(share) + 2 * UNIT * size_of_log)


def check_against(what: Expected, result: Any) -> None:
    """Check that (output, logsumexp) equal the expected ones within their bounds."""
    output, logsumexp = (np.asarray(x, np.float64) for x in result)
    assert (np.abs(output - what.output) <= what.output_error).all()
    none = np.isneginf(what.logsumexp)
    assert (np.isneginf(logsumexp) == none).all()
    assert (output[none] == 0.0).all()
    with np.errstate(invalid="ignore"):
        error = np.abs(logsumexp - what.logsumexp)
    assert (error[~none] <= what.logsumexp_error[~none]).all()


def check(query: Any, key: Any, value: Any, bias: Any, result: Any, *more: Any, **kw: Any) -> None:
    """Check that (output, logsumexp) equal the reference within the bounds of `expected`."""
    assert result[0].dtype == query.dtype
    check_against(expected(query, key, value, bias, *more, **kw), result)
