"""Gradients of attention against the reference's, with bounds on the errors of the kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import ntk_alibi as na
from attention_checks import ROUNDING, UNIT, of_all_heads, random, score_errors
from ntk_alibi.fused.gradients import AttentionGradients, attention_gradients

Floats = NDArray[np.float64]


def run(
    arrays: list[Any], bias: Any, options: dict[str, Any], *, with_log: bool = True
) -> tuple[AttentionGradients, NDArray[Any], NDArray[Any] | None]:
    """Return gradients for random gradients of output and logsumexp, and the random ones."""
    query = arrays[0]
    output, log = na.attention(*arrays, bias, **options, return_logsumexp=True)
    do = random(20, *query.shape).astype(query.dtype)
    dl = random(21, *query.shape[:3]) if with_log else None
    result = attention_gradients(*arrays, output, log, do, dl, bias, bias_gradient=True, **options)
    return result, do, dl


class Problem(NamedTuple):
    """A problem in float64, with keys repeated for all query heads; hidden keys are 0."""

    query: Floats
    key: Floats
    value: Floats
    bias: Floats  # dense, -inf where masked
    do: Floats
    dl: Floats
    scale: float
    scores: Floats | None = None  # dense, unless they are scale q.k


class Pairs(NamedTuple):
    """Weights, sizes and errors of all pairs, (batch, heads, queries, keys)."""

    weights: Floats
    sizes: Floats  # of ds, as sums of magnitudes
    weight_errors: Floats
    errors: Floats  # of ds
    factors: Floats  # of dropout


class Expected(NamedTuple):
    """Gradients of the reference, and bounds on the difference of the kernels from them."""

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
    *,
    dropout: float = 0.0,
    seed: int = 0,
) -> Expected:
    """Return gradients of (query, key, value) and of the dense bias, and bounds; u = 2^-24.

    Kernels sum 64 keys at a time, and the queries of a tile, at most 32; each block or tile then
    adds some u. In bfloat16, weights and ds may be rounded to bfloat16 before they meet rows.

    If q and k were rotated and multiplied, `rotated` holds the scores of all pairs and the
    gradients. Rotation and its transpose err by 20 u of the greatest number that they can make of a
    pair of channels, sqrt(2) |(x_1, x_2)|. Scale includes the greatest factor; keys' gradients are
    sums over runs of queries.
    """
    query, key = arrays[:2]
    name = "bfloat16" if query.dtype == ml_dtypes.bfloat16 else query.dtype.name
    group = query.shape[1] // key.shape[1]
    share = 0.0 if tolerance is None else max(tolerance, UNIT)
    p = _problem(arrays, bias, do, dl, scale)
    reach: Callable[[Floats], Floats] = np.abs
    turning = 0.0
    if rotated is None:
        *exact, ds = na.reference.attention_gradients(*p[:7], dropout=dropout, seed=seed)
        exact[1:] = (_over_group(x, group) for x in exact[1:])
    else:
        p, exact = p._replace(scores=rotated[0]), rotated[1]
        *_, ds = na.reference.attention_gradients(
            0 * p.query, *p[1:3], p.bias + rotated[0], *p[4:6], dropout=dropout, seed=seed
        )
        reach, turning = _turned, UNIT * (20 + query.shape[2])
    factors = np.ones(p.bias.shape)
    if dropout:
        factors = na.reference.dropout_factors(p.bias.shape, dropout, seed)
    pairs = _pairs(p, share, name, factors)
    over_keys = UNIT * (72 + key.shape[2] / 16) + turning
    over_queries = UNIT * (40 + group * query.shape[2] / 8) + turning
    rounding = ROUNDING[name] if name == "bfloat16" else 0.0
    ds_errors = pairs.errors + rounding * (np.abs(ds) + pairs.errors)
    back = (ds_errors + over_queries * pairs.sizes).swapaxes(-1, -2)
    weight_errors = pairs.weight_errors + rounding * (pairs.weights + pairs.weight_errors)
    errors = [
        abs(p.scale) * (ds_errors + over_keys * pairs.sizes) @ reach(p.key),
        abs(p.scale) * back @ reach(p.query),
        (pairs.factors * (weight_errors + over_queries * pairs.weights)).swapaxes(-1, -2)
        @ np.abs(p.do),
    ]
    errors[1:] = (_over_group(x, group) for x in errors[1:])
    smallest = 2.0**-25 if name == "float16" else 2.0**-100
    rounded = (
        error + 2 * ROUNDING[name] * (np.abs(gradient) + error) + smallest
        for gradient, error in zip(exact, errors, strict=True)
    )
    return Expected(tuple(exact), tuple(rounded), ds, pairs)


def _turned(x: Floats) -> Floats:
    """Return the greatest values that rotation can make of each pair of channels 2m, 2m + 1."""
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    reach: Floats = np.repeat(math.sqrt(2) * np.sqrt((pairs**2).sum(-1)), 2, axis=-1)
    return reach


def _problem(
    arrays: list[Any], bias: NDArray[Any], do: Any, dl: Any, scale: float | None
) -> Problem:
    query, key, value, bias = of_all_heads(*arrays, bias)
    dl = np.zeros(query.shape[:3]) if dl is None else np.asarray(dl, np.float64)
    scale = 1 / math.sqrt(query.shape[3]) if scale is None else scale
    return Problem(query, key, value, bias, np.asarray(do, np.float64), dl, scale)


def _over_group(x: Floats, group: int) -> Floats:
    batch, heads, *rest = x.shape
    result: Floats = x.reshape(batch, heads // group, group, *rest).sum(axis=2)
    return result


def _pairs(p: Problem, share: float, name: str, factors: Floats) -> Pairs:
    """Return weights and ds, and their errors.

    Skipped keys, here and in the forward pass, weigh at most `share` of all of a query's keys.
    do.v errs by (D + 8) u of its magnitude. do.o errs by the error of the output, which is rounded,
    in bfloat16 from rounded weights. ds errs by the weight's error, too.
    """
    scores = p.scale * p.query @ p.key.swapaxes(-1, -2) if p.scores is None else p.scores
    _, log = na.reference.attention(0 * p.query, p.key, p.value, p.bias + scores)
    log = np.where(np.isneginf(log), 0.0, log)[..., None]
    weights = np.exp(scores + p.bias - log)
    relative = _weight_error(p, log) + share / (1 - share)
    weight_errors = weights * relative + np.minimum(weights, share) + 2.0**-100
    products = factors * (np.abs(p.do) @ np.abs(p.value).swapaxes(-1, -2))
    mean = (weights * products).sum(axis=-1, keepdims=True)
    dl = np.abs(p.dl)[..., None]
    rounding = {"float32": 1, "float16": 1, "bfloat16": 2}[name] * ROUNDING[name]
    product_error = UNIT * (p.query.shape[3] + 8)
    mean_error = (relative + rounding + product_error) * mean + 2 * share * _greatest(products)
    if name == "float16":
        mean_error = mean_error + 2.0**-25 * np.abs(p.do).sum(axis=-1, keepdims=True)
    factor_error = product_error * products + mean_error + 4 * UNIT * (mean + dl)
    sizes = weights * (products + mean + dl)
    errors = weight_errors * (products + mean + dl + factor_error) + weights * factor_error
    return Pairs(weights, sizes, weight_errors, errors, factors)


def _weight_error(p: Problem, log: Floats) -> Floats:
    """Return the relative error of weights, (batch, heads, queries, 1), without skipping.

    Scores err by what `score_errors` says: twice in the forward pass's logsumexp, and once here.
    The logsumexp is rounded, and so is its difference to the score.
    """
    turned = p.scores is not None
    score, size = (x[..., None] for x in score_errors(*p[:2], p.bias, p.scale, turned=turned))
    error: Floats = np.expm1(
        UNIT * (3 * score + 4 * (size + np.abs(log)) + 2 * (72 + p.key.shape[2] / 16) + 16)
    )
    return error


def _greatest(values: Floats) -> Floats:
    greatest: Floats = values.max(axis=-1, initial=0.0, keepdims=True)
    return greatest


def check_gradients(what: Expected, result: AttentionGradients) -> None:
    """Check that gradients of query, key and value equal the expected ones within their bounds."""
    for mine, theirs, error in zip(
        (result.query, result.key, result.value), what.gradients, what.errors, strict=True
    ):
        assert (np.abs(np.asarray(mine, np.float64) - theirs) <= error).all()


def check_linear(what: Expected, result: AttentionGradients, distance: Floats) -> None:
    """Check that slopes' gradients are sums of -ds times the distance over their side."""
    pairs = what.pairs
    errors = pairs.errors + UNIT * (80 + distance.shape[-1] / 16) * pairs.sizes
    behind, ahead = np.maximum(distance, 0), np.maximum(-distance, 0)
    for mine, reach in ((result.left, behind), (result.right, ahead)):
        assert mine is not None
        assert (np.abs(mine + (what.ds * reach).sum(-1)) <= (errors * reach).sum(-1)).all()
