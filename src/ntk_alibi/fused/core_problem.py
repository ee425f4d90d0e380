"""Checked problems as the objects that the compiled core takes, which calls and layers share.

With exempt tokens there are two objects: for the exempt keys and for the other keys. Scores of
exempt keys, and all scores of exempt queries, have no slope but a constant for each query. Within
one call of the core the constant does not change the softmax, so it is added to the logsumexp
afterwards.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ntk_alibi import _core
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.masks import Problem


class CoreProblem(NamedTuple):
    """A problem in the core, with all keys or a subset of them.

    Attributes:
        core: the core's object.
        shift: added to the logsumexp, (1 or batch, heads, 1 or queries), or None.
        exempt: whether the keys are the exempt ones, of two subsets.
    """

    core: _core.Problem
    shift: NDArray[np.float32] | None = None
    exempt: bool = False


#: A problem with all keys, or two: with the exempt keys and with the others.
CoreProblems = tuple[CoreProblem, ...]


def core_problems(
    bias: KernelBias,
    problem: Problem,
    scale: float,
    skip_tolerance: float | None,
    factors: NDArray[np.float32] | None = None,
) -> CoreProblems:
    """Return a checked problem with its bias of NumPy arrays as objects of the core.

    Args:
        bias: the bias.
        problem: shape, mask, padding and positions.
        scale: the factor of q.k.
        skip_tolerance: the argument of `attention`.
        factors: factors beside the scale, (1 or batch, 1 or heads, queries), or None.
    """
    rest = scale, skip_tolerance, factors
    if not bias.exempt:
        return (CoreProblem(_make(bias, problem, problem.key_padding_mask, *rest)),)
    padding, zero = problem.key_padding_mask, np.float32(0)
    batch, heads, _, keys = problem.shape
    exempt = problem.positions()[1] < bias.exempt
    real = np.ones((batch, keys), np.bool_) if padding is None else padding.astype(np.bool_)
    of_exempt, of_others = ((real & x).view(np.uint8) for x in (exempt, ~exempt))
    rows = exempt_queries(bias, problem)
    flat = {n: np.where(np.isinf(side), side, zero) for n, side in bias.slopes.items()}
    sloped = {n: np.where(rows & ~np.isinf(side), zero, side) for n, side in bias.slopes.items()}
    flat_bias, sloped_bias = (bias._replace(**x) for x in (flat, sloped))
    shifts: list[Any] = [None, None]
    if bias.first is not None:
        first = np.broadcast_to(bias.first[None, :, None], (batch, heads, 1))
        shifts = [np.where(x, -first, zero) for x in shifted_queries(bias, problem)]
    return (
        CoreProblem(_make(flat_bias, problem, of_exempt, *rest), shifts[0], True),
        CoreProblem(_make(sloped_bias, problem, of_others, *rest), shifts[1]),
    )


def _make(
    bias: KernelBias,
    problem: Problem,
    key_mask: NDArray[np.uint8] | None,
    scale: float,
    skip_tolerance: float | None,
    factors: NDArray[np.float32] | None,
) -> _core.Problem:
    """Return the core's object of a problem with the keys of a mask."""
    segments = None
    if problem.segment_ids is not None:
        columns = ((x.rows, x.queries, x.keys) for x in problem.segments())
        bounds = [(x.start, x.stop) for segment in columns for x in segment]
        segments = np.array(bounds, np.int64).reshape(-1, 6)
    return _core.Problem(
        problem.shape,
        problem.mask.to_integers(),
        bias.in_core(),
        scale,
        skip_tolerance,
        factors,
        problem.query_positions,
        problem.key_positions,
        key_mask,
        None if problem.visible is None else problem.visible.in_core(),
        segments,
    )


def exempt_queries(bias: KernelBias, problem: Problem) -> NDArray[np.bool_]:
    """Return which queries are exempt, (1 or batch, 1, queries) bool."""
    exempt: NDArray[np.bool_] = (problem.positions()[0] < bias.exempt)[:, None]
    return exempt


def shifted_queries(
    bias: KernelBias, problem: Problem
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the queries whose scores `first` lowers: with the first key, and with other keys.

    The first token's score with itself has no constant. Queries before the first token, which exist
    if there are more queries than keys, have it with all keys.
    """
    itself: NDArray[np.bool_] = (problem.positions()[0] == 0)[:, None]
    return ~itself, exempt_queries(bias, problem)
