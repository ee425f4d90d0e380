"""The kernel form of slopes that a scaling stretches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ntk_alibi.biases.kernel_bias import KernelBias
from ntk_alibi.biases.slopes import ModelSlopes, Sides
from ntk_alibi.masks import Problem
from ntk_alibi.scaling import Scaling, is_dynamic


def bias_for_counts(
    rule: ModelSlopes,
    scaling: Scaling | None,
    sides: Sides,
    counts: NDArray[np.int64] | None,
    exempt: int = 0,
) -> KernelBias:
    """Return the bias from a family's slopes for token counts; None with a static scaling."""
    return KernelBias(*rule.left_and_right(sides, scaling, counts), exempt=exempt)


def token_counts(scaling: Scaling | None, problem: Problem) -> NDArray[np.int64] | None:
    """Return the token counts for a dynamic scaling, None for a static one."""
    return problem.token_counts() if is_dynamic(scaling) else None
