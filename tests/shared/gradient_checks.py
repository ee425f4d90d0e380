"""Gradients of attention against the reference's, and by how much kernels may differ from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import ntk_alibi as na
from attention_checks import ROUNDING, UNIT, random
from ntk_alibi.fused.gradients import AttentionGradients, attention_gradients

Floats = NDArray[np.float64]


def run(
    arrays: list[Any], bias: Any, options: dict[str, Any], *, with_log: bool = True
) -> tuple[AttentionGradients, NDArray[Any], NDArray[Any] | None]:
    """Gradients for random gradients of output and logsumexp, and those."""
    query = arrays[0]
    output, log = na.attention(*arrays, bias, **options, return_logsumexp=True)
    do = random(20, *query.shape).astype(query.dtype)
    dl = random(21, *query.shape[:3]) if with_log else None
    result = attention_gradients(*arrays, output, log, do, dl, bias, bias_gradient=True, **options)
    return result, do, dl


class Problem(NamedTuple):
    """A problem in float64, with as many heads of keys as of queries; 0 for keys nobody sees."""

    query: Floats
    key: Floats
    value: Floats
    bias: Floats  # of all pairs, -inf where masked
    do: Floats
    dl: Floats
    scale: float
    scores: Floats | None = None  # of all pairs, where they are not scale q.k


class Pairs(NamedTuple):
    """Of all pairs, (batch, heads, queries, keys)."""

    weights: Floats
    sizes: Floats  # of ds, by the magnitudes it is made of
    weight_errors: Floats
    errors: Floats  # of ds


class Expected(NamedTuple):
    """What the reference says, and by how much the kernels may differ from it."""

    gradients: tuple[Floats, Floats, Floats]
    errors: tuple[Floats, Floats, Floats]
    ds: Floats
    pairs: Pairs


def expected(
    arrays: list[Any],
    bias: NDArray[Any],
    do: NDArray[Any],
    dl: NDArray[Any] | None,
    scale: float | None = None,
    tolerance: float | None = 0.0,
    rotated: tuple[Floats, list[Floats]] | None = None,
) -> Expected:
    """Gradients of (query, key, value) and of the bias of all pairs, and bounds; u = 2^-24.

    Sums over keys are of 64 at a time, those over queries of a tile's, at most 32; each sum, then,
    some u for each block or tile.

    Scores of all pairs and the gradients are given where q and k were rotated and multiplied. That
    and the way back err by 20 u of what the numbers of a pair of channels can be turned to: by
    sqrt(2) |(x_1, x_2)|. Scale includes the greatest factor; keys' gradients are sums over runs of
    queries.
    """
    query, key = arrays[:2]
    name = "bfloat16" if query.dtype == ml_dtypes.bfloat16 else query.dtype.name
    group = query.shape[1] // key.shape[1]
    share = 0.0 if tolerance is None else max(tolerance, UNIT)
    p = _problem(arrays, bias, do, dl, scale)
    reach: Callable[[Floats], Floats] = np.abs
    turning = 0.0
    if rotated is None:
        *exact, ds = na.reference.attention_gradients(*p[:7])
        exact[1:] = (_over_group(x, group) for x in exact[1:])
    else:
        p, exact = p._replace(scores=rotated[0]), rotated[1]
        *_, ds = na.reference.attention_gradients(
            0 * p.query, *p[1:3], p.bias + rotated[0], *p[4:6]
        )
        reach, turning = _turned, UNIT * (20 + query.shape[2])
    pairs = _pairs(p, share, name)
    over_keys = UNIT * (72 + key.shape[2] / 16) + turning
    over_queries = UNIT * (40 + group * query.shape[2] / 8) + turning
    back = (pairs.errors + over_queries * pairs.sizes).swapaxes(-1, -2)
    errors = [
        abs(p.scale) * (pairs.errors + over_keys * pairs.sizes) @ reach(p.key),
        abs(p.scale) * back @ reach(p.query),
        (pairs.weight_errors + over_queries * pairs.weights).swapaxes(-1, -2) @ np.abs(p.do),
    ]
    errors[1:] = (_over_group(x, group) for x in errors[1:])
    smallest = 2.0**-25 if name == "float16" else 2.0**-100
    rounded = (
        error + 2 * ROUNDING[name] * (np.abs(gradient) + error) + smallest
        for gradient, error in zip(exact, errors, strict=True)
    )
    return Expected(tuple(exact), tuple(rounded), ds, pairs)


def _turned(x: Floats) -> Floats:
    """Return what the two numbers of each pair of channels, 2m and 2m + 1, can be turned to."""
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    reach: Floats = np.repeat(math.sqrt(2) * np.sqrt((pairs**2).sum(-1)), 2, axis=-1)
    return reach


def _problem(
    arrays: list[Any], bias: NDArray[Any], do: Any, dl: Any, scale: float | None
) -> Problem:
    query, key, value = (np.asarray(x, np.float64) for x in arrays)
    group = query.shape[1] // key.shape[1]
    key, value = (np.repeat(x, group, axis=1) for x in (key, value))
    bias = np.broadcast_to(np.asarray(bias, np.float64), (*query.shape[:3], key.shape[2]))
    unseen = np.isneginf(bias).all(axis=2)[..., None]
    key, value = (np.where(unseen, 0.0, x) for x in (key, value))  # NaN of padding is not ours
    dl = np.zeros(query.shape[:3]) if dl is None else np.asarray(dl, np.float64)
    scale = 1 / math.sqrt(query.shape[3]) if scale is None else scale
    return Problem(query, key, value, bias, np.asarray(do, np.float64), dl, scale)


def _over_group(x: Floats, group: int) -> Floats:
    batch, heads, *rest = x.shape
    result: Floats = x.reshape(batch, heads // group, group, *rest).sum(axis=2)
    return result


def _pairs(p: Problem, share: float, name: str) -> Pairs:
    """Weights and ds, and their errors.

    What is skipped, here and in the forward pass, weighs at most `share` in all of a query's keys.
    do.v errs by (D + 8) u of its magnitude; do.o by that of the output, which comes rounded, in
    bfloat16 of rounded weights; ds by the weight's error too.
    """
    scores = p.scale * p.query @ p.key.swapaxes(-1, -2) if p.scores is None else p.scores
    _, log = na.reference.attention(0 * p.query, p.key, p.value, p.bias + scores)
    log = np.where(np.isneginf(log), 0.0, log)[..., None]
    weights = np.exp(scores + p.bias - log)
    relative = _weight_error(p, log) + share / (1 - share)
    weight_errors = weights * relative + np.minimum(weights, share) + 2.0**-100
    products = np.abs(p.do) @ np.abs(p.value).swapaxes(-1, -2)
    own = (weights * products).sum(axis=-1, keepdims=True)
    dl = np.abs(p.dl)[..., None]
    rounding = {"float32": 1, "float16": 1, "bfloat16": 2}[name] * ROUNDING[name]
    product_error = UNIT * (p.query.shape[3] + 8)
    own_error = (relative + rounding + product_error) * own + 2 * share * _greatest(products)
    if name == "float16":
        own_error = own_error + 2.0**-25 * np.abs(p.do).sum(axis=-1, keepdims=True)
    factor_error = product_error * products + own_error + 4 * UNIT * (own + dl)
    sizes = weights * (products + own + dl)
    errors = weight_errors * (products + own + dl + factor_error) + weights * factor_error
    return Pairs(weights, sizes, weight_errors, errors)


def _weight_error(p: Problem, log: Floats) -> Floats:
    """Relative to the weight, (batch, heads, queries, 1), without skipping.

    Scores err by (D + 8) u A + 4 u (A + |bias|), A = |scale| |q| |k|, where keys whose bias is
    below the greatest by 2 A + 104 weigh nothing; twice in the forward pass's logsumexp, and once
    here. Scores of rotated q and k err by 10 u A more. The logsumexp is rounded, and so is what is
    subtracted from it.
    """
    keys, dim = p.key.shape[2:]
    seen = ~np.isneginf(p.bias)
    q_norm, k_norm = (np.sqrt((x**2).sum(-1)) for x in (p.query, p.key))
    size = abs(p.scale) * q_norm[..., None] * _greatest(np.where(seen, k_norm[:, :, None, :], 0.0))
    top = np.abs(p.bias.max(axis=-1, initial=-np.inf, keepdims=True))
    far = np.where(np.isinf(top), 0.0, top) + 2 * size + 104
    far = np.minimum(_greatest(np.where(seen, np.abs(p.bias), 0.0)), far)
    score = (dim + (8 if p.scores is None else 18)) * size + 4 * (size + far)
    error: Floats = np.expm1(
        UNIT * (3 * score + 4 * (size + far + np.abs(log)) + 2 * (72 + keys / 16) + 16)
    )
    return error


def _greatest(numbers: Floats) -> Floats:
    greatest: Floats = numbers.max(axis=-1, initial=0.0, keepdims=True)
    return greatest


def check_gradients(what: Expected, result: AttentionGradients) -> None:
    """That gradients of query, key and value are the expected ones to within their bounds."""
    for mine, theirs, error in zip(
        (result.query, result.key, result.value), what.gradients, what.errors, strict=True
    ):
        assert (np.abs(np.asarray(mine, np.float64) - theirs) <= error).all()


def check_linear(what: Expected, result: AttentionGradients, distance: Floats) -> None:
    """That those of slopes are sums of ds times minus the distance, for what their side sees."""
    pairs = what.pairs
    errors = pairs.errors + UNIT * (80 + distance.shape[-1] / 16) * pairs.sizes
    behind, ahead = np.maximum(distance, 0), np.maximum(-distance, 0)
    for mine, reach in ((result.left, behind), (result.right, ahead)):
        assert mine is not None
        assert (np.abs(mine + (what.ds * reach).sum(-1)) <= (errors * reach).sum(-1)).all()


def check_dense(what: Expected, result: AttentionGradients) -> None:
    """That those of a bias of all pairs are ds."""
    assert result.dense is not None
    assert (np.abs(result.dense - what.ds) <= what.pairs.errors).all()


def over_diagonals(pairs: NDArray[Any], index: NDArray[Any], size: int) -> NDArray[np.float64]:
    """Sums over all pairs whose index is in [0, size), (heads, size)."""
    sums = np.zeros((pairs.shape[1], size))
    inside = (index >= 0) & (index < size)
    for head, numbers in zip(sums, pairs.sum(axis=0), strict=True):
        np.add.at(head, index[inside], numbers[inside])
    return sums


def running(what: NDArray[Any], sign: float) -> NDArray[np.float64]:
    """Sums over each query's row, at its position, and sign times those over each key's column."""
    sums = sign * what.sum(axis=2)
    sums[..., what.shape[3] - what.shape[2] :] += what.sum(axis=3)
    return sums
