"""The kernel form of slopes that a scaling stretches."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ntk_alibi._backends import backend_of
from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.biases.slopes import ModelSlopes, Sides
from ntk_alibi.masks import Problem
from ntk_alibi.scaling import KneeShape, Scaling, is_dynamic, split_knee


def bias_for_counts(
    rule: ModelSlopes,
    scaling: Scaling | None,
    sides: Sides,
    counts: NDArray[np.int64] | None,
    exempt: int = 0,
) -> KernelBias:
    """Return the bias from a family's slopes for token counts; None with a static scaling."""
    knee = split_knee(scaling)[1]
    bias = KernelBias(*rule.left_and_right(sides, scaling, counts), exempt=exempt)
    return bias if knee is None else with_knee(bias, knee.for_lengths(counts))


def with_knee(bias: KernelBias, knee: KneeShape) -> KernelBias:
    """Return a linear bias with a knee."""
    backend = backend_of(bias.left)
    xp = backend.xp

    def far(side: Any) -> Any:
        """Return the slopes beyond the knee; the values for a hidden side have no effect."""
        slopes = knee.far_slopes(xp.where(xp.isinf(side), xp.zeros_like(side), side))
        return backend.cast(slopes, side.dtype)

    with backend.without_warnings():  # checks refuse slopes beyond float32's range later
        left, right = far(bias.left), far(bias.right)
    return bias._replace(far_left=left, far_right=right, knee=knee.start)


def token_counts(scaling: Scaling | None, problem: Problem) -> NDArray[np.int64] | None:
    """Return the token counts for a dynamic scaling, None for a static one."""
    return problem.token_counts() if is_dynamic(scaling) else None
